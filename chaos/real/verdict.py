"""What a run's history shows: what must not be, what its mode permits, what wasn't decided.

The checkers know nothing of modes (`chaos.checkers`), the modes nothing of checkers
(`chaos.real.weaker`); a run and a later look at its report come to the same verdict here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from chaos.checkers.anomalies import Anomaly, find_anomalies
from chaos.checkers.history import History
from chaos.checkers.linearizability import check_linearizability
from chaos.real.retired import excuse_retired
from chaos.real.weaker import PowerCut, permitted
from dledger.outcome import ExitCode


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a history shows: what must not be, what its mode permits, what wasn't decided."""

    anomalies: list[Anomaly]
    excused: list[Anomaly]
    remarks: list[str]
    undecided: list[str]


def ending(found: Collection[object], undecided: Collection[object]) -> ExitCode:
    """How a run ends in which that was `found`. One of which something is undecided doesn't hold:
    what it promised may be broken there."""
    if found:
        return ExitCode.FAILED
    return ExitCode.INCOMPLETE if undecided else ExitCode.DONE


def untested(
    *, acknowledged: int, planned: int, struck: int, members: int, handled: Mapping[str, int]
) -> list[str]:
    """What a run can't be said to hold for: it never came to it.

    Args:
        acknowledged: messages.
        planned: strikes of the schedule; `struck`: those that hit somebody.
        members: of each consumer group.
        handled: messages, by consumer group.
    """
    found = [] if acknowledged else ["no message was acknowledged: nothing was tested"]
    if planned and not struck:
        found.append("no fault hit anybody: nothing was tested")
    if members and not handled:
        found.append("what the groups' members did isn't known: their books weren't closed")
    idle = [name for name, count in handled.items() if not count]
    return found + [f"group {name} handled no message: nothing of it was tested" for name in idle]


def judge(history: History, cuts: Sequence[PowerCut]) -> Verdict:
    """The anomalies in the history.

    Args:
        cuts: power cuts that may have taken what was acknowledged (`chaos.real.weaker`).
    """
    explained = check_linearizability(history)
    anomalies, remarks = [*find_anomalies(history), *explained.anomalies], []
    anomalies, excused = permitted(anomalies, history, cuts)
    anomalies, retired = excuse_retired(anomalies, history)
    for each, why in (
        (excused, "flush is async and power was cut"),
        (retired, "old messages go, and nobody had read these"),
    ):
        if each:
            named = Counter(anomaly.name for anomaly in each)
            words = ", ".join(f"{count:,} × {name}" for name, count in named.items())
            remarks.append(f"permitted, since {why}: {words}")
    undecided = [f"linearizability wasn't decided: {each}" for each in explained.undecided]
    return Verdict(anomalies, excused + retired, remarks, undecided)

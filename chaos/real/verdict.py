"""What a run's history shows: what must not be, what its mode permits, what wasn't decided.

The checkers know nothing of modes (`chaos.checkers`), the modes nothing of checkers
(`chaos.real.weaker`); a run and a later look at its report come to the same verdict here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
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

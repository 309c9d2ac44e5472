"""What a run's history shows: what must not be, what its mode permits, what wasn't decided.

The checkers know nothing of modes (`chaos.checkers`), the modes nothing of checkers
(`chaos.real.weaker`); a run and a later look at its report come to the same verdict here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.checkers.anomalies import Anomaly, find_anomalies, find_resumes
from chaos.checkers.history import History, Send
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


ANSWERS: Final = frozenset({"TOPIC_EXISTS", "TOPIC_NOT_FOUND"})  # refusals that tell the state
ENOUGH_CALLS: Final = 5  # of one kind, of which one at least is to be answered


def unanswered(history: History, healed_us: int) -> list[str]:
    """What didn't work any more, or never did, though nothing that was told is wrong.

    Args:
        healed_us: nothing was wrong from then on; 0: it never came to that.
    """
    found = []
    operations = history.operations
    sends = [each for each in operations if isinstance(each.action, Send)]
    if healed_us and not any(each.is_ok for each in sends if each.invoked_us >= healed_us):
        found.append("no message was acknowledged that was sent when all was well again")
    asked: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for each in operations:
        kind = type(each.action).__name__.lower()
        asked[kind] += 1
        answered[kind] += each.is_ok or each.refusal in ANSWERS
    return found + [
        f"none of {count:,} calls was answered: {kind}"
        for kind, count in asked.items()
        if count >= ENOUGH_CALLS and not answered[kind]
    ]


def judge(history: History, cuts: Sequence[PowerCut]) -> Verdict:
    """The anomalies in the history.

    Args:
        cuts: power cuts that may have taken what was acknowledged (`chaos.real.weaker`).
    """
    explained = check_linearizability(history)
    anomalies = [*find_anomalies(history), *find_resumes(history), *explained.anomalies]
    remarks: list[str] = []
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

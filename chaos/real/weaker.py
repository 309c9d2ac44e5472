"""What `flush = "async"` permits after a power cut, and nothing beyond it.

An asynchronous group acknowledges what a majority has written, and syncs within ten seconds. So a
power cut may take what was acknowledged shortly before it, and everything that follows from a log
whose tail is gone: offsets given out twice, readers that saw what is there no more, ends and
commits that went back. What it may never do stays forbidden: to lose what was acknowledged long
before, to invent messages, to give a reader messages out of order within one answer. Without a
power cut it promises what the synchronous mode does: the page cache survives a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.checkers.anomalies import Anomaly
from chaos.checkers.history import History, Operation, Send

# `store.flusher.THOROUGH_FLUSH_S` after the write everything is synced; the rest is what a busy
# machine's flusher may be late.
WINDOW_US: Final = 12_000_000
HEARD_US: Final = 1_000_000  # after the last node is dead, what it had said by then
LOSSES: Final = frozenset({"lost-write", "unseen"})
CONSEQUENCES: Final = frozenset(
    {
        *("duplicate", "inconsistent-offsets", "nonmonotonic-poll", "poll-skip"),
        *("nonmonotonic-send", "stale-read", "not-linearizable"),
    }
)


@dataclass(frozen=True, slots=True)
class PowerCut:
    """When the nodes were struck, and when the last of them was dead; µs of the run's clock."""

    start_us: int
    struck_us: int


def may_be_lost(sent: Operation, cuts: Iterable[PowerCut]) -> bool:
    """Whether a message that was acknowledged may be gone. What a node has said before it died is
    heard after that, where the client has much to do."""
    heard_us = sent.completed_us or 0
    return any(
        cut.start_us - WINDOW_US <= heard_us
        and (sent.invoked_us if heard_us <= cut.struck_us + HEARD_US else heard_us) <= cut.struck_us
        for cut in cuts
    )


def permitted(
    anomalies: Sequence[Anomaly], history: History, cuts: Sequence[PowerCut]
) -> tuple[list[Anomaly], list[Anomaly]]:
    """The anomalies that remain, and those that the weaker mode permits, which are those of which
    it permits everything that shows them."""
    numbered = {operation.op: operation for operation in history.operations}
    remain: list[Anomaly] = []
    excused: list[Anomaly] = []
    for anomaly in anomalies:
        for each in (anomaly, *anomaly.also):
            shown = [numbered[number] for number in each.operations if number in numbered]
            if not _is_permitted(each.name, shown, cuts):
                remain.append(each)
                break
        else:
            excused.append(anomaly)
    return remain, excused


def _is_permitted(name: str, shown: Sequence[Operation], cuts: Sequence[PowerCut]) -> bool:
    if name in LOSSES:
        sends = [each for each in shown if isinstance(each.action, Send)]
        return bool(sends) and all(may_be_lost(each, cuts) for each in sends)
    if name not in CONSEQUENCES:
        return False
    return any(_straddle(shown, cut) for cut in cuts)


def _straddle(shown: Sequence[Operation], cut: PowerCut) -> bool:
    """Whether the operations may show a log before and after it has lost its tail: one of them
    lies where its traces may be gone, and one ends later. What was synced long before the cut, and
    what only began after it, contradict each other for another reason."""
    earliest_us = cut.start_us - WINDOW_US
    may_be_gone = any(
        each.invoked_us <= cut.struck_us
        and (each.completed_us is None or each.completed_us >= earliest_us)
        for each in shown
    )
    ended_us = max((each.completed_us or each.invoked_us for each in shown), default=0)
    return may_be_gone and ended_us >= cut.start_us

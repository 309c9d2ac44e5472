"""What it means for a run that old messages go: what may be missing, and what may not have gone.

The last reading begins with each queue's first message, and the history says which that was. What
was acknowledged before it, and seen by no consumer while it was there, nobody can judge: it is
told, and is no anomaly. Who lets go of more than was asked for is found by the log's bytes: whole
segments go, the oldest first, as long as the log with them is longer than it may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.checkers.anomalies import Anomaly
from chaos.checkers.history import History, Poll, Send
from chaos.flips.places import start_of_log
from chaos.real.arena import SEGMENT_BYTES
from chaos.real.weaker import LOSSES

READER: Final = "reader"  # `chaos.real.reading`'s last one
SLACK_SEGMENTS: Final = 16  # until a member has snapshots that let it follow


def first_kept(history: History) -> dict[tuple[str, int], int]:
    """By topic and queue: the offset with which the last reading began."""
    found: dict[tuple[str, int], int] = {}
    for operation in history.operations:
        action = operation.action
        if operation.process == READER and isinstance(action, Poll) and action.seek:
            found[action.topic, action.queue_id] = action.offset
    return found


def excuse_retired(
    anomalies: Sequence[Anomaly], history: History
) -> tuple[list[Anomaly], list[Anomaly]]:
    """The anomalies that remain, and those that only say that a message went before anybody had
    read it."""
    first = first_kept(history)
    numbered = {operation.op: operation for operation in history.operations}
    remain: list[Anomaly] = []
    excused: list[Anomaly] = []
    for anomaly in anomalies:
        sends = [numbered[number] for number in anomaly.operations if number in numbered]
        gone = anomaly.name in LOSSES and all(
            isinstance(each.action, Send)
            and isinstance(each.result, int)
            and each.result < first.get((each.action.topic, each.action.queue_id), 0)
            for each in sends
        )
        (excused if gone and sends else remain).append(anomaly)
    return remain, excused


def check_retained(
    directories: Mapping[str, Path], log_end: int, retain_bytes: int
) -> tuple[list[str], str]:
    """What of the members' logs went that had to stay, or stayed that had to go; and how they
    begin, in words."""
    wrong = []
    starts = {name: start_of_log(directory) for name, directory in sorted(directories.items())}
    for name, start in starts.items():
        kept = log_end - start
        if start and kept <= retain_bytes - SEGMENT_BYTES:
            wrong.append(f"{name} let go of too much: {kept:,} bytes of {log_end:,} are left")
        if kept > retain_bytes + SLACK_SEGMENTS * SEGMENT_BYTES:
            wrong.append(f"{name} lets nothing go: it holds {kept:,} bytes of {log_end:,}")
    begins = ", ".join(f"{name} at byte {start:,}" for name, start in starts.items())
    return wrong, f"the logs end at byte {log_end:,} and begin: {begins}"

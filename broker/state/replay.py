"""The state machine at start: replay what is known to be committed.

The state machine lives in memory, so a start replays the log from its first entry up to the
index that the ConsumeQueues are known to hold durably; the rest follows once a leader says what
is committed. The ConsumeQueues are not written while replaying: they are there. Afterwards
they are compared with the state, and if anything is missing they are dropped and derived again
from the log, to the same bytes (ADR 7). It must never take ConsumeQueues on trust that the log
doesn't bear out (RocketMQ #7355, #7599, #8032).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from broker.state.machine import USUAL, MachineOptions, QueueFiles, StateMachine
from dledger.errors import ApplyStopped
from dledger.level import KNOWN_LEVEL

SLICE_BYTES = 4 << 20

log = structlog.get_logger(__name__)


class ReplayLog(Protocol):
    """The log, as far as replaying reads it."""

    @property
    def last_index(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    def position_of(self, index: int) -> int: ...
    def read(self, first: int, last: int) -> bytes: ...
    def read_at(self, physical_offset: int, size: int) -> bytes: ...
    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int: ...


class DerivedQueues(QueueFiles, Protocol):
    """The ConsumeQueues, as far as checking and dropping them goes."""

    def recover(self, keep_below: int, read_at: Callable[[int, int], bytes]) -> None: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def queues(self) -> list[tuple[str, int]]: ...
    def flush(self) -> None: ...


def replay_derived(
    source: ReplayLog,
    queues: DerivedQueues,
    derived_through: int,
    distrust: Callable[[], None],
    known_level: int = KNOWN_LEVEL,
    options: MachineOptions = USUAL,
) -> StateMachine:
    """The state machine as of entry `derived_through`, with ConsumeQueues that agree with it.

    Args:
        source: the recovered log; entries up to `derived_through` are committed.
        queues: the ConsumeQueues as an earlier life left them, not yet recovered.
        derived_through: every entry up to it was dispatched and made durable; clipped to the
            log's end.
        distrust: makes the next start derive everything again. Called before the queues are
            dropped: those derived here are on no disk yet, and after a power cut some of their
            pages would be and some not.
        known_level: of formats and commands. The state ends in front of an entry that raises it
            further, and the ConsumeQueues are left as they are: nobody reads them then.

    Raises:
        StorageFull: the ConsumeQueues have to be derived again, and don't fit.
    """
    derived_through = min(derived_through, source.last_index)
    keep_below = source.end_offset
    if derived_through < source.last_index:
        keep_below = source.position_of(derived_through + 1)
    queues.recover(keep_below, source.read_at)
    machine = StateMachine(
        queues, derived_through=derived_through, options=options, known_level=known_level
    )
    try:
        _replay(source, machine, derived_through)
    except ApplyStopped:
        return machine  # It will meet the same entry again when it is to go on, and say so.
    reason = _disagreement(machine, queues)
    if reason is None:
        return machine
    log.warning("consume_queues_rebuilt", reason=reason, through_index=derived_through)
    distrust()
    for topic in dict.fromkeys(name for name, _ in queues.queues()):  # in order, unlike a set
        queues.delete_topic(topic)
    queues.flush()  # The space of the old ones is needed for the new ones.
    machine = StateMachine(queues, options=options, known_level=known_level)
    _replay(source, machine, derived_through)
    return machine


def _replay(source: ReplayLog, machine: StateMachine, through: int) -> None:
    first = 1
    while first <= through:
        last = source.last_that_fits(first, through, SLICE_BYTES)
        machine.replay(source.read(first, last))
        first = last + 1


def _disagreement(machine: StateMachine, queues: DerivedQueues) -> str | None:
    """How the files differ from what the log says they hold; None if they don't."""
    expected = {
        (topic.folder, queue_id): offset
        for topic in machine.topics.values()
        for queue_id, offset in enumerate(topic.next_offsets)
    }
    for (topic, queue_id), offset in expected.items():
        held = queues.max_offset(topic, queue_id)
        if held != offset:
            return f"{topic}/{queue_id} holds {held} units, the log has {offset}"
    surplus = [name for name in queues.queues() if name not in expected]
    return f"{surplus[0][0]}/{surplus[0][1]} is in no topic" if surplus else None

"""The state machine at start: replay what is known to be committed, and look at what was derived.

The state machine lives in memory, so a start replays the log from its first entry up to the
index that the ConsumeQueues are known to hold durably; the rest follows once a leader says what
is committed. The ConsumeQueues are not written meanwhile: each entry's units are compared with
those that their files hold. A queue that is wrong anywhere is told to the caller, who has it mended
while the replica works (ADR 28); no other queue is touched. It must never take ConsumeQueues on
trust that the log doesn't bear out (RocketMQ #7355, #7599, #8032).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from broker.state.machine import USUAL, MachineOptions, QueueFiles, StateMachine
from broker.state.topics import TopicState
from dledger.errors import ApplyStopped
from dledger.level import KNOWN_LEVEL
from store.starting.derived import recover_queues

SLICE_BYTES = 4 << 20

FolderKey = tuple[str, int]  # of a topic's derived files, queue id

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
    """The ConsumeQueues, as far as comparing them with the log goes."""

    def recover(self, keep_below: int, read_at: Callable[[int, int], bytes]) -> None: ...
    def holds(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> bool: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def queues(self) -> list[FolderKey]: ...
    def expect(self, topic: str, queue_id: int, next_offset: int) -> None: ...


@dataclass(frozen=True, slots=True)
class WrongQueue:
    """A queue whose files are not what the log says."""

    topic: TopicState
    queue_id: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """The state, and the queues that are to be mended."""

    machine: StateMachine
    wrong: tuple[WrongQueue, ...]


def replay_derived(
    source: ReplayLog,
    queues: DerivedQueues,
    derived_through: int,
    known_level: int = KNOWN_LEVEL,
    options: MachineOptions = USUAL,
) -> Replayed:
    """The state machine as of entry `derived_through`. The ConsumeQueues are its queues and no
    others, and reach as far as it says; those that are returned are wrong somewhere.

    Args:
        source: the recovered log; entries up to `derived_through` are committed.
        queues: the ConsumeQueues as an earlier life left them, not yet recovered.
        derived_through: every entry up to it was dispatched and made durable; clipped to the
            log's end.
        known_level: of formats and commands. The state ends in front of an entry that raises it
            further, and the ConsumeQueues are left as they are: nobody reads them then.

    Raises:
        StorageFull: a topic's files can't be put aside.
    """
    derived_through = recover_queues(source, queues, derived_through)
    compared = _Compared(queues)
    machine = StateMachine(compared, options=options, known_level=known_level)
    try:
        _replay(source, machine, derived_through)
    except ApplyStopped:
        # It will meet the same entry again when it is to go on, and say so.
        compared.is_over = True
        return Replayed(machine, ())
    compared.is_over = True
    wrong = _drop_strays(machine, queues) | compared.wrong
    found: list[WrongQueue] = []
    for topic in machine.topics.values():
        for queue_id, end in enumerate(topic.next_offsets):
            key = (topic.folder, queue_id)
            reach = (queues.min_offset(*key), queues.max_offset(*key))
            if key in wrong or reach != (0, end):
                queues.expect(*key, end)
                found.append(WrongQueue(topic, queue_id))
    return Replayed(machine, tuple(found))


def _replay(source: ReplayLog, machine: StateMachine, through: int) -> None:
    first = 1
    while first <= through:
        last = source.last_that_fits(first, through, SLICE_BYTES)
        machine.replay(source.read(first, last))
        first = last + 1


def _drop_strays(machine: StateMachine, queues: DerivedQueues) -> set[FolderKey]:
    """Files of queues that are in no topic are gone; which queues have lost theirs by that."""
    counts = {topic.folder: len(topic.next_offsets) for topic in machine.topics.values()}
    strays = {folder for folder, queue_id in queues.queues() if queue_id >= counts.get(folder, 0)}
    lost = {key for key in queues.queues() if key[0] in strays}
    for name in sorted(strays):
        log.warning("consume_queues_of_no_topic_removed", folder=name)
        queues.delete_topic(name)
    return lost


class _Compared:
    """`QueueFiles` of a machine that replays: nothing is written, and what differs is noted. Once
    that is over everything goes on to the queues."""

    def __init__(self, queues: DerivedQueues) -> None:
        self.is_over = False
        self.wrong: set[FolderKey] = set()
        self._queues = queues

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        if self.is_over:
            self._queues.dispatch(topic, queue_id, base_queue_offset, units)
        elif (topic, queue_id) not in self.wrong and not self._queues.holds(
            topic, queue_id, base_queue_offset, units
        ):
            self.wrong.add((topic, queue_id))

    def delete_topic(self, topic: str) -> None:
        if self.is_over:
            self._queues.delete_topic(topic)
        else:
            # Files of that name, should there be any, are a later topic's.
            self.wrong = {key for key in self.wrong if key[0] != topic}

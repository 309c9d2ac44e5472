"""The state machine at start: replay what is known to be committed, and look at what was derived.

The state machine lives in memory, so a start replays the log from its first entry, or from behind a
snapshot's, up to the index that the ConsumeQueues are known to hold durably; the rest follows once
a leader says what is committed. The ConsumeQueues are not written meanwhile: each entry's units are
compared with those that their files hold, many at once (ADR 27), and what lies before a snapshot by
the CRC of it that the state holds (ADR 38). A queue that is wrong anywhere is told to the
caller, who has it mended while the replica works (ADR 28); no other queue is touched, but what lies
behind its end is cut. It must never take ConsumeQueues on
trust that the log doesn't bear out (RocketMQ #7355, #7599, #8032).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import structlog

from broker.state.machine import StateMachine
from broker.state.queue_files import QueueFiles
from broker.state.topics import TopicState
from dledger.errors import ApplyStopped
from store.errors import StorageFull

SLICE_BYTES = 4 << 20
GATHERED_BYTES = 16 << 20  # of units that are compared at once, over all queues

FolderKey = tuple[str, int]  # of a topic's derived files, queue id
# The first offset of a queue's units that are held, and the CRC32C of all before.
QueueStarts = Mapping[FolderKey, tuple[int, int]]
NOTHING = (0, 0)
NO_STARTS: QueueStarts = MappingProxyType({})

log = structlog.get_logger(__name__)


class ReplayLog(Protocol):
    """The log, as far as replaying reads it."""

    @property
    def last_index(self) -> int: ...
    def read(self, first: int, last: int) -> bytes: ...
    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int: ...


class DerivedQueues(QueueFiles, Protocol):
    """The ConsumeQueues, as far as comparing them with the log goes."""

    def look(self) -> None: ...
    def folders(self) -> list[str]: ...
    def holds(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> bool: ...
    def bears_out(
        self, topic: str, queue_id: int, count: int, crc: int, first: int, before: int
    ) -> bool: ...
    def settle(self, topic: str, queue_id: int) -> bool: ...
    def expect(self, topic: str, queue_id: int, next_offset: int, first: int) -> None: ...
    def drop_unneeded(self, topic: str, queue_id: int) -> bool: ...
    def drop_stray(self, topic: str) -> None: ...


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
    begin: Callable[[QueueFiles], StateMachine] = StateMachine,
    starts: QueueStarts = NO_STARTS,
) -> Replayed:
    """The state machine as of entry `derived_through`. The ConsumeQueues are its queues and no
    others, and reach as far as it says; those that are returned are wrong somewhere.

    Args:
        source: the recovered log; entries up to `derived_through` are committed.
        queues: the ConsumeQueues as an earlier life left them, not yet recovered.
        derived_through: every entry up to it was dispatched and made durable; clipped to the
            log's end.
        begin: the machine that goes on: an empty one, or one restored as of an entry up to
            `derived_through`. It ends in front of an entry that raises the level beyond what it
            knows, and the ConsumeQueues are left as they are: nobody reads them then.
        starts: where queues begin whose first units are of entries that are gone.
    """
    derived_through = min(derived_through, source.last_index)
    queues.look()
    compared = _Compared(queues, starts)
    machine = begin(compared)
    compared.prove_later(machine)
    try:
        _replay(source, machine, derived_through)
    except ApplyStopped:
        # It will meet the same entry again when it is to go on, and say so.
        compared.is_over = True
        return Replayed(machine, ())
    compared.is_over = True
    _drop_strays(machine, queues)
    found: list[WrongQueue] = []
    for topic in machine.topics.values():
        for queue_id, end in enumerate(topic.next_offsets):
            key = (topic.folder, queue_id)
            queues.expect(*key, end, starts.get(key, NOTHING)[0])
            while queues.drop_unneeded(*key):
                pass
            if not compared.is_right(*key) or not queues.settle(*key):
                found.append(WrongQueue(topic, queue_id))
    return Replayed(machine, tuple(found))


def starts_of(base: StateMachine) -> dict[FolderKey, tuple[int, int]]:
    """Where queues begin in a log that begins behind the entry that `base` is as of."""
    return dict(each_start(base))


def each_start(base: StateMachine) -> Iterator[tuple[FolderKey, tuple[int, int]]]:
    """The same, one by one."""
    for topic in base.topics.values():
        ends = zip(topic.next_offsets, topic.units_crcs, strict=True)
        for queue_id, (end, crc) in enumerate(ends):
            if end:
                yield (topic.folder, queue_id), (end, crc)


def _replay(source: ReplayLog, machine: StateMachine, through: int) -> None:
    first = machine.applied_index + 1
    while first <= through:
        last = source.last_that_fits(first, through, SLICE_BYTES)
        machine.replay(source.read(first, last))
        first = last + 1


def _drop_strays(machine: StateMachine, queues: DerivedQueues) -> None:
    """Files of no topic are gone: nobody reads them. Where a full disk takes no rename they stay
    until the next start, which no start fails for (ADR 28): a topic of the name writes its own."""
    strays = set(queues.folders()) - {topic.folder for topic in machine.topics.values()}
    for name in sorted(strays):
        try:
            queues.drop_stray(name)
        except StorageFull as error:
            log.warning("consume_queues_of_no_topic_stay", folder=name, reason=str(error))
            continue
        log.warning("consume_queues_of_no_topic_removed", folder=name)


class _Compared:
    """`QueueFiles` of a machine that replays: nothing is written, and what differs is noted. Units
    are gathered over many entries, so that a file is opened once for all of them. Once that is over
    everything goes on to the queues."""

    def __init__(self, queues: DerivedQueues, starts: QueueStarts) -> None:
        self.is_over = False
        self._starts = starts
        self.wrong: set[FolderKey] = set()
        self._queues = queues
        # By folder and queue id: the first one's queue offset, and the units that follow it.
        self._gathered: dict[str, dict[int, tuple[int, bytearray]]] = {}
        self._gathered_bytes = 0
        # How many units each queue had where the replay begins, and their CRC.
        self._before: dict[FolderKey, tuple[int, int]] = {}

    def prove_later(self, machine: StateMachine) -> None:
        """What the machine's queues hold so far is to be compared, too."""
        for topic in machine.topics.values():
            ends = zip(topic.next_offsets, topic.units_crcs, strict=True)
            for queue_id, (end, crc) in enumerate(ends):
                if end:
                    self._before[topic.folder, queue_id] = end, crc

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        if self.is_over:
            self._queues.dispatch(topic, queue_id, base_queue_offset, units)
            return
        queues = self._gathered.setdefault(topic, {})
        gathered = queues.get(queue_id)
        if gathered is None:
            gathered = queues[queue_id] = (base_queue_offset, bytearray())
        gathered[1].extend(units)
        self._gathered_bytes += len(units)
        if self._gathered_bytes >= GATHERED_BYTES:
            self._compare()

    def delete_topic(self, topic: str) -> None:
        if self.is_over:
            self._queues.delete_topic(topic)
            return
        # Files of that name, should there be any, are a later topic's.
        self._gathered.pop(topic, None)
        if self.wrong:
            self.wrong = {key for key in self.wrong if key[0] != topic}

    def is_right(self, topic: str, queue_id: int) -> bool:
        """Whether all units so far were in the queue's files; compares those that it gathered, and
        those before, which it does once."""
        key = (topic, queue_id)
        before = self._before.pop(key, None)
        start = self._starts.get(key, NOTHING)
        if before is not None and not self._queues.bears_out(*key, *before, *start):
            self.wrong.add(key)
        gathered = self._gathered.get(topic, {}).pop(queue_id, None)
        if gathered is not None and key not in self.wrong:
            base, units = gathered
            if not self._queues.holds(*key, base, bytes(units)):
                self.wrong.add(key)
        return key not in self.wrong

    def _compare(self) -> None:
        for topic, queues in self._gathered.items():
            for queue_id in list(queues):
                self.is_right(topic, queue_id)
        self._gathered.clear()
        self._gathered_bytes = 0

"""The replicated state machine: topics, queues, consumer offsets, producer sequences.

Every node applies the same committed entries in the same order and so holds the same state;
nothing that a failover needs is anywhere else (promise 4). Applying must be a pure function of
the log and of the state before it: no clock (time is the entry's append time), no randomness,
no configuration that differs between nodes may decide anything here.

`apply` also derives the ConsumeQueues (D7). Entries up to `derived_through` were derived and made
durable by an earlier life of the process: while those are replayed only the state is rebuilt
(`broker.replay` then compares the files with it).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from google.protobuf.message import DecodeError

from dledger.core.errors import InvariantViolation
from dledger.core.types import EntryKind
from dledger.ports import ApplyPaused
from dledger.reading.entry import HEADER_SIZE, EntryHeader, parse_header
from dledger.records.record import BATCH_PREAMBLE
from dledger.wire.commands_pb2 import Command, CommitOffsetsCommand
from store.dispatch import units_for_entry
from store.errors import StorageFull

RECENT_BATCHES = 5  # per producer and queue: how many unacknowledged batches can be retried
NO_PRODUCER = bytes(16)
TOO_MANY = "too many"
OUT_OF_RANGE = "out of range"
TOPIC_GONE = -1  # in place of a queue id: the topic was deleted


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Where a batch was stored; what a retry of it is answered with."""

    base_sequence: int
    count: int
    base_queue_offset: int
    base_physical_offset: int
    store_time_ms: int


@dataclass(slots=True)
class SequenceState:
    """What is remembered of one producer in one queue."""

    next_sequence: int = 0
    last_seen_ms: int = 0
    recent: deque[StoredBatch] = field(default_factory=lambda: deque(maxlen=RECENT_BATCHES))


@dataclass(slots=True)
class TopicState:
    """A topic and the next queue offset of each of its queues."""

    name: str
    created_time_ms: int
    next_offsets: list[int]


SequenceKey = tuple[bytes, str, int]  # producer id, topic, queue id
QueueKey = tuple[str, int]


class QueueFiles(Protocol):
    """The ConsumeQueues, as far as the state machine uses them (`store.ConsumeQueues`)."""

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None: ...
    def delete_topic(self, topic: str) -> None: ...


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What applying a command gave: an error name for the proposer, or nothing."""

    index: int
    refusal: str


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Bounds of the replicated state. They decide what is forgotten, so every node of a group
    must have the same: they are constants of the format, not configuration."""

    sequence_expiry_ms: int = 7 * 24 * 3600 * 1000
    max_sequences: int = 50_000  # producer-queue pairs; the longest unused is forgotten first
    max_queues: int = 100_000  # over all topics
    max_progress: int = 100_000  # group-topic pairs with committed offsets


@dataclass(frozen=True, slots=True)
class MachineStatistics:
    topics: int
    queues: int
    sequences: int
    groups: int
    messages_applied: int
    entries_applied: int


class StateMachine:
    """Topics, offsets and sequences, as of the last applied entry."""

    def __init__(
        self,
        queues: QueueFiles,
        *,
        derived_through: int = 0,
        options: MachineOptions = MachineOptions(),
    ) -> None:
        """Starts empty, before entry 1.

        Args:
            queues: where units go.
            derived_through: entries up to this index are in the ConsumeQueues already.
            options: bounds.
        """
        self.topics: dict[str, TopicState] = {}
        self.offsets: dict[str, dict[str, dict[int, int]]] = {}  # group, topic, queue
        self.sequences: OrderedDict[SequenceKey, SequenceState] = OrderedDict()
        self.applied_index = 0
        self.append_time_ms = 0
        self._queues = queues
        self._derived_through = derived_through
        self._options = options
        self._messages = 0
        self._arrived: Callable[[QueueKey], None] = lambda _: None
        self._completed: Callable[[CommandResult], None] = lambda _: None

    def listen(
        self,
        arrived: Callable[[QueueKey], None],
        completed: Callable[[CommandResult], None],
    ) -> None:
        """Tells `arrived` of each queue that got messages, `completed` of each command."""
        self._arrived = arrived
        self._completed = completed

    def apply(self, frames: bytes) -> None:
        """Applies whole frames, back to back, in index order.

        Raises:
            InvariantViolation: an entry that does not follow the last one, or that no version
                of this program wrote.
            ApplyPaused: the ConsumeQueues found no space; the entries up to `applied_index` are
                applied, of the next one nothing is.
        """
        try:
            self.replay(frames)
        except StorageFull as error:
            raise ApplyPaused(self.applied_index, str(error)) from error

    def replay(self, frames: bytes) -> None:
        """`apply`, for a start, which can't wait for space. Raises StorageFull instead."""
        at = 0
        while at < len(frames):
            header = parse_header(frames, at)
            if header.index != self.applied_index + 1:
                raise InvariantViolation(
                    f"entry {header.index} can't be applied after {self.applied_index}"
                )
            self._apply_entry(header, frames, at)
            at += header.total_size

    def _apply_entry(self, header: EntryHeader, frames: bytes, at: int) -> None:
        before = self.applied_index, self.append_time_ms
        self.applied_index = header.index
        self.append_time_ms = header.append_time_ms
        try:
            if header.kind == EntryKind.DATA:
                self._apply_data(header, frames, at)
            elif header.kind == EntryKind.COMMAND:
                body = frames[at + HEADER_SIZE : at + header.total_size]
                self._completed(CommandResult(header.index, self._apply_command(header, body)))
        except StorageFull:
            # The files come first in every entry: nothing else has changed.
            self.applied_index, self.append_time_ms = before
            raise

    # --- messages -----------------------------------------------------------------------------

    def _apply_data(self, header: EntryHeader, frames: bytes, at: int) -> None:
        frame = frames[at : at + header.total_size]
        topic_name, queue_id, base, units = units_for_entry(header, frame)
        topic = self.topics.get(topic_name)
        if topic is None:
            # Its topic was deleted before it: void on every replica, and its producer is told.
            # A leader doesn't let this happen; if one ever does, it must not stop the group.
            self._completed(CommandResult(header.index, "not found"))
            return
        if queue_id >= len(topic.next_offsets):
            raise InvariantViolation(
                f"entry {header.index} is for {topic_name}/{queue_id}, which doesn't exist"
            )
        if base != topic.next_offsets[queue_id]:
            raise InvariantViolation(
                f"entry {header.index} starts {topic_name}/{queue_id} at queue offset {base}, "
                f"the next one is {topic.next_offsets[queue_id]}"
            )
        if header.index > self._derived_through:
            self._queues.dispatch(topic_name, queue_id, base, units)
        topic.next_offsets[queue_id] = base + header.record_count
        self._remember(header, frames, at, (topic_name, queue_id, base))
        self._messages += header.record_count
        self._arrived((topic_name, queue_id))

    def _remember(
        self, header: EntryHeader, frames: bytes, at: int, place: tuple[str, int, int]
    ) -> None:
        producer, base_sequence = BATCH_PREAMBLE.unpack_from(frames, at + HEADER_SIZE)
        if producer == NO_PRODUCER:
            return
        topic, queue_id, base_queue_offset = place
        key = (producer, topic, queue_id)
        state = self.sequences.get(key)
        if state is None:
            # New, or forgotten while this entry was on its way: the leader's check stands.
            state = self.sequences[key] = SequenceState(next_sequence=base_sequence)
        if base_sequence != state.next_sequence:
            raise InvariantViolation(
                f"entry {header.index} holds sequence {base_sequence} of producer "
                f"{producer.hex()}, the next one is {state.next_sequence}"
            )
        physical = header.physical_offset + HEADER_SIZE + BATCH_PREAMBLE.size
        state.recent.append(
            StoredBatch(
                base_sequence,
                header.record_count,
                base_queue_offset,
                physical,
                header.append_time_ms,
            )
        )
        state.next_sequence = base_sequence + header.record_count
        state.last_seen_ms = header.append_time_ms
        self.sequences.move_to_end(key)
        self._forget_sequences()

    def _forget_sequences(self) -> None:
        """Drops expired and surplus sequences; the order of use in the log decides."""
        horizon = self.append_time_ms - self._options.sequence_expiry_ms
        while self.sequences:
            oldest = next(iter(self.sequences))
            surplus = len(self.sequences) > self._options.max_sequences
            if not surplus and self.sequences[oldest].last_seen_ms >= horizon:
                return
            del self.sequences[oldest]

    # --- commands -----------------------------------------------------------------------------

    def _apply_command(self, header: EntryHeader, body: bytes) -> str:
        """Applies one command; the refusal, or an empty text when it took effect."""
        try:
            command = Command.FromString(body)
        except DecodeError as error:
            raise InvariantViolation(f"entry {header.index} is no command: {error}") from error
        match command.WhichOneof("body"):
            case "create_topic":
                create = command.create_topic
                return self._create_topic(create.name, create.queue_count)
            case "delete_topic":
                return self._delete_topic(header, command.delete_topic.name)
            case "commit_offsets":
                return self._commit_offsets(command.commit_offsets)
            case other:
                raise InvariantViolation(f"entry {header.index}: unknown command {other}")

    def _create_topic(self, name: str, queue_count: int) -> str:
        if name in self.topics:
            return "exists"
        queues = sum(len(topic.next_offsets) for topic in self.topics.values())
        if queues + queue_count > self._options.max_queues:
            return TOO_MANY
        self.topics[name] = TopicState(name, self.append_time_ms, [0] * queue_count)
        return ""

    def _delete_topic(self, header: EntryHeader, name: str) -> str:
        if name not in self.topics:
            return "not found"
        if header.index > self._derived_through:
            self._queues.delete_topic(name)
        del self.topics[name]
        for topics in self.offsets.values():
            topics.pop(name, None)
        self.offsets = {group: topics for group, topics in self.offsets.items() if topics}
        for key in [key for key in self.sequences if key[1] == name]:
            del self.sequences[key]
        self._arrived((name, TOPIC_GONE))
        return ""

    def _commit_offsets(self, command: CommitOffsetsCommand) -> str:
        """Offsets move forward only, unless the command is a reset (RocketMQ #7790, #3210)."""
        topic = self.topics.get(command.topic)
        if topic is None:
            return "not found"
        ends = topic.next_offsets
        if any(w.queue_id >= len(ends) or w.offset > ends[w.queue_id] for w in command.offsets):
            return OUT_OF_RANGE  # the topic was deleted and made anew since this was proposed
        topics = self.offsets.get(command.group, {})
        if command.topic not in topics and self._progress_count() >= self._options.max_progress:
            return TOO_MANY
        offsets = self.offsets.setdefault(command.group, {}).setdefault(command.topic, {})
        for wanted in command.offsets:
            if command.reset or wanted.offset > offsets.get(wanted.queue_id, -1):
                offsets[wanted.queue_id] = wanted.offset
        return ""

    def _progress_count(self) -> int:
        return sum(len(topics) for topics in self.offsets.values())

    def statistics(self) -> MachineStatistics:
        """A frozen picture, as of the last applied entry."""
        return MachineStatistics(
            topics=len(self.topics),
            queues=sum(len(topic.next_offsets) for topic in self.topics.values()),
            sequences=len(self.sequences),
            groups=len(self.offsets),
            messages_applied=self._messages,
            entries_applied=self.applied_index,
        )

"""The replicated state machine: gives each entry to the owners of state, in the order of the log.

Every node applies the same committed entries in the same order and so holds the same state;
nothing that a failover needs is anywhere else. Applying must be a pure function of the log and of
the state before it: no clock (time is the entry's append time), no randomness, no configuration
that differs between nodes may decide anything here. What it means has a version, `APPLYING`, that
snapshots carry: a change of it is a change of that.

This takes entries apart by their kind, and data is applied here; commands are in
`broker.state.commands`, units in `broker.state.units`. All owners are in `broker.state.replicated`;
what one command does to several of them is in `broker.state.effects`, `consuming` and `delivering`.

`apply` also derives the ConsumeQueues ([ADR 7](docs/adr/0007-derived-files-are-disposable.md)).
Entries up to `derived_through` were derived and made durable by an earlier life of the process:
while those are replayed only the state is rebuilt (`broker.state.replay` then compares the files
with it).

    entry                what it does
    data                 queue files, then the topic's queue, then its producer's numbers
    data that is void    nothing; whoever waits for it is told why
    units                each by itself, as one: queue files, queues, its commands (ADR 54)
    create topic         topics
    delete topic         queue files, then topics, offsets, producers
    commit offsets       offsets, bounded by where the topic's queues end
    register producer    producers
    forget producers     producers, those that are unused for long
    move log start       log_start: entries before it may go (ADR 43)
    retain topic         topic_retention: how long its messages are wanted (ADR 48)
    update topic         topics, queue_numbers (`broker.state.resizing`; ADR 60)
    move queue starts    topic_retention: what may be read of a topic's queues
    permit topic         topic_permissions: what may be done with it (ADR 62)
    make topic           topics, topic_retention, topic_permissions: all of it, or nothing
    send back, resend,
    fire delayed         retries, leases, offsets (`broker.state.retrying`); only in a unit
    fail message         attempts, leases, offsets (the same; ADR 63); only in a unit
    settle units         outcomes: the log says which units were refused; only in a unit
    join, end, grant,
    commit, forget       groups, leases, offsets (`broker.state.consuming`; ADR 55)
    move, clone group    the same (`broker.state.moving`; ADR 61)
    deliver              deliveries, offsets (`broker.state.delivering`; ADR 57); only in a unit
    raise level          level; stops in front of one that this program doesn't know (ADR 23)
    configuration        nothing; the sessions of all groups end if it was forced (ADR 52)
    no-op                nothing
    anything else        nothing: void, and told

Each of them moves `lived_time` on. The files come first in every entry: if the disk is full,
nothing of it has happened.

Data is void where its records aren't what they say, where its topic, its queue or its producer
isn't there, where the topic isn't the one of that name that it was proposed for (ADR 24), or where
it doesn't continue its queue or its producer's numbers. A leader proposes no such entry (ADR 20,
ADR 25); if one ever does, all replicas refuse it alike and go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from broker.state import offsets, topics
from broker.state.commands import Commands, LevelUnknown
from broker.state.compound import NO_PRODUCER
from broker.state.effects import Effects
from broker.state.errors import SnapshotDamaged, SnapshotOfLaterLevel, SnapshotUnknown
from broker.state.listening import Listener
from broker.state.queue_files import QueueFiles
from broker.state.recovered import begins_epoch
from broker.state.refusals import BatchRefusal, Malformed, TopicNotFound
from broker.state.registration import STANDARD, ProducerBounds, could_be_given
from broker.state.replicated import ReplicatedState
from broker.state.sequences import StoredBatch
from broker.state.units import Units
from dledger.core.errors import InvariantViolation
from dledger.core.types import EntryKind
from dledger.errors import ApplyPaused, ApplyStopped
from dledger.level import DELIVERY_LEVEL, KNOWN_LEVEL
from dledger.ports import never_enough
from dledger.reading.entry import HEADER_SIZE, EntryHeader, parse_header, preamble_of
from dledger.records.errors import FormatError
from store.dispatch import units_for_entry
from store.errors import DivergenceFound, StorageFull


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Bounds of the replicated state. They decide what is refused and forgotten, so every node of a
    group must have the same: they are constants of the format, not configuration."""

    max_queues: int = topics.MAX_QUEUES  # over all topics
    max_progress: int = offsets.MAX_PROGRESS  # group-topic pairs with committed offsets
    producers: ProducerBounds = STANDARD


USUAL: Final = MachineOptions()


@dataclass(frozen=True, slots=True)
class MachineStatistics:
    topics: int
    queues: int
    producers: int
    sequences: int
    groups: int
    progress: int
    offsets: int
    joined_groups: int
    members: int
    leases: int
    finished_ranges: int
    unfinished: int
    handouts: int
    resent_ranges: int
    messages_applied: int
    entries_applied: int
    entries_void: int
    level: int
    known_level: int


class StateMachine:
    """Topics, offsets and producers, as of the last applied entry."""

    def __init__(
        self,
        queues: QueueFiles,
        *,
        derived_through: int = 0,
        options: MachineOptions = USUAL,
        known_level: int = KNOWN_LEVEL,
    ) -> None:
        """Starts empty, before entry 1.

        Args:
            queues: where units go.
            derived_through: entries up to this index are in the ConsumeQueues already.
            options: bounds.
            known_level: of formats and commands; tests and simulators play other releases.
        """
        state = ReplicatedState(options.max_queues, options.max_progress, options.producers)
        self.state = state
        self.options = options
        self.level = state.level
        self.lived_time = state.lived_time
        self.topics = state.topics
        self.offsets = state.offsets
        self.producers = state.producers
        self.log_start = state.log_start
        self.topic_retention = state.topic_retention
        self.queue_numbers = state.queue_numbers
        self.topic_permissions = state.topic_permissions
        self.outcomes = state.outcomes
        self.groups = state.groups
        self.leases = state.leases
        self.deliveries = state.deliveries
        self.retries = state.retries
        self.attempts = state.attempts
        self._entries_void = 0  # since this object was made: for operators
        self._known_level = known_level
        self._queues = queues
        self._derived_through = derived_through
        self._effects = Effects(state)
        self._commands = Commands(
            state,
            self._effects,
            queues,
            self._void,
            derived_through=derived_through,
            known_level=known_level,
        )
        self._units = Units(
            state, self._effects, queues, self._void, derived_through=derived_through
        )

    @property
    def applied_index(self) -> int:
        """The last entry that is applied; 0: none."""
        return self.state.applied_index

    @property
    def append_time_ms(self) -> int:
        """When that entry was appended, by the log's clock."""
        return self.state.append_time_ms

    @property
    def messages_applied(self) -> int:
        """Messages that are in queues, or were."""
        return self.state.messages_applied

    def listen(self, listener: Listener) -> None:
        """Tells `listener`, and nobody else, what is applied from now on."""
        self._effects.listener = listener

    def apply(self, frames: bytes, is_enough: Callable[[], bool] = never_enough) -> int:
        """Applies whole frames, back to back, in index order, until it is enough, one at least;
        the last entry that is applied.

        Raises:
            InvariantViolation: an entry that does not follow the last one, or that no version
                of this program wrote.
            ApplyPaused: the ConsumeQueues found no space; the entries up to `applied_index` are
                applied, of the next one nothing is.
            ApplyStopped: the next one needs a newer program; nothing of it is applied.
        """
        try:
            self.replay(frames, is_enough)
        except StorageFull as error:
            raise ApplyPaused(self.applied_index, str(error)) from error
        return self.applied_index

    def replay(self, frames: bytes, is_enough: Callable[[], bool] = never_enough) -> None:
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
            if is_enough():
                return

    def _apply_entry(self, header: EntryHeader, frames: bytes, at: int) -> None:
        state = self.state
        before = state.applied_index, state.append_time_ms, state.lived_time.lived_ms
        state.applied_index = header.index
        state.lived_time.advance(state.append_time_ms, header.append_time_ms)
        state.append_time_ms = header.append_time_ms
        try:
            if not header.is_known:
                self._void(header.index, _unknown(header))
            elif header.is_batch:
                self._apply_data(header, frames[at : at + header.total_size])
            elif header.is_compound:
                self._units.apply(header, frames[at : at + header.total_size])
            elif header.kind == EntryKind.COMMAND:
                body = frames[at + HEADER_SIZE : at + header.total_size]
                refusal = self._commands.apply(header, body)
                self._effects.listener.command_applied(header.index, refusal)
            elif header.kind == EntryKind.CONFIGURATION:
                self._apply_configuration(header, frames[at + HEADER_SIZE : at + header.total_size])
        except LevelUnknown as error:
            self._go_back(before)
            raise ApplyStopped(self.applied_index, error.level, self._known_level) from error
        except StorageFull:
            # The files come first in every entry: nothing else has changed.
            self._go_back(before)
            raise
        except InvariantViolation as error:
            raise InvariantViolation(f"entry {header.index}: {error}") from error

    def _apply_configuration(self, header: EntryHeader, body: bytes) -> None:
        if self.level.current >= DELIVERY_LEVEL and begins_epoch(header.index, body):
            self._effects.consuming.on_recovered(self._effects.now())

    def _go_back(self, before: tuple[int, int, int]) -> None:
        """An entry of which nothing has happened isn't applied, and wasn't lived."""
        state = self.state
        state.applied_index, state.append_time_ms, state.lived_time.lived_ms = before

    # --- messages -----------------------------------------------------------------------------

    def _apply_data(self, header: EntryHeader, frame: bytes) -> None:
        try:
            name, queue_id, base, units = units_for_entry(header, frame)
            producer, sequence, incarnation = preamble_of(header, frame)
        except (FormatError, DivergenceFound) as error:
            self._void_batch(header.index, Malformed(str(error)))
            return
        if not could_be_given(producer, header.index):
            producer = NO_PRODUCER  # of the format before, whose producers named themselves
        topic = self.topics.get(name)
        if topic is None:
            self._void_batch(header.index, TopicNotFound(name))
            return
        refusal: BatchRefusal | None = self.topics.refusal_of(
            topic, queue_id, base, incarnation=incarnation
        )
        refusal = refusal or self.topic_permissions.refusal_of(topic)
        refusal = refusal or self.queue_numbers.refusal_of(name, topic.incarnation, queue_id)
        if refusal is None and producer != NO_PRODUCER:
            place = (topic.incarnation, queue_id)
            refusal = self.producers.refusal_of(producer, place, sequence)
        if refusal is not None:
            self._void_batch(header.index, refusal)
            return
        if header.index > self._derived_through:
            self._queues.dispatch(topic.folder, queue_id, base, units)
        count = header.record_count
        self.topics.advance(topic, queue_id, base + count)
        self.topics.derive(topic, queue_id, units)
        if producer != NO_PRODUCER:
            physical = header.physical_offset + header.first_record_at
            batch = StoredBatch(sequence, count, base, physical, header.append_time_ms)
            place = (topic.incarnation, queue_id)
            self.producers.remember(producer, place, batch, self.lived_time.lived_ms)
        self.state.messages_applied += count
        self._effects.listener.arrived((topic.incarnation, queue_id))

    def _void(self, index: int, refusal: Malformed) -> Malformed:
        """The entry is no batch and changes nothing, on this replica as on every other."""
        self._entries_void += 1
        self._effects.listener.entry_voided(index, refusal)
        return refusal

    def _void_batch(self, index: int, refusal: BatchRefusal) -> None:
        self._entries_void += 1
        self._effects.listener.batch_voided(index, refusal)

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> Iterator[bytes]:
        """The state as it is now, in chunks (`broker.state.snapshot`). Each is made when it is
        taken; entries that are applied meanwhile don't show."""
        return self.state.snapshot()

    @classmethod
    def restore(
        cls,
        chunks: Iterable[bytes],
        queues: QueueFiles,
        *,
        derived_through: int = 0,
        options: MachineOptions = USUAL,
        known_level: int = KNOWN_LEVEL,
        earliest_rules: int | None = None,
    ) -> Self:
        """A machine in the state that `snapshot` gave, ready for the entry behind it.

        Args:
            chunks: all of them, in order.
            queues, derived_through, options, known_level: see `__init__`.
            earliest_rules: see `ReplicatedState.restore`.

        Raises:
            SnapshotRefused: the chunks are no such state; one of its kinds says why.
        """
        machine = cls(
            queues,
            derived_through=derived_through,
            options=options,
            known_level=known_level,
        )
        try:
            machine.state.restore(chunks, earliest_rules)
        except SnapshotUnknown:
            machine._check_level()  # which says what to do about it
            raise
        machine._check_level()
        try:
            machine.check_invariants()
        except InvariantViolation as error:
            raise SnapshotDamaged("state", "one that can be", str(error)) from error
        return machine

    def _check_level(self) -> None:
        """Applied entry by entry, this program would have stopped in front of a raise that it
        doesn't know. Raises SnapshotOfLaterLevel: the state is of behind one."""
        if self.level.current > self._known_level:
            raise SnapshotOfLaterLevel(self.level.current, self._known_level)

    def check_invariants(self) -> None:
        """What holds between any two entries, within each owner and between them. Takes time in
        proportion to the state: for tests, the simulator and a restored state.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        self.state.check_invariants()
        self._effects.check_invariants()

    def statistics(self) -> MachineStatistics:
        """A frozen picture, as of the last applied entry."""
        return MachineStatistics(
            topics=len(self.topics),
            queues=self.topics.queue_count,
            producers=len(self.producers),
            sequences=self.producers.pairs,
            groups=self.offsets.group_count,
            progress=self.offsets.pair_count,
            offsets=self.offsets.queue_count,
            joined_groups=len(self.groups),
            members=self.groups.session_count,
            leases=self.leases.lease_count,
            finished_ranges=self.leases.range_count,
            unfinished=self.deliveries.unfinished,
            handouts=self.deliveries.handout_count,
            resent_ranges=self.retries.range_count,
            messages_applied=self.messages_applied,
            entries_applied=self.applied_index,
            entries_void=self._entries_void,
            level=self.level.current,
            known_level=self._known_level,
        )


def _unknown(header: EntryHeader) -> Malformed:
    return Malformed(f"kind {header.kind} and version {header.version} are of no level in use")

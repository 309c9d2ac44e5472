"""The replicated state machine: gives each entry to the owners of state, in the order of the log.

Every node applies the same committed entries in the same order and so holds the same state;
nothing that a failover needs is anywhere else. Applying must be a pure function of the log and of
the state before it: no clock (time is the entry's append time), no randomness, no configuration
that differs between nodes may decide anything here. What it means has a version, `APPLYING`, that
snapshots carry: a change of it is a change of that. This is the only module that knows all owners
(`level`, `lived_time`, `topics`, `offsets`, `producers`, `groups`, `leases`, `deliveries`,
`attempts`); what one command does to several of them is decided here, in `broker.state.consuming`
and `delivering`.
It is longer than most modules: what is void, what stops and what applies is one decision.

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
    move queue starts    topic_retention: what may be read of a topic's queues
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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol, Self

from google.protobuf.message import DecodeError

from broker.state import (
    attempts,
    deliveries,
    groups,
    leases,
    level,
    lived_time,
    log_start,
    offsets,
    outcomes,
    producers,
    retries,
    topic_retention,
    topics,
)
from broker.state.attempts import Attempts
from broker.state.compound import NO_PRODUCER, Judged, commit_of, judge, plan_of, settlement_of
from broker.state.consuming import At, Consuming
from broker.state.deliveries import Deliveries
from broker.state.delivering import Delivering, Moment, Plan
from broker.state.errors import SnapshotAppliedOtherwise, SnapshotDamaged, SnapshotUnknown
from broker.state.groups import Groups
from broker.state.layout import APPLYING, MACHINE_SECTION
from broker.state.leases import Leases
from broker.state.level import COMMAND_LEVELS, Level
from broker.state.listening import Listener, Nobody
from broker.state.lived_time import LivedTime
from broker.state.log_start import RetiredThrough
from broker.state.moving import Moving
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.outcomes import Outcomes
from broker.state.producers import Producers
from broker.state.recovered import begins_epoch
from broker.state.refusals import BatchRefusal, Malformed, Refusal, TopicNotFound, TopicReplaced
from broker.state.registration import (
    EPOCH_SIZE,
    STANDARD,
    ProducerBounds,
    Registration,
    could_be_given,
)
from broker.state.retries import Queue, Retries
from broker.state.retrying import fail, fired_of, send_back
from broker.state.sequences import StoredBatch, batches_of
from broker.state.snapshot import Chunk, PayloadReader, Section, pack, seal, unseal
from broker.state.topic_retention import TopicRetentions
from broker.state.topics import TopicRef, Topics, TopicState
from dledger.core.errors import InvariantViolation
from dledger.core.types import EntryKind
from dledger.errors import ApplyPaused, ApplyStopped
from dledger.level import (
    COMPOUND_LEVEL,
    DELIVERY_LEVEL,
    FIRST_LEVEL,
    GROUPS_LEVEL,
    KNOWN_LEVEL,
)
from dledger.ports import never_enough
from dledger.reading.entry import HEADER_SIZE, EntryHeader, parse_header, preamble_of
from dledger.records.errors import FormatError
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CreateTopicCommand,
    ForgetGroupsCommand,
    JoinGroupCommand,
    MoveQueueStartsCommand,
    RegisterProducerCommand,
    RetainTopicCommand,
)
from store.dispatch import units_for_entry
from store.errors import DivergenceFound, StorageFull

SECTION: Final = "machine"
_OWN: Final = MACHINE_SECTION.struct()
SECTIONS: Final = (
    SECTION,
    level.SECTION,
    lived_time.SECTION,
    topics.SECTION,
    offsets.SECTION,
    producers.SECTION,
)
# Behind them, in this order, if there is anything to say.
OPTIONAL_SECTIONS: Final = (
    log_start.SECTION,
    topic_retention.SECTION,
    outcomes.SECTION,
    *groups.OWN_SECTIONS,
    *leases.OWN_SECTIONS,
    *deliveries.OWN_SECTIONS,
    *retries.OWN_SECTIONS,
    *attempts.OWN_SECTIONS,
)


class _LevelUnknown(Exception):
    """The level would be raised beyond what this program knows: `apply` ends in front of it."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.level = level


class QueueFiles(Protocol):
    """`store.consumequeue.ConsumeQueues`, as far as the state machine uses them."""

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None: ...
    def delete_topic(self, topic: str) -> None: ...


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
    members: int
    leases: int
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
        self.lived_time = LivedTime()
        self.topics = Topics(max_queues=options.max_queues)
        self.offsets = Offsets(max_progress=options.max_progress)
        self.producers = Producers(options.producers)
        self.options = options
        self.level = Level()
        self.log_start = RetiredThrough()
        self.topic_retention = TopicRetentions()
        self.outcomes = Outcomes()
        self.groups = Groups()
        self.leases = Leases()
        self.deliveries = Deliveries()
        self.retries = Retries()
        self.attempts = Attempts()
        self.applied_index = 0
        self.append_time_ms = 0
        self.messages_applied = 0
        self._entries_void = 0  # since this object was made: for operators
        self._known_level = known_level
        self._queues = queues
        self._derived_through = derived_through
        self._listener: Listener = Nobody()
        self._consuming = Consuming(
            *(self.groups, self.leases, self.offsets, self.attempts),
            self._meant,
            self._on_group_changed,
        )
        self._moving = Moving(
            *(self.groups, self.leases, self.offsets, self.attempts),
            self._meant,
            self._on_group_changed,
        )
        self._delivering = Delivering(self.deliveries, self.offsets, self.groups)

    def listen(self, listener: Listener) -> None:
        """Tells `listener`, and nobody else, what is applied from now on."""
        self._listener = listener

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
        before = self.applied_index, self.append_time_ms, self.lived_time.lived_ms
        self.applied_index = header.index
        self.lived_time.advance(self.append_time_ms, header.append_time_ms)
        self.append_time_ms = header.append_time_ms
        try:
            if not header.is_known:
                self._void(header.index, _unknown(header))
            elif header.is_batch:
                self._apply_data(header, frames[at : at + header.total_size])
            elif header.is_compound:
                self._apply_units(header, frames[at : at + header.total_size])
            elif header.kind == EntryKind.COMMAND:
                body = frames[at + HEADER_SIZE : at + header.total_size]
                refusal = self._apply_command(header, body)
                self._listener.command_applied(header.index, refusal)
            elif header.kind == EntryKind.CONFIGURATION:
                self._apply_configuration(header, frames[at + HEADER_SIZE : at + header.total_size])
        except _LevelUnknown as error:
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
            self._consuming.on_recovered(self._now())

    def _go_back(self, before: tuple[int, int, int]) -> None:
        """An entry of which nothing has happened isn't applied, and wasn't lived."""
        self.applied_index, self.append_time_ms, self.lived_time.lived_ms = before

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
        self.messages_applied += count
        self._listener.arrived((topic.incarnation, queue_id))

    # --- units --------------------------------------------------------------------------------

    def _apply_units(self, header: EntryHeader, frame: bytes) -> None:
        """Applies each unit of a compound entry, or refuses it; see `broker.state.compound`."""
        if self.level.current < COMPOUND_LEVEL:
            self._void(header.index, Malformed("units are of a level above the one in use"))
            return
        try:
            units = judge(self, header, frame)
        except FormatError as error:
            self._void(header.index, Malformed(str(error)))
            return
        if header.index > self._derived_through:
            self._derive_units(units)
        for unit in units:
            for batch in unit.batches:
                self.topics.advance(batch.topic, batch.queue_id, batch.end)
                self.topics.derive(batch.topic, batch.queue_id, batch.units)
                self.messages_applied += batch.record_count
        for unit in units:
            for command in unit.commands:
                self._take_effect(command)
        if header.record_count:
            refused = (n for n, each in enumerate(units) if each.refusal and each.batches)
            self.outcomes.note(header.index, refused)
        for unit in units:
            for batch in unit.batches:
                self._listener.arrived((batch.topic.incarnation, batch.queue_id))
        self._listener.units_applied(header.index, units)

    def _derive_units(self, units: Sequence[Judged]) -> None:
        """All that the entry does to files. Done again after a disk was full it is the same."""
        ended = {
            command.delete_topic.name
            for unit in units
            for command in unit.commands
            if command.HasField("delete_topic")
        }
        for unit in units:
            for batch in unit.batches:
                if batch.topic.name not in ended:
                    folder = batch.topic.folder
                    self._queues.dispatch(folder, batch.queue_id, batch.base, batch.units)
        for name in sorted(ended):
            self._queues.delete_topic(self.topics[name].folder)

    def _take_effect(self, command: Command) -> None:
        """A command of a unit that was judged; all files are as they are to be."""
        match command.WhichOneof("body"):
            case "commit_offsets":
                body = command.commit_offsets
                refusal = self._commit(commit_of(body), self.topics[body.topic])
                if refusal is not None:
                    raise InvariantViolation(f"a unit's commit was judged, and is {refusal}")
            case "delete_topic":
                self._end_topic(self.topics[command.delete_topic.name])
            case "deliver":
                at = self._moment()
                plan = plan_of(self, command.deliver, at)
                if not isinstance(plan, Plan):
                    raise InvariantViolation(f"a unit's deliveries were judged, and are {plan}")
                topic = self.topics[command.deliver.topic]
                self._delivering.deliver(plan, topic, command.deliver.group, at)
            case "settle_units":
                self.outcomes.settle(settlement_of(command.settle_units))
            case "send_back":
                sent = command.send_back
                send_back(self, sent, self.topics[sent.topic], self.lived_time.lived_ms)
            case "fail_message":
                failed = command.fail_message
                fail(self, failed, self.topics[failed.topic], self.lived_time.lived_ms)
            case "fire_delayed":
                self.retries.fire(fired_of(command.fire_delayed))
            case "resend":
                dead = command.resend
                self.retries.resend(Queue(dead.incarnation, dead.queue_id), dead.offset)

    # --- commands -----------------------------------------------------------------------------

    def _apply_command(self, header: EntryHeader, body: bytes) -> Refusal | None:
        """Applies one command; why it took no effect, or None."""
        try:
            command = Command.FromString(body)
        except DecodeError as error:
            return self._void(header.index, Malformed(f"no command: {error}"))
        name = command.WhichOneof("body")
        if COMMAND_LEVELS.get(name or "", FIRST_LEVEL) > self.level.current:
            return self._void(header.index, Malformed(f"{name} is of a level above the one in use"))
        match name:
            case "create_topic":
                return self._create_topic(header, command.create_topic)
            case "delete_topic":
                deleted = command.delete_topic
                return self._delete_topic(header, TopicRef(deleted.name, deleted.incarnation))
            case "commit_offsets":
                return self._commit_offsets(command.commit_offsets)
            case "register_producer":
                return self._register(header, command.register_producer)
            case "forget_producers":
                lived_ms = self.lived_time.lived_ms
                self.producers.forget(command.forget_producers.producer_ids, lived_ms)
                return None
            case "raise_level":
                return self._raise_level(command.raise_level.level)
            case "move_log_start":
                return self.log_start.move(command.move_log_start.first_index, header.index)
            case "retain_topic":
                return self._retain_topic(command.retain_topic)
            case "move_queue_starts":
                return self._move_queue_starts(command.move_queue_starts)
            case "join_group":
                return self._join(command.join_group)
            case "end_sessions":
                self._consuming.end(command.end_sessions, self._now())
                return None
            case "grant_leases":
                return self._consuming.grant(command.grant_leases, self._now())
            case "commit_leases":
                return self._consuming.commit(command.commit_leases, self._now())
            case "forget_groups":
                self._forget_groups(command.forget_groups)
                return None
            case "move_group":
                refusal = self._delivering.refusal_of_style(command.move_group.group)
                return refusal or self._moving.move(command.move_group, self._now())
            case "clone_group":
                return self._moving.clone(command.clone_group, self._now())
            case _:
                return self._void(header.index, Malformed("an unknown command, or none"))

    def _void(self, index: int, refusal: Malformed) -> Malformed:
        """The entry is no batch and changes nothing, on this replica as on every other."""
        self._entries_void += 1
        self._listener.entry_voided(index, refusal)
        return refusal

    def _void_batch(self, index: int, refusal: BatchRefusal) -> None:
        self._entries_void += 1
        self._listener.batch_voided(index, refusal)

    def _raise_level(self, wanted: int) -> Refusal | None:
        refusal = self.level.refusal_of(wanted)
        if refusal is not None:
            return refusal
        if wanted > self._known_level:
            raise _LevelUnknown(wanted)
        self.level.raise_by_one()
        if wanted == GROUPS_LEVEL:
            self._consuming.begin(self._now())
        return None

    def _now(self) -> At:
        return At(self.applied_index, self.lived_time.lived_ms, self.level.current)

    def _moment(self) -> Moment:
        return Moment(self.applied_index, self.append_time_ms, self.lived_time.lived_ms)

    def _join(self, command: JoinGroupCommand) -> Refusal | None:
        refusal = self._delivering.refusal_of_style(command.group)
        return refusal or self._consuming.join(command, self._now())

    def _forget_groups(self, command: ForgetGroupsCommand) -> None:
        names = self._delivering.forgettable(command.groups, self.append_time_ms)
        wanted = ForgetGroupsCommand(groups=names, unused_ms=command.unused_ms)
        self._consuming.forget(wanted, self._now())
        self._delivering.on_forgotten(names)

    def _on_group_changed(self, name: str) -> None:
        self._listener.group_changed(name)

    def _create_topic(self, header: EntryHeader, create: CreateTopicCommand) -> Refusal | None:
        refusal = self.topics.create(
            create.name,
            create.queue_count,
            incarnation=header.index,
            created_time_ms=self.append_time_ms,
        )
        if refusal is None:
            self._listener.topic_created(create.name)
        return refusal

    def _meant(self, meant: TopicRef) -> TopicState | TopicNotFound | TopicReplaced:
        """The topic that a command names."""
        topic = self.topics.get(meant.name)
        if topic is None:
            return TopicNotFound(meant.name)
        if not meant.means(topic.incarnation):
            return TopicReplaced(meant.name, meant.incarnation, topic.incarnation)
        return topic

    def _retain_topic(self, command: RetainTopicCommand) -> Refusal | None:
        topic = self._meant(TopicRef(command.name, command.incarnation))
        if not isinstance(topic, TopicState):
            return topic
        return self.topic_retention.wish(topic.incarnation, command.retention_ms)

    def _move_queue_starts(self, command: MoveQueueStartsCommand) -> Refusal | None:
        topic = self._meant(TopicRef(command.name, command.incarnation))
        if not isinstance(topic, TopicState):
            return topic
        starts = ((each.queue_id, each.offset) for each in command.starts)
        return self.topic_retention.move(topic.incarnation, starts, topic.next_offsets)

    def _delete_topic(self, header: EntryHeader, meant: TopicRef) -> Refusal | None:
        topic = self._meant(meant)
        if not isinstance(topic, TopicState):
            return topic
        if header.index > self._derived_through:
            self._queues.delete_topic(topic.folder)
        self._end_topic(topic)
        return None

    def _end_topic(self, topic: TopicState) -> None:
        """Nothing is left of it; its files are gone already."""
        self.topics.delete(topic.name)
        committed = tuple(self.offsets.groups(topic.name))
        self.offsets.on_topic_deleted(topic.name)
        self._consuming.on_topic_deleted(topic, committed)
        self.deliveries.on_topic_deleted(topic.incarnation)
        self.producers.on_topic_deleted(topic.incarnation)
        self.topic_retention.on_topic_deleted(topic.incarnation)
        self.retries.on_topic_deleted(topic.incarnation)
        self._listener.topic_deleted(topic)

    def _commit_offsets(self, command: CommitOffsetsCommand) -> Refusal | None:
        topic = self._meant(TopicRef(command.topic, command.topic_incarnation))
        if not isinstance(topic, TopicState):
            return topic
        return self._commit(commit_of(command), topic)

    def _commit(self, commit: OffsetCommit, topic: TopicState) -> Refusal | None:
        """Offsets of a group without members; before groups had any, of whichever."""
        if self.level.current < GROUPS_LEVEL:
            return self.offsets.commit(commit, topic.next_offsets)
        refusal = self._delivering.refusal_of_style(commit.group)
        return refusal or self._consuming.commit_offsets(commit, topic, self._now())

    def _register(self, header: EntryHeader, command: RegisterProducerCommand) -> Refusal | None:
        wanted = Registration(command.token, command.name, command.previous)
        return self.producers.register(wanted, header.index, self.lived_time.lived_ms)

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> Iterator[bytes]:
        """The state as it is now, in chunks (`broker.state.snapshot`). Each is made when it is
        taken; entries that are applied meanwhile don't show."""
        own = _OWN.pack(self.append_time_ms, self.messages_applied)
        sections = (
            Section(SECTION, APPLYING, pack((own,))),
            self.level.snapshot(),
            self.lived_time.snapshot(),
            self.topics.snapshot(),
            self.offsets.snapshot(),
            self.producers.snapshot(),
            *self.log_start.snapshot(),
            *self.topic_retention.snapshot(),
            *self.outcomes.snapshot(),
            *self.groups.snapshot(),
            *self.leases.snapshot(),
            *self.deliveries.snapshot(),
            *self.retries.snapshot(),
            *self.attempts.snapshot(),
        )
        return seal(self.applied_index, sections)

    @classmethod
    def restore(
        cls,
        chunks: Iterable[bytes],
        queues: QueueFiles,
        *,
        derived_through: int = 0,
        options: MachineOptions = USUAL,
        known_level: int = KNOWN_LEVEL,
    ) -> Self:
        """A machine in the state that `snapshot` gave, ready for the entry behind it.

        Args:
            chunks: all of them, in order.
            queues, derived_through, options, known_level: see `__init__`.

        Raises:
            SnapshotRefused: the chunks are no such state; one of its kinds says why.
        """
        machine = cls(
            queues,
            derived_through=derived_through,
            options=options,
            known_level=known_level,
        )
        expected, optional = iter(SECTIONS), iter(OPTIONAL_SECTIONS)
        for name, section in groupby(unseal(chunks), key=lambda chunk: chunk.section):
            if name in SECTIONS and name != next(expected, None):
                raise SnapshotDamaged(f"section {name}", f"the order {SECTIONS}", "another")
            if name in OPTIONAL_SECTIONS:
                if (left := next(expected, None)) is not None:
                    raise SnapshotDamaged(f"section {name}", f"{left} before", "not there")
                if name not in optional:  # those that it passes over may be there no more
                    raise SnapshotDamaged(f"section {name}", OPTIONAL_SECTIONS, "another order")
            machine._restore_section(name, section)
        missing = next(expected, None)
        if missing is not None:
            raise SnapshotDamaged("sections", f"{missing} too", "none")
        try:
            machine.check_invariants()
        except InvariantViolation as error:
            raise SnapshotDamaged("state", "one that can be", str(error)) from error
        if machine.level.current > known_level:
            # Applied entry by entry, this program would have stopped in front of that raise.
            raise SnapshotUnknown(f"state of level {machine.level.current}", known_level)
        return machine

    def _restore_section(self, name: str, chunks: Iterator[Chunk]) -> None:
        first = next(chunks)
        payloads = _payloads(first, chunks)
        match name:
            case level.SECTION:
                self.level.restore(first.version, payloads)
            case lived_time.SECTION:
                self.lived_time.restore(first.version, payloads)
            case topics.SECTION:
                self.topics.restore(first.version, payloads)
            case offsets.SECTION:
                self.offsets.restore(first.version, payloads)
            case log_start.SECTION:
                self.log_start.restore(first.version, payloads)
            case topic_retention.SECTION:
                self.topic_retention.restore(first.version, payloads)
            case outcomes.SECTION:
                self.outcomes.restore(first.version, payloads)
            case producers.SECTION:
                self.producers.restore(first.version, payloads)
            case _ if name in groups.OWN_SECTIONS:
                self.groups.restore(name, first.version, payloads)
            case _ if name in leases.OWN_SECTIONS:
                self.leases.restore(name, first.version, payloads)
            case _ if name in deliveries.OWN_SECTIONS:
                self.deliveries.restore(name, first.version, payloads)
            case _ if name in retries.OWN_SECTIONS:
                self.retries.restore(name, first.version, payloads)
            case _ if name in attempts.OWN_SECTIONS:
                self.attempts.restore(name, first.version, payloads)
            case _ if name == SECTION:
                if first.version != APPLYING:
                    raise SnapshotAppliedOtherwise(name, first.version, APPLYING)
                self.applied_index = first.applied_index
                own = PayloadReader(SECTION, b"".join(payloads))
                self.append_time_ms, self.messages_applied = own.take(_OWN)
            case _:
                raise SnapshotUnknown(name, first.version)

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """What holds between any two entries, within each owner and between them. Takes time in
        proportion to the state: for tests, the simulator and a restored state.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        self.level.check_invariants()
        self.log_start.check_invariants(self.applied_index)
        self.outcomes.check_invariants(self.applied_index)
        self.lived_time.check_invariants(self.append_time_ms)
        self.topics.check_invariants()
        if any(topic.incarnation > self.applied_index for topic in self.topics.values()):
            raise InvariantViolation("a topic was created by an entry that isn't applied")
        held = sum(sum(topic.next_offsets) for topic in self.topics.values())
        if held > self.messages_applied:
            raise InvariantViolation(
                f"queues hold {held} messages, {self.messages_applied} were applied"
            )
        self.topic_retention.check_invariants(
            {topic.incarnation: topic.next_offsets for topic in self.topics.values()}
        )
        self.offsets.check_invariants()
        self.producers.check_invariants()
        for name in self.offsets.topics():
            for group, committed in self.offsets.groups(name).items():
                for queue_id, offset in committed.items():
                    self._check_within(f"an offset of {group}", name, queue_id, offset)
        self._check_producers()
        self._check_retries()
        self.groups.check_invariants(self.applied_index, self.lived_time.lived_ms)
        self.leases.check_invariants(self.applied_index)
        self._consuming.check_invariants(self.topics.values(), is_counted=self._knows_groups)
        self.deliveries.check_invariants(self.applied_index)
        named = {topic.incarnation: topic for topic in self.topics.values()}
        self._delivering.check_invariants(named)

    def _check_retries(self) -> None:
        """What has moved on, and what was sent again, is in topics that are there."""
        self.retries.check_invariants()
        self.attempts.check_invariants()
        names = {topic.incarnation: topic.name for topic in self.topics.values()}
        for queue, end in self.retries.places().items():
            name = names.get(queue.incarnation, "")
            self._check_within("a retry", name, queue.queue_id, end)

    @property
    def _knows_groups(self) -> bool:
        return self.level.current >= GROUPS_LEVEL

    def _check_producers(self) -> None:
        """Whatever they stored is in a topic that is there, and before now."""
        names = {topic.incarnation: topic.name for topic in self.topics.values()}
        for producer in self.producers:
            who = producer.producer_id.hex()
            epoch = int.from_bytes(producer.producer_id[:EPOCH_SIZE], "big")
            if epoch > self.applied_index or producer.used_ms > self.lived_time.lived_ms:
                raise InvariantViolation(f"{who} was registered or used after the last entry")
            for (incarnation, queue_id), recent in producer.queues.items():
                if incarnation not in names:
                    raise InvariantViolation(f"{who} stored in topic {incarnation}, which is gone")
                newest = batches_of(recent)[-1]
                end = newest.base_queue_offset + newest.record_count
                self._check_within(f"a batch of {who}", names[incarnation], queue_id, end)
                if newest.store_time_ms > self.append_time_ms:
                    raise InvariantViolation(f"{who} stored a batch after the last entry")

    def _check_within(self, what: str, name: str, queue_id: int, end: int) -> None:
        """The queue exists and reaches `end`."""
        topic = self.topics.get(name)
        if topic is None or queue_id >= len(topic.next_offsets):
            raise InvariantViolation(f"{what} is in {name}/{queue_id}, which doesn't exist")
        if end > topic.next_offsets[queue_id]:
            raise InvariantViolation(
                f"{what} is at {end} of {name}/{queue_id}, which ends at "
                f"{topic.next_offsets[queue_id]}"
            )

    def statistics(self) -> MachineStatistics:
        """A frozen picture, as of the last applied entry."""
        return MachineStatistics(
            topics=len(self.topics),
            queues=self.topics.queue_count,
            producers=len(self.producers),
            sequences=self.producers.pairs,
            groups=self.offsets.group_count,
            members=self.groups.session_count,
            leases=self.leases.lease_count,
            messages_applied=self.messages_applied,
            entries_applied=self.applied_index,
            entries_void=self._entries_void,
            level=self.level.current,
            known_level=self._known_level,
        )


def _unknown(header: EntryHeader) -> Malformed:
    return Malformed(f"kind {header.kind} and version {header.version} are of no level in use")


def _payloads(first: Chunk, others: Iterator[Chunk]) -> Iterator[bytes]:
    """The payloads of one section, all of one version."""
    yield first.payload
    for chunk in others:
        if chunk.version != first.version:
            raise SnapshotDamaged(
                f"section {first.section}", f"version {first.version}", chunk.version
            )
        yield chunk.payload

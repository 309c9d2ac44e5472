"""Units of a compound entry: what each would do, judged before anything is done (ADR 54).

All units are judged against the state before their entry, so that what one does is no condition of
another, and which of them are refused is known before the first change: files come first in every
entry. That is right because no two of them are about the same thing: each command has *keys*, and a
unit with a key that a unit before it holds is refused. A *wide* key holds all of a topic, its
records included. What units share are bounds over all keys, which are counted on.

A queue goes on through refused records as well: where they were placed they stay, void.

This judges: it changes nothing, reads no file and tells nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from broker.state.deliveries import Deliveries
from broker.state.delivering import Moment, Plan, planned
from broker.state.groups import Groups
from broker.state.leases import Leases
from broker.state.level import COMMAND_LEVELS, Level
from broker.state.lived_time import LivedTime
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.outcomes import Outcomes, RefusedUnit, Settlement
from broker.state.refusals import (
    BatchRefusal,
    GroupHasMembers,
    GroupStyled,
    KeyTaken,
    Malformed,
    Refusal,
    TopicNotFound,
    TopicReplaced,
)
from broker.state.retries import Retries
from broker.state.retrying import (
    Before,
    refusal_of_fire,
    refusal_of_resend,
    refusal_of_send_back,
)
from broker.state.topic_permissions import TopicPermissions
from broker.state.topics import TopicRef, Topics, TopicState
from dledger.reading.compound import UnitSpan, as_entry, unit_spans
from dledger.reading.entry import EntryHeader, preamble_of
from dledger.records.errors import FormatError
from dledger.records.reserved import SCHEDULE_TOPIC
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    DeliverCommand,
    SettleUnitsCommand,
)
from store.dispatch import units_for_entry
from store.errors import DivergenceFound
from store.voiding import voided

NO_PRODUCER: Final = bytes(16)
RECORDS: Final = "records"  # of a topic: what batches hold, and share
SETTLING: Final = "settling"


class Key(NamedTuple):
    """What a command is about: `what` of a topic; everything of it where that is empty."""

    topic: str
    what: str = ""

    @property
    def is_wide(self) -> bool:
        return not self.what


def keys_of(command: Command) -> tuple[Key, ...] | None:
    """What the command is about; None if no unit holds such a command."""
    match command.WhichOneof("body"):
        case "commit_offsets":
            commit = command.commit_offsets
            return (Key(commit.topic, f"offsets of {commit.group}"),)
        case "delete_topic":
            return (Key(command.delete_topic.name),)
        case "deliver":
            deliver = command.deliver  # it makes the group's offsets, and commits them
            return (Key(deliver.topic, f"offsets of {deliver.group}"),)
        case "settle_units":
            return (Key(SETTLING, SETTLING),)
        case "send_back":
            sent = command.send_back
            what = f"message {sent.queue_id}/{sent.offset} of {sent.group}"
            return (Key(sent.topic, what),)
        case "fire_delayed":
            return (Key(SCHEDULE_TOPIC, f"level of queue {command.fire_delayed.queue_id}"),)
        case "resend":
            dead = command.resend
            return (Key(dead.topic, f"dead letter {dead.queue_id}/{dead.offset}"),)
        case _:
            return None


@dataclass(slots=True)
class Claims:
    """The keys that are held, and by how many; records of a topic by any number."""

    _held: dict[str, set[str]] = field(default_factory=dict)  # by topic; "": all of it

    def conflict(self, keys: Iterable[Key]) -> Key | None:
        """The first of the keys that can't be held besides; None if all can."""
        for key in keys:
            held = self._held.get(key.topic)
            if not held:
                continue
            is_shared = key.what == RECORDS
            if key.is_wide or "" in held or (key.what in held and not is_shared):
                return key
        return None

    def hold(self, keys: Iterable[Key]) -> None:
        """The keys are held; `conflict` was asked before."""
        for key in keys:
            self._held.setdefault(key.topic, set()).add(key.what)


class PlacedBatch(NamedTuple):
    """A batch that continues its queue: its offsets are taken, whatever becomes of its unit."""

    topic: TopicState
    queue_id: int
    base: int
    record_count: int
    units: bytes  # as the ConsumeQueue holds them: void ones of a refused unit

    @property
    def end(self) -> int:
        """The queue offset behind it."""
        return self.base + self.record_count


UnitRefusal = Refusal | BatchRefusal


class Judged(NamedTuple):
    """A unit: why it is refused, or None; what it placed, and what it orders."""

    refusal: UnitRefusal | None
    batches: tuple[PlacedBatch, ...]
    commands: tuple[Command, ...]


class Owners(Protocol):
    """The owners of state that units are about; read only."""

    @property
    def topics(self) -> Topics: ...
    @property
    def offsets(self) -> Offsets: ...
    @property
    def outcomes(self) -> Outcomes: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def deliveries(self) -> Deliveries: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def retries(self) -> Retries: ...
    @property
    def topic_permissions(self) -> TopicPermissions: ...
    @property
    def level(self) -> Level: ...
    @property
    def lived_time(self) -> LivedTime: ...


def judge(owners: Owners, header: EntryHeader, frame: bytes) -> list[Judged]:
    """What becomes of each unit of the entry whose whole frame is `frame`, in order.

    Raises:
        InvalidFrame: it holds no units.
    """
    at = Moment(header.index, header.append_time_ms, owners.lived_time.lived_ms)
    entry = _Entry(owners, at)
    return [
        entry.judge(header, frame, number, span)
        for number, span in enumerate(unit_spans(header, frame))
    ]


@dataclass(slots=True)
class _Entry:
    """What the units so far would have done."""

    owners: Owners
    at: Moment
    claims: Claims = field(default_factory=Claims)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)  # of queues, as they go on
    new_progress: int = 0
    before: Before = field(default_factory=Before)

    def judge(self, header: EntryHeader, frame: bytes, number: int, span: UnitSpan) -> Judged:
        refusal: UnitRefusal | None = None
        placed: list[PlacedBatch] = []
        for batch in span.batches:
            found = self._place(*as_entry(header, frame, number, batch)[1:])
            if isinstance(found, PlacedBatch):
                placed.append(found)
                refusal = refusal or self.owners.topic_permissions.refusal_of(found.topic)
            else:
                refusal = refusal or found
        commands = _parsed(span.commands)
        if isinstance(commands, Malformed):
            refusal, commands = refusal or commands, ()
        refusal = refusal or self._claim(placed, commands)
        if refusal is None:
            return Judged(None, tuple(placed), commands)
        void = (each._replace(units=voided(each.units, each.base)) for each in placed)
        return Judged(refusal, tuple(void), ())

    def _place(self, header: EntryHeader, frame: bytes) -> PlacedBatch | BatchRefusal:
        """The batch takes its offsets; or why it can't."""
        try:
            name, queue_id, base, units = units_for_entry(header, frame)
            producer, sequence, incarnation = preamble_of(header, frame)
        except (FormatError, DivergenceFound) as error:
            return Malformed(str(error))
        if producer != NO_PRODUCER or sequence or not incarnation:
            return Malformed("a unit's batch has a producer, or names no topic")
        topic = self.owners.topics.get(name)
        if topic is None:
            return TopicNotFound(name)
        place = topic.incarnation, queue_id
        refusal = self.owners.topics.refusal_of(
            topic, queue_id, base, incarnation=incarnation, end=self.ends.get(place)
        )
        if refusal is not None:
            return refusal
        self.ends[place] = base + header.record_count
        return PlacedBatch(topic, queue_id, base, header.record_count, units)

    def _claim(
        self, placed: Sequence[PlacedBatch], commands: Sequence[Command]
    ) -> UnitRefusal | None:
        """Why the unit's commands don't take effect; None if they do, and it holds its keys."""
        own = Claims()
        taken: list[Key] = []
        for keys in [(Key(each.topic.name, RECORDS),) for each in placed] + [
            keys_of(command) or () for command in commands
        ]:
            key = self.claims.conflict(keys) or own.conflict(keys)
            if key is not None:
                return KeyTaken(key.topic, key.what)
            own.hold(keys)
            taken += keys
        new_progress = 0
        for command in commands:
            new = self.new_progress + new_progress
            refusal, more = self._condition(command, placed, new)
            if refusal is not None:
                return refusal
            new_progress += more
        self.claims.hold(taken)
        self.new_progress += new_progress
        return None

    def _condition(
        self, command: Command, placed: Sequence[PlacedBatch], new_progress: int
    ) -> tuple[Refusal | None, int]:
        """Why the command doesn't take effect, or None; and how many pairs of group and topic it
        adds."""
        owners = self.owners
        name = command.WhichOneof("body") or ""
        if COMMAND_LEVELS[name] > owners.level.current:
            return Malformed(f"{name} is of a level above the one in use"), 0
        match name:
            case "commit_offsets":
                body = command.commit_offsets
                topic = meant(owners.topics, body.topic, body.topic_incarnation)
                if not isinstance(topic, TopicState):
                    return topic, 0
                if owners.deliveries.has(body.group):
                    return GroupStyled(body.group, is_delivered=True), 0
                if owners.groups.members(body.group):
                    return GroupHasMembers(body.group), 0
                commit = commit_of(body)
                refusal = owners.offsets.refusal_of(commit, topic.next_offsets, new_progress)
                return refusal, owners.offsets.is_new(commit)
            case "delete_topic":
                topic = meant(
                    owners.topics, command.delete_topic.name, command.delete_topic.incarnation
                )
                return (None if isinstance(topic, TopicState) else topic), 0
            case "deliver":
                plan = plan_of(owners, command.deliver, self.at, new_progress)
                if not isinstance(plan, Plan):
                    return plan, 0
                is_known = bool(owners.offsets.of(command.deliver.group, command.deliver.topic))
                return None, 0 if is_known else 1
            case "settle_units":
                return owners.outcomes.refusal_of(settlement_of(command.settle_units)), 0
            case _:
                return self._retry_condition(command, placed), 0

    def _retry_condition(self, command: Command, placed: Sequence[PlacedBatch]) -> Refusal | None:
        """`_condition` of what failed messages go by; see `broker.state.retrying`."""
        owners, before = self.owners, self.before

        def found(ref: TopicRef) -> TopicState | TopicNotFound | TopicReplaced:
            return meant(owners.topics, ref.name, ref.incarnation)

        match command.WhichOneof("body"):
            case "send_back":
                return refusal_of_send_back(owners, found, command.send_back, placed, before)
            case "fire_delayed":
                fire = command.fire_delayed
                return refusal_of_fire(owners, found, fire, placed, self.at.append_time_ms)
            case _:
                return refusal_of_resend(owners, found, command.resend, placed, before)


def meant(
    topics: Topics, name: str, incarnation: int
) -> TopicState | TopicNotFound | TopicReplaced:
    """The topic that a unit's command names, by name and incarnation."""
    topic = topics.get(name)
    if topic is None:
        return TopicNotFound(name)
    if topic.incarnation != incarnation:
        return TopicReplaced(name, incarnation, topic.incarnation)
    return topic


def plan_of(owners: Owners, body: DeliverCommand, at: Moment, new: int = 0) -> Plan | Refusal:
    """What the command makes of the topic that it names; see `planned`."""
    topic = meant(owners.topics, body.topic, body.incarnation)
    return planned(owners, topic, body, at, new) if isinstance(topic, TopicState) else topic


def commit_of(body: CommitOffsetsCommand) -> OffsetCommit:
    """The commit that the command's bytes hold."""
    wanted = tuple((each.queue_id, each.offset) for each in body.offsets)
    return OffsetCommit(body.group, body.topic, wanted, is_reset=body.reset)


def settlement_of(body: SettleUnitsCommand) -> Settlement:
    """The outcomes that the command's bytes say."""
    refused = tuple(RefusedUnit(each.index, each.unit) for each in body.refused)
    return Settlement(body.through, refused)


def _parsed(commands: Iterable[bytes]) -> tuple[Command, ...] | Malformed:
    parsed: list[Command] = []
    for each in commands:
        try:
            command = Command.FromString(each)
        except DecodeError as error:
            return Malformed(f"no command: {error}")
        if keys_of(command) is None:
            return Malformed(f"no unit holds {command.WhichOneof('body') or 'an unknown command'}")
        parsed.append(command)
    return tuple(parsed)

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

from broker.state.attempts import Attempts
from broker.state.deliveries import NO_LOAD, Deliveries, Load
from broker.state.delivering import Moment, Plan, buried, planned
from broker.state.groups import Groups
from broker.state.leases import Leases
from broker.state.level import COMMAND_LEVELS, Level
from broker.state.lived_time import LivedTime
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.outcomes import Outcomes, RefusedUnit, Settlement
from broker.state.queue_numbers import QueueNumbers
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
    refusal_of_failure,
    refusal_of_fire,
    refusal_of_resend,
    refusal_of_send_back,
)
from broker.state.topic_permissions import TopicPermissions
from broker.state.topics import TopicRef, Topics, TopicState
from dledger.reading.compound import UnitSpan, as_entry, unit_spans
from dledger.reading.entry import EntryHeader, preamble_of
from dledger.records.errors import FormatError
from dledger.records.reserved import SCHEDULE_TOPIC, dead_letter_topic
from dledger.wire.commands_pb2 import (
    BuryCommand,
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
        case "bury":
            bury = command.bury
            return (Key(bury.topic, f"offsets of {bury.group}"),)
        case "settle_units":
            return (Key(SETTLING, SETTLING),)
        case "send_back":
            sent = command.send_back
            what = f"message {sent.queue_id}/{sent.offset} of {sent.group}"
            return (Key(sent.topic, what),)
        case "fail_message":
            failed = command.fail_message
            what = f"message {failed.queue_id}/{failed.offset} of {failed.group}"
            return (Key(failed.topic, what),)
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
    """A unit: why it is refused, or None; what it placed, what it orders, and what its commands
    about deliveries make of their queues, in their order."""

    refusal: UnitRefusal | None
    batches: tuple[PlacedBatch, ...]
    commands: tuple[Command, ...]
    plans: tuple[Plan, ...] = ()


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
    def attempts(self) -> Attempts: ...
    @property
    def queue_numbers(self) -> QueueNumbers: ...
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
    lived_ms, level = owners.lived_time.lived_ms, owners.level.current
    at = Moment(header.index, header.append_time_ms, lived_ms, level)
    entry = _Entry(owners, at)
    return [
        entry.judge(header, frame, number, span)
        for number, span in enumerate(unit_spans(header, frame))
    ]


@dataclass(slots=True)
class _Growth:
    """What units add to what isn't a key of theirs: to what is bounded over all groups, and the
    groups that are handed single messages; and the plans of one of them."""

    progress: int = 0  # pairs of group and topic
    load: Load = NO_LOAD
    delivered: frozenset[str] = frozenset()
    plans: list[Plan] = field(default_factory=list)

    def plan(self, owners: Owners, group: str, incarnation: int, plan: Plan) -> None:
        """The plan, which takes effect with the unit."""
        self._grow(owners.deliveries.growth(group, incarnation, plan.records))
        self.delivered |= {group}
        self.plans.append(plan)

    def end_topic(self, owners: Owners, incarnation: int) -> None:
        """The topic is gone with the unit, and what is in hand of it."""
        gone = owners.deliveries.load_of(incarnation)
        self._grow(Load(-gone.unfinished, -gone.rows))

    def _grow(self, by: Load) -> None:
        self.load = Load(self.load.unfinished + by.unfinished, self.load.rows + by.rows)


@dataclass(slots=True)
class _Entry:
    """What the units so far would have done."""

    owners: Owners
    at: Moment
    claims: Claims = field(default_factory=Claims)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)  # of queues, as they go on
    growth: _Growth = field(default_factory=_Growth)
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
        plans = list[Plan]()
        if refusal is None:
            claimed = self._claim(placed, commands)
            if isinstance(claimed, list):
                plans = claimed
            else:
                refusal = claimed
        if refusal is None:
            return Judged(None, tuple(placed), commands, tuple(plans))
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
        ) or self.owners.queue_numbers.refusal_of(name, topic.incarnation, queue_id)
        if refusal is not None:
            return refusal
        self.ends[place] = base + header.record_count
        return PlacedBatch(topic, queue_id, base, header.record_count, units)

    def _claim(
        self, placed: Sequence[PlacedBatch], commands: Sequence[Command]
    ) -> UnitRefusal | list[Plan]:
        """Why the unit's commands don't take effect; their plans if they do, and it holds its
        keys."""
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
        before = self.growth
        growth = _Growth(before.progress, before.load, before.delivered)
        for command in commands:
            refusal = self._condition(command, placed, growth)
            if refusal is not None:
                return refusal
        self.claims.hold(taken)
        self.growth = growth
        return growth.plans

    def _condition(
        self, command: Command, placed: Sequence[PlacedBatch], growth: _Growth
    ) -> Refusal | None:
        """Why the command doesn't take effect; None if it does, and `growth` has what it adds."""
        owners = self.owners
        name = command.WhichOneof("body") or ""
        if COMMAND_LEVELS[name] > owners.level.current:
            return Malformed(f"{name} is of a level above the one in use")
        match name:
            case "commit_offsets":
                return self._commit_condition(command.commit_offsets, growth)
            case "delete_topic":
                topic = meant(
                    owners.topics, command.delete_topic.name, command.delete_topic.incarnation
                )
                if not isinstance(topic, TopicState):
                    return topic
                growth.end_topic(owners, topic.incarnation)
                return None
            case "deliver":
                body = command.deliver
                plan = plan_of(owners, body, self.at, growth.progress, growth.load)
                if not isinstance(plan, Plan):
                    return plan
                growth.plan(owners, body.group, body.incarnation, plan)
                growth.progress += not owners.offsets.of(body.group, body.topic)
                return None
            case "bury":
                plan = burial_of(owners, command.bury, placed, self.at)
                if not isinstance(plan, Plan):
                    return plan
                growth.plan(owners, command.bury.group, command.bury.incarnation, plan)
                return None
            case "settle_units":
                return owners.outcomes.refusal_of(settlement_of(command.settle_units))
            case _:
                return self._retry_condition(command, placed)

    def _commit_condition(self, body: CommitOffsetsCommand, growth: _Growth) -> Refusal | None:
        """`_condition` of a commit without a session."""
        owners = self.owners
        topic = meant(owners.topics, body.topic, body.topic_incarnation)
        if not isinstance(topic, TopicState):
            return topic
        if owners.deliveries.has(body.group) or body.group in growth.delivered:
            return GroupStyled(body.group, is_delivered=True)
        if owners.groups.members(body.group):
            return GroupHasMembers(body.group)
        commit = commit_of(body)
        refusal = owners.offsets.refusal_of(commit, topic.next_offsets, growth.progress)
        growth.progress += owners.offsets.is_new(commit)
        return refusal

    def _retry_condition(self, command: Command, placed: Sequence[PlacedBatch]) -> Refusal | None:
        """`_condition` of what failed messages go by; see `broker.state.retrying`."""
        owners, before = self.owners, self.before

        def found(ref: TopicRef) -> TopicState | TopicNotFound | TopicReplaced:
            return meant(owners.topics, ref.name, ref.incarnation)

        match command.WhichOneof("body"):
            case "send_back":
                return refusal_of_send_back(owners, found, command.send_back, placed, before)
            case "fail_message":
                return refusal_of_failure(owners, found, command.fail_message, placed)
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


def plan_of(
    owners: Owners, body: DeliverCommand, at: Moment, new: int = 0, load: Load = NO_LOAD
) -> Plan | Refusal:
    """What the command makes of the topic that it names; see `planned`."""
    topic = meant(owners.topics, body.topic, body.incarnation)
    return planned(owners, topic, body, at, new, load) if isinstance(topic, TopicState) else topic


def burial_of(
    owners: Owners, body: BuryCommand, placed: Sequence[PlacedBatch], at: Moment
) -> Plan | Refusal:
    """What the command makes of the topic that it names; see `buried`."""
    topic = meant(owners.topics, body.topic, body.incarnation)
    if not isinstance(topic, TopicState):
        return topic
    if any(each.topic.name != dead_letter_topic(body.group) for each in placed):
        return Malformed("dead letters are copied to the group's topic of them")
    return buried(owners, topic, body, sum(each.record_count for each in placed), at)


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

"""Whatever commands lie in the log: each takes effect or is refused, alike on every replica.

An entry at which applying fails stops every replica, and at every start again: nothing else that a
leader could write is as grave. So entries are drawn here that no leader's checks have seen: any
command, with fields that mean something in the state as it is or nothing at all, alone or several
to a unit and several units to an entry, with the bounds of the state near. After each the
invariants hold; a machine that was restored from a snapshot anywhere in between goes on as the
first, in all that either keeps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from broker.errors import BrokerError
from broker.leader.batches import Batch
from broker.leader.units import ProposedUnit
from broker.state.groups import Session
from broker.state.leases import Place
from broker.state.machine import StateMachine
from broker.state.retries import Queue
from broker.state.topics import TopicState
from dledger.core.types import EntryKind
from dledger.level import COMPOUND_LEVEL, KNOWN_LEVEL
from dledger.reading.compound import UnitBody, build_body
from dledger.reading.entry import COMPOUND_VERSION
from dledger.records.reserved import SCHEDULE_TOPIC, dead_letter_topic, retry_topic
from dledger.wire.commands_pb2 import (
    BuryCommand,
    Command,
    CommitLeasesCommand,
    CommitOffsetsCommand,
    CommittedOffset,
    CreateTopicCommand,
    DeliverCommand,
    EndSessionsCommand,
    FailMessageCommand,
    FireDelayedCommand,
    ForgetGroupsCommand,
    GivenMessages,
    GrantLeasesCommand,
    GroupSettings,
    JoinGroupCommand,
    MoveGroupCommand,
    MoveQueueStartsCommand,
    QueueGrant,
    QueueProgress,
    QueueStart,
    RaiseLevelCommand,
    ResendCommand,
    SendBackCommand,
    SettledMessages,
    Settling,
    TopicGrants,
    TopicProgress,
    UpdateTopicCommand,
)
from tests.broker.leader import Bench, NoQueues, batch

GROUPS: Final = ("g", "h", "pops", "")
OWN: Final = (
    *(SCHEDULE_TOPIC, retry_topic("g")),
    *(dead_letter_topic("g"), dead_letter_topic("pops")),
)
TOPICS: Final = ("t", "u", *OWN, "no such")
BYTES: Final = (b"", b"token--1", b"token--2", bytes(8), b"\x01" * 16, b"odd")
LARGE: Final = (2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
MOST: Final = {
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
    FieldDescriptor.CPPTYPE_INT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
}
KINDS: Final = tuple(each.name for each in Command.DESCRIPTOR.oneofs[0].fields)
# What the level is, and where the log begins, is not drawn: other entries would not follow.
LEFT_OUT: Final = ("raise_level", "move_log_start")
ENTRIES: Final = 80
# Of the machine alone: what is kept for snapshots that are being taken.
SNAPSHOTS: Final = ("snapshots", "_snapshots")
BOUNDS: Final = {  # see `prepared`
    "deliveries": ("max_unfinished", "max_all_unfinished", "max_handouts"),
    "offsets": ("max_progress",),
    "leases": ("max_all_ranges",),
    "retries": ("max_resent",),
    "groups": ("max_groups", "max_sessions"),
}


class Drawing:
    """Draws commands that fit the state as it is, of which a part is altered in one place, and
    others of which nothing need fit."""

    def __init__(self, chance: Random, machine: StateMachine) -> None:
        self._chance = chance
        self._machine = machine
        self._numbers = [*range(7), *self._known(machine)]

    @staticmethod
    def _known(machine: StateMachine) -> list[int]:
        """Incarnations, sessions, epochs, handouts, offsets: what commands name."""
        found = [machine.applied_index, machine.append_time_ms]
        for topic in machine.topics.values():
            found += [topic.incarnation, topic.incarnation, *topic.next_offsets]
            for group in machine.deliveries.groups(topic.incarnation):
                for record in machine.deliveries.in_topic(group, topic.incarnation).values():
                    found.append(record.next)
                    found += [number for each in record for number in (each.index, each.base)]
        for known in machine.groups:
            for member in known.members.values():
                found += [member.session, member.session]
                held = machine.leases.held_by(member.session)
                found += [machine.leases.of(place).epoch for place in held]
        return found

    def unit(self) -> ProposedUnit:
        """A command or two, with the copies that belong to the first."""
        command, copies = self._fitting() if self._chance.random() < 0.8 else (self.command(), ())
        more = () if self._chance.random() < 0.8 else (self.command(),)
        return ProposedUnit(copies, (command, *more))

    def command(self) -> Command:
        """One without copies: that fits, or any."""
        if self._chance.random() < 0.6 and self._topics:
            return self._alone()
        command = Command()
        kind = self._chance.choice([kind for kind in KINDS if kind not in LEFT_OUT])
        body = getattr(command, kind)
        body.SetInParent()
        self._fill(body)
        return self._bounded(command)

    def _bounded(self, command: Command) -> Command:
        """Leaders grant to groups that are there: others would begin all the same."""
        grants = command.grant_leases
        if command.HasField("grant_leases") and self._machine.groups.joined(grants.group) is None:
            grants.ClearField("topics")
        return command

    def _altered(self, command: Command) -> Command:
        """With one field as it needn't be, now and then."""
        if self._chance.random() < 0.2:
            body: Any = getattr(command, command.WhichOneof("body") or "")
            field = self._chance.choice(body.DESCRIPTOR.fields)
            if field.is_repeated:
                self._fill_list(body, field)
            elif field.type != FieldDescriptor.TYPE_MESSAGE:
                setattr(body, field.name, self._value(field))
        return self._bounded(command)

    # --- what fits ----------------------------------------------------------------------------

    @property
    def _topics(self) -> list[TopicState]:
        return [each for each in self._machine.topics.values() if each.next_offsets]

    def _topic(self) -> TopicState:
        return self._chance.choice(self._topics)

    def _alone(self) -> Command:
        chance, machine, topic = self._chance, self._machine, self._topic()
        queue_id = chance.randrange(len(topic.next_offsets))
        offset = chance.randint(0, topic.next_offsets[queue_id])
        place: dict[str, Any] = {"topic": topic.name, "incarnation": topic.incarnation}
        start = QueueStart(queue_id=queue_id, offset=offset)
        group = chance.choice(GROUPS[:3])
        sessions = [
            each.session for known in machine.groups for each in known.members.values()
        ] or [0]
        match chance.randrange(13):
            case 0 | 1:
                return self._altered(Command(join_group=self._join()))
            case 2 | 3 | 4:
                return self._altered(Command(grant_leases=self._grants(topic)))
            case 5 | 6:
                return self._altered(Command(commit_leases=self._progress()))
            case 7:
                ended = [chance.choice(sessions)]
                vanished = ended if chance.random() < 0.5 else []
                return Command(end_sessions=EndSessionsCommand(sessions=ended, vanished=vanished))
            case 8:
                move = MoveGroupCommand(
                    group=group, queues=[start], forward=chance.random() < 0.5, **place
                )
                return self._altered(Command(move_group=move))
            case 9:
                known = CommittedOffset(queue_id=queue_id, offset=offset)
                commit = CommitOffsetsCommand(
                    group=group,
                    topic=topic.name,
                    topic_incarnation=topic.incarnation,
                    offsets=[known],
                    reset=chance.random() < 0.3,
                )
                return self._altered(Command(commit_offsets=commit))
            case 10:
                update = UpdateTopicCommand(
                    name=topic.name,
                    incarnation=topic.incarnation,
                    read_queues=chance.randint(0, 3),
                    write_queues=chance.randint(0, 3),
                    drop=chance.random() < 0.5,
                )
                return self._altered(Command(update_topic=update))
            case 11:
                unused_ms = chance.choice((0, 10**9, 10**9))
                forget = ForgetGroupsCommand(groups=[group], unused_ms=unused_ms)
                return self._altered(Command(forget_groups=forget))
            case _:
                moved = MoveQueueStartsCommand(
                    name=topic.name, incarnation=topic.incarnation, starts=[start]
                )
                return self._altered(Command(move_queue_starts=moved))

    def _join(self) -> JoinGroupCommand:
        chance = self._chance
        return JoinGroupCommand(
            group=chance.choice(("g", "g", "h", "pops")),
            member=chance.choice(("a", "b")),
            token=chance.choice(BYTES[1:3]),
            settings=GroupSettings(
                orderly=chance.random() < 0.3, topics=["t"], version=chance.choice((0, 0, 1))
            ),
        )

    def _grants(self, topic: TopicState) -> GrantLeasesCommand:
        chance, machine = self._chance, self._machine
        joined = [each for each in machine.groups if each.members]
        if not joined:
            return GrantLeasesCommand(group="g")
        group = chance.choice(joined)
        sessions = [each.session for each in group.members.values()]
        started = machine.leases.started(group.name, topic.incarnation)
        grants = []
        for queue_id in range(len(topic.next_offsets)):
            lease = machine.leases.of(Place(group.name, topic.incarnation, queue_id))
            session = chance.choice((*sessions, *sessions, 0))
            grants.append(QueueGrant(queue_id=queue_id, session=session, former_epoch=lease.epoch))
        starts = [0] * (len(topic.next_offsets) - started)
        return GrantLeasesCommand(
            group=group.name,
            topics=[
                TopicGrants(
                    topic=topic.name,
                    incarnation=topic.incarnation,
                    first_start=started,
                    starts=starts,
                    grants=grants,
                )
            ],
        )

    def _held(self) -> tuple[Session, Place, TopicState] | None:
        """A queue that a member holds."""
        machine = self._machine
        named = {each.incarnation: each for each in machine.topics.values()}
        found = [
            (member, place, named[place.incarnation])
            for group in machine.groups
            for member in group.members.values()
            for place in machine.leases.held_by(member.session)
        ]
        return self._chance.choice(found) if found else None

    def _progress(self) -> CommitLeasesCommand:
        held = self._held()
        if held is None:
            return CommitLeasesCommand(group="g", session=1)
        member, place, topic = held
        chance, end = self._chance, topic.next_offsets[place.queue_id]
        frontier = chance.randint(0, end)
        left = end - frontier
        runs = [1, 1] if left >= 2 and chance.random() < 0.6 else []
        done = QueueProgress(
            queue_id=place.queue_id,
            epoch=self._machine.leases.of(place).epoch,
            frontier=frontier,
            finished=runs,
            release=chance.random() < 0.2,
        )
        progress = TopicProgress(topic=topic.name, incarnation=topic.incarnation, queues=[done])
        return CommitLeasesCommand(group=member.group, session=member.session, topics=[progress])

    def _fitting(self) -> tuple[Command, tuple[Batch, ...]]:
        """Of those that come in units only, with their copies."""
        match self._chance.randrange(8):
            case _ if not self._topics:
                return self.command(), ()
            case 0 | 1 | 2:
                return self._altered(Command(deliver=self._deliver())), ()
            case 3:
                return self._bury()
            case 4 | 5:
                return self._failed()
            case 6:
                return self._fired()
            case _:
                return self._resent()

    def _deliver(self) -> DeliverCommand:
        chance, topic = self._chance, self._topic()
        group = chance.choice(("pops", "pops", "g", "k"))
        known = self._machine.deliveries.in_topic(group, topic.incarnation)
        command = DeliverCommand(
            group=group,
            topic=topic.name,
            incarnation=topic.incarnation,
            first_start=len(known),
            starts=[0] * (len(topic.next_offsets) - len(known)),
        )
        for queue_id, record in known.items():
            for each in list(record)[: chance.randint(0, 2)]:
                settled = SettledMessages(
                    queue_id=queue_id,
                    handout=each.index,
                    base=each.base,
                    mask=each.mask if chance.random() < 0.5 else 1,
                    what=Settling.Name(chance.choice(tuple(Settling.values()))),
                )
                command.settled.append(settled)
            left = topic.next_offsets[queue_id] - record.next
            if left and chance.random() < 0.7:
                mask = (1 << min(left, chance.randint(1, 3))) - 1
                given = GivenMessages(
                    queue_id=queue_id, base=record.next, mask=mask, attempt_id=BYTES[1]
                )
                command.given.append(given)
        return command

    def _bury(self) -> tuple[Command, tuple[Batch, ...]]:
        machine = self._machine
        for topic in self._topics:
            for queue_id, record in machine.deliveries.in_topic("pops", topic.incarnation).items():
                for each in record:
                    command = BuryCommand(
                        group="pops",
                        topic=topic.name,
                        incarnation=topic.incarnation,
                        queue_id=queue_id,
                        handout=each.index,
                        base=each.base,
                        mask=1,
                        attempts=each.attempt,
                    )
                    copies = (self._copy(dead_letter_topic("pops")),)
                    return self._altered(Command(bury=command)), copies
        return Command(bury=BuryCommand()), ()

    def _failed(self) -> tuple[Command, tuple[Batch, ...]]:
        """A message goes back, or has failed where it is."""
        held = self._held()
        if held is None:
            return Command(send_back=SendBackCommand()), ()
        member, place, topic = held
        machine, chance = self._machine, self._chance
        end = topic.next_offsets[place.queue_id]
        offset = chance.randint(0, max(0, end - 1))
        where: dict[str, Any] = {
            "group": member.group,
            "session": member.session,
            "topic": topic.name,
            "incarnation": topic.incarnation,
            "queue_id": place.queue_id,
            "epoch": machine.leases.of(place).epoch,
            "offset": offset,
        }
        if chance.random() < 0.4:
            failures = machine.attempts.of(place, offset) + 1
            failed = FailMessageCommand(failures=failures, **where)
            return self._altered(Command(fail_message=failed)), ()
        wanted = chance.choice((SCHEDULE_TOPIC, dead_letter_topic(member.group)))
        return self._altered(Command(send_back=SendBackCommand(**where))), (self._copy(wanted),)

    def _fired(self) -> tuple[Command, tuple[Batch, ...]]:
        topic = self._machine.topics.get(SCHEDULE_TOPIC)
        if topic is None:
            return Command(fire_delayed=FireDelayedCommand()), ()
        first = self._machine.retries.moved_to(Queue(topic.incarnation, 0))
        end = min(topic.next_offsets[0], first + 1)
        fire = FireDelayedCommand(incarnation=topic.incarnation, first=first, end=end)
        return self._altered(Command(fire_delayed=fire)), (self._copy(retry_topic("g")),)

    def _resent(self) -> tuple[Command, tuple[Batch, ...]]:
        topic = self._machine.topics.get(dead_letter_topic("g"))
        if topic is None or not topic.next_offsets[0]:
            return Command(resend=ResendCommand()), ()
        offset = self._chance.randrange(topic.next_offsets[0])
        dead = ResendCommand(topic=topic.name, incarnation=topic.incarnation, offset=offset)
        return self._altered(Command(resend=dead)), (self._copy("t"),)

    def _copy(self, topic: str) -> Batch:
        return batch(0, b"copy", topic=topic)

    # --- what needn't -------------------------------------------------------------------------

    def _fill(self, message: Message) -> None:
        for field in message.DESCRIPTOR.fields:
            if self._chance.random() < 0.12:
                continue
            if field.is_repeated:
                self._fill_list(message, field)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                self._fill(getattr(message, field.name))
            else:
                setattr(message, field.name, self._value(field))

    def _fill_list(self, message: Message, field: Any) -> None:
        items = getattr(message, field.name)
        for _ in range(self._chance.choice((0, 1, 1, 2, 3))):
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                self._fill(items.add())
            else:
                items.append(self._value(field))

    def _value(self, field: Any) -> Any:
        chance, name = self._chance, field.name
        if field.type == FieldDescriptor.TYPE_STRING:
            if "topic" in name or name == "name":
                return chance.choice(TOPICS)
            return chance.choice(("a", "b", "") if "member" in name else GROUPS)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.choice(BYTES)
        if field.type == FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.3
        if field.type == FieldDescriptor.TYPE_ENUM:
            return chance.choice([*field.enum_type.values_by_number, 77])
        most = MOST[field.cpp_type]
        if name == "mask":
            return chance.choice((1, 1, 3, 7, 0b101, 0, most))
        if name == "queue_id" or chance.random() < 0.3:
            return chance.choice((0, 0, 0, 1, 2))
        number = chance.choice(LARGE if chance.random() < 0.05 else self._numbers)
        return min(number, most)


def prepared(level: int) -> Bench:
    """Topics with messages, and bounds that are near."""
    bench = Bench(known_level=KNOWN_LEVEL)
    for each in range(bench.machine.level.current + 1, level + 1):
        bench.submit(Command(raise_level=RaiseLevelCommand(level=each)))
    for topic in ("t", "u"):
        bench.topic(topic)
        bench.send(batch(0, *(b"m" for _ in range(6)), topic=topic))
        bench.commit()
    for name in OWN:
        command = Command(create_topic=CreateTopicCommand(name=name, queue_count=1))
        bench.propose(EntryKind.COMMAND, 0, command.SerializeToString(), None)
    bench.commit()
    machine = bench.machine
    machine.deliveries.max_unfinished, machine.deliveries.max_all_unfinished = 4, 6
    machine.deliveries.max_handouts, machine.offsets.max_progress = 4, 9
    machine.leases.max_all_ranges, machine.retries.max_resent = 3, 3
    machine.groups.max_groups, machine.groups.max_sessions = 3, 4
    return bench


def propose(bench: Bench, chance: Random) -> None:
    """One entry, or two: a command, or units that share an entry."""
    drawing = Drawing(chance, bench.machine)
    if chance.random() < 0.5:
        bench.propose(EntryKind.COMMAND, 0, drawing.command().SerializeToString(), None)
        return
    units = [drawing.unit() for _ in range(chance.randint(1, 4))]
    if bench.machine.level.current >= COMPOUND_LEVEL:
        for unit in (ProposedUnit((), (drawing.command(),)), *units):  # the first one goes alone
            with suppress(BrokerError):  # not one that a unit may hold, or to a topic that is gone
                bench.appender.units.propose(unit)
        return
    body, _ = build_body(
        [UnitBody((), [each.SerializeToString() for each in unit.commands]) for unit in units]
    )
    bench.node.driver.propose(EntryKind.DATA, 0, body, None, COMPOUND_VERSION)


def kept(value: object) -> object:
    """A value with all that it is made of, derived or not; of a dict not the order, where it has
    none that counts."""
    if is_dataclass(value) and not isinstance(value, type):
        named = (field.name for field in fields(value) if field.name not in SNAPSHOTS)
        return type(value).__name__, {name: kept(getattr(value, name)) for name in named}
    if isinstance(value, OrderedDict):
        return [(each, kept(value[each])) for each in value]
    if isinstance(value, dict):
        return {each: kept(value[each]) for each in value}
    if isinstance(value, (list, tuple)):
        return [kept(each) for each in value]
    return value


def state_of(machine: StateMachine) -> dict[str, object]:
    """By owner."""
    return {name: kept(value) for name, value in vars(machine.state).items()}


def restored(machine: StateMachine) -> StateMachine:
    """From a snapshot, with the same bounds."""
    chunks = list(machine.snapshot())
    found = StateMachine.restore(iter(chunks), NoQueues(), known_level=KNOWN_LEVEL)
    for owner, names in BOUNDS.items():
        for name in names:
            setattr(getattr(found, owner), name, getattr(getattr(machine, owner), name))
    assert list(found.snapshot()) == chunks
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_machine_that_was_restored_goes_on_as_the_first(seed: int) -> None:
    """By any commands, also where the level rises between; and a snapshot that is taken chunk by
    chunk shows the moment at which it was asked for."""
    chance = Random(seed)
    bench = prepared(chance.choice((KNOWN_LEVEL, chance.randint(1, KNOWN_LEVEL))))
    machine, twin = bench.machine, restored(bench.machine)
    lazily: tuple[Iterator[bytes], list[bytes], list[bytes]] | None = None
    for _ in range(ENTRIES // 2):
        if chance.random() < 0.05 and machine.level.current < KNOWN_LEVEL:
            level = RaiseLevelCommand(level=machine.level.current + 1)
            bench.submit(Command(raise_level=level))
        else:
            propose(bench, chance)
        bench.commit()
        if bench.log.last_index > twin.applied_index:
            twin.apply(bench.log.read(twin.applied_index + 1, bench.log.last_index))
        assert state_of(twin) == state_of(machine)
        assert list(twin.snapshot()) == list(machine.snapshot())
        if lazily is None:
            chunks = machine.snapshot()
            lazily = chunks, list(machine.snapshot()), [next(chunks)]
        elif chance.random() < 0.3:
            chunks, at_once, first = lazily
            assert [*first, *chunks] == at_once
            lazily = None
        if chance.random() < 0.15:
            twin = restored(machine)
            assert state_of(twin) == state_of(machine)


@pytest.mark.parametrize("seed", range(12))
def test_any_commands_are_applied(seed: int) -> None:
    """Of every level and kind."""
    chance = Random(seed)
    bench = prepared(chance.choice((KNOWN_LEVEL, KNOWN_LEVEL, chance.randint(1, KNOWN_LEVEL))))
    for _ in range(ENTRIES):
        propose(bench, chance)
        bench.commit()
        assert bench.node.failure is None
        assert bench.machine.applied_index == bench.log.last_index
        bench.machine.check_invariants()

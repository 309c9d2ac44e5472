"""A leader's room for members of consumer groups: streams without a wire, on a machine whose time
passes when told (`tests.node.world`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import QueueDone, TopicDone
from broker.leader.groups.pace import USUAL_PACE
from broker.services.attendance import Attendance
from broker.services.groups import LeaseCommit, NotCommitted
from broker.services.updates import Assignment, Ended, HeartbeatAnswered, Joined
from broker.state.groups import Choices, JoinWish, Settings
from broker.state.machine import StateMachine
from broker.state.topics import TopicRef
from dledger.core.types import NodeId
from dledger.level import KNOWN_LEVEL
from dledger.wire.commands_pb2 import Command, CreateTopicCommand, DeleteTopicCommand
from tests.node.world import TICK_MS, Kind, World, WorldNode

QUEUES = 4
IN_TIME_MS = 1_000  # of which a heartbeat is answered in any case


@dataclass
class Member:
    """What a slot was told."""

    session: int = 0
    held: dict[tuple[str, int], int] = field(default_factory=dict)  # (topic, queue id) -> epoch
    frontiers: dict[tuple[str, int], int] = field(default_factory=dict)
    failures: dict[tuple[str, int], int | None] = field(default_factory=dict)
    asked: set[tuple[str, int]] = field(default_factory=set)
    is_whole: bool = False
    ended: Ended | None = None

    @property
    def queues(self) -> list[int]:
        return sorted(queue_id for _, queue_id in self.held)

    @property
    def code(self) -> ErrorCode | None:
        """Why it was ended."""
        failure = self.ended.failure if self.ended is not None else None
        return None if failure is None else failure.code


class Seat:
    """A stream, with a member in slot 0 and perhaps others."""

    def __init__(self, room: Room, node: WorldNode) -> None:
        self.node = node
        self._room = room
        with node.running():
            self.attendance: Attendance = node.replica.services.groups.attend()
        self.members: dict[int, Member] = {}
        self.answered = 0
        self.failure: BaseException | None = None
        self._task = node.begin(self._listen())

    async def _listen(self) -> None:
        try:
            async for update in self.attendance.updates():
                match update:
                    case Joined():
                        self.members[update.slot].session = update.session
                    case HeartbeatAnswered(number, _, _):
                        self.answered = number
                    case Ended():
                        self.members[update.slot].ended = update
                    case Assignment():
                        self._assign(self.members[update.slot], update)
        except BrokerError as error:
            self.failure = error
        finally:
            self.attendance.close()

    def _assign(self, member: Member, told: Assignment) -> None:
        for each in told.gained:
            key = each.queue.topic, each.queue.queue_id
            member.held[key], member.frontiers[key] = each.epoch, each.frontier
            member.failures[key] = each.failures
            member.asked.discard(key)
        member.asked.update((each.topic, each.queue_id) for each in told.asked)
        for queue in told.lost:
            del member.held[queue.topic, queue.queue_id]
            member.asked.discard((queue.topic, queue.queue_id))
        member.is_whole = member.is_whole or told.is_whole

    def join(
        self,
        name: str = "a",
        *,
        settings: Settings | None = None,
        group: str = "g",
        token: bytes = b"token--1",
        session: int = 0,
        takes_retries: bool = True,
        attempt: int = 0,
        choices: Choices = (),
    ) -> Member:
        """The member is joining; what becomes of it is told when time passes."""
        slot = len(self.members)
        member = self.members[slot] = Member()
        wish = JoinWish(group, name, token, settings or Settings(topics=("t",)), choices)
        self._room.world.outcome(
            self.node.begin(
                self.attendance.join(
                    slot, wish, session, attempt=attempt, takes_retries=takes_retries
                )
            )
        )
        self._room.world.settle()
        return member

    def refuse(self, why: str) -> Member:
        """A member that says too much is joining."""
        slot = len(self.members)
        member = self.members[slot] = Member()
        with self.node.running():
            self.attendance.refuse(slot, why)
        self._room.world.settle()
        return member

    def beat(self) -> None:
        with self.node.running():
            self.attendance.heartbeat(self.answered + 1)

    def leave(self, slot: int = 0) -> None:
        with self.node.running():
            self.attendance.leave(slot)

    def break_off(self) -> None:
        """The connection is gone."""
        with self.node.running():
            self.attendance.hang_up(None)
        self._room.world.settle()

    @property
    def is_over(self) -> bool:
        return self._task.done()


class Room:
    """A group that is at its level, with topic t."""

    def __init__(self, count: int = 1) -> None:
        self.world = World(count, kind=Kind(known_level=KNOWN_LEVEL))
        self.world.serving()
        while self.machine.level.current < KNOWN_LEVEL:
            self.world.tick()
        self.topic("t")
        self.pass_ms(USUAL_PACE.return_ms)

    @property
    def leader(self) -> WorldNode:
        return self.world.serving()

    @property
    def machine(self) -> StateMachine:
        return self.leader.replica.machine

    def own_topic(self, name: str, queues: int = 1) -> None:
        """One that only brokers make."""
        command = CreateTopicCommand(name=name, queue_count=queues)
        with self.leader.running():
            self.leader.replica.appender.submit(Command(create_topic=command))
        self.world.settle()

    def topic(self, name: str, queues: int = QUEUES) -> None:
        node = self.leader
        self.world.run(node, node.replica.services.topics.create(name, queues, if_not_exists=False))

    def delete(self, name: str) -> None:
        node = self.leader
        with node.running():
            node.replica.appender.submit(Command(delete_topic=DeleteTopicCommand(name=name)))
        self.world.settle()

    def seat(self) -> Seat:
        """A stream to who leads."""
        return Seat(self, self.leader)

    def pass_ms(self, ms: int, *beating: Seat) -> None:
        """Time passes, while these are there."""
        for number in range(-(-ms // TICK_MS)):
            if number % (IN_TIME_MS // TICK_MS) == 0:
                for seat in beating:
                    if not seat.is_over:
                        seat.beat()
            self.world.tick()

    def commit(
        self,
        member: Member,
        queue_id: int,
        frontier: int,
        *finished: int,
        release: bool = False,
        epoch: int = 0,
        name: str = "a",
    ) -> tuple[NotCommitted, ...]:
        """A commit of one queue of topic t."""
        topic = self.leader.replica.machine.topics["t"]
        done = QueueDone(
            queue_id, epoch or member.held.get(("t", queue_id), 0), frontier, finished, release
        )
        return self.commit_all(member, TopicDone("t", topic.incarnation, (done,)), name=name)

    def commit_all(
        self, member: Member, *topics: TopicDone, name: str = "a"
    ) -> tuple[NotCommitted, ...]:
        """A commit as it stands there."""
        node = self.leader
        commit = LeaseCommit("g", name, member.session, topics)
        return self.world.run(node, node.replica.services.groups.commit(commit))

    def bounds(self, queue_id: int) -> tuple[int, int]:
        node = self.leader
        return self.world.run(node, node.replica.services.offsets.bounds(TopicRef("t"), queue_id))

    def lead(self, name: str) -> None:
        """Another one leads."""
        self.world.lead(NodeId(name))


def share(members: Sequence[Member]) -> list[int]:
    """How many queues each has, most first."""
    return sorted((len(each.held) for each in members), reverse=True)


def changed(settings: Settings, **changes: object) -> Settings:
    return replace(settings, **changes)  # type: ignore[arg-type]

"""The owners of consumer groups by themselves: commands in, state out; for tests beside this."""

from __future__ import annotations

from collections.abc import Sequence

from broker.state.attempts import Attempts
from broker.state.consuming import At, Consuming
from broker.state.groups import OWN_SECTIONS as GROUP_SECTIONS
from broker.state.groups import Groups
from broker.state.leases import OWN_SECTIONS as LEASE_SECTIONS
from broker.state.leases import Lease, Leases, Place, runs_of
from broker.state.level import Level
from broker.state.moving import Moves, Moving
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.queue_numbers import QueueNumbers
from broker.state.refusals import Refusal, TopicNotFound, TopicReplaced
from broker.state.snapshot import Section
from broker.state.topics import TopicRef, Topics, TopicState
from dledger.level import TOPIC_RULES_LEVEL
from dledger.wire.commands_pb2 import (
    CloneGroupCommand,
    CommitLeasesCommand,
    EndSessionsCommand,
    ForgetGroupsCommand,
    GrantLeasesCommand,
    GroupSettings,
    JoinGroupCommand,
    MoveGroupCommand,
    QueueChoice,
    QueueGrant,
    QueueProgress,
    QueueStart,
    TopicGrants,
    TopicProgress,
)

QUEUES = 3
END = 40  # of each queue


class Owners:
    """Topics, groups, leases and offsets as the machine has them, and one command after another."""

    def __init__(
        self,
        groups: Groups | None = None,
        leases: Leases | None = None,
        offsets: Offsets | None = None,
    ) -> None:
        self.level = Level()
        self.queue_numbers = QueueNumbers()
        self.topics = Topics()
        self.offsets = Offsets() if offsets is None else offsets
        self.groups = Groups() if groups is None else groups
        self.leases = Leases() if leases is None else leases
        self.attempts = Attempts()
        self.index = self.lived_ms = 0
        self.level.current = TOPIC_RULES_LEVEL
        self.changed: list[str] = []
        self.consuming = Consuming(
            *(self.groups, self.leases, self.offsets, self.attempts),
            self.meant,
            self.changed.append,
        )
        self.moves: list[Moves] = []
        self.moving = Moving(
            *(self.groups, self.leases, self.offsets, self.attempts),
            self.meant,
            self.changed.append,
            self.moves.append,
        )

    def meant(self, ref: TopicRef) -> TopicState | TopicNotFound | TopicReplaced:
        topic = self.topics.get(ref.name)
        if topic is None:
            return TopicNotFound(ref.name)
        if not ref.means(topic.incarnation):
            return TopicReplaced(ref.name, ref.incarnation, topic.incarnation)
        return topic

    def at(self) -> At:
        """The next entry."""
        self.index += 1
        return At(self.index, self.lived_ms, self.level.current)

    def topic(self, name: str = "t", queues: int = QUEUES) -> int:
        """Creates a topic whose queues end at `END`; its incarnation."""
        at = self.at()
        self.topics.create(name, queues, incarnation=at.index, created_time_ms=0)
        for queue_id in range(queues):
            self.topics.advance(self.topics[name], queue_id, END)
        return at.index

    def delete(self, name: str = "t") -> None:
        """Deletes a topic, as the machine does."""
        self.at()
        topic = self.topics[name]
        self.topics.delete(name)
        groups = tuple(self.offsets.groups(name))
        self.offsets.on_topic_deleted(name)
        self.consuming.on_topic_deleted(topic, groups)

    def join(
        self,
        member: str = "m",
        token: bytes = b"token--1",
        *,
        group: str = "g",
        settings: GroupSettings | None = None,
        choices: Sequence[QueueChoice] = (),
    ) -> Refusal | int:
        """A join; the session, which is that of the member then, or the refusal."""
        command = JoinGroupCommand(
            group=group,
            member=member,
            token=token,
            settings=settings or wanted("t"),
            queues=choices,
        )
        refusal = self.consuming.join(command, self.at())
        return refusal or self.groups.members(group)[member].session

    def session(self, member: str = "m", token: bytes = b"token--1", **others: str) -> int:
        """A join that takes effect."""
        found = self.join(member, token, **others)  # type: ignore[arg-type]
        assert isinstance(found, int), found
        return found

    def end(self, *sessions: int) -> None:
        self.consuming.end(EndSessionsCommand(sessions=sessions), self.at())

    def grant(
        self,
        session: int,
        queue_id: int = 0,
        *,
        former: int = 0,
        starts: Sequence[int] = (),
        first_start: int = 0,
        group: str = "g",
        topic: str = "t",
    ) -> Refusal | None:
        """A grant of one queue."""
        grants = [QueueGrant(queue_id=queue_id, session=session, former_epoch=former)]
        incarnation = self.topics[topic].incarnation
        told = TopicGrants(
            topic=topic,
            incarnation=incarnation,
            first_start=first_start,
            starts=starts,
            grants=grants,
        )
        return self.consuming.grant(GrantLeasesCommand(group=group, topics=[told]), self.at())

    def commit(
        self,
        session: int,
        epoch: int,
        frontier: int,
        *finished: tuple[int, int],
        queue_id: int = 0,
        release: bool = False,
        group: str = "g",
        topic: str = "t",
    ) -> Refusal | None:
        """A commit of one queue."""
        queue = QueueProgress(
            queue_id=queue_id,
            epoch=epoch,
            frontier=frontier,
            finished=runs_of(frontier, finished),
            release=release,
        )
        progress = TopicProgress(
            topic=topic, incarnation=self.topics[topic].incarnation, queues=[queue]
        )
        command = CommitLeasesCommand(group=group, session=session, topics=[progress])
        return self.consuming.commit(command, self.at())

    def simply(
        self, offset: int, *, queue_id: int = 0, reset: bool = False, group: str = "g"
    ) -> Refusal | None:
        """A commit without a lease."""
        commit = OffsetCommit(group, "t", ((queue_id, offset),), is_reset=reset)
        return self.consuming.commit_offsets(commit, self.topics["t"], self.at())

    def move(
        self,
        *offsets: tuple[int, int],
        forward: bool = False,
        group: str = "g",
        incarnation: int = 0,
    ) -> Refusal | None:
        """A move of (queue id, offset) each."""
        command = MoveGroupCommand(
            group=group,
            topic="t",
            incarnation=incarnation or self.topics["t"].incarnation,
            queues=[QueueStart(queue_id=queue_id, offset=offset) for queue_id, offset in offsets],
            forward=forward,
        )
        return self.moving.move(command, self.at())

    def clone(self, source: str, target: str) -> Refusal | None:
        return self.moving.clone(CloneGroupCommand(source=source, target=target), self.at())

    def forget(self, *groups: str, unused_ms: int) -> None:
        command = ForgetGroupsCommand(groups=groups, unused_ms=unused_ms)
        self.consuming.forget(command, self.at())

    def lease(self, queue_id: int = 0, group: str = "g", topic: str = "t") -> Lease:
        return self.leases.of(Place(group, self.topics[topic].incarnation, queue_id))

    def frontier(self, queue_id: int = 0, group: str = "g", topic: str = "t") -> int | None:
        return self.offsets.of(group, topic).get(queue_id)

    def check(self) -> None:
        """Every invariant, and a snapshot gives the same state and the same bytes again."""
        self.groups.check_invariants(self.index, self.lived_ms)
        self.leases.check_invariants(self.index)
        self.offsets.check_invariants()
        self.consuming.check_invariants(self.topics.values(), is_counted=True)
        groups, leases = Groups(), Leases(self.leases.max_all_ranges)
        groups.max_groups, groups.max_sessions = self.groups.max_groups, self.groups.max_sessions
        kept = {each.name: (each.version, list(each.payloads)) for each in self.sections()}
        for name in GROUP_SECTIONS:
            if name in kept:
                groups.restore(name, *kept[name])
        for name in LEASE_SECTIONS:
            if name in kept:
                leases.restore(name, *kept[name])
        assert (groups, leases) == (self.groups, self.leases)
        again = (*groups.snapshot(), *leases.snapshot())
        assert {each.name: (each.version, list(each.payloads)) for each in again} == kept

    def sections(self) -> tuple[Section, ...]:
        """A snapshot."""
        return (*self.groups.snapshot(), *self.leases.snapshot())


def wanted(*topics: str, version: int = 0, **others: object) -> GroupSettings:
    """Settings of a group."""
    return GroupSettings(version=version, topics=topics, **others)  # type: ignore[arg-type]

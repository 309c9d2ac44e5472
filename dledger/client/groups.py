"""Looking after consumer groups: which there are, how far they are, where they go on.

`Client.consumer_groups` is this. It joins nothing: members are `dledger.client.members`. Nodes
answer in pages, each a picture of some moment; the deadline of a call is each page's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from dledger.client.arguments import milliseconds, seconds, some_queue_ids, text, u64
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import DESCRIBE_TOPIC, Method, WhenDeposed
from dledger.client.errors import ClientError, InvalidArgument
from dledger.client.offsets import Claim, fetch
from dledger.client.options import StartFrom
from dledger.outcome import Outcome
from dledger.wire import broker_pb2 as bpb
from dledger.wire import commands_pb2 as cpb
from dledger.wire import consumers_pb2 as pb

_SERVICE: Final = "/dledger.v1.Consumers/"
LIST_GROUPS: Final = Method(_SERVICE + "ListGroups", pb.ListGroupsRequest, pb.ListGroupsResponse)
DESCRIBE_GROUP: Final = Method(
    _SERVICE + "DescribeGroup", pb.DescribeGroupRequest, pb.DescribeGroupResponse
)
GET_GROUP_PROGRESS: Final = Method(
    _SERVICE + "GetGroupProgress", pb.GetGroupProgressRequest, pb.GetGroupProgressResponse
)
MOVE_GROUP: Final = Method(_SERVICE + "MoveGroup", pb.MoveGroupRequest, pb.MoveGroupResponse)
CLONE_GROUP: Final = Method(_SERVICE + "CloneGroup", pb.CloneGroupRequest, pb.CloneGroupResponse)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group. One that nobody ever joined (`joined`) is handed single messages
    (`singles`), or has only committed offsets, and says nothing of what its members agree on.
    `topics` are those that it wants; `unused_s`: lived time since it was used last, 0 with
    members."""

    name: str
    joined: bool
    member_count: int
    topic_count: int
    unused_s: float
    in_order: bool = False
    broadcast: bool = False
    strategy: str = ""
    start: str = ""
    version: int = 0
    topics: tuple[str, ...] = ()
    singles: bool = False


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member. `attached`: its stream is at the leader; `expires_s`: in how long its session ends
    if nothing is heard of it."""

    name: str
    session: int
    version: int
    queue_count: int
    attached: bool
    expires_s: float


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """How far a group is in a queue.

    Attributes:
        committed: everything before it is finished; None: nothing is committed.
        finished: messages above it that are finished, in `runs` runs.
        lag: messages that are there and unfinished.
        session: of the member that holds it, by lease `epoch`; 0 both: nobody.
        asked: it was asked back.
        oldest_unfinished_ms: when the oldest one was stored, since the epoch; None: there is none,
            or it can't be told.
        in_hand: of a group that is handed single messages: those that aren't finished, hidden or
            given back.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    committed: int | None
    finished: int
    runs: int
    lag: int
    session: int
    epoch: int
    asked: bool
    oldest_unfinished_ms: int | None
    in_hand: int = 0

    @property
    def done(self) -> int:
        """How many messages are finished, those that have gone included."""
        return (self.committed or 0) + self.finished


Members = list[GroupMember]
Queues = list[GroupQueue]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its members by name, its queues by topic and id."""

    group: GroupInfo
    members: Members
    queues: Queues


class MovedQueue(NamedTuple):
    """A queue in which a group goes on at `offset`; None before: it had committed nothing. Both are
    as of the moment it was moved; `before`, of a reset that had to be asked for again, as of the
    call's begin."""

    queue_id: int
    before: int | None
    offset: int


Groups = list[GroupInfo]
Moved = list[MovedQueue]


class ConsumerGroups:
    """The consumer groups of a broker group."""

    def __init__(self, broker_group: Callable[[], BrokerGroup]) -> None:
        self._broker_group = broker_group

    async def list(self, *, deadline_s: float | None = None) -> Groups:
        """Every group, by name."""
        found: Groups = []
        request = pb.ListGroupsRequest()
        while True:  # names ascend from page to page, and there is an end to them
            answer = await self._broker_group().call(
                LIST_GROUPS, request, Effect.NONE, deadline_s=deadline_s
            )
            found += [_info(each) for each in answer.groups]
            if answer.next_page_token <= request.page_token:
                return found
            request = pb.ListGroupsRequest(page_token=answer.next_page_token)

    async def describe(self, group: str, *, deadline_s: float | None = None) -> GroupDescription:
        """Who is in the group, who holds which queue, how far each is.

        Raises:
            GroupNotFound: nobody ever joined it or committed for it, or it is forgotten.
        """
        members: Members = []
        request = pb.DescribeGroupRequest(group=text("group", group))
        while True:  # names ascend from page to page, and there is an end to them
            answer = await self._broker_group().call(
                DESCRIBE_GROUP, request, Effect.NONE, deadline_s=deadline_s
            )
            members += [_member(each) for each in answer.members]
            if answer.next_page_token <= request.page_token:
                break
            request = pb.DescribeGroupRequest(group=group, page_token=answer.next_page_token)
        queues = await self.progress(group, deadline_s=deadline_s)
        return GroupDescription(_info(answer.group), members, queues)

    async def progress(self, group: str, *, deadline_s: float | None = None) -> Queues:
        """How far the group is in each queue of its topics, and of those that it committed in.

        Raises:
            GroupNotFound: see `describe`.
        """
        found: Queues = []
        request = pb.GetGroupProgressRequest(group=text("group", group))
        while True:  # places ascend from page to page, and there is an end to them
            answer = await self._broker_group().call(
                GET_GROUP_PROGRESS, request, Effect.NONE, deadline_s=deadline_s
            )
            found += [_queue(each) for each in answer.queues]
            if not answer.HasField("next") or _place(answer.next) <= _place(request.start):
                return found
            request = pb.GetGroupProgressRequest(group=group, start=answer.next)

    async def reset(
        self,
        group: str,
        topic: str,
        to: StartFrom | datetime | int,
        *,
        queues: Collection[int] = (),
        deadline_s: float | None = None,
    ) -> Moved:
        """The group goes on there, with members or without: what they hold of these queues they
        lose, and are given anew; what they commit late is refused.

        Args:
            to: an end of the queues, the first message stored at or after a time (with a time
                zone), or an offset.
            queues: ids; none: all of the topic. All of them are moved, or none.

        Raises:
            GroupNotFound, TopicNotFound, QueueNotFound: there is none.
            OffsetOutOfRange: a queue hasn't that offset.
            TopicReplaced: the topic was made anew while it was asked.
            NotReady: not every member of the broker group knows how yet.
        """
        request = _move(group, topic, queues)
        if isinstance(to, datetime):
            request.start, request.time_ms = cpb.START_TIME, milliseconds("to", to)
        elif isinstance(to, StartFrom):
            if to is StartFrom.COMMITTED:
                raise InvalidArgument("committed is where the group is")
            is_first = to is StartFrom.FIRST
            request.start = cpb.START_FIRST if is_first else cpb.START_LAST
        else:
            request.offset = u64("to", to)
        until_s = self._until_s(deadline_s)
        broker_group = await self._of_topic(request, until_s)
        known = await fetch(
            broker_group, Claim(group, topic, request.incarnation), _left_s(until_s)
        )
        try:
            answer = await broker_group.call(
                *(MOVE_GROUP, request, Effect.ONCE),
                deadline_s=_left_s(until_s),
                when_deposed=WhenDeposed.ABANDON,
            )
        except ClientError as error:
            is_lost = error.retriable and error.outcome is Outcome.MAY_HAVE_HAPPENED
            if not is_lost or asyncio.get_running_loop().time() >= until_s:
                raise
            return await self._reset_again(request, known, until_s)
        return [_moved(each) for each in answer.queues]

    async def _reset_again(
        self, request: pb.MoveGroupRequest, known: dict[int, int], until_s: float
    ) -> Moved:
        """The same wish again is the same end of it. What the brokers find there then may be what
        the attempt whose answer was lost has set: where the group was is known from before that."""
        try:
            answer = await self._broker_group().call(
                MOVE_GROUP, request, Effect.IDEMPOTENT, deadline_s=_left_s(until_s)
            )
        except ClientError as error:
            error.outcome = Outcome.MAY_HAVE_HAPPENED
            raise
        moved = map(_moved, answer.queues)
        return [each._replace(before=known.get(each.queue_id)) for each in moved]

    async def skip(
        self,
        group: str,
        topic: str,
        count: int | None = None,
        *,
        queues: Collection[int] = (),
        deadline_s: float | None = None,
    ) -> Moved:
        """Unfinished messages count as finished, as `reset` for the rest; nothing that is finished
        comes again.

        Args:
            count: so many of each queue, the oldest ones; None: all that are there.
            queues: see `reset`.

        Raises:
            ClientError: see `reset`; with `Outcome.MAY_HAVE_HAPPENED` when the answer was lost.
        """
        if count is not None and u64("count", count) < 1:
            raise InvalidArgument(f"one message at least is skipped, not {count}")
        request = _move(group, topic, queues)
        request.skip = u64("count", count or 0)
        until_s = self._until_s(deadline_s)
        broker_group = await self._of_topic(request, until_s)
        answer = await broker_group.call(
            MOVE_GROUP, request, Effect.ONCE, deadline_s=_left_s(until_s)
        )
        return [_moved(each) for each in answer.queues]

    async def _of_topic(self, request: pb.MoveGroupRequest, until_s: float) -> BrokerGroup:
        """The broker group that is to be asked. The request is about the topic that is there now:
        sent again once there is another one of the name, it moves nobody."""
        broker_group = self._broker_group()
        wanted = bpb.DescribeTopicRequest(name=request.topic)
        answer = await broker_group.call(
            DESCRIBE_TOPIC, wanted, Effect.NONE, deadline_s=_left_s(until_s)
        )
        request.incarnation = answer.topic.incarnation
        return broker_group

    def _until_s(self, deadline_s: float | None) -> float:
        """When a call of several requests is over, by the loop's clock."""
        total_s = self._broker_group().options.deadline_s
        if deadline_s is not None:
            total_s = seconds("deadline_s", deadline_s)
        return asyncio.get_running_loop().time() + total_s

    async def clone(self, source: str, target: str, *, deadline_s: float | None = None) -> int:
        """The target, which nobody knows yet, has committed what the source has; in how many
        topics. What the source has finished above its committed offsets comes to the target.

        Raises:
            GroupNotFound: the source has committed nothing.
            GroupExists: somebody has joined the target, or committed for it.
        """
        request = pb.CloneGroupRequest(source=text("group", source), target=text("group", target))
        answer = await self._broker_group().call(
            CLONE_GROUP, request, Effect.ONCE, deadline_s=deadline_s
        )
        return answer.topic_count


def _left_s(until_s: float) -> float:
    return max(0.001, until_s - asyncio.get_running_loop().time())


def _move(group: str, topic: str, queues: Collection[int]) -> pb.MoveGroupRequest:
    return pb.MoveGroupRequest(
        group=text("group", group),
        topic=text("topic name", topic),
        queue_ids=some_queue_ids(queues),
    )


def _place(place: pb.QueuePlace) -> tuple[str, int]:
    return place.topic, place.queue_id


STARTS: Final = {cpb.START_FIRST: "first", cpb.START_LAST: "last", cpb.START_TIME: "time"}


def _info(wire: pb.GroupSummary) -> GroupInfo:
    settings = wire.settings
    return GroupInfo(
        wire.name,
        wire.created > 0,
        wire.member_count,
        wire.topic_count,
        wire.unused_ms / 1000,
        settings.orderly or wire.singles_in_order,
        settings.broadcast,
        settings.strategy or ("STICKY" if wire.created else ""),
        STARTS.get(settings.start, "") if wire.created else "",
        settings.version,
        tuple(settings.topics),
        wire.singles,
    )


def _member(wire: pb.MemberOfGroup) -> GroupMember:
    return GroupMember(
        wire.member,
        wire.session,
        wire.version,
        wire.queue_count,
        wire.attached,
        wire.expires_ms / 1000,
    )


def _queue(wire: pb.ProgressOfQueue) -> GroupQueue:
    return GroupQueue(
        wire.topic,
        wire.queue_id,
        wire.min_offset,
        wire.max_offset,
        wire.frontier if wire.HasField("frontier") else None,
        wire.finished_count,
        wire.finished_runs,
        wire.unfinished_count,
        wire.session,
        wire.epoch,
        wire.asked,
        wire.oldest_unfinished_ms or None,
        wire.in_hand_count,
    )


def _moved(wire: pb.MovedQueue) -> MovedQueue:
    before = wire.before if wire.HasField("before") else None
    return MovedQueue(wire.queue_id, before, wire.offset)

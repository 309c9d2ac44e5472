"""`dledger.v1.Consumers` translated; see `broker/doors/grpc/broker.py`."""

from __future__ import annotations

from broker.doors.grpc.groups import start_of, wire_settings
from broker.errors import BrokerError, ErrorCode
from broker.services.consumers import (
    GroupSummary,
    MemberPicture,
    MoveWish,
    QueueAt,
    QueuePicture,
    To,
)
from broker.services.services import Services
from broker.state.groups import Start
from broker.state.topics import TopicRef
from dledger.wire import consumers_pb2 as pb

STARTS = {Start.FIRST: To.FIRST, Start.LAST: To.LAST, Start.TIME: To.TIME}


class ConsumersDoor:
    """Handlers of `dledger.v1.Consumers`."""

    def __init__(self, services: Services) -> None:
        self._consumers = services.consumers

    async def list_groups(
        self, request: pb.ListGroupsRequest, context: object
    ) -> pb.ListGroupsResponse:
        page = await self._consumers.list(request.page_token)
        return pb.ListGroupsResponse(
            groups=[_summary(each) for each in page.groups], next_page_token=page.following
        )

    async def describe_group(
        self, request: pb.DescribeGroupRequest, context: object
    ) -> pb.DescribeGroupResponse:
        found = await self._consumers.describe(request.group, request.page_token)
        return pb.DescribeGroupResponse(
            group=_summary(found.group),
            members=[_member(each) for each in found.members],
            next_page_token=found.following,
        )

    async def get_group_progress(
        self, request: pb.GetGroupProgressRequest, context: object
    ) -> pb.GetGroupProgressResponse:
        at = request.start
        start = QueueAt(at.topic, at.queue_id) if request.HasField("start") else None
        page = await self._consumers.progress(request.group, start)
        following = page.following
        return pb.GetGroupProgressResponse(
            queues=[_queue(each) for each in page.queues],
            next=None if following is None else pb.QueuePlace(**following._asdict()),
        )

    async def move_group(
        self, request: pb.MoveGroupRequest, context: object
    ) -> pb.MoveGroupResponse:
        to, number = _target(request)
        topic = TopicRef(request.topic, request.incarnation)
        wish = MoveWish(request.group, topic, tuple(request.queue_ids), to, number)
        moved = await self._consumers.move(wish)
        return pb.MoveGroupResponse(queues=[pb.MovedQueue(**each._asdict()) for each in moved])

    async def clone_group(
        self, request: pb.CloneGroupRequest, context: object
    ) -> pb.CloneGroupResponse:
        count = await self._consumers.clone(request.source, request.target)
        return pb.CloneGroupResponse(topic_count=count)


def _target(request: pb.MoveGroupRequest) -> tuple[To, int]:
    match request.WhichOneof("to"):
        case "start":
            return STARTS[start_of(request.start)], request.time_ms
        case "offset":
            return To.OFFSET, request.offset
        case "skip":
            return To.SKIP, request.skip
        case _:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, "give start, offset or skip")


def _summary(group: GroupSummary) -> pb.GroupSummary:
    return pb.GroupSummary(
        name=group.name,
        created=group.created,
        unused_ms=group.unused_ms,
        member_count=group.member_count,
        topic_count=group.topic_count,
        settings=None if group.settings is None else wire_settings(group.settings),
        singles=group.hands_out_singles,
        singles_in_order=group.is_fifo,
    )


def _member(member: MemberPicture) -> pb.MemberOfGroup:
    return pb.MemberOfGroup(
        member=member.member,
        session=member.session,
        version=member.version,
        queue_count=member.queue_count,
        attached=member.is_attached,
        expires_ms=member.expires_ms,
    )


def _queue(queue: QueuePicture) -> pb.ProgressOfQueue:
    return pb.ProgressOfQueue(
        topic=queue.at.topic,
        incarnation=queue.incarnation,
        queue_id=queue.at.queue_id,
        min_offset=queue.min_offset,
        max_offset=queue.max_offset,
        frontier=queue.frontier,
        finished_count=queue.finished_count,
        finished_runs=queue.finished_runs,
        unfinished_count=queue.unfinished_count,
        session=queue.session,
        epoch=queue.epoch,
        asked=queue.is_asked,
        oldest_unfinished_ms=queue.oldest_unfinished_ms,
        in_hand_count=queue.in_hand_count,
    )

"""`dledger.v1.Groups` translated; see `broker/doors/grpc/broker.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from itertools import groupby
from typing import Any, Final, Protocol, assert_never

from broker.doors.grpc.broker import Context, EndOfCall
from broker.doors.grpc.errors import malformed_request, wire_error
from broker.doors.grpc.methods import Malformed
from broker.doors.grpc.sizes import too_many
from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.commands import QueueDone, TopicDone
from broker.reading.tags import WantedTags
from broker.services.attendance import Attendance
from broker.services.groups import LeaseCommit
from broker.services.messages import tags_of_pull
from broker.services.queue_pulls import Pulled, QueuesRequest, QueueWish
from broker.services.retries import FailedMessage, SendBack
from broker.services.services import Services
from broker.services.updates import (
    Assignment,
    Ended,
    Gained,
    HeartbeatAnswered,
    Joined,
    QueueOf,
    Update,
)
from broker.state.filters import filters_of, wire_filters
from broker.state.groups import JoinWish, Settings, Start
from broker.state.leases import runs_of
from broker.state.topics import TopicRef
from dledger.wire import commands_pb2 as cpb
from dledger.wire import groups_pb2 as pb

Requests = AsyncIterator[pb.AttendRequest | Malformed]

ATTEND: Final[Any] = pb.DESCRIPTOR.services_by_name["Groups"].methods_by_name["Attend"]
TOO_MANY: Final = too_many(ATTEND)


class Stream(Context, Protocol):
    """`grpc.aio.ServicerContext`, as far as a stream of members uses it."""

    async def write(self, message: pb.AttendResponse, /) -> None: ...


class GroupsDoor:
    """Handlers of `dledger.v1.Groups`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def attend(self, requests: Requests, context: Stream) -> None:
        attendance = self._services.groups.attend()
        listening = asyncio.get_running_loop().create_task(_listen(requests, attendance))
        listening.add_done_callback(lambda task: _hang_up(attendance, task))
        try:
            async with aclosing(attendance.updates()) as updates:
                async for update in updates:
                    await context.write(_wire_update(update))
        finally:
            listening.cancel()
            attendance.close()

    async def commit_leases(
        self, request: pb.CommitLeasesRequest, context: object
    ) -> pb.CommitLeasesResponse:
        commit = LeaseCommit(
            request.group,
            request.member,
            request.session,
            tuple(_topic_done(each) for each in request.topics),
        )
        refused = await self._services.groups.commit(commit)
        return pb.CommitLeasesResponse(
            refused=[
                pb.CommitRefusal(
                    topic=each.queue.topic,
                    incarnation=each.queue.incarnation,
                    queue_id=each.queue.queue_id,
                    error=wire_error(each.failure),
                )
                for each in refused
            ]
        )

    async def pull_queues(
        self, request: pb.PullQueuesRequest, context: Context
    ) -> pb.PullQueuesResponse:
        wanted = QueuesRequest(
            queues=_queue_wishes(request.queues),
            group=request.group,
            is_by_filter=request.by_filter,
            max_messages=request.max_messages,
            max_bytes=request.max_bytes,
            hold_ms=request.hold_ms if request.HasField("hold_ms") else None,
        )
        found = await self._services.queue_pulls.pull(wanted, EndOfCall(context))
        return pb.PullQueuesResponse(queues=[_pulled_queue(each) for each in found])

    async def send_back(self, request: pb.SendBackRequest, context: object) -> pb.SendBackResponse:
        wish = SendBack(
            request.group,
            request.member,
            request.session,
            tuple(
                FailedMessage(
                    QueueOf(each.topic, each.incarnation, each.queue_id),
                    each.epoch,
                    each.offset,
                    each.rejected,
                    each.failed,
                )
                for each in request.messages
            ),
        )
        found = await self._services.retries.send_back(wish)
        return pb.SendBackResponse(
            messages=[
                pb.SentBack(failures=each)
                if isinstance(each, int)
                else pb.SentBack(error=wire_error(each))
                for each in found
            ]
        )

    async def get_dead_letters(
        self, request: pb.GetDeadLettersRequest, context: object
    ) -> pb.GetDeadLettersResponse:
        found = await self._services.retries.dead_letters(request.group)
        return pb.GetDeadLettersResponse(
            topic=found.topic,
            incarnation=found.incarnation,
            queues=[
                pb.DeadQueue(
                    queue_id=each.queue_id,
                    min_offset=each.min_offset,
                    max_offset=each.max_offset,
                    resent=runs_of(0, each.resent),
                )
                for each in found.queues
            ],
        )

    async def resend_dead_letter(
        self, request: pb.ResendDeadLetterRequest, context: object
    ) -> pb.ResendDeadLetterResponse:
        found = await self._services.retries.resend(
            request.group, request.incarnation, request.queue_id, request.offset
        )
        if found.place is None:
            return pb.ResendDeadLetterResponse(topic=found.topic)
        queue_id, offset = found.place
        return pb.ResendDeadLetterResponse(
            topic=found.topic, resent=True, queue_id=queue_id, offset=offset
        )


# --- the stream --------------------------------------------------------------------------------


async def _listen(requests: Requests, attendance: Attendance) -> None:
    async for request in requests:
        if isinstance(request, Malformed):
            raise malformed_request(request.why)
        match request.WhichOneof("body"):
            case "join":
                await _join(request, attendance)
            case "heartbeat":
                attendance.heartbeat(request.heartbeat.number)
            case "leave":
                attendance.leave(request.leave.slot)
            case _:
                raise BrokerError(ErrorCode.INVALID_ARGUMENT, "give join, heartbeat or leave")


async def _join(request: pb.AttendRequest, attendance: Attendance) -> None:
    """The member joins, or is refused for what it says: others are on the stream.

    Raises:
        BrokerError: see `Attendance.join`.
    """
    join = request.join
    if why := TOO_MANY(request):
        attendance.refuse(join.slot, why)
        return
    try:
        wish = _wish(join)
    except BrokerError as error:  # of a later program, say
        attendance.refuse(join.slot, error.message)
        return
    await attendance.join(
        join.slot,
        wish,
        join.session,
        attempt=join.attempt,
        takes_retries=not join.no_retries,
    )


def _hang_up(attendance: Attendance, listening: asyncio.Task[None]) -> None:
    attendance.hang_up(None if listening.cancelled() else listening.exception())


def _wish(join: pb.Join) -> JoinWish:
    return JoinWish(
        join.group,
        join.member,
        join.token,
        _settings(join.settings),
        tuple((each.topic, tuple(each.queue_ids)) for each in join.queues),
    )


def _settings(wire: cpb.GroupSettings) -> Settings:
    return Settings(
        wire.version,
        wire.broadcast,
        wire.orderly,
        wire.strategy,
        start_of(wire.start),
        wire.start_time_ms,
        tuple(wire.topics),
        wire.max_attempts,
        filters_of(wire),
    )


def start_of(wire: cpb.StartFrom) -> Start:
    """Where a group starts.

    Raises:
        BrokerError: INVALID_ARGUMENT, of a later program.
    """
    try:
        return Start(wire)
    except ValueError as error:
        text = f"a group can't start at {int(wire)}"
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, text) from error


def wire_settings(settings: Settings) -> cpb.GroupSettings:
    return cpb.GroupSettings(
        version=settings.version,
        broadcast=settings.is_broadcast,
        orderly=settings.is_orderly,
        strategy=settings.strategy,
        start=cpb.StartFrom.Name(settings.start),
        start_time_ms=settings.start_time_ms,
        topics=settings.topics,
        max_attempts=settings.max_attempts,
        filters=wire_filters(settings.tags),
    )


def _wire_update(update: Update) -> pb.AttendResponse:
    match update:
        case Joined():
            joined = pb.Joined(
                slot=update.slot,
                session=update.session,
                heartbeat_ms=update.heartbeat_ms,
                session_ms=update.session_ms,
                release_ms=update.release_ms,
                return_within_ms=update.return_within_ms,
                settings=wire_settings(update.settings),
            )
            return pb.AttendResponse(joined=joined)
        case HeartbeatAnswered(number, return_within_ms, heartbeat_ms):
            answered = pb.HeartbeatAnswered(
                number=number, return_within_ms=return_within_ms, heartbeat_ms=heartbeat_ms
            )
            return pb.AttendResponse(heartbeat_answered=answered)
        case Assignment():
            assignment = pb.Assignment(
                slot=update.slot,
                gained=_topic_leases(update.gained),
                asked=_topic_queues(update.asked),
                lost=_topic_queues(update.lost),
                whole=update.is_whole,
            )
            return pb.AttendResponse(assignment=assignment)
        case Ended(slot, failure):
            error = None if failure is None else wire_error(failure)
            return pb.AttendResponse(ended=pb.Ended(slot=slot, error=error))
        case _:
            assert_never(update)


def _topic_leases(gained: Iterable[Gained]) -> list[pb.TopicLeases]:
    ordered = sorted(gained, key=lambda each: each.queue)
    return [
        pb.TopicLeases(
            topic=topic,
            incarnation=incarnation,
            leases=[
                pb.QueueLease(
                    queue_id=each.queue.queue_id,
                    epoch=each.epoch,
                    frontier=each.frontier,
                    finished=each.finished,
                    failures=each.failures,
                )
                for each in leases
            ],
        )
        for (topic, incarnation), leases in groupby(ordered, key=lambda each: each.queue[:2])
    ]


def _topic_queues(queues: Iterable[QueueOf]) -> list[pb.TopicQueues]:
    return [
        pb.TopicQueues(topic=topic, incarnation=number, queue_ids=[each.queue_id for each in part])
        for (topic, number), part in groupby(sorted(queues), key=lambda each: each[:2])
    ]


# --- values ------------------------------------------------------------------------------------


def _topic_done(wire: cpb.TopicProgress) -> TopicDone:
    return TopicDone(
        wire.topic,
        wire.incarnation,
        tuple(
            QueueDone(
                *(each.queue_id, each.epoch, each.frontier, tuple(each.finished)),
                *(each.release, each.begun),
            )
            for each in wire.queues
        ),
    )


def _queue_wishes(wire: Iterable[pb.QueuePull]) -> tuple[QueueWish, ...]:
    known: dict[tuple[str, ...], WantedTags | None] = {(): None}  # queues of a topic name the same
    wishes: list[QueueWish] = []
    for each in wire:
        tags = tuple(each.tags)
        if tags not in known:
            known[tags] = tags_of_pull(tags)
        topic = TopicRef(each.topic, each.topic_incarnation)
        place = topic, each.queue_id, each.offset, each.epoch, each.max_messages
        wishes.append(QueueWish(*place, known[tags]))
    return tuple(wishes)


def _pulled_queue(pulled: Pulled) -> pb.PulledQueue:
    position, found = pulled
    if isinstance(found, Failure):
        return pb.PulledQueue(position=position, error=wire_error(found))
    return pb.PulledQueue(
        position=position,
        records=found.records,
        count=found.count,
        next_offset=found.next_offset,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        topic_incarnation=found.incarnation,
        void_count=found.void_count,
        filtered_count=found.filtered_count,
    )

"""`dledger.v1.Broker` translated: requests into plain values, plain values into answers.

Each handler is named as its method is in snake case (`broker/doors/grpc/methods.py` looks it up).
Nothing is decided here: no check, no default, no wait that a second door would have to repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from broker.doors.grpc.errors import wire_error
from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import Batch, BatchAnswer, StoredBefore
from broker.reading.progress import QueueOffset
from broker.services.messages import PullRequest, tags_of_pull
from broker.services.services import Services
from broker.services.topics import NO_WISHES, QueueWish, Topic, Wishes
from broker.state.offsets import OffsetCommit
from broker.state.registration import Registration
from broker.state.topics import TopicRef
from dledger.wire import broker_pb2 as pb


class Context(Protocol):
    """`grpc.aio.ServicerContext`, as far as these handlers use it."""

    def add_done_callback(self, callback: Callable[[object], None], /) -> None: ...


class EndOfCall:
    """The `Call` that pulls are given: it ends when gRPC says so."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def on_end(self, callback: Callable[[], None]) -> None:
        """See `broker.services.messages.Call`."""
        self._context.add_done_callback(lambda _: callback())


class BrokerDoor:
    """Handlers of `dledger.v1.Broker`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    # --- messages -----------------------------------------------------------------------------

    async def send(self, request: pb.SendRequest, context: Context) -> pb.SendResponse:
        # No name is kept here for the batches: the service lets them go while it waits.
        answers = await self._services.sends.send(
            request.producer_id, [plain_batch(each) for each in request.batches]
        )
        return pb.SendResponse(results=[_send_result(each) for each in answers])

    async def register_producer(
        self, request: pb.RegisterProducerRequest, context: Context
    ) -> pb.RegisterProducerResponse:
        wanted = Registration(request.token, request.name, request.previous)
        registered = await self._services.producers.register(wanted)
        return pb.RegisterProducerResponse(
            producer_id=registered.producer_id,
            origin=registered.origin,
            next_sequences=[
                pb.NextSequence(
                    topic=each.topic,
                    queue_id=each.queue_id,
                    sequence=each.sequence,
                    topic_incarnation=each.incarnation,
                )
                for each in registered.next_sequences
            ],
        )

    async def pull(self, request: pb.PullRequest, context: Context) -> pb.PullResponse:
        wanted = PullRequest(
            topic=TopicRef(request.topic, request.topic_incarnation),
            queue_id=request.queue_id,
            offset=request.offset,
            max_messages=request.max_messages,
            max_bytes=request.max_bytes,
            hold_ms=request.hold_ms if request.HasField("hold_ms") else None,
            tags=tags_of_pull(request.tags),
        )
        found = await self._services.pulls.pull(wanted, EndOfCall(context))
        return pb.PullResponse(
            records=found.records,
            count=found.count,
            next_offset=found.next_offset,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
            topic_incarnation=found.incarnation,
            void_count=found.void_count,
            filtered_count=found.filtered_count,
        )

    async def get_message(
        self, request: pb.GetMessageRequest, context: Context
    ) -> pb.GetMessageResponse:
        lookups, call = self._services.lookups, EndOfCall(context)
        match request.WhichOneof("by"):
            case "message_id":
                record = await lookups.by_id(request.message_id, call)
            case "position":
                at = request.position
                topic = TopicRef(at.topic, at.topic_incarnation)
                record = await lookups.by_position(topic, at.queue_id, at.offset, call)
            case _:
                raise BrokerError(ErrorCode.INVALID_ARGUMENT, "give message_id or position")
        return pb.GetMessageResponse(record=record)

    # --- offsets ------------------------------------------------------------------------------

    async def get_queue_offsets(
        self, request: pb.GetQueueOffsetsRequest, context: Context
    ) -> pb.GetQueueOffsetsResponse:
        topic = TopicRef(request.topic, request.topic_incarnation)
        bounds = await self._services.offsets.bounds(topic, request.queue_id)
        return pb.GetQueueOffsetsResponse(
            min_offset=bounds.min_offset, max_offset=bounds.max_offset
        )

    async def get_offset_by_time(
        self, request: pb.GetOffsetByTimeRequest, context: Context
    ) -> pb.GetOffsetByTimeResponse:
        topic = TopicRef(request.topic, request.topic_incarnation)
        offset = await self._services.offsets.by_time(topic, request.queue_id, request.time_ms)
        return pb.GetOffsetByTimeResponse(offset=offset)

    async def commit_offsets(
        self, request: pb.CommitOffsetsRequest, context: Context
    ) -> pb.CommitOffsetsResponse:
        wanted = OffsetCommit(
            group=request.group,
            topic=request.topic,
            wanted=tuple((each.queue_id, each.offset) for each in request.offsets),
            is_reset=request.reset,
            incarnation=request.topic_incarnation,
        )
        offsets = await self._services.offsets.commit(wanted)
        return pb.CommitOffsetsResponse(offsets=_queue_offsets(offsets))

    async def fetch_offsets(
        self, request: pb.FetchOffsetsRequest, context: Context
    ) -> pb.FetchOffsetsResponse:
        topic = TopicRef(request.topic, request.topic_incarnation)
        offsets = await self._services.offsets.fetch(request.group, topic)
        return pb.FetchOffsetsResponse(offsets=_queue_offsets(offsets))

    # --- topics -------------------------------------------------------------------------------

    async def create_topic(
        self, request: pb.CreateTopicRequest, context: Context
    ) -> pb.CreateTopicResponse:
        wishes, topics = _wishes(request), self._services.topics
        wanted = request.name, request.queue_count
        if wishes == NO_WISHES:
            topic = await topics.create(*wanted, if_not_exists=request.if_not_exists)
        else:
            topic = await topics.make(*wanted, wishes, if_not_exists=request.if_not_exists)
        return pb.CreateTopicResponse(topic=_topic(topic))

    async def retain_topic(
        self, request: pb.RetainTopicRequest, context: Context
    ) -> pb.RetainTopicResponse:
        topic = TopicRef(request.name, request.incarnation)
        retained = await self._services.topics.retain(topic, request.retention_ms)
        return pb.RetainTopicResponse(topic=_topic(retained))

    async def update_topic(
        self, request: pb.UpdateTopicRequest, context: Context
    ) -> pb.UpdateTopicResponse:
        wish = QueueWish(request.read_queues, request.write_queues, request.drop)
        topic = TopicRef(request.name, request.incarnation)
        updated = await self._services.topics.update(topic, wish)
        return pb.UpdateTopicResponse(topic=_topic(updated))

    async def permit_topic(
        self, request: pb.PermitTopicRequest, context: Context
    ) -> pb.PermitTopicResponse:
        topic = TopicRef(request.name, request.incarnation)
        permitted = await self._services.topics.permit(topic, request.permission)
        return pb.PermitTopicResponse(topic=_topic(permitted))

    async def measure_topic(
        self, request: pb.MeasureTopicRequest, context: Context
    ) -> pb.MeasureTopicResponse:
        topic = TopicRef(request.name, request.incarnation)
        found = await self._services.topic_figures.measure(topic, request.first_queue)
        return pb.MeasureTopicResponse(
            topic=_topic(found.topic),
            queues=[
                pb.MeasuredQueue(
                    queue_id=each.queue_id,
                    min_offset=each.min_offset,
                    max_offset=each.max_offset,
                    last_stored_ms=each.last_stored_ms,
                )
                for each in found.queues
            ],
            next_queue=found.next_queue,
        )

    async def delete_topic(
        self, request: pb.DeleteTopicRequest, context: Context
    ) -> pb.DeleteTopicResponse:
        await self._services.topics.delete(TopicRef(request.name, request.incarnation))
        return pb.DeleteTopicResponse()

    async def list_topics(
        self, request: pb.ListTopicsRequest, context: Context
    ) -> pb.ListTopicsResponse:
        page = await self._services.topics.list(request.page_token, request.page_size)
        return pb.ListTopicsResponse(
            topics=[_topic(each) for each in page.topics], next_page_token=page.following
        )

    async def describe_topic(
        self, request: pb.DescribeTopicRequest, context: Context
    ) -> pb.DescribeTopicResponse:
        wanted = TopicRef(request.name, request.incarnation)
        found = await self._services.topics.describe(wanted, request.page_token)
        return pb.DescribeTopicResponse(
            topic=_topic(found.topic),
            queues=[
                pb.QueueDescription(
                    queue_id=each.queue_id, min_offset=each.min_offset, max_offset=each.max_offset
                )
                for each in found.queues
            ],
            groups=[
                pb.GroupProgress(group=each.group, offsets=_queue_offsets(each.offsets))
                for each in found.groups
            ],
            next_page_token=found.following,
        )


# --- values ------------------------------------------------------------------------------------


def plain_batch(batch: pb.SendBatch) -> Batch:
    """A batch as the leader takes it. Each access to `records` copies them: this is the one."""
    return Batch(
        batch.topic,
        batch.queue_id,
        batch.base_sequence,
        batch.count,
        batch.records,
        batch.topic_incarnation,
        batch.queues_changed if batch.HasField("queues_changed") else None,
    )


def _send_result(answer: BatchAnswer) -> pb.SendResult:
    if isinstance(answer, Failure):
        return pb.SendResult(error=wire_error(answer))
    if isinstance(answer, StoredBefore):
        return pb.SendResult(duplicate=True, place_forgotten=True)
    return pb.SendResult(
        base_queue_offset=answer.base_queue_offset,
        base_physical_offset=answer.base_physical_offset,
        store_time_ms=answer.store_time_ms,
        store_host=answer.store_host,
        duplicate=answer.is_duplicate,
    )


def _queue_offsets(offsets: Iterable[QueueOffset]) -> list[pb.QueueOffset]:
    return [pb.QueueOffset(queue_id=each.queue_id, offset=each.offset) for each in offsets]


def _topic(topic: Topic) -> pb.Topic:
    return pb.Topic(
        name=topic.name,
        queue_count=topic.queue_count,
        created_time_ms=topic.created_time_ms,
        incarnation=topic.incarnation,
        retention_ms=topic.retention_ms,
        write_queues=topic.write_queues,
        queues_changed=topic.queues_changed,
        permission=topic.permission,
    )


def _wishes(request: pb.CreateTopicRequest) -> Wishes:
    return Wishes(
        request.retention_ms if request.HasField("retention_ms") else None,
        request.permission if request.HasField("permission") else None,
    )

"""Topics of the fake nodes: made, changed, told of, deleted.

It keeps the contract of `proto/dledger/wire/broker.proto`, as far as a client can see it: names and
numbers have bounds, whoever means a topic that was deleted is told, the brokers' own are only read.
Queues that are to go stay (docs/testing.md).
"""

from __future__ import annotations

from typing import Protocol

from dledger.records.record import TOPIC_PATTERN, decode_records
from dledger.records.reserved import group_of
from dledger.testing.fake_model import MAX_QUEUES, Model, check_own
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb

PERMISSIONS = (2, 4, 6)
MAX_RETENTION_MS = 36_500 * 24 * 3_600_000


class Nodes(Protocol):
    """The group of nodes."""

    model: Model
    page_size: int

    def is_at_work(self, group: str, topic: str) -> bool:
        """The consumer group is known, or something waits to come to that topic of its own."""
        ...


class FakeTopics:
    """Makes, changes and tells of topics."""

    def __init__(self, group: Nodes) -> None:
        self._group = group

    async def on_CreateTopic(
        self, node: object, request: pb.CreateTopicRequest
    ) -> pb.CreateTopicResponse:
        model, name, queues = self._group.model, request.name, request.queue_count or 4
        _check_creatable(name, queues)
        if model.knows_wishes:
            _check_permission(request.permission if request.HasField("permission") else 6)
            _check_retention(request.retention_ms)
        existing = model.topics.get(name)
        if existing is None:
            model.create(name, queues)
        elif not request.if_not_exists or len(existing) != queues:
            raise Refusal(wire_error(epb.TOPIC_EXISTS))
        if model.knows_wishes and request.HasField("retention_ms"):
            model.retention_ms[name] = request.retention_ms
        if model.knows_wishes and request.HasField("permission"):
            model.permissions[name] = request.permission
        return pb.CreateTopicResponse(topic=self._topic(name))

    def _check(self, name: str, incarnation: int) -> None:
        """The topic may be changed.

        Raises:
            Refusal: it is the brokers' own, isn't there, or is another one.
        """
        check_own(name)
        self._group.model.queues(name, incarnation)

    async def on_RetainTopic(
        self, node: object, request: pb.RetainTopicRequest
    ) -> pb.RetainTopicResponse:
        self._check(request.name, request.incarnation)
        _check_retention(request.retention_ms)
        self._group.model.retention_ms[request.name] = request.retention_ms
        return pb.RetainTopicResponse(topic=self._topic(request.name))

    async def on_UpdateTopic(
        self, node: object, request: pb.UpdateTopicRequest
    ) -> pb.UpdateTopicResponse:
        self._check(request.name, request.incarnation)
        self._group.model.update(request.name, request.read_queues, request.write_queues)
        return pb.UpdateTopicResponse(topic=self._topic(request.name))

    async def on_PermitTopic(
        self, node: object, request: pb.PermitTopicRequest
    ) -> pb.PermitTopicResponse:
        self._check(request.name, request.incarnation)
        _check_permission(request.permission)
        self._group.model.permissions[request.name] = request.permission
        return pb.PermitTopicResponse(topic=self._topic(request.name))

    async def on_DeleteTopic(
        self, node: object, request: pb.DeleteTopicRequest
    ) -> pb.DeleteTopicResponse:
        group = group_of(request.name)
        if not group:
            check_own(request.name)
        self._group.model.queues(request.name, request.incarnation)
        if group and self._group.is_at_work(group, request.name):
            text = (
                f"topic {request.name!r} is the brokers' own, and can't be deleted: consumer group "
                f"{group!r} is known"
            )
            raise Refusal(wire_error(epb.GROUP_EXISTS, text))
        self._group.model.delete(request.name)
        await self._group.model.ring()
        return pb.DeleteTopicResponse()

    async def on_MeasureTopic(
        self, node: object, request: pb.MeasureTopicRequest
    ) -> pb.MeasureTopicResponse:
        model = self._group.model
        model.queue(request.name, request.first_queue, request.incarnation)
        answer = pb.MeasureTopicResponse(topic=self._topic(request.name))
        for queue_id, queue in enumerate(model.topics[request.name]):
            if queue_id >= request.first_queue:
                last = decode_records(queue.records[-1])[0].store_time_ms if queue.records else None
                answer.queues.add(
                    queue_id=queue_id,
                    min_offset=queue.min_offset,
                    max_offset=len(queue.records),
                    last_stored_ms=last,
                )
        return answer

    async def on_ListTopics(
        self, node: object, request: pb.ListTopicsRequest
    ) -> pb.ListTopicsResponse:
        names = sorted(name for name in self._group.model.topics if name > request.page_token)
        page = names[: self._group.page_size]
        following = page[-1] if len(names) > len(page) else ""
        topics = [self._topic(name) for name in page]
        return pb.ListTopicsResponse(topics=topics, next_page_token=following)

    async def on_DescribeTopic(
        self, node: object, request: pb.DescribeTopicRequest
    ) -> pb.DescribeTopicResponse:
        queues = self._group.model.queues(request.name, request.incarnation)
        answer = pb.DescribeTopicResponse(topic=self._topic(request.name))
        for queue_id, queue in enumerate(queues):
            answer.queues.add(
                queue_id=queue_id, min_offset=queue.min_offset, max_offset=len(queue.records)
            )
        groups = {
            group: of
            for (group, topic), of in self._group.model.offsets.items()
            if topic == request.name and group > request.page_token
        }
        page = sorted(groups)[: self._group.page_size]
        for group in page:
            answer.groups.add(group=group, offsets=wire_offsets(groups[group]))
        answer.next_page_token = page[-1] if len(groups) > len(page) else ""
        return answer

    def _topic(self, name: str) -> pb.Topic:
        model = self._group.model
        return pb.Topic(
            name=name,
            queue_count=len(model.topics[name]),
            created_time_ms=model.created_ms[name],
            incarnation=model.incarnations[name],
            retention_ms=model.retention_ms.get(name, 0),
            write_queues=model.write_queues.get(name, 0),
            queues_changed=model.changes.get(name, 0),
            permission=model.permissions.get(name, 0),
        )


def wire_offsets(offsets: dict[int, int]) -> list[pb.QueueOffset]:
    """Offsets by queue, as they are told."""
    return [pb.QueueOffset(queue_id=q, offset=offset) for q, offset in sorted(offsets.items())]


def _check_creatable(name: str, queues: int) -> None:
    if not TOPIC_PATTERN.fullmatch(name):
        raise Refusal(wire_error(epb.INVALID_ARGUMENT, f"no topic has the name {name[:160]!r}"))
    if queues > MAX_QUEUES:
        text = f"a topic has 1 to {MAX_QUEUES} queues, not {queues}"
        raise Refusal(wire_error(epb.INVALID_ARGUMENT, text))
    check_own(name)


def _check_retention(retention_ms: int) -> None:
    if retention_ms > MAX_RETENTION_MS:
        text = f"messages can be kept for {MAX_RETENTION_MS} ms, not for {retention_ms}"
        raise Refusal(wire_error(epb.INVALID_ARGUMENT, text))


def _check_permission(permission: int) -> None:
    if permission not in PERMISSIONS:
        text = f"a topic's permission is 6, 4 or 2, not {permission}"
        raise Refusal(wire_error(epb.INVALID_ARGUMENT, text))

"""Topics as they are wished, and what is in them: made, changed, measured (ADR 62).

The work behind `Client.create_topic`, `retain_topic`, `permit_topic` and `topic_stats`. A broker of
a release before makes a topic without what it doesn't know: its answer says what the topic has, and
the rest is asked for by calls of its own, which such a broker refuses if it must.
"""

from __future__ import annotations

from typing import Final

from dledger.client import connection as rpc
from dledger.client.arguments import retention_ms, text, u32, u64
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.errors import InvalidArgument
from dledger.client.results import Permission, QueueStats, TopicInfo, TopicStats
from dledger.wire import broker_pb2 as pb

_BITS: Final = {Permission.READ_WRITE: 6, Permission.READ: 4, Permission.WRITE: 2}
_PERMISSIONS: Final = {bits: permission for permission, bits in _BITS.items()}


async def create(
    broker_group: BrokerGroup,
    name: str,
    queues: int,
    *,
    if_not_exists: bool,
    retention_hours: float | None,
    permission: Permission | None,
    deadline_s: float | None,
) -> TopicInfo:
    """See `Client.create_topic`."""
    if queues < 1:
        raise InvalidArgument(f"a topic has 1 to 1,024 queues, not {queues}")
    request = pb.CreateTopicRequest(
        name=text("topic name", name),
        queue_count=u32("queues", queues),
        if_not_exists=if_not_exists,
        retention_ms=None if retention_hours is None else retention_ms(retention_hours),
        permission=None if permission is None else _bits(permission),
    )
    effect = Effect.IDEMPOTENT if if_not_exists else Effect.ONCE
    answer = await broker_group.call(rpc.CREATE_TOPIC, request, effect, deadline_s=deadline_s)
    topic = answer.topic
    found, incarnation = topic_info(topic), topic.incarnation
    if request.HasField("retention_ms") and request.retention_ms != topic.retention_ms:
        wish = pb.RetainTopicRequest(
            name=name, incarnation=incarnation, retention_ms=request.retention_ms
        )
        found = await retain(broker_group, wish, deadline_s)
    if permission is not None and permission is not found.permission:
        found = await permit(broker_group, name, permission, incarnation, deadline_s)
    return found


async def retain(
    broker_group: BrokerGroup, request: pb.RetainTopicRequest, deadline_s: float | None
) -> TopicInfo:
    """See `Client.retain_topic`."""
    answer = await broker_group.call(
        rpc.RETAIN_TOPIC, request, Effect.IDEMPOTENT, deadline_s=deadline_s
    )
    return topic_info(answer.topic)


async def permit(
    broker_group: BrokerGroup,
    name: str,
    permission: Permission,
    incarnation: int,
    deadline_s: float | None,
) -> TopicInfo:
    """See `Client.permit_topic`."""
    request = pb.PermitTopicRequest(
        name=text("topic name", name),
        incarnation=u64("incarnation", incarnation),
        permission=_bits(permission),
    )
    answer = await broker_group.call(
        rpc.PERMIT_TOPIC, request, Effect.IDEMPOTENT, deadline_s=deadline_s
    )
    return topic_info(answer.topic)


async def stats(broker_group: BrokerGroup, name: str, deadline_s: float | None) -> TopicStats:
    """See `Client.topic_stats`."""
    found: list[QueueStats] = []
    request = pb.MeasureTopicRequest(name=text("topic name", name))
    while True:  # queue ids ascend from page to page, and there is an end to them
        answer = await broker_group.call(
            rpc.MEASURE_TOPIC, request, Effect.NONE, deadline_s=deadline_s
        )
        found += [
            QueueStats(
                each.queue_id,
                each.min_offset,
                each.max_offset,
                each.last_stored_ms if each.HasField("last_stored_ms") else None,
            )
            for each in answer.queues
        ]
        if answer.next_queue <= request.first_queue:
            return TopicStats(topic_info(answer.topic), found)
        request = pb.MeasureTopicRequest(
            name=name, incarnation=answer.topic.incarnation, first_queue=answer.next_queue
        )


def topic_info(topic: pb.Topic) -> TopicInfo:
    """A topic as nodes tell of it; one of which none says what may be done is as usual."""
    return TopicInfo(
        topic.name,
        topic.queue_count,
        topic.created_time_ms,
        topic.incarnation,
        topic.retention_ms / 3_600_000,
        _PERMISSIONS.get(topic.permission, Permission.READ_WRITE),
    )


def _bits(permission: object) -> int:
    if not isinstance(permission, Permission):
        raise InvalidArgument(f"permission is {permission!r}; wanted: a Permission")
    return _BITS[permission]

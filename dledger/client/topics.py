"""Topics as they are wished, and what is in them: made, changed, told of, deleted (ADR 62).

The work behind `Client.create_topic` and what else it does with topics. A broker of a release
before makes a topic without what it doesn't know: its answer says what the topic has, and the rest
is asked for by calls of its own, which such a broker refuses if it must.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.client import connection as rpc
from dledger.client.arguments import flag, retention_ms, text, u32, u64
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.errors import ClientError, InvalidArgument, TopicReplaced
from dledger.client.offsets import by_queue
from dledger.client.results import (
    Permission,
    QueueInfo,
    QueueStats,
    TopicDescription,
    TopicInfo,
    TopicStats,
)
from dledger.wire import broker_pb2 as pb

MOST_DESCRIBED: Final = 10  # looks at a topic that is made anew during each
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
    if u32("queues", queues) < 1:
        raise InvalidArgument(f"a topic has 1 to 1,024 queues, not {queues}")
    request = pb.CreateTopicRequest(
        name=text("topic name", name),
        queue_count=queues,
        if_not_exists=flag("if_not_exists", if_not_exists),
        retention_ms=None if retention_hours is None else retention_ms(retention_hours),
        permission=None if permission is None else _bits(permission),
    )
    effect = Effect.IDEMPOTENT if if_not_exists else Effect.ONCE
    answer = await broker_group.call(rpc.CREATE_TOPIC, request, effect, deadline_s=deadline_s)
    topic = answer.topic
    found, incarnation = topic_info(topic), topic.incarnation
    try:  # brokers of before pass over what is wished of a new topic
        if request.HasField("retention_ms") and request.retention_ms != topic.retention_ms:
            wish = pb.RetainTopicRequest(
                name=name, incarnation=incarnation, retention_ms=request.retention_ms
            )
            found = await _retain(broker_group, wish, deadline_s)
        if permission is not None and permission is not found.permission:
            found = await permit(broker_group, name, permission, incarnation, deadline_s)
    except ClientError as error:
        raise error.in_doubt() from error  # the topic may have been made by this
    return found


async def retain(
    broker_group: BrokerGroup,
    name: str,
    hours: float,
    incarnation: int,
    deadline_s: float | None,
) -> TopicInfo:
    """See `Client.retain_topic`."""
    request = pb.RetainTopicRequest(
        name=text("topic name", name),
        incarnation=u64("incarnation", incarnation),
        retention_ms=retention_ms(hours),
    )
    return await _retain(broker_group, request, deadline_s)


async def _retain(
    broker_group: BrokerGroup, request: pb.RetainTopicRequest, deadline_s: float | None
) -> TopicInfo:
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


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """How many queues a topic is to have, None: as many as now; `drop`: queues go also if groups
    haven't read them."""

    read: int | None
    write: int | None
    drop: bool


async def update(
    broker_group: BrokerGroup,
    name: str,
    numbers: QueueNumbers,
    incarnation: int,
    deadline_s: float | None,
) -> TopicInfo:
    """See `Client.update_topic`."""
    request = pb.UpdateTopicRequest(
        name=text("topic name", name),
        incarnation=u64("incarnation", incarnation),
        read_queues=_queue_number("read_queues", numbers.read),
        write_queues=_queue_number("write_queues", numbers.write),
        drop=flag("drop", numbers.drop),
    )
    # Behind another's change, to more queues again, a second drop takes what came in since.
    effect = Effect.ONCE if numbers.drop else Effect.IDEMPOTENT
    answer = await broker_group.call(rpc.UPDATE_TOPIC, request, effect, deadline_s=deadline_s)
    return topic_info(answer.topic)


async def delete(
    broker_group: BrokerGroup, name: str, incarnation: int, deadline_s: float | None
) -> None:
    """See `Client.delete_topic`."""
    request = pb.DeleteTopicRequest(
        name=text("topic name", name), incarnation=u64("incarnation", incarnation)
    )
    await broker_group.call(rpc.DELETE_TOPIC, request, Effect.ONCE, deadline_s=deadline_s)


async def listed(broker_group: BrokerGroup, deadline_s: float | None) -> list[TopicInfo]:
    """See `Client.topics`."""
    found: list[TopicInfo] = []
    request = pb.ListTopicsRequest()
    while True:  # names ascend from page to page, and there is an end to them
        answer = await broker_group.call(
            rpc.LIST_TOPICS, request, Effect.NONE, deadline_s=deadline_s
        )
        found += [topic_info(topic) for topic in answer.topics]
        if answer.next_page_token <= request.page_token:
            return found
        request = pb.ListTopicsRequest(page_token=answer.next_page_token)


async def describe(
    broker_group: BrokerGroup, name: str, deadline_s: float | None
) -> TopicDescription:
    """See `Client.describe_topic`."""
    text("topic name", name)
    for _ in range(MOST_DESCRIBED):
        if (found := await _described(broker_group, name, deadline_s)) is not None:
            return found
    raise TopicReplaced(f"topic {name!r} was deleted and made anew at each look")


async def _described(
    broker_group: BrokerGroup, name: str, deadline_s: float | None
) -> TopicDescription | None:
    """The topic with all its groups; None if it was made anew between two pages: those told before
    are groups of the former one, and of its successor some have names before the last of them."""
    groups: dict[str, dict[int, int]] = {}
    described: tuple[int, int] | None = None
    request = pb.DescribeTopicRequest(name=name)
    while True:  # names ascend from page to page, and there is an end to them
        answer = await broker_group.call(
            rpc.DESCRIBE_TOPIC, request, Effect.NONE, deadline_s=deadline_s
        )
        made = answer.topic.incarnation, answer.topic.created_time_ms
        if described not in (None, made):
            return None
        described = made
        groups |= {group.group: by_queue(group.offsets) for group in answer.groups}
        if answer.next_page_token <= request.page_token:
            break
        request = pb.DescribeTopicRequest(name=name, page_token=answer.next_page_token)
    return TopicDescription(
        topic=topic_info(answer.topic),
        queues=[QueueInfo(q.queue_id, q.min_offset, q.max_offset) for q in answer.queues],
        groups=groups,
    )


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
        topic.write_queues or topic.queue_count,
    )


def _queue_number(name: str, wanted: int | None) -> int:
    """As it is written; 0: nothing is said of it."""
    if wanted is None:
        return 0
    if u32(name, wanted) < 1:
        raise InvalidArgument(f"{name} is 1 to 1,024, not {wanted}")
    return wanted


def check_written(wanted: int, queues: int) -> None:
    """Returns if a topic of so many queues can be made with so many that take messages.

    Raises:
        InvalidArgument: otherwise.
    """
    if _queue_number("write_queues", wanted) > u32("queues", queues):
        raise InvalidArgument(f"write_queues is {wanted}, and the topic has {queues} queues")


def _bits(permission: object) -> int:
    if not isinstance(permission, Permission):
        raise InvalidArgument(f"permission is {permission!r}; wanted: a Permission")
    return _BITS[permission]

"""Offsets of queues and of consumer groups: asked for, and committed.

The work behind `Client.queue_offsets`, `offset_by_time`, `commit_offsets` and `fetch_offsets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dledger.client import connection as rpc
from dledger.client.arguments import flag, i64, mapping, text, u32, u64
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.errors import InvalidArgument
from dledger.client.results import QueueOffsets
from dledger.wire import broker_pb2 as pb


@dataclass(frozen=True, slots=True)
class Claim:
    """Whose offsets, in which topic; `incarnation` 0: whichever has the name."""

    group: str
    topic: str
    incarnation: int


async def bounds(
    broker_group: BrokerGroup, topic: str, queue_id: int, deadline_s: float | None
) -> QueueOffsets:
    """See `Client.queue_offsets`."""
    request = pb.GetQueueOffsetsRequest(
        topic=text("topic name", topic), queue_id=u32("queue id", queue_id)
    )
    answer = await broker_group.call(
        rpc.GET_QUEUE_OFFSETS, request, Effect.NONE, deadline_s=deadline_s
    )
    return QueueOffsets(answer.min_offset, answer.max_offset)


async def by_time(
    broker_group: BrokerGroup, topic: str, queue_id: int, time_ms: int, deadline_s: float | None
) -> int:
    """See `Client.offset_by_time`."""
    request = pb.GetOffsetByTimeRequest(
        topic=text("topic name", topic),
        queue_id=u32("queue id", queue_id),
        time_ms=i64("time_ms", time_ms),
    )
    answer = await broker_group.call(
        rpc.GET_OFFSET_BY_TIME, request, Effect.NONE, deadline_s=deadline_s
    )
    return answer.offset


async def commit(
    broker_group: BrokerGroup,
    claim: Claim,
    offsets: Mapping[int, int],
    *,
    reset: bool,
    deadline_s: float | None,
) -> dict[int, int]:
    """See `Client.commit_offsets`."""
    request = pb.CommitOffsetsRequest(
        group=text("group", claim.group),
        topic=text("topic name", claim.topic),
        reset=flag("reset", reset),
        topic_incarnation=u64("incarnation", claim.incarnation),
    )
    for queue_id, offset in mapping("offsets", offsets).items():
        if i64("offset", offset) < 0:
            raise InvalidArgument(f"offset {offset} of queue {queue_id} is negative")
        request.offsets.add(queue_id=u32("queue id", queue_id), offset=offset)
    # Repeating a reset is harmless as long as nobody commits in between, which a reset has
    # to make sure of anyway.
    answer = await broker_group.call(
        rpc.COMMIT_OFFSETS, request, Effect.IDEMPOTENT, deadline_s=deadline_s
    )
    return by_queue(answer.offsets)


async def fetch(
    broker_group: BrokerGroup, claim: Claim, deadline_s: float | None
) -> dict[int, int]:
    """See `Client.fetch_offsets`."""
    request = pb.FetchOffsetsRequest(
        group=text("group", claim.group),
        topic=text("topic name", claim.topic),
        topic_incarnation=u64("incarnation", claim.incarnation),
    )
    answer = await broker_group.call(rpc.FETCH_OFFSETS, request, Effect.NONE, deadline_s=deadline_s)
    return by_queue(answer.offsets)


def by_queue(offsets: Iterable[pb.QueueOffset]) -> dict[int, int]:
    """Queue id -> offset."""
    return {offset.queue_id: offset.offset for offset in offsets}

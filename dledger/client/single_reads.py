"""One message by its name or place, and one pull from a queue: what reads without a consumer.

The work behind `Client.get_message` and `pull`.
"""

from __future__ import annotations

from dledger.client import connection as rpc
from dledger.client.arguments import i64, text, u32
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.errors import InvalidArgument, RecordCorrupt
from dledger.client.pulled import Asked, pulled
from dledger.client.results import Message, PullResult, decode_messages
from dledger.wire import broker_pb2 as pb

Place = tuple[str | None, int | None, int | None]  # topic, queue id, offset


def named(message_id: str | None, place: Place) -> pb.GetMessageRequest:
    """Asks for the message with this id, or at this place.

    Raises:
        InvalidArgument: neither an id nor a whole place is given, or both.
    """
    request = pb.GetMessageRequest()
    topic, queue_id, offset = place
    if message_id is not None and place == (None, None, None):
        request.message_id = text("message id", message_id)
    elif message_id is None and topic is not None and queue_id is not None and offset is not None:
        request.position.topic = text("topic name", topic)
        request.position.queue_id = u32("queue id", queue_id)
        request.position.offset = i64("offset", offset)
    else:
        raise InvalidArgument("give message_id, or all of topic, queue_id and offset")
    return request


async def get(
    broker_group: BrokerGroup, request: pb.GetMessageRequest, deadline_s: float | None
) -> Message:
    """See `Client.get_message`."""
    answer = await broker_group.call(rpc.GET_MESSAGE, request, Effect.NONE, deadline_s=deadline_s)
    messages = decode_messages(answer.record)
    if len(messages) != 1:
        raise RecordCorrupt(f"the node answered with {len(messages)} records instead of one")
    return messages[0]


async def pull(broker_group: BrokerGroup, request: pb.PullRequest, deadline_s: float) -> PullResult:
    """See `Client.pull`; the deadline covers the time for which the call is held."""
    answer = await broker_group.call(rpc.PULL, request, Effect.NONE, deadline_s=deadline_s)
    place = request.topic, request.topic_incarnation, request.queue_id, request.offset
    found = pulled(answer, Asked(*place, by_tags=bool(request.tags)))
    return PullResult(
        messages=found.messages(),
        next_offset=answer.next_offset,
        min_offset=answer.min_offset,
        max_offset=answer.max_offset,
    )

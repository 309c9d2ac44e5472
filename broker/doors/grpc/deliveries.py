"""`dledger.v1.Deliveries` translated; see `broker/doors/grpc/broker.py`."""

from __future__ import annotations

from collections.abc import Iterable

from broker.doors.grpc.broker import Context, EndOfCall
from broker.doors.grpc.errors import wire_error
from broker.leader.deliveries.asking import Handed, Settlement, Superseded
from broker.services.deliveries import Receive
from broker.services.refused import refused
from broker.services.services import Services
from broker.state.refusals import HandoutSuperseded
from broker.state.topics import TopicRef
from dledger.wire import deliveries_pb2 as pb


class DeliveriesDoor:
    """Handlers of `dledger.v1.Deliveries`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def receive(self, request: pb.ReceiveRequest, context: Context) -> pb.ReceiveResponse:
        wish = Receive(
            request.group,
            TopicRef(request.topic, request.topic_incarnation),
            request.fifo,
            request.attempt_id,
            request.again,
            request.max_messages,
            request.max_bytes,
            request.hold_ms if request.HasField("hold_ms") else None,
            request.hidden_ms,
            int(request.start),
            request.start_time_ms,
            _settled(request.settled),
            request.max_attempts,
        )
        received = await self._services.deliveries.receive(wish, EndOfCall(context))
        return pb.ReceiveResponse(
            handed=[_handed(each) for each in received.handed],
            unsettled=_unsettled(request.settled, received.superseded),
            topic_incarnation=received.incarnation,
            held_ms=received.held_ms,
        )

    async def settle(self, request: pb.SettleRequest, context: object) -> pb.SettleResponse:
        topic = TopicRef(request.topic, request.topic_incarnation)
        settled = _settled(request.settled)
        superseded = await self._services.deliveries.settle(request.group, topic, settled)
        return pb.SettleResponse(unsettled=_unsettled(request.settled, superseded))


def _settled(wire: Iterable[pb.Settlement]) -> tuple[Settlement, ...]:
    return tuple(
        Settlement(
            each.queue_id, each.handout, each.base, each.mask, int(each.what), each.hidden_ms
        )
        for each in wire
    )


def _handed(each: Handed) -> pb.HandedOut:
    return pb.HandedOut(
        queue_id=each.queue_id,
        handout=each.handout,
        attempt=each.attempt,
        count=each.count,
        records=each.records,
    )


def _unsettled(
    wire: Iterable[pb.Settlement], superseded: Iterable[Superseded]
) -> list[pb.Unsettled]:
    asked = list(wire)
    found: list[pb.Unsettled] = []
    for position, mask in superseded:
        each = asked[position]
        first = each.base + (mask & -mask).bit_length() - 1
        error = wire_error(refused(HandoutSuperseded(each.queue_id, first)).failure)
        found.append(pb.Unsettled(position=position, error=error, mask=mask))
    return found

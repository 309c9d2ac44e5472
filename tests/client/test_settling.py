"""Single messages are settled, and the call that carries them ends in any way: nobody waits on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from dledger.client import Client
from dledger.client.broker_group import BrokerGroup
from dledger.client.delivery import Delivery, Receipt
from dledger.client.errors import ClientClosed, ReceiptExpired, TopicReplaced, Unavailable
from dledger.client.options import ClientOptions
from dledger.client.results import Message
from dledger.client.simple_consumer import SimpleConsumer
from dledger.outcome import Outcome
from dledger.testing.refusals import wire_error
from dledger.wire import deliveries_pb2 as pb
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.client.members.test_push import stocked

COUNT = 2_500  # four calls


class Brokers:
    """Answers calls; the one of that number ends by the error."""

    def __init__(self, number: int, error: BaseException) -> None:
        self._left, self._error = number, error
        self.options = ClientOptions()
        self.calls = self.lost = 0
        self.unsettled: list[pb.Unsettled] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def call(self, *_: object, on_doubt: Callable[[], None]) -> pb.SettleResponse:
        self.calls += 1
        for _attempt in range(self.lost):
            on_doubt()
        await asyncio.sleep(0)
        await self.answers.wait()
        self._left -= 1
        if self._left == 0:
            raise self._error
        return pb.SettleResponse(unsettled=self.unsettled)


def consumer_of(brokers: Brokers) -> SimpleConsumer:
    group = cast(Any, lambda: brokers)
    return SimpleConsumer(
        *(group, group, "t", "g"),
        invisible_s=30,
        in_order=False,
        start=None,
        max_attempts=None,
        forget=lambda _: None,
    )


def in_hand_of(consumer: SimpleConsumer) -> None:
    """So many, of two incarnations of a topic."""
    message = cast(Message, None)
    consumer.track(
        [Delivery(consumer, message, 1, Receipt(1 + at % 2, 0, 9, at)) for at in range(COUNT)]
    )


@async_test
async def test_closing_gives_back_what_it_can() -> None:
    """A call that is refused, as of a topic that was made anew, is no reason not to make the
    others, nor to leave them to a loop that may end."""
    brokers = Brokers(1, TopicReplaced("made anew"))
    consumer = consumer_of(brokers)
    in_hand_of(consumer)
    await consumer.close()
    assert brokers.calls == 4


@async_test
async def test_closing_the_client_gives_back_what_its_consumers_have_in_hand() -> None:
    """Another worker has it at once, and not when its time is over."""
    async with stocked(1, 3) as (group, client):
        async with Client.connect(group.bootstrap) as leaving:
            worker = leaving.simple_consumer("t", "g", invisible_s=600)
            assert len(await worker.receive(3)) == 3
        async with client.simple_consumer("t", "g") as other:
            found = await other.receive(3, wait_s=5)
            assert [each.attempt for each in found] == [2, 2, 2]


@async_test
async def test_nothing_new_is_handed_out_while_the_client_is_closing() -> None:
    """Loops end while handlers and producers still have their time, and what a loop has in hand is
    settled all the same. Nor is a consumer made that nobody would close."""
    async with stocked(1, 3) as (group, _):
        leaving = await Client.connect(group.bootstrap).__aenter__()
        worker = leaving.simple_consumer("t", "g", invisible_s=600)
        (delivery,) = await worker.receive()
        flushing, flushed = asyncio.Event(), asyncio.Event()

        async def flush() -> None:
            flushing.set()
            await flushed.wait()

        leaving._workers.flush = flush  # type: ignore[method-assign]
        closing = asyncio.ensure_future(leaving.close())
        await flushing.wait()
        try:
            with pytest.raises(ClientClosed):
                await worker.receive()
            with pytest.raises(ClientClosed):
                leaving.simple_consumer("t", "g")
            with pytest.raises(ClientClosed):
                await worker.receive(done=[delivery])
            assert delivery.is_settled, "what is done isn't given back"
        finally:
            flushed.set()
            await closing


@async_test
async def test_a_consumer_whose_client_is_gone_is_closed_in_silence() -> None:
    """What it has in hand comes back by itself; an error would hide why `async with` ended."""

    def closed() -> BrokerGroup:
        raise ClientClosed("the client is not open")

    consumer = consumer_of(Brokers(0, Unavailable("away")))
    consumer._broker_group = closed
    in_hand_of(consumer)
    await consumer.close()
    assert not consumer._in_hand


@async_test
async def test_closing_has_one_deadline_for_all_of_them() -> None:
    """And leaves nothing behind that goes on."""
    brokers = Brokers(0, Unavailable("away"))
    brokers.options = ClientOptions(deadline_s=0.1)
    brokers.answers.clear()
    consumer = consumer_of(brokers)
    in_hand_of(consumer)
    async with asyncio.timeout(5):
        await consumer.close()
    assert brokers.calls == 1
    assert consumer._sender is None


@async_test
async def test_who_acknowledges_while_it_closes_is_not_cancelled() -> None:
    """It is the consumer's own task that ends: the application is told so, and whether the brokers
    may have heard of it."""
    brokers = Brokers(0, Unavailable("away"))
    brokers.options = ClientOptions(deadline_s=0.1)
    brokers.answers.clear()
    consumer = consumer_of(brokers)
    message = cast(Message, None)
    first, second, third = (Delivery(consumer, message, 1, Receipt(1, 0, 9, at)) for at in range(3))
    consumer.track([third])
    in_the_call = asyncio.ensure_future(first.ack())
    while not brokers.calls:
        await asyncio.sleep(0)
    behind_it = asyncio.ensure_future(second.ack())
    async with asyncio.timeout(5):
        await consumer.close()
    with pytest.raises(ClientClosed) as told:
        await in_the_call
    assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED
    with pytest.raises(ClientClosed) as told:
        await behind_it
    assert told.value.outcome is Outcome.DID_NOT_HAPPEN


@pytest.mark.parametrize(
    ("lost", "outcome"), [(0, Outcome.DID_NOT_HAPPEN), (1, Outcome.MAY_HAVE_HAPPENED)]
)
@async_test
async def test_refusal_behind_an_attempt_that_was_lost_is_in_doubt(
    lost: int, outcome: Outcome
) -> None:
    """That one may have acknowledged it; the refusal says only that it can't be done now."""
    brokers = Brokers(0, Unavailable("away"))
    brokers.lost = lost
    error = wire_error(epb.RECEIPT_SUPERSEDED, "in another hand")
    brokers.unsettled = [pb.Unsettled(position=0, error=error)]
    first = Delivery(consumer_of(brokers), cast(Message, None), 1, Receipt(1, 0, 9, 0))
    with pytest.raises(ReceiptExpired) as told:
        await first.ack()
    assert told.value.outcome is outcome


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "error", [Unavailable("away"), RuntimeError("a defect of ours"), asyncio.CancelledError()]
)
@async_test
async def test_every_acknowledgement_ends_whatever_becomes_of_a_call(
    number: int, error: BaseException
) -> None:
    """Of two incarnations of a topic, so that there are several calls: what wasn't in the one that
    failed goes with the next, or is told the same."""
    consumer = consumer_of(Brokers(number, error))
    message = cast(Message, None)
    deliveries = [
        Delivery(consumer, message, 1, Receipt(1 + at % 2, 0, 9, at)) for at in range(COUNT)
    ]
    acks = [asyncio.ensure_future(each.ack()) for each in deliveries]
    _, waiting = await asyncio.wait(acks, timeout=60)
    assert not waiting
    failed = [each for each in acks if each.cancelled() or each.exception() is not None]
    assert failed

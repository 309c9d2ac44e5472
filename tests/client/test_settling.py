"""Single messages are settled, and the call that carries them ends in any way: nobody waits on."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dledger.client.delivery import Delivery, Receipt
from dledger.client.errors import Unavailable
from dledger.client.results import Message
from dledger.client.simple_consumer import SimpleConsumer
from dledger.wire import deliveries_pb2 as pb
from tests.client.loops import async_test

COUNT = 2_500  # four calls


class Brokers:
    """Answers calls; the one of that number ends by the error."""

    def __init__(self, number: int, error: BaseException) -> None:
        self._left, self._error = number, error

    async def call(self, *_: object) -> pb.SettleResponse:
        await asyncio.sleep(0)
        self._left -= 1
        if self._left == 0:
            raise self._error
        return pb.SettleResponse()


def consumer_of(brokers: Brokers) -> SimpleConsumer:
    group = cast(Any, lambda: brokers)
    return SimpleConsumer(
        *(group, "t", "g"),
        invisible_s=30,
        in_order=False,
        start=None,
        max_attempts=None,
        forget=lambda _: None,
    )


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

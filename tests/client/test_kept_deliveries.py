"""What receives bring that nobody waits for any more: the next has it, at once or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from dledger.client.delivery import Delivery, Receipt
from dledger.client.results import Message
from dledger.client.simple_consumer import SimpleConsumer
from tests.client.loops import async_test


class Received(SimpleConsumer):
    """Its receives bring what the test says, when it does: `asked` has each one's answer to come,
    how many it may bring, and how long it waits."""

    def __init__(self, invisible_s: float = 30.0) -> None:
        super().__init__(
            *(cast(Any, None), cast(Any, lambda: None), "t", "g"),
            invisible_s=invisible_s,
            in_order=False,
            start=None,
            max_attempts=None,
            forget=lambda _: None,
        )
        self.asked: list[tuple[asyncio.Future[list[Delivery]], int, float]] = []

    async def _receive(self, count: int, wait_s: float, done: Sequence[Delivery]) -> list[Delivery]:
        answer: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        self.asked.append((answer, count, wait_s))
        return await answer

    def delivery(self, offset: int) -> Delivery:
        return Delivery(self, cast(Message, None), 1, Receipt(1, 0, 9, offset))

    async def cancelled(self, count: int = 1) -> asyncio.Future[list[Delivery]]:
        """A receive that nobody waits for any more, and its answer to come."""
        task = asyncio.ensure_future(self.receive(count))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return self.asked[-1][0]


@async_test
async def test_who_waits_is_given_what_one_brings_that_was_cancelled() -> None:
    """It has asked before; the message would be hidden from all while somebody waits for one."""
    consumer = Received()
    earlier = await consumer.cancelled()
    waiting = asyncio.ensure_future(consumer.receive(1))
    await asyncio.sleep(0.01)
    first, second = consumer.delivery(0), consumer.delivery(1)
    earlier.set_result([first])
    assert await asyncio.wait_for(waiting, 5) == [first]
    consumer.asked[-1][0].set_result([second])
    await asyncio.sleep(0.01)
    assert await consumer.receive(1) == [second], "its own is the next one's"


@async_test
async def test_acknowledging_does_not_keep_them_from_who_receives() -> None:
    """A loop that acknowledges each batch with the next receive would never see them. It doesn't
    wait for more than the acknowledgement, and what is too many is the next one's."""
    consumer = Received()
    earlier = await consumer.cancelled(3)
    kept = [consumer.delivery(offset) for offset in range(3)]
    earlier.set_result(kept)
    await asyncio.sleep(0.01)
    done = [consumer.delivery(9)]
    more = [consumer.delivery(offset) for offset in range(3, 5)]
    for brought, expected in ((more[:1], kept[:2]), (more[1:], [kept[2], more[0]])):
        task = asyncio.ensure_future(consumer.receive(2, done=done))
        await asyncio.sleep(0.01)
        answer, wanted, wait_s = consumer.asked[-1]
        assert (wanted, wait_s) == (1, 0.0)
        answer.set_result(brought)
        assert await task == expected
    assert await consumer.receive(2) == more[1:]


@async_test
async def test_they_stay_where_the_acknowledgement_fails() -> None:
    """And where its caller is cancelled."""
    consumer = Received()
    (await consumer.cancelled()).set_result([kept := consumer.delivery(0)])
    await asyncio.sleep(0.01)
    task = asyncio.ensure_future(consumer.receive(1, done=[consumer.delivery(9)]))
    await asyncio.sleep(0.01)
    consumer.asked[-1][0].set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await task
    task = asyncio.ensure_future(consumer.receive(1, done=[consumer.delivery(9)]))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await consumer.receive(1) == [kept]


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
@async_test
async def test_who_waits_is_given_what_one_puts_back_that_acknowledged(ends: str) -> None:
    """He was to have it with his acknowledgement, which came to nothing; it would lie unused until
    its time is over, and the attempt be lost."""
    consumer = Received()
    (await consumer.cancelled(2)).set_result([consumer.delivery(0), consumer.delivery(1)])
    await asyncio.sleep(0.01)
    acknowledging = asyncio.ensure_future(consumer.receive(2, done=[consumer.delivery(9)]))
    await asyncio.sleep(0.01)
    waiting = [asyncio.ensure_future(consumer.receive(1)) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not any(each.done() for each in waiting)
    if ends == "cancelled":
        acknowledging.cancel()
    else:
        consumer.asked[1][0].set_exception(ZeroDivisionError())
    found = [await asyncio.wait_for(each, 5) for each in waiting]
    assert [each.receipt.offset for (each,) in found] == [0, 1]
    await asyncio.wait([acknowledging])
    assert acknowledging.cancelled() or acknowledging.exception() is not None
    for answer, *_ in consumer.asked:
        if not answer.done():
            answer.set_result([])
    await asyncio.sleep(0.01)


@async_test
async def test_what_others_may_have_by_now_is_given_to_nobody() -> None:
    """It comes again by itself; worked on here it would be done twice."""
    consumer = Received(invisible_s=0.02)
    (await consumer.cancelled()).set_result([consumer.delivery(0)])
    await asyncio.sleep(0.05)
    waiting = asyncio.ensure_future(consumer.receive(1))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    consumer.asked[-1][0].set_result([again := consumer.delivery(0)])
    assert await waiting == [again]


@async_test
async def test_what_is_kept_again_is_hidden_no_longer_for_that() -> None:
    """A blocking receive that is interrupted puts back what it was given: of what is kept its time
    may be nearly over, and it began anew each time."""
    consumer = Received(invisible_s=0.2)
    (await consumer.cancelled()).set_result([consumer.delivery(0)])
    await asyncio.sleep(0.15)
    consumer.keep(await consumer.receive(1))
    await asyncio.sleep(0.1)
    waiting = asyncio.ensure_future(consumer.receive(1))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    consumer.asked[-1][0].set_result([again := consumer.delivery(0)])
    assert await waiting == [again]


@async_test
async def test_what_is_kept_is_not_given_once_the_acknowledgement_has_outlasted_it() -> None:
    """Somebody else may have it by then, and be done with it."""
    consumer = Received(invisible_s=0.2)
    earlier = await consumer.cancelled(2)
    earlier.set_result([consumer.delivery(0), consumer.delivery(1)])
    await asyncio.sleep(0.01)
    task = asyncio.ensure_future(consumer.receive(2, done=[consumer.delivery(9)]))
    await asyncio.sleep(0.3)
    late = consumer.delivery(2)
    consumer.asked[-1][0].set_result([late])
    assert await task == [late]

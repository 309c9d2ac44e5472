"""A message that is worked on stays hidden, whenever work on it began."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client.delivery import Delivery, Receipt
from dledger.client.errors import InvalidArgument, ReceiptExpired, Unavailable
from dledger.client.members.clock import clock
from dledger.client.options import StartFrom
from dledger.client.results import Message
from dledger.testing import make_message
from dledger.wire import commands_pb2 as kpb
from tests.client.loops import async_test
from tests.client.members.test_push import stocked


class Hand:
    """A consumer that notes for how long its messages were extended, or fails as the test says."""

    topic = "t"
    group = "g"

    def __init__(self, invisible_s: float) -> None:
        self.invisible_s = invisible_s
        self.extended: list[float] = []
        self.fails: list[Exception] = []
        self.told = asyncio.Event()
        self.answers: asyncio.Event | None = None  # until when calls are under way

    async def settle(self, delivery: Delivery, what: kpb.Settling, hidden_s: float) -> None:
        if what != kpb.SETTLING_EXTENDED:
            return
        self.told.set()
        if self.fails:
            raise self.fails.pop(0)
        if self.answers is not None:
            await self.answers.wait()
        self.extended.append(hidden_s)

    def delivery(self, left_s: float) -> Delivery:
        """A message that is hidden for so long still."""
        made = Delivery(self, make_message("t", b""), 1, Receipt(1, 0, 9, 0))
        made.hidden_until_s = clock() + left_s
        return made

    async def until_told(self) -> None:
        """It was asked for more time."""
        await self.told.wait()
        self.told.clear()
        await asyncio.sleep(0)


@async_test
async def test_who_enters_late_has_a_whole_time_before_he_begins() -> None:
    """The last of ten that were received together: the first renewal would come when somebody
    else has it."""
    hand = Hand(30)
    job = hand.delivery(left_s=9)
    async with job:
        assert hand.extended == [30]
        assert 29 < job.hidden_until_s - clock() <= 30


@async_test
async def test_who_enters_what_others_have_is_told_before_his_work() -> None:
    """And not when it is done."""
    hand = Hand(30)
    hand.fails = [ReceiptExpired("in another hand")]
    with pytest.raises(ReceiptExpired):
        async with hand.delivery(left_s=-1):
            raise AssertionError("entered")


@async_test
async def test_two_who_enter_late_are_not_both_in_it() -> None:
    """Both asked for more time; one is told."""
    job = Hand(30).delivery(left_s=9)
    ends = await asyncio.gather(job.__aenter__(), job.__aenter__(), return_exceptions=True)
    assert [type(each) for each in ends] == [Message, InvalidArgument]
    await job.__aexit__(None, None, None)


@async_test
async def test_first_renewal_counts_from_the_receipt() -> None:
    """With half of the time gone it is extended at once, and not after another third."""
    hand = Hand(30)
    async with hand.delivery(left_s=15):
        assert hand.extended == []
        await asyncio.wait_for(hand.until_told(), 5)
    assert hand.extended == [30]


@async_test
async def test_renewal_does_not_take_back_what_was_extended() -> None:
    """A worker who said that it takes ten minutes has these."""
    hand = Hand(0.06)
    async with hand.delivery(left_s=0.06):
        await asyncio.sleep(0.3)
    assert set(hand.extended) == {0.06}, "it is renewed at all"
    hand.extended.clear()
    job = hand.delivery(left_s=0.06)
    async with job:
        await job.extend(600)
        await asyncio.sleep(0.3)
    assert hand.extended[-1] == 600


@async_test
async def test_renewal_that_is_due_meanwhile_does_not_take_back_what_is_being_extended() -> None:
    """The worker's ten minutes are on their way: a renewal behind them would be the last word."""
    hand = Hand(0.06)
    hand.answers = asyncio.Event()
    job = hand.delivery(left_s=0.06)
    async with job:
        extending = asyncio.create_task(job.extend(600))
        await asyncio.sleep(0.2)
        hand.answers.set()
        await extending
        await asyncio.sleep(0.2)
    assert hand.extended == [600]
    assert job.hidden_until_s > clock() + 590


@async_test
async def test_what_is_shortened_counts_from_before_the_brokers_hear_of_it() -> None:
    """Somebody else may have it while the answer is on its way."""
    hand = Hand(30)
    hand.answers = asyncio.Event()
    job = hand.delivery(left_s=30)
    extending = asyncio.create_task(job.extend(3))
    await hand.until_told()
    assert job.hidden_until_s <= clock() + 3
    hand.answers.set()
    await extending


@async_test
async def test_who_waited_to_extend_what_was_acknowledged_meanwhile_is_told() -> None:
    """One extension at a time; the second finds the message settled."""
    hand = Hand(30)
    hand.answers = asyncio.Event()
    job = hand.delivery(left_s=30)
    both = [asyncio.create_task(job.extend(each)) for each in (40, 50)]
    await hand.until_told()
    await job.ack()
    hand.answers.set()
    ends = await asyncio.gather(*both, return_exceptions=True)
    assert [type(each) for each in ends] == [type(None), InvalidArgument]
    assert hand.extended == [40]


@async_test
async def test_less_than_the_renewal_counts_on_is_renewed_in_time() -> None:
    """It sleeps until two thirds are left; who says three seconds has hardly any of these."""
    hand = Hand(30)
    job = hand.delivery(left_s=30)
    async with job:
        await asyncio.sleep(0)
        await job.extend(3)
        hand.told.clear()
        await asyncio.wait_for(hand.until_told(), 5)
    assert hand.extended == [3, 30]


@async_test
async def test_renewal_that_fails_is_tried_again_soon() -> None:
    """Within the time that is left, and not in a row."""
    hand = Hand(1)
    hand.fails = [Unavailable("no leader")]
    async with hand.delivery(left_s=0.5):
        await asyncio.wait_for(hand.until_told(), 5)
        assert hand.extended == []
        await asyncio.wait_for(hand.until_told(), 5)
    assert hand.extended == [1]


@async_test
async def test_renewal_that_breaks_is_told_and_tried_again() -> None:
    """A defect of ours in it is told to the loop: nobody waits for that task, and the message would
    be somebody else's while it is worked on."""
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context.get("exception")))
    hand, broken = Hand(0.3), RuntimeError("nobody foresaw it")
    hand.fails = [broken]
    async with hand.delivery(left_s=0.25), asyncio.timeout(20):
        await hand.until_told()
        await hand.until_told()
    assert hand.extended
    assert told == [broken]


@async_test
async def test_what_a_cancelled_receive_has_left_is_extended_as_it_is_entered() -> None:
    """It was kept for most of its time: the last attempt would be buried while it is worked on."""
    async with stocked(1, 1) as (_, client):
        worker = client.simple_consumer(
            "t", "g", start=StartFrom.FIRST, invisible_s=3, max_attempts=1
        )
        worker.keep(await worker.receive())
        await asyncio.sleep(2.2)
        (job,) = await worker.receive()
        async with job:
            await asyncio.sleep(1.2)
        assert await worker.receive(wait_s=0) == []
        assert (await client.dead_letters("g")).count == 0

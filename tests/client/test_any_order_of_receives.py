"""Receives, acknowledgements, cancellations and a close in any order: yes means that nobody is
given the message again, and what is kept for somebody isn't kept from who waits."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.client import Client
from dledger.client.delivery import Delivery
from dledger.client.errors import ClientClosed, ReceiptExpired
from dledger.client.options import StartFrom
from dledger.client.simple_consumer import SimpleConsumer
from dledger.outcome import Outcome
from tests.client.members.test_push import stocked
from tests.scale import examples

STEPS = st.tuples(
    st.sampled_from(["receive", "ride", "cancel", "ack", "retry", "turn", "wait"]),
    st.integers(0, 3),
)


class Worker:
    """What a worker has in hand, what it was told yes of, and its receives under way."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self.consumer = consumer
        self.hands: list[Delivery] = []
        self.finished: set[int] = set()
        self.receiving: dict[asyncio.Task[list[Delivery]], list[Delivery]] = {}

    async def step(self, kind: str, number: int) -> None:
        """One of its acts; with a number to choose by."""
        match kind:
            case "receive" | "ride":
                done = self.hands[: number if kind == "ride" else 0]
                del self.hands[: len(done)]
                receive = self.consumer.receive(1 + number, wait_s=60, done=done)
                self.receiving[asyncio.ensure_future(receive)] = done
            case "cancel" if self.receiving:
                list(self.receiving)[number % len(self.receiving)].cancel()
            case "ack" if self.hands:
                delivery = self.hands.pop(number % len(self.hands))
                await delivery.ack()
                self.finished.add(delivery.receipt.offset)
            case "retry" if self.hands:
                await self.hands.pop(number % len(self.hands)).retry(after_s=600)
            case "turn":
                await asyncio.sleep(0)
            case _:
                await asyncio.sleep(0.01)
        self.look()

    def look(self) -> None:
        """What has ended; and nothing is kept from who waits."""
        for task in [each for each in self.receiving if each.done()]:
            done = {each.receipt.offset for each in self.receiving.pop(task)}
            error = None if task.cancelled() else task.exception()
            if not task.cancelled() and error is None:
                self.hands += task.result()
            assert error is None or isinstance(error, ClientClosed)
            if error is None or error.outcome is Outcome.MAY_HAVE_HAPPENED:
                self.finished |= done  # who gave up, too, and whom closing has ended

    async def check_waiting(self) -> None:
        """After some turns; who is woken already has what is kept in his next one."""
        for _ in range(5):
            await asyncio.sleep(0)
        self.look()
        asleep = [each for each in self.consumer._waiters if not each.done()]
        assert not (self.consumer._kept and asleep)


@given(st.lists(STEPS, max_size=14))
@settings(max_examples=examples(80), deadline=None)
def test_yes_is_a_yes_in_any_order(steps: list[tuple[str, int]]) -> None:
    """Whoever closes in its midst."""
    asyncio.run(worked_off(steps))


async def worked_off(steps: list[tuple[str, int]]) -> None:
    async with stocked(1, 8) as (_, client):
        consumer = client.simple_consumer("t", "g", invisible_s=600, start=StartFrom.FIRST)
        worker = Worker(consumer)
        worker.hands = await consumer.receive(4)
        for kind, number in steps:
            await worker.step(kind, number)
            await worker.check_waiting()
        await consumer.close()
        await asyncio.gather(*worker.receiving, return_exceptions=True)
        worker.look()
        await check_end(client, worker)


async def check_end(client: Client, worker: Worker) -> None:
    """What is in hand is given back; what was done isn't handed out again."""
    for each in worker.hands:
        try:
            await each.ack()
        except (ClientClosed, ReceiptExpired):
            continue
        worker.finished.add(each.receipt.offset)
    again = await client.simple_consumer("t", "g").receive(8, wait_s=0)
    assert not worker.finished & {each.receipt.offset for each in again}

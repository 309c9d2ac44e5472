"""Messages whose topic isn't known yet: each waits as long as it may, whoever else waits."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import (
    DeadlineExceeded,
    Outcome,
    Producer,
    ProducerOptions,
    SendResult,
    SendsFailed,
)
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.test_producer import Gate, error_of, producing

TIMEOUT_S = 1.5
SHORT = ProducerOptions(delivery_timeout_ms=int(1000 * TIMEOUT_S))


@async_test
async def test_who_comes_late_has_the_whole_delivery_timeout() -> None:
    """The first one is over, and why is said; then there is a leader."""
    async with producing(SHORT) as (group, _, producer):
        group.elect(None)
        first = producer.send("t", b"first")
        await asyncio.sleep(2 / 3 * TIMEOUT_S)
        second = producer.send("t", b"second")
        error = await error_of(first)
        assert error.outcome is Outcome.DID_NOT_HAPPEN
        assert "looked for" not in error.message, "the search says what it met"
        await asyncio.sleep(0)
        assert not second.done()
        group.elect(group.nodes[0])
        await second
        assert group.model.bodies("t", 0) == [b"second"]


@async_test
async def test_deadline_of_its_own_outlasts_the_search() -> None:
    """Also of one who is alone; and a topic that isn't there is no matter of time."""
    async with producing(ProducerOptions(delivery_timeout_ms=200)) as (group, _, producer):
        group.elect(None)
        longer = producer.send("t", b"longer", deadline_s=60)
        absent = producer.send("absent", b"x", deadline_s=60)
        for _ in range(2):
            assert isinstance(await error_of(producer.send("t", b"usual")), DeadlineExceeded)
        assert not longer.done()
        group.elect(group.nodes[0])
        await longer
        assert (await error_of(absent)).code == "TOPIC_NOT_FOUND"
        assert group.model.bodies("t", 0) == [b"longer"]


@async_test
async def test_each_is_told_at_its_time_and_nothing_is_left() -> None:
    """While nobody leads; the search ends with the last of them."""
    loop = asyncio.get_running_loop()
    async with producing(SHORT) as (group, _, producer):
        group.elect(None)
        took: list[float] = []

        async def send(after_s: float, deadline_s: float | None) -> None:
            await asyncio.sleep(after_s)
            began = loop.time()
            error = await error_of(producer.send("t", b"x", deadline_s=deadline_s))
            assert error.outcome is Outcome.DID_NOT_HAPPEN
            took.append((loop.time() - began) / (deadline_s or TIMEOUT_S))

        times = [(0.0, None), (0.4, None), (0.5, 0.2), (0.8, None), (0.9, 2.0)]
        await asyncio.gather(*(send(*each) for each in times))
        # A search gives up by a pause before its end at most, which fails who it began with.
        assert min(took) > 0.6
        assert sorted(took)[1] > 0.95
        statistics = producer.statistics()
        assert (statistics.failed, statistics.buffered_messages) == (5, 0)
        while producer._holding._searches:
            await asyncio.sleep(0.01)


async def send_on(producer: Producer, every_s: float) -> None:
    """For ever, of messages of which nobody wants to know."""
    while True:
        producer.send_one_way("t", b"more")
        await asyncio.sleep(every_s)


@pytest.mark.parametrize("one_way", [False, True])
@async_test
async def test_flush_waits_for_nobody_who_came_later(one_way: bool) -> None:
    """The search goes on for them, for as long as nobody leads."""
    async with producing(ProducerOptions(delivery_timeout_ms=300)) as (group, _, producer):
        group.elect(None)
        send = producer.send_one_way if one_way else producer.send
        send("t", b"x")
        others = asyncio.create_task(send_on(producer, 0.02))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(20):
            if one_way:
                await producer.flush()
            else:
                with pytest.raises(SendsFailed):
                    await producer.flush()
        assert producer._holding._searches, "others wait"
        others.cancel()


async def frozen(group: FakeGroup, producer: Producer) -> tuple[Gate, asyncio.Future[SendResult]]:
    """A message with much time in a lane whose topic has other queues by now; nobody says which."""
    await producer.send("t", b"0", key="k")
    gate = Gate("DescribeTopic")
    group.before.append(gate)
    group.model.update("t", 3, 3)
    moving = producer.send("t", b"1", key="k", deadline_s=60)
    await gate.arrived.get()
    return gate, moving


@async_test
async def test_what_is_to_move_has_its_own_time_too() -> None:
    """The search that finds out where to ends by nobody else's."""
    async with producing(ProducerOptions(delivery_timeout_ms=300), queues=2) as (
        group,
        _,
        producer,
    ):
        gate, moving = await frozen(group, producer)
        while not (producer._holding._found_out or moving.done()):
            await asyncio.sleep(0.01)
        assert not moving.done(), "the first look is over"
        usual = producer.send("t", b"2", key="k")
        assert isinstance(await error_of(usual), DeadlineExceeded)
        gate.opened.set()
        await moving
        assert group.model.bodies("t", ord("k") % 3)[-1] == b"1"
        assert (await producer.send("t", b"3", key="k")).queue_id == ord("k") % 3

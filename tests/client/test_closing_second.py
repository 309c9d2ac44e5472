"""Several close a producer, or its client ends before: none of them is told that all is stored
where another one was told that it isn't."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.client import Client, Producer, SendsFailed
from dledger.client.blocking import BlockingClient
from dledger.client.options import ProducerOptions
from dledger.testing import BlockingFakeGroup
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.test_consumer import QUICK
from tests.scale import examples

PATIENCE_S = 60
STEP_S = 0.002


async def ending(producer: Producer) -> int | None:
    """How many failures closing tells; None if it is cancelled."""
    try:
        await producer.close()
    except SendsFailed as told:
        return told.count
    except asyncio.CancelledError:
        return None
    return 0


@async_test
async def test_who_closes_second_is_told_as_well() -> None:
    """He waits for the same end. Who comes when both were told is told nothing."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        producer = client.producer()
        producer.send("absent", b"x")
        assert await asyncio.gather(*(ending(producer) for _ in range(2))) == [1, 1]
        assert await ending(producer) == 0


@async_test
async def test_who_closes_after_one_that_was_cancelled_is_told() -> None:
    """Nobody was."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        producer = client.producer()
        producer.send("absent", b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0)
        first = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert await ending(producer) == 1


Closers = list[tuple[int, int | None]]  # when each begins, and how long after that it is cancelled


@given(
    closers=st.lists(
        st.tuples(st.integers(0, 8), st.none() | st.integers(0, 6)), min_size=1, max_size=5
    ),
    stored_after=st.integers(0, 8),
)
@settings(max_examples=examples(60), deadline=None)
def test_nobody_who_closes_says_yes_before_anybody_was_told(
    closers: Closers, stored_after: int
) -> None:
    """However many close, in any order, and whoever gives up: who was there at the end is told,
    and who comes later hears nothing only if somebody was."""
    asyncio.run(closed_by(closers, stored_after))


async def closed_by(closers: Closers, stored_after: int) -> None:
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.elect(None)
        options = ProducerOptions(close_timeout_ms=max(1, round(stored_after * STEP_S * 1_000)))
        producer = client.producer(options)
        producer.send("t", b"x")
        told: list[int] = []

        async def close() -> None:
            was_over, knew = producer._ended.is_set(), bool(told)
            count = await ending(producer)
            if count:
                told.append(count)
            elif count is not None:
                assert was_over, "it waited for the end that others were told of"
                assert knew, "nobody was told"

        async def closer(begins: int, lasts: int | None) -> None:
            await asyncio.sleep(begins * STEP_S)
            closing = asyncio.ensure_future(close())
            if lasts is not None:
                await asyncio.wait([closing], timeout=lasts * STEP_S)
                closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled() or closing.result() is None

        await asyncio.gather(*(closer(*each) for each in closers))
        if not told:
            assert await ending(producer) == 1
        await client.close()


def told_by(close: Callable[[], None]) -> int:
    try:
        close()
    except SendsFailed as told:
        return told.count
    return 0


class Late:
    """A thread that has sent to a topic that isn't there, and closes when it is told to."""

    def __init__(self, client: BlockingClient) -> None:
        self.producer = client.producer()
        self._pool = ThreadPoolExecutor(1)
        self._pool.submit(self._send).result(PATIENCE_S)

    def _send(self) -> None:
        future = self.producer.send("absent", b"x")
        while not future.done():
            time.sleep(0.001)

    def closes(self) -> int:
        return self._pool.submit(told_by, self.producer.close).result(PATIENCE_S)

    def ends(self) -> None:
        self._pool.shutdown()


def test_thread_whose_client_another_one_has_closed_is_told_of_its_own() -> None:
    """Once; and the other one of its own alone, when it closes again."""
    with BlockingFakeGroup() as group:
        client = BlockingClient.connect(group.addresses).__enter__()
        late = Late(client)
        late.producer.send("absent", b"mine")
        assert told_by(client.close) == 2
        assert [told_by(late.producer.close), late.closes(), late.closes()] == [0, 1, 0]
        late.ends()


def test_thread_that_closes_as_the_client_ends_is_told_of_its_own() -> None:
    """Its call is cancelled, or doesn't get in."""
    with BlockingFakeGroup() as group:
        client = BlockingClient.connect(group.addresses).__enter__()
        late = Late(client)
        begun, thread = threading.Event(), client._open_thread()

        async def hold() -> None:
            begun.set()
            await asyncio.sleep(PATIENCE_S)

        late.producer._all_crossed = hold  # type: ignore[method-assign]
        pool = ThreadPoolExecutor(1)
        closing = pool.submit(late.closes)
        assert begun.wait(PATIENCE_S)
        thread.call(client._client.close())
        thread.stop()
        assert closing.result(PATIENCE_S) == 1
        client._thread = None
        pool.shutdown()
        late.ends()


def test_who_has_looked_is_not_told_by_the_end() -> None:
    """Nor who closes what another one has aborted."""
    with BlockingFakeGroup() as group:
        client = BlockingClient.connect(group.addresses).__enter__()
        looks, aborted = Late(client), Late(client)
        aborted.producer.abort()
        assert looks.producer.send("absent", b"x").exception(PATIENCE_S) is not None
        assert told_by(client.close) == 1
        assert [told_by(looks.producer.close), aborted.closes()] == [0, 0]
        for each in (looks, aborted):
            each.ends()

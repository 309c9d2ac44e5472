"""Whoever cancels every task that there is may cancel one of the library's before its first step:
then none of its code ever runs. Who waits for it is told, and what comes next is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dledger.client import ClientClosed, ClientError, ProducerClosed, StartFrom
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, stocked

PATIENCE_S = 10.0


@contextmanager
def cancelled_unbegun(name: str) -> Iterator[Callable[[], bool]]:
    """The next task of that coroutine never begins; whether there was one."""
    loop = asyncio.get_running_loop()
    hits: list[asyncio.Task[Any]] = []

    def make(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **named)
        if not hits and work.__qualname__ == name:
            hits.append(task)
            task.cancel()
        return task

    loop.set_task_factory(make)
    try:
        yield lambda: bool(hits)
    finally:
        loop.set_task_factory(None)


@pytest.mark.parametrize(
    "name", ["Registrar._register", "Holding._search", "Dispatcher._deliver", "_none"]
)
@async_test
async def test_what_a_producer_begins(name: str) -> None:
    """The message is stored, or told that it wasn't; the next one is stored."""
    async with stocked() as (group, client), asyncio.timeout(PATIENCE_S):
        with cancelled_unbegun(name) as was_hit:
            async with client.producer() as producer:
                try:
                    await producer.send("t", b"x")
                except ProducerClosed:
                    assert name != "_none"
                await producer.send("t", b"y")
        assert was_hit() == (name != "_none")
        assert group.model.topics["t"][0].records


@async_test
async def test_a_receive() -> None:
    """It ends, and the next one brings what there is."""
    async with stocked(1, 1) as (_, client), asyncio.timeout(PATIENCE_S):
        consumer = client.simple_consumer("t", "g", start=StartFrom.FIRST)
        with cancelled_unbegun("Receives._call") as was_hit:
            with pytest.raises(ClientClosed):
                await consumer.receive()
            assert was_hit()
        assert len(await consumer.receive()) == 1


@async_test
async def test_a_settlement() -> None:
    """It fails, and the next one is done."""
    async with stocked(1, 2) as (_, client), asyncio.timeout(PATIENCE_S):
        consumer = client.simple_consumer("t", "g", start=StartFrom.FIRST)
        first, second = await consumer.receive(2)
        with cancelled_unbegun("SimpleConsumer._send_settled") as was_hit:
            with pytest.raises(ClientClosed):
                await first.ack()
            assert was_hit()
        await second.ack()
        assert second.is_settled


@async_test
async def test_a_members_tasks() -> None:
    """The member ends by name, and doesn't go on without pulling, or committing."""
    async with stocked(1, 1) as (_, client), asyncio.timeout(PATIENCE_S):
        service = client.push_consumer("g", PUSH)
        service.on("t")(lambda _: None)
        with cancelled_unbegun("Membership._watched") as was_hit:
            with pytest.raises(ClientError):
                await service.run()
            assert was_hit()


@async_test
async def test_a_loop() -> None:
    """Without a group: it isn't taken for the end of the messages."""
    async with stocked(1, 1) as (_, client), asyncio.timeout(PATIENCE_S):
        consumer = client.pull_consumer("t", start=StartFrom.FIRST)
        with cancelled_unbegun("Fetching._fetch") as was_hit:
            with pytest.raises(ClientClosed):
                await anext(consumer)
            assert was_hit()

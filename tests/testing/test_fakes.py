"""What fake nodes don't do, as docs/testing.md says it."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import Client, Message, Reject, ServerError
from dledger.testing import FakeGroup
from tests.client.loops import async_test


@pytest.mark.parametrize("failure", [ValueError("not now"), Reject("never")])
@async_test
async def test_failed_message_stays_with_its_member(failure: Exception) -> None:
    """Nobody takes it back, so it isn't finished; and there are no dead letters."""
    async with FakeGroup() as group, Client.connect(group.bootstrap) as client:
        group.model.create("t", 1)
        async with client.producer() as producer:
            await producer.send("t", b"x")
        service = client.push_consumer("g")

        @service.on("t")
        async def fail(message: Message) -> None:
            raise failure

        running = asyncio.create_task(service.run())
        await group.nodes[0].called("SendBack", 1)
        assert service.statistics().waiting == 1
        service.stop()
        await running
        assert (await client.fetch_offsets("g", "t")).get(0, 0) == 0
        assert (await client.dead_letters("g")).queues == ()


@async_test
async def test_what_fakes_have_not_is_refused() -> None:
    """As an error of the server that was not carried out."""
    async with FakeGroup() as group, Client.connect(group.bootstrap) as client:
        group.model.create("t", 1)
        with pytest.raises(ServerError, match="not carried out"):
            await client.consumer_groups.list()
        async with client.simple_consumer("t", "g") as consumer:
            with pytest.raises(ServerError, match="not carried out"):
                await consumer.receive()

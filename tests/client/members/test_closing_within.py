"""A handler that closes its consumer, or its client, doesn't wait for itself."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from dledger.client import InvalidArgument, Message
from dledger.client.blocking import BlockingClient
from dledger.testing import BlockingFakeGroup
from tests.client.loops import async_test
from tests.client.members.test_blocking_members import CLIENT, fill
from tests.client.members.test_push import PUSH, stocked

PATIENT = replace(PUSH, drain_s=20.0)  # for so long it used to wait, and then was cancelled
AT_ONCE_S = 10.0


@async_test
async def test_handler_that_closes_its_consumer_ends_it() -> None:
    """It goes on, and what it has done is committed."""
    async with stocked(1, 1) as (group, client):
        service, done = client.push_consumer("g", PATIENT), list[str]()

        @service.on("t")
        async def handle(_: Message) -> None:
            await service.close()
            await asyncio.sleep(0)
            done.append("done")

        async with asyncio.timeout(AT_ONCE_S):
            await service.run()
        assert done == ["done"]
        assert group.members.frontier("g", "t") == 1


@async_test
async def test_handler_that_closes_its_client_is_told() -> None:
    """Nothing has happened to the client then."""
    async with stocked(1, 1) as (group, client):
        service = client.push_consumer("g", PATIENT)

        @service.on("t")
        async def handle(_: Message) -> None:
            with pytest.raises(InvalidArgument, match="within a handler"):
                await client.close()
            service.stop()

        async with asyncio.timeout(AT_ONCE_S):
            await service.run()
        assert group.members.frontier("g", "t") == 1
        assert [topic.name for topic in await client.topics()] == ["t"]


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_handler_of_the_blocking_face_that_closes_ends_it(is_coroutine: bool) -> None:
    """On a thread of the pool, or on the client's own."""
    with (
        BlockingFakeGroup() as group,
        BlockingClient.connect(group.addresses, options=CLIENT) as client,
    ):
        topic, told = group.topic(), list[str]()
        fill(client, topic, 1)
        service = client.push_consumer("g", PATIENT)

        def close(_: Message) -> None:
            with pytest.raises(InvalidArgument) as refused:
                client.close()
            told.append(refused.value.message)
            service.close()

        async def close_on_the_loop(message: Message) -> None:
            close(message)

        service.on(topic)(close_on_the_loop if is_coroutine else close)
        begun = time.monotonic()
        service.run()
        assert time.monotonic() - begun < AT_ONCE_S
        assert ("own thread" if is_coroutine else "within a handler") in told[0]
        assert group.committed("g", topic) == 1

"""A consumer is closed while acknowledgements ride on its receives: they are done, and whoever made
one is never told that they were not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dledger.client import Client
from dledger.client.delivery import Delivery
from dledger.client.errors import ClientClosed
from dledger.client.options import StartFrom
from dledger.client.simple_consumer import SimpleConsumer
from dledger.outcome import Outcome
from dledger.testing import FakeGroup
from tests.client.loops import async_test
from tests.client.members.test_push import stocked

PATIENCE_S = 60


@asynccontextmanager
async def with_all() -> AsyncIterator[tuple[FakeGroup, Client, SimpleConsumer, list[Delivery]]]:
    """A worker that has all that there is in hand: two messages."""
    async with stocked(1, 2) as (group, client), asyncio.timeout(PATIENCE_S):
        worker = client.simple_consumer("t", "g", start=StartFrom.FIRST)
        yield group, client, worker, await worker.receive(2)


async def comes_again(client: Client) -> list[bytes]:
    found = await client.simple_consumer("t", "g").receive(2, wait_s=0)
    return [each.message.body for each in found]


async def until_settled(group: FakeGroup) -> None:
    """The brokers have the acknowledgements of the second receive, and hold it."""
    while group.nodes[0].calls["Receive"] < 2:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_on_its_way", [False, True])
@async_test
async def test_who_is_closed_as_he_acknowledges_is_never_told_that_it_was_not(
    *, is_on_its_way: bool
) -> None:
    """Brokers settle first, and then hold the call: it was told as *not carried out*, and what was
    done given back. What isn't on its way yet is acknowledged by closing."""
    async with with_all() as (group, client, worker, (done, other)):
        receiving = asyncio.ensure_future(worker.receive(done=[done], wait_s=60))
        if is_on_its_way:
            await until_settled(group)
        else:
            await asyncio.sleep(0)
        await worker.close()
        with pytest.raises(ClientClosed) as told:
            await receiving
        assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED
        await done.ack()
        assert await comes_again(client) == [other.message.body]


@async_test
async def test_who_gave_up_and_closes_has_acknowledged() -> None:
    """His receive was to be heard all the same."""
    async with with_all() as (_, client, worker, (done, other)):
        receiving = asyncio.ensure_future(worker.receive(done=[done], wait_s=60))
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait([receiving])
        assert receiving.cancelled()
        await worker.close()
        assert await comes_again(client) == [other.message.body]


@async_test
async def test_receive_that_acknowledges_nothing_did_not_happen() -> None:
    """Nothing of it is anybody's to doubt."""
    async with with_all() as (_, _, worker, _):
        receiving = asyncio.ensure_future(worker.receive(wait_s=60))
        await asyncio.sleep(0.01)
        await worker.close()
        with pytest.raises(ClientClosed) as told:
            await receiving
        assert told.value.outcome is Outcome.DID_NOT_HAPPEN


@async_test
async def test_acknowledged_as_the_client_is_being_closed_says_so() -> None:
    """They were acknowledged by themselves; only the receive wasn't made."""
    async with with_all() as (_, client, worker, (done, _other)):
        client._is_closing = True
        with pytest.raises(ClientClosed) as told:
            await worker.receive(done=[done])
        client._is_closing = False
        assert done.is_settled
        assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED

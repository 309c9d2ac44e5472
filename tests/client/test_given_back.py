"""A message that was given back is nobody's here: whoever takes it for his own is told."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import Client, InvalidArgument
from dledger.client.errors import ReceiptExpired
from dledger.client.options import StartFrom
from dledger.client.simple_consumer import SimpleConsumer
from dledger.outcome import Outcome
from dledger.wire.deliveries_pb2 import SettleRequest
from tests.client.loops import async_test
from tests.client.members.test_push import QUICK, stocked, until


@async_test
async def test_what_closing_has_given_back_is_not_acknowledged() -> None:
    """Its worker was at work on it, or had not begun: yes would mean that nobody does it again,
    and somebody has it already."""
    async with stocked(1, 3) as (_, client):
        leaving = client.simple_consumer("t", "g", start=StartFrom.FIRST)
        at_work, waiting, done = await leaving.receive(3)
        await done.ack()
        await at_work.__aenter__()
        await leaving.close()
        again = await client.simple_consumer("t", "g").receive(3)
        assert [each.message.body for each in again] == [b"0", b"1"]
        with pytest.raises(ReceiptExpired, match="as its consumer was closed") as told:
            await at_work.__aexit__(None, None, None)
        assert told.value.outcome is Outcome.DID_NOT_HAPPEN
        with pytest.raises(ReceiptExpired):
            async with waiting:
                raise AssertionError("entered")
        for each in (at_work, waiting):
            with pytest.raises(ReceiptExpired):
                await each.ack()
            with pytest.raises(ReceiptExpired):
                await each.extend(1)
            await each.retry()
        await done.ack()


@async_test
async def test_what_was_given_back_is_acknowledged_by_no_receive() -> None:
    """It rides nowhere, and was left out without a word; what came is the next one's."""
    async with stocked(1, 3) as (_, client):
        worker = client.simple_consumer("t", "g", start=StartFrom.FIRST)
        done, back = await worker.receive(2)
        await back.retry(after_s=60)
        with pytest.raises(ReceiptExpired, match="was given back") as told:
            await worker.receive(done=[done, back])
        assert told.value.outcome is Outcome.DID_NOT_HAPPEN
        assert done.is_settled
        assert [each.message.body for each in await worker.receive()] == [b"2"]


@async_test
async def test_who_gives_back_what_he_is_in_leaves_it_in_peace() -> None:
    """He has said what becomes of it. Afterwards it isn't his any more."""
    async with stocked(1, 1) as (_, client):
        worker = client.simple_consumer("t", "g", start=StartFrom.FIRST)
        (job,) = await worker.receive()
        async with job:
            await job.retry(after_s=60)
        with pytest.raises(ReceiptExpired):
            await job.ack()
        with pytest.raises(InvalidArgument, match="acknowledged or given back"):
            async with job:
                raise AssertionError("entered")


@async_test
async def test_what_is_acknowledged_stays_so() -> None:
    """Whatever is said of it afterwards, or meanwhile."""
    async with stocked(1, 1) as (_, client):
        worker = client.simple_consumer("t", "g", start=StartFrom.FIRST)
        (job,) = await worker.receive()
        await asyncio.gather(job.ack(), job.retry())
        await job.ack()
        with pytest.raises(InvalidArgument, match="acknowledged"):
            await job.extend(1)
        assert await SimpleConsumer.receive(worker, wait_s=0) == []


@pytest.mark.parametrize("gives_up", [False, True])
@async_test
async def test_client_that_closes_meanwhile_lets_all_be_given_back(*, gives_up: bool) -> None:
    """It waits for who closes already, and closes itself if that one is cancelled: hung up
    before, it would leave what is in hand hidden until its time is over."""
    async with (
        stocked(1, 3) as (group, client),
        Client.connect(group.bootstrap, options=QUICK) as other,
    ):
        worker = client.simple_consumer("t", "g", start=StartFrom.FIRST, invisible_s=3_600)
        assert len(await worker.receive(3)) == 3
        go_on = asyncio.Event()

        async def stand_still(method: str, _node: object, _request: object) -> None:
            if method == "Settle":
                await go_on.wait()

        group.before.append(stand_still)
        first = asyncio.ensure_future(worker.close())
        await until(lambda: group.nodes[0].calls["Settle"])
        second = asyncio.ensure_future(client.close())
        await asyncio.sleep(0.05)
        assert not second.done()
        if gives_up:
            first.cancel()
            await asyncio.wait([first])
            await asyncio.sleep(0.05)
        go_on.set()
        await asyncio.wait([first, second])
        second.result()
        again = await other.simple_consumer("t", "g").receive(3, wait_s=0)
        assert [each.message.body for each in again] == [b"0", b"1", b"2"]


@async_test
async def test_two_who_close_give_all_back_once() -> None:
    """The second one waits for the first, and has nothing left to do."""
    async with stocked(1, 3) as (group, client):
        worker = client.simple_consumer("t", "g", start=StartFrom.FIRST)
        await worker.receive(3)
        settled: list[int] = []

        async def count(method: str, _node: object, request: SettleRequest) -> None:
            if method == "Settle":
                settled.extend(each.base for each in request.settled)

        group.before.append(count)
        await asyncio.gather(worker.close(), worker.close())
        assert settled == [0, 1, 2]

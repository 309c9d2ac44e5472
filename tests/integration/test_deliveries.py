"""Messages handed out one by one by real nodes: receipts, riding acknowledgements, long polls."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from dledger.records.record import decode_records
from dledger.wire import broker_pb2, errors_pb2
from dledger.wire import commands_pb2 as cpb
from dledger.wire import deliveries_pb2 as pb
from tests.integration.attending import attending
from tests.integration.group import Group, error_of, make_configs

LONG_MS = 60_000


@contextlib.asynccontextmanager
async def some_group(directory: Path, count: int = 1) -> AsyncIterator[Group]:
    """Nodes with a topic of two queues, at their level."""
    group = Group(make_configs(directory, count))
    try:
        await group.start()
        await group.at_its_level()
        await group.create_topic()
        yield group
    finally:
        await group.close()


async def ask(group: Group, method: str, request: Message) -> Any:
    leader = await group.leader()
    return await group.call(leader.config.node_id, "Deliveries", method, request)


async def refusal_of(call: Any) -> int:
    """The code that a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_of(failure.value).code


def wish(count: int = 10, **others: Any) -> pb.ReceiveRequest:
    """A receive that doesn't wait, unless it is told to."""
    asked: dict[str, Any] = {"hold_ms": 0, "hidden_ms": LONG_MS, "attempt_id": os.urandom(8)}
    return pb.ReceiveRequest(group="g", topic="t", max_messages=count, **(asked | others))


def bodies(answer: pb.ReceiveResponse) -> list[bytes]:
    return [each.body for handed in answer.handed for each in decode_records(handed.records)]


def all_of(answer: pb.ReceiveResponse, what: cpb.Settling, hidden_ms: int = 0) -> list[Any]:
    """Settlements of everything that was received."""
    return [
        pb.Settlement(
            queue_id=handed.queue_id,
            handout=handed.handout,
            base=record.queue_offset,
            mask=1,
            what=what,
            hidden_ms=hidden_ms,
        )
        for handed in answer.handed
        for record in decode_records(handed.records)
    ]


def settle(settled: list[Any]) -> pb.SettleRequest:
    return pb.SettleRequest(group="g", topic="t", settled=settled)


def test_acknowledgements_ride_on_the_next_receive(tmp_path: Path) -> None:
    """They share its entry; the group's offset is where everything before is finished."""

    async def scenario() -> None:
        async with some_group(tmp_path) as group:
            await group.send(0, *(b"%d" % n for n in range(6)))
            first = await ask(group, "Receive", wish(4))
            assert bodies(first) == [b"0", b"1", b"2", b"3"]
            before = (await group.leader()).driver.applied_index
            riding = all_of(first, cpb.SETTLING_FINISHED)
            second = await ask(group, "Receive", wish(4, settled=riding))
            assert (bodies(second), list(second.unsettled)) == ([b"4", b"5"], [])
            assert (await group.leader()).driver.applied_index == before + 1
            fetch = broker_pb2.FetchOffsetsRequest(group="g", topic="t")
            offsets = (await group.ask("FetchOffsets", fetch)).offsets
            assert [(each.queue_id, each.offset) for each in offsets] == [(0, 4), (1, 0)]
            again = await ask(group, "Settle", settle(riding))
            assert not again.unsettled  # finished is finished

    asyncio.run(scenario())


def test_the_same_attempt_gets_the_same_again(tmp_path: Path) -> None:
    """Its answer was lost; what it has finished meanwhile isn't given, another attempt gets none of
    it."""

    async def scenario() -> None:
        async with some_group(tmp_path) as group:
            await group.send(0, b"0", b"1", b"2")
            asked = wish(2)
            first = await ask(group, "Receive", asked)
            asked.again = True
            second = await ask(group, "Receive", asked)
            assert first.handed == second.handed
            await ask(group, "Settle", settle(all_of(first, cpb.SETTLING_FINISHED)[:1]))
            third = await ask(group, "Receive", asked)
            assert bodies(third) == [b"1"]
            assert bodies(await ask(group, "Receive", wish(2))) == [b"2"]

    asyncio.run(scenario())


def test_what_is_returned_goes_to_somebody_else(tmp_path: Path) -> None:
    """Who waits is woken when it is due; the receipt of before is worth nothing."""

    async def scenario() -> None:
        async with some_group(tmp_path) as group:
            await group.send(0, b"0")
            first = await ask(group, "Receive", wish())
            waiting = asyncio.ensure_future(ask(group, "Receive", wish(hold_ms=10_000)))
            await asyncio.sleep(0)
            back = all_of(first, cpb.SETTLING_RETURNED, hidden_ms=50)
            assert not (await ask(group, "Settle", settle(back))).unsettled
            second = await waiting
            assert (bodies(second), second.handed[0].attempt) == ([b"0"], 2)
            stale = await ask(group, "Settle", settle(all_of(first, cpb.SETTLING_FINISHED)))
            assert [each.error.code for each in stale.unsettled] == [errors_pb2.RECEIPT_SUPERSEDED]
            longer = all_of(second, cpb.SETTLING_EXTENDED, hidden_ms=LONG_MS)
            assert not (await ask(group, "Settle", settle(longer))).unsettled
            done = all_of(second, cpb.SETTLING_FINISHED)
            assert not (await ask(group, "Settle", settle(done))).unsettled
            assert not bodies(await ask(group, "Receive", wish()))

    asyncio.run(scenario())


def test_as_many_are_answered_as_there_are_messages(tmp_path: Path) -> None:
    """Of three that wait two get one each, and the third waits on to its end."""

    async def scenario() -> None:
        async with some_group(tmp_path) as group:
            waiting = [
                asyncio.ensure_future(ask(group, "Receive", wish(1, hold_ms=1_500)))
                for _ in range(3)
            ]
            await asyncio.sleep(0.3)
            await group.send(0, b"0", b"1")
            found = [bodies(answer) for answer in await asyncio.gather(*waiting)]
            assert sorted(found) == [[], [b"0"], [b"1"]]

    asyncio.run(scenario())


def test_a_fifo_queue_is_given_to_one_at_a_time(tmp_path: Path) -> None:
    """The next receiver has it once all is finished; nobody may see the group otherwise."""

    async def scenario() -> None:
        async with some_group(tmp_path) as group:
            await group.send(0, b"0", b"1", b"2")
            first = await ask(group, "Receive", wish(2, fifo=True))
            assert bodies(first) == [b"0", b"1"]
            assert not bodies(await ask(group, "Receive", wish(2, fifo=True)))
            done = all_of(first, cpb.SETTLING_FINISHED)
            await ask(group, "Settle", settle(done[:1]))
            assert not bodies(await ask(group, "Receive", wish(2, fifo=True)))
            await ask(group, "Settle", settle(done[1:]))
            assert bodies(await ask(group, "Receive", wish(2, fifo=True))) == [b"2"]
            assert await refusal_of(ask(group, "Receive", wish())) == errors_pb2.GROUP_DIFFERS

    asyncio.run(scenario())


def test_a_group_is_not_used_in_two_ways(tmp_path: Path) -> None:
    """By whoever comes second."""

    async def scenario() -> None:
        async with some_group(tmp_path) as group, attending(group) as begin:
            await ask(group, "Receive", wish())
            commit = broker_pb2.CommitOffsetsRequest(
                group="g", topic="t", offsets=[broker_pb2.QueueOffset(queue_id=0, offset=0)]
            )
            assert await refusal_of(group.ask("CommitOffsets", commit)) == errors_pb2.GROUP_STYLED
            stream = await begin()
            member = await stream.join("a", group="leased")
            await stream.until(lambda: member.is_whole)
            other = wish()
            other.group = "leased"
            assert await refusal_of(ask(group, "Receive", other)) == errors_pb2.GROUP_STYLED

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt_id": b"short"},
        {"attempt_id": bytes(8)},
        {"hidden_ms": 0},
        {"hidden_ms": 13 * 3_600_000},
        {"start": 7},
        {"settled": [pb.Settlement(handout=1, base=0, mask=0)]},
        {"settled": [pb.Settlement(handout=1 << 63, base=0, mask=1)]},
        {"settled": [pb.Settlement(handout=1, base=1 << 63, mask=1)]},
        {"settled": [pb.Settlement(handout=1, base=0, mask=1)] * 1_025},
    ],
)
def test_what_is_no_request_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Before anything of it happens."""

    async def scenario() -> None:
        async with some_group(tmp_path) as group:
            assert await refusal_of(ask(group, "Receive", wish(**changes))) == (
                errors_pb2.INVALID_ARGUMENT
            )

    asyncio.run(scenario())


def test_receipts_of_nothing_are_superseded(tmp_path: Path) -> None:
    """Whoever makes them up harms nobody beside him; an unknown group has handed out nothing."""

    async def scenario() -> None:
        async with some_group(tmp_path) as group:
            await group.send(0, b"0", b"1")
            made_up = [pb.Settlement(queue_id=q, handout=3, base=0, mask=1) for q in (0, 1, 9)]
            call = ask(group, "Settle", settle(made_up))
            assert await refusal_of(call) == errors_pb2.RECEIPT_SUPERSEDED
            first = await ask(group, "Receive", wish(1))
            mine = all_of(first, cpb.SETTLING_FINISHED)
            answer = await ask(group, "Settle", settle([*made_up, *mine]))
            assert [each.position for each in answer.unsettled] == [0, 1, 2]

    asyncio.run(scenario())

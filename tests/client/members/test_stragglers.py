"""A queue that comes back to a member whose handler of before is still at work on it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dledger.client import Message
from dledger.client.members.member import Line, Member, Rules, Times
from dledger.client.members.process_queue import Order, Place, ProcessQueue
from dledger.testing import make_message
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, fill, running, stocked, until

PLACE = Place("t", 7, 0)
LONG = Times(session_s=1_000)


@pytest.mark.parametrize("in_order", [False, True])
@async_test
async def test_message_is_not_handled_twice_at_a_time_by_one_member(*, in_order: bool) -> None:
    """It was given up while its handler ran, as that took too long; by itself it is the next one
    again. In order nothing behind it is handled either."""
    async with stocked(1, 3) as (group, client):
        go_on = asyncio.Event()
        begun: list[int] = []
        service = client.push_consumer("g", replace(PUSH, in_order=in_order))

        @service.on("t")
        async def handle(message: Message) -> None:
            begun.append(message.queue_offset)
            if message.queue_offset == 1:
                await go_on.wait()

        async with running(service):
            await until(lambda: len(begun) == (2 if in_order else 3))
            group.members.ask_for("g", "t", 0)
            await until(lambda: not group.members.holders("g"))
            group.members.give_back("g")
            await until(lambda: bool(group.members.holders("g")))
            await fill(client, 1, 1)
            await until(lambda: service.statistics().waiting == 3 if in_order else 3 in begun)
            await asyncio.sleep(0.05)
            assert begun == ([0, 1] if in_order else [0, 1, 2, 3])
            go_on.set()
            await until(lambda: group.members.frontier("g", "t") == 4)
        assert begun == ([0, 1, 1, 2, 3] if in_order else [0, 1, 2, 3, 1])


def a_member(order: Order) -> tuple[Member, Line]:
    """It is in, and holds one queue with three messages, of which two are of one key."""
    line = Line()
    member = Member(Rules(order=order), lambda: bytes(8), {"t": line})
    member.on_stream()
    member.on_joined(1, LONG, 0.0)
    return member, line


def leased(member: Member, epoch: int) -> ProcessQueue:
    """Its queue, all of which was fetched."""
    queue = member.on_gained(PLACE, epoch, 0, []).queue
    assert queue is not None
    keys = ("a", "a", "b")
    found = [make_message("t", b"", key=key, queue_offset=at) for at, key in enumerate(keys)]
    queue.on_fetched(found, 3, 3)
    member.on_pulled(queue)
    return queue


@pytest.mark.parametrize("ends", ["succeeds", "fails", "has not begun"])
def test_others_go_on_but_those_of_its_key(ends: str) -> None:
    """However the handler ends, the message is next then, and its key's others behind it."""
    member, line = a_member(Order.KEYS)
    leased(member, 1)
    first = member.take(line, 0.0)
    assert first is not None
    for epoch in (2, 3):  # it comes, goes and comes
        member.on_lost(PLACE)
        leased(member, epoch)
    other = member.take(line, 0.0)
    assert other is not None
    assert other.message.keys == "b"
    assert member.take(line, 0.0) is None
    if ends == "succeeds":
        member.succeed(first)
    elif ends == "fails":
        member.fail(first, 0.0)
    else:
        member.put_back(first)
    for offset in (0, 1):
        work = member.take(line, 0.0)
        assert work is not None
        assert (work.message.queue_offset, work.queue.epoch) == (offset, 3)
        member.succeed(work)
    assert not member.retrying


def test_what_another_topic_had_at_the_place_is_not_waited_for() -> None:
    """It was deleted and made anew."""
    member, line = a_member(Order.KEYS)
    leased(member, 1)
    assert member.take(line, 0.0) is not None
    member.on_lost(PLACE)
    queue = member.on_gained(Place("t", 8, 0), 1, 0, []).queue
    assert queue is not None
    queue.on_fetched([make_message("t", b"")], 1, 1)
    member.on_pulled(queue)
    assert member.take(line, 0.0) is not None

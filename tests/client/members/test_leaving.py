"""However a member ends, nobody is left in the group who holds queues and reads none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dledger.client import (
    Client,
    ClientClosed,
    ConsumerOptions,
    MemberReplaced,
    Message,
    PullConsumer,
    PushConsumer,
)
from dledger.client.connection import NodeLink
from dledger.client.members.clock import clock
from dledger.client.members.membership import LAST_WORD_S
from dledger.wire.groups_pb2 import Join
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, QUICK, stocked, until

PULL = ConsumerOptions(hold_ms=50, commit_every_s=0.02)
STEPS = 40  # of the loop: more than an undisturbed end takes


async def cancelled_after(act: Awaitable[object], steps: int) -> bool:
    """`act` is cancelled after so many turns of the loop; false: it was over by then."""
    task = asyncio.ensure_future(act)
    for _ in range(steps):
        await asyncio.sleep(0)
    was_over = task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return not was_over


async def pulling(client: Client) -> tuple[PullConsumer, Callable[[], Awaitable[object]]]:
    """A loop that has something in hand, and how it ends."""
    consumer = client.pull_consumer("t", group="g", options=PULL)
    await anext(consumer)
    return consumer, consumer.close


async def pushing(client: Client) -> tuple[PushConsumer, Callable[[], Awaitable[object]]]:
    """A consumer at work, and how its run ends: it is cancelled, and then once more."""
    service = client.push_consumer("g", replace(PUSH, drain_s=0.1))
    begun = asyncio.Event()

    @service.on("t")
    async def slow(message: Message) -> None:
        begun.set()
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # it has to clean up
            raise

    running = asyncio.ensure_future(service.run())
    await begun.wait()

    async def end() -> None:
        running.cancel()
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait([running])
            raise

    return service, end


@pytest.mark.parametrize("make", [pulling, pushing])
@async_test
async def test_end_that_is_cancelled_anywhere_leaves_no_member(
    make: Callable[[Client], Awaitable[tuple[object, Callable[[], Awaitable[object]]]]],
) -> None:
    """One that nobody has would be heard of on the stream for as long as the client lives, and its
    queues would be read by nobody."""
    async with stocked(2, 3) as (group, client):
        group.members.session_ms = 60_000  # time ends none of them
        for steps in range(1, STEPS):  # before the first it has not begun
            keeper = client.pull_consumer("t", group="another", options=PULL)
            await anext(keeper)  # the stream stays
            _, end = await make(client)
            was_cancelled = await cancelled_after(end(), steps)
            async with asyncio.timeout(5):
                await until(lambda: not group.members.has_sessions("g"))
            await keeper.close()
            if not was_cancelled:
                break
        assert steps > 1


@pytest.mark.parametrize("make", [pulling, pushing])
@async_test
async def test_only_member_that_is_cancelled_says_goodbye(
    make: Callable[[Client], Awaitable[tuple[object, Callable[[], Awaitable[object]]]]],
) -> None:
    """Its stream goes with it: unheard, it would be taken for a process that the message in front
    of each of its queues has killed."""
    async with stocked(1, 3) as (group, client):
        for ended in range(1, 4):
            _, end = await make(client)
            await cancelled_after(end(), 1)
            assert group.nodes[0].calls["Leave"] == ended
            assert not group.members.has_sessions("g")


@async_test
async def test_cancelled_member_waits_for_no_leader_that_is_silent() -> None:
    """Its goodbye has a moment, whoever hears it."""
    async with stocked(1, 3) as (group, client):
        _, end = await pushing(client)
        group.nodes[0].running.clear()
        began = clock()
        await cancelled_after(end(), 1)
        assert clock() - began < LAST_WORD_S + 2
        group.nodes[0].running.set()


@async_test
async def test_goodbye_that_is_cancelled_while_nobody_answers_is_said_later() -> None:
    """The leader stands still, and who closes has no patience."""
    async with stocked(2, 3) as (group, client):
        group.members.session_ms = 60_000
        keeper = client.pull_consumer("t", group="another", options=PULL)
        await anext(keeper)
        consumer = client.pull_consumer("t", group="g", options=PULL)
        await anext(consumer)
        group.nodes[0].running.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.close()
        group.nodes[0].running.set()
        group.elect(group.nodes[1])
        async with asyncio.timeout(10):
            await until(lambda: not group.members.has_sessions("g"))


@async_test
async def test_who_was_stopped_before_it_began_joins_no_group() -> None:
    """Asked for a message afterwards it has none, and is no member."""
    async with stocked(1, 3) as (group, client):
        for end in (PullConsumer.close, PullConsumer.stop):
            consumer = client.pull_consumer("t", group="g", options=PULL)
            answer = end(consumer)
            if answer is not None:
                await answer
            assert [message async for message in consumer] == []
        await asyncio.sleep(0.05)
        assert "g" not in group.members.records


@async_test
async def test_member_whose_goodbye_is_never_heard_does_not_come_back() -> None:
    """Who closes has no patience with a leader that doesn't answer; the next one hears of it as of
    nobody."""
    async with stocked(2, 3) as (group, client):
        keeper = client.pull_consumer("t", group="another", options=PULL)
        await anext(keeper)
        consumer = client.pull_consumer("t", group="g", options=PULL)
        await anext(consumer)

        async def hear_nothing(method: str, node: object, request: object) -> None:
            if method == "Leave":
                await asyncio.sleep(3_600)

        group.before.append(hear_nothing)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await consumer.close()
        group.elect(group.nodes[1])
        await until(lambda: not group.members.has_sessions("g"))
        joins = group.nodes[1].calls["Join"]
        await keeper.seek(0, 0)
        await anext(keeper)
        assert joins == group.nodes[1].calls["Join"] == 1
        assert not group.members.has_sessions("g")


@async_test
async def test_goodbye_with_a_commit_under_way_leaves_the_others_their_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit is told that the session is over, as the goodbye has ended it: no news that
    another stream would have to explain, which were a break for all members of the client."""
    async with stocked(2, 3) as (group, client):
        keeper = client.pull_consumer("t", group="another", options=PULL)
        await anext(keeper)
        consumer = client.pull_consumer("t", group="g", options=PULL)
        under_way, ended, on_leave = asyncio.Event(), asyncio.Event(), group.members._on_leave

        async def hold_commit(method: str, node: object, request: Any) -> None:
            if method == "CommitLeases" and request.group == "g":
                under_way.set()
                await ended.wait()

        def leave_slowly(stream: Any, leave: Any) -> None:
            reply = stream.reply
            with monkeypatch.context() as patch:
                later = partial(asyncio.get_running_loop().call_later, LAST_WORD_S / 2)
                patch.setattr(stream, "reply", lambda **body: later(partial(reply, **body)))
                on_leave(stream, leave)
            ended.set()

        group.before.append(hold_commit)
        monkeypatch.setattr(group.members, "_on_leave", leave_slowly)
        await anext(consumer)
        await anext(consumer)
        await under_way.wait()
        await cancelled_after(consumer.close(), 2)
        assert ended.is_set()
        await keeper.seek(0, 0)
        await anext(keeper)
        assert group.nodes[0].calls["Attend"] == 1
        await keeper.close()


@pytest.mark.parametrize("is_asked", [False, True])
@async_test
async def test_member_that_a_commit_tells_of_its_replacement_joins_no_more(
    monkeypatch: pytest.MonkeyPatch, *, is_asked: bool
) -> None:
    """Its stream was broken then, or had asked already for the session that is over by now: joining
    as new it would end who has replaced it, or hold queues that nobody reads."""
    async with (
        stocked(2, 10) as (group, client),
        Client.connect(group.bootstrap, options=QUICK) as other,
    ):
        group.members.session_ms = 60_000
        options = ConsumerOptions(hold_ms=50, member="me")
        first = client.pull_consumer("t", group="g", options=options)
        keeper = client.pull_consumer("t", group="another", options=PULL)
        await anext(first)
        await anext(first)
        await anext(keeper)
        is_told, joins = asyncio.Event(), list[Join]()

        async def hold(method: str, _node: object, request: Join) -> None:
            if method == "Join" and request.group == "g" and request.attempt > 1:
                joins.append(request)
                await is_told.wait()

        group.before.append(hold)
        attendance = client._attending()
        attend = attendance._attend

        async def attend_later(link: NodeLink) -> None:
            await (asyncio.sleep(0) if is_asked else is_told.wait())
            await attend(link)

        monkeypatch.setattr(attendance, "_attend", attend_later)
        attendance.renew()
        await until(lambda: joins if is_asked else not attendance._stream)
        second = other.pull_consumer("t", group="g", options=options)
        await anext(second)
        with pytest.raises(MemberReplaced):
            await first.commit()
        if is_asked:
            await second.close()
        is_told.set()
        beats = group.nodes[0].calls["Heartbeat"]
        await until(lambda: group.nodes[0].calls["Heartbeat"] > beats + 2)
        assert len(joins) == is_asked
        assert group.members.has_sessions("g") is not is_asked
        if not is_asked:
            await anext(second)
            await second.commit()
        with pytest.raises(MemberReplaced):
            await anext(first)


@async_test
async def test_member_that_its_client_can_do_nothing_for_holds_no_queues() -> None:
    """Whoever has the loop may never close it."""
    async with stocked(2, 10) as (group, client):
        group.members.session_ms = 60_000
        keeper = client.pull_consumer("t", group="another", options=PULL)
        consumer = client.pull_consumer("t", group="g", options=PULL)
        await anext(keeper)
        await anext(consumer)
        membership = consumer._reading._membership  # type: ignore[attr-defined]
        next(iter(membership._tasks)).cancel()
        async with asyncio.timeout(10):
            await until(lambda: not group.members.has_sessions("g"))
        with pytest.raises(ClientClosed):
            await anext(consumer)

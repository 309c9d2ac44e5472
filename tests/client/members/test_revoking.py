"""What an application does as it is told of queues that go changes nothing but its own affairs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dledger.client import (
    Client,
    ConsumerOptions,
    InvalidArgument,
    LeaseLost,
    Message,
    Outcome,
    PushOptions,
    RevokedQueues,
)
from dledger.client.blocking import BlockingClient
from dledger.client.members.member import Member
from dledger.client.members.membership import Membership
from dledger.client.members.process_queue import Held
from dledger.client.members.revoking import on_a_thread
from dledger.testing import BlockingFakeGroup
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, fill, running, stocked, until

PULL = ConsumerOptions(hold_ms=50, commit_every_s=0.02)


def member_of(client: Client) -> Member:
    """The only one."""
    (membership,) = client._attending()._attendees.values()
    assert isinstance(membership, Membership)
    return membership.member


async def ends_a_task_of_its_own(_: RevokedQueues) -> None:
    """And waits for it, as is usual, without catching what comes of that."""
    task = asyncio.ensure_future(asyncio.sleep(3_600))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def is_cancelled(_: RevokedQueues) -> None:
    raise asyncio.CancelledError


async def raises(_: RevokedQueues) -> None:
    raise LookupError("no such cache")


@pytest.mark.parametrize("act", [ends_a_task_of_its_own, is_cancelled, raises])
@async_test
async def test_member_goes_on_whatever_on_revoke_raises(
    act: Callable[[RevokedQueues], object],
) -> None:
    """A cancellation of the application's own used to end it, as one that ends everything; and
    queues that it was asked for were kept until they were taken."""
    async with stocked(1, 20) as (group, client):
        group.members.release_ms = 60_000
        told, handled = [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            handled.append(message.queue_offset)

        @service.on_revoke
        async def revoked(queues: RevokedQueues) -> None:
            told.append(queues.lost)
            answer = act(queues)
            assert asyncio.iscoroutine(answer)
            await answer

        async with running(service) as task:
            await until(lambda: len(handled) == 20)
            group.members.ask_for("g", "t", 0)
            await until(lambda: not service.statistics().queues)
            group.members.give_back("g")
            await until(lambda: service.statistics().queues == 1)
            group.members.take_away("g", "t", 0)
            await until(lambda: len(told) == 2)
            group.members.give_back("g")
            await until(lambda: group.members.holders("g"))
            assert not task.done()
        assert told[:2] == [False, True]
        assert service.statistics().lost == 1, "what it was asked for it gave back"


@async_test
async def test_a_queue_asked_for_twice_goes_when_its_second_asking_is_worked_off() -> None:
    """The leader thinks better of it, and asks again, while the application is told of the first
    time: what was handed out in between is worked off, and told of, before the queue goes."""
    async with stocked(1, 1) as (group, client):
        group.members.release_ms = 60_000
        told, handled = [], []
        written, worked = asyncio.Event(), asyncio.Event()
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            handled.append(message.queue_offset)
            if message.queue_offset:
                await worked.wait()

        @service.on_revoke
        async def revoked(queues: RevokedQueues) -> None:
            told.append(queues.lost)
            await written.wait()

        def is_asked() -> bool:
            return any(each.state is Held.ASKED for each in member_of(client).queues.values())

        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 1)
            group.members.ask_for("g", "t", 0)
            await until(lambda: told)
            group.members.give_back("g")
            await until(lambda: not is_asked())
            await fill(client, 1, 1)
            await until(lambda: handled == [0, 1])
            group.members.ask_for("g", "t", 0)
            await until(is_asked)
            written.set()
            await asyncio.sleep(0.3)
            assert group.members.holders("g"), "its message is being worked on"
            worked.set()
            await until(lambda: not group.members.holders("g"))
            assert group.members.frontier("g", "t") == 2
        assert told == [False, False]
        assert handled == [0, 1]


class Losing:
    """Loses the answers to commits with such a code; `releasing`: only to those that give up."""

    def __init__(self, code: epb.ErrorCode, *, releasing: bool = True) -> None:
        self.code, self.releasing, self.left = code, releasing, 0

    async def __call__(self, method: str, node: object, request: Any) -> None:
        if method != "CommitLeases" or not self.left:
            return
        queues = [queue for topic in request.topics for queue in topic.queues]
        if not self.releasing or any(queue.release for queue in queues):
            self.left -= 1
            raise Refusal(wire_error(self.code))


@pytest.mark.parametrize("code", [epb.LEADERSHIP_LOST, epb.INTERNAL])
@async_test
async def test_a_queue_whose_giving_up_was_in_doubt_is_not_told_as_lost(
    code: epb.ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit was applied, and the leader died before it said so: the next one finds no such
    lease. Whether the call repeats it, or the member."""
    async with stocked(1, 5) as (group, client):
        group.members.release_ms = 60_000
        losing = Losing(code)
        losing.left = 1
        group.after.append(losing)
        told: list[bool] = []
        service = client.push_consumer("g", PUSH)
        service.on("t")(lambda _: None)

        @service.on_revoke
        async def revoked(queues: RevokedQueues) -> None:
            told.append(queues.lost)
            monkeypatch.setattr(group.members, "_news", lambda _: ())  # the stream is gone

        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 5)
            group.members.ask_for("g", "t", 0)
            await until(lambda: service.statistics().refused)
            await until(lambda: not service.statistics().queues)
            await asyncio.sleep(0.05)
        assert told == [False]
        assert service.statistics().lost == 0


@async_test
async def test_a_queue_that_no_commit_has_given_up_is_told_as_lost() -> None:
    """The answer that was lost was of an earlier one."""
    async with stocked(1, 5) as (group, client):
        group.members.release_ms = 60_000
        losing = Losing(epb.INTERNAL, releasing=False)
        losing.left = 1
        group.after.append(losing)
        told: list[bool] = []
        service = client.push_consumer("g", PUSH)
        service.on("t")(lambda _: None)

        @service.on_revoke
        async def revoked(queues: RevokedQueues) -> None:
            told.append(queues.lost)
            if not queues.lost:
                group.members.records["g"].leases.clear()  # nobody has said so yet

        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 5)
            group.members.ask_for("g", "t", 0)
            await until(lambda: len(told) == 2)
        assert told == [False, True]


@async_test
async def test_commit_of_a_loop_says_that_it_may_have_happened() -> None:
    """It was applied, and the queue was gone when it was asked for again."""
    async with stocked(1, 5) as (group, client):
        losing = Losing(epb.LEADERSHIP_LOST, releasing=False)
        group.after.append(losing)

        async def take_away(method: str, node: object, request: Any) -> None:
            if method == "CommitLeases" and not losing.left:
                group.members.records["g"].leases.clear()

        consumer = client.pull_consumer("t", group="g", options=ConsumerOptions(hold_ms=50))
        async with consumer:
            message = await anext(consumer)
            losing.left = 1
            group.before.append(take_away)
            with pytest.raises(LeaseLost) as caught:
                await consumer.commit(message)
            assert caught.value.outcome is Outcome.MAY_HAVE_HAPPENED
            assert group.members.frontier("g", "t") == 1
            group.before.remove(take_away)


@async_test
async def test_what_a_loop_has_finished_of_a_queue_in_doubt_may_be_committed() -> None:
    """It was committed as the queue was given up, and nobody could say so."""
    async with stocked(1, 5) as (group, client):
        group.members.release_ms = 60_000
        losing = Losing(epb.LEADERSHIP_LOST)
        losing.left = 1
        group.after.append(losing)
        options = ConsumerOptions(hold_ms=50, commit_every_s=60.0)
        consumer = client.pull_consumer("t", group="g", idle_timeout_s=0.05, options=options)
        async with consumer:
            assert len([message async for message in consumer]) == 5
            group.members.ask_for("g", "t", 0)
            await until(lambda: losing.left == 0)
            await until(lambda: not group.members.holders("g"))
            await until(lambda: not member_of(client).queues)
            with pytest.raises(LeaseLost) as caught:
                await consumer.commit()
            assert caught.value.outcome is Outcome.MAY_HAVE_HAPPENED
            assert group.members.frontier("g", "t") == 5


@pytest.mark.parametrize("is_loop", [True, False])
@async_test
async def test_who_ends_has_time_for_on_revoke(is_loop: bool) -> None:
    """Without any for handlers, too: a loop that is closed has none of its own. What it writes down
    there is written before the queues go."""
    written: list[bool] = []

    async def write(_: RevokedQueues) -> None:
        await asyncio.sleep(0.5)  # a database's, say
        written.append(group.members.has_sessions("g"))

    async with stocked(1, 5) as (group, client):
        group.members.release_ms = 1_000
        if is_loop:
            options = replace(PULL, on_revoke=write)
            async with client.pull_consumer("t", group="g", options=options) as consumer:
                await anext(consumer)
        else:
            service = client.push_consumer("g", replace(PUSH, drain_s=0))
            service.on("t")(lambda _: None)
            service.on_revoke(write)
            async with running(service):
                await until(lambda: service.statistics().handled == 5)
        assert written == [True]
        assert not group.members.has_sessions("g")


@async_test
async def test_exit_in_on_revoke_ends_run_in_an_orderly_way() -> None:
    """As one in a handler does."""
    async with stocked(1, 20) as (group, client):
        group.members.release_ms = 60_000
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            await asyncio.sleep(0)

        @service.on_revoke
        async def revoked(queues: RevokedQueues) -> None:
            raise SystemExit(3)

        async def ask() -> None:
            await until(lambda: group.members.frontier("g", "t") == 20)
            group.members.ask_for("g", "t", 0)

        asking = asyncio.create_task(ask())
        with pytest.raises(SystemExit):
            await service.run()
        await asking
        assert not group.members.has_sessions("g"), "it said goodbye"


@async_test
async def test_exit_in_on_revoke_of_a_loop_is_raised_there() -> None:
    """And not in whatever the event loop has at hand."""
    async with stocked(1, 20) as (group, client):

        def leave(_: RevokedQueues) -> None:
            raise SystemExit(3)

        options = replace(PULL, on_revoke=leave)
        async with client.pull_consumer("t", group="g", options=options) as consumer:
            await anext(consumer)
            group.members.ask_for("g", "t", 0)
            with pytest.raises(SystemExit):
                async for _ in consumer:
                    pass


def test_blocking_on_revoke_may_block_and_call_the_client() -> None:
    """It is on a thread of its own: a commit there, which waits for the client's, is what it is
    for."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        with client.producer() as producer:
            for _ in range(5):
                producer.send(topic, b"x")
        told: list[str] = []
        done = threading.Event()

        def commit(queues: RevokedQueues) -> None:
            told.append(threading.current_thread().name)
            consumer.commit()
            done.set()

        options = ConsumerOptions(hold_ms=50, on_revoke=commit)
        consumer = client.pull_consumer(topic, group="g", idle_timeout_s=0.3, options=options)
        with consumer:
            assert len(list(consumer)) == 5
            group.revoke("g", topic)
            assert done.wait(20)
            assert group.committed("g", topic) == 5
        assert "dledger-client" not in told

        service = client.push_consumer("pushed", PushOptions(commit_every_s=0.02))
        called: list[bool] = []

        @service.on(topic)
        def handle(message: Message) -> None:
            if message.queue_offset == 4:
                service.stop()

        @service.on_revoke
        async def revoked(queues: RevokedQueues) -> None:
            called.append(queues.lost)

        service.run()
        assert called == [False], "a coroutine is run, too"


NEVER_RETURNS = """
import asyncio, threading
from contextlib import suppress
from dledger.client import RevokedQueues
from dledger.client.members.revoking import on_a_thread

async def revoked():
    with suppress(TimeoutError):
        await asyncio.wait_for(told(RevokedQueues("t", [0], lost=True)), 0.01)

told = on_a_thread(lambda _: threading.Event().wait())
asyncio.new_event_loop().run_until_complete(revoked())
print("done")
"""


def test_on_revoke_that_never_returns_does_not_keep_the_process() -> None:
    """As a handler's thread doesn't: the interpreter used to wait for it at its end."""
    ended = subprocess.run(
        [sys.executable, "-c", NEVER_RETURNS], capture_output=True, text=True, timeout=30
    )
    assert ended.stdout == "done\n"


@async_test
async def test_on_revokes_that_never_return_leave_the_loop_its_threads() -> None:
    """Offsets are kept in a file on one of these; what is raised is told, and who waits may go."""
    queues, end = RevokedQueues("t", [0], lost=True), threading.Event()
    told = on_a_thread(lambda _: end.wait())
    blocked = [asyncio.ensure_future(told(queues)) for _ in range(40)]
    try:
        assert await asyncio.wait_for(asyncio.to_thread(int), 20) == 0
        blocked[0].cancel()
        with pytest.raises(LookupError, match="no such cache"):
            await on_a_thread(raises_at_once)(queues)
    finally:
        end.set()
    ended = await asyncio.gather(*blocked, return_exceptions=True)
    assert [type(each) for each in ended] == [asyncio.CancelledError] + [type(None)] * 39


def raises_at_once(_: RevokedQueues) -> None:
    raise LookupError("no such cache")


def test_on_revoke_that_does_nothing_is_refused_at_once() -> None:
    """A function with a `yield` has done nothing when it is called."""

    def later(queues: RevokedQueues) -> object:
        yield queues

    with pytest.raises(InvalidArgument, match="on_revoke"):
        ConsumerOptions(on_revoke=later)  # type: ignore[arg-type]  # that's the point
    with pytest.raises(InvalidArgument, match="on_revoke"):
        ConsumerOptions(on_revoke="no")  # type: ignore[arg-type]

"""A failed send is told to somebody: by its future, or else by `flush`, `close` or `send_all`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dledger.client import (
    BufferFull,
    Client,
    ClientError,
    ClientOptions,
    DeadlineExceeded,
    Forked,
    InvalidArgument,
    MessageTooLarge,
    NewMessage,
    Outcome,
    ProducerClosed,
    ProducerOptions,
    SendsFailed,
    TopicNotFound,
    WrongThread,
)
from dledger.client.failed_sends import FailedSends, was_asked
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.test_consumer import QUICK

IMPATIENT = ProducerOptions(close_timeout_ms=300)


class WorkFailed(Exception):
    """The application's own."""


@async_test
async def test_leaving_the_block_tells_of_failures() -> None:
    """A send to a topic that isn't there used to vanish without a word."""

    async def script(client: Client) -> None:
        async with client.producer() as producer:
            producer.send("absent", b"x")

    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        with pytest.raises(SendsFailed, match="'absent' does not exist") as told:
            await script(client)
        assert isinstance(told.value.failures[0], TopicNotFound)
        assert (told.value.count, told.value.outcome) == (1, Outcome.DID_NOT_HAPPEN)


@async_test
async def test_leaving_the_client_tells_of_all_its_producers() -> None:
    """Together, and after everything is closed."""
    async with FakeGroup() as group:
        client = await Client.connect(group.bootstrap, options=QUICK).__aenter__()
        for _ in range(3):
            client.producer().send("absent", b"x")
        with pytest.raises(SendsFailed, match="3 messages"):
            await client.close()
        await client.close()


@async_test
async def test_failure_that_its_caller_looked_at_is_not_told_again() -> None:
    """By awaiting it, asking it, gathering it, or in a callback; cancelling is a word, too."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        producer = client.producer()
        with pytest.raises(TopicNotFound):
            await producer.send("absent", b"x")
        with pytest.raises(TopicNotFound):
            await asyncio.wait_for(producer.send("absent", b"x"), 30)
        await asyncio.gather(
            *(producer.send("absent", b"x") for _ in range(3)), return_exceptions=True
        )
        called: list[BaseException | None] = []
        producer.send("absent", b"x").add_done_callback(lambda f: called.append(f.exception()))
        producer.send("absent", b"x").cancel()
        waiting = asyncio.ensure_future(asyncio.wait_for(producer.send("absent", b"x"), 30))
        await producer.flush()
        assert len(called) == 1
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], TopicNotFound)
        await producer.close()


@async_test
async def test_callers_own_error_stays_and_has_a_note() -> None:
    """It says what went wrong first; what failed besides must not hide it, nor be hidden."""

    async def script(client: Client) -> None:
        async with client.producer() as producer:
            producer.send("absent", b"x")
            raise WorkFailed

    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        with pytest.raises(WorkFailed) as raised:
            await script(client)
        assert "'absent' does not exist" in raised.value.__notes__[0]


@async_test
async def test_abort_leaves_it_to_the_futures() -> None:
    """Who aborts does not want to wait for a verdict; what each future knows stays."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.elect(None)
        producer = client.producer()
        future = producer.send("t", b"x")
        await producer.abort()
        assert isinstance(future.exception(), ProducerClosed)


@async_test
async def test_every_flush_under_an_abort_is_told() -> None:
    """Each may be about to say that its messages are stored: those that wait, and those that come
    after it. What its caller looks at is not counted, and closing after it tells nobody."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.elect(None)
        producer = client.producer()
        producer.send("t", b"dropped")
        waiting = asyncio.ensure_future(asyncio.wait_for(producer.send("t", b"awaited"), 30))
        flushes = [asyncio.ensure_future(producer.flush()) for _ in range(2)]
        await asyncio.sleep(0.01)
        await producer.abort()
        told = await asyncio.gather(*flushes, waiting, return_exceptions=True)
        assert [type(error) for error in told] == [SendsFailed, SendsFailed, ProducerClosed]
        for _ in range(2):
            with pytest.raises(
                SendsFailed, match="1 message failed; the first: the producer"
            ) as by:
                await producer.flush()
            assert by.value.count == 1
            await producer.close()


@async_test
async def test_every_flush_under_way_is_told() -> None:
    """Whoever looks first used to hear of all failures, and the others that all was well. One that
    begins later is told of what is new; what one that gave up would have heard, too."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        producer = client.producer()
        for _ in range(2):
            producer.send("absent", b"x")
            flushes = [asyncio.ensure_future(producer.flush()) for _ in range(3)]
            told = await asyncio.gather(*flushes, return_exceptions=True)
            assert [getattr(error, "count", error) for error in told] == [1, 1, 1]
            await producer.flush()
        producer.send("absent", b"x")
        impatient = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(SendsFailed, match="1 message failed"):
            await producer.flush()
        await producer.close()


@async_test
async def test_flush_that_gives_up_leaves_what_it_would_have_heard() -> None:
    """Though another one was told meanwhile; and neither of them counts anything twice."""
    failed: FailedSends[asyncio.Future[None]] = FailedSends(was_asked, asyncio.Future.exception, 10)

    def fail() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(TopicNotFound("x"))
        failed.add(future)

    async def flush() -> int:
        try:
            async with failed.told():
                await asyncio.sleep(0)
        except SendsFailed as told:
            return len(told.failures)
        return 0

    async def give_up() -> None:
        async with failed.told():
            for _ in range(2):
                fail()
                assert await flush() == 1
            raise WorkFailed

    with pytest.raises(WorkFailed):
        await give_up()
    assert [await flush(), await flush()] == [2, 0]


@async_test
async def test_failure_before_an_abort_is_told_as_well() -> None:
    """Nobody had flushed by then."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        producer = client.producer()
        future = producer.send("absent", b"x")
        while not future.done():
            await asyncio.sleep(0.001)
        async with producer:
            await producer.abort()
        with pytest.raises(SendsFailed, match="'absent' does not exist"):
            await producer.flush()


@async_test
async def test_closing_many_producers_takes_one_timeout() -> None:
    """They wait for the same silent leader at the same time."""
    async with FakeGroup() as group:
        client = await Client.connect(group.bootstrap, options=QUICK).__aenter__()
        group.model.create("t", 1)
        producers = [client.producer(IMPATIENT) for _ in range(8)]
        for producer in producers:
            await producer.send("t", b"warm up")
        group.nodes[0].running.clear()
        for producer in producers:
            producer.send("t", b"x")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(SendsFailed, match="8 messages"):
            await client.close()
        assert loop.time() - begun < 4 * IMPATIENT.close_timeout_ms / 1000


# --- in bulk ----------------------------------------------------------------------------------


@async_test
async def test_bulk_past_the_bound_waits_for_room() -> None:
    """A list of `send`s would end at BufferFull and drop the futures it had."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.model.create("t", 1)
        async with client.producer(ProducerOptions(max_buffered_messages=10)) as producer:
            with pytest.raises(BufferFull):
                _ = [producer.send("t", b"x") for _ in range(11)]
            await producer.flush()
            sent = await producer.send_all(NewMessage("t", b"%d" % n) for n in range(1_000))
        assert sent == 1_000
        assert group.model.bodies("t", 0)[10:] == [b"%d" % n for n in range(1_000)]


@async_test
async def test_bulk_ends_at_the_first_failure_and_tells_it_once() -> None:
    """What was accepted is settled; what comes after was not even taken."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.model.create("t", 1)
        taken: list[int] = []

        def messages() -> Iterator[NewMessage]:
            for number in range(1_000):
                taken.append(number)
                yield NewMessage("t", bytes(5 << 20) if number == 7 else b"%d" % number)

        async with client.producer() as producer:
            with pytest.raises(SendsFailed) as told:
                await producer.send_all(messages())
            assert [type(error) for error in told.value.failures] == [MessageTooLarge]
            assert taken == list(range(8))
            assert group.model.bodies("t", 0) == [b"%d" % n for n in range(7)]


@async_test
async def test_bulk_that_is_cancelled_leaves_its_failures_to_flush() -> None:
    """Nobody else would ever look at them."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.elect(None)
        producer = client.producer(ProducerOptions(delivery_timeout_ms=200))
        bulk = asyncio.ensure_future(producer.send_all([NewMessage("t", b"x")] * 3))
        await asyncio.sleep(0.01)
        bulk.cancel()
        with pytest.raises(asyncio.CancelledError):
            await bulk
        with pytest.raises(SendsFailed, match="3 messages"):
            await producer.flush()


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"properties": {"DELAY": "3"}}, "'DELAY' is one of RocketMQ's own"),
        ({"properties": {"UNIQ_KEY": "3"}}, "'UNIQ_KEY' is one of RocketMQ's own"),
        ({"properties": {"__anything": "3"}}, "'__anything' is one of RocketMQ's own"),
        ({"properties": {"KEYS": "k"}}, "give it as key="),
        ({"properties": {"TAGS": "t"}}, "give it as tag="),
        ({"key": "two keys"}, "blank"),
        ({"key": "a\tb"}, "blank"),
        ({"key": "\u3000"}, "blank"),
    ],
)
def test_what_would_change_its_meaning_later_is_refused(
    arguments: dict[str, Any], told: str
) -> None:
    """Stored, it would be old data that a later version takes at its word."""

    @async_test
    async def refused() -> None:
        async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
            group.model.create("t", 1)
            async with client.producer() as producer:
                with pytest.raises(InvalidArgument, match=told):
                    producer.send("t", b"x", **arguments)
            assert group.model.bodies("t", 0) == []

    refused()


@async_test
async def test_other_threads_are_refused_by_name() -> None:
    """Taken silently, a message would lie there until the loop happens to wake."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.model.create("t", 1)
        producer = client.producer()
        consumer = client.pull_consumer("t")
        with pytest.raises(WrongThread, match="call_soon_threadsafe"):
            await asyncio.to_thread(producer.send, "t", b"x")
        sent = producer.send("t", b"mine")
        with pytest.raises(WrongThread, match="call_soon_threadsafe"):
            await asyncio.to_thread(producer.send, "t", b"behind it")
        await sent
        errors: list[ClientError] = []

        def elsewhere() -> None:
            for work in (client.topics(), producer.flush(), anext(consumer)):
                try:
                    asyncio.run(work)
                except ClientError as error:
                    errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert [type(error) for error in errors] == [WrongThread] * 3
        assert (await producer.send("t", b"fine")).queue_offset == 1


FORK = """
import asyncio, os, sys
from dledger.client.errors import Forked
from dledger.client.owner import Owner

owner = Owner()
child = os.fork()
if child == 0:
    try:
        owner.check()
    except Forked:
        os._exit(7)
    os._exit(0)
owner.check()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


FORK_BESIDE_A_LOOP = """
import os, sys
from functools import partial
from dledger.client.errors import Forked
from dledger.client.loop_thread import LoopThread
from dledger.client.sent import Sent

thread = LoopThread()
sent = Sent(thread.check, thread.check_outside)
child = os.fork()
if child == 0:
    refused = 0
    post, run = partial(thread.post, int), partial(thread.run, int)
    for act in (post, run, thread.stop, partial(sent.result, 0), partial(sent.exception, 0)):
        try:
            act()
        except Forked:
            refused += 1
    thread.report({"message": "is told to nobody"})
    os._exit(refused)
thread.stop()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("program", "code"), [(FORK, 7), (FORK_BESIDE_A_LOOP, 5)])
def test_forked_child_knows_that_it_is_one(program: str, code: int) -> None:
    """In a process of its own: one with gRPC's threads may die of the fork itself. Whatever the
    parent's thread would have to do is refused, at once."""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == code


@async_test
async def test_forked_child_is_refused_by_name() -> None:
    """It has neither the loop nor the connections; ending its blocks does its parent no harm."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.model.create("t", 1)
        consumer = client.pull_consumer("t")
        async with client.producer() as producer:
            await producer.send("t", b"before")
            owners = [client._owner, producer._owner, consumer._owner]
            threads = [owner.thread for owner in owners]
            for owner in owners:
                owner.thread = -1  # as in a forked child
            with pytest.raises(Forked):
                producer.send("t", b"x")
            for work in (client.topics(), producer.flush(), anext(consumer)):
                with pytest.raises(Forked):
                    await work
            await producer.close()
            await producer.abort()
            await client.close()
            for owner, thread in zip(owners, threads, strict=True):
                owner.thread = thread
            await producer.send("t", b"after")
        assert group.model.bodies("t", 0) == [b"before", b"after"]


@async_test
async def test_failures_in_one_turn_are_told_to_who_looks_at_them() -> None:
    """However many: nobody could look before the last of them had failed."""
    failing: list[asyncio.Future[None]] = []
    told: FailedSends[asyncio.Future[None]] = FailedSends(
        was_asked, asyncio.Future.exception, 2_000
    )
    loop = asyncio.get_running_loop()
    for _ in range(10):
        turn = [loop.create_future() for _ in range(2_000)]
        for future in turn:
            future.add_done_callback(lambda done: done.exception())
            future.set_exception(TopicNotFound("x"))
            told.add(future)
        await asyncio.sleep(0)
        failing += turn
    async with told.told():
        pass
    for _ in range(9_000):
        unseen: asyncio.Future[None] = loop.create_future()
        unseen.set_exception(TopicNotFound("x"))
        told.add(unseen)
    with pytest.raises(SendsFailed, match="9,000 messages"):
        async with told.told():
            pass


def test_errors_are_what_pythons_callers_expect() -> None:
    """A wrong argument is a ValueError, a time that is over a TimeoutError."""
    assert isinstance(InvalidArgument("x"), ValueError)
    assert isinstance(DeadlineExceeded("x"), TimeoutError)
    assert str(DeadlineExceeded("x")) == "x; the request was not carried out"
    assert ClientOptions().deadline_s == 10

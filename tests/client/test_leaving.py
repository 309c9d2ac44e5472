"""How blocks are left: whose end has time to flush, and who hears of what failed as it had."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import closing

import pytest

from dledger.client import Client, PushOptions, SendsFailed
from dledger.client.blocking import BlockingClient
from dledger.client.leaving import is_hurried
from dledger.testing import BlockingFakeGroup
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, stocked
from tests.client.test_consumer import QUICK


class Unknown(BaseException):
    """Of a library that we don't know."""


def test_only_who_is_interrupted_is_in_a_hurry() -> None:
    """A generator that is closed isn't, nor a program that ends as it wants to."""
    patient = (None, ValueError, GeneratorExit, SystemExit)
    hurried = (KeyboardInterrupt, asyncio.CancelledError, Unknown)
    assert [is_hurried(kind) for kind in (*patient, *hurried)] == [False] * 4 + [True] * 3


@pytest.mark.parametrize("of", ["producer", "client"])
@async_test
async def test_generator_that_is_closed_flushes(of: str) -> None:
    """What it had sent used to be dropped, and nobody was told."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as outer:
        group.model.create("t", 1)

        async def sends() -> AsyncGenerator[None, None]:
            async with Client.connect(group.bootstrap, options=QUICK) as inner:
                if of == "client":
                    inner.producer().send("t", b"x")
                    yield
                    return
                async with outer.producer() as producer:
                    producer.send("t", b"x")
                    yield

        steps = sends()
        await anext(steps)
        await steps.aclose()
        assert group.model.bodies("t", 0) == [b"x"]


@async_test
async def test_generator_that_is_closed_tells_of_what_failed() -> None:
    """Whatever is put on the end of a generator, its `aclose` swallows."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:

        async def sends() -> AsyncGenerator[None, None]:
            async with client.producer() as producer:
                producer.send("absent", b"x")
                yield

        steps = sends()
        await anext(steps)
        with pytest.raises(SendsFailed, match="1 message failed"):
            await steps.aclose()


@pytest.mark.parametrize("of", ["producer", "client"])
@pytest.mark.parametrize("topic", ["there", "absent"])
def test_generator_of_a_thread_that_is_closed_flushes_or_tells(of: str, topic: str) -> None:
    """The same for the blocking face."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as outer:
        there = group.topic()

        def sends() -> Generator[None, None, None]:
            with BlockingClient.connect(group.addresses) as inner:
                client = inner if of == "client" else outer
                with client.producer() as producer:
                    if of == "client":
                        producer = client.producer()
                    producer.send(there if topic == "there" else topic, b"x")
                    yield

        steps = sends()
        next(steps)
        if topic == "there":
            steps.close()
            assert group.bodies(there) == [b"x"]
        else:
            with pytest.raises(SendsFailed, match="1 message failed"):
                steps.close()


def test_program_that_exits_flushes_and_keeps_its_code(caplog: pytest.LogCaptureFixture) -> None:
    """What failed it hears in the log: nobody sees a note of that error."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()

        def program() -> None:
            with client.producer() as producer:
                producer.send(topic, b"x")
                producer.send("absent", b"x")
                raise SystemExit(3)

        with (
            caplog.at_level(logging.ERROR, "dledger.client"),
            pytest.raises(SystemExit) as exited,
        ):
            program()
        assert exited.value.code == 3
        assert group.bodies(topic) == [b"x"]
        assert "1 message failed" in caplog.text


def test_coroutine_that_exits_flushes() -> None:
    """`sys.exit` within `asyncio.run`."""
    with BlockingFakeGroup() as group:
        topic = group.topic()

        async def main() -> None:
            async with Client.connect(group.addresses) as client, client.producer() as producer:
                producer.send(topic, b"x")
                raise SystemExit(3)

        with pytest.raises(SystemExit):
            asyncio.run(main())
        assert group.bodies(topic) == [b"x"]


@async_test
async def test_handlers_have_their_time_where_a_generator_is_closed() -> None:
    """What is in their hands is finished and committed."""
    async with stocked(1, 1) as (group, client):
        service = client.push_consumer("g", PUSH)
        begun, goes_on = asyncio.Event(), asyncio.Event()

        @service.on("t")
        async def handle(_: object) -> None:
            begun.set()
            await goes_on.wait()

        async def works() -> AsyncGenerator[asyncio.Task[None], None]:
            async with service:
                yield asyncio.ensure_future(service.run())

        steps = works()
        running = await anext(steps)
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, goes_on.set)
        await steps.aclose()
        await running
        assert group.members.frontier("g", "t") == 1


def test_threads_have_their_time_where_a_generator_is_closed() -> None:
    """The same for the blocking face."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        with client.producer() as producer:
            producer.send(topic, b"x")
        service = client.push_consumer("g", PushOptions(commit_every_s=0.02))
        begun, ended = threading.Event(), list[str]()

        @service.on(topic)
        async def handle(_: object) -> None:
            begun.set()
            await asyncio.sleep(0.05)
            ended.append("done")

        running = threading.Thread(target=service.run)

        def works() -> Generator[None, None, None]:
            with service:
                running.start()
                yield

        with closing(works()) as steps:
            next(steps)
            assert begun.wait(60)
        running.join(60)
        assert ended == ["done"]
        assert group.committed("g", topic) == 1

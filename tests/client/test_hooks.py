"""The hooks `stamp` and `around`: where they run, what they see, and that they break nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from dledger.client import (
    Client,
    ClientOptions,
    ConsumerOptions,
    InvalidArgument,
    Message,
    MessageTooLarge,
    NewMessage,
    ProducerOptions,
)
from dledger.client.blocking import BlockingClient
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.records.record import MAX_PROPERTIES_BYTES
from dledger.testing import BlockingFakeGroup
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.test_producer import producing

SPAN: ContextVar[str] = ContextVar("span", default="none")
QUICK = ClientOptions(presume_after_s=0.02)
IDLE_S = 0.01


class OnPurpose(Exception):
    """What a hook of these tests raises."""


def traced(properties: MutableMapping[str, str]) -> None:
    """As a tracer would: the current span goes with the message."""
    properties["traceparent"] = SPAN.get()


class Complaints:
    """What the loop's exception handler is told of hooks; the rest goes where it went."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self._loop = asyncio.get_running_loop()
        self._before = self._loop.get_exception_handler()
        self._loop.set_exception_handler(self._hear)

    def _hear(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "hook" in context["message"]:
            self.told.append(context)
        elif self._before is not None:
            self._before(loop, context)


async def read(client: Client, options: ConsumerOptions | None = None) -> list[Message]:
    """Everything that is in the topic."""
    consumer = client.pull_consumer("t", idle_timeout_s=IDLE_S, options=options)
    return [message async for message in consumer]


# --- stamp ----------------------------------------------------------------------------------------


@async_test
async def test_stamp_writes_what_is_current_where_it_is_sent() -> None:
    """In the context of who sends; beside key, tag and properties of one's own."""
    async with producing(ProducerOptions(stamp=traced)) as (_, client, producer):
        SPAN.set("00-a-b-01")
        await producer.send("t", b"1", key="k", tag="x", properties={"mine": "1"})
        SPAN.set("00-c-d-01")
        producer.send_one_way("t", b"2")
        await producer.send_all([NewMessage("t", b"3", properties={"traceparent": "old"})])
        first, second, third = await read(client)
        assert (first.keys, first.tags) == ("k", "x")
        assert (first.properties["traceparent"], first.properties["mine"]) == ("00-a-b-01", "1")
        assert [second.properties["traceparent"], third.properties["traceparent"]] == [
            "00-c-d-01"
        ] * 2


@async_test
async def test_stamp_has_a_copy() -> None:
    """What the caller passed is the caller's."""
    given = {"mine": "1"}
    async with producing(ProducerOptions(stamp=traced)) as (_, _, producer):
        await producer.send("t", b"x", properties=given)
    assert given == {"mine": "1"}


def raising(properties: MutableMapping[str, str]) -> None:
    properties["half"] = "done"
    raise OnPurpose


def with_a_reserved_name(properties: MutableMapping[str, str]) -> None:
    properties["DELAY"] = "3"


def with_a_number(properties: MutableMapping[Any, Any]) -> None:
    properties["number"] = 5


def with_too_much(properties: MutableMapping[str, str]) -> None:
    properties["baggage"] = "x" * MAX_PROPERTIES_BYTES


@pytest.mark.parametrize("stamp", [raising, with_a_reserved_name, with_a_number, with_too_much])
def test_stamp_that_fails_loses_nothing(stamp: Callable[[MutableMapping[str, str]], None]) -> None:
    """The message goes as it was given, the failure is counted and told: the first, the second, the
    fourth and the eighth."""

    @async_test
    async def check() -> None:
        async with producing(ProducerOptions(stamp=stamp)) as (_, client, producer):
            complaints = Complaints()
            for _ in range(10):
                await producer.send("t", b"x", key="k", properties={"mine": "1"})
            found = await read(client)
            assert [message.properties for message in found] == [{"mine": "1", "KEYS": "k"}] * 10
            assert producer.statistics().hook_failures == 10
            assert len(complaints.told) == 4
            assert all(isinstance(each["exception"], Exception) for each in complaints.told)

    check()


@async_test
async def test_callers_mistake_is_the_callers() -> None:
    """It is raised as without a hook, which isn't blamed."""
    async with producing(ProducerOptions(stamp=traced)) as (_, _, producer):
        wrongs: list[dict[str, Any]] = [
            {"properties": {"__own": "1"}},
            {"key": "two words"},
            {"properties": 3},
        ]
        for wrong in wrongs:
            with pytest.raises(InvalidArgument):
                producer.send("t", b"x", **wrong)
        assert producer.statistics().hook_failures == 0


@async_test
async def test_stamp_that_interrupts_does_so() -> None:
    """Ctrl-C within it is Ctrl-C, and the message was not accepted."""

    def interrupted(_: MutableMapping[str, str]) -> None:
        raise KeyboardInterrupt

    async with producing(ProducerOptions(stamp=interrupted)) as (_, _, producer):
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"x")
        assert producer.statistics().accepted == 0


async def _awaited(properties: MutableMapping[str, str]) -> None:
    traced(properties)


@pytest.mark.parametrize("hook", [_awaited, 3, "stamp"])
def test_hook_that_can_not_be_called_is_refused(hook: Any) -> None:
    """A coroutine function would do nothing, and nobody would hear of it."""
    with pytest.raises(InvalidArgument, match="stamp"):
        ProducerOptions(stamp=hook)
    with pytest.raises(InvalidArgument, match="around"):
        ConsumerOptions(around=hook)


def test_stamp_runs_in_the_thread_that_sends() -> None:
    """With the blocking face as well: elsewhere it would see no span, or another's."""
    seen: list[int] = []

    def stamp(properties: MutableMapping[str, str]) -> None:
        seen.append(threading.get_ident())
        traced(properties)

    options = ProducerOptions(stamp=stamp, compression="zlib", compress_above_bytes=10)
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        with client.producer(options) as producer:

            def send() -> None:
                SPAN.set("of the thread")
                producer.send(topic, b"x" * 100).result()
                producer.send_one_way(topic, b"y" * 100)
                producer.send_all([NewMessage(topic, b"z" * 100)])

            thread = threading.Thread(target=send)
            thread.start()
            thread.join()
            assert {*seen} == {thread.ident}
            assert len(seen) == 3
        found = list(client.pull_consumer(topic, idle_timeout_s=IDLE_S))
        assert [message.properties["traceparent"] for message in found] == ["of the thread"] * 3
        assert [message.body[:1] for message in found] == [b"x", b"y", b"z"]
        assert all(len(message.stored_body) < 100 for message in found)


def test_blocking_face_contains_them_too() -> None:
    """A failing stamp; what can't be accepted is in the future, or raised where there is none."""
    options = ProducerOptions(stamp=raising)
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        complaints: list[dict[str, Any]] = []
        loop = client._open_thread().loop
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        with client.producer(options) as producer:
            assert producer.send(topic, b"x").result().queue_offset == 0
            assert isinstance(producer.send(topic, b"x", key="a b").exception(), InvalidArgument)
            with pytest.raises(InvalidArgument):
                producer.send_one_way(topic, b"x", key="a b")
            with pytest.raises(MessageTooLarge):
                producer.send_one_way(topic, bytes(MAX_MESSAGE_BYTES + 1))
            producer.send_one_way("absent", b"x")
            producer.send_one_way(topic, b"y", queue_id=7)
            producer.flush()
            counts = producer.statistics()
            assert (counts.one_way_failed, counts.failed, counts.accepted) == (2, 2, 3)
            assert counts.hook_failures == 3
        assert ["hook" in each["message"] for each in complaints] == [True, True]
        assert group.bodies(topic) == [b"x"]


# --- around ---------------------------------------------------------------------------------------


class Spans:
    """A hook that takes down when it was entered and left, with what, and where."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bytes, str]] = []
        self.threads: set[int] = set()

    @contextmanager
    def __call__(self, message: Message) -> Iterator[None]:
        self.threads.add(threading.get_ident())
        token = SPAN.set(message.body.decode())
        self.told.append(("in", message.body, ""))
        try:
            yield
        except BaseException as error:
            self.told.append(("out", message.body, type(error).__name__))
            raise
        else:
            self.told.append(("out", message.body, ""))
        finally:
            SPAN.reset(token)


async def stocked(group: FakeGroup, client: Client, count: int) -> None:
    """The topic `t` with messages 0, 1, …"""
    group.model.create("t", 1)
    async with client.producer() as producer:
        await producer.send_all(NewMessage("t", b"%d" % number) for number in range(count))


@async_test
async def test_around_surrounds_the_work_on_each_message() -> None:
    """Its span is the current one in the loop's body; before the wait for the next one it is left.
    A batch is no message: it has none around it."""
    spans = Spans()
    async with FakeGroup(1) as group, Client.connect(group.bootstrap, options=QUICK) as client:
        await stocked(group, client, 3)
        seen: list[str] = []
        options = ConsumerOptions(around=spans)
        async for message in client.pull_consumer("t", idle_timeout_s=IDLE_S, options=options):
            seen.append(SPAN.get())
            spans.told.append(("work", message.body, ""))
        assert seen == ["0", "1", "2"]
        assert SPAN.get() == "none"
        assert spans.told == [
            (what, b"%d" % number, "") for number in range(3) for what in ("in", "work", "out")
        ]
        spans.told.clear()
        consumer = client.pull_consumer("t", idle_timeout_s=IDLE_S, options=options)
        assert [len(batch) async for batch in consumer.batches()] == [3]
        assert spans.told == []


@pytest.mark.parametrize("way", ["break", "raise", "cancel"])
def test_around_is_left_however_the_loop_is(way: str) -> None:
    """With the error that ended it, where the consumer is a context manager; once."""
    spans = Spans()

    async def work(client: Client) -> None:
        options = ConsumerOptions(around=spans)
        async with client.pull_consumer("t", options=options) as consumer:
            async for _ in consumer:
                if way == "break":
                    break
                if way == "raise":
                    raise OnPurpose
                await asyncio.Event().wait()

    @async_test
    async def check() -> None:
        async with FakeGroup(1) as group, Client.connect(group.bootstrap, options=QUICK) as client:
            await stocked(group, client, 3)
            task = asyncio.create_task(work(client))
            while not spans.told:
                await asyncio.sleep(0.001)
            if way == "cancel":
                task.cancel()
            await asyncio.wait([task])
            if way == "break":
                await task
            else:
                with pytest.raises((OnPurpose, asyncio.CancelledError)):
                    await task
            error = {"break": "", "raise": "OnPurpose", "cancel": "CancelledError"}[way]
            assert spans.told == [("in", b"0", ""), ("out", b"0", error)]

    check()


class Hostile:
    """A context manager that raises on the way in or out, or swallows what it is left with."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __call__(self, message: Message) -> Hostile:
        if self.way == "call":
            raise OnPurpose
        return self

    def __enter__(self) -> None:
        if self.way == "enter":
            raise OnPurpose

    def __exit__(self, *error: object) -> bool:
        if self.way == "exit":
            raise OnPurpose
        return True


async def broken_work(client: Client, options: ConsumerOptions) -> None:
    async with client.pull_consumer("t", options=options) as consumer:
        async for _ in consumer:
            raise ZeroDivisionError


@pytest.mark.parametrize("way", ["call", "enter", "exit", "swallow"])
def test_around_that_fails_ends_nothing(way: str) -> None:
    """Every message is handed over, and an error of the loop's stays: swallowed, it would look like
    work that is done."""

    @async_test
    async def check() -> None:
        options = ConsumerOptions(around=Hostile(way))
        async with FakeGroup(1) as group, Client.connect(group.bootstrap, options=QUICK) as client:
            await stocked(group, client, 3)
            complaints = Complaints()
            found = await read(client, options)
            assert [message.body for message in found] == [b"0", b"1", b"2"]
            assert len(complaints.told) == (0 if way == "swallow" else 2)  # the first, the second
            with pytest.raises(ZeroDivisionError):
                await broken_work(client, options)

    check()


def broken_blocking_work(client: BlockingClient, topic: str, options: ConsumerOptions) -> None:
    with client.pull_consumer(topic, options=options) as consumer:
        for _ in consumer:
            raise ZeroDivisionError


def test_blocking_around_runs_in_the_thread_that_loops() -> None:
    """It is left at the latest with the client, by whoever closes that."""
    spans = Spans()
    options = ConsumerOptions(around=spans)
    with BlockingFakeGroup() as group:
        with BlockingClient.connect(group.addresses) as client:
            topic = group.topic()
            with client.producer() as producer:
                producer.send_all(NewMessage(topic, b"%d" % number) for number in range(3))
            seen = [
                SPAN.get()
                for _ in client.pull_consumer(topic, idle_timeout_s=IDLE_S, options=options)
            ]
            assert seen == ["0", "1", "2"]
            assert spans.threads == {threading.get_ident()}
            assert spans.told[-1] == ("out", b"2", "")
            with pytest.raises(ZeroDivisionError):
                broken_blocking_work(client, topic, options)
            assert spans.told[-1] == ("out", b"0", "ZeroDivisionError")
            left = client.pull_consumer(topic, options=options)
            next(left)
        assert spans.told[-2:] == [("in", b"0", ""), ("out", b"0", "")]
        assert SPAN.get() == "none"

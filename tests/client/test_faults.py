"""Whatever breaks inside of the client: nothing hangs, nothing is dropped without a word.

One exception that nobody expects, thrown at each await and in each callback and rule in turn,
while a producer stores two topics' messages or a consumer reads them. Afterwards every message
has an answer, no answer lies, `flush` and `close` return, and the client still works.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from dledger.client import (
    ALL,
    Client,
    ClientError,
    ClientOptions,
    ConsumerOptions,
    Outcome,
    Producer,
    ProducerOptions,
    SendResult,
    SendsFailed,
    fetching,
)
from dledger.client import consumer as consuming
from dledger.client import dispatch as dispatching
from dledger.client import producer as producing
from dledger.client.broker_group import BrokerGroup
from dledger.client.connection import NodeLink
from dledger.client.dispatch import Dispatcher
from dledger.client.fetching import Fetching
from dledger.client.lane import Lane
from dledger.client.leader_view import LeaderBoard
from dledger.client.routing import Route
from dledger.testing.fake_nodes import FakeGroup
from tests.client.breaking import Broken, Once, broken_await, broken_function

QUICK = ClientOptions(presume_after_s=0.02, deadline_s=5.0)
PRODUCER = ProducerOptions(
    delivery_timeout_ms=1_500, close_timeout_ms=4_000, linger_ms=0, max_buffered_messages=40
)
CONSUMER = ConsumerOptions(hold_ms=50, deadline_s=2.0, pull_bytes=400)
LIMIT_S = 20.0
MOST_AWAITS = 400  # far above what a run has

# What the loop, a link, the group or a lane calls: owner and name.
PRODUCING: list[tuple[Any, str]] = [
    (Producer, "_find_lanes"),
    (Producer, "_release"),
    (Producer, "_on_sealed"),
    (Producer, "_has_room"),
    (Producer, "_wake_room_waiters"),
    (Producer, "_on_place_gone"),
    (Route, "choose"),
    (Route, "resolve"),
    (Route, "turn_sticky"),
    (producing, "for_queue"),
    (Dispatcher, "_seal"),
    (Dispatcher, "_collect"),
    (Dispatcher, "_take"),
    (Dispatcher, "_deliver"),
    (Dispatcher, "_request"),
    (Dispatcher, "_on_results"),
    (Dispatcher, "_on_stored"),
    (Dispatcher, "_settle"),
    (Dispatcher, "_hold_off"),
    (Lane, "take"),
    (Lane, "settle"),
    (Lane, "on_error"),
    (dispatching, "from_wire"),
    (BrokerGroup, "on_refused"),
    (BrokerGroup, "_refresh"),
    (BrokerGroup, "_on_view"),
    (BrokerGroup, "_on_lost"),
    (LeaderBoard, "on_view"),
    (NodeLink, "call"),
    (NodeLink, "_listen"),
]
CONSUMING: list[tuple[Any, str]] = [
    (consuming.PullConsumer, "_begin"),
    (Fetching, "_pull"),
    (Fetching, "_hold_ms"),
    (Fetching, "_is_idle"),
    (consuming.PullConsumer, "_chosen_queues"),
    (consuming, "decode_messages"),
    (fetching, "Chunk"),
    (fetching, "QueueReader"),
    (Client, "describe_topic"),
    (Client, "fetch_offsets"),
    (Client, "commit_offsets"),
    (BrokerGroup, "call"),
    (NodeLink, "call"),
]


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Runs `work` on a loop of its own; only what was thrown may reach the exception handler."""
    told: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with asyncio.timeout(LIMIT_S):
            await work()
        gc.collect()
        left = [t for t in asyncio.all_tasks() if "dledger" in repr(t.get_coro())]
        assert not [t for t in left if t is not asyncio.current_task()]

    asyncio.run(watched())
    for context in told:
        assert "never retrieved" not in context["message"], context
        assert isinstance(context.get("exception"), Broken), context


async def produce(breaking: AbstractContextManager[None]) -> None:
    """Two bursts to two topics, one refused batch in between, a change of leader; then the end."""
    async with FakeGroup() as group:
        group.model.create("t", 3)
        group.model.create("u", 1)
        answers: dict[bytes, asyncio.Future[SendResult]] = {}
        with breaking:
            client = await Client.connect(group.bootstrap, options=QUICK).__aenter__()
            producer = client.producer(PRODUCER)
            for burst in range(2):
                await send_burst(producer, answers, burst)
                if burst == 0:
                    group.elect(group.nodes[1])
            await ended(producer.flush)
            await ended(producer.close)
            assert all(answer.done() for answer in answers.values())
            await ended(client.close)
        check_answers(group, answers)
        numbers = producer.statistics()
        assert numbers.accepted == len(answers) == numbers.stored + numbers.failed + numbers.unknown


async def send_burst(
    producer: Producer, answers: dict[bytes, asyncio.Future[SendResult]], burst: int
) -> None:
    """Keyed, unkeyed, to a queue that there isn't, to a topic that there isn't."""
    for number in range(12):
        for topic, options in (("t", {"key": f"k{number}"}), ("u", {}), ("t", {"queue_id": 9})):
            body = b"%d/%d/%s/%d" % (burst, number, topic.encode(), len(answers))
            try:
                answers[body] = producer.send(topic, body, **options)
            except (ClientError, Broken):
                continue  # refused: nothing was promised
    answers[b"absent %d" % burst] = producer.send("absent", b"absent")
    await ended(producer.room)
    waiting = list(answers.values())
    await asyncio.wait(waiting, timeout=PRODUCER.delivery_timeout_ms / 1000 + 1)
    assert all(answer.done() for answer in waiting), "pending past the delivery timeout"


async def ended(act: Callable[[], Awaitable[object]]) -> None:
    """Does it in a task of its own; what was thrown may come out, and then a second try works."""
    for _ in range(2):
        try:
            await asyncio.ensure_future(act())
        except SendsFailed as told:
            assert told.count  # noqa: PT017 - it tells of something
        except Broken:
            continue
        return
    raise AssertionError("it broke twice")


def check_answers(group: FakeGroup, answers: dict[bytes, asyncio.Future[SendResult]]) -> None:
    """None lies: what is acknowledged is stored once, what *was not stored* is not."""
    stored = [
        body
        for topic, queues in group.model.topics.items()
        for queue_id in range(len(queues))
        for body in group.model.bodies(topic, queue_id)
    ]
    assert len(stored) == len(set(stored)), "stored twice"
    for body, answer in answers.items():
        error = answer.exception()
        if error is None:
            assert body in stored
        else:
            assert isinstance(error, ClientError), error
            if error.outcome is Outcome.DID_NOT_HAPPEN:
                assert body not in stored, error


async def consume(breaking: AbstractContextManager[None]) -> None:
    """Reads three queues to their end, with a commit in between; a second consumer goes on."""
    async with FakeGroup() as group:
        group.model.create("t", 3)
        async with (
            Client.connect(group.bootstrap, options=QUICK) as filling,
            filling.producer() as producer,
        ):
            for number in range(60):
                producer.send("t", b"%d" % number, queue_id=number % 3)
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        with breaking:
            client = await Client.connect(group.bootstrap, options=QUICK).__aenter__()
            for _ in range(3):
                finished: list[bool] = []
                await ended(lambda: _read(client, seen, finished))  # noqa: B023 - awaited here
                if finished:
                    break
            await ended(client.close)
        for offsets in seen.values():
            assert offsets == list(range(20)), "skipped or out of order"


async def _read(client: Client, seen: dict[int, list[int]], finished: list[bool]) -> None:
    """Reads from what is committed. A ClientError ends the reading loudly, which is no loss."""
    consumer = client.pull_consumer(
        "t", group="g", queues=ALL, idle_timeout_s=0.1, options=CONSUMER
    )
    try:
        async for message in consumer:
            offsets = seen[message.queue_id]
            if message.queue_offset >= len(offsets):  # at least once: an earlier try may have it
                offsets.append(message.queue_offset)
            if len(offsets) == 10:
                await consumer.commit()
        finished.append(True)
    except ClientError:
        pass
    finally:
        await ended(consumer.close)


@contextmanager
def nothing() -> Iterator[None]:
    yield


def at_each_await(scenario: Callable[[AbstractContextManager[None]], Awaitable[None]]) -> int:
    """Runs it once for each await that it has; how many there were."""
    for at in range(1, MOST_AWAITS):
        once = Once(at)

        async def broken(once: Once = once) -> None:
            await scenario(broken_await(once))

        try:
            run(broken)
        except BaseException as error:
            error.add_note(f"thrown at await {at}: {once.where}")
            raise
        if not once.was_reached:
            return at - 1
    raise AssertionError("there is no end of awaits")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [produce, consume])
def test_exception_at_any_await_hangs_nobody_and_drops_nothing(
    scenario: Callable[[AbstractContextManager[None]], Awaitable[None]],
) -> None:
    """Thrown into each task of the client's, each time that it goes on."""
    assert at_each_await(scenario) > 10


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize(
    ("owner", "name"), PRODUCING, ids=[f"{o.__name__}.{name}" for o, name in PRODUCING]
)
def test_exception_in_any_function_of_the_producer(owner: Any, name: str, at: int) -> None:
    """At the first call, or a later one."""

    async def broken() -> None:
        await produce(broken_function(owner, name, Once(at)))

    run(broken)


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize(
    ("owner", "name"), CONSUMING, ids=[f"{o.__name__}.{name}" for o, name in CONSUMING]
)
def test_exception_in_any_function_of_the_consumer(owner: Any, name: str, at: int) -> None:
    """At the first call, or a later one."""

    async def broken() -> None:
        await consume(broken_function(owner, name, Once(at)))

    run(broken)


def test_node_is_heard_again_after_a_fault() -> None:
    """The watch goes on, and comes back to the node when it is there again."""

    async def failover() -> None:
        async with FakeGroup() as group:
            group.model.create("t", 1)
            first, second, _ = group.nodes
            with broken_function(BrokerGroup, "_on_lost", Once(1)):
                async with (
                    Client.connect(group.bootstrap, options=QUICK) as client,
                    client.producer() as producer,
                ):
                    await producer.send("t", b"1")
                    await first.kill()
                    group.elect(second)
                    await producer.send("t", b"2")
                    watches = first.calls["WatchLeader"]
                    await first.start()
                    await first.called("WatchLeader", watches + 1)
            assert group.model.bodies("t", 0) == [b"1", b"2"]

    run(failover)


def test_scenarios_hold_where_nothing_breaks() -> None:
    """Or the others would show nothing."""
    run(lambda: produce(nothing()))
    run(lambda: consume(nothing()))

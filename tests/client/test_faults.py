"""Whatever breaks inside of the client: nothing hangs, nothing is dropped without a word.

One exception that nobody expects, thrown at each await and in each callback and rule in turn,
while a producer stores two topics' messages or a consumer reads them. Afterwards every message
has an answer, no answer lies, `flush` and `close` return, and the client still works.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
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
    holding,
    pulled,
    topic_reading,
)
from dledger.client import dispatch as dispatching
from dledger.client.broker_group import BrokerGroup
from dledger.client.connection import NodeLink
from dledger.client.dispatch import Dispatcher
from dledger.client.fetching import Fetching
from dledger.client.holding import Holding
from dledger.client.lane import Lane
from dledger.client.leader_view import LeaderBoard
from dledger.client.progress import Progress
from dledger.client.routing import Route
from dledger.testing.fake_nodes import FakeGroup, FakeNode, Intercept
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.breaking import Broken, Once, broken_await, broken_function
from tests.client.loops import only_new_garbage
from tests.grpc_noise import is_grpcs_own

QUICK = ClientOptions(presume_after_s=0.02, deadline_s=5.0)
PRODUCER = ProducerOptions(
    delivery_timeout_ms=1_500, close_timeout_ms=4_000, linger_ms=0, max_buffered_messages=40
)
CONSUMER = ConsumerOptions(hold_ms=50, deadline_s=2.0, pull_bytes=400)
LIMIT_S = 20.0
MESSAGES = 60
FEW_MESSAGES = 36  # where each await has a run of its own
MOST_AWAITS = 400  # far above what a run has

Scenario = Callable[[AbstractContextManager[None]], Awaitable[None]]

# What the loop, a link, the group or a lane calls: owner and name.
PRODUCING: list[tuple[Any, str]] = [
    (Holding, "_find_lanes"),
    (Holding, "_release"),
    (Producer, "_on_sealed"),
    (Producer, "_has_room"),
    (Producer, "_wake_room_waiters"),
    (Route, "choose"),
    (Route, "turn_sticky"),
    (holding, "for_queue"),
    (Dispatcher, "_seal"),
    (Dispatcher, "_collect"),
    (Dispatcher, "_take"),
    (Dispatcher, "_on_stored"),
    (Lane, "take"),
    (Lane, "settle"),
    (BrokerGroup, "on_refused"),
    (BrokerGroup, "_refresh"),
    (BrokerGroup, "_on_view"),
    (LeaderBoard, "on_view"),
    (NodeLink, "call"),
]
# The same, where only trouble calls them, or five times.
TROUBLED: list[tuple[Any, str]] = [
    (Producer, "_on_place_gone"),
    (Route, "resolve"),
    (Dispatcher, "_deliver"),
    (Dispatcher, "_request"),
    (Dispatcher, "_on_results"),
    (Dispatcher, "_settle"),
    (Dispatcher, "_hold_off"),
    (Lane, "on_error"),
    (dispatching, "from_wire"),
    (BrokerGroup, "_on_lost"),
    (NodeLink, "_listen"),
]
CONSUMING: list[tuple[Any, str]] = [
    (topic_reading.TopicReading, "_begin"),
    (Fetching, "_pull"),
    (Fetching, "_hold_ms"),
    (Fetching, "_is_idle"),
    (Progress, "hand_over"),
    (pulled, "decode_messages"),
    (fetching, "Chunk"),
    (BrokerGroup, "call"),
    (NodeLink, "call"),
]
# The same, where each consumer calls them once.
BEGINNING: list[tuple[Any, str]] = [
    (topic_reading.TopicReading, "_chosen_queues"),
    (fetching, "QueueReader"),
    (Client, "describe_topic"),
    (Client, "fetch_offsets"),
    (Client, "commit_offsets"),
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

    with only_new_garbage():
        asyncio.run(watched())
    for context in told:
        if is_grpcs_own(context["message"], context.get("exception")):
            continue
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


async def produce_in_trouble(breaking: AbstractContextManager[None]) -> None:
    """In each of six rounds a topic is deleted and made anew, a Send is refused and another's
    answer lost, and a node dies and comes back."""
    async with FakeGroup() as group:
        answers: dict[bytes, asyncio.Future[SendResult]] = {}
        buried: list[bytes] = []
        with breaking:
            client = await Client.connect(group.bootstrap, options=QUICK).__aenter__()
            producer = client.producer(PRODUCER)
            for number in range(6):
                group.model.create("gone", 1)
                group.model.create(f"t{number}", 2)
                await send_round(producer, answers, number, "a")
                buried += group.model.bodies("gone", 0)
                group.model.delete("gone")
                group.before.append(spoiling(epb.BUSY))
                await send_round(producer, answers, number, "b")
                group.after.append(spoiling(epb.LEADERSHIP_LOST))
                await lose_and_find(group.nodes[2])
                await send_round(producer, answers, number, "c")
            await ended(producer.close)
            await ended(client.close)
        check_answers(group, answers, buried)


async def send_round(
    producer: Producer, answers: dict[bytes, asyncio.Future[SendResult]], number: int, part: str
) -> None:
    """To the topic that comes and goes, and to the round's own; until all have their answers."""
    for topic in ("gone", f"t{number}"):
        body = f"{topic}/{number}/{part}".encode()
        try:
            answers[body] = producer.send(topic, body)
        except (ClientError, Broken):
            continue  # refused: nothing was promised
    await asyncio.wait(answers.values(), timeout=PRODUCER.delivery_timeout_ms / 1000 + 1)
    assert all(answer.done() for answer in answers.values()), "pending past the delivery timeout"


def spoiling(code: epb.ErrorCode) -> Intercept:
    """Refuses the next Send."""
    left = [1]

    async def spoil(method: str, node: object, request: object) -> None:
        if method == "Send" and left[0]:
            left[0] -= 1
            raise Refusal(wire_error(code))

    return spoil


async def lose_and_find(node: FakeNode) -> None:
    """It dies, and is back when the client listens to it again (or doesn't, as that broke)."""
    await node.kill()
    watches = node.calls["WatchLeader"]
    await node.start()
    with suppress(TimeoutError):
        async with asyncio.timeout(2.0):
            await node.called("WatchLeader", watches + 1)


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


def check_answers(
    group: FakeGroup,
    answers: dict[bytes, asyncio.Future[SendResult]],
    buried: Sequence[bytes] = (),
) -> None:
    """None lies: what is acknowledged is stored once, what *was not stored* is not. `buried` was
    stored, in topics that were deleted since."""
    stored = list(buried) + [
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
    await read_all(breaking, most=MESSAGES, tries=3)


async def consume_few(breaking: AbstractContextManager[None]) -> None:
    """The same of fewer messages."""
    await read_all(breaking, most=MESSAGES, tries=3, messages=FEW_MESSAGES)


async def consume_by_turns(breaking: AbstractContextManager[None]) -> None:
    """The same by many consumers: each reads a few messages, commits them, and is closed."""
    await read_all(breaking, most=13, tries=12)


async def read_all(
    breaking: AbstractContextManager[None], *, most: int, tries: int, messages: int = MESSAGES
) -> None:
    async with FakeGroup() as group:
        group.model.create("t", 3)
        async with (
            Client.connect(group.bootstrap, options=QUICK) as filling,
            filling.producer() as producer,
        ):
            for number in range(messages):
                producer.send("t", b"%d" % number, queue_id=number % 3)
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        with breaking:
            client = await Client.connect(group.bootstrap, options=QUICK).__aenter__()
            for _ in range(tries):
                finished: list[bool] = []
                await ended(lambda: _read(client, seen, finished, most))  # noqa: B023 - awaited here
                if finished:
                    break
            await ended(client.close)
        for offsets in seen.values():
            assert offsets == list(range(messages // 3)), "skipped or out of order"


async def _read(
    client: Client, seen: dict[int, list[int]], finished: list[bool], most: int
) -> None:
    """Reads at most so many messages, from what is committed on. A ClientError ends it loudly,
    which is no loss."""
    consumer = client.pull_consumer(
        "t", group="g", queues=ALL, idle_timeout_s=0.1, options=CONSUMER
    )
    try:
        taken = 0
        async for message in consumer:
            taken += 1
            offsets = seen[message.queue_id]
            if message.queue_offset >= len(offsets):  # at least once: an earlier try may have it
                offsets.append(message.queue_offset)
            if len(offsets) == 10 or taken == most:
                await consumer.commit(message)
            if taken == most:
                break
        else:
            finished.append(True)
    except ClientError:
        pass
    finally:
        await ended(consumer.close)


@contextmanager
def nothing() -> Iterator[None]:
    yield


def at_each_await(scenario: Scenario) -> int:
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
@pytest.mark.parametrize("scenario", [produce, consume_few])
def test_exception_at_any_await_hangs_nobody_and_drops_nothing(scenario: Scenario) -> None:
    """Thrown into each task of the client's, each time that it goes on."""
    assert at_each_await(scenario) > 10


def named(functions: list[tuple[Any, str]], scenario: Scenario) -> list[Any]:
    """Parameters of a test: each function with the scenario that reaches it."""
    return [
        pytest.param(owner, name, scenario, id=f"{owner.__name__}.{name}")
        for owner, name in functions
    ]


@pytest.mark.parametrize("at", [1, pytest.param(2, marks=pytest.mark.long), 5])
@pytest.mark.parametrize(
    ("owner", "name", "scenario"),
    [
        *named(PRODUCING, produce),
        *named(TROUBLED, produce_in_trouble),
        *named(CONSUMING, consume),
        *named(BEGINNING, consume_by_turns),
    ],
)
def test_exception_in_any_function(owner: Any, name: str, scenario: Scenario, at: int) -> None:
    """At the first call, or a later one; each is reached."""
    fault = Once(at)
    run(partial(scenario, broken_function(owner, name, fault)))
    assert fault.was_reached, f"called {fault.chances} times"


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
    for scenario in (produce, produce_in_trouble, consume, consume_by_turns):
        run(partial(scenario, nothing()))

"""The blocking face: the same promises, kept across threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from dledger.client import (
    ALL,
    Client,
    ClientClosed,
    ClientOptions,
    ConsumerInUse,
    ConsumerOptions,
    Forked,
    InvalidArgument,
    MessageTooLarge,
    NewMessage,
    Outcome,
    Producer,
    ProducerClosed,
    ProducerOptions,
    PullConsumer,
    SendsFailed,
    StartFrom,
    TopicNotFound,
)
from dledger.client.blocking import BlockingClient, BlockingConsumer, BlockingProducer
from dledger.testing.fake_nodes import FakeGroup

Answer = TypeVar("Answer")


class GroupThread:
    """A fake group on a loop of its own, as far away as another process."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.group = self.run(self._make())

    async def _make(self) -> FakeGroup:
        return await FakeGroup().__aenter__()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self.run(self.group.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()


@pytest.fixture
def nodes() -> Iterator[GroupThread]:
    thread = GroupThread()
    yield thread
    thread.close()


@pytest.fixture
def client(nodes: GroupThread) -> Iterator[BlockingClient]:
    before = set(threading.enumerate())
    options = ClientOptions(presume_after_s=0.02)
    with BlockingClient.connect(nodes.group.bootstrap, options=options) as client:
        client.create_topic("t", queues=2)
        yield client
    assert not [t for t in set(threading.enumerate()) - before if t.name == "dledger-client"]


def test_verbs_answer_as_the_asynchronous_ones(client: BlockingClient) -> None:
    """One after the other, values and errors."""
    with client.producer() as producer:
        stored = producer.send("t", b"x", key="k").result()
    queue_id = stored.queue_id
    assert client.get_message(message_id=stored.message_id).body == b"x"
    assert client.pull("t", queue_id, 0).messages[0].keys == "k"
    assert client.queue_offsets("t", queue_id).max_offset == 1
    assert client.offset_by_time("t", queue_id, 0) == 0
    assert client.commit_offsets("g", "t", {queue_id: 1}) == {queue_id: 1}
    assert client.fetch_offsets("g", "t") == {queue_id: 1}
    assert client.describe_topic("t").topic == client.topics()[0]
    assert client.leader().node_id == "n1"
    assert client.transfer_leadership("n2").node_id == "n2"
    assert [state.role for state in client.status()] == ["follower", "leader", "follower"]
    client.delete_topic("t")
    with pytest.raises(TopicNotFound):
        client.describe_topic("t")


def test_sends_of_a_thread_keep_their_order(client: BlockingClient, nodes: GroupThread) -> None:
    """Across the bounds of the buffer, which `send` waits at instead of failing."""
    with client.producer(ProducerOptions(max_buffered_messages=10)) as producer:
        futures = [producer.send("t", b"%d" % n, queue_id=0) for n in range(500)]
        producer.flush()
        assert all(future.done() for future in futures)
        assert producer.statistics().stored == 500
    assert nodes.group.model.bodies("t", 0) == [b"%d" % n for n in range(500)]


def test_many_threads_share_a_producer(client: BlockingClient, nodes: GroupThread) -> None:
    """Each with its own order."""
    with client.producer() as producer, ThreadPoolExecutor(4) as pool:

        def work(name: int) -> list[int]:
            sent = [producer.send("t", b"%d/%d" % (name, n), queue_id=1) for n in range(100)]
            return [future.result().queue_offset for future in sent]

        for offsets in pool.map(work, range(4)):
            assert offsets == sorted(offsets)
    assert len(nodes.group.model.bodies("t", 1)) == 400


def test_what_send_cannot_accept_is_told_by_the_future(client: BlockingClient) -> None:
    """The caller's thread knows nothing of topics and sizes."""
    with client.producer() as producer:
        assert isinstance(producer.send("a b", b"x").exception(), InvalidArgument)
        assert isinstance(producer.send("t", bytes(5 << 20)).exception(), MessageTooLarge)
        assert isinstance(producer.send("t", 7).exception(), InvalidArgument)  # type: ignore[arg-type]
        assert producer.send("t", b"fine").result().queue_offset == 0


def test_cancelled_future_harms_nobody(client: BlockingClient) -> None:
    """Before or after the message has crossed."""
    with client.producer() as producer:
        futures = [producer.send("t", b"x", queue_id=0) for _ in range(20)]
        for future in futures[::2]:
            future.cancel()
        producer.flush()
        assert all(future.result().queue_id == 0 for future in futures[1::2])


def test_consumer_iterates_and_commits(client: BlockingClient) -> None:
    """A commit covers what the loop has seen, not what was fetched with it."""
    with client.producer() as producer:
        for number in range(5):
            producer.send("t", b"%d" % number, queue_id=0)
    with client.pull_consumer("t", group="g", queues=[0], idle_timeout_s=0) as consumer:
        first, second, third = (next(consumer) for _ in range(3))
        assert [first.body, second.body, third.body] == [b"0", b"1", b"2"]
        consumer.commit()
        assert client.fetch_offsets("g", "t") == {0: 2}, "the third may not be done"
        consumer.commit(third)
    assert client.fetch_offsets("g", "t") == {0: 3}
    rest = client.pull_consumer("t", group="g", queues=ALL, idle_timeout_s=0)
    assert [message.body for message in rest] == [b"3", b"4"]


def test_closed_faces_say_so(nodes: GroupThread) -> None:
    """Client, producer and consumer, before and after."""
    client = BlockingClient.connect(nodes.group.bootstrap)
    with pytest.raises(ClientClosed):
        client.topics()
    with client:
        client.create_topic("t")
        producer = client.producer()
        future = producer.send("t", b"x")
        consumer = client.pull_consumer("t")
    assert future.result().queue_offset == 0, "leaving the client flushes its producers"
    with pytest.raises(ProducerClosed):
        producer.send("t", b"x")
    with pytest.raises(ClientClosed):
        next(consumer)
    producer.close()
    client.close()


def test_interrupt_does_not_wait_for_a_silent_group(nodes: GroupThread) -> None:
    """Ctrl-C: what is not acknowledged fails, and says what is known of it."""
    futures: list[Future[Any]] = []

    def script() -> None:
        with BlockingClient.connect(nodes.group.bootstrap) as client:
            client.create_topic("t")
            producer = client.producer(ProducerOptions(max_buffered_messages=2))
            producer.send("t", b"warm up").result()
            nodes.run(freeze(nodes.group))
            futures.extend(producer.send("t", b"x") for _ in range(5))
            nodes.run(nodes.group.nodes[0].called("Send", 2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        script()
    errors = [future.exception(0) for future in futures]
    assert all(isinstance(error, ProducerClosed) for error in errors)
    outcomes = [error.outcome for error in errors if isinstance(error, ProducerClosed)]
    assert outcomes[0] is Outcome.MAY_HAVE_HAPPENED
    assert outcomes[-1] is Outcome.DID_NOT_HAPPEN


async def freeze(group: FakeGroup) -> None:
    """The leader's process is stopped."""
    group.nodes[0].running.clear()


def test_blocking_call_from_a_callback_is_refused(client: BlockingClient) -> None:
    """It would wait for itself for ever."""
    seen: list[BaseException] = []
    called = threading.Event()

    def callback(_: Future[Any]) -> None:
        try:
            client.topics()
        except InvalidArgument as error:
            seen.append(error)
        called.set()

    with client.producer() as producer:
        producer.send("t", b"x").add_done_callback(callback)
        assert called.wait(30)
    assert len(seen) == 1


# --- failures, loops, processes -------------------------------------------------------------------


def test_failed_sends_are_told_by_flush_and_close(client: BlockingClient) -> None:
    """Unless somebody has asked their futures."""
    producer = client.producer()
    assert isinstance(producer.send("absent", b"x").exception(), TopicNotFound)
    producer.flush()
    producer.send("absent", b"x")
    with pytest.raises(SendsFailed, match="1 message failed"):
        producer.flush()
    producer.flush()
    producer.send("absent", b"x")
    with pytest.raises(SendsFailed, match="'absent' does not exist"):
        producer.close()


def test_closing_many_producers_takes_one_timeout(
    client: BlockingClient, nodes: GroupThread
) -> None:
    """Their time-outs run side by side."""
    with BlockingClient.connect(nodes.group.bootstrap) as closing:
        producers = [closing.producer(ProducerOptions(close_timeout_ms=300)) for _ in range(8)]
        for producer in producers:
            producer.send("t", b"warm up").result()
        nodes.run(freeze(nodes.group))
        for producer in producers:
            producer.send("t", b"x")
        begun = time.monotonic()
        with pytest.raises(SendsFailed, match="8 messages"):
            closing.close()
    assert time.monotonic() - begun < 1.2
    nodes.run(thaw(nodes.group))


async def thaw(group: FakeGroup) -> None:
    """The leader's process goes on."""
    group.nodes[0].running.set()


def test_bulk_is_counted_and_its_first_failure_told(
    client: BlockingClient, nodes: GroupThread
) -> None:
    """As on the asynchronous face."""
    with client.producer(ProducerOptions(max_buffered_messages=10)) as producer:
        messages = [NewMessage("t", b"%d" % n, queue_id=0) for n in range(300)]
        assert producer.send_all(messages) == 300
        with pytest.raises(SendsFailed, match="'absent'"):
            producer.send_all([NewMessage("absent", b"x"), *messages])
    assert nodes.group.model.bodies("t", 0)[:300] == [b"%d" % n for n in range(300)]


def test_consumer_has_all_the_verbs(client: BlockingClient) -> None:
    """Batches, places, pauses, one loop at a time."""
    with client.producer() as producer:
        producer.send_all(NewMessage("t", b"%d" % n, queue_id=n % 2) for n in range(20))
    with client.pull_consumer("t", group="g", queues=ALL, idle_timeout_s=0) as consumer:
        first = next(consumer)
        seen = [(first.queue_id, first.queue_offset)]
        for batch in consumer.batches():
            seen += [(message.queue_id, message.queue_offset) for message in batch]
            with pytest.raises(ConsumerInUse):
                next(consumer)
        assert sorted(seen) == [(q, o) for q in (0, 1) for o in range(10)]
        assert consumer.positions == {0: 10, 1: 10}
        consumer.commit()
        assert client.fetch_offsets("g", "t") == {0: 10, 1: 10}
        consumer.seek(0, 8)
        assert [message.queue_offset for message in consumer] == [8, 9]
        consumer.seek(0, 9)
        consumer.seek(1, StartFrom.FIRST)
        consumer.pause(1)
        assert next(consumer).queue_offset == 9
        consumer.resume(1)
        assert next(consumer).queue_offset == 0
        consumer.stop()
        assert list(consumer) == []


def test_interrupted_wait_loses_no_message(client: BlockingClient, nodes: GroupThread) -> None:
    """What was fetched for a call that Ctrl-C ended is given by the next one."""
    with client.producer() as producer:
        producer.send_all(NewMessage("t", b"%d" % n, queue_id=0) for n in range(40))
    consumer = client.pull_consumer("t", queues=[0], options=ConsumerOptions(pull_bytes=400))
    call, interrupts = consumer._thread.call, [0]

    def interrupted(work: Coroutine[Any, Any, Any]) -> Any:
        done = call(work)
        interrupts[0] += 1
        if interrupts[0] % 2:
            raise KeyboardInterrupt  # as it would come: after the loop's thread has acted
        return done

    consumer._thread.call = interrupted  # type: ignore[method-assign]
    seen: list[int] = []
    try:
        while len(seen) < 40:
            with contextlib.suppress(KeyboardInterrupt):
                seen.append(next(consumer).queue_offset)
    finally:
        consumer._thread.call = call  # type: ignore[method-assign]
    assert seen == list(range(40))


def test_forked_child_is_refused_by_name(client: BlockingClient) -> None:
    """The loop's thread stayed behind: nothing would ever be answered there."""
    consumer, push = client.pull_consumer("t"), client.push_consumer("pushed")
    simple = client.simple_consumer("t", "simple")
    with client.producer() as producer:
        producer._thread._pid += 1  # as in a forked child
        for act in (client.topics, consumer.__next__, push.stop, push.run, simple.receive):
            with pytest.raises(Forked):
                act()
        with pytest.raises(Forked):
            producer.send("t", b"x")
        for each in (consumer, simple, push):
            each.close()  # as producers: who leaves a block there ends as it wants to
        push.abort()
        producer.close()
        client.close()
        producer._thread._pid -= 1
        producer.send("t", b"after").result()


def test_every_verb_has_a_deadline_as_on_the_asynchronous_face() -> None:
    """The two faces have the same names and arguments."""
    for asynchronous, blocking in ((Client, BlockingClient), (PullConsumer, BlockingConsumer)):
        for name in (name for name in vars(asynchronous) if not name.startswith("_")):
            verb = getattr(asynchronous, name)
            if callable(verb) and name != "connect":
                mirrored = inspect.signature(getattr(blocking, name)).parameters
                assert list(inspect.signature(verb).parameters) == list(mirrored), name
    assert {name for name in vars(Producer) if not name.startswith("_")} <= set(
        vars(BlockingProducer)
    )

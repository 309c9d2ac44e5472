"""The blocking face: the same promises, kept across threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from dledger.client import (
    ClientClosed,
    ClientOptions,
    InvalidArgument,
    MessageTooLarge,
    Outcome,
    ProducerClosed,
    ProducerOptions,
    StartFrom,
    TopicNotFound,
)
from dledger.client.blocking import BlockingClient
from tests.client.fake_group import FakeGroup

Answer = TypeVar("Answer")


class GroupThread:
    """A fake group on a loop of its own, as far away as another process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
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
        self._loop.close()


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
    with client.consumer("t", group="g", queues=[0], idle_timeout_s=0) as consumer:
        assert [next(consumer).body for _ in range(3)] == [b"0", b"1", b"2"]
        consumer.commit()
    assert client.fetch_offsets("g", "t") == {0: 3}
    rest = client.consumer("t", group="g", start=StartFrom.COMMITTED, idle_timeout_s=0)
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
        consumer = client.consumer("t")
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

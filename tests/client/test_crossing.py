"""Messages on their way from a sender's thread to the loop's: what was sent is what is stored, and
whoever waits for one of them is told."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from dledger.client import (
    Client,
    DeadlineExceeded,
    InvalidArgument,
    NewMessage,
    Outcome,
    Producer,
    ProducerOptions,
    SendResult,
    SendsFailed,
)
from dledger.client.blocking import BlockingClient, BlockingProducer
from dledger.client.crossing import Crossing, is_taken_back
from dledger.testing import BlockingFakeGroup
from tests.client.loops import async_test
from tests.client.test_blocking_ends import PATIENCE_S, Pool
from tests.grpc_noise import without_grpcs_own


@pytest.fixture(scope="module")
def group() -> Iterator[BlockingFakeGroup]:
    with BlockingFakeGroup() as group:
        yield group


@contextmanager
def busy_loop(client: BlockingClient) -> Iterator[None]:
    """The loop's thread comes to nothing that is sent meanwhile."""
    ready = threading.Event()
    client._open_thread().post(lambda: ready.wait(PATIENCE_S))
    try:
        yield
    finally:
        ready.set()


# --- what is sent ---------------------------------------------------------------------------------

Labelled = tuple[bytes, Mapping[str, str]]
WAYS = ("send", "send_one_way", "send_all")
SENT: list[Labelled] = [(b"message-%02d" % at, {"number": str(at)}) for at in range(50)]


def reused() -> Iterator[tuple[Any, dict[str, str]]]:
    """What `SENT` has, in one buffer and one dict, which are used for something else at the end."""
    buffer, properties = bytearray(10), {"number": ""}
    for at, (body, labels) in enumerate(SENT):
        buffer[:] = body
        properties.update(labels)
        yield (memoryview(buffer) if at % 2 else buffer), properties
    buffer[:] = b"other-data"
    properties["number"] = "another"


def fire(producer: Producer | BlockingProducer, way: str, topic: str) -> None:
    for body, properties in reused():
        send = producer.send_one_way if way == "send_one_way" else producer.send
        send(topic, body, properties=properties, queue_id=0)


def bulk(topic: str) -> Iterator[NewMessage]:
    return (NewMessage(topic, b, properties=p, queue_id=0) for b, p in reused())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_what_threads_send_is_what_is_stored(
    group: BlockingFakeGroup, way: str, compression: Any
) -> None:
    """Whatever a sender's buffer and dict hold when the loop comes to it."""
    topic, options = group.topic(), ProducerOptions(compression=compression)
    with BlockingClient.connect(group.addresses) as client, client.producer(options) as producer:
        if way == "send_all":
            assert producer.send_all(bulk(topic)) == len(SENT)
        else:
            with busy_loop(client):
                fire(producer, way, topic)
            producer.flush()
        read = client.pull_consumer(topic, idle_timeout_s=0.05)
        assert [(m.body, {"number": m.properties["number"]}) for m in read] == SENT


@pytest.mark.parametrize("way", WAYS)
def test_what_is_sent_on_a_loop_is_what_is_stored(group: BlockingFakeGroup, way: str) -> None:
    """Also while the topic is still looked for."""
    topic = group.topic()

    @async_test
    async def sent() -> None:
        async with Client.connect(group.addresses) as client:
            async with client.producer() as producer:
                if way == "send_all":
                    assert await producer.send_all(bulk(topic)) == len(SENT)
                else:
                    fire(producer, way, topic)
            read = client.pull_consumer(topic, idle_timeout_s=0.05)
            assert [(m.body, {"number": m.properties["number"]}) async for m in read] == SENT

    sent()


class Broken(dict[str, str]):
    """A mapping that can't be read."""

    def items(self) -> Any:
        raise RuntimeError("changed size during iteration")


def test_what_cannot_be_copied_fails_its_message_alone(group: BlockingFakeGroup) -> None:
    """As whatever else `send` can't accept; one way there is no future to tell."""
    gone = memoryview(b"gone")
    gone.release()
    topic = group.topic()
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        for body, properties in ((gone, None), (b"x", Broken())):
            future = producer.send(topic, body, properties=properties)  # type: ignore[arg-type]
            assert isinstance(future.exception(PATIENCE_S), InvalidArgument)
            with pytest.raises(InvalidArgument):
                producer.send_one_way(topic, body, properties=properties)  # type: ignore[arg-type]
        assert producer.send(topic, b"fine").result(PATIENCE_S).queue_offset == 0


# --- who waits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["absent", "a b"])
def test_whoever_waits_for_a_cancelled_message_is_told(
    group: BlockingFakeGroup, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Once what became of it is known, well or badly: one that failed used to be waited for, for
    ever."""
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        topic = group.topic()
        with busy_loop(client):
            sent = [producer.send(each, b"x") for each in (topic, where, topic, where)]
            assert [future.cancel() for future in sent[:2]] == [True, True]
        done, pending = futures.wait(sent, PATIENCE_S)
        assert (len(done), pending) == (4, set())
        assert set(futures.as_completed(sent[:2], PATIENCE_S)) == set(sent[:2])
        with pytest.raises(SendsFailed, match="1 message failed"):
            producer.flush()
    assert not without_grpcs_own(caplog.records)


# --- deadlines ------------------------------------------------------------------------------------


class Full:
    """A producer that has no room, as its group is silent: what is sent waits behind `"2"`."""

    def __init__(self, group: BlockingFakeGroup, client: BlockingClient) -> None:
        self.group, self.topic = group, group.topic()
        options = ProducerOptions(max_buffered_messages=2, linger_ms=0)
        self.producer = client.producer(options)
        self.producer._max_crossing = 10_000  # as that of one with more room
        self.producer.send(self.topic, b"first").result(PATIENCE_S)
        group.pause()
        for body in (b"0", b"1", b"2"):
            self.send(body)

    def send(self, body: bytes, deadline_s: float | None = None) -> Future[SendResult]:
        return self.producer.send(self.topic, body, queue_id=0, deadline_s=deadline_s)

    def stored(self) -> list[bytes]:
        """All that is, once there was room."""
        self.group.resume()
        self.producer.flush()
        return self.group.bodies(self.topic)


@pytest.fixture
def full() -> Iterator[Full]:
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        full = Full(group, client)
        try:
            yield full
        finally:
            full.producer.abort()


@pytest.mark.parametrize(
    ("options", "at_most"),
    [
        (ProducerOptions(max_buffered_messages=8), 8 + 8 + 1),
        (ProducerOptions(max_buffered_bytes=1 << 20), 64 + 16 + 2),
        (ProducerOptions(max_buffered_bytes=1), 3),
    ],
)
def test_what_waits_for_the_producer_has_its_bounds(options: ProducerOptions, at_most: int) -> None:
    """In messages and in bytes: it used to be 20,000, of up to 4 MiB each. One message is always
    taken, and all are stored in order."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic, producer, taken = group.topic(), client.producer(options), list[int]()
        group.pause()

        def send() -> None:
            for number in range(200):
                producer.send_one_way(topic, b"%03d" % number + bytes(16 << 10), queue_id=0)
                taken.append(number)

        sending = Pool().submit(send)
        while not producer._waiting and not sending.done():
            time.sleep(0.001)
        before = len(taken)
        group.resume()
        sending.result(PATIENCE_S)
        producer.flush()
        assert before <= at_most
        assert [int(body[:3]) for body in group.bodies(topic)] == list(range(200))


def is_overdue(future: Future[SendResult]) -> bool:
    error = future.exception(PATIENCE_S)
    return isinstance(error, DeadlineExceeded) and error.outcome is Outcome.DID_NOT_HAPPEN


def test_deadline_holds_while_a_message_waits_for_room(full: Full) -> None:
    """Wherever it waits, and whoever is in front of it; it isn't sent after that, and the others
    are, in their order. The sooner one that comes later is told first."""
    told: list[bytes] = []
    begun = time.monotonic()
    sent = {body: full.send(body, deadline_s) for body, deadline_s in ((b"b", 0.4), (b"c", 20.0))}
    full.send(b"d")
    sent[b"a"] = full.send(b"a", 0.2)
    for body, future in sent.items():
        future.add_done_callback(lambda _, body=body: told.append(body))  # type: ignore[misc]
    assert is_overdue(sent[b"a"])
    assert time.monotonic() - begun >= 0.2
    assert is_overdue(sent[b"b"])
    assert 0.4 <= time.monotonic() - begun < 10.0
    assert not sent[b"c"].done()
    assert full.stored() == [b"first", b"0", b"1", b"2", b"c", b"d"]
    assert told == [b"a", b"b", b"c"]


def test_overdue_message_in_front_lets_the_others_pass(full: Full) -> None:
    """And a one-way one is counted when it has its turn."""
    assert full.stored() == [b"first", b"0", b"1", b"2"]
    full.group.pause()
    for body in (b"3", b"4"):
        full.send(body)
    front = full.send(b"front", 0.1)
    full.producer.send_one_way(full.topic, b"one way", deadline_s=0.1)
    assert is_overdue(front)
    until = time.monotonic() + PATIENCE_S
    while full.producer.statistics().one_way_failed < 1 and time.monotonic() < until:
        time.sleep(0.001)
    assert full.producer.statistics().one_way_failed == 1
    assert full.stored()[4:] == [b"3", b"4"]


def test_overdue_message_that_nobody_looks_at_is_told_by_flush_once(full: Full) -> None:
    """Told at its time, and not a second time in its turn; who has cancelled is told nothing, but
    for who waits."""
    dropped, cancelled = full.send(b"x", 0.05), full.send(b"x", 0.05)
    assert cancelled.cancel()
    assert futures.wait([dropped, cancelled], PATIENCE_S).not_done == set()
    full.group.resume()
    with pytest.raises(SendsFailed, match="1 message failed; the first: the deadline is over"):
        full.producer.flush()
    full.producer.flush()


def test_deadline_ends_the_wait_of_send_itself(full: Full) -> None:
    """Where too many are on their way already, its sender waits no longer than that."""
    full.producer._max_crossing = 2
    for body in (b"3", b"4"):
        full.send(body)
    assert is_overdue(Pool().submit(full.send, b"x", 0.1).result(PATIENCE_S))
    full.producer.send_one_way(full.topic, b"x", deadline_s=0.1)
    assert not full.producer._waiting
    assert full.stored() == [b"first", b"0", b"1", b"2", b"3", b"4"]
    assert full.producer.statistics().one_way_failed == 1


def test_messages_of_threads_with_one_deadline_share_batches(group: BlockingFakeGroup) -> None:
    """Though each has a little less of it left than the one before."""
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        topic = group.topic()
        producer.send(topic, b"first").result(PATIENCE_S)
        before = group.calls("Send")
        with busy_loop(client):
            for _ in range(500):
                producer.send(topic, b"x", deadline_s=600.0)
        producer.flush()
        assert group.calls("Send") - before < 10


@pytest.mark.parametrize("deadline_s", [0, -1.0, "5", True, float("nan")])
def test_deadline_that_is_none_is_told_as_ever(group: BlockingFakeGroup, deadline_s: Any) -> None:
    """On its way it is nobody's affair; nor is one that never comes."""
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        topic = group.topic()
        kind = DeadlineExceeded if deadline_s in (0, -1.0) else InvalidArgument
        error = producer.send(topic, b"x", deadline_s=deadline_s).exception(PATIENCE_S)
        assert isinstance(error, kind)
        never = producer.send(topic, b"x", deadline_s=float("inf"))
        assert never.result(PATIENCE_S).queue_offset == 0


def test_producer_that_is_closed_is_kept_by_no_deadline(group: BlockingFakeGroup) -> None:
    """However far it is: a program that makes a producer for each job makes many."""
    with BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        for end in (BlockingProducer.close, BlockingProducer.abort):
            producer = client.producer()
            producer.send(topic, b"x", deadline_s=3_600.0).result(PATIENCE_S)
            end(producer)
            assert producer._overdue._timer is None


def step(body: bytes = b"tick") -> Crossing:
    return Crossing(NewMessage("t", body, None, None, None, None, None), None, None, None)


def test_equal_messages_on_their_way_are_two() -> None:
    """A thread that takes its own back must not take another one's."""
    first, second = step(), step()
    way = deque([first, second])
    assert is_taken_back(second, way)
    assert way[0] is first
    assert first != second
    assert len({first, second}) == 2


class Meddling:
    """A step; the mover takes one as soon as another is compared to it."""

    def __init__(self, way: deque[object]) -> None:
        self.way = way

    def __eq__(self, other: object) -> bool:
        self.way.popleft()
        return False

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("is_on_its_way", [True, False])
def test_steps_that_go_while_one_is_taken_back_are_no_error(*, is_on_its_way: bool) -> None:
    """Senders take back what they sent as another thread closed, and the mover takes what is in
    front of it: that was a bare `IndexError`, of a message that could be stored."""
    way: deque[object] = deque()
    sent, behind = step(), step()
    way.extend((step(), Meddling(way), *([sent] if is_on_its_way else []), behind))
    assert is_taken_back(sent, way) is is_on_its_way
    assert sent not in list(way)
    assert way.pop() is behind


def test_no_thread_has_its_turn_between_two_steps_that_are_compared() -> None:
    """With thousands on their way, it would look for its own for as long as the mover moves."""
    way, seen = deque(step() for _ in range(3)), list[str]()
    behind = step()
    sys.setprofile(lambda _frame, event, _: seen.append(event))
    try:
        found = behind in way
    finally:
        sys.setprofile(None)
    assert not found
    assert "call" not in seen

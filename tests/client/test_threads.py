"""Threads that share one blocking client do whatever comes to them, while leaders die and answers
are lost; then the client is closed under them.

Hypothesis draws what each thread does. Afterwards everybody has been told: each call has returned
or raised, each accepted message has an answer that the log bears out, and each failure that nobody
looked at was told once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import Final

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dledger.client import (
    ClientClosed,
    ClientError,
    ClientOptions,
    ConsumerInUse,
    Message,
    NewMessage,
    Outcome,
    ProducerClosed,
    ProducerOptions,
    SendResult,
    SendsFailed,
)
from dledger.client.blocking import BlockingClient
from dledger.client.blocking_consumer import BlockingConsumer
from dledger.client.blocking_producer import BlockingProducer
from dledger.testing import BlockingFakeGroup

PATIENCE_S: Final = 20.0
CLIENT: Final = ClientOptions(presume_after_s=0.02, deadline_s=5.0)
PRODUCER: Final = ProducerOptions(
    delivery_timeout_ms=300, close_timeout_ms=400, linger_ms=0, max_buffered_messages=12
)
ENDED: Final = (ClientClosed, ProducerClosed)

ACTS: Final = (
    *("send", "send", "send and look", "send in vain", "send and cancel", "send all", "flush"),
    *("statistics", "topics", "read", "commit", "rest"),
)
HARMS: Final = ("refuse", "lose an answer", "kill", "pause and resume", "nothing")


class Shared:
    """One client, one producer and one consumer; and what its threads were told."""

    def __init__(self, group: BlockingFakeGroup) -> None:
        self.group = group
        self.topic = group.topic(2)
        self.client = BlockingClient.connect(group.addresses, options=CLIENT).__enter__()
        self.producer: BlockingProducer = self.client.producer(PRODUCER)
        self.consumer: BlockingConsumer = self.client.pull_consumer(self.topic)
        self.sent: list[tuple[bytes, Future[SendResult]]] = []
        self.unseen: list[Future[SendResult]] = []  # whose senders never look
        self.bulks: list[list[bytes]] = []  # that were said to be stored
        self.told: list[int] = []  # by each that told any; some of them the same ones
        self.left = 0  # at most, of bulks in whose midst the producer was closed: it tells of them
        self.read: list[Message] = []
        self.wrong: list[BaseException] = []
        self._lock = threading.Lock()
        self._numbers = 0

    def body(self) -> bytes:
        with self._lock:
            self._numbers += 1
            return b"%d" % self._numbers

    def play(self, acts: list[str]) -> None:
        """What one thread does, until there is no more to do or the client is closed."""
        try:
            for act in acts:
                self.do(act)
        except ENDED:
            return
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self.wrong.append(error)

    def do(self, act: str) -> None:
        match act:
            case "send" | "send in vain":
                topic = self.topic if act == "send" else "absent"
                self.unseen.append(self.send(topic))
            case "send and look":
                self.send(self.topic).exception(PATIENCE_S)
            case "send and cancel":
                future = self.send(self.topic)
                if not future.cancel():
                    future.exception(PATIENCE_S)
            case "send all":
                bodies = [self.body() for _ in range(20)]
                try:
                    stored = self.producer.send_all(NewMessage(self.topic, b) for b in bodies)
                except SendsFailed:
                    return
                except ENDED:
                    self.left += len(bodies)
                    raise
                else:
                    assert stored == len(bodies)
                    self.bulks.append(bodies)
            case "flush":
                self.ends(self.producer.flush)
            case "statistics":
                assert self.producer.statistics().buffered_messages >= 0
            case "topics":
                try:
                    self.client.topics()
                except ENDED:
                    raise
                except ClientError:
                    pass  # nobody leads, for longer than it waits
            case "read":
                self.read_one()
            case "commit":
                assert self.consumer.positions.keys() <= {0, 1}
            case "rest":
                time.sleep(0.005)

    def send(self, topic: str) -> Future[SendResult]:
        body = self.body()
        future = self.producer.send(topic, body)
        self.sent.append((body, future))
        return future

    def read_one(self) -> None:
        if not self.sent or not any(future.done() for _, future in self.sent):
            return  # there may never be one
        try:
            self.read.append(next(self.consumer))
        except (ConsumerInUse, StopIteration):
            return

    def ends(self, end: object) -> None:
        """`flush` or `close`: how many failures it told."""
        assert callable(end)
        try:
            end()
        except SendsFailed as failed:
            self.told.append(failed.count)


def harm(group: BlockingFakeGroup, what: str, living: list[int]) -> None:
    match what:
        case "refuse":
            group.refuse("LEADERSHIP_LOST", times=2)
        case "lose an answer":
            group.lose_answer(times=1)
        case "kill" if len(living) > 1:
            group.kill(living.pop(0))
        case "pause and resume":
            group.pause(living[0])
            time.sleep(0.03)
            group.resume(living[0])


@settings(max_examples=20, deadline=None, phases=[Phase.generate, Phase.shrink], database=None)
@given(
    scripts=st.lists(st.lists(st.sampled_from(ACTS), min_size=1, max_size=12), max_size=6),
    harms=st.lists(st.sampled_from(HARMS), max_size=4),
    close_after_ms=st.integers(0, 60),
    closers=st.integers(1, 3),
)
def test_everybody_is_told_of_the_end(
    scripts: list[list[str]], harms: list[str], close_after_ms: int, closers: int
) -> None:
    """See the module."""
    with BlockingFakeGroup(3) as group:
        shared, living = Shared(group), [0, 1, 2]
        threads = [
            threading.Thread(target=shared.play, args=(acts,), daemon=True) for acts in scripts
        ]
        for thread in threads:
            thread.start()
        for what in harms:
            harm(group, what, living)
        time.sleep(close_after_ms / 1000)
        threads += [
            threading.Thread(target=shared.ends, args=(shared.client.close,), daemon=True)
            for _ in range(closers)
        ]
        for thread in threads[-closers:]:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), "a call never ended"
        assert not shared.wrong, shared.wrong
        check(shared)


def check(shared: Shared) -> None:
    """What was told is true, and nothing is left untold."""
    stored = [body for queue in range(2) for body in shared.group.bodies(shared.topic, queue)]
    times = Counter(stored)
    assert not [body for body, count in times.items() if count > 1], "stored twice"
    assert all(future.done() for _, future in shared.sent), "closed, and still pending"
    untold = sum(
        not future.cancelled() and future.exception() is not None for future in shared.unseen
    )
    assert sum(shared.told) >= untold, (shared.told, untold)
    assert all(count <= untold + shared.left for count in shared.told), (shared.told, untold)
    for body, future in shared.sent:
        if future.cancelled():
            continue
        error = future.exception()
        if error is None:
            assert times[body] == 1, f"{body!r} was acknowledged"
        else:
            assert isinstance(error, ClientError), error
            if error.outcome is Outcome.DID_NOT_HAPPEN:
                assert times[body] == 0, f"{body!r} was said not to be stored"
    assert all(times[body] == 1 for bodies in shared.bulks for body in bodies)
    read = Counter((message.queue_id, message.queue_offset) for message in shared.read)
    assert all(count == 1 for count in read.values()), "given twice"

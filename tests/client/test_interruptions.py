"""A signal's handler that raises anywhere in a caller's thread locks nothing for the client's own,
and one that makes a call of its own there gets its answer.

The interpreter runs handlers as a function begins, after a call, and where a loop goes back. Each
act is interrupted at the first such place, then anew at the second, and so on: whatever the loop's
thread has to do afterwards it can do.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dis import opname
from types import FrameType
from typing import Any

import pytest

from dledger.client import (
    ClientClosed,
    ConsumerOptions,
    NewMessage,
    ProducerClosed,
    ProducerOptions,
    SendResult,
    SendsFailed,
)
from dledger.client.blocking import BlockingClient, BlockingProducer
from dledger.client.loop_thread import LoopThread
from dledger.client.sent import Bulk, Sent
from dledger.testing import BlockingFakeGroup
from tests.client.test_blocking_ends import PATIENCE_S, Pool
from tests.scale import stride

# Who is interrupted before a coroutine is on its way leaves it; and so may a finalizer be, which
# Python has no other way to tell.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def nothing_is_left_to_others() -> Iterator[None]:
    """What was interrupted is collected here, and not in the midst of another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


STORED = SendResult("t", 0, 0, 0, 0, b"", duplicate=False)


RUNS_OF_A_GROUP = 50  # it remembers so many producers, and some more
PLACES = ("CALL", "JUMP_BACKWARD", "RESUME")


class Interrupted(Exception):
    """What the handler raises."""


class Interrupting:
    """Raises once, at the n-th place of whatever is called from the test."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.places = 0
        self._behind: dict[FrameType, int] = {}  # the step before, of each frame

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename == __file__:
            return None  # what the application does with what it was given is its own affair
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call":
            self._pass()
        elif event == "opcode":
            last = self._behind.get(frame)
            self._behind[frame] = frame.f_lasti
            is_place = last is not None and opname[frame.f_code.co_code[last]].startswith(PLACES)
            # What a function of Python's returns is returned from there without a stop.
            if is_place and opname[frame.f_code.co_code[frame.f_lasti]] != "RETURN_VALUE":
                self._pass()
        return self

    def _pass(self) -> None:
        self.places += 1
        if self.places == self.at:
            raise Interrupted


def interruptions(act: Callable[[], object]) -> Iterator[None]:
    """After each of `act`'s interruptions, to the one that never came."""
    for at in itertools.count(1):
        interrupting, former = Interrupting(at), sys.gettrace()
        sys.settrace(interrupting)
        try:
            act()
        except (Interrupted, TimeoutError):
            pass
        finally:
            sys.settrace(former)
        yield
        if interrupting.places < at:
            assert at > 1
            return


def test_call_that_is_interrupted_anywhere_holds_up_nobody() -> None:
    """Neither the next caller nor the thread's end."""
    pool, thread = Pool(), LoopThread()
    for _ in interruptions(lambda: thread.call(asyncio.sleep(0.001, 7))):
        assert pool.submit(lambda: thread.call(asyncio.sleep(0, 7))).result(PATIENCE_S) == 7
    pool.submit(thread.stop).result(PATIENCE_S)
    assert not thread._calls


def test_call_whose_caller_is_interrupted_goes_no_further() -> None:
    """Nobody waits for its end, and it has none of its own."""
    thread, ends = LoopThread(), list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            thread.call(work())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    thread.call(asyncio.sleep(0.01))
    assert ends == ["cancelled"]
    thread.stop()


@pytest.mark.parametrize(
    "look",
    [
        lambda sent: sent.result(0.0),
        lambda sent: sent.result(0.001),
        lambda sent: sent.exception(0.001),
        lambda sent: sent.add_done_callback(repr),
    ],
)
def test_message_whose_asker_is_interrupted_anywhere_is_settled(
    look: Callable[[Sent], object],
) -> None:
    """Whoever settles it isn't held up, and it can be asked for again."""
    pool = Pool()
    sents = [Sent(lambda: None, lambda: None)]

    def ask() -> None:
        look(sents[-1])

    for _ in interruptions(ask):
        sent: Future[SendResult] = sents[-1]
        pool.submit(sent.set_result, STORED).result(PATIENCE_S)
        assert sent.result(0) == STORED
        sents.append(Sent(lambda: None, lambda: None))


def test_message_whose_sender_is_interrupted_as_he_cancels_is_settled() -> None:
    """Or is cancelled: whoever settles it is told, and isn't held up."""
    pool, sents = Pool(), [Sent(lambda: None, lambda: None)]
    for _ in interruptions(lambda: sents[-1].cancel()):
        assert pool.submit(sents[-1].may_settle).result(PATIENCE_S) != sents[-1].cancelled()
        sents.append(Sent(lambda: None, lambda: None))


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_message_is_settled_once(*, is_cancelled: bool) -> None:
    """Whoever comes second leaves it, also where nobody wants to know: a future of Python's breaks
    if it is told so twice."""
    sent = Sent(lambda: None, lambda: None)
    assert not is_cancelled or sent.cancel()
    assert [sent.may_settle(), sent.may_settle()] == [not is_cancelled, False]


def test_bulk_that_is_interrupted_anywhere_holds_up_no_message() -> None:
    """Its messages are settled, whether or not it waits for them."""
    pool = Pool()
    go: list[int] = []

    def settling(sent: Sent) -> Future[Any]:
        """On a thread of its own, once `go` has something."""

        def settle() -> None:
            while not go:
                time.sleep(0.0002)
            sent.set_result(STORED)

        return pool.submit(settle)

    def send() -> None:
        bulk = Bulk()
        try:
            bulk.watch(sents[0])
            go.append(1)
            bulk.end()
        finally:
            bulk.leave()

    sents = [Sent(lambda: None, lambda: None)]
    settled = settling(sents[0])
    for _ in interruptions(send):
        go.append(1)
        settled.result(PATIENCE_S)
        go.clear()
        sents[0] = Sent(lambda: None, lambda: None)
        settled = settling(sents[0])
    go.append(1)
    settled.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("group_name", "in_batches", "is_patient"),
    [
        *((None, True, False), (None, False, True), ("g", True, True), ("g", False, False)),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                *((None, True, True), (None, False, False), ("g", True, False)),
                ("g", False, True),
            )
        ),
    ],
)
def test_loop_that_is_interrupted_anywhere_is_given_each_message(
    group_name: str | None, in_batches: bool, is_patient: bool
) -> None:
    """In its order, none left out, none of them twice: interrupted again and again, or between one
    message and the next."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        with client.producer() as producer:
            for _ in range(2_000):
                producer.send(topic, b"x" * (4_000 if in_batches else 1))
        options = ConsumerOptions(hold_ms=50, pull_bytes=16 << 10)
        with client.pull_consumer(topic, group=group_name, options=options) as consumer:
            loop: Iterator[Any] = consumer.batches() if in_batches else iter(consumer)
            given: list[Any] = []
            keep = given.append

            def step() -> None:
                keep(next(loop))

            step()
            for _ in interruptions(step):
                if is_patient:
                    step()
            step()
        batches = given if in_batches else [given]
        seen = [message.queue_offset for batch in batches for message in batch]
        assert seen == list(range(len(seen)))


# --- a handler that calls -------------------------------------------------------------------------


@pytest.mark.parametrize("deadline_s", [None, 60.0])
def test_send_that_is_interrupted_anywhere_holds_up_nobody(deadline_s: float | None) -> None:
    """Neither other senders nor the client's own thread; what the next one sends is stored."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic, producer, pool = group.topic(), client.producer(), Pool()
        for _ in interruptions(lambda: producer.send(topic, b"x", deadline_s=deadline_s)):
            pool.submit(producer.send(topic, b"y").result).result(PATIENCE_S)
            pool.submit(producer.flush).result(PATIENCE_S)


class Calling(Interrupting):
    """Calls at the n-th place, as a signal's handler does that raises nothing."""

    def __init__(self, at: int, handle: Callable[[], object]) -> None:
        super().__init__(at)
        self._handle = handle

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        try:
            return super().__call__(frame, event, arg)
        except Interrupted:
            self._handle()
            return self


Act = Callable[[BlockingClient, BlockingProducer, str], object]


def called_anywhere(act: Act, handle: Act, first_place: int) -> None:
    """`act`, with `handle` called at its first place, then in another run at its next, ...; at
    every second one, from `first_place` on, where a share of the cases is looked at."""
    step = stride(2)
    ended = (ClientClosed, ProducerClosed, SendsFailed, CancelledError)

    def run(at: int, group: BlockingFakeGroup, topic: str) -> int:
        # What was sent as all was closed has failed, and its future was dropped.
        with suppress(SendsFailed), BlockingClient.connect(group.addresses) as client:
            producer = client.producer(ProducerOptions(max_buffered_messages=4))

            def handling() -> None:
                with suppress(*ended):
                    handle(client, producer, topic)

            calling, former = Calling(at, handling), sys.gettrace()
            sys.settrace(calling)
            try:
                with suppress(*ended):
                    act(client, producer, topic)
            finally:
                sys.settrace(former)
        return calling.places

    for first in itertools.count(1 + first_place % step, step * RUNS_OF_A_GROUP):
        with BlockingFakeGroup() as group:
            topic = group.topic()
            for at in range(first, first + step * RUNS_OF_A_GROUP, step):
                if Pool().submit(run, at, group, topic).result(PATIENCE_S) < at:
                    assert at > 5
                    return


def another_consumes(client: BlockingClient, _: BlockingProducer, topic: str) -> None:
    """And keeps what it consumes with."""
    consumer = Pool().submit(client.pull_consumer, topic).result(PATIENCE_S)
    vars(client).setdefault("of another", []).append(consumer)


def close_with_a_consumer(client: BlockingClient, _: BlockingProducer, topic: str) -> None:
    consumer = client.pull_consumer(topic)
    client.close()
    del consumer  # the client looks at those that somebody has


ACTS: dict[str, Act] = {
    "send": lambda _, producer, topic: producer.send(topic, b"x", deadline_s=60.0),
    "result": lambda _, producer, topic: producer.send(topic, b"x").result(),
    "callback": lambda _, producer, topic: producer.send(topic, b"x").add_done_callback(repr),
    "send_all": lambda _, producer, topic: producer.send_all([NewMessage(topic, b"x")] * 2),
    "call": lambda client, _producer, _topic: client.topics(),
    "close": close_with_a_consumer,
}
HANDLERS: dict[str, Act] = {
    "flush": lambda _client, producer, _topic: producer.flush(),
    "close": lambda _client, producer, _topic: producer.close(),
    "close all": lambda client, _producer, _topic: client.close(),
    "wait for another": lambda _, producer, topic: (
        Pool().submit(producer.send, topic, b"y").result(PATIENCE_S)
    ),
    "another consumes": another_consumes,
}


# Each act and each handler at least once; make test-long has every pair.
PAIRS = {
    *(("send", "flush"), ("send", "close all"), ("result", "close"), ("callback", "flush")),
    *(("send_all", "another consumes"), ("send_all", "close all"), ("call", "wait for another")),
    *(("close", "another consumes"), ("close", "close")),
}


@pytest.mark.parametrize(
    ("act", "handler"),
    [
        pytest.param(
            *(act, handler),
            id=f"{act}-{handler}",
            marks=[] if (act, handler) in PAIRS else pytest.mark.long,
        )
        for act in ACTS
        for handler in HANDLERS
    ],
)
def test_handler_that_calls_anywhere_gets_its_answer(act: str, handler: str) -> None:
    """It used to wait for the client's own thread, which waited for a lock of who was interrupted:
    a SIGTERM that closes all hung the program."""
    called_anywhere(ACTS[act], HANDLERS[handler], list(HANDLERS).index(handler))

"""The blocking face at its end: whoever waits hears of it, however many threads are at work."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dledger.client import (
    BufferFull,
    ClientClosed,
    ClientOptions,
    InvalidArgument,
    NewMessage,
    ProducerClosed,
    SendResult,
    SendsFailed,
    blocking_producer,
)
from dledger.client.blocking import BlockingClient
from dledger.client.blocking_producer import HANDED_IN_ONE_TURN, BlockingProducer
from dledger.client.crossing import Crossing
from dledger.client.loop_thread import LoopThread
from dledger.client.sent import Sent
from dledger.credentials.tls import TlsFiles
from dledger.outcome import Outcome
from dledger.testing import BlockingFakeGroup

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def group() -> Iterator[BlockingFakeGroup]:
    with BlockingFakeGroup() as group:
        yield group


class Pool:
    """Calls on threads of their own: one that hangs is the test's failure, and not its hang, which
    an executor's would be, for whose threads the interpreter waits at its end."""

    def submit(self, act: Callable[..., Any], *args: Any) -> Future[Any]:
        """What `act` returns or raises on a new thread."""
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(act(*args))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future


@pytest.fixture
def pool() -> Pool:
    return Pool()


def threads() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name == "dledger-client")


def test_call_made_while_the_thread_ends_is_told_so(pool: Pool) -> None:
    """A call that came too late to be cancelled with the others used to wait for ever."""
    thread = LoopThread()
    began, ends = threading.Event(), threading.Event()

    async def slow_to_end() -> None:
        try:
            began.set()
            await asyncio.sleep(PATIENCE_S)
        finally:
            ends.set()
            await asyncio.sleep(0.2)

    early = pool.submit(lambda: thread.call(slow_to_end()))
    assert began.wait(PATIENCE_S)
    stopped = pool.submit(thread.stop)
    assert ends.wait(PATIENCE_S)
    late = pool.submit(lambda: thread.call(asyncio.sleep(0)))
    for call in (early, late):
        with pytest.raises(ClientClosed):
            call.result(PATIENCE_S)
    stopped.result(PATIENCE_S)


def test_call_that_ends_in_the_last_turn_gets_its_answer(pool: Pool) -> None:
    """The turn in which its caller would be told used never to come."""
    thread = LoopThread()
    began, ending = threading.Event(), threading.Event()

    async def ends_with_the_loop() -> int:
        began.set()
        assert ending.wait(PATIENCE_S)  # holds the loop: `stop` is in the next turn
        await asyncio.sleep(0)  # and so is the rest of this
        return 7

    call = pool.submit(lambda: thread.call(ends_with_the_loop()))
    assert began.wait(PATIENCE_S)
    stopped = pool.submit(thread.stop)
    while not thread._is_ending:
        time.sleep(0.001)
    while not any("_stop" in repr(handle) for handle in tuple(thread.loop._ready)):  # type: ignore[attr-defined]
        time.sleep(0.001)
    ending.set()
    assert call.result(PATIENCE_S) == 7
    stopped.result(PATIENCE_S)


def test_threads_at_work_while_another_closes_all_end(group: BlockingFakeGroup, pool: Pool) -> None:
    """Sends, flushes, reads and calls under way end, each with an error that says why."""
    for _ in range(5):
        client = BlockingClient.connect(group.addresses).__enter__()
        topic, producer = group.topic(), client.producer()
        consumer = client.pull_consumer(topic)
        acts = (
            lambda producer=producer: producer.statistics(),
            lambda producer=producer, topic=topic: producer.send(topic, b"x").result(PATIENCE_S),
            lambda producer=producer: producer.flush(),
            lambda client=client: client.topics(),
            lambda consumer=consumer: next(consumer),
            lambda client=client: client.producer(),
        )

        def until_closed(act: object) -> None:
            assert callable(act)
            while True:
                try:
                    act()
                except (ClientClosed, ProducerClosed, StopIteration):
                    return

        at_work = [pool.submit(until_closed, act) for act in acts]
        producer.send(topic, b"first").result(PATIENCE_S)
        client.close()
        for work in at_work:
            work.result(PATIENCE_S)


def test_message_that_has_not_crossed_when_the_thread_ends_fails(
    group: BlockingFakeGroup, pool: Pool
) -> None:
    """Its future is told, even if the loop never came to it."""
    with BlockingClient.connect(group.addresses) as client:
        producer, busy = client.producer(), threading.Event()
        thread = client._open_thread()
        thread.call(client._client.close())
        thread.post(lambda: busy.wait(PATIENCE_S))
        future = producer.send(group.topic(), b"never")
        stopped = pool.submit(thread.stop)
        busy.set()
        with pytest.raises((ClientClosed, ProducerClosed)):
            future.result(PATIENCE_S)
        stopped.result(PATIENCE_S)
        with pytest.raises(ProducerClosed):
            producer.send("t", b"never")


class Failed(BaseException):
    """No `Exception`, as what pytest's own `fail` raises."""


@pytest.mark.parametrize("kind", [SystemExit, Failed, asyncio.CancelledError])
def test_callback_that_exits_ends_nothing_but_itself(
    group: BlockingFakeGroup, kind: type[BaseException]
) -> None:
    """`sys.exit` there used to end the thread that everybody waits for, and what nobody thought of
    the way to it. A failure that nobody has looked at is told by `flush` all the same."""
    told: list[dict[str, Any]] = []

    def leave(_: Future[SendResult]) -> None:
        raise kind(3)

    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        topic, thread = group.topic(), client._open_thread()
        thread.run(
            lambda: thread.loop.set_exception_handler(lambda _, context: told.append(context))
        )
        for body, where in ((b"stored", topic), (b"refused", "absent"), (7, topic)):
            is_added = threading.Event()  # else it may be done by then, and be called right here
            thread.loop.call_soon_threadsafe(is_added.wait, PATIENCE_S)
            future = producer.send(where, body)  # type: ignore[arg-type]  # one is refused
            future.add_done_callback(leave)
            is_added.set()
            assert futures.wait([future], PATIENCE_S).done
            assert told_by(producer.flush) == (0 if body == b"stored" else 1)
        assert producer.send(topic, b"next").result(PATIENCE_S).queue_offset == 1
    assert [f"raised {kind.__name__}" in context["message"] for context in told] == [True] * 3


def test_whatever_a_callback_on_the_thread_raises_the_thread_goes_on() -> None:
    """Also while it is ending: whoever waits for it is told all the same."""
    thread = LoopThread()

    def leave() -> None:
        raise SystemExit(3)

    thread.loop.call_soon_threadsafe(
        thread.loop.set_exception_handler, lambda _loop, _context: None
    )
    thread.post(leave)
    assert thread.call(asyncio.sleep(0, 7)) == 7
    thread.post(leave)
    thread.stop()
    assert thread.loop.is_closed()


def test_closing_in_a_callback_is_refused_and_changes_nothing(group: BlockingFakeGroup) -> None:
    """It would wait for itself; the client stays open for everybody else."""
    told: list[BaseException | None] = []
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        topic, done = group.topic(), threading.Event()

        def close(_: Future[SendResult]) -> None:
            for act in (producer.close, producer.abort, client.close):
                try:
                    act()
                except InvalidArgument as error:
                    told.append(error)
            done.set()

        producer.send(topic, b"x").add_done_callback(close)
        assert done.wait(PATIENCE_S)
        assert len(told) == 3
        assert producer.send(topic, b"y").result(PATIENCE_S).queue_offset == 1


def test_waiting_on_the_clients_own_thread_is_refused(group: BlockingFakeGroup, pool: Pool) -> None:
    """For a message, or for many: only that thread could settle them. Looking is allowed."""
    topic = group.topic()
    told: list[object] = []

    def scenario() -> None:
        with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
            done = threading.Event()

            def wait(first: Future[SendResult]) -> None:
                second = producer.send(topic, b"y")
                acts: list[Callable[[], object]] = [
                    first.result,
                    second.result,
                    lambda: second.result(PATIENCE_S),
                    second.exception,
                    lambda: producer.send_all([NewMessage(topic, b"z")]),
                    lambda: second.result(timeout=0),
                ]
                for act in acts:
                    try:
                        told.append(act())
                    except (InvalidArgument, TimeoutError) as error:
                        told.append(error)
                done.set()

            producer.send(topic, b"x").add_done_callback(wait)
            done.wait()

    pool.submit(scenario).result(PATIENCE_S)
    assert isinstance(told[0], SendResult)
    assert [type(each) for each in told[1:]] == [InvalidArgument] * 4 + [TimeoutError]


def test_sending_in_a_callback_never_waits_for_room(
    group: BlockingFakeGroup, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the thread that it is called on makes room. What was taken is stored."""
    monkeypatch.setattr(blocking_producer, "MAX_CROSSING", 2)
    topic = group.topic()
    told: list[BufferFull] = []
    sent: list[Future[SendResult]] = []

    def scenario() -> None:
        with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
            done = threading.Event()

            def flood(_: Future[SendResult]) -> None:
                try:
                    for _n in range(3):
                        sent.append(producer.send(topic, b"y", deadline_s=60))
                except BufferFull as error:
                    told.append(error)
                done.set()

            producer.send(topic, b"x").add_done_callback(flood)
            done.wait()
            assert len([each.result() for each in sent]) == 2
            assert not producer._waiting

    pool.submit(scenario).result(PATIENCE_S)
    assert len(told) == 1


def test_two_threads_may_close_at_once(group: BlockingFakeGroup, pool: Pool) -> None:
    """Both return when all is closed; a failed send is told to one of them."""
    client = BlockingClient.connect(group.addresses).__enter__()
    client.producer().send("absent", b"nobody looks")
    told = [pool.submit(client.close) for _ in range(4)]
    errors = [closed.exception(PATIENCE_S) for closed in told]
    assert [type(error) for error in errors if error is not None] == [SendsFailed]
    with pytest.raises(ClientClosed):
        client.topics()


def test_client_is_entered_once(group: BlockingFakeGroup) -> None:
    """A second time used to leave the first one's connections behind."""
    with BlockingClient.connect(group.addresses) as client:
        with pytest.raises(InvalidArgument, match="open already"):
            client.__enter__()
        client.topics()
    with client:  # again, after its end
        client.topics()


def test_client_that_cannot_open_leaves_no_thread(tmp_path: Path) -> None:
    """Bad files are refused; what was begun for it is ended."""
    before = threads()
    options = ClientOptions(tls=TlsFiles(tmp_path / "absent.pem"))
    with pytest.raises(InvalidArgument), BlockingClient.connect("127.0.0.1:1", options=options):
        raise AssertionError("it opened")
    assert threads() == before


def test_unclosed_client_is_told_of_once(group: BlockingFakeGroup) -> None:
    """Python's own warning for what was never closed."""
    client = BlockingClient.connect(group.addresses).__enter__()
    thread, inner = client._open_thread(), client._client
    with pytest.warns(ResourceWarning, match="BlockingClient .* never closed"):  # noqa: PT031
        del client
        gc.collect()
    thread.call(inner.close())
    thread.stop()


def test_flush_returns_while_another_thread_sends(group: BlockingFakeGroup, pool: Pool) -> None:
    """It waits for what was sent before; and a call gets its answer in between."""
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        topic, stop = group.topic(), threading.Event()

        def fire() -> None:
            while not stop.is_set():
                producer.send(topic, b"x")

        firing = pool.submit(fire)
        try:
            mine = producer.send(topic, b"mine")
            pool.submit(producer.flush).result(PATIENCE_S)
            assert mine.done()
            client.topics()
            assert not firing.done()
        finally:
            stop.set()
        firing.result(PATIENCE_S)


def test_bulk_under_which_the_client_is_closed_ends(group: BlockingFakeGroup, pool: Pool) -> None:
    """None of its messages is left without an answer."""
    client = BlockingClient.connect(group.addresses).__enter__()
    topic, producer, begun = group.topic(), client.producer(), threading.Event()

    def endless() -> Iterator[NewMessage]:
        while True:
            yield NewMessage(topic, b"x")
            begun.set()

    bulk = pool.submit(lambda: producer.send_all(endless()))
    assert begun.wait(PATIENCE_S)
    client.close()
    with pytest.raises((ProducerClosed, SendsFailed)):
        bulk.result(PATIENCE_S)


@pytest.mark.parametrize("interrupted", [True, False])
def test_every_flush_under_an_abort_is_told(pool: Pool, *, interrupted: bool) -> None:
    """Threads that wait for their messages, when another one is interrupted in the block, or gives
    up: none of them goes on as if these were stored. Closing after that tells nobody."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic, producer = group.topic(), client.producer()
        producer.send(topic, b"first").result(PATIENCE_S)
        group.refuse("NOT_READY", times=1_000_000)
        flushes = []
        for _ in range(2):
            producer.send(topic, b"dropped")
            flushes.append(pool.submit(producer.flush))
        while client._open_thread().call(flushing()) < len(flushes):
            time.sleep(0.001)
        if interrupted:
            with pytest.raises(KeyboardInterrupt), producer:
                raise KeyboardInterrupt
        else:
            producer.abort()
        told = [flush.exception(PATIENCE_S) for flush in flushes]
        assert [getattr(error, "count", error) for error in told] == [2, 2]
        for _ in range(2):
            with pytest.raises(SendsFailed, match="2 messages"):
                producer.flush()
            producer.close()


def told_by(flush: Callable[[], None]) -> int:
    """How many failures."""
    try:
        flush()
    except SendsFailed as told:
        return told.count
    return 0


def test_every_flush_under_way_is_told(pool: Pool) -> None:
    """Each thread is about to say that its messages are stored. Whoever was looked after first used
    to hear of all that had failed, and the others that all was well."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        producer = client.producer()
        group.pause()

        def work(topic: str) -> list[int]:
            producer.send(topic, b"x")
            return [told_by(producer.flush), told_by(producer.flush)]

        workers = [pool.submit(work, topic) for topic in ("absent", "absent too", group.topic())]
        while client._open_thread().call(flushing()) < len(workers):
            time.sleep(0.001)
        group.resume()
        assert [worker.result(PATIENCE_S) for worker in workers] == [[2, 0]] * 3


def test_failure_that_another_thread_was_told_of_is_told_to_its_own(
    group: BlockingFakeGroup,
) -> None:
    """Once: whoever sent it is about to say that it is stored, whoever flushed in between. Threads
    that sent nothing of it, and come after that, hear nothing."""
    with BlockingClient.connect(group.addresses) as client, ThreadPoolExecutor(1) as worker:
        producer = client.producer()

        def told_to_its_own() -> int:
            return worker.submit(told_by, producer.flush).result(PATIENCE_S)

        for _ in range(2):
            worker.submit(producer.send, "absent", b"x").result(PATIENCE_S)
            producer.send("absent", b"y")
            assert [told_by(producer.flush), told_by(producer.flush)] == [2, 0]
            assert [told_to_its_own(), told_to_its_own()] == [1, 0]
        worker.submit(producer.send, "absent", b"x").result(PATIENCE_S)
        assert [told_to_its_own(), told_by(producer.flush), told_to_its_own()] == [1, 0, 0]
    assert not producer._failed._rows


def test_act_that_is_taken_back_is_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has done it, as another thread's arrives that is equal: that one's was taken back,
    and its message settled by nobody."""
    thread = LoopThread()
    thread.stop()
    acts, done = thread._acts, Counter[str]()
    monkeypatch.setattr(thread, "_is_ending", False)
    monkeypatch.setattr(thread, "_is_over", False)

    def move() -> None:
        done["moved"] += 1

    def do_next_and_end(do_next: Callable[[], None]) -> None:
        do_next()
        monkeypatch.setattr(thread.loop, "call_soon_threadsafe", lambda _: None)
        thread.post(move)  # another thread
        monkeypatch.setattr(thread, "_is_over", True)

    monkeypatch.setattr(thread.loop, "call_soon_threadsafe", do_next_and_end)
    thread.post(move)
    assert (done["moved"], len(acts)) == (1, 1)
    with pytest.raises(ClientClosed):
        thread.post(move)
    assert len(acts) == 1


class ClosedMeanwhile(deque[Any]):
    """Steps on their way: as a message's turn has come, another thread closes the producer, and the
    mover takes what is there if `moves`."""

    def __init__(self, producer: BlockingProducer, moves: bool) -> None:
        super().__init__()
        self._producer, self._moves = producer, moves
        self.told: list[int] = []

    def append(self, step: Any, /) -> None:
        """See `deque.append`."""
        if not isinstance(step, Crossing):
            super().append(step)
            return
        closing = Pool().submit(told_by, self._producer.close)
        self.told.append(closing.result(PATIENCE_S))
        super().append(step)
        if self._moves:
            self._producer._thread.run(self._producer._start_moving)
            due = time.monotonic() + PATIENCE_S
            while self and time.monotonic() < due:
                time.sleep(0.001)


@pytest.mark.parametrize("moves", [False, True])
def test_send_that_another_thread_s_close_has_missed_is_refused(
    group: BlockingFakeGroup, moves: bool
) -> None:
    """It had found the producer open; who closed was told that all is stored, and who drops the
    future would never hear that this wasn't."""
    with BlockingClient.connect(group.addresses) as client:
        producer, topic = client.producer(), group.topic()
        producer._crossing = crossing = ClosedMeanwhile(producer, moves)
        with pytest.raises(ProducerClosed):
            producer.send(topic, b"x")
        assert (crossing.told, list(crossing)) == ([0], [])


@pytest.mark.parametrize("outcome", Outcome)
def test_send_that_was_broken_off_meanwhile_says_what_its_future_would(
    group: BlockingFakeGroup, outcome: Outcome
) -> None:
    """Who aborts beside it may have caught it on the wire: sent again it would be stored twice."""
    with BlockingClient.connect(group.addresses) as client:
        producer, sent = client.producer(), Sent(lambda: None, lambda: None)
        sent.set_exception(ProducerClosed("broken off", outcome=outcome))
        message = NewMessage(group.topic(), b"x", None, None, None, None, None)
        with pytest.raises(ProducerClosed) as told:
            producer._refuse_late(Crossing(message, None, sent, None))
        assert told.value.outcome is outcome


async def flushing() -> int:
    """How many calls of `flush` are under way."""
    tasks = (repr(task.get_coro()) for task in asyncio.all_tasks())
    return sum("BlockingProducer._flush" in task for task in tasks)


def test_loop_has_its_turns_while_messages_cross(
    group: BlockingFakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are read and timers kept, however many messages others send."""
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        topic, thread, ready = group.topic(), client._open_thread(), threading.Event()
        turns, send = [0], producer._producer._send
        handed: Counter[int] = Counter()

        def tick() -> None:
            turns[0] += 1
            if handed.total() < 4 * HANDED_IN_ONE_TURN:
                thread.loop.call_soon(tick)

        def counted(*message: Any) -> None:
            handed[turns[0]] += 1
            send(*message)

        monkeypatch.setattr(producer._producer, "_send", counted)
        thread.post(lambda: ready.wait(PATIENCE_S))
        thread.post(tick)
        for _ in range(4 * HANDED_IN_ONE_TURN):
            producer.send(topic, b"x")
        ready.set()
        producer.flush()
        assert max(handed.values()) <= HANDED_IN_ONE_TURN

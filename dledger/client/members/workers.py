"""Handlers at work: coroutines in a pool of tasks, functions on a pool of threads.

This owns who runs which message, and for how long. A worker takes the next message itself when it
has done with the last one: no task is made for a message, and none waits for another thread's turn.
Everything is taken and settled on the event loop, so `Member` needs no lock; threads are given a
few messages ahead, which are taken back as long as nobody has begun with them.

What failed before comes from one topic, whatever it was sent to. Where handlers are of both kinds
the coroutines' workers take it, and what is a function's they hand on to the threads: none of them
waits for a function, and no function runs anywhere else, where nobody would count it as at work.

A handler that raises has failed; so has a coroutine that is cancelled for having taken too long. A
function on a thread can't be cancelled: it is told of, and goes on. One that gives back a
coroutine, a generator or a future has failed as well: nobody has run it, or waits for it.

A worker that is gone is told: whatever it had in hand nobody would finish. Its consumer ends then,
and the message comes again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, NoReturn, Protocol, TypeAlias

from dledger.client.errors import ClientClosed
from dledger.client.faults import client_error
from dledger.client.hooks import Around, HookFailures, Surrounding
from dledger.client.members.clock import clock
from dledger.client.members.member import Line
from dledger.client.members.process_queue import Work
from dledger.client.results import Message

SLICE_S: Final = 0.005  # for handlers that never wait, before the event loop has its turn
AHEAD: Final = 4  # messages a thread is given ahead, on average

_log = logging.getLogger("dledger.client")


def no_handler(message: Message) -> NoReturn:
    """What a message is given to that failed at a member with a handler of its topic, where this
    one has none: it fails again, and another member may be given it then."""
    raise LookupError(f"this member has no handler of topic {message.topic!r}")


def check_run(answer: object) -> None:
    """Returns if what a handler has returned isn't work that is still to be done.

    Raises:
        TypeError: it is; counted as done, the message would be forgotten.
    """
    if answer is None:
        return
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError(
            f"the handler returned the coroutine {answer.__qualname__!r}, which nobody runs: "
            "nothing was done; a handler that waits is declared with `async def`"
        )
    if inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        raise TypeError(
            f"the handler returned the generator {answer.__qualname__!r}, which nobody runs: "
            "nothing was done; a handler has no `yield`"
        )
    if inspect.isawaitable(answer) or isinstance(answer, concurrent.futures.Future):
        raise TypeError(
            f"the handler returned {type(answer).__name__} of work that nobody waits for: it may "
            "fail or get lost; a handler waits for what it has begun before it returns"
        )


class Desk(Protocol):
    """Where messages are taken and settled; on the event loop only."""

    now: float

    def take(self, line: Line) -> Work | None: ...
    def put_back(self, work: Work) -> None: ...
    def succeed(self, work: Work) -> None: ...
    def fail(self, work: Work, error: BaseException) -> None: ...
    def may_start_until(self) -> float: ...


class Pool(Protocol):
    """Workers of one kind."""

    line: Line
    overdue: int  # handlers that took longer than they may

    def wake(self) -> None:
        """There may be work."""

    def withdraw(self) -> None:
        """What nobody has begun with may not be begun any more."""

    def expire(self, now: float) -> None:
        """Handlers that have taken too long are done for."""

    @property
    def is_here(self) -> bool:
        """Whether the caller is one of them: its end would be waited for by itself."""

    async def close(self) -> None:
        """Nobody works any more; coroutines are cancelled."""


Surround: TypeAlias = Callable[[], "Surrounding | None"]


def surrounding(around: Around | None, failures: HookFailures) -> Surround:
    """Makes each worker's `around`."""
    return lambda: None if around is None else Surrounding(around, failures=failures)


# --- coroutines ---------------------------------------------------------------------------------

Coroutines = Mapping[str, Callable[[Message], Awaitable[object]]]


class Worker:
    """A task, and what it works on."""

    __slots__ = ("idle", "overdue", "since", "task", "work")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.work: Work | None = None
        self.since = 0.0
        self.overdue = False
        self.idle: asyncio.Future[None] | None = None


class CoroutineWorkers:
    """Runs coroutine handlers, by topic.

    Args:
        count: how many at once.
        on_exit: is told of a SystemExit or KeyboardInterrupt in a handler, which ends all.
        threads: run what comes in this line and is a function's.
    """

    def __init__(
        self,
        desk: Desk,
        line: Line,
        handlers: Coroutines,
        *,
        count: int,
        timeout_s: float,
        surround: Surround,
        on_exit: Callable[[BaseException], None],
        threads: ThreadWorkers | None = None,
    ) -> None:
        self.line = line
        self.overdue = 0
        self._desk = desk
        self._handlers = handlers
        self._threads = threads
        self._timeout_s = timeout_s
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_closing = False
        self._workers = [Worker() for _ in range(count)]
        for worker in self._workers:
            work = self._watched(worker, surround())
            worker.task = self._loop.create_task(work, name="handler")

    def wake(self) -> None:
        """One of them, if any waits: whoever finds something wakes the next one."""
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                return

    def withdraw(self) -> None:
        """A coroutine begins as it is taken."""

    def expire(self, now: float) -> None:
        """Cancels those that have taken too long; again, should they not heed it."""
        for worker in self._workers:
            if worker.work is not None and now - worker.since > self._timeout_s:
                self.overdue += not worker.overdue
                worker.overdue, worker.since = True, now
                if worker.task is not None:
                    worker.task.cancel()

    @property
    def is_here(self) -> bool:
        """See `Pool.is_here`; from any thread."""
        if asyncio._get_running_loop() is not self._loop:
            return False
        task = asyncio.current_task()
        return any(worker.task is task for worker in self._workers)

    async def close(self) -> None:
        """Cancels all."""
        self._is_closing = True
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watched(self, worker: Worker, around: Surrounding | None) -> None:
        """A worker that ends before its time ends the consumer: nobody would notice otherwise."""
        try:
            await self._run(worker, around)
        except asyncio.CancelledError:
            if not self._is_closing:  # by who cancels every task there is
                self._on_exit(ClientClosed("a handler's task was cancelled"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the consumer's user hears of it
            self._on_exit(client_error("a handler's task", error))

    async def _run(self, worker: Worker, around: Surrounding | None) -> None:
        desk, line, handlers = self._desk, self.line, self._handlers
        slice_ends = 0.0
        while not self._is_closing:
            work = desk.take(line)
            if work is None:
                worker.idle = self._loop.create_future()
                self._idle.append(worker.idle)
                await worker.idle
                continue
            if self._idle:
                self.wake()
            now = desk.now
            if self._threads is not None and self._threads.hand_on(work):
                continue
            worker.work, worker.since = work, now
            handler = handlers.get(work.message.topic, no_handler)
            try:
                if around is None:
                    check_run(await handler(work.message))
                else:
                    await _within(around, handler, work.message)
            except asyncio.CancelledError as error:
                if self._is_closing:
                    raise
                self._on_cancelled(worker, work, error)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises, it has failed
                desk.fail(work, error)
            except BaseException as error:  # noqa: BLE001 - it ends the program, in an orderly way
                desk.fail(work, error)
                self._on_exit(error)
            else:
                desk.succeed(work)
            worker.work = None
            if worker.overdue:
                self._calm(worker)
            if now > slice_ends:
                await asyncio.sleep(0)
                slice_ends = clock() + SLICE_S

    def _on_cancelled(self, worker: Worker, work: Work, error: BaseException) -> None:
        """By `expire`, or by the handler's own doing: either way it has failed."""
        if worker.overdue:
            error = TimeoutError(f"the handler took longer than {self._timeout_s:g} s")
        self._desk.fail(work, error)
        self._calm(worker)

    def _calm(self, worker: Worker) -> None:
        """The cancellation was for that handler alone."""
        worker.overdue = False
        while worker.task is not None and worker.task.cancelling():
            worker.task.uncancel()


async def _within(
    around: Surrounding, handler: Callable[[Message], Awaitable[object]], message: Message
) -> None:
    around.enter(message)
    try:
        check_run(await handler(message))
    except BaseException as error:
        around.leave(type(error), error, error.__traceback__)
        raise
    around.leave()


# --- threads ------------------------------------------------------------------------------------

Functions = Mapping[str, Callable[[Message], object]]


_at_work = threading.local()  # `pool`: whose thread it is


class Settled:
    """What became of a message on a thread; `began` is false where nobody began with it."""

    __slots__ = ("began", "error", "work")

    def __init__(self, work: Work, error: BaseException | None, *, began: bool) -> None:
        self.work = work
        self.error = error
        self.began = began


class ThreadWorkers:
    """Runs functions as handlers, by topic, on threads that are made when they are needed.

    The threads are daemons: one whose handler never returns doesn't keep the process alive.

    What is handed on waits here beyond what a thread is given ahead: at most what its queue may
    have in memory. `handed_on_by` is woken when that queue may have something again.
    """

    def __init__(
        self,
        desk: Desk,
        line: Line,
        handlers: Functions,
        *,
        count: int,
        timeout_s: float,
        surround: Surround,
        on_exit: Callable[[BaseException], None],
    ) -> None:
        self.line = line
        self.overdue = 0
        self._desk = desk
        self._handlers = handlers
        self._count = count
        self._timeout_s = timeout_s
        self._surround = surround
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._todo: SimpleQueue[Work | None] = SimpleQueue()
        self._settled: deque[Settled] = deque()
        self._is_told = False  # the loop will look at what is settled
        self._given = 0  # to threads, and not settled yet
        self._may_start_until = 0.0
        self._threads: list[threading.Thread] = []
        self._running: dict[int, tuple[Work, float]] = {}  # by thread's number
        self._told_overdue: set[Work] = set()
        self._is_closed = False
        self.handed_on_by: Pool | None = None

    # --- on the event loop --------------------------------------------------------------------

    def wake(self) -> None:
        """Gives threads what there is, up to a few messages ahead."""
        self._may_start_until = self._desk.may_start_until()
        while not self._is_closed and self._given < AHEAD * self._count:
            work = self._desk.take(self.line)
            if work is None:
                break
            self._give(work)

    def hand_on(self, work: Work) -> bool:
        """Whether the message, which was taken from another line, is for a function: one of the
        threads has it then."""
        if work.message.topic not in self._handlers:
            return False
        self._may_start_until = self._desk.may_start_until()
        self._give(work)
        return True

    def _give(self, work: Work) -> None:
        self._given += 1
        self._todo.put(work)
        if len(self._threads) < min(self._count, self._given):
            self._add_thread()

    def _wake_both(self) -> None:
        """What was settled or put back may have been of the other's line."""
        self.wake()
        if self.handed_on_by is not None:
            self.handed_on_by.wake()

    def withdraw(self) -> None:
        """What nobody has begun with is put back; what may still go is given out again."""
        taken: list[Work] = []
        ends = 0  # of threads, which they are still to hear of
        with suppress(Empty):
            while True:
                work = self._todo.get_nowait()
                if work is None:
                    ends += 1
                else:
                    taken.append(work)
        for _ in range(ends):
            self._todo.put(None)
        self._given -= len(taken)
        for work in reversed(taken):
            self._desk.put_back(work)
        self._wake_both()

    def expire(self, now: float) -> None:
        """Tells of functions that have taken too long, once each."""
        running = list(self._running.values())
        self._told_overdue &= {work for work, _ in running}
        for work, since in running:
            if now - since > self._timeout_s and work not in self._told_overdue:
                self._told_overdue.add(work)
                self.overdue += 1
                message = work.message
                _log.warning(
                    "the handler of %s/%d offset %d has taken longer than %g s; it can't be ended",
                    *(message.topic, message.queue_id, message.queue_offset, self._timeout_s),
                )

    @property
    def is_here(self) -> bool:
        """See `Pool.is_here`; from any thread."""
        return getattr(_at_work, "pool", None) is self

    async def close(self) -> None:
        """Nothing more is begun. Threads that are at work end when they have done."""
        self.withdraw_for_good()
        for _ in self._threads:
            self._todo.put(None)

    def withdraw_for_good(self) -> None:
        """As `withdraw`, and nothing is given out again."""
        self._is_closed = True
        self.withdraw()

    def _add_thread(self) -> None:
        """One more, if the system has one; those that there are do what there is. Without any the
        consumer ends."""
        number = len(self._threads)
        thread = threading.Thread(
            target=self._run,
            args=(number, self._surround()),
            name=f"dledger-handler-{number}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                self._on_exit(client_error("starting a handler's thread", error))
            return
        self._threads.append(thread)

    def _settle(self) -> None:
        """Takes what threads have done. What can't be taken ends the consumer: nobody else would
        finish it."""
        try:
            self._take_settled()
        except Exception as error:  # noqa: BLE001 - a callback has nobody to tell
            self._on_exit(client_error("what a handler has done", error))

    def _take_settled(self) -> None:
        self._is_told = False
        while self._settled:
            settled = self._settled.popleft()
            self._given -= 1
            if not settled.began:
                self._desk.put_back(settled.work)
            elif settled.error is None:
                self._desk.succeed(settled.work)
            else:
                self._desk.fail(settled.work, settled.error)
                # A loop of the function's own may have ended by a cancellation: it has failed.
                if not isinstance(settled.error, Exception | asyncio.CancelledError):
                    self._on_exit(settled.error)
        self._wake_both()

    # --- on a thread --------------------------------------------------------------------------

    def _run(self, number: int, around: Surrounding | None) -> None:
        _at_work.pool = self
        while (work := self._todo.get()) is not None:
            now = clock()
            if now > self._may_start_until:
                self._tell(Settled(work, None, began=False))
                continue
            self._running[number] = (work, now)
            error: BaseException | None = None
            try:
                self._handle(work.message, around)
            except BaseException as raised:  # noqa: BLE001 - the event loop is told of it
                error = raised
            del self._running[number]
            self._tell(Settled(work, error, began=True))

    def _handle(self, message: Message, around: Surrounding | None) -> None:
        handler = self._handlers.get(message.topic, no_handler)
        if around is None:
            check_run(handler(message))
            return
        around.enter(message)
        try:
            check_run(handler(message))
        except BaseException as error:
            around.leave(type(error), error, error.__traceback__)
            raise
        around.leave()

    def _tell(self, settled: Settled) -> None:
        self._settled.append(settled)
        if not self._is_told:
            self._is_told = True
            try:
                self._loop.call_soon_threadsafe(self._settle)
            except RuntimeError:  # the loop is closed: nobody is left to be told
                return

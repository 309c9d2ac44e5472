"""Workers on the event loop: as many as there is work for are woken, and no others."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

import pytest

from dledger.client import Message
from dledger.client.members.member import Line
from dledger.client.members.process_queue import Bounds, Order, Place, ProcessQueue, Work
from dledger.client.members.workers import CoroutineWorkers, ThreadWorkers
from dledger.testing import make_message
from tests.client.loops import async_test

WORKERS = 16
LIMIT_S = 10.0


class Box:
    """A desk with messages on it; it counts how often it was asked for one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0
        self.works: deque[Work] = deque()

    def put(self, count: int) -> None:
        queue = ProcessQueue(Place("t", 1, 0), 1, None, order=Order.NONE, bounds=Bounds())
        message = make_message("t", b"")
        self.works.extend(Work(message, queue, None) for _ in range(count))

    def take(self, line: Line) -> Work | None:
        self.asked += 1
        return self.works.popleft() if self.works else None

    def put_back(self, work: Work) -> None:
        raise AssertionError(work)

    def succeed(self, work: Work) -> None:
        return None

    def fail(self, work: Work, error: BaseException) -> None:
        raise AssertionError(work) from error

    def may_start_until(self) -> float:
        return float("inf")


@pytest.mark.parametrize("count", [0, 1, 3, WORKERS, WORKERS + 5])
@async_test
async def test_no_more_workers_are_woken_than_find_something(count: int) -> None:
    """One more than that looks, and each message has a worker of its own as far as they go. A
    member that was told something woke all of its workers, for nothing as a rule."""
    box, begun, go_on = Box(), asyncio.Semaphore(0), asyncio.Event()

    async def handle(_message: Message) -> None:
        begun.release()
        await go_on.wait()

    workers = CoroutineWorkers(
        *(box, Line(), {"t": handle}),
        count=WORKERS,
        timeout_s=LIMIT_S,
        surround=lambda: None,
        on_exit=lambda _error: None,
    )
    await asyncio.sleep(0)
    assert box.asked == WORKERS, "each has looked once, and waits"
    box.put(count)
    workers.wake()
    async with asyncio.timeout(LIMIT_S):
        for _ in range(min(count, WORKERS)):
            await begun.acquire()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert box.asked <= WORKERS + count + 1
    assert len(box.works) == max(count - WORKERS, 0)
    go_on.set()
    await workers.close()


class Retries(Box):
    """A desk with one line, of what failed before: the coroutines' workers take it."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line = line
        self.put_backs = 0

    def take(self, line: Line) -> Work | None:
        return super().take(line) if line is self.line else None

    def put_back(self, work: Work) -> None:
        self.put_backs += 1
        self.works.appendleft(work)


@async_test
async def test_what_was_handed_on_and_is_withdrawn_is_taken_again() -> None:
    """Nobody has begun with it: whoever took it is woken, as the threads know of their own line
    alone. No more run at once than there are threads."""
    line, go_on = Line(), threading.Event()
    box, begun, done = Retries(line), asyncio.Semaphore(0), asyncio.Semaphore(0)
    loop, names = asyncio.get_running_loop(), set[str]()

    def handle(_message: Message) -> None:
        names.add(threading.current_thread().name)
        loop.call_soon_threadsafe(begun.release)
        assert go_on.wait(LIMIT_S)
        loop.call_soon_threadsafe(done.release)

    async def handle_too(_message: Message) -> None:
        raise AssertionError

    def on_exit(error: BaseException) -> None:
        raise AssertionError from error

    def no_hook() -> None:
        return None

    threads = ThreadWorkers(
        *(box, Line(), {"t": handle}),
        count=2,
        timeout_s=LIMIT_S,
        surround=no_hook,
        on_exit=on_exit,
    )
    tasks = CoroutineWorkers(
        *(box, line, {"u": handle_too}),
        count=2,
        timeout_s=LIMIT_S,
        surround=no_hook,
        on_exit=on_exit,
        threads=threads,
    )
    threads.handed_on_by = tasks
    box.put(20)
    async with asyncio.timeout(LIMIT_S):
        for _ in range(2):
            await begun.acquire()
        threads.withdraw()
        assert box.put_backs == 18
        go_on.set()
        for _ in range(20):
            await done.acquire()
    assert names == {"dledger-handler-0", "dledger-handler-1"}
    await tasks.close()
    await threads.close()

"""The event loop of a blocking client, on a thread of its own.

This owns the thread and the ways into it. It must never let a caller wait for a thread that has
ended, nor for the one that it is in itself, nor for one that stayed behind in another process.

Nothing gets in once the end has begun. What is on its way in by then is done all the same, and
calls are cancelled; what comes too late for that is taken back by its caller, who looks once more.
What ended in the loop's last turn has not been told to its caller yet: turns follow until every
call has been.
A signal's handler may raise in a caller's thread, between any two steps of Python's, or call in
here itself and wait. So nobody holds a lock on the way in: the loop's thread, or another one that
it waits for, would wait for it as well. And there is no `Future` of `concurrent.futures`: one that
was interrupted as it was asked stays locked.
Nor does it end by what a callback raises: a `SystemExit` ends that callback, as it would on a
thread of its own, is told to the loop's exception handler, and the loop goes on for the others.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, Self, TypeVar

from dledger.client.errors import ClientClosed, Forked, InvalidArgument
from dledger.outcome import Outcome

Answer = TypeVar("Answer")


class _Call(Generic[Answer]):
    """What another thread waits for. `ended` is locked until `task` is done."""

    __slots__ = ("_work", "ended", "task")

    def __init__(self, work: Coroutine[Any, Any, Answer]) -> None:
        self._work = work
        self.task: asyncio.Task[Answer] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def begin(self, loop: asyncio.AbstractEventLoop, forget: Callable[[Self], None]) -> None:
        """It is at work; `forget` is called before its caller is told of the end."""

        def end(_: asyncio.Task[Answer]) -> None:
            forget(self)
            self.ended.release()

        self.task = loop.create_task(self._work)
        self.task.add_done_callback(end)

    def cancel(self) -> None:
        """Nobody waits any more; it may not have begun, and won't then."""
        if self.task is None:
            self._work.close()
        else:
            self.task.cancel()


class LoopThread:
    """An event loop on its own thread. A daemon, so that a script that dies does not hang."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._acts: deque[Callable[[], object]] = deque()  # on their way in, in order
        self._is_ending = False  # nothing more gets in
        self._is_over = False  # what is on its way in is done by nobody any more
        self._has_stopped = False
        self._waiting: list[threading.Lock] = []  # each locked until the loop is closed
        self._calls: set[_Call[Any]] = set()  # of the loop's thread: whose callers wait
        self._thread = threading.Thread(target=self._run, name="dledger-client", daemon=True)
        self._thread.start()

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process was forked off the one that has the thread."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Returns in the process that has the thread.

        Raises:
            Forked: in another one.
        """
        if self.is_of_another_process:
            raise Forked(
                "the client was connected before this process was forked: connect in the child"
            )

    @property
    def is_inside(self) -> bool:
        """Whether the caller is in the thread itself."""
        return threading.current_thread() is self._thread

    def check_outside(self) -> None:
        """Returns where one may wait for the thread.

        Raises:
            InvalidArgument: in the thread itself, which would wait for itself.
        """
        if self.is_inside:
            raise InvalidArgument(
                "a blocking call on the client's own thread, from a future's callback or a "
                "coroutine that it runs, would wait for itself"
            )

    def post(self, act: Callable[[], object]) -> None:
        """`act` will be called on the loop's thread, after what was posted earlier.

        Raises:
            ClientClosed: the thread has ended, or is about to.
            Forked: it is another process's, whose loop a child's word would wake for nothing.
        """
        self.check()
        if self._is_ending:
            raise ClientClosed("the client was closed")
        act = partial(act)  # equals no other thread's, which may be of the same method
        self._acts.append(act)
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._do_next)
        if self._is_over and self._is_taken_back(act):
            raise ClientClosed("the client was closed")

    def _is_taken_back(self, act: Callable[[], object]) -> bool:
        """Whether nobody has done it, nor ever will."""
        try:
            self._acts.remove(act)
        except ValueError:
            return False
        return True

    def _do_next(self) -> None:
        """Has done what has arrived; an error is the loop's, and what is left has turns to come."""
        for _ in range(len(self._acts)):
            try:
                act = self._acts.popleft()
            except IndexError:  # it was taken back
                return
            act()

    def report(self, context: dict[str, Any]) -> None:
        """The loop's exception handler hears of `context`, if there still is a loop here."""
        with suppress(ClientClosed, Forked):
            self.post(partial(self.loop.call_exception_handler, context))

    def run(self, act: Callable[[], None]) -> None:
        """Has done `act` on the loop's thread."""

        async def acting() -> None:
            act()

        self.call(acting())

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """What `work` returns; an interrupted caller cancels it.

        Raises:
            ClientClosed: the thread has ended: `work` was not begun; or did meanwhile: what it did
                may have happened.
            Forked: it is another process's.
            InvalidArgument: the caller is in that thread.
        """
        call = _Call(work)
        try:
            self.check()
            self.check_outside()
            self.post(partial(self._begin, call))
        except (ClientClosed, Forked, InvalidArgument):
            work.close()
            raise
        except BaseException:
            self._cancel(call)
            raise
        try:
            call.ended.acquire()
        except BaseException:
            self._cancel(call)
            raise
        try:
            assert call.task is not None
            return call.task.result()
        except asyncio.CancelledError:
            # It was on the wire, or between two attempts of which one may have been heard.
            unknown = Outcome.MAY_HAVE_HAPPENED
            text = "the client was closed during the call"
            raise ClientClosed(text, outcome=unknown) from None
        finally:
            del call, work  # an error knows this frame, and would keep them

    def _cancel(self, call: _Call[Any]) -> None:
        """The call's caller was interrupted, perhaps before it was on its way."""
        with suppress(ClientClosed, Forked):
            self.post(call.cancel)

    def _begin(self, call: _Call[Any]) -> None:
        """On the loop's thread."""
        self._calls.add(call)
        call.begin(self.loop, self._calls.discard)

    def stop(self) -> None:
        """Ends loop and thread; what is still to be done there is given up.

        Raises:
            Forked: it is another process's.
            InvalidArgument: in the thread itself.
        """
        self.check()
        self.check_outside()
        self._is_ending = True
        with suppress(RuntimeError):  # it is closed: by another thread, or a signal's handler
            self.loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    def wait_for_end(self) -> None:
        """Returns once nothing is done in the thread any more, if its end has begun: in a signal's
        handler, too, that was called in the midst of `stop`."""
        if not self._is_ending:
            return
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self._stop)
        over = threading.Lock()  # one's own: who was interrupted in `join` has the thread's
        over.acquire()
        self._waiting.append(over)
        if not self.loop.is_closed():
            over.acquire()

    def _stop(self) -> None:
        if not self._has_stopped:
            self._has_stopped = True
            self.loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._has_stopped:
                with self._outlived():
                    self.loop.run_forever()
            self._give_up()
            self._is_over = True  # whoever is on the way in sees this, or is seen here
            while self._acts:
                self._give_up()
        finally:
            self._is_over = True
            self.loop.close()
            for over in tuple(self._waiting):
                over.release()

    def _give_up(self) -> None:
        """Cancels calls of other threads, and what they began, until everybody has been told."""
        while True:
            if self._acts:
                self.loop.call_soon(self._do_next)
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self._finish(asyncio.wait(left) if left else asyncio.sleep(0))
            if not (left or self._calls or self._acts or asyncio.all_tasks(self.loop)):
                return

    def _finish(self, work: Coroutine[Any, Any, object]) -> None:
        with self._outlived():
            self.loop.run_until_complete(work)

    @contextmanager
    def _outlived(self) -> Iterator[None]:
        """The loop lets these two through from any callback; neither was meant for this thread."""
        try:
            yield
        except (SystemExit, KeyboardInterrupt) as error:
            report_exit(self.loop, error)


def report_exit(loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
    """Tells the loop's handler of a `SystemExit`, or whatever else that is no `Exception`, that a
    callback raised and that ends nothing but the callback."""
    text = (
        f"dledger.client: a future's callback raised {type(error).__name__}: it ends nothing else"
    )
    loop.call_exception_handler({"message": text, "exception": error})

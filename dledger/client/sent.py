"""The future of a message that was sent by a thread, and what waits for many of them.

The loop's thread settles it, and a signal's handler may raise in the thread that looks at it,
between any two steps of Python's. A `Future` is guarded by a `Condition`, whose way in is Python's:
who is interrupted there leaves it locked for ever, and the loop's thread, which is to settle it,
waits for that, and everybody for the loop's thread. So this one is guarded by a lock of the
interpreter's own, taken and let go in one step, and who waits has a lock of his own.
"""

from __future__ import annotations

import threading
from _thread import RLock
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, LOGGER
from contextlib import suppress
from time import monotonic
from typing import Any, Final, cast

from dledger.client.errors import ClientError, SendsFailed
from dledger.client.failed_sends import here
from dledger.client.results import SendResult

_CANCELLED: Final = frozenset({CANCELLED, CANCELLED_AND_NOTIFIED})
_DONE: Final = _CANCELLED | {FINISHED}


class _Guard(RLock):  # type: ignore[misc]  # the stubs call it final; the interpreter doesn't
    """In place of a future's condition. Nobody waits for it: see `Sent`."""

    def wait(self, timeout: float | None = None) -> bool:
        """The time is over."""
        del timeout
        return False

    def notify_all(self) -> None:
        """Nobody waits here."""


class Sent(Future[SendResult]):
    """A message's future, which knows whether somebody has asked what became of it.

    Args:
        check: returns where somebody will settle it; raises `Forked` in another process.
        check_outside: returns where that may be waited for; raises in the thread that settles it.
    """

    _done_callbacks: list[Callable[[Future[SendResult]], object]]

    def __init__(self, check: Callable[[], None], check_outside: Callable[[], None]) -> None:
        super().__init__()
        self._condition = _Guard()  # type: ignore[assignment]  # as far as a future needs one
        self._bells: list[threading.Lock] = []  # of those who wait, each locked
        self._check = check
        self._check_outside = check_outside
        self._is_over = False  # of the thread that settles it
        self.sender = here.sender
        self.asked = self._is_known = False  # by whoever asks now; and by one who was answered

    def may_settle(self) -> bool:
        """It is known what became of the message: whether that is to be set now, and not if it was
        before, or the caller has cancelled. Who waits for one that was cancelled is told, which may
        be done once. For the thread that settles it."""
        if self._is_over:
            return False
        self._is_over = True
        return self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> SendResult:
        """See `Future.result`; `Forked` where nobody would ever settle it, `InvalidArgument` in
        the thread that does: it would wait for itself."""
        error = self.exception(timeout)
        try:
            if error is not None:
                raise error
            return cast(SendResult, self._result)
        finally:
            error = None  # it knows this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`; `Forked` and `InvalidArgument` as `result` says."""
        self.asked = True  # before it is settled: nobody else need be told
        try:
            self._wait(timeout)
            error = self._failure()
        except BaseException:  # the time is over, or the asker was interrupted: he knows nothing
            self.asked = self._is_known
            raise
        self.asked = self._is_known = True
        return error

    def done(self) -> bool:
        """See `Future.done`."""
        return self._state in _DONE

    def cancelled(self) -> bool:
        """See `Future.cancelled`."""
        return self._state in _CANCELLED

    def add_done_callback(self, fn: Callable[[Future[SendResult]], object]) -> None:
        """See `Future.add_done_callback`."""
        once = [fn]

        def call_once(sent: Future[SendResult]) -> None:
            try:
                call = once.pop()
            except IndexError:
                return
            call(sent)

        self._done_callbacks.append(call_once)
        if self.done():  # whoever settles it may have called them all before
            try:
                call_once(self)
            except Exception:  # noqa: BLE001 - as a future's own
                LOGGER.exception("exception calling callback for %r", self)

    def _failure(self) -> BaseException | None:
        """Of a message whose fate is known: None, if it is stored. What is set was set in one
        step, the state last: looking at it takes no lock.

        Raises:
            CancelledError, TimeoutError: it was cancelled; it isn't known.
        """
        state = self._state
        if state in _CANCELLED:
            raise CancelledError
        if state not in _DONE:
            raise TimeoutError
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        """It is settled, or the time is over."""
        if self.done():
            return
        self._check()
        if timeout is None or timeout > 0:
            self._check_outside()
        due = None if timeout is None else monotonic() + timeout
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        try:
            # Who settles it rings for those who were here by then; who rings has not always.
            while not self.done():
                left_s = -1 if due is None else max(due - monotonic(), 0.0)
                if not bell.acquire(timeout=left_s):
                    break
        finally:
            self._bells.remove(bell)

    def cancel(self) -> bool:
        """See `Future.cancel`."""
        try:
            return super().cancel()
        finally:
            if self.done():  # it may just be settled, and isn't known yet
                self._ring()

    def set_result(self, result: SendResult) -> None:
        """See `Future.set_result`."""
        try:
            super().set_result(result)
        finally:  # whatever a callback raises
            self._ring()

    def set_exception(self, exception: BaseException | None) -> None:
        """See `Future.set_exception`."""
        try:
            super().set_exception(exception)
        finally:
            self._ring()

    def _ring(self) -> None:
        for bell in tuple(self._bells):
            with suppress(RuntimeError):  # it rings already
                bell.release()


class Bulk:
    """What becomes of the messages of one `send_all`. Whoever settles one holds no lock for it, as
    its sender may be interrupted, or may wait for others in a signal's handler, at any time."""

    def __init__(self) -> None:
        self._settled: deque[BaseException | None] = deque()  # by whoever settles, not counted yet
        self._bell = threading.Lock()  # locked until one more is settled
        self._bell.acquire()
        self._watching = True
        # Of its sender:
        self._watched = self._stored = self._failed = 0
        self._errors: list[ClientError] = []

    @property
    def has_failed(self) -> bool:
        """Whether any message has."""
        self._count()
        return bool(self._failed)

    def leave(self) -> None:
        """Looks at no future any more: what fails from now on is `flush`'s and `close`'s."""
        self._watching = False

    def watch(self, future: Future[SendResult]) -> None:
        """`future` is of one more message."""
        self._watched += 1
        future.add_done_callback(self._on_settled)

    def end(self) -> int:
        """How many were stored, once each has its answer.

        Raises:
            SendsFailed: not all were.
        """
        self._count()
        while self._stored + self._failed < self._watched:
            self._bell.acquire()
            self._count()
        if self._errors:
            raise SendsFailed.of(self._errors, self._failed)
        return self._stored

    def _count(self) -> None:
        while self._settled:
            error = self._settled.popleft()
            if isinstance(error, ClientError):
                self._failed += 1
                if len(self._errors) < SendsFailed.MAX_FAILURES:
                    self._errors.append(error)
            else:
                self._stored += 1

    def _on_settled(self, future: Future[Any]) -> None:
        if not self._watching:
            return
        self._settled.append(None if future.cancelled() else future.exception())
        with suppress(RuntimeError):  # it rings already
            self._bell.release()

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
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dledger.client.errors import ClientError, SendsFailed
from dledger.client.failed_sends import here
from dledger.client.results import SendResult


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

    def __init__(self, check: Callable[[], None], check_outside: Callable[[], None]) -> None:
        super().__init__()
        self._condition = _Guard()  # type: ignore[assignment]  # as far as a future needs one
        self._bells: list[threading.Lock] = []  # of those who wait, each locked
        self._check = check
        self._check_outside = check_outside
        self._is_over = False  # of the thread that settles it
        self.sender = here.sender
        self.asked = False

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
        self.asked = True
        try:
            self._wait(timeout)
            return super().result(0)
        finally:
            self.asked = self.done()  # it may be the timeout that is over

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`; `Forked` and `InvalidArgument` as `result` says."""
        self.asked = True
        try:
            self._wait(timeout)
            return super().exception(0)
        finally:
            self.asked = self.done()

    def _wait(self, timeout: float | None) -> None:
        """It is settled, or the time is over."""
        if self.done():
            return
        self._check()
        if timeout is None or timeout > 0:
            self._check_outside()
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        try:
            if not self.done():  # who settles it rings for those who were here by then
                bell.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))
        finally:
            self._bells.remove(bell)

    def cancel(self) -> bool:
        """See `Future.cancel`."""
        try:
            return super().cancel()
        finally:
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
            if bell.locked():
                bell.release()


class Bulk:
    """What becomes of the messages of one `send_all`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bell = threading.Lock()  # locked while its sender waits
        self._pending = self._stored = self._failed = 0
        self._errors: list[ClientError] = []
        self._watching = True

    @property
    def has_failed(self) -> bool:
        """Whether any message has."""
        return bool(self._failed)

    def leave(self) -> None:
        """Looks at no future any more: what fails from now on is `flush`'s and `close`'s."""
        self._watching = False

    def watch(self, future: Future[SendResult]) -> None:
        """`future` is of one more message."""
        with self._lock:
            self._pending += 1
        future.add_done_callback(self._on_settled)

    def end(self) -> int:
        """How many were stored, once each has its answer.

        Raises:
            SendsFailed: not all were.
        """
        while self._is_pending():
            self._bell.acquire()
        if self._errors:
            raise SendsFailed.of(self._errors, self._failed)
        return self._stored

    def _is_pending(self) -> bool:
        """Whether some have none yet: the bell is locked then until that changes."""
        with self._lock:
            if self._pending and not self._bell.locked():
                self._bell.acquire()
            return bool(self._pending)

    def _on_settled(self, future: Future[Any]) -> None:
        if not self._watching:
            return
        error = None if future.cancelled() else future.exception()
        with self._lock:
            self._pending -= 1
            if isinstance(error, ClientError):
                self._failed += 1
                if len(self._errors) < SendsFailed.MAX_FAILURES:
                    self._errors.append(error)
            else:
                self._stored += 1
            if self._bell.locked():
                self._bell.release()

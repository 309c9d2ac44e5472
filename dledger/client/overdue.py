"""Messages that are overdue before their producer could take them: each is told at its time.

This owns the timer of one blocking producer that looks for them among what is on its way. A message
costs no timer: there is one, for the soonest. It never takes a message from its place: what is
overdue is passed over in its turn.

Times are those of `time.monotonic`, as asyncio's are.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import floor, frexp, inf, ldexp
from time import monotonic
from typing import Final

from dledger.client.arguments import seconds
from dledger.client.errors import ClientClosed, DeadlineExceeded, InvalidArgument, Subject
from dledger.client.faults import contained
from dledger.client.loop_thread import LoopThread
from dledger.client.sent import Sent

MIN_LOOK_S: Final = 0.05  # between two looks at all that is on its way
TOLD_IN_ONE_TURN: Final = 256  # of the loop
NEVER_S: Final = 1e9  # a later deadline runs from where the producer takes the message
_PARTS: Final = 256


def due_at(deadline_s: object) -> float | None:
    """When a message that is sent now with this deadline is overdue. None: never; or that is no
    time, or over by now, which is told where all arguments are looked at."""
    try:
        left_s = float(seconds("deadline_s", deadline_s))
    except (InvalidArgument, OverflowError):
        return None
    return monotonic() + left_s if 0 < left_s < NEVER_S else None


def left_s(due: float) -> float:
    """How long until then, rounded down, by 1/128 of it at most: messages for which as much is left
    share a batch, and with all digits no two would.

    Raises:
        DeadlineExceeded: it is over.
    """
    left = due - monotonic()
    if left <= 0:
        raise overdue()
    mantissa, exponent = frexp(left)
    return ldexp(floor(mantissa * _PARTS), exponent) / _PARTS


def overdue() -> DeadlineExceeded:
    """What the future of a message is told that waited for too long."""
    return DeadlineExceeded(
        "the deadline is over, and the message still waited for room", subject=Subject.MESSAGE
    )


class Overdue:
    """Looks for what is overdue.

    Args:
        lock: is held where anything is put on its way.
        dated: with the lock held, what is on its way and has a time, with its future.
        fail: a message's future gets this error, unless it was told before.
    """

    def __init__(
        self,
        thread: LoopThread,
        lock: threading.RLock,
        dated: Callable[[], Iterable[tuple[float, Sent | None]]],
        fail: Callable[[Sent, DeadlineExceeded], None],
    ) -> None:
        self._thread = thread
        self._lock = lock
        self._dated = dated
        self._fail = fail
        self._look_at = inf  # under the lock
        # Of the loop's thread:
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = -inf
        self._found: deque[Sent] = deque()

    def note(self, due: float) -> None:
        """A message was put on its way, under the lock, that is due then."""
        if due < self._look_at:
            with suppress(ClientClosed):  # whatever is on its way is told that
                self._thread.post(self._arm)
            self._look_at = due  # not before: who is interrupted there leaves it to the next

    def stop(self) -> None:
        """Nothing that is on its way has a time any more; on the loop's thread."""
        with self._lock:
            self._look_at = inf
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            at = max(self._look_at, self._looked_at + MIN_LOOK_S)
        if at < inf:
            self._timer = self._thread.loop.call_later(max(at - monotonic(), 0.0), self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._looked_at = monotonic()
        with self._lock:
            dated = list(self._dated())
            self._look_at = min((due for due, _ in dated if due > now), default=inf)
        self._arm()
        is_telling = bool(self._found)
        self._found = deque(sent for due, sent in dated if due <= now and sent is not None)
        if not is_telling:
            self._tell()

    def _tell(self) -> None:
        """So many in one turn of the loop, as their callers may have callbacks."""
        for _ in range(min(TOLD_IN_ONE_TURN, len(self._found))):
            with contained("telling what is overdue"):
                self._fail(self._found.popleft(), overdue())
        if self._found:
            self._thread.loop.call_soon(self._tell)

"""Messages that are overdue before their producer could take them: each is told at its time.

This owns the timer of one blocking producer that looks for them among what is on its way. A message
costs no timer: there is one, for the soonest. It never takes a message from its place: what is
overdue is passed over in its turn.

Times are those of `time.monotonic`, as asyncio's are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
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
        dated: what is on its way and has a time, with its future.
        fail: a message's future gets this error, unless it was told before.
    """

    def __init__(
        self,
        thread: LoopThread,
        dated: Callable[[], Iterable[tuple[float, Sent | None]]],
        fail: Callable[[Sent, DeadlineExceeded], None],
    ) -> None:
        self._thread = thread
        self._dated = dated
        self._fail = fail
        # Of the loop's thread; senders read it.
        self._looks = 0
        # After so many looks the timer was set for so soon: by whoever sends, without a lock.
        self._noted = (0, inf)
        # Of the loop's thread:
        self._look_at = inf
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = -inf
        self._found: deque[Sent] = deque()
        self._is_stopped = False

    def note(self, due: float) -> None:
        """A message was put on its way that is due then."""
        looks, noted = self._looks, self._noted
        if noted[0] != looks or due < noted[1]:
            with suppress(ClientClosed):  # whatever is on its way is told that
                self._thread.post(partial(self._expect, due))
            self._noted = (looks, due)  # not before: who is interrupted leaves it to the next

    def stop(self) -> None:
        """Nothing that is on its way has a time any more; on the loop's thread."""
        self._look_at = inf
        self._is_stopped = True
        self._arm()

    def _expect(self, due: float) -> None:
        if due < self._look_at and not self._is_stopped:
            self._look_at = due
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = max(self._look_at, self._looked_at + MIN_LOOK_S)
        if at < inf:
            self._timer = self._thread.loop.call_later(max(at - monotonic(), 0.0), self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._looked_at = monotonic()
        self._looks += 1  # first: whoever sends from here on may not be seen, and notes it anew
        dated = list(self._dated())
        self._look_at = min((due for due, _ in dated if due > now), default=inf)
        self._noted = (self._looks, self._look_at)
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

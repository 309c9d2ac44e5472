"""A producer's pause after a failure: 5 ms, doubling to 500 ms, jittered.

It owns one timer and how long the next pause will be; what a failure is, and what is to be done
afterwards, is its owner's. It never runs what was to follow before its time, unless told to.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

PAUSE_MIN_S: Final = 0.005
PAUSE_MAX_S: Final = 0.5


class Pause:
    """Nothing is to be sent while it `lasts`; `resume` is called at its end."""

    def __init__(self, resume: Callable[[], None]) -> None:
        self._resume = resume
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._next_s = 0.0

    @property
    def lasts(self) -> bool:
        return self._handle is not None

    def begin(self) -> None:
        """What was refused would be refused again; each failure makes the next pause longer."""
        self._next_s = min(max(2 * self._next_s, PAUSE_MIN_S), PAUSE_MAX_S)
        if self._handle is None:
            wait_s = self._next_s * random.uniform(0.5, 1.0)
            self._handle = self._loop.call_later(wait_s, self._over)

    def forget(self) -> None:
        """Something succeeded, or went elsewhere: the next pause is short again."""
        self._next_s = 0.0

    def end(self) -> None:
        """It is over, without a word to anybody."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _over(self) -> None:
        self._handle = None
        self._resume()

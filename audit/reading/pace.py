"""How fast an audit reads: a pace keeps it from taking the disk from a node that serves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_LONGEST_NAP_S: Final = 1.0


class Pace:
    """Holds a reader to `bytes_per_s`; 0 holds it to nothing.

    Time not used is not saved up, so a reader that was slow can't catch up in a burst.
    """

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._nap = nap
        self._free_at = clock()

    def spend(self, size: int) -> None:
        """`size` bytes were read; returns when the next may be."""
        if self._bytes_per_s <= 0:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        while (wait := self._free_at - self._clock()) > 0:
            self._nap(min(wait, _LONGEST_NAP_S))

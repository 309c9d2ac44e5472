"""How long a run waits for the group: for as long as it gets on, on a machine of any speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

STILL_S: Final = 120.0
MOST_S: Final = 600.0


class Patience:
    """Is over when nothing has moved for `still_s`, and after `most_s` in any case."""

    def __init__(
        self,
        still_s: float = STILL_S,
        most_s: float = MOST_S,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._still_s = still_s
        self._clock = clock
        self._last = clock() + most_s
        self._reached = -1
        self._until = clock() + still_s

    def is_over(self, reached: int) -> bool:
        """Whether to give up; `reached` grows while things get on."""
        now = self._clock()
        if reached > self._reached:
            self._reached, self._until = reached, now + self._still_s
        return now >= min(self._until, self._last)

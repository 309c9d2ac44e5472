"""Which bytes of one machine's disk have rotted, and what they were.

Asked after each event, of thousands of bytes at times: where in the log they lie is worked out once
for as long as none is added or put right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import UserDict
from pathlib import Path


class RottenBytes(UserDict[tuple[Path, int], int]):
    """(file, byte) -> what it was, and isn't."""

    _in_log: list[int] | None = None  # positions, sorted; None: to be worked out

    def __setitem__(self, place: tuple[Path, int], before: int) -> None:
        self._in_log = None
        super().__setitem__(place, before)

    def __delitem__(self, place: tuple[Path, int]) -> None:
        self._in_log = None
        super().__delitem__(place)

    @property
    def in_log(self) -> list[int]:
        """Positions in the log, sorted."""
        if self._in_log is None:
            self._in_log = sorted(
                int(path.name) + at for path, at in self.data if path.parent.name == "commitlog"
            )
        return self._in_log

    def is_in_log_between(self, first: int, end: int) -> bool:
        """Whether a byte of `[first, end)` of the log has rotted."""
        found = bisect_left(self.in_log, first)
        return found < len(self.in_log) and self.in_log[found] < end

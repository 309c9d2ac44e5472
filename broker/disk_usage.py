"""How full the disk of this node's data directory is: for its own leader, and for the group's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.disk_figures import DiskFigure
from store.files import FileSystem

STALE_S: Final = 10.0  # a disk that can't be measured for so long is one of which nothing is known


@dataclass(frozen=True, slots=True)
class _Measured:
    figure: DiskFigure
    at_s: float


class DiskUsage:
    """Of one data directory: `measure` blocks, and may be called on another thread.

    Args:
        clock: monotonic, seconds.
    """

    def __init__(self, files: FileSystem, path: Path, clock: Callable[[], float]) -> None:
        self._files = files
        self._path = path
        self._clock = clock
        self._last: _Measured | None = None

    def measure(self) -> None:
        """What there is, as of now. A file system that doesn't tell is no reason for anything.

        Raises:
            DirectoryReplaced: the directory isn't this node's any more; so within a second, though
                nothing else had to be done there.
        """
        try:
            total = self._files.total_bytes(self._path)
            free = self._files.free_bytes(self._path)
        except OSError:
            self._last = None
            return
        known = DiskFigure(min(max(free, 0), total), total) if total > 0 else None
        self._last = None if known is None else _Measured(known, self._clock())

    def figure(self) -> DiskFigure | None:
        """As of the last time that it was measured, if that is not long ago."""
        last = self._last
        return None if last is None or self._clock() - last.at_s > STALE_S else last.figure

"""The segment that an export has to reach the end of: the file that an archive command was given,
which goes once that command has ended well.

A node lets go by what it has applied, an export reads by what its checkpoint calls committed, and
the second may be behind the first: what an export hasn't read it must not call archived.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from audit.errors import SegmentNotReached, UsageMistake
from dledger.reading.files import opened
from dledger.reading.places import fills_up
from dledger.records.layout import FILE_NAME


@dataclass(frozen=True, slots=True)
class WantedSegment:
    """A file of the log: physical offset of its first byte, and its size in bytes."""

    path: Path
    base: int
    size: int

    @classmethod
    def at(cls, path: Path) -> Self:
        """The file there.

        Raises:
            UsageMistake: it is no segment.
        """
        if not FILE_NAME.fullmatch(path.name) or not path.is_file():
            raise UsageMistake(f"--through {path} names no segment of a log")
        return cls(path, int(path.name), path.stat().st_size)

    def check_reached(self, end: int) -> None:
        """Whoever has the log up to the physical offset `end` has all of the segment's entries.

        Raises:
            SegmentNotReached: some may be missing.
            OSError: the segment can't be read.
        """
        place = end - self.base
        if place >= self.size:
            return
        if place > 0:
            with opened(str(self.path)) as descriptor:
                if fills_up(descriptor, place, self.size):
                    return
        raise SegmentNotReached(str(self.path), end, self.base + self.size)

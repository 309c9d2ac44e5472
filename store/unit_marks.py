"""What a queue's units are to be, in 4 bytes for every 1,024: whoever reads them can tell.

A unit has no checksum, and one that is read for what it *isn't* (a message with a wanted tag) is
compared with no record. This remembers the CRC32C of a queue's units at regular places, as they
were derived or found to be right; what lies between two of them is then as good as the log. It
must never learn from bytes that came from a file and were compared with nothing. Pure.
"""

from __future__ import annotations

from array import array
from typing import Final

from crc32c import crc32c

from store.dispatch import UNIT_SIZE

STEP: Final = 1_024  # units between two marks


class UnitMarks:
    """Of one queue, for the offsets `[first, end)`.

    Args:
        first: a queue offset.
        crc: what the CRC goes on from; any will do.
    """

    __slots__ = ("_marks", "crc", "end", "first")

    def __init__(self, first: int, crc: int = 0) -> None:
        self.first = self.end = first
        self.crc = crc  # as of `end`
        self._marks = array("I", (crc,))  # as of `first`, and of each step behind it

    def extend(self, units: bytes | memoryview) -> None:
        """The units from `end` on are these."""
        at = 0
        while at < len(units):
            room = STEP - (self.end - self.first) % STEP
            piece = units[at : at + room * UNIT_SIZE]
            self.crc = crc32c(piece, self.crc)
            self.end += len(piece) // UNIT_SIZE
            if (self.end - self.first) % STEP == 0:
                self._marks.append(self.crc)
            at += len(piece)

    def forget_before(self, first: int) -> None:
        """Of the units before the offset `first`, `end` at most, nobody asks any more. Its marks
        stay where they are."""
        steps = (first - self.first) // STEP
        if steps > 0:
            del self._marks[:steps]
            self.first += steps * STEP

    def __len__(self) -> int:
        return len(self._marks)

    def around(self, first: int, end: int) -> tuple[int, int]:
        """The marks between which all of `[first, end)` lies, of which nothing is outside."""
        low = first - (first - self.first) % STEP
        high = end + (self.first - end) % STEP
        return low, min(high, self.end)

    def proven(self, low: int, units: bytes) -> int:
        """Up to which offset the units from the mark `low` on are what they are to be."""
        view, at = memoryview(units), low
        while at < self.end and (at - low) * UNIT_SIZE < len(units):
            behind = min(at + STEP, self.end)
            number, is_last = divmod(behind - self.first, STEP)
            expected = self.crc if is_last else self._marks[number]
            piece = view[(at - low) * UNIT_SIZE : (behind - low) * UNIT_SIZE]
            if crc32c(piece, self._marks[(at - self.first) // STEP]) != expected:
                break
            at = behind
        return at

"""Where the entries of one segment begin.

The newest segments remember the start of every entry (4 bytes each); older ones one start per
`SPARSE_BYTES`, a *mark*, and find the rest again by walking the headers of one block. Marks are
kept from the first entry on, so that neither forgetting nor cutting ever looks at each of a million
entries: both happen on the event loop, and take it no longer for a full segment than for an empty
one. It must never answer for an entry that was cut off.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from store.intact import Marks

SPARSE_BYTES: Final = 64 << 10


class Run(NamedTuple):
    """Entries `[slot, next_slot)`, of which the first begins at `start` and the one behind the last
    at `next_start`; None: the segment's entries end there."""

    slot: int
    start: int
    next_slot: int
    next_start: int | None


# A run of entries to where each of them begins.
Walk = Callable[[Run], "array[int]"]


class Starts:
    """Slots count entries from 0, offsets are relative to the segment. Every start from the slot
    `dense_from` on is in memory, of those before only the marks."""

    __slots__ = ("_dense", "_dense_from", "_mark_slots", "_marks", "_walk")

    def __init__(self) -> None:
        self._dense = array("I")
        self._dense_from = 0
        self._mark_slots = array("I")
        self._marks = array("I")
        self._walk: Walk | None = None

    def add(self, start: int) -> None:
        """The next entry begins at `start`."""
        marks = self._marks
        if not marks or start - marks[-1] >= SPARSE_BYTES:
            self._mark_slots.append(self._dense_from + len(self._dense))
            marks.append(start)
        self._dense.append(start)

    def forget(self, walk: Walk) -> None:
        """Only the marks are kept of the entries so far; `walk` finds the others again."""
        self._dense_from += len(self._dense)
        self._dense = array("I")
        self._walk = walk

    def pass_over(self, start: int, count: int, walk: Walk, marks: Marks | None) -> None:
        """So many entries follow, the first of them at `start`; `walk` finds the others again.

        Args:
            marks: of the whole segment; those of the entries that follow are kept.
        """
        self.forget(walk)
        if marks is None:
            self._mark_slots.append(self._dense_from)
            self._marks.append(start)
        else:
            behind = bisect_left(marks.slots, self._dense_from)
            self._mark_slots += marks.slots[behind:]
            self._marks += marks.starts[behind:]
        self._dense_from += count

    def marks(self, count: int) -> Marks:
        """Those among the first `count` entries."""
        kept = bisect_left(self._mark_slots, count)
        return Marks(self._mark_slots[:kept], self._marks[:kept])

    def cut(self, slot: int) -> None:
        """`slot` and what follows it are gone."""
        if slot >= self._dense_from:
            del self._dense[slot - self._dense_from :]
        else:
            self._dense = array("I")
            self._dense_from = slot
        kept = bisect_left(self._mark_slots, slot)
        del self._mark_slots[kept:]
        del self._marks[kept:]

    def start_of(self, slot: int) -> int:
        """Where the entry in `slot` begins."""
        if slot >= self._dense_from:
            return self._dense[slot - self._dense_from]
        block = bisect_right(self._mark_slots, slot) - 1
        if self._mark_slots[block] == slot:
            return self._marks[block]
        return self._block(block)[slot - self._mark_slots[block]]

    def slot_at(self, offset: int) -> int:
        """The greatest slot that begins at or before `offset`; -1 if none does."""
        dense = self._dense
        if dense and offset >= dense[0]:
            return self._dense_from + bisect_right(dense, offset) - 1
        block = bisect_right(self._marks, offset) - 1
        if block < 0:
            return -1
        if self._mark_slots[block] >= self._dense_from:
            block -= 1  # The last entry that isn't remembered is in the block before.
        return self._mark_slots[block] + bisect_right(self._block(block), offset) - 1

    def run_at(self, offset: int) -> Run:
        """What is known without a look at the file: the run of entries around `offset`, which an
        entry begins before or at. One entry where every start is in memory, else a mark's."""
        dense = self._dense
        if dense and offset >= dense[0]:
            at = bisect_right(dense, offset) - 1
            slot, is_last = self._dense_from + at, at + 1 == len(dense)
            return Run(slot, dense[at], slot + 1, None if is_last else dense[at + 1])
        block = bisect_right(self._marks, offset) - 1
        if self._mark_slots[block] >= self._dense_from:
            block -= 1
        return self._run(block)

    def _run(self, block: int) -> Run:
        """A block's entries that are not in memory."""
        dense, slot, start = self._dense, self._mark_slots[block], self._marks[block]
        if block + 1 < len(self._marks) and self._mark_slots[block + 1] <= self._dense_from:
            return Run(slot, start, self._mark_slots[block + 1], self._marks[block + 1])
        return Run(slot, start, self._dense_from, dense[0] if dense else None)

    def _block(self, block: int) -> array[int]:
        """The starts of a block's entries that are not in memory."""
        if self._walk is None:
            raise AssertionError("nothing was forgotten before `forget`")
        return self._walk(self._run(block))

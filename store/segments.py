"""Segments of the log and where each entry begins in them.

This owns the in-memory index from Raft indexes to byte positions, and nothing on disk: it reads
headers when it has forgotten them, and never writes. The newest segments keep the start of every
entry, older ones few (`store.starts`), so that memory stays bounded by the size of the log on disk
(128 KiB a GiB) and a look-up never reads more than one block.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Final

from dledger.reading.entry import FILLER_HEADER_SIZE, HEADER_SIZE, EntryHeader, parse_header
from dledger.records.errors import InvalidFrame
from store.errors import CorruptionFound, OutOfRange
from store.files import FileSystem, Handle, read_exactly
from store.intact import IntactRun
from store.starts import SPARSE_BYTES, Run, Starts

DENSE_SEGMENTS: Final = 8
CACHED_BLOCKS: Final = 64

BlockKey = tuple[int, int, int]


class Segment:
    """One open segment file and what the log knows of it. Owned by the log's owner thread."""

    __slots__ = ("base", "count", "filled", "first_index", "handle", "path", "starts", "used")

    def __init__(self, base: int, path: Path, handle: Handle) -> None:
        self.base = base  # Physical offset of the first byte.
        self.path = path
        self.handle = handle
        self.first_index = 0  # Of the first entry, or the next one's while there is none.
        self.count = 0
        self.used = 0  # End of the last entry, relative to `base`.
        self.filled = False  # A filler follows the last entry.
        self.starts = Starts()

    @property
    def end_offset(self) -> int:
        """Physical offset behind the last entry."""
        return self.base + self.used

    @property
    def written_end(self) -> int:
        """End of what is not zero, relative to `base`."""
        return self.used + FILLER_HEADER_SIZE if self.filled else self.used

    def add(self, size: int) -> None:
        """An entry of `size` bytes follows the last one."""
        self.starts.add(self.used)
        self.used += size
        self.count += 1

    def end_of(self, slot: int) -> int:
        """Where the entry in `slot` ends, relative to `base`."""
        return self.used if slot + 1 >= self.count else self.starts.start_of(slot + 1)

    def cut(self, slot: int, used: int) -> None:
        """`slot` and what follows it are gone; the entry before it ends at `used`."""
        self.starts.cut(slot)
        self.count = slot
        self.used = used
        self.filled = False


class BlockCache:
    """The last `CACHED_BLOCKS` walked blocks, least recently used out first. A block is known by
    its segment, where in it it begins, and how many entries were walked."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[BlockKey, array[int]] = OrderedDict()

    def get(self, key: BlockKey) -> array[int] | None:
        starts = self._blocks.get(key)
        if starts is not None:
            self._blocks.move_to_end(key)
        return starts

    def put(self, key: BlockKey, starts: array[int]) -> None:
        self._blocks[key] = starts
        if len(self._blocks) > CACHED_BLOCKS:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()


def walk_starts(files: FileSystem, segment: Segment, run: Run) -> array[int]:
    """Where the entries of a run begin, by their headers' sizes: each leads to the next entry, as
    its header says, or nowhere.

    Raises:
        CorruptionFound: one leads elsewhere. It speaks of a byte of the run, in which the damage
            is, however far a wrong size leads.
    """
    starts = array("I")
    end = segment.used if run.next_start is None else run.next_start
    first, behind = segment.first_index + run.slot, segment.first_index + run.next_slot
    chunk, chunk_at, at = b"", run.start, run.start
    for index in range(first, behind):
        if at + HEADER_SIZE > end:
            last = starts[-1] if starts else run.start
            expected = f"entry {index} behind, before byte {end}"
            raise CorruptionFound(str(segment.path), last, expected, f"a size of {at - last}")
        if at + HEADER_SIZE > chunk_at + len(chunk):
            size = min(SPARSE_BYTES, end - at)
            chunk = read_exactly(files, segment.handle, size, at, str(segment.path))
            chunk_at = at
        header = _parse(segment, chunk, chunk_at, at)
        if header.index != index:
            raise CorruptionFound(str(segment.path), at, f"index {index}", f"index {header.index}")
        starts.append(at)
        at += header.total_size
    return starts


def read_header(files: FileSystem, segment: Segment, start: int) -> EntryHeader:
    """The header of the entry that begins at `start`, from the file.

    Raises:
        CorruptionFound: there is none any more.
    """
    chunk = read_exactly(files, segment.handle, HEADER_SIZE, start, str(segment.path))
    return _parse(segment, chunk, start, start)


def _parse(segment: Segment, chunk: bytes, chunk_at: int, at: int) -> EntryHeader:
    try:
        header = parse_header(chunk, at - chunk_at)
    except InvalidFrame as error:
        found = f"{error.field} {error.found}"
        raise CorruptionFound(
            str(segment.path), at, f"{error.field} {error.expected}", found
        ) from None
    if header.physical_offset != segment.base + at:
        expected = f"physical offset {segment.base + at}"
        raise CorruptionFound(str(segment.path), at, expected, header.physical_offset)
    return header


class SegmentTable:
    """The log's segments in order, and look-ups over all of them. The last one is written to."""

    def __init__(self, files: FileSystem) -> None:
        self.segments: list[Segment] = []
        self._first_indexes: list[int] = []
        self._sparse = 0  # So many segments, from the first on, have sparse starts.
        self._files = files
        self._cache = BlockCache()

    @property
    def last(self) -> Segment:
        return self.segments[-1]

    def add(self, segment: Segment, first_index: int) -> None:
        """`segment` is the last one now; its first entry will be `first_index`."""
        segment.first_index = first_index
        self.segments.append(segment)
        self._first_indexes.append(first_index)

    def forget_starts(self, written_below: int) -> None:
        """Old segments keep few starts from now on, if their files can tell the others.

        Args:
            written_below: entries below this index are in the files. With a disk that stalls,
                more than `DENSE_SEGMENTS` segments can be waiting to be written.
        """
        oldest_dense = len(self.segments) - DENSE_SEGMENTS
        while self._sparse < oldest_dense:
            old = self.segments[self._sparse]
            if old.first_index + old.count > written_below:
                return
            old.starts.forget(partial(self._walked, old))
            self._sparse += 1

    def pass_over(self, segment: Segment, run: IntactRun) -> None:
        """The run is in the segment, of which the first entry is; its file tells their starts."""
        count = run.last.index - run.first.index
        walk = partial(self._walked, segment)
        segment.starts.pass_over(segment.used, count, walk, run.marks)
        segment.count += count
        segment.used = run.size

    def _walked(self, segment: Segment, run: Run) -> array[int]:
        key = (segment.base, run.start, run.next_slot - run.slot)
        starts = self._cache.get(key)
        if starts is None:
            starts = walk_starts(self._files, segment, run)
            self._cache.put(key, starts)
        return starts

    def look_again(self) -> None:
        """What was walked is walked again. Somebody stumbled where all is sound now, so what was
        read on the way there may have been something else."""
        self._cache.clear()

    def remove_after(self, position: int) -> list[Segment]:
        """The segments behind the one at `position` in the list, taken out."""
        removed = self.segments[position + 1 :]
        del self.segments[position + 1 :]
        del self._first_indexes[position + 1 :]
        self._sparse = min(
            self._sparse, position
        )  # What the cut one is given from now on is dense.
        self._cache.clear()  # Their bytes, and the blocks that spoke of them, are going to change.
        return removed

    def remove_before(self, base: int) -> list[Segment]:
        """The segments before the one that begins at `base`, taken out; that one is there."""
        count = sum(segment.base < base for segment in self.segments)
        removed = self.segments[:count]
        del self.segments[:count]
        del self._first_indexes[:count]
        self._sparse = max(0, self._sparse - count)
        return removed

    def locate(self, index: int) -> tuple[Segment, int]:
        """The segment and slot of the entry `index`, which the caller knows to be held."""
        segment = self.segments[-1]
        if index < segment.first_index:
            segment = self.segments[bisect_right(self._first_indexes, index) - 1]
        return segment, index - segment.first_index

    def count_from(self, index: int) -> int:
        """How many segments entries from `index` on lie in, held or not yet: one at least."""
        last = len(self.segments) - 1
        return len(self.segments) - min(max(bisect_right(self._first_indexes, index) - 1, 0), last)

    def position_of_segment(self, segment: Segment) -> int:
        """Where `segment` stands in the list."""
        return self.position_at(segment.base)

    def position_at(self, physical_offset: int) -> int:
        """Where the segment stands in the list that the byte belongs to, or the last one before
        it."""
        return bisect_right(self.segments, physical_offset, key=lambda each: each.base) - 1

    def ends_by(self, physical_offset: int) -> int:
        """The last entry that ends at or before `physical_offset`; the index before the first
        entry held if none does."""
        found = bisect_left(self.segments, physical_offset, key=lambda each: each.base) - 1
        segment = self.segments[max(found, 0)]
        used = min(physical_offset - segment.base, segment.used)
        if used <= 0:
            return segment.first_index - 1
        if used == segment.used:
            return segment.first_index + segment.count - 1
        slot = segment.starts.slot_at(used - 1)
        return segment.first_index + (slot if segment.end_of(slot) <= used else slot - 1)

    def segment_at(self, physical_offset: int) -> Segment:
        """The segment that holds the byte at `physical_offset`.

        Raises:
            OutOfRange: none does.
        """
        first, last = self.segments[0], self.segments[-1]
        if physical_offset >= last.base:
            segment = last
        else:
            found = bisect_right(self.segments, physical_offset, key=lambda each: each.base) - 1
            segment = self.segments[max(found, 0)]
        if not segment.base <= physical_offset < segment.end_offset:
            raise OutOfRange("physical offset", physical_offset, first.base, last.end_offset)
        return segment

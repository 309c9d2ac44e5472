"""Reading entries, from memory where they are still there, else from the segment files.

What comes from a file is verified before it leaves: it was intact when it was written, so a frame
that no longer is has rotted, and rot must stop the node rather than travel to a peer, into the
state machine or to a consumer. That holds for bytes asked for by position too: the frames that
they lie in are read whole. One frame holds one batch of one queue, so a reader that takes a
queue's records as they lie asks for little that it doesn't get.
"""

from __future__ import annotations

from dledger.reading.entry import EntryHeader, digest_of, parse_header, walk_frames
from dledger.records.errors import InvalidFrame
from store.errors import CorruptionFound, OutOfRange
from store.files import Buffer, FileSystem, read_exactly
from store.segments import Segment, SegmentTable, read_header
from store.tail import TailCache


class LogReader:
    """Look-ups over a log's table and cache; owner thread only, changes neither. The indexes it
    is given are known to be held."""

    def __init__(self, files: FileSystem, table: SegmentTable, cache: TailCache) -> None:
        self._files = files
        self._table = table
        self._cache = cache

    def read(self, first: int, last: int) -> bytes:
        """Frames `[first, last]` back to back."""
        parts: list[Buffer] = []
        cached = max(first, self._cache.first_index)
        index = first
        while index < min(cached, last + 1):
            segment, slot = self._table.locate(index)
            count = min(last + 1, cached, segment.first_index + segment.count) - index
            parts.append(self._read_segment(segment, slot, count))
            index += count
        self._cache.collect(cached, last, parts)
        return b"".join(parts)

    def is_cached(self, index: int) -> bool:
        """Whether the entry is in memory as it was appended."""
        return index >= self._cache.first_index

    def verify(self, first: int, last: int, digest: int) -> int:
        """The running digest at `last`, from the files alone."""
        index = first
        while index <= last:
            segment, slot = self._table.locate(index)
            count = min(last + 1, segment.first_index + segment.count) - index
            blob = self._read_segment(segment, slot, count)
            at, start = 0, segment.starts.start_of(slot)
            for header in walk_frames(blob):
                digest = digest_of(blob, at, header.total_size, digest)
                if digest != header.digest:
                    expected, found = f"digest {digest:016x}", f"{header.digest:016x}"
                    raise CorruptionFound(str(segment.path), start + at, expected, found)
                at += header.total_size
            index += count
        return digest

    def read_at(self, physical_offset: int, size: int) -> bytes:
        """`size` bytes from `physical_offset` on, all of them within one segment's entries."""
        segment = self._table.segment_at(physical_offset)
        start = physical_offset - segment.base
        if size < 0 or start + size > segment.used:
            first = self._table.segments[0].base
            raise OutOfRange("physical offset", physical_offset + size, first, segment.end_offset)
        index = segment.first_index + segment.starts.slot_at(start)
        if index < self._cache.first_index:
            return self._read_across(segment, start, size)
        entry_at = segment.starts.start_of(index - segment.first_index)
        return self._cache.copy(index, start - entry_at, size)

    def header_at(self, index: int) -> EntryHeader:
        """The header of the entry `index`."""
        if index >= self._cache.first_index:
            return parse_header(self._cache.head(index), 0)
        segment, slot = self._table.locate(index)
        return read_header(self._files, segment, segment.starts.start_of(slot))

    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int:
        """The greatest index in `[first, last]` up to which the frames have `max_bytes`."""
        index, left = first, max_bytes
        while index <= last:
            segment, slot = self._table.locate(index)
            start = segment.starts.start_of(slot)
            if segment.used - start > left:
                # The entry that begins at or before the limit is the first that ends behind it.
                beyond = segment.first_index + segment.starts.slot_at(start + left)
                return max(first, min(beyond - 1, last))
            left -= segment.used - start
            index = segment.first_index + segment.count
        return last

    def _read_segment(self, segment: Segment, slot: int, count: int) -> bytes:
        start, end = segment.starts.start_of(slot), segment.end_of(slot + count - 1)
        blob = read_exactly(self._files, segment.handle, end - start, start, str(segment.path))
        try:
            headers = walk_frames(blob)
        except InvalidFrame as error:
            expected = f"{error.field} {error.expected}"
            at = start + error.position
            raise CorruptionFound(str(segment.path), at, expected, error.found) from None
        if not headers or headers[0].index != segment.first_index + slot:
            found = f"index {headers[0].index}" if headers else "nothing"
            expected = f"index {segment.first_index + slot}"
            raise CorruptionFound(str(segment.path), start, expected, found)
        return blob

    def _read_across(self, segment: Segment, start: int, size: int) -> bytes:
        """A range that begins in the file and may end in the cache."""
        cached_slot = self._cache.first_index - segment.first_index
        in_file = segment.used
        if 0 <= cached_slot < segment.count:
            in_file = segment.starts.start_of(cached_slot)
        from_file = min(size, in_file - start)
        if from_file == 0:
            return b""
        first = segment.starts.slot_at(start)
        last = segment.starts.slot_at(start + from_file - 1)
        skip = start - segment.starts.start_of(first)
        head = self._read_segment(segment, first, last - first + 1)[skip : skip + from_file]
        if from_file == size:
            return head
        return head + self._cache.copy(self._cache.first_index, 0, size - from_file)

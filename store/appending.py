"""The end of the log, where everything is added and cut off.

This owns what an append or a truncation changes in memory (segments, history, cache) and the
list of operations that the next submit hands to the flusher. It writes nothing itself. It must
keep three things true: an entry lies where the sizes before it put it, an append happens wholly or
not at all, and nothing that was cut is found again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dledger.reading.entry import (
    ENTRY_VERSION,
    FILLER_HEADER_SIZE,
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    blank_filler,
    build_frame,
    digest_of,
    position_after,
)
from dledger.records.errors import AppendRefused
from store.files import Buffer
from store.flusher import Cut, Write, write_at
from store.history import History
from store.preallocation import Preallocator
from store.segments import Segment, SegmentTable
from store.tail import TailCache
from store.truncation import ZeroRange

# A smaller frame is copied as it is taken: the cache may hold a hundred thousand of them, and the
# interpreter's collector visits views, but no `bytes` (ADR 27). A view is the larger of the two.
SMALL_FRAME_SIZE: Final = 1_024


class _Base(NamedTuple):
    """An entry that others are to follow, as far as they depend on it."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    term: int
    digest: int
    end_offset: int


class _Checked(NamedTuple):
    """Frames that were found to continue the log behind `base`: hashing them is the dear part of
    an append, and is done once."""

    blob: bytes | memoryview
    headers: Sequence[EntryHeader]
    base: _Base

    def is_same(self, blob: bytes | memoryview, headers: object, base: _Base) -> bool:
        """Whether it was these very objects, which nobody has changed since."""
        return self.blob is blob and self.headers is headers and self.base == base


class LogEnd:
    """Appends and cuts of one log; owner thread only. The methods that `CommitLog` has too are
    described there."""

    def __init__(
        self,
        table: SegmentTable,
        history: History,
        cache: TailCache,
        preallocator: Preallocator,
        segment_size: int,
    ) -> None:
        self.sequence = 1  # Of the writes that the next submit carries.
        self.added_bytes = 0
        self._table = table
        self._history = history
        self._cache = cache
        self._preallocator = preallocator
        self._segment_size = segment_size
        self._operations: list[Write | Cut] = []
        self._checked: _Checked | None = None

    def next_position(self, frame_size: int) -> int:
        """Where a frame of `frame_size` bytes would go."""
        return position_after(self._table.last.end_offset, frame_size, self._segment_size)

    def segments_for(self, frame_bytes: int) -> int:
        """How many more segments frames of `frame_bytes` in all can need at most."""
        return self._segments_behind(self._table.last.used, frame_bytes)

    def segments_for_behind(self, index: int, frame_bytes: int) -> int:
        """The same, once everything behind the entry `index` is cut off; the segments that are
        emptied by that are there already, and aren't counted."""
        if index == self._history.last_index:
            return self.segments_for(frame_bytes)
        segment, _, used = self._end_behind(index)
        emptied = self._table.segments[self._table.position_of_segment(segment) + 1 :]
        return max(0, self._segments_behind(used, frame_bytes) - len(emptied))

    def _segments_behind(self, used: int, frame_bytes: int) -> int:
        """How many segments can be needed at most behind one that is used up to `used`."""
        size = self._segment_size
        if used + frame_bytes + FILLER_HEADER_SIZE <= size:
            return 0
        # Two neighbouring segments together hold more than one segment's worth of frames, or
        # the second one's first frame would have gone into the first.
        return 1 if frame_bytes + FILLER_HEADER_SIZE <= size else 2 * frame_bytes // size + 1

    def _end_behind(self, index: int) -> tuple[Segment, int, int]:
        """Where the log ends without what is behind the entry `index`, or behind its start: the
        segment, how many entries it keeps, and where the last of them ends in it."""
        if index < self._history.first_index:
            return self._table.locate(index + 1)[0], 0, 0
        segment, slot = self._table.locate(index)
        return segment, slot + 1, segment.end_of(slot)

    def take_operations(self) -> list[Write | Cut]:
        """What is to be done since the last call, in order. They are the caller's now."""
        operations, self._operations = self._operations, []
        self.sequence += 1
        return operations

    def append(
        self,
        kind: int,
        index: int,
        term: int,
        append_time_ms: int,
        record_count: int,
        body: bytes | bytearray,
        version: int = ENTRY_VERSION,
    ) -> int:
        """See `CommitLog.append`; StorageFailed is its matter."""
        history = self._history
        if index != history.last_index + 1:
            raise AppendRefused("index", history.last_index + 1, index)
        if term < history.last_term:
            raise AppendRefused("term", f"at least {history.last_term}", term)
        size = HEADER_SIZE + len(body)
        position = self.next_position(size)
        head, digest = build_frame(
            kind,
            index,
            term,
            position,
            append_time_ms,
            record_count,
            body,
            history.last_digest,
            version,
        )
        self._require_segments(position)
        header = EntryHeader(
            size,
            kind,
            version,
            record_count,
            0,
            index,
            term,
            position,
            append_time_ms,
            digest,
        )
        configuration = bytes(body) if kind == EntryKind.CONFIGURATION else None
        self._add(header, (head, body), configuration)
        return position

    def append_frames(self, blob: bytes | memoryview, headers: Sequence[EntryHeader]) -> None:
        """See `CommitLog.append_frames`."""
        view = memoryview(blob)
        history = self._history
        base = _Base(
            history.last_index, history.last_term, history.last_digest, self._table.last.end_offset
        )
        checked, self._checked = self._checked, None
        if checked is None or not checked.is_same(blob, headers, base):
            self._check_continues(view, headers, base)
        if headers:
            self._require_segments(headers[-1].physical_offset)
        at = 0
        for header in headers:
            frame: Buffer = view[at : at + header.total_size]
            if header.total_size <= SMALL_FRAME_SIZE:
                frame = bytes(frame)
            is_configuration = header.kind == EntryKind.CONFIGURATION
            self._add(header, (frame,), bytes(frame[HEADER_SIZE:]) if is_configuration else None)
            at += header.total_size

    def refusal_of(
        self, blob: memoryview, headers: Sequence[EntryHeader], last: EntryHeader | None
    ) -> str | None:
        """See `CommitLog.refusal_of`; `last` is the header of the entry before, None if there is
        none."""
        start = self._history.start
        base = _Base(start.index, start.term, start.digest, self._table.segments[0].base)
        if last is not None:
            end = last.physical_offset + last.total_size
            base = _Base(last.index, last.term, last.digest, end)
        try:
            self._check_continues(blob, headers, base)
        except AppendRefused as error:
            return str(error)
        self._checked = _Checked(blob, headers, base)
        return None

    def truncate_from(self, index: int, last: EntryHeader | None) -> None:
        """See `CommitLog.truncate_from`; `last` is the header of the entry before `index`, None
        if there is none."""
        segment, kept, used = self._end_behind(index - 1)
        ranges = [ZeroRange(segment.handle, used, segment.written_end)]
        removed = self._table.remove_after(self._table.position_of_segment(segment))
        for each in removed:
            ranges.append(ZeroRange(each.handle, 0, each.written_end))
            each.cut(0, 0)
        segment.cut(kept, used)
        self._preallocator.give_back(removed)
        self._cache.truncate_from(index)
        self._history.truncate_from(index, last)
        self._operations.append(Cut(segment.end_offset, tuple(ranges)))

    def _check_continues(
        self, view: memoryview, headers: Sequence[EntryHeader], base: _Base
    ) -> None:
        index, term, digest, end = base
        at = 0
        for header in headers:
            if header.index != index + 1:
                raise AppendRefused("index", index + 1, header.index)
            if header.term < term:
                raise AppendRefused("term", f"at least {term}", header.term)
            position = position_after(end, header.total_size, self._segment_size)
            if header.physical_offset != position:
                raise AppendRefused("physical offset", position, header.physical_offset)
            digest = digest_of(view, at, header.total_size, digest)
            if header.digest != digest:
                raise AppendRefused("digest", f"{digest:016x}", f"{header.digest:016x}")
            index, term, end = header.index, header.term, position + header.total_size
            at += header.total_size
        if at != len(view):
            raise AppendRefused("bytes", at, len(view))

    def _require_segments(self, position: int) -> None:
        """Enough segments are ready to write at `position`."""
        needed = (position - self._table.last.base) // self._segment_size
        if needed > self._preallocator.ready:
            raise self._preallocator.shortage(needed)

    def _add(
        self, header: EntryHeader, parts: tuple[Buffer, ...], configuration: bytes | None
    ) -> None:
        """The entry lies where its header says: in the last segment, or at the start of the next
        behind a filler."""
        segment = self._table.last
        if header.physical_offset != segment.end_offset:
            segment = self._roll(segment, header.index)
        self._write(segment, parts, header.total_size)
        segment.add(header.total_size)
        self._cache.add(parts, header.total_size, self.sequence)
        self._history.add(header, configuration)

    def _roll(self, full: Segment, next_index: int) -> Segment:
        """The segment behind `full`, whose rest is a filler now."""
        fresh = self._preallocator.take()
        if fresh is None:
            raise AssertionError("_require_segments has seen that there is one")
        filler = blank_filler(self._segment_size - full.used)
        self._write(full, (filler,), len(filler))
        full.filled = True
        self._table.add(fresh, next_index)
        self._preallocator.retire(full)
        return fresh

    def _write(self, segment: Segment, parts: tuple[Buffer, ...], size: int) -> None:
        """`parts` are to be written behind the segment's last entry, with the next submit."""
        last = self._operations[-1] if self._operations else None
        continues = isinstance(last, Write) and last.handle == segment.handle
        if isinstance(last, Write) and continues:
            last.buffers.extend(parts)
            last.size += size
        else:
            self._operations.append(write_at(segment, list(parts), size))
        self.added_bytes += size

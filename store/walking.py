"""Walking a log from its first frame, checking that each continues the one before.

This reads and judges nothing: where the log stops being a log, it says so and what it expected
there; whether that is the end, a torn tail or corruption is `store.recovery`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.reading.entry import (
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    parse_header,
    position_after,
    verify_frame,
)
from dledger.records.errors import InvalidFrame
from dledger.records.layout import file_name
from store.errors import CorruptionFound
from store.files import CHUNK_BYTES, FileSystem, first_nonzero, read_upto
from store.history import History
from store.intact import NOTHING_KNOWN, IntactRun, Known
from store.segments import Segment, SegmentTable

_HEADERS_CHUNK: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a walk ended: `offset` counts from the start of `file`."""

    file: str
    offset: int
    expected: str
    found: str


class LogWalker:
    """Fills `table` and `history` with what it walks over. `passed_over`: first and last index of
    each run of entries that weren't looked at, because they are `known` to be intact."""

    def __init__(
        self,
        files: FileSystem,
        segment_size: int,
        table: SegmentTable,
        history: History,
        known: Known = NOTHING_KNOWN,
    ) -> None:
        self.verified_bytes = 0
        self.passed_over: list[tuple[int, int]] = []
        self._known = {run.base: run for run in known}
        self._files = files
        self._segment_size = segment_size
        self._table = table
        self._history = history

    def walk(self, segments: list[Segment], first_thorough: int) -> Stop | None:
        """The log's segments are in the table; why the walk ended, None without segments.

        A segment enters the table with its first entry; the first one always does.

        Args:
            segments: open, in order, without gaps.
            first_thorough: base of the first segment whose frames are verified byte by byte. In
                those before it headers and fillers' headers are checked.
        """
        for segment in segments:
            if not self._table.segments:
                self._table.add(segment, self._history.last_index + 1)
            stop = self._walk_segment(segment, self._window_of(segment, first_thorough), 0)
            if stop is not None:
                return stop
        if not segments:
            return None
        last = segments[-1]
        missing = last.path.with_name(file_name(last.base + self._segment_size))
        return Stop(str(missing), 0, "a segment", "no file")

    def walk_from(
        self, first: EntryHeader, segments: list[Segment], first_thorough: int
    ) -> Stop | None:
        """The same from `first` on, an entry of the first of `segments` that is intact by itself,
        whatever lies before it."""
        segment = segments[0]
        window = self._window_of(segment, first_thorough)
        at = first.physical_offset - segment.base
        self._table.add(segment, first.index)
        segment.used = at
        segment.add(first.total_size)
        body = window.read(at, first.total_size)[HEADER_SIZE:]
        self._history.add(first, body if first.kind == EntryKind.CONFIGURATION else None)
        behind = at + first.total_size if at else self._pass_over(segment, window, first)
        stop = self._walk_segment(segment, window, behind)
        return stop or self.walk(segments[1:], first_thorough)

    def _window_of(self, segment: Segment, first_thorough: int) -> _Window:
        is_known = segment.base in self._known
        thorough = segment.base >= first_thorough
        return _Window(self._files, segment, thorough=thorough, is_known=is_known)

    def _walk_segment(self, segment: Segment, window: _Window, at: int) -> Stop | None:
        """Why the walk ends in this segment; None if it goes on in the next."""
        try:
            return self._walk_entries(segment, window, at)
        except CorruptionFound as error:  # a sector that can't be read
            expected = f"entry {self._history.last_index + 1}"
            return Stop(str(segment.path), segment.used, expected, str(error.found))

    def _walk_entries(self, segment: Segment, window: _Window, at: int) -> Stop | None:
        while True:
            size, magic = FILLER_HEADER.unpack(window.read(at, FILLER_HEADER_SIZE))
            if magic == FILLER_MAGIC:
                stop = self._check_filler(segment, window, at, size)
                segment.filled = stop is None
                return stop
            expected = f"entry {self._history.last_index + 1}"
            if size == 0 and magic == 0:
                return Stop(str(segment.path), at, expected, "zeros")
            try:
                header, body = self._read_entry(segment, window, at)
            except InvalidFrame as error:
                expected = f"{expected} with {error.field} {error.expected}"
                return Stop(str(segment.path), at, expected, str(error.found))
            if segment is not self._table.last:
                self._table.add(segment, header.index)
                self._table.forget_starts(header.index)
            elif segment.count == 0:
                segment.first_index = header.index
            segment.add(header.total_size)
            self._history.add(header, body)
            at += header.total_size
            if at == header.total_size:
                at = self._pass_over(segment, window, header)

    def _pass_over(self, segment: Segment, window: _Window, first: EntryHeader) -> int:
        """Where the segment's entries are looked at again, of which the first one was: behind those
        that are known."""
        run = self._known.get(segment.base)
        if run is None or run.first != first or not self._ends_with(run, window):
            return first.total_size
        if run.last.index > first.index:
            self._table.pass_over(segment, run)
            self._history.pass_over(run)
            self.passed_over.append((first.index + 1, run.last.index))
        return run.size

    def _ends_with(self, run: IntactRun, window: _Window) -> bool:
        """Whether the last of the run's entries lies where it is said to: these are the bytes that
        are spoken of, and no older ones."""
        if run.size > self._segment_size - FILLER_HEADER_SIZE:
            return False
        try:
            last = parse_header(window.read(run.last.physical_offset - run.base, HEADER_SIZE), 0)
        except InvalidFrame:
            return False
        return last == run.last

    def _read_entry(
        self, segment: Segment, window: _Window, at: int
    ) -> tuple[EntryHeader, bytes | None]:
        room = self._segment_size - FILLER_HEADER_SIZE - at
        if room < HEADER_SIZE:
            raise InvalidFrame(at, "size", "a filler", "something else")
        header = parse_header(window.read(at, HEADER_SIZE), 0)
        if header.total_size > room:
            raise InvalidFrame(at, "total size", f"at most {room}", header.total_size)
        self._check_place(segment, at, header)
        if not window.thorough and header.kind != EntryKind.CONFIGURATION:
            return header, None
        frame = window.read(at, header.total_size)
        verify_frame(frame, 0, self._previous_digest(header))
        self.verified_bytes += header.total_size
        return header, frame[HEADER_SIZE:] if header.kind == EntryKind.CONFIGURATION else None

    def _check_place(self, segment: Segment, at: int, header: EntryHeader) -> None:
        """The entry is the next one, and lies where the sizes before it put it."""
        history = self._history
        is_first = history.last_index == 0  # of a log of which nothing says where it begins
        if header.index != history.last_index + 1 and not (is_first and segment.base > 0):
            raise InvalidFrame(at, "index", history.last_index + 1, header.index)
        if header.term < history.last_term:
            raise InvalidFrame(at, "term", f"at least {history.last_term}", header.term)
        place = segment.base + at
        if not is_first:
            end = self._table.last.end_offset
            place = position_after(end, header.total_size, self._segment_size)
        if header.physical_offset != place or place != segment.base + at:
            raise InvalidFrame(at, "physical offset", place, header.physical_offset)

    def _previous_digest(self, header: EntryHeader) -> int | None:
        """None for the first entry of a log whose beginning was deleted."""
        if header.index == self._history.last_index + 1:
            return self._history.last_digest
        return None

    def _check_filler(self, segment: Segment, window: _Window, at: int, size: int) -> Stop | None:
        remaining = self._segment_size - at
        if size != remaining:
            return Stop(str(segment.path), at, f"a filler of {remaining} bytes", f"{size}")
        if not window.thorough:
            return None
        start = at + FILLER_HEADER_SIZE
        stray = first_nonzero(self._files, segment.handle, start, self._segment_size)
        if stray is not None:
            return Stop(str(segment.path), stray, "zeros behind a filler", "another byte")
        self.verified_bytes += remaining
        return None


class _Window:
    """Reads a segment in chunks: large ones when every byte is wanted, small ones for headers."""

    def __init__(
        self, files: FileSystem, segment: Segment, *, thorough: bool, is_known: bool
    ) -> None:
        self.thorough = thorough
        self._files = files
        self._segment = segment
        self._chunk = b""
        self._chunk_at = 0
        self._chunk_size = CHUNK_BYTES if thorough and not is_known else _HEADERS_CHUNK

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from `at`, all within the file."""
        first = at - self._chunk_at
        if first < 0 or first + size > len(self._chunk):
            self._fill(at, size)
            first = 0
        return self._chunk[first : first + size]

    def _fill(self, at: int, size: int) -> None:
        wanted = max(size, self._chunk_size)
        handle, name = self._segment.handle, str(self._segment.path)
        try:
            chunk = read_upto(self._files, handle, wanted, at, name)
        except CorruptionFound:  # perhaps behind what is asked for
            wanted = size
            chunk = read_upto(self._files, handle, wanted, at, name)
        while len(chunk) < size:
            behind = at + len(chunk)
            more = read_upto(self._files, handle, wanted - len(chunk), behind, name)
            if not more:
                break
            chunk += more
        self._chunk = chunk
        self._chunk_at = at

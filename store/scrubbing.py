"""Reading the log again, piece by piece, to find what has rotted before somebody needs it.

This owns how far a pass has come and what it compares with. The first time a piece of a segment is
looked at, it is walked as recovery walks it: each frame's CRC, index, term and place, and the
running digest from the log's first entry on; what lies behind the last entry of a full segment must
be its filler. What was found sound is remembered as one XXH3-64 a piece, in memory
(`store.sound_pieces`), and from then on compared with that: at many times the speed, however small
the entries are. A piece that differs is walked again, which says where.

It reads what is committed and on this disk, up to the active segment's last such entry; never what
may still be cut. It must never repair or decide anything. `Scrub` belongs to the log's owner
thread; the steps that it hands out read files only and may run on any thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

from dledger.reading.entry import (
    FILLER_HEADER_SIZE,
    HEADER_SIZE,
    EntryHeader,
    blank_filler,
    parse_header,
    verify_frame,
)
from dledger.records.errors import InvalidFrame
from store.errors import CorruptionFound
from store.files import FileSystem, Handle, first_nonzero, read_exactly
from store.history import History
from store.segments import Segment, SegmentTable
from store.sound_pieces import Piece, Place, SoundPieces

PIECE_BYTES: Final = 256 << 10  # walked, and hashed, in one go; a larger entry is one piece
PIECE_FRAMES: Final = 512  # walked in one go: two or three milliseconds of an interpreter
STEP_BYTES: Final = 1 << 20  # compared in one step
STEP_PIECES: Final = 64


@dataclass(frozen=True, slots=True)
class _Span:
    """A segment as it was when a step was asked for."""

    path: Path
    base: int
    handle: Handle
    limit: int  # bytes that are to be looked at
    used: int
    size: int
    is_full: bool  # with a filler behind its last entry


@dataclass(frozen=True, slots=True)
class ScrubStatistics:
    """Bytes and counts since the log was opened. `pass_bytes` of `pass_total_bytes` are behind the
    pass under way; `last_pass_s`: how long the last full one took."""

    checked_bytes: int
    passes: int
    pass_bytes: int
    pass_total_bytes: int
    last_pass_s: float = 0.0
    last_pass_ended_ms: int = 0
    found: int = 0


class Scrub:
    """One log's passes: `begin`, then `step` and `finish` until `is_over`.

    Args:
        through: the last entry that is committed, and on this disk.
    """

    def __init__(
        self, files: FileSystem, table: SegmentTable, segment_size: int, history: History
    ) -> None:
        self.checked_bytes = 0
        self.pass_bytes = 0
        self.pass_total_bytes = 0
        self._files = files
        self._table = table
        self._segment_size = segment_size
        self._history = history
        self._known: dict[int, SoundPieces] = {}
        self._base = 0  # of the segment that comes next
        self._at = 0  # where in it
        self._has_passed_over = False
        self._end = 0  # of the pass, a physical offset
        self._asked = 0  # the base of the segment that the last step was asked for

    def begin(self, through: int, place: int = 0) -> None:
        """A pass over everything up to the entry `through` begins.

        Args:
            place: a physical offset before which it was looked at already, by a process before.
                The pass begins at or before it, where an entry is known to; at the log's first
                entry, if that can't be.
        """
        self.pass_bytes = self.pass_total_bytes = 0
        self._has_passed_over = False
        for base in [base for base, known in self._known.items() if known.is_partial]:
            del self._known[base]
        first = self._table.segments[0]
        self._base, self._at, self._end = first.base, 0, first.base
        if through >= first.first_index:
            segment, slot = self._table.locate(through)
            self._end = segment.base + segment.end_of(slot)
        self.pass_total_bytes = self._end - first.base
        if first.base < place < self._end:
            self._go_to(place)
            self.pass_bytes = self.place - first.base

    def _go_to(self, place: int) -> None:
        segment = self._table.segments[self._table.position_at(place)]
        self._base = segment.base
        if place - segment.base >= segment.used:
            return
        run = segment.starts.run_at(place - segment.base)
        if run.start:
            start = Place(run.start, segment.first_index + run.slot, 0, None)
            self._known[segment.base] = SoundPieces(start, is_partial=True)
            self._at = run.start

    @property
    def place(self) -> int:
        """The physical offset that the pass goes on at."""
        return self._base + self._at

    def begin_at(self) -> None:
        """The log begins later than it did: what lies before is of no pass any more. The answer of
        a step that is under way there counts for nothing."""
        first = self._table.segments[0].base
        for base in [base for base in self._known if base < first]:
            del self._known[base]
        if self._base < first:
            self._base, self._at = first, 0

    @property
    def is_over(self) -> bool:
        """Whether nothing of the pass is left."""
        return self._base + self._at >= self._end

    @property
    def is_whole(self) -> bool:
        """Whether the pass has had something to look at, and has passed over nothing of it so
        far."""
        return self.pass_total_bytes > 0 and not self._has_passed_over

    def step(self) -> Callable[[], Step]:
        """What is to be done next, on any thread; its answer is for `finish`.

        Raises CorruptionFound, when it is run: something has rotted there.
        """
        self._asked = self._base
        segment = self._table.segment_at(self._base)
        limit = min(segment.used, self._end - segment.base)
        is_full = segment is not self._table.last and limit == segment.used
        span = _Span(
            segment.path,
            segment.base,
            segment.handle,
            limit,
            segment.used,
            self._segment_size,
            is_full,
        )
        known = self._known.setdefault(segment.base, SoundPieces())
        first = known.number_at(self._at)
        if first < len(known):
            pieces = known.some(first, STEP_PIECES, STEP_BYTES)
            return lambda: _compare(self._files, span, pieces)
        if self._at >= limit:
            return lambda: _filler(self._files, span)
        start = known.end or self._beginning(segment)
        return lambda: _walk(self._files, span, start)

    def finish(self, done: Step) -> None:
        """A step has found everything sound."""
        if self._asked != self._base:
            return
        self.checked_bytes += done.size
        self.pass_bytes += done.size
        if done.walked is not None:
            self._known[self._base].add(done.walked)
        if done.is_end:
            self._base, self._at = self._base + self._segment_size, 0
        else:
            self._at = done.at

    def pass_over(self, end: int) -> None:
        """The pass goes on behind byte `end` of the segment that it is in: what is before is
        damaged, and known to be. Nothing is remembered of what comes behind it, this time."""
        if self._asked != self._base:
            return
        self._has_passed_over = True
        known = self._known.get(self._base, SoundPieces())
        behind = known.number_at(end)
        segment = self._table.segment_at(self._base)
        if behind < len(known):
            self._at = known.start_of(behind)
        elif segment is self._table.last:
            self._at = self._end - self._base
        else:
            self._base, self._at = self._base + self._segment_size, 0

    def look_again(self) -> None:
        """What a step has found isn't so: the piece is walked anew."""
        known = self._known.get(self._base)
        if known is not None and self._asked == self._base:
            first = known.number_at(self._at)
            if first < len(known):
                known.cut(first)

    def _beginning(self, segment: Segment) -> Place:
        """Before the segment's first entry, as far as the segment before has been walked."""
        if segment.first_index == self._history.first_index:
            start = self._history.start
            return Place(0, segment.first_index, start.term, start.digest)
        before = self._known.get(segment.base - self._segment_size)
        if before is None or before.end is None or before.end.index != segment.first_index:
            return Place(0, segment.first_index, 0, None)
        return Place(0, segment.first_index, before.end.term, before.end.digest)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step has found sound: `size` bytes, up to `at` of the segment, or to its end."""

    size: int
    at: int
    is_end: bool = False
    walked: Piece | None = None


def _compare(files: FileSystem, span: _Span, pieces: SoundPieces) -> Step:
    """Known pieces, as many as make a step, are what they were."""
    size, at = 0, pieces.start_of(0)
    for number, (start, end, digest) in enumerate(pieces.extents()):
        if size and size + end - start > STEP_BYTES:
            break
        blob = read_exactly(files, span.handle, end - start, start, str(span.path))
        if xxh3_64_intdigest(blob) != digest:
            place = pieces.piece(number).start
            while place.at < end:
                place, _ = _next(span, blob, start, place)
            expected = f"XXH3-64 {digest:016x} of {len(blob)} bytes"
            raise CorruptionFound(str(span.path), start, expected, "another")
        size, at = size + len(blob), end
    return Step(size, at)


def _walk(files: FileSystem, span: _Span, start: Place) -> Step:
    """The next entries are sound: as many as make a piece, one at least."""
    size = min(PIECE_BYTES, span.limit - start.at)
    blob = read_exactly(files, span.handle, size, start.at, str(span.path))
    place, count = start, 0
    while place.at < start.at + len(blob) and count < PIECE_FRAMES:
        missing = _missing(span, blob, start.at, place)
        if missing and count:
            break
        if missing:
            size = min(len(blob) + missing, span.limit - start.at)
            blob = read_exactly(files, span.handle, size, start.at, str(span.path))
        place, _ = _next(span, blob, start.at, place)
        count += 1
    content = memoryview(blob)[: place.at - start.at]
    piece = Piece(start, place, xxh3_64_intdigest(content))
    return Step(len(content), place.at, walked=piece)


def _missing(span: _Span, blob: bytes, blob_at: int, place: Place) -> int:
    """How many bytes of the entry at `place` are behind the end of `blob`."""
    left = blob_at + len(blob) - place.at
    if left < HEADER_SIZE:
        return min(HEADER_SIZE - left, span.limit - blob_at - len(blob))
    try:
        wanted = parse_header(blob, place.at - blob_at).total_size
    except InvalidFrame:
        return 0
    return max(0, min(wanted, span.limit - place.at) - left)


def _next(span: _Span, blob: bytes, blob_at: int, place: Place) -> tuple[Place, EntryHeader]:
    """The place behind the entry that begins at `place`, and its header.

    Raises:
        CorruptionFound: it isn't what continues the log there.
    """
    try:
        header = verify_frame(blob, place.at - blob_at, place.digest)
        if header.index != place.index:
            raise InvalidFrame(0, "index", place.index, header.index)
        if header.term < place.term:
            raise InvalidFrame(0, "term", f"at least {place.term}", header.term)
        if header.physical_offset != span.base + place.at:
            raise InvalidFrame(0, "physical offset", span.base + place.at, header.physical_offset)
    except InvalidFrame as error:
        expected = f"entry {place.index} with {error.field} {error.expected}"
        raise CorruptionFound(str(span.path), place.at, expected, error.found) from None
    behind = Place(place.at + header.total_size, place.index + 1, header.term, header.digest)
    return behind, header


def _filler(files: FileSystem, span: _Span) -> Step:
    """What lies behind the last entry of a full segment is its filler."""
    if not span.is_full:
        return Step(0, span.limit, is_end=True)
    expected = blank_filler(span.size - span.used)
    found = read_exactly(files, span.handle, FILLER_HEADER_SIZE, span.used, str(span.path))
    if found != expected:
        raise CorruptionFound(str(span.path), span.used, f"filler {expected.hex()}", found.hex())
    file_size = files.size(span.handle)
    if file_size != span.size:
        raise CorruptionFound(str(span.path), span.used, f"{span.size} bytes", f"{file_size} bytes")
    stray = first_nonzero(files, span.handle, span.used + FILLER_HEADER_SIZE, span.size)
    if stray is not None:
        raise CorruptionFound(str(span.path), stray, "zeros behind a filler", "another byte")
    return Step(span.size - span.used, span.size, is_end=True)

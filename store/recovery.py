"""Opening a log: walk what is there, tell a torn tail from corruption, cut only the former.

The rule: bytes below the durable watermark were on disk when the checkpoint was written. If they
are not a valid log now, they have rotted or were lost: the node must stop, and a peer must supply
them. Bytes above it were never promised to anyone: the last crash may have torn them.

    state found                                       what is done
    unfinished cut (intent file)                      the cut is made again, first of all
    frame bad or missing below the watermark          CorruptionFound; nothing is touched. GapFound
                                                        where an intact entry goes on behind it
    frame bad or missing at or above the watermark    everything from there on becomes zeros
    zeros where a frame would begin, at or above it   the log ends; stray bytes behind are zeroed
    filler with nothing behind it, at or above it     the same: a filler belongs to the next entry
    no readable checkpoint: bad frame, an intact one  GapFound, or CorruptionFound
      somewhere behind it
    no readable checkpoint: bad frame, none behind    cut
    segment missing, too long, or short below it      CorruptionFound
    segments before the one where the log begins      removed: a crash left them of a drop
    last segment short at or above the watermark      given its size again, then as above
    `.tmp` of a preallocation                         removed
    other foreign file                                left alone, reported
    clean shutdown (no abort file, watermark = end)   sealed segments but the last two: headers only

What was found valid above the watermark is written once more and synced before it counts as
durable: after a kill it may be in the page cache only, and after a failed fsync the cache may
call pages clean that never reached the disk (ATC'20).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dledger.reading.log_start import FROM_THE_FIRST, LogStart
from dledger.records.layout import file_name
from store.checkpoint import Checkpoint
from store.errors import CorruptionFound, GapFound
from store.files import CHUNK_BYTES, FileSystem, first_nonzero, read_exactly, write_all
from store.gap_search import GapSearch, intact_frames
from store.history import History
from store.intact import NOTHING_KNOWN, Known
from store.segment_files import check_bases, check_size, find_segment_files, open_segment
from store.segments import Segment, SegmentTable
from store.truncation import TruncationIntent, ZeroRange, cut_tail
from store.walking import LogWalker, Stop


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening the log found and did. Offsets and sizes in bytes; `cut_from` is None when
    nothing was cut, `redone_cut` the place of a cut that a crash had interrupted."""

    clean_shutdown: bool
    checkpoint_readable: bool
    watermark: int
    first_index: int
    last_index: int
    end_offset: int
    verified_bytes: int
    cut_from: int | None
    cut_bytes: int
    reason: str
    redone_cut: int | None
    extended_file: str | None
    foreign_files: tuple[str, ...]


@dataclass(slots=True)
class Recovered:
    """An intact log: what `CommitLog` starts from. `spares` are empty segments behind it;
    `passed_over`: first and last index of entries that weren't read, being known to be intact."""

    table: SegmentTable
    spares: list[Segment]
    history: History
    report: RecoveryReport
    passed_over: tuple[tuple[int, int], ...]


class Recovery:
    """One recovery of one log. `files` are left open for the log; on an error, closed."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        segment_size: int,
        checkpoint: Checkpoint,
        intent: TruncationIntent,
        *,
        stopped_cleanly: bool,
        known: Known = NOTHING_KNOWN,
        start: LogStart = FROM_THE_FIRST,
    ) -> None:
        self._start = start
        self._files = files
        self._directory = directory
        self._segment_size = segment_size
        self._checkpoint = checkpoint
        self._intent = intent
        self._watermark = checkpoint.state.watermark
        self._clean = stopped_cleanly and checkpoint.readable
        self._known = known
        self._segments: list[Segment] = []

    def run(self) -> Recovered:
        """The log on disk is intact and durable, and this is what it holds.

        Raises:
            CorruptionFound: durable bytes are not what was written. Nothing was changed, except
                that an interrupted cut was finished.
        """
        found = find_segment_files(self._files, self._directory)
        for name in found.leftovers:
            self._files.unlink(self._directory / name)
        try:
            return self._recover(self._without_dropped(found.bases), found.foreign)
        except BaseException:
            for segment in self._segments:
                self._files.close(segment.handle)
            raise

    def _without_dropped(self, bases: tuple[int, ...]) -> tuple[int, ...]:
        """Files that lie before the log's start are what a crash left of a drop: they go."""
        begins_at = self._start.offset(self._segment_size)
        dropped = [base for base in bases if base < begins_at]
        for base in dropped:
            self._files.unlink(self._directory / file_name(base))
        if dropped:
            self._files.fsync_directory(self._directory)
        return bases[len(dropped) :]

    def _recover(self, bases: tuple[int, ...], foreign: tuple[str, ...]) -> Recovered:
        begins_at = self._start.offset(self._segment_size)
        check_bases(self._directory, bases, self._segment_size, self._checkpoint, begins_at)
        extended = self._open_all(bases)
        redone = self._redo_cut()
        known = self._known if redone is None else NOTHING_KNOWN  # of a log that wasn't cut
        thorough_from = self._first_thorough()
        table, history, walker, stop = self._walk(known, thorough_from)
        end = table.last.end_offset if table.segments else begins_at
        if stop is not None and end < thorough_from:
            # A header is missing where another one's size has led: that size may be what is wrong.
            thorough_from = end - end % self._segment_size
            self._segments = [Segment(e.base, e.path, e.handle) for e in self._segments]
            table, history, walker, stop = self._walk(known, thorough_from)
            end = table.last.end_offset if table.segments else begins_at
        self._judge(end, stop, history, thorough_from)
        spares = self._segments[len(table.segments) :]
        cut_bytes = self._clear_tail(end, table, stop)
        self._make_durable(end, history, spares)
        report = RecoveryReport(
            clean_shutdown=self._clean,
            checkpoint_readable=self._checkpoint.readable,
            watermark=self._watermark,
            first_index=history.first_index,
            last_index=history.last_index,
            end_offset=end,
            verified_bytes=walker.verified_bytes,
            cut_from=end if cut_bytes else None,
            cut_bytes=cut_bytes,
            reason=f"{stop.expected} expected, {stop.found} found" if stop else "no segments",
            redone_cut=redone,
            extended_file=extended,
            foreign_files=foreign,
        )
        return Recovered(table, spares, history, report, tuple(walker.passed_over))

    def _walk(
        self, known: Known, thorough_from: int
    ) -> tuple[SegmentTable, History, LogWalker, Stop | None]:
        table, history = SegmentTable(self._files), History(self._start)
        walker = LogWalker(self._files, self._segment_size, table, history, known)
        return table, history, walker, walker.walk(self._segments, thorough_from)

    def _open_all(self, bases: tuple[int, ...]) -> str | None:
        """All segments are open and of full size; the name of the one that had to be extended."""
        extended = None
        for base in bases:
            path = self._directory / file_name(base)
            segment = open_segment(self._files, path)
            self._segments.append(segment)
            may_be_short = base == bases[-1] and self._checkpoint.readable
            tail_from = self._watermark if may_be_short else None
            if check_size(self._files, segment, self._segment_size, tail_from=tail_from):
                extended = str(path)
        return extended

    def _redo_cut(self) -> int | None:
        cut = self._intent.read()
        if cut is None:
            return None
        ranges = self._ranges_from(cut)
        cut_tail(self._files, self._intent, self._checkpoint, cut, ranges, again=True)
        self._watermark = self._checkpoint.state.watermark
        self._clean = False
        return cut

    def _first_thorough(self) -> int:
        """The base of the first segment whose frames are verified; headers must do before it."""
        if not self._clean:
            return 0
        last_base = self._watermark - self._watermark % self._segment_size
        return last_base - self._segment_size

    def _judge(self, end: int, stop: Stop | None, history: History, thorough_from: int) -> None:
        """Returns if what stopped the walk may be cut off."""
        if stop is None or (self._checkpoint.readable and end >= self._watermark):
            return
        found = stop.found
        if not self._checkpoint.readable:
            behind = intact_frames(self._files, self._segments, self._segment_size, end)
            intact = next(behind, None)
            if intact is None:
                return
            found = f"{found}, with an intact entry behind it at {intact[1].physical_offset}"
        rot = CorruptionFound(stop.file, stop.offset, stop.expected, found)
        watermark = self._watermark if self._checkpoint.readable else 0
        holes = GapSearch(
            self._files,
            self._segments,
            self._segment_size,
            watermark,
            self._known,
            thorough_from,
        ).find(end, history)
        if holes is None:
            raise rot
        raise GapFound(rot, ", ".join(map(str, holes.gaps)), holes)

    def _clear_tail(self, end: int, table: SegmentTable, stop: Stop | None) -> int:
        """Everything from `end` on reads as zeros; returns how many bytes had to be written."""
        if stop is None:
            return 0
        # A filler that no entry follows goes too: the next entry may be small enough to fit.
        dangling, table.last.filled = table.last.filled, False
        if self._clean and end == self._watermark and not dangling:
            return 0
        ranges = self._ranges_from(end)
        if all(first_nonzero(self._files, *each) is None for each in ranges):
            return 0
        return cut_tail(self._files, self._intent, self._checkpoint, end, ranges)

    def _make_durable(self, end: int, history: History, spares: list[Segment]) -> None:
        """What was found is on disk, names too, and the checkpoint says so."""
        for segment in spares:
            self._files.fsync(segment.handle)
        self._files.fsync_directory(self._directory)
        if not self._clean or end != self._watermark:
            self._rewrite(min(self._watermark, end), end)
            self._checkpoint.note_log(end, history.last_append_time_ms)
        begins_at = history.start.offset(self._segment_size)
        if self._checkpoint.state.first_offset != begins_at:
            # A crash came between the note and the page, which would go on saying the old.
            self._checkpoint.note_first(begins_at)
        self._checkpoint.sync()

    def _rewrite(self, start: int, end: int) -> None:
        for segment in self._segments:
            first = max(start - segment.base, 0)
            last = min(end - segment.base, self._segment_size)
            for at in range(first, last, CHUNK_BYTES):
                size = min(CHUNK_BYTES, last - at)
                chunk = read_exactly(self._files, segment.handle, size, at, str(segment.path))
                write_all(self._files, segment.handle, [chunk], at)
            if first < last:
                self._files.fdatasync(segment.handle)

    def _ranges_from(self, offset: int) -> list[ZeroRange]:
        return [
            ZeroRange(segment.handle, max(offset - segment.base, 0), self._segment_size)
            for segment in self._segments
            if segment.base + self._segment_size > offset
        ]

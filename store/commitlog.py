"""The CommitLog: one node's copy of the replicated log.

This owns the segments, what is known of them in memory, and the order in which appends, cuts and
submits reach the flusher. All methods belong to one owner thread (the event loop) and none waits
for an fsync; durability is announced by `on_durable` on the flusher's thread. It must never call
an entry durable that the disk could still lose (in the default mode), give out an entry that was
truncated, or move an entry from the place that the sizes before it dictate.

How much may be appended and not yet durable is the caller's bound; `unwritten_bytes`
tells where it stands. The module is longer than most because each public method carries its
contract; what it does lies in `appending`, `segment_reader`, `flusher` and `recovery`.

Source: DLedger `DLedgerMmapFileStore` and RocketMQ `CommitLog`, without their mapped writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dledger.reading.entry import ENTRY_VERSION, EntryHeader, parse_header, walk_frames
from dledger.reading.log_start import LogStart
from store.appending import LogEnd
from store.checkpoint import Checkpoint
from store.damage import Damages
from store.errors import OutOfRange, StorageFull
from store.files import FULL_ERRNOS, Buffer, FileSystem, OsFiles, make_directory
from store.flusher import FlushMode, FlushQueue, Work
from store.intact import NOTHING_KNOWN, Known
from store.log_start import StartNote
from store.options import CommitLogOptions
from store.preallocation import SPARES, Preallocator
from store.recovery import Recovered, Recovery, RecoveryReport
from store.repair_journal import RepairJournal
from store.scrubbing import Scrub
from store.seals import Seals, read_seals
from store.segment_reader import LogReader
from store.segments import Segment
from store.tail import TailCache
from store.truncation import TruncationIntent
from store.worker import ThreadWorker, Worker, WorkerFactory

__all__ = ["CommitLog", "CommitLogOptions", "FlushMode", "LogStatistics", "RecoveryReport"]


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """A log at one moment. Bytes, seconds, counts since it was opened."""

    segments: int
    log_bytes: int
    pending_bytes: int
    cached_bytes: int
    written_bytes: int
    flush_count: int
    last_flush_s: float
    total_flush_s: float
    preallocated_segments: int
    is_full: bool
    pin_failure: str | None
    failed: str | None


class CommitLog:
    """See the module. Made by `open`; `recovery` says what that found, `passed_over` which entries
    it knew and didn't read: first and last index of each run.

    `on_durable(ticket)` and `on_failed(error)` are set by the user before the first submit. Both
    are called on a worker's thread: the first with the highest ticket that is durable, the second
    once, after which the log refuses appends and submits with StorageFailed but can be read.
    """

    @classmethod
    def open(
        cls,
        directory: Path,
        options: CommitLogOptions | None = None,
        files: FileSystem | None = None,
        *,
        workers: WorkerFactory = ThreadWorker,
        clock: Callable[[], float] = time.monotonic,
        known: Known = NOTHING_KNOWN,
    ) -> CommitLog:
        """The log in `<directory>/commitlog`, recovered, ready to append.

        Args:
            directory: the node's data directory, which the caller holds locked.
            workers: who runs the flusher and the preallocation.
            clock: seconds, monotonic; for intervals and durations only.
            known: what the caller has read of the log's files, as they are now.

        Raises:
            CorruptionFound: see `store.recovery`.
            StorageFull: there is no log yet and no room for its first segment.
        """
        files, options = files or OsFiles(), options or CommitLogOptions()
        try:
            return cls._open(directory, options, files, workers, clock, known)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            raise StorageFull(
                str(directory), options.segment_size_bytes, files.free_bytes(directory)
            ) from error

    @classmethod
    def _open(
        cls,
        directory: Path,
        options: CommitLogOptions,
        files: FileSystem,
        workers: WorkerFactory,
        clock: Callable[[], float],
        known: Known,
    ) -> CommitLog:
        make_directory(files, directory / "commitlog")
        stopped_cleanly = not files.exists(directory / "abort")
        if stopped_cleanly:
            # Before anything changes: a crash from here on is an unclean stop.
            files.close(files.create(directory / "abort"))
            files.fsync_directory(directory)
        checkpoint = Checkpoint(files, directory / "checkpoint")
        intent = TruncationIntent(files, directory / "truncation")
        try:
            intent.settle()
            RepairJournal(files, directory).redo(
                directory / "commitlog", options.segment_size_bytes
            )
            recovered = Recovery(
                files,
                directory / "commitlog",
                options.segment_size_bytes,
                checkpoint,
                intent,
                stopped_cleanly=stopped_cleanly,
                known=(*read_seals(files, directory, checkpoint), *known),
                start=StartNote(files, directory).settle(),
            ).run()
            return cls(directory, options, files, checkpoint, intent, recovered, workers, clock)
        except BaseException:
            checkpoint.close()
            raise

    def __init__(
        self,
        directory: Path,
        options: CommitLogOptions,
        files: FileSystem,
        checkpoint: Checkpoint,
        intent: TruncationIntent,
        recovered: Recovered,
        workers: WorkerFactory,
        clock: Callable[[], float],
    ) -> None:
        self.options = options
        self.recovery = recovered.report
        self.passed_over = recovered.passed_over
        self.checkpoint = checkpoint
        self._directory = directory
        self._files = files
        self._table = recovered.table
        self._history = recovered.history
        self._segment_size = options.segment_size_bytes
        self._queue = FlushQueue(files, checkpoint, intent, options.flush_policy, clock)
        made = [*recovered.table.segments, *recovered.spares]
        begins_at = self.start.offset(self._segment_size)
        next_base = made[-1].base + self._segment_size if made else begins_at
        self._preallocator = Preallocator(
            files,
            directory / "commitlog",
            options.allocation_policy,
            next_base,
            self._queue.fail,
        )
        self._preallocator.give_back(recovered.spares)
        if not made:
            self._table.add(self._preallocator.create_first(), self._history.last_index + 1)
        self._cache = TailCache(options.cache_bytes, self._history.last_index + 1)
        self._reader = LogReader(files, self._table, self._cache)
        self.damages = Damages(
            files,
            self._table,
            self._reader,
            self._history,
            self._segment_size,
            lambda: checkpoint.state.watermark,
        )
        self.scrub = Scrub(files, self._table, self._segment_size, self._history)
        passed_over = {self._table.locate(last)[0].base: last for _, last in recovered.passed_over}
        self.seals = Seals(files, directory, self._table, self._history, self._reader, passed_over)
        self._end = LogEnd(
            self._table, self._history, self._cache, self._preallocator, self._segment_size
        )
        self._is_open = True
        self._flusher: Worker = workers("store-flusher", self._queue.step)
        self._allocator: Worker = workers("store-preallocation", self._preallocator.step)
        self._allocator.wake()

    # --- what is there ---------------------------------------------------------------------

    @property
    def on_durable(self) -> Callable[[int], None]:
        """Told the highest durable ticket, on the flusher's thread."""
        return self._queue.on_durable

    @on_durable.setter
    def on_durable(self, callback: Callable[[int], None]) -> None:
        self._queue.on_durable = callback

    @property
    def on_failed(self) -> Callable[[BaseException], None]:
        """Told once, on a worker's thread, that the log takes no more work."""
        return self._queue.on_failed

    @on_failed.setter
    def on_failed(self, callback: Callable[[BaseException], None]) -> None:
        self._queue.on_failed = callback

    @property
    def start(self) -> LogStart:
        """What is known of what was before the first entry."""
        return self._history.start

    @property
    def first_index(self) -> int:
        """The first entry held; the one behind `start` in an empty log."""
        return self._history.first_index

    @property
    def last_index(self) -> int:
        """The last entry held, durable or not; `first_index - 1` in an empty log."""
        return self._history.last_index

    @property
    def end_offset(self) -> int:
        """Physical offset behind the last entry."""
        return self._table.last.end_offset

    @property
    def last_digest(self) -> int:
        """The last entry's running digest; that of `start` in an empty log."""
        return self._history.last_digest

    @property
    def last_term(self) -> int:
        """The last entry's term; that of `start` in an empty log."""
        return self._history.last_term

    @property
    def last_append_time_ms(self) -> int:
        """The last entry's append time; that of `start` in an empty log."""
        return self._history.last_append_time_ms

    @property
    def synced_index(self) -> int:
        """The last entry that a loss of power would leave: the checkpoint's watermark, which only
        fdatasync moves on, has passed its end. After a cut that the flusher has not performed yet
        it speaks of what is cut; such entries aren't durable for the core either."""
        return self.ends_by(self.checkpoint.state.watermark)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that were appended and are not written yet: they lie in memory."""
        return self._end.added_bytes - self._queue.written_bytes

    def term_runs(self) -> list[tuple[int, int]]:
        """`(first index, term)` of each run of entries of one term, ascending. The first is of the
        last entry before the log's start, where there is one."""
        return list(self._history.term_runs)

    def configuration_entries(self) -> list[tuple[int, bytes]]:
        """`(index, body)` of each configuration entry, ascending; the first may be the one that was
        in force where the log begins."""
        return list(self._history.configuration_entries)

    def statistics(self) -> LogStatistics:
        """How the log is doing; cheap."""
        queue = self._queue
        return LogStatistics(
            segments=len(self._table.segments),
            log_bytes=self.end_offset - self._table.segments[0].base,
            pending_bytes=self.unwritten_bytes,
            cached_bytes=self._cache.size_bytes,
            written_bytes=queue.written_bytes,
            flush_count=queue.flush_count,
            last_flush_s=queue.last_flush_s,
            total_flush_s=queue.total_flush_s,
            preallocated_segments=self._preallocator.ready,
            is_full=self._preallocator.is_full,
            pin_failure=self._preallocator.pin_failure,
            failed=str(queue.failed) if queue.failed else None,
        )

    # --- appending -------------------------------------------------------------------------

    def next_position(self, frame_size: int) -> int:
        """The physical offset that a frame of `frame_size` bytes would be given next.

        Raises:
            AppendRefused: no segment can hold it.
        """
        return self._end.next_position(frame_size)

    def has_room(self, frame_bytes: int) -> bool:
        """Whether frames of `frame_bytes` in all can be appended now.

        False while a segment that they may need isn't ready: a moment's matter, as it is being
        made from now on, or a full disk."""
        return self._are_ready(self._end.segments_for(frame_bytes))

    def has_room_behind(self, index: int, frame_bytes: int) -> bool:
        """Whether frames of `frame_bytes` in all can be appended at once after a truncation that
        leaves `index` as the last entry. It is held, or the last one before the log's start.

        Raises:
            CorruptionFound: where it ends can't be told from the file any more.
        """
        return self._are_ready(self._end.segments_for_behind(index, frame_bytes))

    def _are_ready(self, segments: int) -> bool:
        """Whether there are so many spare segments; if not, they are made from now on."""
        if segments <= self._preallocator.ready:
            return True
        if self._preallocator.want(segments):
            self._allocator.wake()
        return False

    def is_short_of_space(self, frame_bytes: int) -> bool:
        """Whether the disk has refused a segment that frames of `frame_bytes` in all may need.

        Unlike `has_room` it asks for no segment, and it is false while one is being made."""
        is_full = self._preallocator.is_full
        return is_full and self._end.segments_for(frame_bytes) > self._preallocator.ready

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
        """A new entry is the last one; returns its physical offset. The leader's way in.

        `body` is not copied and must not change any more. Nothing is written before `submit`.

        Raises:
            AppendRefused: `index` isn't the next, the term is older than the last entry's, or no
                segment can hold the frame.
            StorageFull: the next segment isn't ready; ask `has_room` first.
            StorageFailed: the log takes no more work.
        """
        self._queue.refuse_if_failed()
        position = self._end.append(kind, index, term, append_time_ms, record_count, body, version)
        self._after_append()
        return position

    def refusal_of(self, blob: memoryview, headers: Sequence[EntryHeader]) -> str | None:
        """Why frames of another replica can't follow the entry before the first of them, which is
        held; None if they can. What comes behind that entry now is not looked at: it may be cut
        off before they are appended. `append_frames` doesn't hash the very same objects again.

        Raises:
            OutOfRange: the entry before isn't held.
            CorruptionFound: it has changed in the file since it was written.
        """
        before = headers[0].index - 1
        last = None if before == self.start.index else self._sound_header(before)
        return self._end.refusal_of(blob, headers, last)

    def append_frames(self, blob: bytes | memoryview, headers: Sequence[EntryHeader]) -> None:
        """Frames of another replica follow the last entry, byte for byte. The follower's way in.

        All of them are appended, or none.

        Args:
            blob: frames back to back, not to be changed any more.
            headers: what `walk_frames(blob)` returned; the CRCs are not checked again.

        Raises:
            AppendRefused: index, term, position or digest don't continue this log.
            StorageFull: a segment that is needed isn't ready; ask `has_room` first.
            StorageFailed: the log takes no more work.
        """
        self._queue.refuse_if_failed()
        self._end.append_frames(blob, headers)
        self._after_append()

    def truncate_from(self, index: int) -> None:
        """`index` and everything after it are gone from here; from the disk, durably, with the
        next submit, in order with the writes before and after.

        Raises:
            OutOfRange: the log doesn't reach to `index`, or begins behind it.
            CorruptionFound: the entry before has changed in the file since it was written.
            StorageFailed: the log takes no more work.
        """
        self._queue.refuse_if_failed()
        self._check_held(index)
        self._end.truncate_from(
            index, self._sound_header(index - 1) if index > self.first_index else None
        )

    def submit(self, ticket: int, prelude: Callable[[], None] | None = None) -> None:
        """What was appended and truncated since the last submit becomes durable, in order, after
        `prelude` has returned; then `on_durable` hears of `ticket` or a later one.

        Args:
            ticket: greater than all before.
            prelude: run on the flusher's thread; whatever it raises is a storage failure.

        Raises:
            StorageFailed: the log takes no more work.
        """
        self._queue.refuse_if_failed()
        sequence = self._end.sequence
        operations = self._end.take_operations()
        time_ms = self._history.last_append_time_ms
        self._queue.put(Work(ticket, sequence, prelude, operations, self.end_offset, time_ms))
        self._flusher.wake()

    def parse_frames(self, blob: Buffer) -> list[EntryHeader]:
        """The headers of frames that a peer sent; see `walk_frames`.

        Raises:
            InvalidFrame: they are not whole, consecutive and intact.
        """
        return walk_frames(blob)

    # --- reading ---------------------------------------------------------------------------

    def read(self, first: int, last: int) -> bytes:
        """Frames `[first, last]`, inclusive, back to back, fillers left out.

        Raises:
            OutOfRange: not all of them are held.
            CorruptionFound: a frame in a file has changed since it was written.
        """
        self._check_held(first)
        self._check_held(last)
        return self._reader.read(first, last)

    def read_at(self, physical_offset: int, size: int) -> bytes:
        """`size` bytes of entries from `physical_offset` on, within one segment.

        Raises:
            OutOfRange: the range isn't wholly within entries of one segment.
        """
        return self._reader.read_at(physical_offset, size)

    def header_at(self, index: int) -> EntryHeader:
        """The header of an entry. Where it comes from the file only its shape is checked, as a CRC
        needs the body: nothing that can't be undone goes by it.

        Raises:
            OutOfRange: the entry isn't held.
            CorruptionFound: there is none in the file any more.
        """
        self._check_held(index)
        return self._reader.header_at(index)

    def digest_at(self, index: int) -> int:
        """The running digest (ADR 6) at `index`; 0 at index 0. The entry before the first is known,
        too.

        The whole frame is read, so that its CRC vouches for the digest: a rotten one, told to
        healthy replicas, would stop them.

        Raises:
            OutOfRange: the entry isn't held.
            CorruptionFound: the frame in the file has changed since it was written.
        """
        if index == self.last_index:
            return self.last_digest
        if index == self.start.index:
            return self.start.digest
        return parse_header(self.read(index, index), 0).digest

    def verify(self, first: int, last: int, digest: int) -> int:
        """The running digest at `last`, computed from the files' bytes, past all caches, on top
        of `digest`, the one before `first`. Entries up to `synced_index` only.

        Raises:
            OutOfRange: not all of them are held.
            CorruptionFound: a frame isn't intact, or carries another digest.
        """
        self._check_held(first)
        self._check_held(last)
        return self._reader.verify(first, last, digest)

    def position_of(self, index: int) -> int:
        """The physical offset of an entry's first byte.

        Raises:
            OutOfRange: the entry isn't held.
        """
        self._check_held(index)
        segment, slot = self._table.locate(index)
        return segment.base + segment.starts.start_of(slot)

    def segments_from(self, index: int) -> int:
        """How many segments entries from `index` on lie in, of those that are held: one at least.
        Reads nothing."""
        return self._table.count_from(index)

    def ends_by(self, physical_offset: int) -> int:
        """The last entry that ends at or before `physical_offset`; `first_index - 1` if none
        does."""
        if physical_offset >= self.end_offset:
            return self.last_index
        return self._table.ends_by(physical_offset)

    def index_at(self, physical_offset: int) -> int:
        """The index of the entry that the byte at `physical_offset` belongs to.

        Raises:
            OutOfRange: it belongs to none.
        """
        segment = self._table.segment_at(physical_offset)
        return segment.first_index + segment.starts.slot_at(physical_offset - segment.base)

    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int:
        """The greatest index up to `last` such that frames `[first, index]` have `max_bytes` at
        most; `first` even if it has more.

        Raises:
            OutOfRange: `first` isn't held.
        """
        self._check_held(first)
        return self._reader.last_that_fits(first, min(last, self.last_index), max_bytes)

    def holds_byte(self, file: str, offset: int) -> bool:
        """Whether the byte of that segment file is an entry's, or of the filler behind a segment's
        last one."""
        segments = self._table.segments
        found = next((each for each in segments if str(each.path) == file), None)
        if found is None:
            return False
        end = found.used if found is self._table.last else self._segment_size
        return 0 <= offset < end

    def path_of(self, name: str) -> Path:
        """The segment file of that name."""
        return self._directory / "commitlog" / name

    # --- the front --------------------------------------------------------------------------

    def end_before(self, index: int) -> int | None:
        """The last entry before the latest start that leaves every entry from `index` on: the last
        one of a segment. None if that start is no later than the present one. Reads nothing."""
        if not self.first_index < index <= self.last_index + 1:
            return None
        last = self._table.last
        segment = last if index > last.first_index else self._table.locate(index)[0]
        if segment.first_index <= self.first_index or not segment.count:
            return None
        return segment.first_index - 1

    def start_before(self, index: int) -> LogStart | None:
        """The latest start that leaves every entry from `index` on, as `end_before`.

        Raises:
            CorruptionFound: the entry there has rotted.
        """
        before = self.end_before(index)
        if before is None:
            return None
        header = parse_header(self.read(before, before), 0)
        configurations = [e for e in self._history.configuration_entries if e[0] <= before]
        place, body = configurations[-1] if configurations else (0, b"")
        end = header.physical_offset + header.total_size
        term = self._history.term_of_configuration(place)
        return LogStart(
            before, header.term, header.digest, end, header.append_time_ms, place, term, body
        )

    def paths_before(self, start: LogStart) -> list[Path]:
        """The files of the segments that `drop_before` would give, the oldest first. They are full,
        and don't change any more."""
        first = start.offset(self._segment_size)
        return [each.path for each in self._table.segments if each.base < first]

    def drop_before(self, start: LogStart) -> list[Segment]:
        """The log begins behind `start`, which `start_before` gave; the segments that it doesn't
        hold any more, the oldest first, their files still there and open.

        The start note says so already, durably: nothing here is for a crash to undo.
        """
        dropped = self._table.remove_before(start.offset(self._segment_size))
        self._history.begin_at(start)
        self.scrub.begin_at()
        return dropped

    # --- ending ----------------------------------------------------------------------------

    def close(self, *, is_clean: bool = True) -> None:
        """All that was submitted is durable, the stop is marked clean, the files are closed.

        Args:
            is_clean: False where the node stops because it can't trust what it has read: the next
                start then verifies all that no seal speaks of.

        What was appended and never submitted is lost. `on_durable` may still be called, on the
        calling thread, for what was submitted and not yet flushed. After a failure nothing more
        is written and the next start is an unclean one. Closing twice is harmless.

        Raises:
            StorageFailed: a flush failed, this last one or one before it.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._flusher.stop()
        self._allocator.stop()
        try:
            self._finish(is_clean=is_clean)
        finally:
            self._preallocator.close()
            for segment in self._table.segments:
                self._files.close(segment.handle)
            self.checkpoint.close()

    def _finish(self, *, is_clean: bool) -> None:
        self._queue.refuse_if_failed()  # while nobody listened any more, perhaps
        try:
            self._queue.finish()
            if is_clean:
                self._files.unlink(self._directory / "abort")
                self._files.fsync_directory(self._directory)
        except OSError as error:
            self._queue.fail("close", error)
            self._queue.refuse_if_failed()

    def _after_append(self) -> None:
        self._cache.evict(self._queue.written_sequence)
        self._table.forget_starts(self._cache.first_index)
        if self._preallocator.ready < SPARES and not self._preallocator.is_full:
            self._allocator.wake()

    def _sound_header(self, index: int) -> EntryHeader:
        """A header by which peers are judged and the log goes on: from memory as it was appended,
        or vouched for by the CRC of the whole frame."""
        self._check_held(index)
        if self._reader.is_cached(index):
            return self._reader.header_at(index)
        return parse_header(self._reader.read(index, index), 0)

    def _check_held(self, index: int) -> None:
        if not self.first_index <= index <= self.last_index:
            raise OutOfRange("index", index, self.first_index, self.last_index + 1)

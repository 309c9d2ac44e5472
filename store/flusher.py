"""Group commit: work goes in from the owner thread, comes out durable on the flusher's.

This owns the order of everything that is written to the log: preludes (the hard state) before the
writes they were submitted with, writes and cuts in the order in which they were made, the
checkpoint after the fdatasync that it speaks of, and only then the news. It takes everything that
is queued at once, so that many submits share one fdatasync. It never retries: after a failed
write or fsync the kernel may have marked the lost pages clean (ATC'20), so the queue refuses all
further work and says so once (ADR 8).

Source: RocketMQ `GroupCommitService`, `FlushRealTimeService`, `CommitRealTimeService`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Final

from store.checkpoint import Checkpoint
from store.errors import StorageFailed
from store.files import Buffer, FileSystem, Handle, write_all
from store.segments import Segment
from store.truncation import TruncationIntent, ZeroRange, cut_tail

PAGE_BYTES: Final = 4096
THOROUGH_FLUSH_S: Final = 10.0
BUFFER_AGE_S: Final = 0.2
CHECKPOINT_SYNC_S: Final = 0.02


class FlushMode(Enum):
    """When an append is called durable."""

    SYNC = "sync"  # After fdatasync.
    # After the write, or less: a power failure loses what was acknowledged since the last
    # fdatasync. Named weaker, never the default.
    ASYNC = "async"


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """See `CommitLogOptions`, where these come from."""

    mode: FlushMode = FlushMode.SYNC
    interval_ms: int = 500
    pages: int = 4
    buffer_bytes: int = 0


@dataclass(slots=True)
class Write:
    """Buffers that follow each other in one segment from `offset` on. The log adds to it until it
    is submitted, the flusher after that."""

    handle: Handle
    offset: int
    buffers: list[Buffer]
    size: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Everything from physical offset `offset` on is to go."""

    offset: int
    ranges: tuple[ZeroRange, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """One submit. `sequence` numbers its writes; the log ends at `end_offset` after it."""

    ticket: int
    sequence: int
    prelude: Callable[[], None] | None
    operations: list[Write | Cut]
    end_offset: int
    timestamp_ms: int


class FlushQueue:
    """The flusher without its thread: `take` what is queued, `perform` it, see to what is due.

    `put` is called by the owner thread, everything else by one worker. The queue's length is
    bounded by the owner, which stops proposing when too much is uncommitted or unwritten.
    """

    def __init__(
        self,
        files: FileSystem,
        checkpoint: Checkpoint,
        intent: TruncationIntent,
        policy: FlushPolicy,
        clock: Callable[[], float],
    ) -> None:
        self.on_durable: Callable[[int], None] = lambda _: None
        self.on_failed: Callable[[BaseException], None] = lambda _: None
        self.failed: StorageFailed | None = None
        self.written_sequence = 0
        self.written_bytes = 0
        self.flush_count = 0
        self.last_flush_s = 0.0
        self.total_flush_s = 0.0
        self._files = files
        self._checkpoint = checkpoint
        self._intent = intent
        self._policy = policy
        self._clock = clock
        self._lock = Lock()
        self._queue: list[Work] = []
        # What the worker has taken on and not finished.
        self._runs: list[Write] = []
        self._run_bytes = 0
        self._oldest_run_at = 0.0
        self._last: Work | None = None
        self._unsynced: dict[Handle, None] = {}
        self._unsynced_bytes = 0
        self._last_handle: Handle | None = None
        self._last_sync_at = clock()
        self._checkpoint_due_at: float | None = None

    def put(self, work: Work) -> None:
        """`work` will be performed after all that was put before.

        Raises:
            StorageFailed: an earlier write or fsync failed.
        """
        self.refuse_if_failed()
        with self._lock:
            self._queue.append(work)

    def refuse_if_failed(self) -> None:
        """Raises StorageFailed once a write or fsync has failed."""
        if self.failed is not None:
            raise StorageFailed(self.failed.operation, self.failed.cause)

    def fail(self, operation: str, cause: BaseException) -> None:
        """No more work is accepted; `on_failed` is told, once. Any thread."""
        with self._lock:
            if self.failed is not None:
                return
            self.failed = StorageFailed(operation, cause)
        self.on_failed(self.failed)

    def step(self) -> float | None:
        """What is queued and what is due has been done; see `store.worker.Step`."""
        if self.failed is not None:
            return None
        try:
            works = self.take()
            if works:
                self.perform(works)
            self._see_to_what_is_due()
        except Exception as error:  # noqa: BLE001 - the thread's boundary: the node must hear of it
            self.fail("flush", error)
            return None
        return self._delay()

    def take(self) -> list[Work]:
        """Everything that is queued, oldest first."""
        with self._lock:
            works, self._queue = self._queue, []
        return works

    def perform(self, works: list[Work]) -> None:
        """All of `works` is as durable as the mode promises, and `on_durable` has been told."""
        # A later work's hard state may be durable before an earlier work's entries: nothing that
        # depends on those has been sent. The other way round a node could come back with entries
        # of a term that it doesn't know it was in.
        for work in works:
            if work.prelude is not None:
                work.prelude()
        for work in works:
            for operation in work.operations:
                if isinstance(operation, Cut):
                    self._cut(operation)
                else:
                    self._gather(operation)
        self._last = works[-1]
        if self._policy.mode is FlushMode.SYNC:
            self.sync()
        elif self._run_bytes > self._policy.buffer_bytes:
            self._write_runs()
        elif not self._runs:
            self.written_sequence = works[-1].sequence
        self.on_durable(works[-1].ticket)

    def sync(self) -> None:
        """All that was taken on is durable, and the checkpoint says so, itself not yet synced."""
        self._write_runs()
        last = self._last
        if last is None:
            return
        started = self._clock()
        if self._unsynced:
            for handle in self._unsynced:
                self._files.fdatasync(handle)
            self.flush_count += 1
            self._unsynced.clear()
            self._unsynced_bytes = 0
        now = self._clock()
        self.last_flush_s = now - started
        self.total_flush_s += self.last_flush_s
        self._last_sync_at = now
        self._last = None
        if self._checkpoint.state.watermark == last.end_offset:
            return  # Nothing but the hard state was written.
        self._checkpoint.note_log(last.end_offset, last.timestamp_ms)
        if self._checkpoint_due_at is None:
            self._checkpoint_due_at = now + CHECKPOINT_SYNC_S

    def finish(self) -> None:
        """Everything is durable, the checkpoint too. Called when no worker runs any more."""
        works = self.take()
        if works:
            self.perform(works)
        self.sync()
        self._checkpoint.sync()

    def _gather(self, write: Write) -> None:
        if not self._runs:
            self._oldest_run_at = self._clock()
        last = self._runs[-1] if self._runs else None
        if last and last.handle == write.handle and last.offset + last.size == write.offset:
            last.buffers.extend(write.buffers)
            last.size += write.size
        else:
            self._runs.append(write)
        self._run_bytes += write.size

    def _write_runs(self) -> None:
        """What was gathered is in the page cache."""
        for run in self._runs:
            write_all(self._files, run.handle, run.buffers, run.offset)
            self._unsynced[run.handle] = None
            if self._last_handle not in (None, run.handle):
                self._checkpoint_due_at = self._clock()  # A segment was rolled.
            self._last_handle = run.handle
        self.written_bytes += self._run_bytes
        self._unsynced_bytes += self._run_bytes
        self._runs = []
        self._run_bytes = 0
        if self._last is not None:
            self.written_sequence = self._last.sequence

    def _cut(self, cut: Cut) -> None:
        """Writes gathered before reach the file first: the cut may lie in the midst of them."""
        self._write_runs()
        cut_tail(self._files, self._intent, self._checkpoint, cut.offset, cut.ranges)

    def _see_to_what_is_due(self) -> None:
        now = self._clock()
        if self._runs and now >= self._oldest_run_at + BUFFER_AGE_S:
            self._write_runs()
        if self._last is not None and now >= self._sync_due_at():
            self.sync()
        if self._checkpoint_due_at is not None and now >= self._checkpoint_due_at:
            self._checkpoint.sync()
            self._checkpoint_due_at = None

    def _sync_due_at(self) -> float:
        """In async mode: at the interval if enough pages are dirty, else every 10 s."""
        enough = self._unsynced_bytes + self._run_bytes >= self._policy.pages * PAGE_BYTES
        return self._last_sync_at + (self._policy.interval_ms / 1e3 if enough else THOROUGH_FLUSH_S)

    def _delay(self) -> float | None:
        due: list[float] = []
        if self._runs:
            due.append(self._oldest_run_at + BUFFER_AGE_S)
        if self._last is not None:
            due.append(self._sync_due_at())
        if self._checkpoint_due_at is not None:
            due.append(self._checkpoint_due_at)
        return max(0.0, min(due) - self._clock()) if due else None


def write_at(segment: Segment, buffers: list[Buffer], size: int) -> Write:
    """A write that begins where the segment's last entry ends."""
    return Write(segment.handle, segment.used, buffers, size)

"""The checkpoint page: how far the files were known to be durable.

This owns `<data>/checkpoint`. Its watermark is what tells a torn tail (at or above it: cut) from
corruption (below it: stop). It must never run ahead of the log: it is written after the log's
fdatasync has returned, and lowered, durably, before anything is cut off.

It is written with one pwrite after each flush, so it survives the death of the process, and
synced a little later, so after a power cut it is a few milliseconds old, which is the safe side.
Its bytes are described in `dledger.reading.checkpoint`.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

from dledger.reading.checkpoint import (
    PAGE_SIZE,
    CheckpointState,
    decode_checkpoint,
    encode_checkpoint,
)
from store.files import FileSystem, write_all


class Checkpoint:
    """The page on disk and the state last written to it.

    The flusher's thread moves the watermark, the thread that flushes ConsumeQueues its index: a
    lock keeps one from undoing the other.
    """

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._syncing = threading.Lock()  # never held while a note waits
        self._sync_failed: OSError | None = None
        existed = files.exists(path)
        self._handle = files.open(path) if existed else files.create(path)
        try:
            page = self._read()
            if len(page) < PAGE_SIZE and files.size(self._handle) < PAGE_SIZE:
                # Its space is had before anything depends on it; all later writes lie within.
                files.fallocate(self._handle, PAGE_SIZE)
                files.fsync(self._handle)
        except BaseException:
            files.close(self._handle)
            raise
        stored = decode_checkpoint(page) if existed else None
        self.readable = stored is not None
        self._state = stored or CheckpointState()
        if not existed:
            files.fsync_directory(path.parent)

    @property
    def state(self) -> CheckpointState:
        """What was last written, or found."""
        return self._state

    def mend(self) -> bool:
        """Whether the page was found to be something else than what was written last; then it is
        written again. Raises OSError: it can't be."""
        with self._lock:
            if decode_checkpoint(self._read()) == self._state:
                return False
            self._files.truncate(self._handle, PAGE_SIZE)
            self._write(self._state)
            return True

    def note_log(self, watermark: int, timestamp_ms: int) -> None:
        """The log is durable up to `watermark`. Written, not synced."""
        with self._lock:
            self._write(
                replace(self._state, watermark=watermark, commit_log_timestamp_ms=timestamp_ms)
            )

    def lower(self, watermark: int) -> None:
        """The watermark is `watermark` at most. Written, not synced; also where it reads so: a sync
        of the process before may have failed, and the page be called clean since (ADR 8)."""
        with self._lock:
            lowered = min(watermark, self._state.watermark)
            self._write(replace(self._state, watermark=lowered))

    def note_consume_queue(self, index: int, timestamp_ms: int) -> None:
        """The units of all entries up to `index` are durable. Written, not synced."""
        with self._lock:
            self._write(
                replace(
                    self._state,
                    consume_queue_index=index,
                    consume_queue_timestamp_ms=timestamp_ms,
                )
            )

    def begin_at(self, offset: int, index: int, timestamp_ms: int) -> None:
        """The log begins at `offset`, behind entry `index`, and holds nothing yet; durably."""
        with self._lock:
            self._write(
                replace(
                    self._state,
                    watermark=offset,
                    first_offset=offset,
                    commit_log_timestamp_ms=timestamp_ms,
                    consume_queue_index=index,
                    consume_queue_timestamp_ms=timestamp_ms,
                )
            )
        self.sync()

    def note_first(self, offset: int) -> None:
        """The log begins at `offset`. Written, not synced: a reader's help, the note decides."""
        with self._lock:
            self._write(replace(self._state, first_offset=offset))

    def distrust_consume_queues(self) -> None:
        """No unit counts as durable, whatever happens from here on; durably."""
        self.note_consume_queue(0, self._state.consume_queue_timestamp_ms)
        self.sync()

    def sync(self) -> None:
        """What was written is durable. Once the disk has refused that, it refuses for good: the
        operating system tells an error of writing back to one call only, and whoever asks next, in
        another thread, would take for durable what is lost (ADR 8).

        Raises:
            OSError: it isn't, or one asked before to whom that was said.
        """
        with self._syncing:
            if self._sync_failed is not None:
                raise self._sync_failed
            try:
                self._files.fdatasync(self._handle)
            except OSError as error:
                self._sync_failed = error
                raise

    def close(self) -> None:
        self._files.close(self._handle)

    def _read(self) -> bytes:
        """The page, and a byte behind it if there is one; nothing where it can't be read."""
        try:
            return self._files.pread(self._handle, PAGE_SIZE + 1, 0)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""

    def _write(self, state: CheckpointState) -> None:
        write_all(self._files, self._handle, [encode_checkpoint(state)], 0)
        self._state = state

"""The checkpoint page: how far the files were known to be durable.

This owns `<data>/checkpoint`. Its watermark is what tells a torn tail (at or above it: cut) from
corruption (below it: stop). It must never run ahead of the log: it is written after the log's
fdatasync has returned, and lowered, durably, before anything is cut off.

It is written with one pwrite after each flush, so it survives the death of the process, and
synced a little later, so after a power cut it is a few milliseconds old, which is the safe side.
All fields lie in the first 512-byte sector, which disks write whole.

    byte  size  field
    0     4     magic 0xDAA320C1
    4     4     version (1)
    8     4     CRC32C of the page, this field taken as zero
    12    4     zero
    16    8     watermark: durable end of the commit log, physical offset
    24    8     first offset of the commit log
    32    8     commit log timestamp: append time of the last durable entry, ms
    40    8     consume queue timestamp, ms
    48    8     index file timestamp, ms
    56    8     consume queue index: entries up to it are durable in the ConsumeQueues
    64    4032  zeros

Source: RocketMQ `StoreCheckpoint`: one page with the three timestamps, without a check.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from crc32c import crc32c

from store.files import FileSystem, write_all

CHECKPOINT_MAGIC: Final = 0xDAA320C1
CHECKPOINT_VERSION: Final = 1
PAGE_SIZE: Final = 4096

_LAYOUT: Final = struct.Struct(">IIIIQQQQQQ")
_PADDING: Final = bytes(PAGE_SIZE - _LAYOUT.size)

if _LAYOUT.size != 64:
    raise AssertionError("the checkpoint's fields are 64 bytes")


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The page's fields; offsets in bytes, timestamps in ms since the epoch."""

    watermark: int = 0
    first_offset: int = 0
    commit_log_timestamp_ms: int = 0
    consume_queue_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    consume_queue_index: int = 0


def encode_checkpoint(state: CheckpointState) -> bytes:
    """The 4,096 bytes of the page; see the table above."""
    fields = (
        state.watermark,
        state.first_offset,
        state.commit_log_timestamp_ms,
        state.consume_queue_timestamp_ms,
        state.index_timestamp_ms,
        state.consume_queue_index,
    )
    unsealed = _LAYOUT.pack(CHECKPOINT_MAGIC, CHECKPOINT_VERSION, 0, 0, *fields) + _PADDING
    return unsealed[:8] + crc32c(unsealed).to_bytes(4, "big") + unsealed[12:]


def decode_checkpoint(page: bytes) -> CheckpointState | None:
    """The state in `page`; None if it isn't an intact checkpoint, which is no error: recovery has
    a stricter rule for a log without one."""
    if len(page) != PAGE_SIZE:
        return None
    magic, version, crc, _, *fields = _LAYOUT.unpack_from(page)
    if magic != CHECKPOINT_MAGIC or version != CHECKPOINT_VERSION:
        return None
    if crc32c(page[:8] + bytes(4) + page[12:]) != crc:
        return None
    return CheckpointState(*fields)


class Checkpoint:
    """The page on disk and the state last written to it.

    The flusher's thread moves the watermark, the thread that flushes ConsumeQueues its index: a
    lock keeps one from undoing the other.
    """

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._lock = threading.Lock()
        existed = files.exists(path)
        self._handle = files.open(path) if existed else files.create(path)
        page = files.pread(self._handle, PAGE_SIZE + 1, 0)
        stored = decode_checkpoint(page) if existed else None
        self.readable = stored is not None
        self._state = stored or CheckpointState()
        if not existed:
            files.fsync_directory(path.parent)

    @property
    def state(self) -> CheckpointState:
        """What was last written, or found."""
        return self._state

    def note_log(self, watermark: int, timestamp_ms: int) -> None:
        """The log is durable up to `watermark`. Written, not synced."""
        with self._lock:
            self._write(
                replace(self._state, watermark=watermark, commit_log_timestamp_ms=timestamp_ms)
            )

    def lower(self, watermark: int) -> None:
        """The watermark is `watermark` at most. Written, not synced."""
        with self._lock:
            if watermark < self._state.watermark:
                self._write(replace(self._state, watermark=watermark))

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

    def distrust_consume_queues(self) -> None:
        """No unit counts as durable, whatever happens from here on; durably."""
        self.note_consume_queue(0, self._state.consume_queue_timestamp_ms)
        self.sync()

    def sync(self) -> None:
        """What was written is durable."""
        self._files.fdatasync(self._handle)

    def close(self) -> None:
        self._files.close(self._handle)

    def _write(self, state: CheckpointState) -> None:
        write_all(self._files, self._handle, [encode_checkpoint(state)], 0)
        self._state = state

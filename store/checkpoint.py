"""The checkpoint page: how far the files were known to be durable.

This owns `<data>/checkpoint`. Its watermark is what tells a torn tail (at or above it: cut) from
corruption (below it: stop). It must never run ahead of the log: it is written after the log's
fdatasync has returned, and lowered, durably, before anything is cut off.

It is written with one pwrite after each flush, so it survives the death of the process, and
synced a little later, so after a power cut it is a few milliseconds old, which is the safe side.
The page is `dledger.records.layout.CHECKPOINT`; all of its fields lie in the first 512-byte sector,
which disks write whole.

Source: RocketMQ `StoreCheckpoint`: one page with the three timestamps, without a check.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.records.layout import CHECKPOINT
from store.files import FileSystem, write_all

PAGE_SIZE: Final = CHECKPOINT.size

_MAGIC: Final = CHECKPOINT.constant("magic")
_VERSION: Final = CHECKPOINT.constant("version")
_PAGE: Final = CHECKPOINT.struct(
    "magic", "version", "crc", "watermark", "first_offset", "commit_log_timestamp_ms",
    "consume_queue_timestamp_ms", "index_timestamp_ms", "consume_queue_index",
)  # fmt: skip
_CRC: Final = CHECKPOINT.run("crc")
_CRC_AT: Final = CHECKPOINT.at("crc")
_CRC_END: Final = CHECKPOINT.end("crc")


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
    """The bytes of the page."""
    fields = (
        state.watermark,
        state.first_offset,
        state.commit_log_timestamp_ms,
        state.consume_queue_timestamp_ms,
        state.index_timestamp_ms,
        state.consume_queue_index,
    )
    unsealed = _PAGE.pack(_MAGIC, _VERSION, 0, *fields)
    return unsealed[:_CRC_AT] + _CRC.pack(crc32c(unsealed)) + unsealed[_CRC_END:]


def decode_checkpoint(page: bytes) -> CheckpointState | None:
    """The state in `page`; None if it isn't an intact checkpoint, which is no error: recovery has
    a stricter rule for a log without one."""
    if len(page) != PAGE_SIZE:
        return None
    magic, version, crc, *fields = _PAGE.unpack(page)
    if magic != _MAGIC or version != _VERSION:
        return None
    if crc32c(page[:_CRC_AT] + bytes(_CRC.size) + page[_CRC_END:]) != crc:
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

"""The bytes of the checkpoint page: how far a log's files were known to be durable.

Values and bytes only. Who writes the page, and when, is `store.checkpoint`; who reads one that
belongs to somebody else need know no more than this.

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
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

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

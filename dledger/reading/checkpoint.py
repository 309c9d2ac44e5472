"""The bytes of the checkpoint page: how far a log's files were known to be durable.

Values and bytes only. Who writes the page, and when, is `store.checkpoint`; who reads one that
belongs to somebody else need know no more than this. The page is
`dledger.records.layout.CHECKPOINT`; all of its fields lie in the first 512-byte sector, which disks
write whole.

Source: RocketMQ `StoreCheckpoint`: one page with the three timestamps, without a check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dledger.records.layout import CHECKPOINT

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

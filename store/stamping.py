"""Stamping: what the leader writes into records that a producer encoded.

Four fields in two contiguous runs of 16 bytes: QUEUEOFFSET with PHYSICALOFFSET, and STORETIMESTAMP
with STOREHOSTADDRESS (`dledger.records.layout.RECORD`). None of them is covered by the record's
CRC, so nothing has to be computed again. Two implementations write the same bytes: a `struct` loop,
which is faster for few records, and a numpy scatter of 16-byte items for many (ADR 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dledger.reading.dtypes import dtype_of
from dledger.records.layout import HOST, RECORD

STAMPED_OFFSETS: Final = ("queue_offset", "physical_offset")
STAMPED_STORED: Final = ("store_time_ms", "store_host")
OFFSETS: Final = RECORD.run(*STAMPED_OFFSETS)
OFFSETS_AT: Final = RECORD.at(STAMPED_OFFSETS[0])
OFFSET_DTYPE: Final = dtype_of(RECORD)[STAMPED_OFFSETS[0]]

# Measured on CPython 3.11: the scatter costs 4.8 µs and 0.02 µs a record, the loop 0.07 µs and
# 0.23 µs a record, so they cross at 24 records.
SCATTER_FROM_COUNT: Final = 24

_STORED: Final = RECORD.run(*STAMPED_STORED)
_STORED_AT: Final = RECORD.at(STAMPED_STORED[0])
_HOST: Final = HOST.struct()
_ITEM: Final = OFFSETS.size

if _STORED.size != _ITEM:
    raise AssertionError("the scatter moves items of one size: both stamped runs have it")


def stamp_records(
    buf: bytearray,
    starts: Sequence[int],
    *,
    at: int,
    base_queue_offset: int,
    base_physical_offset: int,
    store_time_ms: int,
    store_host: tuple[bytes, int],
) -> None:
    """Every record in `buf` carries its place in the queue and in the log, when and where it was
    stored.

    Args:
        buf: holds the records, the first at byte `at`.
        starts: each record's first byte relative to the first record's, as `validate_records`
            returns them.
        base_queue_offset: queue offset of the first record; the others follow one by one.
        base_physical_offset: physical offset of the first record's first byte.
        store_time_ms: milliseconds since the epoch.
        store_host: the leader's IPv4 address (4 bytes) and port.
    """
    stored = _STORED.pack(store_time_ms, _HOST.pack(*store_host))
    write = stamp_by_loop if len(starts) < SCATTER_FROM_COUNT else stamp_by_scatter
    write(buf, starts, at, (base_queue_offset, base_physical_offset), stored)


def stamp_by_loop(
    buf: bytearray, starts: Sequence[int], at: int, bases: tuple[int, int], stored: bytes
) -> None:
    """`stamp_records`, record by record. `bases`: queue offset and physical offset of the first;
    `stored`: the 16 bytes of the second run."""
    queue_offset, base_physical_offset = bases
    pack_into = OFFSETS.pack_into
    for start in starts:
        record_at = at + start
        pack_into(buf, record_at + OFFSETS_AT, queue_offset, base_physical_offset + start)
        buf[record_at + _STORED_AT : record_at + _STORED_AT + _ITEM] = stored
        queue_offset += 1


def stamp_by_scatter(
    buf: bytearray, starts: Sequence[int], at: int, bases: tuple[int, int], stored: bytes
) -> None:
    """`stamp_records`, all at once: `buf` seen as overlapping 16-byte items, one at each byte."""
    positions = np.array(starts, dtype=np.int64)
    if len(positions) and at + int(positions[-1]) + _STORED_AT + _ITEM > len(buf):
        raise IndexError("the last record ends beyond the buffer")
    offsets = np.empty((len(positions), 2), dtype=OFFSET_DTYPE)
    offsets[:, 0] = np.arange(bases[0], bases[0] + len(positions), dtype=np.uint64)
    offsets[:, 1] = positions + bases[1]
    items = np.ndarray((len(buf) - _ITEM + 1,), dtype=f"V{_ITEM}", buffer=buf, strides=(1,))
    items[positions + (at + OFFSETS_AT)] = offsets.view(f"V{_ITEM}")[:, 0]
    items[positions + (at + _STORED_AT)] = np.void(stored)

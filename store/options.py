"""How a commit log is to behave. Values only; the bounds are checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store.flusher import FlushMode, FlushPolicy
from store.preallocation import AllocationPolicy

MIN_SEGMENT_BYTES: Final = 4096
MAX_SEGMENT_BYTES: Final = 1 << 31  # Positions within a segment are 32-bit numbers.


@dataclass(frozen=True, slots=True)
class CommitLogOptions:
    """Options of one log.

    Args:
        segment_size_bytes: a multiple of 4,096; the same on all nodes of a broker group. No entry
            can be larger than this less eight bytes.
        flush: when an append is called durable. ASYNC loses acknowledged entries with the power.
        async_flush_interval_ms: ASYNC looks this often whether to fdatasync,
        async_flush_pages: and does if so many pages of 4 KiB are dirty; every 10 s in any case.
        warm_up: zeros are written into the next segment in the background, so that the first
            write to a page needs no block allocation.
        mlock: the next segment's pages are locked into memory; a failure is reported in
            `statistics().pin_failure` and otherwise harmless.
        write_buffer_bytes: ASYNC only; so many bytes may wait in the process's memory, for 200 ms
            at most, before they are even written: the death of the process loses them.
        reserve_bytes: no segment is made that would leave less of the disk free.
        cache_bytes: how much of the newest frames stays in memory for reading.

    Raises:
        ValueError: a value out of its range, or a write buffer with SYNC.
    """

    segment_size_bytes: int = 1 << 30
    flush: FlushMode = FlushMode.SYNC
    async_flush_interval_ms: int = 500
    async_flush_pages: int = 4
    warm_up: bool = False
    mlock: bool = False
    write_buffer_bytes: int = 0
    reserve_bytes: int = 64 << 20
    cache_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        size = self.segment_size_bytes
        if size % 4096 or not MIN_SEGMENT_BYTES <= size <= MAX_SEGMENT_BYTES:
            limits = f"{MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}"
            raise ValueError(f"segment_size_bytes is {size}: {limits}, a multiple of 4096")
        if self.write_buffer_bytes and self.flush is not FlushMode.ASYNC:
            raise ValueError("write_buffer_bytes needs flush = async: it gives durability up")
        for name in ("write_buffer_bytes", "reserve_bytes", "cache_bytes", "async_flush_pages"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is negative")
        if self.async_flush_interval_ms < 1:
            raise ValueError("async_flush_interval_ms is below 1")

    @property
    def flush_policy(self) -> FlushPolicy:
        """The flusher's part."""
        return FlushPolicy(
            self.flush,
            self.async_flush_interval_ms,
            self.async_flush_pages,
            self.write_buffer_bytes,
        )

    @property
    def allocation_policy(self) -> AllocationPolicy:
        """The preallocator's part."""
        return AllocationPolicy(
            self.segment_size_bytes, self.reserve_bytes, self.warm_up, self.mlock
        )

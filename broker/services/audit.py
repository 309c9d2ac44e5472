"""Digests and bytes of this node's committed log, for auditors elsewhere; every node answers.

An auditor beside the files needs none of this. One that isn't gets names, sizes, XXH3-64 of
blocks, and the bytes of the few blocks that differ, so that the same plan and the same locating
run on its side. What is found is never this node's verdict: a broken file is told to the auditor
and doesn't stop the node (`broker/reading/segments.py`).

What an audit may cost is bounded here: `MAX_CALLS` at once, `MAX_CALL_BYTES` each, one rate for
all of them (`broker.audit_bytes_per_s`), and a slice of memory a call. Reading and hashing run in
threads; waiting for the rate runs on the event loop and holds no thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

from broker.errors import BrokerError, ErrorCode
from broker.reading.segments import (
    BasePiece,
    FolderContent,
    Hashed,
    RangeBytes,
    SegmentProblem,
    hash_blocks,
    look_around,
    read_base,
    read_bytes,
    slices,
)

MAX_CALLS: Final = 2
MAX_BLOCKS: Final = 16_384  # a call
MAX_CALL_BYTES: Final = 64 << 20
MAX_READ_BYTES: Final = 1 << 20
MAX_BASE_BYTES: Final = 1 << 40
MIN_BYTES_PER_S: Final = 64 << 10  # slower, a call would hold its place for hours


class Meter:
    """How long a reader must wait to keep to a rate. Time not used is not saved up."""

    def __init__(self, bytes_per_s: int) -> None:
        """Nothing was read yet; 0: no rate."""
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def spend(self, size: int, now: float) -> float:
        """`size` bytes were read at second `now`; how many seconds to wait before the next."""
        if not self._bytes_per_s:
            return 0.0
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        return self._free_at - now


@dataclass(frozen=True, slots=True)
class AuditedPlace:
    """Whose log is told of, where its segment files lie, and how long each is."""

    broker_group: str
    node_id: str
    folder: Path
    segment_size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentClaim:
    """The segment that a caller speaks of, by the physical offset of its first byte, and what it
    takes for granted. An empty broker group: any."""

    broker_group: str
    segment_size_bytes: int
    base: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is to audit. `committed_offset`: committed and durable on this node."""

    place: AuditedPlace
    committed_offset: int
    first_index: int
    content: FolderContent


@dataclass(frozen=True, slots=True)
class RangeDigests:
    """Digests of some blocks of a range; the last ones of the call if `is_last`."""

    hashed: Hashed
    is_last: bool


class AuditedLog(Protocol):
    """`broker.reading.committed.CommittedLog`, as far as audits ask it."""

    @property
    def first_index(self) -> int: ...
    def retired_end(self) -> int: ...
    def durable_end(self) -> int: ...


class Audit:
    """Tells auditors of this node's log."""

    def __init__(self, place: AuditedPlace, log: AuditedLog, bytes_per_s: int) -> None:
        """Args:
        bytes_per_s: the rate of all calls together; 0: none.
        """
        self._place = place
        self._log = log
        self._meter = Meter(bytes_per_s)
        self.calls = 0

    async def survey(self, broker_group: str = "") -> Survey:
        """The files there are, and how far the log is committed.

        Raises:
            BrokerError: WRONG_BROKER_GROUP, BUSY.
        """
        self._check_group(broker_group)
        # The position first: what was committed then is final by the time the files are seen.
        committed, first_index = self._log.durable_end(), self._log.first_index
        with self._taken_place():
            content = await asyncio.to_thread(look_around, self._place.folder)
        return Survey(self._place, committed, first_index, content)

    async def digests(
        self, claim: SegmentClaim, edges: Sequence[int], bytes_per_s: int = 0
    ) -> AsyncGenerator[RangeDigests, None]:
        """Digests of the blocks `[edges[i], edges[i + 1])`, some at a time.

        Args:
            edges: physical offsets within the segment, ascending.
            bytes_per_s: not faster than this; 0: as the node is configured.

        Raises:
            BrokerError: WRONG_BROKER_GROUP, INVALID_ARGUMENT, OFFSET_OUT_OF_RANGE, BUSY.
        """
        self._check_segment(claim)
        self._check_edges(claim.base, edges)
        own = Meter(_admitted(bytes_per_s))
        with self._taken_place():
            for part in slices(edges):
                hashed = await asyncio.to_thread(hash_blocks, self._path(claim.base), part)
                await self._wait(own, hashed.readable - part[0])
                is_last = part[-1] == edges[-1] or hashed.problem is not None
                if self._is_retained(claim.base, hashed.problem):
                    hashed = replace(hashed, problem=SegmentProblem.RETAINED, detail=_RETAINED)
                yield RangeDigests(hashed, is_last)
                if is_last:
                    return

    async def read(
        self, claim: SegmentClaim, *, offset: int, size: int, bytes_per_s: int = 0
    ) -> RangeBytes:
        """`size` bytes from the physical offset, fewer where the file or what is committed ends.

        Raises:
            BrokerError: WRONG_BROKER_GROUP, INVALID_ARGUMENT, BUSY.
        """
        self._check_segment(claim)
        end = claim.base + self._place.segment_size_bytes
        if not 0 < size <= MAX_READ_BYTES:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT, f"{size} bytes: 1 to {MAX_READ_BYTES} are read"
            )
        if not claim.base <= offset < end:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT, f"offset {offset} isn't in segment {claim.base}"
            )
        wanted = max(0, min(offset + size, end, self._log.durable_end()) - offset)
        own = Meter(_admitted(bytes_per_s))
        with self._taken_place():
            answer = await asyncio.to_thread(
                read_bytes, self._path(claim.base), offset - claim.base, wanted
            )
            await self._wait(own, len(answer.content))
        if self._is_retained(claim.base, answer.problem):
            return replace(answer, problem=SegmentProblem.RETAINED, detail=_RETAINED)
        return answer

    async def base(self, broker_group: str = "", at: int = 0) -> BasePiece:
        """What stands for the entries before the log's first, and its bytes from `at` on.

        Raises:
            BrokerError: WRONG_BROKER_GROUP, INVALID_ARGUMENT, BUSY.
        """
        self._check_group(broker_group)
        if at > MAX_BASE_BYTES:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, f"byte {at}: no snapshot is so large")
        with self._taken_place():
            found = await asyncio.to_thread(
                read_base, self._place.folder.parent, at, MAX_READ_BYTES
            )
            await self._wait(Meter(0), len(found.content))
        return found

    # --- checks and bounds --------------------------------------------------------------------

    def _path(self, base: int) -> Path:
        return self._place.folder / f"{base:020d}"

    def _check_group(self, broker_group: str) -> None:
        ours = self._place.broker_group
        if broker_group and broker_group != ours:
            raise BrokerError(
                ErrorCode.WRONG_BROKER_GROUP,
                f"this node is of broker group {ours!r}, not {broker_group!r}",
            )

    def _check_segment(self, claim: SegmentClaim) -> None:
        self._check_group(claim.broker_group)
        size = self._place.segment_size_bytes
        if claim.segment_size_bytes != size or claim.base % size:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT,
                f"segment {claim.base} of {claim.segment_size_bytes} bytes: they begin at "
                f"multiples of {size} here",
            )

    def _check_edges(self, base: int, edges: Sequence[int]) -> None:
        if not 2 <= len(edges) <= MAX_BLOCKS + 1:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT,
                f"{len(edges)} edges: a call has 2 to {MAX_BLOCKS + 1}",
            )
        is_ascending = all(start < end for start, end in pairwise(edges))
        end = base + self._place.segment_size_bytes
        if not is_ascending or edges[0] < base or edges[-1] > end:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT, f"the edges must ascend within segment {base}"
            )
        if edges[-1] - edges[0] > MAX_CALL_BYTES:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT,
                f"{edges[-1] - edges[0]} bytes: a call covers {MAX_CALL_BYTES} at most",
            )
        if edges[-1] > (committed := self._log.durable_end()):
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"bytes up to {edges[-1]} are asked for, {committed} are committed here",
            )

    @contextmanager
    def _taken_place(self) -> Iterator[None]:
        """One of `MAX_CALLS` places while this lasts.

        Raises:
            BrokerError: BUSY; nothing was done.
        """
        if self.calls >= MAX_CALLS:
            raise BrokerError(ErrorCode.BUSY, f"{self.calls} audit calls are under way, the limit")
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    async def _wait(self, own: Meter, size: int) -> None:
        now = time.monotonic()
        # Both count what was read; the slower one decides.
        seconds = max(self._meter.spend(size, now), own.spend(size, now))
        if seconds > 0:
            await asyncio.sleep(seconds)

    def _is_retained(self, base: int, problem: SegmentProblem | None) -> bool:
        """A file that isn't there was lost, or was deleted because the log begins behind it."""
        return problem is SegmentProblem.MISSING and base < self._log.retired_end()


_RETAINED: Final = "deleted: the log begins behind it"


def _admitted(bytes_per_second: int) -> int:
    return max(bytes_per_second, MIN_BYTES_PER_S) if bytes_per_second else 0

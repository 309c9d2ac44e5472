"""The Audit service: digests and bytes of this node's committed log, for auditors elsewhere.

An auditor beside the files needs none of this. One that isn't gets names, sizes, XXH3-64 of
blocks, and the bytes of the few blocks that differ, so that the same plan and the same locating
run on its side. Files are opened by name for each slice and read with pread: an audit must see
what lies in the folder now, not what the node's own descriptors and caches still show. Nothing is
locked or written, and what is found is never this node's verdict: a broken file is told to the
auditor and doesn't stop the node.

What an audit may cost is bounded here: `MAX_CALLS` at once, `MAX_CALL_BYTES` each, one rate for
all of them (`broker.audit_bytes_per_s`), and a slice of memory (`CHUNK_BYTES`) a call. Reading and
hashing run in threads; waiting for the rate runs on the event loop and holds no thread.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64

from broker.errors import BrokerError
from broker.rpc import Context
from dledger.reading.checkpoint import PAGE_SIZE, CheckpointState, decode_checkpoint
from dledger.wire import audit_pb2 as apb
from dledger.wire import errors_pb2 as epb
from store.errors import StoreError

if TYPE_CHECKING:
    from broker.node import Node

MAX_CALLS: Final = 2
MAX_BLOCKS: Final = 16_384  # a call
MAX_CALL_BYTES: Final = 64 << 20
MAX_READ_BYTES: Final = 1 << 20
MAX_FILES: Final = 65_536  # told of the folder: 64 TiB in segments of 1 GiB
CHUNK_BYTES: Final = 256 << 10
SLICE_BYTES: Final = 4 << 20  # hashed in one go; between slices the call waits for its rate
MIN_BYTES_PER_S: Final = 64 << 10  # slower, a call would hold its place for hours

# Of a range, by what the file system says.
_MISSING: Final = (apb.SEGMENT_MISSING, "no such file")
_RETAINED: Final = (apb.SEGMENT_RETAINED, "deleted: the log begins behind it")


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
class Hashed:
    """Digests of a slice's first blocks, all of them if `problem` is unspecified; `readable` is
    the physical offset where reading ended."""

    digests: bytes
    readable: int
    problem: apb.RangeProblem = apb.RANGE_PROBLEM_UNSPECIFIED
    detail: str = ""


class AuditService:
    """Handlers of `dledger.v1.Audit`; every node answers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._folder = Path(node.config.data_directory) / "commitlog"
        self._meter = Meter(node.config.broker.audit_bytes_per_s)
        self.calls = 0

    async def survey_log(self, request: apb.SurveyLogRequest, context: Context) -> apb.LogSurvey:
        self._check_group(request.group)
        # The position first: what was committed then is final by the time the files are seen.
        answer = apb.LogSurvey(
            group=self._node.config.group,
            node_id=self._node.config.node_id,
            commitlog=str(self._folder),
            segment_size_bytes=self._segment_size,
            committed_offset=self._committed(),
            first_index=self._node.log.first_index,
        )
        with self._place():
            await asyncio.to_thread(look_around, self._folder, answer)
        return answer

    async def digest_ranges(self, request: apb.DigestRangesRequest, context: Context) -> None:
        self._check_segment(request.group, request.segment_size_bytes, request.base)
        edges = tuple(request.edges)
        self._check_edges(request.base, edges)
        own = Meter(_admitted(request.bytes_per_second))
        with self._place():
            for part in slices(edges):
                hashed = await asyncio.to_thread(hash_blocks, self._path(request.base), part)
                await self._wait(own, hashed.readable - part[0])
                is_last = part[-1] == edges[-1] or hashed.problem != apb.RANGE_PROBLEM_UNSPECIFIED
                problem, detail = self._told(request.base, hashed.problem, hashed.detail)
                await context.write(
                    apb.RangeDigests(
                        digests=hashed.digests,
                        done=is_last,
                        problem=problem,
                        readable=hashed.readable,
                        detail=detail,
                    )
                )
                if is_last:
                    return

    async def read_range(
        self, request: apb.ReadRangeRequest, context: Context
    ) -> apb.ReadRangeResponse:
        self._check_segment(request.group, request.segment_size_bytes, request.base)
        if not 0 < request.size <= MAX_READ_BYTES:
            raise BrokerError(
                epb.INVALID_ARGUMENT, f"{request.size} bytes: 1 to {MAX_READ_BYTES} are read"
            )
        if not request.base <= request.offset < request.base + self._segment_size:
            raise BrokerError(
                epb.INVALID_ARGUMENT, f"offset {request.offset} isn't in segment {request.base}"
            )
        end = min(
            request.offset + request.size, request.base + self._segment_size, self._committed()
        )
        size = max(0, end - request.offset)
        own = Meter(_admitted(request.bytes_per_second))
        with self._place():
            answer = await asyncio.to_thread(
                read_bytes, self._path(request.base), request.offset - request.base, size
            )
            await self._wait(own, len(answer.data))
        problem, answer.detail = self._told(request.base, answer.problem, answer.detail)
        answer.problem = problem
        return answer

    # --- checks and bounds --------------------------------------------------------------------

    @property
    def _segment_size(self) -> int:
        return self._node.config.store.segment_size_bytes

    def _path(self, base: int) -> Path:
        return self._folder / f"{base:020d}"

    def _committed(self) -> int:
        """Bytes that are committed and on this node's disk: a leader may commit by its followers'
        disks before its own write is done, and what isn't written yet would look like zeros."""
        core = self._node.driver.core.statistics()
        return self._node.end_of_entry(min(core.commit_index, core.durable_index))

    def _check_group(self, group: str) -> None:
        ours = self._node.config.group
        if group and group != ours:
            raise BrokerError(epb.WRONG_GROUP, f"this node is of group {ours!r}, not {group!r}")

    def _check_segment(self, group: str, segment_size: int, base: int) -> None:
        self._check_group(group)
        if segment_size != self._segment_size or base % self._segment_size:
            raise BrokerError(
                epb.INVALID_ARGUMENT,
                f"segment {base} of {segment_size} bytes: they begin at multiples of "
                f"{self._segment_size} here",
            )

    def _check_edges(self, base: int, edges: Sequence[int]) -> None:
        if not 2 <= len(edges) <= MAX_BLOCKS + 1:
            raise BrokerError(
                epb.INVALID_ARGUMENT, f"{len(edges)} edges: a call has 2 to {MAX_BLOCKS + 1}"
            )
        is_ascending = all(start < end for start, end in pairwise(edges))
        if not is_ascending or edges[0] < base or edges[-1] > base + self._segment_size:
            raise BrokerError(epb.INVALID_ARGUMENT, f"the edges must ascend within segment {base}")
        if edges[-1] - edges[0] > MAX_CALL_BYTES:
            raise BrokerError(
                epb.INVALID_ARGUMENT,
                f"{edges[-1] - edges[0]} bytes: a call covers {MAX_CALL_BYTES} at most",
            )
        if edges[-1] > (committed := self._committed()):
            raise BrokerError(
                epb.OFFSET_OUT_OF_RANGE,
                f"bytes up to {edges[-1]} are asked for, {committed} are committed here",
            )

    @contextmanager
    def _place(self) -> Iterator[None]:
        """One of `MAX_CALLS` places while this lasts.

        Raises:
            BrokerError: BUSY; nothing was done.
        """
        if self.calls >= MAX_CALLS:
            raise BrokerError(epb.BUSY, f"{self.calls} audit calls are under way, the limit")
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

    def _told(
        self, base: int, problem: apb.RangeProblem, detail: str
    ) -> tuple[apb.RangeProblem, str]:
        """A file that isn't there was lost, or was deleted because the log begins behind it."""
        if problem == apb.SEGMENT_MISSING and base + self._segment_size <= self._log_start():
            return _RETAINED
        return problem, detail

    def _log_start(self) -> int:
        try:
            return self._node.log.position_of(self._node.log.first_index)
        except StoreError:  # an empty log
            return 0


def slices(edges: Sequence[int]) -> Iterator[Sequence[int]]:
    """The same blocks in runs of `SLICE_BYTES` at most, but at least one block each."""
    first = 0
    for last in range(1, len(edges)):
        if last + 1 == len(edges) or edges[last + 1] - edges[first] > SLICE_BYTES:
            yield edges[first : last + 1]
            first = last


def hash_blocks(path: Path, edges: Sequence[int]) -> Hashed:
    """XXH3-64 of each block `[edges[i], edges[i + 1])` of the segment file; any thread.

    Args:
        edges: physical offsets; the file's name says where it begins.
    """
    base = int(path.name)
    digests = bytearray()
    readable = edges[0]
    try:
        with _opened(path) as descriptor:
            buffer = memoryview(bytearray(min(CHUNK_BYTES, edges[-1] - edges[0])))
            for start, end in pairwise(edges):
                state, readable = xxh3_64(), start
                while readable < end:
                    view = buffer[: end - readable]
                    count = os.preadv(descriptor, [view], readable - base)
                    if count == 0:
                        detail = f"ends at byte {readable - base}"
                        return Hashed(bytes(digests), readable, apb.SEGMENT_TRUNCATED, detail)
                    state.update(view[:count])
                    readable += count
                digests += state.intdigest().to_bytes(8, "little")
    except FileNotFoundError:
        return Hashed(bytes(digests), readable, *_MISSING)
    except OSError as error:
        detail = error.strerror or str(error)
        return Hashed(bytes(digests), readable, apb.SEGMENT_UNREADABLE, detail)
    return Hashed(bytes(digests), readable)


def read_bytes(path: Path, offset: int, size: int) -> apb.ReadRangeResponse:
    """`size` bytes of the file from byte `offset`, fewer where it ends; any thread."""
    content = b""
    try:
        with _opened(path) as descriptor:
            while len(content) < size:
                more = os.pread(descriptor, size - len(content), offset + len(content))
                if not more:
                    break
                content += more
    except FileNotFoundError:
        return apb.ReadRangeResponse(problem=_MISSING[0], detail=_MISSING[1])
    except OSError as error:
        detail = error.strerror or str(error)
        return apb.ReadRangeResponse(problem=apb.SEGMENT_UNREADABLE, detail=detail)
    return apb.ReadRangeResponse(data=content)


def look_around(folder: Path, answer: apb.LogSurvey) -> None:
    """The files of the folder and its checkpoint are in the answer; any thread."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        answer.problem = f"{folder}: {error.strerror or error}"
        return
    if len(names) > MAX_FILES:
        answer.problem = f"{folder}: {len(names)} files, {MAX_FILES} at most are told"
        return
    for name in names:
        try:
            answer.files.add(name=name, size=os.stat(folder / name).st_size)
        except OSError:  # deleted meanwhile, or a link to nowhere
            continue
    state = _checkpoint(folder.parent / "checkpoint")
    answer.checkpoint_readable = state is not None
    if state is not None:
        answer.checkpoint_first_offset = state.first_offset
        answer.checkpoint_consume_queue_index = state.consume_queue_index


def _checkpoint(path: Path) -> CheckpointState | None:
    try:
        with _opened(path) as descriptor:
            return decode_checkpoint(os.pread(descriptor, PAGE_SIZE + 1, 0))
    except OSError:
        return None


def _admitted(bytes_per_second: int) -> int:
    return max(bytes_per_second, MIN_BYTES_PER_S) if bytes_per_second else 0


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

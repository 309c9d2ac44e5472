"""A replica's log over gRPC: for auditors that can't read a node's files.

The transport beneath `audit.reading.survey`, `audit.proof.digest` and `audit.proof.scan`: the node
reads and hashes, its answers become what these make of files, and everything behind them is the
same. Only digests travel, and the bytes of blocks that differ. A node that stops answering is an
`OSError`, as a disk is that does; one that has too many audits already is asked again, a bounded
number of times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc

from audit.errors import NodeRefused, SegmentGone
from dledger.credentials.tls import open_blocking_channel
from dledger.limits import MESSAGE_LENGTHS
from dledger.terminal.tls import chosen_material
from dledger.wire import audit_pb2 as apb

CALL_BYTES: Final = 64 << 20  # As `broker.services.audit` bounds a call.
CALL_BLOCKS: Final = 16_384
READ_BYTES: Final = 1 << 20
WINDOW_BYTES: Final = 256 << 10
TIMEOUT_S: Final = 30.0  # Of a call that reads nothing; what it reads is added.
SLOWEST_BYTES_PER_S: Final = 1 << 20  # The slowest that a node can be configured to read.
LEAST_BYTES_PER_S: Final = 64 << 10  # The slowest that a node can be asked to.
BUSY_TRIES: Final = 60
BUSY_NAP_S: Final = 0.5
_SERVICE: Final = "/dledger.v1.Audit"
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # A shared one may be backing off still.
    *MESSAGE_LENGTHS,
)

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """Digests of a run's first blocks, 8 bytes each; where reading ended; and why, if early."""

    digests: bytes
    readable: int
    problem: apb.RangeProblem
    detail: str


class NodeLog:
    """The log of the node at `address`; made by `node_log`."""

    def __init__(
        self, channel: grpc.Channel, address: str, nap: Callable[[float], None] = time.sleep
    ) -> None:
        self._address = address
        self._nap = nap
        self._survey = _method(channel.unary_unary, "SurveyLog", apb.LogSurvey)
        self._digest = _method(channel.unary_stream, "DigestRanges", apb.RangeDigests)
        self._read = _method(channel.unary_unary, "ReadRange", apb.ReadRangeResponse)
        self._base = _method(channel.unary_unary, "ReadBase", apb.ReadBaseResponse)

    def survey(self) -> apb.LogSurvey:
        """What lies in the log's folder.

        Raises:
            NodeRefused: no answer.
        """

        def ask() -> apb.LogSurvey:
            answer: apb.LogSurvey = self._survey(apb.SurveyLogRequest(), timeout=TIMEOUT_S)
            return answer

        return self._asked(ask)

    def digest(
        self, segment: tuple[int, int], edges: Sequence[int], bytes_per_s: float
    ) -> RangeAnswer:
        """The digests of blocks that lie back to back, in as many calls as they take.

        Args:
            segment: its base and the group's segment size.
            edges: physical offsets, within the segment.

        Raises:
            NodeRefused: no answer, or a refusal; nothing of the run is known then.
        """
        digests, readable = b"", edges[0]
        for part in calls(edges):
            request = apb.DigestRangesRequest(
                base=segment[0],
                segment_size_bytes=segment[1],
                edges=part,
                bytes_per_second=int(bytes_per_s),
            )
            answer = self._digest_call(request, _timeout(part[-1] - part[0], bytes_per_s))
            digests, readable = digests + answer.digests, answer.readable
            if answer.problem:
                return RangeAnswer(digests, readable, answer.problem, answer.detail)
        return RangeAnswer(digests, readable, apb.RANGE_PROBLEM_UNSPECIFIED, "")

    def _digest_call(self, request: apb.DigestRangesRequest, timeout_s: float) -> RangeAnswer:
        def ask() -> RangeAnswer:
            digests = b""
            for answer in self._digest(request, timeout=timeout_s):
                digests += answer.digests
                if answer.done:
                    return RangeAnswer(digests, answer.readable, answer.problem, answer.detail)
            raise NodeRefused(self._address, "the answer breaks off")

        return self._asked(ask)

    def read(self, segment: tuple[int, int], offset: int, size: int) -> bytes:
        """`size` bytes of the segment from physical `offset`; fewer where the file, or what is
        committed, ends.

        Raises:
            SegmentGone: the node has no such file.
            NodeRefused: it can't read it, or gives no answer.
        """
        content = b""
        while len(content) < size:
            request = apb.ReadRangeRequest(
                base=segment[0],
                segment_size_bytes=segment[1],
                offset=offset + len(content),
                size=min(size - len(content), READ_BYTES),
            )
            answer = self._read_call(request)
            if answer.problem in (apb.SEGMENT_MISSING, apb.SEGMENT_RETAINED):
                raise SegmentGone(answer.detail)
            if answer.problem:
                raise NodeRefused(self._address, answer.detail)
            if not answer.data or request.offset + len(answer.data) >= sum(segment):
                return content + answer.data
            content += answer.data
        return content

    def base(self, at: int = 0) -> apb.ReadBaseResponse:
        """What stands for the entries before the log's first, and some of it from byte `at` on.

        Raises:
            NodeRefused: it can't read it, or gives no answer.
        """

        def ask() -> apb.ReadBaseResponse:
            request = apb.ReadBaseRequest(at=at)
            answer: apb.ReadBaseResponse = self._base(request, timeout=_timeout(READ_BYTES, 0))
            return answer

        found = self._asked(ask)
        if found.problem:
            raise NodeRefused(self._address, found.detail)
        return found

    def _read_call(self, request: apb.ReadRangeRequest) -> apb.ReadRangeResponse:
        def ask() -> apb.ReadRangeResponse:
            answer: apb.ReadRangeResponse = self._read(request, timeout=_timeout(READ_BYTES, 0))
            return answer

        return self._asked(ask)

    def _asked(self, ask: Callable[[], A]) -> A:
        """What `ask` gives; asked again while the node says that it has too many audits."""
        for left in reversed(range(BUSY_TRIES)):
            try:
                return ask()
            except grpc.RpcError as error:
                status: Any = error  # A call that failed is its own status.
                if status.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or not left:
                    reason = f"{status.code().name}: {status.details() or 'no answer'}"
                    raise NodeRefused(self._address, reason) from error
                self._nap(BUSY_NAP_S)
        raise AssertionError("the last try returns or raises")


class RemoteWindow:
    """Reads a segment of a node in windows; see `audit.proof.scan.Reader`."""

    window_bytes = WINDOW_BYTES

    def __init__(self, log: NodeLog, segment: tuple[int, int]) -> None:
        self._log = log
        self._segment = segment
        self._chunk = b""
        self._chunk_at = 0

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from byte `at` of the segment, fewer where the file ends."""
        near = at - self._chunk_at
        if near < 0 or near + size > len(self._chunk):
            base, segment_size = self._segment
            wanted = min(max(size, WINDOW_BYTES), segment_size - at)
            self._chunk = self._log.read(self._segment, base + at, wanted) if wanted > 0 else b""
            self._chunk_at, near = at, 0
        return self._chunk[near : near + size]


@contextmanager
def node_log(address: str) -> Iterator[NodeLog]:
    """The log of the node at `address`, while this lasts."""
    with open_blocking_channel(address, _OPTIONS, chosen_material()) as channel:
        yield NodeLog(channel, address)


def calls(edges: Sequence[int]) -> Iterator[Sequence[int]]:
    """The same blocks in runs that a call may have: so many blocks, so many bytes.

    Every block must be within `CALL_BYTES`, which the bound of block sizes sees to.
    """
    first = 0
    for last in range(1, len(edges)):
        is_last = last + 1 == len(edges)
        is_full = last - first == CALL_BLOCKS
        if is_last or is_full or edges[last + 1] - edges[first] > CALL_BYTES:
            yield edges[first : last + 1]
            first = last


def _timeout(size: int, bytes_per_s: float) -> float:
    """Long enough for the slowest node that keeps its promises, and its other audits."""
    slowest = max(bytes_per_s, LEAST_BYTES_PER_S) if bytes_per_s else SLOWEST_BYTES_PER_S
    return TIMEOUT_S + 4 * size / min(slowest, SLOWEST_BYTES_PER_S)


def _method(kind: Any, name: str, answer: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = kind(
        f"{_SERVICE}/{name}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    return made

"""Hashing the blocks of a replica: the work of an audit's first pass, done beside the files.

Only digests leave a task: 8 bytes for a block. A block that can't be read whole has no digest and
leaves a problem instead; nothing is made up for it.

XXH3-64 is no cryptographic hash: it finds accidents and not forgers, as the log's own digest does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64, xxh3_64_intdigest

from audit.proof.plan import DigestPart, DigestTask
from audit.reading.file_state import FileState, state_of
from audit.reading.pace import Pace
from dledger.reading.files import BLOCK_READ_BYTES, name_of_file, opened, read_into
from dledger.reading.objects import is_object
from dledger.records.layout import file_name

if TYPE_CHECKING:
    from audit.reading.remote import NodeLog
    from dledger.wire import audit_pb2 as apb

DIGEST_DTYPE: Final = np.dtype("<u8")


class FileProblem(StrEnum):
    """Why blocks of a segment have no digest."""

    MISSING = "missing"
    TRUNCATED = "truncated"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class PartDigests:
    """Digests of a part's first blocks, 8 bytes each, little-endian; all of them if `problem` is
    None. `readable` is where reading ended, a physical offset. `state`: the file's before it was
    read; None where it tells nothing. `file`: which one was read; empty where nobody can say."""

    replica: str
    base: int
    first_block: int
    digests: bytes
    readable: int
    problem: FileProblem | None = None
    detail: str = ""
    state: FileState | None = None
    file: str = ""

    def values(self) -> npt.NDArray[np.uint64]:
        """The digests as an array."""
        return np.frombuffer(self.digests, dtype=DIGEST_DTYPE)


def digest_blocks(task: DigestTask) -> list[PartDigests]:
    """One value a part, in the parts' order."""
    if task.address is not None:
        return _digest_by_node(task, task.address)
    pace = Pace(task.bytes_per_s)
    buffer = bytearray(BLOCK_READ_BYTES)
    return [_digest_part(task, part, memoryview(buffer), pace) for part in task.parts]


def _digest_by_node(task: DigestTask, address: str) -> list[PartDigests]:
    """The same of a node that is asked. One that falls silent leaves the rest unreadable."""
    from audit.reading.remote import node_log  # Executors may do without gRPC.

    with node_log(address) as log:
        return [_ask_part(log, task, part) for part in task.parts]


def _ask_part(log: NodeLog, task: DigestTask, part: DigestPart) -> PartDigests:
    segment = (part.base, task.segment_size)
    try:
        answer = log.digest(segment, part.edges, task.bytes_per_s)
    except OSError as error:
        problem, detail = FileProblem.UNREADABLE, error.strerror or str(error)
        return PartDigests(
            task.replica, part.base, part.first_block, b"", part.edges[0], problem, detail
        )
    return PartDigests(
        task.replica,
        part.base,
        part.first_block,
        answer.digests,
        answer.readable,
        _problem_of(answer.problem),
        answer.detail,
    )


def _problem_of(told: apb.RangeProblem) -> FileProblem | None:
    """What a node tells of a file, in this module's words."""
    from dledger.wire import audit_pb2 as apb

    match told:
        case apb.RANGE_PROBLEM_UNSPECIFIED:
            return None
        case apb.SEGMENT_MISSING | apb.SEGMENT_RETAINED:
            return FileProblem.MISSING
        case apb.SEGMENT_TRUNCATED:
            return FileProblem.TRUNCATED
        case _:  # Unreadable, or something that a newer node knows.
            return FileProblem.UNREADABLE


def _digest_part(task: DigestTask, part: DigestPart, buffer: memoryview, pace: Pace) -> PartDigests:
    path = os.path.join(task.commitlog, file_name(part.base))
    digests: list[int] = []
    problem: FileProblem | None = None
    detail, readable, file = "", part.edges[0], ""
    state: FileState | None = None
    try:
        with opened(path) as descriptor:
            state = state_of(descriptor)
            file = "" if is_object(path) else name_of_file(os.fstat(descriptor))
            for start, end in pairwise(part.edges):
                digest, readable = _digest_block(descriptor, part.base, (start, end), buffer, pace)
                if digest is None:
                    problem, detail = FileProblem.TRUNCATED, f"ends at byte {readable - part.base}"
                    break
                digests.append(digest)
    except FileNotFoundError:
        problem, detail = FileProblem.MISSING, "no such file"
    except OSError as error:
        problem, detail = FileProblem.UNREADABLE, error.strerror or str(error)
    raw = np.array(digests, dtype=DIGEST_DTYPE).tobytes()
    return PartDigests(
        task.replica, part.base, part.first_block, raw, readable, problem, detail, state, file
    )


def _digest_block(
    descriptor: int, base: int, block: tuple[int, int], buffer: memoryview, pace: Pace
) -> tuple[int | None, int]:
    """The block's digest, None if the file ends within it; and where reading ended."""
    start, end = block
    if end - start <= len(buffer):
        view = buffer[: end - start]
        count = read_into(descriptor, view, start - base)
        pace.spend(count)
        return (xxh3_64_intdigest(view) if count == len(view) else None), start + count
    state = xxh3_64()
    while start < end:
        view = buffer[: min(len(buffer), end - start)]
        count = read_into(descriptor, view, start - base)
        pace.spend(count)
        start += count
        if count < len(view):
            return None, start
        state.update(view)
    return state.intdigest(), start

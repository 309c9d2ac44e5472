"""Segment files as they lie in the folder: named, hashed, read; in any thread.

For audits, which must see what is on the disk now and not what the node's own descriptors and
caches still show: files are opened by name for each piece and read with pread. Nothing is locked or
written. A broken file is an answer here, never an error: what it means is for the auditor to say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from pathlib import Path
from typing import Final

from xxhash import xxh3_64

from dledger.reading.checkpoint import PAGE_SIZE, CheckpointState, decode_checkpoint
from dledger.reading.log_start import FROM_THE_FIRST, LogStart, start_noted
from dledger.records.layout import file_name
from store.errors import StoreError
from store.files import OsFiles
from store.log_start import StartNote
from store.snapshot_files import FOLDER

MAX_FILES: Final = 65_536  # told of the folder: 64 TiB in segments of 1 GiB
CHUNK_BYTES: Final = 256 << 10
SLICE_BYTES: Final = 4 << 20  # hashed in one go


class SegmentProblem(Enum):
    """Why there are no more digests, or no bytes."""

    MISSING = auto()  # it should be there
    RETAINED = auto()  # deleted: the log begins behind it
    TRUNCATED = auto()  # the file ends at `readable`
    UNREADABLE = auto()


@dataclass(frozen=True, slots=True)
class Hashed:
    """Digests (8 bytes each, little-endian) of a slice's first blocks, all of them if there is no
    problem; `readable` is the physical offset where reading ended."""

    digests: bytes
    readable: int
    problem: SegmentProblem | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RangeBytes:
    """Bytes of a segment, fewer than asked for where the file ends."""

    content: bytes
    problem: SegmentProblem | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BasePiece:
    """The bytes of a start note, none where the log begins with entry 1; how large the snapshot is
    that stands for what was before, and some of it. `detail`: why nothing can be read."""

    note: bytes = b""
    size_bytes: int = 0
    content: bytes = b""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the folder and its bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FolderContent:
    """What lies in a CommitLog's folder. `checkpoint` is None where it can't be read, `problem`
    isn't empty where the folder can't. `start`: what the start note said after the files were
    listed, so that none is missing that it doesn't give up; None where it can't be read."""

    files: tuple[LogFile, ...] = ()
    checkpoint: CheckpointState | None = None
    problem: str = ""
    start: LogStart | None = FROM_THE_FIRST


def slices(edges: Sequence[int]) -> Iterator[Sequence[int]]:
    """The same blocks in runs of `SLICE_BYTES` at most, but at least one block each."""
    first = 0
    for last in range(1, len(edges)):
        if last + 1 == len(edges) or edges[last + 1] - edges[first] > SLICE_BYTES:
            yield edges[first : last + 1]
            first = last


def hash_blocks(path: Path, edges: Sequence[int]) -> Hashed:
    """XXH3-64 of each block `[edges[i], edges[i + 1])` of the segment file.

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
                        return Hashed(bytes(digests), readable, SegmentProblem.TRUNCATED, detail)
                    state.update(view[:count])
                    readable += count
                digests += state.intdigest().to_bytes(8, "little")
    except OSError as error:
        return Hashed(bytes(digests), readable, *_problem(error))
    return Hashed(bytes(digests), readable)


def read_bytes(path: Path, offset: int, size: int) -> RangeBytes:
    """`size` bytes of the file from byte `offset`, fewer where it ends."""
    content = b""
    try:
        with _opened(path) as descriptor:
            while len(content) < size:
                more = os.pread(descriptor, size - len(content), offset + len(content))
                if not more:
                    break
                content += more
    except OSError as error:
        return RangeBytes(b"", *_problem(error))
    return RangeBytes(content)


def read_base(data: Path, at: int, size: int) -> BasePiece:
    """The start note of the data directory, and `size` bytes of its snapshot from byte `at`."""
    try:
        start = StartNote(OsFiles(), data).read()
        if start == FROM_THE_FIRST:
            return BasePiece()
        with _opened(data / FOLDER / file_name(start.index)) as descriptor:
            total, content = os.fstat(descriptor).st_size, os.pread(descriptor, size, at)
    except (StoreError, OSError) as error:
        return BasePiece(detail=str(error))
    return BasePiece(start.encode(), total, content)


def look_around(folder: Path) -> FolderContent:
    """The files of the folder, by name, its checkpoint and its start note."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return FolderContent(problem=f"{folder}: {error.strerror or error}")
    if len(names) > MAX_FILES:
        problem = f"{folder}: {len(names)} files, {MAX_FILES} at most are told"
        return FolderContent(problem=problem)
    files = []
    for name in names:
        try:
            files.append(LogFile(name, os.stat(folder / name).st_size))
        except OSError:  # deleted meanwhile, or a link to nowhere
            continue
    checkpoint = _checkpoint(folder.parent / "checkpoint")
    return FolderContent(tuple(files), checkpoint, start=start_noted(str(folder.parent)))


def _problem(error: OSError) -> tuple[SegmentProblem, str]:
    """What the file system says, and what that is here."""
    if isinstance(error, FileNotFoundError):
        return SegmentProblem.MISSING, "no such file"
    return SegmentProblem.UNREADABLE, error.strerror or str(error)


def _checkpoint(path: Path) -> CheckpointState | None:
    try:
        with _opened(path) as descriptor:
            return decode_checkpoint(os.pread(descriptor, PAGE_SIZE + 1, 0))
    except OSError:
        return None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

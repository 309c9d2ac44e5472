"""Whole entries of a segment, a chunk at a time, each verified: the framing below
`audit.reading.decode`.

This owns the way from a file to entries and their headers. It must never pass over what isn't an
intact entry. Sizes are followed and CRCs computed entry by entry; the headers' fields are gathered
from the whole chunk at once.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from audit.reading.columns import Integers
from audit.reading.files import read_at
from dledger.reading.entry import (
    ENTRY_MAGIC,
    ENTRY_VERSION,
    FILLER_MAGIC,
    HEADER_SIZE,
    EntryKind,
    parse_header,
    verify_frame,
)
from dledger.records.errors import InvalidFrame
from store.errors import CorruptionFound

# Large enough for numpy's cost a call to vanish, small enough for a chunk to stay in the caches
# between its CRC and its columns. Measured: 2 to 8 MiB are alike, 32 MiB takes half as long again.
CHUNK_BYTES: Final = 4 << 20

# The header's fields that readers ask for; the byte table is in `dledger.reading.entry`.
HEADER: Final = np.dtype(
    {
        "names": ["size", "kind", "version", "count", "index", "term", "offset"],
        "formats": [">u4", "u1", "u1", ">u2", ">i8", ">i8", ">i8"],
        "offsets": [0, 8, 9, 10, 16, 24, 32],
        "itemsize": HEADER_SIZE,
    }
)
_FRAME: Final = struct.Struct(">II4xI")  # Size, magic, CRC.


@dataclass(frozen=True, slots=True)
class LogRange:
    """Bytes `[start, end)` of one segment; both lie between entries, or at the segment's ends."""

    commitlog: str
    base: int
    start: int
    end: int

    @property
    def path(self) -> str:
        return os.path.join(self.commitlog, f"{self.base:020d}")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of the file from `at` on, and the entries in them: entry i begins at `starts[i]` of
    `content` and has `headers[i]`, of `HEADER`."""

    at: int
    content: bytes
    starts: Integers
    headers: npt.NDArray[np.void]


def read_chunks(descriptor: int, part: LogRange, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Every entry of the range, in order, each in one chunk; what follows a filler isn't read.

    Args:
        size: of a chunk, bytes; one with a larger entry is as large as that.

    Raises:
        CorruptionFound: something else lies where an entry should begin.
        OSError: the file can't be read.
    """
    at, end = part.start - part.base, part.end - part.base
    size = max(size, HEADER_SIZE)
    wanted = size
    while at < end:
        content = read_at(descriptor, min(wanted, end - at), at)
        starts, used = _intact_entries(content)
        if starts:
            yield _chunk(part, at, content, starts)
        if _FRAME.size <= len(content) - used and _magic(content, used) == FILLER_MAGIC:
            return
        if used:
            at, wanted = at + used, size
            continue
        claimed = int.from_bytes(content[:4], "big")
        is_cut_short = len(content) < min(wanted, end - at)
        if is_cut_short or not _begins_entry(content) or min(claimed, end - at) <= len(content):
            raise _damage(part, at, content)
        wanted = claimed  # Larger than a chunk, or it says so: its CRC will tell.


def _intact_entries(content: bytes) -> tuple[list[int], int]:
    """Where each intact entry begins, one behind the other, and where the last of them ends."""
    starts: list[int] = []
    view, unpack, end = memoryview(content), _FRAME.unpack_from, len(content)
    at = 0
    while end - at >= HEADER_SIZE:
        size, magic, crc = unpack(content, at)
        behind = at + size
        if magic != ENTRY_MAGIC or size < HEADER_SIZE or behind > end:
            break
        if crc32c(view[at + 16 : behind], crc32c(view[at : at + 12])) != crc:
            break
        starts.append(at)
        at = behind
    return starts, at


def _chunk(part: LogRange, at: int, content: bytes, starts: list[int]) -> Chunk:
    """The chunk, its headers looked at: a good CRC says what was written, not that it was right
    or that it belongs here."""
    places = np.array(starts, dtype=np.int64)
    headers = gathered(content, places, HEADER)
    kinds = headers["kind"]
    good = (headers["version"] == ENTRY_VERSION) & (headers["offset"] == places + part.base + at)
    good &= (kinds >= EntryKind.NOOP) & (kinds <= EntryKind.CONFIGURATION)
    if not good.all():
        near = starts[int(np.argmin(good))]
        raise _damage(part, at + near, content[near:])
    return Chunk(at, content, places, headers)


def gathered(content: bytes, places: Integers, dtype: npt.DTypeLike) -> npt.NDArray[np.void]:
    """The items of `dtype` that begin at `places`, wherever these are; whole within `content`."""
    kind = np.dtype(dtype)
    items = np.ndarray(
        (max(len(content) - kind.itemsize + 1, 0),),
        dtype=f"V{kind.itemsize}",
        buffer=content,
        strides=(1,),
    )
    return items[places].view(kind)


def _begins_entry(content: bytes) -> bool:
    try:
        parse_header(content, 0)
    except InvalidFrame:
        return False
    return True


def _magic(content: bytes, at: int) -> int:
    return int.from_bytes(content[at + 4 : at + 8], "big")


def _damage(part: LogRange, at: int, content: bytes) -> CorruptionFound:
    """Why no entry of the log begins with `content`, which lies at byte `at` of the file."""
    if len(content) < 8:
        return CorruptionFound(part.path, at, "an entry", "the file's end")
    try:
        header = verify_frame(content, 0, None)
    except InvalidFrame as error:
        expected = f"an entry with {error.field} {error.expected}"
        return CorruptionFound(part.path, at, expected, error.found)
    expected = f"the entry of offset {part.base + at}"
    return CorruptionFound(part.path, at, expected, header.physical_offset)

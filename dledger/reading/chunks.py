"""Whole entries of a segment, a chunk at a time, each verified: the framing below
`dledger.reading.decode`.

This owns the way from a file to entries and their headers. It must never pass over what isn't an
intact entry. Sizes are followed and CRCs computed entry by entry; the headers' fields are gathered
from the whole chunk at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dledger.reading.columns import Integers
from dledger.reading.dtypes import dtype_of
from dledger.reading.entry import (
    COMPOUND_VERSION,
    ENTRY_MAGIC,
    ENTRY_VERSION,
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    OLD_VERSION,
    OPENING_SIZE,
    EntryKind,
    claim_of,
    frame_crc,
    parse_header,
    verify_frame,
)
from dledger.reading.errors import EntryDamaged
from dledger.reading.files import read_at
from dledger.records.errors import InvalidFrame
from dledger.records.layout import ENTRY, file_name

# Large enough for numpy's cost a call to vanish, small enough for a chunk to stay in the caches
# between its CRC and its columns. Measured: 2 to 8 MiB are alike, 32 MiB takes half as long again.
CHUNK_BYTES: Final = 4 << 20

HEADER: Final = dtype_of(ENTRY)
_FRAME: Final = ENTRY.run("total_size", "magic", "crc")


@dataclass(frozen=True, slots=True)
class LogRange:
    """Bytes `[start, end)` of one segment; both lie between entries, or at the segment's ends.

    Attributes:
        digest: of the last entry in it, for who reads elsewhere (`dledger.reading.planned`); None:
            nobody said.
    """

    commitlog: str
    base: int
    start: int
    end: int
    digest: int | None = None

    @property
    def path(self) -> str:
        return os.path.join(self.commitlog, file_name(self.base))


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
        EntryDamaged: something else lies where an entry should begin.
        OSError: the file can't be read.
    """
    at, end = part.start - part.base, part.end - part.base
    size = max(size, HEADER_SIZE)
    wanted = size
    while at < end:
        content = read_at(descriptor, min(wanted, end - at), at)
        starts, used = intact_entries(content)
        if starts:
            yield _chunk(part, at, content, starts)
        if _begins_filler(content, used):
            return
        if used:
            at, wanted = at + used, size
            continue
        is_cut_short = len(content) < min(wanted, end - at)
        if is_cut_short or not _begins_entry(content):
            raise _damage(part, at, content)
        wanted, _ = claim_of(content, 0)  # Larger than a chunk, or it says so: its CRC will tell.
        if min(wanted, end - at) <= len(content):
            raise _damage(part, at, content)


def intact_entries(content: bytes) -> tuple[list[int], int]:
    """Where each entry with a good CRC begins, one behind the other from byte 0 on, and where the
    last of them ends. Kinds, versions and places are for the caller to look at."""
    starts: list[int] = []
    view, unpack, end = memoryview(content), _FRAME.unpack_from, len(content)
    at = 0
    while end - at >= HEADER_SIZE:
        size, magic, crc = unpack(content, at)
        behind = at + size
        if magic != ENTRY_MAGIC or size < HEADER_SIZE or behind > end:
            break
        if frame_crc(view, at, behind) != crc:
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
    offsets = headers["physical_offset"].astype(np.int64)
    # Of a later release: there may be messages in it, and data must not have unseen holes.
    versions = headers["version"]
    newest = np.where(kinds == EntryKind.DATA, COMPOUND_VERSION, ENTRY_VERSION)
    good = (versions >= OLD_VERSION) & (versions <= newest)
    good &= offsets == places + part.base + at
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


def _begins_filler(content: bytes, at: int) -> bool:
    if len(content) - at < FILLER_HEADER_SIZE:
        return False
    _, magic = FILLER_HEADER.unpack_from(content, at)
    return bool(magic == FILLER_MAGIC)


def _damage(part: LogRange, at: int, content: bytes) -> EntryDamaged:
    """Why no entry of the log begins with `content`, which lies at byte `at` of the file."""
    if len(content) < OPENING_SIZE:
        return EntryDamaged(part.path, at, "an entry", "the file's end")
    try:
        header = verify_frame(content, 0, None)
    except InvalidFrame as error:
        expected = f"an entry with {error.field} {error.expected}"
        return EntryDamaged(part.path, at, expected, error.found)
    if not header.is_known:
        expected = f"a kind up to {EntryKind.CONFIGURATION:d}, a version up to {ENTRY_VERSION}"
        expected += f" ({COMPOUND_VERSION} of data)"
        found = f"kind {header.kind}, version {header.version}: a later release wrote it"
        return EntryDamaged(part.path, at, expected, found)
    expected = f"the entry of offset {part.base + at}"
    return EntryDamaged(part.path, at, expected, header.physical_offset)

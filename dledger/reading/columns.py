"""Columns of many messages at once, as the decoder leaves them: places in a buffer, no objects.

A column can be turned into Arrow without touching a value (`dledger.reading.arrow`), and can be
iterated, which makes a Python object of each value: for readers of a few columns that do without
pyarrow. Nothing here copies the buffer, and nothing writes to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dledger.records.compression import decompress
from dledger.records.errors import BodyUnreadable, CodecMissing
from dledger.records.properties import decode_properties

Integers = npt.NDArray[np.int64]

_EQUALS: Final = 1  # The byte between a property's name and its value,
_END: Final = 2  # and the one behind the value.
_END_BYTE: Final = b"\x02"


@dataclass(frozen=True, slots=True)
class Words:
    """Strings of which few are distinct: the value of row i is `words[codes[i]]`."""

    words: tuple[str, ...]
    codes: Integers

    def __iter__(self) -> Iterator[str]:
        words = self.words
        return (words[code] for code in self.codes.tolist())


@dataclass(frozen=True, slots=True)
class Cuts:
    """Byte strings within one buffer: row i is `buffer[starts[i]:ends[i]]`. They ascend and don't
    overlap."""

    buffer: bytes
    starts: Integers
    ends: Integers

    def __iter__(self) -> Iterator[bytes]:
        buffer = self.buffer
        places = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return (buffer[start:end] for start, end in places)

    @property
    def sizes(self) -> Integers:
        """Bytes of each."""
        return self.ends - self.starts


@dataclass(frozen=True, slots=True)
class Bodies:
    """Bodies of which some are compressed: row i is `stored`'s, decompressed as `sysflags[i]` says.
    One that can't be read is None, which no other body is: reading goes on behind what a producer
    has broken. Nothing is decompressed before it is iterated."""

    stored: Cuts
    sysflags: Integers

    def __iter__(self) -> Iterator[bytes | None]:
        return (
            _body_of(stored, sysflag)
            for stored, sysflag in zip(self.stored, self.sysflags.tolist(), strict=True)
        )

    @property
    def sizes(self) -> Integers:
        """Bytes of each, as it is stored."""
        return self.stored.sizes

    def pieces(self, limit: int) -> Iterator[list[bytes | None]]:
        """All of them, in order, in lists of about `limit` bytes: a few stored bytes may become
        megabytes."""
        piece: list[bytes | None] = []
        size = 0
        for body in self:
            piece.append(body)
            size += len(body or b"")
            if size >= limit:
                yield piece
                piece, size = [], 0
        if piece:
            yield piece


def _body_of(stored: bytes, sysflag: int) -> bytes | None:
    """None: it can't be read.

    Raises:
        CodecMissing: it could be, if its library were installed.
    """
    try:
        return decompress(stored, sysflag)
    except CodecMissing:
        raise
    except BodyUnreadable:
        return None


@dataclass(frozen=True, slots=True)
class PropertyTable:
    """The properties of many messages, split all at once. A property that stands twice in a
    message stands twice here.

    `text` is valid UTF-8, and so is every cut of it. Pair p is a name, `text[names[p]:equals[p]]`,
    and a value, `text[equals[p] + 1:ends[p]]`; row i has the pairs `[first[i], first[i + 1])`.
    Iterating gives what `decode_properties` gives: the last of equal names wins.
    """

    text: bytes
    names: Integers
    equals: Integers
    ends: Integers
    first: Integers

    @classmethod
    def of(cls, encoded: Cuts) -> PropertyTable:
        """The properties of each row, as forgiving as `decode_properties`: a piece without a
        separator is passed over, bytes that aren't UTF-8 are replaced."""
        rows = list(encoded)
        text = _END_BYTE.join([*rows, b""])
        if not _is_utf8(text):
            rows = [row.decode(errors="replace").encode() for row in rows]
            text = _END_BYTE.join([*rows, b""])
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        row_starts = np.concatenate(([0], np.cumsum(sizes + 1)))
        names, equals, ends = _pairs(np.frombuffer(text, np.uint8))
        return cls(text, names, equals, ends, np.searchsorted(names, row_starts))

    def __iter__(self) -> Iterator[dict[str, str]]:
        for low, high in zip(self.first[:-1].tolist(), self.first[1:].tolist(), strict=True):
            if low == high:
                yield {}
            else:
                yield decode_properties(self.text[self.names[low] : self.ends[high - 1]])

    def values_of(self, name: bytes) -> PropertyValues:
        """One property of each row: the first of that name, as `find_property` has it."""
        raw = np.frombuffer(self.text, np.uint8)
        named = np.flatnonzero(self.equals - self.names == len(name))
        for at, byte in enumerate(name):
            named = named[raw[self.names[named] + at] == byte]
        rows = np.searchsorted(self.first, named, side="right") - 1
        pairs = np.full(len(self.first) - 1, -1, dtype=np.int64)
        pairs[rows[::-1]] = named[::-1]  # Of several in a row, the one written last: the first.
        return PropertyValues(self, pairs)


@dataclass(frozen=True, slots=True)
class PropertyValues:
    """One property of each row: the value of the table's pair `pairs[i]`, none if that is -1."""

    table: PropertyTable
    pairs: Integers

    def __iter__(self) -> Iterator[str | None]:
        text, present = self.table.text, self.pairs[self.pairs >= 0]
        starts = (self.table.equals[present] + 1).tolist()
        ends = self.table.ends[present].tolist()
        places = zip(starts, ends, strict=True)
        for pair in self.pairs.tolist():
            if pair < 0:
                yield None
            else:
                start, end = next(places)
                yield text[start:end].decode()


Column = Integers | Words | Cuts | Bodies | PropertyTable | PropertyValues


def _is_utf8(text: bytes) -> bool:
    """Rows end with an ASCII byte, so the whole is UTF-8 only if each of them is."""
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _pairs(raw: npt.NDArray[np.uint8]) -> tuple[Integers, Integers, Integers]:
    """Where each name begins, its separator lies and its value ends. `raw` ends with `_END`.

    The separators in order are a string over {1, 2}; a pair is each 1 that doesn't follow a 1,
    with the next 2.
    """
    marks = np.flatnonzero(raw - np.uint8(1) < 2)  # Bytes 1 and 2; 0 wraps to 255.
    is_end = raw[marks] == _END
    follows_end = np.concatenate(([True], is_end[:-1]))
    opening = np.flatnonzero(~is_end & follows_end)
    piece_starts = np.concatenate(([0], marks[:-1] + 1))
    ends = marks[is_end]
    ends_before = np.cumsum(is_end)
    return piece_starts[opening], marks[opening], ends[ends_before[opening]]

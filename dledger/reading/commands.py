"""The entries of a log that hold commands or units, found by headers; bodies of others aren't read.

A header that nobody verified is believed only as far as it proves itself: the entry behind it is
the next one by its index and lies where it says, or its CRC was computed. So a bit that makes an
entry longer, or of another kind, hides no command. The first entry of a segment has to go on from
the running digest of the one before: another log's file may fit by indexes and places. Where that
fails the log is damaged, and how far it was known by then is kept (`Known`): commands may lie
behind that, and nobody has read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dledger.reading.chunks import LogRange
from dledger.reading.entry import (
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    parse_header,
    verify_frame,
)
from dledger.reading.files import opened, read_at
from dledger.records.errors import InvalidFrame
from dledger.records.layout import FIRST_RECORD_AT, RECORD
from dledger.records.record import RECORD_MAGIC

_WINDOW_BYTES: Final = 1 << 20
_MAGIC: Final = RECORD.run("magic")
_LOOK_BYTES: Final = FIRST_RECORD_AT + RECORD.at("magic") + _MAGIC.size


@dataclass(slots=True)
class Known:
    """How far a log was followed: each entry before the physical offset `at` is one, and its
    commands were read; `index` and the running `digest` are the last one's, None if nobody said."""

    at: int
    index: int | None = None
    digest: int | None = None

    def note(self, header: EntryHeader) -> None:
        """This one too."""
        self.at = header.physical_offset + header.total_size
        self.index, self.digest = header.index, header.digest


def command_frames(part: LogRange) -> Iterator[tuple[EntryHeader, bytes]]:
    """The entries of a range that hold commands or units, up to where no intact entry follows."""
    try:
        yield from followed_frames(part, Known(part.start))
    except InvalidFrame:  # The end of what was written, or damage.
        return


def followed_frames(part: LogRange, known: Known) -> Iterator[tuple[EntryHeader, bytes]]:
    """The entries of a range that hold commands or units; `known`, which is at the range's start,
    is at its end then.

    Raises:
        InvalidFrame: not all of it is intact entries, one behind the other, and a filler. What
            isn't begins at `known.at` or behind it.
        OSError: the file can't be read.
    """
    with opened(part.path) as descriptor:
        window = _Window(descriptor)
        at, end = part.start - part.base, part.end - part.base
        last: EntryHeader | None = None  # which nothing has proved yet
        while at < end and not window.is_filler(at):
            try:
                header = window.header(at, end)
                _check_place(header, part.base + at, known.index if last is None else last.index)
                if at == 0 and known.digest is not None:
                    verify_frame(read_at(descriptor, header.total_size, 0), 0, known.digest)
            except InvalidFrame:
                _prove(descriptor, part, last, known)  # Or it has led astray.
                raise
            if last is not None:
                known.note(last)
            last = header
            if not window.is_batch(at, header):
                frame = _prove(descriptor, part, header, known)
                last = None
                if header.kind == EntryKind.COMMAND or header.is_compound:
                    yield header, frame
            at += header.total_size
        _prove(descriptor, part, last, known)
        known.at = part.end


def follows(part: LogRange, known: Known) -> bool:
    """Whether the range begins with the entry behind the last one that is known: then no entry is
    missing before it, whatever is damaged there."""
    try:
        with opened(part.path) as descriptor:
            header = parse_header(read_at(descriptor, HEADER_SIZE, part.start - part.base), 0)
    except InvalidFrame:
        return False
    return known.index is not None and header.index == known.index + 1


def _check_place(header: EntryHeader, at: int, before: int | None) -> None:
    """Raises: InvalidFrame: it lies elsewhere, or isn't the entry behind `before`."""
    if header.physical_offset != at:
        raise InvalidFrame(at, "physical offset", at, header.physical_offset)
    if before is not None and header.index != before + 1:
        raise InvalidFrame(at, "index", before + 1, header.index)


def _prove(descriptor: int, part: LogRange, header: EntryHeader | None, known: Known) -> bytes:
    """The frame, if there is a header; it is known then.

    Raises:
        InvalidFrame: it isn't intact.
    """
    if header is None:
        return b""
    frame = read_at(descriptor, header.total_size, header.physical_offset - part.base)
    verify_frame(frame, 0, None)
    known.note(header)
    return frame


class _Window:
    """A segment's headers, read many at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes, self._from = b"", 0

    def header(self, at: int, end: int) -> EntryHeader:
        """The header at byte `at`, of an entry that ends at byte `end` or before.

        Raises:
            InvalidFrame: there is none.
        """
        header = parse_header(self._bytes, self._near(at))
        if at + header.total_size > end:
            raise InvalidFrame(at, "total size", f"at most {end - at}", header.total_size)
        return header

    def is_filler(self, at: int) -> bool:
        """Whether a filler begins at byte `at`."""
        near = self._near(at)
        if len(self._bytes) - near < FILLER_HEADER_SIZE:
            return False
        _, magic = FILLER_HEADER.unpack_from(self._bytes, near)
        return bool(magic == FILLER_MAGIC)

    def is_batch(self, at: int, header: EntryHeader) -> bool:
        """Whether the entry at byte `at` is one batch of records by more than its header's word: a
        record begins where its first one has to. A bit of kind or version makes none of that."""
        if not header.is_batch or header.record_count == 0:
            return False
        place = self._near(at) + header.first_record_at + RECORD.at("magic")
        if len(self._bytes) - place < _MAGIC.size:
            return False
        (magic,) = _MAGIC.unpack_from(self._bytes, place)
        return bool(magic == RECORD_MAGIC)

    def _near(self, at: int) -> int:
        """Where byte `at` is in what was read."""
        if not self._from <= at <= self._from + len(self._bytes) - _LOOK_BYTES:
            self._bytes, self._from = read_at(self._descriptor, _WINDOW_BYTES, at), at
        return at - self._from

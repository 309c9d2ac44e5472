"""A log that is sound in itself and another one: an entry changed, and all checksums made to fit.

A byte of a message of one entry becomes another, with the record's checksum, the frame's, and the
running digest of that entry and of every later one. Nothing on that disk tells that it was ever
otherwise; only other replicas do. Real directories and simulated disks are altered by the same
code, which is given how their segment files are read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final
from zlib import crc32

from dledger.reading.entry import (
    HEADER_SIZE,
    EntryHeader,
    build_frame,
    verify_frame,
)
from dledger.reading.log_start import FROM_THE_FIRST, LogStart
from dledger.records.errors import InvalidFrame
from dledger.records.layout import RECORD, file_name
from dledger.records.record import record_starts

Content = Callable[[str], bytes | None]  # of the segment file of that name; None: there is none
Put = Callable[[str, int, bytes], None]  # writes bytes at an offset of it

_CRC_MASK: Final = 0x7FFFFFFF
_LENGTH: Final = RECORD.run("body_length")
_LENGTH_AT: Final = RECORD.at("body_length")
_CRC: Final = RECORD.run("body_crc")
_CRC_AT: Final = RECORD.at("body_crc")
_FLAG_AT: Final = RECORD.at("flag")


def frames_of(
    content: Content, segment_bytes: int, start: LogStart = FROM_THE_FIRST
) -> Iterator[EntryHeader]:
    """Every whole frame of a log that begins behind `start`, as they follow each other."""
    position, index = start.offset(segment_bytes), start.first_index
    while True:
        base = position - position % segment_bytes
        blob = content(file_name(base))
        if blob is None:
            return
        found = _frame_at(blob, position - base)
        if found is not None and (found.index, found.physical_offset) == (index, position):
            yield found
            position, index = position + found.total_size, index + 1
        elif position == base:
            return
        else:
            position = base + segment_bytes


def alter(
    content: Content,
    put: Put,
    segment_bytes: int,
    index: int,
    chance: Random,
    start: LogStart = FROM_THE_FIRST,
) -> None:
    """From entry `index` on the log, which begins behind `start`, is another one; that entry isn't
    a no-op. With one before the first, all digests follow that of `start`, and no entry changes."""
    digest = start.digest
    for header in list(frames_of(content, segment_bytes, start)):
        name, at = _place(header, segment_bytes)
        frame = (content(name) or b"")[at : at + header.total_size]
        if header.index < index:
            digest = header.digest
            continue
        if header.index == index:
            frame = _with_another_byte(header, bytearray(frame), chance)
        body = frame[HEADER_SIZE:]
        head, digest = build_frame(
            header.kind,
            header.index,
            header.term,
            header.physical_offset,
            header.append_time_ms,
            header.record_count,
            body,
            digest,
        )
        put(name, at, head + body)


def _place(header: EntryHeader, segment_bytes: int) -> tuple[str, int]:
    base = header.physical_offset - header.physical_offset % segment_bytes
    return file_name(base), header.physical_offset - base


def _frame_at(blob: bytes, at: int) -> EntryHeader | None:
    try:
        return verify_frame(blob, at, None)
    except InvalidFrame:
        return None


def _with_another_byte(header: EntryHeader, frame: bytearray, chance: Random) -> bytes:
    """A byte of one of its messages is another one, with the checksum that fits; of one without
    a byte, its flag; of an entry without messages, its last byte."""
    if not header.is_batch:
        frame[-1] ^= 2
        return bytes(frame)
    start = chance.choice(record_starts(frame, header.first_record_at, header.record_count))
    (length,) = _LENGTH.unpack_from(frame, start + _LENGTH_AT)
    if not length:
        frame[start + _FLAG_AT] ^= 1
        return bytes(frame)
    first = start + RECORD.size
    frame[first + chance.randrange(length)] ^= 1 << chance.randrange(8)
    crc = crc32(frame[first : first + length]) & _CRC_MASK
    _CRC.pack_into(frame, start + _CRC_AT, crc)
    return bytes(frame)

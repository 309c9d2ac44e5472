"""Entry frames: what the replicated log is made of. Pure functions over bytes.

A frame is a header and a body. It carries its own physical offset, a CRC32C over all of
itself, and a digest over the whole log up to it (ADR 6), so that a copy of the log can be checked
from any frame on. Nothing here knows files; nothing here copies a body.

The bytes are `dledger.records.layout.ENTRY` and `FILLER`. Size comes before magic so that the same
two fields are read at any frame boundary, for an entry and for RocketMQ's BLANK filler.

Three runs of the header: the *head* is what precedes the CRC, the *place* is index to append time,
then the digest. Digest of entry i: XXH3-64 with the digest of entry i-1 as its seed (0 before
index 1), over the place, then the head, then the body.

An entry never spans two segments. It goes where the log ends if eight bytes for a filler stay
free behind it, else a filler takes the rest and the entry opens the next segment. A position is
thus a function of the sizes before it, and replicas are byte-identical.

Source: DLedger's entry header (magic, size, index, term, pos, CRCs that it never computes).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c
from xxhash import xxh3_64, xxh3_64_intdigest

from dledger.records.errors import AppendRefused, InvalidFrame
from dledger.records.layout import (
    BATCH,
    BATCH_1,
    ENTRY,
    FILLER,
    FIRST_RECORD_AT,
    FIRST_RECORD_AT_1,
)

ENTRY_MAGIC: Final = ENTRY.constant("magic")
FILLER_MAGIC: Final = FILLER.constant("magic")
ENTRY_VERSION: Final = ENTRY.constant("version")
OLD_VERSION: Final = 1  # Its data entries have a shorter preamble; the rest is the same.
COMPOUND_VERSION: Final = 3  # of a data entry: it holds units (`dledger.reading.compound`).
MAX_RECORD_COUNT: Final = 65_535
# A forced entry's term is so far above all that the survivor has seen (ADR 52). What given-up
# members elect among themselves meanwhile stays below: so no two entries of one index and term
# differ, whoever goes by terms alone (a client of an older release) prefers who was recovered, and
# of two logs it shows which one is of after.
EPOCH_TERM_GAP: Final = 1 << 20

ENTRY_HEADER: Final = ENTRY.struct()
HEADER_SIZE: Final = ENTRY.size
FILLER_HEADER: Final = FILLER.struct()
FILLER_HEADER_SIZE: Final = FILLER.size

# What a frame and a filler begin with, and what a search for frames must not cut in two.
OPENING_SIZE: Final = ENTRY.end("magic")

_CLAIM: Final = ENTRY.struct("total_size", "physical_offset")
_MAGIC_BYTES: Final = ENTRY.run("magic").pack(ENTRY_MAGIC)
_MAGIC_AT: Final = ENTRY.at("magic")
_HEAD: Final = ENTRY.run("total_size", "magic", "kind", "version", "record_count")
_CRC: Final = ENTRY.run("crc")
_PLACE: Final = ENTRY.run("index", "term", "physical_offset", "append_time_ms")
_DIGEST: Final = ENTRY.run("digest")
_CRC_AT: Final = ENTRY.at("crc")
_PLACE_AT: Final = ENTRY.at("index")
_DIGEST_AT: Final = ENTRY.at("digest")
_PREAMBLE: Final = BATCH.struct()
_PREAMBLE_1: Final = BATCH_1.struct()
_SMALL_BODY: Final = 4096  # Below this, one hash call over a copy beats two over none.

Buffer = bytes | bytearray | memoryview


class EntryKind(IntEnum):
    """What an entry's body is."""

    NOOP = 1
    DATA = 2
    COMMAND = 3
    CONFIGURATION = 4


class EntryHeader(NamedTuple):
    """The fields of a header that vary. `kind` is one of `EntryKind` or one of a later release's,
    as a plain int, and so is `version`; sizes and offsets are bytes."""

    total_size: int
    kind: int
    version: int
    record_count: int
    crc: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks a header for
    term: int
    physical_offset: int
    append_time_ms: int
    digest: int

    @property
    def is_known(self) -> bool:
        """Whether this release knows what the body means."""
        newest = COMPOUND_VERSION if self.kind == EntryKind.DATA else ENTRY_VERSION
        return self.kind <= EntryKind.CONFIGURATION and self.version <= newest

    @property
    def is_batch(self) -> bool:
        """Whether the body is one batch of records."""
        return self.kind == EntryKind.DATA and self.version <= ENTRY_VERSION

    @property
    def is_compound(self) -> bool:
        """Whether the body is units, each of batches and commands."""
        return self.kind == EntryKind.DATA and self.version == COMPOUND_VERSION

    @property
    def first_record_at(self) -> int:
        """In the frame of a data entry, the first byte of its first record."""
        return FIRST_RECORD_AT_1 if self.version == OLD_VERSION else FIRST_RECORD_AT


class Preamble(NamedTuple):
    """What a data entry says of its batch: who sent it, its first sequence, and for which topic of
    the name it is: the index of the entry that created that; 0 if it doesn't say."""

    producer_id: bytes
    base_sequence: int
    incarnation: int


def preamble_of(header: EntryHeader, frame: Buffer) -> Preamble:
    """The preamble of the data entry whose whole frame is `frame`.

    Raises:
        InvalidFrame: the frame ends within it.
    """
    if len(frame) < header.first_record_at:
        raise InvalidFrame(0, "total size", f"at least {header.first_record_at}", len(frame))
    if header.version == OLD_VERSION:
        producer_id, base_sequence = _PREAMBLE_1.unpack_from(frame, HEADER_SIZE)
        return Preamble(producer_id, base_sequence, 0)
    return Preamble._make(_PREAMBLE.unpack_from(frame, HEADER_SIZE))


def build_frame(
    kind: int,
    index: int,
    term: int,
    physical_offset: int,
    append_time_ms: int,
    record_count: int,
    body: Buffer,
    previous_digest: int,
    version: int = ENTRY_VERSION,
) -> tuple[bytes, int]:
    """The header bytes of an entry, and its digest. Header and body together are the frame.

    Args:
        kind: one of `EntryKind`.
        index: 1 and up.
        physical_offset: where the frame's first byte will lie, as `position_after` gives it.
        append_time_ms: milliseconds since the epoch.
        record_count: how many records a data entry's body holds; 0 for other kinds.
        previous_digest: the digest of entry `index - 1`; 0 for index 1.
        version: `COMPOUND_VERSION` for a data entry that holds units.

    Raises:
        AppendRefused: more than `MAX_RECORD_COUNT` records.
    """
    if not 0 <= record_count <= MAX_RECORD_COUNT:
        raise AppendRefused("record count", f"0 to {MAX_RECORD_COUNT}", record_count)
    head = _HEAD.pack(HEADER_SIZE + len(body), ENTRY_MAGIC, kind, version, record_count)
    place = _PLACE.pack(index, term, physical_offset, append_time_ms)
    digest = _digest(place, head, body, previous_digest)
    tail = place + _DIGEST.pack(digest)
    crc = crc32c(body, crc32c(head + tail))
    return head + _CRC.pack(crc) + tail, digest


def parse_header(buf: Buffer, at: int) -> EntryHeader:
    """The header at byte `at` of `buf`. Only its shape is checked; the CRC needs the body. A kind
    or version of a later release is none of damage: the log is kept and served as it is, whoever
    needs to know what is in it asks `EntryHeader.is_known`.

    Raises:
        InvalidFrame: too short, or another magic, no version or kind, or a size below a header's.
    """
    if len(buf) - at < HEADER_SIZE:
        raise InvalidFrame(at, "remaining size", f"at least {HEADER_SIZE}", len(buf) - at)
    total_size, magic, kind, version, record_count, crc, *place = ENTRY_HEADER.unpack_from(buf, at)
    if magic != ENTRY_MAGIC:
        raise InvalidFrame(at, "magic", f"{ENTRY_MAGIC:08x}", f"{magic:08x}")
    if version == 0:
        raise InvalidFrame(at, "version", "1 to 255", version)
    if kind == 0:
        raise InvalidFrame(at, "kind", "1 to 255", kind)
    if total_size < HEADER_SIZE:
        raise InvalidFrame(at, "total size", f"at least {HEADER_SIZE}", total_size)
    return EntryHeader(total_size, kind, version, record_count, crc, *place)


def claim_of(buf: Buffer, at: int) -> tuple[int, int]:
    """Total size and physical offset of the header at byte `at` of `buf`, unchecked: enough to
    pass over most of what only looks like an entry."""
    size, physical_offset = _CLAIM.unpack_from(buf, at)
    return size, physical_offset


def possible_starts(chunk: bytes) -> Iterator[int]:
    """The bytes of `chunk` at which a frame could begin, as an entry's magic lies behind them."""
    found = chunk.find(_MAGIC_BYTES, _MAGIC_AT)
    while found >= 0:
        yield found - _MAGIC_AT
        found = chunk.find(_MAGIC_BYTES, found + 1)


def verify_frame(buf: Buffer, at: int, previous_digest: int | None) -> EntryHeader:
    """The header of the frame at byte `at` of `buf`, its CRC checked; its digest too, where the
    digest of the entry before it is known.

    Raises:
        InvalidFrame: not an intact frame, or it doesn't continue that digest.
    """
    header = parse_header(buf, at)
    end = at + header.total_size
    if end > len(buf):
        raise InvalidFrame(at, "total size", f"at most {len(buf) - at}", header.total_size)
    view = memoryview(buf)
    computed = frame_crc(view, at, end)
    if computed != header.crc:
        raise InvalidFrame(at, "CRC32C", f"{computed:08x}", f"{header.crc:08x}")
    if previous_digest is not None:
        digest = digest_of(view, at, header.total_size, previous_digest)
        if digest != header.digest:
            raise InvalidFrame(at, "digest", f"{digest:016x}", f"{header.digest:016x}")
    return header


def frame_crc(view: memoryview, at: int, end: int) -> int:
    """The CRC32C that the frame `[at, end)` of `view` must carry: over all of it but the CRC."""
    return crc32c(view[at + _PLACE_AT : end], crc32c(view[at : at + _CRC_AT]))


def digest_of(buf: Buffer, at: int, total_size: int, previous_digest: int) -> int:
    """The digest that the frame at byte `at` of `buf` must carry after `previous_digest`."""
    view = memoryview(buf)
    head = bytes(view[at : at + _CRC_AT])
    place = bytes(view[at + _PLACE_AT : at + _DIGEST_AT])
    return _digest(place, head, view[at + HEADER_SIZE : at + total_size], previous_digest)


def walk_frames(blob: Buffer) -> list[EntryHeader]:
    """The headers of the frames in `blob`, which holds whole frames back to back, no fillers.

    CRCs, sizes and the indexes' succession are checked, and that terms and physical offsets never
    go back. Whether they continue a given log (position, digest) is the log's to say.

    Raises:
        InvalidFrame: with the position of the first frame that fails.
    """
    headers: list[EntryHeader] = []
    view = memoryview(blob)
    at = 0
    while at < len(view):
        header = verify_frame(view, at, None)
        if headers:
            _check_succession(at, headers[-1], header)
        headers.append(header)
        at += header.total_size
    return headers


def position_after(end_offset: int, frame_size: int, segment_size: int) -> int:
    """The physical offset of a frame of `frame_size` bytes in a log that ends at `end_offset`.

    Raises:
        AppendRefused: no segment can hold such a frame.
    """
    if frame_size + FILLER_HEADER_SIZE > segment_size:
        raise AppendRefused(
            "frame size", f"at most {segment_size - FILLER_HEADER_SIZE}", frame_size
        )
    remaining = segment_size - end_offset % segment_size
    if frame_size + FILLER_HEADER_SIZE <= remaining:
        return end_offset
    return end_offset + remaining


def blank_filler(size: int) -> bytes:
    """The eight bytes that open a filler of `size` bytes; the rest of it is zeros, which an
    unwritten segment holds already."""
    return FILLER_HEADER.pack(size, FILLER_MAGIC)


def _digest(place: bytes, head: bytes, body: Buffer, previous_digest: int) -> int:
    if len(body) < _SMALL_BODY:
        return xxh3_64_intdigest(b"".join((place, head, body)), previous_digest)
    state = xxh3_64(place + head, seed=previous_digest)
    state.update(body)
    return state.intdigest()


def _check_succession(at: int, before: EntryHeader, header: EntryHeader) -> None:
    if header.index != before.index + 1:
        raise InvalidFrame(at, "index", before.index + 1, header.index)
    if header.term < before.term:
        raise InvalidFrame(at, "term", f"at least {before.term}", header.term)
    earliest = before.physical_offset + before.total_size
    if header.physical_offset < earliest:
        raise InvalidFrame(at, "physical offset", f"at least {earliest}", header.physical_offset)

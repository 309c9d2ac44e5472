"""Messages of the log as columns: many records at once, no object per record.

Entries come verified, a chunk at a time (`dledger.reading.chunks`); everything else is done with
numpy over the whole chunk: where records begin, their fixed fields, where topics, bodies and
properties lie (`dledger.reading.columns`). Only properties are copied. A batch holds records of
one topic with one store time, so whole batches are passed over when a topic or a time isn't wanted.
A damaged entry ends the reading with its place, and so does a record that lies about its sizes
behind a good CRC: data that is read as data must not have holes that nobody sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from dledger.reading.chunks import CHUNK_BYTES, Chunk, LogRange, gathered, read_chunks
from dledger.reading.columns import Bodies, Column, Cuts, Integers, PropertyTable, Words
from dledger.reading.compound import unit_spans
from dledger.reading.dtypes import dtype_of
from dledger.reading.entry import COMPOUND_VERSION, OLD_VERSION, EntryKind, parse_header
from dledger.reading.errors import EntryDamaged
from dledger.reading.files import opened
from dledger.reading.schema import COLUMNS
from dledger.records.compression import COMPRESSED_BIT
from dledger.records.errors import InvalidFrame, InvalidRecord
from dledger.records.layout import BATCH, ENTRY, FIRST_RECORD_AT, FIRST_RECORD_AT_1, RECORD
from dledger.records.record import (
    FIXED_SIZE,
    MIN_RECORD_SIZE,
    RECORD_MAGIC,
    record_starts,
)

# Topics that were deleted: the name, the index that created it and the one that deleted it.
Ended = tuple[tuple[str, int, int], ...]


class LeftOut(NamedTuple):
    """Messages that are none: of topics that have `ended`, and of units that were `refused`, by
    the index of their entry and their number in it (ADR 54)."""

    ended: Ended = ()
    refused: frozenset[tuple[int, int]] = frozenset()


NOTHING_LEFT_OUT: Final = LeftOut()

__all__ = [
    "COLUMNS",
    "NOTHING_LEFT_OUT",
    "Ended",
    "LeftOut",
    "LogRange",
    "Pulled",
    "Records",
    "Wanted",
    "decode_pulled",
    "read_records",
]

_FIXED: Final = dtype_of(
    RECORD, "total_size", "magic", "queue_id", "queue_offset", "physical_offset", "sysflag",
    "born_time_ms", "store_time_ms", "body_length",
)  # fmt: skip
_CRC: Final = dtype_of(RECORD, "body_crc")
_PREAMBLE: Final = dtype_of(BATCH, "incarnation")
_INCARNATION: Final = BATCH.run("incarnation")
_TOTAL_SIZE: Final = RECORD.run("total_size")
_TOTAL_SIZE_DTYPE: Final = dtype_of(RECORD, "total_size")["total_size"]
# What `_check_records` reads byte by byte: the lengths on both sides of the topic.
_TOPIC_LENGTH_SIZE: Final = RECORD["topic_length"].size
_PROPERTIES_LENGTH_SIZE: Final = RECORD["properties_length"].size
_PROPERTIES: Final = {"keys": b"KEYS", "tags": b"TAGS"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages: of `topics` (None: all) and stored in `[from_ms, until_ms)`, but for those
    that are `left_out`; and which of their `COLUMNS`."""

    columns: tuple[str, ...] = COLUMNS
    topics: frozenset[str] | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    left_out: LeftOut = NOTHING_LEFT_OUT


@dataclass(frozen=True, slots=True)
class Records:
    """Some messages, a column each; times are ms since the epoch. Columns that weren't wanted are
    left out."""

    count: int
    columns: dict[str, Column]


def read_records(
    part: LogRange, wanted: Wanted, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Records]:
    """The wanted messages of a range, in the log's order, a chunk's at a time.

    Raises:
        EntryDamaged: an entry isn't intact, or its records lie about their sizes.
        OSError: the file can't be read.
    """
    with opened(part.path) as descriptor:
        for chunk in read_chunks(descriptor, part, chunk_bytes):
            try:
                records = _decode(chunk, wanted)
            except (InvalidFrame, InvalidRecord) as error:
                at = chunk.at + error.position
                found = f"{error.field} {error.found}"
                raise EntryDamaged(part.path, at, error.expected, found) from error
            if records is not None:
                yield records


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the wanted records of a chunk lie: entries' headers, topics and incarnations (0: the
    entry doesn't say), records' starts, and `entry_of`, which entry a record is in."""

    content: bytes
    headers: npt.NDArray[np.void]
    topics: tuple[str, ...]
    topic_codes: Integers
    incarnations: Integers
    starts: Integers
    entry_of: Integers


def _decode(chunk: Chunk, wanted: Wanted) -> Records | None:
    """The chunk's wanted messages; None if there are none."""
    layout = _lay_out(chunk, wanted)
    if layout is None:
        return None
    content, starts = layout.content, layout.starts
    columns = _of_records(content, starts, wanted.columns) | {
        "topic": Words(layout.topics, layout.topic_codes[layout.entry_of]),
        "index": layout.headers["index"].astype(np.int64)[layout.entry_of],
        "term": layout.headers["term"].astype(np.int64)[layout.entry_of],
        "incarnation": layout.incarnations[layout.entry_of],
    }
    return Records(len(starts), {name: columns[name] for name in wanted.columns})


@dataclass(frozen=True, slots=True)
class Pulled:
    """The place that a node was asked for: messages of one queue of a topic, from `offset` on."""

    topic: str
    incarnation: int
    queue_id: int
    offset: int


def decode_pulled(content: bytes, count: int, asked: Pulled, names: tuple[str, ...]) -> Records:
    """The columns `names` of `count` records as a node has answered them, back to back: no entry is
    around them, so there is no `index` and no `term`.

    Raises:
        InvalidRecord: they are not so many whole, intact records, or not those of the place.
    """
    starts = np.array(record_starts(content, 0, count), dtype=np.int64)
    behind = 0 if not count else _TOTAL_SIZE.unpack_from(content, starts[-1])[0] + starts[-1]
    if behind != len(content):
        at = int(starts[-1]) if count else 0
        raise InvalidRecord(at, "the records' end", f"them to end at {len(content)}", int(behind))
    columns = _of_records(content, starts, names)
    _check_asked(columns, starts, asked)
    bodies = columns["body"]
    assert isinstance(bodies, Cuts | Bodies)
    stored = bodies if isinstance(bodies, Cuts) else bodies.stored
    topic = bytes((len(asked.topic),)) + asked.topic.encode()
    crcs = gathered(content, starts, _CRC)["body_crc"].tolist()
    for at, crc, body, end in zip(starts.tolist(), crcs, stored, stored.ends.tolist(), strict=True):
        if crc32(body) & 0x7FFFFFFF != crc:
            raise InvalidRecord(at, "BODYCRC", f"{crc32(body) & 0x7FFFFFFF:08x}", f"{crc:08x}")
        if content[end : end + len(topic)] != topic:
            found = content[end + 1 : end + 1 + content[end]]
            raise InvalidRecord(at, "TOPIC", asked.topic, found.decode("ascii", errors="replace"))
    columns["topic"] = Words((asked.topic,), np.zeros(count, dtype=np.int64))
    columns["incarnation"] = np.full(count, asked.incarnation, dtype=np.int64)
    return Records(count, {name: columns[name] for name in names})


def _check_asked(columns: dict[str, Column], starts: Integers, asked: Pulled) -> None:
    """Queue and offsets are those that were asked for, one after the other: a message that is
    missing between two, or there twice, would be a row too few or too many and nobody's error.

    Raises:
        InvalidRecord: they aren't.
    """
    count = len(starts)
    wanted = {
        "queue_id": np.full(count, asked.queue_id, dtype=np.int64),
        "queue_offset": np.arange(asked.offset, asked.offset + count, dtype=np.int64),
    }
    for name, expected in wanted.items():
        found = columns[name]
        assert isinstance(found, np.ndarray)
        if (wrong := np.flatnonzero(found != expected)).size:
            at = int(wrong[0])
            raise InvalidRecord(int(starts[at]), name, int(expected[at]), int(found[at]))


def _of_records(content: bytes, starts: Integers, wanted: tuple[str, ...]) -> dict[str, Column]:
    """What the records themselves say; of their properties, what is wanted.

    Raises:
        InvalidRecord: a record lies about its sizes.
    """
    fixed = gathered(content, starts, _FIXED)
    topics_at, properties_at, ends = _check_records(content, starts, fixed)
    columns: dict[str, Column] = {
        "queue_id": fixed["queue_id"].astype(np.int64),
        "queue_offset": fixed["queue_offset"].astype(np.int64),
        "physical_offset": fixed["physical_offset"].astype(np.int64),
        "born_time": fixed["born_time_ms"].astype(np.int64),
        "store_time": fixed["store_time_ms"].astype(np.int64),
        "body": Cuts(content, starts + FIXED_SIZE, topics_at),
    }
    sysflags = fixed["sysflag"].astype(np.int64)
    if (sysflags & COMPRESSED_BIT).any():
        columns["body"] = Bodies(Cuts(content, starts + FIXED_SIZE, topics_at), sysflags)
    if not {"properties", *_PROPERTIES}.isdisjoint(wanted):
        table = PropertyTable.of(Cuts(content, properties_at, ends))
        columns["properties"] = table
        for name, property_name in _PROPERTIES.items():
            if name in wanted:
                columns[name] = table.values_of(property_name)
    return columns


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of a chunk: of which header's entry each is, where its first record begins and
    where it ends, how many records it has, for which topic it is, and in which unit of its entry;
    0 for an entry that is one batch."""

    owners: Integers
    firsts: Integers
    ends: Integers
    counts: Integers
    incarnations: Integers
    units: Integers

    def __getitem__(self, which: npt.NDArray[np.bool_] | Integers) -> _Batches:
        return _Batches(*(getattr(self, name)[which] for name in self.__slots__))


def _lay_out(chunk: Chunk, wanted: Wanted) -> _Layout | None:
    """Finds the records of the wanted batches; None if there are none.

    Raises:
        InvalidRecord: a batch's records don't fill it.
        InvalidFrame: an entry's units don't.
    """
    batches = _batches(chunk)
    headers = chunk.headers[batches.owners]
    topics, codes = _topics(chunk.content, batches.firsts, batches.ends)
    chosen = _chosen(wanted, topics, codes, _store_times(chunk.content, batches.firsts))
    chosen &= _of_living(wanted.left_out.ended, topics, codes, headers["index"].astype(np.int64))
    if wanted.left_out.refused:
        places = zip(headers["index"].tolist(), batches.units.tolist(), strict=True)
        refused = [place in wanted.left_out.refused for place in places]
        chosen &= ~np.array(refused, dtype=np.bool_)
    if not chosen.any():
        return None
    headers, batches, codes = headers[chosen], batches[chosen], codes[chosen]
    counts = batches.counts
    entry_of = np.repeat(np.arange(len(counts)), counts)
    starts = _record_starts(chunk.content, batches.firsts, counts, batches.ends)
    return _Layout(chunk.content, headers, topics, codes, batches.incarnations, starts, entry_of)


def _batches(chunk: Chunk) -> _Batches:
    """All batches of the chunk, in their order."""
    headers = chunk.headers
    holds_records = (headers["kind"] == EntryKind.DATA) & (headers["record_count"] > 0)
    is_compound = headers["version"] == COMPOUND_VERSION
    single = _single_batches(chunk, np.flatnonzero(holds_records & ~is_compound))
    compound = np.flatnonzero(holds_records & is_compound)
    if not len(compound):
        return single
    rows = [row for number in compound.tolist() for row in _unit_batches(chunk, number)]
    columns = np.array(rows, dtype=np.int64).reshape(-1, len(_Batches.__slots__)).T
    together = _Batches(
        *(
            np.concatenate([getattr(single, name), column])
            for name, column in zip(_Batches.__slots__, columns, strict=True)
        )
    )
    return together[np.argsort(together.firsts, kind="stable")]


def _single_batches(chunk: Chunk, owners: Integers) -> _Batches:
    """Of the entries that are one batch."""
    headers, entries = chunk.headers[owners], chunk.starts[owners]
    is_old = headers["version"] == OLD_VERSION
    openings = np.where(is_old, FIRST_RECORD_AT_1, FIRST_RECORD_AT)
    sizes = headers["total_size"].astype(np.int64)
    short = sizes < openings + MIN_RECORD_SIZE
    if short.any():
        at = int(np.argmax(short))
        raise InvalidRecord(int(entries[at]), "TOTALSIZE", "room for a record", int(sizes[at]))
    incarnations = _incarnations(chunk.content, entries, is_old)
    counts = headers["record_count"].astype(np.int64)
    units = np.zeros(len(owners), dtype=np.int64)
    return _Batches(owners, entries + openings, entries + sizes, counts, incarnations, units)


def _unit_batches(chunk: Chunk, number: int) -> Iterator[tuple[int, ...]]:
    """Of an entry that holds units, a row for each."""
    start = int(chunk.starts[number])
    header = parse_header(chunk.content, start)
    frame = chunk.content[start : start + header.total_size]
    try:
        spans = unit_spans(header, frame)
    except InvalidFrame as error:
        at = start + error.position
        raise InvalidFrame(at, error.field, error.expected, error.found) from error
    for unit, span in enumerate(spans):
        for first, end, count in span.batches:
            at = start + first - BATCH.size
            (incarnation,) = _INCARNATION.unpack_from(chunk.content, at + BATCH.at("incarnation"))
            yield number, start + first, start + end, count, incarnation, unit


def _incarnations(content: bytes, entries: Integers, is_old: npt.NDArray[np.bool_]) -> Integers:
    """Of the entries that begin at `entries`; 0 for those of version 1."""
    found = gathered(content, entries + ENTRY.size, _PREAMBLE)["incarnation"].astype(np.int64)
    return np.where(is_old, 0, found)


def _chosen(
    wanted: Wanted, topics: tuple[str, ...], codes: Integers, store_times: Integers
) -> npt.NDArray[np.bool_]:
    """Which entries are wanted."""
    chosen = np.ones(len(codes), dtype=np.bool_)
    if wanted.topics is not None:
        known = np.array([topic in wanted.topics for topic in topics], dtype=np.bool_)
        chosen &= known[codes] if len(codes) else chosen
    if wanted.from_ms is not None:
        chosen &= store_times >= wanted.from_ms
    if wanted.until_ms is not None:
        chosen &= store_times < wanted.until_ms
    return chosen


def _of_living(
    ended: Ended, topics: tuple[str, ...], codes: Integers, indexes: Integers
) -> npt.NDArray[np.bool_]:
    """Which entries are not of a topic that has ended."""
    living = np.ones(len(codes), dtype=np.bool_)
    for name, first, behind in ended:
        if name in topics:
            code = topics.index(name)
            living &= ~((codes == code) & (indexes >= first) & (indexes < behind))
    return living


def _store_times(content: bytes, firsts: Integers) -> Integers:
    return gathered(content, firsts, _FIXED)["store_time_ms"].astype(np.int64)


def _topics(content: bytes, firsts: Integers, ends: Integers) -> tuple[tuple[str, ...], Integers]:
    """The distinct topics of entries whose first records begin at `firsts`, and each one's."""
    places = firsts + FIXED_SIZE + gathered(content, firsts, _FIXED)["body_length"]
    beyond = places + MIN_RECORD_SIZE - FIXED_SIZE > ends
    if beyond.any():
        at = int(firsts[int(np.argmax(beyond))])
        raise InvalidRecord(at, "BODYLENGTH", "a body within the entry", "one beyond its end")
    codes: dict[bytes, int] = {}
    found = [
        codes.setdefault(content[at + 1 : at + 1 + content[at]], len(codes))
        for at in places.tolist()
    ]
    names = tuple(topic.decode("ascii", errors="replace") for topic in codes)
    return names, np.array(found, dtype=np.int64)


def _record_starts(content: bytes, firsts: Integers, counts: Integers, ends: Integers) -> Integers:
    """Where every record begins. An entry whose records have one size is laid out by
    multiplication, any other is walked.

    Raises:
        InvalidRecord: the records don't fill their entry exactly.
    """
    sizes = gathered(content, firsts, _TOTAL_SIZE_DTYPE).astype(np.int64)
    is_even = (counts * sizes == ends - firsts) & (sizes >= MIN_RECORD_SIZE)
    steps = np.where(is_even, sizes, 0)
    before = np.cumsum(counts) - counts
    number = np.arange(int(counts.sum())) - np.repeat(before, counts)
    starts: Integers = np.repeat(firsts, counts) + number * np.repeat(steps, counts)
    found = gathered(content, starts, _TOTAL_SIZE_DTYPE) == np.repeat(sizes, counts)
    is_even &= np.logical_and.reduceat(found, before)
    for at in np.flatnonzero(~is_even).tolist():
        first, end, low = int(firsts[at]), int(ends[at]), int(before[at])
        view = memoryview(content)[:end]
        walked = record_starts(view, first, int(counts[at]))
        behind = walked[-1] + _TOTAL_SIZE.unpack_from(view, walked[-1])[0]
        if behind != end:
            raise InvalidRecord(walked[-1], "the records' end", f"them to end at {end}", behind)
        starts[low : low + len(walked)] = walked
    return starts


def _check_records(
    content: bytes, starts: Integers, fixed: npt.NDArray[np.void]
) -> tuple[Integers, Integers, Integers]:
    """Where each record's topic length and properties begin, and where it ends; what is between
    adds up.

    Raises:
        InvalidRecord: a record's inner lengths don't, or it is no record.
    """
    raw = np.frombuffer(content, np.uint8)
    ends = starts + fixed["total_size"]
    topics_at = starts + FIXED_SIZE + fixed["body_length"]
    # A body that claims to end behind its record could point behind the content, too.
    good = (fixed["magic"] == RECORD_MAGIC) & (topics_at < ends)
    sizes_at = np.where(good, topics_at, 0)
    sizes_at += _TOPIC_LENGTH_SIZE + raw[sizes_at]
    good &= sizes_at + _PROPERTIES_LENGTH_SIZE <= ends
    sizes_at = np.where(good, sizes_at, 0)
    properties_at = sizes_at + _PROPERTIES_LENGTH_SIZE
    good &= properties_at + raw[sizes_at] * np.int64(256) + raw[sizes_at + 1] == ends
    if not good.all():
        at = int(starts[int(np.argmin(good))])
        raise InvalidRecord(at, "lengths", "a record whose lengths add up", "that don't")
    return topics_at, properties_at, ends

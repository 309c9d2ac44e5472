"""Runs of entries in which nothing is wrong, looked at all at once: the fast way of a reading.

Of a healthy log every entry passes every check, so here whole megabytes of entries are taken
together: their headers and their records' fixed fields as columns, their units as one array. This
says of a run that all is right with what it looked at, or nothing. It must never say what is
wrong, nor where: `audit.proof.reading` then reads the same bytes entry by entry, so that findings
have one source. Whatever that looks at is looked at here, or by the same code for both
(docs/adr/0034-the-fast-way-of-an-audit.md has the table); a run that isn't plainly right is none.

Pure functions over bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from audit.proof.chain import deletion_in, settlement_in
from audit.proof.invariants import Batch
from audit.proof.queue_files import QueueKey
from audit.proof.tags import tags_codes
from dledger.reading.chunks import HEADER, gathered, intact_entries
from dledger.reading.columns import Integers
from dledger.reading.compound import commands_in
from dledger.reading.dtypes import dtype_of
from dledger.reading.entry import (
    COMPOUND_VERSION,
    ENTRY_VERSION,
    HEADER_SIZE,
    OLD_VERSION,
    EntryHeader,
    EntryKind,
    Preamble,
    digest_of,
)
from dledger.records.errors import InvalidFrame, InvalidRecord
from dledger.records.layout import BATCH, FIRST_RECORD_AT, RECORD, topic_folder
from dledger.records.record import (
    FIXED_SIZE,
    MIN_RECORD_SIZE,
    RECORD_MAGIC,
    TOPIC_PATTERN,
    V6_HOST_BITS,
    record_starts,
)
from store.dispatch import UNIT_DTYPE, UNIT_SIZE

_RECORD: Final = dtype_of(RECORD)
_PREAMBLE: Final = dtype_of(BATCH)
_SIZE_BYTES: Final = RECORD.end("total_size")
_LENGTH_BYTES: Final = RECORD["properties_length"].size
_LONGEST_PROPERTIES: Final = 0x7FFF
_CRC_MASK: Final = 0x7FFFFFFF
_SIGNED: Final = (1 << 63) - 1
_FARTHEST: Final = 1 << 62  # Queue offsets beyond could overflow here.
# A body that isn't larger is copied faster than it is viewed; those of one size all at once.
_COPIED_BODY: Final = 512
_COPIED_BODIES: Final = 512
_FIELDS: Final = (
    *("total_size", "kind", "version", "record_count", "crc"),
    *("index", "term", "physical_offset", "append_time_ms", "digest"),
)

Letters = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Framed:
    """Entries with good CRCs that lie where they say, one behind the other from byte 0 of
    `content` on; entry i begins at `starts[i]`. All of them are of kinds and versions that are
    written today. `size`: of all of them, bytes; `scanned`: of all with good CRCs."""

    content: bytes
    starts: list[int]
    headers: list[EntryHeader]
    size: int
    scanned: int

    def upto_deletion(self) -> Framed:
        """The same, up to the first entry that deletes a topic, as what follows depends on it, or
        that says what became of units, which is looked at one by one."""
        for number, header in enumerate(self.headers):
            if _is_looked_at(header, self, number):
                kept = self.starts[:number], self.headers[:number], self.starts[number]
                return Framed(self.content, *kept, self.scanned)
        return self

    def frame(self, number: int) -> bytes:
        """The entry's bytes."""
        start = self.starts[number]
        return self.content[start : start + self.headers[number].total_size]


@dataclass(frozen=True, slots=True)
class Batches:
    """What the data entries of a run hold: `of[i]` is entry i's, None if it holds no messages. The
    units of entry i's records are `units[bounds[i] : bounds[i + 1]]`."""

    of: list[Batch | None]
    bounds: list[int]
    units: bytes

    def units_of(self, number: int) -> bytes:
        """The units of one entry."""
        return self.units[self.bounds[number] * UNIT_SIZE : self.bounds[number + 1] * UNIT_SIZE]


def _is_looked_at(header: EntryHeader, framed: Framed, number: int) -> bool:
    """Whether one of the entry's commands is of those that the fast way leaves alone."""
    if header.kind != EntryKind.COMMAND and not header.is_compound:
        return False
    try:
        bodies = list(commands_in(header, framed.frame(number)))
    except InvalidFrame:
        return True
    return any(deletion_in(body) is not None or settlement_in(body) is not None for body in bodies)


def framed_in(content: bytes, place: int) -> Framed:
    """The entries that `content` begins with, up to the first that isn't as `Framed` says.

    Args:
        place: the physical offset of `content`.
    """
    if (
        place + len(content) > _SIGNED
    ):  # No log is as long: entry by entry, with numbers of any size.
        return Framed(content, [], [], 0, 0)
    starts, scanned = intact_entries(content)
    places = np.array(starts, dtype=np.int64)
    columns = gathered(content, places, HEADER) if starts else np.zeros(0, dtype=HEADER)
    kinds, versions = columns["kind"], columns["version"]
    good = (kinds >= EntryKind.NOOP) & (kinds <= EntryKind.CONFIGURATION)
    good &= (versions >= OLD_VERSION) & (versions <= COMPOUND_VERSION)
    # Batches of the first version have another preamble, and are rare: entry by entry. So are
    # units with records, of which the queue says which are void.
    holds_none = (versions == COMPOUND_VERSION) & (columns["record_count"] == 0)
    good &= (kinds != EntryKind.DATA) | (versions == ENTRY_VERSION) | holds_none
    good &= (kinds == EntryKind.DATA) | (versions <= ENTRY_VERSION)
    good &= columns["physical_offset"] == places.astype(np.uint64) + np.uint64(place)
    count = len(starts) if good.all() else int(good.argmin())
    size = starts[count] if count < len(starts) else scanned
    fields = [columns[name][:count].tolist() for name in _FIELDS]
    headers = [EntryHeader._make(row) for row in zip(*fields, strict=True)]
    return Framed(content, starts[:count], headers, size, scanned)


def digests_continue(framed: Framed, before: int | None) -> bool:
    """Whether each entry's running digest continues the one before it; `before`: of the entry
    before the first, None if that isn't known."""
    view = memoryview(framed.content)
    for start, header in zip(framed.starts, framed.headers, strict=True):
        if before is not None:
            digest = digest_of(view, start, header.total_size, before)
            if digest != header.digest:
                return False
        before = header.digest
    return True


def batches_in(framed: Framed) -> Batches | None:
    """What the data entries hold, every record checked; None unless all is right."""
    numbers = [number for number, each in enumerate(framed.headers) if each.is_batch]
    found: list[Batch | None] = [None] * len(framed.headers)
    bounds = [0] * (len(framed.headers) + 1)
    if not numbers:
        return Batches(found, bounds, b"")
    headers = [framed.headers[number] for number in numbers]
    if any(h.total_size < FIRST_RECORD_AT + MIN_RECORD_SIZE or not h.record_count for h in headers):
        return None
    records = _records_of(framed, numbers, headers)
    if records is None or not _are_right(records) or not _sums_are_right(records):
        return None
    batches = _batches(records)
    if batches is None:
        return None
    for number, header, batch in zip(numbers, headers, batches, strict=True):
        found[number] = batch
        bounds[number + 1] = header.record_count
    return Batches(found, np.cumsum(bounds).tolist(), _units(records))


@dataclass(slots=True)
class QueueUnits:
    """The units that a queue must hold from offset `first` on, in entries' order."""

    first: int
    of_entries: list[tuple[int, bytes]] = field(default_factory=list)  # index, units

    def add(self, index: int, units: bytes) -> None:
        """Those of one more entry."""
        self.of_entries.append((index, units))

    def through(self, index: int) -> bytes:
        """Those of entries up to `index`."""
        return b"".join([units for each, units in self.of_entries if each <= index])

    def all(self) -> bytes:
        """Those of all entries."""
        return b"".join([units for _, units in self.of_entries])

    @property
    def end(self) -> int:
        """The queue offset behind them."""
        return self.first + sum(len(units) for _, units in self.of_entries) // UNIT_SIZE


def queues_of(framed: Framed, batches: Batches) -> dict[QueueKey, QueueUnits]:
    """The units of the entries, together for each queue. Where the rules hold, a queue's entries
    follow each other."""
    found: dict[QueueKey, QueueUnits] = {}
    for number, batch in enumerate(batches.of):
        if batch is not None:
            queue = topic_folder(batch.topic, batch.preamble.incarnation), batch.queue_id
            if queue not in found:
                found[queue] = QueueUnits(batch.queue_offset)
            found[queue].add(framed.headers[number].index, batches.units_of(number))
    return found


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of data entries. Record i begins at `starts[i]`, ends at `ends[i]`, is of entry
    `owners[i]`, has `fields[i]` and its topic at `topics[i]`; entry j's first is `firsts[j]`."""

    content: bytes
    headers: Sequence[EntryHeader]
    begins: Integers  # of the entries
    firsts: Integers
    owners: Integers
    starts: Integers
    ends: Integers
    fields: npt.NDArray[np.void]
    topics: Integers
    topic_sizes: Integers
    properties: Integers

    def repeated(self, values: Sequence[int]) -> Integers:
        """An entry's value for each of its records."""
        return np.array(values, dtype=np.int64)[self.owners]


def _records_of(
    framed: Framed, numbers: Sequence[int], headers: Sequence[EntryHeader]
) -> _Records | None:
    """The records, by their sizes, which fill their entries exactly; None if they don't, or if
    one's lengths lead out of it."""
    content = framed.content
    begins = np.array([framed.starts[number] for number in numbers], dtype=np.int64)
    counts = np.array([header.record_count for header in headers], dtype=np.int64)
    behind = begins + np.array([header.total_size for header in headers], dtype=np.int64)
    starts = _starts(content, begins + FIRST_RECORD_AT, behind, counts)
    if starts is None:
        return None
    firsts = np.cumsum(counts) - counts
    ends = np.append(starts[1:], behind[-1])
    ends[firsts[1:] - 1] = behind[:-1]
    if (ends - starts < MIN_RECORD_SIZE).any():
        return None
    fields = gathered(content, starts, _RECORD)
    topics = starts + FIXED_SIZE + fields["body_length"].astype(np.int64)
    if (fields["total_size"] != ends - starts).any() or (topics + 3 > ends).any():
        return None
    letters = np.frombuffer(content, dtype=np.uint8)
    topic_sizes = letters[topics].astype(np.int64)
    properties = topics + 1 + topic_sizes + _LENGTH_BYTES
    if (properties > ends).any():
        return None
    owners = np.repeat(np.arange(len(headers)), counts)
    return _Records(
        content, headers, begins, firsts, owners, starts, ends, fields, topics, topic_sizes,
        properties,
    )  # fmt: skip


def _starts(
    content: bytes, firsts: Integers, behind: Integers, counts: Integers
) -> Integers | None:
    """Where each record begins, ascending; None if the sizes lead elsewhere than `behind`. What
    the sizes are is for the caller to look at once more."""
    sizes = gathered(content, firsts, f"V{_SIZE_BYTES}").view(">u4").astype(np.int64)
    if (firsts + counts * sizes == behind).all():
        ranks = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(firsts, counts) + ranks * np.repeat(sizes, counts)
    starts: list[int] = []
    try:
        for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
            starts += record_starts(content, first, count)
    except InvalidRecord:
        return None
    found = np.array(starts, dtype=np.int64)
    # Each within its own entry, so that the ends that follow from the starts are theirs.
    inside = (found >= np.repeat(firsts, counts)) & (found < np.repeat(behind, counts))
    return found if inside.all() else None


def _are_right(records: _Records) -> bool:
    """What `validate_records` and `units_for_entry` ask of a record, but for its body's sum; and
    that it was stored at its entry's time."""
    fields, headers = records.fields, records.headers
    bases = fields["queue_offset"][records.firsts].astype(np.int64)
    ranks = np.arange(len(records.owners)) - records.firsts[records.owners]
    places = np.array([each.physical_offset for each in headers], dtype=np.int64) - records.begins
    letters = np.frombuffer(records.content, dtype=np.uint8)
    lengths_at = records.properties - _LENGTH_BYTES
    lengths = letters[lengths_at].astype(np.int64) << 8 | letters[lengths_at + 1]
    if ((bases < 0) | (bases > _FARTHEST)).any():
        return False
    right = fields["magic"] == RECORD_MAGIC
    right &= fields["queue_id"] == fields["queue_id"][records.firsts][records.owners]
    right &= fields["sysflag"] & V6_HOST_BITS == 0
    right &= lengths == records.ends - records.properties
    right &= lengths <= _LONGEST_PROPERTIES
    right &= fields["queue_offset"].astype(np.int64) == bases[records.owners] + ranks
    right &= fields["physical_offset"].astype(np.int64) == records.starts + places[records.owners]
    times = [header.append_time_ms & _SIGNED for header in headers]
    right &= fields["store_time_ms"] == records.repeated(times)
    return bool(right.all()) and _topics_agree(records)


def _topics_agree(records: _Records) -> bool:
    """Whether each record is of its entry's topic: of that of the entry's first."""
    sizes, owners, topics = records.topic_sizes, records.owners, records.topics
    of_entries = sizes[records.firsts]
    if (sizes != of_entries[owners]).any():
        return False
    for size in set(of_entries.tolist()):
        here = of_entries == size
        of_size = slice(None) if here.all() else here[owners]
        item = f"V{size + 1}"  # with its length
        own = gathered(records.content, topics[of_size], item)
        firsts = gathered(records.content, topics[records.firsts[here]], item)
        wanted = firsts[(np.cumsum(here) - 1)[owners[of_size]]]
        if own.tobytes() != wanted.tobytes():
            return False
    return True


def _sums_are_right(records: _Records) -> bool:
    """Whether each BODYCRC is its body's."""
    begins = records.starts + FIXED_SIZE
    bodies = _bodies(records.content, begins, records.topics)
    sums = np.fromiter(map(crc32, bodies), dtype=np.uint32, count=len(begins)) & _CRC_MASK
    return bool((sums == records.fields["body_crc"]).all())


def _bodies(content: bytes, begins: Integers, ends: Integers) -> Iterable[bytes | memoryview]:
    """The pieces of `content`."""
    size = int(ends[0] - begins[0])
    if 0 < size <= _COPIED_BODY and (ends - begins == size).all():
        rows = gathered(content, begins, f"V{size}")
        # As many at once as don't ask for memory each time.
        return chain.from_iterable(
            rows[at : at + _COPIED_BODIES].tolist() for at in range(0, len(rows), _COPIED_BODIES)
        )
    is_copied = int((ends - begins).sum()) <= _COPIED_BODY * len(begins)
    source = content if is_copied else memoryview(content)
    return (source[at:end] for at, end in zip(begins.tolist(), ends.tolist(), strict=True))


def _batches(records: _Records) -> list[Batch] | None:
    """What each entry says of its records; None if a topic's name is none."""
    content = records.content
    preambles = gathered(content, records.begins + HEADER_SIZE, _PREAMBLE)
    queue_ids = records.fields["queue_id"][records.firsts].tolist()
    offsets = records.fields["queue_offset"][records.firsts].tolist()
    sequences, incarnations = (
        preambles[name].tolist() for name in ("base_sequence", "incarnation")
    )
    producers = [each.tobytes() for each in preambles["producer_id"]]
    names: dict[bytes, str] = {}
    batches: list[Batch] = []
    for number, first in enumerate(records.firsts.tolist()):
        begin = int(records.topics[first]) + 1
        raw = content[begin : begin + int(records.topic_sizes[first])]
        topic = names.get(raw)
        if topic is None:
            topic = names[raw] = raw.decode("ascii", errors="replace")
            if TOPIC_PATTERN.fullmatch(topic) is None:
                return None
        preamble = Preamble(producers[number], sequences[number], incarnations[number])
        batches.append(Batch(topic, queue_ids[number], offsets[number], preamble))
    return batches


def _units(records: _Records) -> bytes:
    """A unit for each record."""
    units = np.zeros(len(records.starts), dtype=UNIT_DTYPE)
    units["physical_offset"] = records.fields["physical_offset"]
    units["size"] = records.fields["total_size"]
    units["tags_code"] = tags_codes(
        records.content, records.starts, records.properties, records.ends
    )
    return units.tobytes()

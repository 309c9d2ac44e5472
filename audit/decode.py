"""Messages of the log as columns: many records at once, no object per record.

Entries are followed by their sizes and checked; fixed fields are gathered with numpy, variable
ones sliced. An entry holds records of one topic with one store time, so whole entries are passed
over when a topic or a time isn't wanted. A damaged entry ends the reading with its place: data
that is read as data must not have holes that nobody sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from audit.reading import opened
from audit.scan import Window
from store.entry import (
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    verify_frame,
)
from store.errors import CorruptionFound, InvalidFrame, InvalidRecord
from store.properties import find_property
from store.record import BATCH_PREAMBLE, FIXED_SIZE, record_starts

BATCH_RECORDS: Final = 16_384
BATCH_BYTES: Final = 8 << 20
COLUMNS: Final = (
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "index",
    "term",
    "born_time",
    "store_time",
    "keys",
    "tags",
    "properties",
    "body",
)

_FIRST_RECORD_AT: Final = HEADER_SIZE + BATCH_PREAMBLE.size
# The fixed part of a record; the byte table is in `store.record`.
_FIXED: Final = np.dtype(
    {
        "names": ["queue_id", "queue_offset", "physical_offset", "born", "store", "body_size"],
        "formats": [">i4", ">i8", ">i8", ">i8", ">i8", ">u4"],
        "offsets": [12, 20, 28, 40, 56, 84],
        "itemsize": FIXED_SIZE,
    }
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages: of `topics` (None: all) and stored in `[from_ms, until_ms)`; and which of
    their `COLUMNS`."""

    columns: tuple[str, ...] = COLUMNS
    topics: frozenset[str] | None = None
    from_ms: int | None = None
    until_ms: int | None = None

    def passes(self, topic: str, store_time_ms: int) -> bool:
        """Whether an entry's messages are wanted."""
        if self.topics is not None and topic not in self.topics:
            return False
        if self.from_ms is not None and store_time_ms < self.from_ms:
            return False
        return self.until_ms is None or store_time_ms < self.until_ms


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


Column = npt.NDArray[np.int64] | list[str] | list[str | None] | list[bytes]


@dataclass(frozen=True, slots=True)
class Records:
    """Some messages, a column each; times are ms since the epoch, properties as they are encoded.
    Columns that weren't wanted are left out."""

    count: int
    columns: dict[str, Column]


def read_records(part: LogRange, wanted: Wanted) -> Iterator[Records]:
    """The wanted messages of a range, in the log's order, in batches.

    Raises:
        CorruptionFound: an entry isn't intact, or its records lie about their sizes.
        OSError: the file can't be read.
    """
    batch = _Batch(wanted)
    with opened(part.path) as descriptor:
        for header, frame in read_entries(Window(descriptor), part):
            if header.kind != EntryKind.DATA:
                continue
            try:
                batch.add(header, frame)
            except InvalidRecord as error:
                at = header.physical_offset - part.base + error.position
                raise CorruptionFound(part.path, at, error.expected, error.found) from error
            if batch.is_full:
                yield batch.take()
    if batch.count:
        yield batch.take()


def read_entries(window: Window, part: LogRange) -> Iterator[tuple[EntryHeader, bytes]]:
    """Header and frame of each entry that begins in the range, each verified.

    Raises:
        CorruptionFound: something else lies where an entry should begin.
    """
    at, end = part.start - part.base, part.end - part.base
    while at < end:
        head = window.read(at, FILLER_HEADER_SIZE)
        if len(head) < FILLER_HEADER_SIZE:
            raise CorruptionFound(part.path, at, "an entry", "the file's end")
        size, magic = FILLER_HEADER.unpack(head)
        if magic == FILLER_MAGIC:
            return
        frame = window.read(at, max(min(size, end - at), HEADER_SIZE))
        try:
            header = verify_frame(frame, 0, None)
        except InvalidFrame as error:
            expected = f"an entry with {error.field} {error.expected}"
            raise CorruptionFound(part.path, at, expected, error.found) from error
        if header.physical_offset != part.base + at:
            expected = f"the entry of offset {part.base + at}"
            raise CorruptionFound(part.path, at, expected, header.physical_offset)
        yield header, frame
        at += size


class _Batch:
    """Gathers entries until there are enough for a batch."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._bytes = 0
        self._frames: list[bytes] = []
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._topics: list[str] = []
        self._places: list[tuple[int, int]] = []

    @property
    def is_full(self) -> bool:
        return self.count >= BATCH_RECORDS or self._bytes >= BATCH_BYTES

    def add(self, header: EntryHeader, frame: bytes) -> None:
        """The entry's messages are in the batch, if they are wanted."""
        at = _FIRST_RECORD_AT
        if header.record_count == 0 or len(frame) < at + FIXED_SIZE + 3:
            return
        topic_at = at + FIXED_SIZE + int.from_bytes(frame[at + 84 : at + 88], "big")
        length = frame[topic_at] if topic_at < len(frame) else 0
        topic = frame[topic_at + 1 : topic_at + 1 + length].decode("ascii", errors="replace")
        if not self._wanted.passes(topic, int.from_bytes(frame[at + 56 : at + 64], "big")):
            return
        starts = record_starts(frame, at, header.record_count)
        self._starts += [self._bytes + start for start in starts]
        self._counts.append(header.record_count)
        self._topics.append(topic)
        self._places.append((header.index, header.term))
        self._frames.append(frame)
        self._bytes += len(frame)
        self.count += header.record_count

    def take(self) -> Records:
        """What has been gathered; the batch is empty again."""
        buffer = b"".join(self._frames)
        starts = np.array(self._starts, dtype=np.int64)
        items = np.ndarray(
            (len(buffer) - FIXED_SIZE + 1,), dtype=f"V{FIXED_SIZE}", buffer=buffer, strides=(1,)
        )
        fixed = items[starts].view(_FIXED)
        places = np.repeat(np.array(self._places, dtype=np.int64), self._counts, axis=0)
        columns: dict[str, Column] = {
            "queue_id": fixed["queue_id"].astype(np.int64),
            "queue_offset": fixed["queue_offset"].astype(np.int64),
            "physical_offset": fixed["physical_offset"].astype(np.int64),
            "index": places[:, 0],
            "term": places[:, 1],
            "born_time": fixed["born"].astype(np.int64),
            "store_time": fixed["store"].astype(np.int64),
        }
        columns |= self._variable(buffer, starts, fixed["body_size"].astype(np.int64))
        count = self.count
        self._clear()
        kept = {name: columns[name] for name in self._wanted.columns if name in columns}
        return Records(count, kept)

    def _variable(
        self, buffer: bytes, starts: npt.NDArray[np.int64], body_sizes: npt.NDArray[np.int64]
    ) -> dict[str, Column]:
        """The columns whose values have no fixed size, as far as they are wanted."""
        wanted = set(self._wanted.columns)
        made: dict[str, Column] = {}
        bodies_at = starts + FIXED_SIZE
        topics_at = bodies_at + body_sizes
        if "topic" in wanted:
            made["topic"] = [
                topic
                for topic, count in zip(self._topics, self._counts, strict=True)
                for _ in range(count)
            ]
        if "body" in wanted:
            made["body"] = _slices(buffer, bodies_at, topics_at)
        if wanted & {"keys", "tags", "properties"}:
            raw = np.frombuffer(buffer, dtype=np.uint8)
            sizes_at = topics_at + 1 + raw[topics_at]
            sizes = raw[sizes_at].astype(np.int64) * 256 + raw[sizes_at + 1]
            properties = _slices(buffer, sizes_at + 2, sizes_at + 2 + sizes)
            if "keys" in wanted:
                made["keys"] = [find_property(each, b"KEYS") for each in properties]
            if "tags" in wanted:
                made["tags"] = [find_property(each, b"TAGS") for each in properties]
            if "properties" in wanted:
                made["properties"] = properties
        return made


def _slices(
    buffer: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> list[bytes]:
    pairs: Sequence[tuple[int, int]] = list(zip(starts.tolist(), ends.tolist(), strict=True))
    return [buffer[start:end] for start, end in pairs]

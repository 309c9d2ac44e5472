"""What holds between the entries of any log that leaders wrote, and no checksum tells.

A log can be forged, or written by a broken leader, so that every CRC and every running digest is
right, on all replicas alike. What then still gives it away is what entries say to each other:
indexes follow each other, terms and times never go back, an entry's body is of its kind, each
batch's records are as a leader takes them (`validate_records`, the leader's own check), and each
queue and each producer goes on where it stopped. Pure: bytes in, words out.

A segment is checked by itself; what spans segments is compared where all of them are at hand
(`between_segments`). Behind damage, which is found elsewhere, an entry may be further than the next
one, never before it.

Entries of the first version don't name their topic's incarnation: what they say of a queue is
forgotten where a topic of that name is deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from dledger.reading.compound import as_entry, unit_spans
from dledger.reading.entry import (
    HEADER_SIZE,
    OLD_VERSION,
    EntryHeader,
    EntryKind,
    Preamble,
    preamble_of,
)
from dledger.reading.log_start import LogStart
from dledger.records.errors import FormatError, InvalidFrame
from dledger.records.layout import RECORD
from dledger.records.record import FIXED_SIZE, validate_records
from dledger.wire.commands_pb2 import Command
from dledger.wire.raft_pb2 import Configuration

_QUEUE: Final = RECORD.run("queue_id", "queue_offset")
_QUEUE_AT: Final = RECORD.at("queue_id")
_BODY_LENGTH: Final = RECORD.run("body_length")
_BODY_LENGTH_AT: Final = RECORD.at("body_length")
_STORE_TIME: Final = RECORD.run("store_time_ms")
_STORE_TIME_AT: Final = RECORD.at("store_time_ms")
_SIGNED: Final = (1 << 63) - 1  # a record's time is signed, an entry's isn't
_EPOCH_BYTES: Final = 8
NO_PRODUCER: Final = bytes(16)


class Lane(NamedTuple):
    """What is numbered without gaps: a queue's messages, or a producer's to one queue."""

    topic: str
    incarnation: int
    queue_id: int
    producer: bytes  # empty: the queue itself

    def __str__(self) -> str:
        queue = f"{self.topic}@{self.incarnation}/{self.queue_id}"
        return f"producer {self.producer.hex()} in {queue}" if self.producer else f"queue {queue}"


class Batch(NamedTuple):
    """What a data entry says of its records: of which queue they are, from which offset on."""

    topic: str
    queue_id: int
    queue_offset: int
    preamble: Preamble


class Broken(NamedTuple):
    """An entry that no leader writes, and why."""

    header: EntryHeader
    why: str


class _Place(NamedTuple):
    """Where a lane goes on, and after how many damaged places that was seen."""

    number: int
    damages: int


@dataclass(frozen=True, slots=True)
class SegmentEnds:
    """What the segments before and behind must fit.

    `first`, `last`: entries; None in a segment without an intact one. `begins_whole`: nothing lies
    before the first; `ends_whole`: no damage behind the last. `begins`: each lane's first number,
    the entry that has it, and whether only intact entries lie before that. `ends`: each lane's next
    number, and whether only intact ones lie behind. `deleted`: names of topics.
    """

    base: int
    first: EntryHeader | None
    last: EntryHeader | None
    begins_whole: bool
    ends_whole: bool
    is_whole: bool
    begins: tuple[tuple[Lane, int, EntryHeader, bool], ...]
    ends: tuple[tuple[Lane, int, bool], ...]
    deleted: frozenset[str]


@dataclass(slots=True)
class SegmentRules:
    """The rules over one segment's intact entries, in order."""

    base: int
    _first: EntryHeader | None = None
    _last: EntryHeader | None = None
    _begins_whole: bool = False
    _is_next: bool = True  # Nothing damaged lies between the last entry and what comes.
    _damages: int = 0
    _begins: dict[Lane, tuple[int, EntryHeader, bool]] = field(default_factory=dict)
    _ends: dict[Lane, _Place] = field(default_factory=dict)
    _deleted: set[str] = field(default_factory=set)

    def damaged(self) -> None:
        """What lies behind the last entry isn't one: other entries may have been there."""
        self._is_next = False
        self._damages += 1

    def broken_by(self, header: EntryHeader, frame: bytes) -> list[str]:
        """Why no leader writes this entry here; empty if one does.

        Args:
            frame: the whole entry, whose CRC is right.
        """
        found = self._follow(header)
        if header.is_batch:
            found += self._data(header, frame)
        elif header.is_compound:
            found += self._units(header, frame)
        else:
            found += self._other(header, frame[HEADER_SIZE:])
        return found

    def broken_by_batch(self, header: EntryHeader, batch: Batch) -> list[str]:
        """The same of a data entry whose records were looked at already (`audit.proof.runs`)."""
        return self._follow(header) + self._batch(header, batch)

    def copy(self) -> SegmentRules:
        """The same, to go on with entries that may not be kept."""
        return replace(
            self, _begins=dict(self._begins), _ends=dict(self._ends), _deleted=set(self._deleted)
        )

    def ends(self) -> SegmentEnds:
        """What was seen."""
        return SegmentEnds(
            self.base,
            self._first,
            self._last,
            self._begins_whole,
            self._is_next,
            self._damages == 0,
            tuple((lane, *begin) for lane, begin in self._begins.items()),
            tuple(
                (lane, place.number, place.damages == self._damages)
                for lane, place in self._ends.items()
            ),
            frozenset(self._deleted),
        )

    def _follow(self, header: EntryHeader) -> list[str]:
        """The entry is the last one now; what is wrong with its place behind the one before."""
        before, is_next = self._last, self._is_next
        self._last, self._is_next = header, True
        if before is not None:
            return succession(before, header, is_next=is_next)
        self._first = header
        self._begins_whole = is_next and header.physical_offset == self.base
        return []

    def _other(self, header: EntryHeader, body: bytes) -> Iterator[str]:
        """An entry that holds no messages."""
        if not header.is_known:
            yield f"kind {header.kind}, version {header.version}: no release known here writes it"
            return
        if header.record_count:
            yield f"{header.record_count} records in an entry of kind {header.kind}"
        if header.kind == EntryKind.NOOP and body:
            yield f"a no-op with a body of {len(body)} bytes"
        try:
            if header.kind == EntryKind.COMMAND:
                yield from self._command(body)
            if header.kind == EntryKind.CONFIGURATION and not _voters(body):
                yield "a configuration without voters"
        except DecodeError:
            yield f"its body is none of kind {header.kind}"

    def _command(self, body: bytes) -> Iterator[str]:
        """A command, of an entry of its own or of a unit.

        Raises:
            DecodeError: it is none.
        """
        command = Command.FromString(body)
        if command.WhichOneof("body") is None:
            yield "a command that says nothing known here"
        elif command.HasField("delete_topic"):
            self._forget(command.delete_topic.name)

    def _units(self, header: EntryHeader, frame: bytes) -> Iterator[str]:
        """Units: each batch as if it were alone, and commands."""
        try:
            spans = unit_spans(header, frame)
        except InvalidFrame as error:
            yield f"its units can't be read: {error}"
            return
        for number, unit in enumerate(spans):
            for span in unit.batches:
                batch = as_entry(header, frame, number, span)
                if preamble_of(batch.header, batch.frame)[:2] != (NO_PRODUCER, 0):
                    yield f"a batch of unit {number} has a producer"
                yield from self._data(batch.header, batch.frame)
            try:
                for command in unit.commands:
                    yield from self._command(command)
            except DecodeError:
                yield f"a command of unit {number} is none"

    def _forget(self, topic: str) -> None:
        """What entries of the first version said of the name is over."""
        self._deleted.add(topic)
        for lane in [lane for lane in self._ends if lane[:2] == (topic, 0)]:
            del self._ends[lane]

    def _data(self, header: EntryHeader, frame: bytes) -> Iterator[str]:
        """A batch of messages. One whose records can't be told apart is told elsewhere."""
        first = header.first_record_at
        try:
            queue_id, offset = _QUEUE.unpack_from(frame, first + _QUEUE_AT)
            topic = _topic(frame, first)
            preamble = preamble_of(header, frame)
        except (FormatError, struct.error, IndexError):
            return
        records = frame[first:]
        try:
            starts = validate_records(
                records, topic=topic, queue_id=queue_id, max_record_size=len(records)
            )
        except FormatError as error:
            yield f"no leader takes its records: {error}"
            return
        stored = _STORE_TIME.pack(header.append_time_ms & _SIGNED)
        if not all(records.startswith(stored, at + _STORE_TIME_AT) for at in starts):
            yield f"a record isn't stored at {header.append_time_ms}, the time of its entry"
        yield from self._batch(header, Batch(topic, queue_id, offset, preamble))

    def _batch(self, header: EntryHeader, batch: Batch) -> list[str]:
        """Where a batch belongs, by what it says itself."""
        found = []
        topic, queue_id, queue_offset, (producer, sequence, incarnation) = batch
        if queue_id < 0:
            found.append(f"queue {queue_id}")
        if header.version != OLD_VERSION and not 0 < incarnation < header.index:
            found.append(f"it is for the topic that entry {incarnation} created")
        lane = Lane(topic, incarnation, queue_id, b"")
        found += self._number(lane, queue_offset, header)
        if 0 < int.from_bytes(producer[:_EPOCH_BYTES], "big") < header.index:
            lane = Lane(topic, incarnation, queue_id, producer)
            found += self._number(lane, sequence, header)
        return found

    def _number(self, lane: Lane, number: int, header: EntryHeader) -> list[str]:
        """The lane goes on with `number`."""
        found = []
        place = self._ends.get(lane)
        if place is not None:
            is_next = place.damages == self._damages
            found = out_of_line(lane, number, place.number, is_next=is_next)
        elif lane not in self._begins and not (
            lane.incarnation == 0 and lane.topic in self._deleted
        ):
            self._begins[lane] = number, header, self._damages == 0
        self._ends[lane] = _Place(number + header.record_count, self._damages)
        return found


def _topic(frame: bytes, start: int) -> str:
    """Of the record that begins at `start`."""
    (body_size,) = _BODY_LENGTH.unpack_from(frame, start + _BODY_LENGTH_AT)
    at = start + FIXED_SIZE + body_size
    return frame[at + 1 : at + 1 + frame[at]].decode("ascii", errors="replace")


def _voters(body: bytes) -> int:
    return len(Configuration.FromString(body).voters)


def succession(before: EntryHeader, header: EntryHeader, *, is_next: bool) -> list[str]:
    """What is wrong with an entry that follows another.

    Args:
        is_next: nothing was between them.
    """
    found = []
    follows = header.index == before.index + 1 if is_next else header.index > before.index
    if not follows:
        found.append(f"index {header.index} follows {before.index}")
    if header.term < before.term:
        found.append(f"term {header.term} follows {before.term}")
    if header.append_time_ms < before.append_time_ms:
        found.append(f"time {header.append_time_ms} follows {before.append_time_ms}")
    return found


def _after_start(start: LogStart, first: EntryHeader, *, is_next: bool) -> Iterator[str]:
    """What is wrong with the first entry behind a log's start.

    Args:
        is_next: nothing damaged lies before it.
    """
    if first.index != start.first_index if is_next else first.index < start.first_index:
        yield f"index {first.index} is the first, the log begins with {start.first_index}"
    if first.term < start.term:
        yield f"term {first.term} follows {start.term}, the one before the log's first"
    if first.append_time_ms < start.append_time_ms:
        yield f"time {first.append_time_ms} follows {start.append_time_ms}, before the log's first"


def out_of_line(lane: Lane, number: int, expected: int, *, is_next: bool) -> list[str]:
    """What is wrong with a lane that goes on with `number` where `expected` is the next."""
    if number != expected if is_next else number < expected:
        return [f"{lane} goes on with {number}, the next is {expected}"]
    return []


def between_segments(
    segments: Iterable[SegmentEnds], segment_size: int, start: int, before: LogStart | None
) -> Iterator[Broken]:
    """Entries that fit their segment and not those before it.

    Args:
        segments: of one replica, in order; one that can't be read may be left out.
        start: where the log begins, a physical offset; 0: nothing was deleted by retention.
        before: what is known of the entry before the first; None: nothing.
    """
    whole = _WholeLog(start, before)
    for each in segments:
        is_next = whole.ends_whole and each.begins_whole and each.base == whole.next_base
        whole.next_base = each.base + segment_size
        whole.ends_whole = each.ends_whole and each.first is not None
        whole.damages += not is_next
        if each.first is not None:
            yield from whole.follow(each, each.first, is_next=is_next)
        whole.damages += not each.is_whole
        whole.keep(each)


@dataclass(slots=True)
class _WholeLog:
    """What the segments so far have said."""

    start: int
    before: LogStart | None
    next_base: int = field(init=False)
    ends_whole: bool = True
    damages: int = field(init=False)
    _last: EntryHeader | None = None
    _ends: dict[Lane, _Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.next_base = self.start
        self.damages = 0 if self.start == 0 else 1

    def follow(
        self, segment: SegmentEnds, first: EntryHeader, *, is_next: bool
    ) -> Iterator[Broken]:
        """What of the segment doesn't follow."""
        if self._last is not None:
            for why in succession(self._last, first, is_next=is_next):
                yield Broken(first, why)
        elif self.before is not None and segment.base == self.start:
            for why in _after_start(self.before, first, is_next=is_next):
                yield Broken(first, why)
        for lane, number, header, is_whole in segment.begins:
            place = self._ends.get(lane)
            if place is not None:
                exact = is_whole and place.damages == self.damages
                whys = out_of_line(lane, number, place.number, is_next=exact)
            elif self.damages or not is_whole or lane.producer:
                continue  # It may have begun where nothing is known; a name keeps its numbers.
            else:
                whys = out_of_line(lane, number, 0, is_next=True)
            yield from (Broken(header, why) for why in whys)

    def keep(self, segment: SegmentEnds) -> None:
        """The segment is one of those so far."""
        for lane in [lane for lane in self._ends if lane.incarnation == 0]:
            if lane.topic in segment.deleted:
                del self._ends[lane]
        for lane, number, is_whole in segment.ends:
            self._ends[lane] = _Place(number, self.damages if is_whole else self.damages - 1)
        self._last = segment.last or self._last

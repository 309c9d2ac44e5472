"""Compound entries: data entries of version 3, whose bodies are units. Pure functions over bytes.

A unit is batches of records and commands that take effect together or not at all (ADR 54). A batch
lies there as in a data entry of its own: preamble, then records. So whoever reads batches is given
each as if it were one, `CompoundBatch.header` and `.frame`: its records lie where they lie, and the
physical offset is the one at which such an entry would have its first record there. What reads a
unit's records otherwise than any others would be a second reader of the same bytes.

Sizes are stated twice over, by each part and by the whole, and everything adds up or nothing is
read. The bounds here are the format's: what exceeds them is no compound entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from dledger.limits import MAX_MESSAGE_BYTES
from dledger.reading.entry import (
    COMPOUND_VERSION,
    ENTRY_VERSION,
    HEADER_SIZE,
    MAX_RECORD_COUNT,
    Buffer,
    EntryHeader,
    EntryKind,
)
from dledger.records.errors import InvalidFrame
from dledger.records.layout import (
    BATCH,
    COMPOUND,
    COMPOUND_BATCH,
    COMPOUND_COMMAND,
    COMPOUND_UNIT,
    FIRST_RECORD_AT,
)
from dledger.records.record import MIN_RECORD_SIZE

MAX_UNITS: Final = 1_024  # of an entry
MAX_PARTS: Final = 64  # batches of a unit; and so many commands
MAX_UNIT_BYTES: Final = MAX_MESSAGE_BYTES + (1 << 20)  # no smaller than any data entry is

_HEAD: Final = COMPOUND.struct()
_UNIT: Final = COMPOUND_UNIT.struct()
_BATCH: Final = COMPOUND_BATCH.struct()
_COMMAND: Final = COMPOUND_COMMAND.struct()
# From the beginning of a batch to its first record.
RECORDS_AT: Final = COMPOUND_BATCH.size + BATCH.size


class BatchSpan(NamedTuple):
    """A batch's records: `record_count` of them in bytes `[first, end)` of the frame."""

    first: int
    end: int
    record_count: int


class UnitSpan(NamedTuple):
    """A unit: where its batches' records lie in the frame, and its commands' bytes."""

    batches: tuple[BatchSpan, ...]
    commands: tuple[bytes, ...]


class CompoundBatch(NamedTuple):
    """A batch of unit `unit`, as a data entry of version 2 that holds nothing else."""

    unit: int
    header: EntryHeader
    frame: bytes


def unit_spans(header: EntryHeader, frame: Buffer) -> tuple[UnitSpan, ...]:
    """The units of the compound entry whose whole frame is `frame`.

    Raises:
        InvalidFrame: the body isn't units, or exceeds a bound.
    """
    if not header.is_compound or len(frame) != header.total_size:
        raise InvalidFrame(0, "version", COMPOUND_VERSION, header.version)
    reader = _Reader(frame, HEADER_SIZE, len(frame))
    (count,) = reader.take(_HEAD)
    if not 1 <= count <= MAX_UNITS:
        raise InvalidFrame(HEADER_SIZE, "count of units", f"1 to {MAX_UNITS}", count)
    units = tuple(_unit(reader) for _ in range(count))
    reader.check_end()
    records = sum(batch.record_count for unit in units for batch in unit.batches)
    if records != header.record_count:
        raise InvalidFrame(0, "record count", header.record_count, records)
    return units


def batches_in(header: EntryHeader, frame: bytes) -> Iterator[CompoundBatch]:
    """The batches of a compound entry, in order.

    Raises:
        InvalidFrame: see `unit_spans`.
    """
    for number, unit in enumerate(unit_spans(header, frame)):
        for batch in unit.batches:
            yield as_entry(header, frame, number, batch)


def as_entry(header: EntryHeader, frame: bytes, unit: int, batch: BatchSpan) -> CompoundBatch:
    """The batch as a data entry of its own."""
    start = batch.first - FIRST_RECORD_AT
    alone = header._replace(
        total_size=batch.end - start,
        version=ENTRY_VERSION,
        record_count=batch.record_count,
        physical_offset=header.physical_offset + start,
    )
    return CompoundBatch(unit, alone, frame[start : batch.end])


def data_in(header: EntryHeader, frame: bytes) -> Iterator[tuple[EntryHeader, bytes]]:
    """The batches of any entry, each as a data entry: that of a data entry is itself, of other
    kinds there are none.

    Raises:
        InvalidFrame: see `unit_spans`.
    """
    if header.is_compound:
        for batch in batches_in(header, frame):
            yield batch.header, batch.frame
    elif header.is_batch:
        yield header, frame


def commands_in(header: EntryHeader, frame: bytes) -> Iterator[bytes]:
    """The bytes of the commands of any entry, in order.

    Raises:
        InvalidFrame: see `unit_spans`.
    """
    if header.is_compound:
        yield from chain.from_iterable(unit.commands for unit in unit_spans(header, frame))
    elif header.kind == EntryKind.COMMAND and header.is_known:
        yield bytes(frame[HEADER_SIZE:])


class UnitBody(NamedTuple):
    """A unit to be written: batches as (preamble and records, count of records), and commands."""

    batches: Sequence[tuple[Buffer, int]]
    commands: Sequence[bytes]

    @property
    def size(self) -> int:
        """Bytes in the entry."""
        batches = sum(_BATCH.size + len(body) for body, _ in self.batches)
        return _UNIT.size + batches + sum(_COMMAND.size + len(each) for each in self.commands)

    @property
    def record_count(self) -> int:
        """Records of all batches."""
        return sum(count for _, count in self.batches)


def build_body(units: Sequence[UnitBody]) -> tuple[bytearray, list[int]]:
    """The body of a compound entry, and where each batch's first record lies in it, in order.

    The caller keeps to the bounds; `unit_spans` would refuse what doesn't.
    """
    body = bytearray(_HEAD.pack(len(units)))
    firsts: list[int] = []
    for unit in units:
        body += _UNIT.pack(unit.size, len(unit.batches), len(unit.commands))
        for batch, count in unit.batches:
            firsts.append(len(body) + RECORDS_AT)
            body += _BATCH.pack(_BATCH.size + len(batch), count)
            body += batch
        for command in unit.commands:
            body += _COMMAND.pack(_COMMAND.size + len(command))
            body += command
    return body, firsts


def exceeds(units: Iterable[UnitBody]) -> str | None:
    """Which bound of the format the units exceed; None if none."""
    records = count = 0
    for unit in units:
        count += 1
        records += unit.record_count
        if not (unit.batches or unit.commands):
            return "a unit that holds nothing"
        if max(len(unit.batches), len(unit.commands)) > MAX_PARTS:
            return f"a unit of more than {MAX_PARTS} batches or commands"
        if unit.size > MAX_UNIT_BYTES:
            return f"a unit of {unit.size} bytes, more than {MAX_UNIT_BYTES}"
    if not 1 <= count <= MAX_UNITS:
        return f"{count} units, not 1 to {MAX_UNITS}"
    return None if records <= MAX_RECORD_COUNT else f"{records} records"


class _Reader:
    """Takes parts of a frame, one behind the other, up to `end`."""

    def __init__(self, frame: Buffer, at: int, end: int) -> None:
        self.frame = frame
        self.at = at
        self._end = end

    def take(self, head: Struct) -> tuple[int, ...]:
        if self.at + head.size > self._end:
            raise InvalidFrame(self.at, "remaining size", f"at least {head.size}", self._left)
        found = head.unpack_from(self.frame, self.at)
        self.at += head.size
        return found

    def part(self, head: Struct, at_least: int, at_most: int) -> tuple[tuple[int, ...], _Reader]:
        """A part that states its size first: its other fields, and a reader of the rest of it."""
        start = self.at
        size, *fields = self.take(head)
        if not at_least <= size <= min(at_most, self._end - start):
            most = min(at_most, self._end - start)
            raise InvalidFrame(start, "size of a part", f"{at_least} to {most}", size)
        inside = _Reader(self.frame, self.at, start + size)
        self.at = start + size
        return tuple(fields), inside

    @property
    def _left(self) -> int:
        return self._end - self.at

    def rest(self) -> tuple[int, int]:
        """What is left: from where to where."""
        return self.at, self._end

    def check_end(self) -> None:
        if self._left:
            raise InvalidFrame(self.at, "end of the parts", self._end, self.at)


def _unit(reader: _Reader) -> UnitSpan:
    start = reader.at
    (batches, commands), inside = reader.part(_UNIT, _UNIT.size, MAX_UNIT_BYTES)
    if not 1 <= max(batches, commands) <= MAX_PARTS:
        found = f"{batches} and {commands}"
        raise InvalidFrame(start, "batches and commands", f"1 to {MAX_PARTS}", found)
    unit = UnitSpan(
        tuple(_batch(inside) for _ in range(batches)),
        tuple(_command(inside) for _ in range(commands)),
    )
    inside.check_end()
    return unit


def _batch(reader: _Reader) -> BatchSpan:
    start = reader.at
    (count,), inside = reader.part(_BATCH, RECORDS_AT + MIN_RECORD_SIZE, MAX_UNIT_BYTES)
    if not count:
        raise InvalidFrame(start, "count of records", "at least 1", count)
    _, end = inside.rest()
    return BatchSpan(start + RECORDS_AT, end, count)


def _command(reader: _Reader) -> bytes:
    _, inside = reader.part(_COMMAND, _COMMAND.size + 1, MAX_UNIT_BYTES)
    start, end = inside.rest()
    return bytes(reader.frame[start:end])

"""What lies in a log, place by place: entries with what they carry, and what is no intact entry.

Nothing is judged, and damage doesn't end it: what lies behind a broken entry is what whoever looks
at one wants to see. The walk is the audit's own (`audit.proof.scan`). Messages' bodies are left to
`dledger audit export`; memory holds one entry.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from audit.proof.log import OpenedLog, missing_in
from audit.proof.ranges import EVERYTHING, Missing, bases_from
from audit.proof.scan import Item, ItemKind, ScanTask, Window, next_item
from dledger.reading.compound import as_entry, unit_spans
from dledger.reading.entry import (
    FILLER_HEADER_SIZE,
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    parse_header,
    preamble_of,
)
from dledger.reading.files import opened
from dledger.records.compression import codec_of
from dledger.records.errors import BodyUnreadable, FormatError
from dledger.records.layout import file_name
from dledger.records.record import DecodedRecord, decode_records
from dledger.wire.commands_pb2 import Command
from dledger.wire.raft_pb2 import Configuration

UNREADABLE: Final = "unreadable"  # the file is gone, ends, or gives an error
MISSING: Final = "missing"  # no intact entry of these indexes was found

Facts = dict[str, Any]  # what becomes a line of JSON


@dataclass(frozen=True, slots=True)
class Wanted:
    """Entries `[first, last]`, both of them; of them data entries of `topic` only, if one is
    named. Damage is always wanted. `messages`: each record of an entry, too."""

    first: int = EVERYTHING[0]
    last: int = EVERYTHING[1]
    topic: str | None = None
    messages: bool = False


@dataclass(frozen=True, slots=True)
class Dumped:
    """One place of the log; `is_intact`: nothing is wrong with it, or it is the tail that a start
    cuts. Or what of the range isn't there (`is_missing`)."""

    facts: Facts
    is_intact: bool
    is_missing: bool = False


def dump(log: OpenedLog, wanted: Wanted) -> Iterator[Dumped]:
    """Every wanted place, in the log's order, and last which entries weren't found; fillers are
    no places."""
    first: int | None = None
    last: int | None = None
    for base in bases_from(log.survey, log.read_end, wanted.first):
        met = _Met()
        yield from _segment(log, wanted, base, met)
        first, last = met.first if first is None else first, met.last or last
        if last is not None and last >= wanted.last:
            break
    for each in missing_in(log, (wanted.first, wanted.last), (first, last)):
        yield Dumped(_missing(each), is_intact=True, is_missing=True)


@dataclass(slots=True)
class _Met:
    """Indexes of the first and the last intact entry of a segment."""

    first: int | None = None
    last: int | None = None


def _segment(log: OpenedLog, wanted: Wanted, base: int, met: _Met) -> Iterator[Dumped]:
    path = os.path.join(log.survey.commitlog, file_name(base))
    end = min(log.read_end - base, log.segment_size)
    at = 0
    try:
        with opened(path) as descriptor:
            window = Window(descriptor)
            for item, frame in _items(log, base, end, window):
                at = item.start - base + item.size
                if item.kind is ItemKind.ENTRY:
                    header = parse_header(frame, 0)
                    met.first = met.first or header.index
                    met.last = header.index
                    yield from _entry(path, item.start - base, header, frame, wanted)
                elif item.kind is not ItemKind.FILLER:
                    facts = _damage(path, item.start - base, item.size, item.kind, item.detail)
                    yield Dumped(facts, is_intact=log.is_tail(item.start))
    except OSError as error:
        reason = error.strerror or str(error)
        yield Dumped(_damage(path, at, end - at, UNREADABLE, reason), is_intact=False)
        return
    if at < end and not log.is_tail(base + at):
        reason = "the file ends there"
        yield Dumped(_damage(path, at, end - at, UNREADABLE, reason), is_intact=False)


def _items(log: OpenedLog, base: int, end: int, window: Window) -> Iterator[tuple[Item, bytes]]:
    """What lies in the segment up to its byte `end`, and the bytes of what is an entry."""
    survey = log.survey
    task = ScanTask(survey.replica, survey.commitlog, base, log.segment_size, ((base, base + end),))
    at = 0
    while at < end:
        item = next_item(window, task, at, 0)
        if item is None:
            return
        is_entry = item.kind is ItemKind.ENTRY
        yield item, window.read(at, item.size) if is_entry else b""
        at += max(item.size, FILLER_HEADER_SIZE)


def _entry(
    path: str, offset: int, header: EntryHeader, frame: bytes, wanted: Wanted
) -> Iterator[Dumped]:
    if not wanted.first <= header.index <= wanted.last:
        return
    facts = {**_header_facts(path, offset, header), **_body_facts(header, frame, wanted)}
    topics = (facts.get("topic"), *facts.get("topics", ()))
    if wanted.topic is None or wanted.topic in topics or "problem" in facts:
        yield Dumped(facts, is_intact="problem" not in facts)


def _damage(path: str, offset: int, size: int, what: str, detail: str) -> Facts:
    return {"what": what, "file": path, "offset": offset, "size": size, "problem": detail}


def _missing(missing: Missing) -> Facts:
    first, last = missing
    facts = {"what": MISSING, "first_index": first, "last_index": last}
    return facts | {"problem": "no intact entry of these indexes was found"}


def _header_facts(path: str, offset: int, header: EntryHeader) -> Facts:
    known = header.kind in EntryKind.__members__.values()
    return {
        "what": "entry",
        "file": path,
        "offset": offset,
        "size": header.total_size,
        "index": header.index,
        "term": header.term,
        "kind": EntryKind(header.kind).name.lower() if known else header.kind,
        "version": header.version,
        "physical_offset": header.physical_offset,
        "append_time_ms": header.append_time_ms,
        "crc": f"{header.crc:08x}",
        "digest": f"{header.digest:016x}",
        "records": header.record_count,
    }


def _body_facts(header: EntryHeader, frame: bytes, wanted: Wanted) -> Facts:
    """What the entry carries; a `problem` where an intact entry's body is none of its kind."""
    if not header.is_known:
        return {"note": "a later release wrote it"}
    body = frame[HEADER_SIZE:]
    try:
        match header.kind:
            case EntryKind.DATA if header.is_compound:
                return _unit_facts(header, frame, with_messages=wanted.messages)
            case EntryKind.DATA:
                return _batch_facts(header, frame, with_messages=wanted.messages)
            case EntryKind.COMMAND:
                command = Command.FromString(body)
                return {"command": command.WhichOneof("body"), "fields": MessageToDict(command)}
            case EntryKind.CONFIGURATION:
                return {"fields": MessageToDict(Configuration.FromString(body))}
            case _:
                return {}
    except (FormatError, DecodeError, ValueError) as error:
        return {"problem": f"its body can't be read: {error}"}


def _unit_facts(header: EntryHeader, frame: bytes, *, with_messages: bool) -> Facts:
    """What the entry's units hold. Which of them were refused a later entry says."""
    units: list[Facts] = []
    topics: list[str] = []
    for number, span in enumerate(unit_spans(header, frame)):
        batches = []
        for batch in (as_entry(header, frame, number, each) for each in span.batches):
            facts = _batch_facts(batch.header, batch.frame, with_messages=with_messages)
            batches.append({"records": batch.header.record_count, **facts})
            topics.append(str(facts.get("topic", "")))
        commands = [MessageToDict(Command.FromString(each)) for each in span.commands]
        units.append({"batches": batches, "commands": commands})
    problems = [b["problem"] for unit in units for b in unit["batches"] if "problem" in b]
    found: Facts = {"units": units, "topics": sorted(set(topics))}
    return found | ({"problem": problems[0]} if problems else {})


def _batch_facts(header: EntryHeader, frame: bytes, *, with_messages: bool) -> Facts:
    preamble = preamble_of(header, frame)
    records = decode_records(frame[header.first_record_at :])
    facts: Facts = {
        "producer": preamble.producer_id.hex(),
        "sequence": preamble.base_sequence,
        "incarnation": preamble.incarnation,
    }
    if len(records) != header.record_count or not records:
        return facts | {"problem": f"{len(records)} records are in it"}
    first = records[0]
    facts |= {
        "topic": first.topic,
        "queue_id": first.queue_id,
        "queue_offset": first.queue_offset,
    }
    if with_messages:
        facts["messages"] = [_message_facts(record) for record in records]
    return facts


def _codec_name(sysflag: int) -> str | None:
    try:
        codec = codec_of(sysflag)
    except BodyUnreadable as error:
        return error.codec
    return None if codec is None else codec.name.lower()


def _message_facts(record: DecodedRecord) -> Facts:
    return {
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "message_id": record.message_id,
        "born_time_ms": record.born_time_ms,
        "store_time_ms": record.store_time_ms,
        "size": record.size,
        "body_size": len(record.stored_body),
        "compressed_with": _codec_name(record.sysflag),
        "keys": record.keys,
        "tags": record.tags,
    }

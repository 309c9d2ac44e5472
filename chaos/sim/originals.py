"""Messages and their copies, from the log alone: a copy is its message, but for where it lies.

Copies wait, come again or are dead letters (ADR 58). Where a message is and how often it failed is
the matter of the models that ask (`chaos.sim.retry_model`, `chaos.sim.delivery_model`); this knows
what the first one was, and what of it every copy has.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator

from chaos.sim.defect import Defect
from dledger.reading.compound import as_entry, data_in, unit_spans
from dledger.reading.entry import EntryHeader
from dledger.records.errors import InvalidFrame, InvalidRecord
from dledger.records.message_id import parse_message_id
from dledger.records.record import DecodedRecord, decode_records
from dledger.records.reserved import (
    ORIGIN_MESSAGE_ID,
    ORIGIN_OFFSET,
    ORIGIN_QUEUE,
    ORIGIN_TIME,
    ORIGIN_TOPIC,
    OWN_PROPERTIES,
)


class Originals:
    """Every message of the log, as of the last entry."""

    def __init__(self) -> None:
        self._begin: list[int] = []  # physical offsets of entries with messages
        self._entries: list[tuple[EntryHeader, bytes]] = []

    def follow(self, header: EntryHeader, frame: bytes) -> None:
        """That entry is the next one."""
        if header.is_batch or header.is_compound:
            self._begin.append(header.physical_offset)
            self._entries.append((header, frame))

    def of(self, copy: DecodedRecord, where: str) -> DecodedRecord:
        """The message that it is a copy of, its first one.

        Raises:
            Defect: there is none, or the copy has something else than it.
        """
        origin = copy.properties.get(ORIGIN_MESSAGE_ID, "")
        first = self._find(origin)
        if first is None:
            raise Defect("copy", f"{where}: a copy of {origin!r}, which isn't in the log")
        if _content(copy) != _content(first) or _origin(copy) != _place(first):
            raise Defect("copy", f"{where}: {copy} isn't a copy of {first}")
        return first

    def _find(self, message_id: str) -> DecodedRecord | None:
        try:
            _, physical_offset = parse_message_id(message_id)
        except InvalidRecord:
            return None
        at = bisect(self._begin, physical_offset) - 1
        if at < 0:
            return None
        return next((r for r in _messages(*self._entries[at]) if r.message_id == message_id), None)


def lies_at(record: DecodedRecord) -> tuple[str, int, int]:
    """Topic, queue id and offset."""
    return record.topic, record.queue_id, record.queue_offset


def unit_records(header: EntryHeader, frame: bytes) -> Iterator[list[DecodedRecord]]:
    """The records of each unit."""
    for number, span in enumerate(unit_spans(header, frame)):
        found: list[DecodedRecord] = []
        for batch in span.batches:
            alone = as_entry(header, frame, number, batch)
            found += decode_records(alone.frame[alone.header.first_record_at :])
        yield found


def _messages(header: EntryHeader, frame: bytes) -> Iterator[DecodedRecord]:
    try:
        for alone, part in data_in(header, frame):
            yield from decode_records(part[alone.first_record_at :])
    except InvalidFrame:
        return  # void, with all that is in it


def _content(record: DecodedRecord) -> tuple[object, ...]:
    """What every copy has of it."""
    theirs = {n: each for n, each in record.properties.items() if n not in OWN_PROPERTIES}
    born = record.born_time_ms, record.born_host
    return record.stored_body, record.flag, record.sysflag, born, theirs


def _place(first: DecodedRecord) -> tuple[str | None, ...]:
    """Where it lies, as copies say it."""
    return tuple(map(str, (*lies_at(first), first.store_time_ms)))


def _origin(copy: DecodedRecord) -> tuple[str | None, ...]:
    names = ORIGIN_TOPIC, ORIGIN_QUEUE, ORIGIN_OFFSET, ORIGIN_TIME
    return tuple(map(copy.properties.get, names))

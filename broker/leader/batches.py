"""Batches on their way into the log, and what becomes of them: plain values and one judgement.

A door makes a `Batch` of what it received; `BatchRules` says whether its records are what the
batch claims. Nothing here knows of the log, of sequences or of who waits.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from broker.errors import BrokerError, ErrorCode, Failure
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.records.errors import InvalidRecord
from dledger.records.layout import RECORD
from dledger.records.properties import MAX_PROPERTIES_BYTES, MAX_SENT_PROPERTIES_BYTES
from dledger.records.record import (
    MAX_TOPIC_BYTES,
    MIN_RECORD_SIZE,
    record_starts,
    validate_records,
)

MAX_BATCH_RECORDS = 65_535  # the entry header counts them in two bytes
BATCH_SLACK_BYTES = 512 << 10  # a batch may be this much longer than the largest message
MAX_RECORD_OVERHEAD = MIN_RECORD_SIZE + MAX_TOPIC_BYTES + MAX_PROPERTIES_BYTES
STEP_RECORDS = 2_048  # checked at once; a microsecond each
PART_WEIGHT = 3_000  # of batches that are proposed at once: about five milliseconds
TOTAL_SIZE = RECORD.run("total_size")
BODY_LENGTH = RECORD.run("body_length")
BODY_LENGTH_AT = RECORD.at("body_length")


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages for one queue. `base_sequence` counts the producer's messages to that queue from
    0; `records` are `count` records back to back, in the layout of docs/formats.md. `incarnation`:
    of the topic that is meant; 0: whichever has the name. `queues_changed`: the last change of its
    write queues that the sender knew as it chose the queue; None: it doesn't say. `checked`: what
    `BatchRules` has found; None: it has not looked yet. `is_copy`: this broker made it of records
    that the log has, so no client's word is in its sizes."""

    topic: str
    queue_id: int
    base_sequence: int
    count: int
    records: bytes
    incarnation: int = 0
    queues_changed: int | None = None
    checked: list[int] | BrokerError | None = field(default=None, compare=False, repr=False)
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a batch is stored, on a majority of disks.

    Attributes:
        base_physical_offset: of the first record; the others follow back to back.
        store_host: IPv4 address (4 bytes) and port (4 bytes, big-endian) of who stored it.
        is_duplicate: it had been stored before.
    """

    base_queue_offset: int
    base_physical_offset: int
    store_time_ms: int
    store_host: bytes
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class StoredBefore:
    """The batch had been stored before, so long ago that its place is not remembered."""


BatchAnswer = Placed | StoredBefore | Failure


class _Bounds:
    """How large a body, a record, and a batch's records may be, in bytes."""

    def __init__(self, message: int) -> None:
        self.message = message
        self.record = message + MAX_RECORD_OVERHEAD
        self.batch = message + BATCH_SLACK_BYTES


# What was taken comes again, and ends as a dead letter, however small messages have to be since.
_COPIED: Final = _Bounds(MAX_MESSAGE_BYTES)


class BatchRules:
    """What a batch must be like to be taken."""

    def __init__(self, max_message_bytes: int, segment_bytes: int) -> None:
        """Args:
        max_message_bytes: the largest body that is taken from clients.
        segment_bytes: of the log: no entry is longer.
        """
        self._sent = _Bounds(max_message_bytes)
        # Whoever took the largest message had a segment that holds it, and so much beside it.
        fits = segment_bytes - BATCH_SLACK_BYTES
        self._max_unit = max(self._sent.batch, min(_COPIED.batch, fits))

    def takes_unit(self, size: int) -> bool:
        """Whether a unit, which brokers make, may be so large: no larger than the largest data
        entry that there may be in the log."""
        return size <= self._max_unit

    def record_starts(self, batch: Batch) -> list[int]:
        """Where each record of the batch begins; every length and CRC in them is right.

        Raises:
            BrokerError: INVALID_ARGUMENT, MESSAGE_TOO_LARGE, RECORD_CORRUPT.
        """
        if isinstance(batch.checked, BrokerError):
            raise batch.checked
        if batch.checked is not None:
            return batch.checked
        self._check_sizes(batch)
        starts = self._validate(batch, 0, len(batch.records))
        if len(starts) != batch.count:
            raise BrokerError(
                ErrorCode.RECORD_CORRUPT,
                f"{len(starts)} records in a batch that says {batch.count}",
            )
        return starts

    def check_properties(self, batch: Batch, starts: Sequence[int]) -> None:
        """A copy of each of its messages has room for what the brokers add.

        Raises:
            BrokerError: MESSAGE_TOO_LARGE.
        """
        if len(batch.records) <= MAX_SENT_PROPERTIES_BYTES:
            return
        around = MIN_RECORD_SIZE + len(batch.topic.encode())
        for start, end in pairwise((*starts, len(batch.records))):
            if end - start <= MAX_SENT_PROPERTIES_BYTES:
                continue
            (body_size,) = BODY_LENGTH.unpack_from(batch.records, start + BODY_LENGTH_AT)
            size = end - start - around - body_size
            if size > MAX_SENT_PROPERTIES_BYTES:
                text = f"properties of {size} bytes, {MAX_SENT_PROPERTIES_BYTES} at most"
                raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, text)

    def check_in_steps(self, batch: Batch) -> Generator[None, None, Batch]:
        """The batch with what `record_starts` gives or raises for it; at each step some records
        have been checked. Nothing is read but the batch itself, so whatever happens between two
        steps changes nothing in it."""
        try:
            self._check_sizes(batch)
            starts: list[int] = []
            end = 0
            while len(starts) < batch.count:
                wanted = min(STEP_RECORDS, batch.count - len(starts))
                last = record_starts(batch.records, end, wanted)[-1]
                first, end = end, last + TOTAL_SIZE.unpack_from(batch.records, last)[0]
                starts += self._validate(batch, first, end)
                yield
            if end != len(batch.records):
                text = f"more than {batch.count} records in a batch that says so many"
                raise BrokerError(ErrorCode.RECORD_CORRUPT, text)
        except InvalidRecord as error:
            refusal = BrokerError(ErrorCode.RECORD_CORRUPT, str(error))
            return replace(batch, checked=refusal)
        except BrokerError as error:
            return replace(batch, checked=error)
        return replace(batch, checked=starts)

    def _bounds_of(self, batch: Batch) -> _Bounds:
        return _COPIED if batch.is_copy else self._sent

    def _check_sizes(self, batch: Batch) -> None:
        records, bounds = batch.records, self._bounds_of(batch)
        if not 0 < batch.count <= MAX_BATCH_RECORDS:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT,
                f"a batch holds 1 to {MAX_BATCH_RECORDS} messages, not {batch.count}",
            )
        if len(records) > bounds.batch:
            raise BrokerError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{len(records)} bytes of records, the limit is {bounds.batch} "
                f"({bounds.message} for one message)",
            )

    def _validate(self, batch: Batch, first: int, end: int) -> list[int]:
        """Where each of the records in bytes `[first, end)` begins."""
        records, bounds = batch.records, self._bounds_of(batch)
        piece = records if end - first == len(records) else records[first:end]
        try:
            starts = validate_records(
                piece,
                topic=batch.topic,
                queue_id=batch.queue_id,
                max_record_size=bounds.record,
                most=batch.count,  # by which the work was weighed, whatever there is
            )
        except InvalidRecord as error:
            if first:
                at = first + error.position
                error = InvalidRecord(at, error.field, error.expected, error.found)
            raise BrokerError(ErrorCode.RECORD_CORRUPT, str(error)) from error
        if first:
            starts = [first + start for start in starts]
        if end - first > bounds.message:
            _check_bodies(records, starts, bounds.message)
        return starts


def _check_bodies(records: bytes, starts: list[int], most: int) -> None:
    for start in starts:
        (size,) = BODY_LENGTH.unpack_from(records, start + BODY_LENGTH_AT)
        if size > most:
            text = f"a message of {size} bytes, the limit is {most}"
            raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, text)

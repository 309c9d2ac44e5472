"""One producer's numbers in one queue: values that the owner `producers` keeps.

A producer numbers its messages to a queue from 0. What is remembered are its last batches there,
oldest first, at least one: where the next one has to start, and where those few lie. Nothing here
knows producers, registrations or how anything is forgotten.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple, NewType

from dledger.core.errors import InvariantViolation

RECENT_BATCHES: Final = 5  # per producer and queue: whose places a retry is told


class StoredBatch(NamedTuple):
    """Where a batch was stored; what a retry of it is answered with. A tuple, because one is made
    for each batch that is applied, in a third of the time that a frozen dataclass takes."""

    base_sequence: int
    record_count: int
    base_queue_offset: int
    base_physical_offset: int
    store_time_ms: int


# A producer's last batches in a queue, oldest first. There are half a million of them in a full
# group, and the collector of the interpreter would visit each: so they are one `bytes`, which it
# doesn't know of (ADR 27). Every value that an entry can have fits. Replaced and never changed, so
# that a snapshot can go on reading those that it began with.
Recent = NewType("Recent", bytes)

_BATCH: Final = struct.Struct(">QIQQQ")
_NEXT: Final = struct.Struct(">QI")
_KEPT: Final = (RECENT_BATCHES - 1) * _BATCH.size  # beside the newest


def next_sequence(recent: Recent | None) -> int:
    """Where the producer's next batch to that queue starts."""
    if recent is None:
        return 0
    base, count = _NEXT.unpack_from(recent, len(recent) - _BATCH.size)
    return int(base) + int(count)


def with_batch(recent: Recent | None, batch: StoredBatch) -> Recent:
    """What is remembered once `batch` is the newest."""
    packed = _BATCH.pack(*batch)
    return Recent(packed if recent is None else recent[-_KEPT:] + packed)


def batches_of(recent: Recent | None) -> list[StoredBatch]:
    """What is remembered, oldest first."""
    return [StoredBatch(*each) for each in _BATCH.iter_unpack(recent or b"")]


def recent_of(batches: Iterable[StoredBatch]) -> Recent:
    """What is remembered if those are the last batches, oldest first."""
    return Recent(b"".join(_BATCH.pack(*each) for each in batches))


def check_recent(recent: Recent) -> None:
    """1 to `RECENT_BATCHES` batches, each behind the one before: in sequence, queue and log.

    Raises:
        InvariantViolation: names what doesn't hold.
    """
    batches = batches_of(recent)
    if not 0 < len(batches) <= RECENT_BATCHES:
        raise InvariantViolation(f"{len(batches)} batches are remembered")
    for one, other in pairwise(batches):
        follows = (
            other.base_sequence == one.base_sequence + one.record_count
            and other.base_queue_offset >= one.base_queue_offset + one.record_count
            and other.base_physical_offset > one.base_physical_offset
            and other.store_time_ms >= one.store_time_ms
        )
        if not follows:
            raise InvariantViolation(f"{other} doesn't follow {one}")

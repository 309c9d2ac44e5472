"""One producer's numbers in one queue: values that the owner `producers` keeps.

A producer numbers its messages to a queue from 0. What is remembered are its last batches there,
oldest first, at least one: where the next one has to start, and where those few lie. Nothing here
knows producers, registrations or how anything is forgotten.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

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


# Replaced and never changed, so that a snapshot can go on reading those that it began with.
Recent = tuple[StoredBatch, ...]


def next_sequence(recent: Recent | None) -> int:
    """Where the producer's next batch to that queue starts."""
    if recent is None:
        return 0
    newest = recent[-1]
    return newest.base_sequence + newest.record_count


def with_batch(recent: Recent | None, batch: StoredBatch) -> Recent:
    """What is remembered once `batch` is the newest."""
    if recent is None:
        return (batch,)
    return (*recent[1 - RECENT_BATCHES :], batch)


def check_recent(recent: Recent) -> None:
    """1 to `RECENT_BATCHES` batches, each behind the one before: in sequence, queue and log.

    Raises:
        InvariantViolation: names what doesn't hold.
    """
    if not 0 < len(recent) <= RECENT_BATCHES:
        raise InvariantViolation(f"{len(recent)} batches are remembered")
    for one, other in pairwise(recent):
        follows = (
            other.base_sequence == one.base_sequence + one.record_count
            and other.base_queue_offset >= one.base_queue_offset + one.record_count
            and other.base_physical_offset > one.base_physical_offset
            and other.store_time_ms >= one.store_time_ms
        )
        if not follows:
            raise InvariantViolation(f"{other} doesn't follow {one}")

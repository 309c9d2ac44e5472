"""Sequences: what each producer stored last in each queue, so that a retry is stored once.

This owns the memory of stored batches and forgets by the log alone: neither a wall clock nor a
node's configuration may decide, or replicas would answer one retry differently.

    state                   on                              becomes
    unknown                 batch from sequence s           next s + count
    next n                  batch from sequence n           next n + count; last seen now
    next n                  batch from any other sequence   unchanged (refused: SequenceBroken)
    next n                  7 days of log time unseen       unknown
    next n, unused longest  one producer-queue too many     unknown
    next n                  its topic is deleted            unknown

A producer that isn't known may start anywhere: it is new, or was forgotten while the entry was on
its way, and the leader's check stands. "Now" is the append time of the entry. Bounds:
`max_sequences` pairs of producer and queue, `RECENT_BATCHES` batches for each. Order: longest
unused first; a snapshot keeps it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import SEQUENCES_SECTION, STORED_BATCH
from broker.state.refusals import SequenceBroken
from broker.state.snapshot import PayloadReader, Section, pack, pack_text
from dledger.core.errors import InvariantViolation

SECTION: Final = "sequences"
VERSION: Final = 1
RECENT_BATCHES: Final = 5  # per producer and queue: how many unacknowledged batches can be retried
EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
MAX_SEQUENCES: Final = 50_000
_PRODUCER_SIZE: Final = SEQUENCES_SECTION["producer_id"].size
_HEAD: Final = SEQUENCES_SECTION.run("queue_id", "count")
_BATCH: Final = STORED_BATCH.struct()

SequenceKey = tuple[bytes, str, int]  # producer id, topic, queue id


class StoredBatch(NamedTuple):
    """Where a batch was stored; what a retry of it is answered with. A tuple, because one is made
    for each batch that is applied, in a third of the time that a frozen dataclass takes."""

    base_sequence: int
    record_count: int
    base_queue_offset: int
    base_physical_offset: int
    store_time_ms: int


# Of one producer in one queue, its last batches, oldest first; at least one. Replaced and never
# changed, so that a snapshot can go on reading those that it began with.
Recent = tuple[StoredBatch, ...]


@dataclass(frozen=True, slots=True)
class SequenceState:
    """What is remembered of one producer in one queue."""

    recent: Recent

    @property
    def next_sequence(self) -> int:
        """Where the producer's next batch starts."""
        newest = self.recent[-1]
        return newest.base_sequence + newest.record_count

    @property
    def last_seen_ms(self) -> int:
        """When it stored its last batch, by the log's time."""
        return self.recent[-1].store_time_ms


@dataclass(slots=True)
class Sequences:
    """All sequences, as of the last applied entry. Every field is replicated state or its bound, so
    that two of them are equal if and only if the states are."""

    max_sequences: int = MAX_SEQUENCES
    expiry_ms: int = EXPIRY_MS
    _recent: OrderedDict[SequenceKey, Recent] = field(default_factory=OrderedDict, init=False)

    # --- reading ------------------------------------------------------------------------------

    def get(self, key: SequenceKey) -> SequenceState | None:
        """What is remembered; None if nothing."""
        recent = self._recent.get(key)
        return None if recent is None else SequenceState(recent)

    def __iter__(self) -> Iterator[SequenceKey]:
        """Longest unused first."""
        return iter(self._recent)

    def __len__(self) -> int:
        return len(self._recent)

    # --- transitions --------------------------------------------------------------------------

    def refusal_of(self, key: SequenceKey, sequence: int) -> SequenceBroken | None:
        """Why a batch that begins at `sequence` doesn't continue what is remembered; None if it
        does."""
        recent = self._recent.get(key)
        if recent is None:
            return None
        expected = recent[-1].base_sequence + recent[-1].record_count
        if sequence == expected:
            return None
        return SequenceBroken(key[1], key[2], sequence, expected)

    def remember(self, key: SequenceKey, batch: StoredBatch) -> None:
        """The batch is the producer's newest in that queue; who wasn't seen for long is forgotten.
        `refusal_of` was asked before."""
        recent = self._recent.get(key)
        if recent is None:
            self._recent[key] = (batch,)
        else:
            self._recent[key] = (*recent[1 - RECENT_BATCHES :], batch)
            self._recent.move_to_end(key)
        self._forget(batch.store_time_ms)

    def _forget(self, now_ms: int) -> None:
        """Drops expired and surplus sequences; the order of use in the log decides."""
        horizon = now_ms - self.expiry_ms
        while self._recent:
            oldest = next(iter(self._recent))
            is_surplus = len(self._recent) > self.max_sequences
            if not is_surplus and self._recent[oldest][-1].store_time_ms >= horizon:
                return
            del self._recent[oldest]

    def on_topic_deleted(self, topic: str) -> None:
        """Nothing is remembered of the topic's queues: a later one of the name starts afresh."""
        for key in [key for key in self._recent if key[1] == topic]:
            del self._recent[key]

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> Section:
        """The sequences as they are now, whatever is applied while the payloads are taken."""
        # Two lists of what is there: pairs would be 50,000 objects more, and the collector's work.
        keys, values = list(self._recent), list(self._recent.values())
        return Section(SECTION, VERSION, pack(_records(keys, values)))

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """Empty sequences become those that `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: they don't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        for payload in payloads:
            reader = PayloadReader(SECTION, payload)
            while not reader.is_at_end:
                producer, topic = reader.take_bytes(_PRODUCER_SIZE), reader.take_text()
                queue_id, count = reader.take(_HEAD)
                key = (producer, topic, queue_id)
                if key in self._recent or not 0 < count <= RECENT_BATCHES:
                    found = f"{count} batches of {producer.hex()} in {topic}/{queue_id}"
                    raise SnapshotDamaged(SECTION, f"1 to {RECENT_BATCHES}, once", found)
                batches = [StoredBatch(*values) for values in reader.take_many(_BATCH, count)]
                self._recent[key] = tuple(batches)

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        if len(self._recent) > self.max_sequences:
            raise InvariantViolation(
                f"{len(self._recent)} sequences, the limit is {self.max_sequences}"
            )
        last_seen_ms = None
        for key, recent in self._recent.items():
            _check_recent(key, recent)
            if last_seen_ms is not None and recent[-1].store_time_ms < last_seen_ms:
                raise InvariantViolation(f"{key} was used before the one that is older in use")
            last_seen_ms = recent[-1].store_time_ms
        if last_seen_ms is not None:
            oldest = self._recent[next(iter(self._recent))]
            if oldest[-1].store_time_ms < last_seen_ms - self.expiry_ms:
                raise InvariantViolation("a sequence is remembered beyond its time")


def _check_recent(key: SequenceKey, recent: Recent) -> None:
    """1 to `RECENT_BATCHES` batches, each behind the one before: in sequence, queue and log."""
    if not 0 < len(recent) <= RECENT_BATCHES:
        raise InvariantViolation(f"{key} remembers {len(recent)} batches")
    for one, other in pairwise(recent):
        follows = (
            other.base_sequence == one.base_sequence + one.record_count
            and other.base_queue_offset >= one.base_queue_offset + one.record_count
            and other.base_physical_offset > one.base_physical_offset
            and other.store_time_ms >= one.store_time_ms
        )
        if not follows:
            raise InvariantViolation(f"{key}: {other} doesn't follow {one}")


def _records(keys: Sequence[SequenceKey], values: Sequence[Recent]) -> Iterator[bytes]:
    for (producer, topic, queue_id), recent in zip(keys, values, strict=True):
        batches = b"".join([_BATCH.pack(*batch) for batch in recent])
        head = _HEAD.pack(queue_id, len(recent))
        yield b"".join((producer, pack_text(topic), head, batches))

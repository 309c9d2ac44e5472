"""Producers: who is registered, what each has stored in each queue, and who may be forgotten.

This owns the registrations and what hangs on them. It forgets by the log alone, whole producers
only, and so that it can be told: a batch of a producer that isn't here is refused and never taken
for a new one's (ADR 25). A producer's id is its epoch, which is the index of the entry that
registered it, and the eight bytes that it drew for that, its token.

    producer     on                                     becomes
    unknown      register                               known, no queues     (TooManyProducers)
    known        register with the same token           unchanged: the entry is there twice
    named, held  register that name, no id or its own   known by the new id, numbers kept; the
                                                        old id is fenced
    named, held  register that name, another id         unchanged            (ProducerFenced)
    known        batch from the next sequence           that queue further, used now
                                                        (TooManySequences, for a queue too many)
    known        batch from any other sequence          unchanged            (SequenceBroken)
    unnamed      another registers, and was it before   may be forgotten at once, unless used
    known        forget, unused for long                unknown
    known        forget, used since                     unchanged
    fenced       batch                                  unchanged            (ProducerFenced)
    unknown      batch                                  unchanged            (ProducerUnknown)
    any          its topic is deleted                   nothing left of that topic's queues

A snapshot shows the producers themselves: who is changed afterwards is copied first, and the copy
takes the place (`_own`). So taking one costs a reference each, and no copy of what they stored.

"Now" is lived time (`broker.state.lived_time`). Bounds: `ProducerBounds`, `MAX_SUPERSEDED` former
ids of a name. Order: unnamed ones and named ones, each longest unused first; a snapshot keeps it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import PRODUCER_QUEUE, PRODUCERS_SECTION, STORED_BATCH
from broker.state.refusals import (
    ProducerFenced,
    ProducerUnknown,
    RegistrationMalformed,
    SequenceBroken,
    TooManyProducers,
    TooManySequences,
)
from broker.state.registration import (
    EPOCH_SIZE,
    MAX_NAME_BYTES,
    STANDARD,
    TOKEN_SIZE,
    ProducerBounds,
    Registration,
    producer_id,
)
from broker.state.sequences import (
    RECENT_BATCHES,
    Recent,
    StoredBatch,
    batches_of,
    check_recent,
    next_sequence,
    recent_of,
    with_batch,
)
from broker.state.snapshot import PayloadReader, Section, pack, pack_text
from dledger.core.errors import InvariantViolation

SECTION: Final = "producers"
VERSION: Final = 1
MAX_SUPERSEDED: Final = 4  # former ids of a name that are told that they are fenced
_ID_SIZE: Final = PRODUCERS_SECTION["producer_id"].size
_USED: Final = PRODUCERS_SECTION.run("used_ms", "superseded_count")
_PART: Final = PRODUCERS_SECTION.run("first_queue", "count")
_QUEUE: Final = PRODUCER_QUEUE.run("incarnation", "queue_id", "count")
_BATCH: Final = STORED_BATCH.struct()
_QUEUES_IN_RECORD: Final = 64

Place = tuple[int, int]  # incarnation of a topic, queue id
Key = str | bytes  # a producer's: its name or, without one, its id


@dataclass(slots=True)
class Producer:
    """A registered producer. Read only for all but `Producers`.

    Attributes:
        producer_id: what its batches name it by.
        origin: the first id under which it has these numbers.
        name: its user's; empty: none.
        used_ms: lived time of its registration or its last batch.
        superseded: its former ids, oldest first.
        queues: what it stored last in each queue.
        snapshots: how many were taken before this object was made: it isn't in any later one.
    """

    producer_id: bytes
    origin: bytes
    name: str
    used_ms: int
    superseded: tuple[bytes, ...] = ()
    queues: dict[Place, Recent] = field(default_factory=dict)
    snapshots: int = field(default=0, compare=False)


@dataclass(slots=True)
class Producers:
    """All producers, as of the last applied entry. Every field that is compared is replicated
    state or its bound, so that two of them are equal if and only if the states are. `_senders` says
    the same as the producers do, by topic: one entry may delete hundreds of topics, in one turn."""

    bounds: ProducerBounds = STANDARD
    _tokens: dict[bytes, Producer] = field(default_factory=dict, init=False)  # former ones too
    _unnamed: OrderedDict[bytes, Producer] = field(default_factory=OrderedDict, init=False)
    _named: OrderedDict[str, Producer] = field(default_factory=OrderedDict, init=False)
    _pairs: int = field(default=0, init=False)
    _senders: dict[int, dict[Key, list[int]]] = field(  # by incarnation: who sent to which queues
        default_factory=dict, init=False, compare=False
    )
    _snapshots: int = field(default=0, init=False, compare=False)  # taken so far

    # --- reading ------------------------------------------------------------------------------

    def find(self, identity: bytes) -> Producer | ProducerFenced | ProducerUnknown:
        """The producer of that id, or why it has none."""
        producer = self._tokens.get(identity[EPOCH_SIZE:])
        if producer is None:
            return ProducerUnknown(identity)
        if producer.producer_id == identity:
            return producer
        if identity in producer.superseded:
            return ProducerFenced(producer.name)
        return ProducerUnknown(identity)

    def registered(self, token: bytes) -> Producer | None:
        """Who was registered with the token; None if nobody is known by it any more."""
        producer = self._tokens.get(token)
        if producer is None or producer.producer_id[EPOCH_SIZE:] != token:
            return None
        return producer

    def __iter__(self) -> Iterator[Producer]:
        """The unnamed ones, then the named ones; each longest unused first."""
        return chain(self._unnamed.values(), self._named.values())

    def __len__(self) -> int:
        return len(self._unnamed) + len(self._named)

    @property
    def pairs(self) -> int:
        """Of producer and queue, over all producers."""
        return self._pairs

    def forgettable(self, now_ms: int, limit: int) -> list[bytes]:
        """The ids of at most `limit` producers that `forget` would forget now: as many unnamed
        ones as there are, then named ones."""
        kinds = (
            (self._unnamed.values(), self.bounds.unnamed_unused_ms),
            (self._named.values(), self.bounds.named_unused_ms),
        )
        found: list[bytes] = []
        for producers, unused_ms in kinds:
            for producer in islice(producers, limit - len(found)):
                if now_ms - producer.used_ms < unused_ms:
                    break
                found.append(producer.producer_id)
        return found

    # --- registering --------------------------------------------------------------------------

    def register(
        self, wanted: Registration, index: int, now_ms: int
    ) -> ProducerFenced | RegistrationMalformed | TooManyProducers | None:
        """The producer is known by the epoch `index`, or was by its token before; or why not."""
        if len(wanted.token) != TOKEN_SIZE or len(wanted.name.encode()) > MAX_NAME_BYTES:
            return RegistrationMalformed()
        known = self._tokens.get(wanted.token)
        if known is not None:
            is_repeated = known.producer_id[EPOCH_SIZE:] == wanted.token
            same = is_repeated and known.name == wanted.name
            return None if same else ProducerFenced(wanted.name)
        identity = producer_id(index, wanted.token)
        held = self._named.get(wanted.name) if wanted.name else None
        if held is not None:
            if wanted.previous and wanted.previous != held.producer_id:
                return ProducerFenced(wanted.name)
            held = self._own(held)
            self._supersede(held, identity)
            self._use(held, now_ms)
            return None
        if len(self) >= self.bounds.producers:
            return TooManyProducers(self.bounds.producers)
        self._add(Producer(identity, identity, wanted.name, now_ms, snapshots=self._snapshots))
        if not wanted.name and wanted.previous in self._unnamed:
            self._release(self._unnamed[wanted.previous], now_ms)
        return None

    def _release(self, producer: Producer, now_ms: int) -> None:
        """The producer goes on under another id: this one may be forgotten at once, unless it is
        used again."""
        oldest = next(iter(self._unnamed.values()))
        producer = self._own(producer)
        producer.used_ms = min(oldest.used_ms, now_ms - self.bounds.unnamed_unused_ms)
        self._unnamed.move_to_end(producer.producer_id, last=False)

    def _own(self, producer: Producer) -> Producer:
        """The producer, to be changed: one that a snapshot shows stays there as it is."""
        if producer.snapshots == self._snapshots:
            return producer
        head, queues = _head(producer), producer.queues.copy()
        own = Producer(*head, queues, self._snapshots)
        for former in own.superseded:
            self._tokens[former[EPOCH_SIZE:]] = own
        self._add(own)
        return own

    def _add(self, producer: Producer) -> None:
        self._tokens[producer.producer_id[EPOCH_SIZE:]] = producer
        if producer.name:
            self._named[producer.name] = producer
        else:
            self._unnamed[producer.producer_id] = producer

    def _supersede(self, producer: Producer, identity: bytes) -> None:
        """The producer goes on as `identity`; of its former ids the newest few are kept."""
        former = (*producer.superseded, producer.producer_id)
        for dropped in former[:-MAX_SUPERSEDED]:
            del self._tokens[dropped[EPOCH_SIZE:]]
        producer.superseded = former[-MAX_SUPERSEDED:]
        producer.producer_id = identity
        self._tokens[identity[EPOCH_SIZE:]] = producer

    def _use(self, producer: Producer, now_ms: int) -> None:
        producer.used_ms = now_ms
        if producer.name:
            self._named.move_to_end(producer.name)
        else:
            self._unnamed.move_to_end(producer.producer_id)

    def forget(self, identities: Iterable[bytes], now_ms: int) -> None:
        """Those of the producers that may be forgotten by now are; see `forgettable`."""
        for identity in identities:
            producer = self.find(identity)
            if not isinstance(producer, Producer):
                continue
            bounds = self.bounds
            unused_ms = bounds.named_unused_ms if producer.name else bounds.unnamed_unused_ms
            if now_ms - producer.used_ms >= unused_ms:
                self._drop(producer)

    def _drop(self, producer: Producer) -> None:
        for identity in (*producer.superseded, producer.producer_id):
            del self._tokens[identity[EPOCH_SIZE:]]
        if producer.name:
            del self._named[producer.name]
        else:
            del self._unnamed[producer.producer_id]
        for incarnation in {place[0] for place in producer.queues}:
            del self._senders[incarnation][_key(producer)]
            if not self._senders[incarnation]:
                del self._senders[incarnation]
        self._pairs -= len(producer.queues)

    # --- batches ------------------------------------------------------------------------------

    def refusal_of(
        self, identity: bytes, place: Place, sequence: int
    ) -> ProducerFenced | ProducerUnknown | SequenceBroken | TooManySequences | None:
        """Why a batch that begins at `sequence` isn't the producer's next one there; None if it
        is."""
        producer = self.find(identity)
        if not isinstance(producer, Producer):
            return producer
        recent = producer.queues.get(place)
        if sequence != next_sequence(recent):
            return SequenceBroken(place[1], sequence, next_sequence(recent))
        return self.room_for(producer) if recent is None else None

    def room_for(
        self, producer: Producer, *, pairs: int = 0, queues: int = 0
    ) -> TooManySequences | None:
        """Why the producer can't send to one queue more, where `pairs`, of which `queues` are its
        own, are on their way; None if it can."""
        if len(producer.queues) + queues >= self.bounds.queues_each:
            return TooManySequences(self.bounds.queues_each)
        if self._pairs + pairs >= self.bounds.pairs:
            return TooManySequences(self.bounds.pairs)
        return None

    def remember(self, identity: bytes, place: Place, batch: StoredBatch, now_ms: int) -> None:
        """The batch is the producer's newest there; `refusal_of` was asked before."""
        producer = self._own(self._tokens[identity[EPOCH_SIZE:]])
        recent = producer.queues.get(place)
        if recent is None:
            self._count(producer, place)
        producer.queues[place] = with_batch(recent, batch)
        self._use(producer, now_ms)

    def on_topic_deleted(self, incarnation: int) -> None:
        """Nothing is remembered of the topic's queues. Who never sent to them isn't looked at."""
        for key, queue_ids in self._senders.pop(incarnation, {}).items():
            found = self._named[key] if isinstance(key, str) else self._unnamed[key]
            queues = self._own(found).queues
            for queue_id in queue_ids:
                del queues[incarnation, queue_id]
            self._pairs -= len(queue_ids)

    def _count(self, producer: Producer, place: Place) -> None:
        """The producer has a queue more."""
        senders = self._senders.setdefault(place[0], {})
        senders.setdefault(_key(producer), []).append(place[1])
        self._pairs += 1

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> Section:
        """The producers as they are now, whatever is applied while the payloads are taken."""
        self._snapshots += 1
        return Section(SECTION, VERSION, pack(_records(tuple(self))))

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """Nobody becomes those that `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: they don't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        last: Producer | None = None
        for payload in payloads:
            reader = PayloadReader(SECTION, payload)
            while not reader.is_at_end:
                last = self._restore_one(reader, last)

    def _restore_one(self, reader: PayloadReader, last: Producer | None) -> Producer:
        """One record: a producer and its first queues, or more queues of the last one."""
        identity, origin = reader.take_bytes(_ID_SIZE), reader.take_bytes(_ID_SIZE)
        used_ms, former = reader.take(_USED)
        superseded = tuple(reader.take_bytes(_ID_SIZE) for _ in range(former))
        name = reader.take_text()
        first, count = reader.take(_PART)
        head = (identity, origin, name, used_ms, superseded)
        if first == 0:
            last = Producer(*head)
            self._check_new(last)
            self._add(last)
            for each in superseded:
                self._tokens[each[EPOCH_SIZE:]] = last
        elif last is None or first != len(last.queues) or head != _head(last):
            raise SnapshotDamaged(SECTION, f"queues of {last}", f"{first} of {identity.hex()}")
        for _ in range(count):
            incarnation, queue_id, batches = reader.take(_QUEUE)
            if not 0 < batches <= RECENT_BATCHES or (incarnation, queue_id) in last.queues:
                found = f"{batches} batches of {identity.hex()} in {incarnation}/{queue_id}"
                raise SnapshotDamaged(SECTION, f"1 to {RECENT_BATCHES}, once", found)
            taken = [StoredBatch(*each) for each in reader.take_many(_BATCH, batches)]
            if any(each.store_time_ms < 0 for each in taken):
                raise SnapshotDamaged(SECTION, "batches since 1970", taken)
            last.queues[incarnation, queue_id] = recent_of(taken)
            self._count(last, (incarnation, queue_id))
        return last

    def _check_new(self, producer: Producer) -> None:
        """Raises SnapshotDamaged: one of its ids or its name is there already."""
        tokens = [each[EPOCH_SIZE:] for each in (*producer.superseded, producer.producer_id)]
        taken = any(token in self._tokens for token in tokens) or len(set(tokens)) < len(tokens)
        if taken or producer.name in self._named or len(producer.superseded) > MAX_SUPERSEDED:
            raise SnapshotDamaged(SECTION, "each id and name once", producer.producer_id.hex())

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        pairs, tokens = 0, 0
        for kind in (self._unnamed, self._named):
            used_ms = None
            for key, producer in kind.items():
                if key != (producer.name or producer.producer_id):
                    raise InvariantViolation(f"{producer.producer_id.hex()} is kept as {key!r}")
                if used_ms is not None and producer.used_ms < used_ms:
                    raise InvariantViolation(f"{key!r} was used before one older in use")
                used_ms = producer.used_ms
                pairs += len(producer.queues)
                tokens += self._check_one(producer)
        if pairs != self._pairs or tokens != len(self._tokens):
            raise InvariantViolation(
                f"{pairs} pairs and {tokens} ids, {self._pairs} and {len(self._tokens)} are counted"
            )
        if self._senders != _senders_of(self):
            raise InvariantViolation("the senders of topics are others than the producers")
        if pairs > self.bounds.pairs or len(self) > self.bounds.producers:
            raise InvariantViolation(f"{len(self)} producers, {pairs} pairs: {self.bounds}")

    def _check_one(self, producer: Producer) -> int:
        """How many ids the producer has or had; each finds it."""
        identities = (*producer.superseded, producer.producer_id)
        if any(self._tokens.get(each[EPOCH_SIZE:]) is not producer for each in identities):
            raise InvariantViolation(f"{producer.producer_id.hex()} isn't found by all its ids")
        if len(producer.queues) > self.bounds.queues_each:
            raise InvariantViolation(f"{producer.producer_id.hex()}: {len(producer.queues)} queues")
        for recent in producer.queues.values():
            check_recent(recent)
        return len(identities)


def _key(producer: Producer) -> Key:
    return producer.name or producer.producer_id


def _senders_of(producers: Iterable[Producer]) -> dict[int, dict[Key, list[int]]]:
    """By the queues that each of them has."""
    found: dict[int, dict[Key, list[int]]] = {}
    for producer in producers:
        for incarnation, queue_id in producer.queues:
            found.setdefault(incarnation, {}).setdefault(_key(producer), []).append(queue_id)
    return found


def _head(producer: Producer) -> tuple[bytes, bytes, str, int, tuple[bytes, ...]]:
    p = producer
    return p.producer_id, p.origin, p.name, p.used_ms, p.superseded


def _records(producers: Sequence[Producer]) -> Iterator[bytes]:
    """A producer of many queues takes several records."""
    for producer in producers:
        identity, origin, name, used_ms, former = _head(producer)
        used = _USED.pack(used_ms, len(former))
        head = b"".join((identity, origin, used, *former, pack_text(name)))
        queues = list(producer.queues.items())
        for first in range(0, max(1, len(queues)), _QUEUES_IN_RECORD):
            part = queues[first : first + _QUEUES_IN_RECORD]
            yield b"".join((head, _PART.pack(first, len(part)), *map(_packed, part)))


def _packed(queue: tuple[Place, Recent]) -> bytes:
    place, batches = queue[0], batches_of(queue[1])
    return _QUEUE.pack(*place, len(batches)) + b"".join([_BATCH.pack(*each) for each in batches])

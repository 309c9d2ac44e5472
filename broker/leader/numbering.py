"""What a leader knows of a numbered batch: from the applied state and from what is in flight.

This only judges: it proposes nothing, answers nobody and keeps nothing. A batch sent again is
looked for first among those in flight and those stored; only what is new is told that its producer
is closed, that a batch before it is missing, or that there is no room (ADR 20, ADR 25).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import BrokerError, ErrorCode
from broker.leader.batches import Batch
from broker.leader.flight import InFlight, Lane, SequenceInFlight
from broker.state.machine import StateMachine
from broker.state.producers import Producer, Producers
from broker.state.refusals import ProducerFenced, ProducerUnknown, TooManySequences
from broker.state.sequences import Recent, StoredBatch, batches_of, next_sequence


@dataclass(frozen=True, slots=True)
class StoredLongAgo:
    """The batch is stored, and its place is not remembered."""


@dataclass(frozen=True, slots=True)
class StoredInFlight:
    """The batch is on its way, as entry `index`."""

    index: int
    batch: StoredBatch


@dataclass(frozen=True, slots=True)
class Numbers:
    """One producer's numbers in one queue.

    Attributes:
        producer: who is registered.
        stored: its last batches there, of the applied state; None: it has sent there nothing.
        flight: its batches on their way; None: there are none.
    """

    producer: Producer
    stored: Recent | None
    flight: SequenceInFlight | None

    @property
    def next_sequence(self) -> int:
        """Where the producer's next batch to that queue starts."""
        return next_sequence(self.stored) if self.flight is None else self.flight.next_sequence

    def find(self, batch: Batch) -> StoredBatch | StoredInFlight | StoredLongAgo:
        """What became of a batch that is older than the next one.

        Raises:
            BrokerError: it is none of those that were sent: it was cut differently.
        """
        cut = (batch.base_sequence, batch.count)
        for index, sent in self.flight.batches if self.flight is not None else ():
            if (sent.base_sequence, sent.record_count) == cut:
                return StoredInFlight(index, sent)
        for stored in batches_of(self.stored):
            if (stored.base_sequence, stored.record_count) == cut:
                return stored
        if batch.base_sequence + batch.count <= next_sequence(self.stored):
            return StoredLongAgo()
        raise BrokerError(
            ErrorCode.INVALID_ARGUMENT,
            f"sequence {batch.base_sequence} of {batch.count} messages is older than the next one "
            f"and reaches beyond {next_sequence(self.stored)}: it was cut differently",
        )


def numbers_of(producers: Producers, flight: InFlight, lane: Lane) -> Numbers:
    """The producer's numbers in the lane.

    Raises:
        BrokerError: UNKNOWN_PRODUCER, PRODUCER_FENCED.
    """
    producer = producers.find(lane.producer)
    if not isinstance(producer, Producer):
        raise not_registered(producer)
    return Numbers(producer, producer.queues.get(lane.place), flight.sequence(lane))


def is_behind(machine: StateMachine, flight: InFlight, producer: bytes, batch: Batch) -> bool:
    """Whether the batch is one of the producer's that are stored, and known: what is told of it is
    read from the log."""
    topic = machine.topics.get(batch.topic)
    if topic is None or not isinstance(machine.producers.find(producer), Producer):
        return False
    lane = Lane(producer, topic.incarnation, batch.queue_id)
    numbers = numbers_of(machine.producers, flight, lane)
    if batch.base_sequence >= numbers.next_sequence:
        return False
    try:
        return isinstance(numbers.find(batch), StoredBatch)
    except BrokerError:
        return False  # it is refused, and nothing is read


def not_registered(refusal: ProducerUnknown | ProducerFenced) -> BrokerError:
    """What who sends under such an id is told."""
    if isinstance(refusal, ProducerFenced):
        text = f"another producer has registered the name {refusal.name!r} since"
        return BrokerError(ErrorCode.PRODUCER_FENCED, text)
    text = f"no producer {refusal.producer_id.hex()} is registered, or it was forgotten"
    return BrokerError(ErrorCode.UNKNOWN_PRODUCER, text)


def check_next(numbers: Numbers, flight: InFlight, batch: Batch) -> None:
    """The batch, which is not older than the next one, is that and may be proposed.

    Raises:
        BrokerError: UNKNOWN_PRODUCER, OUT_OF_SEQUENCE: one before it is missing; NOT_READY: whose
            it will be is on its way.
    """
    producer, expected = numbers.producer, numbers.next_sequence
    found, place = batch.base_sequence, f"{batch.topic}/{batch.queue_id}"
    if flight.is_closed(producer.producer_id, producer.name):
        text = f"producer {producer.producer_id.hex()} is being registered anew or forgotten"
        raise BrokerError(ErrorCode.NOT_READY, text)
    if found == expected:
        return
    if expected == 0:
        raise BrokerError(
            ErrorCode.UNKNOWN_PRODUCER,
            f"nothing is remembered of this producer in {place}; a new one starts at sequence 0, "
            f"not {found}",
        )
    raise BrokerError(
        ErrorCode.OUT_OF_SEQUENCE,
        f"sequence {found} follows {expected - 1} in {place}: {expected} is missing",
    )


def room_for(producers: Producers, flight: InFlight, numbers: Numbers) -> TooManySequences | None:
    """Why the producer can't begin to send to one queue more; None if it can, or has begun."""
    if numbers.stored is not None or numbers.flight is not None:
        return None
    most = len(flight.lanes())
    if producers.room_for(numbers.producer, pairs=most, queues=most) is None:
        return None  # whichever of them are new; looking at each costs a turn for a Send of many
    begun = [lane for lane in flight.lanes() if _is_new(producers, lane)]
    own = sum(lane.producer == numbers.producer.producer_id for lane in begun)
    return producers.room_for(numbers.producer, pairs=len(begun), queues=own)


def is_crowded(producers: Producers, flight: InFlight) -> bool:
    """Whether there may be no room for one producer more."""
    return len(producers) + flight.registrations >= producers.bounds.producers


def _is_new(producers: Producers, lane: Lane) -> bool:
    """Whether the state knows nothing of the lane yet."""
    producer = producers.find(lane.producer)
    return isinstance(producer, Producer) and lane.place not in producer.queues

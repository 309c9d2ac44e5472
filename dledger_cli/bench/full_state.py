"""A state machine as full as its bounds permit, for what takes as long as the state is large."""

from __future__ import annotations

from broker.state.machine import StateMachine
from broker.state.offsets import MAX_PROGRESS, OffsetCommit
from broker.state.registration import STANDARD, TOKEN_SIZE, Registration, producer_id
from broker.state.sequences import RECENT_BATCHES, StoredBatch

TOPICS = 10_000


class _NoFiles:
    """`QueueFiles` that nothing is derived to."""

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None: ...
    def delete_topic(self, topic: str) -> None: ...


def full_machine(sequences: int = STANDARD.pairs) -> StateMachine:
    """Ten thousand topics, and as many producers and committed offsets as there may be.

    Args:
        sequences: pairs of producer and queue, that are remembered; as many as there may be.
    """
    machine = StateMachine(_NoFiles())
    for number in range(TOPICS):
        machine.topics.create(f"t{number}", 1, incarnation=number + 1, created_time_ms=1)
    for number in range(STANDARD.producers):
        token = number.to_bytes(TOKEN_SIZE, "big")
        machine.producers.register(Registration(token), number + 1, 1)
        for pair in range(number, sequences, STANDARD.producers):
            place = ((number + pair // STANDARD.producers) % TOPICS + 1, 0)
            for at in range(RECENT_BATCHES):
                stored = StoredBatch(at, 1, at, 1_000 * at, 1)
                machine.producers.remember(producer_id(number + 1, token), place, stored, 1)
    for number in range(MAX_PROGRESS):
        group, topic = f"g{number // TOPICS}", f"t{number % TOPICS}"
        machine.offsets.commit(OffsetCommit(group, topic, ((0, 0),), is_reset=False), [0])
    return machine

"""Producers registered: who gets an id under which its messages are numbered (ADR 25).

Registering goes through the log; what is told of a producer is what its own entry has made of the
replicated state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands
from broker.services.gate import Gate
from broker.services.refused import refused
from broker.state.machine import StateMachine
from broker.state.refusals import ProducerFenced
from broker.state.registration import EPOCH_SIZE, MAX_NAME_BYTES, TOKEN_SIZE, Registration
from broker.state.sequences import next_sequence

NAME_PATTERN: Final = re.compile(rf"[A-Za-z0-9_%-]{{0,{MAX_NAME_BYTES}}}")


@dataclass(frozen=True, slots=True)
class NextSequence:
    """Where a producer's numbers in one queue go on: everything below is stored."""

    topic: str
    queue_id: int
    sequence: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered producer. `origin`: its first id under its name; queues that aren't in
    `next_sequences` start at 0."""

    producer_id: bytes
    origin: bytes
    next_sequences: tuple[NextSequence, ...]


class Producers:
    """Registers producers."""

    def __init__(self, gate: Gate, commands: Commands, state: StateMachine) -> None:
        self._gate = gate
        self._commands = commands
        self._state = state

    async def register(self, wanted: Registration) -> Registered:
        """The producer, which is registered now; the same token again is the same registration.

        Raises:
            BrokerError: INVALID_ARGUMENT, LIMIT_REACHED, PRODUCER_FENCED; whatever a command meets
                on its way into the log.
        """
        self._gate.check_writable()
        _check(wanted)
        refusal = await self._commands.register_producer(wanted)
        if refusal is not None:
            raise refused(refusal)
        producer = self._state.producers.registered(wanted.token)
        if producer is None:  # Another took the name over before this one could be told.
            raise refused(ProducerFenced(wanted.name))
        name_of = self._state.topics.name_of  # one registers; there may be 100,000 topics
        numbers = tuple(
            NextSequence(name_of(incarnation), queue_id, next_sequence(recent), incarnation)
            for (incarnation, queue_id), recent in producer.queues.items()
        )
        return Registered(producer.producer_id, producer.origin, numbers)


def _check(wanted: Registration) -> None:
    if len(wanted.token) != TOKEN_SIZE:
        text = f"a token has {TOKEN_SIZE} bytes, not {len(wanted.token)}"
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
    if len(wanted.previous) not in (0, EPOCH_SIZE + TOKEN_SIZE):
        text = f"a producer id has {EPOCH_SIZE + TOKEN_SIZE} bytes, not {len(wanted.previous)}"
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
    if not NAME_PATTERN.fullmatch(wanted.name):
        raise BrokerError(
            ErrorCode.INVALID_ARGUMENT,
            f"producer name {wanted.name[:300]!r}: 1 to {MAX_NAME_BYTES} characters of "
            "A-Z a-z 0-9 _ % - are allowed",
        )

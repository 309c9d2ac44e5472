"""The brokers' own topics, made when they are first needed.

A topic's incarnation is the index of its entry, so that no unit can make one: each is made by a
command of its own *before* the unit that writes to it is proposed. A leader that is lost between
the two leaves an empty topic, which the next failure uses. Where there is no room for another topic
the message stays where it is, and whoever sent it back is told.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from broker.leader.commands import Commands
from broker.state.refusals import Refusal, TopicExists
from broker.state.topics import Topics
from dledger.records.reserved import LEVELS, SCHEDULE_TOPIC

QUEUES: Final = 1  # of a retry topic, and of dead letters: RocketMQ's numbers


class State(Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def topics(self) -> Topics: ...


class OwnTopics:
    """Makes them; one command at a time for each."""

    def __init__(self, state: State, commands: Commands) -> None:
        self._state = state
        self._commands = commands
        self._making: dict[str, asyncio.Lock] = {}

    async def make(self, name: str) -> Refusal | None:
        """The topic is there; or why it can't be.

        Raises:
            BrokerError: whatever a command meets on its way into the log.
        """
        if name in self._state.topics:
            return None
        lock = self._making.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                if name in self._state.topics:
                    return None
                queues = LEVELS if name == SCHEDULE_TOPIC else QUEUES
                refusal = await self._commands.create_topic(name, queues)
                return None if isinstance(refusal, TopicExists) else refusal
        finally:
            self._making.pop(name, None)

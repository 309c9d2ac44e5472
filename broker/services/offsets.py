"""Where queues begin and end, and how far consumer groups have come.

Everything told here is linearizable: leadership is confirmed after the call began. A commit goes
through the log like a message; the state machine of every replica decides whether it takes effect.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands
from broker.reading.progress import QueueOffset, committed_offsets
from broker.reading.queues import QueueReader
from broker.services.gate import Gate
from broker.services.refused import refused
from broker.services.times import Times
from broker.services.topics import MAX_QUEUES
from broker.state.machine import StateMachine
from broker.state.offsets import OffsetCommit
from broker.state.topics import TopicRef, TopicState

GROUP_PATTERN: Final = re.compile(r"[A-Za-z0-9_%-]{1,255}")
MAX_OFFSETS_IN_COMMIT: Final = MAX_QUEUES


class QueueBounds(NamedTuple):
    """The first offset held, and one past the last message that a consumer may see."""

    min_offset: int
    max_offset: int


class Offsets:
    """Tells and commits offsets."""

    def __init__(
        self,
        gate: Gate,
        reader: QueueReader,
        commands: Commands,
        state: StateMachine,
        times: Times,
    ) -> None:
        self._gate = gate
        self._times = times
        self._reader = reader
        self._commands = commands
        self._state = state

    async def bounds(self, topic: TopicRef, queue_id: int) -> QueueBounds:
        """Where the queue begins and ends.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, NOT_LEADER, NOT_READY.
        """
        await self._gate.confirm()
        return QueueBounds(*self._reader.bounds(topic, queue_id))

    async def by_time(self, topic: TopicRef, queue_id: int, time_ms: int) -> int:
        """The offset of the first message stored at or after `time_ms`, or one past the last.

        Raises:
            BrokerError: see `bounds`.
        """
        await self._gate.confirm()
        return await self._times.offset(topic, queue_id, time_ms)

    async def commit(self, commit: OffsetCommit) -> tuple[QueueOffset, ...]:
        """The consumer group's offsets in the topic, as they stand after the commit.

        Raises:
            BrokerError: INVALID_ARGUMENT, OFFSET_OUT_OF_RANGE, LIMIT_REACHED, TOPIC_NOT_FOUND,
                QUEUE_NOT_FOUND; whatever a command meets on its way into the log.
        """
        self._gate.check_writable()
        _check_group(commit.group)
        if not 0 < len(commit.wanted) <= MAX_OFFSETS_IN_COMMIT:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT, f"a commit holds 1 to {MAX_OFFSETS_IN_COMMIT} offsets"
            )
        topic = TopicRef(commit.topic, commit.incarnation)
        for place in commit.wanted:
            # Each of them and the command are about one topic, whatever happens to its name.
            state = await self._gate.surely(partial(self._check_committable, topic, place))
            topic = TopicRef(state.name, state.incarnation)
        refusal = await self._commands.commit_offsets(
            replace(commit, incarnation=topic.incarnation)
        )
        if refusal is not None:
            raise refused(refusal)
        return committed_offsets(self._state.offsets, commit.group, commit.topic)

    def _check_committable(self, topic: TopicRef, place: tuple[int, int]) -> TopicState:
        queue_id, offset = place
        _, high = self._reader.bounds(topic, queue_id)
        if offset > high:
            self._reader.check_offset(topic, queue_id, offset)
        return self._reader.topic(topic)

    async def fetch(self, group: str, topic: TopicRef) -> tuple[QueueOffset, ...]:
        """The consumer group's committed offsets in the topic; queues without one are left out.

        Raises:
            BrokerError: INVALID_ARGUMENT, TOPIC_NOT_FOUND, NOT_LEADER, NOT_READY.
        """
        _check_group(group)
        await self._gate.confirm()
        self._reader.topic(topic)
        return committed_offsets(self._state.offsets, group, topic.name)


def _check_group(name: str) -> None:
    if not GROUP_PATTERN.fullmatch(name):
        raise BrokerError(
            ErrorCode.INVALID_ARGUMENT,
            f"consumer group name {name[:300]!r}: 1 to 255 characters of A-Z a-z 0-9 _ % - allowed",
        )

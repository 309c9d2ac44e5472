"""Where queues begin and end, and how far consumer groups have come.

Everything told here is linearizable: leadership is confirmed after the call began. A commit goes
through the log like a message; the state machine of every replica decides whether it takes effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands
from broker.machine import OUT_OF_RANGE, TOO_MANY
from broker.reading.progress import CommittedOffsets, QueueOffset, committed_offsets
from broker.reading.queues import QueueReader
from broker.services.gate import Gate
from broker.services.topics import MAX_QUEUES

GROUP_PATTERN: Final = re.compile(r"[A-Za-z0-9_%-]{1,255}")
MAX_OFFSETS_IN_COMMIT: Final = MAX_QUEUES


class QueueBounds(NamedTuple):
    """The first offset held, and one past the last message that a consumer may see."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A consumer group's offsets in one topic. They never move back, unless `is_reset` says so."""

    group: str
    topic: str
    offsets: Sequence[QueueOffset]
    is_reset: bool = False


class Offsets:
    """Tells and commits offsets."""

    def __init__(
        self, gate: Gate, reader: QueueReader, commands: Commands, state: CommittedOffsets
    ) -> None:
        self._gate = gate
        self._reader = reader
        self._commands = commands
        self._state = state

    async def bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """Where the queue begins and ends.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, NOT_LEADER, NOT_READY.
        """
        await self._gate.confirm()
        return QueueBounds(*self._reader.bounds(topic, queue_id))

    async def by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        """The offset of the first message stored at or after `time_ms`, or one past the last.

        Raises:
            BrokerError: see `bounds`.
        """
        await self._gate.confirm()
        return self._reader.offset_by_time(topic, queue_id, time_ms)

    async def commit(self, wanted: OffsetCommit) -> tuple[QueueOffset, ...]:
        """The group's offsets in the topic, as they stand after the commit.

        Raises:
            BrokerError: INVALID_ARGUMENT, OFFSET_OUT_OF_RANGE, LIMIT_REACHED, TOPIC_NOT_FOUND,
                QUEUE_NOT_FOUND; whatever a command meets on its way into the log.
        """
        self._gate.check_writable()
        _check_group(wanted.group)
        if not 0 < len(wanted.offsets) <= MAX_OFFSETS_IN_COMMIT:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT, f"a commit holds 1 to {MAX_OFFSETS_IN_COMMIT} offsets"
            )
        for place in wanted.offsets:
            await self._gate.surely(partial(self._check_committable, wanted.topic, place))
        refusal = await self._commands.commit_offsets(
            wanted.group, wanted.topic, wanted.offsets, reset=wanted.is_reset
        )
        if refusal == TOO_MANY:
            raise BrokerError(ErrorCode.LIMIT_REACHED, "too many groups have committed offsets")
        if refusal == OUT_OF_RANGE:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"topic {wanted.topic!r} was made anew meanwhile"
            )
        if refusal:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {wanted.topic!r} does not exist")
        return committed_offsets(self._state, wanted.group, wanted.topic)

    def _check_committable(self, topic: str, wanted: QueueOffset) -> None:
        _, high = self._reader.bounds(topic, wanted.queue_id)
        if wanted.offset > high:
            self._reader.check_offset(topic, wanted.queue_id, wanted.offset)

    async def fetch(self, group: str, topic: str) -> tuple[QueueOffset, ...]:
        """The group's committed offsets in the topic; queues without one are left out.

        Raises:
            BrokerError: INVALID_ARGUMENT, TOPIC_NOT_FOUND, NOT_LEADER, NOT_READY.
        """
        _check_group(group)
        await self._gate.confirm()
        self._reader.topic(topic)
        return committed_offsets(self._state, group, topic)


def _check_group(name: str) -> None:
    if not GROUP_PATTERN.fullmatch(name):
        raise BrokerError(
            ErrorCode.INVALID_ARGUMENT,
            f"group name {name[:300]!r}: 1 to 255 characters of A-Z a-z 0-9 _ % - are allowed",
        )

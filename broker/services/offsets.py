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
                QUEUE_NOT_FOUND; BUSY, the topic's queues are being changed; whatever a command
                meets on its way into the log.
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
        commit = replace(commit, incarnation=topic.incarnation)
        commit = await self._gate.surely(partial(self._behind_what_went, commit))
        check = partial(self._check_behind_what_went, commit)
        refusal = await self._commands.commit_offsets(commit, check)
        if refusal is not None:
            raise refused(refusal)
        return committed_offsets(self._state.offsets, commit.group, commit.topic)

    def _behind_what_went(self, commit: OffsetCommit) -> OffsetCommit:
        """The commit, in queues that nobody is told of any more at their ends, where every group in
        them is (ADR 60). One of before they went says less than that, and isn't wrong.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE, it would set the group back in one.
        """
        topic = TopicRef(commit.topic, commit.incarnation)
        state = self._reader.topic(topic)
        numbers = self._state.queue_numbers.of(state.incarnation, len(state.next_offsets))
        wanted: list[tuple[int, int]] = []
        for queue_id, offset in commit.wanted:
            start = 0
            if queue_id >= numbers.read_queues:
                start = self._state.topic_retention.start_of(state.incarnation, queue_id)
                if commit.is_reset:
                    self._reader.check_offset(topic, queue_id, offset)
            wanted.append((queue_id, max(offset, start)))
        return replace(commit, wanted=tuple(wanted))

    def _check_behind_what_went(self, commit: OffsetCommit) -> None:
        """Returns if no update of the topic, since the commit was made or on its way, leaves its
        group in front of a queue that goes.

        Raises:
            BrokerError: BUSY; OFFSET_OUT_OF_RANGE.
        """
        state = self._state.topics.get(commit.topic)
        if state is None or state.incarnation != commit.incarnation:
            return  # it is refused for that when it is applied
        known = self._state.offsets.of(commit.group, commit.topic)
        is_new = any(queue_id not in known for queue_id, _ in commit.wanted)
        is_coming = self._commands.is_changing(commit.topic) and (commit.is_reset or is_new)
        if is_coming or self._behind_what_went(commit) != commit:
            text = f"queues of topic {commit.topic!r} are being changed: ask again"
            raise BrokerError(ErrorCode.BUSY, text)

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

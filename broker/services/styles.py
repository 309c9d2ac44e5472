"""Whether a group's style may be another one: not while its failed messages come again (ADR 58).

Messages that failed are leased to members of a group that works concurrently, and to nobody in
order or where all have everything. A group that is changed would leave what waits at its level, or
lies in `%RETRY%group`, to nobody. This looks before the join is proposed, and changes nothing; and
at the version, of which the highest would be the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands
from broker.leader.groups.unread import failed_left
from broker.leader.retries.copies import goes_to
from broker.reading.queues import QueueReader
from broker.services.refused import refused
from broker.services.soundness import Soundness
from broker.state.groups import Group, JoinWish, too_high
from broker.state.machine import StateMachine
from broker.state.refusals import GroupHasMembers
from broker.state.retries import Queue
from broker.state.topics import TopicRef, TopicState
from dledger.ports import Turns
from dledger.records.record import decode_records
from dledger.records.reserved import SCHEDULE_TOPIC, retry_topic

PAGE_MESSAGES: Final = 128  # that are looked at in a turn
PAGE_BYTES: Final = 256 << 10  # of those; one message at least
MOST_PAGES: Final = 256  # of one look, over all levels


class Styles:
    """While this node leads."""

    def __init__(
        self,
        state: StateMachine,
        reader: QueueReader,
        soundness: Soundness,
        turns: Turns,
        commands: Commands,
    ) -> None:
        self._state = state
        self._reader = reader
        self._soundness = soundness
        self._turns = turns
        self._commands = commands

    async def check(self, wish: JoinWish) -> None:
        """Returns if the join leaves no failed message to nobody, and versions to be named,
        proposed before anything is awaited; what else is against it the state says. Behind it
        nothing is sent back: by then the session that had the message is over.

        Raises:
            BrokerError: INVALID_ARGUMENT; GROUP_DIFFERS, GROUP_HAS_MEMBERS; BUSY, so many messages
                wait that it can't be told, or one is on its way; NOT_READY, they can't be read now.
        """
        if why := too_high(wish.settings.version, self._state.groups.joined(wish.group)):
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, why)
        group = self._changed(wish)
        topic = None if group is None else self._state.topics.get(retry_topic(wish.group))
        if group is None or topic is None:
            return
        # In the order in which they go: what moves on meanwhile isn't missed.
        if await self.waits(topic.name) or failed_left(self._state, self._reader, group):
            text = (
                f"group {wish.group!r} has messages that failed and come again, to members that "
                "work concurrently and nobody else: its style can't be changed before they are done"
            )
            raise BrokerError(ErrorCode.GROUP_DIFFERS, text)
        if self._commands.is_failing(wish.group):
            text = f"a message that group {wish.group!r} failed at is just about to be put by"
            raise BrokerError(ErrorCode.BUSY, text)

    def _changed(self, wish: JoinWish) -> Group | None:
        """The group, if the join would change it to a style without retries.

        Raises:
            BrokerError: GROUP_HAS_MEMBERS, as the state says. They may be about to end, before the
                join is applied: then it would take the join, and nobody had looked.
        """
        group = self._state.groups.joined(wish.group)
        if group is None or not group.has_retries or not any(wish.settings.style):
            return None
        if wish.settings.version <= group.version:
            return None
        if any(name != wish.member for name in group.members):
            raise refused(GroupHasMembers(wish.group))
        return group

    async def waits(self, retries: str) -> bool:
        """Whether a message that goes to that topic waits at a level, as of when this returns.

        Raises:
            BrokerError: BUSY, so many messages wait that it can't be told; NOT_READY, they can't be
                read now.
        """
        seen: dict[int, int] = {}  # level -> what was looked at ends there
        at, pages = self._next_of(seen), 0
        while at is not None:
            if pages == MOST_PAGES:
                text = "so many messages wait to be tried again that it isn't known whose"
                raise BrokerError(ErrorCode.BUSY, text)
            pages += 1
            topic, level, first = at
            seen[level], goes = self._page(topic, level, first)
            if retries in goes:
                return True
            at = self._next_of(seen)
            if at is not None:
                await self._turns.pause()
                at = self._next_of(seen)
        return False

    def _next_of(self, seen: Mapping[int, int]) -> tuple[TopicState, int, int] | None:
        """A level, and from where on it wasn't looked at; None: there is none as of now. What has
        failed since the level was seen is behind what was."""
        topic = self._state.topics.get(SCHEDULE_TOPIC)
        for level in range(0 if topic is None else len(topic.next_offsets)):
            assert topic is not None
            at, end = self._bounds(topic, level)
            at = max(at, seen.get(level, 0))
            if at < end:
                return topic, level, at
        return None

    def _bounds(self, topic: TopicState, level: int) -> tuple[int, int]:
        low, end = self._reader.bounds(TopicRef(topic.name, topic.incarnation), level)
        return max(low, self._state.retries.moved_to(Queue(topic.incarnation, level))), end

    def _page(self, topic: TopicState, level: int, at: int) -> tuple[int, set[str | None]]:
        """Where the next page begins, and to which topics the messages of this one go."""
        ref = TopicRef(topic.name, topic.incarnation)
        found = self._soundness.read(
            lambda: self._reader.pull(ref, level, at, PAGE_MESSAGES, PAGE_BYTES)
        )
        if found.next_offset <= at:
            raise BrokerError(ErrorCode.NOT_READY, f"level {level + 1} can't be read now")
        return found.next_offset, {goes_to(each) for each in decode_records(found.records)}

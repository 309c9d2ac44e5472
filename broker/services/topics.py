"""Topics: made, deleted, listed, described.

Making and deleting go through the log; what is told of topics is linearizable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from typing import Final

from broker.errors import BrokerError, ErrorCode, own_topic
from broker.leader.commands import Commands
from broker.reading.progress import QueueOffset, committed_offsets
from broker.reading.queues import QueueReader
from broker.services.gate import Gate
from broker.services.refused import partly, refused
from broker.services.styles import Styles
from broker.state.machine import StateMachine
from broker.state.refusals import (
    PermissionUnknown,
    Refusal,
    RetentionOutOfRange,
    TopicExists,
)
from broker.state.resizing import broadcasting, held_of_those_that_go, retired, unclaimed
from broker.state.topic_permissions import KNOWN, USUAL
from broker.state.topic_retention import MAX_RETENTION_MS
from broker.state.topics import TopicRef, TopicState
from dledger.level import TOPIC_RETENTION_LEVEL, TOPIC_RULES_LEVEL
from dledger.records.record import TOPIC_PATTERN
from dledger.records.reserved import group_of, is_reserved, retry_topic

DEFAULT_QUEUES: Final = 4
MAX_QUEUES: Final = 1_024
PAGE_TOPICS: Final = 1_000
PAGE_GROUPS: Final = 1_000  # in a description
PAGE_OFFSETS: Final = 8_192  # of these groups together


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; `incarnation` is the index of the entry that created it, `retention_ms` how long its
    messages are wanted, 0: as long as the group keeps any; `permission` is what may be done with
    it (`broker.state.topic_permissions`). Of the queues that are read the first `write_queues` take
    messages, since entry `queues_changed`, 0: they always did."""

    name: str
    queue_count: int
    created_time_ms: int
    incarnation: int
    retention_ms: int = 0
    permission: int = int(USUAL)
    write_queues: int = 0
    queues_changed: int = 0


@dataclass(frozen=True, slots=True)
class QueueWish:
    """In how many queues a topic is to be read and written, 0: as it is; `drop`: queues go though
    groups haven't read them."""

    read_queues: int = 0
    write_queues: int = 0
    drop: bool = False


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is wished of a topic; None: nothing is said of that."""

    retention_ms: int | None = None
    permission: int | None = None


NO_WISHES: Final = Wishes()


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """One queue: the first offset held, and one past the last message."""

    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far one consumer group has come in a topic."""

    group: str
    offsets: tuple[QueueOffset, ...]


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Some topics, by name; `following` is where the next page begins, empty behind the last."""

    topics: tuple[Topic, ...]
    following: str


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, its queues, and the consumer groups that committed offsets in it, by name; some of
    them: `following` is where the next page begins, empty behind the last."""

    topic: Topic
    queues: tuple[QueueDescription, ...]
    groups: tuple[GroupProgress, ...]
    following: str


class Topics:
    """Makes, deletes and describes topics."""

    def __init__(
        self,
        gate: Gate,
        reader: QueueReader,
        commands: Commands,
        state: StateMachine,
        styles: Styles,
    ) -> None:
        self._gate = gate
        self._reader = reader
        self._commands = commands
        self._state = state
        self._styles = styles

    async def create(self, name: str, queue_count: int = 0, *, if_not_exists: bool) -> Topic:
        """The topic, which exists now.

        Args:
            queue_count: 0: as many as is usual.
            if_not_exists: an equal topic that exists is a success.

        Raises:
            BrokerError: INVALID_ARGUMENT, TOPIC_EXISTS, LIMIT_REACHED; whatever a command meets
                on its way into the log.
        """
        self._gate.check_writable()
        queues = queue_count or DEFAULT_QUEUES
        _check_creatable(name, queues)
        _check_own(name)
        refusal = await self._commands.create_topic(name, queues)
        if refusal is None:
            return self.found(TopicRef(name))
        return self._existing(name, queues, refusal, if_not_exists=if_not_exists)

    def _existing(self, name: str, queues: int, refusal: Refusal, *, if_not_exists: bool) -> Topic:
        """The topic that was in the way of another one, if an equal one is as good.

        Raises:
            BrokerError: why there is none; TOPIC_EXISTS; NOT_READY, it has gone since.
        """
        if not isinstance(refusal, TopicExists):
            raise refused(refusal)
        try:
            topic = self.found(TopicRef(name))
        except BrokerError as error:
            text = f"topic {name!r} was there, and is gone: ask again"
            raise BrokerError(ErrorCode.NOT_READY, text) from error
        if not (if_not_exists and topic.queue_count == queues):
            raise refused(TopicExists(name, topic.queue_count))
        return topic

    async def make(
        self, name: str, queue_count: int, wishes: Wishes, *, if_not_exists: bool
    ) -> Topic:
        """The topic, which exists now with what is wished of it: all of that by one entry. One that
        existed is changed, if that was to be a success: each wish by an entry of its own, and so is
        a new one while not every member knows of topics that are made with their wishes.

        Args:
            queue_count, if_not_exists: see `create`.

        Raises:
            BrokerError: what `create` raises; NOT_READY, not every member knows how yet.
        """
        self._gate.check_writable()
        queues = queue_count or DEFAULT_QUEUES
        _check_creatable(name, queues)
        _check_own(name)
        permission = int(USUAL) if wishes.permission is None else wishes.permission
        if wishes.retention_ms is not None:
            self._check_retainable(wishes.retention_ms)
        if permission == USUAL and self._state.level.current < TOPIC_RULES_LEVEL:
            topic = await self.create(name, queues, if_not_exists=if_not_exists)
            try:
                return await self._change(TopicRef(name, topic.incarnation), wishes)
            except BrokerError as error:
                raise partly(error, "the topic is there") from error
        self._check_permittable(permission)
        refusal = await self._commands.make_topic(
            name, queues, retention_ms=wishes.retention_ms or 0, permission=permission
        )
        if refusal is None:
            return self.found(TopicRef(name))
        topic = self._existing(name, queues, refusal, if_not_exists=if_not_exists)
        return await self._change(TopicRef(name, topic.incarnation), wishes)

    async def _change(self, topic: TopicRef, wishes: Wishes) -> Topic:
        """The topic, which existed, as it is wished now."""
        found = self.found(topic)
        ref = TopicRef(found.name, found.incarnation)
        is_retained = wishes.retention_ms not in (None, found.retention_ms)
        if is_retained:
            found = await self.retain(ref, wishes.retention_ms or 0)
        try:
            if wishes.permission not in (None, found.permission):
                found = await self.permit(ref, wishes.permission or 0)
        except BrokerError as error:
            if not is_retained:
                raise
            raise partly(error, "its messages are kept as was wished") from error
        return found

    async def permit(self, topic: TopicRef, permission: int) -> Topic:
        """The topic, with which this and nothing else may be done now.

        Raises:
            BrokerError: INVALID_ARGUMENT, TOPIC_NOT_FOUND, TOPIC_REPLACED; NOT_READY, not every
                member knows how yet; whatever a command meets on its way into the log.
        """
        self._gate.check_writable()
        _check_own(topic.name)
        state = await self._gate.surely(lambda: self._reader.topic(topic))
        found = TopicRef(state.name, state.incarnation)
        self._check_permittable(permission)
        refusal = await self._commands.permit_topic(found, permission)
        if refusal is not None:
            raise refused(refusal)
        return self.found(found)

    def _check_permittable(self, permission: int) -> None:
        if permission not in KNOWN:
            raise refused(PermissionUnknown(permission))
        level = self._state.level.current
        if level < TOPIC_RULES_LEVEL:
            text = f"level {level} is in use: not every member knows topics' permissions yet"
            raise BrokerError(ErrorCode.NOT_READY, text)

    async def retain(self, topic: TopicRef, retention_ms: int) -> Topic:
        """The topic, whose messages are wanted for that long now; 0: as long as the group keeps
        any.

        Raises:
            BrokerError: INVALID_ARGUMENT, TOPIC_NOT_FOUND, TOPIC_REPLACED; NOT_READY, not every
                member knows how yet; whatever a command meets on its way into the log.
        """
        self._gate.check_writable()
        _check_own(topic.name)
        state = await self._gate.surely(lambda: self._reader.topic(topic))
        found = TopicRef(state.name, state.incarnation)
        self._check_retainable(retention_ms)
        refusal = await self._commands.retain_topic(found, retention_ms)
        if refusal is not None:
            raise refused(refusal)
        return self.found(found)

    def _check_retainable(self, retention_ms: int) -> None:
        if not 0 <= retention_ms <= MAX_RETENTION_MS:
            raise refused(RetentionOutOfRange(retention_ms, MAX_RETENTION_MS))
        self._check_level(TOPIC_RETENTION_LEVEL, "topics' retention")

    def _check_level(self, needed: int, what: str) -> None:
        level = self._state.level.current
        if level < needed:
            text = f"level {level} is in use: not every member knows {what} yet"
            raise BrokerError(ErrorCode.NOT_READY, text)

    async def update(self, topic: TopicRef, wish: QueueWish) -> Topic:
        """The topic, which is read and written in so many queues now.

        Raises:
            BrokerError: INVALID_ARGUMENT, TOPIC_NOT_FOUND, TOPIC_REPLACED, LIMIT_REACHED;
                QUEUES_UNREAD, a group hasn't read what would go, or there is none; BUSY, what lies
                before an earlier change is about to go, or groups are; NOT_READY, not every
                member knows how yet; whatever a command meets on its way into the log.
        """
        self._gate.check_writable()
        _check_own(topic.name)
        return await self._gate.denying_surely(self._update(topic, wish))

    async def _update(self, topic: TopicRef, wish: QueueWish) -> Topic:
        state = self._reader.topic(topic)
        found = TopicRef(state.name, state.incarnation)
        self._check_level(TOPIC_RULES_LEVEL, "read and write queues")
        wanted = wish.read_queues, wish.write_queues
        is_empty = partial(self._is_empty, state)
        if not wish.drop and retired(self._state, state, *wanted, is_empty):
            wish = replace(wish, drop=True)  # nobody can read what retention has taken
        if not wish.drop:
            self._check_claimed(state, wish)
        self._check_forgettable(state, wish)
        refusal = await self._commands.update_topic(
            found, wish.read_queues, wish.write_queues, drop=wish.drop
        )
        if refusal is not None:
            raise refused(refusal)
        return self.found(found)

    def _check_claimed(self, state: TopicState, wish: QueueWish) -> None:
        """Messages that no group is known to want are more likely wanted by one that is still to
        come, or by loops without a group, than by nobody; and what members of a broadcast group
        have read is in no log. What is on its way counts: messages are stored before the change is
        made, and a group that is forgotten before it isn't waited for any more.
        """
        wanted = wish.read_queues, wish.write_queues
        is_coming = partial(self._commands.is_coming, state.incarnation)
        found = broadcasting(self._state, state, *wanted, is_coming)
        if found is not None:
            group, queue = found
            text = (
                f"{self._what(state, queue)}, and group {group!r} broadcasts: only its "
                f"members know whether they have read them. They go when none of these is at work, "
                f"or if told to drop them"
            )
            raise BrokerError(ErrorCode.QUEUES_UNREAD, text)
        queue_id = unclaimed(self._state, state, *wanted, is_coming)
        if queue_id is not None:
            text = (
                f"{self._what(state, queue_id)}, and no consumer group has begun to read "
                f"{state.name}: one that begins later is never given them; they go if told to drop "
                f"them"
            )
            raise BrokerError(ErrorCode.QUEUES_UNREAD, text)
        text = ""
        if self._commands.is_ending_groups:
            text = "groups are just about to be forgotten, and may be those that wait for messages"
        elif self._commands.is_broadcasting(state.name):
            text = f"a member of a group that broadcasts is just about to read {state.name}"
        if text and held_of_those_that_go(self._state, state, *wanted, is_coming):
            raise BrokerError(ErrorCode.BUSY, text)

    def _is_empty(self, state: TopicState, queue_id: int) -> bool:
        low, high = self._reader.bounds(TopicRef(state.name, state.incarnation), queue_id)
        return low >= high

    def _what(self, state: TopicState, queue_id: int) -> str:
        """What is said of a queue that would go."""
        if self._commands.is_coming(state.incarnation, queue_id):
            return f"messages are on their way into {state.name}/{queue_id}"
        has_gone = ", which are gone by retention: it has to be closed for sending first"
        held = f"held messages{has_gone}" if self._is_empty(state, queue_id) else "holds messages"
        return f"{state.name}/{queue_id} {held}"

    def _check_forgettable(self, state: TopicState, wish: QueueWish) -> None:
        """Another change of the write queues makes the log forget those of which it is decided that
        what lies before them goes. It may lie here for a while yet, and be read: by a group in
        order, which wouldn't be held back any more."""
        count, numbers = len(state.next_offsets), self._state.queue_numbers
        now = numbers.of(state.incarnation, count)
        if wish.write_queues in (0, now.write_queues):
            return
        if now.changes and self._commands.is_moving_start:
            raise BrokerError(ErrorCode.BUSY, "the log is just about to begin later: after that")
        ref = TopicRef(state.name, state.incarnation)
        for change in now.changes:
            if change.entry >= self._state.log_start.first_index:
                break
            for queue_id, end in enumerate(change.ends):
                if self._reader.bounds(ref, queue_id)[0] < end:
                    text = (
                        f"{state.name}/{queue_id} still holds messages of before entry "
                        f"{change.entry}, by which the topic's queues were changed: they are about "
                        f"to go by retention, and the queues can be changed again behind that"
                    )
                    raise BrokerError(ErrorCode.BUSY, text)

    async def delete(self, topic: TopicRef) -> None:
        """The topic, its queues and what consumer groups committed in it are gone. Of the brokers'
        own those may go that were there for a group that isn't any more.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, TOPIC_REPLACED; of the brokers' own INVALID_ARGUMENT, or
                where it is a group's GROUP_EXISTS, QUEUES_UNREAD (messages wait to come to it);
                whatever a command meets on its way into the log.
        """
        self._gate.check_writable()
        group = group_of(topic.name)
        if not group:
            _check_own(topic.name)
        await self._gate.denying_surely(self._delete(topic, group))

    async def _delete(self, topic: TopicRef, group: str) -> None:
        state = self._reader.topic(topic)
        # The command names what was found now: a later topic of the name is another one's.
        found = TopicRef(state.name, state.incarnation)
        if group:
            await self._check_left(state.name, group)  # nothing may come between: it isn't awaited
        refusal = await self._commands.delete_topic(found)
        if refusal is not None:
            raise refused(refusal)

    async def _check_left(self, name: str, group: str) -> None:
        """Returns if the group isn't known, and nothing waits to come to that topic of its own.
        What isn't known sends nothing back: from here to the command nothing can come to it, and
        behind that nothing is proposed for it (`broker.leader.flight`)."""
        refusal = None
        if name == retry_topic(group) and await self._styles.waits(name):
            refusal = ErrorCode.QUEUES_UNREAD, "messages wait to come to it"
        if self._state.groups.get(group) is not None:
            refusal = ErrorCode.GROUP_EXISTS, f"consumer group {group!r} is known"
        if refusal is not None:
            code, why = refusal
            text = f"topic {name!r} is the brokers' own, and can't be deleted: {why}"
            raise BrokerError(code, text)

    async def list(self, after: str = "", size: int = 0) -> TopicPage:
        """The first topics, by name, behind the name `after`. A page is what a turn of the event
        loop can make; what is made or deleted between two pages may be in the list or not.

        Args:
            size: topics at most, and `PAGE_TOPICS` at most; 0: that many.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY.
        """
        await self._gate.confirm()
        size = min(size or PAGE_TOPICS, PAGE_TOPICS)
        names = nsmallest(size + 1, (name for name in self._state.topics if name > after))
        page = tuple(self.found(TopicRef(name)) for name in names[:size])
        return TopicPage(page, page[-1].name if len(names) > size else "")

    async def describe(self, wanted: TopicRef, after: str = "") -> TopicDescription:
        """The topic and who reads it: the first groups, by name, behind the group `after`,
        `PAGE_GROUPS` and `PAGE_OFFSETS` offsets at most, but one group at least.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, TOPIC_REPLACED, NOT_LEADER, NOT_READY.
        """
        await self._gate.confirm()
        topic = self.found(wanted)
        queues = tuple(
            QueueDescription(queue_id, *self._reader.bounds(wanted, queue_id))
            for queue_id in range(topic.queue_count)
        )
        groups, following = self._groups(wanted.name, after)
        return TopicDescription(topic, queues, groups, following)

    def _groups(self, name: str, after: str) -> tuple[tuple[GroupProgress, ...], str]:
        """A page of groups, and where the next one begins."""
        behind = (group for group in self._state.offsets.groups(name) if group > after)
        found: list[GroupProgress] = []
        left = PAGE_OFFSETS
        for group in nsmallest(PAGE_GROUPS + 1, behind):
            offsets = self._state.offsets.of(group, name)
            if len(found) == PAGE_GROUPS or (found and len(offsets) > left):
                return tuple(found), found[-1].group
            found.append(GroupProgress(group, committed_offsets(self._state.offsets, group, name)))
            left -= len(offsets)
        return tuple(found), ""

    def found(self, topic: TopicRef) -> Topic:
        """The topic, as of the last applied entry.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, TOPIC_REPLACED.
        """
        state = self._reader.topic(topic)
        numbers = self._state.queue_numbers.of(state.incarnation, len(state.next_offsets))
        return Topic(
            state.name,
            numbers.read_queues,
            state.created_time_ms,
            state.incarnation,
            self._state.topic_retention.of(state.incarnation).retention_ms,
            int(self._state.topic_permissions.of(state.incarnation)),
            numbers.write_queues,
            numbers.changed,
        )


def _check_own(name: str) -> None:
    """Returns if the topic isn't one of the brokers' own.

    Raises:
        BrokerError: INVALID_ARGUMENT.
    """
    if is_reserved(name):
        raise own_topic(name)


def _check_creatable(name: str, queues: int) -> None:
    if not TOPIC_PATTERN.fullmatch(name):
        raise BrokerError(
            ErrorCode.INVALID_ARGUMENT,
            f"topic name {name[:160]!r}: 1 to 127 characters of A-Z a-z 0-9 _ % - are allowed",
        )
    if queues > MAX_QUEUES:
        raise BrokerError(
            ErrorCode.INVALID_ARGUMENT, f"a topic has 1 to {MAX_QUEUES} queues, not {queues}"
        )

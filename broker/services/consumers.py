"""What who looks after consumer groups asks: which there are, how far they are, go on elsewhere.

Pictures are of the applied state, and of what only a leader knows of its members: so of a leader,
confirmed (ReadIndex). A group may have ten thousand members and tens of thousands of queues:
answers are pages, and what one takes is given to the event loop in turns. A page is as of some
moment while it was made; between two queues of it anything may have changed.

Commands go through the log, and are judged there (`broker.state.moving`): what is found here is
where *first*, *last* or a time is, no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from heapq import nsmallest
from typing import Final, NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands, GroupMove
from broker.leader.groups.keeper import GroupKeeper
from broker.leader.groups.unread import topics_of, unfinished
from broker.reading.queues import QueueReader
from broker.services.gate import Gate
from broker.services.messages import Piece
from broker.services.refused import group_not_found, refused
from broker.services.soundness import Soundness
from broker.services.times import Times
from broker.state.groups import MAX_GROUP_BYTES, Group, Settings
from broker.state.handouts import Record
from broker.state.leases import Place, Ranges
from broker.state.machine import StateMachine
from broker.state.moving import Moves
from broker.state.refusals import Refusal
from broker.state.topics import TopicRef, TopicState
from dledger.level import DELIVERY_LEVEL
from dledger.ports import Turns
from dledger.records.record import TOPIC_PATTERN

PAGE_GROUPS: Final = 1_000
PAGE_BYTES: Final = 512 << 10  # of settings, beyond the first group's: some 6 ms of translation
PAGE_MEMBERS: Final = 1_000
PAGE_QUEUES: Final = 1_024
LOOKS: Final = 3  # at where a group is to go on, while its topic's queues change
# Nothing is told of the time then: the message has gone meanwhile, or is being got back.
_UNTOLD: Final = frozenset({ErrorCode.NOT_READY, ErrorCode.OFFSET_OUT_OF_RANGE})


# --- what is told ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group. `created` 0 and no settings: it is handed single messages, or has only ever
    committed offsets. `unused_ms`: lived time since it was used last, 0 with members."""

    name: str
    created: int
    unused_ms: int
    member_count: int
    topic_count: int
    settings: Settings | None
    hands_out_singles: bool = False
    is_fifo: bool = False


def _size(settings: Settings | None) -> int:
    """About as many bytes are told of them: names and tags with two bytes each of framing."""
    if settings is None:
        return 0
    tags = ((topic, *wanted) for topic, wanted in settings.tags or ())
    return sum(len(text) + 2 for texts in (settings.topics, *tags) for text in texts)


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Some groups, by name; `following` is where the next page begins, empty behind the last."""

    groups: tuple[GroupSummary, ...]
    following: str


@dataclass(frozen=True, slots=True)
class MemberPicture:
    """A member. `is_attached`: its stream is here; `expires_ms`: in how long its session ends if
    nothing is heard of it."""

    member: str
    session: int
    version: int
    queue_count: int
    is_attached: bool
    expires_ms: int


@dataclass(frozen=True, slots=True)
class GroupPicture:
    """A group and some of its members, by name; `following` as of `GroupPage`."""

    group: GroupSummary
    members: tuple[MemberPicture, ...]
    following: str


class QueueAt(NamedTuple):
    """A queue by its topic's name."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueuePicture:
    """How far a group is in a queue.

    Attributes:
        frontier: everything before it is finished; None: nothing is committed.
        finished_count: messages above the frontier that are finished, in so many runs.
        unfinished_count: of those that are there.
        session: who holds it, by which epoch; 0 both: nobody.
        oldest_unfinished_ms: when that was stored; 0: everything is finished, or it can't be told.
        in_hand_count: handed out one by one, and not finished.
    """

    at: QueueAt
    incarnation: int
    min_offset: int
    max_offset: int
    frontier: int | None
    finished_count: int
    finished_runs: int
    unfinished_count: int
    session: int
    epoch: int
    is_asked: bool
    oldest_unfinished_ms: int
    in_hand_count: int = 0


@dataclass(frozen=True, slots=True)
class ProgressPage:
    """Some queues, by topic and id; `following` None behind the last."""

    queues: tuple[QueuePicture, ...]
    following: QueueAt | None


# --- what is wished ----------------------------------------------------------------------------


class To(Enum):
    """Where a group is to go on. With a number: the offset; the time in ms; how many unfinished
    messages are passed over, 0: all that are there."""

    FIRST = auto()
    LAST = auto()
    TIME = auto()
    OFFSET = auto()
    SKIP = auto()


@dataclass(frozen=True, slots=True)
class MoveWish:
    """Who is to go on where; no queues: in all of the topic."""

    group: str
    topic: TopicRef
    queue_ids: tuple[int, ...]
    to: To
    number: int = 0


# --- the service -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """What there is to look at."""

    state: StateMachine
    keeper: GroupKeeper
    reader: QueueReader
    soundness: Soundness


class Consumers:
    """Tells of consumer groups, and moves them."""

    def __init__(self, gate: Gate, held: Held, commands: Commands, turns: Turns) -> None:
        self._gate = gate
        self._state = held.state
        self._keeper = held.keeper
        self._reader = held.reader
        self._soundness = held.soundness
        self._commands = commands
        self._turns = turns
        self._times = Times(held.reader, held.soundness, turns)

    async def list(self, after: str = "") -> GroupPage:
        """The first groups, by name, behind the name `after`: at most `PAGE_GROUPS`, and no more
        than their settings fit into `PAGE_BYTES`, but one.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY.
        """
        await self._gate.confirm()
        behind = (group.name for group in self._state.groups if group.name > after)
        names = nsmallest(PAGE_GROUPS + 1, behind)
        page: list[GroupSummary] = []
        is_enough, size = self._turns.share(), 0
        for at, name in enumerate(names[:PAGE_GROUPS]):
            if is_enough():
                await self._turns.pause()
                self._gate.check_serving()
                is_enough = self._turns.share()
            if (group := self._state.groups.get(name)) is None:  # forgotten meanwhile
                continue
            summary = self._summary(group)
            size += _size(summary.settings)
            if page and size > PAGE_BYTES:
                return GroupPage(tuple(page), names[at - 1])
            page.append(summary)
        return GroupPage(tuple(page), names[PAGE_GROUPS - 1] if len(names) > PAGE_GROUPS else "")

    async def describe(self, group: str, after: str = "") -> GroupPicture:
        """The group, and its first members, by name, behind the member `after`.

        Raises:
            BrokerError: GROUP_NOT_FOUND, NOT_LEADER, NOT_READY.
        """
        await self._gate.confirm()
        found = self._group(group)
        names = nsmallest(PAGE_MEMBERS + 1, (name for name in found.members if name > after))
        members: list[MemberPicture] = []
        for name in names[:PAGE_MEMBERS]:
            session = found.members[name]
            members.append(
                MemberPicture(
                    name,
                    session.session,
                    session.version,
                    self._state.leases.held_count(session.session),
                    self._keeper.is_attached(session.session),
                    self._keeper.expires_ms(session.session),
                )
            )
        following = names[PAGE_MEMBERS - 1] if len(names) > PAGE_MEMBERS else ""
        return GroupPicture(self._summary(found), tuple(members), following)

    def _group(self, name: str) -> Group:
        group = self._state.groups.get(name)
        if group is None:
            raise group_not_found(name)
        return group

    def _summary(self, group: Group) -> GroupSummary:
        settings = group.settings if group.created else None
        topics = len(settings.topics) if settings else self._state.offsets.topic_count(group.name)
        unused_ms = 0 if group.members else self._state.lived_time.lived_ms - group.used_ms
        deliveries = self._state.deliveries
        return GroupSummary(
            *(group.name, group.created, unused_ms, len(group.members), topics, settings),
            deliveries.has(group.name),
            deliveries.is_fifo_anywhere(group.name),
        )

    # --- progress -----------------------------------------------------------------------------

    async def progress(self, group: str, start: QueueAt | None = None) -> ProgressPage:
        """How far the group is in the queues of its topics, of those in which it has committed, and
        of its failed messages, from `start` on: `PAGE_QUEUES` at most.

        Raises:
            BrokerError: GROUP_NOT_FOUND, NOT_LEADER, NOT_READY.
        """
        await self._gate.confirm()
        found: list[QueuePicture] = []
        is_enough = self._turns.share()
        for topic, queue_id in self._queues(self._group(group), start or QueueAt("", 0)):
            if len(found) == PAGE_QUEUES:
                return ProgressPage(tuple(found), QueueAt(topic.name, queue_id))
            if is_enough():
                await self._turns.pause()
                self._gate.check_serving()
                is_enough = self._turns.share()
            if self._state.topics.get(topic.name) is topic:  # not deleted meanwhile
                found.append(self._picture(group, topic, queue_id))
        return ProgressPage(tuple(found), None)

    def _queues(self, group: Group, start: QueueAt) -> Iterator[tuple[TopicState, int]]:
        """The group's, in order."""
        for name in topics_of(self._state, group):
            topic = self._state.topics.get(name) if name >= start.topic else None
            if topic is not None:
                first = start.queue_id if name == start.topic else 0
                for queue_id in range(first, self._read_queues(topic)):
                    yield topic, queue_id

    def _read_queues(self, topic: TopicState) -> int:
        numbers = self._state.queue_numbers.of(topic.incarnation, len(topic.next_offsets))
        return numbers.read_queues

    def _picture(self, group: str, topic: TopicState, queue_id: int) -> QueuePicture:
        ref = TopicRef(topic.name, topic.incarnation)
        low, high = self._reader.bounds(ref, queue_id)
        frontier = self._state.offsets.of(group, topic.name).get(queue_id)
        place = Place(group, topic.incarnation, queue_id)
        lease = self._state.leases.of(place)
        first = max(frontier or 0, low)
        record = self._state.deliveries.in_topic(group, topic.incarnation).get(queue_id)
        if record is not None:
            at = QueueAt(topic.name, queue_id)
            return self._picture_of_singles(at, topic.incarnation, record, frontier, (low, high))
        oldest = after_unfinished(first, lease.finished, 0)
        return QueuePicture(
            QueueAt(topic.name, queue_id),
            topic.incarnation,
            low,
            high,
            frontier,
            sum(end - begin for begin, end in lease.finished),
            len(lease.finished),
            unfinished(first, high, lease.finished),
            lease.session,
            lease.epoch,
            bool(lease.epoch) and self._keeper.is_asked(place, lease.epoch),
            self._stored_ms(ref, queue_id, oldest) if oldest < high else 0,
        )

    def _picture_of_singles(
        self,
        at: QueueAt,
        incarnation: int,
        record: Record,
        frontier: int | None,
        bounds: tuple[int, int],
    ) -> QueuePicture:
        """Of a queue whose messages are handed out one by one: what has gone counts for nothing."""
        low, high = bounds
        first = max(frontier or 0, low)
        left, oldest = record.unfinished, first
        if low > (frontier or 0):  # some of what is in hand may have gone
            left, oldest = 0, max(record.next, low)
            for each in record:
                by = max(0, low - each.base)
                if rest := each.mask >> by:
                    left += rest.bit_count()
                    oldest = min(oldest, each.base + by + (rest & -rest).bit_length() - 1)
        done = max(0, record.next - first - left)
        topic = TopicRef(at.topic, incarnation)
        return QueuePicture(
            *(at, incarnation, low, high, frontier),
            finished_count=done,
            finished_runs=0,
            unfinished_count=max(0, high - first - done),
            session=0,
            epoch=0,
            is_asked=False,
            oldest_unfinished_ms=self._stored_ms(topic, at.queue_id, oldest)
            if oldest < high
            else 0,
            in_hand_count=left,
        )

    def _stored_ms(self, topic: TopicRef, queue_id: int, offset: int) -> int:
        try:
            return self._soundness.read(lambda: self._reader.stored_at(topic, queue_id, offset))
        except BrokerError as error:
            if error.code not in _UNTOLD:
                raise
            return 0

    # --- commands -----------------------------------------------------------------------------

    async def move(self, wish: MoveWish) -> Moves:
        """Where the group goes on, and where it was, both as of the entry that moved it. Of the
        queues named all are moved, or none.

        Raises:
            BrokerError: GROUP_NOT_FOUND, TOPIC_NOT_FOUND, TOPIC_REPLACED, QUEUE_NOT_FOUND,
                OFFSET_OUT_OF_RANGE, INVALID_ARGUMENT; BUSY, the topic's queues are being changed;
                NOT_READY, not every member knows how yet; whatever a command meets on its way into
                the log.
        """
        self._check_known()
        await self._gate.confirm()
        self._group(wish.group)
        state = self._reader.topic(wish.topic)
        topic = TopicRef(state.name, state.incarnation)
        if len(set(wish.queue_ids)) < len(wish.queue_ids):
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, "a queue is named twice")
        targets = await self._targets(wish, topic)
        move = GroupMove(wish.group, topic, targets, is_forward=wish.to is To.SKIP)
        self._gate.check_writable()
        proposed = asyncio.ensure_future(self._commands.move_group(move))
        # Also if who asked is gone by then: who held those queues has lost them.
        proposed.add_done_callback(lambda done: self._moved(wish.group, done))
        result = await asyncio.shield(proposed)
        if not isinstance(result, tuple):
            raise refused(result)
        return result

    def _moved(self, group: str, done: asyncio.Future[Refusal | Moves]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._keeper.tell_all(group)

    async def _targets(self, wish: MoveWish, topic: TopicRef) -> tuple[tuple[int, int], ...]:
        """Where the group is to go on, by queue; of the queues that there are now. To look may take
        seconds: one that goes meanwhile begins at its end, and so does every group in it.

        Raises:
            BrokerError: BUSY, the queues are being changed.
        """
        for _ in range(LOOKS):
            read_queues = self._read_queues(self._reader.topic(topic))
            targets: list[tuple[int, int]] = []
            piece = Piece(self._turns)
            for queue_id in wish.queue_ids or range(read_queues):
                if piece.is_over():
                    await piece.pause()
                targets.append((queue_id, await self._target(wish, topic, queue_id, piece)))
            start_of = partial(self._state.topic_retention.start_of, topic.incarnation)
            is_so = read_queues == self._read_queues(self._reader.topic(topic))
            if self._commands.is_changing(topic.name):
                break
            if is_so:  # what has gone meanwhile, by a topic's wish too, can't be gone on at
                return tuple((queue, max(offset, start_of(queue))) for queue, offset in targets)
        raise BrokerError(ErrorCode.BUSY, f"queues of topic {topic.name!r} are being changed")

    async def _target(self, wish: MoveWish, topic: TopicRef, queue_id: int, piece: Piece) -> int:
        low, high = self._reader.bounds(topic, queue_id)
        match wish.to:
            case To.FIRST:
                offset = low
            case To.LAST:
                offset = high
            case To.TIME:
                offset = await self._times.offset(topic, queue_id, wish.number, piece)
            case To.OFFSET:
                self._reader.check_offset(topic, queue_id, wish.number)
                offset = wish.number
            case To.SKIP:
                lease = self._state.leases.of(Place(wish.group, topic.incarnation, queue_id))
                before = self._state.offsets.of(wish.group, topic.name).get(queue_id, 0)
                first = max(before, low)
                skipped = after_unfinished(first, lease.finished, wish.number)
                offset = min(skipped, high) if wish.number else high
        return offset

    async def clone(self, source: str, target: str) -> int:
        """The target has committed what the source has; in how many topics.

        Raises:
            BrokerError: GROUP_NOT_FOUND, GROUP_EXISTS, LIMIT_REACHED, INVALID_ARGUMENT; NOT_READY,
                not every member knows how yet; whatever a command meets on its way into the log.
        """
        self._check_known()
        if not TOPIC_PATTERN.fullmatch(target) or len(target) > MAX_GROUP_BYTES:
            text = (
                f"consumer group name {target[:300]!r}: 1 to {MAX_GROUP_BYTES} of A-Z a-z 0-9 _ % -"
            )
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        self._gate.check_writable()
        refusal = await self._commands.clone_group(source, target)
        if refusal is not None:
            raise refused(refusal)
        return self._state.offsets.topic_count(target)

    def _check_known(self) -> None:
        self._gate.check_writable()
        level = self._state.level.current
        if level < DELIVERY_LEVEL:
            text = f"level {level} is in use: not every member knows how to move groups yet"
            raise BrokerError(ErrorCode.NOT_READY, text)


def after_unfinished(first: int, finished: Ranges, count: int) -> int:
    """The first unfinished offset behind `count` unfinished ones from `first` on; how far the queue
    goes isn't looked at."""
    at = first
    for begin, end in finished:
        if end <= at:
            continue
        if begin > at + count:
            break
        count -= max(begin - at, 0)
        at = end
    return at + count

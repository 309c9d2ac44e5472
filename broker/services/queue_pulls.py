"""One pull for many queues: what a member of a consumer group reads all of its queues with.

Read in the order in which the caller names them, as far as messages and bytes go; held while none
of them has any. A queue that can't be read has its own error, and the others are not held up by
it. A queue that is read by a lease's epoch is read by nobody else than its holder, and by the tags
that its holder's group wants if that is asked for; and no further than the group may go, if it
reads in order (`broker.reading.held_back`). What is passed over by tags wakes nobody: it is
told with what comes, at the hold's end, or as soon as it is so much that somebody should know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.errors import BrokerError, ErrorCode, Failure
from broker.reading.held import HeldPulls
from broker.reading.held_back import HeldBack
from broker.reading.queues import DEFAULT_BYTES, DEFAULT_MESSAGES, MAX_BYTES, Found, QueueReader
from broker.reading.tags import UNITS_AT_ONCE, WantedTags, wanted_tags
from broker.services.gate import ABSENCES, Gate
from broker.services.messages import Call, Piece, PullRequest, Pulls
from broker.services.refused import queue_refused
from broker.state.filters import tags_for
from broker.state.leases import Place
from broker.state.listening import QueueKey
from broker.state.machine import StateMachine
from broker.state.refusals import LeaseLost
from broker.state.topics import TopicRef
from dledger.ports import Turns

MAX_QUEUES: Final = 1_024
MAX_TAGS_IN_ALL: Final = 16_384  # named by the queues of a pull; to look one up is 1 or 2 µs
LOOKED_AT_ONCE: Final = 64  # queues, between two chances to let others have the event loop


@dataclass(frozen=True, slots=True)
class QueueWish:
    """Messages of one queue from `offset` on, with one of `tags` if there are any; `epoch` 0: no
    lease; 0 messages: no bound."""

    topic: TopicRef
    queue_id: int
    offset: int
    epoch: int = 0
    max_messages: int = 0
    tags: WantedTags | None = None


@dataclass(frozen=True, slots=True)
class QueuesRequest:
    """Messages of several queues; see `PullRequest`. By filter: of those with an epoch, only what
    its holder's settings want."""

    queues: tuple[QueueWish, ...]
    group: str = ""
    is_by_filter: bool = False
    max_messages: int = 0
    max_bytes: int = 0
    hold_ms: int | None = None


Pulled = tuple[int, Found | Failure]  # position in the request


class QueuePulls:
    """Gives messages of many queues at once."""

    def __init__(
        self,
        gate: Gate,
        pulls: Pulls,
        reader: QueueReader,
        held: HeldPulls,
        state: StateMachine,
        turns: Turns,
    ) -> None:
        self._gate = gate
        self._pulls = pulls
        self._reader = reader
        self._held = held
        self._state = state
        self._turns = turns
        self._held_back = HeldBack(state, reader)

    async def pull(self, request: QueuesRequest, call: Call) -> list[Pulled]:
        """Messages and errors, by the position of their queue; none at the end of the hold.

        Raises:
            BrokerError: INVALID_ARGUMENT, NOT_LEADER, NOT_READY, BUSY.
        """
        if not 0 < len(request.queues) <= MAX_QUEUES:
            text = f"a pull is for 1 to {MAX_QUEUES} queues, not {len(request.queues)}"
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        if any(wish.epoch and wish.tags is not None for wish in request.queues):
            text = "a queue that is read by a lease is read by its group's tags, and by no others"
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        if sum(len(wish.tags.tags) for wish in request.queues if wish.tags) > MAX_TAGS_IN_ALL:
            text = f"the queues of a pull name {MAX_TAGS_IN_ALL:,} tags at most in all"
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        request = self._meant(request)
        _check_each_is_named_once(request)
        now = asyncio.get_running_loop().time
        deadline = now() + self._pulls.hold_s(request.hold_ms)
        positions: Sequence[int] = range(len(request.queues))
        passed: dict[int, Found] = {}
        looked = self._held.moment  # nothing that was there then is waited for
        while True:
            self._gate.check_serving()
            freed = self._freed(request)
            read = await self._read(request, positions)
            found, request = _noted(passed, read, request)
            left = deadline - now()
            if found or left <= 0 or _is_much(passed):
                size = sum(_size(each) for _, each in found)
                if size:
                    self._pulls.give_back_at_end(size, call)
                return found + [(at, each) for at, each in passed.items() if _is_apart(at, found)]
            if read:  # there may be more behind what was passed over
                await self._turns.pause()
                is_freed = freed is not None and freed()
                positions = range(len(request.queues)) if is_freed else [at for at, _ in read]
                continue
            keys = self._keys(request)
            if keys is None:
                positions = range(len(request.queues))  # one of them has gone meanwhile
                looked = self._held.moment
                continue
            woken: list[QueueKey] = []
            if freed is None or not freed():
                woken = await self._held.wait(list(keys), left, looked, freed)
            looked = self._held.moment
            if freed is not None and freed():  # perhaps while others were looked at, or waking
                woken = []
            # Nobody else has got anything since they were looked at; a wake of none is a look.
            positions = sorted({at for key in woken for at in keys[key]}) or range(
                len(request.queues)
            )

    def _meant(self, request: QueuesRequest) -> QueuesRequest:
        """Each queue of the topic that has the name now: who has waited for one is told nothing of
        a later one of the name."""
        queues = list(request.queues)
        for position, wish in enumerate(queues):
            topic = self._state.topics.get(wish.topic.name)
            if topic is not None and not wish.topic.incarnation:
                meant = TopicRef(topic.name, topic.incarnation)
                queues[position] = replace(wish, topic=meant)
        return replace(request, queues=tuple(queues))

    def _keys(self, request: QueuesRequest) -> dict[QueueKey, list[int]] | None:
        """What is waited for, and which positions of the request that is; None: a topic of them
        has gone since."""
        found: dict[QueueKey, list[int]] = {}
        for position, wish in enumerate(request.queues):
            topic = self._state.topics.get(wish.topic.name)
            if topic is None or not wish.topic.means(topic.incarnation):
                return None
            found.setdefault((topic.incarnation, wish.queue_id), []).append(position)
        return found

    async def _read(self, request: QueuesRequest, positions: Sequence[int]) -> list[Pulled]:
        """What there is of these, its bytes taken from the budget."""
        found: list[Pulled] = []
        try:
            await self._read_into(found, request, positions)
        except BaseException:
            self._pulls.budget.give_back(sum(_size(got) for _, got in found))
            raise
        return found

    async def _read_into(
        self, found: list[Pulled], request: QueuesRequest, positions: Sequence[int]
    ) -> None:
        """Bytes are taken from the budget as they are found, as there are pauses before all are.
        Where no more may be taken, what there is so far is the answer. Each queue is judged in the
        turn in which it is read: who has it, by which tags, and up to where it is handed out."""
        messages = request.max_messages or DEFAULT_MESSAGES
        size = min(request.max_bytes or DEFAULT_BYTES, MAX_BYTES)
        looks = UNITS_AT_ONCE  # over all queues: a look has no pause within it
        closed: dict[TopicRef, Failure] = {}  # topics that may not be read: asked once for all
        piece, budget, taken = Piece(self._turns), self._pulls.budget, 0
        for count, position in enumerate(positions):
            if messages <= 0 or size <= 0 or looks <= 0:
                break
            if piece.is_over() or count % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await piece.pause()
                self._gate.check_serving()
            if taken and not budget.left_bytes:
                break  # a pause of this one's would be told that there is no room
            most = messages, size
            got = await self._one(request, request.queues[position], most, closed, piece)
            if isinstance(got, Failure):
                found.append((position, got))
            elif got.count or got.passed_over:
                if taken and len(got.records) > budget.left_bytes:
                    break
                budget.take(len(got.records))
                taken += len(got.records)
                found.append((position, got))
                messages -= got.count
                looks -= got.filtered_count
                size -= len(got.records)

    async def _one(
        self,
        request: QueuesRequest,
        wish: QueueWish,
        most: tuple[int, int],
        closed: dict[TopicRef, Failure],
        piece: Piece,
    ) -> Found | Failure:
        """What there is of one queue, `most` messages and bytes; nothing, or why it can't be told.
        Who may not read is told where there is something: he would take it for the queue's end."""
        messages, size = most
        try:
            if not self._has_more(request.group, wish):
                return _NOTHING
            if wish.topic in closed:
                return closed[wish.topic]
            wanted = min(messages, wish.max_messages or messages)
            tags = self._tags(request, wish)
            return await self._pulls.read(
                PullRequest(
                    wish.topic,
                    wish.queue_id,
                    wish.offset,
                    wanted,
                    size,
                    tags=tags,
                    end=self._end(request.group, wish),
                ),
                piece,
            )
        except BrokerError as error:
            if error.code not in ABSENCES:
                if error.code in _OF_THE_NODE:
                    raise
                return error.failure
        await self._gate.confirm()
        try:
            if self._has_more(request.group, wish):
                self._reader.check_readable(wish.topic)
        except BrokerError as error:
            if error.code is ErrorCode.TOPIC_NOT_READABLE:
                closed[wish.topic] = error.failure
            return error.failure
        return _NOTHING  # it was looked at in the wrong moment

    def _tags(self, request: QueuesRequest, wish: QueueWish) -> WantedTags | None:
        """What the queue, which the caller may read, is read by."""
        if not (wish.epoch and request.is_by_filter):
            return wish.tags
        place = Place(request.group, self._reader.topic(wish.topic).incarnation, wish.queue_id)
        holder = self._state.groups.session(self._state.leases.of(place).session)
        group = self._state.groups.joined(request.group)
        if holder is None or group is None:
            return None
        tags = tags_for(group.versions[holder.version].tags, wish.topic.name)
        return wanted_tags(tags) if tags else None

    def _end(self, group: str, wish: QueueWish) -> int | None:
        """Up to where the queue, which the caller may read, is handed out; None: to its end."""
        joined = self._state.groups.joined(group) if wish.epoch else None
        if joined is None or not joined.settings.is_orderly:
            return None
        return self._held_back.end_of(group, self._reader.topic(wish.topic), wish.queue_id)

    def _freed(self, request: QueuesRequest) -> Callable[[], bool] | None:
        """Whether what the caller isn't given yet may be handed out; None: nothing is held back."""
        group = self._state.groups.joined(request.group)
        if group is None or not group.settings.is_orderly:
            return None
        names = {wish.topic.name for wish in request.queues if wish.epoch}
        topics = (self._state.topics.get(name) for name in sorted(names))
        return self._held_back.freed(request.group, [each for each in topics if each is not None])

    def _has_more(self, group: str, wish: QueueWish) -> bool:
        """Whether the queue, which the caller may read, has messages from there on.

        Raises:
            BrokerError: LEASE_LOST, and what `QueueReader.check_offset` raises.
        """
        if wish.epoch:
            topic = self._reader.topic(wish.topic)
            place = Place(group, topic.incarnation, wish.queue_id)
            if self._state.leases.of(place).epoch != wish.epoch:
                raise queue_refused(LeaseLost(wish.queue_id, wish.epoch))
        _, high = self._reader.bounds(wish.topic, wish.queue_id)
        if wish.offset != high:
            self._reader.check_offset(wish.topic, wish.queue_id, wish.offset)
        end = self._end(group, wish)
        return wish.offset < (high if end is None else min(high, end))


def _check_each_is_named_once(request: QueuesRequest) -> None:
    """What is there of a queue comes once: named again it would cost as much as another queue."""
    named: set[tuple[TopicRef, int]] = set()
    for wish in request.queues:
        if (queue := (wish.topic, wish.queue_id)) in named:
            text = f"queue {wish.queue_id} of topic {wish.topic.name!r} is named twice"
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        named.add(queue)


def _size(got: Found | Failure) -> int:
    return 0 if isinstance(got, Failure) else len(got.records)


def _noted(
    passed: dict[int, Found], read: Sequence[Pulled], request: QueuesRequest
) -> tuple[list[Pulled], QueuesRequest]:
    """What is an answer of what was read. What only was passed over by tags is noted in `passed`,
    and the request goes on behind it."""
    answers: list[Pulled] = []
    queues = list(request.queues)
    for position, found in read:
        if isinstance(found, Failure):
            answers.append((position, found))
            continue
        before = passed.get(position, _NOTHING)
        whole = replace(
            found,
            void_count=before.void_count + found.void_count,
            filtered_count=before.filtered_count + found.filtered_count,
        )
        if found.count or not found.filtered_count:
            answers.append((position, whole))
        else:
            passed[position] = whole
            queues[position] = replace(queues[position], offset=found.next_offset)
    return answers, replace(request, queues=tuple(queues))


def _is_much(passed: dict[int, Found]) -> bool:
    return sum(each.filtered_count for each in passed.values()) >= UNITS_AT_ONCE


def _is_apart(position: int, found: Sequence[Pulled]) -> bool:
    return all(position != at for at, _ in found)


_NOTHING: Final = Found(b"", 0, 0, 0, 0, 0)
# Not about the queue: they end the call.
_OF_THE_NODE: Final = frozenset({ErrorCode.NOT_LEADER, ErrorCode.BUSY, ErrorCode.SHUTTING_DOWN})

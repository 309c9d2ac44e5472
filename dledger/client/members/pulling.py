"""One member's pulls: one for all the queues that it holds, held by the leader while nothing comes.

This owns the pull that is under way and what it brings. A queue that has room again while a pull
without it is held would wait for that pull's end; so it is given up for one with more queues, which
loses nothing: a pull changes nothing. Queues that brought nothing last are asked for first, so that
a full one doesn't starve the others. Nothing is skipped, unless it has gone and the application
said beforehand what then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import PULL_QUEUES
from dledger.client.errors import (
    ClientError,
    LeaseLost,
    OffsetOutOfRange,
    QueueNotFound,
    RecordCorrupt,
    TopicNotFound,
    TopicNotReadable,
    TopicReplaced,
    from_wire,
)
from dledger.client.members.attendance import is_final
from dledger.client.members.clock import clock
from dledger.client.members.emptiness import Emptiness, Hold
from dledger.client.members.member import MAX_QUEUES_A_CALL, Member
from dledger.client.members.process_queue import Held, Place, ProcessQueue
from dledger.client.members.retried import as_sent
from dledger.client.options import WhenGone
from dledger.client.pulled import Asked, check_positions, pulled
from dledger.client.results import Message
from dledger.wire import groups_pb2 as gpb

CALL_S: Final = 10.0  # for an answer, retries included, besides the time that it is held
REST_S: Final = 0.5  # before a queue is pulled again that couldn't be
INTERRUPT_S: Final = 0.005  # for a pull to bring something before one with more queues replaces it
LOOK_S: Final = 0.25  # between looks at what no event tells
ROUND_MS: Final = 1_000  # in which each of more queues than one call takes is asked for
MAX_PULL_MESSAGES: Final = 32_768
MAX_TAGS_WEIGHT: Final = 512 << 10  # of a call: bytes, and `TAG_WEIGHT` a tag: brokers take 16,384
TAG_WEIGHT: Final = 32

GONE: Final = (LeaseLost, TopicNotFound, TopicReplaced, QueueNotFound)  # nobody's, or another's
_log = logging.getLogger("dledger.client")


@dataclass(frozen=True, slots=True)
class Pace:
    """How a member pulls and commits; see `PushOptions`. `commit_every_s`: None: only when told."""

    pull_bytes: int
    hold_ms: int
    commit_every_s: float | None
    when_gone: WhenGone = WhenGone.RAISE


@dataclass(slots=True)
class Counts:
    """Since the member was made."""

    handled: int = 0
    failed: int = 0
    commits: int = 0
    refused: int = 0  # queues whose commit was refused
    skipped: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True)
class Unread:
    """A queue that couldn't be read, from when to when, each time that it was tried; why not."""

    since: float
    until: float
    error: ClientError


class Brought(NamedTuple):
    """What a pull has brought of one queue: its messages, or why there are none."""

    queue: ProcessQueue
    wish: gpb.QueuePull
    part: gpb.PulledQueue
    messages: Sequence[Message] = ()
    error: ClientError | None = None

    @property
    def is_at_its_end(self) -> bool:
        """Whether the leader has looked at all of the queue, and there was nothing for this
        member."""
        is_seen = self.error is None and not self.part.count
        return is_seen and self.part.next_offset >= self.part.max_offset


class Pulling:
    """The pulls of one member, from `run` until that is cancelled.

    Args:
        on_work: something was fetched.
        on_gone: the queue isn't this member's, or isn't there.
    """

    def __init__(
        self,
        broker_group: BrokerGroup,
        group: str,
        member: Member,
        pace: Pace,
        counts: Counts,
        *,
        on_work: Callable[[], None],
        on_gone: Callable[[ProcessQueue], None],
    ) -> None:
        self._broker_group = broker_group
        self._group = group
        self._member = member
        self._pace = pace
        self._counts = counts
        self._on_work = on_work
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._wants_pull = asyncio.Event()
        self._pulling: asyncio.Task[gpb.PullQueuesResponse] | None = None
        self._interruption: asyncio.TimerHandle | None = None
        self._served: dict[Place, int] = {}  # the number of the pull that last brought something
        self._asked: dict[Place, int] = {}  # of the call that last asked, where one doesn't do
        self._asks = 0
        self._pulls = 0
        self._unreadable: ProcessQueue | None = None  # whose error has ended the pulls
        self._unread: dict[ProcessQueue, Unread] = {}  # a queue that comes back begins anew
        self._withheld: set[str] = set()  # topics that aren't read now, by their permission
        # When nothing was there of all that is held: the first pull that found nothing was sent,
        # and the last one answered. What can't be asked isn't empty.
        self._empty_since: float | None = None
        self._empty_until = 0.0
        self._emptiness = Emptiness()  # of more queues than one call takes

    def want(self) -> None:
        """Some queue may have room that isn't in the pull that is under way."""
        self._wants_pull.set()
        if self._pulling is not None and self._interruption is None:
            self._interruption = self._loop.call_later(INTERRUPT_S, self._interrupt)

    def _interrupt(self) -> None:
        self._interruption = None
        wanted = self._member.to_pull(clock())
        if len(wanted) > self._most:
            return  # it is a short one, and the next asks for others
        if self._pulling is not None and any(not queue.is_pulled for queue in wanted):
            self._pulling.cancel()

    def look_again(self, queues: Iterable[ProcessQueue] = ()) -> None:
        """These are read from elsewhere, or again: whether they are empty isn't known, nor whether
        they can be read."""
        self._empty_since = None
        for queue in queues:
            self._unread.pop(queue, None)
        self._emptiness.forget()
        self.want()

    def on_gained(self) -> None:
        """There are more queues: whether these are empty isn't known."""
        self._empty_since = None
        self.want()

    @property
    def may_go_on(self) -> bool:
        """Whether the queue whose error has ended the pulls isn't this member's any more."""
        return self._unreadable is not None and self._unreadable.state is Held.GONE

    def unreadable(self, for_s: float) -> ClientError | None:
        """Why a queue that is held couldn't be read, whenever it was tried, for longer than that;
        who is told so goes on, if he likes, and the time begins anew. A topic that isn't to be
        read now is waited for."""
        self._forget_gone()
        for queue, unread in self._unread.items():
            if unread.until - unread.since > for_s and not queue.paused:
                self._unread.clear()
                return unread.error
        return None

    def _note_unread(self, queue: ProcessQueue, error: ClientError) -> None:
        now = clock()
        unread = self._unread.setdefault(queue, Unread(now, now, error))
        unread.until, unread.error = now, error
        if len(self._unread) > 2 * len(self._member.queues):
            self._forget_gone()

    def _forget_gone(self) -> None:
        queues = self._member.queues
        self._unread = {q: why for q, why in self._unread.items() if queues.get(q.place) is q}

    async def run(self) -> None:
        """Until it is cancelled.

        Raises:
            ClientError: one that pulling again can't change.
        """
        self._unreadable = None
        self._unread.clear()  # nobody has tried since
        while True:
            self._wants_pull.clear()
            queues = self._member.to_pull(clock())
            if queues:
                # Of more queues than one call takes another one tells (`Emptiness`).
                is_one_call = len(queues) <= self._most
                self._note_empty(all_of=is_one_call and len(queues) == len(self._member.queues))
                await self._pull(queues)
            else:
                is_idle = not self._member.queues and self._member.may_start(clock())
                self._note_empty(all_of=is_idle)
                self._empty_until = clock()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wants_pull.wait()

    def _note_empty(self, *, all_of: bool) -> None:
        """A pull of these begins; it is over, or has brought something, before the next one."""
        if not all_of or any(q.waiting_messages for q in self._member.queues.values()):
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = clock()

    @property
    def empty_s(self) -> float | None:
        """For how long everything that is held was seen to be empty; None: it wasn't."""
        queues = self._member.queues
        if len(queues) > self._most:
            if any(queue.waiting_messages for queue in queues.values()):
                return None
            return self._emptiness.seconds([_hold(queue) for queue in queues.values()])
        since = self._empty_since
        if since is None or self._empty_until < since:
            return None
        return self._empty_until - since

    @property
    def _most(self) -> int:
        """Queues of one call. In a broadcast group each names its topic's tags, and brokers take
        so many of them in all."""
        rules = self._member.rules
        if not (rules.broadcast and rules.tags):
            return MAX_QUEUES_A_CALL
        heaviest = max(
            sum(TAG_WEIGHT + len(tag.encode()) for tag in tags) for tags in rules.tags.values()
        )
        return max(1, min(MAX_QUEUES_A_CALL, MAX_TAGS_WEIGHT // max(1, heaviest)))

    async def _pull(self, queues: list[ProcessQueue]) -> None:
        chosen, hold_ms = self._chosen(queues)
        await self._pull_these(chosen, hold_ms)

    def _chosen(self, queues: list[ProcessQueue]) -> tuple[list[ProcessQueue], int]:
        """Those that one call asks for, and how long it may be held. Of more than it takes, those
        that were asked for longest ago: each has its turn within `ROUND_MS`, whatever others
        bring."""
        hold_ms = self._pace.hold_ms
        most = self._most
        calls = -(-len(queues) // most)
        if calls > 1:
            hold_ms = min(hold_ms, ROUND_MS // calls)
            queues = sorted(queues, key=lambda queue: self._asked.get(queue.place, 0))
            queues = queues[:most]
            self._asks += 1
            # Who has gone isn't remembered for ever.
            if len(self._asked) > 2 * len(self._member.queues):
                self._asked = {p: at for p, at in self._asked.items() if p in self._member.queues}
            self._asked.update(dict.fromkeys((queue.place for queue in queues), self._asks))
        return sorted(queues, key=lambda queue: self._served.get(queue.place, 0)), hold_ms

    async def _pull_these(self, queues: list[ProcessQueue], hold_ms: int) -> None:
        request = self._pull_request(queues, hold_ms)
        for queue in queues:
            queue.is_pulled = True
        call = self._broker_group.call(
            PULL_QUEUES, request, Effect.NONE, deadline_s=CALL_S + self._pace.hold_ms / 1000
        )
        sent_s = clock()
        pulling = self._pulling = self._loop.create_task(call)
        try:
            await asyncio.wait([pulling])
        finally:
            self._pulling = None
            for queue in queues:
                queue.is_pulled = False
            if self._interruption is not None:
                self._interruption.cancel()
                self._interruption = None
            pulling.cancel()
        if not pulling.cancelled():
            await self._on_pulled(queues, request, pulling, sent_s)

    def _pull_request(self, queues: Sequence[ProcessQueue], hold_ms: int) -> gpb.PullQueuesRequest:
        request = gpb.PullQueuesRequest(
            max_messages=MAX_PULL_MESSAGES,
            max_bytes=self._pace.pull_bytes,
            hold_ms=hold_ms,
            group=self._group,
            by_filter=True,
        )
        rules = self._member.rules
        for queue in queues:
            request.queues.add(
                topic=queue.place.topic,
                topic_incarnation=queue.place.incarnation,
                queue_id=queue.place.queue_id,
                epoch=queue.epoch,
                offset=queue.next_offset,
                max_messages=queue.room,
                tags=sorted(rules.tags.get(queue.place.topic, ())) if rules.broadcast else (),
            )
        return request

    async def _on_pulled(
        self,
        queues: Sequence[ProcessQueue],
        request: gpb.PullQueuesRequest,
        pulling: asyncio.Task[gpb.PullQueuesResponse],
        sent_s: float,
    ) -> None:
        try:
            answer = pulling.result()
        except ClientError as error:
            if is_final(error):
                raise
            await self._rest(queues, error)
            return
        try:
            check_positions(answer, len(queues))
        except RecordCorrupt as error:
            await self._rest(queues, error)
            return
        self._pulls += 1
        brought = [*self._brought(queues, request, answer)]
        # What the answer says was so when it was made, however late it is heard.
        seen_until = min(clock(), sent_s + request.hold_ms / 1000)
        full = {each.part.position for each in brought if not each.is_at_its_end}
        holds = [_hold(queue) for queue in queues]
        self._emptiness.note(
            [hold for at, hold in enumerate(holds) if at not in full],
            [holds[at] for at in full],
            sent_s,
            seen_until,
        )
        told = {each.position for each in answer.queues}
        for at, queue in enumerate(queues):
            if at not in told:
                self._unread.pop(queue, None)
        if all(each.is_at_its_end for each in brought):
            self._empty_until = seen_until
        elif not any(each.messages for each in brought):
            self._empty_since = None  # there is more behind what was passed over
        for each in brought:
            self._note_served(each.queue.place)
            if each.queue.state is Held.GONE or each.wish.offset != each.queue.next_offset:
                continue  # somebody else's by now, or read from elsewhere
            if each.error is not None:
                self._on_unreadable(each.queue, each.error)
            else:
                self._on_messages(each)
        if brought:
            self._on_work()

    async def _rest(self, queues: Iterable[ProcessQueue], error: ClientError) -> None:
        """None of these could be read; all are pulled again after a while."""
        _log.warning("group %s: pulling: %s", self._group, error.message)
        for queue in queues:
            self._note_unread(queue, error)
        await asyncio.sleep(REST_S)

    def _brought(
        self,
        queues: Sequence[ProcessQueue],
        request: gpb.PullQueuesRequest,
        answer: gpb.PullQueuesResponse,
    ) -> Iterator[Brought]:
        """Each part of the answer, judged before anything of it counts."""
        tags = self._member.rules.tags
        for part in answer.queues:
            queue, wish = queues[part.position], request.queues[part.position]
            if part.HasField("error"):
                yield Brought(queue, wish, part, error=from_wire(part.error))
                continue
            asked = Asked(
                *(wish.topic, wish.topic_incarnation, wish.queue_id, wish.offset),
                by_tags=bool(tags.get(wish.topic)),
            )
            try:
                yield Brought(queue, wish, part, pulled(part, asked).messages())
            except ClientError as error:
                yield Brought(queue, wish, part, error=error)

    def _note_served(self, place: Place) -> None:
        """Who has gone isn't remembered for ever: topics come and go."""
        self._served[place] = self._pulls
        held = self._member.queues
        if len(self._served) > 2 * len(held) + MAX_QUEUES_A_CALL:
            self._served = {each: at for each, at in self._served.items() if each in held}

    def _on_messages(self, brought: Brought) -> None:
        queue, part = brought.queue, brought.part
        messages = as_sent(queue.place.topic, brought.messages)
        queue.on_fetched(messages, part.next_offset, part.max_offset)
        self._withheld.discard(queue.place.topic)
        self._unread.pop(queue, None)
        self._member.on_pulled(queue)

    def _on_unreadable(self, queue: ProcessQueue, error: ClientError) -> None:
        """The queue couldn't be read: it isn't this member's, what comes next has gone, or it is
        tried again, without end: who loops over it may have enough of that (`unreadable`)."""
        if isinstance(error, GONE):
            self._on_gone(queue)
            return
        if isinstance(error, OffsetOutOfRange):
            self._skip(queue, error)
            return
        queue.rests_until = clock() + REST_S
        if isinstance(error, TopicNotReadable):
            self._unread.pop(queue, None)
            if queue.place.topic in self._withheld:
                return  # that was said, and may last for days
            self._withheld.add(queue.place.topic)
        else:
            self._note_unread(queue, error)
        _log.warning("group %s: %s: %s", self._group, queue.place, error.message)

    def _skip(self, queue: ProcessQueue, error: OffsetOutOfRange) -> None:
        """Goes on where there is something, if the application said so.

        Raises:
            OffsetOutOfRange: it didn't, or the queue is shorter than what was read of it.
        """
        first, last = error.valid or (0, 0)
        if self._pace.when_gone is WhenGone.RAISE or not queue.next_offset < first <= last:
            self._unreadable = queue
            raise error
        to = first if self._pace.when_gone is WhenGone.FIRST else last
        done = queue.finished.count_within(queue.next_offset, to)  # by others, before
        skipped = queue.skip_to(to)
        at = (queue.place.topic, queue.place.queue_id)
        self._counts.skipped[at] = self._counts.skipped.get(at, 0) + len(skipped) - done
        _log.warning(
            *("group %s: %s: offsets %d to %d had gone", self._group, queue.place),
            *(skipped.start, skipped.stop - 1),
        )


def _hold(queue: ProcessQueue) -> Hold:
    return queue.place, queue.epoch

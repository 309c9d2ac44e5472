"""What a pull consumer has as a member of its group: the queues that it holds, whichever those are.

This owns what is in the loop's hand, and what of each queue a commit covers: what the application
says, or what its loop has finished, never more. A queue that is asked for gives nothing more; what
is in hand of it is waited for until the loop asks for more, within the hand-over's time. What was
finished and not committed by then comes again, elsewhere: with `commit_every_s` it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from dledger.client.arguments import milliseconds, offset_number, seconds, wanted_tags
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import GET_OFFSET_BY_TIME, GET_QUEUE_OFFSETS
from dledger.client.errors import (
    ClientError,
    DeadlineExceeded,
    InvalidArgument,
    LeaseLost,
    QueueNotFound,
)
from dledger.client.fetching import MIN_HOLD_MS
from dledger.client.members.attendance import Attendance
from dledger.client.members.clock import clock
from dledger.client.members.finished import Finished
from dledger.client.members.member import Line, Member, Progress, Rules
from dledger.client.members.membership import Identity, Membership
from dledger.client.members.process_queue import Bounds, Held, Order, ProcessQueue, Work
from dledger.client.members.pulling import Pace
from dledger.client.members.revoking import lag_of, revoke
from dledger.client.members.settings import fresh_token, group_name, group_settings, member_name
from dledger.client.options import ConsumerOptions, StartFrom
from dledger.client.progress import Progress as Loop
from dledger.client.results import Message
from dledger.outcome import Outcome
from dledger.wire import broker_pb2 as pb

MIN_BYTES: Final = 16 << 10  # of one queue, whatever the others have
LOOK_S: Final = 0.25  # between looks at what no event tells
MIN_LOOK_S: Final = 0.01  # the same, however short the idle timeout is


class MemberReading:
    """A member's queues of one topic."""

    crosses_threads = False  # a queue may go at any time: whoever takes, takes on the loop

    def __init__(
        self,
        broker_group: BrokerGroup,
        attendance: Callable[[], Attendance],
        topic: str,
        group: str,
        *,
        tags: Collection[str] | None,
        start: StartFrom | datetime | None,
        idle_timeout_s: float | None,
        options: ConsumerOptions,
    ) -> None:
        self.topic = topic
        self._broker_group = broker_group
        self._attendance = attendance
        self._options = options
        self._idle_timeout_s = idle_timeout_s
        start = StartFrom.FIRST if start in (None, StartFrom.COMMITTED) else start
        assert start is not None
        bounds = Bounds(bytes=options.prefetch_bytes)
        wanted = {} if tags is None else {topic: wanted_tags(tags)}
        self._identity = Identity(
            group_name(group),
            member_name(options.member),
            group_settings([topic], version=options.version, start=start, tags=wanted),
            takes_retries=False,
        )
        self._line = Line()
        rules = Rules(order=Order.NONE, tags=wanted, bounds=bounds)
        self._member = Member(rules, fresh_token, {topic: self._line})
        self._membership: Membership | None = None
        self._in_hand: list[Work] = []
        self._loop = Loop(topic)
        self._known: dict[int, ProcessQueue] = {}  # by queue held: by which lease
        self._begun: dict[int, int] = {}  # by queue held: where it began, or was sought
        self._given: dict[int, int] = {}  # by queue held: behind all that was handed over of it
        self._wished: dict[int, int] = {}  # by queue held: what the application wants committed
        self._asked: list[tuple[ProcessQueue, int]] = []  # of commits of messages, under way
        # Queues that went before it was known that what was finished in them is committed up to
        # there: the answer may be on its way.
        self._gone: dict[int, tuple[ProcessQueue, int]] = {}
        self._paused: set[int] = set()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._is_stopped = False
        self._able_at = clock()

    # --- taking -------------------------------------------------------------------------------

    def next_message(self) -> Message | None:
        """One of those that are here, from now on in hand; None: `fill` first."""
        works = self._take(1)
        return works[0].message if works else None

    def next_messages(self) -> list[Message] | None:
        """All of one queue's that are here, from now on in hand; None: `fill` first."""
        works = self._take(self._options.prefetch_bytes)
        return [work.message for work in works] or None

    def arrived(self) -> None:
        """The application has what was given last, and works on it: it stays in hand."""

    def take_back(self) -> None:
        """What is in hand never reached the application; whoever has its queue is given it next."""
        works, self._in_hand = self._in_hand, []
        if works and self._membership is not None:
            self._loop.take_back(works[0].message)
            for work in reversed(works):
                self._membership.put_back(work)

    def _take(self, most: int) -> list[Work]:
        """Up to so many of one queue; what was in hand is finished."""
        self._finish()
        if self._membership is None or self._is_stopped:
            return []
        first = self._membership.take(self._line)
        if first is None:
            return []
        works, queue = [first], first.queue
        while len(works) < most and (more := queue.take(self._membership.now)) is not None:
            works.append(more)
        self._member.on_pulled(queue)  # it may have more, for the next turn
        last = works[-1].message
        end = last.queue_offset + 1
        self._loop.hand_over(last, queue.finished.next_unfinished(end))
        if end > self._given.get(last.queue_id, 0):
            self._given[last.queue_id] = end
        self._in_hand = works
        return works

    def _finish(self) -> None:
        """What was in hand is done: more is asked for."""
        works, self._in_hand = self._in_hand, []
        self._loop.finish()
        for work in works:
            if self._membership is not None:
                self._membership.succeed(work)

    def _catch_up(self, queue: ProcessQueue) -> None:
        """What was passed over in front of everything that is at hand counts as finished."""
        queue_id, frontier = queue.place.queue_id, queue.finished.frontier
        if not queue.running and frontier > self._begun.get(queue_id, frontier):
            self._loop.pass_over(queue_id, frontier)

    async def fill(self) -> bool:
        """There are messages to hand over; false when the iteration is over.

        Raises:
            ClientError: the group refuses this member, or the brokers couldn't be reached, or one
                of its queues not be read, for `deadline_s`; nothing was skipped.
        """
        self._finish()
        # Who is stopped would join for nothing, and hold queues that nobody reads.
        membership = None if self._is_stopped else self._begin()
        while membership is not None and not self._is_stopped:
            if self._error is not None and membership.pulling.may_go_on:
                self._pull_again(membership)
            if self._error is not None:
                raise self._error
            deadline_s = self._options.deadline_s
            if (error := membership.pulling.unreadable(deadline_s)) is not None:
                raise error
            now = clock()
            if self._has_work(now):
                return True
            if self._is_idle(membership):
                return False
            self._check_able(now)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._changed.wait()
        return False

    def _has_work(self, now: float) -> bool:
        return self._member.may_start(now) and any(
            queue.may_have_work(now) for queue in self._line.queues
        )

    @property
    def _look_s(self) -> float:
        if self._idle_timeout_s is None:
            return LOOK_S
        return max(min(LOOK_S, self._idle_timeout_s / 4), MIN_LOOK_S)

    def _is_idle(self, membership: Membership) -> bool:
        """Whether everything that it holds was empty for the idle timeout."""
        if self._idle_timeout_s is None or not self._member.is_whole:
            return False
        return (
            membership.pulling.empty_s is not None
            and membership.pulling.empty_s >= self._idle_timeout_s
        )

    def _check_able(self, now: float) -> None:
        """Raises when it has been no member that may read for too long."""
        if self._member.may_start(now):
            self._able_at = now
        elif now - self._able_at > self._options.deadline_s:
            self._able_at = now
            raise DeadlineExceeded(
                f"no leader has known this member of {self._identity.group!r} for "
                f"{self._options.deadline_s:g} s"
            )

    def _begin(self) -> Membership:
        if self._membership is not None:
            return self._membership
        options = self._options
        hold_ms = options.hold_ms
        if self._idle_timeout_s is not None:
            idle_ms = int(min(self._idle_timeout_s, 60.0) * 1000) + 1
            hold_ms = min(hold_ms, max(idle_ms, MIN_HOLD_MS))
        membership = self._membership = Membership(
            self._broker_group,
            self._attendance(),
            self._identity,
            self._member,
            Pace(options.pull_bytes, hold_ms, options.commit_every_s, options.when_gone),
            _Employer(self),
        )
        membership.progress = self._progress
        self._able_at = clock()
        membership.begin()
        return membership

    def look(self) -> None:
        """What is held may have changed: of a lease that has ended nothing is known any more, and
        what another one brings is new."""
        held = {queue.place.queue_id: queue for queue in self._member.queues.values()}
        for queue_id in [at for at, queue in self._known.items() if held.get(at) is not queue]:
            finished = self._loop.finished.get(queue_id, 0)
            if finished > _committed(self._known[queue_id]):
                self._gone = self._uncommitted()
                self._gone.setdefault(queue_id, (self._known[queue_id], finished))
            self._loop.forget(queue_id)
            for noted in (self._wished, self._given):
                noted.pop(queue_id, None)
            del self._known[queue_id], self._begun[queue_id]
        share = Bounds(bytes=max(self._options.prefetch_bytes // max(len(held), 1), MIN_BYTES))
        for queue_id, queue in held.items():
            queue.bounds = share
            if queue_id not in self._known:
                self._known[queue_id] = queue
                self._begun[queue_id] = queue.finished.frontier
                queue.paused = queue_id in self._paused
        self._changed.set()

    # --- commits ------------------------------------------------------------------------------

    def _queue(self, queue_id: int) -> ProcessQueue | None:
        for queue in self._member.queues.values():
            if queue.place.queue_id == queue_id:
                return queue
        return None

    def _progress(self) -> list[Progress]:
        """What is wished to be committed, or to be released."""
        if self._options.commit_every_s is not None:
            self._wish_finished()
        found: list[Progress] = []
        for queue in self._member.queues.values():
            known = _committed(queue)
            asked = [offset for of, offset in self._asked if of is queue]
            frontier = max(self._wished.get(queue.place.queue_id, 0), known, *asked)
            release = queue.state is Held.RELEASING
            if release or frontier > known:
                found.append(Progress(queue, frontier, [], release))
        return found

    def _wish_finished(self) -> None:
        for queue in self._member.queues.values():
            self._catch_up(queue)
        for queue_id, offset in self._loop.finished.items():
            self._wish(queue_id, offset)

    def _wish(self, queue_id: int, offset: int) -> None:
        self._wished[queue_id] = max(offset, self._wished.get(queue_id, 0))

    async def commit(
        self, message: Message | None = None, *, deadline_s: float | None = None
    ) -> None:
        """See `PullConsumer.commit`. A queue may go at any time, also while the call is under way:
        what it was to cover and doesn't is told, once."""
        if self._membership is None:
            if message is None:
                return
            raise InvalidArgument("this consumer never gave any message")
        total_s = self._broker_group.options.deadline_s
        if deadline_s is not None:
            total_s = seconds("deadline_s", deadline_s)
        wanted: list[tuple[ProcessQueue, int]] = []
        if message is None:
            self._wish_finished()
        else:
            for queue_id, offset in self._loop.up_to(message).items():
                queue = self._queue(queue_id)
                # Given by an earlier lease it says nothing of this one, which may begin before it.
                if queue is None or message.queue_offset >= self._given.get(queue_id, 0):
                    raise self._lost(queue_id)
                wanted.append((queue, offset))
                self._wish(queue_id, offset)
        self._asked += wanted
        try:
            error = await self._membership.commit(total_s)
        finally:
            for each in wanted:
                self._asked.remove(each)
        if error is not None:
            raise error
        for queue, offset in wanted:
            if _committed(queue) < offset:
                raise self._lost(queue.place.queue_id, in_doubt=queue.is_in_doubt)
        if message is None:
            gone, self._gone = self._uncommitted(), {}
            if gone:
                in_doubt = any(queue.is_in_doubt for queue, _ in gone.values())
                raise self._lost(min(gone), in_doubt=in_doubt)

    def _uncommitted(self) -> dict[int, tuple[ProcessQueue, int]]:
        """Of the queues that went, those of which no commit has been answered that covers them."""
        return {at: each for at, each in self._gone.items() if _committed(each[0]) < each[1]}

    def _lost(self, queue_id: int, *, in_doubt: bool = False) -> LeaseLost:
        return LeaseLost(
            f"queue {queue_id} of {self.topic!r} isn't this member's any more: its messages "
            "are given to whoever has it",
            outcome=Outcome.MAY_HAVE_HAPPENED if in_doubt else Outcome.DID_NOT_HAPPEN,
        )

    @property
    def positions(self) -> dict[int, int]:
        """See `PullConsumer.positions`."""
        return self._loop.positions

    @property
    def skipped(self) -> dict[int, int]:
        """See `PullConsumer.skipped`."""
        if self._membership is None:
            return {}
        return {queue_id: n for (_, queue_id), n in self._membership.counts.skipped.items()}

    async def lag(self, *, deadline_s: float | None = None) -> dict[int, int]:
        """See `PullConsumer.lag`."""
        found = await lag_of(self._broker_group, self._member, deadline_s)
        return {queue_id: count for (_, queue_id), count in found.items()}

    # --- other places -------------------------------------------------------------------------

    async def seek(self, queue_id: int, to: int | StartFrom | datetime) -> None:
        """See `PullConsumer.seek`."""
        queue = self._queue(queue_id)
        if queue is None:
            raise QueueNotFound(f"queue {queue_id} is none that this member holds")
        offset = await self._offset_at(queue, to)
        if queue.state is Held.GONE:
            raise QueueNotFound(f"queue {queue_id} is none that this member holds any more")
        self._in_hand = [work for work in self._in_hand if work.queue is not queue]
        queue.seek(Finished(offset))
        self._loop.forget(queue_id)
        self._wished.pop(queue_id, None)  # by now it wants what lies there again
        self._begun[queue_id] = offset
        if self._membership is not None:
            self._pull_again(self._membership, queue)

    def _pull_again(self, membership: Membership, *queues: ProcessQueue) -> None:
        """An error that had ended the pulls is as if it had never been: its queue is read from
        elsewhere, or by others."""
        if membership.pull_again(*queues) and isinstance(self._error, ClientError):
            self._error = None

    async def _offset_at(self, queue: ProcessQueue, to: int | StartFrom | datetime) -> int:
        topic, _, queue_id = queue.place
        if isinstance(to, datetime):
            by_time = pb.GetOffsetByTimeRequest(
                topic=topic, queue_id=queue_id, time_ms=milliseconds("to", to)
            )
            answer = await self._broker_group.call(GET_OFFSET_BY_TIME, by_time, Effect.NONE)
            return answer.offset
        if not isinstance(to, StartFrom):
            return offset_number("to", to)
        if to is StartFrom.COMMITTED and queue.committed is not None:
            return queue.committed[0]
        request = pb.GetQueueOffsetsRequest(topic=topic, queue_id=queue_id)
        bounds = await self._broker_group.call(GET_QUEUE_OFFSETS, request, Effect.NONE)
        return bounds.max_offset if to is StartFrom.LAST else bounds.min_offset

    def pause(self, *queue_ids: int) -> None:
        """See `PullConsumer.pause`."""
        self._paused.update(queue_ids)
        self._apply_pauses()

    def resume(self, *queue_ids: int) -> None:
        """See `PullConsumer.resume`."""
        self._paused.difference_update(queue_ids)
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        changed: list[ProcessQueue] = []
        for queue in self._member.queues.values():
            if queue.paused != (queue.place.queue_id in self._paused):
                queue.paused = not queue.paused
                changed.append(queue)
            self._member.on_pulled(queue)
        self._changed.set()
        if self._membership is not None:
            self._membership.pulling.look_again(changed)

    # --- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing more is given."""
        self._is_stopped = True
        self._changed.set()

    async def close(self) -> None:
        """Gives everything back, and says goodbye; what is in hand isn't finished."""
        self.stop()
        if self._membership is None:
            return
        try:
            await self._membership.leave(0.0)
        finally:
            self.look()  # nothing is held: what wasn't committed the next `commit()` tells


def _committed(queue: ProcessQueue) -> int:
    """Up to where it is committed, as far as is known here."""
    return queue.committed[0] if queue.committed is not None else 0


class _Employer:
    """What a membership asks of its reading."""

    def __init__(self, reading: MemberReading) -> None:
        self._reading = reading

    def on_work(self) -> None:
        self._reading.look()

    def on_withdrawn(self) -> None:
        self._reading.look()

    def on_over(self, error: ClientError | None) -> None:
        self._reading._error = self._reading._error or error
        self._reading._changed.set()

    async def on_revoke(self, queues: Sequence[ProcessQueue], *, lost: bool) -> None:
        call: Callable[..., Awaitable[None] | None] | None = self._reading._options.on_revoke
        if call is not None:
            try:
                await revoke(call, queues, lost=lost)
            except (SystemExit, KeyboardInterrupt) as error:  # for who asks for messages
                self._reading._error = self._reading._error or error
                self._reading._changed.set()

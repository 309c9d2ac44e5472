"""One member's dealings with the brokers: what it is told, its pulls, commits, hand-overs, goodbye.

This owns a member's tasks, two of them whatever it holds: one keeps a pull of all its queues under
way, the other commits. What may be pulled, handed out and committed is `Member`'s to say, and what
is done with messages its owner's: a push consumer's workers, or a loop over a pull consumer.

Nothing here gives up on its own: while no leader serves it waits, and says so in the log. It ends
by `leave`. An error that trying again can't change is told its owner, whose leaving is as any
other then: only where nothing can be committed any more, what is held is dropped at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import COMMIT_LEASES
from dledger.client.errors import (
    ClientClosed,
    ClientError,
    MemberReplaced,
    SessionEnded,
    WrongBrokerGroup,
    from_wire,
)
from dledger.client.faults import client_error
from dledger.client.members.attendance import Attendance, is_final
from dledger.client.members.clock import clock
from dledger.client.members.finished import decode_runs, encode_runs
from dledger.client.members.member import (
    Gained,
    Line,
    Member,
    Progress,
    Standing,
    Times,
    in_calls,
)
from dledger.client.members.process_queue import Held, Place, ProcessQueue, Work
from dledger.client.members.pulling import CALL_S, GONE, REST_S, Counts, Pace, Pulling
from dledger.client.members.retried import is_rejection
from dledger.client.members.sending_back import SendingBack
from dledger.client.members.spells import Spells
from dledger.outcome import Outcome
from dledger.wire import commands_pb2 as kpb
from dledger.wire import groups_pb2 as gpb

TICK_S: Final = 0.25  # the longest between two looks at what time has changed
CALM_S: Final = 1.0  # the same while nothing is fetched that isn't committed
GOODBYE_S: Final = 5.0  # for the last commit and goodbye, besides what handlers are given
LAST_WORD_S: Final = 0.1  # for a goodbye that nobody waits for to be heard
LAST_REVOKE_S: Final = 3.0  # of those, for on_revoke at least
# After these no call of this member's is answered: there is nothing to leave in an orderly way.
UNCOMMITTABLE: Final = (ClientClosed, MemberReplaced, WrongBrokerGroup)

_log = logging.getLogger("dledger.client")


class Owner(Protocol):
    """Who works on what the member holds."""

    def on_work(self) -> None:
        """There may be something to hand out."""

    def on_withdrawn(self) -> None:
        """Some of what could be handed out may not be any more."""

    def on_over(self, error: ClientError | None) -> None:
        """It can't go on, or is no member any more: it is to be left."""

    async def on_revoke(self, queues: Sequence[ProcessQueue], *, lost: bool) -> None:
        """These go to others now, or did already."""


class Keeper(Protocol):
    """Keeps a broadcast member's offsets."""

    async def locate(self, queues: Sequence[ProcessQueue], *, made_since: Container[Place]) -> None:
        """Each has its place to begin at. `made_since`: since everything was told."""

    async def on_all_located(self) -> None:
        """What there was at first is all located."""

    async def keep(self, progress: Sequence[Progress]) -> None:
        """It is kept."""

    def close(self) -> None:
        """Nothing more will be."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who joins what. `takes_retries`: whether it works on messages that failed."""

    group: str
    name: str
    settings: kpb.GroupSettings
    choices: Sequence[kpb.QueueChoice] = ()
    takes_retries: bool = True


class Membership:
    """A member at work, from `begin` to `leave`."""

    def __init__(
        self,
        broker_group: BrokerGroup,
        attendance: Attendance,
        identity: Identity,
        member: Member,
        pace: Pace,
        owner: Owner,
        keeper: Keeper | None = None,
    ) -> None:
        self.identity = identity
        self.member = member
        self.counts = Counts()
        self.now = clock()
        self.progress: Callable[[], list[Progress]] = member.to_commit
        self._broker_group = broker_group
        self._attendance = attendance
        self._pace = pace
        self._owner = owner
        self.keeper = keeper
        self._unlocated: set[Place] = set()  # there before all was told: none was made since
        self._loop = asyncio.get_running_loop()
        self._slot = 0
        self._joins = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._pulls_ended = False  # by an error of theirs
        self._wants_commit = asyncio.Event()
        self._is_calm = False  # nothing is there that could be committed, or time could change
        self._emptied = asyncio.Event()
        self._commit_at = 0.0
        self._revoking: set[Place] = set()
        self._told_at = 0.0  # when the log last heard of a failed message
        self._untold = 0
        self.pulling = Pulling(
            *(broker_group, identity.group, member, pace, self.counts),
            on_work=self._on_fetched,
            on_gone=self._on_gone,
        )
        self._sending_back = SendingBack(
            *(broker_group, identity.group, identity.name, member),
            on_settled=self._on_settled,
            on_gone=self._on_gone,
        )
        self._committing = asyncio.Lock()
        self._spells = Spells()

    def begin(self) -> None:
        """It joins, pulls and commits from now on."""
        self._slot = self._attendance.attend(self)
        self._start(self._pull_on, "pull")
        self._start(self._commit_on, "commit")
        self._start(self._sending_back.run, "send-back")

    def _start(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        task = self._loop.create_task(
            self._watched(work, name), name=f"{name}-{self.identity.group}"
        )
        self._tasks[task] = None
        task.add_done_callback(partial(self._on_task_ended, name))

    def _on_task_ended(self, name: str, task: asyncio.Task[None]) -> None:
        """Who cancels every task that there is ends the member, also before one has begun."""
        del self._tasks[task]
        if task.cancelled() and self.member.standing is not Standing.OVER:
            self._end(ClientClosed(f"{name}: cancelled"))

    async def _watched(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """A task that ends by an error is told of: nobody would notice otherwise."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the owner hears of it
            self._on_failed(client_error(f"{name} of a group's member", error))

    async def _pull_on(self) -> None:
        try:
            await self.pulling.run()
        except Exception:
            self._pulls_ended = True
            raise

    def pull_again(self, *queues: ProcessQueue) -> bool:
        """These are read from elsewhere. If an error had ended the pulls they begin anew, and
        that is as if it had never been: true."""
        self.pulling.look_again(queues)
        begins = self._pulls_ended and self.member.standing is not Standing.OVER
        if begins:
            self._pulls_ended = False
            self._start(self._pull_on, "pull")
        return begins

    def _on_failed(self, error: ClientError) -> None:
        """It can't go on. Its session stands all the same: what is finished can be committed, what
        runs be waited for, and a goodbye said, without which the brokers would take the messages
        in front of its queues for what has ended it (ADR 63). So it is its owner who ends it."""
        if isinstance(error, UNCOMMITTABLE):
            self._end(error)
        elif self.member.standing is not Standing.OVER:
            self._owner.on_over(error)

    def _end(self, error: ClientError) -> None:
        """It is no member any more, as far as anything can be done about it here."""
        if self.member.standing is not Standing.OVER:
            self._attendance.drop(self._slot)
            self.member.on_ended(error, join_anew=False)
            self._owner.on_withdrawn()
            self._owner.on_over(error)
            self._emptied.set()

    # --- what the stream says -----------------------------------------------------------------

    def on_stream(self) -> None:
        """There is a stream, and this member's Join is next on it."""
        self.member.on_stream()

    def join(self, slot: int) -> gpb.Join:
        """What it joins with."""
        identity = self.identity
        self._joins += 1
        return gpb.Join(
            slot=slot,
            group=identity.group,
            member=identity.name,
            token=self.member.token,
            session=self.member.session,
            settings=identity.settings,
            queues=identity.choices,
            no_retries=not identity.takes_retries,
            attempt=self._joins,
        )

    def on_joined(self, session: int, times: Times, sent_at: float) -> None:
        """The brokers know it."""
        self.member.on_joined(session, times, sent_at)
        self._go_on()

    def on_answered(self, sent_at: float) -> None:
        """A heartbeat that was sent then."""
        self.member.on_answered(sent_at)
        self._go_on()

    def _on_fetched(self) -> None:
        if self._is_calm:
            self._wants_commit.set()
        self._owner.on_work()

    def _go_on(self) -> None:
        self._owner.on_work()
        self.pulling.want()

    def on_assignment(self, assignment: gpb.Assignment) -> None:
        """What has changed of what it holds."""
        member, now = self.member, clock()
        as_new = member.was_whole
        # What is being released goes by that; should the commit be refused, it tells.
        released = {q for q in member.queues.values() if q.state is Held.RELEASING}
        leases = [lease for topic in assignment.gained for lease in self._gain(topic)]
        gained = [lease.queue for lease in leases if lease.queue is not None]
        lost = [lease.ended for lease in leases if lease.ended is not None]
        for asked in assignment.asked:
            for queue_id in asked.queue_ids:
                member.on_asked(Place(asked.topic, asked.incarnation, queue_id), now)
        for gone in assignment.lost:
            for queue_id in gone.queue_ids:
                queue = member.on_lost(Place(gone.topic, gone.incarnation, queue_id))
                if queue is not None:
                    lost.append(queue)
        if assignment.whole:
            lost += member.on_whole()
        if assignment.asked or assignment.lost or lost:
            self._owner.on_withdrawn()
            self._wants_commit.set()
        self._tell_lost([queue for queue in lost if queue not in released])
        if self.keeper is not None and (gained or assignment.whole):
            self._begin_locating(gained, as_new=as_new)
        if gained:
            self.pulling.on_gained()
        self._go_on()

    def _gain(self, topic: gpb.TopicLeases) -> Iterable[Gained]:
        if not self.member.knows(topic.topic):
            _log.warning(
                "group %s: holds queues of topic %s, which this member has no use for",
                self.identity.group,
                topic.topic,
            )
            return
        for lease in topic.leases:
            place = Place(topic.topic, topic.incarnation, lease.queue_id)
            runs = decode_runs(lease.frontier, lease.finished)
            failures = lease.failures if lease.HasField("failures") else None
            yield self.member.on_gained(place, lease.epoch, lease.frontier, runs, failures)

    def _begin_locating(self, queues: Sequence[ProcessQueue], *, as_new: bool) -> None:
        """What was there at first and isn't located yet is no newer by another session."""
        places = {queue.place for queue in queues}
        if not as_new:
            self._unlocated |= places
        made_since = places - self._unlocated
        self._start(partial(self._locate, queues, made_since), "locate")

    async def _locate(self, queues: Sequence[ProcessQueue], made_since: Container[Place]) -> None:
        assert self.keeper is not None
        while self.member.standing is not Standing.OVER:
            try:
                if held := [queue for queue in queues if queue.state is not Held.GONE]:
                    await self.keeper.locate(held, made_since=made_since)
                    self._unlocated -= {queue.place for queue in held}
                if self.member.is_whole and self._unlocated.isdisjoint(self.member.queues):
                    await self.keeper.on_all_located()
                break
            except ClientError as error:
                if is_final(error) and not isinstance(error, GONE):  # the stream says so, too
                    self._on_failed(error)
                    return
                _log.warning("group %s: where to begin: %s", self.identity.group, error.message)
                await asyncio.sleep(REST_S)
        self.pulling.want()

    def on_ended(self, error: ClientError | None) -> None:
        """Its session is over."""
        held = list(self.member.queues.values())
        again = isinstance(error, SessionEnded)
        self.member.on_ended(error, join_anew=again)
        self._owner.on_withdrawn()
        self._tell_lost(held)
        if isinstance(error, SessionEnded):
            _log.warning("group %s: %s: %s; joining anew", self.identity.group, error.code, error)
        else:
            self._owner.on_over(error)
        self._emptied.set()

    def on_broken(self) -> None:
        """There is no stream now: nothing new is begun until there is, by threads neither."""
        self.member.on_broken()
        self._owner.on_withdrawn()

    def _tell_lost(self, queues: Sequence[ProcessQueue | None]) -> None:
        """Not what may have been given up as it should: it was told of then."""
        lost = [queue for queue in queues if queue is not None and not queue.may_be_released]
        if lost and not self.member.is_stopping:
            self._start(partial(self._owner.on_revoke, lost, lost=True), "revoke")

    # --- work ---------------------------------------------------------------------------------

    def take(self, line: Line) -> Work | None:
        """The next message of this line; it runs until `succeed`, `fail` or `put_back`."""
        self.now = now = clock()
        work = self.member.take(line, now)
        while work is not None and work.queue.is_given_up(work):
            self._sending_back.give_up(work)
            work = self.member.take(line, now)
        if work is None and self.member.wants_commit:
            self._commit_soon()
        return work

    def _commit_soon(self) -> None:
        """What comes next waits for that."""
        self._commit_at = 0.0
        self._wants_commit.set()

    def may_start_until(self) -> float:
        """Until when work that was taken may be begun, unless it is withdrawn."""
        return self.member.may_start_until()

    def put_back(self, work: Work) -> None:
        """Nobody has begun with it."""
        self.member.put_back(work)
        self._after(work.queue)

    def succeed(self, work: Work) -> None:
        """Its handler has returned."""
        self.member.succeed(work)
        self.counts.handled += 1
        self._after(work.queue)

    def fail(self, work: Work, error: BaseException) -> None:
        """Its handler has raised."""
        self.counts.failed += 1
        if self.member.rules.broadcast and is_rejection(error):
            self._pass_over(work, error)
            return
        now = clock()
        returned = self.member.send_back(work, is_rejected=is_rejection(error))
        if returned is not None:
            self._sending_back.add(returned)
            then = "is a dead letter" if returned.is_rejected else "is sent back"
        else:
            then = f"again in {self.member.fail(work, now) - now:.3g} s"
        self._untold += 1
        if now - self._told_at >= 1.0:
            self._told_at, untold, self._untold = now, self._untold, 0
            message = work.message
            _log.warning(
                "group %s: %s/%d offset %d failed, attempt %d, %s (%d failures since this was last "
                "told)",
                *(self.identity.group, message.topic, message.queue_id, message.queue_offset),
                *(message.attempt, then, untold),
                exc_info=error,
            )
        self._wants_commit.set()  # to wake in time
        self._after(work.queue)

    def _pass_over(self, work: Work, error: BaseException) -> None:
        """It is rejected in a group that has no dead letters: tried again it would be rejected
        again, and in the end stop its queue."""
        message = work.message
        _log.error(
            "group %s: %s/%d offset %d was rejected, and counts as finished: a broadcast group has "
            "no dead letters",
            *(self.identity.group, message.topic, message.queue_id, message.queue_offset),
            exc_info=error,
        )
        self.member.succeed(work)
        self._after(work.queue)

    def _on_settled(self, queue: ProcessQueue) -> None:
        """A message that failed is the brokers' now, or waits here for its next attempt."""
        self._wants_commit.set()
        self._after(queue)
        self._owner.on_work()

    def _after(self, queue: ProcessQueue) -> None:
        """One less runs."""
        if queue.state is Held.ASKED:
            if not (queue.running or queue.returning):
                self._wants_commit.set()
        elif queue.careful_until:
            self._commit_soon()
        elif not queue.is_pulled and 2 * queue.waiting_messages <= queue.bounds.messages:
            self.pulling.want()

    # --- commits and hand-overs ---------------------------------------------------------------

    async def _commit_on(self) -> None:
        """Goes on after what has ended the member: the rest is committed by this alone."""
        while self.member.standing is not Standing.OVER:
            try:
                await self._commit_in_time()
            except Exception as error:  # noqa: BLE001 - whatever it is, the owner hears of it
                self._on_failed(client_error("commit of a group's member", error))
                await asyncio.sleep(REST_S)

    async def _commit_in_time(self) -> None:
        await self._wait_for_commit()
        now = clock()
        if (wake := self.member.next_wake) is not None and wake <= now:
            self.member.wake(now)
            self._owner.on_work()
        self._hand_over(now)
        releases = any(q.state is Held.RELEASING for q in self.member.queues.values())
        every_s = self._pace.commit_every_s
        if releases or (every_s is not None and now >= self._commit_at):
            self._commit_at = now + (every_s or 0.0)
            await self.commit()
        if not self.member.queues:
            self._emptied.set()

    async def _wait_for_commit(self) -> None:
        self._is_calm = self.member.is_calm and not self.progress()
        wait_s = CALM_S if self._is_calm else TICK_S
        if self._pace.commit_every_s is not None and not self._is_calm:
            wait_s = min(wait_s, self._pace.commit_every_s)
        if self.member.next_wake is not None:
            wait_s = min(wait_s, self.member.next_wake - clock())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, 0.001)):
                await self._wants_commit.wait()
        self._wants_commit.clear()

    def _hand_over(self, now: float) -> None:
        """Begins to give up what is asked for and not worked on any more."""
        drained = [q for q in self.member.drained(now) if q.place not in self._revoking]
        if drained:
            self.member.tell(drained)
            self._revoking |= {queue.place for queue in drained}
            self._start(partial(self._revoke, drained), "revoke")

    async def _revoke(self, queues: Sequence[ProcessQueue]) -> None:
        """Tells the application first, within the hand-over's time."""
        # By then who stops has no time left of what handlers were given.
        least_s = LAST_REVOKE_S if self.member.is_stopping else 0.1 * self.member.times.release_s
        left_s = max(max(queue.asked_until for queue in queues) - clock(), least_s)
        try:
            async with asyncio.timeout(left_s):
                await self._owner.on_revoke(queues, lost=False)
        except TimeoutError:
            _log.warning("group %s: on_revoke took too long", self.identity.group)
        finally:
            self._revoking -= {queue.place for queue in queues}
        self.member.release(queues, clock())
        self._wants_commit.set()

    async def commit(self, deadline_s: float | None = None) -> ClientError | None:
        """What is finished is committed, or kept; otherwise why not: it is tried again."""
        async with self._committing:
            return await self._commit_now(deadline_s)

    async def _commit_now(self, deadline_s: float | None) -> ClientError | None:
        progress = self.progress()
        if self.keeper is not None:
            return await self._keep(self.keeper, progress)
        failure: ClientError | None = None
        for call in in_calls(progress):
            error = await self._commit_call(call, deadline_s)
            failure = failure or error
            if error is not None and not self.member.queues:
                break  # none of it is this member's any more
        return failure

    async def _keep(self, keeper: Keeper, progress: Sequence[Progress]) -> ClientError | None:
        if not progress:
            return None
        try:
            await keeper.keep(progress)
        except ClientError as error:
            _log.warning("group %s: %s", self.identity.group, error.message)
            return error
        self.counts.commits += 1
        for each in progress:
            self.member.on_committed(each)
        return None

    async def _commit_call(
        self, progress: Sequence[Progress], deadline_s: float | None
    ) -> ClientError | None:
        session, was_alone = self.member.session, self.member.is_alone
        for each in progress:
            each.queue.finished.on_sent(each.runs)
        try:
            refused = await self._commit(progress, deadline_s)
        except (MemberReplaced, SessionEnded) as error:
            self._on_no_session(session, error)
            return error
        except ClientError as error:
            _log.warning("group %s: committing: %s", self.identity.group, error.message)
            return error
        except asyncio.CancelledError:  # it may have been on the wire
            _doubt(progress)
            raise
        self.counts.commits += 1
        for each in progress:
            why = refused.get(each.queue.place)
            if why is None:
                self._spells.ends(each.queue)
                self.member.on_committed(each)
            else:
                self._on_refused(each, why)
        if was_alone or any(each.queue.careful_until for each in progress):
            self._owner.on_work()
        return next(iter(refused.values()), None)

    async def _commit(
        self, progress: Sequence[Progress], deadline_s: float | None
    ) -> dict[Place, ClientError]:
        request = gpb.CommitLeasesRequest(
            group=self.identity.group, member=self.identity.name, session=self.member.session
        )
        topics: dict[tuple[str, int], kpb.TopicProgress] = {}
        for each in progress:
            place = each.queue.place
            at = (place.topic, place.incarnation)
            if at not in topics:
                topics[at] = request.topics.add(topic=place.topic, incarnation=place.incarnation)
            topics[at].queues.add(
                queue_id=place.queue_id,
                epoch=each.queue.epoch,
                frontier=each.frontier,
                finished=encode_runs(each.frontier, each.runs),
                release=each.release,
                begun=each.begun,
            )
        answer = await self._broker_group.call(
            *(COMMIT_LEASES, request, Effect.IDEMPOTENT),
            deadline_s=CALL_S if deadline_s is None else deadline_s,
            on_doubt=partial(_doubt, progress),
        )
        return {
            Place(refusal.topic, refusal.incarnation, refusal.queue_id): from_wire(refusal.error)
            for refusal in answer.refused
        }

    def _on_gone(self, queue: ProcessQueue) -> None:
        """A call was told that it isn't this member's; the stream says the same."""
        lost = self.member.on_lost(queue.place, queue.epoch)
        self._owner.on_withdrawn()
        self._tell_lost([lost])

    def _on_refused(self, progress: Progress, error: ClientError) -> None:
        """Where an earlier answer was lost, its commit may have been the one that ended the
        lease."""
        self.counts.refused += 1
        queue = progress.queue
        if queue.is_in_doubt:
            error.outcome = Outcome.MAY_HAVE_HAPPENED
        queue.finished.on_refused()
        if self._spells.begins(queue, error):
            _log.warning("group %s: %s: %s", self.identity.group, queue.place, error.message)
        if isinstance(error, GONE):
            lost = self.member.on_lost(queue.place, queue.epoch)
            self._owner.on_withdrawn()
            if lost is not None or progress.release:
                self._tell_lost([queue])
        else:
            queue.may_be_released = False  # who says so has looked at the lease, which is there

    def _on_no_session(self, session: int, error: MemberReplaced | SessionEnded) -> None:
        """A commit of that session was told that it is over, or somebody else's. Where the stream
        has said so before, that is old news: this member has joined anew, and it may be itself by
        whom it was replaced."""
        _log.warning("group %s: committing: %s: %s", self.identity.group, error.code, error)
        if session != self.member.session:
            return
        if isinstance(error, MemberReplaced):
            # On the next stream it would join as new, and so end who has replaced it.
            self._attendance.drop(self._slot)
            self.on_ended(error)
        else:
            self._on_session_over()

    def _on_session_over(self) -> None:
        """A commit was told so; the next stream says what it is now. Of who leaves that is no
        question, and the stream is the other members', too: its goodbye may be what ended it."""
        held = list(self.member.queues.values())
        self.member.on_session_over()
        self._owner.on_withdrawn()
        self._tell_lost(held)
        if not self.member.is_stopping:
            self._attendance.renew()

    # --- the end ------------------------------------------------------------------------------

    async def leave(self, drain_s: float) -> None:
        """Everything that runs is worked off, committed and given back, within that time and
        `GOODBYE_S`; what isn't is handed out again by whoever has the queues next."""
        self.member.stop(clock() + drain_s)
        self._owner.on_withdrawn()
        self._wants_commit.set()
        goodbye_s = LAST_WORD_S  # who is cancelled is no member all the same
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_s + GOODBYE_S):
                    while self.member.queues and self.member.standing is not Standing.OVER:
                        self._emptied.clear()
                        await self._emptied.wait()
            goodbye_s = GOODBYE_S
        finally:
            await self.abandon(goodbye_s)

    async def abandon(self, goodbye_s: float = LAST_WORD_S) -> None:
        """Ends all at once; what wasn't committed is handed out again by others. With time for a
        goodbye its queues are free at once; and a moment it always has: with the last member the
        stream goes, and who goes without a word is taken for one whom the messages in front of
        its queues have killed (ADR 63)."""
        self.member.stop(clock())
        try:
            if self.member.standing is not Standing.OVER:
                await self._attendance.leave(self._slot, goodbye_s)
            else:
                await self._attendance.forget(self._slot)
        finally:
            if self.member.standing is not Standing.OVER:
                self.member.on_ended(None, join_anew=False)
            tasks = [task for task in self._tasks if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)


def _doubt(progress: Sequence[Progress]) -> None:
    """This commit may have happened."""
    for each in progress:
        each.queue.is_in_doubt = True
        each.queue.may_be_released |= each.release

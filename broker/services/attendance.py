"""One client's stream, on which members of consumer groups are: what it says, what it is told.

What a member was told last is kept, and what is so now is read from the state when the client takes
the next update: only the difference goes out, and of several changes of a queue only the last.
Nothing is queued but which queues may be other than they were told, so a slow reader costs no more
than a fast one, and many changes as much as they are, whatever else the member holds. Who is a
member and who holds what it never decides; it asks the log, and tells
`broker.leader.groups.keeper` whom it hears.

    a slot is   on                           becomes
    free        join                         joining
    joining     its session is there         attached; Joined, then all that it holds, then `whole`
    joining     refused                      free; Ended, and why
    attached    its session is over          free; Ended, and why
    attached    goodbye                      leaving
    leaving     its session is over          free; Ended
    any         session on another stream    free; Ended, BUSY: whoever is still there joins again
    joining     a later join was answered    free; Ended, BUSY
    joining     the client has hung up       free; nobody is told
    any         the stream is over           gone; the session may come back on another one
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.commands import Commands
from broker.leader.groups.keeper import GroupKeeper
from broker.leader.groups.planning import all_topics
from broker.services.gate import Gate
from broker.services.refused import refused, session_ended
from broker.services.styles import Styles
from broker.services.updates import (
    Assignment,
    Ended,
    Gained,
    HeartbeatAnswered,
    Joined,
    QueueOf,
    Update,
)
from broker.state.filters import too_long
from broker.state.groups import JoinWish, Session, malformed
from broker.state.leases import Place, Ranges, runs_of
from broker.state.machine import StateMachine
from broker.state.topics import TopicState
from dledger.level import DELIVERY_LEVEL, GROUPS_LEVEL, TOPIC_RULES_LEVEL
from dledger.ports import Turns
from dledger.records.record import TOPIC_PATTERN

MAX_MEMBERS: Final = 1_024  # of one stream
MAX_JOINING: Final = 64  # at once; the next one is read when one of them is done
CHANGES_AT_ONCE: Final = 256  # queues in one update
LOOKED_AT_ONCE: Final = 1_024  # for it, in one turn


class _Told(NamedTuple):
    epoch: int
    is_asked: bool


@dataclass(slots=True)
class _Slot:
    """A member on this stream; `session` None: it is joining."""

    session: Session | None = None
    takes_retries: bool = True
    attempt: int = 0  # of the member's joins, as it counts them; 0: it doesn't
    is_leaving: bool = False
    is_whole: bool = False
    told: dict[Place, _Told] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # of topics that were told, by incarnation
    doubted: dict[Place, None] = field(default_factory=dict)  # may be other than it was told
    doubts_all: bool = True

    def doubt(self, places: Sequence[Place] | None) -> None:
        """These, or (None) any, may be other than they were told."""
        if places is None:
            self.doubts_all = True
        elif not self.doubts_all:
            self.doubted.update(dict.fromkeys(places))


# --- the stream --------------------------------------------------------------------------------


class Attendance:
    """One stream: `updates` is taken by one reader, the calls come from another."""

    def __init__(
        self,
        gate: Gate,
        commands: Commands,
        state: StateMachine,
        keeper: GroupKeeper,
        turns: Turns,
        styles: Styles,
    ) -> None:
        """Begins.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY, BUSY.
        """
        gate.check_serving()
        self.heard_at = 0
        self._gate = gate
        self._commands = commands
        self._state = state
        self._keeper = keeper
        self._turns = turns
        self._styles = styles
        self._slots: dict[int, _Slot] = {}
        self._by_session: dict[int, int] = {}
        self._news: list[Joined | Ended] = []
        self._changed: dict[int, None] = {}  # slots
        self._heartbeat: int | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(MAX_JOINING)
        self._joining: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._is_over = self._is_hung_up = False
        keeper.open(self)

    # --- what the client says -----------------------------------------------------------------

    async def join(
        self,
        slot: int,
        wish: JoinWish,
        session: int,
        *,
        attempt: int = 0,
        takes_retries: bool = True,
    ) -> None:
        """The member is joining; what becomes of it is an update.

        Args:
            session: the one to go on with; 0: a new one.
            attempt: ascending over the member's joins, whatever stream they come on; 0: unknown.
            takes_retries: whether it works on the group's messages that failed.

        Raises:
            BrokerError: INVALID_ARGUMENT, which ends the stream.
        """
        self._take(slot, _Slot(takes_retries=takes_retries, attempt=attempt))
        await self._room.acquire()
        task = asyncio.get_running_loop().create_task(self._join(slot, wish, session))
        self._joining.add(task)
        task.add_done_callback(self._on_join_over)

    def refuse(self, slot: int, why: str) -> None:
        """The member can't join by what it says; the others' stream goes on.

        Raises:
            BrokerError: see `join`.
        """
        self._take(slot, _Slot())
        self._tell(Ended(slot, Failure(ErrorCode.INVALID_ARGUMENT, why)))

    def _take(self, slot: int, mine: _Slot) -> None:
        if slot in self._slots:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, f"slot {slot} is taken")
        if len(self._slots) >= MAX_MEMBERS:
            text = f"{MAX_MEMBERS} members are on this stream, the limit"
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        self._hear()
        self._slots[slot] = mine

    def _on_join_over(self, task: asyncio.Task[None]) -> None:
        self._joining.discard(task)
        self._room.release()
        if not task.cancelled() and task.exception() is not None:
            self._failed = task.exception()
            self._wake.set()

    async def _join(self, slot: int, wish: JoinWish, session: int) -> None:
        try:
            found = await self._session_of(wish, session)
        except BrokerError as error:
            self._tell(Ended(slot, error.failure))
            return
        if self._is_over or self._is_hung_up:
            return  # its member may be on another stream by now, which this must not take it from
        mine = self._slots[slot]
        if found.session in self._by_session:
            text = f"member {found.member!r} is on this stream already"
            self._tell(Ended(slot, Failure(ErrorCode.INVALID_ARGUMENT, text)))
            return
        mine.session = found
        self._by_session[found.session] = slot
        if not self._keeper.attach(found.session, self, takes_retries=mine.takes_retries):
            self.let_go(found.session)
            return
        pace, group = self._keeper.pace, self._state.groups.get(found.group)
        assert group is not None
        self._tell(
            Joined(
                slot,
                found.session,
                self._keeper.heartbeat_ms,
                pace.session_ms,
                pace.release_of(is_orderly=group.settings.is_orderly),
                self._keeper.return_within_ms,
                group.settings,
            )
        )
        self.look(found.session)
        if mine.is_leaving:
            self._keeper.leave(found.session)

    async def _session_of(self, wish: JoinWish, session: int) -> Session:
        """The member's session, which is there.

        Raises:
            BrokerError: it isn't, or can't be.
        """
        self._gate.check_writable()
        self._check(wish)
        if not session:
            self._check_strategy(wish)
            await self._gate.denying_surely(self._styles.check(wish))
            refusal = await self._commands.join_group(_as_of(self._state.level.current, wish))
            if refusal is not None:
                raise refused(refusal)
        found = await self._gate.surely(lambda: self._find(wish, session))
        if found.session in self._keeper.ending:
            # It must not begin to work, and then lose all of it.
            text = f"session {found.session} is about to end"
            raise BrokerError(ErrorCode.BUSY, text)
        return found

    def _find(self, wish: JoinWish, session: int) -> Session:
        found = self._state.groups.members(wish.group).get(wish.member)
        if found is None or found.token != wish.token or session not in (0, found.session):
            raise session_ended(self._state.groups, wish.group, wish.member, session)
        return found

    def _check(self, wish: JoinWish) -> None:
        level = self._state.level.current
        if level < GROUPS_LEVEL:
            text = f"level {level} is in use: not every member knows consumer groups yet"
            raise BrokerError(ErrorCode.NOT_READY, text)
        if wish.settings.max_attempts and level < DELIVERY_LEVEL:
            # Applied now it would be left out, and refused as another setting from then on.
            text = f"level {level} is in use: not every member knows max_attempts yet"
            raise BrokerError(ErrorCode.NOT_READY, text)
        why = malformed(wish) or too_long(wish.settings.tags)
        if not why and not TOPIC_PATTERN.fullmatch(wish.group):
            why = f"consumer group name {wish.group!r}: A-Z a-z 0-9 _ % - are allowed"
        for topic in wish.settings.topics:
            if not why and not TOPIC_PATTERN.fullmatch(topic):
                why = f"topic name {topic!r}: A-Z a-z 0-9 _ % - are allowed"
        if why:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, why)

    def _check_strategy(self, wish: JoinWish) -> None:
        """Asked of who joins, not of who comes back with its session: a failover to a node without
        a plug-in takes no queue from its member."""
        if not self._keeper.knows(wish.settings.strategy):
            text = f"the leader has no strategy {wish.settings.strategy!r}"
            raise BrokerError(ErrorCode.STRATEGY_UNKNOWN, text)

    def heartbeat(self, number: int) -> None:
        """All members on the stream are there."""
        self._hear()
        for session, slot in self._by_session.items():
            self._keeper.heard(session)
            if self._is_behind(slot):
                self.look(session)
        self._heartbeat = number
        self._wake.set()

    def _is_behind(self, slot: int) -> bool:
        """Whether the member holds more queues, or fewer, than it was told, and nobody has said so:
        as when it has gone away from a commit that was to give some back."""
        mine = self._slots[slot]
        if mine.session is None or mine.doubted or mine.doubts_all:
            return False
        held = self._state.leases.held_count(mine.session.session)
        return held != len(mine.told) and not self._is_broadcast(mine.session)

    def leave(self, slot: int) -> None:
        """The member says goodbye. One that isn't there has gone meanwhile."""
        self._hear()
        found = self._slots.get(slot)
        if found is not None:
            found.is_leaving = True
            if found.session is not None:
                self._keeper.leave(found.session.session)

    def _hear(self) -> None:
        self.heard_at = self._keeper.now

    def hang_up(self, error: BaseException | None) -> None:
        """Nothing more will be said: the client has gone, or said what can't be."""
        self._failed = self._failed or error
        self._is_hung_up = True
        self._wake.set()

    def close(self) -> None:
        """The stream is over: its members may come back on another one."""
        self._is_over = True
        for task in list(self._joining):
            task.cancel()
        for session in self._by_session:
            self._keeper.detach(session, self)
        self._by_session, self._slots = {}, {}
        self._keeper.shut(self)
        self._wake.set()

    # --- what the keeper says -----------------------------------------------------------------

    def look(self, session: int, places: Sequence[Place] | None = None) -> None:
        """See `broker.leader.groups.keeper.Attendee`."""
        slot = self._by_session.get(session)
        if slot is not None:
            self._slots[slot].doubt(places)
            self._changed[slot] = None
            self._wake.set()

    def let_go(self, session: int) -> None:
        """See `broker.leader.groups.keeper.Attendee`."""
        slot = self._by_session.pop(session, None)
        if slot is not None:
            self._slots[slot].session = None
            self._changed.pop(slot, None)
            text = f"session {session} is on another stream"
            self._tell(Ended(slot, Failure(ErrorCode.BUSY, text)))

    def attempt_of(self, session: int) -> int:
        """See `broker.leader.groups.keeper.Attendee`."""
        slot = self._by_session.get(session)
        return 0 if slot is None else self._slots[slot].attempt

    def end(self) -> None:
        """See `broker.leader.groups.keeper.Attendee`."""
        self._is_over = True
        self._wake.set()

    # --- what the client is told --------------------------------------------------------------

    async def updates(self) -> AsyncGenerator[Update, None]:
        """Each is made when it is taken, until the client hangs up.

        Raises:
            BrokerError: the stream is over: NOT_LEADER, NOT_READY, SHUTTING_DOWN, TIMED_OUT.
        """
        while True:
            self._wake.clear()
            if self._failed is not None:
                raise self._failed
            if self._is_hung_up:
                return
            if self._is_over:
                self._gate.check_writable()
                raise BrokerError(ErrorCode.TIMED_OUT, "nothing was heard on the stream")
            update = self._next()
            if update is not None:
                yield update
            elif self._changed:
                await self._turns.pause()  # some were looked at, and nothing is new of them
            else:
                await self._wake.wait()

    def _next(self) -> Update | None:
        if self._news:
            news = self._news.pop(0)
            if isinstance(news, Ended):
                self._free(news.slot)  # not before: whoever doesn't read has its slots taken
            return news
        if self._heartbeat is not None:
            number, self._heartbeat = self._heartbeat, None
            keeper = self._keeper
            return HeartbeatAnswered(number, keeper.return_within_ms, keeper.heartbeat_ms)
        is_enough = self._turns.share()
        while self._changed:
            slot = next(iter(self._changed))
            update = self._about(slot)
            if update is not None:
                return update
            mine = self._slots.get(slot)
            if mine is None or not (mine.doubts_all or mine.doubted):
                self._changed.pop(slot, None)
            if is_enough():
                break
        return None

    def _tell(self, news: Joined | Ended) -> None:
        """Of each slot there is one at most: it is free, or its member there, once that is read."""
        self._news.append(news)
        self._wake.set()

    def _free(self, slot: int) -> None:
        found = self._slots.pop(slot, None)
        self._changed.pop(slot, None)
        if found is not None and found.session is not None:
            self._by_session.pop(found.session.session, None)

    def _about(self, slot: int) -> Assignment | Ended | None:
        """What is new of the member; None if nothing is."""
        mine = self._slots.get(slot)
        if mine is None or mine.session is None:
            return None
        session = mine.session
        if self._state.groups.session(session.session) is None:
            self._free(slot)
            if mine.is_leaving:
                return Ended(slot, None)
            groups = self._state.groups
            error = session_ended(groups, session.group, session.member, session.session)
            return Ended(slot, error.failure)
        if mine.doubts_all:
            self._doubt_all(session, mine)
        gained, asked, lost = list[Gained](), list[QueueOf](), list[QueueOf]()
        for place in list(islice(mine.doubted, LOOKED_AT_ONCE)):
            del mine.doubted[place]
            self._compare(session, mine, place, (gained, asked, lost))
            if len(gained) + len(asked) + len(lost) == CHANGES_AT_ONCE:
                break
        is_whole = not mine.is_whole and not mine.doubted
        mine.is_whole = mine.is_whole or is_whole
        if not (gained or asked or lost or is_whole):
            return None
        return Assignment(slot, tuple(gained), tuple(asked), tuple(lost), is_whole)

    def _doubt_all(self, session: Session, mine: _Slot) -> None:
        """Whatever it holds and was told of; in a broadcast group every queue."""
        mine.doubts_all = False
        mine.doubted.update(dict.fromkeys(mine.told))
        mine.doubted.update(dict.fromkeys(self._state.leases.held_by(session.session)))
        self._learn_names(session, mine)
        for name in mine.names.values() if self._is_broadcast(session) else ():
            topic = self._state.topics.get(name)
            for queue_id in range(0 if topic is None else self._read_queues(topic)):
                assert topic is not None
                mine.doubted[Place(session.group, topic.incarnation, queue_id)] = None

    def _learn_names(self, session: Session, mine: _Slot) -> None:
        group = self._state.groups.get(session.group)
        assert group is not None
        for name in (*group.versions[session.version].topics, *all_topics(group)):
            topic = self._state.topics.get(name)
            if topic is not None:
                mine.names[topic.incarnation] = name

    def _read_queues(self, topic: TopicState) -> int:
        numbers = self._state.queue_numbers.of(topic.incarnation, len(topic.next_offsets))
        return numbers.read_queues

    def _is_broadcast(self, session: Session) -> bool:
        group = self._state.groups.get(session.group)
        return group is not None and group.settings.is_broadcast

    def _compare(
        self,
        session: Session,
        mine: _Slot,
        place: Place,
        found: tuple[list[Gained], list[QueueOf], list[QueueOf]],
    ) -> None:
        """What is new of one queue, as it is now."""
        gained, asked, lost = found
        before, now = mine.told.get(place), self._now(session, mine, place)
        if before == now:
            return
        if place.incarnation not in mine.names:
            self._learn_names(session, mine)
        queue = QueueOf(mine.names[place.incarnation], place.incarnation, place.queue_id)
        if now is None:
            del mine.told[place]
            lost.append(queue)
        elif before is not None and before.epoch == now.epoch and now.is_asked:
            mine.told[place] = now
            asked.append(queue)
        else:
            gained.append(self._gained(session, queue, now.epoch))
            mine.told[place] = _Told(now.epoch, is_asked=False)
            if now.is_asked:  # said by itself, of what is held
                mine.doubted[place] = None

    def _now(self, session: Session, mine: _Slot, place: Place) -> _Told | None:
        """How the member holds the queue now; None: it doesn't."""
        lease = self._state.leases.of(place)
        if lease.session == session.session:
            return _Told(lease.epoch, self._keeper.is_asked(place, lease.epoch))
        topic = self._state.topics.get(mine.names.get(place.incarnation, ""))
        if (
            topic is not None
            and (topic.incarnation, self._is_broadcast(session)) == (place.incarnation, True)
            and place.queue_id < self._read_queues(topic)
        ):
            return _Told(0, is_asked=False)
        return None

    def _gained(self, session: Session, queue: QueueOf, epoch: int) -> Gained:
        finished: Ranges = ()
        frontier, failures = 0, None
        if epoch:
            place = Place(session.group, queue.incarnation, queue.queue_id)
            finished = self._state.leases.of(place).finished
            frontier = self._state.offsets.of(session.group, queue.topic)[queue.queue_id]
            if self._state.level.current >= TOPIC_RULES_LEVEL:
                failures = self._state.attempts.of(place, frontier)
        return Gained(queue, epoch, frontier, tuple(runs_of(frontier, finished)), failures)


def _as_of(level: int, wish: JoinWish) -> JoinWish:
    """The wish as it can be written on that level: before filters, it says nothing of tags, and the
    member chooses by itself."""
    if level >= DELIVERY_LEVEL or wish.settings.tags is None:
        return wish
    return replace(wish, settings=replace(wish.settings, tags=None))

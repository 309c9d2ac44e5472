"""Looks after consumer groups while this node leads: ends sessions, hands out leases, forgets.

This owns what is in nobody's log: who is attached (a member's stream), and who was heard of when;
which queues were asked back is `broker.leader.groups.assigning`. All of it goes with the
leadership, and a new leader begins by counting everybody as present. Whatever is decided is
proposed as a command, and told to members only once it is applied; whether it still holds then, the
state says. It must never take a clock for time (`broker.leader.groups.presence`), nor end a session
that only can't be told apart from one that is on its way back.

A tick looks at few groups, those that have changed, each once in `LOOK_TICKS` at most: of a
thousand members that join at once, the first is not assigned everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands
from broker.leader.groups.assigning import Assigning, Counts
from broker.leader.groups.ending import Ends
from broker.leader.groups.forgetting import Forgetting
from broker.leader.groups.pace import USUAL_PACE, Pace
from broker.leader.groups.planning import State, all_topics
from broker.leader.groups.presence import Presence
from broker.leader.groups.starting import Queues
from broker.leader.groups.strategies import StrategyUnknown, strategy_of
from broker.state.deliveries import Deliveries
from broker.state.leases import Place
from broker.state.level import Level
from broker.state.lived_time import LivedTime
from broker.state.offsets import Offsets
from broker.state.topic_permissions import TopicPermissions
from dledger.ports import Turns

GROUPS_A_TICK: Final = 8
MAX_STREAMS: Final = 2_048
RETURNS_A_SECOND: Final = 2_000  # members that come back to a new leader

log = structlog.get_logger(__name__)


class GroupState(State, Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def lived_time(self) -> LivedTime: ...
    @property
    def level(self) -> Level: ...
    @property
    def offsets(self) -> Offsets: ...
    @property
    def deliveries(self) -> Deliveries: ...
    @property
    def topic_permissions(self) -> TopicPermissions: ...
    @property
    def append_time_ms(self) -> int: ...


class Attendee(Protocol):
    """A stream on which members are. `heard_at`: the tick at which it said anything last."""

    heard_at: int

    def look(self, session: int, places: Sequence[Place] | None = None) -> None:
        """Something may have changed for the session, of those queues or (None) any: the state
        says what."""
        ...

    def let_go(self, session: int) -> None:
        """The session is on another stream now: whoever is still on this one joins again."""
        ...

    def attempt_of(self, session: int) -> int:
        """Which of its member's joins brought the session here; 0: unknown."""
        ...

    def end(self) -> None:
        """This node leads no more, or stops."""
        ...


@dataclass(frozen=True, slots=True)
class KeeperStatistics:
    """`ended`: sessions by silence; `taken`: queues that weren't given back in time; `dropped`:
    plans that were old when they were made."""

    streams: int = 0
    attached: int = 0
    groups: int = 0
    granted: int = 0
    taken: int = 0
    ended: int = 0
    forgotten: int = 0
    failed: int = 0
    dropped: int = 0


@dataclass(slots=True)
class _Kept:
    """What a leader knows of a group."""

    attached: set[int] = field(default_factory=set)
    without_retries: set[int] = field(default_factory=set)  # sessions that have no use for them
    awaited: dict[int, int] = field(default_factory=dict)  # not attached: see `planning.When`
    topics: tuple[str, ...] = ()
    tells_all: bool = False  # a topic of it has gone, or come
    looked_at: int = 0  # the tick


class GroupKeeper:
    """One replica's; idle unless it leads."""

    def __init__(
        self,
        state: GroupState,
        commands: Commands,
        reader: Queues,
        leads: Callable[[], int],
        is_mended: Callable[[BaseException], bool],
        broker_group: str,
        turns: Turns,
        pace: Pace = USUAL_PACE,
        is_waited_for: Callable[[str], bool] = lambda _: False,
        times_short: Callable[[], int] = lambda: 0,
    ) -> None:
        """Args:
        leads: the term in which this node serves as the leader; 0: it doesn't.
        is_mended: whether an error tells of rot that is being repaired.
        is_waited_for: whether somebody waits for single messages of that group now.
        times_short: how often there was no room for what somebody wanted of groups.
        """
        self._state = state
        self._commands = commands
        self._reader = reader
        self._leads = leads
        self._is_mended = is_mended
        self._broker_group = broker_group
        self._turns = turns
        self.pace = pace
        self._forgetting = Forgetting(state, commands, reader, pace.unused_ms, is_waited_for)
        self._times_short, self._short_before = times_short, 0
        self._forget_ticks, self._retry_ticks = map(pace.ticks, (pace.forget_ms, pace.retry_ms))
        self._term = 0
        self._kept: dict[str, _Kept] = {}
        self._dirty: dict[str, None] = {}
        self._wakes: dict[str, int] = {}  # group -> the tick at which to look at it again
        self._subscribers: dict[str, set[str]] = {}  # topic -> groups
        self._attached: dict[int, Attendee] = {}
        self._streams: dict[Attendee, None] = {}
        self._returning_until = 0
        self._last_tick_s = 0.0
        self._presence = self._silent()
        self._ends = self._no_ends()
        self._counts = Counts()
        self._assigning = self._nothing_assigned()
        self._ended = 0

    def _silent(self) -> Presence:
        pace = self.pace
        return Presence(pace.ticks(pace.session_ms), pace.ticks(pace.away_ms))

    def _no_ends(self) -> Ends:
        return Ends(self._state, self._commands, self._presence, self.pace, self.tell)

    def _nothing_assigned(self) -> Assigning:
        return Assigning(
            *(self._state, self._commands, self._reader, self._is_mended, self._broker_group),
            *(self._turns, self, self._counts),
        )

    # --- leadership ---------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The tick that it is."""
        return self._presence.now

    @property
    def returning_until(self) -> int:
        """The tick before which members may still be on their way to this leader."""
        return self._returning_until

    @property
    def return_within_ms(self) -> int:
        """Over what time members are to come back to the next leader, so that it isn't run down."""
        return self._state.groups.session_count * 1000 // RETURNS_A_SECOND

    @property
    def heartbeat_ms(self) -> int:
        """How often each member is to be heard."""
        return self.pace.heartbeat_of(self._state.groups.session_count)

    def sync(self) -> None:
        """What is known here is of the present leadership, from its first call on."""
        term = self._leads()
        if term == self._term:
            return
        self._forget()
        self._term = term
        if term:
            self._begin()

    def _forget(self) -> None:
        streams, self._streams = self._streams, {}
        self._attached = {}
        self._kept, self._dirty, self._wakes, self._subscribers = {}, {}, {}, {}
        self._ended += self._ends.silent
        self._ends = self._no_ends()
        self._assigning.close()
        self._assigning = self._nothing_assigned()
        for attendee in streams:
            attendee.end()

    def _begin(self) -> None:
        groups, pace = self._state.groups, self.pace
        grace_ms = pace.return_ms + self.return_within_ms
        self._presence = self._silent()
        self._ends = self._no_ends()
        self._forgetting.begin()
        sessions = [each.session for group in groups for each in group.members.values()]
        self._returning_until = pace.ticks(grace_ms) if sessions else 0
        self._presence.begin(sessions, pace.ticks(grace_ms))
        for group in groups:
            if group.members:
                self.on_group(group.name)

    def close(self) -> None:
        """Nobody is attached any more."""
        self._forget()
        self._term = -1

    # --- members ------------------------------------------------------------------------------

    def open(self, attendee: Attendee) -> None:
        """A stream has begun.

        Raises:
            BrokerError: BUSY, there are too many.
        """
        self.sync()
        if len(self._streams) >= MAX_STREAMS:
            raise BrokerError(ErrorCode.BUSY, f"{MAX_STREAMS} streams of members, the limit")
        attendee.heard_at = self.now
        self._streams[attendee] = None

    def shut(self, attendee: Attendee) -> None:
        """A stream is over; its members were detached."""
        self._streams.pop(attendee, None)

    def _end_silent_streams(self) -> None:
        """Nobody keeps a stream that says nothing."""
        before = self.now - self.pace.ticks(self.pace.session_ms)
        for attendee in [each for each in self._streams if each.heard_at < before]:
            attendee.end()

    def knows(self, strategy: str) -> bool:
        """Whether there is a strategy of that name."""
        try:
            strategy_of(strategy)
        except StrategyUnknown:
            return False
        return True

    def attach(self, session: int, attendee: Attendee, *, takes_retries: bool = True) -> bool:
        """Whether the session, which the state has, is on that stream from now on: not if a later
        join of its member has brought it to another one. What is sent last may arrive first, and a
        stream that its client has left would take the member from the one it is on."""
        self.sync()
        found = self._state.groups.session(session)
        if found is None:
            return True
        before = self._attached.get(session)
        if before is not None and before is not attendee:
            if 0 < attendee.attempt_of(session) < before.attempt_of(session):
                return False
            before.let_go(session)
        self._attached[session] = attendee
        kept = self._of(found.group)
        kept.attached.add(session)
        kept.awaited.pop(session, None)
        if takes_retries:
            kept.without_retries.discard(session)
        else:
            kept.without_retries.add(session)
        self._presence.heard(session)
        self._mark(found.group)
        return True

    def detach(self, session: int, attendee: Attendee) -> None:
        """The stream is gone. The member may be back on another one: members of orderly groups have
        as long as anybody who is silent, others `away_ms`."""
        if self._attached.get(session) is not attendee:
            return
        del self._attached[session]
        found = self._state.groups.session(session)
        if found is None:
            return
        kept = self._of(found.group)
        kept.attached.discard(session)
        kept.awaited[session] = self._awaited_until
        group = self._state.groups.get(found.group)
        if group is not None and not group.settings.is_orderly:
            self._presence.broken_off(session)

    @property
    def _awaited_until(self) -> int:
        """Until when free queues wait for a member that isn't attached from now on: it may be about
        to be, a new leader's within the time that all of them take."""
        is_new = self.now < self._returning_until
        ms = self.pace.keep_ms + (self.return_within_ms if is_new else 0)
        return self.now + self.pace.ticks(ms)

    def heard(self, session: int) -> None:
        """The member is there."""
        if session in self._presence:
            self._presence.heard(session)

    def leave(self, session: int) -> None:
        """The member has said goodbye."""
        self._ends.leave(session)

    @property
    def ending(self) -> frozenset[int]:
        """Sessions whose end is proposed: whether it takes effect isn't known yet."""
        return self._ends.under_way

    def expires_ms(self, session: int) -> int:
        """In how long the session ends if nothing is heard of it; 0: nothing is known of it."""
        return self._presence.left(session) * self.pace.tick_ms

    @property
    def attached(self) -> Set[int]:
        """Sessions of which a stream is here."""
        return self._attached.keys()

    def is_attached(self, session: int) -> bool:
        """Whether a stream of it is here."""
        return session in self._attached

    @property
    def looks_under_way(self) -> int:
        """That have begun and aren't over."""
        return self._assigning.under_way + self._assigning.beginning

    def is_asked(self, place: Place, epoch: int) -> bool:
        """Whether the holder by that epoch is to give the queue back."""
        return self._assigning.is_asked(place, epoch)

    # --- what has changed ---------------------------------------------------------------------

    def on_group(self, name: str) -> None:
        """Members, settings or leases of the group may be others."""
        if not self._term:
            return
        kept, group = self._of(name), self._state.groups.joined(name)
        topics = () if group is None else all_topics(group)
        self._unsubscribe(name, kept)
        for topic in topics:
            self._subscribers.setdefault(topic, set()).add(name)
        kept.topics = topics
        self._mark(name)

    def _unsubscribe(self, name: str, kept: _Kept) -> None:
        """The group wants none of its topics any more; of those that nobody wants nothing stays."""
        for topic in kept.topics:
            groups = self._subscribers.get(topic, set())
            groups.discard(name)
            if not groups:
                self._subscribers.pop(topic, None)

    def on_topic(self, name: str) -> None:
        """The topic was made, or deleted, or has other queues."""
        for group in sorted(self._subscribers.get(name, ())):
            self._of(group).tells_all = True
            self._mark(group)

    def _of(self, name: str) -> _Kept:
        return self._kept.setdefault(name, _Kept())

    def look_again(self, name: str, tick: int = 0) -> None:
        """See `broker.leader.groups.assigning.Owner`."""
        if tick:
            self._wakes[name] = tick
        else:
            self._mark(name)

    def _mark(self, name: str) -> None:
        self._dirty[name] = None

    # --- ticks --------------------------------------------------------------------------------

    def on_tick(self) -> None:
        """One tick more was run."""
        self.sync()
        now_s = asyncio.get_running_loop().time()
        is_late = now_s - self._last_tick_s > self.pace.late_ms / 1000
        self._last_tick_s = now_s
        if not self._term:
            return
        self._presence.on_tick(is_late=is_late)
        self._ends.on_tick()
        self._make_room_if_short()
        self._forgetting.on_tick(self.now, period=self._forget_ticks, pause=self._retry_ticks)
        if self.now % self._retry_ticks == 0:
            self._end_silent_streams()
        if self._wakes:
            for name in [name for name, tick in self._wakes.items() if tick <= self.now]:
                del self._wakes[name]
                self._mark(name)
        if self._dirty or self.looks_under_way:
            self._look()

    def make_room(self) -> None:
        """See `broker.leader.groups.assigning.Owner`."""
        self._forgetting.make_room()

    def _make_room_if_short(self) -> None:
        times = self._times_short()
        if times != self._short_before:
            self._short_before = times
            self.make_room()

    def _look(self) -> None:
        """At some of the groups that have changed."""
        self._assigning.go_on()
        left = GROUPS_A_TICK - self._assigning.under_way
        look_ticks, is_enough = self.pace.ticks(self.pace.look_ms), self._turns.share()
        for name in list(self._dirty):
            if left <= 0:
                return
            kept = self._of(name)
            due = kept.looked_at + look_ticks if kept.looked_at else 0
            if self.now < due or not self._assigning.is_ready(name):
                continue
            del self._dirty[name]
            kept.looked_at = self.now
            self._look_at(name, kept, is_enough)
            left = 0 if is_enough() else left - 1

    def _look_at(self, name: str, kept: _Kept, is_enough: Callable[[], bool]) -> None:
        group = self._state.groups.joined(name)
        gone = [each for each in kept.attached if self._state.groups.session(each) is None]
        # Those that were detached before they ended, too.
        ended = [each for each in kept.without_retries if self._state.groups.session(each) is None]
        kept.without_retries.difference_update(ended)
        for session in [each for each in kept.awaited if self._state.groups.session(each) is None]:
            del kept.awaited[session]
        for session in gone:
            kept.attached.discard(session)
            self.tell(session)
            self._attached.pop(session, None)
        if group is None or not group.members:
            if not kept.attached:
                self._drop(name, kept)
            return
        awaited_until = self._awaited_until
        for member in group.members.values():
            if member.session not in self._presence:  # it joined, and isn't attached
                self._presence.heard(member.session)
            if member.session not in kept.attached:
                kept.awaited.setdefault(member.session, awaited_until)
        if group.settings.is_broadcast or kept.tells_all:
            kept.tells_all = False
            for session in kept.attached:
                self.tell(session)
        if not group.settings.is_broadcast:
            without_retries = frozenset(kept.without_retries)
            self._assigning.look_at(group, is_enough, without_retries, dict(kept.awaited))

    def _drop(self, name: str, kept: _Kept) -> None:
        self._unsubscribe(name, kept)
        self._kept.pop(name, None)
        self._assigning.drop(name)

    # --- what members are told ----------------------------------------------------------------

    def tell(self, session: int, places: list[Place] | None = None) -> None:
        """See `broker.leader.groups.assigning.Owner`."""
        attendee = self._attached.get(session)
        if attendee is not None:
            attendee.look(session, places)

    def tell_all(self, name: str) -> None:
        """Something may have changed for each member of the group."""
        for session in self._kept[name].attached if name in self._kept else ():
            self.tell(session)

    def statistics(self) -> KeeperStatistics:
        """A frozen picture, as of now."""
        return KeeperStatistics(
            len(self._streams),
            len(self._attached),
            len(self._kept),
            self._counts.granted,
            self._counts.taken,
            self._ended + self._ends.silent,
            self._forgetting.count,
            self._counts.failed,
            self._counts.dropped,
        )

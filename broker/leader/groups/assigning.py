"""Looks at groups and carries out what came of it: asks for queues, and grants them.

    a group is   on                                             becomes
    idle         it is to be looked at                          looked at, some steps a tick
    looked at    the plan is made, of what is so now            its grants are proposed, in parts
    looked at    the plan is made, of who was there, or which   idle, and to be looked at again;
                 queues, before                                 after `DROPPED` of these as above
    proposed     applied, and there are more                    the next ones are proposed
    proposed     refused, or never applied                      idle, looked at again in a while
    proposed     applied, there are none left                   idle

Where a group starts by time in a topic is looked for beside all that, in steps: until it is found
grants of that topic are left out, and then the group is looked at again. It may take minutes, in
which members come and go, and the group's other queues are theirs.

This owns the looks that are under way and what was asked of whom, for one leadership. Whatever it
proposes holds when it is proposed (`broker.leader.groups.planning.still_holds`), though a look may
have begun long before: what a plan rests on may have changed, and most of the time nothing of it is
used then. A group in which somebody comes or goes all the time is assigned all the same.

A tick spends two shares of a turn on looks (`dledger.ports.Turns`): one on those that are under
way, one on those that begin. A look rests as long as it took, so a group costs a bounded part of
the loop, whatever its size.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Protocol

import structlog
from crc32c import crc32c

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands, TopicGrant
from broker.leader.groups import planning
from broker.leader.groups.pace import Pace
from broker.leader.groups.planning import (
    Grant,
    HandOver,
    Plan,
    is_of_now,
    plan,
    still_holds,
)
from broker.leader.groups.starting import Beginnings, Queues
from broker.leader.groups.steps import Steps
from broker.leader.groups.strategies import StrategyUnknown, strategy_of
from broker.leader.groups.targets import Facts, When
from broker.leader.offsets_room import starts_begun
from broker.state.groups import Group
from broker.state.leases import Place
from broker.state.offsets import Offsets
from broker.state.refusals import PartlyRefused, Refusal
from broker.state.topics import TopicState
from dledger.ports import Turns
from dledger.sparing import Sparing

DROPPED: Final = 3  # plans of a group, one after the other
GRANTS_AT_ONCE: Final = 1_024  # by one command
STARTS_AT_ONCE: Final = 256  # or those of one topic
MAX_DOUBLINGS: Final = 9  # of the time to the next look at a group whose grants are refused

log = structlog.get_logger(__name__)


class State(planning.State, Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def offsets(self) -> Offsets: ...


class Owner(Protocol):
    """Who says what to look at, and knows the time."""

    pace: Pace

    @property
    def now(self) -> int: ...
    @property
    def returning_until(self) -> int: ...

    def is_attached(self, session: int) -> bool:
        """Whether its member has a stream here."""
        ...

    def tell(self, session: int, places: list[Place] | None = None) -> None:
        """Something may have changed for the session, of those queues or (None) any."""
        ...

    def look_again(self, name: str, tick: int = 0) -> None:
        """The group is to be looked at, when it is that tick; 0: soon."""
        ...


@dataclass(slots=True)
class _Look:
    """One that is under way."""

    facts: Facts
    steps: Steps[Plan]
    begun: int  # the tick
    may_move: bool


@dataclass(slots=True)
class _Part:
    """A group's. `grants`: what is still to be proposed of its plan, which rests on `facts`; and by
    the incarnation of a topic that was looked at, the queue from which on the group can't begin.
    `begins`: where it starts by time is looked for; `begun`: and was found; `unknown`: the plan's
    topics in which it has to be, with how many of their queues it has begun in."""

    hand_over: HandOver = field(default_factory=HandOver)
    look: _Look | None = None
    dropped: int = 0
    grants: deque[Grant] = field(default_factory=deque)
    facts: Facts | None = None
    short: dict[int, float] = field(default_factory=dict)
    unknown: dict[int, tuple[TopicState, int]] = field(default_factory=dict)
    begins: Steps[None] | None = None
    begun: Beginnings = field(default_factory=Beginnings)
    granting: bool = False
    look_again_at: int = 0  # not before that tick
    refusals: int = 0  # one after the other


@dataclass(slots=True)
class Counts:
    """What was done. `taken`: queues that weren't given back in time; `dropped`: plans of which
    nothing was used."""

    granted: int = 0
    taken: int = 0
    failed: int = 0
    dropped: int = 0


class Assigning:
    """One leadership's."""

    def __init__(
        self,
        state: State,
        commands: Commands,
        reader: Queues,
        is_mended: Callable[[BaseException], bool],
        broker_group: str,
        turns: Turns,
        owner: Owner,
        counts: Counts,
    ) -> None:
        self._state = state
        self._commands = commands
        self._reader = reader
        self._is_mended = is_mended
        self._broker_group = broker_group
        self._turns = turns
        self._owner = owner
        self._counts = counts
        self._parts: dict[str, _Part] = {}
        self._under_way: dict[str, _Part] = {}
        self._beginning: dict[str, _Part] = {}
        self._is_over = False
        self._sparing = Sparing()

    def is_asked(self, place: Place, epoch: int) -> bool:
        """Whether the holder by that epoch is to give the queue back."""
        part = self._parts.get(place.group)
        return part is not None and part.hand_over.is_asked(place, epoch)

    def is_ready(self, name: str) -> bool:
        """Whether the group may be looked at now."""
        part = self._parts.get(name)
        return part is None or not (
            part.granting or part.look is not None or self._owner.now < part.look_again_at
        )

    @property
    def under_way(self) -> int:
        """Looks that have begun and aren't over; of those who look for where they begin none."""
        return len(self._under_way)

    @property
    def beginning(self) -> int:
        """Groups that look for where they begin, which may read a log for minutes."""
        return len(self._beginning)

    def drop(self, name: str) -> None:
        """Nobody is in the group."""
        self._parts.pop(name, None)
        self._under_way.pop(name, None)
        self._beginning.pop(name, None)

    def close(self) -> None:
        """The leadership is over: nothing comes of what is under way."""
        self._is_over = True
        self._parts, self._under_way, self._beginning = {}, {}, {}

    # --- looks --------------------------------------------------------------------------------

    def go_on(self) -> None:
        """A share of a turn for the looks that are under way, and one for those who look for where
        they begin: others' queues don't wait for that."""
        is_enough = self._turns.share()
        for name, part in list(self._under_way.items()):
            del self._under_way[name]  # who isn't done comes after the others
            self._step(name, part, is_enough)
            if is_enough():
                break
        is_enough = self._turns.share()
        for name, part in list(self._beginning.items()):
            del self._beginning[name]
            if part.begins is not None:
                self._step_beginning(name, part, part.begins, is_enough)
            if is_enough():
                return

    def look_at(
        self,
        group: Group,
        is_enough: Callable[[], bool],
        without_retries: frozenset[int],
        awaited: Mapping[int, int],
    ) -> None:
        """A look at the group begins; it is ready.

        Args:
            without_retries, awaited: sessions; see `When`.
        """
        part, owner = self._parts.setdefault(group.name, _Part()), self._owner
        may_move = owner.now >= owner.returning_until
        when = When(owner.now, may_move, without_retries, awaited)
        salt = crc32c(f"{group.name}@{self._broker_group}".encode())
        try:
            strategy = strategy_of(group.settings.strategy)
        except StrategyUnknown:
            self._fail(group.name, f"no strategy {group.settings.strategy!r} is installed")
            return
        facts, steps = plan(self._state, group, part.hand_over, strategy, when, salt)
        part.look = _Look(facts, steps, owner.now, when.may_move)
        self._step(group.name, part, is_enough)

    def _step(self, name: str, part: _Part, is_enough: Callable[[], bool]) -> None:
        look, found = part.look, None
        assert look is not None
        try:
            while found is None:
                next(look.steps)
                if is_enough():
                    self._under_way[name] = part
                    return
        except StopIteration as end:
            found = end.value
        except Exception as error:  # noqa: BLE001  somebody else's strategy may do anything
            part.look = None
            self._fail(name, repr(error))
            return
        part.look = None
        took = self._owner.now - look.begun
        part.look_again_at = max(part.look_again_at, self._owner.now + took)
        self._use(name, part, look, found)

    def _use(self, name: str, part: _Part, look: _Look, found: Plan) -> None:
        """The plan is carried out, unless it is of who isn't there, or not alone, any more."""
        group, owner = self._state.groups.joined(name), self._owner
        if group is None:
            return
        if not is_of_now(look.facts, self._state, name) and part.dropped < DROPPED:
            part.dropped += 1
            self._counts.dropped += 1
            owner.look_again(name)
            return
        part.dropped = 0
        release_ms = owner.pace.release_of(is_orderly=group.settings.is_orderly)
        found.begin(owner.now + owner.pace.ticks(release_ms))
        part.hand_over = found.hand_over
        for session, places in found.asked.items():
            owner.tell(session, places)
        wake = found.wake
        if not look.may_move:
            wake = min(wake or owner.returning_until, owner.returning_until)
        if wake:
            owner.look_again(name, max(wake, owner.now + 1))
        part.grants, part.facts = deque(found.grants), look.facts
        part.short, part.unknown = {}, {}
        self._grant(group, part)

    # --- grants -------------------------------------------------------------------------------

    def _grant(self, group: Group, part: _Part) -> None:
        """Some of those that are left, of what still holds. Those for which there is no room hold
        up none behind them."""
        while part.grants and not part.granting:
            some: list[Grant] = []
            try:
                while part.grants and len(some) < GRANTS_AT_ONCE:
                    grant = part.grants.popleft()
                    if grant.incarnation in part.unknown:
                        continue  # the end of the search looks again
                    if self._commands.is_changing(grant.topic):
                        self._rest(group.name)  # it is looked at as that is made of it
                        continue
                    has_room = grant.queue_id < self._end_of_room(group, part, grant)
                    has_room = has_room and grant.incarnation not in part.unknown
                    if has_room and self._still_holds(grant, group.name):
                        some.append(grant)
                self._propose(group, part, some)
            except BrokerError as error:
                self._again(group.name, part, error)
            except Exception as error:
                if not self._is_mended(error):
                    raise
                self._again(group.name, part, error)

    def _still_holds(self, grant: Grant, name: str) -> bool:
        """See `still_holds`; and its member is here. One whose stream broke since the look began is
        waited for: the next look says how long."""
        if grant.session and not self._owner.is_attached(grant.session):
            self._owner.look_again(name)
            return False
        return still_holds(grant, self._state, name)

    def _end_of_room(self, group: Group, part: _Part, grant: Grant) -> float:
        """The queue of the grant's topic from which on the group can't begin. A topic is looked at
        before its first grant, so that none of a long plan is judged in vain."""
        end = part.short.get(grant.incarnation)
        topic = self._state.topics.get(grant.topic)
        if end is None and topic is not None and topic.incarnation == grant.incarnation:
            started, new = self._lacking(group, topic)
            try:
                if new:
                    self._commands.check_begun(new)
                end = inf
            except BrokerError as error:
                self._no_room(group, error)
                end = started
            part.short[grant.incarnation] = end
            if end == inf and part.begun.is_unknown(group, topic, started):
                part.unknown[grant.incarnation] = topic, started
        return inf if end is None else end

    def _lacking(self, group: Group, topic: TopicState) -> tuple[int, int]:
        """In how many of a topic's queues the group has begun, and in how many of the others it
        gets an offset by beginning."""
        started = self._state.leases.started(group.name, topic.incarnation)
        lacking = len(topic.next_offsets) - started
        return started, starts_begun(self._state, group.name, topic.name, started, lacking)

    def _no_room(self, group: Group, error: BrokerError) -> None:
        """The group goes on in the queues in which it has begun, and looks again at the others.

        Raises:
            BrokerError: `error`, which is another one.
        """
        if error.code is not ErrorCode.LIMIT_REACHED:
            raise error
        self._tell_failure(group.name, error)
        self._rest(group.name)

    def _propose(self, group: Group, part: _Part, grants: list[Grant]) -> None:
        """As many of them as one command may begin: the others come before all that are left. Those
        of topics in which it isn't known where the group starts are left out until it is."""
        by_topic: dict[tuple[str, int], list[Grant]] = {}
        for grant in grants:
            by_topic.setdefault((grant.topic, grant.incarnation), []).append(grant)
        told: list[TopicGrant] = []
        asked = begun = 0  # where the group starts; offsets that are new
        unknown = list(part.unknown.values())
        for some in by_topic.values():
            if self._is_unknown(group, part, some[0], unknown):
                continue
            if asked >= STARTS_AT_ONCE:
                part.grants.extendleft(reversed(some))  # when these are there
                continue
            found, new = self._topic_grant(group, part, some, begun)
            told += found
            asked, begun = asked + sum(len(each.starts) for each in found), begun + new
        if unknown and part.begins is None:
            part.begins = part.begun.look(self._reader, group, unknown)
            self._beginning[group.name] = part
        if not told:
            return
        answer = self._commands.grant_leases(group.name, told)
        part.granting = True
        concerned = self._concerned(group.name, told)
        count = sum(len(each.queues) for each in told)

        def done(future: asyncio.Future[Refusal | None]) -> None:
            self._granted_by(group.name, part, concerned, count, future)

        asyncio.ensure_future(answer).add_done_callback(done)

    def _topic_grant(
        self, group: Group, part: _Part, grants: list[Grant], begun: int
    ) -> tuple[list[TopicGrant], int]:
        """All that is granted of a topic by a command that begins so many offsets in others; and
        how many it begins here."""
        topic = self._state.topics[grants[0].topic]
        started, new = self._lacking(group, topic)
        offsets: Sequence[int] = ()
        try:
            if new:
                self._commands.check_begun(begun + new)
            offsets = part.begun.take(self._reader, group, topic, started)
        except BrokerError as error:
            self._no_room(group, error)
            part.short[topic.incarnation], new = started, 0
            grants = [each for each in grants if each.queue_id < started]
        if not grants:
            return [], 0
        queues = tuple((each.queue_id, each.session, each.former) for each in grants)
        return [TopicGrant(topic.name, topic.incarnation, started, tuple(offsets), queues)], new

    # --- where a group starts by time ----------------------------------------------------------

    def _is_unknown(
        self, group: Group, part: _Part, grant: Grant, unknown: list[tuple[TopicState, int]]
    ) -> bool:
        """Whether it is to be looked for where the group starts in the topic, which is added."""
        topic = self._state.topics[grant.topic]
        started = self._lacking(group, topic)[0]
        has_room = part.short.get(topic.incarnation, inf) == inf
        if not (has_room and part.begun.is_unknown(group, topic, started)):
            return False
        unknown.append((topic, started))
        return True

    def _step_beginning(
        self, name: str, part: _Part, steps: Steps[None], is_enough: Callable[[], bool]
    ) -> None:
        try:
            while True:
                next(steps)
                if is_enough():
                    self._beginning[name] = part
                    return
        except StopIteration:
            part.begins = None
            self._owner.look_again(name)
        except Exception as error:
            part.begins = None
            if not isinstance(error, BrokerError) and not self._is_mended(error):
                raise
            self._tell_failure(name, error)
            self._rest(name)

    def _concerned(self, group: str, told: list[TopicGrant]) -> dict[int, list[Place]]:
        """Who is to get something by it, or to lose it, and what."""
        found: dict[int, list[Place]] = {}
        for each in told:
            for queue_id, session, former in each.queues:
                place = Place(group, each.incarnation, queue_id)
                found.setdefault(session, []).append(place)
                if former:
                    found.setdefault(self._state.leases.of(place).session, []).append(place)
                    self._counts.taken += 1
        return found

    def _granted_by(
        self,
        name: str,
        part: _Part,
        concerned: dict[int, list[Place]],
        count: int,
        future: asyncio.Future[Refusal | None],
    ) -> None:
        """A grant was applied, or never will be."""
        part.granting = False
        if future.cancelled() or self._is_over:
            return
        error = future.exception()
        if error is not None:
            self._again(name, part, error)
            return
        refusal, owner = future.result(), self._owner
        refused = len(refusal.queues) if isinstance(refusal, PartlyRefused) else 0
        self._counts.granted += count - refused
        # What is refused again and again must not fill the log.
        part.refusals = min(part.refusals + 1, MAX_DOUBLINGS) if refused else 0
        if refused:
            pace = owner.pace
            part.look_again_at = owner.now + pace.ticks(pace.look_ms) * (1 << part.refusals)
            if (unreported := self._sparing.due("refused")) is not None:
                log.warning("grants_refused", group=name, why=str(refusal), unreported=unreported)
        for session, places in concerned.items():
            owner.tell(session, places)
        owner.look_again(name)
        group = self._state.groups.joined(name)
        if refused or group is None or not self._is_of_now(part, name):
            part.grants.clear()
        elif self._parts.get(name) is part:
            self._grant(group, part)

    def _is_of_now(self, part: _Part, name: str) -> bool:
        return not part.grants or (
            part.facts is not None and is_of_now(part.facts, self._state, name)
        )

    def _again(self, name: str, part: _Part, error: BaseException) -> None:
        """The group is looked at again in a while."""
        part.grants.clear()
        self._tell_failure(name, error)
        self._rest(name)

    def _tell_failure(self, name: str, error: BaseException) -> None:
        if (unreported := self._sparing.due("grant")) is not None:
            log.warning("leases_not_granted", group=name, reason=str(error), unreported=unreported)

    def _fail(self, name: str, reason: str) -> None:
        self._counts.failed += 1
        if (unreported := self._sparing.due(("assignment", name))) is not None:
            log.error("assignment_failed", group=name, reason=reason, unreported=unreported)
        self._rest(name)

    def _rest(self, name: str) -> None:
        owner = self._owner
        owner.look_again(name, owner.now + owner.pace.ticks(owner.pace.retry_ms))

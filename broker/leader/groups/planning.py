"""What has to be done so that each queue of a group is held by whom its strategy says.

This owns which queues were asked back from their holders, and until when: in ticks, and forgotten
with the leadership. It proposes nothing.

    a queue is         and its target is   then
    free               s                   grant it to s
    free               who isn't here      wait for it a while, then grant it to who is here
    held               its holder          nothing; asked no more, if it was
    held               who isn't here      the same
    held               another, or nobody  ask for it, once
    asked, time left   another, or nobody  wait
    asked, time over   another, or nobody  grant it over the holder's head

Here is who has a stream to this leader. Whoever hasn't keeps what it holds and gets nothing more:
it would lie there unread, and what is in front would count as failed when the session ends
(ADR 63). Who is to have what is shared out among all the same, so that nothing moves, neither as a
stream breaks nor as its member is back.

While members may still be on their way back to a new leader nothing is asked for: a change of
leader alone moves nothing.

A group may have 65,536 queues, so a plan is made in steps (ADR 64): of the state as it was when the
look began, which is kept for it, whatever is applied between two steps. It changes nothing before
it is whole. `is_of_now` says whether it still is what a look would find, `still_holds` the same of
one grant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from broker.leader.groups.steps import STEP, Steps
from broker.leader.groups.strategies import QueueName, Strategy
from broker.leader.groups.targets import Facts, Seats, Sharing, When
from broker.state.groups import Group, Groups
from broker.state.leases import FREE, Lease, Leases, Place
from broker.state.level import Level
from broker.state.queue_numbers import QueueNumbers
from broker.state.topics import Topics
from dledger.level import DELIVERY_LEVEL
from dledger.records.reserved import retry_topic


class State(Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def topics(self) -> Topics: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def level(self) -> Level: ...
    @property
    def queue_numbers(self) -> QueueNumbers: ...


@dataclass(frozen=True, slots=True)
class Grant:
    """A queue that is to be somebody's (0: nobody's) in the place of the epoch `former`."""

    topic: str
    incarnation: int
    queue_id: int
    session: int
    former: int


@dataclass(slots=True)
class Call:
    """The asking of one look: whoever was asked in it has the same time, from its end on."""

    until: int = 0  # the tick


@dataclass(frozen=True, slots=True)
class Asked:
    """A holder was asked to give a queue back."""

    epoch: int
    call: Call


@dataclass(slots=True)
class HandOver:
    """Queues of one group that were asked back, by incarnation and queue."""

    asked: dict[int, dict[int, Asked]] = field(default_factory=dict)

    def is_asked(self, place: Place, epoch: int) -> bool:
        """Whether the holder by that epoch was asked for the queue."""
        found = self.asked.get(place.incarnation, NOBODY).get(place.queue_id)
        return found is not None and found.epoch == epoch

    def ask(self, place: Place, asked: Asked) -> None:
        """The holder by that epoch is to give it back."""
        self.asked.setdefault(place.incarnation, {})[place.queue_id] = asked


NOBODY: Final[Mapping[int, Asked]] = MappingProxyType({})


@dataclass(slots=True)
class Plan:
    """What one look at a group gave.

    Attributes:
        hand_over: which queues are asked back from now on.
        asked: by session the queues of which anything new is asked, or no longer is.
        wake: the tick at which to look again, 0: none.
    """

    grants: list[Grant] = field(default_factory=list)
    hand_over: HandOver = field(default_factory=HandOver)
    asked: dict[int, list[Place]] = field(default_factory=dict)
    wake: int = 0
    _call: Call = field(default_factory=Call)
    _asks: bool = False

    def ask(self, place: Place, lease: Lease) -> None:
        """The queue is to be given back, within the time that `begin` says."""
        self.hand_over.ask(place, Asked(lease.epoch, self._call))
        self.tell(place, lease)
        self._asks = True

    def tell(self, place: Place, lease: Lease) -> None:
        """Its holder is told something of the queue."""
        self.asked.setdefault(lease.session, []).append(place)

    def begin(self, until: int) -> None:
        """It is carried out now: who was asked in it has time until that tick."""
        self._call.until = until
        if self._asks:
            self.wake = min(self.wake or until, until)


def facts_of(state: State, group: Group) -> Facts:
    """As it is now; members by name."""
    sessions = tuple(session for _, session in sorted(group.members.items()))
    wanted = wanted_topics(state, group)
    takes = {
        version: frozenset(t for t in wanted if state.groups.takes(session, t))
        for version, session in {each.version: each for each in sessions}.items()
    }
    seats = tuple(
        Seats(
            topic.name,
            topic.incarnation,
            state.queue_numbers.of(topic.incarnation, len(topic.next_offsets)).read_queues,
            state.leases.kept(group.name, topic.incarnation),
        )
        for topic in map(state.topics.get, wanted)
        if topic is not None
    )
    return Facts(sessions, takes, seats)


def is_of_now(facts: Facts, state: State, name: str) -> bool:
    """Whether a plan that rests on these is what a look would find now, leases aside."""
    group = state.groups.joined(name)
    return group is not None and facts_of(state, group) == facts


def still_holds(grant: Grant, state: State, name: str) -> bool:
    """Whether the grant is one that takes effect now: its member is there and may have the queue,
    which is there, and nobody has it who hadn't it before."""
    place = Place(name, grant.incarnation, grant.queue_id)
    topic, session = state.topics.get(grant.topic), state.groups.session(grant.session)
    return (
        topic is not None
        and topic.incarnation == grant.incarnation
        and state.leases.of(place).epoch == grant.former
        and (not grant.session or (session is not None and state.groups.takes(session, topic.name)))
    )


def plan(
    state: State, group: Group, hand_over: HandOver, strategy: Strategy, when: When, salt: int
) -> tuple[Facts, Steps[Plan]]:
    """What is to be done, and what that rests on: the state at the call.

    Raises:
        ValueError: in a step; see `share_out`.
    """
    facts = facts_of(state, group)
    return facts, _plan(state, group.name, facts, hand_over, strategy, when, salt)


def _plan(
    state: State,
    group: str,
    facts: Facts,
    hand_over: HandOver,
    strategy: Strategy,
    when: When,
    salt: int,
) -> Steps[Plan]:
    queues, held = list[QueueName](), dict[QueueName, int]()
    for seats in facts.seats:
        for queue_id in range(seats.count):
            queues.append(QueueName(seats.topic, queue_id))
        held |= {
            QueueName(seats.topic, queue_id): lease.session
            for queue_id, lease in seats.leases.items()
            if lease.session and queue_id < seats.count
        }
        yield
    sharing = Sharing(group, facts, strategy, when, salt)
    targets, wake = yield from sharing.targets(queues, held)
    look, found = _Look(Plan(wake=wake), hand_over, when), iter(queues)
    for seats in facts.seats:
        for queue_id, name in zip(range(seats.count), found, strict=False):
            lease, target = seats.leases.get(queue_id, FREE), targets.get(name, 0)
            if target != lease.session or hand_over.asked:
                place = Place(group, seats.incarnation, queue_id)
                look.at(place, seats.topic, lease, target)
            if not queue_id % STEP:
                yield
    yield from _unwanted(state, facts, look)
    return look.plan


class _Look:
    """One queue after the other."""

    def __init__(self, plan: Plan, before: HandOver, when: When) -> None:
        self.plan = plan
        self._before = before.asked
        self._when = when

    def at(self, place: Place, topic: str, lease: Lease, target: int) -> None:
        """A queue: whose it is, and whose it is to be."""
        plan, asked = self.plan, self._before.get(place.incarnation, NOBODY).get(place.queue_id)
        if target in self._when.awaited:
            target = lease.session
        if asked is not None and (asked.epoch != lease.epoch or target == lease.session):
            plan.tell(place, lease)
            asked = None
        if target == lease.session:
            return
        if not lease.session:
            plan.grants.append(Grant(topic, place.incarnation, place.queue_id, target, 0))
        elif asked is not None:
            plan.hand_over.ask(place, asked)
            if self._when.now >= asked.call.until:
                grant = Grant(topic, place.incarnation, place.queue_id, target, lease.epoch)
                plan.grants.append(grant)
            else:
                plan.wake = min(plan.wake or asked.call.until, asked.call.until)
        elif self._when.may_move:
            plan.ask(place, lease)


def wanted_topics(state: State, group: Group) -> tuple[str, ...]:
    """What its members share: its topics, and that in which its failed messages come again."""
    if state.level.current < DELIVERY_LEVEL:
        return group.settings.topics
    return all_topics(group)


def all_topics(group: Group) -> tuple[str, ...]:
    """What a group may read, at whichever level: what has to be looked out for."""
    own = (retry_topic(group.name),) if group.has_retries else ()
    return (*group.settings.topics, *own)


def _unwanted(state: State, facts: Facts, look: _Look) -> Steps[None]:
    """What members hold of topics that the group doesn't want any more: as it is by now, and no
    more than may change before the plan is carried out."""
    counts = {each.incarnation: each.count for each in facts.seats}
    topics: dict[int, str] = {}
    for at, session in enumerate(facts.sessions):
        held = state.leases.held(session.session)
        for place in sorted(p for p in held if p.queue_id >= counts.get(p.incarnation, 0)):
            if not topics:
                topics = {each.incarnation: each.name for each in state.topics.values()}
            look.at(place, topics[place.incarnation], state.leases.of(place), 0)
        if held or not at % STEP:
            yield

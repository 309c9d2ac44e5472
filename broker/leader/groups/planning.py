"""What has to be done so that each queue of a group is held by whom its strategy says.

This owns which queues were asked back from their holders, and until when: in ticks, and forgotten
with the leadership. It proposes nothing.

    a queue is         and its target is   then
    free               s                   grant it to s
    held               its holder          nothing; asked no more, if it was
    held               another, or nobody  ask for it, once
    asked, time left   another, or nobody  wait
    asked, time over   another, or nobody  grant it over the holder's head

While members may still be on their way back to a new leader nothing is asked for: a change of
leader alone moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from broker.leader.groups.strategies import Member, QueueName, Share, Strategy, share_out
from broker.leader.retries.own_topics import QUEUES
from broker.state.groups import Group, Groups
from broker.state.leases import Lease, Leases, Place
from broker.state.level import Level
from broker.state.queue_numbers import Numbers, QueueNumbers
from broker.state.topics import Topics, TopicState
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

    topic: TopicState
    queue_id: int
    session: int
    former: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A holder was asked to give a queue back."""

    epoch: int
    until: int  # the tick


@dataclass(slots=True)
class Plan:
    """What one look at a group gave. `asked`: sessions of which anything new is asked, or no
    longer is; `wake`: the tick at which to look again, 0: none."""

    grants: list[Grant] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    wake: int = 0


@dataclass(slots=True)
class HandOver:
    """Queues of one group that were asked back."""

    asked: dict[Place, Asked] = field(default_factory=dict)

    def is_asked(self, place: Place, epoch: int) -> bool:
        """Whether the holder by that epoch was asked for the queue."""
        found = self.asked.get(place)
        return found is not None and found.epoch == epoch


@dataclass(frozen=True, slots=True)
class When:
    """The tick that it is, how many a hand-over may take, and whether anybody is asked for
    anything yet."""

    now: int
    release_ticks: int
    may_move: bool


def plan(
    state: State, group: Group, hand_over: HandOver, strategy: Strategy, when: When, salt: int
) -> Plan:
    """What is to be done now; `hand_over` is as it says.

    Raises:
        ValueError: see `share_out`.
    """
    seats = {
        QueueName(topic.name, queue_id): (topic, state.leases.of(_place(group, topic, queue_id)))
        for topic in _topics(state, group)
        for queue_id in range(_numbers(state, topic).read_queues)
    }
    members = _members(state, group)
    held = {name: lease.session for name, (_, lease) in seats.items() if lease.session}
    targets = share_out(strategy, Share(members, list(seats), held, salt)) if members else {}
    found, mentioned = Plan(), set[Place]()
    for name, (topic, lease) in seats.items():
        mentioned.add(_place(group, topic, name.queue_id))
        _one(found, hand_over, group, topic, name.queue_id, lease, targets.get(name, 0), when)
    for topic, queue_id, lease in _unwanted(state, group, mentioned):
        mentioned.add(_place(group, topic, queue_id))
        _one(found, hand_over, group, topic, queue_id, lease, 0, when)
    for place in [each for each in hand_over.asked if each not in mentioned]:
        del hand_over.asked[place]
    return found


def _one(
    found: Plan,
    hand_over: HandOver,
    group: Group,
    topic: TopicState,
    queue_id: int,
    lease: Lease,
    target: int,
    when: When,
) -> None:
    place = _place(group, topic, queue_id)
    asked = hand_over.asked.get(place)
    if asked is not None and (asked.epoch != lease.epoch or target == lease.session):
        del hand_over.asked[place]
        found.asked.add(lease.session)
        asked = None
    if target == lease.session:
        return
    if not lease.session:
        found.grants.append(Grant(topic, queue_id, target, 0))
    elif asked is not None and when.now >= asked.until:
        found.grants.append(Grant(topic, queue_id, target, lease.epoch))
    elif when.may_move:
        if asked is None:
            asked = hand_over.asked[place] = Asked(lease.epoch, when.now + when.release_ticks)
            found.asked.add(lease.session)
        found.wake = min(found.wake or asked.until, asked.until)


def wanted_topics(state: State, group: Group) -> tuple[str, ...]:
    """What its members share: its topics, and that in which its failed messages come again."""
    if state.level.current < DELIVERY_LEVEL:
        return group.settings.topics
    return all_topics(group)


def all_topics(group: Group) -> tuple[str, ...]:
    """What a group may read, at whichever level: what has to be looked out for."""
    own = (retry_topic(group.name),) if group.has_retries else ()
    return (*group.settings.topics, *own)


def _numbers(state: State, topic: TopicState) -> Numbers:
    return state.queue_numbers.of(topic.incarnation, len(topic.next_offsets))


def _place(group: Group, topic: TopicState, queue_id: int) -> Place:
    return Place(group.name, topic.incarnation, queue_id)


def _topics(state: State, group: Group) -> Iterator[TopicState]:
    for name in wanted_topics(state, group):
        topic = state.topics.get(name)
        if topic is not None:
            yield topic


def _members(state: State, group: Group) -> list[Member]:
    """By name; each with the topics of which it may hold queues."""
    found: list[Member] = []
    for _, session in sorted(group.members.items()):
        wanted = wanted_topics(state, group)
        topics = frozenset(t for t in wanted if state.groups.takes(session, t))
        choices = frozenset(
            QueueName(topic, queue_id) for topic, ids in session.choices for queue_id in ids
        )
        if choices and not found:  # who chooses doesn't name what the brokers make
            choices |= {QueueName(retry_topic(group.name), queue_id) for queue_id in range(QUEUES)}
        found.append(Member(session.session, session.member, topics, choices))
    return found


def _unwanted(
    state: State, group: Group, wanted: set[Place]
) -> Iterator[tuple[TopicState, int, Lease]]:
    """What members hold of topics that the group doesn't want any more."""
    topics: dict[int, TopicState] = {}
    for session in group.members.values():
        for place in state.leases.held_by(session.session):
            if place in wanted:
                continue
            if not topics:
                topics = {each.incarnation: each for each in state.topics.values()}
            yield topics[place.incarnation], place.queue_id, state.leases.of(place)

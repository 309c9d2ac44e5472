"""Whose each queue of a group is to be: by its strategy, among those who may have it.

This owns nothing and decides nothing about when anything moves (`broker.leader.groups.planning`).
A queue is shared out among all members, whether they are here or not: who comes back finds its
share as it was. Only what is free and would lie unread with who isn't here is, after a while, for
those who are.

    a queue is   and by the strategy is for       so it is for
    held         anybody, or nobody               that one
    free         who is here, or nobody           that one
    free         who isn't, and is awaited        that one, who is waited for
    free         who isn't, and no longer is      who has it by the strategy among those who are
                                                  here, of what they hold and what is left so
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from broker.leader.groups.steps import STEP, Steps
from broker.leader.groups.strategies import Member, QueueName, Share, Strategy, share_out
from broker.leader.retries.own_topics import QUEUES
from broker.state.groups import Session
from broker.state.leases import Lease
from dledger.records.reserved import retry_topic


@dataclass(frozen=True, slots=True)
class When:
    """The tick that it is, whether anybody is asked for anything yet, and what only the leader
    knows of the members.

    Attributes:
        without_retries: sessions that have no use for them, of those that are or were here.
        awaited: sessions that aren't here, and the tick until which what is free waits for each.
    """

    now: int
    may_move: bool
    without_retries: frozenset[int] = frozenset()
    awaited: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seats:
    """A topic's queues: how many are read, and who holds which."""

    topic: str
    incarnation: int
    count: int
    leases: Mapping[int, Lease] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan rests on, and doesn't change while it is made. Two are equal if who is there, who
    may hold what, and the queues are the same: who holds which is not compared.

    Attributes:
        takes: by version of the settings, topics of which members that joined with it may hold
            queues.
    """

    sessions: tuple[Session, ...]
    takes: Mapping[int, frozenset[str]]
    seats: tuple[Seats, ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Whose each queue is to be, by the group's strategy."""

    group: str
    facts: Facts
    strategy: Strategy
    when: When
    salt: int

    def targets(
        self, queues: Sequence[QueueName], held: Mapping[QueueName, int]
    ) -> Steps[tuple[Mapping[QueueName, int], int]]:
        """Of each queue that is to have one the session; and the tick until which something that is
        free waits for one that isn't here, 0: nothing does. Whoever isn't here by then gets less
        for the time: what it doesn't hold is for those who are."""
        found = yield from self._among(self.facts.sessions, queues, held)
        if not self.when.awaited:
            return found, 0
        left, theirs, wake = yield from self._left(found, queues, held)
        if left:
            here = [each for each in self.facts.sessions if each.session not in self.when.awaited]
            instead = yield from self._among(here, theirs, held)
            for at, queue in enumerate(left):
                if queue in instead:
                    found[queue] = instead[queue]
                if not at % STEP:
                    yield
        return found, wake

    def _left(
        self,
        targets: Mapping[QueueName, int],
        queues: Sequence[QueueName],
        held: Mapping[QueueName, int],
    ) -> Steps[tuple[list[QueueName], list[QueueName], int]]:
        """What is free and waits for its target no longer; that and what is held by those who are
        here; and the next tick at which there is more of it."""
        left, theirs, wake, awaited = list[QueueName](), list[QueueName](), 0, self.when.awaited
        for at, queue in enumerate(queues):
            holder, until = held.get(queue, 0), awaited.get(targets.get(queue, 0))
            if holder:
                if holder not in awaited:
                    theirs.append(queue)
            elif until is not None and until > self.when.now:
                wake = min(wake or until, until)
            elif until is not None:
                left.append(queue)
                theirs.append(queue)
            if not at % STEP:
                yield
        return left, theirs, wake

    def _among(
        self,
        sessions: Sequence[Session],
        queues: Sequence[QueueName],
        held: Mapping[QueueName, int],
    ) -> Steps[dict[QueueName, int]]:
        members = yield from _members(self.group, self.facts, sessions, self.when.without_retries)
        if not members:
            return {}
        return (yield from share_out(self.strategy, Share(members, queues, held, self.salt)))


def _members(
    group: str, facts: Facts, sessions: Sequence[Session], without_retries: Collection[int]
) -> Steps[list[Member]]:
    """Each of these with the topics of which it may hold queues. What failed is for those of the
    newest version that has use for it: others may have no handler for some of it."""
    found: list[Member] = []
    own, has_own = retry_topic(group), False
    newest = _newest_taker(own, facts, sessions, without_retries)
    yield
    for at, session in enumerate(sessions):
        choices = frozenset(
            QueueName(topic, queue_id) for topic, ids in session.choices for queue_id in ids
        )
        topics = facts.takes[session.version]
        # Of a version that takes the same all are as good.
        is_older = bool(newest) and topics != facts.takes[newest]
        if session.session in without_retries or is_older:
            topics -= {own}
        if choices and own in topics and not has_own:
            # Who chooses doesn't name what the brokers make: the first who may have it has it.
            choices |= {QueueName(own, queue_id) for queue_id in range(QUEUES)}
            has_own = True
        found.append(Member(session.session, session.member, topics, choices))
        if choices or not at % STEP:
            yield
    return found


def _newest_taker(
    own: str, facts: Facts, sessions: Sequence[Session], without_retries: Collection[int]
) -> int:
    """The newest version of which a session takes what failed; 0: none does."""
    takers = (
        session.version
        for session in sessions
        if own in facts.takes[session.version] and session.session not in without_retries
    )
    return max(takers, default=0)

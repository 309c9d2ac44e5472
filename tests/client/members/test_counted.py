"""A message that kills the process that has it: found by its group, and nothing else is blamed.

Lives of members, one after the other, against the least of a broker: it knows what is finished, and
of the message at each frontier how many who had the queue vanished; from care on, only who had said
to have begun it (ADR 63).
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.services.retries import FailedMessage, verdict
from broker.services.updates import QueueOf
from broker.state.groups import Group as Agreed
from broker.state.groups import Settings
from dledger.client.members.counted import counted_concurrently, counted_in_order
from dledger.client.members.finished import Run
from dledger.client.members.member import Line, Member, Rules, Times
from dledger.client.members.process_queue import Bounds, Order, Place, ProcessQueue, Work
from dledger.client.results import Message
from dledger.records.reserved import (
    CAREFUL_AFTER,
    CAREFUL_IN_ORDER,
    GIVEN_UP_AFTER,
    GIVEN_UP_IN_ORDER,
)
from dledger.testing import make_message
from tests.scale import examples

PLACE: Final = Place("t", 1, 0)
GROUP: Final = Agreed("g", created=1, versions={0: Settings(topics=("t",))})
SPAN: Final = 8
MESSAGES: Final = 14
MOST_STEPS: Final = 2_000


class Group:
    """Queues, as the log has them, and their members' lives, each with all of them.

    Args:
        queues: how many; each has as many messages.
        poison: (queue id, offset) of what kills its process.
        unread: a queue of which nothing can be read, whoever has it; -1: none.
        fails: whether handlers raise, once for each message; not in order.
    """

    def __init__(
        self,
        order: Order,
        poison: tuple[int, int],
        chance: Random,
        *,
        queues: int = 1,
        unread: int = -1,
        max_attempts: int = 3,
        fails: bool = False,
    ) -> None:
        self.order, self.poison, self.chance = order, poison, chance
        self.max_attempts = max_attempts
        self.unread = unread
        self.fails = fails
        self.failed: list[int] = []  # what was counted of each message whose handler has raised
        self.finished: dict[int, set[int]] = {queue_id: set() for queue_id in range(queues)}
        self.failures = dict.fromkeys(range(queues), (0, 0))  # of which message, how often
        self.begun: set[int] = set()  # queues whose front is, as the log was told in this life
        self.given_up: list[tuple[int, int, int]] = []
        self.deaths: list[int] = []  # where the poison's queue had its frontier
        self.messages = [make_message("t", b"x", queue_offset=offset) for offset in range(MESSAGES)]

    def frontier(self, queue_id: int) -> int:
        return next(at for at in count() if at not in self.finished[queue_id])

    def known(self, queue_id: int) -> int:
        offset, failures = self.failures[queue_id]
        return failures if offset == self.frontier(queue_id) else 0

    @property
    def is_done(self) -> bool:
        return all(self.frontier(each) == MESSAGES for each in self.finished if each != self.unread)

    def work_off(self) -> None:
        while not self.is_done and len(self.deaths) < 100:
            self.begun.clear()
            if self.live():
                self.deaths.append(self.frontier(self.poison[0]))
                for queue_id in self.finished:
                    self.count(queue_id)

    def count(self, queue_id: int) -> None:
        """As the log does where a session ends without a goodbye."""
        front, known = self.frontier(queue_id), self.known(queue_id)
        if front < MESSAGES and (known < self.careful_from or queue_id in self.begun):
            self.failures[queue_id] = front, known + 1

    @property
    def careful_from(self) -> int:
        return CAREFUL_IN_ORDER if self.order is Order.QUEUE else CAREFUL_AFTER

    def live(self) -> bool:
        """One process; whether the poison has killed it."""
        line = Line()
        rules = Rules(order=self.order, bounds=Bounds(span=SPAN), max_attempts=self.max_attempts)
        member = Member(rules, lambda: b"token--1", {"t": line})
        member.on_stream()
        member.on_joined(1, Times(), 0.0)
        queues = [self.gain(member, queue_id) for queue_id in self.finished]
        running: list[Work] = []
        for _ in range(MOST_STEPS):
            if self.is_done:
                return False
            for queue in queues:
                self.fetch(member, queue)
            what = self.chance.random()
            if what < 0.5:
                work = member.take(line, 0.0)
                if work is None:
                    continue
                if work.queue.is_given_up(work):
                    self.give_up(member, work)
                    continue
                running.append(work)
                self.check_alone(running)
                if self.place_of(work) == self.poison:
                    return True
            elif what < 0.75 and running:
                self.end(member, running.pop(self.chance.randrange(len(running))))
            elif what < self.commits_below:
                self.commit(member)
        raise AssertionError("nothing goes on")

    commits_below = 1.0

    def gain(self, member: Member, queue_id: int) -> ProcessQueue:
        front = self.frontier(queue_id)
        runs: list[Run] = [(at, at + 1) for at in sorted(self.finished[queue_id]) if at > front]
        place = PLACE._replace(queue_id=queue_id)
        queue = member.on_gained(place, 1, front, runs, self.known(queue_id)).queue
        assert queue is not None
        return queue

    def place_of(self, work: Work) -> tuple[int, int]:
        return work.queue.place.queue_id, work.message.queue_offset

    def check_alone(self, running: list[Work]) -> None:
        """What the log takes for begun is all that anybody has in hand; and it takes whatever is in
        doubt for begun that anybody has."""
        for work in running:
            queue_id, offset = self.place_of(work)
            is_doubted = (
                offset == self.frontier(queue_id) and self.known(queue_id) >= self.careful_from
            )
            assert not is_doubted or (self.begun == {queue_id} and len(running) == 1)
        assert len(running) == 1 or not self.begun

    def fetch(self, member: Member, queue: ProcessQueue) -> None:
        if queue.place.queue_id == self.unread:
            return
        first = queue.next_offset
        part: list[Message] = self.messages[first : first + queue.room]
        queue.on_fetched(part, first + len(part), MESSAGES)
        member.on_pulled(queue)

    def give_up(self, member: Member, work: Work) -> None:
        returned = member.give_up(work)
        queue_id, offset = self.place_of(work)
        self.given_up.append((queue_id, offset, returned.failed))
        self.finished[queue_id].add(offset)
        member.on_sent_back(work)

    def end(self, member: Member, work: Work) -> None:
        """Its handler returns; or it raises, as all of them do that may fail."""
        assert self.order is Order.QUEUE or work.message.attempt == 1
        if not self.fails:
            member.succeed(work)
            return
        queue_id, offset = self.place_of(work)
        returned = member.send_back(work, is_rejected=False)
        assert returned is not None
        known = self.known(queue_id) if offset == self.frontier(queue_id) else 0
        failed = FailedMessage(QueueOf("t", 1, queue_id), 1, offset, False, returned.failed)
        self.failed.append(verdict(GROUP, failed, known).failures)
        self.finished[queue_id].add(offset)
        member.on_sent_back(work)

    def commit(self, member: Member) -> None:
        for each in member.to_commit():
            finished = self.finished[each.queue.place.queue_id]
            finished |= set(range(each.frontier))
            finished |= {at for run in each.runs for at in range(*run)}
            self.begun.discard(each.queue.place.queue_id)
            if each.begun:
                self.begun.add(each.queue.place.queue_id)
            member.on_committed(each)


@given(order=st.sampled_from([Order.KEYS, Order.QUEUE]), poison=st.integers(0, MESSAGES - 1))
@settings(max_examples=examples(60), deadline=None)
@pytest.mark.parametrize("seed", [1, 2])
def test_only_what_kills_is_given_up(order: Order, poison: int, seed: int) -> None:
    """However far each life comes: after a bounded number of lives at each place."""
    group = Group(order, (0, poison), Random(seed))
    group.work_off()
    assert [offset for _, offset, _ in group.given_up] == [poison]
    assert group.frontier(0) == MESSAGES
    for front in set(group.deaths) - {poison}:
        assert group.deaths.count(front) <= CAREFUL_AFTER
    assert group.deaths.count(poison) <= GIVEN_UP_AFTER


@given(
    order=st.sampled_from([Order.KEYS, Order.QUEUE]),
    poison=st.tuples(st.integers(0, 1), st.integers(0, MESSAGES - 1)),
    queues=st.integers(2, 4),
    max_attempts=st.integers(1, 4),
    unread=st.sampled_from([-1, 2, 3]),
    fails=st.booleans(),
    seed=st.integers(0, 100),
)
@settings(max_examples=examples(80), deadline=None)
def test_nothing_in_other_queues_is_given_up_for_what_kills(
    order: Order,
    poison: tuple[int, int],
    queues: int,
    max_attempts: int,
    unread: int,
    fails: bool,
    seed: int,
) -> None:
    """Whatever their messages' handlers take, and if nothing of a queue can be read while its
    holders die: nobody has tried what is in front of it. A handler that raises has failed once,
    however many have died with its message in front."""
    group = Group(
        order,
        poison,
        Random(seed),
        queues=queues,
        unread=unread if unread < queues else -1,
        max_attempts=max_attempts,
        fails=fails and order is not Order.QUEUE,
    )
    group.work_off()
    assert [each[:2] for each in group.given_up] == [poison]
    assert group.is_done
    assert set(group.failed) <= {1}
    # Each death where care begins later: at the poison, or in front of it.
    assert group.deaths.count(poison[1]) <= max(GIVEN_UP_AFTER, max_attempts + 1)


def member_of(line: Line, *queues: int) -> Member:
    """A member that has these queues, whose first messages have vanished with three before it."""
    member = Member(Rules(bounds=Bounds(span=SPAN)), lambda: b"token--1", {"t": line})
    member.on_stream()
    member.on_joined(1, Times(), 0.0)
    for queue_id in queues:
        gain(member, queue_id, CAREFUL_AFTER)
    return member


def gain(member: Member, queue_id: int, failures: int, messages: int = 2) -> ProcessQueue:
    place = PLACE._replace(queue_id=queue_id)
    queue = member.on_gained(place, 1, 0, [], failures).queue
    assert queue is not None
    part = [make_message("t", b"x", queue_offset=offset) for offset in range(messages)]
    queue.on_fetched(part, messages, messages)
    member.on_pulled(queue)
    return queue


def commit(member: Member) -> list[tuple[int, int, bool]]:
    """Queue, frontier, and whether its next message is begun."""
    progress = member.to_commit()
    for each in progress:
        member.on_committed(each)
    return [(each.queue.place.queue_id, each.frontier, each.begun) for each in progress]


def test_what_is_in_doubt_is_tried_while_nothing_else_is_in_hand() -> None:
    """The log is told before, and after; only then comes the next one."""
    line = Line()
    member = member_of(line, 0, 1)
    assert member.take(line, 0.0) is None
    assert member.wants_commit
    assert commit(member) == [(0, 0, True)]
    work = member.take(line, 0.0)
    assert work is not None
    assert member.take(line, 0.0) is None
    assert commit(member) == []
    member.succeed(work)
    assert member.take(line, 0.0) is None
    assert commit(member) == [(0, 1, False)]
    assert member.take(line, 0.0) is None
    assert commit(member) == [(1, 0, True)]


@pytest.mark.parametrize("is_lost", [False, True])
def test_whatever_runs_is_waited_for(*, is_lost: bool) -> None:
    """Of another queue, or of a lease that is over: it may be what kills the process."""
    line = Line()
    member = member_of(line)
    gain(member, 1, 0, messages=1)
    late = member.take(line, 0.0)
    assert late is not None
    if is_lost:
        member.on_lost(PLACE._replace(queue_id=1))
    gain(member, 0, CAREFUL_AFTER)
    assert member.take(line, 0.0) is None
    assert commit(member) == []
    member.succeed(late)
    assert member.take(line, 0.0) is None
    assert (0, 0, True) in commit(member)


@pytest.mark.parametrize("way", ["failed", "lost", "asked", "paused"])
def test_what_is_no_longer_in_hand_holds_up_nobody(way: str) -> None:
    """It failed and waits for its next attempt, or isn't this member's any more; the log is told,
    where there is anything to tell."""
    line = Line()
    member = member_of(line, 0)
    other = gain(member, 1, 0)
    assert member.take(line, 0.0) is None
    assert commit(member) == [(0, 0, True)]
    queue = member.queues[PLACE]
    if way == "failed":
        work = member.take(line, 0.0)
        assert work is not None
        member.fail(work, 0.0)
        assert commit(member) == [(0, 0, False)]
    elif way == "lost":
        member.on_lost(PLACE)
    elif way == "paused":
        queue.paused = True
        assert commit(member) == [(0, 0, False)]
    else:
        member.on_asked(PLACE, 0.0)
        assert member.take(line, 0.0) is None
        assert commit(member) == [(0, 0, False)]
    taken = [member.take(line, 0.0), member.take(line, 0.0)]
    assert other in [work.queue for work in taken if work is not None]


class Instant(Group):
    """Whoever isn't careful is dead before its first commit."""

    commits_below = 0.76

    def live(self) -> bool:
        is_careful = any(self.known(each) >= self.careful_from for each in self.finished)
        self.commits_below = 1.0 if is_careful else 0.0
        return super().live()


@given(poison=st.integers(0, SPAN - 1), seed=st.integers(0, 5))
@settings(max_examples=examples(40), deadline=None)
def test_a_poison_that_kills_at_once_kills_a_few_times(poison: int, seed: int) -> None:
    """In order: once before anybody is careful, and then each is an attempt; else as often as
    makes the next one careful, twice, and once more."""
    in_order = Instant(Order.QUEUE, (0, poison), Random(seed))
    in_order.work_off()
    assert in_order.given_up == [(0, poison, 3)]
    assert len(in_order.deaths) <= 1 + 3
    other = Instant(Order.KEYS, (0, poison), Random(seed))
    other.work_off()
    assert other.given_up == [(0, poison, GIVEN_UP_AFTER)]
    assert len(other.deaths) <= CAREFUL_AFTER + GIVEN_UP_AFTER


def test_one_who_vanished_blames_nobody_alone() -> None:
    """In order even one attempt is made by somebody who had nothing else in hand."""
    for attempts in (1, 2):
        assert not counted_in_order(0, 1, attempts).is_given_up
        assert counted_in_order(0, GIVEN_UP_IN_ORDER, attempts).is_given_up
    assert not counted_in_order(0, 500, None).is_given_up
    assert not counted_concurrently(0, GIVEN_UP_AFTER - 1).is_given_up


def test_what_is_told_is_what_handlers_see() -> None:
    """The attempt goes on where the one before left it."""
    queue = ProcessQueue(
        PLACE, 1, None, order=Order.QUEUE, bounds=Bounds(), counted=counted_in_order(0, 4, None)
    )
    assert queue.failures_of(0) == 4
    assert queue.failures_of(1) == 0

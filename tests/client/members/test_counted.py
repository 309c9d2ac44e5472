"""A message that kills the process that has it: found by its group, and nothing else is blamed.

Lives of members, one after the other, against the least of a broker: it knows what is finished, and
of the message at the frontier how many who had the queue vanished (ADR 63).
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.client.members.counted import counted_concurrently, counted_in_order
from dledger.client.members.finished import Run
from dledger.client.members.member import Line, Member, Rules, Times
from dledger.client.members.process_queue import Bounds, Order, Place, ProcessQueue, Work
from dledger.client.results import Message
from dledger.records.reserved import CAREFUL_AFTER, GIVEN_UP_AFTER, GIVEN_UP_IN_ORDER
from dledger.testing import make_message

PLACE: Final = Place("t", 1, 0)
SPAN: Final = 8
MESSAGES: Final = 14
MOST_STEPS: Final = 2_000


class Group:
    """A queue, as the log has it, and its members' lives."""

    def __init__(self, order: Order, poison: int, chance: Random, max_attempts: int = 3) -> None:
        self.order, self.poison, self.chance = order, poison, chance
        self.max_attempts = max_attempts
        self.finished: set[int] = set()
        self.failures = (0, 0)  # of which message, how often
        self.given_up: list[tuple[int, int]] = []
        self.begun: list[int] = []
        self.deaths: list[int] = []  # where the frontier was
        self.messages = [make_message("t", b"x", queue_offset=offset) for offset in range(MESSAGES)]

    @property
    def frontier(self) -> int:
        return next(at for at in count() if at not in self.finished)

    @property
    def known(self) -> int:
        offset, failures = self.failures
        return failures if offset == self.frontier else 0

    def work_off(self) -> None:
        while self.frontier < MESSAGES and len(self.deaths) < 100:
            if self.live():
                front = self.frontier
                self.failures = front, self.known + 1
                self.deaths.append(front)

    def live(self) -> bool:
        """One process; whether the poison has killed it."""
        line = Line()
        rules = Rules(order=self.order, bounds=Bounds(span=SPAN), max_attempts=self.max_attempts)
        member = Member(rules, lambda: b"token--1", {"t": line})
        member.on_stream()
        member.on_joined(1, Times(), 0.0)
        runs: list[Run] = [(at, at + 1) for at in sorted(self.finished) if at > self.frontier]
        queue = member.on_gained(PLACE, 1, self.frontier, runs, self.known).queue
        assert queue is not None
        running: list[Work] = []
        for _ in range(MOST_STEPS):
            if self.frontier == MESSAGES:
                return False
            self.fetch(member, queue)
            what = self.chance.random()
            if what < 0.5:
                work = member.take(line, 0.0)
                if work is None:
                    continue
                if queue.is_given_up(work):
                    self.give_up(member, work)
                    continue
                self.begun.append(work.message.queue_offset)
                if work.message.queue_offset == self.poison:
                    return True
                running.append(work)
            elif what < 0.75 and running:
                member.succeed(running.pop(self.chance.randrange(len(running))))
            elif what < self.commits_below:
                self.commit(member)
        raise AssertionError("nothing goes on")

    commits_below = 1.0

    def fetch(self, member: Member, queue: ProcessQueue) -> None:
        first = queue.next_offset
        part: list[Message] = self.messages[first : first + queue.room]
        queue.on_fetched(part, first + len(part), MESSAGES)
        member.on_pulled(queue)

    def give_up(self, member: Member, work: Work) -> None:
        returned = member.give_up(work)
        self.given_up.append((work.message.queue_offset, returned.failed))
        self.finished.add(work.message.queue_offset)
        member.on_sent_back(work)

    def commit(self, member: Member) -> None:
        for each in member.to_commit():
            self.finished |= set(range(each.frontier))
            self.finished |= {at for run in each.runs for at in range(*run)}
            member.on_committed(each)


@given(order=st.sampled_from([Order.KEYS, Order.QUEUE]), poison=st.integers(0, MESSAGES - 1))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("seed", [1, 2])
def test_only_what_kills_is_given_up(order: Order, poison: int, seed: int) -> None:
    """However far each life comes: after a bounded number of lives at each place."""
    group = Group(order, poison, Random(seed))
    group.work_off()
    assert [offset for offset, _ in group.given_up] == [poison]
    assert group.frontier == MESSAGES
    for front in set(group.deaths) - {poison}:
        assert group.deaths.count(front) <= CAREFUL_AFTER
    assert group.deaths.count(poison) <= GIVEN_UP_AFTER


class Instant(Group):
    """Whoever isn't careful is dead before its first commit."""

    commits_below = 0.76

    def live(self) -> bool:
        self.commits_below = 1.0 if self.known >= self.careful_from else 0.0
        return super().live()

    @property
    def careful_from(self) -> int:
        return 1 if self.order is Order.QUEUE else CAREFUL_AFTER


@given(poison=st.integers(0, SPAN - 1), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_a_poison_that_kills_at_once_kills_a_few_times(poison: int, seed: int) -> None:
    """In order: once before anybody is careful, and then each is an attempt; else as often as
    makes the next one careful, twice, and once more."""
    in_order = Instant(Order.QUEUE, poison, Random(seed))
    in_order.work_off()
    assert in_order.given_up == [(poison, 3)]
    assert len(in_order.deaths) <= 1 + 3
    other = Instant(Order.KEYS, poison, Random(seed))
    other.work_off()
    assert other.given_up == [(poison, GIVEN_UP_AFTER)]
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

"""Failures of the message in front of a queue, in the state: counted once, whoever holds it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings as running
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.errors import BrokerError
from broker.services.retries import FailedMessage, Verdict, verdict
from broker.services.updates import QueueOf
from broker.state.attempts import MAX_FAILURES, Attempts, Failed
from broker.state.groups import Group, Settings
from broker.state.leases import Place
from broker.state.refusals import CountedAlready, FinishedAlready, LeaseLost, Malformed
from dledger.level import DELIVERY_LEVEL
from dledger.records.reserved import CAREFUL_AFTER, GIVEN_UP_AFTER
from dledger.wire.commands_pb2 import (
    Command,
    CommitLeasesCommand,
    EndSessionsCommand,
    FailMessageCommand,
    GroupSettings,
    JoinGroupCommand,
    MoveGroupCommand,
    QueueProgress,
    QueueStart,
    TopicProgress,
)
from tests.broker.test_compound import delete
from tests.broker.test_retrying import Failing, of_queue
from tests.scale import examples

MESSAGES = 10


class Counting(Failing):
    """The same log, with what is said of failures."""

    def failed(self, offset: int, failures: int, *, epoch: int | None = None) -> Command:
        return Command(
            fail_message=FailMessageCommand(
                group="g",
                session=self.session,
                topic="t",
                incarnation=self.t,
                queue_id=0,
                epoch=self.epoch if epoch is None else epoch,
                offset=offset,
                failures=failures,
            )
        )

    def end_session(self, *, vanished: bool) -> None:
        gone = [self.session]
        command = EndSessionsCommand(sessions=gone, vanished=gone if vanished else [])
        self.command(Command(end_sessions=command))

    def come_back(self, token: bytes = b"token--2") -> None:
        wish = GroupSettings(topics=["t"], orderly=self.is_orderly)
        join = JoinGroupCommand(group="g", member="m", token=token, settings=wish)
        self.session = self.command(Command(join_group=join))
        self.epoch = self.grant()

    @property
    def known(self) -> tuple[int, int] | None:
        """Which message, and how often it has failed."""
        found = self.machine.attempts.places().get(Place("g", self.t, 0))
        return None if found is None else found[:2]

    def begin(self, frontier: int, *, begun: bool = True) -> None:
        """The message there is begun, or not any more, and all before it finished."""
        queue = QueueProgress(queue_id=0, epoch=self.epoch, frontier=frontier, begun=begun)
        topic = TopicProgress(topic="t", incarnation=self.t, queues=[queue])
        done = CommitLeasesCommand(group="g", session=self.session, topics=[topic])
        self.command(Command(commit_leases=done))


def test_a_failure_is_counted_once_and_finishes_what_is_before_it() -> None:
    log = Counting()
    assert log.units(([], [log.failed(2, 1)])) == [None]
    assert log.finished() == {0, 1}
    assert log.known == (2, 1)
    assert log.units(([], [log.failed(2, 1)])) == [CountedAlready(0, 1)]
    assert log.units(([], [log.failed(2, 3)])) == [CountedAlready(0, 1)]
    assert log.units(([], [log.failed(2, 2)])) == [None]
    assert log.units(([], [log.failed(1, 1)])) == [FinishedAlready(0, 1)]
    assert log.known == (2, 2)
    assert log.restored().attempts == log.machine.attempts


def test_only_who_holds_the_queue_counts() -> None:
    log = Counting()
    (refusal,) = log.units(([], [log.failed(0, 1, epoch=log.epoch - 1)]))
    assert of_queue(refusal) == LeaseLost(0, log.epoch - 1)
    (refusal,) = log.units(([log.waiting()], [log.failed(0, 1)]))
    assert isinstance(refusal, Malformed)
    assert log.known is None


def test_who_vanishes_counts_for_the_message_in_front() -> None:
    """And whoever has the queue next goes on from there; a goodbye says that nothing was wrong."""
    log = Counting()
    log.commit(4, 2, 1)
    log.end_session(vanished=True)
    assert log.known == (4, 1)
    log.come_back()
    assert log.units(([], [log.failed(4, 2)])) == [None]
    log.end_session(vanished=False)
    assert log.known == (4, 2)
    log.come_back()
    log.come_back(b"token--3")  # its member began anew, and never said that the last one was over
    assert log.known == (4, 3)


def test_from_care_on_only_what_was_begun_is_to_blame() -> None:
    """A member has many queues, and what killed it was in one of them: the messages in front of
    the others, which it never had in hand, aren't counted out for that."""
    log = Counting()
    for number in range(2 * CAREFUL_AFTER):
        log.end_session(vanished=True)
        assert log.known == (0, min(number + 1, CAREFUL_AFTER))
        log.come_back(b"again%03d" % number)
    log.begin(0)
    log.end_session(vanished=False)
    log.come_back(b"token--2")
    log.end_session(vanished=True)
    assert log.known == (0, CAREFUL_AFTER), "another holder had said so"
    log.come_back(b"token--3")
    log.begin(0)
    assert log.restored().attempts == log.machine.attempts
    log.end_session(vanished=True)
    assert log.known == (0, CAREFUL_AFTER + 1)
    log.come_back(b"token--4")
    log.begin(0)
    log.begin(0, begun=False)
    log.end_session(vanished=True)
    assert log.known == (0, CAREFUL_AFTER + 1), "it was in nobody's hand any more"
    assert log.restored().attempts == log.machine.attempts


def test_in_order_what_was_begun_is_to_blame_from_the_second_time_on() -> None:
    """There who comes next is careful at once; what failed and stays isn't begun any more."""
    log = Counting(is_orderly=True)
    for _ in range(3):
        log.end_session(vanished=True)
        log.come_back(b"token-%02d" % log.session)
    assert log.known == (0, 1)
    log.begin(0)
    assert log.units(([], [log.failed(0, 2)])) == [None]
    log.end_session(vanished=True)
    assert log.known == (0, 2)
    log.come_back()
    log.begin(0)
    log.end_session(vanished=True)
    assert log.known == (0, 3)


def test_nobody_is_blamed_where_no_message_is() -> None:
    log = Counting()
    log.commit(MESSAGES)
    log.end_session(vanished=True)
    assert log.known is None


@pytest.mark.parametrize("way", ["commit", "send back", "move", "back", "delete"])
def test_a_frontier_that_goes_elsewhere_leaves_nothing_counted(way: str) -> None:
    log = Counting()
    log.units(([], [log.failed(3, 1)]))
    match way:
        case "commit":
            log.commit(5)
        case "send back":
            log.units(([log.waiting()], [log.back(3)]))
        case "delete":
            log.units(([], [delete(log.t)]))
        case _:
            at = 7 if way == "move" else 0
            move = MoveGroupCommand(group="g", topic="t", incarnation=log.t)
            move.queues.append(QueueStart(queue_id=0, offset=at))
            log.command(Command(move_group=move))
    assert log.known is None
    assert log.restored().attempts == log.machine.attempts


def test_before_its_level_nothing_is_counted() -> None:
    log = Counting(level=DELIVERY_LEVEL)
    (refusal,) = log.units(([], [log.failed(0, 1)]))
    assert isinstance(refusal, Malformed)
    log.end_session(vanished=True)
    assert log.known is None
    assert not log.machine.attempts.snapshot()


class Sealed(dict[Any, Any]):
    """Nobody looks at all that is in it."""

    def __iter__(self) -> Any:
        raise AssertionError("all of it is looked at")


def test_a_topic_that_is_deleted_costs_what_was_counted_in_it() -> None:
    """Hundreds may be deleted by one entry, in one turn."""
    attempts, restored = Attempts(), Attempts()
    places = [Place(group, incarnation, 0) for group in "gh" for incarnation in range(1, 9)]
    for place in places:
        attempts.fail(place, 0)
    (section,) = attempts.snapshot()
    restored.restore(section.name, section.version, section.payloads)
    for each in (attempts, restored):
        each._failed = Sealed(each._failed)
        each.on_topic_deleted(3)
        each.on_topic_deleted(9)
        each._failed = dict(each._failed.items())
        assert set(each.places()) == {place for place in places if place.incarnation != 3}
        each.check_invariants(1)


def test_what_fails_for_ever_is_counted_to_a_bound() -> None:
    attempts, place = Attempts(), Place("g", 1, 0)
    attempts._failed[place] = Failed(0, MAX_FAILURES - 1)
    assert attempts.refusal_of(place, Failed(0, MAX_FAILURES)) is None
    for _ in range(2):
        attempts.fail(place, 0)
    assert attempts.of(place, 0) == MAX_FAILURES
    wanted = Failed(0, MAX_FAILURES + 1)
    assert attempts.refusal_of(place, wanted) == CountedAlready(0, MAX_FAILURES)


class Anything(RuleBasedStateMachine):
    """Failures, commits, copies and ends in any order, several to an entry: the count is that of
    the one message at the frontier."""

    @initialize()
    def begin(self) -> None:
        self.log = Counting()
        self.counts: dict[int, int] = {}
        self.done: set[int] = set()
        self.tokens = 2
        self.is_begun = False  # as this lease last said of the front, if that had failed by then

    @property
    def front(self) -> int:
        return next(at for at in range(MESSAGES + 1) if at not in self.done)

    @rule(offsets=st.lists(st.integers(0, MESSAGES), min_size=1, max_size=3, unique=True))
    def fail(self, offsets: list[int]) -> None:
        log = self.log
        wanted = [(at, self.counts.get(at, 0) + 1) for at in offsets]
        found = log.units(*(([], [log.failed(*each)]) for each in wanted))
        taken = [at for (at, _), refusal in zip(wanted, found, strict=True) if refusal is None]
        assert taken == [at for at in offsets if at < MESSAGES and at not in self.done]
        if taken:
            # Each finishes what is before it; the last one of them is the one that counts.
            self.done |= set(range(max(taken)))
            front = self.front
            counted = {at: self.counts.get(at, 0) + 1 for at in taken if at == front}
            self.counts = counted or self._kept()
            self.is_begun = False

    @rule(stale=st.integers(0, 3))
    def fail_wrongly(self, stale: int) -> None:
        at = self.front
        known = self.counts.get(at, 0)
        if stale != 1 and at < MESSAGES:
            assert self.log.units(([], [self.log.failed(at, known + stale)])) != [None]

    @rule(offset=st.integers(0, MESSAGES - 1))
    def send_back(self, offset: int) -> None:
        if self.log.units(([self.log.waiting()], [self.log.back(offset)])) == [None]:
            self.done.add(offset)
            self.counts = self._kept()

    @rule(ahead=st.integers(0, MESSAGES), begun=st.booleans())
    def commit(self, ahead: int, begun: bool) -> None:
        """Mostly of what is finished already: the one in front is begun, or isn't any more."""
        frontier = ahead if ahead % 3 == 0 else self.front
        self.log.begin(frontier, begun=begun)
        self.done |= set(range(frontier))
        self.counts = self._kept()
        self.is_begun = begun and bool(self.counts)

    @rule(vanished=st.booleans(), says=st.booleans())
    def another(self, vanished: bool, says: bool) -> None:
        self.tokens += 1
        if says:
            self.log.end_session(vanished=vanished)
        known = self.counts.get(self.front, 0)
        is_blamed = known < CAREFUL_AFTER or self.is_begun
        if (vanished or not says) and self.front < MESSAGES and is_blamed:
            self.counts = {self.front: known + 1}
        self.log.come_back(b"%08d" % self.tokens)
        self.is_begun = False

    def _kept(self) -> dict[int, int]:
        self.is_begun = self.is_begun and self.front in self.counts
        return {at: count for at, count in self.counts.items() if at == self.front}

    @invariant()
    def holds(self) -> None:
        assert self.log.finished() == self.done
        known = self.log.known
        assert ({} if known is None else {known[0]: known[1]}) == self.counts
        restored = self.log.restored()
        assert restored.attempts == self.log.machine.attempts
        restored.check_invariants()


TestAnything = Anything.TestCase
Anything.TestCase.settings = running(
    max_examples=examples(40), stateful_step_count=20, deadline=None
)


# --- what becomes of a failed message ------------------------------------------------------------


def _failed(failed: int, *, is_rejected: bool = False) -> FailedMessage:
    return FailedMessage(QueueOf("t", 1, 0), 1, 0, is_rejected, failed)


def _group(*, is_orderly: bool, max_attempts: int = 0) -> Group:
    settings = Settings(is_orderly=is_orderly, topics=("t",), max_attempts=max_attempts)
    return Group("g", created=1, versions={0: settings})


@pytest.mark.parametrize(
    ("max_attempts", "known", "told", "expected"),
    [
        (0, 0, 1, Verdict(1, stays=True)),
        (0, 90, 91, Verdict(91, stays=True)),
        (3, 1, 2, Verdict(2, stays=True)),
        (3, 2, 3, Verdict(3, is_over=True)),
        (3, 2, 2, Verdict(2, stays=True)),  # its answer was lost
        (3, 3, 3, Verdict(3, is_over=True)),  # not tried: who had it vanished
        (1, 0, 1, Verdict(1, is_over=True)),
        (1, 1, 1, Verdict(1, stays=True)),  # one who vanished may have had another one in hand
        (1, 2, 2, Verdict(2, is_over=True)),
    ],
)
def test_in_order_a_message_stays_until_its_attempts_are_over(
    max_attempts: int, known: int, told: int, expected: Verdict
) -> None:
    group = _group(is_orderly=True, max_attempts=max_attempts)
    assert verdict(group, _failed(told), known) == expected
    assert verdict(group, _failed(told, is_rejected=True), known) == Verdict(known + 1)


def test_elsewhere_what_killed_its_holders_goes_and_those_are_counted() -> None:
    group = _group(is_orderly=False)
    enough = GIVEN_UP_AFTER
    assert verdict(group, _failed(0), enough) == Verdict(enough + 1)
    assert verdict(group, _failed(enough), enough) == Verdict(enough)
    with pytest.raises(BrokerError, match="wasn't tried"):
        verdict(group, _failed(enough - 1), enough - 1)


@pytest.mark.parametrize("known", range(GIVEN_UP_AFTER))
def test_elsewhere_what_is_tried_has_failed_once_whatever_its_holders_died_of(known: int) -> None:
    """The log counts their ends for all fronts. The first failure makes no dead letter."""
    group = _group(is_orderly=False, max_attempts=2)
    assert verdict(group, _failed(0), known) == Verdict(1)
    assert verdict(group, _failed(0, is_rejected=True), known) == Verdict(1)

"""Failed messages in the state: finished with a copy or not at all, once, and due when they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import settings as running
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.errors import ErrorCode
from broker.services.refused import resend_refused
from broker.state.compound import UnitRefusal
from broker.state.leases import MAX_RANGES, Place
from broker.state.machine import StateMachine
from broker.state.refusals import (
    FinishedAlready,
    LeaseLost,
    LevelMoved,
    Malformed,
    NotDue,
    OffsetOutOfRange,
    PartlyRefused,
    SessionUnknown,
    TooManyRanges,
    TopicReplaced,
)
from broker.state.retries import Queue, Retries
from dledger.level import DELIVERY_LEVEL, KNOWN_LEVEL
from dledger.records.reserved import LEVELS, SCHEDULE_TOPIC
from dledger.wire.commands_pb2 import (
    Command,
    CommitLeasesCommand,
    EndSessionsCommand,
    FireDelayedCommand,
    GrantLeasesCommand,
    GroupSettings,
    JoinGroupCommand,
    QueueGrant,
    QueueProgress,
    ResendCommand,
    SendBackCommand,
    TopicGrants,
    TopicProgress,
)
from tests.broker.test_compound import Log, Placed, delete
from tests.scale import examples

RETRY, DEAD = "%RETRY%g", "%DLQ%g"
OWN_UNIT = tuple[Sequence[Placed], Sequence[Command]]


class Failing(Log):
    """A log in which group g has queue 0 of `t`, with so many messages."""

    def __init__(
        self, messages: int = 10, level: int = KNOWN_LEVEL, *, is_orderly: bool = False
    ) -> None:
        super().__init__(level)
        self.is_orderly = is_orderly
        self.t = self.topic()
        self.schedule = self.topic(SCHEDULE_TOPIC, LEVELS)
        self.retry, self.dead = self.topic(RETRY, 1), self.topic(DEAD, 1)
        self.units(([Placed(0, *[b"m"] * messages, incarnation=self.t)], []))
        wish = GroupSettings(topics=["t"], orderly=is_orderly)
        join = JoinGroupCommand(group="g", member="m", token=b"token--1", settings=wish)
        self.session = self.command(Command(join_group=join))
        self.epoch = self.grant(starts=(0, 0))

    def end(self, topic: str, queue_id: int = 0) -> int:
        return self.machine.topics[topic].next_offsets[queue_id]

    def grant(self, *, former: int = 0, starts: Sequence[int] = ()) -> int:
        grants = [QueueGrant(queue_id=0, session=self.session, former_epoch=former)]
        topic = TopicGrants(topic="t", incarnation=self.t, starts=starts, grants=grants)
        return self.command(Command(grant_leases=GrantLeasesCommand(group="g", topics=[topic])))

    def commit(self, frontier: int, *finished: int) -> None:
        queue = QueueProgress(
            queue_id=0, epoch=self.epoch, frontier=frontier, finished=list(finished)
        )
        topic = TopicProgress(topic="t", incarnation=self.t, queues=[queue])
        command = CommitLeasesCommand(group="g", session=self.session, topics=[topic])
        self.command(Command(commit_leases=command))

    def finished(self) -> set[int]:
        place = Place("g", self.t, 0)
        frontier = self.machine.offsets.of("g", "t")[0]
        ranges = self.machine.leases.of(place).finished
        return {*range(frontier), *(at for each in ranges for at in range(*each))}

    def back(self, offset: int, *, epoch: int | None = None, session: int = 0) -> Command:
        return Command(
            send_back=SendBackCommand(
                group="g",
                session=session or self.session,
                topic="t",
                incarnation=self.t,
                queue_id=0,
                epoch=self.epoch if epoch is None else epoch,
                offset=offset,
            )
        )

    def waiting(self, level: int = 3, ahead: int = 0) -> Placed:
        base = self.end(SCHEDULE_TOPIC, level - 1) + ahead
        return Placed(
            base, b"m", topic=SCHEDULE_TOPIC, queue_id=level - 1, incarnation=self.schedule
        )

    def buried(self) -> Placed:
        return Placed(self.end(DEAD), b"m", topic=DEAD, incarnation=self.dead)

    def fire(self, first: int, end: int, *, level: int = 3, due_ms: int = 1_000) -> OWN_UNIT:
        copies = [b"m"] * (end - first)
        command = FireDelayedCommand(
            incarnation=self.schedule, queue_id=level - 1, first=first, end=end, due_ms=due_ms
        )
        batch = Placed(self.end(RETRY), *copies, topic=RETRY, incarnation=self.retry)
        return ([batch] if copies else [], [Command(fire_delayed=command)])

    def resend(self, offset: int) -> OWN_UNIT:
        command = ResendCommand(topic=DEAD, incarnation=self.dead, queue_id=0, offset=offset)
        return [Placed(self.end("t"), b"m", incarnation=self.t)], [Command(resend=command)]

    def restored(self) -> StateMachine:
        return StateMachine.restore(self.machine.snapshot(), self.files, options=self.options)


def of_queue(refusal: UnitRefusal | None) -> object:
    assert isinstance(refusal, PartlyRefused)
    (queue,) = refusal.queues
    return queue.why


def test_a_failed_message_is_finished_by_the_unit_that_copies_it() -> None:
    log = Failing()
    assert log.units(([log.waiting()], [log.back(3)])) == [None]
    assert log.finished() == {3}
    assert log.end(SCHEDULE_TOPIC, 2) == 1
    assert log.units(([log.buried()], [log.back(0)])) == [None]
    assert log.finished() == {0, 3}
    assert log.machine.offsets.of("g", "t")[0] == 1


def test_sent_back_again_it_is_copied_once() -> None:
    """What a commit finished before isn't copied either; the refused copy is void."""
    log = Failing()
    log.commit(2)
    assert log.units(([log.waiting()], [log.back(3)])) == [None]
    assert log.units(([log.waiting()], [log.back(3)])) == [FinishedAlready(0, 3)]
    assert log.units(([log.waiting()], [log.back(1)])) == [FinishedAlready(0, 1)]
    assert log.voids(2, SCHEDULE_TOPIC).count(False) == 1


def test_nobody_sends_back_by_another_lease() -> None:
    log = Failing()
    assert of_queue(log.units(([log.waiting()], [log.back(0, epoch=7)]))[0]) == LeaseLost(0, 7)
    assert log.units(([log.waiting()], [log.back(0, session=9)])) == [SessionUnknown(9)]
    former, log.epoch = log.epoch, log.grant(former=log.epoch)
    lost = log.units(([log.waiting()], [log.back(0, epoch=former)]))[0]
    assert of_queue(lost) == LeaseLost(0, former)
    log.command(Command(end_sessions=EndSessionsCommand(sessions=[log.session])))
    assert log.units(([log.waiting()], [log.back(0)])) == [SessionUnknown(log.session)]
    assert log.finished() == set()
    assert all(log.voids(2, SCHEDULE_TOPIC))


def test_nothing_is_finished_without_its_copy() -> None:
    """No copy, two, or one elsewhere: neither is anything finished nor a copy left."""
    log = Failing()
    elsewhere = Placed(10, b"m", incarnation=log.t)
    others = [[], [log.waiting(), log.waiting(4)], [elsewhere]]
    for batches in others:
        (refusal,) = log.units((batches, [log.back(0)]))
        assert isinstance(refusal, Malformed)
    assert log.units(([log.waiting(ahead=0)], [log.back(10 + 5)])) == [OffsetOutOfRange("t", 0, 15)]
    assert log.finished() == set()


def test_finished_ranges_stay_bounded() -> None:
    """Units of one entry count each other's; the queue's frontier may always be sent back."""
    log = Failing(messages=2 * MAX_RANGES + 10)
    log.commit(0, *[1, 1] * (MAX_RANGES - 1))
    units = [([log.waiting(ahead=n)], [log.back(2 * MAX_RANGES + 2 * n)]) for n in range(2)]
    first, second = log.units(*units)
    assert first is None
    assert of_queue(second) == TooManyRanges(MAX_RANGES)
    assert log.units(([log.waiting()], [log.back(0)])) == [None]


def test_what_is_due_moves_once_and_not_early() -> None:
    log = Failing()
    for offset in range(3):
        log.units(([log.waiting()], [log.back(offset)]))
    late = log.machine.append_time_ms + 1_000
    assert log.units(log.fire(0, 1, due_ms=late)) == [NotDue(2, late)]
    assert log.units(log.fire(1, 2)) == [LevelMoved(2, 0)]
    assert log.units(log.fire(0, 2)) == [None]
    assert log.units(log.fire(0, 2)) == [LevelMoved(2, 2)]
    assert log.units(log.fire(2, 2)) == [LevelMoved(2, 2)]
    assert log.units(log.fire(2, 4)) == [OffsetOutOfRange(SCHEDULE_TOPIC, 2, 4)]
    queue = Queue(log.schedule, 2)
    assert log.machine.retries.moved_to(queue) == 2
    assert log.voids(0, RETRY).count(False) == 2
    assert log.restored().retries == log.machine.retries


def test_more_than_is_due_is_never_copied() -> None:
    log = Failing()
    log.units(([log.waiting()], [log.back(0)]))
    _, commands = log.fire(0, 1)
    too_many = Placed(0, b"m", b"m", topic=RETRY, incarnation=log.retry)
    elsewhere = Placed(10, b"m", incarnation=log.t)
    for wrong in (too_many, elsewhere):
        (refusal,) = log.units(([wrong], commands))
        assert isinstance(refusal, Malformed)
    assert log.machine.retries.moved_to(Queue(log.schedule, 2)) == 0


def test_a_dead_letter_is_sent_again_once() -> None:
    log = Failing()
    log.units(([log.buried()], [log.back(0)]))
    assert log.units(log.resend(0)) == [None]
    assert log.units(log.resend(0)) == [FinishedAlready(0, 0)]
    assert log.units(log.resend(1)) == [OffsetOutOfRange(DEAD, 0, 1)]
    assert log.machine.retries.was_resent(Queue(log.dead, 0), 0)
    assert log.restored().retries == log.machine.retries


def test_what_was_sent_again_is_bounded() -> None:
    retries = Retries(max_resent=2)
    queue = Queue(1, 0)
    for offset in (0, 2):
        assert retries.refusal_of_resend(queue, offset, 0) is None
        retries.resend(queue, offset)
    assert retries.refusal_of_resend(queue, 4, 0) == TooManyRanges(2)


def test_who_can_send_no_dead_letter_again_is_told_why() -> None:
    """It has nothing to do with what a group has finished; the metric says the same."""
    log = Failing()
    log.units(([log.buried()], [log.back(0)]))
    log.machine.retries.max_resent = 0
    (refusal,) = log.units(log.resend(0))
    assert refusal is not None
    told = resend_refused(refusal)
    assert told.code is ErrorCode.LIMIT_REACHED
    assert "dead letters" in str(told)
    assert "finished" not in str(told)
    (before,) = log.units(log.resend(1))
    assert before is not None
    assert resend_refused(before).code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.machine.statistics().resent_ranges == 0
    log.machine.retries.max_resent = 1
    assert log.units(log.resend(0)) == [None]
    assert log.machine.statistics().resent_ranges == 1


@given(
    resent=st.lists(st.integers(0, 40), max_size=60, unique=True),
    asked=st.integers(0, 41),
)
def test_ranges_of_what_was_sent_again_are_those_of_the_offsets(
    resent: list[int], asked: int
) -> None:
    """In whatever order they were sent again."""
    retries, queue = Retries(), Queue(7, 0)
    for offset in resent:
        assert not retries.was_resent(queue, offset)
        retries.resend(queue, offset)
    retries.check_invariants()
    assert {each for first, end in retries.resent(queue) for each in range(first, end)} == set(
        resent
    )
    assert retries.was_resent(queue, asked) == (asked in resent)


def test_a_topic_that_is_deleted_costs_what_was_sent_again_of_it() -> None:
    """Hundreds may be deleted by one entry, in one turn."""
    retries, restored = Retries(), Retries()
    for incarnation in range(1, 9):
        retries.resend(Queue(incarnation, 0), 5)
        retries.resend(Queue(incarnation, 1), 7)
    (section,) = retries.snapshot()
    restored.restore(section.name, section.version, section.payloads)

    class Sealed(dict[Queue, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("all of it is looked at")

    for each in (retries, restored):
        each._resent = Sealed(each._resent)
        each.on_topic_deleted(3)
        each._resent = dict(each._resent.items())
        assert {queue.incarnation for queue in each.places()} == {1, 2, 4, 5, 6, 7, 8}
        each.check_invariants()


def test_one_more_of_many_that_were_sent_again_looks_at_few() -> None:
    """An operator who sends every other one again is a range for each: each is applied in a moment
    all the same, on every member."""
    retries, queue = Retries(), Queue(7, 0)
    many = tuple((offset, offset + 1) for offset in range(0, 2_000, 2))
    looked: list[int] = []

    class Counted(tuple[tuple[int, int], ...]):
        def __getitem__(self, at: Any) -> Any:
            looked.append(1)
            return super().__getitem__(at)

        def __iter__(self) -> Any:
            looked.append(len(self))
            return super().__iter__()

    retries._resent[queue], retries._ranges = Counted(many), len(many)
    assert retries.refusal_of_resend(queue, 1_001, 0) is None
    retries.resend(queue, 1_001)
    assert sum(looked) < 30
    assert len(retries.resent(queue)) == len(many) - 1
    retries.check_invariants()


def test_a_topic_that_goes_takes_its_progress_along() -> None:
    log = Failing()
    log.units(([log.waiting()], [log.back(0)]))
    log.units(log.fire(0, 1))
    log.units(([], [delete(log.schedule, SCHEDULE_TOPIC)]))
    former, log.schedule = log.schedule, log.topic(SCHEDULE_TOPIC, LEVELS)
    log.units(([log.waiting()], [log.back(1)]))
    _, commands = log.fire(0, 1)
    commands[0].fire_delayed.incarnation = former
    assert log.units(([], commands)) == [TopicReplaced(SCHEDULE_TOPIC, former, log.schedule)]
    assert log.units(log.fire(0, 1)) == [None]


def test_before_its_level_nothing_is_sent_back() -> None:
    """And nobody's attempts are other than programs before it have them."""
    log = Failing(level=DELIVERY_LEVEL - 1)
    (refusal,) = log.units(([log.waiting()], [log.back(0)]))
    assert isinstance(refusal, Malformed)
    for level, attempts in ((DELIVERY_LEVEL - 1, 0), (DELIVERY_LEVEL, 5)):
        log = Failing(level=level)
        wish = GroupSettings(topics=["t"], max_attempts=5)
        log.command(
            Command(
                join_group=JoinGroupCommand(
                    group="other", member="m", token=b"token--1", settings=wish
                )
            )
        )
        group = log.machine.groups.get("other")
        assert group is not None
        assert group.settings.max_attempts == attempts
        assert log.restored().groups == log.machine.groups


class Anything(RuleBasedStateMachine):
    """Units in any order, several to an entry: what is finished has one cause, a commit or a copy,
    and what has waited is moved in order, each once."""

    @initialize()
    def begin(self) -> None:
        self.log = Failing()
        self.copied: list[int] = []
        self.committed: set[int] = set()
        self.moved = 0
        self.again: set[int] = set()

    @rule(offsets=st.lists(st.integers(0, 11), min_size=1, max_size=3), stale=st.booleans())
    def send_back(self, offsets: list[int], stale: bool) -> None:
        log = self.log
        epoch = log.epoch - stale
        units: list[OWN_UNIT] = [
            ([log.waiting(ahead=n)], [log.back(offset, epoch=epoch)])
            for n, offset in enumerate(offsets)
        ]
        for offset, refusal in zip(offsets, log.units(*units), strict=True):
            if refusal is None:
                self.copied.append(offset)

    @rule(frontier=st.integers(0, 10))
    def commit(self, frontier: int) -> None:
        self.log.commit(frontier)
        self.committed |= set(range(frontier)) - set(self.copied)

    @rule()
    def another_epoch(self) -> None:
        self.log.epoch = self.log.grant(former=self.log.epoch)

    @rule(first=st.integers(0, 6), count=st.integers(0, 3), early=st.booleans())
    def fire(self, first: int, count: int, early: bool) -> None:
        log = self.log
        due_ms = log.machine.append_time_ms + (60_000 if early else 0)
        (refusal,) = log.units(log.fire(first, first + count, due_ms=due_ms))
        if refusal is None:
            assert not early
            assert first == self.moved
            self.moved = first + count

    @rule(offset=st.integers(0, 11))
    def bury(self, offset: int) -> None:
        log = self.log
        if log.units(([log.buried()], [log.back(offset)])) == [None]:
            self.copied.append(offset)

    @rule(offset=st.integers(0, 3))
    def resend(self, offset: int) -> None:
        if self.log.units(self.log.resend(offset)) == [None]:
            assert offset not in self.again
            self.again.add(offset)

    @invariant()
    def holds(self) -> None:
        log = self.log
        assert len(self.copied) == len(set(self.copied)), "two copies of one failure"
        assert log.finished() == set(self.copied) | self.committed
        waiting, dead = log.voids(2, SCHEDULE_TOPIC), log.voids(0, DEAD)
        assert waiting.count(False) + dead.count(False) == len(self.copied)
        assert log.machine.retries.moved_to(Queue(log.schedule, 2)) == self.moved
        assert log.voids(0, RETRY).count(False) == self.moved
        restored = log.restored()
        assert restored.retries == log.machine.retries
        assert restored.leases == log.machine.leases


TestAnything = Anything.TestCase
Anything.TestCase.settings = running(
    max_examples=examples(60), stateful_step_count=25, deadline=None
)

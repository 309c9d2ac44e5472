"""Whatever a member is told, in whatever order: what it may hand out and commit, held by a model.

Hypothesis plays the leader, the clock and the handlers. The model knows what is in each queue, what
the member was told, and what its handlers have returned from. Checked at each step: nothing is
handed out of a queue that is asked for, lost or of a former epoch, nor after two thirds of a
session, nor twice at a time, nor what was finished; messages of one key go one by one, and before
their first failure in order; a commit names what is finished and nothing else, and always what it
named before. At the end, when nothing fails any more, everything is finished: none was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dledger.client.errors import MemberReplaced, SessionEnded
from dledger.client.members.finished import MAX_RUNS, Run
from dledger.client.members.member import Line, Member, Progress, Rules, Standing, Times
from dledger.client.members.process_queue import Bounds, Held, Order, Place, ProcessQueue, Work
from dledger.client.results import Message
from dledger.testing import make_message
from tests.scale import examples

QUEUES: Final = 2
TIMES: Final = Times(heartbeat_s=3, session_s=9, release_s=3)
BOUNDS: Final = Bounds(messages=8, bytes=10_000, span=12)
DELAY_S: Final = 5.0
RESULTS: Final = ("done", "done", "raised", "unbegun")
KEYS: Final = st.lists(st.sampled_from([None, "a", "b"]), max_size=9)


@dataclass
class Log:
    """A queue: its messages, what the group has finished, and what our member was told."""

    messages: list[Message] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)  # committed by whoever had it
    named: set[int] = field(default_factory=set)  # above the frontier, in a commit of this epoch
    epoch: int = 0  # ours; 0: somebody else has it
    is_asked: bool = False
    succeeded: set[int] = field(default_factory=set)  # handlers returned, under this epoch
    begun: set[int] = field(default_factory=set)  # handed out at least once, under this epoch
    failed: set[int] = field(default_factory=set)
    running: dict[int, Work] = field(default_factory=dict)
    untold: set[int] = field(default_factory=set)  # handed out since the application was told

    def forget(self) -> None:
        """Our lease is over."""
        self.epoch, self.is_asked = 0, False
        for of in (self.succeeded, self.begun, self.failed, self.named, self.untold):
            of.clear()
        self.running = {}

    @property
    def frontier(self) -> int:
        return next(at for at in count() if at not in self.finished)

    @property
    def runs(self) -> list[Run]:
        found: list[Run] = []
        for at in sorted(at for at in self.finished if at > self.frontier):
            if found and found[-1][1] == at:
                found[-1] = (found[-1][0], at + 1)
            else:
                found.append((at, at + 1))
        return found


class Leader(RuleBasedStateMachine):
    """One member of a group that reads topic `t`."""

    @initialize(in_order=st.booleans(), keys=KEYS)
    def begin(self, in_order: bool, keys: list[str | None]) -> None:
        self.now = 100.0
        self.in_order = in_order
        self.epochs = count(1)
        self.logs = [Log() for _ in range(QUEUES)]
        self.line = Line()
        tokens = count()
        order = Order.QUEUE if in_order else Order.KEYS
        rules = Rules(order=order, bounds=BOUNDS, delays_s=(DELAY_S,), suspend_s=DELAY_S)
        self.member = Member(rules, lambda: b"%08d" % next(tokens), {"t": self.line})
        self.tokens = {self.member.token}
        self.proved_at = float("-inf")
        self.has_stream = self.is_joined = False
        self.sessions = count(1)
        self.session = 0
        self.stale_works: list[Work] = []
        self.told: list[ProcessQueue] = []  # of these the application is told that they go
        self.open_stream()
        self.join(0.0)
        for at in range(QUEUES):
            self.append(at, keys)
            self.grant(at)
        self.pull(5)

    # --- the log, and others ------------------------------------------------------------------

    @rule(at=st.integers(0, QUEUES - 1), keys=KEYS)
    def append(self, at: int, keys: list[str | None]) -> None:
        log = self.logs[at]
        for key in keys:
            message = make_message("t", b"x", key=key, queue_offset=len(log.messages))
            log.messages.append(message._replace(queue_id=at))

    @rule(at=st.integers(0, QUEUES - 1), offsets=st.sets(st.integers(0, 30), max_size=6))
    def others_finish(self, at: int, offsets: set[int]) -> None:
        """While somebody else has the queue."""
        log = self.logs[at]
        if not log.epoch:
            log.finished |= {offset for offset in offsets if offset < len(log.messages)}

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.9, 3.1, 6.5]), answered=st.booleans())
    def wait(self, seconds: float, answered: bool) -> None:
        self.now += seconds
        self.member.wake(self.now)
        if answered and self.is_joined:
            self.answer_heartbeat(0.0)

    # --- the stream ---------------------------------------------------------------------------

    @rule()
    def open_stream(self) -> None:
        if not self.has_stream:
            self.has_stream, self.is_joined = True, False
            self.member.on_stream()

    @rule(ago=st.sampled_from([0.0, 0.5, 5.9]))
    def join(self, ago: float) -> None:
        """The same session as before, and what it holds, all of it or less."""
        if not self.has_stream or self.is_joined:
            return
        if not self.session:
            self.session = next(self.sessions)
        self.proved_at, self.is_joined = self.now - ago, True
        self.member.on_joined(self.session, TIMES, self.proved_at)
        for at, log in enumerate(self.logs):
            if log.epoch:
                self.tell_gained(at)
                if log.is_asked:
                    self.member.on_asked(self.place(at), self.now)
        self.member.on_whole()

    @precondition(lambda self: self.has_stream)
    @rule()
    def break_stream(self) -> None:
        self.has_stream = self.is_joined = False
        self.member.on_broken()

    @precondition(lambda self: self.is_joined)
    @rule(ago=st.sampled_from([0.0, 0.5, 5.9, 8.0]))
    def answer_heartbeat(self, ago: float) -> None:
        self.proved_at = max(self.proved_at, self.now - ago)
        self.member.on_answered(self.now - ago)

    @precondition(lambda self: self.session)
    @rule(by_commit=st.booleans())
    def end_session(self, by_commit: bool) -> None:
        """While it was away, or was silent; told on the stream, or to a commit."""
        self.abandon_leases()
        self.session = 0
        if by_commit or not self.has_stream:
            self.member.on_session_over()
            self.has_stream = False
            self.member.on_stream()
            self.has_stream = True
        self.member.on_ended(SessionEnded("over"), join_anew=True)
        self.is_joined = False
        assert self.member.token not in self.tokens, "a token is of one session"
        self.tokens.add(self.member.token)

    def abandon_leases(self) -> None:
        for log in self.logs:
            self.stale_works += log.running.values()
            log.forget()

    # --- leases -------------------------------------------------------------------------------

    def place(self, at: int) -> Place:
        return Place("t", 7, at)

    def held(self, at: int) -> ProcessQueue:
        return self.member.queues[self.place(at)]

    def tell_gained(self, at: int) -> None:
        log = self.logs[at]
        self.member.on_gained(self.place(at), log.epoch, log.frontier, log.runs)

    @precondition(lambda self: self.is_joined)
    @rule(at=st.integers(0, QUEUES - 1))
    def grant(self, at: int) -> None:
        """For the first time, or after another one had it in between."""
        log = self.logs[at]
        self.stale_works += log.running.values()
        log.forget()
        log.epoch = next(self.epochs)
        self.tell_gained(at)
        log.named = {offset for run in log.runs for offset in range(*run)}

    @precondition(lambda self: self.is_joined)
    @rule(at=st.integers(0, QUEUES - 1), back=st.integers(1, 3))
    def tell_old_news(self, at: int, back: int) -> None:
        """A leader that was deposed and doesn't know."""
        log = self.logs[at]
        if log.epoch > back:
            self.member.on_gained(self.place(at), log.epoch - back, 0, [])

    @precondition(lambda self: self.is_joined)
    @rule(at=st.integers(0, QUEUES - 1))
    def ask(self, at: int) -> None:
        log = self.logs[at]
        if log.epoch and not log.is_asked:
            log.is_asked = True
            self.member.on_asked(self.place(at), self.now)

    @precondition(lambda self: self.is_joined)
    @rule(at=st.integers(0, QUEUES - 1))
    def ask_no_more(self, at: int) -> None:
        log = self.logs[at]
        if log.is_asked and self.held(at).state is not Held.RELEASING:
            log.is_asked = False
            self.tell_gained(at)

    @rule(at=st.integers(0, QUEUES - 1))
    def lose(self, at: int) -> None:
        """Told at once, or where there is no stream by what the next one doesn't name."""
        log = self.logs[at]
        if log.epoch:
            self.stale_works += log.running.values()
            log.forget()
            if self.is_joined:
                self.member.on_lost(self.place(at))

    # --- work ---------------------------------------------------------------------------------

    @rule(most=st.integers(1, 5))
    def pull(self, most: int) -> None:
        for queue in self.member.to_pull(self.now):
            assert queue.next_offset - queue.finished.frontier <= BOUNDS.span
            log = self.logs[queue.place.queue_id]
            first = queue.next_offset
            found = log.messages[first : first + min(most, queue.room)]
            queue.on_fetched(found, first + len(found), len(log.messages))
            self.member.on_pulled(queue)

    @rule(times=st.integers(1, 6))
    def take(self, times: int) -> None:
        for _ in range(times):
            work = self.member.take(self.line, self.now)
            if work is None:
                return
            self.check_taken(work)

    def check_taken(self, work: Work) -> None:
        at, offset = work.message.queue_id, work.message.queue_offset
        log = self.logs[at]
        assert self.is_joined, "nobody says that the session lasts"
        assert self.now - self.proved_at <= TIMES.session_s * 2 / 3
        assert log.epoch == work.queue.epoch, "the lease is over"
        assert not log.is_asked, "it was to be given up"
        assert offset not in log.finished | log.succeeded, "it was finished"
        assert offset not in log.running, "it is running"
        late = [each for each in self.stale_works if each.queue.place == work.queue.place]
        assert all(each.message.queue_offset != offset for each in late), "of a former lease, too"
        assert not (late and self.in_order), "of a former lease, one at a time"
        key = work.message.keys
        if self.in_order:
            assert not log.running, "one at a time"
            assert all(before in log.succeeded | log.finished for before in range(offset))
        elif key is not None:
            assert all(other.message.keys != key for other in log.running.values())
            if work.message.attempt == 1:
                earlier = {m.queue_offset for m in log.messages[:offset] if m.keys == key}
                assert earlier <= log.begun | log.finished, "an earlier one of its key waits"
        assert work.message.attempt == 1 + work.failures
        log.begun.add(offset)
        log.running[offset] = work
        log.untold.add(offset)

    def running(self) -> list[tuple[Log, Work]]:
        return [(log, work) for log in self.logs for work in log.running.values()]

    @precondition(lambda self: self.running())
    @rule(number=st.integers(0, 99), result=st.sampled_from(["done", "done", "raised", "unbegun"]))
    def settle(self, number: int, result: str) -> None:
        works = self.running()
        log, work = works[number % len(works)]
        offset = work.message.queue_offset
        del log.running[offset]
        if result == "done":
            log.succeeded.add(offset)
            self.member.succeed(work)
        elif result == "raised":
            log.failed.add(offset)
            self.member.fail(work, self.now)
        else:
            self.member.put_back(work)

    @precondition(lambda self: self.stale_works)
    @rule(result=st.sampled_from(["done", "raised", "unbegun"]))
    def settle_stale(self, result: str) -> None:
        """A handler returns when the queue is somebody else's."""
        work = self.stale_works.pop()
        if result == "done":
            self.member.succeed(work)
        elif result == "raised":
            self.member.fail(work, self.now)
        else:
            self.member.put_back(work)

    # --- commits ------------------------------------------------------------------------------

    @rule(release=st.booleans(), fate=st.sampled_from(["ok", "ok", "answer lost", "lost"]))
    def commit(self, release: bool, fate: str) -> None:
        if release:  # what was told of at the one before, whatever came since
            self.member.release(self.told, self.now)
            self.told = self.member.drained(self.now)
            self.member.tell(self.told)
            for queue in self.told:
                self.logs[queue.place.queue_id].untold.clear()
        progress = self.member.to_commit()
        for each in progress:
            at = each.queue.place.queue_id
            if not self.is_joined and not self.logs[at].epoch:
                if fate != "lost":  # refused: it was taken away, and nobody could say so
                    self.member.on_lost(each.queue.place, each.queue.epoch)
                continue
            self.check_progress(each)
            if fate != "lost":
                self.apply(each)
            if fate == "ok":
                self.member.on_committed(each)

    def check_progress(self, progress: Progress) -> None:
        log = self.logs[progress.queue.place.queue_id]
        assert progress.queue.epoch == log.epoch, "of a former epoch"
        covered = set(range(progress.frontier)) | offsets_of(progress.runs)
        assert covered <= log.finished | log.succeeded, "more than is finished"
        assert log.finished <= covered | set(range(progress.frontier)), "less than before"
        assert len(progress.runs) <= MAX_RUNS
        assert all(end > first > progress.frontier for first, end in progress.runs)
        if progress.release:
            assert log.is_asked, "nobody asked for it"
            gave_up = self.now >= progress.queue.asked_until
            assert gave_up or not log.running, "something still runs"
            assert not log.untold, "the application was told before it was given these"

    def apply(self, progress: Progress) -> None:
        """The brokers take it."""
        log = self.logs[progress.queue.place.queue_id]
        log.finished |= set(range(progress.frontier)) | offsets_of(progress.runs)
        if progress.release and self.member.queues.get(progress.queue.place) is progress.queue:
            self.stale_works += log.running.values()
            log.forget()
            log.epoch = 0
            self.member.on_committed(progress)

    # --- always -------------------------------------------------------------------------------

    @invariant()
    def bounds_hold(self) -> None:
        for queue in self.member.queues.values() if hasattr(self, "member") else ():
            assert queue.waiting_messages <= BOUNDS.messages
            log = self.logs[queue.place.queue_id]
            assert queue.running == len(log.running) or queue.epoch != log.epoch

    def teardown(self) -> None:
        """Nothing fails any more; everything is asked of one member, and everything gets done."""
        if not hasattr(self, "member"):
            return
        self.open_stream()
        self.join(ago=0.0)
        for at, log in enumerate(self.logs):
            if log.is_asked and self.held(at).state is Held.RELEASING:
                self.commit(release=False, fate="ok")
            elif log.is_asked:
                self.ask_no_more(at)
            if not log.epoch:
                self.grant(at)
        while self.stale_works:
            self.settle_stale("done")
        for _ in range(2_000):
            if all(log.succeeded | log.finished >= offsets(log) for log in self.logs):
                break
            self.answer_heartbeat(0.0)
            self.pull(5)
            self.take(50)
            for _ in range(len(self.running())):
                self.settle(0, "done")
            self.wait(1.0, answered=True)
        self.commit(release=False, fate="ok")
        for log in self.logs:
            assert log.finished >= offsets(log), "some were forgotten"


def offsets(log: Log) -> set[int]:
    return set(range(len(log.messages)))


def offsets_of(runs: Iterable[Run]) -> set[int]:
    return {offset for first, end in runs for offset in range(first, end)}


# What fails is told as it was found: shrinking conversations of this length takes minutes.
Leader.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
TestMember = Leader.TestCase


def converse(seed: int, steps: int) -> None:
    """A long conversation, as chance has it: what hypothesis draws is short."""
    dice = Random(seed)
    leader = Leader()
    leader.begin(in_order=dice.random() < 0.3, keys=some_keys(dice))

    def at() -> int:
        return dice.randrange(QUEUES)

    acts: list[tuple[int, Callable[[], object]]] = [
        (6, lambda: leader.append(at(), some_keys(dice))),
        (9, lambda: leader.pull(dice.randint(1, 5))),
        (12, lambda: leader.take(dice.randint(1, 6))),
        (9, lambda: leader.wait(dice.choice([0.1, 1.0, 2.9, 3.1, 6.5]), dice.random() < 0.7)),
        (3, lambda: leader.ask(at())),
        (2, lambda: leader.ask_no_more(at())),
        (2, lambda: leader.grant(at())),
        (2, lambda: leader.lose(at())),
        (1, lambda: leader.tell_old_news(at(), dice.randint(1, 3))),
        (2, lambda: leader.others_finish(at(), {dice.randrange(30) for _ in range(4)})),
        (5, lambda: leader.commit(dice.random() < 0.5, dice.choice(["ok", "ok", "lost"]))),
        (1, lambda: leader.break_stream()),
        (3, lambda: leader.open_stream()),
        (4, lambda: leader.join(dice.choice([0.0, 0.5, 5.9]))),
        (2, lambda: leader.answer_heartbeat(dice.choice([0.5, 5.9, 8.0]))),
        (1, lambda: leader.end_session(dice.random() < 0.5)),
        (20, lambda: leader.settle(dice.randrange(99), dice.choice(RESULTS))),
        (3, lambda: leader.settle_stale(dice.choice(RESULTS))),
    ]
    needs: dict[int, Callable[[], object]] = {
        **dict.fromkeys((4, 5, 6, 8, 14), lambda: leader.is_joined),
        11: lambda: leader.has_stream,
        15: lambda: leader.session,
        16: leader.running,
        17: lambda: leader.stale_works,
    }
    weights = [weight for weight, _ in acts]
    for _ in range(steps):
        (number,) = dice.choices(range(len(acts)), weights)
        if number not in needs or needs[number]():
            acts[number][1]()
            leader.bounds_hold()
    leader.teardown()


def some_keys(dice: Random) -> list[str | None]:
    return [dice.choice([None, "a", "b"]) for _ in range(dice.randrange(9))]


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_long_conversations(first: int) -> None:
    """As above, with everything that the machine checks."""
    for seed in range(first, first + 50):
        converse(seed, 150)


def test_replaced_member_hands_out_nothing_more() -> None:
    """Somebody else is this member: it drops everything, and doesn't join again."""
    line = Line()
    member = Member(Rules(), lambda: b"token---", {"t": line})
    member.on_stream()
    member.on_joined(5, TIMES, 0.0)
    place = Place("t", 7, 0)
    queue = member.on_gained(place, 9, 0, []).queue
    assert queue is not None
    queue.on_fetched([make_message("t", b"x")], 1, 1)
    member.on_pulled(queue)
    member.on_ended(MemberReplaced("gone"), join_anew=False)
    assert member.take(line, 1.0) is None
    assert member.standing is Standing.OVER
    assert not member.to_commit()
    member.on_stream()
    member.on_joined(5, TIMES, 1.0)
    assert not member.may_start(1.0)

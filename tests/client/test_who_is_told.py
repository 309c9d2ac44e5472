"""Who is told of a failed send: against a model that keeps each failure and each flush."""

from __future__ import annotations

import gc
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dledger.client import ClientError, SendsFailed
from dledger.client.failed_sends import MIN_SWEEP, FailedSends, Sender
from tests.client.loops import async_test
from tests.scale import examples

SENDERS = 3


class Interrupted(Exception):
    """What a signal's handler raises."""


@dataclass(eq=False)
class Failure:
    """Of one message: what its future is to the library."""

    name: str
    sender: Sender | None
    error: ClientError = field(init=False)

    def __post_init__(self) -> None:
        self.error = ClientError(self.name)


def failed_sends() -> FailedSends[Failure]:
    """Of a producer none of whose futures is looked at."""
    return FailedSends(lambda _: False, lambda each: each.error, 10, lambda each: each.sender)


@dataclass
class Flush:
    """One of the model's. Times are numbers of steps."""

    sender: int | None
    began: int
    block: AbstractAsyncContextManager[None]
    hears: list[Failure] = field(default_factory=list)
    ended: int | None = None
    was_told: bool = False

    def has_told(self, failed: Failure) -> bool:
        """Whether its caller knows of it."""
        return self.was_told and failed in self.hears


def run(work: Awaitable[object]) -> None:
    """To its end, past every turn of the loop that it lets go by."""
    for _ in work.__await__():
        pass


def leave(flush: Flush, error: Exception | None = None) -> None:
    """Its block ends, by that error."""
    run(flush.block.__aexit__(type(error) if error else None, error, None))


class WhoIsTold(RuleBasedStateMachine):
    """Threads whose messages fail, and whose flushes begin, end, and are interrupted."""

    knows_senders = True

    def __init__(self) -> None:
        super().__init__()
        self.failed = failed_sends()
        self.senders = [Sender() for _ in range(SENDERS)] if self.knows_senders else []
        self.now = 0
        self.failures: list[Failure] = []
        self.uncounted: list[Failure] = []
        self.flushes: list[Flush] = []

    def under_way(self) -> list[Flush]:
        """Flushes."""
        return [flush for flush in self.flushes if flush.ended is None]

    def of(self, number: int) -> tuple[int | None, Sender | None]:
        """A sender, by its number and as the library knows it; no other than None if none is."""
        return (number, self.senders[number]) if self.senders else (None, None)

    @invariant()
    def time_goes_on(self) -> None:
        """Each step has a number."""
        self.now += 1

    @rule(sender=st.integers(0, SENDERS - 1))
    def fail(self, sender: int) -> None:
        """A message of the sender's has failed."""
        failed = Failure(f"{len(self.failures)}", self.of(sender)[1])
        self.failures.append(failed)
        self.uncounted.append(failed)
        self.failed.add(failed)

    @rule(sender=st.integers(0, SENDERS - 1))
    def begin(self, sender: int) -> None:
        """One of the sender's flushes begins: it hears of what it is owed."""
        number, known = self.of(sender)
        flush = Flush(number, self.now, self.failed.told(known))
        counted = [each for each in self.failures if each not in self.uncounted]
        flush.hears = [each for each in counted if self.is_owed(each, number)]
        run(flush.block.__aenter__())
        self.flushes.append(flush)

    def is_owed(self, failed: Failure, sender: int | None) -> bool:
        """Whether a flush of the sender's that begins now has to be told of it."""
        tellers = [flush for flush in self.flushes if flush.has_told(failed)]
        if not tellers:
            return True
        heard = [flush for flush in self.flushes if failed in flush.hears]
        if sender is None:
            return any(
                not any(other.began > flush.ended for other in tellers)
                for flush in heard
                if flush.ended is not None and not flush.was_told
            )
        if any(flush.sender == sender for flush in tellers):
            return False
        return failed.sender is self.senders[sender] or any(
            flush.sender == sender for flush in heard
        )

    @precondition(lambda self: self.under_way())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Everything that the flush waited for has its answer."""
        flush = data.draw(st.sampled_from(self.under_way()))
        self.count()
        if flush.hears:
            with pytest.raises(SendsFailed) as told:
                leave(flush)
            wanted = [each.error for each in sorted(flush.hears, key=self.failures.index)]
            assert (told.value.count, list(told.value.failures)) == (len(wanted), wanted)
        else:
            leave(flush)
        flush.ended, flush.was_told = self.now, True

    @precondition(lambda self: self.under_way())
    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        """A flush ends without having told anything."""
        self.interrupted(data.draw(st.sampled_from(self.under_way())))

    def interrupted(self, flush: Flush) -> None:
        """It is."""
        leave(flush, Interrupted())
        flush.hears += self.uncounted  # had it not been interrupted
        flush.ended = self.now

    def teardown(self) -> None:
        """The loop ends, with the client: flushes are cancelled, and what a thread that closes is
        owed it looks up itself: once, and whatever the others do."""
        for flush in self.under_way():
            self.interrupted(flush)
        for number, sender in enumerate(self.senders):
            hears = [each for each in self.failures if self.is_owed(each, number)]
            told = self.failed.owed(sender, lambda each: each.error)
            wanted = [each.error for each in hears]
            assert (list(told.failures) if told else []) == wanted
            assert self.failed.owed(sender, lambda each: each.error) is None

    def count(self) -> None:
        """Whoever is under way hears of what failed since."""
        for flush in self.under_way():
            flush.hears += self.uncounted
        self.uncounted = []


class WhoIsToldOfTasks(WhoIsTold):
    """Tasks of a loop, which are not told apart."""

    knows_senders = False


STEPS = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
TestThreads = WhoIsTold.TestCase
TestThreads.settings = STEPS
TestTasks = WhoIsToldOfTasks.TestCase
TestTasks.settings = STEPS


async def told_of(failed: FailedSends[Failure], sender: Sender | None = None) -> int:
    """How many failures a flush tells."""
    try:
        async with failed.told(sender):
            pass
    except SendsFailed as told:
        return told.count
    return 0


async def interrupt(flush: AbstractAsyncContextManager[None]) -> None:
    """A signal's handler raises in it."""
    assert not await flush.__aexit__(Interrupted, Interrupted(), None)


@async_test
async def test_interrupted_flush_leaves_its_failures_to_its_thread() -> None:
    """Another thread was told of them before, and again after: that one said yes in between."""
    failed, a, b = failed_sends(), Sender(), Sender()
    flush = failed.told(a)
    await flush.__aenter__()
    failed.add(Failure("x", a))
    assert await told_of(failed, b) == 1
    await interrupt(flush)
    assert await told_of(failed, b) == 0
    assert [await told_of(failed, a), await told_of(failed, a)] == [1, 0]


@async_test
async def test_flush_under_way_takes_nothing_from_who_is_interrupted() -> None:
    """It began when all was told, and ends after the interruption: the retry is still told."""
    for a, b in [(Sender(), Sender()), (None, None)]:
        failed = failed_sends()
        flush, later = failed.told(a), failed.told(b)
        await flush.__aenter__()
        failed.add(Failure("x", a))
        assert await told_of(failed, b) == 1
        await later.__aenter__()
        await interrupt(flush)
        await later.__aexit__(None, None, None)
        assert [await told_of(failed, a), await told_of(failed, a)] == [1, 0]


@async_test
async def test_failure_is_told_once_after_an_interruption() -> None:
    """It was added to what its sender was owed each time that another one was told."""
    failed, a, b, sender = failed_sends(), Sender(), Sender(), Sender()
    failed.add(Failure("x", sender))
    flush = failed.told(a)
    await flush.__aenter__()
    assert await told_of(failed, b) == 1
    await interrupt(flush)
    assert [await told_of(failed, each) for each in (sender, a, b, sender, a)] == [1, 1, 0, 0, 0]


@async_test
async def test_threads_that_have_ended_share_a_row() -> None:
    """Each has failed once, and nobody flushes: they are counted, and nothing grows with them."""
    failed = failed_sends()
    for number in range(20_000):
        failed.add(Failure(f"{number}", Sender()))
    gc.collect()
    assert len(failed._rows) < 3 * MIN_SWEEP
    with pytest.raises(SendsFailed) as told:
        async with failed.told(Sender()):
            pass
    assert told.value.count == 20_000
    names = [str(each).partition(";")[0] for each in told.value.failures]
    assert names == [f"{number}" for number in range(SendsFailed.MAX_FAILURES)]


def test_what_is_looked_at_is_told_by_no_end() -> None:
    """Its caller knows; the other one's doesn't."""
    sender = Sender()
    seen, dropped = Failure("seen", sender), Failure("dropped", sender)
    failed: FailedSends[Failure] = FailedSends(
        lambda each: each is seen, lambda each: each.error, 10, lambda each: each.sender
    )
    failed.add(seen)
    failed.add(dropped)
    told = failed.owed(sender, lambda each: each.error)
    assert told is not None
    assert (told.count, list(told.failures)) == (1, [dropped.error])

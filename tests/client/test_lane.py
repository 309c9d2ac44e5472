"""The lane's rules (see `dledger.client.lane`), one transition at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dledger.client.epochs import Epochs, Registration
from dledger.client.errors import (
    Busy,
    ClientError,
    DeadlineExceeded,
    InvalidArgument,
    LeadershipLost,
    OutOfSequence,
    ProducerFenced,
    ServerError,
    TopicNotWritable,
    UnknownProducer,
)
from dledger.client.lane import Batch, BatchState, Failure, Lane
from dledger.client.options import MAX_SENT_BATCHES
from dledger.outcome import Outcome
from tests.scale import examples

ROOM = 1 << 20
NOT_STORED = Outcome.DID_NOT_HAPPEN
MAYBE = Outcome.MAY_HAVE_HAPPENED


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that never runs: futures need one."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Known(Epochs):
    """Epochs that are registered as soon as they begin."""

    def __init__(self, name: str = "", group: Names | None = None) -> None:
        super().__init__(name)
        self.group = group or Names()
        self.on_registered(self.group.register(self))

    def after(self, epoch: int) -> int:
        newest = super().after(epoch)
        if not self.is_registered(newest):
            self.on_registered(self.group.register(self))
        return newest


class Names:
    """What a group makes of registrations: ids, and the numbers of a name."""

    def __init__(self) -> None:
        self.count = 0
        self.next_sequence = 0  # of the one name that is used here, in t/0

    def register(self, epochs: Epochs) -> Registration:
        self.count += 1
        identity = self.count.to_bytes(8, "big") + epochs.token
        numbers = {("t", 0): self.next_sequence} if epochs.name else {}
        return Registration(identity, b"origin" if epochs.name else identity, numbers)


class Bench:
    """A lane and short words for what happens to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "") -> None:
        self.loop = loop
        self.epochs = Known(name)
        self.lane = Lane("t", 0, self.epochs)

    def gather(self, *names: str, deadline: float = 100.0, limit: float = 0.0) -> None:
        """One batch with a message for each name; `limit`, if that is later than its deadline."""
        for name in names:
            self.lane.parts.append(name.encode())
            self.lane.futures.append(self.loop.create_future())
        self.lane.gather_deadline, self.lane.gather_limit = deadline, limit
        self.lane.seal()

    def take(self) -> list[Batch]:
        return self.lane.take(ROOM)

    def fly(self, *names: str) -> list[Batch]:
        """Batches of one message each, all in flight."""
        for name in names:
            self.gather(name)
        return self.take()

    def states(self) -> list[BatchState]:
        return [batch.state for batch in self.lane.window]


@pytest.fixture
def bench(loop: asyncio.AbstractEventLoop) -> Bench:
    return Bench(loop)


def lost() -> ClientError:
    return LeadershipLost("gone", outcome=MAYBE)


def unknown_producer() -> ClientError:
    return UnknownProducer("who?", outcome=MAYBE)


def told(failures: list[Failure]) -> list[tuple[bytes, type[ClientError], Outcome]]:
    return [(f.batch.records, type(f.error), f.outcome) for f in failures]


def records(batches: list[Batch]) -> list[bytes]:
    return [batch.records for batch in batches]


def test_sequences_count_messages_from_zero(bench: Bench) -> None:
    """`base_sequence` is the number of messages before the batch."""
    bench.gather("a", "b", "c")
    bench.gather("d")
    bench.gather("e", "f")
    assert [batch.base_sequence for batch in bench.take()] == [0, 3, 4]


def test_new_batches_follow_while_the_window_is_clean(bench: Bench) -> None:
    """Rule 1: a batch need not wait for the one before it."""
    first = bench.fly("a")
    second = bench.fly("b")
    assert records(first + second) == [b"a", b"b"]
    assert bench.states() == [BatchState.IN_FLIGHT] * 2


def test_window_holds_as_many_batches_as_the_group_remembers(bench: Bench) -> None:
    """A sixth batch could make the group forget the first before it was acknowledged."""
    taken = bench.fly(*"abcdefg")
    assert len(taken) == MAX_SENT_BATCHES
    bench.lane.on_stored(taken[1])
    bench.lane.settle()
    assert bench.take() == []
    bench.lane.on_stored(taken[0])
    bench.lane.settle()
    assert records(bench.take()) == [b"f", b"g"]


def test_take_keeps_to_the_room_it_is_given(bench: Bench) -> None:
    """A request has a bound; the next one carries the rest."""
    bench.gather("aaaa")
    bench.gather("bbbb")
    assert records(bench.lane.take(7)) == [b"aaaa"]
    assert records(bench.lane.take(7)) == [b"bbbb"]


def test_stored_batch_leaves_only_when_it_is_first(bench: Bench) -> None:
    """The window stays a run of sequence numbers."""
    first, second = bench.fly("a", "b")
    bench.lane.on_stored(second)
    assert bench.lane.settle() == []
    assert bench.states() == [BatchState.IN_FLIGHT, BatchState.STORED]
    bench.lane.on_stored(first)
    bench.lane.settle()
    assert bench.lane.is_empty


def test_nothing_is_sent_after_a_failure_until_every_answer_is_in(bench: Bench) -> None:
    """Rule 1: otherwise a newer batch could overtake the one that is to be retried."""
    first, second = bench.fly("a", "b")
    bench.gather("c")
    bench.lane.on_error(first, Busy("later"))
    bench.lane.settle()
    assert bench.take() == []
    bench.lane.on_error(second, OutOfSequence("a is missing"))
    bench.lane.settle()
    assert records(bench.take()) == [b"a", b"b", b"c"]


def test_retry_carries_the_same_bytes_and_number(bench: Bench) -> None:
    """Stored once: the group recognises a retry by its number."""
    (batch,) = bench.fly("a")
    before = (batch.records, batch.base_sequence, bench.lane.epoch)
    bench.lane.on_error(batch, lost())
    bench.lane.settle()
    assert bench.take() == [batch]
    assert (batch.records, batch.base_sequence, bench.lane.epoch) == before


def test_partial_retry_keeps_later_batches_back(bench: Bench) -> None:
    """With room for one of two retries, the second waits for the first one's answer."""
    first, second = bench.fly("aaaa", "bbbb")
    for batch in (first, second):
        bench.lane.on_error(batch, Busy("later"))
    assert bench.lane.take(5) == [first]
    assert bench.lane.take(5) == []
    bench.lane.on_stored(first)
    bench.lane.settle()
    assert bench.lane.take(5) == [second]


def test_refused_batch_fails_alone_and_the_rest_is_renumbered(bench: Bench) -> None:
    """Rule 3: its number was never used, so those behind it begin with that one. Every attempt of
    each was answered: no late copy of one can be taken for another, and no new id is needed."""
    (warm_up,) = bench.fly("warm", "up")[:1]
    for batch in bench.lane.batches():
        bench.lane.on_stored(batch)
    bench.lane.settle()
    first, second, third = bench.fly("a", "b", "c")
    bench.lane.on_error(first, InvalidArgument("bad"))
    assert told(bench.lane.settle()) == [(b"a", InvalidArgument, NOT_STORED)]
    bench.lane.on_error(second, OutOfSequence("a is missing"))
    bench.lane.on_error(third, OutOfSequence("a is missing"))
    assert bench.lane.settle() == []
    assert records(bench.take()) == [b"b", b"c"]
    assert [warm_up.base_sequence, second.base_sequence, third.base_sequence] == [0, 2, 3]
    assert bench.lane.epoch == 0


def test_numbers_are_used_again_only_where_nothing_was_in_doubt(bench: Bench) -> None:
    """Rule 3: a late copy of `c` would be stored in the place of whatever has its number."""
    first, second, third = bench.fly("a", "b", "c")
    bench.lane.on_error(third, lost())
    bench.lane.on_error(second, OutOfSequence("a is missing"))
    bench.lane.on_error(first, InvalidArgument("bad"))
    bench.lane.settle()
    assert records(bench.take()) == [b"b", b"c"]
    assert [second.base_sequence, third.base_sequence] == [0, 1]
    assert bench.lane.epoch == 1


@pytest.mark.parametrize("doubtful", [False, True])
def test_what_is_retried_alone_is_the_first(bench: Bench, *, doubtful: bool) -> None:
    """Rule 5 of a batch that was behind another one when it was sent first, while one behind it is
    refused: the brokers have forgotten the producer, and no attempt brings that back."""
    first, second, third = bench.fly("a", "b", "c")
    bench.lane.on_stored(first)
    bench.lane.on_error(second, lost() if doubtful else Busy("full"))
    bench.lane.on_error(third, TopicNotWritable("closed"))
    bench.lane.settle()
    assert records(bench.take()) == [b"b"]
    bench.lane.on_error(second, unknown_producer())
    failed = [outcome for _, _, outcome in told(bench.lane.settle())]
    assert failed == ([MAYBE, NOT_STORED] if doubtful else [])
    assert bench.lane.epoch == 1
    assert records(bench.take()) == ([] if doubtful else [b"b", b"c"])


@pytest.mark.parametrize("name", ["", "name"])
def test_numbers_of_a_batch_in_doubt_that_is_refused_are_not_used_again(
    loop: asyncio.AbstractEventLoop, name: str
) -> None:
    """Rule 3: a copy of `b` is still on its way when both are refused for where they go; `d` would
    have its number, and be told that it is stored."""
    bench = Bench(loop, name)
    first, second = bench.fly("a", "b")
    bench.lane.on_error(first, Busy("full"))
    bench.lane.on_error(second, lost())
    bench.lane.settle()
    bench.take()
    for batch in (first, second):
        bench.lane.on_error(batch, TopicNotWritable("closed"))
    failed = told(bench.lane.settle())
    assert [outcome for _, _, outcome in failed] == [NOT_STORED, NOT_STORED]
    bench.fly("c")
    assert bench.lane.epoch == 1


def test_doubt_of_a_batch_behind_a_refused_one_outlives_both(bench: Bench) -> None:
    """As above, where the one is refused for good, or its time is over, and the other's call ends
    in a way that tells nothing."""
    first, second = bench.fly("a", "b")
    bench.lane.on_error(first, InvalidArgument("too large"))
    bench.lane.settle()
    bench.lane.on_error(second, ServerError("odd", outcome=MAYBE))
    bench.lane.settle()
    bench.fly("c")
    assert bench.lane.epoch == 1
    (third,) = bench.lane.window
    bench.gather("d")
    (fourth,) = bench.take()
    bench.lane.on_error(third, Busy("full"))
    bench.lane.on_error(fourth, ServerError("odd", outcome=MAYBE))
    bench.lane.settle()
    bench.lane.expire(100.0)
    bench.fly("e")
    assert bench.lane.epoch == 2


def test_numbers_of_a_name_go_on_from_what_is_stored(loop: asyncio.AbstractEventLoop) -> None:
    """Those of the process before, and after a new epoch those that this one has stored."""
    bench = Bench(loop, "name")
    bench.epochs.group.next_sequence = 7
    bench.epochs = Known("name", bench.epochs.group)
    bench.lane = Lane("t", 0, bench.epochs)
    (batch,) = bench.fly("a")
    assert batch.base_sequence == 7
    bench.epochs.group.next_sequence = 8
    bench.lane.on_error(batch, lost())
    bench.lane.break_off(Busy("x"))
    (batch,) = bench.fly("b")
    assert batch.base_sequence == 8


def test_a_lane_of_a_name_moves_with_its_window(loop: asyncio.AbstractEventLoop) -> None:
    """Rule 7: the former id is fenced, so that what is sent again under the new one can't meet a
    late copy; and being fenced by its own successor fails nothing."""
    bench = Bench(loop, "name")
    first, second = bench.fly("a", "b")
    bench.lane.on_error(first, lost())
    bench.epochs.after(bench.lane.epoch)
    assert bench.take() == []
    bench.lane.on_error(second, ProducerFenced("yours"))
    assert bench.lane.settle() == []
    assert bench.take() == [first, second]
    assert (bench.lane.epoch, first.base_sequence, second.base_sequence) == (1, 0, 1)
    bench.lane.on_error(first, ProducerFenced("another's"))
    bench.lane.on_error(second, ProducerFenced("another's"))
    assert told(bench.lane.settle()) == [
        (b"a", ProducerFenced, MAYBE),
        (b"b", OutOfSequence, NOT_STORED),
    ]
    assert bench.lane.epoch == 2


def test_a_name_that_was_forgotten_leaves_its_window_in_doubt(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Rule 7: under numbers that begin anew a batch that may be stored would be stored again."""
    bench = Bench(loop, "name")
    first, second = bench.fly("a", "b")
    bench.lane.on_error(first, lost())
    bench.lane.on_error(second, Busy("later"))
    bench.epochs.after(bench.lane.epoch)
    assert told(bench.lane.on_name_forgotten(UnknownProducer("forgotten"))) == [
        (b"a", UnknownProducer, MAYBE),
        (b"b", OutOfSequence, NOT_STORED),
    ]
    (batch,) = bench.fly("c")
    bench.lane.on_error(batch, Busy("later"))
    bench.epochs.after(bench.lane.epoch)
    assert bench.lane.on_name_forgotten(UnknownProducer("forgotten")) == []
    assert bench.take() == [batch]
    assert bench.lane.on_name_forgotten(UnknownProducer("forgotten")) != []


def test_renumbering_waits_for_the_answers_under_the_old_numbers(bench: Bench) -> None:
    """Rule 3: a batch in flight keeps its number until it is known to be refused."""
    first, second = bench.fly("a", "b")
    bench.lane.on_error(first, InvalidArgument("bad"))
    bench.lane.settle()
    assert bench.take() == []
    assert (bench.lane.epoch, second.base_sequence) == (0, 1)


def test_doubtful_batch_behind_a_refused_one_is_known_not_to_be_stored(bench: Bench) -> None:
    """Rule 3: the group stores no batch whose predecessor is missing."""
    first, second = bench.fly("a", "b")
    bench.lane.on_error(second, lost())
    bench.lane.on_error(first, InvalidArgument("bad"))
    bench.lane.settle()
    assert bench.take() == [second]
    assert not second.doubtful
    bench.lane.on_error(second, InvalidArgument("bad too"))
    assert told(bench.lane.settle()) == [(b"b", InvalidArgument, NOT_STORED)]


def test_refusal_behind_an_unsettled_batch_is_judged_later(bench: Bench) -> None:
    """Whether the first is stored decides which numbers the others get."""
    first, second, third = bench.fly("a", "b", "c")
    bench.lane.on_error(second, InvalidArgument("bad"))
    bench.lane.on_error(third, OutOfSequence("b is missing"))
    bench.lane.on_error(first, lost())
    assert bench.lane.settle() == []
    assert bench.take() == [first], "the one before the refused batch is retried alone"
    bench.lane.on_stored(first)
    assert told(bench.lane.settle()) == [(b"b", InvalidArgument, NOT_STORED)]
    assert records(bench.take()) == [b"c"]


def test_refusal_of_a_doubtful_batch_fails_everything_behind_it(bench: Bench) -> None:
    """Rule 4: an earlier attempt may have been stored, so nothing may be sent as if it had."""
    first, second = bench.fly("a", "b")
    bench.lane.on_error(first, lost())
    bench.lane.on_error(second, OutOfSequence("a is missing"))
    bench.lane.settle()
    bench.take()
    bench.lane.on_error(first, InvalidArgument("older than what is remembered"))
    bench.lane.parts.append(b"z")
    bench.lane.futures.append(bench.loop.create_future())
    assert told(bench.lane.settle()) == [
        (b"a", InvalidArgument, MAYBE),
        (b"b", OutOfSequence, MAYBE),
        (b"z", OutOfSequence, NOT_STORED),
    ]
    assert bench.lane.is_empty
    assert bench.lane.epoch == 1


def test_failure_of_unknown_outcome_that_is_not_retriable_is_in_doubt(bench: Bench) -> None:
    """INTERNAL: the node will not say, and trying again will not help."""
    (batch,) = bench.fly("a")
    bench.lane.on_error(batch, ServerError("oops", outcome=MAYBE))
    assert told(bench.lane.settle()) == [(b"a", ServerError, MAYBE)]


def test_unknown_producer_behind_an_earlier_batch_is_a_gap(bench: Bench) -> None:
    """Rule 5: a group that has seen nothing of this lane calls a gap by that name."""
    first, second = bench.fly("a", "b")
    bench.lane.on_error(second, unknown_producer())
    bench.lane.on_error(first, Busy("later"))
    bench.lane.settle()
    assert bench.take() == [first, second]
    assert bench.lane.epoch == 0
    assert not second.doubtful


def test_forgotten_producer_goes_on_under_a_new_id(bench: Bench) -> None:
    """Rule 5: the sequences have expired; the batch itself was only ever refused."""
    (batch,) = bench.fly("a")
    bench.lane.on_stored(batch)
    bench.lane.settle()
    (batch,) = bench.fly("b")
    assert batch.base_sequence == 1
    bench.lane.on_error(batch, unknown_producer())
    assert bench.lane.settle() == []
    assert bench.take() == [batch]
    assert (batch.base_sequence, bench.lane.epoch) == (0, 1)


def test_forgotten_producer_with_a_doubtful_batch_is_in_doubt(bench: Bench) -> None:
    """Rule 5: what would have recognised the retry is gone."""
    (batch,) = bench.fly("a")
    bench.lane.on_error(batch, lost())
    bench.lane.settle()
    bench.take()
    bench.lane.on_error(batch, unknown_producer())
    assert told(bench.lane.settle()) == [(b"a", UnknownProducer, MAYBE)]


@pytest.mark.parametrize("is_doubtful", [False, True])
def test_batch_that_overtook_the_one_before_it_is_sent_again(
    bench: Bench, *, is_doubtful: bool
) -> None:
    """Its gap was there when the group looked, and is none when the answer comes."""
    first, second = bench.fly("a", "b")
    if is_doubtful:
        for batch in (first, second):
            bench.lane.on_error(batch, lost())
        bench.lane.settle()
        bench.take()
    bench.lane.on_stored(first)
    bench.lane.settle()
    bench.lane.on_error(second, OutOfSequence("a is missing"))
    assert bench.lane.settle() == []
    assert bench.take() == [second]
    assert (second.base_sequence, bench.lane.epoch) == (1, 0)


def test_lost_sequences_go_on_under_a_new_id(bench: Bench) -> None:
    """Rule 5: the group forgot what it had acknowledged; the next message isn't held up by that."""
    first, second = bench.fly("a", "b")
    for batch in (first, second):
        bench.lane.on_stored(batch)
    bench.lane.settle()
    third, fourth = bench.fly("c", "d")
    bench.lane.on_error(third, OutOfSequence("b is missing"))
    bench.lane.on_error(fourth, OutOfSequence("b is missing"))
    assert bench.lane.settle() == []
    assert bench.take() == [third, fourth]
    assert (third.base_sequence, fourth.base_sequence, bench.lane.epoch) == (0, 1, 1)


def test_lost_sequences_before_a_doubtful_batch_leave_it_in_doubt(bench: Bench) -> None:
    """Rule 5: it is told at once, and what comes later is sent under a new id."""
    (batch,) = bench.fly("a")
    bench.lane.on_stored(batch)
    bench.lane.settle()
    (batch,) = bench.fly("b")
    bench.lane.on_error(batch, lost())
    bench.lane.settle()
    bench.take()
    bench.lane.on_error(batch, OutOfSequence("a is missing"))
    assert told(bench.lane.settle()) == [(b"b", OutOfSequence, MAYBE)]
    (batch,) = bench.fly("c")
    assert (batch.base_sequence, bench.lane.epoch) == (0, 1)


def test_deadline_of_a_batch_that_was_never_sent(bench: Bench) -> None:
    """Rule 6: those behind it are not concerned."""
    bench.gather("a", deadline=5.0)
    bench.gather("b", deadline=6.0)
    assert told(bench.lane.expire(5.0)) == [(b"a", DeadlineExceeded, NOT_STORED)]
    assert records(bench.take()) == [b"b"]


def test_deadline_of_an_open_gather(bench: Bench) -> None:
    """Messages that no leader was there for expire too."""
    bench.lane.parts.append(b"a")
    bench.lane.futures.append(bench.loop.create_future())
    bench.lane.gather_deadline = 5.0
    assert bench.lane.next_deadline() == 5.0
    assert bench.lane.expire(4.9) == []
    assert told(bench.lane.expire(5.0)) == [(b"a", DeadlineExceeded, NOT_STORED)]


def test_deadline_of_a_refused_batch_spares_the_rest(bench: Bench) -> None:
    """Rule 6: it was answered BUSY each time, so it is known not to be stored."""
    bench.gather("a", deadline=5.0)
    bench.gather("b", deadline=9.0)
    first, second = bench.take()
    bench.lane.on_error(first, Busy("later"))
    bench.lane.on_error(second, OutOfSequence("a is missing"))
    bench.lane.settle()
    assert told(bench.lane.expire(5.0)) == [(b"a", DeadlineExceeded, NOT_STORED)]
    assert bench.take() == [second]
    assert (second.base_sequence, bench.lane.epoch) == (0, 0)


def test_deadline_of_a_batch_in_flight_ends_the_epoch(bench: Bench) -> None:
    """Rules 6 and 4; the answer that comes too late changes nothing."""
    bench.gather("a", deadline=5.0)
    bench.gather("b", deadline=9.0)
    (first, second) = bench.take()
    bench.gather("c")
    assert told(bench.lane.expire(5.0)) == [
        (b"a", DeadlineExceeded, MAYBE),
        (b"b", OutOfSequence, MAYBE),
        (b"c", OutOfSequence, NOT_STORED),
    ]
    assert [first.state, second.state] == [BatchState.DEAD] * 2
    (later,) = bench.fly("d")
    assert (later.base_sequence, bench.lane.epoch) == (0, 1)


def test_own_deadline_in_flight_fails_nobody_else(bench: Bench) -> None:
    """Rule 6: it is told that it may have been stored, and keeps its place: what is behind it goes
    on under its numbers, and when its answer comes nobody hears of it again."""
    bench.gather("a", deadline=5.0, limit=100.0)
    bench.gather("b")
    first, second = bench.take()
    assert told(bench.lane.expire(5.0)) == [(b"a", DeadlineExceeded, MAYBE)]
    assert (first.is_over, first.has_ended, first.state) == (True, False, BatchState.IN_FLIGHT)
    assert told(bench.lane.expire(6.0)) == [], "once"
    assert bench.lane.next_deadline() == 100.0
    bench.lane.on_stored(second)
    bench.lane.on_error(first, lost())
    assert told(bench.lane.settle()) == []
    assert bench.take() == [first], "for the sake of those behind it"
    bench.lane.on_stored(first)
    assert told(bench.lane.settle()) == []
    assert bench.lane.is_empty


def test_own_deadline_of_a_refused_batch_is_told_at_once(bench: Bench) -> None:
    """Rule 6: it is certain that it isn't stored, and it is not sent again, so that it stays so."""
    for name, deadline in (("a", 100.0), ("b", 5.0), ("c", 100.0)):
        bench.gather(name, deadline=deadline, limit=100.0)
    first, second, third = bench.take()
    bench.lane.on_error(second, Busy("later"))
    bench.lane.on_error(third, OutOfSequence("b is missing"))
    assert told(bench.lane.expire(5.0)) == [(b"b", DeadlineExceeded, NOT_STORED)]
    assert bench.take() == []
    bench.lane.on_stored(first)
    assert told(bench.lane.settle()) == [(b"b", DeadlineExceeded, NOT_STORED)], "over at last"
    assert bench.take() == [third]
    assert third.base_sequence == 1, "its number was never used"


def test_own_deadline_of_what_was_never_sent_drops_it(bench: Bench) -> None:
    """Wherever it waits, behind whatever."""
    bench.fly(*"abcde")
    bench.gather("f")
    bench.gather("g", deadline=5.0, limit=100.0)
    bench.gather("h")
    assert told(bench.lane.expire(5.0)) == [(b"g", DeadlineExceeded, NOT_STORED)]
    assert [batch.records for batch in bench.lane.ready] == [b"f", b"h"]


def test_what_was_told_is_not_sent_again_when_numbers_are_taken_back(bench: Bench) -> None:
    """Rules 3 and 6: it only kept its place, behind one that then fails for good."""
    first = bench.fly("a", "b")
    bench.gather("c", deadline=5.0, limit=9.0)
    for batch in (*first, *bench.take()):
        bench.lane.on_error(batch, Busy("refused at the door"))
    assert told(bench.lane.expire(5.0)) == [(b"c", DeadlineExceeded, NOT_STORED)]
    again = bench.take()
    assert [batch.records for batch in again] == [b"a", b"b"]
    bench.lane.on_error(again[0], InvalidArgument("no"))
    bench.lane.on_error(again[1], Busy("refused at the door"))
    ended = bench.lane.settle()
    assert [failure.batch.records for failure in ended] == [b"a", b"c"], "over at last"
    assert [batch.records for batch in bench.take()] == [b"b"]


def test_limit_of_a_batch_that_was_told_ends_it(bench: Bench) -> None:
    """Rules 6 and 4: its place isn't kept for ever."""
    bench.gather("a", deadline=5.0, limit=9.0)
    bench.gather("b", deadline=20.0)
    bench.take()
    bench.lane.expire(5.0)
    assert told(bench.lane.expire(9.0)) == [
        (b"a", DeadlineExceeded, MAYBE),
        (b"b", OutOfSequence, MAYBE),
    ]
    assert bench.lane.is_empty


def test_close_tells_apart_what_was_sent_and_what_was_not(bench: Bench) -> None:
    """Honest to the end."""
    bench.fly("a")
    bench.gather("b")
    failures = bench.lane.break_off(Busy("closing"))
    assert [outcome for _, _, outcome in failures] == [MAYBE, NOT_STORED]


def test_stored_batch_does_not_fail_with_the_rest(bench: Bench) -> None:
    """Its futures were resolved while it waited for the one before it."""
    _, second = bench.fly("a", "b")
    bench.lane.on_stored(second)
    assert told(bench.lane.break_off(Busy("closing"))) == [(b"a", Busy, MAYBE)]


def test_lanes_that_fail_together_share_the_next_epoch(loop: asyncio.AbstractEventLoop) -> None:
    """One request carries one id: lanes with an id each could never share a request again."""
    bench = Bench(loop)
    other = Lane("t", 1, bench.epochs)
    bench.lane.break_off(Busy("x"))
    other.break_off(Busy("x"))
    assert (bench.lane.epoch, other.epoch) == (1, 1)
    assert bench.epochs.producer_id(0) != bench.epochs.producer_id(1)
    assert len(bench.epochs.producer_id(1)) == 16


def test_empty_lane_moves_to_the_newest_epoch(bench: Bench) -> None:
    """Rule 7: with its numbers starting anew, as they are under that id."""
    (batch,) = bench.fly("a")
    bench.lane.on_stored(batch)
    bench.lane.settle()
    bench.epochs.after(bench.epochs.newest)
    assert bench.lane.sending_epoch == 1
    (batch,) = bench.fly("b")
    assert (bench.lane.epoch, batch.base_sequence) == (1, 0)


def test_busy_lane_stays_in_its_epoch(bench: Bench) -> None:
    """Rule 7 is for lanes about whose batches nothing is open."""
    bench.fly("a")
    bench.epochs.after(bench.epochs.newest)
    (batch,) = bench.fly("b")
    assert (bench.lane.epoch, batch.base_sequence) == (0, 1)


class OneQueue:
    """What a group keeps of one queue: stored bodies and, by id, sequence and last batches."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.next: dict[bytes, int] = {}
        self.recent: dict[bytes, list[int]] = {}
        self.is_closed = False  # the topic may not be written now, whatever the number
        self.forgotten: set[bytes] = set()  # ids that mean nothing any more

    def offer(self, producer: bytes, base: int, body: bytes, epochs: Epochs) -> ClientError | None:
        if self.is_closed:
            return TopicNotWritable("closed")
        if epochs.name:
            if producer != epochs.previous_id:
                return ProducerFenced("by its successor")
            producer = b"name"
        if producer in self.forgotten:
            return unknown_producer()
        expected = self.next.get(producer, 0)
        if base in self.recent.get(producer, []):
            return None
        if base > expected:
            return OutOfSequence("gap") if expected else unknown_producer()
        if base < expected:
            return InvalidArgument("forgotten")
        self.stored.append(body)
        self.next[producer] = base + 1
        self.recent.setdefault(producer, []).append(base)
        del self.recent[producer][:-MAX_SENT_BATCHES]
        return None


class History:
    """A lane, the queue it sends to, and what was said of each batch."""

    def __init__(self, rng: random.Random, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.rng = rng
        self.bench, self.queue = Bench(loop, name), OneQueue()
        self.stored: set[bytes] = set()
        self.verdicts: dict[bytes, Outcome] = {}
        self.late: list[tuple[bytes, int, bytes]] = []
        self.poison: set[bytes] = set()
        self.haste = rng.choice((0.05, 0.4))  # how often a step finds that deadlines are over
        self.busy = rng.choice((0.15, 0.6))  # how often a request is refused at the door
        self.closing = rng.choice((0.0, 0.15))  # how often the topic is closed, or opened
        # How often the brokers forget all producers without a name.
        self.forgetting = 0.0 if name else rng.choice((0.0, 0.1))

    def note(self, failures: list[Failure]) -> None:
        for batch, _, outcome in failures:
            assert batch.records not in self.stored
            self.verdicts.setdefault(batch.records, outcome)

    def offer(self, copy: tuple[bytes, int, bytes]) -> ClientError | None:
        """One request arrives, the first or a late one."""
        error = self.queue.offer(*copy, self.bench.epochs)
        self.bench.epochs.group.next_sequence = self.queue.next.get(b"name", 0)
        return error

    def answer(self, batch: Batch, producer: bytes) -> None:
        """One request ends in one of the ways that there are."""
        if batch.state is not BatchState.IN_FLIGHT:
            return
        fate = 0.0 if self.rng.random() < self.busy else self.rng.uniform(0.15, 1.0)
        copy = (producer, batch.base_sequence, batch.records)
        if fate < 0.15:
            self.bench.lane.on_error(batch, Busy("refused at the door"))
        elif fate < 0.30:
            self.late.append(copy)
            error = lost() if self.rng.random() < 0.8 else ServerError("odd", outcome=MAYBE)
            self.bench.lane.on_error(batch, error)
        elif batch.records in self.poison:
            self.bench.lane.on_error(batch, InvalidArgument("poison"))
        else:
            refusal = self.offer(copy)
            if fate < 0.45:
                self.bench.lane.on_error(batch, lost())
            elif refusal is None:
                if not batch.is_told:
                    self.stored.add(batch.records)
                self.bench.lane.on_stored(batch)
            else:
                self.bench.lane.on_error(batch, refusal)
        self.note(self.bench.lane.settle())

    def step(self, number: int) -> None:
        """One more message, whatever is due is sent and answered in any order, old copies
        arrive, other lanes fail, time passes."""
        rng, bench = self.rng, self.bench
        if rng.random() < self.closing:
            self.queue.is_closed = not self.queue.is_closed
        if rng.random() < self.forgetting:
            self.forget()
        limit = float(number + 1)
        own = limit - rng.randrange(1, 6) if rng.random() < 0.3 else limit
        bench.gather(f"{number:03}", deadline=own, limit=limit)
        flights = [(batch, bench.epochs.producer_id(bench.lane.epoch)) for batch in bench.take()]
        if rng.random() < 0.3:
            rng.shuffle(flights)
        for flight in flights:
            self.answer(*flight)
        if self.late and rng.random() < 0.5:
            copy = self.late.pop(rng.randrange(len(self.late)))
            if copy[2] not in self.poison:
                self.offer(copy)
        if rng.random() < 0.05:
            bench.epochs.after(bench.epochs.newest)  # another lane's failure
        if rng.random() < self.haste:
            self.expire(float(number + 1 - rng.randrange(6)))

    def forget(self) -> None:
        """Whoever was unused for long, to the brokers, and those whose registrations went with a
        loss of power under `flush = "async"`."""
        epochs = self.bench.epochs
        self.queue.forgotten |= {epochs.producer_id(each) for each in range(epochs.newest + 1)}

    def calm_down(self) -> None:
        """Whatever happened: once the brokers answer everything all is settled, and no deadline has
        to be over for it."""
        self.queue.is_closed = False
        self.late.clear()
        for _ in range(4 * MAX_SENT_BATCHES + len(self.bench.lane.batches())):
            for batch in self.bench.take():
                if batch.records in self.poison:
                    self.bench.lane.on_error(batch, InvalidArgument("poison"))
                    continue
                producer = self.bench.epochs.producer_id(self.bench.lane.epoch)
                refusal = self.offer((producer, batch.base_sequence, batch.records))
                if refusal is not None:
                    self.bench.lane.on_error(batch, refusal)
                    continue
                if not batch.is_told:
                    self.stored.add(batch.records)
                self.bench.lane.on_stored(batch)
            self.note(self.bench.lane.settle())
        assert self.bench.lane.is_empty, "stuck"

    def expire(self, now: float) -> None:
        """Time passes; nobody waits beyond a deadline."""
        self.note(self.bench.lane.expire(now))
        late = [batch for batch in self.bench.lane.batches() if batch.deadline <= now]
        assert all(batch.is_over for batch in late)
        assert {batch.records for batch in late} <= self.verdicts.keys() | self.stored
        assert self.bench.lane.next_deadline() > now

    def check(self) -> None:
        """Once nothing is under way any more."""
        kept = self.queue.stored
        assert len(kept) == len(set(kept)), "stored twice"
        in_doubt = {body for body, outcome in self.verdicts.items() if outcome is MAYBE}
        certain = [body for body in kept if body not in in_doubt]
        assert certain == sorted(certain), "out of order"
        assert self.stored <= set(kept), "acknowledged and not there"
        for body, outcome in self.verdicts.items():
            if outcome is NOT_STORED:
                assert body not in kept, "said to be not stored, and is"


@settings(max_examples=examples(300), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    refusals=st.integers(0, 12),
    name=st.sampled_from(["", "name"]),
    is_calm=st.booleans(),
)
@example(seed=2, refusals=2, name="", is_calm=True)  # what is retried alone, behind nothing
@example(seed=508, refusals=1, name="", is_calm=True)  # a number in doubt that is used again
@example(seed=889, refusals=5, name="name", is_calm=True)
def test_no_history_stores_twice_or_out_of_order_or_lies(
    seed: int, refusals: int, name: str, *, is_calm: bool
) -> None:
    """Any mix of lost requests, lost answers, late copies, refusals and expiries, in a topic that
    is closed now and then, to brokers who forget: each batch is stored once at most and in order;
    *was not stored* is true; STORED is true; and in a calm all is settled, whatever came before."""
    rng = random.Random(seed)
    loop = asyncio.new_event_loop()
    history = History(rng, loop, name)
    history.poison = {b"%03d" % rng.randrange(40) for _ in range(refusals)}
    for number in range(40):
        history.step(number)
    if is_calm:
        history.calm_down()
    history.note(history.bench.lane.break_off(Busy("closing")))
    loop.close()
    history.check()

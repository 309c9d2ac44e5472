"""What is finished of a queue, against a plain set; what commits name, against what is taken."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.client.members.finished import (
    MAX_RUNS,
    Finished,
    Run,
    decode_runs,
    encode_runs,
)
from dledger.client.members.member import (
    MAX_QUEUES_A_CALL,
    MAX_RUNS_A_CALL,
    Progress,
    in_calls,
)
from dledger.client.members.process_queue import Bounds, Order, Place, ProcessQueue
from tests.scale import examples

OFFSETS = st.integers(0, 60)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("finish"), OFFSETS, OFFSETS),
        st.tuples(st.just("pass"), OFFSETS, OFFSETS),
    ),
    max_size=60,
)


def offsets_of(frontier: int, runs: list[Run]) -> set[int]:
    return set(range(frontier)) | {at for run in runs for at in range(*run)}


@settings(max_examples=examples(300), deadline=None)
@given(acts=ACTS)
def test_finished_is_a_set_of_offsets(acts: list[tuple[str, int, int]]) -> None:
    """Whatever comes in whatever order: frontier and runs say exactly what is finished."""
    finished, plain = Finished(3, [(5, 7), (20, 21)]), {0, 1, 2, 5, 6, 20}
    for act, first, last in acts:
        if act == "finish":
            if first not in finished:
                finished.finish(first)
            plain.add(first)
        else:
            finished.pass_over(first, last)
            plain |= set(range(first, last))
        assert offsets_of(finished.frontier, finished.runs()) == plain
        assert finished.frontier not in plain
        assert all(at in finished for at in plain)
        assert finished.count_above == len(plain) - finished.frontier
        for first_of, end_of in ((first, last), (0, 70), (5, 30), (first, 70)):
            within = {at for at in plain if first_of <= at < end_of}
            assert finished.count_within(first_of, end_of) == len(within)
        runs = finished.runs()
        assert decode_runs(finished.frontier, encode_runs(finished.frontier, runs)) == runs
        assert all(a[1] < b[0] for a, b in pairwise(runs)), "apart"
        following = finished.next_unfinished(first)
        assert following >= max(first, finished.frontier)
        assert set(range(first, following)) <= plain


class Broker:
    """One queue as the brokers keep it: they unite, and refuse what would be too many runs."""

    def __init__(self, finished: Finished) -> None:
        self.frontier, self.runs = finished.frontier, finished.runs()

    def commit(self, frontier: int, runs: list[Run]) -> bool:
        """Whether it is taken."""
        united = Finished(self.frontier, self.runs)
        for first, end in ((0, frontier), *runs):
            united.pass_over(first, end)
        if len(united.runs()) > MAX_RUNS:
            return False
        self.frontier, self.runs = united.frontier, united.runs()
        return True

    def send_back(self, offset: int) -> bool:
        """Whether the message, which failed, is theirs now."""
        if offset != self.frontier and len(self.runs) >= MAX_RUNS:
            return False
        return self.commit(0, [(offset, offset + 1)])


class Fate(Enum):
    """What becomes of a commit."""

    ANSWERED = "answered"
    LOST = "lost on its way"
    UNHEARD = "its answer is lost"


ROUNDS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 600), max_size=200),  # what handlers finish: odd offsets
        st.lists(st.integers(1, 600), max_size=4),  # what fails, before the commit
        st.lists(st.integers(1, 600), max_size=4),  # and while it is under way
        st.sampled_from(Fate),
        st.booleans(),  # the slow message in front is through
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(known=st.integers(0, MAX_RUNS), rounds=ROUNDS)
def test_commits_are_what_the_brokers_take(
    known: int, rounds: list[tuple[list[int], list[int], list[int], Fate, bool]]
) -> None:
    """Whatever is finished by handlers and by the brokers, and whatever becomes of commits: none
    names too many runs, and none is refused with which nothing crosses."""
    finished = Finished(0, [(2_000 + 2 * at, 2_001 + 2 * at) for at in range(known)])
    broker = Broker(finished)
    for offsets, before, meanwhile, fate, is_through in [
        *rounds,
        ([], [], [], Fate.ANSWERED, False),
    ]:
        for offset in offsets:
            finished.finish(2 * offset + 1)
        for offset in before:
            _fail(finished, broker, 2 * offset + 1)
        if is_through:
            finished.finish(finished.frontier)
        frontier, runs = finished.name()
        assert len(runs) <= MAX_RUNS
        finished.on_sent(runs)
        crossed = [_fail(finished, broker, 2 * offset + 1) for offset in meanwhile]
        if fate is Fate.LOST:
            continue
        is_taken = broker.commit(frontier, runs)
        assert is_taken or any(crossed), "what was named once is named again"
        if fate is Fate.ANSWERED and is_taken:
            finished.on_taken(runs)
        elif fate is Fate.ANSWERED:
            finished.on_refused()
        assert offsets_of(broker.frontier, broker.runs) <= offsets_of(
            finished.frontier, finished.runs()
        )


def _fail(finished: Finished, broker: Broker, offset: int) -> bool:
    """The message fails, and is sent back if the brokers take it; whether they did."""
    if offset in finished or not broker.send_back(offset):
        return False
    finished.settle(offset)
    return True


def test_what_was_named_goes_before_what_is_lower() -> None:
    """The brokers have it, and would have more than they take."""
    finished = Finished(0)
    for at in range(1_001, 1_101):
        finished.finish(2 * at)
    _, named = finished.name()
    finished.on_sent(named)
    finished.on_taken(named)
    for at in range(1, 101):
        finished.finish(2 * at)
    _, runs = finished.name()
    assert len(runs) == MAX_RUNS
    assert set(named) < set(runs)


def test_what_the_brokers_finished_goes_before_what_they_know_nothing_of() -> None:
    """A commit that named as many as they take was refused, as they finished one more meanwhile:
    the next one names that, and one less of the others."""
    finished = Finished(0)
    for at in range(1, 201):
        finished.finish(2 * at)
    finished.on_sent(finished.name()[1])
    finished.settle(1_000)
    finished.on_refused()
    _, runs = finished.name()
    assert runs == [*((2 * at, 2 * at + 1) for at in range(1, MAX_RUNS)), (1_000, 1_001)]


def test_doubtful_runs_are_no_reason_to_name_too_many() -> None:
    """Nobody said what became of a commit: what the brokers are sure to know is named alone, until
    two runs have grown together."""
    finished = Finished(0)
    for at in range(1, 201):
        finished.finish(2 * at)
    finished.on_sent(finished.name()[1])
    finished.settle(1_000)
    assert finished.name() == (0, [(1_000, 1_001)])
    finished.finish(3)
    assert len(finished.name()[1]) == MAX_RUNS


def test_commits_are_cut_to_what_a_call_may_hold() -> None:
    """In queues, and in runs over all of them; nothing is left out."""
    place = Place("t", 1, 0)
    queue = ProcessQueue(place, 1, Finished(0), order=Order.KEYS, bounds=Bounds())
    runs = [(2 * at, 2 * at + 1) for at in range(1, MAX_RUNS + 1)]
    many = [Progress(queue, 0, runs, release=False) for _ in range(300)]
    few = [Progress(queue, number, [], release=False) for number in range(2_500)]
    calls = list(in_calls([*many, *few]))
    assert [each for call in calls for each in call] == [*many, *few]
    assert all(len(call) <= MAX_QUEUES_A_CALL for call in calls)
    assert all(sum(len(each.runs) for each in call) <= MAX_RUNS_A_CALL for call in calls)

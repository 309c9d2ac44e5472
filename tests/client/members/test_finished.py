"""What is finished of a queue, against a plain set; what commits name, against what is taken."""

from __future__ import annotations

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


@settings(max_examples=300, deadline=None)
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
        runs = finished.runs()
        assert decode_runs(finished.frontier, encode_runs(finished.frontier, runs)) == runs
        assert all(a[1] < b[0] for a, b in pairwise(runs)), "apart"
        following = finished.next_unfinished(first)
        assert following >= max(first, finished.frontier)
        assert set(range(first, following)) <= plain


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(st.lists(st.integers(0, 1_500), max_size=200), min_size=1, max_size=8))
def test_brokers_never_hold_more_runs_than_they_take(rounds: list[list[int]]) -> None:
    """Every commit holds what the ones before it named, so that their union stays as small."""
    finished = Finished(0, [(1_600 + 2 * at, 1_601 + 2 * at) for at in range(100)])
    broker: set[int] = offsets_of(0, finished.runs())
    for offsets in rounds:
        for offset in offsets:
            finished.finish(2 * offset + 1)
        frontier, runs = finished.name()
        assert len(runs) <= MAX_RUNS
        named = offsets_of(frontier, runs)
        assert broker <= named, "what was named once is named again"
        broker = named


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

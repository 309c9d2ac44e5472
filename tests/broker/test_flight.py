"""What is in flight, against a model that keeps every batch and looks through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from broker.leader.flight import InFlight, Lane
from broker.state.sequences import StoredBatch

LANES = tuple(
    Lane(producer, incarnation, queue_id)
    for producer in (b"p", b"q")
    for incarnation in (3, 9)
    for queue_id in (0, 1)
)


@dataclass(frozen=True)
class Proposed:
    index: int
    lane: Lane
    batch: StoredBatch
    is_numbered: bool


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(LANES), st.integers(1, 3), st.booleans()),
            st.sampled_from(["applied", "void"]),
        ),
        max_size=60,
    )
)
def test_what_is_in_flight_is_what_was_proposed_and_counts_still(
    steps: Sequence[tuple[Lane, int, bool] | str],
) -> None:
    """Nothing counts on a batch that was void, nor on what followed it in its queue: the next one
    would have an offset, or a sequence, that the applied state never comes to."""
    flight, index, offset = InFlight(), 0, 0
    waiting: list[Proposed] = []  # not yet applied, in order
    counting: list[Proposed] = []  # of these: no void batch of their queue lies before them
    for step in steps:
        if isinstance(step, str):
            if not waiting:
                continue
            first = waiting.pop(0)
            if step == "void":
                flight.void(first.index)
                counting = [one for one in counting if one.lane.place != first.lane.place]
            counting = [one for one in counting if one is not first]
            flight.retire(first.index)
        else:
            lane, count, is_numbered = step
            index, offset = index + 1, offset + 10
            batch = StoredBatch(offset, count, offset, 0, 0)
            waiting.append(Proposed(index, lane, batch, is_numbered))
            counting.append(waiting[-1])
            flight.add(index, lane, batch, is_numbered=is_numbered)
        assert flight.is_empty == (not waiting)
        assert flight.meant_for() == {one.index: one.lane.incarnation for one in waiting}
        for lane in LANES:
            check(flight, lane, counting)


def check(flight: InFlight, lane: Lane, counting: list[Proposed]) -> None:
    ends = [
        one.batch.base_queue_offset + one.batch.record_count
        for one in counting
        if one.lane.place == lane.place
    ]
    assert flight.next_offset(lane) == (ends[-1] if ends else None)
    numbered = [one for one in counting if one.lane == lane and one.is_numbered]
    sequence = flight.sequence(lane)
    assert (lane in flight.lanes()) == bool(numbered)
    if not numbered:
        assert sequence is None
        return
    assert sequence is not None
    last = numbered[-1].batch
    assert sequence.next_sequence == last.base_sequence + last.record_count
    assert list(sequence.batches) == [(one.index, one.batch) for one in numbered]

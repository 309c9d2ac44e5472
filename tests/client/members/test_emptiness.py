"""For how long many queues were empty together, of which each call asks for some."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger.client.members.emptiness import Emptiness, Hold
from dledger.client.members.process_queue import Place

QUEUES: list[Hold] = [(Place("t", 1, queue_id), 1) for queue_id in range(4)]

# Which queues a call asks for, and which of them have something; each call takes a second.
calls = st.lists(
    st.tuples(st.sets(st.sampled_from(range(4)), min_size=1), st.sets(st.sampled_from(range(4)))),
    max_size=30,
)


@given(calls)
def test_all_are_empty_from_the_latest_first_to_the_earliest_last(
    asked: list[tuple[set[int], set[int]]],
) -> None:
    """Beside a model that keeps every call: the seconds in which each queue was known to be."""
    emptiness = Emptiness()
    for at, (queues, full) in enumerate(asked):
        empty = [QUEUES[each] for each in sorted(queues - full)]
        others = [QUEUES[each] for each in sorted(queues & full)]
        emptiness.note(empty, others, float(at), at + 1.0)
    stretches: list[tuple[int, int]] = []
    for queue in range(4):
        mine = [(at, queue in full) for at, (queues, full) in enumerate(asked) if queue in queues]
        lasting: list[int] = []
        for at, has_something in mine:
            lasting = [] if has_something else [*lasting, at]
        if lasting:
            stretches.append((lasting[0], lasting[-1] + 1))
    expected = None
    if len(stretches) == 4:
        together = min(end for _, end in stretches) - max(first for first, _ in stretches)
        expected = together if together >= 0 else None
    assert emptiness.seconds(QUEUES) == expected


def test_a_queue_that_is_held_anew_is_asked_anew() -> None:
    """What was found of it before may be long ago; and what isn't held any more isn't kept."""
    emptiness = Emptiness()
    emptiness.note(QUEUES, [], 0.0, 10.0)
    assert emptiness.seconds(QUEUES) == 10.0
    again = (QUEUES[0][0], 2)
    assert emptiness.seconds([again, *QUEUES[1:]]) is None
    assert emptiness.seconds(QUEUES[1:]) == 10.0
    assert emptiness.seconds(QUEUES) is None
    emptiness.forget()
    assert emptiness.seconds(QUEUES[1:]) is None


def test_who_holds_nothing_was_seen_to_have_nothing_by_nobody() -> None:
    assert Emptiness().seconds([]) is None

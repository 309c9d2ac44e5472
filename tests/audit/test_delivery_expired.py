"""What retention took away excuses one place of a message, not another one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from audit.delivery.history import QueueStory, Sent
from audit.delivery.judge import Kind, LoggedQueue, judge_queue
from dledger.history import Outcome

KEY, PRODUCER = ("t", 0), (0, "p")


def found(first: int, acknowledged: int, places: list[int]) -> list[tuple[Kind, int | None]]:
    """Of a queue of which retention left offsets from `first` on, and which has `v` at `places`."""
    log = LoggedQueue(first)
    for offset in range(first, 20):
        log.add(offset, "v" if offset in places else f"other {offset}")
    sends = [Sent(PRODUCER, ("v",), Outcome.OK, acknowledged)]
    sends += [
        Sent((1, str(offset)), (f"other {offset}",), Outcome.OK, offset)
        for offset in range(first, 20)
        if offset not in places
    ]
    return [(each.kind, each.offset) for each in judge_queue(KEY, log, QueueStory(sends))]


def test_a_message_whose_first_place_has_expired_is_there_twice() -> None:
    """It was acknowledged at 5, retention left what is from 10 on, and it lies at 12."""
    assert found(10, 5, [12]) == [(Kind.DUPLICATED, 12)]
    assert found(10, 5, []) == []
    assert found(10, 12, [12]) == []


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 19), st.integers(0, 19), st.sets(st.integers(0, 19), max_size=2))
def test_a_message_is_sound_at_its_place_or_before_what_is_left(
    first: int, acknowledged: int, drawn: set[int]
) -> None:
    """And nowhere else."""
    places = sorted(each for each in drawn if each >= first)
    is_sound = places == ([acknowledged] if acknowledged >= first else [])
    assert (not found(first, acknowledged, places)) == is_sound

"""Rows over queues whose number changes between attempts: each once, keys in order (ADR 33)."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")

from dledger.spark.errors import RowRefused, WriteRefused
from dledger.spark.layout import Layout, Place, digest_of
from dledger.spark.progress import Intent, TopicIntent
from dledger.spark.rows import Target
from dledger.spark.steps import Rows, next_step


class Brokers:
    """What they hold: by queue its rows, of which those of earlier batches came first."""

    def __init__(self, before: dict[int, int]) -> None:
        self.queues: dict[int, list[Place | None]] = defaultdict(list)
        for queue_id, count in before.items():
            self.queues[queue_id] = [None] * count
        self.taken: list[TopicIntent] = []
        self.log: list[Place] = []  # as it was stored

    @property
    def numbers(self) -> dict[int, int]:
        return {queue_id: len(rows) for queue_id, rows in self.queues.items()}

    def attempt(self, places: list[Place], queues: int, dies_after: int | None) -> None:
        """A task that stores so many of its rows, a queue after the other, and dies."""
        rows = Rows("partition 0 of batch 1", "T", places, Target(7, 9, queues), self.numbers)
        step = next_step(rows, self.taken, from_zero=False)
        if step.intent is not None:
            told = Intent(1, 0, "", {"T": step.intent})
            self.taken.append(Intent.decode(told.encode(), "T/0 at 0").topics["T"])
        left = [
            (queue_id, place)
            for queue_id, each in step.layout.items()
            for place in each[step.stored[queue_id] :]
        ]
        for queue_id, place in left[:dies_after]:
            assert queue_id < queues
            self.queues[queue_id].append(place)
            self.log.append(place)


def places_of(choices: list[int]) -> list[Place]:
    return [
        Place(number.to_bytes(16, "big"), number, 1, choice)
        for number, choice in enumerate(choices)
    ]


@given(
    choices=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    before=st.dictionaries(st.integers(0, 8), st.integers(0, 3)),
    attempts=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), max_size=5),
    last=st.integers(1, 9),
)
def test_each_row_is_stored_once_however_the_queues_change(
    choices: list[int], before: dict[int, int], attempts: list[tuple[int, int]], last: int
) -> None:
    """Attempts die anywhere, and the topic has another number of queues at each; and what shares a
    key is stored in its order over all of them."""
    places, brokers = places_of(choices), Brokers(before)
    for queues, dies_after in attempts:
        brokers.attempt(places, queues, dies_after)
    brokers.attempt(places, last, None)
    assert sorted(place.start for place in brokers.log) == [*range(len(choices))]
    for key in set(choices):
        own = [each.start for each in brokers.log if each.choice == key]
        assert own == sorted(own)
    # All is there: another attempt has nothing to send, in queues of any number.
    stored = len(brokers.log)
    for queues in (1, last, 9):
        brokers.attempt(places, queues, None)
    assert len(brokers.log) == stored


@given(
    choices=st.lists(st.integers(0, 40), min_size=2, max_size=20, unique=True),
    queues=st.integers(1, 9),
    stored=st.integers(0, 10),
)
def test_other_rows_are_refused_in_any_number_of_queues(
    choices: list[int], queues: int, stored: int
) -> None:
    """By the number that is written down, and not by the one that the topic has."""
    places, brokers = places_of(choices), Brokers({})
    brokers.attempt(places, 3, stored)
    with pytest.raises(WriteRefused, match="has other rows for 'T'"):
        brokers.attempt(places[:-1], queues, None)


def test_row_that_names_a_queue_that_was_closed_meanwhile_is_told_of() -> None:
    """Before anything is stored it is a row that can't be written; later the batch is stuck, until
    the topic has its queues again."""
    named = [each._replace(is_fixed=True) for each in places_of([3, 3, 3, 0])]
    brokers = Brokers({})
    with pytest.raises(RowRefused, match="takes messages in queues 0 to 1, not 3"):
        brokers.attempt(named, 2, None)
    brokers.attempt(named, 4, 2)
    with pytest.raises(WriteRefused, match=r"stored in part, .* not 3; its queues were changed"):
        brokers.attempt(named, 2, None)
    brokers.attempt(named, 5, None)
    assert brokers.numbers == {3: 3, 0: 1}


def test_intent_of_the_release_before_is_by_the_queues_that_are_read() -> None:
    """It chose by these, whatever takes messages; what is left goes on by what does."""
    places, brokers = places_of([0, 1, 2, 3] * 2), Brokers({})
    body = (
        b'{"version": 1, "batch": 1, "partition": 0, "origin": "", "topics": {"T": {"incarnation":'
        b' 7, "queues": {"0": [0, 2], "1": [0, 2], "2": [0, 2], "3": [0, 2]}, "digest": "%s"}}}'
    )
    layout: Layout = {queue_id: places[queue_id::4] for queue_id in range(4)}
    told = body % digest_of(layout).encode()
    brokers.taken.append(Intent.decode(told, "T/0 at 0").topics["T"])
    brokers.queues[0].append(places[0])
    rows = Rows("partition 0 of batch 1", "T", places, Target(7, 4, 2), brokers.numbers)
    step = next_step(rows, brokers.taken, from_zero=True)
    assert {queue_id: len(each) for queue_id, each in step.layout.items()} == {0: 3, 1: 4}
    assert step.bases == {0: 1, 1: 0}
    assert step.intent is not None
    assert step.intent.queues == {0: (1, 3), 1: (0, 4), 2: (0, 0), 3: (0, 0)}
    whole = next_step(
        Rows("partition 0 of batch 1", "T", places, Target(7, 4, 4), brokers.numbers),
        brokers.taken,
        from_zero=True,
    )
    assert whole.intent is None
    assert whole.stored == {0: 1, 1: 0, 2: 0, 3: 0}

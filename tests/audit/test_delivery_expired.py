"""What retention took away excuses one place of a message, not another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.delivery.check import audit_delivery
from audit.delivery.history import QueueStory, Sent
from audit.delivery.judge import Kind, LoggedQueue, judge_queue
from audit.engines.engine import LocalEngine
from chaos.checkers.history import Send, read_history
from dledger.history import Outcome
from tests.audit.replicas import dropping, start_of
from tests.audit.test_delivery import log_of, told, written
from tests.chaos.histories import Story
from tests.scale import examples

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


@pytest.mark.parametrize("as_told", [None, -1])
@pytest.mark.parametrize(
    ("keeps_all", "is_there", "wanted"),
    [
        (True, True, []),
        (True, False, [("lost", None, "old")]),
        (False, True, []),
        (False, False, [("undecided", None, "old")]),
    ],
)
def test_a_place_that_nobody_remembers_is_none(
    tmp_path: Path, as_told: int | None, keeps_all: bool, is_there: bool, wanted: list[object]
) -> None:
    """A duplicate that was stored long ago: its client says -1. It may lie anywhere, and have
    expired only where something has."""
    values = [f"v{number}" for number in range(150)]
    replica = log_of(tmp_path, *values, *["old"] * is_there)
    if not keeps_all:
        start = start_of(Path(replica.path), 150)
        for _ in dropping(Path(replica.path), start):
            pass
    story = Story()
    for at, value in enumerate(values):
        story.send(value, at=at)
    story.do("q", Send("t", 0, 0, ("old",)), as_told)
    file = written(tmp_path, story)
    report = audit_delivery([replica], [file], LocalEngine())
    assert told(report) == wanted
    (found,) = [each for each in read_history(Path(file)).operations if each.process == "q"]
    assert found.result is None


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(st.integers(0, 19), st.integers(0, 19), st.sets(st.integers(0, 19), max_size=2))
def test_a_message_is_sound_at_its_place_or_before_what_is_left(
    first: int, acknowledged: int, drawn: set[int]
) -> None:
    """And nowhere else."""
    places = sorted(each for each in drawn if each >= first)
    is_sound = places == ([acknowledged] if acknowledged >= first else [])
    assert (not found(first, acknowledged, places)) == is_sound

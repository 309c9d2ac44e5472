"""Where the first message that waits to be tried again can't be read: nothing goes from the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.retries.waiting import Waiting
from broker.reading.queues import Found
from broker.state.retries import Retries
from broker.state.topics import TopicRef, Topics
from dledger.records.reserved import LEVELS, SCHEDULE_TOPIC
from store.errors import CorruptionFound

ROT = CorruptionFound("segment", 7, "one", "another")
WRONG = BrokerError(ErrorCode.NOT_READY, "the queue is built anew")


@dataclass
class State:
    """A schedule topic with so many messages in some levels; none was moved yet."""

    ends: Mapping[int, int]
    topics: Topics = field(default_factory=Topics)
    retries: Retries = field(default_factory=Retries)

    def __post_init__(self) -> None:
        self.topics.create(SCHEDULE_TOPIC, LEVELS, incarnation=1, created_time_ms=0)
        topic = self.topics[SCHEDULE_TOPIC]
        for level, end in self.ends.items():
            topic.next_offsets[level] = end


class Reader:
    """Finds void offsets only, `voids` at once, or nothing."""

    def __init__(self, end: int, voids: int, error: Exception | None = None) -> None:
        self._end, self._voids, self._error = end, voids, error

    def bounds(self, topic: TopicRef, queue_id: int) -> tuple[int, int]:
        del topic, queue_id
        return 0, self._end

    def pull(
        self, topic: TopicRef, queue_id: int, offset: int, max_messages: int, max_bytes: int
    ) -> Found:
        del topic, queue_id, max_messages, max_bytes
        if self._error is not None:
            raise self._error
        return Found(b"", 0, offset + self._voids, 0, self._end, 1, self._voids)


def first_needed(reader: Reader, *, is_mended: bool = True) -> int | None:
    waiting = Waiting(State({4: 5}), reader, lambda _: 1 << 40, lambda _: is_mended)
    return waiting.first_needed()


@pytest.mark.parametrize("error", [ROT, WRONG])
def test_what_cannot_be_read_holds_everything(error: Exception) -> None:
    assert first_needed(Reader(5, 0, error)) == 0


def test_queue_that_is_shorter_than_the_state_holds_everything() -> None:
    """It is being built anew: what waits isn't in it yet."""
    assert first_needed(Reader(5, 0)) == 0
    assert first_needed(Reader(5, 3)) == 0


def test_queue_of_void_offsets_needs_nothing() -> None:
    assert first_needed(Reader(5, 5)) is None


def test_error_that_nobody_mends_is_told() -> None:
    with pytest.raises(CorruptionFound):
        first_needed(Reader(5, 0, ROT), is_mended=False)


def test_nothing_waits_where_nothing_was_ever_sent_back() -> None:
    state = State({})
    reader = Reader(0, 0, ROT)
    assert Waiting(state, reader, lambda _: 1, lambda _: False).first_needed() is None

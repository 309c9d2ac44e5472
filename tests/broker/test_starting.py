"""Where a group starts in a topic: what failed before is none of its wishes."""

from __future__ import annotations

import pytest

from broker.leader.groups.starting import starts
from broker.state.groups import Settings, Start
from broker.state.topics import TopicRef
from dledger.records.reserved import retry_topic
from tests.broker.attended import Room
from tests.broker.test_keeper import PACE, SOON_MS


class Bounded:
    """Queues that hold offsets 3 to 7; a time is offset 5."""

    def bounds(self, topic: TopicRef, queue_id: int) -> tuple[int, int]:
        return 3, 8

    def offset_by_time(self, topic: TopicRef, queue_id: int, time_ms: int) -> int:
        return 5


@pytest.mark.parametrize(
    ("start", "expected"), [(Start.FIRST, 3), (Start.LAST, 8), (Start.TIME, 5)]
)
def test_a_group_that_was_forgotten_and_comes_back_is_given_its_retries(
    start: Start, expected: int
) -> None:
    """All that the log still holds of them, though it wants the newest messages of its topics."""
    room = Room()
    room.own_topic(retry_topic("g"))
    seat = room.seat()
    settings = Settings(topics=("t",), start=start, start_time_ms=1)
    seat.join("a", group="g", settings=settings)
    room.pass_ms(SOON_MS, seat)
    seat.leave(0)
    room.pass_ms(SOON_MS, seat)
    machine = room.machine
    machine.lived_time.lived_ms += PACE.unused_ms + 3 * 3_600_000
    room.pass_ms(PACE.forget_ms + 100, seat)
    assert machine.groups.get("g") is None
    seat.join("a", group="g", settings=settings)
    room.pass_ms(SOON_MS, seat)
    group, reader = machine.groups.get("g"), Bounded()
    retries, own = machine.topics.get(retry_topic("g")), machine.topics.get("t")
    assert group is not None
    assert retries is not None
    assert own is not None
    assert set(starts(reader, group, retries, 0)) == {3}
    assert set(starts(reader, group, own, 0)) == {expected}

"""Where a group starts in a topic: what failed before is none of its wishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import replace

import pytest

from broker.leader.groups import keeper
from broker.leader.groups.starting import Beginnings, starts
from broker.leader.groups.steps import at_once
from broker.reading.queues import QueueReader
from broker.services.topics import QueueWish
from broker.state.groups import Settings, Start
from broker.state.topics import TopicRef, TopicState
from dledger.core.types import NodeId
from dledger.records.reserved import retry_topic
from tests.broker.attended import QUEUES, Room, share
from tests.broker.leader import batch
from tests.broker.test_keeper import PACE, SOON_MS
from tests.broker.test_looks import one_step_a_turn


class Bounded:
    """Queues that hold offsets 3 to 7; a time is offset 5."""

    def bounds(self, topic: TopicRef, queue_id: int) -> tuple[int, int]:
        return 3, 8

    def offset_by_time_in_steps(
        self, topic: TopicRef, queue_id: int, time_ms: int
    ) -> Generator[None, None, int]:
        yield
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
    assert set(at_once(starts(reader, group, retries, 0))) == {3}
    assert set(at_once(starts(reader, group, own, 0))) == {expected}


# --- by time, on a leader whose turns have one step ---------------------------------------------

MESSAGES = 9


def send_to_all(room: Room) -> None:
    """Some messages to each queue of topic t."""
    sends = room.leader.replica.services.sends
    for queue_id in range(QUEUES):
        wanted = [batch(0, *[b"x"] * MESSAGES, queue_id=queue_id)]
        room.world.run(room.leader, sends.send(b"", wanted))


class Late:
    """A group whose member `a` comes to topic t, and starts behind all that is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
        self.room = Room(count)
        send_to_all(self.room)
        one_step_a_turn(self.room)
        self.ticks: list[tuple[NodeId, int]] = []  # in which each entry was read
        stored_at = QueueReader._stored_at

        def noted(reader: QueueReader, topic: TopicState, queue_id: int, offset: int) -> int:
            leader = self.room.leader
            self.ticks.append((leader.name, leader.replica.groups.now))
            return stored_at(reader, topic, queue_id, offset)

        monkeypatch.setattr(QueueReader, "_stored_at", noted)
        time_ms = self.room.world.now_ms + 1_000_000
        self.settings = Settings(topics=("t",), start=Start.TIME, start_time_ms=time_ms)
        self.seat = self.room.seat()
        self.member = self.seat.join("a", settings=self.settings)

    def begin(self) -> None:
        """Some entries were read, and nothing is granted."""
        while len(self.ticks) < 3:
            self.room.pass_ms(10, self.seat)
        assert not self.member.held


def test_a_time_is_looked_for_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry a tick, and no group is looked at again for it."""
    late = Late(monkeypatch)
    late.begin()
    late.room.pass_ms(2 * SOON_MS, late.seat)
    assert late.member.frontiers == {("t", queue): MESSAGES for queue in range(QUEUES)}
    assert len(late.ticks) >= 3 * QUEUES
    assert max(Counter(late.ticks).values()) == 1
    assert late.room.leader.replica.groups.statistics().dropped == 0


def test_what_was_found_stays_so_whoever_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is made anew, the log isn't read again."""
    alone = Late(monkeypatch)
    alone.room.pass_ms(2 * SOON_MS, alone.seat)
    reads = len(alone.ticks)
    late = Late(monkeypatch)
    late.begin()
    other = late.seat.join("b", settings=late.settings)
    late.room.pass_ms(4 * SOON_MS, late.seat)
    assert share([late.member, other]) == [QUEUES // 2, QUEUES // 2]
    assert len(late.ticks) == reads


def test_a_topic_that_goes_or_grows_meanwhile_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is as it is by then."""
    late = Late(monkeypatch)
    room = late.room
    late.begin()
    update = room.leader.replica.services.topics.update(TopicRef("t"), QueueWish(6, 6))
    room.world.run(room.leader, update)
    room.pass_ms(2 * SOON_MS, late.seat)
    assert late.member.frontiers["t", 0] == MESSAGES
    assert len(late.member.held) == 6
    late = Late(monkeypatch)
    late.begin()
    late.room.delete("t")
    late.room.topic("t")
    late.room.pass_ms(PACE.retry_ms + 2 * SOON_MS, late.seat)
    assert late.member.frontiers == {("t", queue): 0 for queue in range(QUEUES)}


def test_who_looks_for_where_it_begins_holds_up_no_other_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not though no more than one group is looked at in a tick: it may read a log for minutes."""
    monkeypatch.setattr(keeper, "GROUPS_A_TICK", 1)
    late = Late(monkeypatch)
    late.begin()
    other = late.seat.join("z", group="h", settings=Settings(topics=("t",)))
    while not other.held:
        late.room.pass_ms(10, late.seat)
        assert not late.member.held
    assert late.room.leader.replica.groups.looks_under_way
    late.room.pass_ms(2 * SOON_MS, late.seat)
    assert late.member.held


def test_while_a_group_looks_for_where_it_begins_its_other_queues_go_from_hand_to_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It begins in topic t, for minutes: whoever goes leaves those of u to who is there, and who
    comes is given some. When it is found, t is given out as the group is then."""
    room, is_slow, found_by = Room(), True, QueueReader.offset_by_time_in_steps
    room.topic("u")
    send_to_all(room)
    time_ms = room.world.now_ms + 1_000_000
    former = Settings(topics=("u",), start=Start.TIME, start_time_ms=time_ms, version=1)
    seat, other = room.seat(), room.seat()
    first, gone = seat.join("a", settings=former), other.join("b", settings=former)
    room.pass_ms(4 * SOON_MS, seat, other)
    assert share([first, gone]) == [QUEUES // 2, QUEUES // 2]

    def slowly(
        reader: QueueReader, topic: TopicRef, queue_id: int, time_ms: int
    ) -> Generator[None, None, int]:
        while is_slow:
            yield
        return (yield from found_by(reader, topic, queue_id, time_ms))

    monkeypatch.setattr(QueueReader, "offset_by_time_in_steps", slowly)
    one_step_a_turn(room)
    both = replace(former, topics=("t", "u"), version=2)
    new = seat.join("c", settings=both)
    room.pass_ms(4 * SOON_MS, seat, other)
    assert room.leader.replica.groups.looks_under_way
    other.leave(0)
    room.pass_ms(SOON_MS, seat)
    assert len(first.held) + len(new.held) == QUEUES
    assert not [queue for topic, queue in new.held if topic == "t"]
    also = seat.join("d", settings=both)
    room.pass_ms(PACE.release_ms + 4 * SOON_MS, seat)
    assert len(first.held) + len(new.held) + len(also.held) == QUEUES
    is_slow = False
    room.pass_ms(PACE.release_ms + 4 * SOON_MS, seat)
    ours = [place for each in (new, also) for place in each.held]
    assert sorted(queue for topic, queue in ours if topic == "t") == list(range(QUEUES))
    assert share([first, new, also])[-1]


def test_who_ends_or_leads_no_more_leaves_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next member, and the next leader, are given queues as ever."""
    late = Late(monkeypatch)
    late.begin()
    late.seat.leave(0)
    again = late.seat.join("c", settings=late.settings)
    late.room.pass_ms(3 * SOON_MS, late.seat)
    assert len(again.held) == QUEUES
    late = Late(monkeypatch, 3)
    late.begin()
    room, before = late.room, late.room.leader
    room.lead(next(name for name in room.world.members if name != before.name))
    back = room.seat()
    member = back.join("a", session=late.member.session)
    room.pass_ms(2 * SOON_MS, back)
    assert len(member.held) == QUEUES
    assert not before.replica.groups.looks_under_way


def test_what_went_from_a_queue_since_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may let go of messages while others are looked for."""
    late = Late(monkeypatch)
    group, topic = late.room.machine.groups.get("g"), late.room.machine.topics["t"]
    assert group is not None
    found, reader = Beginnings(), Bounded()
    at_once(found.look(reader, group, [(topic, 0)]))
    monkeypatch.setattr(Bounded, "bounds", lambda *_: (6, 8))
    assert found.take(reader, group, topic, 0) == [6] * QUEUES

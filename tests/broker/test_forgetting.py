"""Which consumer groups a leader forgets, and which it spares however long nobody uses them."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from structlog.testing import capture_logs

from broker.leader.deliveries.asking import Settlement
from broker.leader.groups import forgetting
from broker.leader.groups.forgetting import FORGOTTEN_AT_ONCE
from broker.leader.groups.pace import USUAL_PACE
from broker.state.refusals import Refusal, TooMuchProgress
from broker.state.topic_permissions import USUAL, Permission
from broker.state.topics import TopicRef
from dledger.records.marks import MARKS, mark_of, marked_topic, progress_topic
from dledger.wire.commands_pb2 import (
    SETTLING_FINISHED,
    Command,
    CommitOffsetsCommand,
    CommittedOffset,
    MoveQueueStartsCommand,
    QueueStart,
)
from tests.broker.attended import Room
from tests.broker.test_held_back import Shop, receive

PACE = USUAL_PACE
SOON_MS = 300  # a look at the group, its grant, and the look behind it


def commit(room: Room, group: str, topic: str) -> None:
    """The group, which nobody has joined, has committed in the topic."""
    node, made = room.leader, room.machine.topics[topic].incarnation
    offset = CommittedOffset(queue_id=0, offset=0)
    command = CommitOffsetsCommand(
        group=group, topic=topic, offsets=[offset], topic_incarnation=made
    )
    with node.running():
        answer = node.replica.appender.submit(Command(commit_offsets=command))
    assert room.world.run(node, _awaited(answer)) is None


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def rest(room: Room) -> set[str]:
    """Nobody uses anything for as long as groups are kept; those that are left."""
    room.machine.lived_time.lived_ms += PACE.unused_ms
    room.pass_ms(PACE.forget_ms + 100)
    return {group.name for group in room.machine.groups}


def test_unused_groups_are_forgotten_through_the_log() -> None:
    """By lived time, which their offsets don't outlive; groups with members stay."""
    room = Room()
    seat = room.seat()
    seat.join("a")
    gone = seat.join("b", group="gone")
    room.pass_ms(SOON_MS, seat)
    assert gone.held
    seat.leave(1)
    room.pass_ms(SOON_MS, seat)
    machine = room.machine
    machine.lived_time.lived_ms += PACE.unused_ms
    room.pass_ms(PACE.forget_ms + 100, seat)
    assert machine.groups.get("gone") is None
    assert not machine.offsets.has("gone")
    assert machine.groups.get("g") is not None


def test_a_group_whose_failed_messages_may_wait_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However short the time is that it may be unused."""
    monkeypatch.setattr(forgetting, "LONGEST_WAIT_MS", 2 * PACE.unused_ms)
    room = Room()
    room.own_topic("%RETRY%waits")
    seat = room.seat()
    for slot, group in enumerate(("waits", "gone")):
        seat.join("a", group=group)
        room.pass_ms(SOON_MS, seat)
        seat.leave(slot)
    room.pass_ms(SOON_MS, seat)
    machine = room.machine
    for expected in ({"waits"}, set()):
        machine.lived_time.lived_ms += PACE.unused_ms
        room.pass_ms(PACE.forget_ms + 100, seat)
        assert {group.name for group in machine.groups} == expected


def test_marks_of_a_sink_are_kept_for_as_long_as_their_topic_is() -> None:
    """A query that rests for long commits nothing; who forgot its marks took a committed batch for
    one that never was (ADR 33). Names that are only like it are groups like any other."""
    room = Room()
    topic = progress_topic("q")
    for name in (topic, "-progress"):
        room.topic(name, queues=1)
    marks = {mark_of(topic, batch) for batch in range(MARKS)}
    for group in (*marks, f"{topic}-11", f"{topic}-01", topic, "-progress-1", "plain"):
        commit(room, group, "-progress" if group.startswith("-") else topic)
    assert rest(room) == marks
    assert rest(room) == marks, "however long it rests"
    room.delete(topic)
    assert rest(room) == set()


def test_a_mark_is_one_only_in_its_own_topic() -> None:
    """Who commits elsewhere, or has members, bears the name and isn't one."""
    room = Room()
    topic = progress_topic("q")
    room.topic(topic, queues=1)
    both, elsewhere, joined = (mark_of(topic, each) for each in range(3))
    for group in (both, elsewhere):
        commit(room, group, "t")
    commit(room, both, topic)
    commit(room, joined, topic)
    seat = room.seat()
    seat.join(group=joined)
    room.pass_ms(SOON_MS, seat)
    seat.leave()
    room.pass_ms(SOON_MS, seat)
    assert rest(room) == set()


def test_who_has_offsets_in_a_topic_that_may_not_be_read_is_kept() -> None:
    """It can't use them, and goes on from there when it may."""
    room = Room()
    for name in ("unread", "also-unread", "unwritten"):
        room.topic(name, queues=1)
    for group, topic in (("p", "unread"), ("q", "also-unread"), ("r", "unwritten")):
        commit(room, group, topic)
        commit(room, group, "t")
    commit(room, "s", "t")
    permit(room, "unread", Permission.WRITE)
    permit(room, "also-unread", Permission.WRITE)
    permit(room, "unwritten", Permission.READ)
    assert rest(room) == {"p", "q"}
    permit(room, "unread", USUAL)
    room.delete("also-unread")
    assert rest(room) == set()


def permit(room: Room, topic: str, permission: Permission) -> None:
    topics = room.leader.replica.services.topics
    room.world.run(room.leader, topics.permit(TopicRef(topic), permission))


def test_those_that_are_spared_take_nobody_elses_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many marks there are, each look finds some that may be forgotten."""
    monkeypatch.setattr(forgetting, "FORGOTTEN_AT_ONCE", 2)
    room = Room()
    topic = progress_topic("q")
    room.topic(topic, queues=1)
    marks = {mark_of(topic, batch) for batch in range(MARKS)}
    for group in (*sorted(marks), "plain"):
        commit(room, group, topic)
    assert rest(room) == marks


@pytest.mark.parametrize(
    ("group", "topic"),
    [
        ("q-progress-0", "q-progress"),
        ("q-progress-10", "q-progress"),
        ("a-progress-1-progress-2", "a-progress-1-progress"),
        *((name, "") for name in ("q-progress-11", "q-progress-x", "q-progress-\u0663", "q-7")),
        *((name, "") for name in ("-progress-1", "q-progress", "q-progress-", "")),
    ],
)
def test_a_mark_is_known_by_its_name(group: str, topic: str) -> None:
    """Numbers as the sink writes them, and no others."""
    assert marked_topic(group) == topic


# --- pace -----------------------------------------------------------------------------------------


def unused(room: Room, count: int) -> set[str]:
    """So many groups that nobody uses; so much time was lived."""
    names = {f"unused{number}" for number in range(count)}
    for name in sorted(names):
        commit(room, name, "t")
    room.machine.lived_time.lived_ms += PACE.unused_ms
    return names


def left(room: Room) -> set[str]:
    return {group.name for group in room.machine.groups}


def test_where_there_are_many_the_next_ones_go_soon() -> None:
    """A minute for each sixteen were four days for the groups that there may be."""
    room = Room()
    unused(room, 5 * FORGOTTEN_AT_ONCE)
    room.pass_ms(PACE.forget_ms)
    room.pass_ms(5 * (PACE.retry_ms + 100))
    assert left(room) == set()
    keeper = room.leader.replica.parts.groups
    assert keeper.statistics().forgotten == 5 * FORGOTTEN_AT_ONCE


def test_who_finds_no_room_does_not_wait_for_the_next_look() -> None:
    """Neither of those whom the state refuses nor of those whom a leader does."""
    for offsets_room_is_full in (False, True):
        room = Room()
        unused(room, 2)
        room.pass_ms(PACE.retry_ms)
        assert len(left(room)) == 2
        if offsets_room_is_full:
            room.leader.replica.appender.room.times_short += 1
        else:
            room.machine.offsets.max_progress = 2
            assert refused_commit(room) == TooMuchProgress(2)
        room.pass_ms(PACE.retry_ms)
        assert left(room) == set()


def refused_commit(room: Room) -> Refusal | None:
    node, made = room.leader, room.machine.topics["t"].incarnation
    offset = CommittedOffset(queue_id=0, offset=0)
    wanted = CommitOffsetsCommand(group="more", topic="t", offsets=[offset], topic_incarnation=made)
    with node.running():
        answer = node.replica.appender.submit(Command(commit_offsets=wanted))
    refusal = room.world.run(node, _awaited(answer))
    assert isinstance(refusal, Refusal)
    return refusal


def test_time_is_lived_where_nothing_but_refusals_happens() -> None:
    """A leader that refuses by itself puts nothing into the log: nobody would ever be unused."""
    room = Room()
    commit(room, "used lately", "t")
    room.pass_ms(PACE.retry_ms)
    room.leader.replica.appender.room.times_short += 1
    before = room.machine.applied_index
    room.pass_ms(PACE.retry_ms)
    assert room.machine.applied_index == before + 1
    for _ in range(5):
        room.leader.replica.appender.room.times_short += 1
        room.pass_ms(2 * PACE.retry_ms)
    assert room.machine.applied_index == before + 1, "a minute at most is lived by one"


def test_groups_at_work_take_nobodys_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose messages somebody has: all members would keep them, whoever is named. And nobody
    is told that they are gone."""
    monkeypatch.setattr(forgetting, "FORGOTTEN_AT_ONCE", 2)
    shop = Shop()
    room, keeper = shop.room, shop.room.leader.replica.parts.groups
    shop.send(0, b"one")
    for name in ("p", "q", "r"):
        receive(shop, group=name)
    for name in ("x", "y", "z"):
        commit(room, name, "t")
    keeper._forgetting._unused_ms = 1
    room.machine.lived_time.lived_ms += 1
    with capture_logs() as told:
        room.pass_ms(PACE.forget_ms + 5_000)
    gone = [each["groups"] for each in told if each["event"] == "groups_forgotten"]
    assert [name for names in gone for name in names][:3] == ["x", "y", "z"]


@pytest.mark.parametrize(("low", "left"), [(0, 3), (1, 2), (3, 1), (4, 1)])
def test_a_group_of_single_messages_leaves_what_nobody_has_finished(low: int, left: int) -> None:
    """What lies finished behind its offset isn't left, nor what has gone."""
    shop = Shop()
    room = shop.room
    shop.send(0, *(b"x" for _ in range(4)))
    (first,) = receive(shop, is_fifo=False).handed
    done = Settlement(0, first.handout, 0, 0b1010, SETTLING_FINISHED, 0)
    answer = room.leader.replica.services.deliveries.settle("p", TopicRef("t"), (done,))
    assert room.world.run(room.leader, answer) == ()
    shop.send(0, b"never handed out")
    starts = [QueueStart(queue_id=0, offset=low)]
    made = room.machine.topics["t"].incarnation
    move = MoveQueueStartsCommand(name="t", incarnation=made, starts=starts)
    with room.leader.running():
        room.leader.replica.appender.submit(Command(move_queue_starts=move))
    room.pass_ms(60_100)
    with capture_logs() as told:
        assert rest(room) == set()
    assert [each["unread"] for each in told if each["event"] == "groups_forgotten"] == [{"p": left}]


def test_who_is_kept_by_the_state_is_not_told_to_be_gone() -> None:
    """What was named is used before the command is applied."""
    room = Room()
    (name,) = unused(room, 1)
    keeper, node = room.leader.replica.parts.groups, room.leader
    forget = keeper._forgetting
    commands = forget._commands

    class UsedBefore:
        def forget_groups(self, names: object, unused_ms: int) -> object:
            commit_in_front(room, name)
            return commands.forget_groups(names, unused_ms)  # type: ignore[arg-type]

    forget._commands = UsedBefore()  # type: ignore[assignment]
    with capture_logs() as told:
        room.pass_ms(PACE.forget_ms + 100)
    assert left(room) == {name}
    assert node.replica.parts.groups.statistics().forgotten == 0
    assert not [each for each in told if each["event"] == "groups_forgotten"]


def commit_in_front(room: Room, group: str) -> None:
    made = room.machine.topics["t"].incarnation
    offset = CommittedOffset(queue_id=1, offset=0)
    wanted = CommitOffsetsCommand(group=group, topic="t", offsets=[offset], topic_incarnation=made)
    room.leader.replica.appender.submit(Command(commit_offsets=wanted))

"""Members' streams and pulls without a wire: what is told when, what is refused (ADR 55)."""

from __future__ import annotations

import pytest

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.commands import QueueDone, TopicDone
from broker.leader.groups.pace import USUAL_PACE
from broker.reading.queues import Found
from broker.services.attendance import CHANGES_AT_ONCE, MAX_MEMBERS
from broker.services.groups import MAX_QUEUES_IN_COMMIT, MAX_RUNS_IN_COMMIT
from broker.services.queue_pulls import MAX_QUEUES, Pulled, QueuesRequest, QueueWish
from broker.services.updates import Assignment
from broker.state.groups import MAX_VERSION_STEP, JoinWish, Settings
from broker.state.leases import MAX_RANGES, Place
from broker.state.topics import TopicRef
from tests.broker.asked import EndlessCall
from tests.broker.attended import QUEUES, Member, Room
from tests.broker.leader import batch
from tests.node.world import TICK_MS

SOON_MS = 300
TOO_MANY = [1] * (2 * MAX_RANGES + 2)  # runs of one queue, as on the wire


def test_much_is_told_in_parts_and_whole_comes_last() -> None:
    """A client that drops what wasn't named must not drop what wasn't named yet."""
    room = Room()
    room.topic("wide", 3 * CHANGES_AT_ONCE)
    seat = room.seat()
    member = seat.join(settings=Settings(topics=("wide",)))
    room.pass_ms(SOON_MS, seat)
    assert len(member.held) == 3 * CHANGES_AT_ONCE
    back = room.seat()
    sizes: list[int] = []
    assign = back._assign

    def noted(of: Member, told: Assignment) -> None:
        assign(of, told)
        sizes.append(len(of.held) if of.is_whole else 0)

    back._assign = noted  # type: ignore[method-assign,assignment]
    again = back.join(settings=Settings(topics=("wide",)), session=member.session)
    room.pass_ms(SOON_MS, back)
    assert again.is_whole
    assert next(size for size in sizes if size) == 3 * CHANGES_AT_ONCE
    assert len(sizes) >= 3


def test_who_says_too_much_is_refused_alone() -> None:
    """All members of a client are on one stream; the slot is free again, as after any end."""
    room = Room()
    seat = room.seat()
    member = seat.join()
    refused = seat.refuse("too many queues")
    assert refused.code is ErrorCode.INVALID_ARGUMENT
    with seat.node.running(), pytest.raises(BrokerError, match="slot 0 is taken"):
        seat.attendance.refuse(0, "too many queues")
    with seat.node.running():
        seat.attendance.refuse(1, "too many queues")
    room.pass_ms(SOON_MS, seat)
    assert member.held
    assert not seat.is_over


def test_one_slip_does_not_use_up_the_versions_of_a_group() -> None:
    """Nobody could change its settings any more. What it has already is gone on with."""
    room = Room()
    seat = room.seat()

    def join(name: str, version: int) -> Member:
        return seat.join(name, settings=Settings(version, topics=("t",)))

    highest = (1 << 32) - 1
    assert join("slip", highest).code is ErrorCode.INVALID_ARGUMENT
    assert room.machine.groups.get("g") is None
    for name, version in (("a", MAX_VERSION_STEP), ("b", highest), ("c", highest)):
        assert join(name, version).code is None
        group = room.machine.groups.get("g")
        assert group is not None
        assert group.version == version


def test_a_slow_reader_is_told_the_last_of_several_changes() -> None:
    """Nothing is kept for it meanwhile: a queue that came and went isn't mentioned."""
    room = Room()
    node = room.leader
    with node.running():
        attendance = node.replica.services.groups.attend()
    other = room.seat()
    holder = other.join("a")
    room.pass_ms(SOON_MS, other)
    wish = JoinWish("g", "b", b"token--1", Settings(topics=("t",)))
    room.world.run(node, attendance.join(0, wish, 0))
    room.pass_ms(USUAL_PACE.release_ms + 2 * SOON_MS, other)
    assert len(holder.held) == QUEUES // 2
    other.leave()
    with node.running():
        attendance.heartbeat(1)
    room.pass_ms(SOON_MS)
    told = []

    async def read() -> None:
        async for update in attendance.updates():
            told.append(update)

    node.begin(read())
    room.pass_ms(20)
    assert [type(each).__name__ for each in told] == ["Joined", "HeartbeatAnswered", "Assignment"]
    assert isinstance(told[-1], Assignment)
    assert len(told[-1].gained) == QUEUES
    with node.running():
        attendance.hang_up(None)
        attendance.close()
    room.world.settle()


def test_a_session_that_is_about_to_end_is_not_gone_on_with() -> None:
    """The member would begin to work, and lose all of it."""
    room = Room()
    seat = room.seat()
    member = seat.join()
    room.pass_ms(SOON_MS, seat)
    seat.break_off()
    back = room.seat()
    keeper = room.leader.replica.groups
    for _ in range(200):  # until its end is proposed, and not on the disk yet
        room.world.pass_time(TICK_MS)
        room.world.turn()
        if keeper.ending:
            break
    assert keeper.ending == {member.session}
    with back.node.running():
        task = back.node.begin(back.attendance._session_of(_wish_of("a"), member.session))
    room.world.turn()
    with pytest.raises(BrokerError) as refused:
        room.world.outcome(task)
    assert refused.value.code in (ErrorCode.BUSY, ErrorCode.SESSION_ENDED)
    if keeper.ending:
        assert refused.value.code is ErrorCode.BUSY


def test_a_join_that_comes_late_takes_no_member_from_its_stream() -> None:
    """What a client said on a stream that it has left may arrive after what it says on the next
    one: heard last, it was said first."""
    room = Room()
    left, current = room.seat(), room.seat()
    member = current.join(attempt=2)
    room.pass_ms(SOON_MS, current)
    late = left.join(attempt=1, session=member.session)
    room.pass_ms(SOON_MS, current)
    assert late.code is ErrorCode.BUSY
    left.break_off()
    room.pass_ms(2 * USUAL_PACE.session_ms, current)
    assert len(member.held) == QUEUES
    assert member.ended is None


def test_a_newer_join_takes_the_member_to_its_stream() -> None:
    """The broker may learn last that a stream is dead."""
    room = Room()
    dead, current = room.seat(), room.seat()
    before = dead.join(attempt=1)
    room.pass_ms(SOON_MS, dead)
    after = current.join(attempt=2, session=before.session)
    room.pass_ms(2 * USUAL_PACE.session_ms, current)
    assert len(after.held) == QUEUES
    assert before.code is ErrorCode.BUSY


def test_a_stream_that_loses_its_member_is_told() -> None:
    """A client that doesn't count its joins: the member that is still there joins again, as nobody
    hears it where it is, and its session would end while it speaks."""
    room = Room()
    left, current = room.seat(), room.seat()
    member = current.join()
    room.pass_ms(SOON_MS, current)
    late = left.join(session=member.session)
    room.pass_ms(SOON_MS, current)
    assert late.code is None
    assert member.code is ErrorCode.BUSY
    left.break_off()
    again = current.join(session=member.session)
    room.pass_ms(2 * USUAL_PACE.session_ms, current)
    assert len(again.held) == QUEUES


def test_a_client_that_has_hung_up_is_no_member() -> None:
    """Its join was still being confirmed then: it may be on another stream since."""
    room = Room()
    current, node = room.seat(), room.leader
    member = current.join()
    room.pass_ms(SOON_MS, current)
    with node.running():
        left = node.replica.services.groups.attend()
        joining = node.begin(left.join(0, _wish_of("a"), member.session))
        left.hang_up(None)
    room.world.outcome(joining)
    room.pass_ms(2 * USUAL_PACE.session_ms, current)
    with node.running():
        left.close()
    assert len(member.held) == QUEUES
    assert member.ended is None


def _wish_of(name: str) -> JoinWish:
    return JoinWish("g", name, b"token--1", Settings(topics=("t",)))


def test_who_does_not_read_holds_no_more_than_its_slots() -> None:
    """Joins that are refused wait to be told, and their slots with them."""
    room = Room()
    node = room.leader
    with node.running():
        attendance = node.replica.services.groups.attend()
    wrong = JoinWish("g", "m", b"short", Settings(topics=("t",)))
    for slot in range(MAX_MEMBERS):
        room.world.run(node, attendance.join(slot, wrong, 0))
    for slot in (0, MAX_MEMBERS):
        with pytest.raises(BrokerError) as refused:
            room.world.run(node, attendance.join(slot, wrong, 0))
        assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    with node.running():
        attendance.close()


# --- pulls ------------------------------------------------------------------------------------


def pull(room: Room, member: Member, *queues: QueueWish, hold_ms: int = 0) -> list[Pulled]:
    node = room.leader
    request = QueuesRequest(queues, "g", hold_ms=hold_ms)
    return room.world.run(node, node.replica.services.queue_pulls.pull(request, EndlessCall()))


def wish(member: Member, queue_id: int, offset: int = 0, epoch: int | None = None) -> QueueWish:
    mine = member.held["t", queue_id] if epoch is None else epoch
    return QueueWish(TopicRef("t"), queue_id, offset, mine)


def send(room: Room, queue_id: int, *bodies: bytes) -> None:
    node = room.leader
    sent = node.replica.services.sends.send(b"", [batch(0, *bodies, queue_id=queue_id)])
    room.world.run(node, sent)


def joined() -> tuple[Room, Member]:
    room = Room()
    seat = room.seat()
    member = seat.join()
    room.pass_ms(SOON_MS, seat)
    return room, member


def test_a_pull_of_many_queues_is_woken_by_each() -> None:
    """And reads those that have something, in the order of the request."""
    for woken in range(QUEUES):
        room, member = joined()
        node = room.leader
        wishes = tuple(wish(member, queue_id) for queue_id in range(QUEUES))
        held = node.begin(
            node.replica.services.queue_pulls.pull(
                QueuesRequest(wishes, "g", hold_ms=3_000), EndlessCall()
            )
        )
        room.pass_ms(20)
        assert not held.done()
        send(room, woken, b"a", b"b")
        room.pass_ms(20)
        assert held.done()
        ((position, found),) = held.result()
        assert isinstance(found, Found)
        assert (position, found.count) == (woken, 2)


def test_who_lost_a_queue_reads_it_no_more() -> None:
    """By the epoch that it held; whoever names none reads what it likes."""
    room, member = joined()
    send(room, 0, b"a")
    ((_, refused),) = pull(room, member, wish(member, 0, epoch=member.held["t", 0] - 1))
    assert isinstance(refused, Failure)
    assert refused.code is ErrorCode.LEASE_LOST
    ((_, found),) = pull(room, member, wish(member, 0, epoch=0))
    assert isinstance(found, Found)
    assert found.count == 1


def test_one_queue_that_cannot_be_read_holds_up_no_other() -> None:
    """It has an error of its own."""
    room, member = joined()
    send(room, 1, b"a")
    nowhere = QueueWish(TopicRef("nope"), 0, 0)
    beyond = QueueWish(TopicRef("t"), QUEUES, 0)
    found = pull(room, member, nowhere, beyond, wish(member, 0, 7), wish(member, 1))
    codes = [each.code if isinstance(each, Failure) else None for _, each in found]
    assert codes == [
        ErrorCode.TOPIC_NOT_FOUND,
        ErrorCode.QUEUE_NOT_FOUND,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        None,
    ]


@pytest.mark.parametrize("count", [0, MAX_QUEUES + 1])
def test_a_pull_is_of_some_queues(count: int) -> None:
    """And not of too many."""
    room, member = joined()
    with pytest.raises(BrokerError) as refused:
        pull(room, member, *[QueueWish(TopicRef("t"), 0, 0)] * count)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


def test_a_pull_names_each_queue_once() -> None:
    """By whichever name; what is there of it would come as often, and be no part of any bound."""
    room, member = joined()
    incarnation = room.leader.replica.machine.topics["t"].incarnation
    again = QueueWish(TopicRef("t", incarnation), 1, 7)
    with pytest.raises(BrokerError, match="queue 1 of topic 't' is named twice") as refused:
        pull(room, member, wish(member, 0), wish(member, 1), again)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    gone = QueueWish(TopicRef("t", incarnation + 1), 1, 0)
    assert len(pull(room, member, again, gone)) == 2, "they are two topics' of a name"


def test_messages_are_bounded_over_all_queues() -> None:
    """Those that are named first come first."""
    room, member = joined()
    for queue_id in range(3):
        send(room, queue_id, b"a", b"b")
    node = room.leader
    request = QueuesRequest(
        tuple(wish(member, queue_id) for queue_id in (2, 0, 1)), "g", max_messages=3
    )
    found = room.world.run(node, node.replica.services.queue_pulls.pull(request, EndlessCall()))
    assert [(at, each.count) for at, each in found if isinstance(each, Found)] == [(0, 2), (1, 1)]


# --- commits ----------------------------------------------------------------------------------


def test_a_commit_is_bounded() -> None:
    """In queues and in finished runs; nothing of one that is too large happens."""
    room, member = joined()
    send(room, 0, *[b"x"] * 9)
    (excessive,) = room.commit(member, 0, 0, *TOO_MANY)
    assert excessive.failure.code is ErrorCode.LIMIT_REACHED
    topic = room.leader.replica.machine.topics["t"].incarnation
    many = QueueDone(0, member.held["t", 0], 0, tuple(TOO_MANY[2:]), is_released=False)
    with pytest.raises(BrokerError) as refused:
        room.commit_all(member, TopicDone("t", topic, (many,) * (MAX_RUNS_IN_COMMIT // 256 + 1)))
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    (odd,) = room.commit(member, 0, 0, 1)
    assert odd.failure.code is ErrorCode.INVALID_ARGUMENT
    (beyond,) = room.commit(member, 0, 10)
    assert beyond.failure.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert room.commit(member, 0, 4, 2, 2) == ()
    assert MAX_QUEUES_IN_COMMIT == 1_024


def test_one_queues_runs_are_no_reason_to_refuse_the_others() -> None:
    """It is told that they are too many, and keeps its place and its holder; the rest of the call
    is committed, and what is given back has gone."""
    room, member = joined()
    send(room, 0, b"x")
    send(room, 1, b"x")
    topic = room.leader.replica.machine.topics["t"].incarnation
    done = TopicDone(
        "t",
        topic,
        (
            QueueDone(0, member.held["t", 0], 0, tuple(TOO_MANY), is_released=True),
            QueueDone(1, member.held["t", 1], 1, (), is_released=True),
        ),
    )
    (refused,) = room.commit_all(member, done)
    assert (refused.queue.queue_id, refused.failure.code) == (0, ErrorCode.LIMIT_REACHED)
    leases = room.leader.replica.machine.leases
    assert leases.of(Place("g", topic, 0)).session == member.session
    assert leases.of(Place("g", topic, 1)).session == 0
    assert room.leader.replica.machine.offsets.of("g", "t")[1] == 1

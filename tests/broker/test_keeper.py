"""What a leader does about consumer groups: sessions by ticks, hand-overs, returns (ADR 55)."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.groups import strategies
from broker.leader.groups.keeper import GroupKeeper
from broker.leader.groups.pace import USUAL_PACE
from broker.leader.units import ProposedUnit
from broker.services.attendance import MAX_MEMBERS
from broker.services.updates import HeartbeatAnswered
from broker.state.groups import Settings, Start
from broker.state.refusals import GroupHasMembers
from dledger.client.members.member import STARTABLE_SHARE
from dledger.wire.commands_pb2 import Command, CommitOffsetsCommand, CommittedOffset
from tests.broker.attended import QUEUES, Room, share
from tests.broker.leader import batch

PACE = USUAL_PACE
SOON_MS = 300  # a look at the group, its grant, and the look behind it
ORDERLY = Settings(is_orderly=True, topics=("t",))


def test_members_share_the_queues() -> None:
    """The first has them all; of two each has half, when the first gave back what it was asked."""
    room = Room()
    one, other = room.seat(), room.seat()
    first = one.join("a")
    room.pass_ms(SOON_MS, one)
    assert (first.queues, first.is_whole) == ([0, 1, 2, 3], True)
    second = other.join("b")
    room.pass_ms(SOON_MS, one, other)
    assert (share([first, second]), len(first.asked)) == ([4, 0], 2)
    for _, queue_id in list(first.asked):
        assert room.commit(first, queue_id, 0, release=True) == ()
    room.pass_ms(SOON_MS, one, other)
    assert share([first, second]) == [2, 2]
    assert not first.asked


@pytest.mark.parametrize(
    ("sessions", "ms"), [(0, 3_000), (540, 3_000), (720, 4_000), (990, 5_500), (100_000, 5_500)]
)
def test_many_members_are_heard_less_often(sessions: int, ms: int) -> None:
    """So that all of them together don't cost their leader more and more; and often enough for
    whoever begins nothing new after two thirds of a session."""
    assert PACE.heartbeat_of(sessions) == ms
    assert PACE.heartbeat_of(sessions) < PACE.session_ms * 2 / 3


def test_nobody_is_given_queues_while_their_holder_may_begin_messages() -> None:
    """Who doesn't come back to a new leader begins them for two thirds of a session after the last
    answer of the one before."""
    assert PACE.return_ms >= STARTABLE_SHARE * PACE.session_ms + 300
    for changes in ({"return_ms": 6_900}, {"session_ms": 11_000}):
        with pytest.raises(AssertionError, match="too early"):
            replace(PACE, **changes)


def test_each_answer_tells_how_often_members_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of now: they were few when they joined."""
    room = Room()
    node = room.leader
    with node.running():
        attendance = node.replica.services.groups.attend()
        attendance.heartbeat(7)
        assert attendance._next() == HeartbeatAnswered(7, 0, PACE.heartbeat_ms)
        monkeypatch.setattr(type(room.machine.groups), "session_count", 720)
        attendance.heartbeat(8)
        assert attendance._next() == HeartbeatAnswered(8, 360, 4_000)
        attendance.close()


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_hand_over_ends_within_its_time(is_orderly: bool) -> None:
    """Not before, and then without the holder."""
    room = Room()
    one, other = room.seat(), room.seat()
    settings = Settings(is_orderly=is_orderly, topics=("t",))
    first = one.join("a", settings=settings)
    room.pass_ms(SOON_MS, one)
    epochs = dict(first.held)
    second = other.join("b", settings=settings)
    bound_ms = PACE.release_of(is_orderly=is_orderly)
    room.pass_ms(bound_ms - SOON_MS, one, other)
    assert share([first, second]) == [4, 0]
    room.pass_ms(3 * SOON_MS, one, other)
    assert share([first, second]) == [2, 2]
    (_, taken), *_ = second.held
    (refused,) = room.commit(first, taken, 0, epoch=epochs["t", taken])
    assert refused.failure.code is ErrorCode.LEASE_LOST


def test_what_is_asked_for_is_left_when_it_is_wanted_no_more() -> None:
    """Whoever wanted it has gone: the holder is told that it keeps it, by the same epoch."""
    room = Room()
    one, other = room.seat(), room.seat()
    first = one.join("a")
    room.pass_ms(SOON_MS, one)
    epochs = dict(first.held)
    other.join("b")
    room.pass_ms(SOON_MS, one, other)
    assert first.asked
    other.leave()
    room.pass_ms(SOON_MS, one, other)
    assert (first.asked, first.held) == (set(), epochs)
    room.pass_ms(2 * PACE.release_ms, one)
    assert first.held == epochs


def test_who_says_goodbye_is_gone_at_once() -> None:
    """And told so, without an error."""
    room = Room()
    one, other = room.seat(), room.seat()
    first, second = one.join("a"), other.join("b")
    room.pass_ms(SOON_MS, one, other)
    one.leave()
    room.pass_ms(SOON_MS, one, other)
    assert first.ended is not None
    assert first.code is None
    assert len(second.held) == QUEUES


def test_a_broken_stream_ends_a_concurrent_session_soon() -> None:
    """After half a second, in which it may come back."""
    room = Room()
    one, other = room.seat(), room.seat()
    first, second = one.join("a"), other.join("b")
    room.pass_ms(SOON_MS, one, other)
    held = dict(first.held)
    one.break_off()
    back = room.seat()
    again = back.join("a", session=first.session)
    room.pass_ms(3 * PACE.away_ms, back, other)
    assert (again.session, again.held, again.is_whole) == (first.session, held, True)
    back.break_off()
    room.pass_ms(PACE.away_ms + SOON_MS, other)
    assert len(second.held) == QUEUES


def test_a_broken_stream_ends_no_orderly_session() -> None:
    """Its member may be in the midst of a message: only silence for the whole session does."""
    room = Room()
    one, other = room.seat(), room.seat()
    first, second = one.join("a", settings=ORDERLY), other.join("b", settings=ORDERLY)
    room.pass_ms(SOON_MS, one, other)
    one.break_off()
    room.pass_ms(PACE.session_ms - SOON_MS - 1_000, other)
    assert share([first, second]) == [2, 2]
    room.pass_ms(1_000 + 3 * SOON_MS, other)
    assert len(second.held) == QUEUES


def test_a_silent_member_is_ended_and_its_stream_too() -> None:
    """One that says anything is there."""
    room = Room()
    one, other = room.seat(), room.seat()
    first, second = one.join("a"), other.join("b")
    room.pass_ms(PACE.session_ms - 100, other)
    assert first.ended is None
    one.beat()
    room.pass_ms(PACE.session_ms - 100, other)
    assert first.ended is None
    room.pass_ms(2_000, other)
    assert one.is_over or first.code is ErrorCode.SESSION_ENDED
    assert len(second.held) == QUEUES
    with pytest.raises(BrokerError) as refused:
        room.commit(first, 0, 0, epoch=1)
    assert refused.value.code is ErrorCode.SESSION_ENDED


def test_who_falls_silent_counts_for_what_was_in_front_and_a_goodbye_does_not() -> None:
    """Whoever has the queue next is told how often that was."""
    room = Room()
    fill(room, "t", 2)
    told: list[int | None] = []
    for token, says in ((b"token--1", True), (b"token--2", False), (b"token--3", True)):
        seat = room.seat()
        member = seat.join("a", token=token)
        room.pass_ms(SOON_MS, seat)
        told.append(member.failures["t", 0])
        if says:
            seat.leave()
            room.pass_ms(SOON_MS, seat)
        else:
            room.pass_ms(PACE.session_ms + SOON_MS)
        assert room.machine.groups.session(member.session) is None
    seat = room.seat()
    last = seat.join("b")
    room.pass_ms(SOON_MS, seat)
    assert (told, last.failures["t", 0]) == ([0, 0, 1], 1)
    assert last.failures["t", 1] == 0, "there is no message in it"


def test_a_leader_that_slept_calls_nobody_silent() -> None:
    """What was said meanwhile is read before anybody's time is over: ticks that weren't run aren't
    counted, and after a late one some more are awaited."""
    room = Room()
    seat = room.seat()
    member = seat.join()
    room.pass_ms(PACE.session_ms - 50)  # it has 5 ticks left
    room.world.stand_still(3 * PACE.session_ms)
    room.pass_ms(20)
    seat.beat()
    room.pass_ms(PACE.session_ms - 100)
    assert member.ended is None
    assert len(member.held) == QUEUES


def test_a_change_of_leader_moves_no_lease() -> None:
    """Though one of them comes back late, and a newcomer wants its share."""
    room = Room(3)
    one, other = room.seat(), room.seat()
    first, second = one.join("a"), other.join("b")
    room.pass_ms(SOON_MS, one, other)
    held = dict(first.held), dict(second.held)
    assert share([first, second]) == [2, 2]
    before = room.leader.name
    room.lead(next(name for name in room.world.members if name != before))
    room.pass_ms(50)
    assert one.is_over
    assert isinstance(one.failure, BrokerError)
    back, newcomer = room.seat(), room.seat()
    again = back.join("a", session=first.session)
    newcomer.join("c")
    room.pass_ms(PACE.return_ms - 1_000, back, newcomer)
    late = room.seat()
    behind = late.join("b", session=second.session)
    room.pass_ms(500, back, newcomer, late)
    assert (again.held, behind.held) == held
    room.pass_ms(2_000 + PACE.release_ms, back, newcomer, late)
    assert sorted((len(again.held), len(behind.held))) == [1, 2]  # and now the newcomer has one


def test_who_does_not_come_back_to_a_new_leader_is_ended() -> None:
    """When everybody else has had the time."""
    room = Room(3)
    one, other = room.seat(), room.seat()
    first, second = one.join("a"), other.join("b")
    room.pass_ms(SOON_MS, one, other)
    before = room.leader.name
    room.lead(next(name for name in room.world.members if name != before))
    back = room.seat()
    again = back.join("a", session=first.session)
    room.pass_ms(PACE.return_ms - 200, back)
    assert len(again.held) == QUEUES // 2
    room.pass_ms(200 + 2 * SOON_MS, back)
    assert len(again.held) == QUEUES
    assert room.machine.groups.session(second.session) is None


def test_what_is_free_is_for_those_who_are_back_at_a_new_leader() -> None:
    """Of who said goodbye to the one before, which didn't get to write that down, it knows
    nothing: whoever counts as present and isn't there is given nothing, so nothing lies unread with
    it, nor is called failed as it is ended."""
    room = Room(3)
    for queue_id in range(QUEUES):
        fill(room, "t", 1, queue_id)
    one, other = room.seat(), room.seat()
    first = one.join("a", settings=ORDERLY)
    second = other.join("b", settings=ORDERLY, token=b"token--2")
    room.pass_ms(2 * SOON_MS, one, other)
    given_back = second.queues
    assert len(given_back) == QUEUES // 2
    for queue_id in given_back:
        assert room.commit(second, queue_id, 0, release=True, name="b") == ()
    other.leave()
    room.lead(next(name for name in room.world.members if name != room.leader.name))
    assert room.machine.groups.session(second.session) is not None
    back = room.seat()
    again = back.join("a", session=first.session, settings=ORDERLY)
    room.pass_ms(PACE.keep_ms - 200, back)
    assert len(again.queues) == QUEUES // 2, "the others may be about to be back"
    room.pass_ms(200 + SOON_MS, back)
    assert len(again.queues) == QUEUES
    room.pass_ms(PACE.return_ms, back)
    assert room.machine.groups.session(second.session) is None
    assert set(again.failures.values()) == {0}
    assert not room.machine.attempts.places()


def test_what_is_new_is_for_those_who_are_here() -> None:
    """A member of an orderly group whose stream has broken keeps what it holds for its session, is
    given nothing more meanwhile, and has its share as soon as it is back."""
    room = Room()
    settings = Settings(is_orderly=True, topics=("t", "u"))
    one, other = room.seat(), room.seat()
    first = one.join("a", settings=settings)
    second = other.join("b", settings=settings, token=b"token--2")
    room.pass_ms(SOON_MS, one, other)
    held = dict(second.held)
    other.break_off()
    room.topic("u")
    for queue_id in range(QUEUES):
        fill(room, "u", 1, queue_id)
    room.pass_ms(PACE.keep_ms - 200, one)
    assert share([first]) == [QUEUES], "two of four wait for who may be about to be back"
    room.pass_ms(200 + SOON_MS, one)
    assert share([first]) == [QUEUES // 2 + QUEUES]
    assert not room.machine.attempts.places()
    back = room.seat()
    again = back.join("b", session=second.session, settings=settings, token=b"token--2")
    room.pass_ms(SOON_MS, one, back)
    assert (again.held, len(first.asked)) == (held, 2)
    room.pass_ms(PACE.orderly_release_ms + SOON_MS, one, back)
    assert share([first, again]) == [QUEUES, QUEUES]


def test_a_stream_that_breaks_and_is_back_moves_nothing() -> None:
    """Though queues are free meanwhile, and looked at."""
    room = Room()
    one, other = room.seat(), room.seat()
    settings = Settings(topics=("t", "u"))
    first = one.join("a", settings=settings)
    second = other.join("b", settings=settings, token=b"token--2")
    room.pass_ms(SOON_MS, one, other)
    held = dict(first.held)
    other.break_off()
    room.topic("u")
    room.pass_ms(PACE.away_ms // 2, one)
    assert not set(held.items()) - set(first.held.items())
    back = room.seat()
    again = back.join("b", session=second.session, settings=settings, token=b"token--2")
    room.pass_ms(SOON_MS, one, back)
    assert share([first, again]) == [QUEUES, QUEUES]
    keeper = room.leader.replica.groups.statistics()
    assert (keeper.granted, keeper.taken) == (2 * QUEUES, 0)
    assert not first.asked


def test_what_is_asked_for_is_left_while_who_wanted_it_is_away() -> None:
    """Its holder goes on with it, and is asked again when the other one is back."""
    room = Room()
    one, other = room.seat(), room.seat()
    first = one.join("a", settings=ORDERLY)
    room.pass_ms(SOON_MS, one)
    second = other.join("b", settings=ORDERLY, token=b"token--2")
    room.pass_ms(SOON_MS, one, other)
    assert len(first.asked) == QUEUES // 2
    other.break_off()
    held = dict(first.held)
    room.pass_ms(PACE.session_ms // 2, one)
    room.leader.replica.parts.groups.on_group("g")
    room.pass_ms(SOON_MS, one)
    assert (first.asked, first.held) == (set(), held)
    back = room.seat()
    back.join("b", session=second.session, settings=ORDERLY, token=b"token--2")
    room.pass_ms(SOON_MS, one, back)
    assert len(first.asked) == QUEUES // 2


def test_messages_that_failed_wait_at_a_new_leader_for_who_has_use_for_them() -> None:
    """Who has use for them is nobody's to know before its members are back."""
    room = Room(3)
    room.own_topic("%RETRY%g")
    failed = ("%RETRY%g", 0)
    one, other = room.seat(), room.seat()
    loops, pushes = one.join("a", takes_retries=False), other.join("b", token=b"token--2")
    room.pass_ms(SOON_MS, one, other)
    assert failed in pushes.held
    other.leave()
    room.pass_ms(SOON_MS, one)
    room.lead(next(name for name in room.world.members if name != room.leader.name))
    room.pass_ms(SOON_MS)
    back, newcomer = room.seat(), room.seat()
    again = back.join("a", session=loops.session, takes_retries=False)
    room.pass_ms(PACE.keep_ms + SOON_MS, back)
    assert (len(again.held), failed in again.held) == (QUEUES, False)
    pushes = newcomer.join("b", token=b"token--3")
    room.pass_ms(SOON_MS, back, newcomer)
    assert set(pushes.held) == {failed}


def test_a_second_process_of_a_member_replaces_the_first() -> None:
    """Which is told so, by name, and has lost everything."""
    room = Room()
    one, other = room.seat(), room.seat()
    first = one.join("a")
    room.pass_ms(SOON_MS, one)
    second = other.join("a", token=b"token--2")
    room.pass_ms(SOON_MS, one, other)
    assert first.code is ErrorCode.MEMBER_REPLACED
    assert len(second.held) == QUEUES
    with pytest.raises(BrokerError) as refused:
        room.commit(first, 0, 0)
    assert refused.value.code is ErrorCode.MEMBER_REPLACED


def test_a_session_is_on_the_stream_that_it_joined_last() -> None:
    """The one before may be half open: it says nothing of it any more."""
    room = Room()
    one, other = room.seat(), room.seat()
    first = one.join("a")
    room.pass_ms(SOON_MS, one)
    again = other.join("a", session=first.session)
    room.pass_ms(SOON_MS, one, other)
    assert again.held == first.held
    one.break_off()
    room.pass_ms(2 * PACE.away_ms, other)
    assert again.ended is None


def test_messages_that_failed_are_for_who_has_use_for_them() -> None:
    """Whoever hasn't gives them back when somebody has come; alone, it leaves them."""
    room = Room()
    room.own_topic("%RETRY%g")
    one, other = room.seat(), room.seat()
    loops = one.join("a", takes_retries=False)
    room.pass_ms(SOON_MS, one)
    assert set(loops.held) == {("t", queue_id) for queue_id in range(QUEUES)}
    pushes = other.join("b")
    room.pass_ms(2 * PACE.release_ms, one, other)
    assert ("%RETRY%g", 0) in pushes.held
    assert ("%RETRY%g", 0) not in loops.held
    other.leave()
    room.pass_ms(SOON_MS, one)
    assert set(loops.held) == {("t", queue_id) for queue_id in range(QUEUES)}


def test_messages_that_failed_are_for_the_first_who_names_queues_and_has_use_for_them() -> None:
    """Where members name their queues, whoever names none or has no use for them has them not."""
    room = Room()
    room.own_topic("%RETRY%g")
    named = Settings(strategy="CONFIG", topics=("t",))
    seat, failed = room.seat(), ("%RETRY%g", 0)
    idle = seat.join("a", settings=named)
    loops = seat.join("b", settings=named, choices=(("t", (0,)),), takes_retries=False)
    room.pass_ms(SOON_MS, seat)
    assert (set(idle.held), set(loops.held)) == (set(), {("t", 0)})
    third = seat.join("c", settings=named, choices=(("t", (1,)),))
    fourth = seat.join("d", settings=named, choices=(("t", (2, 3)),))
    room.pass_ms(SOON_MS, seat)
    assert set(third.held) == {("t", 1), failed}
    assert set(fourth.held) == {("t", 2), ("t", 3)}
    seat.leave(2)
    room.pass_ms(2 * SOON_MS, seat)
    assert failed in fourth.held


def test_nothing_stays_of_who_came_and_went() -> None:
    """While others stay: neither the topics that a group wanted, which may be none, nor that of a
    session whose stream was gone before it ended."""
    room = Room()
    seat = room.seat()
    seat.join("a")
    keeper = room.leader.replica.parts.groups
    for version in range(1, 6):
        other = room.seat()
        settings = Settings(version=version, topics=(f"none-{version}", "t"))
        late = other.join("b", settings=settings, takes_retries=False, token=b"token--%d" % version)
        room.pass_ms(SOON_MS, seat, other)
        assert late.session in keeper._kept["g"].without_retries
        other.break_off()
        room.pass_ms(2 * PACE.away_ms + SOON_MS, seat)
    kept = keeper._kept["g"]
    assert len(room.machine.groups.members("g")) == 1
    assert (len(kept.attached), kept.without_retries, kept.awaited) == (1, set(), {})
    assert keeper._subscribers == {topic: {"g"} for topic in kept.topics}
    assert len(kept.topics) <= 3


def test_a_topic_that_comes_and_goes_is_handed_out_and_lost() -> None:
    """Wherever a group wants it, that it isn't there yet matters to nobody."""
    room = Room()
    seat = room.seat()
    member = seat.join(settings=Settings(topics=("later", "t")))
    room.pass_ms(SOON_MS, seat)
    assert len(member.held) == QUEUES
    room.topic("later", 2)
    room.pass_ms(SOON_MS, seat)
    assert ("later", 1) in member.held
    room.delete("later")
    room.pass_ms(SOON_MS)  # whoever says nothing is told as well
    assert len(member.held) == QUEUES


def test_a_topic_that_is_wanted_no_more_is_taken_back() -> None:
    """By the settings of a higher version; and another that came with them is handed out to those
    only who know of it."""
    room = Room()
    room.topic("u", 2)
    one, other = room.seat(), room.seat()
    first = one.join("a", settings=Settings(topics=("t", "u")))
    room.pass_ms(SOON_MS, one)
    assert len(first.held) == QUEUES + 2
    room.topic("v", 2)
    second = other.join("b", settings=Settings(version=1, topics=("t", "v")))
    room.pass_ms(PACE.release_ms + 3 * SOON_MS, one, other)
    assert {topic for topic, _ in first.held} == {"t"}
    assert {topic for topic, _ in second.held} == {"t", "v"}


def test_everybody_has_everything_of_a_broadcast_group() -> None:
    """By no epoch, and nothing can be committed."""
    room = Room()
    seat = room.seat()
    settings = Settings(is_broadcast=True, topics=("t",))
    members = [seat.join(name, settings=settings) for name in "ab"]
    room.pass_ms(SOON_MS, seat)
    assert [each.held for each in members] == [dict.fromkeys(members[0].held, 0)] * 2
    assert share(members) == [QUEUES, QUEUES]
    with pytest.raises(BrokerError) as refused:
        room.commit(members[0], 0, 0)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("start", [Start.FIRST, Start.LAST, Start.TIME])
def test_where_a_group_starts_is_its_wish(start: Start) -> None:
    """In topics that were there before it; with the first message in others."""
    room = Room()
    fill(room, "t", 3)
    seat = room.seat()
    time_ms = room.world.now_ms + 5_000 if start is Start.TIME else 0
    room.topic("old", 1)
    settings = Settings(start=start, start_time_ms=time_ms, topics=("new", "t"))
    member = seat.join(settings=settings)
    room.pass_ms(SOON_MS, seat)
    assert member.frontiers["t", 0] == (0 if start is Start.FIRST else 3)
    room.topic("new", 1)
    fill(room, "new", 2)
    room.pass_ms(SOON_MS, seat)
    assert member.frontiers["new", 0] == 0


def fill(room: Room, topic: str, count: int, queue_id: int = 0) -> None:
    """So many messages are in a queue of it."""
    node, messages = room.leader, batch(0, *[b"x"] * count, topic=topic, queue_id=queue_id)
    room.world.run(node, node.replica.services.sends.send(b"", [messages]))


def test_a_strategy_that_fails_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's may raise, or name whom there isn't; it is told, and tried again."""
    room = Room()
    seat = room.seat()
    answers: list[object] = [None, {strategies.QueueName("t", 0): 99}]

    def theirs(share_: strategies.Share) -> dict[strategies.QueueName, int]:
        if not answers:
            return dict.fromkeys(share_.queues, share_.members[0].session)
        found = answers.pop()
        if found is None:
            raise RuntimeError("defect")
        assert isinstance(found, dict)
        return found

    monkeypatch.setattr(strategies, "BUILT_IN", {**strategies.BUILT_IN, "THEIRS": theirs})
    member = seat.join(settings=Settings(strategy="THEIRS", topics=("t",)))
    room.pass_ms(SOON_MS, seat)
    keeper: GroupKeeper = room.leader.replica.groups
    assert (member.held, keeper.statistics().failed) == ({}, 1)
    room.pass_ms(3 * PACE.retry_ms, seat)
    assert (len(member.held), keeper.statistics().failed) == (QUEUES, 2)


def test_an_unknown_strategy_is_refused_by_name() -> None:
    """The leader has none of it."""
    room = Room()
    seat = room.seat()
    member = seat.join(settings=Settings(strategy="NOBODYS", topics=("t",)))
    room.pass_ms(50, seat)
    assert member.code is ErrorCode.STRATEGY_UNKNOWN


def test_a_leader_without_the_strategy_takes_no_queue_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plug-in is installed node by node: who comes back with its session is no newcomer."""
    room = Room(3)
    seat = room.seat()
    wished = Settings(strategy="AVG", topics=("t",))
    member = seat.join(settings=wished)
    room.pass_ms(SOON_MS, seat)
    assert len(member.held) == QUEUES
    without = {name: each for name, each in strategies.BUILT_IN.items() if name != "AVG"}
    monkeypatch.setattr(strategies, "BUILT_IN", without)
    before = room.leader.name
    room.lead(next(name for name in room.world.members if name != before))
    room.pass_ms(50)
    back = room.seat()
    again = back.join(settings=wished, session=member.session)
    newcomer = back.join("b", settings=wished)
    room.pass_ms(SOON_MS, back)
    assert newcomer.code is ErrorCode.STRATEGY_UNKNOWN
    assert (again.code, again.held) == (None, member.held)


def test_what_is_installed_and_cannot_be_read_costs_no_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever joins may name anything, and the names of any package that is installed may be
    broken: nothing is found then, by who joins and by a look at a group that is there."""
    looks = [0]

    def entry_points(*, group: str) -> object:
        looks[0] += 1
        raise UnicodeDecodeError("utf-8", group.encode(), 0, 1, "invalid start byte")

    monkeypatch.setattr(strategies, "entry_points", entry_points)
    monkeypatch.setattr(strategies, "INSTALLED", strategies.Installed(lambda: 61.0 * looks[0]))
    room = Room()
    seat = room.seat()
    wished = Settings(strategy="THEIRS", topics=("t",))
    with monkeypatch.context() as installed:
        theirs = {**strategies.BUILT_IN, "THEIRS": strategies.sticky}
        installed.setattr(strategies, "BUILT_IN", theirs)
        member = seat.join(settings=wished)
    room.pass_ms(SOON_MS, seat)
    keeper: GroupKeeper = room.leader.replica.groups
    assert looks[0], "by a look at the group"
    assert (member.code, member.held) == (None, {})
    assert keeper.statistics().failed
    before = looks[0]
    other = seat.join("b", group="h", settings=Settings(strategy="NOBODYS", topics=("t",)))
    room.pass_ms(50, seat)
    assert other.code is ErrorCode.STRATEGY_UNKNOWN
    assert looks[0] > before, "by who joins"


def test_before_the_level_is_there_nobody_joins() -> None:
    """The members of the group may not all know what that is."""
    room = Room()
    room.machine.level.current = 4
    seat = room.seat()
    member = seat.join()
    room.pass_ms(50, seat)
    assert member.code is ErrorCode.NOT_READY


def test_what_a_client_may_not_do_ends_its_stream() -> None:
    """A slot that is taken, and one member too many."""
    room = Room()
    seat = room.seat()
    seat.join("a")
    seat.members.clear()
    with pytest.raises(BrokerError) as refused:
        seat.join("b")
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    other = room.seat()
    for number in range(MAX_MEMBERS):
        other.attendance._slots[number + 1] = other.attendance._slots.get(number, None)  # type: ignore[assignment]
    with pytest.raises(BrokerError) as refused:
        other.join("c")
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("in_unit", [False, True])
def test_commits_without_a_lease_are_refused_while_there_are_members(in_unit: bool) -> None:
    """As commands of their own and in units; when the last member has gone they are taken."""
    room = Room()
    seat = room.seat()
    seat.join()
    room.pass_ms(SOON_MS, seat)
    made = room.machine.topics["t"].incarnation
    offset = CommittedOffset(queue_id=0, offset=0)
    command = CommitOffsetsCommand(group="g", topic="t", offsets=[offset], topic_incarnation=made)
    node = room.leader

    def commit() -> object:
        appender, wanted = node.replica.appender, Command(commit_offsets=command)
        if not in_unit:
            with node.running():
                answer = appender.submit(wanted)
            return room.world.run(node, _awaited(answer))
        with node.running():
            result = appender.units.propose(ProposedUnit(commands=(wanted,)))
        return room.world.run(node, _awaited(result)).refusal  # type: ignore[attr-defined]

    assert commit() == GroupHasMembers("g")
    seat.leave()
    room.pass_ms(SOON_MS, seat)
    assert commit() is None


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def test_grants_that_are_refused_again_and_again_do_not_fill_the_log() -> None:
    """As where no group may begin to commit any more: the next try waits longer each time."""
    room = Room()
    machine = room.machine
    machine.offsets.max_progress = 0
    seat = room.seat()
    member = seat.join()
    before = machine.applied_index
    room.pass_ms(10_000, seat)
    assert member.held == {}
    assert machine.applied_index - before <= 8
    machine.offsets.max_progress = 10
    room.pass_ms(15_000, seat)
    assert len(member.held) == QUEUES

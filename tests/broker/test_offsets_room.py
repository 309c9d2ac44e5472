"""How many offsets there may be: a leader begins no more, and what is there goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from math import inf
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.errors import BrokerError, ErrorCode
from broker.leader import offsets_room
from broker.leader.deliveries.asking import Settlement
from broker.leader.deliveries.choosing import Choice
from broker.leader.deliveries.desk import Desk
from broker.leader.groups import assigning
from broker.leader.groups.assigning import Assigning
from broker.leader.groups.pace import USUAL_PACE
from broker.leader.groups.planning import Grant, State, still_holds
from broker.leader.units import UnitResult
from broker.services.consumers import MoveWish, To
from broker.state.groups import Settings
from broker.state.offsets import OffsetCommit
from broker.state.topics import TopicRef, TopicState
from dledger.wire.commands_pb2 import SETTLING_FINISHED, CloneGroupCommand, Command
from tests.broker.attended import QUEUES, Room
from tests.broker.leader import Bench
from tests.broker.test_compound import commit
from tests.broker.test_held_back import Shop, bodies, receive
from tests.broker.test_units import incarnation, put, raised, unit

T = TopicRef("t")


def limit(monkeypatch: pytest.MonkeyPatch, offsets: int) -> None:
    monkeypatch.setattr(offsets_room, "MAX_QUEUE_OFFSETS", offsets)


def code(shop: Shop | Room, call: Coroutine[Any, Any, object]) -> ErrorCode | None:
    """Why the leader refuses it; None: it doesn't."""
    room = shop.room if isinstance(shop, Shop) else shop
    try:
        room.world.run(room.leader, call)
    except BrokerError as error:
        return error.code
    return None


def commit_of(group: str, *queues: int) -> OffsetCommit:
    return OffsetCommit(group, "t", tuple((each, 0) for each in queues), is_reset=False)


def test_commits_begin_offsets_up_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of a group and a topic is no measure: it has as many as the topic has queues."""
    shop = Shop()
    offsets = shop.room.leader.replica.services.offsets
    assert code(shop, offsets.commit(commit_of("g", 0, 1, 2))) is None
    limit(monkeypatch, 4)
    applied = shop.room.machine.applied_index
    assert code(shop, offsets.commit(commit_of("h", 0, 1))) is ErrorCode.LIMIT_REACHED
    assert shop.room.machine.applied_index == applied
    assert code(shop, offsets.commit(commit_of("h", 0))) is None
    assert code(shop, offsets.commit(commit_of("g", 0, 1, 2))) is None
    assert code(shop, offsets.commit(commit_of("g", 3))) is ErrorCode.LIMIT_REACHED


def test_units_of_one_entry_share_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is on its way has taken its own: the applied state doesn't know it yet."""
    bench: Bench = raised()
    t = incarnation(bench)
    limit(monkeypatch, 3)
    answers = put(bench, *(unit(commands=(commit(each, 0, t),)) for each in "abcde"))
    bench.commit()
    codes = [error.code if (error := each.exception()) else None for each in answers]  # type: ignore[attr-defined]
    assert codes == [None] * 3 + [ErrorCode.LIMIT_REACHED] * 2
    clone = Command(clone_group=CloneGroupCommand(source="a", target="z"))
    limit(monkeypatch, 5)
    first, second = (bench.appender.submit(clone) for _ in "xy")
    with pytest.raises(BrokerError) as refused:
        bench.appender.submit(clone)
    assert refused.value.code is ErrorCode.LIMIT_REACHED
    bench.commit()
    assert bench.machine.offsets.queue_count == 3, "below the level of clones nothing comes of it"
    assert first.done()
    assert second.done()
    bench.appender.submit(clone)


def test_a_group_that_a_receive_would_begin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for single messages under one new name after the other begins in all queues."""
    shop = Shop()
    shop.send(0, b"one")
    limit(monkeypatch, 3)
    with pytest.raises(BrokerError) as refused:
        receive(shop)
    assert refused.value.code is ErrorCode.LIMIT_REACHED
    limit(monkeypatch, 4)
    assert bodies(receive(shop)) == [b"one"]


def test_a_group_of_single_messages_goes_on_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In queues that its topic has been given since it doesn't begin until there is room."""
    shop = Shop()
    shop.send(0, b"one")
    assert bodies(receive(shop, is_fifo=False)) == [b"one"]
    limit(monkeypatch, 4)
    shop.update(8, 8)
    shop.send(1, b"two")
    shop.send(5, b"three")
    room = shop.room.leader.replica.appender.room
    before = room.times_short
    with capture_logs() as said:
        assert bodies(receive(shop, is_fifo=False)) == [b"two"]
        assert bodies(receive(shop, is_fifo=False)) == []
    told = [each for each in said if each["event"] == "group_not_begun"]
    assert [(each["group"], each["topic"], each["queues"]) for each in told] == [("p", "t", 4)]
    assert room.times_short > before, "so that room is made"
    limit(monkeypatch, 8)
    assert bodies(receive(shop, is_fifo=False)) == [b"three"]


@pytest.mark.parametrize("is_on_its_way", [True, False])
def test_acknowledgements_are_heard_though_others_take_the_room(
    monkeypatch: pytest.MonkeyPatch, *, is_on_its_way: bool
) -> None:
    """Of the starts that share their command: before the desk looks, or while its command waits for
    its turn."""
    shop = Shop()
    shop.send(0, b"one")
    (handed,) = receive(shop, is_fifo=False).handed
    shop.update(8, 8)
    limit(monkeypatch, 8)
    node = shop.room.leader
    services, propose = node.replica.services, Desk._propose
    others: list[Awaitable[object]] = []
    seen: list[int] = []

    def take_the_room() -> None:
        if not others:
            incarnation = shop.room.machine.topics["t"].incarnation
            command = commit("other", 0, incarnation)
            others.append(node.replica.appender.submit(command))

    async def later(desk: Desk, choice: Choice) -> UnitResult:
        seen.append(len(choice.command.starts))
        take_the_room()
        return await propose(desk, choice)

    monkeypatch.setattr(Desk, "_propose", later)
    done = Settlement(0, handed.handout, 0, 1, SETTLING_FINISHED, 0)

    async def starts(topic: TopicState, first: int) -> list[int]:
        return [0] * (len(topic.next_offsets) - first)

    async def settled() -> object:
        if is_on_its_way:
            take_the_room()
        desk = services.deliveries._desk("p", shop.room.machine.topics["t"], is_fifo=False)
        desk.starts = starts
        return await services.deliveries.settle("p", T, (done,))

    assert shop.room.world.run(node, settled()) == ()
    assert seen == ([0] if is_on_its_way else [4, 0])
    assert shop.room.machine.offsets.of("p", "t")[0] == 1
    assert shop.room.machine.offsets.queue_count == 5


def test_members_begin_in_no_topic_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And have the queues of those in which their group has begun; the log isn't filled."""
    room = Room()
    limit(monkeypatch, QUEUES)
    seat = room.seat()
    member = seat.join(settings=Settings(topics=("t", "u")))
    room.pass_ms(1_000, seat)
    assert len(member.held) == QUEUES
    room.topic("u")
    before = room.machine.applied_index
    room.pass_ms(10_000, seat)
    assert room.machine.applied_index - before <= 4
    assert {topic for topic, _ in member.held} == {"t"}
    seat.leave()
    room.pass_ms(1_000, seat)
    assert not member.held or member.ended
    other = room.seat()
    late = other.join("b", settings=Settings(topics=("t", "u")))
    room.pass_ms(10_000, other)
    assert {topic for topic, _ in late.held} == {"t"}, "what there is no room for holds up nothing"
    assert len(late.held) == QUEUES
    limit(monkeypatch, 2 * QUEUES)
    room.pass_ms(2 * USUAL_PACE.retry_ms, other)
    assert len(late.held) == 2 * QUEUES


def test_a_group_begins_in_as_many_topics_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its topics share a command: each of them fits, and all together don't. Two groups that are
    looked at in one tick share the room as well."""
    room = Room()
    for name in ("u", "v"):
        room.topic(name)
    limit(monkeypatch, 2 * QUEUES)
    seat = room.seat()
    member = seat.join(settings=Settings(topics=("t", "u", "v")))
    room.pass_ms(1_000, seat)
    assert len({topic for topic, _ in member.held}) == 2
    limit(monkeypatch, 5 * QUEUES)
    room.pass_ms(2 * USUAL_PACE.retry_ms, seat)
    assert len(member.held) == 3 * QUEUES
    limit(monkeypatch, 6 * QUEUES)
    others = [
        seat.join("b", group=group, settings=Settings(topics=("t", "u"))) for group in ("h", "i")
    ]
    room.pass_ms(1_000, seat)
    assert sorted(len(each.held) for each in others) == [QUEUES, 2 * QUEUES]


@pytest.mark.parametrize("is_taken_meanwhile", [True, False])
def test_queues_without_room_hold_up_none_behind_them(
    monkeypatch: pytest.MonkeyPatch, *, is_taken_meanwhile: bool
) -> None:
    """Though they are all that one command would grant; also where there seemed to be room."""
    room = Room()
    if is_taken_meanwhile:
        monkeypatch.setattr(Assigning, "_end_of_room", lambda *_: inf)
    room.topic("u")
    limit(monkeypatch, QUEUES)
    monkeypatch.setattr(assigning, "GRANTS_AT_ONCE", 2)
    seat = room.seat()
    first = seat.join(settings=Settings(topics=("u",)))
    room.pass_ms(1_000, seat)
    assert len(first.held) == QUEUES
    seat.leave()
    room.pass_ms(1_000, seat)
    other = room.seat()
    late = other.join("b", settings=Settings(topics=("t", "u"), version=1))
    room.pass_ms(10_000, other)
    assert {topic for topic, _ in late.held} == {"u"}
    assert len(late.held) == QUEUES


def test_no_queue_is_judged_for_which_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may be of 65,536 of them, and comes again each second."""
    room = Room()
    for name in ("u", "v"):
        room.topic(name)
    seen: list[str] = []

    def seeing(grant: Grant, state: State, name: str) -> bool:
        seen.append(grant.topic)
        return still_holds(grant, state, name)

    monkeypatch.setattr(assigning, "still_holds", seeing)
    limit(monkeypatch, QUEUES)
    seat = room.seat()
    member = seat.join(settings=Settings(topics=("t", "u", "v")))
    room.pass_ms(10_000, seat)
    held = {topic for topic, _ in member.held}
    assert len(held) == 1
    seen.clear()
    room.pass_ms(10_000, seat)
    assert not set(seen) - held


def test_clones_and_moves_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what they would begin."""
    shop = Shop()
    services = shop.room.leader.replica.services
    assert code(shop, services.offsets.commit(commit_of("g", 0, 1))) is None
    limit(monkeypatch, 3)
    assert code(shop, services.consumers.clone("g", "h")) is ErrorCode.LIMIT_REACHED
    move = MoveWish("g", T, (0, 1, 2, 3), To.LAST)
    assert code(shop, services.consumers.move(move)) is ErrorCode.LIMIT_REACHED
    limit(monkeypatch, 4)
    assert code(shop, services.consumers.move(move)) is None
    limit(monkeypatch, 7)
    assert code(shop, services.consumers.clone("g", "h")) is ErrorCode.LIMIT_REACHED
    limit(monkeypatch, 8)
    assert code(shop, services.consumers.clone("g", "h")) is None

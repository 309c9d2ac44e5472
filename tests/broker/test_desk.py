"""Desks (ADR 57) on a leader: what those who wait are told when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.deliveries.asking import Handed, Place, Settlement, Settler, Wanted
from broker.leader.deliveries.choosing import Choice
from broker.leader.deliveries.desk import (
    RECHECK_S,
    Desk,
    Surroundings,
)
from broker.leader.deliveries.over import BURIED_A_TURN, MOST_BURIED, Bury
from broker.leader.groups.pace import USUAL_PACE
from broker.leader.units import UnitResult
from broker.reading.held_back import HeldBack
from broker.reading.queues import Found, QueueReader
from broker.services.deliveries import Receive, Received
from broker.services.refused import refused
from broker.services.soundness import Soundness
from broker.state.groups import Start
from broker.state.handouts import SPAN, Handout
from broker.state.refusals import StartMissing
from broker.state.topic_permissions import USUAL, Permission
from broker.state.topics import TopicRef, TopicState
from dledger.wire.commands_pb2 import SETTLING_FINISHED
from store.errors import CorruptionFound
from tests.broker.asked import EndlessCall
from tests.broker.test_held_back import Shop, bodies

T = TopicRef("t")


def wanted(number: int, count: int = 1) -> Wanted:
    return Wanted(number.to_bytes(8, "big"), count, 1 << 20, 1, is_again=False)


async def said(future: asyncio.Future[list[Handed]]) -> list[Handed] | ErrorCode:
    """What a receiver was told in the end."""
    try:
        return await future
    except BrokerError as error:
        return error.code


def desks(shop: Shop, bury: Bury, serves: Callable[[], int] = lambda: 1) -> Callable[[], Desk]:
    """Makes desks of group g in topic t, whose messages have one attempt and are buried so."""
    node = shop.room.leader
    parts, machine = node.replica.parts, node.replica.machine

    async def read(queue_id: int, offset: int, count: int, size: int) -> Found:
        return parts.reader.pull(T, queue_id, offset, count, size)

    around = Surroundings(
        *(machine, parts.appender.units, parts.held, serves),
        *(lambda: parts.driver.log_time_ms, refused, bury, HeldBack(machine, parts.reader)),
        buried_bytes=MOST_BURIED,
        turns=node.turns,
        used_again_ms=HOUR_MS,
        check_room=lambda: None,
        check_begun=lambda _: None,
        is_placing=lambda *about: parts.appender.coming.is_placing(*about),
    )
    place = Place("g", "t", machine.topics["t"].incarnation)

    def new_desk() -> Desk:
        desk = Desk(place, around, read, is_fifo=False)

        async def starts(_: TopicState, first: int) -> list[int]:
            return [0] * (4 - first)

        desk.starts, desk.max_attempts = starts, 1
        return desk

    return new_desk


def test_what_was_chosen_in_another_leadership_is_told_to_nobody() -> None:
    """While a desk looks, its node may lose the lead and have it again: what was handed out in
    between is known by then, and what was found before isn't so any more."""
    shop = Shop()
    leaderships = iter((1, 2))

    async def bury(place: Place, queue_id: int, hand: Handout, found: Found, times: int) -> None:
        raise AssertionError("nothing is over")

    new_desk = desks(shop, bury, lambda: next(leaderships))

    async def scenario() -> tuple[object, object]:
        desk = new_desk()
        receiver = desk.receive(wanted(1))
        settler = desk.settle((Settlement(0, 7, 0, 1, SETTLING_FINISHED, 0),))
        await desk.work()
        denied = None
        try:
            await settler.done
        except BrokerError as error:
            denied = error.code
        return await said(receiver.done), denied

    shop.send(0, b"new")
    told = shop.room.world.run(shop.room.leader, scenario())
    assert told == (ErrorCode.NOT_READY, ErrorCode.NOT_READY)
    assert next(leaderships, None) is None


@pytest.mark.parametrize("ends_well", [True, False])
def test_what_was_read_counts_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch, *, ends_well: bool
) -> None:
    """Thousands of desks can each have an answer's bytes while their commands are under way."""
    shop = Shop()
    node = shop.room.leader
    services, units = node.replica.services, node.replica.parts.appender.units
    budget, propose, held = services.pulls.budget, units.propose, list[int]()

    def proposed(*args: Any, **others: Any) -> Any:
        held.append(budget.used_bytes)
        if not ends_well:
            raise BrokerError(ErrorCode.BUSY, "not now")
        return propose(*args, **others)

    shop.send(0, b"x" * 1_000)
    monkeypatch.setattr(units, "propose", proposed)
    call = Ending()
    wish = Receive("p", T, False, b"attempt1", False, 32, 1 << 20, 0, 60_000, 0, 0, ())
    asked = services.deliveries.receive(wish, call)
    if ends_well:
        assert len(shop.room.world.run(node, asked).handed) == 1
        shop.room.pass_ms(100)
        assert budget.used_bytes == held[-1], "by who answers"
    else:
        with pytest.raises(BrokerError):
            shop.room.world.run(node, asked)
    assert held[-1] > 1_000
    for each in call.ends:
        each()
    assert budget.used_bytes == 0


class Ending(EndlessCall):
    """A call that ends when its test says so."""

    def __init__(self) -> None:
        self.ends: list[Callable[[], None]] = []

    def on_end(self, callback: Callable[[], None]) -> None:
        self.ends.append(callback)


def test_who_waits_while_a_leader_loses_its_place_in_a_burial_is_sent_on() -> None:
    """To the next leader, and not told of a fault of this one's program."""
    shop = Shop()
    node = shop.room.leader

    async def bury(place: Place, queue_id: int, hand: Handout, found: Found, times: int) -> None:
        raise BrokerError(ErrorCode.NOT_LEADER, "somebody else leads")

    new_desk = desks(shop, bury)

    async def first() -> list[Handed]:
        desk = new_desk()
        receiver = desk.receive(wanted(1))
        await desk.work()
        return await receiver.done

    async def then() -> list[list[Handed] | ErrorCode]:
        desk = new_desk()
        waiting = [desk.receive(wanted(number)) for number in (2, 3)]
        await desk.work()
        return [await said(each.done) for each in waiting]

    shop.send(0, b"its last attempt")
    assert len(shop.room.world.run(node, first())) == 1
    shop.room.pass_ms(1_000)
    shop.send(1, b"new")
    given, told = shop.room.world.run(node, then())
    assert isinstance(given, list)
    assert (len(given), told) == (1, ErrorCode.NOT_LEADER)


@pytest.mark.parametrize(
    ("code", "tried"),
    [(ErrorCode.MESSAGE_NOT_FOUND, [0, 1, 2]), (ErrorCode.LIMIT_REACHED, [0])],
)
def test_a_message_that_cannot_be_buried_holds_up_no_other_one(
    code: ErrorCode, tried: list[int]
) -> None:
    """Only where there is no room for any of them are the others not tried."""
    shop = Shop()
    buried: list[int] = []

    async def bury(place: Place, queue_id: int, hand: Handout, found: Found, times: int) -> None:
        buried.append(queue_id)
        raise BrokerError(code, "not this one")

    new_desk = desks(shop, bury)

    async def receive(number: int) -> list[Handed]:
        desk = new_desk()
        receiver = desk.receive(wanted(number, 10))
        await desk.work()
        return await receiver.done

    for queue_id in range(3):
        shop.send(queue_id, b"its last attempt")
    node = shop.room.leader
    given = shop.room.world.run(node, receive(1))
    assert len(given) == 3
    shop.room.pass_ms(1_000)
    again = shop.room.world.run(node, receive(2))
    assert sorted(buried) == tried, "the first look at what is over tries them all"
    assert len(again) == 3, "and what wasn't buried is given again"


@pytest.mark.parametrize("singly", [True, False])
def test_who_settles_waits_for_few_burials(*, singly: bool) -> None:
    """However many messages are over: workers that died with thousands in their hands. `singly`:
    each was given by an entry of its own; else many by one, and every other one is finished."""
    shop = Shop()
    settled_after: list[int] = []
    buried: list[int] = []
    settlers: list[Settler] = []

    async def bury(place: Place, queue_id: int, hand: Handout, found: Found, times: int) -> None:
        buried.append(hand.base)
        if not settlers:
            finished = Settlement(1, held.handout, 0, 1, SETTLING_FINISHED, 0)
            settlers.append(made[-1].settle((finished,)))
        settled_after.extend([len(buried)] if settlers[0].done.done() else [])
        if len(buried) > 3 * BURIED_A_TURN:
            raise BrokerError(ErrorCode.NOT_LEADER, "that is enough")

    new_desk, made = desks(shop, bury), list[Desk]()

    async def receive(number: int, count: int, hidden_ms: int) -> list[Handed]:
        made.append(new_desk())
        receiver = made[-1].receive(wanted(number, count)._replace(hidden_ms=hidden_ms))
        await made[-1].work()
        return await receiver.done

    async def finish(hand: Handed, base: int) -> None:
        made.append(new_desk())
        every_other = sum(1 << at for at in range(0, SPAN, 2))
        settler = made[-1].settle(
            (Settlement(0, hand.handout, base, every_other, SETTLING_FINISHED, 0),)
        )
        await made[-1].work()
        await settler.done

    run, node = shop.room.world.run, shop.room.leader
    count = (2 if singly else 8) * BURIED_A_TURN
    shop.send(0, *(b"its last attempt" for _ in range(count)))
    if singly:
        for number in range(count):
            run(node, receive(1 + number, 1, 60_000))
    else:
        for number, base in enumerate(range(0, count, SPAN), 1):
            (hand,) = run(node, receive(number, SPAN, 60_000))
            run(node, finish(hand, base))
    shop.send(1, b"held")
    (held,) = run(node, receive(90, 1, 600_000))
    shop.room.pass_ms(61_000)
    with pytest.raises(BrokerError):
        run(node, receive(91, 1, 1))
    assert settled_after
    assert settled_after[0] <= BURIED_A_TURN + 1


def test_who_had_a_message_and_asks_again_comes_before_who_is_new() -> None:
    """Its answer was lost: nobody has had the message, and by its time alone it would be dead."""
    shop = Shop()

    async def bury(place: Place, queue_id: int, hand: Handout, found: Found, times: int) -> None:
        raise AssertionError("somebody asks for it")

    new_desk = desks(shop, bury)

    async def first() -> list[Handed]:
        desk = new_desk()
        receiver = desk.receive(wanted(1))
        await desk.work()
        return await receiver.done

    async def again() -> list[Handed]:
        desk = new_desk()
        new = desk.receive(wanted(2))
        mine = desk.receive(wanted(1)._replace(is_again=True))
        working = asyncio.ensure_future(desk.work())
        given = await mine.done
        assert desk.withdraw(new)
        await working
        return given

    shop.send(0, b"its last attempt")
    (given,) = shop.room.world.run(shop.room.leader, first())
    shop.room.pass_ms(1_000)
    assert shop.room.world.run(shop.room.leader, again()) == [given]


def test_one_command_tells_few_pieces_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask again at once, as after a failover: it is applied in one turn, and who isn't
    reached is told by the next one."""
    monkeypatch.setattr("broker.leader.deliveries.choosing.MAX_GIVEN", 2)
    shop, proposing = Shop(), Desk._propose
    sizes: list[int] = []

    async def bury(place: Place, queue_id: int, hand: Handout, found: Found, times: int) -> None:
        raise AssertionError("nothing is over")

    async def propose(desk: Desk, choice: Choice) -> UnitResult:
        sizes.append(len(choice.command.settled))
        return await proposing(desk, choice)

    new_desk = desks(shop, bury)

    async def all_of_them(*, is_again: bool) -> list[list[Handed] | ErrorCode]:
        desk = new_desk()
        wishes = [wanted(number)._replace(hidden_ms=60_000) for number in range(1, 7)]
        asked = [desk.receive(each._replace(is_again=is_again)) for each in wishes]
        await desk.work()
        return [await said(each.done) for each in asked]

    shop.send(0, *(b"%d" % number for number in range(6)))
    first = shop.room.world.run(shop.room.leader, all_of_them(is_again=False))
    monkeypatch.setattr(Desk, "_propose", propose)
    assert shop.room.world.run(shop.room.leader, all_of_them(is_again=True)) == first
    assert sizes == [2, 2, 2]


def test_what_is_over_is_buried_after_the_attempts_that_it_had() -> None:
    """Whoever asks meanwhile may wish for more of them: the others then would be refused."""
    shop = Shop()
    told: list[int] = []
    made: list[Desk] = []

    async def bury(place: Place, queue_id: int, hand: Handout, found: Found, times: int) -> None:
        told.append(times)
        made[-1].max_attempts = 5
        raise BrokerError(ErrorCode.MESSAGE_NOT_FOUND, "not this one")

    new_desk = desks(shop, bury)

    async def receive(number: int) -> None:
        made.append(new_desk())
        receiver = made[-1].receive(wanted(number, 10))
        await made[-1].work()
        await receiver.done

    for queue_id in range(3):
        shop.send(queue_id, b"its last attempt")
    shop.room.world.run(shop.room.leader, receive(1))
    shop.room.pass_ms(1_000)
    shop.send(3, b"new")
    shop.room.world.run(shop.room.leader, receive(2))
    assert told == [1, 1, 1]


def test_who_asks_again_for_what_cannot_be_read_holds_up_no_other_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was looked for but what he had: of what there is for others it says nothing."""
    shop = Shop()

    async def bury(place: Place, queue_id: int, hand: Handout, found: Found, times: int) -> None:
        raise AssertionError("nothing is over")

    new_desk, mine = desks(shop, bury), wanted(1)._replace(hidden_ms=60_000)

    async def first() -> list[Handed]:
        desk = new_desk()
        receiver = desk.receive(mine)
        await desk.work()
        return await receiver.done

    async def then() -> list[list[Handed] | ErrorCode]:
        desk = new_desk()
        waiting = [desk.receive(mine._replace(is_again=True)), desk.receive(wanted(2))]
        await desk.work()
        return [await said(each.done) for each in waiting]

    shop.send(0, b"before the queue is repaired")
    node = shop.room.leader
    assert len(shop.room.world.run(node, first())) == 1
    shop.send(1, b"new")
    pull = QueueReader.pull

    def repaired(reader: QueueReader, topic: TopicRef, queue_id: int, *where: int) -> Found:
        if not queue_id:
            raise BrokerError(ErrorCode.NOT_READY, "it is being repaired")
        return pull(reader, topic, queue_id, *where)

    monkeypatch.setattr(QueueReader, "pull", repaired)
    told, given = shop.room.world.run(node, then())
    assert told is ErrorCode.NOT_READY
    assert isinstance(given, list)
    assert [each.queue_id for each in given] == [1]


def test_what_is_settled_while_a_read_fails_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """That somebody can't be given messages, as the topic was closed meanwhile, is no answer to who
    acknowledges one."""
    shop = Shop()

    async def bury(place: Place, queue_id: int, hand: Handout, found: Found, times: int) -> None:
        raise AssertionError("nothing is over")

    new_desk = desks(shop, bury)
    shop.send(0, b"a")
    shop.send(1, b"b")
    late: list[Settler] = []

    async def check() -> ErrorCode:
        desk = new_desk()
        receiver = desk.receive(wanted(1)._replace(hidden_ms=60_000))
        await desk.work()
        (hand,) = await receiver.done
        done = Settlement(hand.queue_id, hand.handout, 0, 1, SETTLING_FINISHED, 0)

        def closed(reader: QueueReader, topic: TopicRef, *where: int) -> Found:
            late.append(desk.settle((done,)))
            monkeypatch.undo()  # once
            raise BrokerError(ErrorCode.TOPIC_NOT_READABLE, "closed")

        monkeypatch.setattr(QueueReader, "pull", closed)
        refused = desk.receive(wanted(2))
        await desk.work()
        assert await late[0].done == []
        told = await said(refused.done)
        assert isinstance(told, ErrorCode)
        return told

    node = shop.room.leader
    assert shop.room.world.run(node, check()) is ErrorCode.TOPIC_NOT_READABLE


def test_a_receive_whose_time_ends_while_it_is_looked_after_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As soon as that has found nothing: nobody else would tell it."""
    shop = Shop()
    node = shop.room.leader
    looks: list[asyncio.Future[None]] = []

    async def give(choice: Choice, receiver: object, queues: object) -> None:
        for look in looks:
            await look

    monkeypatch.setattr(Choice, "give", give)
    wish = Receive("g", T, False, bytes(7) + b"\1", False, 1, 0, 1_000, 60_000, 0, 0)
    receiving = node.begin(node.replica.services.deliveries.receive(wish, EndlessCall()))
    shop.room.pass_ms(100)
    looks.append(node.loop.create_future())
    shop.send(0, b"a")
    shop.room.pass_ms(2_000)
    assert not receiving.done(), "something may be on its way"
    looks[0].set_result(None)
    shop.room.pass_ms(100)
    assert receiving.done()
    assert receiving.result().handed == ()


@pytest.mark.parametrize("where", ["looked after", "refused"])
def test_an_attempt_that_asks_again_while_it_is_looked_after_waits_once(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whatever its place was looked for, if nothing comes of that: who had it before is gone, and
    would be given what comes next, for which the attempt then looks no more."""
    shop = Shop()
    node = shop.room.leader
    reached: list[asyncio.Future[None]] = []
    held, proposing, choosing = node.loop.create_future(), Desk._propose, Choice.give

    async def pause() -> bool:
        """Whether this is the first time that somebody comes here."""
        reached.append(node.loop.create_future())
        if len(reached) == 1:
            await held
        return len(reached) == 1

    async def give(choice: Choice, *asked: Any) -> None:
        await pause()
        await choosing(choice, *asked)

    async def propose(desk: Desk, choice: Choice) -> Any:
        if await pause():
            return SimpleNamespace(refusal=StartMissing(0))
        return await proposing(desk, choice)

    if where == "refused":
        shop.send(0, b"a")
        monkeypatch.setattr(Desk, "_propose", propose)
    else:
        monkeypatch.setattr(Choice, "give", give)

    def ask(*, is_again: bool) -> asyncio.Task[Received]:
        wish = Receive(
            "g", T, False, bytes(7) + b"\1", is_again, 1, 0, 9_000, 60_000, Start.FIRST, 0
        )
        return node.begin(node.replica.services.deliveries.receive(wish, EndlessCall()))

    half_open = ask(is_again=False)
    shop.room.pass_ms(100)
    asked = ask(is_again=True)
    shop.room.pass_ms(100)
    assert (len(reached), half_open.done()) == (1, False), "something may be on its way"
    held.set_result(None)
    shop.room.pass_ms(500)
    if where != "refused":
        shop.send(0, b"a")
        shop.room.pass_ms(500)
    error = half_open.exception()
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.BUSY
    (handed,) = asked.result().handed
    assert handed.count == 1


def test_who_may_not_read_decides_nothing() -> None:
    """Neither how the group receives nor anything else: nobody waits, and nothing stays."""
    shop = Shop()
    node = shop.room.leader
    services = node.replica.services

    def receive(*, is_fifo: bool) -> int:
        wish = Receive("g", T, is_fifo, bytes(7) + b"\1", False, 1, 0, 0, 1_000, 0, 0)
        found = shop.room.world.run(node, services.deliveries.receive(wish, EndlessCall()))
        return len(found.handed)

    shop.send(0, b"a")
    shop.room.world.run(node, services.topics.permit(T, int(Permission.WRITE)))
    with pytest.raises(BrokerError) as closed:
        receive(is_fifo=True)
    assert closed.value.code is ErrorCode.TOPIC_NOT_READABLE
    shop.room.world.run(node, services.topics.permit(T, int(USUAL)))
    assert receive(is_fifo=False) == 1


@pytest.mark.parametrize("where", ["offset_by_time_in_steps", "bounds"])
def test_rot_where_a_group_starts_is_mended(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """As rot that anybody else meets: whoever receives is told to come again, and somebody gets
    back what has rotted."""
    shop = Shop()
    node = shop.room.leader
    services, rot = node.replica.services, CorruptionFound("0.log", 7, "a frame", "rot")
    told: list[BaseException] = []

    def is_mended(error: BaseException) -> bool:
        told.append(error)
        return True

    def failed(error: BaseException) -> None:
        raise AssertionError("the replica ends") from error

    for reads in (services.deliveries, services.deliveries._times):
        monkeypatch.setattr(reads, "_soundness", Soundness(failed, is_mended))

    def rotten(*asked: object) -> int:
        raise rot

    monkeypatch.setattr(QueueReader, where, rotten)
    shop.send(0, b"a")
    start = Start.TIME
    wish = Receive("g", T, False, bytes(7) + b"\1", False, 1, 0, 0, 1_000, start, 1)
    with pytest.raises(BrokerError) as refusal:
        shop.room.world.run(node, services.deliveries.receive(wish, EndlessCall()))
    assert refusal.value.code is ErrorCode.NOT_READY
    assert told == [rot]


@pytest.mark.parametrize(
    ("takers", "each", "took_s", "rests_s"),
    [
        (0, 0, 0.004, None),
        (1, 1_024, 0.004, 0.004),
        (64, 32, 0.004, 0.004),
        (1, 1_024, 0.2, 0.01),
        (1, 255, 0.004, None),
        (7, 36, 0.004, None),
    ],
)
def test_desk_rests_only_where_many_more_could_be_taken(
    monkeypatch: pytest.MonkeyPatch, takers: int, each: int, took_s: float, rests_s: float | None
) -> None:
    """For as long as its last command took, and never long; in order nobody rests."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def rest(*, is_fifo: bool) -> None:
        held = SimpleNamespace(wake=lambda key: None)
        around: Any = SimpleNamespace(held=held, bury=None, buried_bytes=1)
        around.state = around.check_begun = around.is_placing = around.sparing = None
        desk = Desk(Place("g", "t", 7), around, _unread, is_fifo=is_fifo)
        for number in range(takers):
            desk.receive(wanted(number, each))
        await desk._rest(took_s)

    monkeypatch.setattr("broker.leader.deliveries.desk.asyncio.sleep", sleep)
    asyncio.run(rest(is_fifo=False))
    assert slept == ([] if rests_s is None else [rests_s])
    asyncio.run(rest(is_fifo=True))
    assert slept == ([] if rests_s is None else [rests_s])


async def _unread(queue_id: int, offset: int, count: int, size: int) -> Found:
    raise AssertionError("nothing is read")


LIVED_MS = USUAL_PACE.unused_ms
LOOK_MS = USUAL_PACE.forget_ms + 100
HOUR_MS = 3_600_000


class Quiet(Shop):
    """A worker had the one message of its topic, and waits for the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.send(0, b"a")
        self.waiting: list[asyncio.Task[Received]] = []
        done = self.wait(0)
        self.room.pass_ms(100)
        (handed,) = done.result().handed
        wish = Settlement(0, handed.handout, 0, 1, SETTLING_FINISHED, 0)
        node = self.room.leader
        settle = node.replica.services.deliveries.settle
        assert self.room.world.run(node, settle("g", T, (wish,))) == ()

    def wait(self, hold_ms: int) -> asyncio.Task[Received]:
        """Somebody asks for messages, of a group that is new from the first one on."""
        node = self.room.leader
        number = len(self.waiting) + 1
        wish = Receive(
            "g", T, False, number.to_bytes(8, "big"), False, 1, 0, hold_ms, 60_000, Start.FIRST, 0
        )
        self.waiting.append(
            node.begin(node.replica.services.deliveries.receive(wish, EndlessCall()))
        )
        return self.waiting[-1]

    def live(self, ms: int) -> None:
        """The broker group has been at work for so much longer, at other topics."""
        self.room.machine.lived_time.lived_ms += ms

    @property
    def unused_ms(self) -> int:
        """For how long the group is unused."""
        group = self.room.machine.groups.get("g")
        assert group is not None
        return self.room.machine.lived_time.lived_ms - group.used_ms

    def pass_ms(self, ms: int) -> None:
        self.room.pass_ms(ms)


def test_a_group_whose_workers_wait_is_in_use() -> None:
    """By the log, which every leader to come has; seldom, and without handing out anything."""
    shop = Quiet()
    receiver = shop.wait(20_000)
    shop.pass_ms(200)
    entries = shop.room.leader.log.last_index
    shop.live(HOUR_MS - 10_000)
    shop.pass_ms(6_000)
    assert shop.room.leader.log.last_index == entries
    shop.live(10_000)
    shop.pass_ms(6_000)
    assert shop.unused_ms < 10_000
    assert shop.room.leader.log.last_index == entries + 1
    shop.live(LIVED_MS - HOUR_MS)
    shop.pass_ms(LOOK_MS)
    assert receiver.done()
    assert receiver.result().handed == ()
    shop.send(1, b"b")
    new = shop.wait(0)
    shop.pass_ms(200)
    assert [each.queue_id for each in new.result().handed] == [1]


def test_a_group_for_which_somebody_waits_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even while nothing can be written of it; nobody waits, it is."""
    shop = Quiet()

    async def full(desk: Desk, choice: object) -> object:
        raise BrokerError(ErrorCode.STORAGE_FULL, "no room")

    monkeypatch.setattr(Desk, "_propose", full)
    shop.live(LIVED_MS)
    receiver = shop.wait(30_000)
    for _ in range(2 * LOOK_MS // 1_000):
        shop.pass_ms(1_000)
        if receiver.done():
            assert receiver.result().handed == ()
            receiver = shop.wait(30_000)
    assert shop.unused_ms >= LIVED_MS
    shop.pass_ms(30_000 + LOOK_MS)
    assert receiver.result().handed == ()
    assert shop.room.machine.groups.get("g") is None


# --- while the topic may not be read --------------------------------------------------------------


def permit(shop: Shop, permission: Permission) -> None:
    topics = shop.room.leader.replica.services.topics
    shop.room.world.run(shop.room.leader, topics.permit(T, permission))


def ask(shop: Quiet, *settled: Settlement, start: Start = Start.LAST) -> list[bytes] | ErrorCode:
    """What a worker who waits for nothing is told."""
    node = shop.room.leader
    wish = Receive("g", T, False, b"another1", False, 9, 0, 0, 60_000, start, 0, settled)
    try:
        answer = node.replica.services.deliveries.receive(wish, EndlessCall())
        return bodies(shop.room.world.run(node, answer))
    except BrokerError as error:
        return error.code


@pytest.mark.parametrize("rides", [False, True])
def test_who_asks_while_the_topic_may_not_be_read_goes_on_from_where_it_was(*, rides: bool) -> None:
    """However long that lasts: the log is told as seldom as of one who waits."""
    shop = Quiet()
    permit(shop, Permission.WRITE)
    shop.send(0, b"b")
    again = (Settlement(0, 1, 0, 1, SETTLING_FINISHED, 0),) if rides else ()
    refused = list[bytes]() if rides else ErrorCode.TOPIC_NOT_READABLE
    entries = shop.room.leader.log.last_index
    for times in range(1, 4):
        for _ in range(3):
            assert ask(shop, *again) == refused
            shop.pass_ms(100)
        assert shop.room.leader.log.last_index == entries + times - 1
        shop.live(HOUR_MS)
        shop.pass_ms(int(RECHECK_S * 1000))  # which an hour of life takes in any case
        assert ask(shop, *again) == refused
        shop.pass_ms(100)
        assert shop.room.leader.log.last_index == entries + times
    permit(shop, USUAL)
    shop.live(LIVED_MS - HOUR_MS)
    shop.pass_ms(LOOK_MS)
    assert ask(shop) == [b"b"]


def test_who_has_begun_nowhere_in_a_topic_that_may_not_be_read_leaves_nothing() -> None:
    """Nor who asks in another way than the group."""
    shop = Quiet()
    permit(shop, Permission.WRITE)
    shop.live(HOUR_MS)
    entries, node = shop.room.leader.log.last_index, shop.room.leader
    for group, is_fifo in (("new", False), ("g", True)):
        wish = Receive(group, T, is_fifo, b"another1", False, 9, 0, 0, 60_000, Start.LAST, 0)
        asked = node.replica.services.deliveries.receive(wish, EndlessCall())
        with pytest.raises(BrokerError) as told:
            shop.room.world.run(node, asked)
        assert told.value.code is ErrorCode.TOPIC_NOT_READABLE
    shop.pass_ms(100)
    assert shop.room.leader.log.last_index == entries


def test_a_desk_that_fails_waits_for_nobody_who_asked_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would look for ever, and let nobody else have a turn."""
    shop = Quiet()
    permit(shop, Permission.WRITE)
    shop.live(HOUR_MS)

    async def gone(desk: Desk, settlers: object) -> object:
        raise BrokerError(ErrorCode.NOT_READY, "not now")

    with monkeypatch.context() as failing:
        failing.setattr(Desk, "_chosen", gone)
        assert ask(shop) is ErrorCode.TOPIC_NOT_READABLE
        shop.pass_ms(100)
    assert shop.unused_ms >= HOUR_MS
    entries = shop.room.leader.log.last_index
    assert ask(shop) is ErrorCode.TOPIC_NOT_READABLE
    shop.pass_ms(100)
    assert shop.room.leader.log.last_index == entries, "each who is refused would try"
    shop.pass_ms(int(RECHECK_S * 1000))
    assert ask(shop) is ErrorCode.TOPIC_NOT_READABLE
    shop.pass_ms(100)
    assert shop.unused_ms < HOUR_MS

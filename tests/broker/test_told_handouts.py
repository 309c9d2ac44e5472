"""A receive that is told *did not happen* has handed out and settled nothing (ADR 57): whatever
comes in between once its entry is in the log leaves it answered, or in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.budget import ANSWER_BYTES
from broker.leader.deliveries.asking import Receiver, Settlement
from broker.leader.deliveries.choosing import Choice
from broker.leader.deliveries.desk import Desk
from broker.leader.units import UnitResult
from broker.reading.queues import Found
from broker.services.deliveries import Deliveries, Receive, Received
from broker.services.gate import Gate
from broker.services.messages import PullRequest, Pulls
from broker.state.topic_permissions import USUAL, Permission
from broker.state.topics import TopicRef
from dledger.outcome import Outcome
from dledger.wire.commands_pb2 import SETTLING_FINISHED
from tests.broker.asked import EndlessCall
from tests.broker.leader import batch
from tests.broker.test_held_back import Shop

T = TopicRef("t")
BODY = 1_000


class Filled(Shop):
    """Three messages, and a node that counts the bytes of its answers."""

    def __init__(self) -> None:
        super().__init__()
        self.services = self.room.leader.replica.services
        self.budget = self.services.pulls.budget
        self.asked = 0
        self.send(0, *(bytes([97 + number]) * BODY for number in range(3)))

    def receive(self, *settled: Settlement, count: int = 1, hold_ms: int = 0) -> Received:
        self.asked += 1
        attempt = self.asked.to_bytes(8, "big")
        wish = Receive("g", T, False, attempt, False, count, 0, hold_ms, 60_000, 0, 0, settled)
        received = self.services.deliveries.receive(wish, EndlessCall())
        return self.room.world.run(self.room.leader, received)

    def again(
        self, attempt: int, *settled: Settlement, is_fifo: bool = False
    ) -> Received | BrokerError:
        """The same attempt, which asks once more."""
        number = attempt.to_bytes(8, "big")
        wish = Receive("g", T, is_fifo, number, True, 1, 0, 300, 60_000, 0, 0, settled)
        try:
            receiving = self.services.deliveries.receive(wish, EndlessCall())
            return self.room.world.run(self.room.leader, receiving)
        except BrokerError as error:
            return error

    def refused(self, *settled: Settlement) -> BrokerError:
        with pytest.raises(BrokerError) as told:
            self.receive(*settled, hold_ms=1_000)
        return told.value

    @property
    def in_hand(self) -> int:
        """How many messages somebody is supposed to have."""
        incarnation = self.room.machine.topics["t"].incarnation
        records = self.room.machine.deliveries.in_topic("g", incarnation).values()
        return sum(len(list(each.offsets())) for record in records for each in record)


def finishing(received: Received, *, wrongly: bool = False) -> Settlement:
    """Of the first message that came, by its hand or by one that isn't."""
    handout = received.handed[0].handout - wrongly
    return Settlement(0, handout, 0, 1, SETTLING_FINISHED, 0)


def between(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """That happens as a desk's command is on its way into the log."""
    propose = Desk._propose

    async def delayed(desk: Desk, choice: Any) -> UnitResult:
        happens()
        return await propose(desk, choice)

    monkeypatch.setattr(Desk, "_propose", delayed)


def test_while_no_answer_can_be_kept_nothing_is_handed_out() -> None:
    """Whoever asks is told to come again, and finds everything as it was."""
    shop = Filled()
    left = shop.budget.left_bytes
    shop.budget.take(left)
    told = shop.refused()
    assert (told.code, told.traits.outcome) == (ErrorCode.BUSY, Outcome.DID_NOT_HAPPEN)
    assert shop.in_hand == 0
    shop.budget.give_back(left)
    assert [(each.count, each.attempt) for each in shop.receive(count=3).handed] == [(3, 1)]


def test_what_is_acknowledged_while_no_answer_can_be_kept_is_not_told_as_refused() -> None:
    """It is so, as it takes no room: the answer says that, and brings nothing."""
    shop = Filled()
    first = shop.receive()
    left = shop.budget.left_bytes
    shop.budget.take(left)
    second = shop.receive(finishing(first), hold_ms=1_000)
    assert (second.handed, second.superseded) == ((), ())
    assert shop.in_hand == 0
    third = shop.receive(finishing(first, wrongly=True), count=3)
    assert (third.handed, len(third.superseded)) == ((), 0), "finished twice is finished"
    shop.budget.give_back(left)
    assert [(each.count, each.attempt) for each in shop.receive(count=3).handed] == [(2, 1)]


def test_what_is_acknowledged_at_an_attempt_that_asks_again_is_so() -> None:
    """The call before is told to have brought nothing, and of what it acknowledged the truth."""
    shop = Filled()
    first = shop.receive(count=3)
    deliveries, node = shop.services.deliveries, shop.room.leader

    def asked(*settled: Settlement) -> Receive:
        return Receive("g", T, False, b"the same", False, 1, 0, 5_000, 60_000, 0, 0, settled)

    async def both() -> tuple[Received | BaseException, ...]:
        return await asyncio.gather(
            deliveries.receive(asked(finishing(first)), EndlessCall()),
            deliveries.receive(asked(), EndlessCall()),
            return_exceptions=True,
        )

    stale, _ = shop.room.world.run(node, both())
    assert isinstance(stale, Received)
    assert (stale.handed, stale.superseded, shop.in_hand) == ((), (), 2)


@pytest.mark.parametrize("is_receive", [True, False])
def test_what_took_effect_beside_what_cannot_be_told_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, *, is_receive: bool
) -> None:
    """A part of it is superseded, which only a leader may say, and the rest is so."""
    shop = Filled()
    first = shop.receive(count=2)
    forged = Settlement(0, first.handed[0].handout - 1, 1, 1, SETTLING_FINISHED, 0)

    async def confirm(gate: Gate) -> None:
        raise BrokerError(ErrorCode.NOT_LEADER, "somebody else leads", term=7)

    monkeypatch.setattr(Gate, "confirm", confirm)
    if is_receive:
        told = shop.refused(finishing(first), forged)
    else:
        settling = shop.services.deliveries.settle("g", T, (finishing(first), forged))
        with pytest.raises(BrokerError) as error:
            shop.room.world.run(shop.room.leader, settling)
        told = error.value
    assert told.traits.outcome is Outcome.MAY_HAVE_HAPPENED


def test_what_is_acknowledged_of_a_topic_that_gives_nothing_any_more_is_so() -> None:
    """Who asks for nothing but messages is refused."""
    shop = Filled()
    first = shop.receive()
    node = shop.room.leader
    shop.room.world.run(node, shop.services.topics.permit(T, int(Permission.WRITE)))
    answer = shop.receive(finishing(first))
    assert (answer.handed, answer.superseded, shop.in_hand) == ((), (), 0)
    assert shop.refused().code is ErrorCode.TOPIC_NOT_READABLE


def test_what_is_handed_out_is_answered_though_others_took_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bytes count as well: whoever comes next waits until they are read."""
    shop = Filled()
    between(monkeypatch, lambda: shop.budget.add(ANSWER_BYTES))  # of what was under way as well
    handed = shop.receive(count=2).handed
    assert [each.count for each in handed] == [2]
    assert shop.budget.used_bytes == ANSWER_BYTES + len(handed[0].records)
    assert shop.refused().code is ErrorCode.BUSY
    assert shop.in_hand == 2


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER, ErrorCode.NOT_READY])
def test_who_was_handed_something_and_cannot_be_told_all_of_it_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    """As the same attempt he is given the same again: he doesn't ask so if it didn't happen."""
    shop = Filled()
    first = shop.receive()

    async def confirm(gate: Gate) -> None:
        raise BrokerError(code, "somebody else leads", term=7)

    monkeypatch.setattr(Gate, "confirm", confirm)
    told = shop.refused(finishing(first, wrongly=True))
    assert shop.in_hand == 2
    assert (told.code, told.failure.term) == (ErrorCode.LEADERSHIP_LOST, 7)
    assert told.traits.outcome is Outcome.MAY_HAVE_HAPPENED
    shop.receive(count=3)
    assert shop.refused(finishing(first, wrongly=True)).code is code, "nothing was left for it"


def is_in_doubt(told: Received | BrokerError) -> bool:
    return isinstance(told, BrokerError) and told.traits.outcome is Outcome.MAY_HAVE_HAPPENED


def test_an_attempt_that_asks_again_is_not_told_of_nothing_where_nothing_can_be_given() -> None:
    """It has messages, whose answer was lost; it asks until it is given them."""
    shop = Filled()
    first = shop.receive()
    second = shop.receive()
    left = shop.budget.left_bytes
    shop.budget.take(left)
    assert is_in_doubt(shop.again(2, finishing(first)))
    busy = shop.again(2)
    assert isinstance(busy, BrokerError)
    assert busy.code is ErrorCode.BUSY, "it acknowledges nothing, and is to slow down"
    shop.budget.give_back(left)
    node = shop.room.leader
    shop.room.world.run(node, shop.services.topics.permit(T, int(Permission.WRITE)))
    told = shop.again(2, finishing(first))
    assert isinstance(told, BrokerError)
    assert told.code is ErrorCode.TOPIC_NOT_READABLE, "for good: asking on would change nothing"
    shop.room.world.run(node, shop.services.topics.permit(T, int(USUAL)))
    told = shop.again(2, finishing(first), is_fifo=True)
    assert isinstance(told, BrokerError)
    assert told.code is ErrorCode.GROUP_DIFFERS, "so is this"
    told = shop.again(2, finishing(first))
    assert isinstance(told, Received)
    assert told.handed == second.handed


def test_what_an_attempt_was_given_and_cannot_be_read_now_is_not_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others are given what can be: nothing is refused, and still its own isn't there."""
    shop = Filled()
    first, second = shop.receive(), shop.receive()
    give_the_same = Choice._give_it_again

    async def unreadable(*args: Any) -> None:
        raise BrokerError(ErrorCode.NOT_READY, "it is being repaired")

    monkeypatch.setattr(Choice, "_give_it_again", unreadable)
    deliveries, node = shop.services.deliveries, shop.room.leader
    again = Receive("g", T, False, (2).to_bytes(8, "big"), True, 1, 0, 0, 60_000, 0, 0, ())
    other = Receive("g", T, False, b"another1", False, 1, 0, 300, 60_000, 0, 0, ())

    async def both() -> tuple[Received | BaseException, ...]:
        # They come together, while an entry is on its way.
        settling = asyncio.ensure_future(deliveries.settle("g", T, (finishing(first),)))
        await asyncio.sleep(0)
        asked = (deliveries.receive(each, EndlessCall()) for each in (again, other))
        told, given = await asyncio.gather(*asked, return_exceptions=True)
        await settling
        return told, given

    told, given = shop.room.world.run(node, both())
    assert isinstance(given, Received)
    assert len(given.handed) == 1
    assert isinstance(told, BrokerError)
    assert told.traits.is_retriable
    monkeypatch.setattr(Choice, "_give_it_again", give_the_same)
    at_last = shop.again(2)
    assert isinstance(at_last, Received)
    assert at_last.handed == second.handed


def test_a_part_of_what_an_attempt_was_given_is_not_told_as_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of its queues can't be read now: it asks until it is given all, and what could be read
    stays hidden for it."""
    shop = Filled()
    shop.send(1, b"of another queue")
    first = shop.receive(count=4)
    assert [each.queue_id for each in first.handed] == [0, 1]
    read = Pulls.read_handed_out

    async def reading(pulls: Pulls, request: PullRequest) -> Found:
        if request.queue_id == 1:
            raise BrokerError(ErrorCode.NOT_READY, "it is being derived again")
        return await read(pulls, request)

    monkeypatch.setattr(Pulls, "read_handed_out", reading)
    assert is_in_doubt(shop.again(1))
    monkeypatch.setattr(Pulls, "read_handed_out", read)
    told = shop.again(1)
    assert isinstance(told, Received)
    assert sorted(told.handed) == sorted(first.handed)


class Hurried:
    """Turns that are over after each step."""

    def share(self) -> Callable[[], bool]:
        return lambda: True

    async def pause(self) -> None:
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_read_in_turns", [False, True])
def test_little_room_for_answers_cuts_nothing_off_what_is_told_again(
    monkeypatch: pytest.MonkeyPatch, *, is_read_in_turns: bool
) -> None:
    """It was handed out: it is answered, and counts. What its own look has read of it takes no room
    from the rest."""
    shop = Filled()
    shop.send(1, b"d" * BODY)
    first = shop.receive(count=4)
    if is_read_in_turns:
        monkeypatch.setattr(shop.services.pulls, "_turns", Hurried())
    shop.budget.take(shop.budget.left_bytes - 1)
    told = shop.again(1)
    assert isinstance(told, Received)
    assert told.handed == first.handed
    size = sum(len(each.records) for each in first.handed)
    assert shop.budget.used_bytes == ANSWER_BYTES - 1 + size


def test_what_is_handed_out_counts_while_its_call_asks_what_else_is_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A confirmation takes a round, and its desk looks on meanwhile."""
    shop = Filled()
    first = shop.receive()
    confirm, used = Gate.confirm, list[int]()

    async def confirmed(gate: Gate) -> None:
        used.append(shop.budget.used_bytes)
        await confirm(gate)

    monkeypatch.setattr(Gate, "confirm", confirmed)
    before = shop.budget.used_bytes
    second = shop.receive(finishing(first, wrongly=True))
    assert second.superseded
    assert used[-1] == before + len(second.handed[0].records) == shop.budget.used_bytes


def test_receive_says_how_long_it_was_held_until_messages_were_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not until they are in the log, and answered: they are hidden before that."""
    shop = Filled()
    propose = Desk._propose

    async def slowly(desk: Desk, choice: Any) -> UnitResult:
        result = await propose(desk, choice)
        await asyncio.sleep(1.0)
        return result

    async def held() -> Received:
        wish = Receive("g", T, False, b"eight by", False, 1, 0, 9_000, 60_000, 0, 0)
        receiving = asyncio.ensure_future(shop.services.deliveries.receive(wish, EndlessCall()))
        await asyncio.sleep(0.5)
        await shop.services.sends.send(shop.producer, [batch(3, b"late", tag="x")])
        return await receiving

    assert shop.receive(count=3).held_ms == 0
    assert shop.receive().held_ms is None
    monkeypatch.setattr(Desk, "_propose", slowly)
    received = shop.room.world.run(shop.room.leader, held())
    assert received.handed
    assert received.held_ms is not None
    assert 500 <= received.held_ms < 1_000


def test_a_hold_that_ends_before_its_own_could_be_read_has_not_brought_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is looked after with others, who are given something: nobody is refused."""
    shop = Filled()

    async def ended(deliveries: Deliveries, desk: Desk, receiver: Receiver, _: float) -> Any:
        desk.withdraw(receiver)
        return ()

    monkeypatch.setattr(Deliveries, "_handed", ended)
    assert is_in_doubt(shop.again(1))
    assert shop.receive() == Received((), (), shop.room.machine.topics["t"].incarnation)

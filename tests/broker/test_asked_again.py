"""An attempt that asks again (ADR 57) is told of all that it holds, or that this isn't known now: a
part of it would pass for the whole, and the rest would be hidden from everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.deliveries import choosing
from broker.leader.deliveries.asking import Receiver, Settlement, Wanted
from broker.leader.deliveries.choosing import Choice
from broker.reading.queues import Found
from broker.state.handouts import NO_ATTEMPT
from dledger.records.record import decode_records
from dledger.wire.commands_pb2 import SETTLING_FINISHED, SETTLING_RETURNED
from tests.broker.test_choosing import LIVES, TEMPLATE, Shop, give
from tests.broker.test_delivering import QUEUES

HIDDEN_MS = 1_000
SMALL, LARGE = 120, 400  # records of the sizes in between are drawn
MINE = b"mine..\0\1"

Message = tuple[int, int]  # queue id, offset


@dataclass
class Sized(Shop):
    """A shop whose messages have sizes, and whose reads are bounded: by what is asked for, by the
    room that answers have, and by what can't be read."""

    sizes: dict[Message, int] = field(default_factory=dict)
    unreadable: set[Message] = field(default_factory=set)
    room: int = 1 << 20

    def record(self, queue_id: int, offset: int) -> bytes:
        body = b"%d" % offset
        bare = len(TEMPLATE.encode(queue_id, body, b"", 1))
        missing = max(0, self.sizes.get((queue_id, offset), SMALL) - bare)
        return TEMPLATE.encode(queue_id, body + b" " * missing, b"", 1)

    async def read(self, queue_id: int, offset: int, count: int, size: int) -> Found:
        found = await Shop.read(self, queue_id, offset, count, size)
        records, taken = b"", 0
        for at in range(offset, offset + found.count):
            record = self.record(queue_id, at)
            is_over = taken and len(records) + len(record) > min(size, self.room)
            if is_over or (queue_id, at) in self.unreadable:
                break
            records, taken = records + record, taken + 1
        if not taken:
            raise BrokerError(ErrorCode.NOT_READY, f"{queue_id}/{offset} is being derived again")
        return Found(records, taken, offset + taken, self.low, self.end, 1)

    def held(self, attempt_id: bytes) -> dict[Message, int]:
        """What the attempt has that the log still holds, and until when it is hidden."""
        return {
            (queue_id, offset): each.hidden_until_ms
            for queue_id, each in self.in_hand()
            for offset in each.offsets()
            if each.attempt_id == attempt_id
            and offset >= self.low
            and not self.is_passed(attempt_id, queue_id)
        }

    def is_passed(self, attempt_id: bytes, queue_id: int) -> bool:
        """Whether, in order, its time is over and somebody else has some of the queue, or something
        lies before what it had."""
        rows = [each for queue, each in self.in_hand() if queue == queue_id]
        mine = [each for each in rows if each.attempt_id == attempt_id]
        hidden = [each for each in rows if each.hidden_until_ms > self.owners.now_ms]
        if not self.is_fifo or not mine or any(each in hidden for each in mine):
            return False
        first = min(each.base for each in mine)
        others = [each for each in rows if each not in mine]
        return any(each.base < first for each in others) or any(
            each.attempt_id != NO_ATTEMPT for each in others if each in hidden
        )

    async def ask(
        self, receiver: Receiver, first: int = 0, settled: Sequence[Settlement] = ()
    ) -> Choice:
        """A command for one receiver that looks at the queues from that one on, applied."""
        choice = self.choice()
        for wish in settled:
            await choice._settle(wish)
        await choice.look_back([receiver])
        await give(choice, [receiver], [*range(first, QUEUES), *range(first)])
        if not choice.is_empty:
            assert self.owners.do(choice.command) is None
        return choice


def asking(attempt_id: bytes, count: int, size: int, *, is_again: bool = False) -> Receiver:
    loop = asyncio.get_running_loop()
    wanted = Wanted(attempt_id, count, size, HIDDEN_MS, is_again)
    return Receiver(wanted, loop.create_future(), loop.create_future(), looks_back=is_again)


def answer(choice: Choice) -> list[tuple[Message, int]]:
    """The messages that the one receiver is told, and by which entries' hands."""
    return [
        ((part.queue_id, int(each.body)), part.handout)
        for parts in choice.answers(choosing.PROVISIONAL).values()
        for part in parts
        for each in decode_records(part.records)
    ]


def is_in_order(told: Sequence[tuple[Message, int]]) -> bool:
    """Whether of each queue what comes first is told first."""
    offsets = {
        queue_id: [at for (of, at), _ in told if of == queue_id] for queue_id in range(QUEUES)
    }
    return all(each == sorted(each) for each in offsets.values())


def settled_of(shop: Sized, chance: Random) -> list[Settlement]:
    """Some of what anybody has, message by message."""
    return [
        Settlement(queue_id, each.index, at, 1, what, 0)
        for queue_id, each in shop.in_hand()
        for at in each.offsets()
        if chance.random() < 0.3
        for what in (chance.choice((SETTLING_FINISHED, SETTLING_RETURNED)),)
    ]


async def one_life(chance: Random) -> str:
    """Receives of any bounds, of which one is asked again after anything; what it was told."""
    end = chance.choice((6, 12, 150))
    shop = Sized(is_fifo=chance.random() < 0.3, max_attempts=0, end=end)
    shop.sizes = {
        (queue_id, at): chance.randint(SMALL, LARGE)
        for queue_id in range(QUEUES)
        for at in range(end)
    }
    bounds = chance.randint(1, 2 * end), chance.choice((1, 500, 2_000, 1 << 20))
    await shop.ask(asking(b"another1", chance.randint(1, 4), 500), chance.randrange(QUEUES))
    mine = asking(MINE, *bounds)
    first = await shop.ask(mine, chance.randrange(QUEUES))
    assert {message for message, _ in answer(first)} == set(shop.held(MINE))
    hands = {
        (queue_id, offset): each.index
        for queue_id, each in shop.in_hand()
        for offset in each.offsets()
        if each.attempt_id == MINE
    }
    if chance.random() < 0.5:
        await shop.ask(asking(b"another2", 1, 1), 0, settled_of(shop, chance))
    shop.owners.now_ms += chance.choice((0, 400, 2_000))
    shop.room = chance.choice((1, 1_000, 1 << 20))
    if chance.random() < 0.2:
        shop.low = chance.randint(1, end)
    if chance.random() < 0.4:
        every = chance.choice((2, 10))
        shop.unreadable = {each for each in shop.sizes if not chance.randrange(every)}
    if (
        shop.held(MINE) and chance.random() < 0.4
    ):  # a part of it is hidden anew, and told by no answer
        await shop.ask(asking(MINE, *bounds, is_again=True), chance.randrange(QUEUES))
        shop.unreadable = set()
    held = shop.held(MINE)
    again = asking(MINE, *bounds, is_again=True)
    choice = await shop.ask(again, chance.randrange(QUEUES))
    told = answer(choice)
    assert not (held and choice.command.given), "it would have two lots"
    if held.keys() & shop.unreadable:
        assert again.looks_back
        assert again.lacks
        return "in doubt"
    if not held:
        assert not again.looks_back
        return "others"
    assert not again.lacks
    assert sorted(message for message, _ in told) == sorted(held), "each once"
    assert all(hands[message] == hand for message, hand in told)
    assert not shop.is_fifo or is_in_order(told)
    assert {shop.held(MINE)[each] for each in held} == {shop.owners.now_ms + HIDDEN_MS}
    return "the same"


def test_who_asks_again_is_told_of_all_that_he_holds_or_that_it_is_not_known() -> None:
    """Whatever its bounds, the order of the queues, the room for answers, and what was settled, has
    gone or can't be read since."""

    async def scenario() -> None:
        told = [await one_life(Random(seed)) for seed in range(4 * LIVES)]
        for each in ("in doubt", "others", "the same"):
            assert told.count(each) >= LIVES // 4, each

    asyncio.run(scenario())


def test_in_order_a_lot_of_many_rows_is_told_in_order() -> None:
    """Also after a call that had a part of it hidden anew: the rows lie otherwise by then."""

    async def scenario() -> None:
        shop = Sized(is_fifo=True, max_attempts=0, end=100)
        await shop.ask(asking(MINE, 100, 1 << 20))
        shop.unreadable = {(0, 70)}
        again = asking(MINE, 100, 1 << 20, is_again=True)
        await shop.ask(again)
        assert again.lacks
        assert [each.base for _, each in shop.in_hand()] == [64, 0]
        shop.unreadable = set()
        choice = await shop.ask(asking(MINE, 100, 1 << 20, is_again=True))
        assert [offset for (_, offset), _ in answer(choice)] == [*range(100)]

    asyncio.run(scenario())


def test_in_order_who_was_given_others_is_told_of_those_alone() -> None:
    """It was passed with its first lot, of which some lies there under its name: that is more than
    it asked for, and due for whoever comes next."""

    async def scenario() -> None:
        shop = Sized(is_fifo=True, max_attempts=0)
        await shop.ask(asking(MINE, 4, 1 << 20), 1)
        shop.owners.now_ms += HIDDEN_MS + 1
        for attempt, count, queue_id in ((b"another1", 2, 1), (b"another2", 3, 0)):
            await shop.ask(asking(attempt, count, 1 << 20), queue_id)
        again = asking(MINE, 4, 1 << 20, is_again=True)
        choice = shop.choice()
        await choice.look_back([again])
        await choice.give_the_same(again, range(QUEUES))
        assert not again.looks_back, "both queues are others'"
        done = [
            Settlement(queue_id, each.index, each.base, each.mask, SETTLING_FINISHED, 0)
            for queue_id, each in shop.in_hand()
            if each.attempt_id == b"another1"
        ]
        shop.owners.now_ms += HIDDEN_MS + 1
        given = answer(await shop.ask(again, 0, done))
        assert [message for message, _ in given] == [(0, 0), (0, 1), (0, 2), (1, 2)]
        assert (1, 3) in shop.held(MINE)
        index = max(each.index for _, each in shop.in_hand())
        told = answer(await shop.ask(asking(MINE, 4, 1 << 20, is_again=True)))
        assert told == [(message, index) for message, _ in given]

    asyncio.run(scenario())


def test_what_is_left_of_a_run_whose_front_has_gone_is_told() -> None:
    async def scenario() -> None:
        shop = Sized(is_fifo=False, max_attempts=0)
        await shop.ask(asking(MINE, 4, 1 << 20))
        shop.low = 3
        choice = await shop.ask(asking(MINE, 4, 1 << 20, is_again=True))
        assert [message for message, _ in answer(choice)] == [(0, 3)]

    asyncio.run(scenario())


def test_what_is_told_again_is_no_more_than_any_answer_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who uses an attempt for several receives may hold more than that."""
    monkeypatch.setattr(choosing, "MOST_AGAIN", 10 * SMALL)

    async def scenario() -> None:
        shop = Sized(is_fifo=False, max_attempts=0)
        await shop.ask(asking(MINE, 10, 1 << 20))
        again = asking(MINE, 1, 1, is_again=True)
        assert len(answer(await shop.ask(again))) == 10
        assert not again.lacks
        await shop.ask(asking(MINE, 1, 1 << 20))
        again = asking(MINE, 1, 1, is_again=True)
        assert len(answer(await shop.ask(again))) <= 10
        assert again.lacks

    asyncio.run(scenario())

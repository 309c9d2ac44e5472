"""What a desk chooses for those who wait (ADR 57): the state takes it, whatever was handed out and
settled before; in order nothing is given past what was not finished."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from broker.errors import BrokerError, ErrorCode, out_of_range
from broker.leader.deliveries import choosing
from broker.leader.deliveries.asking import Receiver, Settlement, Settler, Wanted
from broker.leader.deliveries.choosing import MAX_GIVEN, Choice, at_provisional
from broker.leader.deliveries.hands import runs
from broker.reading.queues import Found
from broker.state.deliveries import Deliveries
from broker.state.delivering import Planning
from broker.state.handouts import NO_ATTEMPT, SPAN, Draft, Handout, Page
from broker.turns import LoopTurns
from dledger.level import KNOWN_LEVEL
from dledger.ports import Turns
from dledger.records.record import RecordTemplate, decode_records
from dledger.wire.commands_pb2 import (
    SETTLING_EXTENDED,
    SETTLING_FINISHED,
    SETTLING_RETURNED,
    BuryCommand,
    DeliverCommand,
)
from tests.broker.test_delivering import QUEUES, Owners

END = 12  # of each queue: few, so that hands meet
LIVES = 80
TEMPLATE = RecordTemplate("t", ("10.0.0.1", 1))
KINDS = (SETTLING_FINISHED, SETTLING_RETURNED, SETTLING_EXTENDED)


def record(offset: int) -> bytes:
    """A message as it lies in the log, its body telling which one it is."""
    return TEMPLATE.encode(0, b"%d" % offset, b"", 1)


@dataclass
class Shop:
    """A group's desk without its clock, its log and its task: it chooses, and the state applies."""

    is_fifo: bool
    max_attempts: int
    owners: Owners = field(default_factory=Owners)
    low: int = 0  # what lies before has gone from the log
    end: int = END
    asked: int = 0
    turn: int = 0
    reads: int = 0
    turns: Turns = field(default_factory=LoopTurns)
    begun: list[tuple[int, int]] = field(default_factory=list)  # in order: queue id, offset
    failing: tuple[Random, float] | None = None  # which share of reads fails, as what rots does

    def __post_init__(self) -> None:
        assert self.owners.begin(*[0] * QUEUES, fifo=self.is_fifo) is None

    async def read(self, queue_id: int, offset: int, count: int, size: int) -> Found:
        if offset < self.low:
            raise out_of_range(f"t/{queue_id}", offset, (self.low, self.end))
        self.reads += 1
        if self.failing is not None and self.failing[0].random() < self.failing[1]:
            raise BrokerError(ErrorCode.NOT_READY, "it is being mended")
        records = b"".join(map(record, range(offset, offset + count)))
        return Found(records, count, offset + count, self.low, self.end, 1)

    def choice(self) -> Choice:
        topic = self.owners.topics["t"]
        command = DeliverCommand(group="g", topic="t", incarnation=1, fifo=self.is_fifo)
        records = dict(self.owners.deliveries.in_topic("g", 1))
        at = at_provisional(self.owners.now_ms, KNOWN_LEVEL)
        planning = Planning(self.owners.deliveries, topic, self.is_fifo, at, records)
        return Choice(
            *(planning, topic, command, self.owners.now_ms, self.read),
            end_of=lambda _: self.end,
            turns=self.turns,
            max_attempts=self.max_attempts,
        )

    async def serve(
        self,
        receivers: Sequence[int],
        settled: Sequence[Settlement],
        again: Sequence[bytes] = (),
    ) -> Choice:
        """A command for receivers who take so many messages each, applied; the last of them are
        attempts of before, that ask again."""
        choice = self.choice()
        loop = asyncio.get_running_loop()
        settler = Settler(tuple(settled), loop.create_future())
        await choice.settle(settler)
        new = len(receivers) - len(again)
        asked: list[Receiver] = []
        for at, count in enumerate(receivers):
            self.asked += 1
            is_again = at >= new
            attempt = again[at - new] if is_again else self.asked.to_bytes(8, "big")
            wanted = Wanted(attempt, count, 1 << 20, 1_000, is_again=is_again)
            asked.append(
                Receiver(wanted, loop.create_future(), loop.create_future(), looks_back=is_again)
            )
        await choice.look_back(asked)
        for receiver in [each for each in asked if each.looks_back]:
            await choice.give_the_same(receiver, self.order())
        for receiver in asked:
            if not receiver.looks_back:
                await choice.give(receiver, self.order())
        if not choice.is_empty:
            assert self.owners.do(choice.command) is None
        return choice

    def order(self) -> list[int]:
        """The queues, beginning with another one each time."""
        self.turn += 1
        first = self.turn % QUEUES
        return [*range(first, QUEUES), *range(first)]

    def bury(self, choice: Choice) -> None:
        """What is over is a dead letter, as a desk has it after its command."""
        for queue_id, handout in choice.over:
            for base, count in runs(handout):
                command = BuryCommand(
                    group="g",
                    topic="t",
                    incarnation=1,
                    queue_id=queue_id,
                    handout=handout.index,
                    base=base,
                    mask=(1 << count) - 1,
                    attempts=self.max_attempts,
                )
                assert self.owners.bury(command) is None

    def in_hand(self) -> list[tuple[int, Handout]]:
        return [
            (queue_id, each) for queue_id in range(QUEUES) for each in self.owners.record(queue_id)
        ]


async def give(choice: Choice, asked: Sequence[Receiver], queues: Sequence[int]) -> None:
    """As a desk does: first what they had."""
    for each in asked:
        if each.looks_back:
            await choice.give_the_same(each, queues)
    for each in asked:
        if not each.looks_back:
            await choice.give(each, queues)


def settlement(queue_id: int, handout: Handout, offset: int, what: int, hidden: int) -> Settlement:
    return Settlement(queue_id, handout.index, offset, 1, what, hidden)


async def one_life(chance: Random) -> None:
    """Any receivers, settlements, times and fronts of the log, and reads that fail; dead letters
    are made in between."""
    shop = Shop(is_fifo=chance.random() < 0.8, max_attempts=chance.randint(0, 3))
    shop.failing = chance, chance.choice((0.0, 0.2))
    for _ in range(12):
        shop.owners.now_ms += chance.choice((0, 1, 400, 2_000))
        if chance.random() < 0.05:
            shop.low = min(END, shop.low + chance.randint(1, 3))
        settled = [
            settlement(queue_id, handout, offset, chance.choice(KINDS), chance.choice((0, 400)))
            for queue_id, handout in shop.in_hand()
            for offset in handout.offsets()
            if chance.random() < 0.5
        ]
        receivers = [chance.randint(1, 4) for _ in range(chance.randint(0, 3))]
        known = sorted({each.attempt_id for _, each in shop.in_hand()} - {NO_ATTEMPT})
        again = chance.sample(known, min(len(known), chance.choice((0, 0, 1, 2)), len(receivers)))
        shop.bury(await shop.serve(receivers, settled, again))


@pytest.mark.parametrize("most_over", [choosing.MAX_OVER, 1])
def test_what_is_chosen_takes_effect(monkeypatch: pytest.MonkeyPatch, most_over: int) -> None:
    """A leader proposes nothing that the state refuses: it would be everybody's error. However few
    of those whose attempts are over one look takes."""
    monkeypatch.setattr(choosing, "MAX_OVER", most_over)

    async def scenario() -> None:
        for seed in range(LIVES):
            await one_life(Random(seed))

    asyncio.run(scenario())


def test_what_is_over_in_order_is_buried_before_what_lies_behind_it() -> None:
    """Though the next receiver comes while there is something for the one before, in another
    queue: given past it, the command would be refused, and with it everybody's."""

    async def scenario() -> None:
        shop = Shop(is_fifo=True, max_attempts=2)
        await shop.serve([2], [])
        ((queue_id, first),) = shop.in_hand()
        back = [settlement(queue_id, first, offset, SETTLING_RETURNED, 0) for offset in (0, 1)]
        await shop.serve([], back)
        await shop.serve([1], [])  # the first one's second attempt
        (again,) = (each for _, each in shop.in_hand() if each.attempt == 2)
        shop.owners.now_ms = again.hidden_until_ms
        choice = await shop.serve([1, 1, 1], [])
        other = 1 - queue_id
        assert [each.queue_id for each in choice.command.given] == [other]
        assert {at for at, _ in choice.over} == {queue_id}
        shop.bury(choice)
        draft = Draft(shop.owners.record(queue_id))
        assert [each.base for each in draft] == [1]

    asyncio.run(scenario())


def test_in_order_nobody_passes_what_is_over_though_a_look_takes_few_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heads of both queues are over, and only one is noted: the next receiver meets the other
    one as the first did."""
    monkeypatch.setattr(choosing, "MAX_OVER", 1)

    async def scenario() -> None:
        shop = Shop(is_fifo=True, max_attempts=2)
        for _ in range(QUEUES):
            await shop.serve([2], [])
        back = [
            settlement(queue_id, each, offset, SETTLING_RETURNED, 0)
            for queue_id, each in shop.in_hand()
            for offset in each.offsets()
        ]
        await shop.serve([], back)
        for _ in range(QUEUES):
            await shop.serve([1], [])  # the head's second attempt; one behind it has had one
        shop.owners.now_ms = max(each.hidden_until_ms for _, each in shop.in_hand())
        choice = await shop.serve([1, 1, 1], [])
        assert (len(choice.over), list(choice.command.given)) == (1, [])

    asyncio.run(scenario())


HIDING = {"wants more time": SETTLING_EXTENDED, "gives it back for later": SETTLING_RETURNED}


@pytest.mark.parametrize("way", ["asks again", *HIDING])
def test_in_order_nobody_goes_on_behind_what_somebody_else_has(way: str) -> None:
    """One was too slow with four messages, and the first two are another one's by now: what is
    behind them waits, and is neither worked on beside them nor hidden from who has it next, also
    when these are due again, or were given back. That it was finished is heard, and that it was
    given back at once."""

    async def scenario() -> None:
        shop = Shop(is_fifo=True, max_attempts=0)
        await shop.serve([4], [])
        ((queue_id, slow),) = shop.in_hand()
        shop.owners.now_ms = slow.hidden_until_ms
        await shop.serve([2], [])
        for step in range(3):
            if step == 2:
                (front,) = (e for q, e in shop.in_hand() if q == queue_id and e.base == 0)
                back = [settlement(queue_id, front, at, SETTLING_RETURNED, 0) for at in (0, 1)]
                await shop.serve([], back)
            if way == "asks again":
                choice = await shop.serve([4], [], [slow.attempt_id])
                assert queue_id not in {each.queue_id for each in choice.command.settled}
            else:
                choice = shop.choice()
                wish = settlement(queue_id, slow, 2, HIDING[way], 5_000)
                settler = Settler((wish,), asyncio.Future())
                await choice.settle(settler)
                assert [each.mask for each in settler.superseded] == [1]
                assert choice.is_empty
            shop.owners.now_ms = max(each.hidden_until_ms for _, each in shop.in_hand())
        finished = settlement(queue_id, slow, 3, SETTLING_FINISHED, 0)
        returned = settlement(queue_id, slow, 2, SETTLING_RETURNED, 0)
        choice = await shop.serve([], [finished, returned])
        assert len(choice.command.settled) == 2

    asyncio.run(scenario())


def test_what_is_due_behind_what_is_over_is_given_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without order, and though more are over than one look takes."""
    monkeypatch.setattr(choosing, "MAX_OVER", 1)

    async def scenario() -> None:
        shop = Shop(is_fifo=False, max_attempts=2, end=3)
        for again in range(2):  # four, one by one, and once more; then what is left
            for _ in range(4 + 2 * again):
                await shop.serve([1], [])
            shop.owners.now_ms = 1 + max(each.hidden_until_ms for _, each in shop.in_hand())
        choice = await shop.serve([6], [])
        assert len(choice.over) == 1
        assert sum(each.mask.bit_count() for each in choice.command.given) == 2

    asyncio.run(scenario())


def told(choice: Choice) -> list[int]:
    """The messages that leave with the answers, in the order of the receivers."""
    answers = [part for parts in choice.answers(2).values() for part in parts]
    records = [decode_records(part.records) for part in answers]
    assert [len(each) for each in records] == [part.count for part in answers]
    return [int(one.body) for each in records for one in each]


def test_whoever_wants_many_is_given_as_many_handouts() -> None:
    """Of one read: what a handout spans is no bound on what a receiver gets."""

    async def scenario() -> None:
        shop = Shop(is_fifo=False, max_attempts=0, end=200)
        choice = await shop.serve([150], [])
        given = [(each.base, each.mask.bit_count()) for each in choice.command.given]
        assert given == [(0, SPAN), (SPAN, SPAN), (2 * SPAN, 150 - 2 * SPAN)]
        assert (told(choice), shop.reads) == (list(range(150)), 1)
        assert told(await shop.serve([400], []))[:50] == [*range(50)], "the other queue"
        assert sum(each.mask.bit_count() for _, each in shop.in_hand()) == 2 * shop.end

    asyncio.run(scenario())


def test_a_queue_that_goes_as_messages_are_chosen_is_passed_over() -> None:
    """Its topic has been given fewer while another receiver's were read; it is no fault of the
    node's, and others get what the other queues have."""

    async def scenario() -> None:
        choice = Shop(is_fifo=False, max_attempts=0, end=3).choice()
        await choice.give(receiver(5), [QUEUES, 0])
        assert choice.failure is not None
        assert choice.failure.code is ErrorCode.BUSY
        assert [each.base for each in choice.command.given] == [0]

    asyncio.run(scenario())


def test_nothing_leaves_that_is_not_handed_out() -> None:
    """Where the bound on handouts is met in the middle of what was read: the rest stays."""

    async def scenario() -> None:
        owners = Owners(Deliveries(max_handouts=2))
        shop = Shop(is_fifo=False, max_attempts=0, owners=owners, end=200)
        choice = await shop.serve([150], [])
        assert told(choice) == [*range(2 * SPAN)]
        assert sum(each.mask.bit_count() for _, each in shop.in_hand()) == 2 * SPAN

    asyncio.run(scenario())


def test_any_wishes_of_many_take_effect() -> None:
    """And what is told is what was handed out, whatever was settled and is due again."""

    async def scenario() -> None:
        for seed in range(LIVES // 4):
            chance = Random(seed)
            shop = Shop(is_fifo=chance.random() < 0.5, max_attempts=0, end=300)
            for _ in range(8):
                shop.owners.now_ms += chance.choice((0, 400, 2_000))
                settled = [
                    Settlement(queue_id, each.index, each.base, each.mask, chance.choice(KINDS), 0)
                    for queue_id, each in shop.in_hand()
                    if chance.random() < 0.5
                ]
                receivers = [chance.randint(1, 200) for _ in range(chance.randint(0, 3))]
                choice = await shop.serve(receivers, settled)
                handed = sum(each.mask.bit_count() for each in choice.command.given)
                assert len(told(choice)) == handed

    asyncio.run(scenario())


@dataclass
class Short:
    """Turns in which one step has its share."""

    pauses: int = 0

    def share(self) -> Callable[[], bool]:
        return lambda: True

    def later(self, call: Callable[[], None]) -> object:
        raise AssertionError("nothing is put off")

    async def pause(self) -> None:
        self.pauses += 1


def settler(*settled: Settlement) -> Settler:
    return Settler(settled, asyncio.get_running_loop().create_future())


def receiver(count: int) -> Receiver:
    loop = asyncio.get_running_loop()
    wanted = Wanted(count.to_bytes(8, "big"), count, 8 << 20, 1_000, is_again=False)
    return Receiver(wanted, loop.create_future(), loop.create_future())


def again(number: int) -> Receiver:
    """Who has asked before as the shop's receiver of that number."""
    loop = asyncio.get_running_loop()
    wanted = Wanted(number.to_bytes(8, "big"), 1, 8 << 20, 1_000, is_again=True)
    return Receiver(wanted, loop.create_future(), loop.create_future(), looks_back=True)


def stale(planning: Planning, wish: Settlement) -> int:
    """What of it isn't so, by looking at all that is in hand."""
    draft = planning.draft(wish.queue_id)
    assert isinstance(draft, Draft)
    owners = {offset: each.index for each in draft for offset in each.offsets()}
    told = 0
    for bit in range(SPAN):
        offset = wish.base + bit
        is_done = wish.what == SETTLING_FINISHED and offset < draft.next and offset not in owners
        if wish.mask >> bit & 1 and owners.get(offset) != wish.handout and not is_done:
            told |= 1 << bit
    return told


def test_what_is_told_late_is_found_among_all_hands() -> None:
    """Whatever the same command has settled before."""

    async def scenario(chance: Random) -> None:
        shop = Shop(is_fifo=False, max_attempts=0, end=400)
        shop.owners.topics.advance(shop.owners.topics["t"], 0, 400)
        await shop.serve([chance.randint(30, 100) for _ in range(4)], [])
        in_hand = [handout for queue_id, handout in shop.in_hand() if queue_id == 0]
        choice = shop.choice()
        for _ in range(60):
            hand = chance.choice(in_hand)
            entry = chance.choice((hand.index, hand.index, hand.index + 1, 1))
            base = max(0, hand.base + chance.randint(-70, 70))
            mask = chance.choice((1, chance.getrandbits(8) | 1, (1 << SPAN) - 1))
            wish = Settlement(0, entry, base, mask, chance.choice(KINDS), 400)
            expected, told = stale(choice.planning, wish), settler(wish)
            await choice.settle(told)
            assert sum(each.mask for each in told.superseded) == expected
        if not choice.is_empty:
            assert shop.owners.do(choice.command) is None

    for seed in range(LIVES):
        asyncio.run(scenario(Random(seed)))


def test_all_hands_are_looked_at_once_for_all_that_is_told_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0
    rows = Draft.__iter__

    def looking(draft: Draft) -> Iterator[Handout]:
        nonlocal looked
        looked += 1
        return rows(draft)

    async def scenario() -> int:
        turns = Short()
        shop = Shop(is_fifo=False, max_attempts=0, turns=turns)
        await shop.serve([4] * 9, [])
        monkeypatch.setattr(Draft, "__iter__", looking)
        late = [Settlement(0, 1, offset % END, 1, SETTLING_RETURNED, 0) for offset in range(100)]
        told = settler(*late)
        await shop.choice().settle(told)
        assert len(told.superseded) == len(late)
        return turns.pauses

    assert asyncio.run(scenario()) >= 100
    assert looked == 1


@dataclass
class Counted:
    """Pages that were looked through, and those of which objects were made."""

    for_attempts: int = 0
    unpacked: int = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    looks, given_to, rows = Counted(), Page.given_to, Page.__iter__

    def looking(page: Page, attempts: Collection[bytes]) -> list[Handout]:
        looks.for_attempts += 1
        return given_to(page, attempts)

    def unpacking(page: Page) -> Iterator[Handout]:
        looks.unpacked += 1
        return rows(page)

    monkeypatch.setattr(Page, "given_to", looking)
    monkeypatch.setattr(Page, "__iter__", unpacking)
    return looks


def test_all_who_ask_again_are_looked_for_once(counted: Counted) -> None:
    """In turns, whoever many there are and whatever is in hand; who had nothing isn't looked for
    in the next command. So it is after a failover: all ask again."""

    async def scenario() -> None:
        turns = Short()
        shop = Shop(is_fifo=False, max_attempts=0, turns=turns, end=400)
        await shop.serve([1] * 150, [])
        before = told(await shop.serve([1] * 150, []))
        pages = sum(len(shop.owners.record(queue_id).pages) for queue_id in range(QUEUES))
        counted.for_attempts = turns.pauses = 0
        waiting = [again(number) for number in range(281, 321)]
        choice = shop.choice()
        await choice.look_back(waiting)
        assert counted.for_attempts == pages > 2
        assert turns.pauses == pages
        await give(choice, waiting[:20], range(QUEUES))
        assert told(choice) == before[-20:]
        assert not choice.command.given
        assert counted.for_attempts == pages
        assert [each.looks_back for each in waiting] == [True] * 20 + [False] * 20
        await shop.choice().look_back(waiting[20:])
        assert counted.for_attempts == pages

    asyncio.run(scenario())


def test_who_asks_again_without_anything_is_given_what_is_new() -> None:
    """As anybody else, in the same command."""

    async def scenario() -> None:
        shop = Shop(is_fifo=False, max_attempts=0)
        await shop.serve([2], [])
        choice, asked = shop.choice(), again(99)
        await choice.look_back([asked])
        await give(choice, [asked], [1])
        assert told(choice) == [2]

    asyncio.run(scenario())


def test_what_is_hidden_is_passed_over_by_pages(counted: Counted) -> None:
    """Each command looks for what is due; most of what is in hand isn't."""

    async def scenario() -> None:
        shop = Shop(is_fifo=False, max_attempts=0, end=400)
        await shop.serve([1] * 300, [])
        choice = shop.choice()
        counted.unpacked = 0
        await choice.give(receiver(1), range(QUEUES))
        assert len(told(choice)) == 1
        assert counted.unpacked == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("is_again", [True, False])
def test_a_queue_that_cannot_be_read_holds_up_no_other_receiver(
    monkeypatch: pytest.MonkeyPatch, is_again: bool
) -> None:
    """Nor what is settled: while one is mended its messages wait, and whoever asks for those that
    it had, given others in their place, would have both the next time."""

    async def scenario() -> None:
        shop = Shop(is_fifo=False, max_attempts=0)
        await shop.serve([1], [])
        ((rotten, handout),) = shop.in_hand()
        read = Shop.read

        async def reading(*asked: Any) -> Found:
            if asked[1] == rotten:
                raise BrokerError(ErrorCode.NOT_READY, "it is being mended")
            return await read(*asked)

        monkeypatch.setattr(Shop, "read", reading)
        choice, first, second = shop.choice(), again(1), receiver(1)
        done = settler(settlement(rotten, handout, 0, SETTLING_RETURNED, 400))
        if not is_again:
            await choice.settle(done)
        await choice.look_back([first, second])
        await give(choice, [first, second], [rotten, 1 - rotten])
        assert choice.failure is not None
        assert choice.failure.code is ErrorCode.NOT_READY
        assert (first in choice.parts, second in choice.parts) == (not is_again, True)
        assert first.looks_back == is_again
        assert shop.owners.do(choice.command) is None

    asyncio.run(scenario())


def test_in_order_nobody_passes_what_cannot_be_read() -> None:
    """Two rows are due, and the first one's record has rotted: whoever comes next, as somebody was
    given something of another queue, meets it, too."""

    async def scenario() -> None:
        shop = Shop(is_fifo=True, max_attempts=0)
        await shop.serve([2], [])
        ((rotten, handout),) = shop.in_hand()
        for offset in handout.offsets():
            await shop.serve([], [settlement(rotten, handout, offset, SETTLING_RETURNED, 0)])
        read = shop.read

        async def reading(queue_id: int, offset: int, *bounds: int) -> Found:
            if (queue_id, offset) == (rotten, handout.base):
                raise BrokerError(ErrorCode.NOT_READY, "it is being mended")
            return await read(queue_id, offset, *bounds)

        shop.read = reading  # type: ignore[method-assign, assignment]
        choice = await shop.serve([1, 1, 1], [])
        assert {each.queue_id for each in choice.command.given} == {1 - rotten}

    asyncio.run(scenario())


def test_one_command_gives_back_pieces_up_to_its_bound_and_pauses_between_them() -> None:
    """What was given back message by message; the next command gives the others."""

    async def scenario() -> None:
        shop, count = Shop(is_fifo=False, max_attempts=0, end=1_024), 1_024
        shop.owners.topics.advance(shop.owners.topics["t"], 0, count)
        await shop.serve([count], [])
        back = [
            settlement(queue_id, handout, offset, SETTLING_RETURNED, 0)
            for queue_id, handout in shop.in_hand()
            for offset in handout.offsets()
        ]
        assert len(back) == count
        await shop.serve([], back)
        shop.turns, shop.owners.now_ms, given = Short(), shop.owners.now_ms + 1, 0
        for _ in range(count // MAX_GIVEN):
            before = shop.turns.pauses
            choice = shop.choice()
            await choice.give(receiver(count), range(QUEUES))
            assert len(choice.command.given) == MAX_GIVEN
            assert shop.turns.pauses - before >= MAX_GIVEN
            assert shop.owners.do(choice.command) is None
            given += sum(part.count for parts in choice.parts.values() for part in parts)
        assert given == count

    asyncio.run(scenario())

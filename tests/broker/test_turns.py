"""Long work in pieces: what is answered is as if nothing had come between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final
from zlib import crc32

import pytest

from broker.config import NodeConfig
from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import PART_WEIGHT, STEP_RECORDS, Batch, BatchAnswer, Placed
from broker.ports import ReplicaPorts
from broker.reading.held import RECHECK_S
from broker.reading.queues import Found
from broker.replica import Replica
from broker.services.messages import BEHIND_WEIGHT, PullRequest
from broker.services.queue_pulls import LOOKED_AT_ONCE, QueuesRequest, QueueWish
from broker.services.services import Services
from broker.services.topics import MAX_QUEUES, PAGE_GROUPS, PAGE_OFFSETS, PAGE_TOPICS
from broker.state.offsets import OffsetCommit
from broker.state.topics import TopicRef
from dledger.records import record
from dledger.records.layout import RECORD
from dledger.records.record import decode_records
from tests.broker.asked import Asked, EndlessCall, play
from tests.broker.leader import PRODUCER, batch
from tests.node.world import World


class Interrupted:
    """`Turns` of one step each; `between` is awaited in every pause but its own."""

    def __init__(self) -> None:
        self.pauses = 0
        self.between: Callable[[], Awaitable[None]] = _nothing
        self._is_between = False

    def share(self) -> Callable[[], bool]:
        return lambda: True

    def later(self, call: Callable[[], None]) -> object:
        return asyncio.get_running_loop().call_soon(call)

    async def pause(self) -> None:
        if not self._is_between:
            self.pauses += 1
            self._is_between = True
            await self.between()
            self._is_between = False
        await asyncio.sleep(0)


async def _nothing() -> None:
    """Comes between."""


def test_a_pull_in_pieces_gives_what_was_there_when_it_began() -> None:
    """Messages that arrive and a topic that goes away between two pieces change nothing in it, and
    its bytes are in the budget meanwhile."""
    turns = Interrupted()
    asked = Asked(turns=turns)
    services, taken = asked.services, []

    async def send(number: int, body: bytes) -> None:
        await services.sends.send(PRODUCER, [batch(number, body)])

    async def between() -> None:
        taken.append(services.pulls.budget.used_bytes)
        if turns.pauses == 2:  # the first one is before anything is read
            await send(6, b"late")
        if turns.pauses == 4:
            await services.topics.delete(TopicRef("t"))

    async def test() -> None:
        await services.topics.create("t", 1, if_not_exists=False)
        for number in range(6):
            await send(number, b"%d" % number)
        turns.pauses, turns.between = 0, between
        found = await services.pulls.pull(
            PullRequest(TopicRef("t"), 0, 0, 100, 1 << 20), EndlessCall()
        )
        bodies = [record.body for record in decode_records(found.records)]
        assert bodies == [b"%d" % number for number in range(6)]
        assert (found.next_offset, found.max_offset) == (6, 6)
        assert "t" not in asked.machine.topics
        assert turns.pauses >= 6
        assert set(taken[1:]) == {1 << 20}
        assert services.pulls.budget.used_bytes == len(found.records)

    play(asked, test)


def test_a_member_with_many_queues_is_given_what_comes_while_they_are_looked_at() -> None:
    """In one of those that were looked at before: nobody waits for what is there."""
    turns = Interrupted()
    asked = Asked(turns=turns)
    services = asked.services

    async def between() -> None:
        if turns.pauses == 1:
            await services.sends.send(PRODUCER, [batch(0, b"late")])

    async def test() -> None:
        await services.topics.create("t", 2 * LOOKED_AT_ONCE, if_not_exists=False)
        turns.pauses, turns.between = 0, between
        queues = tuple(QueueWish(TopicRef("t"), n, 0) for n in range(2 * LOOKED_AT_ONCE))
        began = asyncio.get_running_loop().time()
        request = QueuesRequest(queues, hold_ms=10_000)
        ((position, found),) = await services.queue_pulls.pull(request, EndlessCall())
        assert isinstance(found, Found)
        assert (position, found.count) == (0, 1)
        assert asyncio.get_running_loop().time() - began < RECHECK_S

    play(asked, test)


async def filled(services: Services, queues: int) -> QueuesRequest:
    """A message in each of so many queues, and a pull of all."""
    await services.topics.create("t", queues, if_not_exists=False)
    for queue_id in range(queues):
        await services.sends.send(PRODUCER, [batch(0, b"body", queue_id=queue_id)])
    wishes = tuple(QueueWish(TopicRef("t"), queue_id, 0) for queue_id in range(queues))
    return QueuesRequest(wishes, max_messages=queues, max_bytes=1 << 20)


def test_what_a_pull_of_many_queues_has_found_is_in_the_budget_while_it_pauses() -> None:
    """Others would fill the node's memory with what each of them has found so far."""
    turns = Interrupted()
    asked = Asked(turns=turns)
    services, used = asked.services, []
    budget = services.pulls.budget

    async def between() -> None:
        used.append(budget.used_bytes)

    async def refuse() -> None:
        if turns.pauses > 20:  # some were found by then
            raise BrokerError(ErrorCode.NOT_LEADER, "no more")

    async def test() -> None:
        request = await filled(services, LOOKED_AT_ONCE + 8)
        turns.between = between
        found = await services.queue_pulls.pull(request, EndlessCall())
        sizes = [len(each.records) for _, each in found if isinstance(each, Found)]
        assert len(sizes) == LOOKED_AT_ONCE + 8
        so_far = sum(sizes[: LOOKED_AT_ONCE - 1])
        assert so_far in used, "in the pause between two looks"
        assert budget.used_bytes == sum(sizes)
        budget.give_back(sum(sizes))
        turns.pauses, turns.between = 0, refuse
        with pytest.raises(BrokerError, match="no more"):
            await services.queue_pulls.pull(request, EndlessCall())
        assert budget.used_bytes == 0

    play(asked, test)


def test_a_pull_of_many_queues_is_what_there_is_room_for() -> None:
    """Its beginning, rather than nothing; where there is none at all it is refused."""
    asked = Asked(turns=Interrupted())
    services = asked.services
    budget = services.pulls.budget

    async def test() -> None:
        request = await filled(services, 8)
        await services.queue_pulls.pull(request, EndlessCall())
        size = budget.used_bytes // 8
        budget.take(budget.left_bytes - 2 * size - 1)
        found = await services.queue_pulls.pull(request, EndlessCall())
        assert [position for position, _ in found] == [0, 1]
        budget.take(budget.left_bytes)
        with pytest.raises(BrokerError) as refused:
            await services.queue_pulls.pull(request, EndlessCall())
        assert refused.value.code is ErrorCode.BUSY

    play(asked, test)


class Counted(Interrupted):
    """`Turns` of so many steps each."""

    STEPS: Final = 10

    def share(self) -> Callable[[], bool]:
        left = self.STEPS

        def is_enough() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        return is_enough


def test_a_pull_of_many_queues_has_one_share_of_a_turn_over_all_of_them() -> None:
    """A thousand of one step each were one turn else."""
    turns = Counted()
    asked = Asked(turns=turns)

    async def test() -> None:
        request = await filled(asked.services, 2 * LOOKED_AT_ONCE)
        turns.pauses = 0
        await asked.services.queue_pulls.pull(request, EndlessCall())
        assert turns.pauses >= 2 * LOOKED_AT_ONCE // (Counted.STEPS + 1)

    play(asked, test)


def test_a_long_send_is_not_overtaken_by_a_later_one() -> None:
    """A producer's next batch for the queue arrives while the first Send waits for its turn."""
    turns = Interrupted()
    asked = Asked(turns=turns)
    count = PART_WEIGHT // 2
    whole = [batch(at * count, *[b""] * count) for at in range(5)]
    later: list[asyncio.Task[list[BatchAnswer]]] = []

    async def send(batches: list[Batch]) -> list[BatchAnswer]:
        return await asked.services.sends.send(PRODUCER, batches)

    async def between() -> None:
        if turns.pauses == 1:
            later.append(asyncio.get_running_loop().create_task(send([batch(5 * count, b"next")])))

    async def test() -> None:
        await asked.services.topics.create("t", 1, if_not_exists=False)
        turns.pauses, turns.between = 0, between
        answers = await send(whole) + await later[0]
        assert turns.pauses >= 2
        places = [each.base_queue_offset for each in answers if isinstance(each, Placed)]
        assert places == [at * count for at in range(6)]

    play(asked, test)


def test_who_comes_into_a_turn_that_is_used_up_waits_with_nothing_in_hand() -> None:
    """As hundreds that one message has woken: each would hold what it may be given at most, and
    those behind them would be refused for want of room."""
    turns = Interrupted()
    asked = Asked(turns=turns)
    pulls, held = asked.services.pulls, list[int]()

    async def between() -> None:
        held.append(pulls.budget.used_bytes)

    async def test() -> None:
        await asked.services.topics.create("t", 1, if_not_exists=False)
        await asked.services.sends.send(PRODUCER, [batch(0, b"x")])
        turns.pauses, turns.between = 0, between
        found = await pulls.pull(PullRequest(TopicRef("t"), 0, 0), EndlessCall())
        assert found.count == 1
        assert held
        assert held[0] == 0

    play(asked, test)


def test_batches_that_are_stored_already_are_weighed_for_what_is_read() -> None:
    """Each may be a record of an entry of megabytes; one that is new weighs less."""
    turns = Interrupted()
    asked = Asked(turns=turns)
    count = 4 * PART_WEIGHT // BEHIND_WEIGHT

    async def test() -> None:
        await asked.services.topics.create("t", 1, if_not_exists=False)
        new = [batch(number, b"x") for number in range(count)]
        await asked.services.sends.send(PRODUCER, new)
        assert turns.pauses == 0
        answers = await asked.services.sends.send(PRODUCER, [new[-1]] * count)
        assert all(isinstance(each, Placed) and each.is_duplicate for each in answers)
        assert turns.pauses >= 4

    play(asked, test)


LARGE = PART_WEIGHT + 2 * STEP_RECORDS + 1


def test_a_large_batch_is_checked_in_pieces_and_stored_as_any_other() -> None:
    """With a pause after each piece; what comes meanwhile of the same producer goes behind it."""
    turns = Interrupted()
    asked = Asked(turns=turns)
    services = asked.services
    later: list[asyncio.Task[list[BatchAnswer]]] = []
    bodies = [b"%d" % number for number in range(LARGE)]

    async def between() -> None:
        if turns.pauses == 1:
            next_one = services.sends.send(PRODUCER, [batch(LARGE, b"next")])
            later.append(asyncio.get_running_loop().create_task(next_one))

    async def test() -> None:
        await services.topics.create("t", 1, if_not_exists=False)
        turns.pauses, turns.between = 0, between
        answers = await services.sends.send(PRODUCER, [batch(0, *bodies)]) + await later[0]
        assert turns.pauses >= LARGE // STEP_RECORDS + 1
        places = [each.base_queue_offset for each in answers if isinstance(each, Placed)]
        assert places == [0, LARGE]
        records = b""
        while len(found := decode_records(records)) < LARGE:
            request = PullRequest(TopicRef("t"), 0, len(found), LARGE, 1 << 20)
            records += (await services.pulls.pull(request, EndlessCall())).records
        assert [record.body for record in found[:LARGE]] == bodies

    play(asked, test)


@pytest.mark.parametrize("harm", ["a wrong byte", "too few", "too many", "cut short"])
@pytest.mark.parametrize("at", [0, STEP_RECORDS, LARGE - 1])
def test_a_large_batch_that_is_wrong_anywhere_is_refused_whole(at: int, harm: str) -> None:
    """In the first piece or the last, as a small one is; and nothing of it is stored."""
    asked = Asked(turns=Interrupted())
    services = asked.services

    async def test() -> None:
        await services.topics.create("t", 1, if_not_exists=False)
        good = batch(0, *[b"body"] * LARGE)
        size = len(good.records) // LARGE
        records = bytearray(good.records)
        records[at * size + RECORD.at("body")] ^= harm == "a wrong byte"
        count = LARGE + (harm == "too few") - (harm == "too many")
        cut = at * size + size // 2 if harm == "cut short" else len(records)
        wrong = replace(good, records=bytes(records[:cut]), count=count)
        (answer,) = await services.sends.send(PRODUCER, [wrong])
        assert isinstance(answer, Failure)
        assert answer.code is ErrorCode.RECORD_CORRUPT
        if harm == "a wrong byte":
            assert str(at * size) in answer.message
        (stored,) = await services.sends.send(PRODUCER, [batch(0, b"first")])
        assert isinstance(stored, Placed)
        assert stored.base_queue_offset == 0

    play(asked, test)


def test_a_batch_is_not_looked_at_beyond_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn's work is weighed by that: thousands of records that say to be one would be a turn of
    a tenth of a second."""
    asked = Asked(turns=Interrupted())
    looked = 0

    def counted(body: memoryview) -> int:
        nonlocal looked
        looked += 1
        return crc32(body)

    async def test() -> None:
        await asked.services.topics.create("t", 1, if_not_exists=False)
        many = replace(batch(0, *[b"body"] * LARGE), count=1)
        monkeypatch.setattr(record, "crc32", counted)
        answers = await asked.services.sends.send(PRODUCER, [many] * 3)
        assert [isinstance(each, Failure) and each.code for each in answers] == [
            ErrorCode.RECORD_CORRUPT
        ] * 3
        assert looked == 3

    play(asked, test)


@pytest.mark.parametrize("size", [0, 1, 7, PAGE_TOPICS + 1])
def test_pages_of_topics_follow_each_other_by_name(size: int) -> None:
    """Every topic is on exactly one of them, and only the last one has no successor."""
    asked = Asked()

    async def test() -> None:
        names = [f"t{number % 7}-{number}" for number in range(15)]
        for name in names:
            await asked.services.topics.create(name, 1, if_not_exists=False)
        found: list[str] = []
        after = ""
        while True:
            page = await asked.services.topics.list(after, size)
            found += [topic.name for topic in page.topics]
            assert len(page.topics) <= (min(size, PAGE_TOPICS) or PAGE_TOPICS)
            if not page.following:
                break
            after = page.following
        assert found == sorted(names)

    play(asked, test)


@pytest.mark.parametrize(("queues", "groups"), [(MAX_QUEUES, 20), (1, PAGE_GROUPS + 5)])
def test_pages_of_a_description_hold_every_group_once(queues: int, groups: int) -> None:
    """Bounded by offsets where groups have many, by groups where they have few."""
    asked = Asked()

    async def test() -> None:
        await asked.services.topics.create("t", queues, if_not_exists=False)
        wanted = tuple((queue_id, 0) for queue_id in range(queues))
        ends = [0] * queues
        for number in range(groups):
            commit = OffsetCommit(f"g{number:05}", "t", wanted, is_reset=False)
            asked.machine.offsets.commit(commit, ends)
        found: list[str] = []
        after, pages = "", 0
        while True:
            page = await asked.services.topics.describe(TopicRef("t"), after)
            found += [group.group for group in page.groups]
            assert sum(len(group.offsets) for group in page.groups) <= PAGE_OFFSETS
            assert len(page.groups) <= PAGE_GROUPS
            pages += 1
            if not page.following:
                break
            after = page.following
        assert found == [f"g{number:05}" for number in range(groups)]
        assert pages > 1

    play(asked, test)


def test_calls_share_a_turn_and_sends_wait_for_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One Send is proposed at a time: behind all paused calls, at each of its parts, it would keep
    every producer waiting for as long."""
    calls, opened = Interrupted(), Replica.open

    def opening(config: NodeConfig, ports: ReplicaPorts) -> Replica:
        return opened(config, replace(ports, call_turns=calls))

    monkeypatch.setattr(Replica, "open", opening)
    node = World(1).serving()
    services = node.replica.services
    assert services.sends._turns is node.turns
    for service in (services.pulls, services.queue_pulls, services.consumers):
        assert service._turns is calls

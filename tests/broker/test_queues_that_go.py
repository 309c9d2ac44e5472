"""Where groups are put as queues of a topic go (ADR 60): these begin at their ends, and so does
every group in them, or it would be told that its next message has gone once they come again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands
from broker.leader.deliveries.desk import Desk
from broker.leader.groups.assigning import Assigning
from broker.services.consumers import Consumers, MoveWish, To
from broker.state.offsets import OffsetCommit
from broker.state.topics import TopicState
from tests.broker.test_desk import desks, said, wanted
from tests.broker.test_first_handouts import nothing_is_over
from tests.broker.test_held_back import CONCURRENT, Shop, T

SENT = 3
GOES = 3  # the last of four queues


class Shrinking(Shop):
    """Three messages are in t/3, which goes as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.send(GOES, *(b"%d" % number for number in range(SENT)))
        self.commands = Commands(self.room.leader.replica.parts.appender)
        self.topic = T._replace(incarnation=self.room.machine.topics["t"].incarnation)
        self.going: asyncio.Future[Any] | None = None

    def go(self) -> asyncio.Future[Any]:
        """The queue is about to go; once only."""
        if self.going is None:
            coming = self.commands.update_topic(self.topic, GOES, GOES, drop=True)
            self.going = asyncio.ensure_future(coming)
        return self.going

    def run(self, work: Coroutine[Any, Any, object]) -> ErrorCode | None:
        """Why it isn't done."""
        try:
            self.room.world.run(self.room.leader, work)
        except BrokerError as error:
            return error.code
        return None

    def commit(self, offset: int, *, is_reset: bool = False, group: str = "g") -> ErrorCode | None:
        commit = OffsetCommit(group, "t", ((GOES, offset),), is_reset=is_reset)
        return self.run(self.room.leader.replica.services.offsets.commit(commit))

    def where(self, group: str = "g") -> int | None:
        """How far the group is in the queue that has gone."""
        assert self.going is not None
        numbers = self.room.machine.queue_numbers.of(self.topic.incarnation, 4)
        assert (numbers.read_queues, self.going.done()) == (GOES, True)
        return self.room.machine.offsets.of(group, "t").get(GOES)


@pytest.mark.parametrize("is_waited_for", [True, False])
@pytest.mark.parametrize("queues", [(), (GOES,)])
def test_group_that_is_moved_meanwhile_isnt_put_in_front_of_them(
    monkeypatch: pytest.MonkeyPatch, queues: tuple[int, ...], *, is_waited_for: bool
) -> None:
    """To look where it is to go on takes seconds; what was found is of before they went."""
    shop, target = Shrinking(), Consumers._target
    shop.commit(SENT)

    async def looking(self: Consumers, *asked: Any) -> int:
        found = await target(self, *asked)
        going = shop.go()
        if is_waited_for:
            await going
        return found

    monkeypatch.setattr(Consumers, "_target", looking)
    consumers = shop.room.leader.replica.services.consumers
    code = shop.run(consumers.move(MoveWish("g", T, queues, To.FIRST)))
    assert code is (None if is_waited_for else ErrorCode.BUSY)
    assert shop.where() == SENT


def test_nor_is_one_that_begins_there_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first grant says where it starts, in all of the topic's queues."""
    shop, use = Shrinking(), Assigning._use

    def using(*asked: Any) -> None:
        shop.go()
        use(*asked)

    monkeypatch.setattr(Assigning, "_use", using)
    shop.seat = shop.room.seat()
    member = shop.seat.join(settings=CONCURRENT)
    shop.pass_ms(5_000)
    assert member.queues == [0, 1, 2]
    assert shop.where() == SENT


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_nor_one_that_is_handed_its_first_messages_meanwhile(*, is_waited_for: bool) -> None:
    shop = Shrinking()
    shop.send(0, b"first")

    async def receive() -> object:
        desk: Desk = desks(shop, nothing_is_over)()
        read = desk._read

        async def reading(*asked: int) -> Any:
            found = await read(*asked)
            going = shop.go()
            if is_waited_for:
                await going
            return found

        async def starts(topic: TopicState, first: int) -> Sequence[int]:
            start_of = shop.room.machine.topic_retention.start_of
            return [start_of(topic.incarnation, queue) for queue in range(4)]

        desk._read, desk.starts = reading, starts
        receiver = desk.receive(wanted(1))
        await desk.work()
        return await said(receiver.done)

    told = shop.room.world.run(shop.room.leader, receive())
    if told is ErrorCode.BUSY and not is_waited_for:
        told = shop.room.world.run(shop.room.leader, receive())
    assert isinstance(told, list)
    assert shop.where() == SENT


@pytest.mark.parametrize("is_waited_for", [True, False])
@pytest.mark.parametrize(("is_reset", "before"), [(True, SENT), (False, None)])
def test_nor_one_that_commits_meanwhile(
    monkeypatch: pytest.MonkeyPatch, before: int | None, *, is_reset: bool, is_waited_for: bool
) -> None:
    """For the first time in that queue, or back."""
    shop, proposes = Shrinking(), Commands.commit_offsets

    async def proposing(self: Commands, *asked: Any) -> object:
        going = shop.go()
        if is_waited_for:
            await going
        return await proposes(self, *asked)

    if before is not None:
        shop.commit(before)
    with monkeypatch.context() as patch:
        patch.setattr(Commands, "commit_offsets", proposing)
        code = shop.commit(1, is_reset=is_reset)
    refused = ErrorCode.OFFSET_OUT_OF_RANGE if is_reset and is_waited_for else ErrorCode.BUSY
    assert code is refused
    assert shop.where() == before


def test_who_has_read_on_in_them_says_so_in_vain() -> None:
    """A loop that commits what it had of the queue isn't refused for that, and is at the end; who
    would be put back there is."""
    shop = Shrinking()
    shop.commit(1)
    with shop.room.leader.running():
        shop.go()
    shop.room.world.settle()
    assert (shop.commit(2), shop.where()) == (None, SENT)
    assert (shop.commit(2, group="new"), shop.where("new")) == (None, SENT)
    assert shop.commit(2, is_reset=True) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (shop.commit(SENT, is_reset=True), shop.where()) == (None, SENT)


def test_what_goes_by_a_wish_while_it_is_looked_is_nothing_to_go_on_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queue stays, and begins later by then: nothing has to be looked at again for that."""
    shop, target, looked = Shrinking(), Consumers._target, []
    shop.commit(SENT)

    async def looking(self: Consumers, *asked: Any) -> int:
        found = await target(self, *asked)
        looked.append(found)
        monkeypatch.setattr(type(shop.room.machine.topic_retention), "start_of", lambda *_: 2)
        return found

    monkeypatch.setattr(Consumers, "_target", looking)
    consumers = shop.room.leader.replica.services.consumers
    assert shop.run(consumers.move(MoveWish("g", T, (GOES,), To.FIRST))) is None
    assert looked == [0]
    assert shop.room.machine.offsets.of("g", "t")[GOES] == 2

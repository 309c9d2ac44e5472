"""What a group is handed first while somebody says where it goes on (ADR 57): all before it counts
as finished, so it is handed nothing that was chosen from another place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.errors import ErrorCode
from broker.leader.commands import Commands, GroupMove
from broker.leader.deliveries.asking import Handed, Place
from broker.leader.deliveries.desk import Desk
from broker.reading.queues import Found
from broker.state.handouts import Handout
from broker.state.offsets import OffsetCommit
from broker.state.topics import TopicRef, TopicState
from dledger.records.record import decode_records
from tests.broker.test_desk import desks, said, wanted
from tests.broker.test_held_back import Shop

SENT = 10
START = 5  # where the group begins, unless somebody says otherwise
OTHERS = 2  # how far another group is

Put = Callable[[Commands, TopicRef], Awaitable[object]]


def moved(commands: Commands, topic: TopicRef) -> Awaitable[object]:
    return commands.move_group(GroupMove("g", topic, ((0, 0),), is_forward=False))


def reset(commands: Commands, topic: TopicRef) -> Awaitable[object]:
    commit = OffsetCommit("g", topic.name, ((0, 0),), is_reset=True, incarnation=topic.incarnation)
    return commands.commit_offsets(commit)


def cloned(commands: Commands, topic: TopicRef) -> Awaitable[object]:
    return commands.clone_group("other", "g")


class Counter(Shop):
    """Ten messages are in t/0. While the desk of group g looks at them first, `put` is proposed."""

    def __init__(self, put: Put, *, is_waited_for: bool) -> None:
        super().__init__()
        self.send(0, *(b"%d" % number for number in range(SENT)))
        node = self.room.leader
        self.commands = Commands(node.replica.parts.appender)
        incarnation = self.room.machine.topics["t"].incarnation
        self.topic = TopicRef("t", incarnation)
        self.commit("other", OTHERS)
        self._put: Put | None = put
        self._is_waited_for = is_waited_for
        self.coming: asyncio.Future[object] | None = None

    def commit(self, group: str, offset: int) -> None:
        node = self.room.leader
        commit = OffsetCommit(group, "t", ((0, offset),), is_reset=False)
        self.room.world.run(node, node.replica.services.offsets.commit(commit))

    async def receive(self, desk: Desk) -> list[Handed] | ErrorCode:
        read = desk._read

        async def reading(queue_id: int, offset: int, count: int, size: int) -> Found:
            found = await read(queue_id, offset, count, size)
            put, self._put = self._put, None
            if put is not None:
                self.coming = asyncio.ensure_future(put(self.commands, self.topic))
                if self._is_waited_for:
                    await self.coming
            return found

        async def starts(topic: TopicState, first: int) -> list[int]:
            return [START] + [0] * (len(topic.next_offsets) - 1)

        desk._read, desk.starts = reading, starts
        receiver = desk.receive(wanted(1, SENT))
        await desk.work()
        assert self.coming is not None
        await self.coming
        return await said(receiver.done)


async def nothing_is_over(
    place: Place, queue_id: int, hand: Handout, found: Found, times: int
) -> None:
    raise AssertionError("nothing is over")


def handed(shop: Counter) -> list[bytes] | ErrorCode:
    """What the next receiver is given, or why nothing."""
    desk = desks(shop, nothing_is_over)()
    given = shop.room.world.run(shop.room.leader, shop.receive(desk))
    if isinstance(given, ErrorCode):
        return given
    return [record.body for each in given for record in decode_records(each.records)]


def all_from(first: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, SENT)]


@pytest.mark.parametrize("is_waited_for", [True, False])
@pytest.mark.parametrize(("put", "first"), [(moved, 0), (reset, 0), (cloned, OTHERS)])
def test_group_that_is_put_elsewhere_as_it_begins_is_handed_all_from_there(
    put: Put, first: int, *, is_waited_for: bool
) -> None:
    """Whether that is applied by the time its first messages are chosen, or is on its way."""
    shop = Counter(put, is_waited_for=is_waited_for)
    if put is not cloned:
        shop.commit("g", START)
    given = handed(shop)
    if given is ErrorCode.BUSY and not is_waited_for:
        given = handed(shop)
    assert given == all_from(first)


def test_group_that_another_one_is_put_beside_begins_where_it_was() -> None:
    """Of others it says nothing."""

    def others(commands: Commands, topic: TopicRef) -> Awaitable[object]:
        return commands.move_group(GroupMove("other", topic, ((0, 0),), is_forward=False))

    shop = Counter(others, is_waited_for=False)
    shop.commit("g", START)
    assert handed(shop) == all_from(START)

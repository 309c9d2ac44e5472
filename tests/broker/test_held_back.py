"""What groups that read in order aren't given yet, after a topic's write queues were changed
(ADR 60): members by their leases, and FIFO receivers. Others are given whatever there is."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import Placed
from broker.leader.commands import Commands
from broker.leader.deliveries.asking import Settlement
from broker.reading.held_back import HeldBack
from broker.reading.queues import Found
from broker.services.consumers import MoveWish, To
from broker.services.deliveries import Receive, Received
from broker.services.queue_pulls import Pulled, QueuesRequest, QueueWish
from broker.services.topics import QueueWish as Numbers
from broker.services.topics import Topic
from broker.state.groups import JoinWish, Settings
from broker.state.registration import Registration
from broker.state.topic_permissions import USUAL, Permission
from broker.state.topics import TopicRef
from dledger.records.record import decode_records
from dledger.wire.commands_pb2 import (
    SETTLING_FINISHED,
    Command,
    MoveLogStartCommand,
    MoveQueueStartsCommand,
    QueueStart,
)
from tests.broker.asked import EndlessCall
from tests.broker.attended import Member, Room
from tests.broker.leader import TOKEN, batch

ORDERLY = Settings(topics=("t",), is_orderly=True)
CONCURRENT = Settings(topics=("t",))
T = TopicRef("t")


class Shop:
    """Topic t of four queues, a producer, and a member `a` that has them all."""

    def __init__(self, count: int = 1, settings: Settings | None = None) -> None:
        self.room = Room(count)
        node = self.room.leader
        registered = node.replica.services.producers.register(Registration(TOKEN))
        self.producer = self.room.world.run(node, registered).producer_id
        self.sent: dict[int, int] = {}
        self.member = Member()
        if settings is not None:
            self.seat = self.room.seat()
            self.member = self.seat.join(settings=settings)
            self.pass_ms(1_000)

    def pass_ms(self, ms: int) -> None:
        self.room.pass_ms(ms, self.seat)

    def send(self, queue_id: int, *bodies: bytes) -> None:
        sequence = self.sent.get(queue_id, 0)
        node = self.room.leader
        wanted = [batch(sequence, *bodies, queue_id=queue_id, tag="x")]
        (answer,) = self.room.world.run(
            node, node.replica.services.sends.send(self.producer, wanted)
        )
        assert isinstance(answer, Placed), answer
        self.sent[queue_id] = sequence + len(bodies)

    def update(self, read: int = 0, write: int = 0, *, drop: bool = False) -> Topic:
        node = self.room.leader
        wish = Numbers(read, write, drop)
        return self.room.world.run(node, node.replica.services.topics.update(T, wish))

    def pull(self, *places: tuple[int, int], hold_ms: int = 0) -> dict[int, list[bytes]]:
        """By queue what member `a` is given from those offsets on."""
        node = self.room.leader
        wishes = tuple(
            QueueWish(T, queue_id, offset, self.member.held.get(("t", queue_id), 0))
            for queue_id, offset in places
        )
        request = QueuesRequest(wishes, "g", is_by_filter=True, hold_ms=hold_ms)
        found = self.room.world.run(
            node, node.replica.services.queue_pulls.pull(request, EndlessCall())
        )
        given: dict[int, list[bytes]] = {}
        for at, each in found:
            assert isinstance(each, Found), each
            given[places[at][0]] = [record.body for record in decode_records(each.records)]
        return given


@pytest.mark.parametrize("tags", [None, (("t", ("x",)),)])
def test_a_key_that_moved_waits_until_its_old_queue_is_read_to_where_it_moved(
    tags: tuple[tuple[str, tuple[str, ...]], ...] | None,
) -> None:
    """Not to where that is by now; and only in groups that read in order."""
    shop = Shop(settings=replace(ORDERLY, tags=tags))
    shop.send(1, b"one", b"two")
    assert shop.update(8, 8).write_queues == 8
    shop.send(5, b"three")
    shop.send(1, b"another's")
    shop.pass_ms(1_000)
    assert shop.member.queues == list(range(8))
    assert shop.pull((5, 0)) == {}
    assert shop.pull((1, 0), (5, 0)) == {1: [b"one", b"two", b"another's"]}
    shop.room.commit(shop.member, 1, 1)
    assert shop.pull((5, 0), hold_ms=300) == {}
    shop.room.commit(shop.member, 1, 2)
    assert shop.pull((5, 0)) == {5: [b"three"]}
    shop.update(0, 4)
    shop.send(1, b"four")
    assert shop.pull((1, 2)) == {1: [b"another's"]}
    shop.room.commit(shop.member, 5, 1)
    assert shop.pull((1, 2)) == {1: [b"another's", b"four"]}


def test_no_change_is_forgotten_while_what_lay_before_it_can_be_read() -> None:
    """It is decided that it goes, and nobody has let go of it yet: who reads in order still waits
    for it, so that the topic isn't changed once more."""
    shop = Shop(settings=ORDERLY)
    shop.send(1, b"one")
    shop.update(8, 8)
    shop.send(5, b"two")
    shop.pass_ms(1_000)
    machine = shop.room.machine
    retire(shop, machine.applied_index)
    with pytest.raises(BrokerError, match="t/1 still holds messages of before entry") as refused:
        shop.update(0, 6)
    assert refused.value.code is ErrorCode.BUSY
    assert shop.pull((5, 0)) == {}
    assert shop.pull((1, 0), (5, 0)) == {1: [b"one"]}
    assert shop.update(9).queue_count == 9, "no other write queues: nothing is forgotten"
    starts = MoveQueueStartsCommand(
        name="t",
        incarnation=machine.topics["t"].incarnation,
        starts=[QueueStart(queue_id=1, offset=1)],
    )
    with shop.room.leader.running():
        shop.room.leader.replica.appender.submit(Command(move_queue_starts=starts))
    shop.pass_ms(100)
    assert shop.update(0, 6).write_queues == 6, "nothing of before can be read"


def test_nor_while_it_is_on_its_way_that_it_goes() -> None:
    """The update is judged by the start that the log has then."""
    shop = Shop(settings=ORDERLY)
    shop.send(1, b"one")
    shop.update(8, 8)
    shop.pass_ms(1_000)
    kept = shop.room.machine.queue_numbers.of(shop.room.machine.topics["t"].incarnation, 8).changes
    move = MoveLogStartCommand(first_index=shop.room.machine.applied_index)
    with shop.room.leader.running():
        shop.room.leader.replica.appender.submit(Command(move_log_start=move))
    with pytest.raises(BrokerError, match="just about to begin later") as refused:
        shop.update(0, 6)
    assert refused.value.code is ErrorCode.BUSY
    now = shop.room.machine.queue_numbers.of(shop.room.machine.topics["t"].incarnation, 8).changes
    assert now == kept
    shop.pass_ms(100)
    with pytest.raises(BrokerError, match="still holds messages of before entry"):
        shop.update(0, 6)


def waiting_pull(shop: Shop) -> Task[object]:
    """Queue 4 has a message that waits for queue 0 to be read; a pull for it is held."""
    shop.send(0, b"one")
    shop.update(5, 5)
    shop.send(4, b"two")
    shop.pass_ms(1_000)
    node = shop.room.leader
    wish = QueueWish(T, 4, 0, shop.member.held["t", 4])
    request = QueuesRequest((wish,), "g", hold_ms=10_000)
    return node.begin(node.replica.services.queue_pulls.pull(request, EndlessCall()))


def test_a_pull_that_waits_is_given_what_was_held_back_when_it_is_not_any_more() -> None:
    """Nobody sends anything: what its old queue's being read says wakes it, and no look before."""
    shop = Shop(settings=ORDERLY)
    pulling = waiting_pull(shop)
    shop.pass_ms(500)
    assert not pulling.done()
    woken = shop.room.leader.replica.parts.held.statistics().woken
    shop.room.commit(shop.member, 2, 0)
    shop.pass_ms(500)
    assert shop.room.leader.replica.parts.held.statistics().woken == woken
    shop.room.commit(shop.member, 0, 1)
    shop.pass_ms(20)
    assert pulling.done()


def test_what_is_freed_while_a_pull_looks_at_its_queues_is_not_missed() -> None:
    """A look has pauses within it, and the group commits in one."""
    shop = Shop(settings=ORDERLY)
    pulls = shop.room.leader.replica.services.queue_pulls
    read, is_over = pulls._read, False

    async def slowly(request: QueuesRequest, positions: Sequence[int]) -> list[Pulled]:
        found = await read(request, positions)
        while not is_over:
            await asyncio.sleep(0.01)
        return found

    pulls._read = slowly  # type: ignore[method-assign]
    pulling = waiting_pull(shop)
    shop.pass_ms(100)
    shop.room.commit(shop.member, 0, 1)
    is_over = True
    shop.pass_ms(100)
    assert pulling.done()


class UsedUp:
    """`Turns` of which others have used up the first; `meanwhile` is awaited before the next."""

    def __init__(self, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    def share(self) -> Callable[[], bool]:
        is_over = self._meanwhile is not None
        return lambda: is_over

    def later(self, call: Callable[[], None]) -> object:
        return asyncio.get_running_loop().call_soon(call)

    async def pause(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            await meanwhile()


def moved_shop() -> tuple[Shop, Callable[[], Awaitable[object]]]:
    """Queue 1 has a message; and what moves a key to it, whose old queue is unread, and sends."""
    shop = Shop(settings=ORDERLY)
    shop.send(3, b"the key's")
    shop.send(1, b"another's")
    services = shop.room.leader.replica.services

    async def meanwhile() -> object:
        await services.topics.update(T, Numbers(0, 2, False))
        later = [batch(shop.sent[1], b"the key's next", queue_id=1, tag="x")]
        return await services.sends.send(shop.producer, later)

    return shop, meanwhile


def test_a_key_that_moves_while_a_pull_waits_for_its_turn_is_held_back() -> None:
    """The queue is judged in the turn in which it is read."""
    shop, meanwhile = moved_shop()
    shop.room.leader.replica.services.queue_pulls._turns = UsedUp(meanwhile)
    assert shop.pull((1, 0)) == {1: [b"another's"]}
    assert shop.pull((1, 1)) == {}


def test_a_key_that_moves_while_a_pull_looks_whether_it_may_read_is_held_back() -> None:
    """Whoever says that it may not confirms it, and may be told otherwise by then."""
    shop, meanwhile = moved_shop()
    services = shop.room.leader.replica.services
    shop.room.world.run(shop.room.leader, services.topics.permit(T, int(Permission.WRITE)))
    gate = services.pulls._gate
    confirm = gate.confirm

    async def once() -> None:
        gate.confirm = confirm  # type: ignore[method-assign]
        await services.topics.permit(T, int(USUAL))
        await meanwhile()

    gate.confirm = once  # type: ignore[method-assign]
    assert shop.pull((1, 0)) == {1: [b"another's"]}
    assert gate.confirm == confirm


def test_who_loses_a_queue_while_a_pull_waits_for_its_turn_is_given_nothing_of_it() -> None:
    shop, _ = moved_shop()
    node = shop.room.leader
    services = node.replica.services
    wish = MoveWish("g", T, (1,), To.FIRST)
    services.queue_pulls._turns = UsedUp(lambda: services.consumers.move(wish))
    request = QueuesRequest((QueueWish(T, 1, 0, shop.member.held["t", 1]),), "g", hold_ms=0)
    ((_, told),) = shop.room.world.run(node, services.queue_pulls.pull(request, EndlessCall()))
    assert isinstance(told, Failure)
    assert told.code is ErrorCode.LEASE_LOST


def test_a_pull_waits_for_nothing_but_messages_where_nothing_is_held_back() -> None:
    """All that lay before the change is read; and nothing was changed at first."""
    shop = Shop(settings=ORDERLY)
    state = shop.room.leader.replica.machine
    held_back = HeldBack(state, shop.room.leader.replica.services.queue_pulls._reader)
    topic = state.topics.get("t")
    assert topic is not None
    assert held_back.freed("g", [topic]) is None
    shop.send(0, b"one")
    shop.update(5, 5)
    shop.pass_ms(1_000)
    freed = held_back.freed("g", [topic])
    assert freed is not None
    assert not freed()
    shop.room.commit(shop.member, 0, 1)
    assert freed()
    assert held_back.freed("g", [topic]) is None


def test_members_are_told_that_they_may_not_read() -> None:
    """At once, of each queue that has something for them: silence they would take for its end."""
    shop = Shop(settings=CONCURRENT)
    shop.send(0, b"one")
    shop.send(1, b"two")
    shop.pass_ms(1_000)
    node = shop.room.leader
    services = node.replica.services
    shop.room.world.run(node, services.topics.permit(T, int(Permission.WRITE)))
    wishes = tuple(
        QueueWish(T, queue_id, 0, shop.member.held["t", queue_id]) for queue_id in range(3)
    )
    request = QueuesRequest(wishes, "g", is_by_filter=True, hold_ms=10_000)
    pulling = node.begin(services.queue_pulls.pull(request, EndlessCall()))
    shop.pass_ms(200)
    told = dict(shop.room.world.outcome(pulling))
    assert all(isinstance(each, Failure) for each in told.values()), told
    codes = {at: each.code for at, each in told.items() if isinstance(each, Failure)}
    assert codes == dict.fromkeys((0, 1), ErrorCode.TOPIC_NOT_READABLE)
    shop.room.world.run(node, services.topics.permit(T, int(USUAL)))
    assert shop.pull((0, 0), (1, 0)) == {0: [b"one"], 1: [b"two"]}


def test_groups_that_do_not_read_in_order_are_given_what_there_is() -> None:
    shop = Shop(settings=CONCURRENT)
    shop.send(0, b"one")
    shop.update(5, 5)
    shop.send(4, b"two")
    shop.pass_ms(1_000)
    assert shop.pull((4, 0)) == {4: [b"two"]}


def test_whoever_leads_next_holds_back_as_much() -> None:
    """All that decides it is in the log."""
    shop = Shop(3, ORDERLY)
    shop.send(0, b"one")
    shop.update(5, 5)
    shop.send(4, b"two")
    shop.pass_ms(1_000)
    shop.room.lead(next(n for n in shop.room.world.nodes if n != shop.room.leader.name))
    shop.room.world.settle()
    assert shop.pull((4, 0)) == {}
    assert shop.pull((0, 0)) == {0: [b"one"]}


def test_queues_that_go_are_nobodys_and_read_no_more() -> None:
    """Their holder is told; a topic is told by the queues that are read."""
    shop = Shop(settings=ORDERLY)
    shop.send(3, b"one")
    shop.update(0, 2)
    with pytest.raises(BrokerError) as refused:
        shop.update(2)
    assert refused.value.code is ErrorCode.QUEUES_UNREAD
    shop.room.commit(shop.member, 3, 1)
    topic = shop.update(2)
    assert (topic.queue_count, topic.write_queues) == (2, 2)
    shop.pass_ms(1_000)
    assert shop.member.queues == [0, 1]
    described = shop.room.world.run(
        shop.room.leader, shop.room.leader.replica.services.topics.describe(T)
    )
    assert [each.queue_id for each in described.queues] == [0, 1]
    shop.update(4, 4)
    shop.send(3, b"two")
    shop.pass_ms(1_000)
    assert shop.pull((3, 1)) == {3: [b"two"]}


def retire(shop: Shop, first_index: int) -> None:
    """It is decided that all before that entry goes; no whole segment does, so that it stays."""
    machine = shop.room.machine
    move = MoveLogStartCommand(first_index=first_index)
    with shop.room.leader.running():
        shop.room.leader.replica.appender.submit(Command(move_log_start=move))
    shop.room.pass_ms(100)
    assert machine.log_start.first_index == first_index


@pytest.mark.parametrize("is_joined", [False, True])
def test_what_retention_takes_from_a_closed_queue_nobody_has_to_have_read(
    *, is_joined: bool
) -> None:
    """Neither a group that is behind, nor one that may come; what is kept is waited for."""
    shop = Shop(settings=ORDERLY if is_joined else None)
    shop.send(3, b"one")
    changed = shop.update(0, 2).queues_changed
    for first_index in (None, changed - 1):
        if first_index is not None:
            retire(shop, first_index)
        with pytest.raises(BrokerError) as refused:
            shop.update(2)
        assert refused.value.code is ErrorCode.QUEUES_UNREAD
    retire(shop, changed)
    with pytest.raises(BrokerError) as refused:
        shop.update(2)
    assert refused.value.code is ErrorCode.QUEUES_UNREAD, "it can be read until it goes"
    with patch.object(shop.room.leader.replica.queues, "min_offset", lambda *_: 1):
        assert shop.update(2).queue_count == 2
    shop.update(4, 4)
    shop.send(3, b"two")
    with pytest.raises(BrokerError) as refused:
        shop.update(2, 2)
    assert refused.value.code is ErrorCode.QUEUES_UNREAD
    retire(shop, shop.room.machine.applied_index)
    with pytest.raises(BrokerError) as refused:
        shop.update(2, 2)
    assert refused.value.code is ErrorCode.QUEUES_UNREAD, "it takes messages until then"


@pytest.mark.parametrize("how", ["left", "drop"])
def test_queues_do_not_go_while_members_of_a_broadcast_group_are_at_work(how: str) -> None:
    """Though every group whose offsets are in the log has read them: how far these are only they
    know. Empty queues go, and so do others once nobody is there, or if that is said."""
    shop = Shop(settings=ORDERLY)
    shop.send(2, b"one")
    shop.room.commit(shop.member, 2, 1)
    seat, everybody = shop.room.seat(), Settings(topics=("t",), is_broadcast=True)
    seat.join("b", group="everybody", settings=everybody)
    shop.room.pass_ms(300, shop.seat, seat)
    shop.update(0, 2)
    assert shop.update(3).queue_count == 3, "the fourth is empty"
    with pytest.raises(BrokerError) as refused:
        shop.update(2)
    assert refused.value.code is ErrorCode.QUEUES_UNREAD
    assert "t/2 holds messages, and group 'everybody' broadcasts" in refused.value.message
    if how == "left":
        seat.leave()
        shop.room.pass_ms(300, shop.seat, seat)
    assert shop.update(2, drop=how == "drop").queue_count == 2


def test_nor_do_queues_into_which_messages_are_on_their_way() -> None:
    """Though nothing lies in them yet, and every group whose offsets are in the log is at their
    end."""
    shop = Shop(settings=ORDERLY)
    seat, everybody = shop.room.seat(), Settings(topics=("t",), is_broadcast=True)
    seat.join("b", group="everybody", settings=everybody)
    shop.room.pass_ms(300, shop.seat, seat)
    shop.update(0, 3)
    with shop.room.leader.running():
        wanted = [batch(0, b"one", queue_id=2, tag="x")]
        shop.room.leader.replica.appender.send(shop.producer, wanted)
    with pytest.raises(BrokerError) as refused:
        shop.update(2, 2)
    assert refused.value.code is ErrorCode.QUEUES_UNREAD
    assert "on their way into t/2, and group 'everybody' broadcasts" in refused.value.message


@pytest.mark.parametrize("topic", ["t", "u"])
def test_nor_do_queues_while_such_a_member_is_about_to_come(topic: str) -> None:
    """Of it nothing is applied, and it joins before they would go; of other topics it says nothing,
    nor of queues without messages."""
    shop = Shop(settings=ORDERLY)
    shop.send(2, b"one")
    shop.room.commit(shop.member, 2, 1)
    everybody = Settings(topics=(topic,), is_broadcast=True)
    commands = Commands(shop.room.leader.replica.parts.appender)

    def joins(name: str) -> asyncio.Future[object]:
        wish = JoinWish("everybody", name, name.encode() * 8, everybody)
        with shop.room.leader.running():
            return asyncio.ensure_future(commands.join_group(wish))

    joining = joins("b")
    assert shop.update(3, 3).queue_count == 3, "the fourth is empty"
    assert joining.done()
    shop.room.pass_ms(60_000, shop.seat)
    assert not shop.room.machine.groups.members("everybody"), "it never was heard"
    joining = joins("c")
    code = None
    try:
        shop.update(2, 2)
    except BrokerError as error:
        code = error.code
    assert code is (ErrorCode.BUSY if topic == "t" else None)
    assert joining.done()


def test_a_broadcast_group_that_reads_other_topics_keeps_nobody_waiting() -> None:
    shop = Shop(settings=ORDERLY)
    shop.send(3, b"one")
    shop.room.commit(shop.member, 3, 1)
    seat, everybody = shop.room.seat(), Settings(topics=("u",), is_broadcast=True)
    seat.join("b", group="everybody", settings=everybody)
    shop.room.pass_ms(300, shop.seat, seat)
    assert shop.update(3, 3).queue_count == 3


def test_brokers_own_topics_are_changed_by_nobody() -> None:
    shop = Shop()
    node = shop.room.leader
    for name in ("%RETRY%g", "%DLQ%g"):
        wanted = node.replica.services.topics.update(TopicRef(name), Numbers(9, 9))
        with pytest.raises(BrokerError) as refused:
            shop.room.world.run(node, wanted)
        assert refused.value.code is ErrorCode.INVALID_ARGUMENT


# --- single messages ------------------------------------------------------------------------------


def receive(shop: Shop, *settled: Settlement, is_fifo: bool = True, group: str = "p") -> Received:
    node = shop.room.leader
    attempt = len(shop.sent).to_bytes(4, "big") + b"once"
    wish = Receive(group, T, is_fifo, attempt, False, 32, 1 << 20, 0, 60_000, 0, 0, tuple(settled))
    answer = node.replica.services.deliveries.receive(wish, EndlessCall())
    return shop.room.world.run(node, answer)


def bodies(received: Received) -> list[bytes]:
    return [record.body for each in received.handed for record in decode_records(each.records)]


def test_fifo_receivers_wait_as_members_do() -> None:
    """Until what was handed out of the old queue is finished."""
    shop = Shop()
    shop.send(0, b"one")
    shop.update(8, 8)
    shop.send(4, b"two")
    first = receive(shop)
    assert bodies(first) == [b"one"]
    assert bodies(receive(shop)) == []
    done = Settlement(0, first.handed[0].handout, 0, 1, SETTLING_FINISHED, 0)
    assert bodies(receive(shop, done)) == [b"two"]


def test_receivers_in_any_order_are_given_what_there_is() -> None:
    shop = Shop()
    shop.send(0, b"one")
    shop.update(8, 8)
    shop.send(4, b"two")
    assert sorted(bodies(receive(shop, is_fifo=False))) == [b"one", b"two"]

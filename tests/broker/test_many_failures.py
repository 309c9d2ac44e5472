"""A call may tell of as many failures as it has room for, in whatever queues they are."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ErrorCode, Failure
from broker.leader.retries.proposals import Failed, failed_in_place, sent_back
from broker.leader.units import ProposedUnit, UnitResult, holds
from broker.leader.units_room import Kind
from broker.services.retries import MAX_MESSAGES_IN_CALL, FailedMessage, SendBack
from broker.services.updates import QueueOf
from broker.state.groups import Settings
from broker.state.leases import MAX_RANGES, Place
from broker.state.topics import TopicRef
from dledger.records.record import DecodedRecord
from dledger.records.reserved import dead_letter_topic
from dledger.wire.commands_pb2 import (
    Command,
    CreateTopicCommand,
    GrantLeasesCommand,
    GroupSettings,
    JoinGroupCommand,
    QueueGrant,
    TopicGrants,
)
from tests.broker.leader import batch
from tests.broker.test_compound import commit
from tests.broker.test_held_back import Shop
from tests.broker.test_shared_bounds import raised
from tests.scale import examples


@pytest.mark.parametrize("slow", [0, 1, MAX_RANGES - 2])
def test_a_whole_call_of_one_queues_failures_is_taken(slow: int) -> None:
    """Next to each other they are one range, or none; before an entry is applied each counts as
    one, so that they take more than one. `slow`: so many are done one by one in front of them, and
    nothing at the frontier."""
    shop = Shop(settings=Settings(topics=("t",), max_attempts=3))
    first = 2 * slow
    shop.send(0, *(b"x" for _ in range(first + MAX_MESSAGES_IN_CALL)))
    member, machine = shop.member, shop.room.machine
    queue = QueueOf("t", machine.topics["t"].incarnation, 0)

    def tell(offsets: range) -> tuple[object, ...]:
        failed = tuple(
            FailedMessage(queue, member.held["t", 0], offset, is_rejected=False)
            for offset in offsets
        )
        wish = SendBack("g", "a", member.session, failed)
        told = shop.room.world.run(
            shop.room.leader, shop.room.leader.replica.services.retries.send_back(wish)
        )
        shop.pass_ms(0)
        return told

    if slow:
        assert set(tell(range(1, first, 2))) == {0}
    place = Place("g", queue.incarnation, 0)
    assert len(machine.leases.of(place).finished) == slow
    assert set(tell(range(first, first + MAX_MESSAGES_IN_CALL))) == {0}
    left = machine.leases.of(place).finished
    assert len(left) == slow  # the last of them goes on
    frontier = machine.offsets.of("g", "t")[0]
    assert frontier == (0 if slow else MAX_MESSAGES_IN_CALL)


class Reads:
    """What a call reads, in which pieces: `Turns` of one step each, and `Retries._read`."""

    def __init__(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pieces = [0]
        self.between: Callable[[], None] = lambda: None
        retries = shop.room.leader.replica.services.retries
        read = retries._read

        def counted(topic: TopicRef, queue_id: int, offset: int) -> DecodedRecord:
            self.pieces[-1] += 1
            return read(topic, queue_id, offset)

        monkeypatch.setattr(retries, "_read", counted)
        monkeypatch.setattr(retries, "_turns", self)

    def share(self) -> Callable[[], bool]:
        steps = iter((False, False, False))
        return lambda: next(steps, True)

    async def pause(self) -> None:
        self.pieces.append(0)
        self.between()
        await asyncio.sleep(0)


def failing(shop: Shop, count: int) -> SendBack:
    """All of so many messages of queue 0 have failed."""
    shop.send(0, *(b"x" for _ in range(count)))
    queue = QueueOf("t", shop.room.machine.topics["t"].incarnation, 0)
    epoch = shop.member.held["t", 0]
    failed = (FailedMessage(queue, epoch, offset, is_rejected=False) for offset in range(count))
    return SendBack("g", "a", shop.member.session, tuple(failed))


def test_a_call_of_many_failures_shares_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read and copied in a turn with a few others, whether its topics are there or not."""
    shop = Shop(settings=Settings(topics=("t",), max_attempts=3))
    reads, wish = Reads(shop, monkeypatch), failing(shop, 64)
    node = shop.room.leader
    assert set(shop.room.world.run(node, node.replica.services.retries.send_back(wish))) == {0}
    assert sum(reads.pieces) == 64
    assert max(reads.pieces) <= 4
    assert shop.room.machine.offsets.of("g", "t")[0] == 64


@pytest.mark.parametrize("rejected", [False, True])
@pytest.mark.parametrize("is_orderly", [False, True])
def test_whichever_incarnation_there_is_may_be_meant(*, is_orderly: bool, rejected: bool) -> None:
    """What is judged by the topic that is found is proposed for that one: it was proposed for none,
    and refused in the log, each time that it was tried."""
    settings = Settings(topics=("t",), is_orderly=is_orderly, max_attempts=3)
    shop = Shop(settings=settings)
    wish, node = failing(shop, 1), shop.room.leader
    (one,) = wish.messages
    meant = one._replace(queue=one.queue._replace(incarnation=0), is_rejected=rejected, failed=1)
    sent_back = node.replica.services.retries.send_back(replace(wish, messages=(meant,)))
    stays = is_orderly and not rejected
    assert shop.room.world.run(node, sent_back) == (int(stays),)
    assert shop.room.machine.offsets.of("g", "t")[0] == int(not stays)


def test_in_order_a_failure_is_counted_beside_large_copies_of_others() -> None:
    """Where the message stays nothing is read, and what its unit has is some bytes."""
    shop = Shop(settings=Settings(topics=("t",), is_orderly=True, max_attempts=3))
    wish, node = failing(shop, 1), shop.room.leader
    node.replica.appender.units._room.take(Kind.MESSAGES, 16 << 20, ())

    def tell(failures: int) -> tuple[object, ...]:
        messages = (wish.messages[0]._replace(failed=failures),)
        sent_back = node.replica.services.retries.send_back(replace(wish, messages=messages))
        return shop.room.world.run(node, sent_back)

    assert [tell(1), tell(2)] == [(1,), (2,)]
    (last,) = tell(3)
    assert isinstance(last, Failure)
    assert last.code is ErrorCode.BUSY, "its last attempt there: now there is a copy"


def test_what_is_not_taken_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where so much waits that no copy would be taken, the call says so at once."""
    shop = Shop(settings=Settings(topics=("t",), max_attempts=3))
    reads, wish = Reads(shop, monkeypatch), failing(shop, 16)
    node, units = shop.room.leader, shop.room.leader.replica.appender.units

    def fill() -> None:
        if len(reads.pieces) == 3:
            units._room.take(Kind.MESSAGES, 13 << 20, ())

    reads.between = fill
    told = shop.room.world.run(node, node.replica.services.retries.send_back(wish))
    codes = [each.code if isinstance(each, Failure) else each for each in told]
    taken = codes.count(0)
    assert codes == [0] * taken + [ErrorCode.BUSY] * (16 - taken)
    assert 0 < taken == sum(reads.pieces) < 16


@pytest.mark.parametrize("is_rejected", [True, False])
def test_in_order_what_a_failure_finishes_fails_no_more(is_rejected: bool) -> None:
    """A message that stays finishes those before it. What one lease says of such a one at the same
    time finds it finished, also where both would share an entry: it is neither copied nor counted
    besides."""
    shop = Shop(settings=Settings(topics=("t",), is_orderly=True, max_attempts=3))
    for queue_id in range(2):
        shop.send(queue_id, b"one", b"two")
    shop.room.own_topic(dead_letter_topic("g"))
    node, member = shop.room.leader, shop.member
    machine, retries = node.replica.machine, node.replica.services.retries
    incarnation = machine.topics["t"].incarnation

    def failed(
        queue_id: int, offset: int, *, is_rejected: bool = False
    ) -> Task[tuple[Failure | int, ...]]:
        queue, epoch = QueueOf("t", incarnation, queue_id), member.held["t", queue_id]
        failures = 0 if is_rejected else 1
        message = FailedMessage(queue, epoch, offset, is_rejected, failures)
        return node.begin(retries.send_back(SendBack("g", "a", member.session, (message,))))

    told = [failed(1, 0), failed(0, 1), failed(0, 0, is_rejected=is_rejected)]
    shop.pass_ms(100)
    assert [each.result() for each in told] == [(1,), (1,), (0,)]
    assert machine.offsets.of("g", "t")[0] == 1
    assert machine.attempts.of(Place("g", incarnation, 0), 1) == 1
    assert machine.topics[dead_letter_topic("g")].next_offsets == [0]


SAID = st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 2))


@given(said=st.lists(SAID, min_size=2, max_size=10))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_said_of_one_queue_at_once_is_as_if_said_one_after_another(
    said: list[tuple[bool, int, int]],
) -> None:
    """Whether a message is copied, or fails and stays; in the order in which they are in the log.
    So none is finished by a failure behind it, and copied as well."""
    bench, dead = raised("t"), dead_letter_topic("g")
    for command in (
        Command(create_topic=CreateTopicCommand(name=dead, queue_count=1)),
        Command(
            join_group=JoinGroupCommand(
                group="g", member="m", token=b"token--1", settings=GroupSettings(topics=["t"])
            )
        ),
    ):
        bench.submit(command)
    t, session = bench.machine.topics["t"], bench.machine.groups.members("g")["m"].session
    grants = [QueueGrant(queue_id=0, session=session)]
    told = TopicGrants(topic="t", incarnation=t.incarnation, starts=[0], grants=grants)
    bench.submit(Command(grant_leases=GrantLeasesCommand(group="g", topics=[told])))
    epoch = bench.machine.leases.of(Place("g", t.incarnation, 0)).epoch
    units = bench.appender.units

    def propose(stays: bool, offset: int, failures: int) -> asyncio.Future[UnitResult]:
        message = Failed("g", session, TopicRef("t", t.incarnation), 0, epoch, offset)
        if stays:
            return units.propose(failed_in_place(message, failures, holds))
        return units.propose(sent_back(batch(0, b"copy", topic=dead), message, holds))

    first = units.propose(ProposedUnit((), (commit("first", 0, t.incarnation),)))
    results = [propose(*each) for each in said]
    bench.commit()
    assert first.result().refusal is None
    finished: set[int] = set()
    failed = (0, 0)  # the message in front, how often
    for _, number in sorted((each.result().index, at) for at, each in enumerate(results)):
        stays, offset, failures = said[number]
        known = failed[1] if failed[0] == offset else 0
        is_taken = offset not in finished and (not stays or failures == known + 1)
        assert (results[number].result().refusal is None) == is_taken
        if is_taken and stays:
            finished |= set(range(offset))
            failed = offset, failures
        elif is_taken:
            finished.add(offset)

"""Pulls: what they give, their bounds, and how they wait."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.assembly import committed_log
from broker.errors import BrokerError, ErrorCode
from broker.mending import MendStatistics
from broker.reading import proof
from broker.reading.held import QUEUES_EACH, REMEMBERED, WOKEN_AT_ONCE, HeldPulls
from broker.state.topics import TopicRef
from dledger.records.layout import file_name
from dledger.records.record import decode_records
from dledger.wire.commands_pb2 import Command, DeleteTopicCommand
from store.errors import CorruptionFound
from store.voiding import void_unit
from tests.broker.leader import Bench, batch
from tests.node.world import World
from tests.scale import examples


def filled() -> Bench:
    """Ten messages in t/0 over three entries, with another queue's entry in between."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, *[b"a%d" % n for n in range(4)]))
    bench.send(batch(0, b"elsewhere", queue_id=1))
    bench.send(batch(4, *[b"b%d" % n for n in range(4)]))
    bench.send(batch(8, b"c0", b"c1"))
    bench.commit()
    return bench


@pytest.mark.parametrize("start", range(11))
@pytest.mark.parametrize("count", [1, 3, 100])
def test_pull_gives_the_asked_messages_wherever_they_lie(start: int, count: int) -> None:
    """Runs of adjacent records over entries are put together in queue order."""
    bench = filled()
    found = bench.reader.pull(TopicRef("t"), 0, start, count, 1 << 20)
    records = decode_records(found.records)
    expected = list(range(start, min(10, start + count)))
    assert [r.queue_offset for r in records] == expected
    assert (found.count, found.next_offset) == (len(expected), start + len(expected))
    assert (found.min_offset, found.max_offset) == (0, 10)


def test_max_bytes_bounds_a_pull_but_never_below_one_message() -> None:
    """A message longer than the bound is given alone: a consumer never gets stuck."""
    bench = filled()
    size = len(bench.reader.pull(TopicRef("t"), 0, 0, 1, 1).records)
    assert size > 1
    assert bench.reader.pull(TopicRef("t"), 0, 0, 100, size * 3).count == 3
    assert bench.reader.pull(TopicRef("t"), 0, 0, 100, size * 3 - 1).count == 2


@pytest.mark.parametrize("byte", [0, 5, 8, 11])
def test_a_unit_that_has_rotted_gives_no_message(byte: int) -> None:
    """A unit that points elsewhere, or is of another size, is no answer: what lies before it is
    given, what it hides is refused for now, and the queue is mended."""
    bench = filled()
    bench.disk.flip(bench.queue_file(), 20 * 5 + byte, 0)
    found = bench.reader.pull(TopicRef("t"), 0, 3, 5, 1 << 20)
    assert [record.queue_offset for record in decode_records(found.records)] == [3, 4]
    mender = bench.node.replica.mender
    assert mender.statistics().queues_wrong == 1
    with pytest.raises(BrokerError) as refused:
        bench.reader.pull(TopicRef("t"), 0, 5, 3, 1 << 20)
    assert refused.value.code is ErrorCode.NOT_READY
    assert refused.value.traits.is_retriable
    bench.world.tick()
    assert mender.statistics() == MendStatistics(queues_wrong=0, queues_found=1, units_mended=1)
    assert bench.reader.pull(TopicRef("t"), 0, 3, 5, 1 << 20).count == 5


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("start", [5, 4])
def test_nothing_is_read_of_a_size_that_no_message_has(
    bit: int, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may say four gibibytes, and the first message of a pull is given however long it is."""
    bench = filled()
    asked: list[int] = []
    read_at = bench.log.read_at

    def reading(position: int, size: int) -> bytes:
        asked.append(size)
        return read_at(position, size)

    monkeypatch.setattr(bench.log, "read_at", reading)
    bench.disk.flip(bench.queue_file(), 20 * 5 + 8, bit)
    bench.disk.spoil(bench.queue_file(), 20 * 4, void_unit(4, places(bench.units())[4][0]))
    with pytest.raises(BrokerError, match="has rotted"):
        bench.reader.pull(TopicRef("t"), 0, start, 3, 1 << 20)
    assert bench.reader.pull(TopicRef("t"), 0, 3, 5, 1 << 20).count == 1
    assert asked, "or this isn't how the log is read"
    assert max(asked) <= proof.MAX_RECORD_SIZE


@pytest.mark.parametrize("other", ["offset", "queue", "topic", "incarnation"])
def test_a_unit_of_another_message_is_noticed_though_its_record_is_whole(other: str) -> None:
    """The same size, the same offset, an intact record: but of another queue or topic, or of an
    earlier topic of the name."""
    bench = Bench()
    sequence = 0
    for name in ("t", "u"):
        bench.topic(name)
        for queue_id in (0, 1):
            bench.send(batch(sequence, b"body", b"next", topic=name, queue_id=queue_id))
        bench.commit()
    wrong = {
        "offset": bench.units("t", 0)[20:40],
        "queue": bench.units("t", 1)[:20],
        "topic": bench.units("u", 0)[:20],
        "incarnation": bench.units("t", 0)[:20],
    }[other]
    if other == "incarnation":
        bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
        bench.commit()
        bench.topic()
        bench.send(batch(0, b"body", b"next"))
        bench.commit()
    assert bench.reader.pull(TopicRef("t"), 0, 0, 2, 1 << 20).count == 2
    bench.disk.spoil(bench.queue_file(), 0, wrong)
    with pytest.raises(BrokerError, match="has rotted"):
        bench.reader.pull(TopicRef("t"), 0, 0, 2, 1 << 20)


def test_offset_by_time_is_right_or_refused() -> None:
    """Whatever unit has rotted: a search that meets it says so, one that doesn't is right."""
    bench = filled()
    stored_ms, mender = bench.machine.append_time_ms, bench.node.replica.mender
    right = bench.units()
    for position in range(10):
        for byte in range(12):
            bench.disk.flip(bench.queue_file(), 20 * position + byte, position % 8)
            for time_ms, expected in ((0, 0), (stored_ms, 0), (stored_ms + 1, 10)):
                try:
                    assert bench.reader.offset_by_time(TopicRef("t"), 0, time_ms) == expected
                except BrokerError as refused:
                    assert refused.code is ErrorCode.NOT_READY  # noqa: PT017  or it was right
                    assert mender.is_at_work
            bench.disk.spoil(bench.queue_file(), 0, right)
            bench.world.tick()
            assert not mender.is_at_work


@pytest.fixture
def long_queue() -> Bench:
    """140 messages in t/0, over two entries."""
    bench = Bench()
    bench.topic()
    for first in range(0, 140, 70):
        bench.send(batch(first, *[b"%d" % n for n in range(first, first + 70)]))
    bench.commit()
    return bench


def places(units: bytes) -> list[tuple[int, int]]:
    """Where the units say that the records lie, and how long they are."""
    return [(physical, size) for physical, size, _ in struct.iter_unpack(">QIq", units)]


@given(data=st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pulls_of_rotten_units_give_the_truth_or_nothing(
    long_queue: Bench, data: st.DataObject
) -> None:
    """Any units whatever, few and many: each message that is given is the right one."""
    bench, bodies = long_queue, [b"%d" % n for n in range(140)]
    right = bench.units()
    units = bytearray(right)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(units) - 1))
        size = min(data.draw(st.sampled_from([1, 2, 20, 300])), len(units) - at)
        units[at : at + size] = data.draw(
            st.one_of(st.just(bytes(size)), st.binary(min_size=size, max_size=size))
        )
    bench.disk.spoil(bench.queue_file(), 0, bytes(units))
    offset = 0
    while offset < 140:
        try:
            found = bench.reader.pull(TopicRef("t"), 0, offset, 100, 1 << 20)
        except BrokerError as refused:
            assert refused.code is ErrorCode.NOT_READY  # noqa: PT017  or it was right
            offset += 1
            continue
        given_bodies = [record.body for record in decode_records(found.records)]
        assert given_bodies == bodies[offset : offset + found.count]
        offset = found.next_offset
    bench.world.run_for(20)
    assert places(bench.units()) == places(right), "whoever met a wrong one has had it mended"
    bench.disk.spoil(bench.queue_file(), 0, right)  # hashes of tags, which no pull looks at


@pytest.mark.parametrize("byte", [20, 27, 28, 35])
def test_a_record_whose_place_has_rotted_is_not_given(byte: int) -> None:
    """The log's own bytes are checked before anything is believed of them, the stamped offsets as
    well: that is no wrong queue, which could be mended."""
    bench = filled()
    bench.topic("next")  # what was written before isn't kept in memory any more
    physical = int.from_bytes(bench.units()[20 * 5 : 20 * 5 + 8], "big")
    segment = bench.node.config.data_directory / "commitlog" / file_name(0)
    bench.disk.flip(segment, physical + byte, 0)
    assert bench.reader.pull(TopicRef("t"), 0, 0, 4, 1 << 20).count == 4, "of the entry before"
    with pytest.raises(CorruptionFound):
        bench.reader.pull(TopicRef("t"), 0, 5, 1, 1 << 20)
    assert not bench.node.replica.mender.is_at_work


@given(data=st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_units_are_proven_alike_by_loop_and_by_vector(
    long_queue: Bench, data: st.DataObject
) -> None:
    """Few units and many: the same bytes, the same verdict, whatever has changed in either."""
    units = bytearray(long_queue.units()[: 20 * data.draw(st.sampled_from([3, 30, 140]))])
    records = bytearray(
        b"".join(
            long_queue.log.read_at(physical, size)
            for physical, size, _ in struct.iter_unpack(">QIq", units)
        )
    )
    for changed in data.draw(st.lists(st.sampled_from([units, records]), max_size=2)):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] ^= data.draw(st.integers(1, 255))
    place = proof.Place(b"t", 0, data.draw(st.sampled_from([0, 0, 1])), 0)
    count = proof.plausible(bytes(units))
    arguments = bytes(records), bytes(units[: count * 20]), place
    if count:
        by_loop = proof._proven_by_loop(*arguments)
        assert proof._proven_by_vector(*arguments) == by_loop


def test_nothing_uncommitted_is_given() -> None:
    """A proposed message is invisible until it is applied."""
    bench = filled()
    bench.send(batch(10, b"uncommitted"))
    assert bench.reader.pull(TopicRef("t"), 0, 10, 1, 1).count == 0
    bench.commit()
    assert bench.reader.pull(TopicRef("t"), 0, 10, 1, 1).count == 1


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset", "code"),
    [
        ("t", 0, -1, "OFFSET_OUT_OF_RANGE"),
        ("t", 0, 11, "OFFSET_OUT_OF_RANGE"),
        ("t", 2, 0, "QUEUE_NOT_FOUND"),
        ("nope", 0, 0, "TOPIC_NOT_FOUND"),
    ],
)
def test_pulls_outside_of_what_exists_say_so(
    topic: str, queue_id: int, offset: int, code: str
) -> None:
    """Negative and future offsets, queues and topics that aren't there; the text names it."""
    with pytest.raises(BrokerError) as refused:
        filled().reader.pull(TopicRef(topic), queue_id, offset, 1, 1)
    assert refused.value.code.name == code
    assert topic in refused.value.message


def test_what_is_committed_and_not_written_yet_is_not_told() -> None:
    """A leader may commit by its followers' disks: of its own it has zeros there still."""
    world = World()
    leader = world.serving()
    written = leader.log.last_index
    for number in range(3):
        leader.propose(f"t{number}")
    world.settle(flush=False)
    for node in world.others(leader.name):
        node.sync()
    world.settle(flush=False)
    assert leader.driver.core.commit_index == written + 3
    committed = committed_log(leader.replica.parts)
    assert committed.durable_end() == committed.end_of_entry(written)
    leader.sync()
    leader.turn()
    assert committed.durable_end() == leader.log.end_offset


def test_a_held_pull_wakes_on_arrival_in_its_queue_only() -> None:
    """Waking is by queue; a deleted topic wakes all of its queues."""

    async def scenario() -> None:
        held = HeldPulls(10)
        first = asyncio.create_task(held.wait([(1, 0)], 60, held.moment))
        second = asyncio.create_task(held.wait([(1, 1)], 60, held.moment))
        await asyncio.sleep(0)
        held.wake((1, 0))
        await first
        assert not second.done()
        held.wake_topic(1)
        await second
        assert held.statistics().held == 0

    asyncio.run(scenario())


def test_what_arrived_during_the_look_is_not_waited_for() -> None:
    """Nor for what came when so much did that nobody remembers in which queues; what was there
    before the look was seen by it."""

    async def scenario() -> None:
        held = HeldPulls(10)
        held.wake((1, 0))
        looked = held.moment
        assert await held.wait([(1, 0)], 0.001, looked) == []
        held.wake((1, 1))
        held.wake((1, 2))
        assert await held.wait([(1, 0), (1, 1)], 60, looked) == [(1, 1)]
        for _ in range(REMEMBERED):
            held.wake((2, 0))
        assert await held.wait([(1, 3), (1, 4)], 60, looked) == [(1, 3), (1, 4)]
        assert await held.wait([(1, 0)], 0.001, held.moment) == []
        assert held.statistics().held == 0

    asyncio.run(scenario())


def test_a_held_pull_ends_at_its_deadline() -> None:
    """Nothing arrives: the wait ends by itself."""

    async def scenario() -> int:
        held = HeldPulls(10)
        await held.wait([(1, 0)], 0.001, held.moment)
        return held.statistics().held

    assert asyncio.run(scenario()) == 0


@pytest.mark.parametrize("how", ["one queue", "many queues", "deadlines"])
def test_many_held_pulls_are_woken_in_turns(how: str) -> None:
    """Few in each turn, whatever wakes them, in the order in which they came; all of them in the
    end, and one that is cancelled while it is due is left out."""

    async def scenario() -> None:
        later: deque[Callable[[], None]] = deque()
        held = HeldPulls(10_000, later.append)
        woken: list[int] = []

        async def wait(number: int) -> None:
            key = (1, number if how == "many queues" else 0)
            await held.wait([key], 0.01 if how == "deadlines" else 4, held.moment)
            woken.append(number)

        count = 2 * WOKEN_AT_ONCE + 1
        waiting = [asyncio.create_task(wait(number)) for number in range(count)]
        await asyncio.sleep(0)  # all of them wait now, however long that took
        await asyncio.sleep(0.1 if how == "deadlines" else 0)
        if how != "deadlines":
            held.wake_topic(1)
        await asyncio.sleep(0)
        assert woken == list(range(WOKEN_AT_ONCE))
        waiting[count - 2].cancel()
        while later:
            before = len(woken)
            later.popleft()()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(woken) <= before + WOKEN_AT_ONCE
        assert woken == [*range(count - 2), count - 1]
        assert held.statistics().held == 0

    asyncio.run(scenario())


def test_queues_that_held_pulls_wait_for_are_bounded() -> None:
    """One may wait for as many as it names; who comes behind those with as many is refused until it
    is over, and who waits for a few isn't."""

    async def scenario() -> None:
        held = HeldPulls(2)
        many = [(1, number) for number in range(2 * QUEUES_EACH)]
        waiting = asyncio.create_task(held.wait(many, 60, held.moment))
        await asyncio.sleep(0)
        await held.wait([(2, number) for number in range(QUEUES_EACH)], 0.001, held.moment)
        more = [(2, number) for number in range(QUEUES_EACH + 1)]
        with pytest.raises(BrokerError, match=f"wait for {len(many)} queues") as refused:
            await held.wait(more, 60, held.moment)
        assert refused.value.code is ErrorCode.BUSY
        assert held.statistics().refused == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await held.wait(more, 0.001, held.moment)

    asyncio.run(scenario())


def test_held_pulls_are_bounded() -> None:
    """Past the bound a pull is refused at once, and a cancelled one frees its place."""

    async def scenario() -> None:
        held = HeldPulls(1)
        waiting = asyncio.create_task(held.wait([(1, 0)], 60, held.moment))
        await asyncio.sleep(0)
        with pytest.raises(BrokerError) as refused:
            await held.wait([(1, 1)], 60, held.moment)
        assert (refused.value.code, refused.value.traits.is_retriable) == (ErrorCode.BUSY, True)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await held.wait([(1, 1)], 0.001, held.moment)

    asyncio.run(scenario())

"""Pulls: what they give, their bounds, and how they wait."""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.reading.held import HeldPulls
from broker.state.topics import TopicRef
from dledger.records.record import decode_records
from store.errors import CorruptionFound
from tests.broker.leader import Bench, batch


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


@pytest.mark.usefixtures("running_loop")
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


@pytest.mark.usefixtures("running_loop")
def test_max_bytes_bounds_a_pull_but_never_below_one_message() -> None:
    """A message longer than the bound is given alone: a consumer never gets stuck."""
    bench = filled()
    size = len(bench.reader.pull(TopicRef("t"), 0, 0, 1, 1).records)
    assert size > 1
    assert bench.reader.pull(TopicRef("t"), 0, 0, 100, size * 3).count == 3
    assert bench.reader.pull(TopicRef("t"), 0, 0, 100, size * 3 - 1).count == 2


@pytest.mark.usefixtures("running_loop")
@pytest.mark.parametrize("byte", [0, 5, 8, 11])
def test_a_unit_that_has_rotted_gives_no_message(byte: int) -> None:
    """A unit that points elsewhere, or is of another size, is corruption and no answer."""
    bench = filled()
    bench.queues.held["t@2", 0][20 * 5 + byte] ^= 1
    with pytest.raises(CorruptionFound):
        bench.reader.pull(TopicRef("t"), 0, 5, 3, 1 << 20)


@pytest.mark.usefixtures("running_loop")
@pytest.mark.parametrize("byte", [20, 27, 28, 35])
def test_a_record_whose_place_has_rotted_is_not_given(byte: int) -> None:
    """The stamped offsets of each record are compared with where it was found."""
    bench = filled()
    physical = int.from_bytes(bench.queues.held["t@2", 0][20 * 5 : 20 * 5 + 8], "big")
    flat = bytearray(b"".join(bench.log.frames))
    flat[physical + byte] ^= 1
    bench.log.frames = [bytes(flat)]
    with pytest.raises(CorruptionFound, match="queue offset"):
        bench.reader.pull(TopicRef("t"), 0, 4, 3, 1 << 20)


@pytest.mark.usefixtures("running_loop")
def test_nothing_uncommitted_is_given() -> None:
    """A proposed message is invisible until it is applied."""
    bench = filled()
    bench.send(batch(10, b"uncommitted"))
    assert bench.reader.pull(TopicRef("t"), 0, 10, 1, 1).count == 0
    bench.commit()
    assert bench.reader.pull(TopicRef("t"), 0, 10, 1, 1).count == 1


@pytest.mark.usefixtures("running_loop")
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


def test_a_held_pull_wakes_on_arrival_in_its_queue_only() -> None:
    """Waking is by queue; a deleted topic wakes all of its queues."""

    async def scenario() -> None:
        held = HeldPulls(10)
        first = asyncio.create_task(held.wait((1, 0), 60))
        second = asyncio.create_task(held.wait((1, 1), 60))
        await asyncio.sleep(0)
        held.wake((1, 0))
        await first
        assert not second.done()
        held.wake_topic(1)
        await second
        assert held.statistics().held == 0

    asyncio.run(scenario())


def test_a_held_pull_ends_at_its_deadline() -> None:
    """Nothing arrives: the wait ends by itself."""

    async def scenario() -> int:
        held = HeldPulls(10)
        await held.wait((1, 0), 0.001)
        return held.statistics().held

    assert asyncio.run(scenario()) == 0


def test_held_pulls_are_bounded() -> None:
    """Past the bound a pull is refused at once, and a cancelled one frees its place."""

    async def scenario() -> None:
        held = HeldPulls(1)
        waiting = asyncio.create_task(held.wait((1, 0), 60))
        await asyncio.sleep(0)
        with pytest.raises(BrokerError) as refused:
            await held.wait((1, 1), 60)
        assert (refused.value.code, refused.value.traits.is_retriable) == (ErrorCode.BUSY, True)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await held.wait((1, 1), 0.001)

    asyncio.run(scenario())

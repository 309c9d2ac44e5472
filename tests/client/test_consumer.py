"""The consumer against a group of fake nodes: order, starts, idleness, failover, commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dledger.client import (
    ALL,
    Client,
    ClientOptions,
    ConsumerOptions,
    InvalidArgument,
    OffsetOutOfRange,
    PullConsumer,
    QueueNotFound,
    RecordCorrupt,
    StartFrom,
    TopicNotFound,
    topic_reading,
)
from dledger.client.fetching import Fetching
from dledger.client.topic_reading import TopicReading
from dledger.testing.fake_nodes import FakeGroup, FakeNode
from tests.client.loops import async_test

QUICK = ClientOptions(presume_after_s=0.02)


@asynccontextmanager
async def stocked(counts: dict[int, int], size: int = 0) -> AsyncIterator[tuple[FakeGroup, Client]]:
    """A topic `t` with so many messages in each queue: their bodies are their numbers."""
    async with (
        FakeGroup() as group,
        Client.connect(group.bootstrap, options=QUICK) as client,
    ):
        group.model.create("t", len(counts))
        async with client.producer() as producer:
            for queue_id, count in counts.items():
                for number in range(count):
                    producer.send("t", b"%d" % number + bytes(size), queue_id=queue_id)
        yield group, client


def fetching_of(consumer: PullConsumer) -> Fetching:
    """What is fetched ahead; no public call tells."""
    assert isinstance(consumer._reading, TopicReading)
    return consumer._reading._fetching


async def drain(consumer: PullConsumer) -> dict[int, list[int]]:
    """Offsets by queue, in the order in which they came."""
    offsets: dict[int, list[int]] = {}
    async for message in consumer:
        offsets.setdefault(message.queue_id, []).append(message.queue_offset)
    return offsets


@async_test
async def test_every_queue_is_read_in_order_from_the_first() -> None:
    """Whatever the prefetching does."""
    async with stocked({0: 300, 1: 0, 2: 7}) as (_, client):
        options = ConsumerOptions(pull_bytes=2_000)
        async with client.pull_consumer("t", idle_timeout_s=0, options=options) as consumer:
            assert await drain(consumer) == {0: list(range(300)), 2: list(range(7))}


@async_test
async def test_batches_are_lists_of_one_queue() -> None:
    """The faster face of the same thing."""
    async with (
        stocked({0: 50, 1: 50}) as (_, client),
        client.pull_consumer("t", idle_timeout_s=0) as consumer,
    ):
        seen: dict[int, list[int]] = {0: [], 1: []}
        async for batch in consumer.batches():
            (queue_id,) = {message.queue_id for message in batch}
            seen[queue_id] += [message.queue_offset for message in batch]
        assert seen == {0: list(range(50)), 1: list(range(50))}


@async_test
async def test_start_from_the_last_sees_only_what_arrives() -> None:
    """And wakes for it: the pull is held."""
    async with (
        stocked({0: 5}) as (group, client),
        client.pull_consumer("t", start=StartFrom.LAST) as consumer,
    ):
        first = asyncio.ensure_future(anext(consumer))
        await group.nodes[0].called("Pull", 1)
        async with client.producer() as producer:
            await producer.send("t", b"new")
        assert (await first).body == b"new"


@async_test
async def test_committed_offsets_are_gone_on_from() -> None:
    """A queue without one is read from its beginning. At least once, and no more than that."""
    async with (
        stocked({0: 4, 1: 4}) as (group, client),
        client.pull_consumer("t", group="g", queues=[0]) as consumer,
    ):
        third = [await anext(consumer) for _ in range(3)][-1]
        assert consumer.positions == {0: 3}
        await consumer.commit(third)
        await consumer.commit(third)
        await consumer.commit()
        assert group.nodes[0].calls["CommitOffsets"] == 1
        assert await client.fetch_offsets("g", "t") == {0: 3}
        async with client.pull_consumer("t", group="g", queues=ALL, idle_timeout_s=0) as consumer:
            assert await drain(consumer) == {0: [3], 1: [0, 1, 2, 3]}


@async_test
async def test_first_is_the_oldest_message_that_is_kept() -> None:
    """Retention moves it."""
    async with stocked({0: 6}) as (group, client):
        group.model.topics["t"][0].min_offset = 4
        async with client.pull_consumer("t", idle_timeout_s=0) as consumer:
            assert await drain(consumer) == {0: [4, 5]}


@async_test
async def test_idle_timeout_ends_the_iteration() -> None:
    """Only once every queue was empty for so long."""
    async with (
        stocked({0: 1, 1: 1}) as (_, client),
        client.pull_consumer("t", idle_timeout_s=0.1) as consumer,
    ):
        assert await drain(consumer) == {0: [0], 1: [0]}
        loop = asyncio.get_running_loop()
        since = [reader.empty_since for reader in fetching_of(consumer)._readers.values()]
        assert all(moment is not None and loop.time() - moment >= 0.1 for moment in since)


@async_test
async def test_outage_does_not_look_like_the_end() -> None:
    """A queue that can't be asked is not empty."""
    async with (
        stocked({0: 1}) as (group, client),
        client.pull_consumer("t", idle_timeout_s=0.05) as consumer,
    ):
        await anext(consumer)
        await group.nodes[0].kill()
        group.elect(None)
        rest = asyncio.ensure_future(drain(consumer))
        await asyncio.wait([rest], timeout=0.3)
        assert not rest.done()
        group.elect(group.nodes[1])
        async with client.producer() as producer:
            await producer.send("t", b"after")
        assert await rest == {0: [1]}


@async_test
async def test_queue_that_does_not_answer_is_not_idle() -> None:
    """However long the others are empty."""
    async with stocked({0: 0, 1: 0}) as (group, client):
        asked, hold = [0], asyncio.Event()

        async def gate(method: str, node: FakeNode, request: Any) -> None:
            if method == "Pull" and request.queue_id == 1:
                asked[0] += 1
                if asked[0] > 1:
                    await hold.wait()

        group.before.append(gate)
        options = ConsumerOptions(hold_ms=10)
        async with client.pull_consumer("t", idle_timeout_s=0.1, options=options) as consumer:
            end = asyncio.ensure_future(drain(consumer))
            await group.nodes[0].called("Pull", 40)
            assert not end.done()
            hold.set()
            assert await end == {}


@async_test
async def test_failover_loses_and_repeats_nothing() -> None:
    """A held pull is asked again at the next leader."""
    async with (
        stocked({0: 3, 1: 3}) as (group, client),
        client.pull_consumer("t") as consumer,
    ):
        before = [await anext(consumer) for _ in range(6)]
        await group.nodes[0].kill()
        group.elect(group.nodes[1])
        async with client.producer() as producer:
            for queue_id in (0, 1):
                await producer.send("t", b"after", queue_id=queue_id)
        after = [await anext(consumer) for _ in range(2)]
        places = [(message.queue_id, message.queue_offset) for message in before + after]
        assert sorted(places) == [(q, o) for q in (0, 1) for o in range(4)]


@async_test
async def test_prefetching_is_bounded() -> None:
    """An application that takes nothing: two answers a queue, and no more calls."""
    async with stocked({0: 100}, size=1_000) as (group, client):
        options = ConsumerOptions(prefetch_bytes=1, pull_bytes=5_000)
        async with client.pull_consumer("t", options=options) as consumer:
            await anext(consumer)
            await group.nodes[0].called("Pull", 3)  # one taken, two ahead
            answers = [chunk.answer for chunk in fetching_of(consumer)._chunks]
            held = sum(len(each.records) for each in answers if each is not None)
            assert held <= 2 * 5_000
            await client.topics()
            assert group.nodes[0].calls["Pull"] == 3


@async_test
async def test_offset_that_is_deleted_meanwhile_is_an_error() -> None:
    """Going on at the oldest kept would be a silent gap."""
    async with stocked({0: 10}) as (group, client):
        options = ConsumerOptions(pull_bytes=1)
        async with client.pull_consumer("t", options=options) as consumer:
            await anext(consumer)
            await group.nodes[0].called("Pull", 3)
            group.model.topics["t"][0].min_offset = 8
            with pytest.raises(OffsetOutOfRange):
                await drain(consumer)
            assert consumer.positions == {0: 3}


@async_test
async def test_corrupt_answer_ends_the_iteration_for_good() -> None:
    """Asking for the next message must not skip the broken ones."""
    async with stocked({0: 4}) as (group, client):
        records = group.model.topics["t"][0].records
        records[0] = records[0][:-1] + b"?"
        async with client.pull_consumer("t") as consumer:
            for _ in range(2):
                with pytest.raises(RecordCorrupt):
                    await anext(consumer)


@async_test
async def test_what_does_not_exist_or_make_sense_is_refused() -> None:
    """At the first message at the latest."""
    async with stocked({0: 1}) as (_, client):
        with pytest.raises(TopicNotFound):
            await anext(client.pull_consumer("missing"))
        with pytest.raises(QueueNotFound):
            await anext(client.pull_consumer("t", queues=[1]))
        with pytest.raises(InvalidArgument):
            client.pull_consumer("t", start=StartFrom.COMMITTED)
        with pytest.raises(InvalidArgument):
            client.pull_consumer("t", queues=[])
        with pytest.raises(InvalidArgument):
            await client.pull_consumer("t").commit()


@async_test
async def test_stop_ends_a_waiting_iteration() -> None:
    """From another task, as a signal handler would."""
    async with stocked({0: 0}) as (group, client), client.pull_consumer("t") as consumer:
        waiting = asyncio.ensure_future(drain(consumer))
        await group.nodes[0].called("Pull", 1)
        consumer.stop()
        assert await waiting == {}


@async_test
async def test_interrupted_beginning_can_be_begun_again() -> None:
    """A timeout around the first message must not leave a consumer that hangs."""
    async with stocked({0: 1}) as (group, client):
        hold = asyncio.Event()

        async def gate(method: str, node: FakeNode, request: Any) -> None:
            if method == "DescribeTopic":
                await hold.wait()

        group.before.append(gate)
        async with client.pull_consumer("t") as consumer:
            described = group.nodes[0].calls["DescribeTopic"]
            first = asyncio.ensure_future(anext(consumer))
            await group.nodes[0].called("DescribeTopic", described + 1)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            hold.set()
            assert (await anext(consumer)).body == b"0"


@async_test
async def test_consumer_that_nobody_closes_ends_with_its_client() -> None:
    """`async_test` fails on any task left behind."""
    async with stocked({0: 1}) as (_, client):
        assert (await anext(client.pull_consumer("t"))).body == b"0"


@pytest.mark.parametrize("start", [StartFrom.FIRST, StartFrom.LAST, StartFrom.COMMITTED])
@async_test
async def test_queues_that_the_topic_gets_are_read_from_their_first_message(
    monkeypatch: pytest.MonkeyPatch, start: StartFrom
) -> None:
    """Wherever the reading was to start: what lies there came after it had begun."""
    monkeypatch.setattr(topic_reading, "LOOK_S", 0.01)
    async with stocked({0: 2}) as (_, client), client.producer() as producer:
        group = "g" if start is StartFrom.COMMITTED else None
        async with client.pull_consumer("t", group=group, queues=ALL, start=start) as consumer:
            first = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)
            await client.update_topic("t", read_queues=3, write_queues=3)
            for number in range(3):
                await producer.send("t", b"%d" % number, queue_id=2)
            seen = [await first]
            while len([each for each in seen if each.queue_id == 2]) < 3:
                seen.append(await anext(consumer))
            assert [each.body for each in seen if each.queue_id == 2] == [b"0", b"1", b"2"]
            assert sorted(fetching_of(consumer).queue_ids) == [0, 1, 2]


@async_test
async def test_queues_that_were_named_are_all_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for others."""
    monkeypatch.setattr(topic_reading, "LOOK_S", 0.01)
    async with (
        stocked({0: 1, 1: 1}) as (group, client),
        client.pull_consumer("t", queues=[1]) as consumer,
    ):
        await anext(consumer)
        await client.update_topic("t", read_queues=3, write_queues=3)
        described = group.nodes[0].calls["DescribeTopic"]
        await asyncio.sleep(0.05)
        assert group.nodes[0].calls["DescribeTopic"] == described
        assert list(fetching_of(consumer).queue_ids) == [1]


@async_test
async def test_a_look_for_queues_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told: each queue's reading tells what is wrong with it."""
    monkeypatch.setattr(topic_reading, "LOOK_S", 0.01)
    async with (
        stocked({0: 1}) as (_, client),
        client.producer() as producer,
        client.pull_consumer("t") as consumer,
    ):
        await anext(consumer)
        describe, looks = client.describe_topic, 0

        async def sometimes(name: str) -> Any:
            nonlocal looks
            looks += 1
            if looks < 3:
                raise TopicNotFound("not now")
            return await describe(name)

        monkeypatch.setattr(client, "describe_topic", sometimes)
        await client.update_topic("t", read_queues=2, write_queues=2)
        await producer.send("t", b"new", queue_id=1)
        assert (await anext(consumer)).body == b"new"
        assert looks >= 3

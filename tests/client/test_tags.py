"""Reading by tags: what is handed over, and what a commit covers of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dledger.client import (
    ALL,
    Client,
    ConsumerOptions,
    InvalidArgument,
    Message,
    PullConsumer,
    StartFrom,
)
from dledger.client.blocking import BlockingClient
from dledger.testing import BlockingFakeGroup
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.test_consumer import QUICK, drain

SMALL_PULLS = ConsumerOptions(pull_bytes=400)  # a few messages each


@asynccontextmanager
async def tagged(*queues: str) -> AsyncIterator[tuple[FakeGroup, Client]]:
    """A topic `t`; each letter is a message's tag, a dot a message without one."""
    async with (
        FakeGroup() as group,
        Client.connect(group.bootstrap, options=QUICK) as client,
    ):
        group.model.create("t", len(queues))
        async with client.producer() as producer:
            for queue_id, tags in enumerate(queues):
                for tag in tags:
                    producer.send("t", b"", queue_id=queue_id, tag=None if tag == "." else tag)
        yield group, client


def of_group(client: Client, tags: list[str], **options: Any) -> PullConsumer:
    """A consumer that ends when there is no more, and commits for a group."""
    return client.pull_consumer(
        "t", group="g", queues=ALL, tags=tags, idle_timeout_s=0, options=SMALL_PULLS, **options
    )


@async_test
async def test_only_what_carries_a_wanted_tag_is_handed_over() -> None:
    """In order; a message without a tag carries none of them, and case counts."""
    async with tagged("ab.aBcab", "cc", "....b") as (_, client):
        for tags, offsets in (
            (["a"], {0: [0, 3, 6]}),
            ({"a", "b"}, {0: [0, 1, 3, 6, 7], 2: [4]}),
            (("c", "x"), {0: [5], 1: [0, 1]}),
            (["x"], {}),
        ):
            consumer = client.pull_consumer("t", tags=tags, idle_timeout_s=0, options=SMALL_PULLS)
            assert await drain(consumer) == offsets


@async_test
async def test_batches_hold_only_what_is_wanted_and_are_never_empty() -> None:
    """Many answers without any are passed over within one step."""
    async with tagged("a" + "." * 300 + "aa" + "." * 50) as (_, client):
        consumer = client.pull_consumer("t", tags=["a"], idle_timeout_s=0, options=SMALL_PULLS)
        batches = [[m.queue_offset for m in batch] async for batch in consumer.batches()]
        assert all(batches)
        assert [offset for batch in batches for offset in batch] == [0, 301, 302]


@async_test
async def test_commit_covers_what_was_passed_over() -> None:
    """Or the group would read it again at every start, and always seem behind."""
    async with tagged("..a" + "." * 60, "." * 80, "a") as (_, client):
        consumer = of_group(client, ["a"])
        assert await drain(consumer) == {0: [2], 2: [0]}
        await consumer.commit()
        assert await client.fetch_offsets("g", "t") == {0: 63, 1: 80, 2: 1}
        assert await drain(of_group(client, ["a"])) == {}


@async_test
async def test_commit_leaves_out_what_is_in_hand_and_all_behind_it() -> None:
    """What was passed over behind a message isn't finished before the message is."""
    async with tagged("..a...a..", "a") as (_, client):
        consumer = client.pull_consumer("t", group="g", queues=[0], tags=["a"], idle_timeout_s=0)
        loop = aiter(consumer)
        assert (await anext(loop)).queue_offset == 2
        await consumer.commit()
        assert await client.fetch_offsets("g", "t") == {0: 2}
        assert (await anext(loop)).queue_offset == 6
        await consumer.commit()
        assert await client.fetch_offsets("g", "t") == {0: 6}
        with pytest.raises(StopAsyncIteration):
            await anext(loop)
        await consumer.commit()
        assert await client.fetch_offsets("g", "t") == {0: 9}


@async_test
async def test_commit_by_name_covers_what_was_passed_over_right_behind() -> None:
    """Of the last message that was given; an earlier one covers itself and those before it."""
    async with tagged("aa..a" + "." * 60) as (_, client):
        consumer = client.pull_consumer("t", group="g", queues=[0], tags=["a"], idle_timeout_s=0)
        (batch,) = [batch async for batch in consumer.batches()]
        for message, covered in ((batch[0], 1), (batch[1], 2), (batch[2], 65)):
            await consumer.commit(message)
            assert await client.fetch_offsets("g", "t") == {0: covered}


@async_test
async def test_work_that_fails_is_given_again() -> None:
    """Whatever is committed in a `finally`, and however much of other queues was passed over."""
    async with tagged("..a..a", "." * 100) as (_, client):

        async def work(fails_at: int) -> list[int]:
            done: list[int] = []
            consumer = of_group(client, ["a"])
            try:
                async for message in consumer:
                    if message.queue_offset == fails_at:
                        raise ValueError
                    done.append(message.queue_offset)
            finally:
                await consumer.commit()
            return done

        for fails_at in (2, 5):
            with pytest.raises(ValueError):
                await work(fails_at)
        assert await work(-1) == [5]
        assert await client.fetch_offsets("g", "t") == {0: 6, 1: 100}


@async_test
async def test_seek_and_pause_know_of_tags() -> None:
    """What was passed over before a seek is not committed after it."""
    async with tagged("..a..a", "a....a") as (_, client):
        consumer = of_group(client, ["a"])
        assert await drain(consumer) == {0: [2, 5], 1: [0, 5]}
        await consumer.seek(0, 5)
        await consumer.commit()
        assert await client.fetch_offsets("g", "t") == {1: 6}
        assert (await anext(consumer)).queue_offset == 5
        await consumer.seek(0, StartFrom.FIRST)
        await consumer.seek(1, StartFrom.FIRST)
        consumer.pause(0)
        assert (await anext(consumer)).queue_id == 1


@async_test
async def test_wait_within_a_long_unwanted_stretch_can_be_cancelled() -> None:
    """Nothing is lost, and nothing given twice."""
    async with tagged(("." * 200 + "a") * 3) as (_, client):
        consumer = client.pull_consumer("t", tags=["a"], options=SMALL_PULLS)
        seen: list[Message] = []
        while len(seen) < 3:
            try:
                async with asyncio.timeout(0.002):
                    seen.append(await anext(consumer))
            except TimeoutError:
                await asyncio.sleep(0)
        assert [message.queue_offset for message in seen] == [200, 401, 602]


@async_test
async def test_what_is_no_tag_is_refused_by_name() -> None:
    """Rather than fit nothing for ever: RocketMQ's expressions among it."""
    async with tagged("a") as (_, client):
        wrong: list[tuple[Any, str]] = [
            ("a", "several str"),
            (b"a", "several str"),
            (7, "several str"),
            ([], "empty"),
            (["a", 7], "int"),
            ([""], "no tag"),
            (["*"], "no tag"),
            (["a || b"], "no tag"),
            (["\udcff"], "not valid Unicode"),  # as a shell's argument that is no UTF-8
        ]
        for tags, told in wrong:
            with pytest.raises(InvalidArgument, match=told):
                client.pull_consumer("t", tags=tags)


def test_blocking_face_reads_by_tags() -> None:
    """With loops, batches and commits."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        with client.producer() as producer:
            for number in range(90):
                producer.send(topic, b"%d" % number, tag=None if number % 30 else "wanted")
        wanted = [b"0", b"30", b"60"]
        with client.pull_consumer(
            topic, group="g", queues=ALL, tags=["wanted"], idle_timeout_s=0
        ) as consumer:
            assert [message.body for message in consumer] == wanted
            consumer.commit()
        assert client.fetch_offsets("g", topic) == {0: 90}
        with client.pull_consumer(topic, tags={"wanted"}, idle_timeout_s=0) as consumer:
            assert [message.body for batch in consumer.batches() for message in batch] == wanted


# --- chosen by the brokers ----------------------------------------------------------------------


@async_test
async def test_nodes_from_before_tags_give_everything() -> None:
    """Then they are chosen here: nothing else is handed over, and commits cover the same."""
    for knows_tags in (True, False):
        async with tagged("ab.ab" + "." * 50, "b" * 40) as (group, client):
            group.model.knows_tags = knows_tags
            consumer = of_group(client, ["a"])
            assert await drain(consumer) == {0: [0, 3]}
            await consumer.commit()
            assert await client.fetch_offsets("g", "t") == {0: 55, 1: 40}
            assert await consumer.lag() == {0: 0, 1: 0}


@async_test
async def test_stretch_that_was_passed_over_in_part_is_not_the_end() -> None:
    """An answer without a message that isn't at the queue's end says nothing about what follows."""
    async with tagged("." * 95 + "a" + "." * 33) as (group, client):
        group.model.looked_at_once = 10
        consumer = of_group(client, ["a"])
        assert await drain(consumer) == {0: [95]}
        await consumer.commit()
        assert await client.fetch_offsets("g", "t") == {0: 129}


@async_test
async def test_too_many_tags_are_refused_at_once() -> None:
    """As the brokers would, but before anything has happened."""
    async with tagged("a") as (_, client):
        for tags in ([f"{number}" for number in range(1_025)], ["a" * 8_193]):
            with pytest.raises(InvalidArgument, match="tags wanted"):
                client.pull_consumer("t", tags=tags)

"""Readers that are no members keep their consumer group in use, though nothing moves."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dledger.client import ALL, Busy, StartFrom, group_use, topic_reading
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.test_consumer import stocked


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is due."""
    monkeypatch.setattr(topic_reading, "LOOK_S", 0.01)
    monkeypatch.setattr(group_use, "AGAIN_S", 0.0)


async def commits(group: FakeGroup) -> None:
    """One that begins from here on is answered."""
    node = group.nodes[0]
    await node.called("CommitOffsets", node.calls["CommitOffsets"] + 2)


@pytest.mark.usefixtures("_often")
@async_test
async def test_what_was_committed_is_committed_again_while_nothing_moves() -> None:
    """And nothing else: what the application hasn't committed it may not want to be."""
    async with (
        stocked({0: 2, 1: 3, 2: 1}) as (group, client),
        client.pull_consumer("t", group="g", queues=[0, 2], idle_timeout_s=0) as consumer,
    ):
        messages = [each async for each in consumer]
        await consumer.commit(next(each for each in messages if each.queue_id == 2))
        group.model.offsets.clear()  # the brokers have forgotten the group
        await commits(group)
        assert await client.fetch_offsets("g", "t") == {2: 1}
        await consumer.commit()
        group.model.offsets.clear()
        await commits(group)
        assert await client.fetch_offsets("g", "t") == {0: 2, 2: 1}


@pytest.mark.usefixtures("_often")
@async_test
async def test_who_only_starts_keeps_what_it_started_from() -> None:
    """Of the queues that it reads."""
    async with stocked({0: 2, 1: 3}) as (group, client):
        await client.commit_offsets("g", "t", {0: 2, 1: 3})
        async with client.pull_consumer("t", group="g", queues=[0]) as consumer:
            reading = asyncio.ensure_future(anext(consumer))
            await commits(group)
            group.model.offsets.clear()
            await commits(group)
            assert await client.fetch_offsets("g", "t") == {0: 2}
            reading.cancel()


@pytest.mark.usefixtures("_often")
@async_test
async def test_offsets_that_were_set_back_stay_there() -> None:
    """What the brokers have is committed, and not what they had."""
    async with (
        stocked({0: 2, 1: 2}) as (group, client),
        client.pull_consumer("t", group="g", queues=ALL, idle_timeout_s=0) as consumer,
    ):
        assert len([each async for each in consumer]) == 4
        await consumer.commit()
        await client.commit_offsets("g", "t", {0: 1}, reset=True)
        await commits(group)
        assert await client.fetch_offsets("g", "t") == {0: 1, 1: 2}


@pytest.mark.usefixtures("_often")
@async_test
async def test_what_others_have_committed_is_theirs() -> None:
    """Who reads without a commit of his own says nothing of it: it would forget what members have
    finished behind their offsets."""
    async with (
        stocked({0: 2, 1: 2}) as (group, client),
        client.pull_consumer(
            "t", group="g", queues=ALL, start=StartFrom.FIRST, idle_timeout_s=0
        ) as consumer,
    ):
        await client.commit_offsets("g", "t", {0: 1, 1: 1})
        messages = [each async for each in consumer]
        await consumer.commit(next(each for each in messages if each.queue_id == 1))
        node = group.nodes[0]
        told: list[dict[int, int]] = []

        async def noted(method: str, node: object, request: Any) -> None:
            if method == "CommitOffsets":
                told.append({each.queue_id: each.offset for each in request.offsets})

        group.before.append(noted)
        await commits(group)
        assert told
        assert all(each == {1: 0} for each in told)
        assert await client.fetch_offsets("g", "t") == {0: 1, 1: 1}
        assert node.calls["FetchOffsets"]


@async_test
async def test_it_is_done_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs the brokers an entry; a commit of the application's own does as well."""
    monkeypatch.setattr(topic_reading, "LOOK_S", 0.01)
    async with (
        stocked({0: 1}) as (group, client),
        client.pull_consumer("t", group="g", queues=ALL, idle_timeout_s=0) as consumer,
    ):
        assert len([each async for each in consumer]) == 1
        await consumer.commit()
        node = group.nodes[0]
        await node.called("DescribeTopic", node.calls["DescribeTopic"] + 3)
        assert (node.calls["FetchOffsets"], node.calls["CommitOffsets"]) == (1, 1)


@pytest.mark.usefixtures("_often")
@async_test
async def test_without_a_group_or_offsets_there_is_nothing_to_keep() -> None:
    async with stocked({0: 1}) as (group, client):
        node = group.nodes[0]
        for name, start in ((None, None), ("g", StartFrom.FIRST)):
            async with client.pull_consumer("t", group=name, queues=ALL, start=start) as consumer:
                await anext(consumer)
                await node.called("DescribeTopic", node.calls["DescribeTopic"] + 3)
            assert not node.calls["CommitOffsets"]


@pytest.mark.usefixtures("_often")
@async_test
async def test_what_fails_is_told_once_and_done_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        stocked({0: 1}) as (group, client),
        client.pull_consumer("t", group="g", queues=[0], idle_timeout_s=0) as consumer,
    ):
        assert len([each async for each in consumer]) == 1
        await consumer.commit()
        fetch, times = client.fetch_offsets, 0

        async def sometimes(*about: Any, **others: Any) -> Any:
            nonlocal times
            times += 1
            if times < 4:
                raise Busy("not now")
            return await fetch(*about, **others)

        with caplog.at_level(logging.WARNING, "dledger.client"):
            monkeypatch.setattr(client, "fetch_offsets", sometimes)
            await commits(group)
        told = [each.getMessage() for each in caplog.records]
        assert [text for text in told if "in use" in text] == [
            "group g: keeping it in use: not now"
        ]

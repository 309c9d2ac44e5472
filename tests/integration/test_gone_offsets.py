"""Consumers whose next message has gone, of a real group whose log has lost its front."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.errors import BrokerError
from broker.ports import Rhythm
from broker.snapshots import SnapshotPace
from dledger.client import ALL, Client, ConsumerOptions, OffsetOutOfRange, WhenGone
from dledger.level import LOG_START_LEVEL, TOPIC_RETENTION_LEVEL
from tests.integration.group import WAIT_S, Group, make_configs

QUICK = Rhythm(
    housekeeping_s=0.05,
    snapshots=SnapshotPace(entries=3, share=1, retry_s=0.1),
    log_start_s=0.05,
    retention_s=0.05,
    topic_slack_ms=200,
)
BODY = b"x" * 1_000_000
READERS = "readers"


@contextlib.asynccontextmanager
async def retired(directory: Path) -> AsyncIterator[tuple[Client, int, int]]:
    """A client of a group, and the bounds of the topic's only queue, of which a consumer group has
    read two messages: both are before its first."""
    group = Group(make_configs(directory), rhythm=QUICK)
    await group.start()
    try:
        addresses = [config.listen for config in group.configs.values()]
        async with Client.connect(addresses) as client:
            await client.create_topic("t", queues=1)
            async with client.producer() as producer:
                for _ in range(30):
                    await producer.send("t", BODY)
                await client.commit_offsets(READERS, "t", {0: 2})
                leader = await group.leader()
                deadline = time.monotonic() + WAIT_S
                while (bounds := await client.queue_offsets("t", 0)).min_offset <= 2:
                    assert time.monotonic() < deadline, "the front doesn't go"
                    if leader.machine.level.current >= LOG_START_LEVEL:
                        with contextlib.suppress(BrokerError):  # it was moved there already
                            await leader.propose_log_start(leader.machine.applied_index)
                    await asyncio.sleep(0.05)
            assert bounds.max_offset == 30
            yield client, bounds.min_offset, bounds.max_offset
    finally:
        await group.close()


def test_a_consumer_group_that_comes_back_too_late_goes_on_as_it_said(tmp_path: Path) -> None:
    """It is told what there is, or goes on with the first or the last, and commits that."""

    async def story() -> None:
        async with retired(tmp_path) as (client, first, last):
            consumer = client.pull_consumer("t", group=READERS, queues=ALL, idle_timeout_s=0.2)
            with pytest.raises(OffsetOutOfRange) as caught:
                [message async for message in consumer]
            assert caught.value.valid == (first, last)
            await consumer.close()

            options = ConsumerOptions(when_gone=WhenGone.FIRST)
            consumer = client.pull_consumer(
                "t", group=READERS, queues=ALL, idle_timeout_s=0.2, options=options
            )
            taken = [message.queue_offset async for message in consumer]
            assert taken == list(range(first, last))
            assert consumer.skipped == {0: first - 2}

            await client.commit_offsets(READERS, "t", {0: 2}, reset=True)
            options = ConsumerOptions(when_gone=WhenGone.LAST)
            consumer = client.pull_consumer(
                "t", group=READERS, queues=ALL, idle_timeout_s=0.2, options=options
            )
            assert [message async for message in consumer] == []
            assert consumer.skipped == {0: last - 2}
            await consumer.commit()
            assert await client.fetch_offsets(READERS, "t") == {0: last}

    asyncio.run(story())


def test_messages_of_a_topic_that_wishes_it_go_before_others(tmp_path: Path) -> None:
    """While their segment stays: another topic's, as old, is read as ever. Every member begins the
    queues at the same place, and a restart keeps it."""

    async def story() -> None:
        group = Group(make_configs(tmp_path), rhythm=QUICK)
        await group.start()
        try:
            addresses = [config.listen for config in group.configs.values()]
            async with Client.connect(addresses) as client:
                leader = await group.leader()
                async with asyncio.timeout(WAIT_S):
                    while leader.machine.level.current < TOPIC_RETENTION_LEVEL:
                        await asyncio.sleep(0.05)
                hours = 1 / 3_600
                brief = await client.create_topic("brief", queues=2, retention_hours=hours)
                assert brief.retention_hours == hours
                await client.create_topic("usual", queues=1)
                async with client.producer() as producer:
                    for topic in ("brief", "usual"):
                        for number in range(5):
                            await producer.send(topic, b"%d" % number, queue_id=0)
                    async with asyncio.timeout(WAIT_S):
                        while (await client.queue_offsets("brief", 0)).min_offset < 5:
                            await producer.send("brief", b"time goes on", queue_id=1)
                            await asyncio.sleep(0.05)
                described = await client.describe_topic("brief")
                assert described.queues[0].min_offset == described.queues[0].max_offset == 5
                usual = client.pull_consumer("usual", idle_timeout_s=0.2)
                assert [message.body async for message in usual] == [b"%d" % n for n in range(5)]
                await client.retain_topic("brief", 0, incarnation=brief.incarnation)
                assert (await client.describe_topic("brief")).topic.retention_hours == 0
            await group.applied_everywhere()
            found = {
                node.machine.topic_retention.of(brief.incarnation).starts
                for node in group.nodes.values()
            }
            assert len(found) == 1
            for name in list(group.nodes):
                assert await group.stop(name) == 0
            await group.start()
            await group.leader()
            for node in group.nodes.values():
                assert {node.machine.topic_retention.of(brief.incarnation).starts} == found
        finally:
            await group.close()

    asyncio.run(story())

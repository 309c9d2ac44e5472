"""Topics that are closed and opened while every kind of client is at a real node."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.client import (
    Message,
    Permission,
    Reject,
    TopicNotReadable,
    TopicNotWritable,
)
from dledger.outcome import Outcome
from tests.client.loops import async_test
from tests.integration.test_group_members import PUSH, some_group, until
from tests.integration.test_retries import running


@async_test
async def test_everybody_is_told_by_name_and_goes_on(tmp_path: Path) -> None:
    """Nothing is lost or given twice for it; what failed is moved all the same."""
    async with some_group(tmp_path) as (_, client, _), client.producer() as producer:
        made = await client.create_topic(
            "gate", queues=1, retention_hours=5, permission=Permission.READ
        )
        assert (made.retention_hours, made.permission) == (5, Permission.READ)
        with pytest.raises(TopicNotWritable) as refused:
            await producer.send("gate", b"early")
        assert (refused.value.outcome, refused.value.retriable) == (Outcome.DID_NOT_HAPPEN, False)
        await client.permit_topic("gate", Permission.READ_WRITE)
        for body in (b"0", b"poison", b"2"):
            await producer.send("gate", body)

        jobs = client.simple_consumer("gate", "jobs")
        first, *_ = await jobs.receive(1, wait_s=5)
        waiting = asyncio.create_task(client.simple_consumer("gate", "idle").receive(9, wait_s=9))
        assert [each.message.body for each in await waiting] == [b"0", b"poison", b"2"]

        handled: list[bytes] = []
        consumer = client.push_consumer("work", options=replace(PUSH, max_attempts=3))

        @consumer.on("gate")
        async def handle(message: Message) -> None:
            handled.append(message.body)
            if message.body == b"poison":
                await client.permit_topic("gate", Permission.WRITE)
                raise Reject("nobody can")

        async with running(consumer):
            await until(lambda: len(handled) == 3)
            async with asyncio.timeout(30):
                while not (await client.dead_letters("work")).count:
                    await asyncio.sleep(0.02)
            await producer.send("gate", b"3")
            with pytest.raises(TopicNotReadable):
                await client.pull("gate", 0, 0)
            with pytest.raises(TopicNotReadable):
                await jobs.receive(1, wait_s=5, done=[first])
            assert await client.fetch_offsets("jobs", "gate") == {0: 1}, "what rode is settled"
            assert len(handled) == 3

            await client.permit_topic("gate", Permission.READ)
            await until(lambda: handled[3:] == [b"3"])
        with pytest.raises(TopicNotWritable):
            await client.resend("work", 0)
        assert (await client.dead_letters("work")).queues[0].resent == ()

        stats = await client.topic_stats("gate")
        assert stats.topic.permission is Permission.READ
        assert [each.held for each in stats.queues] == [4]
        last = (await client.pull("gate", 0, 3)).messages[0]
        assert stats.queues[0].last_stored_ms == last.store_time_ms

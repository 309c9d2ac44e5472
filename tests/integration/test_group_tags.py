"""Tags chosen at a real node: members, readers outside of groups, and the command line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dledger.client import Client, ConsumerOptions, GroupDiffers, Message
from dledger.client.members.process_queue import ProcessQueue
from tests.integration.test_group_members import PUSH, QUEUES, ROOT, some_group, until

TAGS = ("Aa", "BB", "red", None)  # the first two have one hash


async def fill(client: Client, count: int) -> None:
    """So many messages of each tag in each queue."""
    async with client.producer() as producer:
        for _ in range(count):
            for queue_id in range(QUEUES):
                for tag in TAGS:
                    producer.send("t", str(tag).encode(), queue_id=queue_id, tag=tag)


def test_member_is_given_what_its_group_wants_and_its_frontier_moves_over_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else crosses the wire; lag is nothing then; who wants something else is refused."""
    fetched: list[Message] = []
    on_fetched = ProcessQueue.on_fetched

    def noted(queue: ProcessQueue, messages: Sequence[Message], next_offset: int, end: int) -> None:
        fetched.extend(messages)
        on_fetched(queue, messages, next_offset, end)

    async def scenario() -> None:
        async with some_group(tmp_path) as (_, client, _):
            await fill(client, 25)
            bodies: list[bytes] = []
            service = client.push_consumer("g", PUSH)

            @service.on("t", tags=["BB", "gone"])
            async def handle(message: Message) -> None:
                bodies.append(message.body)

            running = asyncio.create_task(service.run())
            await until(lambda: len(bodies) == 25 * QUEUES)
            while await client.fetch_offsets("g", "t") != dict.fromkeys(range(QUEUES), 100):
                await asyncio.sleep(0.05)
            assert set((await service.lag()).values()) == {0}
            other = client.pull_consumer("t", group="g", tags=["red"])
            with pytest.raises(GroupDiffers, match="tags"):
                await anext(other)
            newer = ConsumerOptions(version=1, commit_every_s=0.1)
            async with client.pull_consumer("t", group="g", tags=["red"], options=newer) as third:
                first = asyncio.ensure_future(anext(third))
                # Who wants what was wanted before has no queue any more, and passes over none.
                await until(lambda: not service.statistics().queues)
                await fill(client, 1)
                assert (await first).body == b"red"
            service.stop()
            await running
            assert set(bodies) == {b"BB"}
            assert {message.tags for message in fetched} == {"BB", "red"}

    monkeypatch.setattr(ProcessQueue, "on_fetched", noted)
    asyncio.run(scenario())


def test_readers_outside_of_groups_say_with_their_pulls_what_they_want(tmp_path: Path) -> None:
    """Also `dledger consume --tag`, whose group's offsets cover what it passed over."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (_, client, addresses):
            await fill(client, 10)
            consumer = client.pull_consumer("t", tags=["Aa"], idle_timeout_s=0.2)
            assert [message.body async for message in consumer] == [b"Aa"] * 10 * QUEUES
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "dledger_cli", "consume", "t", "--group", "logs"),
                *("--tag", "red", "--tag", "Aa", "--idle-timeout", "1", "--bootstrap", addresses),
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            lines, _ = await program.communicate()
            assert program.returncode == 0
            assert sorted(lines.split()) == [b"Aa"] * 10 * QUEUES + [b"red"] * 10 * QUEUES
            assert await client.fetch_offsets("logs", "t") == dict.fromkeys(range(QUEUES), 40)

    asyncio.run(scenario())

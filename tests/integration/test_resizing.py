"""A topic that grows and shrinks at a real node, beside a real producer and an orderly group."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

from dledger.client import Client, Message, PushOptions, QueuesUnread, TopicInfo
from tests.integration.test_group_members import some_group, until

KEYS = 8
ROUNDS = 30
SIZES = {5: (9, 9), 12: (None, 4), 20: (None, 7)}  # in that round: read and write queues


async def send_with_keys(client: Client) -> None:
    """Numbered messages of each key, while the topic changes; the producer knows of none of it."""
    async with client.producer() as producer:
        for number in range(ROUNDS):
            for key in range(KEYS):
                producer.send("t", b"%d" % number, key=f"key-{key}")
            await asyncio.sleep(0.005)
            if number in SIZES:
                read, write = SIZES[number]
                await client.update_topic("t", read_queues=read, write_queues=write)


async def shrunk(client: Client, queues: int) -> TopicInfo:
    """The topic without the queues that are closed, once the group's commits say that it has read
    them."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await client.update_topic("t", read_queues=queues)
            except QueuesUnread:
                await asyncio.sleep(0.05)


def test_keys_stay_in_order_while_their_topic_grows_and_shrinks(tmp_path: Path) -> None:
    """6 -> 9 -> 4 -> 7 queues that take messages; at last those that are closed go."""

    async def scenario() -> None:
        handled: dict[str | None, list[int]] = defaultdict(list)
        async with some_group(tmp_path) as (_, client, _):
            service = client.push_consumer("g", PushOptions(in_order=True, hold_ms=500))

            @service.on("t")
            async def handle(message: Message) -> None:
                handled[message.properties["KEYS"]].append(int(message.body))

            working = asyncio.create_task(service.run())
            await send_with_keys(client)
            await until(lambda: sum(map(len, handled.values())) == KEYS * ROUNDS)
            assert dict(handled) == {f"key-{key}": [*range(ROUNDS)] for key in range(KEYS)}
            topic = await shrunk(client, 7)
            assert (topic.queue_count, topic.write_queues) == (7, 7)
            service.stop()
            await working

    asyncio.run(scenario())

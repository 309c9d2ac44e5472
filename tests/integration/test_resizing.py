"""A topic that grows and shrinks at a real node, beside a real producer and an orderly group."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

from dledger.client import (
    Client,
    Message,
    PullConsumer,
    PushConsumer,
    PushOptions,
    QueuesUnread,
    TopicInfo,
)
from tests.integration.test_group_members import PUSH, QUEUES, fill, running, some_group, until

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


def test_whoever_was_behind_in_a_queue_that_went_goes_on_once_it_is_back(tmp_path: Path) -> None:
    """Members, loops and receivers of single messages: what went with the queue they are never
    given, and what comes later they are."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (_, client, _):
            await fill(client, 1)
            handled: list[tuple[int, int]] = []

            def member() -> PushConsumer:
                service = client.push_consumer("members", PUSH)

                @service.on("t")
                async def handle(message: Message) -> None:
                    handled.append((message.queue_id, message.queue_offset))

                return service

            def loop() -> PullConsumer:
                return client.pull_consumer("t", group="loops", idle_timeout_s=1)

            async def taken(consumer: PullConsumer) -> list[tuple[int, int]]:
                async with consumer:
                    found = [(each.queue_id, each.queue_offset) async for each in consumer]
                    await consumer.commit()
                    return found

            every = [(queue_id, 0) for queue_id in range(QUEUES)]
            async with running(member()):
                await until(lambda: len(handled) == QUEUES)
            assert sorted(await taken(loop())) == every
            shop = client.simple_consumer("t", "shop", invisible_s=600)
            assert len(await shop.receive(QUEUES, wait_s=10)) == QUEUES
            await fill(client, 1)
            await client.update_topic("t", read_queues=1, write_queues=1, drop=True)
            await client.update_topic("t", read_queues=QUEUES, write_queues=QUEUES)
            await fill(client, 1)

            handled.clear()
            later = [(0, 1), *((queue_id, 2) for queue_id in range(QUEUES))]
            async with running(member()):
                await until(lambda: len(handled) == len(later))
            assert sorted(handled) == sorted(await taken(loop())) == sorted(later)
            async with asyncio.timeout(30):
                given: list[tuple[int, int]] = []
                while len(given) < len(later):
                    for each in await shop.receive(QUEUES, wait_s=5):
                        given.append((each.message.queue_id, each.message.queue_offset))
            assert sorted(given) == sorted(later)
            await shop.close()

    asyncio.run(scenario())

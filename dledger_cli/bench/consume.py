"""`bench consume`: reading a filled topic with the client, messages decoded.

The topic is filled first; each round reads all of it from the beginning with a fresh consumer.
The files are in the page cache, as they are for consumers that keep up.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import time

from dledger.client import Client, StartFrom
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.load import fill
from dledger_cli.bench.rounds import Tell, Yardsticks
from dledger_cli.bench.yardsticks import echo_client

TARGET_SIZE_BYTES = 1024
TARGET = Target(Comparison.AT_LEAST, 6)
READ_TIMEOUT_S = 60.0  # without a message: the topic holds fewer than were acknowledged


async def consume(
    place: Arena, echo_address: str, *, size_bytes: int, messages: int, rounds: int, tell: Tell
) -> Report:
    """Fills a topic with `messages` and reads it `rounds` times."""
    rates: list[float] = []
    async with (
        connected(place) as client,
        fresh_topic(place, client) as topic,
        echo_client(echo_address) as echo,
    ):
        tell("filling the topic")
        async with client.producer() as producer:
            await fill(producer, topic, bytes(size_bytes), messages)
        yardsticks = Yardsticks(echo, place.directory, tell)

        async def one_round() -> None:
            began = time.perf_counter()
            await _read(client, topic, messages, size_bytes)
            rates.append(messages / (time.perf_counter() - began))

        await yardsticks.around(rounds, one_round)
    target = TARGET if size_bytes == TARGET_SIZE_BYTES else None
    megabytes = Spread.of([rate * size_bytes / 1e6 for rate in rates])
    return Report(
        "consume",
        {"size_bytes": size_bytes, "messages": messages, "rounds": rounds},
        yardsticks.figures(),
        (
            yardsticks.against_rate(f"{size_bytes}B_rate", rates, target),
            Figure(f"{size_bytes}B_bytes", "MB/s", megabytes),
        ),
    )


async def _read(client: Client, topic: str, messages: int, size_bytes: int) -> None:
    """Reads that many messages, touching each body.

    Raises:
        RuntimeError: the topic ends sooner, or holds other bodies.
    """
    left = messages
    consumer = client.pull_consumer(topic, start=StartFrom.FIRST, idle_timeout_s=READ_TIMEOUT_S)
    async with consumer:
        async for batch in consumer.batches():
            for message in batch:
                if len(message.body) != size_bytes:
                    raise RuntimeError(f"a body of {len(message.body)} bytes, not {size_bytes}")
            left -= len(batch)
            if left <= 0:
                break
    if left != 0:
        raise RuntimeError(f"the topic holds {messages - left} messages, not {messages}")

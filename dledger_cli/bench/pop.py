"""`bench pop`: messages a second that workers are handed one by one and acknowledge.

Workers are processes; each has its part of the receives that are under way, and acknowledges what
one of them brought with its next. Each round has two halves: from a topic that was filled before,
by a group that is new in it, and beside a producer that sends as fast as it can. The time of both
runs until the last message is acknowledged.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.crew import Worker, crew
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.load import Throughput, fill, saturate
from dledger_cli.bench.rounds import Tell, Yardsticks
from dledger_cli.bench.yardsticks import echo_client

FILLED = Target(Comparison.AT_LEAST, 6)
BESIDE = Target(Comparison.AT_LEAST, 3)
PROMISED = (1024, 64, 32)  # size, receives under way, messages of each
DRAIN_S = 300.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """What is received how: bytes of a body, receives under way in all, messages of each."""

    size_bytes: int
    under_way: int
    batch: int
    workers: int


@dataclass(slots=True)
class Crew:
    """The workers of one half, and what they say that they have acknowledged."""

    workers: list[Worker] = field(default_factory=list)
    totals: dict[int, tuple[int, float]] = field(default_factory=dict)  # how many, when

    def hear(self, worker: Worker, line: str) -> None:
        """A worker's line."""
        if line != "ready":
            count, when = line.split()
            self.totals[worker.number] = int(count), float(when)

    @property
    def acknowledged(self) -> int:
        """Messages, by all of them."""
        return sum(count for count, _ in self.totals.values())

    def begin(self) -> float:
        """They receive from now on."""
        for worker in self.workers:
            worker.tell("go")
        return time.monotonic()

    async def until_through(self, messages: int) -> float:
        """When the last of so many was acknowledged.

        Raises:
            TimeoutError: that takes too long.
        """
        async with asyncio.timeout(DRAIN_S):
            while self.acknowledged < messages:  # noqa: ASYNC110  only looking tells
                await asyncio.sleep(POLL_S)
        return max(when for _, when in self.totals.values())


@asynccontextmanager
async def at_work(place: Arena, topic: str, shape: Shape) -> AsyncIterator[Crew]:
    """Workers of a group that is new, ready to begin; they end well.

    Raises:
        RuntimeError: one of them failed.
    """
    found, group = Crew(), f"bench-{uuid4().hex[:8]}"
    each = shape.under_way // shape.workers
    words = (",".join(place.addresses), group, topic, shape.size_bytes, each, shape.batch)
    async with crew("pop_worker", [words] * shape.workers, found.hear) as workers:
        found.workers = workers
        await asyncio.gather(*(worker.until_it_says(1) for worker in workers))
        yield found
        await asyncio.gather(*(worker.end() for worker in workers))


async def pop(
    place: Arena,
    echo_address: str,
    *,
    shape: Shape,
    messages: int,
    in_flight: int,
    seconds: float,
    rounds: int,
    tell: Tell,
) -> Report:
    """Drains a topic of `messages`, and sends for `seconds` in all, over `rounds`."""
    filled: list[float] = []
    beside: list[float] = []
    alone: list[Throughput] = []
    again = 0
    async with (
        connected(place) as client,
        fresh_topic(place, client) as full,
        client.producer() as producer,
        echo_client(echo_address) as echo,
    ):
        tell("filling the topic")
        await fill(producer, full, bytes(shape.size_bytes), messages)
        yardsticks = Yardsticks(echo, place.directory, tell)

        async def drain() -> None:
            nonlocal again
            async with at_work(place, full, shape) as workers:
                began = workers.begin()
                took = await workers.until_through(messages) - began
            filled.append(messages / took)
            again += workers.acknowledged - messages

        async def feed() -> None:
            nonlocal again
            async with (
                fresh_topic(place, client) as fed,
                at_work(place, fed, shape) as workers,
            ):
                began = workers.begin()
                sent = await saturate(
                    producer,
                    fed,
                    bytes(shape.size_bytes),
                    in_flight=in_flight,
                    seconds=seconds / rounds,
                )
                took = await workers.until_through(sent.acknowledged) - began
            alone.append(sent)
            beside.append(sent.acknowledged / took)
            again += workers.acknowledged - sent.acknowledged

        async def one_round() -> None:
            await drain()
            await feed()

        await yardsticks.around(rounds, one_round)
    return _report(shape, messages, (filled, beside), alone, again, yardsticks)


def _report(
    shape: Shape,
    messages: int,
    rates: tuple[list[float], list[float]],
    sent: list[Throughput],
    again: int,
    yardsticks: Yardsticks,
) -> Report:
    is_promised = (shape.size_bytes, shape.under_way, shape.batch) == PROMISED
    filled, beside = rates
    none = Target(Comparison.AT_MOST, 0, must=True)
    return Report(
        "pop",
        {
            "size_bytes": shape.size_bytes,
            "under_way": shape.under_way,
            "batch": shape.batch,
            "workers": shape.workers,
            "messages": messages,
            "rounds": len(filled),
        },
        yardsticks.figures(),
        (
            yardsticks.against_rate("from_a_filled_topic", filled, FILLED if is_promised else None),
            yardsticks.against_rate("beside_producers", beside, BESIDE if is_promised else None),
            Figure("sent_meanwhile", "msgs/s", Spread.of([each.per_second for each in sent])),
            Figure("failed", "msgs", Spread.of([sum(each.failed for each in sent)]), target=none),
            # Without a fault, and within the invisible time, nothing is handed out twice.
            Figure("acknowledged_again", "msgs", Spread.of([again]), target=none),
        ),
    )

"""`bench e2e`: from `send` to the moment a consumer has the message decoded.

Producer and consumers live in this process, so one clock times both ends; each body begins with
the moment it was handed to the producer. Messages are sent at a steady pace far below the
greatest rate: latency at the greatest rate is the length of a queue and nothing else. Each round
has a part for each kind of consumer, with a topic of its own, and before them one in which a
message is sent when the last one is acknowledged: what that takes, and two echoes (to say that
there is something, and to fetch it), is what the promise allows.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from statistics import fmean
from uuid import uuid4

from dledger.client import Client, Message, Producer, SendResult, StartFrom
from dledger.terminal.figures import percentile
from dledger_cli.bench.arena import QUEUES, Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.load import one_at_a_time
from dledger_cli.bench.rounds import Tell, Yardsticks, in_ms
from dledger_cli.bench.yardsticks import echo_client

SENT_AT = struct.Struct(">Q")  # at byte 0 of a body: time.monotonic_ns() when it was sent
assert SENT_AT.size == 8
PACE_S = 0.001  # messages due within this are sent together
ARRIVAL_TIMEOUT_S = 10.0  # from the last send until everything must have arrived
READY_TIMEOUT_S = 30.0  # until a group's member has all queues
SHARES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
KINDS = ("pull", "push")  # a loop over a pull consumer, a group's member with a handler
SEND_P50 = "send_p50"
PROMISED_RATE = 1_000
TARGET = Target(Comparison.AT_MOST, 1.0)  # of a send's p50, one in flight, and two of the echo's


@dataclass(slots=True)
class Arrivals:
    """What a consumer has got, and when; `expected` is set before the sends of a round."""

    expected: int = 0
    latencies_s: list[float] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, expected: int) -> None:
        """A new round."""
        self.expected = expected
        self.latencies_s = []
        self.complete.clear()

    def take(self, body: bytes, now_ns: int) -> None:
        """A message arrived."""
        self.latencies_s.append((now_ns - SENT_AT.unpack_from(body)[0]) / 1e9)
        if len(self.latencies_s) >= self.expected:
            self.complete.set()


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer at work, and what it has got in each round, in seconds, ascending."""

    kind: str
    topic: str
    arrivals: Arrivals
    taken: list[list[float]] = field(default_factory=list)


async def end_to_end(
    place: Arena,
    echo_address: str,
    *,
    size_bytes: int,
    per_second: int,
    seconds: float,
    rounds: int,
    tell: Tell,
) -> Report:
    """Sends `per_second` messages a second for `seconds` in all to each kind of consumer, and one
    after the other for as long, spread over `rounds`."""
    alone_s: list[float] = []
    count = max(1, int(per_second * seconds / rounds))
    async with (
        connected(place) as client,
        fresh_topic(place, client) as alone,
        client.producer() as producer,
        echo_client(echo_address) as echo,
        contextlib.AsyncExitStack() as stack,
    ):
        yardsticks = Yardsticks(echo, place.directory, tell)
        tell("consumers begin")
        readers = [
            await stack.enter_async_context(_reader(place, client, producer, kind, size_bytes))
            for kind in KINDS
        ]

        async def one_part(reader: Reader) -> None:
            reader.arrivals.begin(count)
            await _send_paced(producer, reader.topic, size_bytes, per_second, count)
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                await reader.arrivals.complete.wait()
            reader.taken.append(sorted(reader.arrivals.latencies_s))

        async def one_round() -> None:
            got = await one_at_a_time(producer, alone, bytes(size_bytes), seconds=seconds / rounds)
            alone_s.append(percentile(sorted(got.latencies_s), 0.5))
            for reader in readers if len(alone_s) % 2 else reversed(readers):
                await one_part(reader)

        await one_round()  # the first pulls, the first connections
        alone_s.clear()
        for reader in readers:
            reader.taken.clear()
        await yardsticks.around(rounds, one_round)
    return _report(readers, alone_s, yardsticks, count, size_bytes, per_second)


# --- consumers ------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _reader(
    place: Arena, client: Client, producer: Producer, kind: str, size_bytes: int
) -> AsyncIterator[Reader]:
    """One that has every queue of a topic of its own."""
    async with fresh_topic(place, client) as topic:
        reader = Reader(kind, topic, Arrivals())
        pulls = _pulling if kind == "pull" else _pushing
        async with pulls(client, topic, reader.arrivals):
            reader.arrivals.begin(QUEUES)
            body = SENT_AT.pack(time.monotonic_ns()) + bytes(size_bytes - SENT_AT.size)
            for queue_id in range(QUEUES):
                await producer.send(topic, body, queue_id=queue_id)
            async with asyncio.timeout(READY_TIMEOUT_S):
                await reader.arrivals.complete.wait()
            yield reader


@contextlib.asynccontextmanager
async def _pulling(client: Client, topic: str, arrivals: Arrivals) -> AsyncIterator[None]:
    async def receive() -> None:
        async with client.pull_consumer(topic, start=StartFrom.FIRST) as consumer:
            async for batch in consumer.batches():
                now_ns = time.monotonic_ns()
                for message in batch:
                    arrivals.take(message.body, now_ns)

    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(receive())
        yield
        receiving.cancel()


@contextlib.asynccontextmanager
async def _pushing(client: Client, topic: str, arrivals: Arrivals) -> AsyncIterator[None]:
    consumer = client.push_consumer(f"bench-{uuid4().hex[:12]}")

    @consumer.on(topic)
    async def take(message: Message) -> None:
        arrivals.take(message.body, time.monotonic_ns())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run())
        try:
            yield
        finally:
            consumer.stop()


async def _send_paced(
    producer: Producer, topic: str, size_bytes: int, per_second: int, count: int
) -> None:
    """Message `i` is due `i / per_second` seconds from now; late ones are sent at once.

    Raises:
        ClientError: one of them was not acknowledged.
    """
    padding = bytes(size_bytes - SENT_AT.size)
    futures: list[asyncio.Future[SendResult]] = []
    began = time.monotonic()
    while len(futures) < count:
        due = min(count, int((time.monotonic() - began) * per_second) + 1)
        for _ in range(due - len(futures)):
            body = SENT_AT.pack(time.monotonic_ns()) + padding
            futures.append(producer.send(topic, body))
        await asyncio.sleep(PACE_S)
    for answer in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


# --- what came of it ------------------------------------------------------------------------------


def _report(
    readers: list[Reader],
    alone_s: list[float],
    yardsticks: Yardsticks,
    count: int,
    size_bytes: int,
    per_second: int,
) -> Report:
    echoes = [echo.p50_s for echo in yardsticks.echoes]
    allowed = [sent + 2 * fmean(echoes[at : at + 2]) for at, sent in enumerate(alone_s)]
    target = TARGET if per_second == PROMISED_RATE else None
    figures = [yardsticks.against_p50(SEND_P50, alone_s, None)]
    for reader in readers:
        for name, share in SHARES.items():
            values = [percentile(latencies, share) for latencies in reader.taken]
            figure = Figure(f"{reader.kind}_{name}", "ms", in_ms(values))
            if name == "p50":
                ratio = Spread.of([it / most for it, most in zip(values, allowed, strict=True)])
                yardstick = f"{SEND_P50} + 2 echo_p50"
                figure = Figure(figure.name, "ms", figure.spread, yardstick, ratio, target)
            figures.append(figure)
    twice = sum(len(latencies) - count for reader in readers for latencies in reader.taken)
    none = Target(Comparison.AT_MOST, 0, must=True)
    figures.append(Figure("duplicated", "msgs", Spread.of([twice]), target=none))
    return Report(
        "e2e",
        {"size_bytes": size_bytes, "msgs_per_s": per_second, "msgs_per_round": count},
        yardsticks.figures(),
        tuple(figures),
    )

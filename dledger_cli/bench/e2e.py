"""`bench e2e`: from `send` to the moment a long-polling consumer has the message decoded.

Producer and consumer live in this process, so one clock times both ends; each body begins with
the moment it was handed to the producer. Messages are sent at a steady pace far below the
greatest rate: latency at the greatest rate is the length of a queue and nothing else.
"""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass, field

from dledger.client import Client, Producer, SendResult, StartFrom
from dledger.terminal.figures import percentile
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.rounds import Tell, Yardsticks, in_ms
from dledger_cli.bench.yardsticks import echo_client

SENT_AT = struct.Struct(">Q")  # at byte 0 of a body: time.monotonic_ns() when it was sent
assert SENT_AT.size == 8
PACE_S = 0.001  # messages due within this are sent together
ARRIVAL_TIMEOUT_S = 10.0  # from the last send until everything must have arrived
SHARES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}


@dataclass(slots=True)
class Arrivals:
    """What the consumer has got, and when; `expected` is set before the sends of a round."""

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
    """Sends `per_second` messages a second for `seconds` in all, spread over `rounds`."""
    arrivals = Arrivals()
    taken: list[list[float]] = []
    async with (
        connected(place) as client,
        fresh_topic(place, client) as topic,
        client.producer() as producer,
        echo_client(echo_address) as echo,
        asyncio.TaskGroup() as tasks,
    ):
        receiving = tasks.create_task(_receive(client, topic, arrivals))
        yardsticks = Yardsticks(echo, place.directory, tell)
        count = max(1, int(per_second * seconds / rounds))

        async def one_round() -> None:
            arrivals.begin(count)
            await _send_paced(producer, topic, size_bytes, per_second, count)
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                await arrivals.complete.wait()
            taken.append(sorted(arrivals.latencies_s))

        await one_round()  # the first pulls, the first connections
        taken.clear()
        await yardsticks.around(rounds, one_round)
        receiving.cancel()
    return _report(taken, yardsticks, count, size_bytes, per_second)


async def _receive(client: Client, topic: str, arrivals: Arrivals) -> None:
    async with client.pull_consumer(topic, start=StartFrom.FIRST) as consumer:
        async for batch in consumer.batches():
            now_ns = time.monotonic_ns()
            for message in batch:
                arrivals.take(message.body, now_ns)


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


def _report(
    taken: list[list[float]],
    yardsticks: Yardsticks,
    count: int,
    size_bytes: int,
    per_second: int,
) -> Report:
    figures = []
    for name, share in SHARES.items():
        values = [percentile(latencies, share) for latencies in taken]
        if name == "p50":
            figures.append(yardsticks.against_p50(name, values, None))
        else:
            figures.append(Figure(name, "ms", in_ms(values)))
    twice = sum(len(latencies) - count for latencies in taken)
    figures.append(
        Figure(
            "duplicated",
            "msgs",
            Spread.of([twice]),
            target=Target(Comparison.AT_MOST, 0, must=True),
        )
    )
    return Report(
        "e2e",
        {"size_bytes": size_bytes, "msgs_per_s": per_second, "msgs_per_round": count},
        yardsticks.figures(),
        tuple(figures),
    )

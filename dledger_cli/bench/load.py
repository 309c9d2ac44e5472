"""Loads: what keeps a producer busy, at the least cost beside the producer's own.

`saturate` keeps a number of messages outstanding and looks at each message's future in the order
of sending, so one wake-up serves a whole batch of answers: no task, callback or clock reading a
message. Latencies are taken from every 64th message. `one_at_a_time` waits for each message.
`NumberedLoad` runs beside faults: it may be turned up and down, and keeps account of each message.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from dledger.client import ClientError, Outcome, SendResult
from dledger_cli.bench.ledger import NUMBER, Fate, Ledger

LATENCY_EVERY = 64  # messages of `saturate` for each whose latency is taken
FILL_IN_FLIGHT = 2_048
MAX_REMEMBERED_ERRORS = 16  # kinds of errors that a load tells apart


class Sender(Protocol):
    """What loads need of a producer (`dledger.client.Producer`)."""

    def send(self, topic: str, body: bytes) -> asyncio.Future[SendResult]:
        """Accepts a message; the future tells its fate."""


@dataclass(slots=True)
class Throughput:
    """What a load got done. `latencies_s` is in no particular order."""

    acknowledged: int = 0
    failed: int = 0
    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Acknowledged messages a second."""
        return self.acknowledged / self.seconds


async def saturate(
    producer: Sender, topic: str, body: bytes, *, in_flight: int, seconds: float
) -> Throughput:
    """Keeps `in_flight` messages outstanding for `seconds`, then waits for the last of them.

    The time counts up to the last answer.
    """
    got = Throughput()
    window: deque[asyncio.Future[SendResult]] = deque()
    clock, send = time.perf_counter, producer.send
    began = clock()
    end = began + seconds
    number = 0
    while (now := clock()) < end:
        for _ in range(in_flight - len(window)):
            future = send(topic, body)
            window.append(future)
            if number % LATENCY_EVERY == 0:
                future.add_done_callback(functools.partial(_take_latency, got.latencies_s, now))
            number += 1
        await _settle(window.popleft(), got)
        while window and window[0].done():
            await _settle(window.popleft(), got)
    for future in window:
        await _settle(future, got)
    got.seconds = clock() - began
    return got


async def one_at_a_time(producer: Sender, topic: str, body: bytes, *, seconds: float) -> Throughput:
    """Sends a message, waits for its answer, sends the next, for `seconds`."""
    got = Throughput()
    clock = time.perf_counter
    began = clock()
    end = began + seconds
    while (sent := clock()) < end:
        await _settle(producer.send(topic, body), got)
        got.latencies_s.append(clock() - sent)
    got.seconds = clock() - began
    return got


async def fill(producer: Sender, topic: str, body: bytes, messages: int) -> None:
    """That many equal messages are in the topic.

    Raises:
        ClientError: one of them was not acknowledged.
    """
    window: deque[asyncio.Future[SendResult]] = deque()
    for _ in range(messages):
        if len(window) == FILL_IN_FLIGHT:
            await window.popleft()
        window.append(producer.send(topic, body))
    for future in window:
        await future


async def _settle(future: asyncio.Future[SendResult], got: Throughput) -> None:
    try:
        await future
    except ClientError:
        got.failed += 1
    else:
        got.acknowledged += 1


def _take_latency(into: list[float], sent: float, _future: asyncio.Future[SendResult]) -> None:
    into.append(time.perf_counter() - sent)


class NumberedLoad:
    """A load that goes on through faults, and knows the fate of each message.

    `limit` messages are outstanding at most; setting it turns the load up or down at once.
    """

    def __init__(self, producer: Sender, topic: str, *, size_bytes: int, limit: int) -> None:
        """Args: `size_bytes` of a body, at least the eight of its number."""
        if size_bytes < NUMBER.size:
            raise ValueError(f"a body of {size_bytes} bytes has no room for its number")
        self.ledger = Ledger()
        self.errors: Counter[str] = Counter()
        self.limit = limit
        self._producer = producer
        self._topic = topic
        self._padding = bytes(size_bytes - NUMBER.size)
        self._outstanding = 0
        self._stopping = False
        self._moved = asyncio.Event()  # an answer came, or the limit or the end
        self._awaited: tuple[bytes, asyncio.Future[float]] | None = None

    @property
    def bytes_acknowledged(self) -> int:
        """Bytes of bodies."""
        return self.ledger.acknowledged * (len(self._padding) + NUMBER.size)

    def turn(self, limit: int) -> None:
        """From now on `limit` messages are outstanding at most."""
        self.limit = limit
        self._moved.set()

    def stop(self) -> None:
        """`run` sends nothing more, and ends once every message has its fate."""
        self._stopping = True
        self._moved.set()

    def acknowledgement_from_other_than(self, store_host: bytes) -> asyncio.Future[float]:
        """The `time.monotonic()` of the next acknowledgement that another node stamped.

        A message that the dead leader had stamped, acknowledged by the next one, doesn't count:
        it can't be told from an answer that the dead one still got out. So the time may come out
        too long, never too short.
        """
        moment: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._awaited = (store_host, moment)
        return moment

    async def run(self) -> None:
        """Feeds the producer until `stop`."""
        while not self._stopping or self._outstanding:
            self._moved.clear()
            while self._outstanding < self.limit and not self._stopping:
                self._send_one()
            await self._moved.wait()

    def _send_one(self) -> None:
        number = self.ledger.open()
        future = self._producer.send(self._topic, NUMBER.pack(number) + self._padding)
        self._outstanding += 1
        future.add_done_callback(functools.partial(self._on_done, number))

    def _on_done(self, number: int, future: asyncio.Future[SendResult]) -> None:
        self._outstanding -= 1
        self._moved.set()
        if future.cancelled():
            self.ledger.close(number, Fate.UNKNOWN)
        elif error := future.exception():
            self._on_error(number, error)
        else:
            self.ledger.close(number, Fate.ACKNOWLEDGED)
            if self._awaited is not None:
                self._on_awaited(future.result(), *self._awaited)

    def _on_error(self, number: int, error: BaseException) -> None:
        refused = isinstance(error, ClientError) and error.outcome is Outcome.DID_NOT_HAPPEN
        self.ledger.close(number, Fate.REFUSED if refused else Fate.UNKNOWN)
        if len(self.errors) < MAX_REMEMBERED_ERRORS:
            self.errors[str(error)] += 1

    def _on_awaited(
        self, result: SendResult, store_host: bytes, moment: asyncio.Future[float]
    ) -> None:
        if result.store_host != store_host and not moment.done():
            moment.set_result(time.monotonic())
            self._awaited = None


@contextlib.asynccontextmanager
async def under(load: NumberedLoad) -> AsyncIterator[None]:
    """The load goes on for as long as the block lasts; then every message has its fate, unless an
    error ended the block."""
    running = asyncio.create_task(load.run(), name="load")
    try:
        yield
        load.stop()
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

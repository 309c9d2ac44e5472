"""The clients of a run: producers, consumers and callers, and the history of what they learned.

Each writes down an operation before it begins and what became of it when the client library has
told; nothing here retries or repairs, so that the history holds what an application would see.
They run from before the first fault until after the last, and are stopped one kind at a time.

    producers   send messages at a steady rate, numbered by queue, each with a value of its own
    consumers   read every queue from its beginning, and commit how far they got
    callers     ask for ends of queues and committed offsets, create, delete and look for topics

Values, topics and groups are never used for two purposes, so that each check stays small. Source:
Jepsen's Kafka workload; etcd's robustness tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from chaos.checkers.history import (
    Action,
    Commit,
    Create,
    Delete,
    End,
    Exists,
    Fetch,
    History,
    Operation,
    Poll,
    Result,
    Send,
)
from chaos.real.scenario import Load
from dledger.client import (
    ALL,
    Client,
    ClientError,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    SendResult,
    StartFrom,
    TopicNotFound,
)
from dledger.client import Outcome as Known
from dledger.history import Outcome

TOPIC: Final = "chaos"
TICK_S: Final = 0.01
MAX_UNDER_WAY: Final = 2_000  # messages of one producer; past it the producer waits
DELIVERY_TIMEOUT_MS: Final = 30_000
REQUEST_TIMEOUT_MS: Final = 5_000
CALL_DEADLINE_S: Final = 3.0
CALL_PAUSE_S: Final = (0.05, 0.25)  # between two calls of a caller
COMMIT_EVERY_S: Final = 0.5
CONSUMER_PAUSE_S: Final = 0.2  # between one that broke and the next
KEY_LIFE_S: Final = 10.0  # how long callers work on the same names
TOPICS_AT_ONCE: Final = 3
READ_DEADLINE_S: Final = 30.0


@dataclass(slots=True)
class Acknowledgements:
    """Each acknowledged send: when, how long it took, and which node stored it."""

    at_us: array[int] = field(default_factory=lambda: array("q"))
    latency_us: array[int] = field(default_factory=lambda: array("q"))
    host: list[bytes] = field(default_factory=list)

    def add(self, at_us: int, latency_us: int, host: bytes) -> None:
        """One more; `host` is what the leader stamped into the record."""
        self.at_us.append(at_us)
        self.latency_us.append(latency_us)
        self.host.append(host)


class Clock:
    """Microseconds since the run began, monotonic."""

    def __init__(self) -> None:
        self._zero_ns = time.monotonic_ns()

    def __call__(self) -> int:
        return (time.monotonic_ns() - self._zero_ns) // 1000

    @property
    def zero_us(self) -> int:
        """When it began, in microseconds of the machine's monotonic clock."""
        return self._zero_ns // 1000

    def of_monotonic(self, seconds: float) -> int:
        """The moment that `time.monotonic()` gave as `seconds`."""
        return (int(seconds * 1e9) - self._zero_ns) // 1000


class Workload:
    """All clients of a run, on one connection each kind."""

    def __init__(
        self, client: Client, load: Load, history: History, now_us: Clock, seed: int
    ) -> None:
        self.load = load
        self.acknowledged = Acknowledgements()
        self.errors: Counter[str] = Counter()
        self.problems: dict[str, tuple[str, str]] = {}  # the first of each kind: text, code
        self._client = client
        self._history = history
        self._now_us = now_us
        self._seed = seed
        self._stop = asyncio.Event()
        self.last_sent_us = 0  # when the last message was given to a producer
        self._read = 0
        self._read_to: Counter[tuple[str, int]] = Counter()  # by consumer and queue
        self._tasks: dict[str, list[asyncio.Task[None]]] = defaultdict(list)

    async def prepare(self) -> None:
        """The topic exists.

        Raises:
            ClientError: it can't be made.
        """
        begun = self._begin("setup", Create(TOPIC, self.load.queues))
        await self._client.create_topic(TOPIC, queues=self.load.queues)
        self._end(begun, Outcome.OK)

    def start(self) -> None:
        """Every client is at work."""
        for number in range(self.load.producers):
            self._spawn("producers", self._produce(f"p{number}"))
        for number in range(self.load.consumers):
            self._spawn("consumers", self._consume(f"c{number}"))
        for number in range(self.load.callers):
            self._spawn("callers", self._call(f"k{number}"))

    async def settle(self) -> None:
        """Producers have settled what they sent, and callers have ended."""
        self._stop.set()
        await self._ended("producers")
        await self._ended("callers")

    async def stop(self) -> None:
        """Consumers have ended."""
        for task in self._tasks["consumers"]:
            task.cancel()
        await self._ended("consumers")

    def check(self) -> None:
        """Raises what broke a client, if something did: a bug in it or in the client library."""
        for tasks in self._tasks.values():
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    task.result()

    async def abort(self) -> None:
        """Everything ends now; what was under way stays unknown."""
        tasks = [task for each in self._tasks.values() for task in each]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, kind: str, work: Awaitable[None]) -> None:
        self._tasks[kind].append(asyncio.ensure_future(work))

    async def _ended(self, kind: str) -> None:
        results = await asyncio.gather(*self._tasks[kind], return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    # --- the history --------------------------------------------------------------------------

    def _begin(self, process: str, action: Action) -> Operation:
        return self._history.invoke(self._now_us(), process, action)

    def _end(self, operation: Operation, outcome: Outcome, result: Result = None) -> None:
        self._history.complete(self._now_us(), operation, outcome, result)

    def _failed(self, operation: Operation, error: ClientError) -> None:
        self.errors[f"{type(operation.action).__name__.lower()}: {error.code}"] += 1
        if outcome_of(error) is Outcome.FAIL:  # No attempt before may have happened either.
            self._history.refuse(self._now_us(), operation, error.code)
        else:
            self._end(operation, Outcome.UNKNOWN)

    # --- producers ----------------------------------------------------------------------------

    async def _produce(self, process: str) -> None:
        chance = Random(f"{self._seed} {process}")
        sequences: Counter[int] = Counter()
        options = ProducerOptions(
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS, request_timeout_ms=REQUEST_TIMEOUT_MS
        )
        under_way = UnderWay()
        started, sent = asyncio.get_running_loop().time(), 0
        async with self._client.producer(options) as producer:
            while not self._stop.is_set():
                elapsed = asyncio.get_running_loop().time() - started
                due = int(elapsed * self.load.rate / self.load.producers) - sent
                for _ in range(min(due, MAX_UNDER_WAY - under_way.count)):
                    queue_id = chance.randrange(self.load.queues)
                    self._send(producer, process, queue_id, sequences[queue_id], under_way)
                    sequences[queue_id] += 1
                sent += max(due, 0)  # what there was no room for is not made up for
                await asyncio.sleep(TICK_S)
            await producer.flush()
            await under_way.none()

    def _send(
        self,
        producer: Producer,
        process: str,
        queue_id: int,
        sequence: int,
        under_way: UnderWay,
    ) -> None:
        value = f"{process}-{queue_id}-{sequence}"
        begun = self._begin(process, Send(TOPIC, queue_id, sequence, (value,)))
        self.last_sent_us = begun.invoked_us
        future = producer.send(TOPIC, self._body(value), queue_id=queue_id)
        under_way.count += 1
        future.add_done_callback(partial(self._settled, begun, under_way))

    def _settled(
        self, begun: Operation, under_way: UnderWay, done: asyncio.Future[SendResult]
    ) -> None:
        under_way.settled()
        if done.cancelled():
            self._end(begun, Outcome.UNKNOWN)
            return
        error = done.exception()
        if error is None:
            result = done.result()
            self._end(begun, Outcome.OK, result.queue_offset if result.has_place else None)
            now_us = begun.completed_us or 0
            self.acknowledged.add(now_us, now_us - begun.invoked_us, result.store_host)
        elif isinstance(error, ClientError):
            self._failed(begun, error)
        else:
            raise error

    def _body(self, value: str) -> bytes:
        return value.encode().ljust(self.load.size_bytes, b" ")

    # --- consumers ----------------------------------------------------------------------------

    async def _consume(self, process: str) -> None:
        """Reads for ever; a consumer that broke is followed by one that begins where the group's
        committed offsets are. What no fault explains is a problem, and it begins anew."""
        start, lives = StartFrom.COMMITTED, 0
        while True:
            # Who begins anew is another one, to the history: it doesn't go on where one before was.
            lives += start is StartFrom.FIRST
            name = f"{process}+{lives}" if lives else process
            try:
                await self._consume_once(process, name, start)
            except ClientError as error:
                self.errors[f"poll: {error.code}"] += 1
                if not error.retriable:
                    told = (f"{process}: {error}", str(error.code))
                    self.problems.setdefault(f"{process} {error.code}", told)
                    start = StartFrom.FIRST
                await asyncio.sleep(CONSUMER_PAUSE_S)

    async def _consume_once(self, process: str, name: str, start: StartFrom) -> None:
        """`name`: what the history calls it."""
        loop = asyncio.get_running_loop()
        places: dict[int, int] = {}
        consumer = self._client.pull_consumer(
            TOPIC,
            group=f"group-{process}",
            start=start,
            queues=ALL,
            options=ConsumerOptions(deadline_s=READ_DEADLINE_S, hold_ms=1_000),
        )
        commit_at = loop.time() + COMMIT_EVERY_S
        async with consumer:
            async for batch in consumer.batches():
                queue_id = batch[0].queue_id
                self._read += len(batch)
                self._polled(name, queue_id, batch, seek=queue_id not in places)
                places[queue_id] = self._read_to[process, queue_id] = batch[-1].queue_offset + 1
                if loop.time() >= commit_at:
                    await self._commit_places(process, name, places)
                    commit_at = loop.time() + COMMIT_EVERY_S

    def _polled(self, process: str, queue_id: int, batch: list[Message], *, seek: bool) -> None:
        polled = tuple((message.queue_offset, value_of(message)) for message in batch)
        begun = self._begin(process, Poll(TOPIC, queue_id, polled[0][0], seek=seek))
        self._end(begun, Outcome.OK, polled)

    async def _commit_places(self, process: str, name: str, places: dict[int, int]) -> None:
        """Commits one queue at a time, each an operation of its own."""
        for queue_id, offset in list(places.items()):
            await self._commit(name, f"group-{process}", queue_id, offset)

    @property
    def read(self) -> int:
        """How many messages consumers have read, in all: it grows while they get on."""
        return self._read

    async def behind(self) -> list[str]:
        """Consumers that haven't read a queue to its end, in words.

        Raises:
            ClientError: where it ends can't be learned.
        """
        ends = {
            queue_id: await self._client.queue_offsets(TOPIC, queue_id, deadline_s=READ_DEADLINE_S)
            for queue_id in range(self.load.queues)
        }
        consumers = [f"c{number}" for number in range(self.load.consumers)]
        return [
            f"{process} has read {TOPIC}/{queue_id} to {read:,} of {bounds.max_offset:,}"
            for process in consumers
            for queue_id, bounds in ends.items()
            if (read := self._read_to[process, queue_id]) < bounds.max_offset
            and bounds.min_offset < bounds.max_offset
        ]

    # --- callers ------------------------------------------------------------------------------

    async def _call(self, process: str) -> None:
        chance = Random(f"{self._seed} {process}")
        while not self._stop.is_set():
            era = int(self._now_us() / 1e6 / KEY_LIFE_S)
            await self._call_once(process, chance, era)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.uniform(*CALL_PAUSE_S)):
                    await self._stop.wait()

    async def _call_once(self, process: str, chance: Random, era: int) -> None:
        queue_id = chance.randrange(self.load.queues)
        group = f"shared-{era}"
        topic = f"t-{era}-{chance.randrange(TOPICS_AT_ONCE)}"
        match chance.choice(("end", "end", "commit", "fetch", "create", "delete", "exists")):
            case "end":
                begun = self._begin(process, End(TOPIC, queue_id))
                await self._ask(begun, self._read_end(queue_id))
            case "commit":
                await self._commit(process, group, queue_id, chance.randrange(20))
            case "fetch":
                begun = self._begin(process, Fetch(TOPIC, group, queue_id))
                await self._ask(begun, self._fetch(group, queue_id))
            case "create":
                begun = self._begin(process, Create(topic, 1))
                await self._ask(begun, self._create(topic))
            case "delete":
                begun = self._begin(process, Delete(topic))
                await self._ask(begun, self._delete(topic))
            case _:
                begun = self._begin(process, Exists(topic))
                await self._ask(begun, self._exists(topic))

    async def _commit(self, process: str, group: str, queue_id: int, offset: int) -> None:
        begun = self._begin(process, Commit(TOPIC, group, queue_id, offset))

        async def commit() -> Result:
            stands = await self._client.commit_offsets(
                group, TOPIC, {queue_id: offset}, deadline_s=CALL_DEADLINE_S
            )
            return stands[queue_id]

        await self._ask(begun, commit())

    async def _ask(self, begun: Operation, answer: Awaitable[Result]) -> None:
        try:
            self._end(begun, Outcome.OK, await answer)
        except ClientError as error:
            self._failed(begun, error)

    async def _read_end(self, queue_id: int) -> Result:
        bounds = await self._client.queue_offsets(TOPIC, queue_id, deadline_s=CALL_DEADLINE_S)
        return bounds.max_offset

    async def _fetch(self, group: str, queue_id: int) -> Result:
        offsets = await self._client.fetch_offsets(group, TOPIC, deadline_s=CALL_DEADLINE_S)
        return offsets.get(queue_id)

    async def _create(self, topic: str) -> Result:
        await self._client.create_topic(topic, queues=1, deadline_s=CALL_DEADLINE_S)
        return None

    async def _delete(self, topic: str) -> Result:
        await self._client.delete_topic(topic, deadline_s=CALL_DEADLINE_S)
        return None

    async def _exists(self, topic: str) -> Result:
        try:
            await self._client.describe_topic(topic, deadline_s=CALL_DEADLINE_S)
        except TopicNotFound:
            return False
        return True


@dataclass(slots=True)
class UnderWay:
    """How many messages of a producer have no outcome yet."""

    count: int = 0
    _none: asyncio.Event = field(default_factory=asyncio.Event)

    def settled(self) -> None:
        """One has."""
        self.count -= 1
        if not self.count:
            self._none.set()

    async def none(self) -> None:
        """Waits until each has one."""
        while self.count:
            self._none.clear()
            await self._none.wait()


def outcome_of(error: ClientError) -> Outcome:
    """What the history says of an operation that ended so."""
    return Outcome.FAIL if error.outcome is Known.DID_NOT_HAPPEN else Outcome.UNKNOWN


def value_of(message: Message) -> str:
    """The value that a producer put into the body."""
    return message.body.rstrip(b" ").decode("utf-8", errors="replace")

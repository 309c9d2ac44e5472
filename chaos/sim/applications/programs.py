"""Applications that use the library as users do: each a coroutine in a process of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final
from zlib import crc32

from chaos.sim.applications.books import Finish, SentBook, WorkBook
from chaos.sim.applications.process import ClientProcess
from chaos.sim.applications.slips import Slip
from chaos.sim.defect import Defect
from chaos.sim.retry_model import ATTEMPTS
from dledger.client import (
    BufferFull,
    Client,
    ClientClosed,
    ClientError,
    ClientOptions,
    ConsumerOptions,
    Message,
    Permission,
    ProducerFenced,
    ProducerOptions,
    PushOptions,
    Reject,
    SendResult,
    SendsFailed,
    SimpleConsumer,
    StartFrom,
)
from dledger.client.delivery import Delivery
from dledger.client.errors import ClientFault, ReceiptExpired, TopicExists, TopicNotFound

TOPIC: Final = "parcels"
KEYS: Final = ("", "", "a", "b", "c")  # of messages; empty: none
POISON_SHARE: Final = 50  # one of so many messages nobody can work on; and one some reject
MOST_CALLS: Final = 100  # under way, of one worker that gives up on them


@dataclass(slots=True)
class Shared:
    """What all programs know."""

    addresses: list[str]
    queues: int
    sent: SentBook
    books: dict[str, WorkBook]
    stopping: bool = False  # senders
    closing: bool = False  # those that work
    is_hard: bool = False  # work of some messages
    has_moved: bool = False  # messages of one key: the topic's queues were changed
    numbers: int = 0
    ended: list[str] = field(default_factory=list)  # whose programs ended, as they should


class Program:
    """One application in one process; `life` counts the processes that ran it. `whims`: chance of
    what came later, so that seeds stay what they were."""

    def __init__(self, shared: Shared, name: str, chance: Random, whims: Random) -> None:
        self.shared = shared
        self.name = name
        self.chance = chance
        self.whims = whims
        self.life = 0
        self.process: ClientProcess | None = None

    async def run(self) -> None:
        """Until everybody is told to stop."""
        chance = self.chance
        addresses = chance.sample(self.shared.addresses, len(self.shared.addresses))
        options = ClientOptions(deadline_s=chance.choice((3.0, 10.0)))
        async with Client.connect(addresses, options=options) as client:
            await self.work(client)
        self.shared.ended.append(self.name)

    async def work(self, client: Client) -> None:
        raise NotImplementedError

    def die(self) -> None:
        """Its process is gone."""

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / mean_s))


class Sending(Program):
    """Sends messages with keys and without, some in bursts, flushes now and then, and closes; once
    another producer has taken its name, goes on with a new one."""

    producers = 0  # that it has had before
    is_fenced = False

    @property
    def prefix(self) -> bytes:
        return f"{self.name}.{self.life}-".encode()

    def die(self) -> None:
        self.shared.sent.lose(self.prefix)

    async def work(self, client: Client) -> None:
        while True:
            with suppress(TopicExists, ClientError):
                await client.create_topic(TOPIC, queues=self.shared.queues, if_not_exists=True)
                break
            if TOPIC in await self._topics(client):
                break
        while not self.shared.stopping:
            await self._produce(client)
            self.producers += 1

    async def _topics(self, client: Client) -> list[str]:
        with suppress(ClientError):
            return [each.name for each in await client.topics()]
        return []

    async def _produce(self, client: Client) -> None:
        """With one producer, until all stop or another one has taken its name."""
        chance = self.chance
        options = ProducerOptions(
            linger_ms=chance.choice((0.0, 2.0, 20.0)),
            batch_bytes=chance.choice((1 << 10, 4 << 10, 32 << 10)),
            max_inflight_requests=chance.choice((1, 2, 4)),
            max_buffered_messages=chance.choice((20, 100_000)),
            delivery_timeout_ms=chance.choice((800, 1_500, 6_000, 120_000)),
            request_timeout_ms=chance.choice((700, 15_000)),
            close_timeout_ms=60_000,
            name=chance.choice(("", f"billing-{self.name}", "billing")),
        )
        self.is_fenced = False
        sender = f"{self.name}.{self.life}.{self.producers}"
        deadlines_s = chance.choice(((None,), (None, None, None, 0.3, 1.0)))
        accepted: list[asyncio.Future[SendResult]] = []
        with suppress(SendsFailed):
            async with client.producer(options) as producer:
                while not self.shared.stopping and not self.is_fenced:
                    for _ in range(chance.choice((1, 1, 1, 5, 30))):
                        body = self.prefix + str(self.shared.numbers).encode()
                        key = chance.choice(KEYS)
                        try:
                            future = producer.send(
                                TOPIC, body, key=key or None, deadline_s=chance.choice(deadlines_s)
                            )
                        except BufferFull:
                            await self._wait_for_room(producer.room())
                            continue
                        except Slip:
                            self.shared.numbers += 1
                            self.shared.sent.accept(body, sender, key)
                            self.shared.sent.doubt(body)
                            continue
                        self.shared.numbers += 1
                        self.shared.sent.accept(body, sender, key)
                        future.add_done_callback(partial(self._on_settled, body))
                        accepted.append(future)
                    if chance.random() < 0.05:
                        with suppress(SendsFailed):
                            await producer.flush()
                            self._check_flushed(accepted)
                    await self.pause(0.05)
        self._check_flushed(accepted)

    async def _wait_for_room(self, room: object) -> None:
        with suppress(ClientError):
            await room  # type: ignore[misc]

    def _check_flushed(self, accepted: list[asyncio.Future[SendResult]]) -> None:
        waiting = [future for future in accepted if not future.done()]
        if waiting:
            raise Defect("flush", f"{self.name}: flushed, and {len(waiting)} sends aren't settled")
        accepted.clear()

    def _on_settled(self, body: bytes, future: asyncio.Future[SendResult]) -> None:
        if future.cancelled():
            raise Defect("library", f"the future of {body!r} was cancelled by nobody here")
        error = future.exception()
        self.is_fenced |= isinstance(error, ProducerFenced)
        self.shared.sent.settle(body, None if error else future.result(), error)


class Working(Program):
    """A push consumer: handlers that take their time, fail at some, and return; where work is hard
    they fail at some always, and reject others."""

    GROUP = "workers"
    in_order = False

    async def work(self, client: Client) -> None:
        while not self.shared.closing:
            with suppress(ClientFault):  # what nobody foresaw: once more
                await self._consume(client)

    async def _consume(self, client: Client) -> None:
        chance, book = self.chance, self.shared.books[self.GROUP]
        options = PushOptions(
            member=f"{self.name}.{self.life if chance.random() < 0.5 else 0}",
            in_order=self.in_order,
            handlers=chance.choice((1, 4, 16)),
            queue_messages=chance.choice((3, 50, 1_000)),
            queue_span=chance.choice((10, 2_000)),
            hold_ms=chance.choice((100, 2_000, 20_000)),
            commit_every_s=chance.choice((0.05, 0.25, 1.0)),
            retry_delays_s=(0.1, 0.5),
            suspend_s=0.2,
            drain_s=2.0,
            max_attempts=ATTEMPTS,
        )
        slowness_s = chance.choice((0.005, 0.03, 0.3, 1.0))
        failing = chance.choice((0.01, 0.1, 0.3))
        consumer = client.push_consumer(self.GROUP, options)
        process = self.process
        assert process is not None

        @consumer.on(TOPIC)
        async def handle(message: Message) -> None:
            handling = book.begin(process, message)
            is_done = False
            try:
                if not self.shared.stopping and chance.random() < 0.5:
                    await self.pause(slowness_s)  # what was fetched piles up behind it
                if self.shared.is_hard:
                    self._work_hard(message)
                if message.reconsume_times == 0 and chance.random() < failing:
                    raise ValueError("a handler of whoever uses the library")
                is_done = True
            finally:
                book.end(handling, is_done=is_done)

        working = asyncio.ensure_future(consumer.run())
        while not working.done() and not self.shared.closing:
            await asyncio.wait([working], timeout=0.1)
        consumer.stop()
        await working

    def _work_hard(self, message: Message) -> None:
        """Nobody can work on some; of others it is known at once."""
        number = crc32(message.body) % POISON_SHARE
        if number == 0:
            raise ValueError("what no handler of anybody's can work on")
        if number == 1 and self.whims.random() < 0.5:
            self.shared.books[self.GROUP].rejected.add(message.body)
            raise Reject


class WorkingInOrder(Working):
    """The same, one message of a queue after the other."""

    GROUP = "in-order"
    in_order = True


class Popping(Program):
    """A simple consumer: receives some, works on them, acknowledges most. One without patience
    gives up again and again, however long it said that it would wait."""

    GROUP = "poppers"
    is_hasty = False

    async def work(self, client: Client) -> None:
        chance, book = self.chance, self.shared.books[self.GROUP]
        self.is_hasty = self.whims.random() < 0.3
        invisible_s = chance.choice((1.0, 5.0))
        late: list[Delivery] = []  # finished; their acknowledgements go with the next receive
        async with client.simple_consumer(
            TOPIC, self.GROUP, invisible_s=invisible_s, start=StartFrom.FIRST
        ) as consumer:
            while not self.shared.closing:
                done, late[:] = tuple(late), []
                try:
                    count = chance.choice((1, 8, 32))
                    deliveries = await self._receive(consumer, count, done)
                except TopicNotFound:
                    await self.pause(0.2)
                    continue
                except ReceiptExpired:
                    continue  # of one of those: which, nobody says
                except ClientClosed:
                    raise
                except ClientError:
                    continue
                for each in done:
                    self._finished(book, each)
                if deliveries and chance.random() < 0.5:
                    await self.pause(0.02)
                await asyncio.gather(*(self._take(book, each, late) for each in deliveries))

    async def _receive(
        self, consumer: SimpleConsumer, count: int, done: tuple[Delivery, ...]
    ) -> list[Delivery]:
        """Some; a caller that loses its patience now and then gives the call up."""
        if self.is_hasty and not done:
            return await self._receive_in_haste(consumer, count)
        if done or self.chance.random() < 0.8:
            return await consumer.receive(count, wait_s=0.5, done=done)
        try:
            async with asyncio.timeout(self.chance.uniform(0, 0.1)):
                return await consumer.receive(count, wait_s=0.5)
        except TimeoutError:
            return []

    async def _receive_in_haste(self, consumer: SimpleConsumer, count: int) -> list[Delivery]:
        try:
            async with asyncio.timeout(self.whims.uniform(0, 0.1)):
                return await consumer.receive(count, wait_s=60)
        except TimeoutError:
            calls = len(consumer._receives._calls)
            if calls > MOST_CALLS:
                text = f"{self.name}: {calls} receives are under way, of which nobody waits for any"
                raise Defect("library", text) from None
            return []

    async def _take(self, book: WorkBook, delivery: Delivery, late: list[Delivery]) -> None:
        assert self.process is not None
        handling = book.begin(self.process, delivery.message)
        is_done = False
        try:
            fate = self.chance.random()
            if fate < 0.05:
                return  # its time runs out
            if fate < 0.1:
                await delivery.retry(self.chance.choice((0, 0.5)))
                return
            if fate < 0.2:
                await delivery.extend(2.0)
                await self.pause(0.3)
            is_done = True  # whatever becomes of the acknowledgement
            if self.chance.random() < 0.3:
                late.append(delivery)
                return
            await delivery.ack()
            self._finished(book, delivery)
        except ReceiptExpired:
            pass
        except ClientError as error:
            if not error.retriable and not isinstance(error, ClientClosed | ClientFault):
                raise
        finally:
            book.end(handling, is_done=is_done)

    def _finished(self, book: WorkBook, delivery: Delivery) -> None:
        """The brokers have said so."""
        assert self.process is not None
        message = delivery.message
        place = message.queue_id, message.queue_offset
        finish = Finish(self.name, place, delivery.attempt, self.process.now_us)
        book.finished[message.body] = finish


class Operating(Program):
    """An operator's: the topic takes no messages or gives none for a moment, gets more queues and
    loses them again."""

    async def work(self, client: Client) -> None:
        while not self.shared.stopping:
            await self.pause(3.0)
            with suppress(ClientError):
                await self._change(client)
        while True:  # what is kept from anybody is not for ever
            try:
                await client.permit_topic(TOPIC, Permission.READ_WRITE)
            except TopicNotFound:
                return
            except ClientError:
                continue
            return

    async def _change(self, client: Client) -> None:
        chance = self.chance
        if chance.random() < 0.5:
            for what in (chance.choice((Permission.READ, Permission.WRITE)), Permission.READ_WRITE):
                await client.permit_topic(TOPIC, what)
                await self.pause(0.5)
            return
        self.shared.has_moved = True
        number = self.shared.queues + chance.choice((0, 1, 3))
        read = number  # refused, if a queue would go that somebody hasn't read
        if chance.random() < 0.7:
            read = max(number, (await client.describe_topic(TOPIC)).topic.queue_count)
        await client.update_topic(TOPIC, read_queues=read, write_queues=number)


class Looping(Program):
    """A pull consumer of a group: a loop over batches that commits what it has read, and seeks back
    where it couldn't do what it read."""

    GROUP = "loopers"

    async def work(self, client: Client) -> None:
        while not self.shared.closing:
            try:
                await self._loop_until_idle(client)
            except ClientClosed:
                raise
            except (ClientError, Slip):
                await self.pause(0.2)

    async def _loop_until_idle(self, client: Client) -> None:
        chance, book, process = self.chance, self.shared.books[self.GROUP], self.process
        assert process is not None
        options = ConsumerOptions(
            member=f"{self.name}.{self.life}",
            commit_every_s=chance.choice((None, 0.2)),
            hold_ms=500,
        )
        async with client.pull_consumer(
            TOPIC,
            group=self.GROUP,
            start=StartFrom.FIRST,
            idle_timeout_s=1.0,
            options=options,
        ) as consumer:
            async for batch in consumer.batches():
                fails = self.whims.random() < 0.1
                for message in batch:
                    handling = book.begin(process, message)
                    book.end(handling, is_done=not fails)
                if fails:
                    await consumer.seek(batch[0].queue_id, batch[0].queue_offset)
                if chance.random() < 0.3:
                    await self.pause(0.02)
                if options.commit_every_s is None:
                    await consumer.commit()
                if self.shared.closing:
                    return

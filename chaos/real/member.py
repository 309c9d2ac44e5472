"""A member of a consumer group under test, in a process of its own: what its handler does is known.

    python -m chaos.real.member ADDRESSES GROUP NAME STYLE TOPIC BOOK SEED

The book gets a line for each thing that happens to a message, before anything else does, so that a
process that is killed has said how far it was:

    {"us": 123456, "what": "begin", "value": "p0-1-17", "call": 18}

`us` is the machine's monotonic clock in microseconds; `what` is begin, done, failed; `call` numbers
the handler's calls, of which two may have the same message. A worker that
is handed single messages says besides when it asked (`asked`), and writes `settled` when an
acknowledgement was answered. A handler takes a few milliseconds, and fails now and then. The
process works until SIGTERM or the end of its standard input, so it can't outlive who started it; it
exits with 1 if the group won't have it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from chaos.checkers.deliveries import Style
from dledger.client import (
    Client,
    ClientError,
    ClientOptions,
    Delivery,
    Message,
    PushOptions,
    ReceiptExpired,
    SimpleConsumer,
)
from dledger.terminal.loops import run

WORK_S: Final = 0.004  # a handler takes up to so long
LONG_WORK_S: Final = 0.05  # or, now and then, up to so long
LONG_SHARE: Final = 0.02
FAILING_SHARE: Final = 0.005
AGAIN_S: Final = 0.2  # before a message that failed is tried again
CALL_S: Final = 10.0
HIDDEN_S: Final = 5.0  # a single message that somebody has
WORKERS: Final = 4  # of single messages, in one process
AT_ONCE: Final = 4  # messages that one of them asks for
WAIT_S: Final = 1.0
REST_S: Final = 0.2  # after a call that failed


class HandlerFailed(Exception):
    """On purpose."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a member is told."""

    addresses: str
    group: str
    name: str
    style: Style
    topic: str
    book: Path
    seed: str


def now_us() -> int:
    """By the machine's monotonic clock."""
    return time.monotonic_ns() // 1000


class Book:
    """A file of lines, each written by one call of the system."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, value: str, call: int, **more: int) -> None:
        """One more line."""
        line = {"us": now_us(), "what": what, "value": value, "call": call, **more}
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


def options_of(task: Task) -> PushOptions:
    """As small as makes hand-overs happen in the midst of work."""
    return PushOptions(
        member=task.name,
        in_order=task.style is Style.IN_ORDER,
        handlers=8,
        queue_messages=100,
        queue_span=200,
        retry_delays_s=(AGAIN_S,),
        suspend_s=AGAIN_S,
    )


class Done(NamedTuple):
    """A message that a call of the handler has done."""

    value: str
    call: int


class Work:
    """What is done with a message, whoever gave it."""

    def __init__(self, task: Task) -> None:
        self.book = Book(task.book)
        self._chance = Random(task.seed)
        self._calls = count()

    async def do(self, message: Message, **more: int) -> Done:
        """Returns once it is done.

        Raises:
            HandlerFailed: now and then.
        """
        value = message.body.rstrip(b" ").decode()
        call = next(self._calls)
        self.book.write("begin", value, call, **more)
        is_long = self._chance.random() < LONG_SHARE
        await asyncio.sleep(self._chance.uniform(0, LONG_WORK_S if is_long else WORK_S))
        if self._chance.random() < FAILING_SHARE:
            self.book.write("failed", value, call)
            raise HandlerFailed(value)
        self.book.write("done", value, call)
        return Done(value, call)


async def push(client: Client, task: Task, doing: Work) -> None:
    """Takes part in a group whose members hold queues."""
    consumer = client.push_consumer(task.group, options_of(task))

    @consumer.on(task.topic)
    async def handle(message: Message) -> None:
        await doing.do(message)

    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, consumer.stop)  # nothing is ever written there: it has ended
    await consumer.run()


class Worker:
    """One of those that are handed single messages. Every other one lets its acknowledgements ride
    on its next receive."""

    def __init__(self, consumer: SimpleConsumer, doing: Work, *, lets_ride: bool) -> None:
        self._consumer = consumer
        self._doing = doing
        self._lets_ride = lets_ride
        self._done: dict[Delivery, Done] = {}  # not known to be acknowledged

    async def run(self, stopping: asyncio.Event) -> None:
        """Until it is to stop; then nothing that it had in hand is left."""
        while not stopping.is_set():
            try:
                await self._round()
            except ClientError as error:
                if not error.retriable and not isinstance(error, ReceiptExpired):
                    raise
                await asyncio.sleep(REST_S)
        await self._acknowledge()

    async def _round(self) -> None:
        asked_us, riding = now_us(), tuple(self._done)
        try:
            given = await self._consumer.receive(AT_ONCE, wait_s=WAIT_S, done=riding)
        except ReceiptExpired:
            self._done.clear()  # one of them is somebody else's; which, isn't told
            raise
        self._settled(riding)
        for each in given:
            try:
                self._done[each] = await self._doing.do(each.message, asked=asked_us)
            except HandlerFailed:
                await each.retry(AGAIN_S)
        if not self._lets_ride:
            await self._acknowledge()

    async def _acknowledge(self) -> None:
        for each in tuple(self._done):
            try:
                await each.ack()
                self._settled((each,))
            except ReceiptExpired:
                del self._done[each]  # somebody else has it
            except ClientError:
                return  # they come again, or ride on what is next

    def _settled(self, deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            if (done := self._done.pop(each, None)) is not None:
                self._doing.book.write("settled", *done)


async def receive(client: Client, task: Task, doing: Work) -> None:
    """Is handed single messages."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, stopping.set)
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    async with client.simple_consumer(task.topic, task.group, invisible_s=HIDDEN_S) as consumer:
        workers = [Worker(consumer, doing, lets_ride=bool(each % 2)) for each in range(WORKERS)]
        await gather_all(each.run(stopping) for each in workers)


async def gather_all(works: Iterable[Coroutine[object, object, None]]) -> None:
    """All of them; the first that fails ends the others, and is what is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for each in works:
                tasks.create_task(each)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def work(task: Task) -> None:
    """Until SIGTERM or the end of standard input.

    Raises:
        ClientError: the group won't have this member.
    """
    options = ClientOptions(deadline_s=CALL_S)
    async with Client.connect(task.addresses, options=options) as client:
        take_part = receive if task.style is Style.SINGLY else push
        await take_part(client, task, Work(task))


def main() -> int:
    """The program."""
    addresses, group, name, style, topic, book, seed = sys.argv[1:]
    task = Task(addresses, group, name, Style(style), topic, Path(book), seed)
    try:
        run(work(task))
    except ClientError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

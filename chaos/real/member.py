"""A member of a consumer group under test, in a process of its own: what its handler does is known.

    python -m chaos.real.member ADDRESSES GROUP NAME order|any TOPIC BOOK SEED

The book gets a line for each thing that happens to a message, before anything else does, so that a
process that is killed has said how far it was:

    {"us": 123456, "what": "begin", "value": "p0-1-17"}

`us` is the machine's monotonic clock in microseconds; `what` is begin, done, failed. A handler
takes a few milliseconds, and fails now and then. The process works until SIGTERM or the end of its
standard input, so it can't outlive who started it; it exits with 1 if the group won't have it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from dledger.client import Client, ClientError, ClientOptions, Message, PushOptions
from dledger.terminal.loops import run

WORK_S: Final = 0.004  # a handler takes up to so long
LONG_WORK_S: Final = 0.05  # or, now and then, up to so long
LONG_SHARE: Final = 0.02
FAILING_SHARE: Final = 0.005
AGAIN_S: Final = 0.2  # before a message that failed is tried again
CALL_S: Final = 10.0


class HandlerFailed(Exception):
    """On purpose."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a member is told."""

    addresses: str
    group: str
    name: str
    in_order: bool
    topic: str
    book: Path
    seed: str


class Book:
    """A file of lines, each written by one call of the system."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, value: str) -> None:
        """One more line."""
        line = {"us": time.monotonic_ns() // 1000, "what": what, "value": value}
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


def options_of(task: Task) -> PushOptions:
    """As small as makes hand-overs happen in the midst of work."""
    return PushOptions(
        member=task.name,
        in_order=task.in_order,
        handlers=8,
        queue_messages=100,
        queue_span=200,
        retry_delays_s=(AGAIN_S,),
        suspend_s=AGAIN_S,
    )


async def work(task: Task) -> None:
    """Until SIGTERM or the end of standard input.

    Raises:
        ClientError: the group won't have this member.
    """
    book, chance = Book(task.book), Random(task.seed)
    options = ClientOptions(deadline_s=CALL_S)
    async with Client.connect(task.addresses, options=options) as client:
        consumer = client.push_consumer(task.group, options_of(task))

        @consumer.on(task.topic)
        async def handle(message: Message) -> None:
            value = message.body.rstrip(b" ").decode()
            book.write("begin", value)
            is_long = chance.random() < LONG_SHARE
            await asyncio.sleep(chance.uniform(0, LONG_WORK_S if is_long else WORK_S))
            if chance.random() < FAILING_SHARE:
                book.write("failed", value)
                raise HandlerFailed(value)
            book.write("done", value)

        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, consumer.stop)  # nothing is ever written there: it has ended
        await consumer.run()


def main() -> int:
    """The program."""
    addresses, group, name, order, topic, book, seed = sys.argv[1:]
    task = Task(addresses, group, name, order == "order", topic, Path(book), seed)
    try:
        run(work(task))
    except ClientError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

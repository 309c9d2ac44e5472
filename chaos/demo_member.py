"""A member of the demo's consumer group, in a process of its own: it writes down what it is given.

    python -m chaos.demo_member ADDRESSES GROUP TOPIC BOOK SHARE

The book gets one line for each message, by one call of the system, before the handler returns: what
isn't there when the process is killed was not handled. It makes the book when it has its share of
the queues, and works until SIGTERM or the end of its standard input, so it can't outlive the demo.
"""

from __future__ import annotations

import asyncio
import os
import sys

from chaos.account import FILE_PROPERTY, LINE_PROPERTY
from dledger.client import Client, Message
from dledger.terminal.loops import run

LOOK_S = 0.05


async def work(addresses: str, group: str, topic: str, book: str, share: int) -> None:
    """Until it is asked to go.

    Args:
        share: so many queues are its share.

    Raises:
        ClientError: the group won't have this member.
    """
    descriptor = -1
    async with Client.connect(addresses) as client:
        consumer = client.push_consumer(group)

        @consumer.on(topic)
        async def write_down(message: Message) -> None:
            file, number = message.properties[FILE_PROPERTY], message.properties[LINE_PROPERTY]
            os.write(descriptor, f"{file}\t{number}\n".encode())

        async def begin_book() -> None:
            nonlocal descriptor
            while consumer.statistics().queues < share:  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(LOOK_S)
            descriptor = os.open(book, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

        asyncio.get_running_loop().add_reader(sys.stdin, consumer.stop)
        beginning = asyncio.create_task(begin_book(), name="book")
        await consumer.run()
        if beginning.done():
            beginning.result()
        beginning.cancel()


if __name__ == "__main__":
    given_addresses, given_group, given_topic, given_book, queues = sys.argv[1:]
    run(work(given_addresses, given_group, given_topic, given_book, int(queues)))

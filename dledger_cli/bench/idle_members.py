"""Members of consumer groups that have nothing to do, each with a client and a stream of its own.

Member n of all is in group `PREFIX-` n modulo GROUPS. Says *ready* when each of its members holds
queues and has everything that is its own, then works until standard input ends. Run by
`dledger_cli.bench.members`.

    python -m dledger_cli.bench.idle_members ADDRESSES PREFIX TOPIC GROUPS FIRST COUNT
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

from dledger.client import Client, ClientOptions, Message, PushConsumer, PushOptions
from dledger.terminal.loops import run
from dledger.terminal.tls import chosen_files

LOOK_S = 0.05
CONNECTING = 8  # clients at once


async def work(addresses: str, prefix: str, topic: str, groups: int, numbers: range) -> None:
    """Attends until standard input ends.

    Raises:
        ClientError: one of them can't be a member.
    """
    async with contextlib.AsyncExitStack() as stack:
        room, consumers = asyncio.Semaphore(CONNECTING), list[PushConsumer]()

        async def attend(number: int) -> None:
            async with room:
                options = ClientOptions(tls=chosen_files())
                client = await stack.enter_async_context(Client.connect(addresses, options=options))
            push = PushOptions(member=f"m{number:05}")
            consumer = client.push_consumer(f"{prefix}-{number % groups}", push)

            @consumer.on(topic)
            async def look(_message: Message) -> None:
                return None

            consumers.append(consumer)

        await asyncio.gather(*map(attend, numbers))
        running = [asyncio.create_task(each.run(), name="member") for each in consumers]
        while not all(each.statistics().queues for each in consumers):
            for task in running:
                if task.done():
                    task.result()
            await asyncio.sleep(LOOK_S)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)
        for each in consumers:
            each.stop()
        await asyncio.gather(*running)


if __name__ == "__main__":
    logging.getLogger("dledger.client").setLevel(logging.ERROR)  # that leaders go is the subject
    addresses, prefix, topic, groups, first, count = sys.argv[1:]
    numbers = range(int(first), int(first) + int(count))
    run(work(addresses, prefix, topic, int(groups), numbers))

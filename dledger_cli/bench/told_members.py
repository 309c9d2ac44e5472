"""Members of a consumer group that tell of each message: the queue's id, and when it was handled.

All of one client; times are the machine's monotonic clock's, which is the same for all processes.
Says *at work* and the time first, then works until standard input ends. Run by
`dledger_cli.bench.rebalance`.

    python -m dledger_cli.bench.told_members ADDRESSES GROUP TOPIC NAME COUNT
"""

from __future__ import annotations

import asyncio
import sys
import time

from dledger.client import Client, ClientOptions, Message, PushOptions
from dledger.terminal.loops import run
from dledger.terminal.tls import chosen_files


async def work(addresses: str, group: str, topic: str, name: str, count: int) -> None:
    """Attends until standard input ends.

    Raises:
        ClientError: one of them can't be a member.
    """
    options = ClientOptions(tls=chosen_files())
    async with Client.connect(addresses, options=options) as client:
        consumers = [
            client.push_consumer(group, PushOptions(member=f"{name}-{number:04}"))
            for number in range(count)
        ]
        for consumer in consumers:

            @consumer.on(topic)
            async def look(message: Message) -> None:
                print(message.queue_id, time.monotonic(), flush=True)

        print("at work", time.monotonic(), flush=True)
        running = [asyncio.create_task(each.run(), name="member") for each in consumers]
        await asyncio.to_thread(sys.stdin.buffer.read)
        for each in consumers:
            each.stop()
        await asyncio.gather(*running)


if __name__ == "__main__":
    addresses, group, topic, name, count = sys.argv[1:]
    run(work(addresses, group, topic, name, int(count)))

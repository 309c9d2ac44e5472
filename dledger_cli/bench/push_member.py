"""A member of a consumer group in a process of its own, whose handler does nothing but look.

Works until standard input ends, so it can't outlive the benchmark that started it, however that one
died; then prints how many messages it has handled. Run by `dledger_cli.bench.push`.

    python -m dledger_cli.bench.push_member ADDRESSES GROUP TOPIC SIZE
"""

from __future__ import annotations

import asyncio
import sys

from dledger.client import Client, ClientOptions, Message
from dledger.terminal.loops import run
from dledger.terminal.tls import chosen_files


async def work(addresses: str, group: str, topic: str, size_bytes: int) -> int:
    """How many messages it was given until standard input ended.

    Raises:
        ClientError: it can't be a member.
        RuntimeError: a body isn't of that size.
    """
    handled = 0
    options = ClientOptions(tls=chosen_files())
    async with Client.connect(addresses, options=options) as client:
        consumer = client.push_consumer(group)

        @consumer.on(topic)
        async def look(message: Message) -> None:
            nonlocal handled
            if len(message.body) != size_bytes:
                raise RuntimeError(f"a body of {len(message.body)} bytes, not {size_bytes}")
            handled += 1

        running = asyncio.create_task(consumer.run(), name="member")
        await asyncio.to_thread(sys.stdin.buffer.read)
        consumer.stop()
        await running
    return handled


if __name__ == "__main__":
    addresses, group, topic, size_bytes = sys.argv[1:]
    print(run(work(addresses, group, topic, int(size_bytes))), flush=True)

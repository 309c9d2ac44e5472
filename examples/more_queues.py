"""A topic gets more queues while it is written and read, and each key stays in order; then it is
closed for writing, read to its end, and opened again.

make up
.venv/bin/python examples/more_queues.py run
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from pathlib import Path

from dledger.client import (
    Client,
    Message,
    Permission,
    PushConsumer,
    PushOptions,
    TopicNotWritable,
)

KEYS = [f"customer-{number}" for number in range(20)]
EACH = 50  # orders of a customer, before, between and after the changes


async def main(bootstrap: str) -> None:
    topic = group = f"orders-{uuid.uuid4().hex[:8]}"
    seen: dict[str, list[int]] = {}
    async with Client.connect(bootstrap) as client:
        await client.create_topic(topic, queues=4)
        everything = asyncio.Event()

        def member() -> PushConsumer:
            service = client.push_consumer(group, PushOptions(in_order=True))

            @service.on(topic)
            async def book(message: Message) -> None:
                # In order: a key's messages come one after the other, in whatever queue they lie.
                seen.setdefault(message.keys or "", []).append(int(message.body))
                if sum(map(len, seen.values())) == 3 * EACH * len(KEYS):
                    everything.set()

            return service

        async def write(first: int) -> None:
            async with client.producer() as producer:
                for number in range(first, first + EACH):
                    for key in KEYS:
                        producer.send(topic, b"%d" % number, key=key)
                await producer.flush()

        members = [member(), member()]
        running = [asyncio.create_task(each.run()) for each in members]
        await write(0)
        # To grow is one command; what is sent from now on goes to eight queues. A key that moves is
        # held back there until the group has read what it has in its old queue.
        info = await client.update_topic(topic, read_queues=8, write_queues=8)
        print(f"read and written: {info.queue_count} and {info.write_queues} queues")
        await write(EACH)
        # To shrink is two: the last four take nothing any more, and go once they are read.
        info = await client.update_topic(topic, write_queues=4)
        print(f"read and written: {info.queue_count} and {info.write_queues} queues")
        await write(2 * EACH)
        await everything.wait()
        for each in members:
            each.stop()  # finishes what it is at, commits, and says goodbye
        await asyncio.gather(*running)
        in_order = all(seen[key] == list(range(3 * EACH)) for key in KEYS)
        print(f"each customer's orders in order: {in_order}")
        info = await client.update_topic(topic, read_queues=4)
        print(f"read and written: {info.queue_count} and {info.write_queues} queues")

        await client.permit_topic(topic, Permission.READ)
        try:
            async with client.producer() as producer:
                await producer.send(topic, b"one more", key=KEYS[0])
        except TopicNotWritable:
            print("closed: nothing more is stored")
        await client.permit_topic(topic, Permission.READ_WRITE)
        async with client.producer() as producer:
            await producer.send(topic, b"one more", key=KEYS[0])
        print("open again")


if __name__ == "__main__":
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "run")
    nodes = json.loads((directory / "group.json").read_text())["nodes"]
    asyncio.run(main(",".join(node["address"] for node in nodes)))

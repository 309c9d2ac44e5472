"""Two members of a consumer group share a topic; one leaves, and the other takes over.

make up
.venv/bin/python examples/work_in_a_group.py run
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from pathlib import Path

from dledger.client import Client, Message, PushConsumer, PushOptions

COUNT = 400


async def main(bootstrap: str) -> None:
    topic = group = f"orders-{uuid.uuid4().hex[:8]}"
    async with Client.connect(bootstrap) as client:
        await client.create_topic(topic, queues=4)
        done: dict[str, list[str]] = {"anna": [], "ben": []}
        enough, everything = asyncio.Event(), asyncio.Event()

        def member(name: str) -> PushConsumer:
            service = client.push_consumer(group, PushOptions(member=name))

            @service.on(topic)
            async def bill(message: Message) -> None:
                # Returning means done, raising means again. Keys are handled in their order.
                await asyncio.sleep(0.05)
                done[name].append(message.body.decode())
                if len(done["anna"]) >= 40:
                    enough.set()
                if sum(map(len, done.values())) == COUNT:
                    everything.set()

            return service

        async with client.producer() as producer:
            for number in range(COUNT):
                producer.send(topic, f"order {number}".encode(), key=f"customer-{number % 20}")

        anna, ben = member("anna"), member("ben")
        running = [asyncio.create_task(service.run()) for service in (anna, ben)]
        await enough.wait()
        anna.stop()  # finishes what it is at, commits, and says goodbye
        await running[0]
        await everything.wait()
        ben.stop()
        await running[1]

        for name, orders in done.items():
            print(f"{name}: {len(orders)} orders")
        finished = sorted(done["anna"] + done["ben"])
        print(f"{len(finished)} orders, each once: {len(finished) == len(set(finished))}")
        offsets = await client.fetch_offsets(group, topic)
        print(f"committed: {sum(offsets.values())}")


if __name__ == "__main__":
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "run")
    nodes = json.loads((directory / "group.json").read_text())["nodes"]
    asyncio.run(main(",".join(node["address"] for node in nodes)))

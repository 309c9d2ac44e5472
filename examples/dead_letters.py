"""A message that nobody can work on becomes a dead letter, and is sent again once it is known why.

make up
.venv/bin/python examples/dead_letters.py run
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from pathlib import Path

from dledger.client import Client, Message, Reject


async def main(bootstrap: str) -> None:
    topic = group = f"payments-{uuid.uuid4().hex[:8]}"
    async with Client.connect(bootstrap) as client:
        await client.create_topic(topic, queues=2)
        async with client.producer() as producer:
            for amount in (b"10", b"ten", b"30"):
                producer.send(topic, amount)

        known = {b"ten": 10}  # what a later release of the service understands
        booked: list[int] = []
        is_released = False

        async def work(count: int) -> None:
            """Until so many messages were handled, well or not."""
            service = client.push_consumer(group)
            left = count

            @service.on(topic)
            async def book(message: Message) -> None:
                nonlocal left
                left -= 1
                if not left:
                    service.stop()  # what is at work is finished, what failed is sent back
                if message.body.isdigit():
                    booked.append(int(message.body))
                elif is_released:
                    booked.append(known[message.body])
                else:
                    raise Reject(f"{message.body!r} is no amount")

            await service.run()

        await work(3)
        letters = await client.dead_letters(group)
        for letter in (await client.pull(letters.topic, 0, 0)).messages:
            why = letter.properties["DLQ_REASON"]
            print(f"dead: {letter.body.decode()}, {why}, attempt {letter.reconsume_times}")

        is_released = True
        for _ in range(2):
            resent = await client.resend(group, 0)
            print("sent again" if resent.offset is not None else "was sent again before")
        await work(1)
        print(f"booked: {sum(booked)}")


if __name__ == "__main__":
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "run")
    nodes = json.loads((directory / "group.json").read_text())["nodes"]
    asyncio.run(main(",".join(node["address"] for node in nodes)))

"""Sends a few messages and reads them back.

make up
.venv/bin/python examples/produce_and_consume.py run
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from dledger.client import Client, ClientError, StartFrom


async def main(bootstrap: str) -> None:
    async with Client.connect(bootstrap) as client:
        await client.create_topic("greetings", queues=4, if_not_exists=True)

        async with client.producer() as producer:
            # Each message has a future of its own; messages of one key stay in order.
            futures = [
                producer.send("greetings", f"hello {number}".encode(), key="me")
                for number in range(10)
            ]
            for future in futures:
                try:
                    result = await future
                    print(f"stored in queue {result.queue_id} at {result.queue_offset}")
                except ClientError as error:
                    # `outcome` says whether the message was not stored, or may have been.
                    print(f"{error.outcome}: {error}")

        consumer = client.pull_consumer("greetings", start=StartFrom.FIRST, idle_timeout_s=1)
        async for message in consumer:
            print(message.queue_id, message.queue_offset, message.body.decode())


if __name__ == "__main__":
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "run")
    nodes = json.loads((directory / "group.json").read_text())["nodes"]
    asyncio.run(main(",".join(node["address"] for node in nodes)))

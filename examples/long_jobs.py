"""Three workers share long jobs, each any of them; one fails now and then, and another does it.

make up
.venv/bin/python examples/long_jobs.py run
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import uuid
from pathlib import Path

from dledger.client import Client

JOBS = 60


async def main(bootstrap: str) -> None:
    topic = group = f"videos-{uuid.uuid4().hex[:8]}"
    async with Client.connect(bootstrap) as client:
        await client.create_topic(topic, queues=2)
        async with client.producer() as producer:
            for number in range(JOBS):
                producer.send(topic, f"video {number}".encode())

        done: list[str] = []
        failed = 0
        finished = asyncio.Event()

        async def work(seed: int) -> None:
            nonlocal failed
            chance = random.Random(seed)
            async for job in client.simple_consumer(topic, group, invisible_s=30):
                try:
                    async with job as message:  # hidden from the others while inside
                        await asyncio.sleep(chance.uniform(0, 0.02))
                        if chance.random() < 0.2:
                            raise RuntimeError("the encoder has crashed")
                except RuntimeError:
                    failed += 1  # it was given back, and comes again, to any of them
                    continue
                done.append(message.body.decode())
                if len(done) == JOBS:
                    finished.set()

        workers = [asyncio.create_task(work(seed)) for seed in range(3)]
        await finished.wait()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

        print(f"{len(done)} jobs done, each once: {len(done) == len(set(done))}")
        print(f"some failed at first: {failed > 0}")
        offsets = await client.fetch_offsets(group, topic)
        print(f"finished: {sum(offsets.values())}")


if __name__ == "__main__":
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "run")
    nodes = json.loads((directory / "group.json").read_text())["nodes"]
    asyncio.run(main(",".join(node["address"] for node in nodes)))

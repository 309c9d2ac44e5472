"""A worker that is handed messages one by one and acknowledges each with its next receive.

Says *ready*, begins at the first line of standard input, then says how many it has acknowledged so
far and when, by the machine's monotonic clock, until standard input ends. Run by
`dledger_cli.bench.pop`.

    python -m dledger_cli.bench.pop_worker ADDRESSES GROUP TOPIC SIZE UNDER_WAY BATCH
"""

from __future__ import annotations

import asyncio
import sys
import time

from dledger.client import Client, ClientOptions, Delivery, SimpleConsumer
from dledger.terminal.loops import run
from dledger.terminal.tls import chosen_files

TELL_EVERY_S = 0.02
WAIT_S = 0.5  # for a message; then it is asked again whether to go on


class Receiving:
    """So many receives at once."""

    def __init__(self, consumer: SimpleConsumer, size_bytes: int, batch: int) -> None:
        self._consumer = consumer
        self._size_bytes = size_bytes
        self._batch = batch
        self.acknowledged = 0
        self.is_over = False

    async def go_on(self) -> None:
        """One after the other, until it is over; all that came is acknowledged.

        Raises:
            ClientError: a receive failed.
            RuntimeError: a body isn't of that size.
        """
        done: list[Delivery] = []
        while done or not self.is_over:
            wait_s = 0.0 if self.is_over else WAIT_S
            found = await self._consumer.receive(self._batch, wait_s=wait_s, done=done)
            self.acknowledged += len(done)
            for each in found:
                if len(each.message.body) != self._size_bytes:
                    raise RuntimeError(f"a body of {len(each.message.body)} bytes")
            done = found

    async def tell(self) -> None:
        """What has been acknowledged, whenever that is more."""
        told = -1
        while True:
            if told != self.acknowledged:
                told = self.acknowledged
                print(told, time.monotonic(), flush=True)
            await asyncio.sleep(TELL_EVERY_S)


async def work(
    addresses: str, group: str, topic: str, size_bytes: int, under_way: int, batch: int
) -> None:
    """Receives until standard input ends."""
    options = ClientOptions(tls=chosen_files())
    async with Client.connect(addresses, options=options) as client:
        consumer = client.simple_consumer(topic, group)
        receiving = Receiving(consumer, size_bytes, batch)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.buffer.readline)
        telling = asyncio.create_task(receiving.tell(), name="tell")
        async with asyncio.TaskGroup() as tasks:
            for _ in range(under_way):
                tasks.create_task(receiving.go_on(), name="receive")
            await asyncio.to_thread(sys.stdin.buffer.read)
            receiving.is_over = True
        telling.cancel()


if __name__ == "__main__":
    addresses, group, topic, *numbers = sys.argv[1:]
    size_bytes, under_way, batch = map(int, numbers)
    run(work(addresses, group, topic, size_bytes, under_way, batch))

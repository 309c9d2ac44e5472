"""A push consumer as a process of its own, that a test can kill, stop, and read.

    python -m tests.integration.member_program ADDRESSES GROUP TOPIC MEMBER SECONDS

It says `handled QUEUE OFFSET` when a handler begins with a message, `done QUEUE OFFSET` SECONDS
later, `revoked QUEUES LOST`, and at the end how it ended; warnings of the client go to standard
error. SIGTERM stops it.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from dledger.client import Client, ClientError, Message, PushOptions, RevokedQueues


async def work(addresses: str, group: str, topic: str, member: str, seconds: float) -> None:
    """Until SIGTERM, or an error."""
    options = PushOptions(member=member, handlers=4, hold_ms=1_000)
    async with Client.connect(addresses) as client:
        service = client.push_consumer(group, options)

        @service.on(topic)
        async def handle(message: Message) -> None:
            print("handled", message.queue_id, message.queue_offset, flush=True)
            await asyncio.sleep(seconds)
            print("done", message.queue_id, message.queue_offset, flush=True)

        @service.on_revoke
        def revoked(queues: RevokedQueues) -> None:
            print("revoked", *queues.queue_ids, queues.lost, flush=True)

        print("running", flush=True)
        try:
            await service.run()
        except ClientError as error:
            print("ended", error.code, flush=True)
        else:
            print("ended", "well", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    _, addresses, group, topic, member, seconds = sys.argv
    asyncio.run(work(addresses, group, topic, member, float(seconds)))

"""A push consumer as a process of its own, that a test can kill, stop, and read.

    python -m tests.integration.member_program ADDRESSES GROUP TOPIC MEMBER SECONDS

It says `handled QUEUE OFFSET` when a handler begins with a message, `done QUEUE OFFSET` SECONDS
later, `revoked QUEUES LOST`, and at the end how it ended; warnings of the client go to standard
error. SIGTERM stops it. A line is one write: who is killed has said all of it or nothing, also
where Python doesn't buffer.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from dledger.client import Client, ClientError, Message, PushOptions, RevokedQueues


def say(*words: object) -> None:
    """One line, in one write."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def work(addresses: str, group: str, topic: str, member: str, seconds: float) -> None:
    """Until SIGTERM, or an error."""
    options = PushOptions(member=member, handlers=4, hold_ms=1_000)
    async with Client.connect(addresses) as client:
        service = client.push_consumer(group, options)

        @service.on(topic)
        async def handle(message: Message) -> None:
            say("handled", message.queue_id, message.queue_offset)
            await asyncio.sleep(seconds)
            say("done", message.queue_id, message.queue_offset)

        @service.on_revoke
        def revoked(queues: RevokedQueues) -> None:
            say("revoked", *queues.queue_ids, queues.lost)

        say("running")
        try:
            await service.run()
        except ClientError as error:
            say("ended", error.code)
        else:
            say("ended", "well")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    _, addresses, group, topic, member, seconds = sys.argv
    asyncio.run(work(addresses, group, topic, member, float(seconds)))

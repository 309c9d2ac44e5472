"""A group of real nodes on a real file system that somebody else fills, and clears again.

Run as a program it makes a small tmpfs for itself alone (in a mount namespace of its own, so it
needs root). True at its end: sends were refused for want of space while pulls went on, and were
taken again when there was space, by the same processes, with nothing lost.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from broker.doctor.asking import ask_group
from broker.doctor.finding import Kind
from broker.doctor.judging import judge
from broker.local_group import GroupOptions, LocalGroup
from dledger.client import Client, ClientError, ClientOptions, ProducerOptions
from tests.integration.filled_disk import fill

DISK_BYTES = 256 << 20
SEGMENT_BYTES = 8 << 20
BODY_BYTES = 200 << 10
TOPIC = "t"
WAIT_S = 60.0
SOON_MS = 20_000  # what a retry of the client and a loaded machine may add to "within seconds"


async def send_until_refused(client: Client) -> tuple[int, str]:
    """How many were stored, and what the refusal was called."""
    stored, deadline = 0, time.monotonic() + WAIT_S
    async with client.producer(ProducerOptions(delivery_timeout_ms=3_000)) as producer:
        while time.monotonic() < deadline:
            try:
                await producer.send(TOPIC, bytes(BODY_BYTES))
            except ClientError as error:
                return stored, f"{type(error).__name__}: {error}"
            stored += 1
    raise AssertionError("a full disk takes everything")


async def count_of(client: Client) -> int:
    return (await client.queue_offsets(TOPIC, 0)).max_offset


async def scenario(root: Path) -> None:
    group = LocalGroup.create(root / "run", GroupOptions(3, None, SEGMENT_BYTES, None))
    await group.up(WAIT_S)
    pids = [node.pid for node in group.nodes]
    filler = root / "filler"
    try:
        addresses = ",".join(group.addresses)
        options = ClientOptions(deadline_s=WAIT_S)
        async with Client.connect(addresses, options=options) as client:
            await client.create_topic(TOPIC, queues=1)
            async with client.producer() as producer:
                await producer.send(TOPIC, b"before")
            fill(filler)
            stored, refusal = await send_until_refused(client)
            ids = {each.kind for each in judge(await ask_group(group.addresses, None))}
            if Kind.DISK_FULL not in ids:
                raise AssertionError(f"the doctor finds {ids}, sends were told {refusal}")
            pulled = await client.pull(TOPIC, 0, 0)
            if not pulled.messages:
                raise AssertionError("pulls don't go on")
            filler.unlink()
            began = time.monotonic()
            options_after = ProducerOptions(delivery_timeout_ms=SOON_MS)
            async with client.producer(options_after) as producer:
                await producer.send(TOPIC, b"after")
            took = time.monotonic() - began
            held = await count_of(client)
        status = await group.status()
        if [node.pid for node in group.nodes] != pids or not status.serves_fully:
            raise AssertionError(f"not the same processes, or not all: {status}")
        if held < stored + 2:
            raise AssertionError(f"{stored} were stored before, {held} are there")
        sys.stdout.write(
            f"{stored} stored, then {refusal.split(':')[0]}; again after {took:.2f} s\n"
        )
    finally:
        filler.unlink(missing_ok=True)
        await group.down()


def main() -> None:
    root = Path(sys.argv[1])
    options = f"size={DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(root)], check=True)
    asyncio.run(scenario(root))


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("needs root")
    main()

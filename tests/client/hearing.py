"""What a client has heard of its group; no public call tells."""

from __future__ import annotations

import asyncio

from dledger.client import Client


async def heard(client: Client) -> None:
    """Returns when a node has told `client` something."""
    loop = asyncio.get_running_loop()
    await client._broker_group._news(loop.time() + 30.0)


async def leaderless(client: Client) -> None:
    """Returns once `client` knows of no leader that serves."""
    while client._broker_group.target is not None:
        await heard(client)

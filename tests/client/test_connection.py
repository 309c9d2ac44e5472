"""The link to one node: its watch ends when it is told to, whatever happens at that moment."""

from __future__ import annotations

import asyncio
import socket

import grpc

from dledger.client.connection import NodeLink
from tests.client.loops import async_test

LIMIT_S = 10.0


@async_test
async def test_link_that_is_closed_while_it_is_nudged_ends() -> None:
    """Found by the surface's state machine: a view woke the watch in the turn of the loop in which
    `close` cancelled it, `asyncio.wait_for` gave the wake-up and dropped the cancellation (Python
    before 3.12), and `close` waited for ever."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        lost = asyncio.Event()
        link = NodeLink(
            address,
            grpc.aio.insecure_channel(address),
            "",
            on_view=lambda *_: None,
            on_lost=lambda *_: lost.set(),
        )
        async with asyncio.timeout(LIMIT_S):
            await lost.wait()  # it pauses now
            await asyncio.sleep(0)
            link.nudge()
            await link.close()

"""How a node stops while others want something of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from broker import node
from broker.doors.grpc.door import GrpcDoor
from dledger.addresses import split_address
from tests.integration.group import Group, free_ports, make_configs

MUCH_LESS_THAN_A_SCRAPE_WAITS_S = 3.0


def test_stop_does_not_wait_for_a_scrape_that_waits_for_the_stop(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The metrics are of the event loop, and closing their endpoint waits for who is answered."""
    scraping = threading.Event()
    client = socket.socket()

    class Asyncio:
        """As it is, but that a scrape which waits for the loop is noticed."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        def run_coroutine_threadsafe(self, work: Any, loop: asyncio.AbstractEventLoop) -> Any:
            waiting = asyncio.run_coroutine_threadsafe(work, loop)
            scraping.set()
            return waiting

    really_close = GrpcDoor.close

    async def close(door: GrpcDoor) -> None:
        """What is closed next is the metrics, in the same turn of the loop."""
        await really_close(door)
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert scraping.wait(20)

    async def run() -> float:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        group = Group(make_configs(tmp_path, 1, metrics_listen=address))
        await group.start()
        await group.leader()
        client.connect(split_address(address))
        began = asyncio.get_running_loop().time()
        await group.close()
        return asyncio.get_running_loop().time() - began

    monkeypatch.setattr(node, "asyncio", Asyncio())
    monkeypatch.setattr(GrpcDoor, "close", close)
    with client:
        assert asyncio.run(run()) < MUCH_LESS_THAN_A_SCRAPE_WAITS_S


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN], ids=["usual", "nohup"])
def test_a_terminal_that_closes_stops_a_node_in_order(tmp_path: Path, before: Any) -> None:
    """Without a file for its log SIGHUP is SIGTERM, unless it is to be ignored; with one it means
    that file."""
    (config,) = make_configs(tmp_path, 1)

    async def run() -> int:
        running = asyncio.ensure_future(node.run_node(config))
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            await asyncio.sleep(0)
        assert (signal.getsignal(signal.SIGHUP) is before) == (before is signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGHUP)
        if before is signal.SIG_IGN:
            await asyncio.sleep(0.2)
            assert not running.done()
            os.kill(os.getpid(), signal.SIGTERM)
        return await running

    former = signal.signal(signal.SIGHUP, before), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert asyncio.run(run()) == 0
    finally:
        signal.signal(signal.SIGHUP, former[0])
        signal.signal(signal.SIGTERM, former[1])

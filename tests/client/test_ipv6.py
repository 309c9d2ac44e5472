"""A client whose nodes are reached over IPv6, as through a tunnel of that kind."""

from __future__ import annotations

import socket

import pytest

from dledger.client import Client
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.test_consumer import QUICK


def free_port() -> int:
    """One of the loopback's; skips where there is no IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            port: int = probe.getsockname()[1]
            return port
    except OSError:
        pytest.skip("no IPv6 here")


@async_test
async def test_client_sends_and_reads_over_ipv6() -> None:
    """A record has no room for such a host: it reads 0.0.0.0."""
    group = FakeGroup(nodes=1)
    group.nodes[0].address = f"[::1]:{free_port()}"
    async with group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.model.create("t", 1)
        async with client.producer() as producer:
            stored = await producer.send("t", b"x", key="k")
        (message,) = [m async for m in client.pull_consumer("t", idle_timeout_s=0)]
        assert (message.body, message.born_host) == (b"x", ("0.0.0.0", 0))
        assert (await client.get_message(message_id=stored.message_id)).body == b"x"

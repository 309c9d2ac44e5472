"""Nodes that run out of descriptors: connections may go, what is stored and who serves may not."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path

import grpc
import pytest

from broker import descriptors
from broker.descriptors import Descriptors, TooFewDescriptors
from broker.doors.grpc import bounds
from broker.doors.grpc.bounds import ConnectionBounds, server_options
from chaos.fuzz.connections import idle, still_open
from chaos.fuzz.target import harassed, loaded, served, vitals

LIMIT = 300
CONNECTIONS = 900  # on each node
IDLE_MS = 2_000
GONE_S = 30.0  # handshakes that never end are given up after ten


@pytest.mark.slow
def test_idle_connections_beyond_the_limit_stop_nobody(tmp_path: Path) -> None:
    """900 on each node that may have 300 descriptors: good producers lose nothing, no node ends
    or spins, none is short of descriptors, and new clients are served when the idle have gone."""

    async def scenario() -> None:
        broker = {"idle_connection_ms": IDLE_MS}
        async with harassed(tmp_path / "g", descriptors=LIMIT, broker=broker) as group:
            async with loaded(group) as load:
                began = time.monotonic()
                # Making the connections holds up the loop that the load runs on, too.
                while load.sent <= 10 and time.monotonic() < began + GONE_S:
                    await asyncio.sleep(0.05)
                before, began = vitals(group), time.monotonic()
                with idle(group.addresses, CONNECTIONS * len(group.nodes)) as connections:
                    assert len(connections) > CONNECTIONS
                    worst = max(each.descriptors for each in vitals(group))
                    assert worst < LIMIT - descriptors.RESERVED
                    while still_open(connections) and time.monotonic() < began + GONE_S:
                        await asyncio.sleep(0.5)
                    assert still_open(connections) == 0
                    assert await served(group, within_s=10)
                after, seconds = vitals(group), time.monotonic() - began
                for was, now in zip(before, after, strict=True):
                    assert now.alive
                    assert now.tracebacks == 0
                    assert now.cpu_s - was.cpu_s < 0.7 * seconds, "the accepting spins"
            assert load.sent > 10
            assert await load.compare(group.addresses) == []

    asyncio.run(scenario())


def test_limit_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the soft to the hard one, and no further than is of use."""
    limits = {"now": (256, 4_096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    assert descriptors.raised() == Descriptors(4_096)
    assert limits["now"] == (4_096, 4_096)
    limits["now"] = (1_024, resource.RLIM_INFINITY)
    assert descriptors.raised().limit == descriptors.WANTED
    limits["now"] = (1_048_576, 1_048_576)
    assert descriptors.raised().limit == 1_048_576
    assert limits["now"] == (1_048_576, 1_048_576)
    limits["now"] = (64, 100)
    with pytest.raises(TooFewDescriptors, match="100 open files"):
        descriptors.raised()


@pytest.mark.parametrize("limit", [128, 300, 1_024, 65_536])
def test_connections_leave_room_for_what_safety_needs(limit: int) -> None:
    """However few there are: files of the log and the queues, peers, the reserve."""
    shares = Descriptors(limit)
    assert shares.connections >= 64
    assert shares.connections + shares.queue_files + descriptors.RESERVED < 0.75 * limit


def test_half_a_greeting_is_given_up_long_before_an_idle_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever doesn't speak HTTP/2 in time gives its place back."""
    monkeypatch.setattr(bounds, "HANDSHAKE_MS", 300)

    async def scenario() -> None:
        options = server_options(ConnectionBounds(count=10, idle_ms=3_600_000))
        server = grpc.aio.server(options=options)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            with idle([address], 2) as connections:  # one silent, one that stops in between
                deadline = time.monotonic() + GONE_S / 2
                while still_open(connections):
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
        finally:
            await server.stop(None)

    asyncio.run(scenario())

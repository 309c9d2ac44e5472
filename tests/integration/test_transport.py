"""Dialing goes on whatever a peer does; see also tests/integration/test_bad_input.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from dledger.core.types import NodeId
from dledger.greeting import Identity
from dledger.links import LinkTimes
from dledger.transport import GrpcTransport
from dledger.wire.raft_pb2 import PeerMessage
from tests.integration.group import free_ports
from tests.integration.members import Member, serve

N1, N2 = NodeId("n1"), NodeId("n2")
Behaviour = Callable[[Any, bytes], Awaitable[None]]


async def ends_at_once(context: Any, hello: bytes) -> None:
    """Ends the stream with status OK, without a Hello."""


async def answers_garbage(context: Any, hello: bytes) -> None:
    await context.write(b"\xff\xff\xff")


async def answers_no_hello(context: Any, hello: bytes) -> None:
    await context.write(b"")


async def garbage_after_hello(context: Any, hello: bytes) -> None:
    theirs = Identity("g", N2, 4096).hello(N1)
    await context.write(theirs.SerializeToString())
    await context.write(b"\xff\xff\xff")
    await context.read()


async def ends_after_hello(context: Any, hello: bytes) -> None:
    await context.write(Identity("g", N2, 4096).hello(N1).SerializeToString())


async def dials_seen(behaviour: Behaviour, wanted: int) -> int:
    """How often n1 dials a peer that behaves so, until `wanted` or a deadline."""
    seen = asyncio.Semaphore(0)
    count = 0

    async def replicate(requests: Any, context: Any) -> None:
        nonlocal count
        hello = await context.read()
        assert PeerMessage.FromString(hello).hello.node_id == N1
        count += 1
        seen.release()
        await behaviour(context, hello)

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(replicate)
    generic = grpc.method_handlers_generic_handler("dledger.v1.RaftPeer", {"Replicate": handler})
    server.add_generic_rpc_handlers((generic,))
    port = free_ports(1)[0]
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    members = {N1: "127.0.0.1:1", N2: f"127.0.0.1:{port}"}
    times = LinkTimes(refused_s=0.02)
    dialing = GrpcTransport(
        Identity("g", N1, 4096), members, lambda *_: None, lambda _: None, times
    )
    dialing.start()
    try:
        for _ in range(wanted):
            await asyncio.wait_for(seen.acquire(), 20)
    finally:
        await dialing.stop()
        await server.stop(0)
    return count


@pytest.mark.parametrize(
    "behaviour",
    [ends_at_once, answers_garbage, answers_no_hello, garbage_after_hello, ends_after_hello],
)
def test_a_peer_that_misbehaves_is_dialed_again(behaviour: Behaviour) -> None:
    """No answer of a peer, however wrong, ends the dialing."""
    assert asyncio.run(dials_seen(behaviour, 3)) >= 3


class Aborted(Exception):
    """As gRPC ends a handler whose call is aborted."""


def test_nobody_is_heard_before_the_start() -> None:
    """A door may be open by then; what this node knows of its members and has promised is told to
    the links just before."""

    class Call:
        async def abort(self, code: grpc.StatusCode, details: str) -> None:
            assert code is grpc.StatusCode.UNAVAILABLE  # the caller dials again soon
            raise Aborted(details)

    async def scenario() -> None:
        identity = Identity("g", N1, 4096)
        early = GrpcTransport(identity, {}, lambda *_: None, lambda _: None, LinkTimes())
        call: Any = Call()
        with pytest.raises(Aborted, match="is starting"):
            await early.serve(call, call)

    asyncio.run(scenario())


def test_who_hangs_up_is_dialed_again_and_waits_for_nobody() -> None:
    """A process that another one follows: the door's grace is for calls that end, and peers'
    streams don't by themselves. They are told to come again."""

    async def scenario() -> None:
        loop, times = asyncio.get_running_loop(), LinkTimes()
        here, there = (f"127.0.0.1:{port}" for port in free_ports(2))
        one, two = Member(N1, {N2: there}, times), Member(N2, {N1: here}, times)
        server, other = await serve(one, here), await serve(two, there)
        one.transport.start()
        two.transport.start()
        await two.is_answered_by(N1)
        one.transport.hang_up()
        begin = loop.time()
        await server.stop(30.0)
        assert loop.time() - begin < 10.0
        await one.transport.stop()
        again = Member(N1, {N2: there}, times)
        server = await serve(again, here)
        again.transport.start()
        await two.is_answered_by(N1)
        for each in (two, again):
            await each.transport.stop()
        await asyncio.gather(server.stop(0), other.stop(0))

    asyncio.run(scenario())

"""Peer transports without nodes: real gRPC, real ports, proxies between them.

Each member answers every request, so a request that is answered has used one stream in both
directions. Everything is in this process and on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from chaos.real.network import Network
from dledger.core.types import NodeId
from dledger.greeting import Identity
from dledger.links import LinkTimes
from dledger.transport import METHOD, GrpcTransport
from dledger.wire.raft_pb2 import HeartbeatRequest, HeartbeatResponse, PeerMessage
from tests.integration.group import free_ports

SEGMENT_BYTES = 4096
ASK_EVERY_S = 0.02
WITHIN_S = 20.0


class Member:
    """One end of the links."""

    def __init__(self, name: NodeId, dial: Mapping[NodeId, str], times: LinkTimes) -> None:
        self.name = name
        self.broken: list[NodeId] = []
        self.requests: list[int] = []
        self._answered: set[int] = set()
        self._asked = 0
        identity = Identity("g", name, SEGMENT_BYTES)
        self.transport = GrpcTransport(identity, dial, self._hear, self.broken.append, times)

    def _hear(self, peer: NodeId, message: PeerMessage) -> None:
        if message.HasField("heartbeat_request"):
            self.requests.append(message.term)
            answer = PeerMessage(term=message.term, heartbeat_response=HeartbeatResponse())
            self.transport.send_answer(peer, answer)
        else:
            self._answered.add(message.term)

    async def is_answered_by(self, peer: NodeId, within_s: float = WITHIN_S) -> float:
        """How many seconds it takes until a request of now or later has been answered."""
        loop = asyncio.get_running_loop()
        begin, first = loop.time(), self._asked + 1
        while not any(number >= first for number in self._answered):
            if loop.time() - begin > within_s:
                raise AssertionError(f"{self.name} got no answer of {peer} in {within_s} s")
            self._asked += 1
            request = PeerMessage(term=self._asked, heartbeat_request=HeartbeatRequest())
            self.transport.send_request(peer, request)
            await asyncio.sleep(ASK_EVERY_S)
        return loop.time() - begin


class Pair:
    """n1 and n2, and the proxies between them."""

    def __init__(self, network: Network, members: Mapping[NodeId, Member]) -> None:
        self.network = network
        self.members = members

    async def talk(self, within_s: float = WITHIN_S) -> float:
        """How many seconds it takes until each has had an answer of the other."""
        one, other = self.members.values()
        return max(
            await asyncio.gather(
                one.is_answered_by(other.name, within_s), other.is_answered_by(one.name, within_s)
            )
        )

    def address(self, name: NodeId) -> str:
        """Where it listens; nothing is between."""
        host, port = self.network.listening(name)
        return f"{host}:{port}"


@contextlib.asynccontextmanager
async def pair(times: LinkTimes | None = None, *, is_started: bool = True) -> AsyncIterator[Pair]:
    """Two members that dial each other, stopped at the end."""
    names = (NodeId("n1"), NodeId("n2"))
    addresses = {
        str(name): f"127.0.0.1:{port}" for name, port in zip(names, free_ports(2), strict=True)
    }
    network = Network(addresses, seed=1)
    await network.open()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(network.close)
        members: dict[NodeId, Member] = {}
        for name in names:
            dial = {NodeId(to): at for to, at in network.dial_table(name).items()}
            members[name] = Member(name, dial, times or LinkTimes())
            server = await serve(members[name], addresses[name])
            stack.push_async_callback(server.stop, 0)
            stack.push_async_callback(members[name].transport.stop)
            if is_started:
                members[name].transport.start()
        yield Pair(network, members)


async def serve(member: Member, address: str) -> grpc.aio.Server:
    """A server on which `member` can be called."""
    handler = grpc.stream_stream_rpc_method_handler(
        member.transport.serve,
        request_deserializer=PeerMessage.FromString,
        response_serializer=PeerMessage.SerializeToString,
    )
    service, method = METHOD.strip("/").split("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    assert server.add_insecure_port(address)
    await server.start()
    return server


class Thief:
    """Somebody who calls a member in the name of another."""

    def __init__(self, channel: Any) -> None:
        self.call: Any = channel.stream_stream(
            METHOD,
            request_serializer=PeerMessage.SerializeToString,
            response_deserializer=PeerMessage.FromString,
        )()

    async def say(self, message: PeerMessage) -> None:
        """Says it, on the stolen stream."""
        await self.call.write(message)

    async def is_greeted(self) -> None:
        """The Hello that came back has been read."""
        answer = await asyncio.wait_for(self.call.read(), WITHIN_S)
        assert answer.HasField("hello")

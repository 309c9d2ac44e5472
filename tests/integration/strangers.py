"""Groups under TLS or with a secret, and what strangers say to their nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from broker.config import NodeConfig
from dledger.client import Client, ClientOptions, TlsFiles
from dledger.core.types import Index, NodeId, Term
from dledger.greeting import Identity
from dledger.promises import Start
from dledger.transport import METHOD
from dledger.wire.raft_pb2 import PeerMessage
from tests.certificates import Authority
from tests.integration.group import SEGMENT_BYTES, Group, disk_of

N1, N2 = NodeId("n1"), NodeId("n2")
# A start that knows whatever the disk may have promised.
LATER = Start(99, term=Term(1 << 40), last_index=Index(1 << 40))


def with_tls(configs: list[NodeConfig], authority: Authority, **keys: object) -> list[NodeConfig]:
    """The same nodes with certificates; `keys` go into `[tls]`."""
    return [changed(config, tls={**authority.node(config.node_id), **keys}) for config in configs]


def changed(config: NodeConfig, **keys: object) -> NodeConfig:
    document = config.model_dump(exclude_none=True)
    return NodeConfig.model_validate({**document, **keys})


@contextlib.asynccontextmanager
async def running(configs: list[NodeConfig]) -> AsyncIterator[Group]:
    group = Group(configs)
    try:
        await group.start()
        await group.leader()
        yield group
    finally:
        await group.close()


async def talk(configs: list[NodeConfig], tls: TlsFiles | None, deadline_s: float = 10.0) -> int:
    """Creates a topic, sends and reads ten messages; how many came back."""
    addresses = [config.listen for config in configs]
    options = ClientOptions(deadline_s=deadline_s, tls=tls)
    async with Client.connect(addresses, options=options) as client:
        await client.create_topic("t", queues=1)
        async with client.producer() as producer:
            for number in range(10):
                await producer.send("t", b"%d" % number)
        return len((await client.pull("t", 0, 0)).messages)


async def said_to(config: NodeConfig, *messages: PeerMessage, channel: Any = None) -> str:
    """Why a stream that says these things to a node is ended."""
    channel = channel or grpc.aio.insecure_channel(config.listen)
    async with channel:
        call = peer_call(channel)
        try:
            for message in messages:
                await call.write(message)
            while True:
                if await asyncio.wait_for(call.read(), 20) is grpc.aio.EOF:  # type: ignore[attr-defined]
                    break
        except grpc.aio.AioRpcError:
            pass
        return str(await call.details())


def peer_call(channel: Any) -> Any:
    """A stream between peers; the stubs want arguments that have defaults."""
    method = channel.stream_stream(
        METHOD,
        request_serializer=PeerMessage.SerializeToString,
        response_deserializer=PeerMessage.FromString,
    )
    return method()


def hello_of(name: str, to: str = "n1") -> PeerMessage:
    speaker = Identity("g1", NodeId(name), SEGMENT_BYTES, disk_of(name), LATER)
    return speaker.hello(NodeId(to))


async def read(configs: list[NodeConfig], tls: TlsFiles) -> Any:
    options = ClientOptions(tls=tls)
    async with Client.connect([c.listen for c in configs], options=options) as client:
        return await client.pull("t", 0, 0)


async def becomes(state: Callable[[], bool], *, wanted: bool) -> bool:
    for _ in range(400):
        if state() is wanted:
            return True
        await asyncio.sleep(0.05)
    return False


async def code_of(address: str, path: str) -> grpc.StatusCode:
    opened: Any = grpc.aio.insecure_channel(address)
    async with opened as channel:
        call = channel.unary_unary(f"/dledger.v1.{path}")(b"", timeout=5)
        code: grpc.StatusCode = await call.code()
        return code

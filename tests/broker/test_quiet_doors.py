"""What a node that takes no part answers: each service of `proto/` is there, and refuses."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

import dledger.wire
from broker.doors.grpc import standby
from broker.doors.grpc.bounds import ConnectionBounds, server_options
from broker.doors.grpc.door import Entrance
from broker.doors.grpc.offered import OFFERED, For, offered_at
from broker.doors.grpc.standby import QuietDoor, aside_door, refilling_door, standby_door
from broker.forming.calls import GrpcCalls
from broker.forming.errors import FormationRefused
from broker.forming.member import Member
from broker.services.audit import Audit
from dledger.wire import cluster_pb2, raft_pb2
from dledger.wire import errors_pb2 as epb
from tests.integration.group import error_of, free_ports


def described() -> list[ServiceDescriptor]:
    """All services of all files on the wire."""
    found = []
    for module in pkgutil.iter_modules(dledger.wire.__path__):
        if module.name.endswith("_pb2"):
            file: Any = importlib.import_module(f"dledger.wire.{module.name}").DESCRIPTOR
            found += file.services_by_name.values()
    return found


def test_each_service_is_offered_to_somebody() -> None:
    """The doors' list is of the descriptors: nothing that there is, or will be, is missing."""
    ours = {service.full_name for service in described()}
    assert ours == {each.service.full_name for each in OFFERED}
    assert all(each.offers for each in OFFERED)
    every = For.CLIENTS | For.PEERS | For.ADMINISTRATION
    assert {each.full_name for each in offered_at(every)} == ours


def status() -> cluster_pb2.NodeStatus:
    return cluster_pb2.NodeStatus(node_id="n1")


async def _greeted(requests: object, context: Any) -> None:
    """A stream of a peer is answered."""
    await context.write(raft_pb2.PeerMessage(term=5))


def doors() -> dict[str, QuietDoor]:
    member = cast(Member, SimpleNamespace(state="empty"))
    return {
        "standby": standby_door(member, status, lambda: None, lambda _: None),
        "aside": aside_door("out of service", status, cast(Audit, None)),
        "refilling": refilling_door("it refills", status, _greeted),
    }


WATCHERS = 100
STATUS = cluster_pb2.DESCRIPTOR.services_by_name["Cluster"].methods_by_name["GetStatus"]

# What each of them does answer.
ANSWERED = {"standby": {"Formation"}, "aside": {"Audit"}, "refilling": set[str]()}


@pytest.mark.parametrize("name", ANSWERED)
def test_quiet_node_refuses_each_call_as_not_ready(name: str) -> None:
    """Of a service that isn't there gRPC says *unimplemented*, which callers take for the last
    word: members of groups would end for good."""
    told = asyncio.run(_told(doors()[name], For.CLIENTS | For.ADMINISTRATION, ANSWERED[name]))
    assert told["Cluster/GetStatus"] is None
    del told["Cluster/GetStatus"]
    assert {"Groups/Attend", "Groups/PullQueues", "Deliveries/Receive"} < told.keys()
    assert {"Consumers/ListGroups", "Broker/Send", "Cluster/WatchLeader"} < told.keys()
    assert set(told.values()) == {epb.NOT_READY}


@pytest.mark.parametrize(("name", "is_taken"), [("refilling", True), ("aside", False)])
def test_who_gets_back_what_has_rotted_takes_the_streams_of_peers(
    name: str, *, is_taken: bool
) -> None:
    """Some of what it asks is answered on these; who is no member for other reasons has none."""

    async def scenario() -> None:
        door, address = doors()[name], f"127.0.0.1:{free_ports(1)[0]}"
        await door.open([Entrance(address, For.PEERS)])
        async with grpc.aio.insecure_channel(address) as channel:
            method: Any = channel.stream_stream
            call = method("/dledger.v1.RaftPeer/Replicate")
            if is_taken:
                answer = await call(iter([b""])).read()
                assert raft_pb2.PeerMessage.FromString(answer).term == 5
            else:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(iter([b""])).read()
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await door.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("", "admin_listen of n1 is on loopback"),
        ("the clients'", "which it names, doesn't either: give the addresses of admin_listen"),
        ("the peers'", "which it names, doesn't either: give the addresses of admin_listen"),
    ],
)
def test_node_that_only_its_machine_administers_is_formed_by_nobody_else(
    told: str, why: str
) -> None:
    """Whoever set it doesn't want to be administered from where clients come in, before there is a
    group as little as after: commands say what to set."""

    async def scenario() -> None:
        clients, peers, admin = (f"127.0.0.1:{port}" for port in free_ports(3))
        door = doors()["standby"]
        named = {"the clients'": clients, "the peers'": peers}.get(told, "")
        await door.open(
            [
                Entrance(clients, For.CLIENTS, admin_address=named),
                Entrance(peers, For.PEERS),
                Entrance(admin, For.ADMINISTRATION),
            ]
        )
        try:
            calls = GrpcCalls()
            for _ in range(2):  # what a node has said before is not an answer, either
                with pytest.raises(FormationRefused, match=why) as refused:
                    await calls.describe(clients)
                assert clients in str(refused.value)
            with pytest.raises(FormationRefused, match="address of listen or admin_listen") as none:
                await calls.describe(peers)
            assert peers in str(none.value)
        finally:
            await door.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ANSWERED)
def test_clients_keep_nobody_from_a_quiet_node(name: str) -> None:
    """Each has a connection to every node, with a call on it nearly all the time."""

    async def scenario() -> None:
        door, address = doors()[name], f"127.0.0.1:{free_ports(1)[0]}"
        await door.open(
            [Entrance(address, For.CLIENTS | For.ADMINISTRATION)],
            ConnectionBounds(count=200, idle_ms=60_000),
        )
        async with AsyncExitStack() as open_things:
            open_things.push_async_callback(door.close)
            for _ in range(WATCHERS):
                channel: Any = await open_things.enter_async_context(own_channel(address))
                watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
                assert await watch(b"", wait_for_ready=True, timeout=60).read()
            channel = await open_things.enter_async_context(own_channel(address))
            assert await _failure(channel, "/dledger.v1.Cluster/GetStatus", STATUS) is None

    asyncio.run(scenario())


def own_channel(address: str) -> grpc.aio.Channel:
    """On a connection of its own."""
    return grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


@pytest.mark.parametrize(("entrances", "share"), [(1, 300), (3, 100)])
def test_quiet_node_lets_in_as_many_as_a_member(
    entrances: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process's share, divided by its addresses; a connection stays as long as configured."""
    seen: list[ConnectionBounds] = []

    def options(bounds: ConnectionBounds) -> Any:
        seen.append(bounds)
        return server_options(bounds)

    async def scenario() -> None:
        door = doors()["standby"]
        at = [Entrance(f"127.0.0.1:{port}", For.CLIENTS) for port in free_ports(entrances)]
        await door.open(at, ConnectionBounds(count=300, idle_ms=5_000))
        await door.close()

    monkeypatch.setattr(standby, "server_options", options)
    asyncio.run(scenario())
    assert seen == [ConnectionBounds(count=share, idle_ms=5_000)] * entrances


async def _told(door: QuietDoor, offers: For, but: set[str]) -> dict[str, int | None]:
    """The code of each call's refusal; None: it was answered."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    await door.open([Entrance(address, offers)])
    told: dict[str, int | None] = {}
    async with grpc.aio.insecure_channel(address) as channel:
        for service in offered_at(offers):
            for method in service.methods if service.name not in but else ():
                path = f"/{service.full_name}/{method.name}"
                failed = await _failure(channel, path, method)
                code = None if failed is None else error_of(failed).code
                told[f"{service.name}/{method.name}"] = code
    await door.close()
    return told


async def _failure(
    channel: Any, path: str, method: MethodDescriptor
) -> grpc.aio.AioRpcError | None:
    try:
        if method.client_streaming:
            await channel.stream_stream(path)(iter([b""])).read()
        elif method.server_streaming:
            await channel.unary_stream(path)(b"").read()
        else:
            await channel.unary_unary(path)(b"")
    except grpc.aio.AioRpcError as error:
        return error
    return None

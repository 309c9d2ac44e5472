"""Real nodes in this process: real files, real ports, one event loop.

Killing a node here means taking its streams and server away without a word, and dropping what
its process would have held; for real processes see tests/cli and chaos.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from broker.config import NodeConfig
from broker.node import Machine, Node, this_machine
from broker.ports import STEADY, Rhythm
from broker.recovery import StoreMachinery
from broker.replica import Replica
from chaos.forming import form_disks
from dledger.core.types import DiskId
from dledger.level import KNOWN_LEVEL
from dledger.wire import (
    broker_pb2,
    cluster_pb2,
    deliveries_pb2,
    errors_pb2,
    groups_pb2,
    raft_pb2,
)
from store.directory import DISK_ID_BYTES, Birth
from store.files import OsFiles
from tests.broker.leader import batch
from tests.node.members import leave_nobody_in_charge

SEGMENT_BYTES = 8 << 20
SERVICES = {
    "Broker": broker_pb2.DESCRIPTOR.services_by_name["Broker"],
    "Groups": groups_pb2.DESCRIPTOR.services_by_name["Groups"],
    "Deliveries": deliveries_pb2.DESCRIPTOR.services_by_name["Deliveries"],
    "Cluster": cluster_pb2.DESCRIPTOR.services_by_name["Cluster"],
    "RaftPeer": raft_pb2.DESCRIPTOR.services_by_name["RaftPeer"],
}
WAIT_S = 60.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now; none of those that the system gives to whoever
    connects, so that no other test's connection has one before it is listened on."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = random.randrange(10_000, 32_000)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
        return found


def make_configs(directory: Path, count: int = 3, **changes: Any) -> list[NodeConfig]:
    """Configurations of a group of `count`; `changes` replace keys of each."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    peers = {f"n{i + 1}": address for i, address in enumerate(addresses)}
    return [
        NodeConfig.model_validate(
            {
                "broker_group": "g1",
                "node_id": name,
                "data_directory": str(directory / name),
                "listen": address,
                "peers": peers,
                "store": {"segment_size_bytes": SEGMENT_BYTES, "reserve_bytes": 0},
                **changes,
            }
        )
        for name, address in peers.items()
    ]


def disk_of(name: str) -> DiskId:
    """The disk of that member, in every group of these tests."""
    return DiskId(name.encode().ljust(DISK_ID_BYTES, b"-"))


def machinery_of(name: str) -> StoreMachinery:
    """Whose disks are known beforehand."""
    return StoreMachinery(birth=lambda: Birth(disk_of(name), int(time.time() * 1000)))


def everybody(configs: list[NodeConfig]) -> list[NodeConfig]:
    """The members that `configs` name, those included whom a test never starts."""
    given = {config.node_id: config for config in configs}
    one = configs[0]
    for name, address in one.peers.items():
        folder = one.data_directory.parent / name
        itself = {"node_id": name, "listen": address, "data_directory": folder}
        given.setdefault(name, one.model_copy(update=itself))
    return list(given.values())


class Group:
    """A running group; every call has a deadline."""

    def __init__(
        self,
        configs: list[NodeConfig],
        machine_of: Callable[[NodeConfig], Machine] = lambda _: this_machine(),
        rhythm: Rhythm = STEADY,
    ) -> None:
        self.producer_id = b""
        self.configs = {config.node_id: config for config in configs}
        self.nodes: dict[str, Replica] = {}
        self._processes: dict[str, Node] = {}
        self._machine_of = machine_of
        self._rhythm = rhythm
        self._channels: dict[str, Any] = {}  # the stubs want arguments that have defaults
        form_disks(everybody(configs), lambda _: OsFiles(), machinery_of)

    async def start(self, *names: str) -> None:
        """Starts `names`, or everybody."""
        for name in names or self.configs:
            config = self.configs[name]
            node = Node(config, self._machine_of(config), self._rhythm)
            await node.start()
            self._processes[name], self.nodes[name] = node, node.replica

    async def stop(self, name: str) -> int:
        """A clean stop, as SIGTERM does it."""
        del self.nodes[name]
        return await self._processes.pop(name).stop()

    async def close(self) -> None:
        """Everything is stopped."""
        for channel in self._channels.values():
            await channel.close()
        leave_nobody_in_charge(self.nodes.values())
        await asyncio.gather(*(self.stop(name) for name in list(self.nodes)))

    async def leader(self) -> Replica:
        """The node that serves, as soon as there is one."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for node in self.nodes.values():
                if node.leadership.serving:
                    return node
            await asyncio.sleep(0.005)
        raise AssertionError("no leader in time")

    async def applied_everywhere(self) -> None:
        """Every node has applied what the leader has."""
        leader = await self.leader()
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            wanted = leader.driver.applied_index
            if all(node.driver.applied_index >= wanted for node in self.nodes.values()):
                return
            await asyncio.sleep(0.005)
        raise AssertionError("a node does not catch up")

    async def at_its_level(self) -> None:
        """All levels are raised: who serves writes nothing by itself any more."""
        deadline = time.monotonic() + WAIT_S
        while (await self.leader()).machine.level.current < KNOWN_LEVEL:
            assert time.monotonic() < deadline, "the level isn't raised"
            await asyncio.sleep(0.005)
        await self.applied_everywhere()

    def channel(self, name: str) -> Any:
        """A channel to a node, kept."""
        if name not in self._channels:
            self._channels[name] = grpc.aio.insecure_channel(self.configs[name].listen)
        return self._channels[name]

    async def call(self, name: str, service: str, method: str, request: Message | bytes) -> Any:
        """A unary call with a message or with raw bytes."""
        descriptor = SERVICES[service].methods_by_name[method]
        data = request if isinstance(request, bytes) else request.SerializeToString()
        path = f"/dledger.v1.{service}/{method}"
        stub: Any = self.channel(name).unary_unary(path)
        answer = await stub(data, timeout=WAIT_S)
        return GetMessageClass(descriptor.output_type).FromString(answer)

    async def ask(self, method: str, request: Message | bytes) -> Any:
        """A call on the Broker service of the leader."""
        leader = await self.leader()
        return await self.call(leader.config.node_id, "Broker", method, request)

    async def create_topic(self, name: str = "t", queues: int = 2) -> None:
        await self.ask("CreateTopic", broker_pb2.CreateTopicRequest(name=name, queue_count=queues))

    async def send(self, sequence: int, *bodies: bytes, queue_id: int = 0) -> broker_pb2.SendResult:
        """Sends one batch of the test's producer to the leader."""
        if not self.producer_id:
            wanted = broker_pb2.RegisterProducerRequest(token=b"producer")
            self.producer_id = (await self.ask("RegisterProducer", wanted)).producer_id
        request = broker_pb2.SendRequest(
            producer_id=self.producer_id,
            batches=[wire_batch(sequence, *bodies, queue_id=queue_id)],
        )
        answer: broker_pb2.SendResponse = await self.ask("Send", request)
        return answer.results[0]


def wire_batch(
    sequence: int, *bodies: bytes, topic: str = "t", queue_id: int = 0
) -> broker_pb2.SendBatch:
    """A batch of one producer as it travels."""
    plain = batch(sequence, *bodies, topic=topic, queue_id=queue_id)
    return broker_pb2.SendBatch(
        topic=plain.topic,
        queue_id=plain.queue_id,
        base_sequence=plain.base_sequence,
        count=plain.count,
        records=plain.records,
    )


def error_of(failure: grpc.aio.AioRpcError) -> errors_pb2.Error:
    """The error in a failed call's trailing metadata."""
    metadata: Any = failure.trailing_metadata()
    for key, value in metadata or ():
        if key == "dledger-error-bin":
            assert isinstance(value, bytes)
            return errors_pb2.Error.FromString(value)
    raise AssertionError(f"no error detail in {failure!r}")


@contextlib.asynccontextmanager
async def running_group(directory: Path, count: int = 3, **changes: Any) -> AsyncIterator[Group]:
    """A group with a leader; stopped at the end."""
    group = Group(make_configs(directory, count, **changes))
    try:
        await group.start()
        await group.leader()
        yield group
    finally:
        await group.close()

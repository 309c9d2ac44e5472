"""The gRPC door: one server with the broker's services, its peers' streams, health, reflection.

A door is given the services and opens where it is told. Another one (another protocol, a console)
is another class of this shape beside it; no service knows which door a call came through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from broker.doors.grpc.audit import AuditDoor
from broker.doors.grpc.bounds import (
    SERVER_GRACE_S,
    ConnectionBounds,
    concurrent_calls,
    server_options,
)
from broker.doors.grpc.broker import BrokerDoor
from broker.doors.grpc.cluster import ClusterDoor
from broker.doors.grpc.health import HealthDoor, ReflectionDoor
from broker.doors.grpc.methods import service_handler
from broker.services.services import Services
from dledger.listening import why_not_listening
from dledger.wire import audit_pb2, broker_pb2, cluster_pb2, raft_pb2

SERVICES: Final = (
    "dledger.v1.Audit",
    "dledger.v1.Broker",
    "dledger.v1.Cluster",
    "dledger.v1.RaftPeer",
)

REFLECTED: Final = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)

# A peer's stream is not a call on a service: its handler reads and writes the context itself.
Replicate = Callable[[Any, Any], Awaitable[None]]


class _PeerDoor:
    """Handlers of `dledger.v1.RaftPeer`."""

    def __init__(self, replicate: Replicate) -> None:
        self.replicate = replicate


class GrpcDoor:
    """`open`, then `say_serving`, then `close`."""

    def __init__(
        self,
        services: Services,
        replicate: Replicate,
        *,
        max_held_pulls: int,
        connections: ConnectionBounds,
    ) -> None:
        """Args:
        replicate: the handler of `RaftPeer.Replicate`.
        max_held_pulls: calls that may wait beside those that are answered at once.
        """
        self._connections = connections
        self._services = services
        self._replicate = replicate
        self._max_calls = concurrent_calls(max_held_pulls)
        self._server: grpc.aio.Server | None = None
        self._health = HealthDoor(SERVICES)

    async def open(self, listen: str) -> None:
        """Calls are taken at `listen` (host:port).

        Raises:
            OSError: the address can't be had.
        """
        options = server_options(self._connections)
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self._max_calls)
        handlers = (
            (broker_pb2.DESCRIPTOR, "Broker", BrokerDoor(self._services)),
            (cluster_pb2.DESCRIPTOR, "Cluster", ClusterDoor(self._services.cluster)),
            (audit_pb2.DESCRIPTOR, "Audit", AuditDoor(self._services.audit)),
            (raft_pb2.DESCRIPTOR, "RaftPeer", _PeerDoor(self._replicate)),
            (health_pb2.DESCRIPTOR, "Health", self._health),
            (reflection_pb2.DESCRIPTOR, "ServerReflection", ReflectionDoor(REFLECTED)),
        )
        server.add_generic_rpc_handlers(
            tuple(
                service_handler(file.services_by_name[name], each) for file, name, each in handlers
            )
        )
        _bind(server, listen)
        await server.start()
        self._server = server

    def say_serving(self) -> None:
        """The standard health service says that this node and each of its services is up."""
        self._health.say(is_serving=True)

    async def close(self) -> None:
        """No call is taken any more; those under way end within the grace."""
        self._health.say(is_serving=False)
        if self._server is not None:
            await self._server.stop(SERVER_GRACE_S)


def _bind(server: grpc.aio.Server, address: str) -> None:
    """Opens the port, or says that it can't be had."""
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError:  # Its text doesn't say why.
        bound = 0
    if bound == 0:
        reason = why_not_listening(address) or "gRPC doesn't say why"
        raise OSError(f"can't listen on {address}: {reason}")

"""The door of a node that is no member yet: it says what it is, and can be formed.

Whatever else is asked of it is refused as *not ready*, so that clients go on to another node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2

from broker.doors.grpc.bounds import SERVER_GRACE_S, ConnectionBounds, server_options
from broker.doors.grpc.door import Entrance, For, bind
from broker.doors.grpc.formation import FormationDoor
from broker.doors.grpc.health import HealthDoor
from broker.doors.grpc.methods import service_handler
from broker.errors import BrokerError, ErrorCode
from broker.forming.member import Member
from dledger.wire import audit_pb2, broker_pb2, cluster_pb2, formation_pb2

MAX_CALLS: Final = 64
CONNECTIONS: Final = ConnectionBounds(count=32, idle_ms=10_000)  # whoever forms, and who looks on


class StandbyDoor:
    """`open`, then `close`.

    Args:
        member: the directory that waits.
        status: what the node says of itself.
        changed: told when it may have become a member's.
        failed: told that its disk can't be relied on any more.
    """

    def __init__(
        self,
        member: Member,
        status: Callable[[], cluster_pb2.NodeStatus],
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._member = member
        self._status = status
        self._changed = changed
        self._failed = failed
        self._servers: list[grpc.aio.Server] = []
        self._health = HealthDoor(())  # not serving, until it is another server's matter

    async def open(self, entrances: Sequence[Entrance]) -> None:
        """Calls are taken at each of the addresses.

        Raises:
            OSError: one of them can't be had; those before it are open until `close`.
        """
        for entrance in entrances:
            await self._open(entrance)

    async def _open(self, entrance: Entrance) -> None:
        server = grpc.aio.server(
            options=server_options(CONNECTIONS), maximum_concurrent_rpcs=MAX_CALLS
        )
        forming = (self._member, self._changed, self._failed)
        nobody = _NotReady(self._member)
        handlers: list[tuple[Any, str, object]] = [(health_pb2.DESCRIPTOR, "Health", self._health)]
        # Each address is for what it will be: a wrong one is noticed before there is a group.
        if entrance.offers & For.CLIENTS:
            handlers.append((broker_pb2.DESCRIPTOR, "Broker", nobody))
        if entrance.offers & (For.CLIENTS | For.ADMINISTRATION):
            handlers.append((cluster_pb2.DESCRIPTOR, "Cluster", self._cluster(entrance)))
        if entrance.offers & For.ADMINISTRATION:
            door = FormationDoor(*forming)
            handlers.append((audit_pb2.DESCRIPTOR, "Audit", nobody))
            handlers.append((formation_pb2.DESCRIPTOR, "Formation", door))
        server.add_generic_rpc_handlers(
            tuple(
                service_handler(file.services_by_name[name], each, refusal_of=entrance.refusal_of)
                for file, name, each in handlers
            )
        )
        bind(server, entrance)
        self._servers.append(server)
        await server.start()

    def _cluster(self, entrance: Entrance) -> _Status:
        def status() -> cluster_pb2.NodeStatus:
            told = self._status()
            told.admin_address = entrance.admin_address
            return told

        return _Status(self._member, status)

    async def close(self) -> None:
        """No call is taken any more; those under way are answered."""
        await asyncio.gather(*(server.stop(SERVER_GRACE_S) for server in self._servers))


class _NotReady:
    """Handlers of any service: each refuses."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def __getattr__(self, name: str) -> Callable[[object, object], Awaitable[object]]:
        return self._refuse

    async def _refuse(self, request: object, context: object) -> object:
        text = f"this node is {self._member.state}, and no member of a group yet"
        raise BrokerError(ErrorCode.NOT_READY, text)


class _Status(_NotReady):
    """`dledger.v1.Cluster`: how the node is, and nothing else."""

    def __init__(self, member: Member, status: Callable[[], cluster_pb2.NodeStatus]) -> None:
        super().__init__(member)
        self._status = status

    async def get_status(
        self, request: cluster_pb2.GetStatusRequest, context: object
    ) -> cluster_pb2.NodeStatus:
        return self._status()

"""The door of a node that takes no part: it is no member yet, out of service, or its log has gaps.
It says what it is; the first can be formed, the second audited.

Whatever else is asked of it is refused as *not ready*, so that clients go on to another node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2

from broker.doors.grpc.audit import AuditDoor
from broker.doors.grpc.bounds import SERVER_GRACE_S, ConnectionBounds, server_options
from broker.doors.grpc.door import Entrance, For, bind
from broker.doors.grpc.formation import FormationDoor
from broker.doors.grpc.health import HealthDoor
from broker.doors.grpc.methods import service_handler
from broker.errors import BrokerError, ErrorCode
from broker.forming.member import Member
from broker.services.audit import Audit
from dledger.wire import audit_pb2, broker_pb2, cluster_pb2, formation_pb2

MAX_CALLS: Final = 64
CONNECTIONS: Final = ConnectionBounds(count=32, idle_ms=10_000)  # whoever forms, and who looks on


Handlers = list[tuple[Any, str, object]]  # file descriptor, service, who handles it


class QuietDoor:
    """`open`, then `close`.

    Args:
        handlers: what is answered at an address, by what that is for.
    """

    def __init__(self, handlers: Callable[[Entrance], Handlers]) -> None:
        self._handlers = handlers
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
        handlers: Handlers = [(health_pb2.DESCRIPTOR, "Health", self._health)]
        handlers += self._handlers(entrance)
        server.add_generic_rpc_handlers(
            tuple(
                service_handler(file.services_by_name[name], each, refusal_of=entrance.refusal_of)
                for file, name, each in handlers
            )
        )
        bind(server, entrance)
        self._servers.append(server)
        await server.start()

    async def close(self) -> None:
        """No call is taken any more; those under way are answered."""
        await asyncio.gather(*(server.stop(SERVER_GRACE_S) for server in self._servers))


def standby_door(
    member: Member,
    status: Callable[[], cluster_pb2.NodeStatus],
    changed: Callable[[], None],
    failed: Callable[[Exception], None],
) -> QuietDoor:
    """Of a node that waits to be formed.

    Args:
        member: the directory that waits.
        status: what the node says of itself.
        changed: told when it may have become a member's.
        failed: told that its disk can't be relied on any more.
    """
    nobody = _NotReady(f"this node is {member.state}, and no member of a group yet")

    def handlers(entrance: Entrance) -> Handlers:
        # Each address is for what it will be: a wrong one is noticed before there is a group.
        found = _common(entrance, nobody, status)
        if entrance.offers & For.ADMINISTRATION:
            door = FormationDoor(member, changed, failed)
            found.append((audit_pb2.DESCRIPTOR, "Audit", nobody))
            found.append((formation_pb2.DESCRIPTOR, "Formation", door))
        return found

    return QuietDoor(handlers)


def aside_door(why: str, status: Callable[[], cluster_pb2.NodeStatus], audit: Audit) -> QuietDoor:
    """Of a node that is out of service: its log can be audited.

    Args:
        why: what whoever asks for anything else is told.
    """
    nobody = _NotReady(why)

    def handlers(entrance: Entrance) -> Handlers:
        found = _common(entrance, nobody, status)
        if entrance.offers & For.ADMINISTRATION:
            found.append((audit_pb2.DESCRIPTOR, "Audit", AuditDoor(audit)))
            found.append((formation_pb2.DESCRIPTOR, "Formation", nobody))
        return found

    return QuietDoor(handlers)


def refilling_door(why: str, status: Callable[[], cluster_pb2.NodeStatus]) -> QuietDoor:
    """Of a member whose log has gaps.

    Args:
        why: what whoever asks for anything else is told.
    """
    nobody = _NotReady(why)

    def handlers(entrance: Entrance) -> Handlers:
        found = _common(entrance, nobody, status)
        if entrance.offers & For.ADMINISTRATION:
            found.append((audit_pb2.DESCRIPTOR, "Audit", nobody))
            found.append((formation_pb2.DESCRIPTOR, "Formation", nobody))
        return found

    return QuietDoor(handlers)


def _common(
    entrance: Entrance, nobody: _NotReady, status: Callable[[], cluster_pb2.NodeStatus]
) -> Handlers:
    def told() -> cluster_pb2.NodeStatus:
        found = status()
        found.admin_address = entrance.admin_address
        return found

    handlers: Handlers = []
    if entrance.offers & For.CLIENTS:
        handlers.append((broker_pb2.DESCRIPTOR, "Broker", nobody))
    if entrance.offers & (For.CLIENTS | For.ADMINISTRATION):
        handlers.append((cluster_pb2.DESCRIPTOR, "Cluster", _Status(nobody.why, told)))
    return handlers


class _NotReady:
    """Handlers of any service: each refuses."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str) -> Callable[[object, object], Awaitable[object]]:
        return self._refuse

    async def _refuse(self, request: object, context: object) -> object:
        raise BrokerError(ErrorCode.NOT_READY, self.why)


class _Status(_NotReady):
    """`dledger.v1.Cluster`: how the node is, and nothing else."""

    def __init__(self, why: str, status: Callable[[], cluster_pb2.NodeStatus]) -> None:
        super().__init__(why)
        self._status = status

    async def get_status(
        self, request: cluster_pb2.GetStatusRequest, context: object
    ) -> cluster_pb2.NodeStatus:
        return self._status()

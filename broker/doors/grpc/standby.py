"""The door of a node that takes no part: it is no member yet, out of service, or its log has gaps.
It says what it is; the first can be formed, the second audited, and the third answered by peers.

Whatever else is asked of it is refused as *not ready*, so that clients go on to another node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

import grpc
from grpc_health.v1 import health_pb2

from broker.doors.grpc.audit import AuditDoor
from broker.doors.grpc.bounds import (
    RPCS_BESIDE_PULLS,
    SERVER_GRACE_S,
    ConnectionBounds,
    server_options,
)
from broker.doors.grpc.door import Entrance, PeerDoor, Replicate, bind, callers_of
from broker.doors.grpc.formation import FormationDoor
from broker.doors.grpc.health import HealthDoor
from broker.doors.grpc.methods import service_handler
from broker.doors.grpc.offered import For, offered_at
from broker.errors import BrokerError, ErrorCode
from broker.forming.member import Member
from broker.services.audit import Audit
from dledger.wire import cluster_pb2

# As many as a member answers beside those that wait: of what is refused none is under way for long.
MAX_CALLS: Final = RPCS_BESIDE_PULLS
FEWEST: Final = ConnectionBounds(count=64, idle_ms=60_000)  # that any process can have


# Who answers at an address, by the service's name; all others of it are refused.
Handlers = dict[str, object]


class QuietDoor:
    """`open`, then `close`.

    Args:
        why: what whoever asks for what isn't answered is told.
        handlers: what is answered at an address.
    """

    def __init__(self, why: str, handlers: Callable[[Entrance], Handlers]) -> None:
        self._nobody = _NotReady(why)
        self._handlers = handlers
        self._servers: list[grpc.aio.Server] = []
        self._health = HealthDoor(())  # not serving, until it is another server's matter

    async def open(
        self, entrances: Sequence[Entrance], connections: ConnectionBounds = FEWEST
    ) -> None:
        """Calls are taken at each of the addresses.

        Args:
            connections: as a member has: each client has one to every node, asks again and again
                and never leaves, and whoever administers has to get in beside them.

        Raises:
            OSError: one of them can't be had; those before it are open until `close`.
        """
        share = replace(connections, count=connections.count // len(entrances))
        for entrance in entrances:
            await self._open(entrance, share)

    async def _open(self, entrance: Entrance, share: ConnectionBounds) -> None:
        server = grpc.aio.server(options=server_options(share), maximum_concurrent_rpcs=MAX_CALLS)
        handlers = self._handlers(entrance)
        offers = entrance.offers
        if "RaftPeer" not in handlers:
            offers &= ~For.PEERS  # peers dial on, and need no word
        services = [(each, handlers.get(each.name, self._nobody)) for each in offered_at(offers)]
        services.append((health_pb2.DESCRIPTOR.services_by_name["Health"], self._health))
        server.add_generic_rpc_handlers(
            tuple(
                service_handler(service, each, callers=callers_of(each, entrance))
                for service, each in services
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
    why = f"this node is {member.state}, and no member of a group yet"

    def handlers(entrance: Entrance) -> Handlers:
        # Each address is for what it will be: a wrong one is noticed before there is a group.
        door = FormationDoor(member, changed, failed)
        return {"Formation": door, "Cluster": _Status(why, status, entrance)}

    return QuietDoor(why, handlers)


def aside_door(why: str, status: Callable[[], cluster_pb2.NodeStatus], audit: Audit) -> QuietDoor:
    """Of a node that is out of service: its log can be audited.

    Args:
        why: what whoever asks for anything else is told.
    """

    def handlers(entrance: Entrance) -> Handlers:
        return {"Audit": AuditDoor(audit), "Cluster": _Status(why, status, entrance)}

    return QuietDoor(why, handlers)


def refilling_door(
    why: str, status: Callable[[], cluster_pb2.NodeStatus], replicate: Replicate
) -> QuietDoor:
    """Of a member whose log has gaps.

    Args:
        why: what whoever asks for anything else is told.
        replicate: the handler of peers' streams: a peer answers some questions on the one that it
            dials, and asks on it while logs are compared.
    """

    def handlers(entrance: Entrance) -> Handlers:
        return {"Cluster": _Status(why, status, entrance), "RaftPeer": PeerDoor(replicate)}

    return QuietDoor(why, handlers)


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

    def __init__(
        self, why: str, status: Callable[[], cluster_pb2.NodeStatus], entrance: Entrance
    ) -> None:
        super().__init__(why)
        self._status = status
        self._admin_address = entrance.admin_address

    async def get_status(
        self, request: cluster_pb2.GetStatusRequest, context: object
    ) -> cluster_pb2.NodeStatus:
        found = self._status()
        found.admin_address = self._admin_address
        return found

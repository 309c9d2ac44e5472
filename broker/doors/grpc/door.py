"""The gRPC door: the broker's services, its peers' streams, health, reflection; one server for each
address, with what that address is for.

A door is given the services and opens where it is told. Another one (another protocol, a console)
is another class of this shape beside it; no service knows which door a call came through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from broker.doors.grpc.audit import AuditDoor
from broker.doors.grpc.bounds import (
    SERVER_GRACE_S,
    ConnectionBounds,
    Options,
    concurrent_calls,
    server_options,
)
from broker.doors.grpc.broker import BrokerDoor
from broker.doors.grpc.cluster import ClusterDoor
from broker.doors.grpc.consumers import ConsumersDoor
from broker.doors.grpc.deliveries import DeliveriesDoor
from broker.doors.grpc.epochs import heed_epoch
from broker.doors.grpc.formation import FormationDoor
from broker.doors.grpc.groups import GroupsDoor
from broker.doors.grpc.health import HealthDoor, ReflectionDoor
from broker.doors.grpc.methods import Callers, Heed, service_handler
from broker.doors.grpc.offered import OFFERED, For, offered_at
from broker.forming.member import Member
from broker.services.services import Services
from dledger.listening import why_not_listening

SERVICES: Final = tuple(each.service.full_name for each in OFFERED)

# A peer's stream is not a call on a service: its handler reads and writes the context itself.
Replicate = Callable[[Any, Any], Awaitable[None]]


# What reads the raw log, or changes what the broker group is or who leads it.
ADMINISTRATIVE: Final = frozenset({"ChangeMembers", "ReplaceDisk", "TransferLeadership"})


@dataclass(frozen=True, slots=True)
class Entrance:
    """Where calls are taken.

    Attributes:
        address: host:port.
        offers: for whom.
        credentials: None for a server without TLS.
        admin_address: where administration is, if not here; callers are told.
        callers: whom it serves, but for peers, whose streams look for themselves; None: everybody.
    """

    address: str
    offers: For
    credentials: grpc.ServerCredentials | None = None
    admin_address: str = ""
    callers: Callers | None = None


class PeerDoor:
    """Handlers of `dledger.v1.RaftPeer`."""

    def __init__(self, replicate: Replicate) -> None:
        self.replicate = replicate


class GrpcDoor:
    """`open`, then `say_serving`, then `close`."""

    def __init__(
        self,
        services: Services,
        member: Member,
        replicate: Replicate,
        *,
        max_held_pulls: int,
        connections: ConnectionBounds,
    ) -> None:
        """Args:
        member: what this node's directory is, and was formed as.
        replicate: the handler of `RaftPeer.Replicate`.
        max_held_pulls: calls that may wait beside those that are answered at once.
        """
        self._connections = connections
        self._services = services
        self._member = member
        self._replicate = replicate
        self._max_calls = concurrent_calls(max_held_pulls)
        self._servers: list[grpc.aio.Server] = []
        self._health = HealthDoor(SERVICES)

    async def open(self, entrances: Sequence[Entrance]) -> None:
        """Calls are taken at each of the addresses.

        Raises:
            OSError: one of them can't be had; those before it are open until `close`.
        """
        # Each has its share: strangers at one address take no place at another.
        share = self._connections.count // len(entrances)
        options = server_options(replace(self._connections, count=share))
        for entrance in entrances:
            await self._open(entrance, options)

    async def _open(self, entrance: Entrance, options: Options) -> None:
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self._max_calls)
        offers = entrance.offers
        doors = self._doors(entrance)
        services = [(each, doors[each.name]) for each in offered_at(offers)]
        left_out = frozenset[str]() if offers & For.ADMINISTRATION else ADMINISTRATIVE
        names = [service.full_name for service, _ in services]
        reflected = ReflectionDoor((*names, health.SERVICE_NAME, reflection.SERVICE_NAME))
        services.append((health_pb2.DESCRIPTOR.services_by_name["Health"], self._health))
        described = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
        services.append((described, reflected))
        server.add_generic_rpc_handlers(
            tuple(
                service_handler(
                    service, each, left_out, callers_of(each, entrance), self._heed(each)
                )
                for service, each in services
            )
        )
        bind(server, entrance)
        self._servers.append(server)
        await server.start()

    def _heed(self, handlers: object) -> Heed | None:
        """Clients' calls are those that tell of the group's epoch."""
        if not isinstance(
            handlers, BrokerDoor | ClusterDoor | ConsumersDoor | GroupsDoor | DeliveriesDoor
        ):
            return None
        return partial(heed_epoch, self._services.cluster)

    def _doors(self, entrance: Entrance) -> dict[str, object]:
        services = self._services
        return {
            "Audit": AuditDoor(services.audit),
            "Broker": BrokerDoor(services),
            "Cluster": ClusterDoor(services.cluster, entrance.admin_address),
            "Consumers": ConsumersDoor(services),
            "Deliveries": DeliveriesDoor(services),
            "Formation": FormationDoor(self._member),
            "Groups": GroupsDoor(services),
            "RaftPeer": PeerDoor(self._replicate),
        }

    def say_serving(self) -> None:
        """The standard health service says that this node and each of its services is up."""
        self._health.say(is_serving=True)

    async def close(self) -> None:
        """No call is taken any more; those under way end within the grace."""
        self._health.say(is_serving=False)
        await asyncio.gather(*(server.stop(SERVER_GRACE_S) for server in self._servers))


def callers_of(handlers: object, entrance: Entrance) -> Callers | None:
    """Who says whether a call on these is served."""
    return None if isinstance(handlers, PeerDoor) else entrance.callers


def bind(server: grpc.aio.Server, entrance: Entrance) -> None:
    """Opens the port, or says that it can't be had."""
    address, credentials = entrance.address, entrance.credentials
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError:  # Its text doesn't say why.
        bound = 0
    if bound == 0:
        reason = why_not_listening(address) or "gRPC doesn't say why"
        raise OSError(f"can't listen on {address}: {reason}")

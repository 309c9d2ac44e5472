"""Which services there are, and at whose addresses each is offered: one list for all doors.

A node that takes part answers what is in it, and one that takes none refuses all of it as *not
ready*: what one door had and another hadn't, callers would take for a program without it, and go
to nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Final

from google.protobuf.descriptor import ServiceDescriptor

from dledger.wire import (
    audit_pb2,
    broker_pb2,
    cluster_pb2,
    consumers_pb2,
    deliveries_pb2,
    formation_pb2,
    groups_pb2,
    raft_pb2,
)


class For(Flag):
    """Whom an address is for."""

    CLIENTS = auto()
    PEERS = auto()
    ADMINISTRATION = auto()


@dataclass(frozen=True, slots=True)
class Offered:
    """A service of `proto/`, and whom it is for."""

    service: ServiceDescriptor
    offers: For


def _offered(file: Any, name: str, offers: For) -> Offered:
    return Offered(file.DESCRIPTOR.services_by_name[name], offers)


OFFERED: Final = (
    _offered(audit_pb2, "Audit", For.ADMINISTRATION),
    _offered(broker_pb2, "Broker", For.CLIENTS),
    _offered(cluster_pb2, "Cluster", For.CLIENTS | For.ADMINISTRATION),
    _offered(consumers_pb2, "Consumers", For.CLIENTS),
    _offered(deliveries_pb2, "Deliveries", For.CLIENTS),
    _offered(formation_pb2, "Formation", For.ADMINISTRATION),
    _offered(groups_pb2, "Groups", For.CLIENTS),
    _offered(raft_pb2, "RaftPeer", For.PEERS),
)


def offered_at(offers: For) -> list[ServiceDescriptor]:
    """The services that are called at an address which is for those."""
    return [each.service for each in OFFERED if each.offers & offers]

"""What the gRPC server lets in: message lengths, concurrent calls, and how it stops.

A call's deadline is its client's: gRPC cancels the handler when it has passed, and whatever the
service waited for is let go. The services bound what is theirs (held pulls, bytes under way,
watchers, audits); what is bounded here is the number of calls that exist at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.leader.groups.keeper import MAX_STREAMS
from dledger.limits import MESSAGE_LENGTHS
from dledger.transport import KEEPALIVE_OPTIONS

Options = tuple[tuple[str, str | int], ...]

SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a port in use must be an error, not a shared port
    *MESSAGE_LENGTHS,
    ("grpc.optimization_target", "latency"),
    *KEEPALIVE_OPTIONS,
)
HANDSHAKE_MS: Final = 10_000  # what connected must speak HTTP/2 by then; round trips take seconds
RPCS_BESIDE_PULLS: Final = 4_096  # concurrent calls beyond the held pulls and members' streams
SERVER_GRACE_S: Final = 0.5  # how long calls under way may go on when the door closes


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """How many connections there may be, peers' among them, and how long one without a call."""

    count: int
    idle_ms: int


def server_options(bounds: ConnectionBounds) -> Options:
    """What the server is made with. A connection too many is closed as soon as it is accepted; one
    that only stands there gives its place back. Clients and peers have a call under way all the
    time, and dial again in silence where they don't."""
    return (
        *SERVER_OPTIONS,
        ("grpc.max_allowed_incoming_connections", bounds.count),
        ("grpc.max_connection_idle_ms", bounds.idle_ms),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    )


def concurrent_calls(max_held_pulls: int) -> int:
    """Calls at once; past it gRPC answers RESOURCE_EXHAUSTED by itself."""
    return max_held_pulls + MAX_STREAMS + RPCS_BESIDE_PULLS

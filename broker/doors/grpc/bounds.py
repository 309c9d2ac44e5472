"""What the gRPC server lets in: message lengths, concurrent calls, and how it stops.

A call's deadline is its client's: gRPC cancels the handler when it has passed, and whatever the
service waited for is let go. The services bound what is theirs (held pulls, bytes under way,
watchers, audits); what is bounded here is the number of calls that exist at all.
"""

from __future__ import annotations

from typing import Final

from dledger.limits import MESSAGE_LENGTHS
from dledger.transport import KEEPALIVE_OPTIONS

SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a port in use must be an error, not a shared port
    *MESSAGE_LENGTHS,
    ("grpc.optimization_target", "latency"),
    *KEEPALIVE_OPTIONS,
)
RPCS_BESIDE_PULLS: Final = 4_096  # concurrent calls beyond the held pulls
SERVER_GRACE_S: Final = 0.5  # how long calls under way may go on when the door closes


def concurrent_calls(max_held_pulls: int) -> int:
    """Calls at once; past it gRPC answers RESOURCE_EXHAUSTED by itself."""
    return max_held_pulls + RPCS_BESIDE_PULLS

"""Ports of this machine's loopback interface for nodes to listen on.

Ports are picked outside of the range from which the kernel takes the ports of outgoing
connections. Inside it a dead node's port could be given to any connection before the node is
restarted, even to a peer that dials the dead node: TCP lets such a dial connect to itself.

Source: ip(7), ip_local_port_range; RFC 9293 §3.5 (simultaneous open).
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from broker.config import split_address
from broker.local_group.errors import LocalGroupError

LOOPBACK = "127.0.0.1"
LOWEST_PORT = 10_000
MAX_TRIALS = 1_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def pick_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on at the moment.

    Raises:
        LocalGroupError: too few were found.
    """
    first_ephemeral = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    end = first_ephemeral if first_ephemeral > LOWEST_PORT + MAX_TRIALS else 1 << 16
    dice = random.SystemRandom()  # groups that are made at the same time must not collide
    ports: set[int] = set()
    for _ in range(MAX_TRIALS):
        port = dice.randrange(LOWEST_PORT, end)
        if port not in ports and port_is_free(f"{LOOPBACK}:{port}"):
            ports.add(port)
        if len(ports) == count:
            return sorted(ports)
    raise LocalGroupError(f"found only {len(ports)} free ports of {count}")


def port_is_free(address: str) -> bool:
    """Whether a server could listen on `address` now (connections that linger don't count)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(split_address(address))
            probe.listen(1)
        except OSError:
            return False
    return True

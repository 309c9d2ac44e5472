"""Ports of this machine's loopback interface for nodes to listen on.

Ports are picked outside of the range from which the kernel takes the ports of outgoing
connections. Inside it a dead node's port could be given to any connection before the node is
restarted, even to a peer that dials the dead node: TCP lets such a dial connect to itself.

A picked port is held until its group's object goes, or a group that is made at the same moment
would pick it before the node listens. A socket that is bound and doesn't listen holds it: Linux
then refuses an exclusive bind (the next picker's), and allows one with SO_REUSEADDR (the node's).

Source: ip(7), ip_local_port_range; socket(7), SO_REUSEADDR; RFC 9293 §3.5 (simultaneous open).
"""

from __future__ import annotations

import random
import socket
import weakref
from collections.abc import Sequence
from pathlib import Path

from broker.local_group.errors import LocalGroupError

LOOPBACK = "127.0.0.1"
LOWEST_PORT = 10_000
MAX_TRIALS = 1_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PortReservation:
    """Ports that no other picker takes while this object lives."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self.ports: tuple[int, ...] = tuple(sorted(held.getsockname()[1] for held in sockets))
        weakref.finalize(self, _close, list(sockets))


def reserve_ports(count: int) -> PortReservation:
    """`count` different ports that nobody uses and that are ours from now on.

    Raises:
        LocalGroupError: too few were found.
    """
    first_ephemeral = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    end = first_ephemeral if first_ephemeral > LOWEST_PORT + MAX_TRIALS else 1 << 16
    dice = random.SystemRandom()
    sockets: list[socket.socket] = []
    for _ in range(MAX_TRIALS):
        if len(sockets) == count:
            return PortReservation(sockets)
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind((LOOPBACK, dice.randrange(LOWEST_PORT, end)))
        except OSError:
            held.close()
            continue
        # Only now: with it, the bind above would have shared a port that another one holds.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sockets.append(held)
    _close(sockets)
    raise LocalGroupError(f"found only {len(sockets)} free ports of {count}")


def _close(sockets: Sequence[socket.socket]) -> None:
    for held in sockets:
        held.close()

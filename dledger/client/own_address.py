"""This machine's address as its messages name it: their born host."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address


def own_ipv4(towards: str) -> str:
    """This machine's address on the way to `host:port`, without sending anything; written into
    records as the born host. 0.0.0.0 where that needs a name server or IPv6."""
    host, _, port = towards.rpartition(":")
    try:
        IPv4Address(host)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            own: str = probe.getsockname()[0]
            return own
    except (OSError, ValueError):
        return "0.0.0.0"

"""Addresses as people write them: `host:port`, and lists of them. Pure text, nothing is resolved.

One judge for the configuration, the command line and the client, so that what one of them takes
the others take too. It raises `ValueError`; who asks turns that into an error of its own that
names the key, option or argument.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import AddressValueError, IPv6Address
from typing import Final

MAX_PORT: Final = 65_535
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as its two parts, the host as it is written.

    Raises:
        ValueError: it isn't a host name, an IPv4 address or an IPv6 address in brackets, then a
            colon and a port of 1 to 65535.
    """
    host, colon, port = address.rpartition(":")
    valid = bool(colon and _PORT.fullmatch(port) and (_HOST.fullmatch(host) or is_ipv6(host)))
    if not valid or not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f"{address!r} is not host:port with a port of 1 to 65535")
    return host, int(port)


def is_ipv6(host: str) -> bool:
    """Whether it is an IPv6 address in brackets, as in front of a port."""
    try:
        IPv6Address(host.removeprefix("[").removesuffix("]"))
    except AddressValueError:
        return False
    return host.startswith("[") and host.endswith("]")


def parse_addresses(given: str | Sequence[str]) -> list[str]:
    """The addresses of `host:port,host:port`, or of a sequence of `host:port`, each once.

    Raises:
        ValueError: none is given, or one of them is no address.
    """
    pieces = given.split(",") if isinstance(given, str) else given
    addresses = list(dict.fromkeys(piece.strip() for piece in pieces if piece.strip()))
    if not addresses:
        raise ValueError("no address is given; wanted: host:port,host:port")
    for address in addresses:
        split_address(address)
    return addresses

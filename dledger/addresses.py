"""Addresses as people write them: `host:port`, and lists of them. Pure text, nothing is resolved.

One judge for the configuration, the command line and the client, so that what one of them takes
the others take too. It raises `ValueError`; who asks turns that into an error of its own that
names the key, option or argument.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import Final

MAX_PORT: Final = 65_535
MAX_HOST: Final = 253  # of all labels with their dots: RFC 1123, section 2.1
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
# No zeros in front: addresses are compared as texts, so each may have one spelling only.
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as its two parts, the host as it is written.

    Raises:
        ValueError: it isn't a host name, an IPv4 address or an IPv6 address in brackets, then a
            colon and a port of 1 to 65535.
    """
    host, colon, port = address.rpartition(":")
    valid = bool(colon and _PORT.fullmatch(port) and (_is_host(host) or is_ipv6(host)))
    if not valid or int(port) > MAX_PORT:
        raise ValueError(f"{address!r} is not host:port with a port of 1 to 65535")
    return host, int(port)


def plain_address(address: str) -> str:
    """`host:port` in the one spelling of all that mean the same without being resolved: names are
    of any case, and an IPv6 address has many texts.

    Raises:
        ValueError: as `split_address`.
    """
    host, port = split_address(address)
    if is_ipv6(host):
        return f"[{IPv6Address(host[1:-1]).compressed}]:{port}"
    return f"{host.lower()}:{port}"


def _is_host(host: str) -> bool:
    """Whether it is a host name or an IPv4 address.

    A name whose last label is a number is an address or nothing: the system's resolver would read
    `1.2.3` as 1.2.0.3, which nobody meant who wrote it.
    """
    labels = host.split(".")
    if len(host) > MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        return False
    return not _NUMBER.fullmatch(labels[-1]) or _is_ipv4(host)


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except AddressValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches `host:port`. A host name may lead anywhere, but for
    `localhost`, which RFC 6761 keeps for this."""
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


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

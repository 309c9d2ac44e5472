"""Whether a host's name, or address, is this machine's: then a path there is one here."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

NONLOCAL: Final[dict[int, str]] = {
    socket.AF_INET: "/proc/sys/net/ipv4/ip_nonlocal_bind",
    socket.AF_INET6: "/proc/sys/net/ipv6/ip_nonlocal_bind",
}
_ANY_PORT: Final = 9


def is_this_machine(host: str) -> bool:
    """Whether the name, or address, is this machine's. A name that can't be looked up here is
    nobody's."""
    if host == os.uname().nodename:
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own(family, address) for family, *_, address in found)


def _is_own(family: int, address: tuple[Any, ...]) -> bool:
    """Whether a socket can have the address, which nobody else's can. Where the kernel lets it have
    any, it has to be the one that this machine speaks from to itself there; a second one of a
    network isn't, and passes for another machine's."""
    if not _can_be_bound(family, address):
        return False
    return not _any_can_be_bound(family) or _is_spoken_from(family, address)


def _any_can_be_bound(family: int) -> bool:
    try:
        return bool(int(Path(NONLOCAL[family]).read_text(encoding="ascii")))
    except (KeyError, OSError, ValueError):
        return False


def _is_spoken_from(family: int, address: tuple[Any, ...]) -> bool:
    if ip_address(address[0].partition("%")[0]).is_loopback:
        return True
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.connect((address[0], _ANY_PORT, *address[2:]))  # Nothing is sent by that.
            return bool(made.getsockname()[0] == address[0])
    except OSError:
        return False


def _can_be_bound(family: int, address: tuple[Any, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as made:
            made.bind(address)
    except OSError:
        return False
    return True

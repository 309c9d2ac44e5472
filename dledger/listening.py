"""Whether somebody listens at an address; why it can't be listened on, in words that say what to do
about it."""

from __future__ import annotations

import errno
import socket

from dledger.addresses import split_address

PATIENCE_S = 1.0  # until a server is asked that is busy


def why_not_listening(address: str) -> str:
    """Why no server could listen on `address` now; empty if one could (connections that linger
    don't count). Resolving a name may take as long as the system's resolver does."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, family=socket.AF_INET, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        return _in_words(error)
    return ""


def is_listening(address: str) -> bool:
    """Whether a connection to `address`, which is this machine's, is taken now."""
    host, port = split_address(address)
    try:
        socket.create_connection((host, port), PATIENCE_S).close()
    except TimeoutError:
        return True  # there is somebody, and others wait for it as well
    except OSError:
        return False
    return True


def _in_words(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "the port is in use"
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address"
        case errno.EACCES:
            return "the port may only be used by a privileged program"
    if isinstance(error, socket.gaierror):
        return f"the name means nothing here ({error.strerror})"
    return error.strerror or str(error)

"""Connections that are only there: silent, half greeted, or with a request that never ends."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dledger.addresses import split_address

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS: Final = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# What is said on each before it falls silent: nothing, half a greeting, a whole one, half a line.
OPENINGS: Final = (b"", PREFACE[:10], PREFACE + SETTINGS, b"GET /metrics HTTP/1.1\r\nHost: x")
CONNECT_S: Final = 1.0


@contextmanager
def idle(addresses: list[str], count: int) -> Iterator[list[socket.socket]]:
    """`count` connections, one address after the other, as far as they are taken."""
    opened: list[socket.socket] = []
    try:
        for number in range(count):
            place = split_address(addresses[number % len(addresses)])
            with contextlib.suppress(OSError):
                connection = socket.create_connection(place, timeout=CONNECT_S)
                opened.append(connection)
                connection.sendall(OPENINGS[number // len(addresses) % len(OPENINGS)])
        yield opened
    finally:
        for connection in opened:
            connection.close()


def still_open(connections: list[socket.socket]) -> int:
    """How many of them the other end hasn't closed."""
    count = 0
    for connection in connections:
        connection.settimeout(0)
        try:
            while connection.recv(65_536):
                pass  # what it says is of no interest
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count

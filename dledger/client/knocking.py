"""Whether anybody listens at an address, asked before gRPC is given it to dial.

Finding a port closed costs gRPC a channel and four threads that wake each other, ten times what a
connection attempt costs by itself; of a node that is gone each of its clients asks again and again,
from the same processors, perhaps, that the others need to elect. This only ever saves a dial that
is bound to fail: whatever isn't a plain refusal, gRPC finds out for itself.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from dledger.addresses import split_address

KNOCK_S: Final = 0.5  # for an answer; a host that is there refuses within a round trip
# gRPC may dial through one of these, and reach who can't be reached from here.
_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")


async def is_refused(address: str) -> bool:
    """Whether the host at `host:port` says that nobody listens there; false where that isn't
    certain."""
    if any(os.environ.get(name) for name in _PROXIES):
        return False
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(KNOCK_S):
            transport, _ = await loop.create_connection(
                asyncio.Protocol, host.removeprefix("[").removesuffix("]"), port
            )
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False  # no route, no name, no descriptor, several addresses: gRPC sees for itself
    transport.close()
    return False

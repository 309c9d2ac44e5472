"""How many descriptors a node may use, and for what.

A node's process shares one table between its files, which safety needs, and connections, which
anybody may open. This raises the limit as far as the system allows and divides it: connections may
take half, the rest is the log's, the queues' and the peers'. What is over the half is closed by
gRPC as soon as it is accepted, so that the accepting itself never runs out and never spins.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from broker.config import NodeConfig
from broker.doors.grpc.bounds import ConnectionBounds

WANTED: Final = 65_536  # descriptors; past it a larger table only costs
LEAST: Final = 128  # below it a node couldn't hold its own files and a peer or two
MAX_CONNECTIONS: Final = 20_000
MAX_QUEUE_FILES: Final = 512  # of ConsumeQueues, kept open
RESERVED: Final = 8  # what the disk path opens at once: term and vote, a segment, folders


class TooFewDescriptors(OSError):
    """The process may not have as many open files as a node needs."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"this process may have {limit} open files, and a node needs {LEAST} or more: raise "
            "the limit (ulimit -n, LimitNOFILE=)"
        )
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Descriptors:
    """How a limit is divided."""

    limit: int

    @property
    def connections(self) -> int:
        """Connections to this node's port, clients' and peers'."""
        return min(self.limit // 2, MAX_CONNECTIONS)

    @property
    def queue_files(self) -> int:
        """Files of ConsumeQueues that are kept open."""
        return min(self.limit // 8, MAX_QUEUE_FILES)


def raised() -> Descriptors:
    """The process's limit is as high as it may be, up to `WANTED`; what it is now.

    Raises:
        TooFewDescriptors: it is too low for a node.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    soft = WANTED if soft == unlimited else soft
    wanted = WANTED if hard == unlimited else min(WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft < LEAST:
        raise TooFewDescriptors(soft)
    return Descriptors(soft)


def connections_of(config: NodeConfig) -> ConnectionBounds:
    """Of a node by that configuration, whether it takes part or not.

    Raises:
        TooFewDescriptors: see `raised`.
    """
    return ConnectionBounds(raised().connections, config.broker.idle_connection_ms)

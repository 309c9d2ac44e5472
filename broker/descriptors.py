"""How many descriptors a node may use, and for what.

A node's process shares one table between its files, which safety needs, and connections, which
anybody may open. This raises the limit as far as the system allows, takes off what the log has by
now (each segment has a descriptor for as long as it is open), and divides the rest: connections may
take half of it, what is left is the log's, as it grows, the queues' and the peers'. What is over
the half is closed by gRPC as soon as it is accepted, so that the accepting itself never runs out
and never spins. A log that leaves nothing is told before it is opened.
"""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass
from typing import Final

from broker.config import NodeConfig
from broker.doors.grpc.bounds import ConnectionBounds
from dledger.records.layout import FILE_NAME
from store.log_start import INTENT
from store.out_of_service import FILE_NAME as OUT_OF_SERVICE

WANTED: Final = 65_536  # descriptors; past it a larger table only costs, unless the log is as long
LEAST: Final = 128  # below it a node couldn't hold its own files and a peer or two
MAX_CONNECTIONS: Final = 20_000
MAX_QUEUE_FILES: Final = 512  # of ConsumeQueues, kept open
RESERVED: Final = 8  # what the disk path opens at once: term and vote, a segment, folders


class TooFewDescriptors(OSError):
    """The process may not have as many open files as a node needs."""

    def __init__(self, limit: int, segments: int) -> None:
        needs = f"a node needs {LEAST} or more"
        if segments:
            needs = (
                f"its log has {segments} segments, for which it needs {segments + LEAST} or more"
            )
        super().__init__(
            f"this process may have {limit} open files, and {needs}: raise "
            "the limit (ulimit -n, LimitNOFILE=)"
        )
        self.limit = limit
        self.segments = segments


@dataclass(frozen=True, slots=True)
class Descriptors:
    """How a limit is divided, of which the log's segments have theirs already."""

    limit: int
    segments: int = 0

    @property
    def connections(self) -> int:
        """Connections to this node's port, clients' and peers'."""
        return min((self.limit - self.segments) // 2, MAX_CONNECTIONS)

    @property
    def queue_files(self) -> int:
        """Files of ConsumeQueues that are kept open."""
        return min((self.limit - self.segments) // 8, MAX_QUEUE_FILES)


def segments_of(config: NodeConfig) -> int:
    """How many files of its log that node will have open. Of a directory that can't be read none:
    the start, which is to read it next, says why. None as well where the log is about to go, for
    the state that is installed in its place, or is only kept, as of a member out of service."""
    folder = config.data_directory
    if (folder / INTENT).exists() or (folder / OUT_OF_SERVICE).exists():
        return 0
    with contextlib.suppress(OSError):
        return sum(map(_is_segment, os.listdir(folder / "commitlog")))
    return 0


def _is_segment(name: str) -> bool:
    return FILE_NAME.fullmatch(name) is not None


def raised(segments: int = 0) -> Descriptors:
    """The process's limit is as high as it may be, up to `WANTED`, or what a log twice as long as
    it is now takes beside all connections; what it is now.

    Raises:
        TooFewDescriptors: it is too low for a node with a log of so many segments.
    """
    most = max(WANTED, 2 * segments + MAX_CONNECTIONS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    soft = most if soft == unlimited else soft
    wanted = most if hard == unlimited else min(most, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft - segments < LEAST:
        raise TooFewDescriptors(soft, segments)
    return Descriptors(soft, segments)


def connections_of(config: NodeConfig) -> ConnectionBounds:
    """Of a node by that configuration, whether it takes part or not.

    Raises:
        TooFewDescriptors: see `raised`.
    """
    return ConnectionBounds(raised().connections, config.broker.idle_connection_ms)

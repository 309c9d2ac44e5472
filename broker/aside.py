"""A node that is out of service: its log is another one than the group's, and is kept as it is.

It is no peer of anybody: it votes for nobody, acknowledges nothing, dials nobody and takes no
stream. It says what it is, lets its log be audited, and writes nothing but the lock's holder, so
that whoever looks into the disk finds what was found (docs/adr/0044-the-live-divergence-alarm.md).
The mark in the directory keeps it so over restarts; replacing the member ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from broker.assembly import audit_of
from broker.config import NodeConfig
from broker.descriptors import connections_of
from broker.doors.grpc.door import Entrance
from broker.doors.grpc.standby import aside_door
from broker.local_group.status import OUT_OF_SERVICE_ROLE
from broker.picture import program_version
from broker.quiet_metrics import Gauge, serve_gauges
from broker.recovery import open_directory
from dledger.reading.files import in_unicode
from dledger.reading.log_start import start_noted
from dledger.wire.cluster_pb2 import Divergence as WireDivergence
from dledger.wire.cluster_pb2 import NodeHealth, NodeStatus, PeerStatus
from store.files import FileSystem
from store.out_of_service import Divergence, mark, mark_of
from store.starting.errors import OutOfService

MARK_AGAIN_S: Final = 1.0  # from finding no space for the mark to trying again

log = structlog.get_logger(__name__)


class Aside:
    """`until_stopped` once; `ask_to_stop` at any time."""

    def __init__(
        self,
        config: NodeConfig,
        files: FileSystem,
        entrances: Callable[[], Sequence[Entrance]],
    ) -> None:
        self._config = config
        self._files = files
        self._entrances = entrances
        self._stop_asked = asyncio.Event()

    def ask_to_stop(self) -> None:
        """`until_stopped` returns; safe from a signal handler."""
        self._stop_asked.set()

    async def until_stopped(self, out: OutOfService) -> None:
        """The node has answered for its log, and for nothing else, until it was asked to stop.

        Raises:
            StoreError, OSError: the directory or the address can't be used.
        """
        config = self._config
        with contextlib.closing(open_directory(config, self._files)) as directory:
            disk_id, told = directory.disk.disk_id, out.divergence
            log.critical("node_aside", disk_id=disk_id.hex(), what_to_do=str(out))
            audit = audit_of(config, _KeptLog(told, config.data_directory))
            door = aside_door(str(out), lambda: self._status(told, disk_id), audit)
            async with contextlib.AsyncExitStack() as open_things:
                serve_gauges(open_things, config, lambda: _gauges(told))
                open_things.push_async_callback(door.close)
                await door.open(self._entrances(), connections_of(config))
                await self._mark(told)
                await self._stop_asked.wait()

    async def _mark(self, told: Divergence) -> None:
        """The directory is marked, as soon as there is space."""
        path = self._config.data_directory
        while mark_of(self._files, path) is None and not self._stop_asked.is_set():
            try:
                mark(self._files, path, told)
            except OSError as error:
                log.error("out_of_service_not_marked", reason=str(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(MARK_AGAIN_S):
                        await self._stop_asked.wait()

    def _status(self, told: Divergence, disk_id: bytes) -> NodeStatus:
        config = self._config
        return NodeStatus(
            broker_group=config.broker_group,
            node_id=config.node_id,
            role=OUT_OF_SERVICE_ROLE,
            term=told.term,
            first_index=told.first_index,
            last_index=told.last_index,
            durable_index=told.last_index,
            commit_index=told.committed_index,
            applied_index=told.committed_index,
            committed_offset=told.committed_offset,
            committed_digest=told.committed_digest,
            peers=[
                PeerStatus(node_id=name, address=address)
                for name, address in sorted(told.members or config.peers.items())
                if name != config.node_id
            ],
            version=program_version(),
            segment_size_bytes=config.store.segment_size_bytes,
            data_directory=in_unicode(config.data_directory),
            divergence=wire_divergence(told),
            health=NodeHealth(disk_id=disk_id),
        )


def wire_divergence(told: Divergence) -> WireDivergence:
    """What a node's status says of it."""
    return WireDivergence(
        found_ms=told.found_ms,
        compared_index=told.compared_index,
        own_digest=told.own_digest,
        peers_digest=told.peers_digest,
        peers=told.peers,
        agreed_index=told.agreed_index,
        differing_index=told.differing_index,
        own_term=told.own_term,
        peers_term=told.peers_term,
        recoveries=[bytes.fromhex(each) for each in told.recoveries],
    )


class _KeptLog:
    """`broker.services.audit.AuditedLog`, by what the mark says: the log isn't opened."""

    def __init__(self, told: Divergence, directory: Path) -> None:
        self._told = told
        start = start_noted(str(directory))
        self._retired_end = start.end_offset if start is not None else 0

    @property
    def first_index(self) -> int:
        return self._told.first_index

    def retired_end(self) -> int:
        return self._retired_end

    def durable_end(self) -> int:
        return self._told.committed_offset


def _gauges(told: Divergence) -> tuple[Gauge, ...]:
    return (
        Gauge("out_of_service", "1 if this node's log isn't the group's: it takes no part.", 1),
        Gauge(
            "differs_at_entry",
            "Out of service: the first entry that differs.",
            told.differing_index,
        ),
    )

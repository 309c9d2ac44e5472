"""A node whose directory is no member's: it waits to be formed, or to be taken in.

It votes for nobody, campaigns for nothing, dials nobody and takes no stream: a disk that was wiped,
or isn't mounted, must not speak in the name of the one that promised something
(docs/adr/0022-disk-identities.md). It answers what it is, and says loudly what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import structlog

from broker.config import NodeConfig
from broker.descriptors import connections_of
from broker.doors.grpc.door import Entrance
from broker.doors.grpc.standby import standby_door
from broker.forming.member import Member
from broker.picture import program_version
from broker.quiet_metrics import Gauge, serve_gauges
from broker.recovery import log_options, open_directory
from dledger.reading.files import in_unicode
from dledger.wire.cluster_pb2 import NodeHealth, NodeStatus, PeerStatus
from store.files import FileSystem
from store.starting.errors import NotAMember

log = structlog.get_logger(__name__)


class Standby:
    """`until_member` once; `ask_to_stop` at any time."""

    def __init__(
        self,
        config: NodeConfig,
        files: FileSystem,
        entrances: Callable[[], Sequence[Entrance]],
    ) -> None:
        """Args:
        entrances: where it listens; asked for only if there is something to wait for.
        """
        self._config = config
        self._files = files
        self._entrances = entrances
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._failure: Exception | None = None

    def ask_to_stop(self) -> None:
        """`until_member` returns; safe from a signal handler."""
        self._is_stopping = True
        self._changed.set()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._changed.set()

    async def until_member(self) -> bool:
        """Whether the directory is a member's now: at once, if it was; False when asked to stop.

        Raises:
            StoreError, OSError: the directory or the address can't be used.
        """
        config = self._config
        with contextlib.closing(open_directory(config, self._files)) as directory:
            member = Member(directory, self._files, log_options(config), config.peers)
            if member.is_member:
                return True
            what = what_to_do(config, directory.disk.state.value)
            disk_id = directory.disk.disk_id.hex()
            async with contextlib.AsyncExitStack() as open_things:
                await self._open(open_things, member)
                # Not before: whoever reads it may do so at once, and has to find this node.
                log.warning("node_unformed", state=member.state, disk_id=disk_id, what_to_do=what)
                while not (member.is_member or self._is_stopping or self._failure):
                    self._changed.clear()
                    await self._changed.wait()
            if self._failure is not None:
                raise self._failure
            log.info("node_stands_by_no_more", state=directory.disk.state.value)
            return member.is_member

    async def _open(self, open_things: contextlib.AsyncExitStack, member: Member) -> None:
        """Whoever asks is told what this node is, until `open_things` are closed."""
        text = "1 while the node waits to be formed, or to be taken in, and is no member."
        serve_gauges(open_things, self._config, lambda: (Gauge("standing_by", text, 1),))
        door = standby_door(member, lambda: self._status(member), self._changed.set, self._fail)
        open_things.push_async_callback(door.close)
        await door.open(self._entrances(), connections_of(self._config))

    def _status(self, member: Member) -> NodeStatus:
        config, itself = self._config, member.describe()
        return NodeStatus(
            broker_group=config.broker_group,
            node_id=config.node_id,
            role=member.state,
            term=itself.last_term,
            last_index=itself.last_index,
            peers=[
                PeerStatus(node_id=name, address=address)
                for name, address in sorted(config.peers.items())
                if name != config.node_id
            ],
            version=program_version(),
            segment_size_bytes=config.store.segment_size_bytes,
            data_directory=in_unicode(config.data_directory),
            health=NodeHealth(disk_id=itself.disk_id),
        )


def what_to_do(config: NodeConfig, state: str) -> str:
    """What is told of a node whose directory is in that state, and no member's."""
    told = str(NotAMember(str(config.data_directory), config.node_id, state))
    if config.admin_listen is not None and config.admin_address is None:
        told += (
            f". admin_listen is {config.admin_listen}, which other machines don't reach: only a "
            "group of this node alone can be formed, and no other takes it in"
        )
    return told

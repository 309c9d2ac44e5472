"""A process whose log a start has found to have gaps, until its peers have filled them.

What is asked and written is `broker.refilling`'s; here is what a process has around it: doors at
which it says what it waits for, and takes the streams of peers, and the signal to end
(docs/adr/0053-a-start-gets-back-what-has-rotted.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from broker.config import NodeConfig
from broker.descriptors import connections_of
from broker.doors.grpc.door import Entrance, Replicate
from broker.doors.grpc.standby import refilling_door
from broker.local_group.status import REFILLING_ROLE
from broker.picture import program_version
from broker.ports import ReplicaPorts
from broker.quiet_metrics import Gauge, serve_gauges
from broker.refilling import Refilling
from dledger.reading.files import in_unicode
from dledger.wire.cluster_pb2 import NodeHealth, NodeStatus, PeerStatus
from store.errors import GapFound


class HoledNode:
    """`until_whole` once; `ask_to_stop` at any time."""

    def __init__(
        self,
        config: NodeConfig,
        ports: ReplicaPorts,
        entrances: Sequence[Entrance],
        replicate: Replicate,
        hang_up: Callable[[], None],
    ) -> None:
        """Args:
        replicate: the handler of peers' streams, of the transport that `ports` connects.
        hang_up: ends these.
        """
        self._config = config
        self._ports = ports
        self._entrances = entrances
        self._replicate = replicate
        self._hang_up = hang_up
        self._stop_asked = asyncio.Event()

    def ask_to_stop(self) -> None:
        """`until_whole` returns."""
        self._stop_asked.set()

    async def until_whole(self, found: GapFound) -> bool:
        """Whether the log has no gaps any more; False when asked to stop.

        Raises:
            GapFound: there is nobody to ask.
            BeyondRepair: nobody has what is missing.
            StartRefused, StoreError, HardStateCorrupt, OSError: the directory, or the address,
                can't be used.
        """
        refilling = Refilling(self._config, self._ports, found)
        door = refilling_door(str(found), lambda: self._status(refilling), self._replicate)
        async with contextlib.AsyncExitStack() as open_things:
            open_things.push_async_callback(refilling.close)
            serve_gauges(open_things, self._config, lambda: _gauges(refilling))
            open_things.push_async_callback(door.close)
            # Peers' streams don't end by themselves, and the door would wait for them.
            open_things.callback(self._hang_up)
            await door.open(self._entrances, connections_of(self._config))
            return await self._filled(refilling)

    async def _filled(self, refilling: Refilling) -> bool:
        filling = asyncio.ensure_future(refilling.fill())
        asked = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait((filling, asked), return_when=asyncio.FIRST_COMPLETED)
            if filling.done():
                filling.result()
                return not self._stop_asked.is_set()
            return False
        finally:
            filling.cancel()
            asked.cancel()
            await asyncio.gather(filling, asked, return_exceptions=True)

    def _status(self, refilling: Refilling) -> NodeStatus:
        config, holed = self._config, refilling.holed
        return NodeStatus(
            broker_group=config.broker_group,
            node_id=config.node_id,
            role=REFILLING_ROLE,
            term=holed.hard_state.term,
            peers=[
                PeerStatus(node_id=name, address=address or config.peers.get(name, ""))
                for name, address in holed.members
            ],
            version=program_version(),
            segment_size_bytes=config.store.segment_size_bytes,
            data_directory=in_unicode(config.data_directory),
            log_damages=refilling.statistics().gaps,
            health=NodeHealth(disk_id=holed.directory.disk.disk_id),
        )


def _gauges(refilling: Refilling) -> tuple[Gauge, ...]:
    """In the endpoint's thread: a frozen picture of a list's length."""
    return (
        Gauge("refilling", "1 while the node gets back from peers what a start found rotten.", 1),
        Gauge(
            "log_damages",
            "Places of the log that have rotted and aren't repaired yet.",
            refilling.statistics().gaps,
        ),
    )

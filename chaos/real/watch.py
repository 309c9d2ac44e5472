"""What the nodes say of themselves during a run: who leads, in which term, how far they are.

This asks each node ten times a second over a channel of its own and keeps what changed; a node
that is paused, cut off from nobody or dead shows as silent. It never acts. The picture of a run
is drawn from it, and "the leader" of a scenario is decided by it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import grpc

from broker.local_group import NodeView
from dledger.wire.cluster_pb2 import GetStatusRequest, NodeStatus

EVERY_S: Final = 0.1
ANSWER_WITHIN_S: Final = 0.3
GET_STATUS: Final = "/dledger.v1.Cluster/GetStatus"
CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)
SILENT: Final = "silent"


@dataclass(frozen=True, slots=True)
class Span:
    """From `start_us` on, the node was this; `role` is `SILENT` when it didn't answer."""

    start_us: int
    role: str
    term: int


@dataclass(slots=True)
class Watch:
    """What is known of every node. `spans` begins anew whenever a role or a term changes."""

    addresses: Mapping[str, str]
    now_us: Callable[[], int]
    latest: dict[str, NodeView] = field(default_factory=dict)
    statuses: dict[str, NodeStatus] = field(default_factory=dict)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def leader(self) -> str | None:
        """The node that says that it leads, in the newest term; None if nobody does."""
        leaders = [view for view in self.latest.values() if view.role == "leader"]
        newest = max(leaders, key=lambda view: view.term or 0, default=None)
        return newest.id if newest else None

    async def found_leader(self, timeout_s: float) -> str | None:
        """The leader, waiting for one if need be; None if none appears in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.leader() is None:
                    await self.next()
        return self.leader()

    async def next(self) -> None:
        """Returns after the next look at some node."""
        self._changed.clear()
        await self._changed.wait()

    async def whole(self, timeout_s: float) -> bool:
        """Waits until every node answers, one leads and serves, and all have applied what it had
        committed at the first look; False if that takes longer than `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                goal: int | None = None
                for _ in self.addresses:  # no look from before the call counts
                    await self.next()
                while True:
                    if self._all_serve():
                        applied = [view.applied_index or 0 for view in self.latest.values()]
                        goal = max(applied) if goal is None else goal
                        if min(applied) >= goal:
                            return True
                    await self.next()
        return False

    def _all_serve(self) -> bool:
        views = self.latest.values()
        leader = self.latest.get(self.leader() or "")
        everybody = len(self.latest) == len(self.addresses) and all(view.alive for view in views)
        return everybody and leader is not None and leader.serving

    def take(self, node_id: str, status: NodeStatus | None) -> None:
        """What a node answered; None: nothing."""
        view = NodeView.of(node_id, self.addresses[node_id], status)
        self.latest[node_id] = view
        if status is not None:
            self.statuses[node_id] = status
        spans = self.spans.setdefault(node_id, [])
        role = view.role or SILENT
        term = view.term or (spans[-1].term if spans else 0)
        if not spans or (spans[-1].role, spans[-1].term) != (role, term):
            spans.append(Span(self.now_us(), role, term))
        self._changed.set()

    async def keep_asking(self, node_id: str) -> None:
        """Asks one node, again and again."""
        address = self.addresses[node_id]
        async with grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) as channel:
            get_status = channel.unary_unary(
                GET_STATUS,
                request_serializer=GetStatusRequest.SerializeToString,
                response_deserializer=NodeStatus.FromString,
            )
            while True:
                status: NodeStatus | None = None
                with contextlib.suppress(grpc.aio.AioRpcError):
                    status = await get_status(GetStatusRequest(), timeout=ANSWER_WITHIN_S)
                self.take(node_id, status)
                await asyncio.sleep(EVERY_S)


@asynccontextmanager
async def watching(addresses: Mapping[str, str], now_us: Callable[[], int]) -> AsyncIterator[Watch]:
    """A watch over the nodes, as long as the block lasts."""
    watch = Watch(addresses, now_us)
    tasks = [asyncio.create_task(watch.keep_asking(node_id)) for node_id in addresses]
    try:
        yield watch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

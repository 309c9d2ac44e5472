"""Members of a group in one process: the product's replicas, one event loop, no sockets.

The replicas are those that a node runs, on real files; between them lies a loopback, which delivers
a message in the next turn of the loop unless the wire is cut. Nothing of a replica is built here.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from broker.config import NodeConfig
from broker.errors import BrokerError, ErrorCode
from broker.leader.leadership import LeaderView
from broker.ports import STEADY, OnBroken, OnMessage, ReplicaPorts, Rhythm
from broker.replica import Replica
from broker.turns import LoopTurns
from chaos.forming import form_disks
from dledger.core.types import NodeId
from dledger.errors import InvalidFrames
from dledger.greeting import Identity
from dledger.level import KNOWN_LEVEL
from dledger.peers import PeerLink
from dledger.promises import Promises
from dledger.wire.raft_pb2 import PeerMessage
from store.files import FileSystem, OsFiles

T = TypeVar("T")
WAIT_S = 60.0
SEGMENT_BYTES = 8 << 20


class Wires:
    """Who listens, and which directed wires are cut."""

    def __init__(self) -> None:
        self.ends: dict[NodeId, Loopback] = {}
        self.cut: set[tuple[NodeId, NodeId]] = set()

    def carry(self, sender: NodeId, to: NodeId, message: PeerMessage) -> None:
        """Delivered in the next turn, as the bytes that would travel."""
        wire = message.SerializeToString()
        asyncio.get_running_loop().call_soon(self._deliver, sender, to, wire)

    def _deliver(self, sender: NodeId, to: NodeId, wire: bytes) -> None:
        end = self.ends.get(to)
        if end is not None and (sender, to) not in self.cut:
            try:
                end.on_message(sender, PeerMessage.FromString(wire))
            except InvalidFrames as error:
                raise AssertionError(f"{sender} sent {to} what is broken") from error

    def gone(self, name: NodeId) -> None:
        """A process is over: its peers notice."""
        if self.ends.pop(name, None) is not None:
            for other in list(self.ends.values()):
                other.on_broken(name)


class Loopback:
    """`broker.ports.Peers` without sockets."""

    def __init__(
        self,
        wires: Wires,
        name: NodeId,
        level: int,
        *,
        on_message: OnMessage,
        on_broken: OnBroken,
    ) -> None:
        self.level = level
        self.on_message = on_message
        self.on_broken = on_broken
        self._wires = wires
        self._name = name

    def start(self) -> None:
        self._wires.ends[self._name] = self

    async def stop(self) -> None:
        self._wires.gone(self._name)

    def level_of(self, peer: NodeId) -> int:
        link = self.links().get(peer)
        return 0 if link is None else link.level

    def links(self) -> Mapping[NodeId, PeerLink]:
        return {
            name: PeerLink(
                True,
                0,
                0,
                0,
                level=end.level,
                gives_entries=True,
                compares_digests=True,
                tells_log_start=True,
            )
            for name, end in self._wires.ends.items()
            if name != self._name
        }

    def send_request(self, peer: NodeId, message: PeerMessage) -> None:
        self._wires.carry(self._name, peer, message)

    send_answer = send_request

    def know(
        self,
        place: object,
        disks: object,
        *,
        is_known: bool,
        members: object = None,
        recoveries: object = (),
        leader: object = None,
    ) -> None:
        """Nobody here has another's disk."""

    def when_given_up(self, call: object) -> None:
        """Nobody here is recovered by force."""

    def speak_for(self, holding: object) -> None:
        """Nobody here is silent for long."""

    def recall(self, promises: object) -> None:
        """Nobody here has been put back."""

    def promises(self) -> dict[NodeId, Promises]:
        return {}


class Seconds:
    """`broker.ports.Latencies`; what was measured is forgotten."""

    class _Nowhere:
        def observe(self, amount: float) -> None:
            return None

    send_seconds = append_seconds = commit_seconds = _Nowhere()
    apply_seconds = loop_lateness_seconds = _Nowhere()


class Inline:
    """`broker.ports.DiskHand` that does its steps where it stands; `before` is called before each
    with its name."""

    def __init__(self) -> None:
        self.before: Callable[[str], None] = lambda _: None

    async def run(self, step: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        self.before(getattr(step, "__name__", "") or _name(step))
        return step()

    async def run_all(self, steps: Sequence[Callable[[], None]]) -> None:
        for step in steps:
            await self.run(step)


def _name(step: Any) -> str:
    return str(getattr(getattr(step, "func", step), "__name__", step))


def make_configs(directory: Path, count: int) -> list[NodeConfig]:
    """A group of `count`; nobody listens at the addresses."""
    peers = {f"n{i + 1}": f"127.0.0.1:{7001 + i}" for i in range(count)}
    return [
        NodeConfig.model_validate(
            {
                "broker_group": "g1",
                "node_id": name,
                "data_directory": str(directory / name),
                "listen": address,
                "peers": peers,
                "store": {"segment_size_bytes": SEGMENT_BYTES, "reserve_bytes": 0},
            }
        )
        for name, address in peers.items()
    ]


class Members:
    """A group; every wait has a deadline."""

    def __init__(self, configs: list[NodeConfig], rhythm: Rhythm = STEADY) -> None:
        self.configs = {NodeId(config.node_id): config for config in configs}
        self.wires = Wires()
        self.hands = {name: Inline() for name in self.configs}
        self.files: dict[NodeId, FileSystem] = {name: OsFiles() for name in self.configs}
        self.replicas: dict[NodeId, Replica] = {}
        self.known_levels = dict.fromkeys(self.configs, KNOWN_LEVEL)  # by who is started next
        self._rhythm = rhythm
        form_disks(configs, lambda _: OsFiles())

    def open(self, name: NodeId) -> Replica:
        """The replica, not yet started."""
        return Replica.open(self.configs[name], self.ports(name))

    def ports(self, name: NodeId) -> ReplicaPorts:
        """What the member has for a world."""
        loop = asyncio.get_running_loop()

        def call_from_worker(call: Callable[..., None], *arguments: object) -> None:
            loop.call_soon_threadsafe(call, *arguments)

        known = self.known_levels[name]

        def connect(_: Identity, on_message: OnMessage, on_broken: OnBroken) -> Loopback:
            return Loopback(self.wires, name, known, on_message=on_message, on_broken=on_broken)

        return ReplicaPorts(
            files=self.files[name],
            hand=self.hands[name],
            connect=connect,
            store_host=(bytes((127, 0, 0, 1)), 7001),
            call_soon=loop.call_soon,
            turns=LoopTurns(),
            call_from_worker=call_from_worker,
            now_ms=lambda: int(time.time() * 1000),
            random=random.Random(name),
            latencies=Seconds(),
            rhythm=self._rhythm,
            known_level=known,
        )

    def start(self, *names: NodeId) -> None:
        """Starts `names`, or everybody."""
        for name in names or self.configs:
            replica = self.replicas[name] = self.open(name)
            replica.start()

    async def stop(self, name: NodeId) -> bool:
        """A clean stop, as SIGTERM does it; what it tells."""
        return await self.replicas.pop(name).stop(nothing_to_shut)

    async def stop_all(self) -> None:
        """Everybody: the group is over."""
        leave_nobody_in_charge(self.replicas.values())
        await asyncio.gather(*(self.stop(name) for name in list(self.replicas)))

    async def leader(self) -> Replica:
        """The one that serves, as soon as there is one."""
        return await self.until(
            lambda: next((r for r in self.replicas.values() if r.leadership.serving), None)
        )

    async def until(self, reached: Callable[[], T | None]) -> T:
        """What `reached` gives as soon as it is true."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if found := reached():
                return found
            await asyncio.sleep(0.002)
        raise AssertionError("it doesn't happen in time")


def leave_nobody_in_charge(replicas: Iterable[Replica]) -> None:
    """They all stop, and whoever leads doesn't wait for a successor, who stops as well."""

    async def refuse(target: NodeId | None) -> LeaderView:
        raise BrokerError(ErrorCode.TRANSFER_FAILED, "everybody stops")

    for each in replicas:
        each.leadership.hand_over = refuse  # type: ignore[method-assign]


async def nothing_to_shut() -> None:
    """There are no doors."""


@asynccontextmanager
async def members(
    directory: Path, count: int = 3, rhythm: Rhythm = STEADY
) -> AsyncIterator[Members]:
    """A group with a leader; stopped at the end."""
    group = Members(make_configs(directory, count), rhythm)
    group.start()
    try:
        await group.leader()
        yield group
    finally:
        await group.stop_all()

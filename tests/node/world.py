"""A broker group of the product's replicas in which nothing happens but by a test's hand.

The members are those of `tests.node.machine`; between them lie wires, on which messages wait until
they are delivered. A test ticks, delivers, syncs, crashes. What travels is what travels in
production, as bytes.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from broker.ports import Connect, OnBroken, OnMessage
from broker.replica import Replica
from chaos.forming import form_disks
from chaos.sim.loop import WALL_START_MS
from chaos.sim.timeline import Timeline
from dledger.core.types import EntryKind, Event, NodeId
from dledger.driver import RaftDriver
from dledger.greeting import Identity
from dledger.level import KNOWN_LEVEL
from dledger.peers import PeerLink
from dledger.promises import Promises
from dledger.reading.entry import EntryHeader
from dledger.wire.commands_pb2 import Command, CreateTopicCommand
from dledger.wire.raft_pb2 import PeerMessage
from store.commitlog import CommitLog
from tests.node.machine import (
    ALLOCATOR,
    FLUSHER,
    MAX_ROUNDS,
    USUALLY,
    Kind,
    Machine,
    make_configs,
)

T = TypeVar("T")
TICK_MS = 10
MAX_TICKS = 2_000  # that anything is waited for


class WorldNode(Machine):
    """A member, and what was told of it in its present life. What is proposed here are topics: the
    order in which the state machine has them is the order in which it applied them."""

    events: list[Event]

    @property
    def driver(self) -> RaftDriver[EntryHeader]:
        return self.replica.driver

    @property
    def log(self) -> CommitLog:
        return self.replica.log

    @property
    def failure(self) -> BaseException | None:
        return self.replica.failure

    def open(self) -> Replica:
        replica = super().open()
        self.events = []
        tell = replica.leadership.on_event

        def on_event(event: Event) -> None:
            self.events.append(event)
            tell(event)

        replica.leadership.on_event = on_event  # type: ignore[method-assign]
        return replica

    def topics(self) -> list[str]:
        """What was applied, in this order."""
        found = self.replica.machine.topics.values()
        return [each.name for each in sorted(found, key=lambda each: each.incarnation)]

    def propose(self, name: str, size: int = 0) -> int:
        """Proposes a topic, in an entry of `size` bytes at least; its index."""
        command = Command(create_topic=CreateTopicCommand(name=name, queue_count=1))
        body = padded(command.SerializeToString(), size)
        return self.driver.propose(EntryKind.COMMAND, 0, body, None).index

    def frames(self) -> bytes:
        """All of its log."""
        return self.log.read(1, self.log.last_index) if self.log.last_index else b""


def padded(message: bytes, size: int) -> bytes:
    """The protobuf message with a field that nobody knows, so that it is longer."""
    if size <= len(message):
        return message
    length, varint = size, bytearray()
    while length:
        varint.append(length & 0x7F | (0x80 if length > 0x7F else 0))
        length >>= 7
    return message + b"\xc2\x3e" + bytes(varint) + bytes(size)  # field 1000, of bytes


class Wires:
    """`broker.ports.Peers` of one member of a world."""

    def __init__(
        self, world: World, name: NodeId, on_message: OnMessage, on_broken: OnBroken
    ) -> None:
        self.on_message = on_message
        self.on_broken = on_broken
        self._world = world
        self._name = name

    def start(self) -> None:
        self._world.ends[self._name] = self

    async def stop(self) -> None:
        self._world.hang_up(self._name)

    def level_of(self, peer: NodeId) -> int:
        return KNOWN_LEVEL if peer in self._world.ends else 0

    def links(self) -> Mapping[NodeId, PeerLink]:
        up = PeerLink(True, 0, 0, 0, level=KNOWN_LEVEL)
        return {name: up for name in self._world.ends if name != self._name}

    def send_request(self, peer: NodeId, message: PeerMessage) -> None:
        self._world.wires.append((self._name, peer, message))
        self._world.said.append(message.WhichOneof("body"))

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
        """Nobody here is asked for a sign of life."""

    def recall(self, promises: object) -> None:
        """Nobody here is put back."""

    def promises(self) -> dict[NodeId, Promises]:
        return {}


class World:
    """A group with its clock. Names are n1, n2, …"""

    def __init__(self, count: int = 3, seed: int = 1, kind: Kind = USUALLY) -> None:
        self.random = random.Random(seed)
        self.timeline = Timeline()
        self.wires: deque[tuple[NodeId, NodeId, PeerMessage]] = deque()
        self.said: list[str | None] = []  # the kinds of all messages so far
        self.ends: dict[NodeId, Wires] = {}
        self.cut: set[tuple[NodeId, NodeId]] = set()
        configs = make_configs(count, kind)
        self.members = [NodeId(config.node_id) for config in configs]
        self.nodes = {
            NodeId(config.node_id): WorldNode(
                config,
                self.timeline,
                self._connect(NodeId(config.node_id)),
                kind,
                self.random.getrandbits(32),
            )
            for config in configs
        }
        form_disks(
            configs,
            lambda name: self.nodes[NodeId(name)].files,
            lambda name: self.nodes[NodeId(name)].machinery,
        )
        for node in self.nodes.values():
            node.boot()

    def _connect(self, name: NodeId) -> Connect:
        def connect(_: Identity, on_message: OnMessage, on_broken: OnBroken) -> Wires:
            return Wires(self, name, on_message, on_broken)

        return connect

    # --- time ---------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """What right wall clocks show."""
        return WALL_START_MS + self.timeline.now // 1000

    def pass_time(self, ms: int) -> None:
        """So much time has passed, and timers have come due."""
        before = self.timeline.current
        self.timeline.run(self.timeline.now + ms * 1000)
        self.timeline.switch(before)

    def stand_still(self, ms: int) -> None:
        """All processes were stopped for so long, as those of a machine that slept."""
        loops = [node.loop for node in self.nodes.values() if node.is_up]
        for loop in loops:
            loop.paused = True
        self.pass_time(ms)
        for loop in loops:
            self.timeline.resume(loop)
        self.settle()

    def tick(self, *, flush: bool = True) -> None:
        """A tick has passed, and all that follows from it has happened."""
        self.pass_time(TICK_MS)
        self.settle(flush=flush)

    def run_for(self, ticks: int) -> None:
        """So many ticks have passed."""
        for _ in range(ticks):
            self.tick()

    # --- what happens -------------------------------------------------------------------------

    def settle(self, *, flush: bool = True) -> None:
        """Runs callbacks, disks and the network until nothing moves."""
        for _ in range(MAX_ROUNDS):
            self.turn()
            moved = False
            for node in self._up():
                moved |= node.take_turns()
                moved |= flush and node.sync()
            while self.wires:
                moved = True
                self.deliver()
            if not moved:
                return
        raise AssertionError("the world does not come to rest")

    def turn(self) -> None:
        """Everybody's event loop has run what was ready."""
        for node in self._up():
            node.turn()

    def deliver(self) -> None:
        """The message that waits longest arrives, unless its wire is cut."""
        sender, to, message = self.wires.popleft()
        if to in self.ends and (sender, to) not in self.cut:
            wire = PeerMessage.FromString(message.SerializeToString())
            with self.nodes[to].running():
                self.ends[to].on_message(sender, wire)

    def _up(self) -> list[WorldNode]:
        return [node for node in self.nodes.values() if node.is_up]

    # --- lives --------------------------------------------------------------------------------

    def crash(self, name: NodeId) -> None:
        """Its power goes off: what was not durable may be gone, its streams break."""
        self.nodes[name].crash()
        self.hang_up(name)

    def restart(self, name: NodeId) -> None:
        """It starts again from what its disk has."""
        self.nodes[name].boot()

    def hang_up(self, name: NodeId) -> None:
        """A process is over: its peers notice."""
        if self.ends.pop(name, None) is not None:
            for other, end in list(self.ends.items()):
                with self.nodes[other].running():
                    end.on_broken(name)

    def isolate(self, name: NodeId) -> None:
        """No message to or from `name` arrives."""
        for other in self.members:
            self.cut |= {(name, other), (other, name)}

    # --- what tests wait for ------------------------------------------------------------------

    def ready_leader(self) -> WorldNode | None:
        """Who leads and has committed in its term; the latest, if two believe so."""
        ready = [node for node in self._up() if node.driver.core.is_ready_leader]
        return max(ready, key=lambda node: node.driver.core.term, default=None)

    def elect(self, ticks: int = 400) -> WorldNode:
        """Ticks until somebody leads and has committed in its term."""
        for _ in range(ticks):
            self.tick()
            if leader := self.ready_leader():
                return leader
        raise AssertionError("nobody was elected")

    def serving(self) -> WorldNode:
        """Ticks until somebody serves."""
        for _ in range(MAX_TICKS):
            leader = self.ready_leader()
            if leader is not None and leader.replica.leadership.serving:
                return leader
            self.tick()
        raise AssertionError("nobody serves")

    def others(self, name: NodeId) -> list[WorldNode]:
        """Everybody else."""
        return [node for node in self.nodes.values() if node.name != name]

    def lead(self, name: NodeId) -> WorldNode:
        """Ticks until `name` serves; it is handed leadership."""
        leader = self.serving()
        for _ in range(MAX_TICKS):
            if leader.name == name:
                return leader
            if leader.driver.core.statistics().transfer_target is None:
                leader.driver.transfer_leadership(name)
            self.tick()
            leader = self.serving()
        raise AssertionError(f"{name} doesn't lead")

    def run(self, node: WorldNode, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, which the process of `node` has run."""
        return self.outcome(node.begin(work))

    def outcome(self, task: asyncio.Task[T]) -> T:
        """What `task` gives in the end, with all the time that it takes."""
        for _ in range(MAX_TICKS):
            self.settle()
            if task.done():
                return task.result()
            self.pass_time(TICK_MS)
        raise AssertionError("it doesn't end")


__all__ = ["ALLOCATOR", "FLUSHER", "Kind", "World", "WorldNode", "padded"]

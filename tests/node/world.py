"""A world for the real driver: real cores, a log in memory, hand-delivered messages.

Nothing happens by itself: a test ticks, delivers, makes durable. The log builds real frames, so
that what travels between nodes is what travels in production. A crash keeps what was durable.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dledger.core import Raft
from dledger.core.types import (
    Configuration,
    Event,
    HardState,
    Index,
    LogSummary,
    NodeId,
    RaftOptions,
    Term,
    TermRun,
)
from dledger.driver import Ports, RaftDriver
from dledger.errors import ApplyPaused, InvalidFrames
from dledger.hard_state import HardStateStore
from dledger.ports import never_enough
from dledger.reading.entry import (
    EntryHeader,
    build_frame,
    digest_of,
    parse_header,
    position_after,
    verify_frame,
    walk_frames,
)
from dledger.records.errors import InvalidFrame
from dledger.wire.raft_pb2 import PeerMessage
from store.errors import StorageFull

SEGMENT = 64 << 20


def parse(blob: bytes) -> list[EntryHeader]:
    try:
        return walk_frames(blob)
    except InvalidFrame as error:
        raise InvalidFrames(str(error)) from error


class MemoryLog:
    """`ReplicatedLog` without files; `flush` makes everything submitted durable."""

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = list(frames)
        self.room = True
        self.capacity_bytes = SEGMENT
        self.durable: list[bytes] = list(frames)
        self._submitted: deque[tuple[int, Callable[[], None] | None, list[bytes]]] = deque()
        self.on_durable: Callable[[int], None] = lambda _: None

    @property
    def last_index(self) -> int:
        return len(self.frames)

    @property
    def last_append_time_ms(self) -> int:
        return parse_header(self.frames[-1], 0).append_time_ms if self.frames else 0

    def _end(self) -> tuple[int, int]:
        if not self.frames:
            return 0, 0
        last = parse_header(self.frames[-1], 0)
        return last.physical_offset + last.total_size, last.digest

    def next_position(self, frame_size: int) -> int:
        return position_after(self._end()[0], frame_size, SEGMENT)

    def has_room(self, frame_bytes: int) -> bool:
        return self.room and self._end()[0] + frame_bytes <= self.capacity_bytes

    @property
    def unwritten_bytes(self) -> int:
        return sum(map(len, self.frames[len(self.durable) :]))

    def is_short_of_space(self, frame_bytes: int) -> bool:
        return not self.has_room(frame_bytes)

    def append(
        self,
        kind: int,
        index: int,
        term: int,
        append_time_ms: int,
        record_count: int,
        body: bytes | bytearray,
    ) -> int:
        assert index == self.last_index + 1
        at = self.next_position(56 + len(body))
        if at + 56 + len(body) > self.capacity_bytes:
            raise StorageFull("memory", 56 + len(body), self.capacity_bytes - at)
        header, _ = build_frame(
            kind, index, term, at, append_time_ms, record_count, body, self._end()[1]
        )
        self.frames.append(header + bytes(body))
        return at

    def refusal_of(self, blob: memoryview, headers: list[EntryHeader]) -> str | None:
        at, digest = 0, self.digest_at(headers[0].index - 1)
        for header in headers:
            digest = digest_of(blob, at, header.total_size, digest)
            if digest != header.digest:
                return f"digest {header.digest:016x}, expected {digest:016x}"
            at += header.total_size
        return None

    def verify(self, first: int, last: int, digest: int) -> int:
        for frame in self.durable[first - 1 : last]:
            digest = verify_frame(frame, 0, digest).digest
        return digest

    @property
    def synced_index(self) -> int:
        return len(self.durable)

    def append_frames(self, blob: memoryview, headers: list[EntryHeader]) -> None:
        at = 0
        for header in headers:
            assert header.index == self.last_index + 1
            self.frames.append(bytes(blob[at : at + header.total_size]))
            at += header.total_size

    def truncate_from(self, index: int) -> None:
        del self.frames[index - 1 :]

    def submit(self, ticket: int, prelude: Callable[[], None] | None) -> None:
        self._submitted.append((ticket, prelude, list(self.frames)))

    def flush(self) -> None:
        """Everything submitted is on disk, one ticket after the other."""
        while self._submitted:
            ticket, prelude, frames = self._submitted.popleft()
            if prelude is not None:
                prelude()
            self.durable = frames
            self.on_durable(ticket)

    def read(self, first: int, last: int) -> bytes:
        return b"".join(self.frames[first - 1 : last])

    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int:
        size, index = 0, first
        for candidate in range(first, last + 1):
            size += len(self.frames[candidate - 1])
            if size > max_bytes and candidate > first:
                break
            index = candidate
        return index

    def digest_at(self, index: int) -> int:
        return parse_header(self.frames[index - 1], 0).digest if index else 0


@dataclass
class MemoryFile:
    """`AtomicFile` without a disk."""

    content: bytes | None = None
    writes: int = 0

    def read(self) -> bytes | None:
        return self.content

    def replace(self, content: bytes) -> None:
        self.content = content
        self.writes += 1


class ManualTurns:
    """`Turns` that a test gives: a piece has as many steps as the world says."""

    def __init__(self, soon: deque[Callable[[], None]], world: World) -> None:
        self._soon = soon
        self._world = world

    def share(self) -> Callable[[], bool]:
        steps = iter(range(self._world.turn_steps - 1))
        return lambda: next(steps, None) is None

    def later(self, call: Callable[[], None]) -> object:
        self._soon.append(call)
        return None

    async def pause(self) -> None:
        raise AssertionError("nothing here waits for a turn")


@dataclass
class Recorder:
    """State machine and observer: remembers what it was told."""

    applied: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    applied_index: int = 0
    full_from: int | None = None  # the machine has no space for this entry and later ones

    def apply(self, frames: bytes, is_enough: Callable[[], bool] = never_enough) -> int:
        last = 0
        for header in parse(frames):
            if self.full_from is not None and header.index >= self.full_from:
                raise ApplyPaused(header.index - 1, "full")
            at = header.physical_offset - parse_header(frames, 0).physical_offset
            self.applied.append(frames[at + 56 : at + header.total_size])
            last = header.index
            if is_enough():
                break
        return last

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def on_applied(self, index: Index) -> None:
        self.applied_index = index

    def bodies(self) -> list[bytes]:
        """The bodies that were applied, no-ops left out."""
        return [body for body in self.applied if body]


@dataclass
class WorldNode:
    """One node and what survives its crash."""

    name: NodeId
    log: MemoryLog
    file: MemoryFile
    record: Recorder
    driver: RaftDriver[EntryHeader]
    soon: deque[Callable[[], None]]
    up: bool = True


class World:
    """A group of drivers. Names are n1, n2, …"""

    def __init__(self, count: int = 3, seed: int = 1, options: RaftOptions | None = None) -> None:
        self.random = random.Random(seed)
        self.options = options or RaftOptions()
        self.members = [NodeId(f"n{i + 1}") for i in range(count)]
        self.wires: deque[tuple[NodeId, NodeId, PeerMessage]] = deque()
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.now_ms = 1_000_000
        self.turn_steps = 1_000
        self.clock_off_ms: dict[NodeId, int] = {}  # how far wall clocks are ahead of it
        self.nodes: dict[NodeId, WorldNode] = {}
        for name in self.members:
            self._boot(name, MemoryLog([]), MemoryFile())

    def _boot(self, name: NodeId, log: MemoryLog, file: MemoryFile) -> None:
        record = Recorder()
        soon: deque[Callable[[], None]] = deque()
        store = HardStateStore(file)
        runs: list[TermRun] = []
        for frame in log.frames:
            header = parse_header(frame, 0)
            if not runs or runs[-1].term != header.term:
                runs.append(TermRun(Index(header.index), Term(header.term)))
        core = Raft(
            name,
            Configuration(voters=frozenset(self.members)),
            view=log,
            rng=random.Random(self.random.random()),
            options=self.options,
            log=LogSummary(last_index=Index(log.last_index), term_runs=tuple(runs)),
            hard_state=store.load(),
        )
        ports = Ports(
            log=log,
            parse_frames=parse,
            hard_state=store,
            transport=_Wires(self, name),
            machine=record,
            observer=record,
            configuration_of=lambda _: Configuration(voters=frozenset(self.members)),
            call_soon=soon.append,
            turns=ManualTurns(soon, self),
            wall_ms=lambda: self.now_ms + self.clock_off_ms.get(name, 0),
            monotonic_s=lambda: self.now_ms / 1000,
            fail=record.failures.append,
        )
        driver = RaftDriver(core, name, ports, Index(0))
        log.on_durable = driver.on_durable
        self.nodes[name] = WorldNode(name, log, file, record, driver, soon)
        driver.start()

    def crash(self, name: NodeId) -> None:
        """The process dies: what was not durable is gone, its streams break."""
        self.nodes[name].up = False
        self.nodes[name].driver.stop()
        for other in self.members:
            if other != name and self.nodes[other].up:
                self.nodes[other].driver.suspect(name)

    def restart(self, name: NodeId) -> None:
        """The process starts again from what was durable."""
        node = self.nodes[name]
        self._boot(name, MemoryLog(node.log.durable), MemoryFile(node.file.content))

    def tick(self, *names: NodeId) -> None:
        """One tick for each of `names`, or for everybody."""
        self.now_ms += 10
        for name in names or self.members:
            if self.nodes[name].up:
                self.nodes[name].driver.tick()

    def settle(self, *, flush: bool = True) -> None:
        """Runs callbacks, disks and the network until nothing moves."""
        for _ in range(10_000):
            moved = False
            for node in self.nodes.values():
                while node.soon:
                    node.soon.popleft()()
                    moved = True
                if flush and node.up:
                    node.log.flush()
            while self.wires:
                moved = True
                self._deliver(*self.wires.popleft())
            if not moved:
                return
        raise AssertionError("the world does not come to rest")

    def _deliver(self, sender: NodeId, to: NodeId, message: PeerMessage) -> None:
        node = self.nodes[to]
        if node.up and (sender, to) not in self.cut:
            node.driver.on_message(sender, PeerMessage.FromString(message.SerializeToString()))

    def elect(self, ticks: int = 400) -> WorldNode:
        """Ticks until somebody leads and has committed in its term."""
        for _ in range(ticks):
            self.tick()
            self.settle()
            for node in self.nodes.values():
                if node.up and node.driver.core.is_ready_leader:
                    return node
        raise AssertionError("nobody was elected")

    def isolate(self, name: NodeId) -> None:
        """No message to or from `name` arrives."""
        for other in self.members:
            self.cut |= {(name, other), (other, name)}


class _Wires:
    def __init__(self, world: World, name: NodeId) -> None:
        self._world = world
        self._name = name

    def send_request(self, peer: NodeId, message: PeerMessage) -> None:
        self._world.wires.append((self._name, peer, message))

    send_answer = send_request

    def know(self, place: object, disks: object, *, is_known: bool) -> None:
        """Nobody here has another's disk."""


HARD_STATE_ZERO = HardState()

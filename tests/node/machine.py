"""A machine that stands still: the product's replica, where nothing happens but by a test's hand.

The replica is opened, joined and started by `broker.replica`, the very file that runs in
production; nothing of it is built here. Its ports are such that it waits for the test: the disk is
the simulator's, which forgets what was not synced, and its workers work when they are told to; the
event loop is the simulator's, whose time passes when it is told to; long work goes on in a later
turn when it is given one. A crash takes the process's memory, and the disk decides what is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeVar

from broker.config import NodeConfig
from broker.ports import Connect, ReplicaPorts, Rhythm
from broker.recovery import StoreMachinery
from broker.replica import Replica
from broker.state.machine import USUAL, MachineOptions
from chaos.sim.disk import SimulatedDisk
from chaos.sim.loop import ProcessLoop
from chaos.sim.timeline import Timeline
from dledger.core.types import NodeId
from dledger.level import FIRST_LEVEL
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.ports import Turns, never_enough
from store.directory import DISK_ID_BYTES, Birth
from store.files import FileSystem, OsFiles
from store.options import CommitLogOptions
from store.worker import ManualWorker, Step

T = TypeVar("T")
DATA = Path("/data")
SEGMENT = 8 << 20
HOST = (bytes((127, 0, 0, 1)), 7001)
FLUSHER, ALLOCATOR = "store-flusher", "store-preallocation"  # a log's workers
MAX_ROUNDS = 10_000  # of what makes itself more to do


@dataclass(frozen=True, slots=True)
class Kind:
    """What is out of the ordinary about a machine.

    Attributes:
        segment_bytes: of its log.
        max_uncommitted_bytes: as configured.
        max_append_entries: as configured.
        state: bounds of the replicated state.
        known_level: to the program that runs; nothing is raised of itself, unless a test wants it.
        folder: a directory of the real disk, for who reads the files past the replica.
        turns: how long work shares the event loop; None: as `HandTurns` has it.
        retention: as configured.
        hastens_first_election: as all do; here the first leader is whose timeout is shortest.
    """

    segment_bytes: int = SEGMENT
    max_uncommitted_bytes: int = 64 << 20
    max_append_entries: int = 1024
    state: MachineOptions = USUAL
    known_level: int = FIRST_LEVEL
    folder: Path | None = None
    turns: Turns | None = None
    retention: Mapping[str, int] = field(default_factory=dict)
    hastens_first_election: bool = False


USUALLY = Kind()


def make_configs(count: int, kind: Kind = USUALLY) -> list[NodeConfig]:
    """A broker group of n1, n2, …; nobody listens at the addresses."""
    peers = {f"n{i + 1}": f"127.0.0.1:{7001 + i}" for i in range(count)}
    return [
        NodeConfig.model_validate(
            {
                "broker_group": "g",
                "node_id": name,
                "data_directory": str((kind.folder or DATA) / name),
                "listen": address,
                "peers": peers,
                "raft": {
                    "max_uncommitted_bytes": kind.max_uncommitted_bytes,
                    "max_append_entries": kind.max_append_entries,
                },
                "broker": {
                    "max_message_bytes": min(MAX_MESSAGE_BYTES, kind.segment_bytes - (1 << 20)),
                    "long_poll_default_ms": 0,
                    "max_held_pulls": 2,
                },
                "store": {"segment_size_bytes": kind.segment_bytes, "reserve_bytes": 0},
                "retention": kind.retention,
            }
        )
        for name, address in peers.items()
    ]


class HandTurns:
    """`dledger.ports.Turns`: a piece ends when the test says, and the next waits to be run."""

    def __init__(self) -> None:
        self.begin: Callable[[], Callable[[], bool]] = lambda: never_enough
        self.waiting: deque[Callable[[], None]] = deque()

    def share(self) -> Callable[[], bool]:
        return self.begin()

    def later(self, call: Callable[[], None]) -> object:
        self.waiting.append(call)
        return None

    async def pause(self) -> None:
        await asyncio.sleep(0)


class Standing:
    """`broker.ports.DiskHand` that does its steps where it stands."""

    async def run(self, step: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return step()

    async def run_all(self, steps: Sequence[Callable[[], None]]) -> None:
        for step in steps:
            await self.run(step)


class Unmeasured:
    """`broker.ports.Latencies`; what was measured is forgotten."""

    class _Nowhere:
        def observe(self, amount: float) -> None:
            return None

    send_seconds = append_seconds = commit_seconds = _Nowhere()
    apply_seconds = loop_lateness_seconds = _Nowhere()


class HandLoop(ProcessLoop):
    """A process whose threads work in a moment; it lives no longer than its test."""

    living: ClassVar[list[HandLoop]] = []

    def __init__(self, timeline: Timeline, name: str, number: int) -> None:
        super().__init__(timeline, name, number)
        self.living.append(self)

    @property
    def is_ready(self) -> bool:
        """Whether a turn would run anything."""
        return bool(self._ready)

    def run_in_executor(
        self, executor: None, call: Callable[..., T], *arguments: object
    ) -> asyncio.Future[T]:
        done = self.create_future()
        done.set_result(call(*arguments))
        return done


@contextmanager
def machines_of_a_test() -> Iterator[None]:
    """No process of a machine that was begun within is left behind, nor anything that one of them
    had still to do."""
    before = len(HandLoop.living)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)
        while len(HandLoop.living) > before:
            HandLoop.living.pop().die()


class Machine:
    """One machine of a group: its disk for good, its process from `boot` to `crash`.

    Args:
        connect: makes its process's links to the peers.
        seed: of its timeouts, and of what a loss of power leaves on its disk.
    """

    def __init__(
        self, config: NodeConfig, timeline: Timeline, connect: Connect, kind: Kind, seed: int
    ) -> None:
        self.name = NodeId(config.node_id)
        self.config = config
        self.disk = SimulatedDisk()
        self.files: FileSystem = self.disk if kind.folder is None else OsFiles()
        self.hand = HandTurns()
        self.turns = kind.turns or self.hand
        self.wall_offset_ms = 0
        self.is_up = False
        self.replica: Replica
        self.loop: HandLoop
        self.workers: dict[str, ManualWorker] = {}
        self._due_s: dict[str, float] = {}  # when a worker wants to be called without being woken
        self._timeline = timeline
        self._connect = connect
        self._kind = kind
        self._random = Random(seed)

    @property
    def machinery(self) -> StoreMachinery:
        """Of the next process, or of whoever forms the group's disks."""
        loop, store = getattr(self, "loop", None), self.config.store
        return StoreMachinery(
            workers=self._make_worker,
            clock=loop.time if loop is not None else lambda: 0.0,
            log_options=CommitLogOptions(store.segment_size_bytes, reserve_bytes=0, cache_bytes=0),
            state=self._kind.state,
            birth=lambda: Birth(self._random.randbytes(DISK_ID_BYTES), 0),
        )

    def _make_worker(self, name: str, step: Step) -> ManualWorker:
        self.workers[name] = ManualWorker(name, step)
        return self.workers[name]

    # --- its process --------------------------------------------------------------------------

    def open(self) -> Replica:
        """What a process that begins makes of the disk; not yet started."""
        self.disk.power_on()
        loop = self.loop = HandLoop(self._timeline, self.name, 1)
        self.set_wall(self.wall_offset_ms)
        self.workers, self._due_s = {}, {}

        def call_from_worker(call: Callable[..., None], *arguments: object) -> None:
            loop.call_soon(call, *arguments)

        with self.running():
            ports = ReplicaPorts(
                files=self.files,
                hand=Standing(),
                connect=self._connect,
                store_host=HOST,
                call_soon=loop.post,
                turns=self.turns,
                call_from_worker=call_from_worker,
                now_ms=loop.wall_ms,
                random=self._random,
                latencies=Unmeasured(),
                machinery=self.machinery,
                rhythm=Rhythm(hastens_first_election=self._kind.hastens_first_election),
                known_level=self._kind.known_level,
            )
            self.replica = Replica.open(self.config, ports)
        return self.replica

    def boot(self) -> None:
        """A process has begun, and takes part."""
        self.open()
        with self.running():
            self.replica.start()
        self.is_up = True

    def crash(self) -> None:
        """The power goes off: of what was not synced some pages are left, torn or whole."""
        self._die()
        self.disk.power_off(self._random)

    def kill(self) -> None:
        """The process is gone; the page cache isn't."""
        self._die()
        self.disk.kill()

    def _die(self) -> None:
        self.is_up = False
        self.hand.waiting.clear()
        self.loop.die()

    def set_wall(self, offset_ms: int) -> None:
        """Its wall clock is so far ahead of true time."""
        self.wall_offset_ms = self.loop.wall_offset_ms = offset_ms

    # --- what happens -------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """What is done within is done by its process."""
        before = self._timeline.current
        self._timeline.switch(self.loop)
        try:
            yield
        finally:
            self._timeline.switch(before)

    def turn(self) -> None:
        """What is ready on its event loop has been run, and what that made ready."""
        if self.loop.is_ready:
            with self.running():
                self.loop.leave()
        if self.loop.crashes:
            raise self.loop.crashes[0]

    def take_turns(self) -> bool:
        """Long work that waited for another turn had one; whether there was any."""
        if not self.hand.waiting:
            return False
        waiting = list(self.hand.waiting)
        self.hand.waiting.clear()
        with self.running():
            for call in waiting:
                call()
        return True

    def sync(self) -> bool:
        """Its disk has done what it was given, and what was due, and tells of it with the next
        turn; whether there was anything to do."""
        now_s = self.loop.time()
        at_work = [
            worker
            for worker in self.workers.values()
            if worker.woken or self._due_s.get(worker.name, inf) <= now_s
        ]
        if not at_work:
            return False
        with self.running():
            for worker in at_work:
                worker.run_pending()
                self._due_s[worker.name] = inf if worker.due_in is None else now_s + worker.due_in
        return True

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Its process runs `work`, from the next turn on."""
        with self.running():
            return self.loop.create_task(work)

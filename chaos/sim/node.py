"""One simulated node: the real parts on a simulated machine.

This is the simulator's composition root, the sibling of `broker/node.py`: the same recovery, core,
driver, store, state machine, appender, reader and services, joined in the same way, over a
process loop in virtual time instead of asyncio's and a network of the simulator's instead of
gRPC. It owns the machine's life: boot, kill, power cut, pause, clean stop. What is a defect and
what is a fault's consequence is decided here by one rule: a node may stop for what was done to its
disk, and for nothing else. Longer than most: it is to be read beside `broker/node.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol

from broker.announcing import Announcer
from broker.assembly import Parts, Surrounds, services_of
from broker.config import BrokerConfig, NodeConfig, RaftConfig, StoreConfig
from broker.doors.grpc.broker import BrokerDoor
from broker.errors import BrokerError, ErrorCode
from broker.leader.append import Appender
from broker.leader.leadership import Leadership
from broker.node import configuration_of, parse_frames, raft_options
from broker.reading.held import HeldPulls
from broker.reading.queues import QueueReader
from broker.recovery import Recovered, StoreMachinery, log_options, recover
from broker.state.machine import StateMachine
from broker.ticker import Ticker
from chaos.sim.disk import MachineDied, SimulatedDisk
from chaos.sim.links import SimulatedLinks
from chaos.sim.loop import ProcessLoop
from chaos.sim.network import Network
from chaos.sim.plan import Plan
from chaos.sim.timeline import Timeline
from chaos.sim.worker import TimedWorker
from dledger.core import Raft
from dledger.core.errors import CoreError
from dledger.core.types import Configuration, Index, NodeId
from dledger.driver import Ports, RaftDriver
from dledger.errors import HardStateCorrupt, InvalidMessage
from dledger.greeting import Identity
from dledger.links import LinkTimes
from dledger.peers import Ears, LinkPace
from dledger.reading.entry import EntryHeader
from dledger.wire.raft_pb2 import PeerMessage
from store.errors import CorruptionFound, StorageFailed, StorageFull
from store.files import FULL_ERRNOS
from store.worker import Step

DATA = Path("/data")
GROUP = "sim"
WAKE_US = 20  # from a wake to a worker's first look
DRAIN_S = 1.0


class Defect(AssertionError):
    """Something happened that no fault explains. `check` names what noticed it."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check
        self.detail = detail


class World(Protocol):
    """What a node is in."""

    timeline: Timeline
    network: Network

    def log(self, who: str, what: str) -> None: ...
    def on_boot(self, node: SimNode) -> None: ...
    def on_sent(self, node: SimNode, peer: NodeId, message: PeerMessage) -> None: ...
    def on_stopped(self, node: SimNode) -> None: ...


class _NoMetrics:
    """Histograms that measure nothing: there is no real time here."""

    class _Nothing:
        def observe(self, amount: float) -> None:
            return None

    append_seconds = send_seconds = _Nothing()


@dataclass(slots=True)
class Life:
    """One process, from boot to death."""

    loop: ProcessLoop
    recovered: Recovered
    driver: RaftDriver[EntryHeader]
    leadership: Leadership
    appender: Appender
    reader: QueueReader
    held: HeldPulls
    door: BrokerDoor
    ticker: Ticker
    links: SimulatedLinks
    failed: BaseException | None = None
    stopping: bool = False
    is_checkpoint_held: bool = False

    @property
    def machine(self) -> StateMachine:
        return self.recovered.machine

    @property
    def core(self) -> Raft:
        return self.driver.core


class SimNode:
    """A machine with a disk, on which a node's process comes and goes."""

    def __init__(self, world: World, name: NodeId, number: int, plan: Plan) -> None:
        self.name = name
        self.number = number
        self.members = [NodeId(f"n{i + 1}") for i in range(plan.nodes)]
        self.is_ruined = False  # its disk has rotted: down for good
        self.spoiled = False  # a bit of its disk was flipped
        self.rot: dict[tuple[Path, int], int] = {}  # (file, byte) -> what it was
        self.life: Life | None = None
        self.boots = 0
        self.sync_us = plan.tuning.sync_us
        self.drift = 1.0
        self.wall_offset_ms = 0
        self._world = world
        self._plan = plan
        self._chance = plan.random(f"node/{name}")
        self._disk_chance = plan.random(f"disk/{name}")
        self.disk = SimulatedDisk(self._sync_latency)
        self._workers: dict[str, TimedWorker] = {}  # of the present life, by name
        self.config = node_config(plan, name, self.members)
        self.identity = Identity(GROUP, name, self.config.store.segment_size_bytes)

    @property
    def _alive(self) -> Life:
        if self.life is None:
            raise RuntimeError(f"{self.name} is down")
        return self.life

    @property
    def driver(self) -> RaftDriver[EntryHeader]:
        """Of the present life."""
        return self._alive.driver

    @property
    def machine(self) -> StateMachine:
        """Of the present life."""
        return self._alive.machine

    # --- life --------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.life is not None

    @property
    def is_running(self) -> bool:
        """Up, and not stopped by a failure."""
        return self.life is not None and self.life.failed is None

    def boot(self) -> None:
        """The process starts: it recovers and joins, or fails to start."""
        if self.life is not None or self.is_ruined:
            return
        self.disk.power_on()
        self.boots += 1
        timeline = self._world.timeline
        before = timeline.current
        number = self.number + 1
        loop = ProcessLoop(timeline, self.name, number, self._plan.tuning.turn_us)
        loop.drift(self.drift)
        loop.wall_offset_ms = self.wall_offset_ms
        timeline.switch(loop)
        try:
            self._start(loop)
        except MachineDied:
            loop.die()
            self.life = None
            self._world.log(self.name, "died while it started")
            if self.disk.keeps_cache:
                self.disk.kill()
                self.disk.power_on()
            else:
                self.disk.power_off(self._disk_chance)
        except (StorageFull, StorageFailed, OSError, CorruptionFound, HardStateCorrupt) as error:
            loop.die()
            self.life = None
            self._failed_to_start(error)
        else:
            loop.leave()
        finally:
            timeline.switch(before)

    def _start(self, loop: ProcessLoop) -> None:
        machinery = StoreMachinery(
            workers=lambda name, step: self._worker(loop, name, step),
            clock=loop.time,
            log_options=replace(
                log_options(self.config), cache_bytes=self._plan.tuning.cache_bytes
            ),
            units_per_file=self._plan.tuning.units_per_file,
        )
        recovered = recover(self.config, self.disk, machinery)
        self.disk.take_latency()
        life = self.life = self._build(loop, recovered)
        report = recovered.log.recovery
        self._world.log(
            self.name,
            f"started: log to {report.last_index}, cut {report.cut_bytes} bytes, "
            f"applied {recovered.machine.applied_index}",
        )
        if not report.clean_shutdown:
            self._check_rot_was_found()
        self._world.on_boot(self)
        life.links.start()
        life.driver.start()
        life.ticker.start()
        loop.call_later(self._plan.tuning.housekeeping_ms / 1e3, self._keep_house, life)

    def _check_rot_was_found(self) -> None:
        """Recovery has read the whole log: a rotten byte in it can't have escaped."""
        for (path, at), before in self.rot.items():
            is_log = path.parent.name == "commitlog"
            if is_log and self.disk.content(path)[at : at + 1] != bytes((before,)):
                raise Defect("rot not found", f"{self.name}: {path.name} at byte {at}")

    def _failed_to_start(self, error: Exception) -> None:
        self._world.log(self.name, f"failed to start: {error}")
        if isinstance(error, (CorruptionFound, HardStateCorrupt)):
            if not self.spoiled:
                raise Defect("false corruption", f"{self.name}: {error}") from error
            self.is_ruined = True
        elif not self.disk.failures:
            raise Defect("start", f"{self.name}: {error!r}") from error
        self.disk.kill()

    def _build(self, loop: ProcessLoop, recovered: Recovered) -> Life:
        config, name = self.config, self.name
        members = {NodeId(each): address for each, address in config.peers.items()}
        core = Raft(
            name,
            Configuration(voters=frozenset(members)),
            view=recovered.log,
            rng=Random(self._chance.random()),
            options=replace(
                raft_options(config),
                max_inflight_appends=self._plan.tuning.max_inflight_appends,
            ),
            log=recovered.summary,
            hard_state=recovered.hard_state,
            commit_index=Index(recovered.machine.applied_index),
        )
        self._transport = _Transport(self._world, self, loop)
        held = HeldPulls(config.broker.max_held_pulls)
        proposer = _Proposer()
        appender = Appender(
            proposer,
            recovered.machine,
            recovered.log.read_at,
            lambda: recovered.log.statistics().is_full,
            (bytes((10, 0, 0, self.number + 1)), 7000),
            config.broker.max_message_bytes,
        )
        leadership = Leadership(GROUP, name, members, appender, held)
        ports = Ports(
            log=recovered.log,
            parse_frames=parse_frames,
            hard_state=recovered.hard_state_store,
            transport=self._transport,
            machine=recovered.machine,
            observer=leadership,
            configuration_of=configuration_of,
            call_soon=loop.post,
            now_ms=loop.wall_ms,
            fail=lambda error: self._on_failed(loop, error),
        )
        driver = RaftDriver(core, name, ports, Index(recovered.machine.applied_index))
        proposer.driver = driver
        reader = QueueReader(recovered.machine, recovered.queues, recovered.log.read_at)
        recovered.machine.listen(Announcer(appender, held))
        flusher = self._workers["store-flusher"]
        recovered.log.on_durable = lambda ticket: flusher.announce(driver.on_durable, ticket)
        recovered.log.on_failed = lambda error: flusher.announce(driver.on_storage_failed, error)
        parts = Parts(recovered.log, recovered.machine, driver, leadership, appender, reader, held)
        around = Surrounds(links=dict, fail=lambda error: self._on_failed(loop, error))
        services = services_of(config, parts, around)
        leadership.attach(driver, services.cluster.notify)
        door = BrokerDoor(services)
        ticker = Ticker(config.raft.tick_ms / 1000, driver.tick, _NoMetrics.append_seconds)
        links = self._transport.links
        return Life(
            loop, recovered, driver, leadership, appender, reader, held, door, ticker, links
        )

    def _worker(self, loop: ProcessLoop, name: str, step: Step) -> TimedWorker:
        worker = TimedWorker(self._world.timeline, loop, self.disk, step, WAKE_US)
        self._workers[name] = worker
        return worker

    def _keep_house(self, life: Life) -> None:
        """As `Node._keep_house`, in one piece: the ConsumeQueues are durable, then noted. A full
        disk is no failure; what was not synced then is derived again by the next start."""
        recovered = life.recovered
        settled = life.driver.settled_index
        try:
            recovered.queues.flush()
            if not life.is_checkpoint_held:
                recovered.log.checkpoint.note_consume_queue(settled, life.loop.wall_ms())
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                self._on_failed(life.loop, error)
                return
            life.is_checkpoint_held = True
        life.loop.call_later(self._plan.tuning.housekeeping_ms / 1e3, self._keep_house, life)

    def receive(self, peer: NodeId, message: PeerMessage) -> None:
        """A garbled message has to be refused; an honest one must not be, unless lies are about,
        which may have led its receiver or its sender astray.

        Raises:
            InvalidMessage: to the links, which end the stream.
        """
        network = self._world.network
        try:
            self._alive.driver.on_message(peer, message)
        except InvalidMessage as error:
            if not network.is_garbled and not network.lies:
                raise Defect("honest message refused", f"{peer} to {self.name}: {error}") from error
            self._world.log(self.name, f"refuses: {error}")
            raise
        if network.is_garbled:
            kind = message.WhichOneof("body")
            raise Defect("garbled message taken", f"{peer} to {self.name}: {kind}")

    # --- how it ends -------------------------------------------------------------------------

    def kill(self, why: str = "killed") -> None:
        """SIGKILL: the memory is gone, the page cache stays."""
        if self.life is not None:
            self._bury(why)
            self.disk.kill()

    def cut_power(self, why: str = "lost power") -> None:
        """The machine is off: what was not synced is lost."""
        self._bury(why)
        self.disk.power_off(self._disk_chance)

    def die_midway(self) -> None:
        """The end that the disk has met in the midst of an operation."""
        if self.disk.keeps_cache:
            self.kill("killed in the midst of a disk operation")
            self.disk.power_on()
        else:
            self.cut_power("lost power in the midst of a disk operation")

    def stop(self) -> None:
        """SIGTERM: hand leadership over, drain, flush, close."""
        life = self.life
        if life is None or life.stopping or life.failed is not None:
            return
        life.stopping = True
        life.loop.create_task(self._stop(life))
        self._world.timeline.after(0, life.loop, lambda: None)

    async def _stop(self, life: Life) -> None:
        life.leadership.draining = True
        if life.leadership.serving and len(self.members) > 1:
            with contextlib.suppress(BrokerError):
                await life.leadership.hand_over(None)
        if not life.appender.idle:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(life.appender.idled(), DRAIN_S)
        if self.life is life and life.failed is None:
            life.held.wake_all()
            life.ticker.stop()
            life.driver.stop()
            self._close(life)

    def hand_over(self, target: NodeId | None) -> None:
        """An operator asks for leadership to move; a refusal is fine."""
        with contextlib.suppress(CoreError):
            self._alive.driver.transfer_leadership(target)

    def _close(self, life: Life) -> None:
        recovered = life.recovered
        try:
            settled = life.driver.settled_index
            recovered.queues.flush()
            if not life.is_checkpoint_held:
                recovered.log.checkpoint.note_consume_queue(settled, life.loop.wall_ms())
            recovered.log.close()
        except (OSError, StorageFailed) as error:
            self._world.log(self.name, f"closed with {error}")
        recovered.queues.close()
        recovered.directory.close()
        self._bury("stopped")
        self.disk.kill()

    def _on_failed(self, loop: ProcessLoop, error: BaseException) -> None:
        """A part failed for good: the process ends."""
        life = self.life
        if life is None or life.loop is not loop or life.failed is not None:
            return
        life.failed = error
        if isinstance(error, Defect):
            raise error
        self._world.log(self.name, f"failed: {type(error).__name__}: {error}")
        if not self._is_excused(error):
            raise Defect("node failed", f"{self.name}: {type(error).__name__}: {error}") from error
        if isinstance(error, CorruptionFound):
            self.is_ruined = True
        self._world.timeline.after(0, loop, self.kill, "ended by a failure")

    def _is_excused(self, error: BaseException) -> bool:
        cause = error.cause if isinstance(error, StorageFailed) else error
        if isinstance(cause, CorruptionFound):
            return self.spoiled
        return isinstance(cause, OSError) and bool(self.disk.failures)

    def _bury(self, why: str) -> None:
        life, self.life = self.life, None
        if life is None:
            return
        self._world.log(self.name, why)
        self._workers.clear()
        life.loop.die()
        self._world.on_stopped(self)

    def pause(self) -> None:
        """SIGSTOP."""
        if self.life is not None:
            self.life.loop.paused = True
            self._world.log(self.name, "paused")

    def resume(self) -> None:
        """SIGCONT."""
        if self.life is not None and self.life.loop.paused:
            self._world.log(self.name, "resumed")
            self._world.timeline.resume(self.life.loop)

    # --- calls -------------------------------------------------------------------------------

    async def serve(self, method: str, request: object) -> object:
        """The answer of a service's method.

        Raises:
            BrokerError: as the client learns it.
        """
        handler = getattr(self._alive.door, method)
        context = _CallContext()
        try:
            return await handler(request, context)
        except BrokerError:
            raise
        except (CorruptionFound, StorageFailed, OSError) as error:
            if self.spoiled or self.disk.failures:
                raise BrokerError(ErrorCode.INTERNAL, str(error)) from error
            raise
        finally:
            context.finish()

    def draw(self) -> float:
        """Randomness for a part of the process."""
        return self._chance.random()

    def _sync_latency(self) -> int:
        return self.sync_us // 2 + int(self._disk_chance.random() * self.sync_us)


class _CallContext:
    """What the services use of a gRPC context; an answer is read by its client at once."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[object], None]] = []

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    def finish(self) -> None:
        """The call is over."""
        for callback in self._callbacks:
            callback(self)


class _Proposer:
    """The appender is made before the driver that it proposes to."""

    driver: RaftDriver[EntryHeader]

    def propose(self, *arguments: Any) -> Any:
        return self.driver.propose(*arguments)


class _Transport:
    """`PeerTransport` onto the simulated network."""

    def __init__(self, world: World, node: SimNode, loop: ProcessLoop) -> None:
        self._world = world
        self._node = node
        ears = Ears(node.receive, lambda peer: node.driver.suspect(peer))
        pace = LinkPace(
            LinkTimes.of(node.config.raft.election_timeout_ms[1] / 1000), Random(node.draw())
        )
        self.links = SimulatedLinks(world.network, loop, node.identity, ears, pace)

    def send_request(self, peer: NodeId, message: PeerMessage) -> None:
        self._world.on_sent(self._node, peer, message)
        self.links.send_request(peer, message)

    def send_answer(self, peer: NodeId, message: PeerMessage) -> None:
        self._world.on_sent(self._node, peer, message)
        self.links.send_answer(peer, message)


def node_config(plan: Plan, name: NodeId, members: list[NodeId]) -> NodeConfig:
    """A configuration with bounds far below what a real node accepts, so that a short run meets
    them; `model_copy` sets them without asking."""
    tuning = plan.tuning
    peers = {member: f"10.0.0.{i + 1}:7000" for i, member in enumerate(members)}
    config = NodeConfig(
        group=GROUP,
        node_id=name,
        data_directory=DATA,
        listen=peers[name],
        peers={str(member): address for member, address in peers.items()},
        raft=RaftConfig(),
        store=StoreConfig(),
        broker=BrokerConfig(long_poll_default_ms=0),
    )
    raft = config.raft.model_copy(
        update={
            "max_append_bytes": tuning.max_append_bytes,
            "max_uncommitted_bytes": tuning.max_uncommitted_bytes,
        }
    )
    store = config.store.model_copy(
        update={
            "segment_size_bytes": tuning.segment_bytes,
            "reserve_bytes": 0,
            "flush": tuning.flush,
        }
    )
    return config.model_copy(update={"raft": raft, "store": store})

"""One node: the composition root and its life.

This builds the parts, connects them and takes them down in order; the parts do the work.

Start: lock the data directory, recover the log, load term and vote, replay what is known to be
committed, open the port, dial the peers. Stop (SIGTERM, SIGINT): hand leadership over, answer
who waits, flush, close. A part that fails for good (a disk, an invariant, a divergence) stops
the node with exit code 1: it never limps on, and what it had promised is on a majority of disks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from broker.announcing import Announcer
from broker.assembly import Parts, Surrounds, facts_of, services_of
from broker.config import NodeConfig
from broker.doors.grpc.door import GrpcDoor
from broker.errors import BrokerError
from broker.leader.append import Appender
from broker.leader.leadership import Leadership
from broker.metrics import NodeCollector, NodeFacts, NodeMetrics
from broker.picture import node_facts
from broker.probes import CommitProbe, TimedMachine
from broker.reading.held import HeldPulls
from broker.reading.queues import QueueReader
from broker.recovery import Recovered, recover
from broker.services.messages import SendTimings
from broker.services.services import Services
from broker.state.machine import StateMachine
from broker.surroundings import Surroundings, surroundings_of
from broker.ticker import Ticker
from dledger.addresses import split_address
from dledger.codec import decode_configuration
from dledger.core import Raft
from dledger.core.types import Configuration, Index, NodeId, RaftOptions
from dledger.driver import Ports, RaftDriver
from dledger.errors import InvalidFrames
from dledger.greeting import Identity
from dledger.links import LinkTimes
from dledger.reading.entry import HEADER_SIZE, EntryHeader, walk_frames
from dledger.records.errors import InvalidFrame
from dledger.transport import GrpcTransport
from dledger.wire import raft_pb2
from store.commitlog import CommitLog
from store.consumequeue import ConsumeQueues
from store.files import FULL_ERRNOS
from store.queue_flush import FlushWork

STALLED_DISK_MS = 500  # far beyond what a healthy disk takes for an fsync under load
HAND_OVER_INTERVAL_MS = 1_000  # a leader with a sick disk hands over no sooner and no oftener
HOUSEKEEPING_S = 1.0  # how often ConsumeQueues are made durable and the checkpoint moves on
DRAIN_S = 2.0  # how long a stop waits for those who wait for a commit
SWITCH_INTERVAL_S = 0.0005
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT_ALLOCATION_BYTES = 8 << 20
COLLECTOR_THRESHOLDS = (20_000, 20, 20)  # young objects die by reference count
log = structlog.get_logger(__name__)


class Node:
    """A member of a group. `start`, then `wait`, then `stop`; or `run_node`."""

    def __init__(self, config: NodeConfig) -> None:
        """Takes nothing from the world yet."""
        self.config = config
        self.metrics = NodeMetrics(config.group, config.node_id)
        self._failure: BaseException | None = None
        self._is_checkpoint_held = False
        self._settled: Callable[[], int] = lambda: 0  # nothing, until there is a driver
        self._stop_asked = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="housekeeping")
        self._undo = contextlib.AsyncExitStack()
        self.surroundings: Surroundings
        self.log: CommitLog
        self.queues: ConsumeQueues
        self.machine: StateMachine
        self.driver: RaftDriver[EntryHeader]
        self.transport: GrpcTransport
        self.appender: Appender
        self.reader: QueueReader
        self.held: HeldPulls
        self.leadership: Leadership
        self.parts: Parts
        self.services: Services

    # --- start --------------------------------------------------------------------------------

    async def start(self) -> None:
        """The node takes part in its group.

        Raises:
            StoreError, HardStateCorrupt, OSError: it can't start; nothing is left behind.
        """
        try:
            self.surroundings = surroundings_of(self.config)
            recovered = recover(self.config, self.surroundings.files)
            self._undo.push_async_callback(self._close_store, recovered)
            self._build(recovered)
            await self._open()
        except BaseException:
            await self._undo.aclose()
            self._pool.shutdown()
            raise

    def _build(self, recovered: Recovered) -> None:
        """Makes the parts and connects them; no I/O."""
        config = self.config
        node = NodeId(config.node_id)
        members = {NodeId(name): address for name, address in config.peers.items()}
        self.log, self.queues = recovered.log, recovered.queues
        self.machine = recovered.machine
        loop = asyncio.get_running_loop()
        core = Raft(
            node,
            Configuration(voters=frozenset(members)),
            view=self.log,
            rng=random.Random(),
            options=raft_options(config),
            log=recovered.summary,
            hard_state=recovered.hard_state,
            commit_index=Index(recovered.machine.applied_index),
        )
        identity = Identity(config.group, node, config.store.segment_size_bytes)
        dial = {NodeId(name): address for name, address in config.dial.items()}
        times = LinkTimes.of(config.raft.election_timeout_ms[1] / 1000)
        self.transport = GrpcTransport(
            identity, {**members, **dial}, self._on_message, self._on_broken, times
        )
        self.held = HeldPulls(config.broker.max_held_pulls)
        probe = CommitProbe(self.metrics.commit_seconds)
        self.appender = Appender(
            probe,
            self.machine,
            self.log.read_at,
            lambda: self.log.statistics().is_full or self.driver.statistics().is_apply_paused,
            _store_host(config.listen),
            config.broker.max_message_bytes,
        )
        self.leadership = Leadership(config.group, node, members, self.appender, self.held)
        ports = Ports(
            log=self.log,
            parse_frames=parse_frames,
            hard_state=recovered.hard_state_store,
            transport=self.transport,
            machine=TimedMachine(self.machine, self.metrics.apply_seconds),
            observer=probe,
            configuration_of=configuration_of,
            call_soon=loop.call_soon,
            now_ms=self.surroundings.now_ms,
            fail=self.fail,
        )
        self.driver = RaftDriver(core, node, ports, Index(self.machine.applied_index))
        self._settled = lambda: self.driver.settled_index
        probe.attach(self.driver, self.leadership)
        self.reader = QueueReader(self.machine, self.queues, self.log.read_at)
        self.machine.listen(Announcer(self.appender, self.held))
        parts = self.parts = Parts(
            self.log,
            self.machine,
            self.driver,
            self.leadership,
            self.appender,
            self.reader,
            self.held,
        )
        metrics = self.metrics
        timings = SendTimings(metrics.append_seconds.observe, metrics.send_seconds.observe)
        around = Surrounds(self.transport.links, self.fail, timings)
        self.services = services_of(config, parts, around)
        self.leadership.attach(self.driver, self.services.cluster.notify)
        self.log.on_durable = self._from_flusher(self.driver.on_durable)
        self.log.on_failed = self._from_flusher(self.driver.on_storage_failed)

    async def _open(self) -> None:
        """Opens the ports and starts what runs by itself."""
        config = self.config
        await self._open_metrics()
        door = GrpcDoor(
            self.services, self.transport.serve, max_held_pulls=config.broker.max_held_pulls
        )
        await door.open(config.listen)
        self._undo.push_async_callback(door.close)
        self._undo.callback(self.services.cluster.close)
        self.transport.start()
        self._undo.push_async_callback(self.transport.stop)
        self._undo.callback(self.driver.stop)
        self.driver.start()
        ticker = Ticker(
            config.raft.tick_ms / 1000, self.driver.tick, self.metrics.loop_lateness_seconds
        )
        ticker.start()
        self._undo.callback(ticker.stop)
        housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping")
        self._undo.push_async_callback(_cancelled, housekeeping)
        await door.say_serving()
        log.info("node_started", listen=config.listen, last_index=self.log.last_index)

    async def _open_metrics(self) -> None:
        if self.config.metrics_listen is None:
            return
        host, port = split_address(self.config.metrics_listen)
        loop = asyncio.get_running_loop()

        async def take() -> NodeFacts:
            services = self.services
            links = self.transport.links()
            return node_facts(facts_of(self.parts, services.sends, services.pulls, links))

        def facts() -> NodeFacts:
            return asyncio.run_coroutine_threadsafe(take(), loop).result(timeout=5)

        collector = NodeCollector(facts, self.config.group, self.config.node_id)
        try:
            close = self.metrics.serve(collector, host, port)
        except OSError as error:
            raise OSError(
                f"can't listen on {self.config.metrics_listen} for metrics: is the port in use?"
            ) from error
        self._undo.callback(close)

    # --- stop ---------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """`wait` returns; safe from a signal handler."""
        self._stop_asked.set()

    async def wait(self) -> None:
        """Until the node is asked to stop, or fails."""
        await self._stop_asked.wait()

    async def stop(self) -> int:
        """Everything is closed; the exit code: 0, or 1 after a failure."""
        self.leadership.draining = True
        if self._failure is None:
            await self._hand_over()
            await self._drain()
        self.held.wake_all()
        await self._undo.aclose()
        self._pool.shutdown()
        log.info("node_stopped", failed=self._failure is not None)
        return 0 if self._failure is None else 1

    async def _hand_over(self) -> None:
        if not self.leadership.serving or len(self.config.peers) == 1:
            return
        try:
            view = await self.leadership.hand_over(None)
            log.info("leadership_handed_over", to=view.leader.node_id if view.leader else None)
        except BrokerError as error:
            log.warning("leadership_not_handed_over", reason=error.message)

    async def _drain(self) -> None:
        """Waits, but not for ever, until everybody who waits for a commit has an answer."""
        if not self.appender.idle:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.appender.idled(), DRAIN_S)

    async def _close_store(self, recovered: Recovered) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._close_files, recovered)

    def _close_files(self, recovered: Recovered) -> None:
        with contextlib.closing(recovered.directory), contextlib.closing(recovered.queues):
            if self._failure is None:
                self._make_durable(recovered.queues.take(), self._settled())
            recovered.log.close(is_clean=self._failure is None)

    def fail(self, error: BaseException) -> None:
        """The node serves nobody from now on and stops, with exit code 1."""
        self._failure = error
        self.leadership.end_serving("the node failed")
        log.critical("node_failed", error=str(error), kind=type(error).__name__, exc_info=error)
        self._stop_asked.set()

    # --- wiring -------------------------------------------------------------------------------

    def _on_message(self, peer: NodeId, message: raft_pb2.PeerMessage) -> None:
        self.driver.on_message(peer, message)

    def _on_broken(self, peer: NodeId) -> None:
        self.driver.suspect(peer)

    def _from_flusher(self, call: Callable[..., None]) -> Callable[..., None]:
        """`call`, from the flusher's thread onto the event loop."""
        loop = asyncio.get_running_loop()

        def forward(*arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is interested
                loop.call_soon_threadsafe(call, *arguments)

        return forward

    async def _keep_house(self) -> None:
        """Makes the ConsumeQueues durable and moves the checkpoint on, again and again."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            settled, work = self.driver.settled_index, self.queues.take()
            try:
                await loop.run_in_executor(self._pool, self._make_durable, work, settled)
            except Exception as error:  # noqa: BLE001  nobody else would hear of it
                self.driver.on_storage_failed(error)
                return

    def _make_durable(self, work: FlushWork, settled: int) -> None:
        """What was derived is durable, and the checkpoint says so through entry `settled`: more may
        be derived than this node's own log would keep. On the housekeeping thread.

        A full disk is no failure of the log; but what an fsync refused may be lost even if the
        next one succeeds (ADR 8). From then on the checkpoint stays: the next start derives again
        what lies behind it."""
        try:
            work.perform()
            if settled and not self._is_checkpoint_held:
                _note_derived(self.log, settled)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self._is_checkpoint_held = True
            log.warning("consume_queues_not_synced", reason=str(error))


def _note_derived(commit_log: CommitLog, settled_index: int) -> None:
    """The ConsumeQueues hold everything up to `settled_index`, durably, and so does the log."""
    commit_log.checkpoint.note_consume_queue(settled_index, int(time.time() * 1000))


def parse_frames(blob: bytes) -> list[EntryHeader]:
    """The headers of the frames in `blob`, each verified.

    Raises:
        InvalidFrames: see `dledger.reading.entry.walk_frames`.
    """
    try:
        return walk_frames(blob)
    except InvalidFrame as error:
        raise InvalidFrames(str(error)) from error


def configuration_of(frame: bytes) -> Configuration:
    """The configuration in the frame of a configuration entry."""
    return decode_configuration(raft_pb2.Configuration.FromString(frame[HEADER_SIZE:]))


def raft_options(config: NodeConfig) -> RaftOptions:
    """The core's options: milliseconds become ticks."""
    raft = config.raft
    tick = raft.tick_ms
    return RaftOptions(
        election_timeout_min_ticks=raft.election_timeout_ms[0] // tick,
        election_timeout_max_ticks=raft.election_timeout_ms[1] // tick,
        heartbeat_ticks=raft.heartbeat_ms // tick,
        suspicion_delay_min_ticks=raft.suspicion_delay_ms[0] // tick,
        suspicion_delay_max_ticks=raft.suspicion_delay_ms[1] // tick,
        transfer_timeout_ticks=raft.transfer_timeout_ms // tick,
        stalled_disk_ticks=STALLED_DISK_MS // tick,
        hand_over_interval_ticks=max(HAND_OVER_INTERVAL_MS, 4 * raft.election_timeout_ms[1])
        // tick,
        max_append_bytes=raft.max_append_bytes,
        max_inflight_appends=raft.max_inflight_appends,
        max_uncommitted_bytes=raft.max_uncommitted_bytes,
        noop_size=HEADER_SIZE,
    )


def _store_host(listen: str) -> tuple[bytes, int]:
    host, port = split_address(listen)
    return socket.inet_aton(socket.gethostbyname(host)), port


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def run_node(config: NodeConfig) -> int:
    """Runs a node until SIGTERM or SIGINT, or until it fails; the exit code.

    Raises:
        StoreError, HardStateCorrupt, OSError: it could not start.
    """
    tune_interpreter()
    node = Node(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.ask_to_stop)  # also while a long start is under way
    await node.start()
    # What was made up to here lives as long as the node: the collector need not look again.
    gc.collect()
    gc.freeze()
    await node.wait()
    return await node.stop()


def tune_interpreter() -> None:
    """Sets the interpreter's switch interval and collector for a node that has the process to
    itself. Measured: with the defaults a quarter of a loaded follower's time was the collector
    walking modules, and a commit waited milliseconds for the flusher's turn."""
    # The flusher needs the interpreter for moments between its system calls; the default of 5 ms
    # would make it wait that long for a busy event loop, several times in each group commit.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    # Batches are above glibc's threshold for a mapping of their own: each would be mapped, faulted
    # in page by page and unmapped again (measured for 256 KiB: 180 µs instead of 11).
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT_ALLOCATION_BYTES)
        mallopt(M_TRIM_THRESHOLD, 2 * KEPT_ALLOCATION_BYTES)

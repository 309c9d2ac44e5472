"""One node: a replica and what a process has.

This adds to a replica (`broker.replica`, which decides everything) what only a process has: the
disk, threads and clocks of the operating system, the gRPC server and its port, streams to the
peers, the metrics endpoint, signals, and an interpreter tuned for it. It decides nothing about the
log, and nothing here is under the simulator.

Start: recover the replica, open the ports, let it take part. Stop (SIGTERM, SIGINT): the replica
hands over and answers who waits, the ports close, its files close. A replica that fails ends the
process with exit code 1, but for one whose log isn't the group's: the process stays, out of service
(`broker.aside`).
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from broker.aside import Aside
from broker.assembly import facts_of
from broker.config import NodeConfig
from broker.descriptors import RESERVED, raised, segments_of
from broker.doors.grpc.bounds import ConnectionBounds
from broker.doors.grpc.callers import RevokedCallers
from broker.doors.grpc.door import Entrance, GrpcDoor
from broker.doors.grpc.offered import For
from broker.ending import disk_failure_in, ending_of
from broker.holed import HoledNode
from broker.last_words import ROT_ADVICE
from broker.metrics import NodeCollector, NodeFacts, NodeMetrics
from broker.picture import node_facts
from broker.ports import STEADY, OnBroken, OnMessage, ReplicaPorts, Rhythm
from broker.premises import Surveyor
from broker.recovery import REAL_MACHINERY
from broker.replica import Replica
from broker.standby import Standby
from broker.turns import CallTurns, LoopTurns
from dledger.addresses import is_loopback, split_address
from dledger.core.types import NodeId
from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.secret import GroupSecret
from dledger.credentials.tls import TlsFiles, TlsSource
from dledger.greeting import Identity
from dledger.links import LinkTimes
from dledger.listening import why_not_listening
from dledger.outcome import ExitCode
from dledger.peer_security import PeerSecurity
from dledger.transport import GrpcTransport
from store.errors import BeyondRepair, CorruptionFound, GapFound
from store.files import FULL_ERRNOS, FileSystem, OsFiles
from store.starting.errors import OutOfService

SWITCH_INTERVAL_S = 0.0005
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT_ALLOCATION_BYTES = 8 << 20
# Young objects die by reference count. The middle generation is looked at before it has more than
# a hundred thousand new objects: a turn of the loop waits for that (ADR 27).
COLLECTOR_THRESHOLDS = (20_000, 5, 20)

HAND_WIDTH = 4  # fsyncs of housekeeping at once

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a node takes from its machine; one under test is given a worse one. `now_ms` is the
    wall clock: it may step."""

    files: FileSystem
    now_ms: Callable[[], int]


def this_machine() -> Machine:
    """The operating system's disk and clock."""
    return Machine(OsFiles(RESERVED), lambda: int(time.time() * 1000))


class Node:
    """A process's part of a broker group: `start`, `replica.wait`, `stop`; or `run_node`."""

    def __init__(
        self, config: NodeConfig, machine: Machine | None = None, rhythm: Rhythm = STEADY
    ) -> None:
        """Takes nothing from the world yet but the descriptors that it reserves.

        Raises:
            TooFewDescriptors: the process may not have as many as a node needs.
        """
        self.config = config
        self._replica: Replica | None = None
        self._holed: HoledNode | None = None
        self._descriptors = raised(segments_of(config))
        self._machine = machine or this_machine()
        self._rhythm = rhythm
        self._metrics = NodeMetrics(config.broker_group, config.node_id)
        self._tls: TlsSource | None = None
        self._transport: GrpcTransport
        self._hand = ThreadHand()
        self._stop_asked = False
        self._doors = contextlib.AsyncExitStack()
        self._door: GrpcDoor

    # --- start --------------------------------------------------------------------------------

    async def start(self) -> None:
        """The node takes part in its broker group.

        Raises:
            StoreError, HardStateCorrupt, FormingError, CredentialUnusable, OSError: it can't start;
                nothing is left behind.
        """
        try:
            self._tls = tls_of(self.config, self._machine.now_ms)
            replica = self._replica = self._opened()
            try:
                await self._open_doors(replica)
            except BaseException:
                await self._doors.aclose()
                await replica.close()
                raise
        except BaseException:
            self._hand.close()
            raise
        replica.start()
        self._metrics.loop_lateness_seconds.start()
        self._door.say_serving()
        if self._stop_asked:
            replica.ask_to_stop()

    def _opened(self) -> Replica:
        """The replica of what is on the disk. Raises: see `Replica.open`."""
        try:
            return Replica.open(self.config, self._ports())
        except GapFound:
            raise  # peers may have what is missing
        except CorruptionFound as error:
            if Path(error.file).parent.name == "commitlog":
                log.critical("start_refused", file=error.file, at=error.offset, advice=ROT_ADVICE)
            raise

    async def refill(self, found: GapFound) -> bool:
        """The gaps that `start` has found in the log are filled by peers, and another node can be
        started; False when asked to stop. In the place of `start`, on a node of its own.

        Raises: see `HoledNode.until_whole`; nothing is left behind.
        """
        try:
            tls = self._tls = tls_of(self.config, self._machine.now_ms)
            at = entrances(self.config, tls)
            holed = HoledNode(
                self.config,
                self._ports(),
                at,
                self._replicate,
                lambda: self._transport.hang_up(),
            )
            self._holed = holed
            if self._stop_asked:
                return False
            return await holed.until_whole(found)
        except (GapFound, BeyondRepair) as error:
            log.critical("start_refused", file=error.file, reason=str(error), advice=ROT_ADVICE)
            raise
        finally:
            self._hand.close()

    @property
    def replica(self) -> Replica:
        """What this node is, once it has started."""
        if self._replica is None:
            raise RuntimeError("start() comes first")
        return self._replica

    def _ports(self) -> ReplicaPorts:
        loop = asyncio.get_running_loop()

        def call_from_worker(call: Callable[..., None], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is interested
                loop.call_soon_threadsafe(call, *arguments)

        return ReplicaPorts(
            files=self._machine.files,
            hand=self._hand,
            connect=self._connect,
            store_host=_store_host(self.config.peers[self.config.node_id]),
            call_soon=loop.call_soon,
            turns=LoopTurns(),
            call_from_worker=call_from_worker,
            now_ms=self._machine.now_ms,
            random=random.Random(),
            latencies=self._metrics,
            machinery=replace(REAL_MACHINERY, open_files=self._descriptors.queue_files),
            rhythm=self._rhythm,
            premises=Surveyor(
                self._machine.files,
                self.config.data_directory,
                lambda: self._tls,
                self._machine.now_ms,
            ).look,
            call_turns=CallTurns(),
        )

    def _connect(
        self, identity: Identity, on_message: OnMessage, on_broken: OnBroken
    ) -> GrpcTransport:
        config = self.config
        addresses = {NodeId(name): at for name, at in {**config.peers, **config.dial}.items()}
        times = LinkTimes.of(config.raft.election_timeout_ms[1] / 1000)
        secret = None if config.secret_file is None else GroupSecret.load(config.secret_file)
        security = PeerSecurity(secret, self._tls, config.are_peers_named)
        dialed = {NodeId(name): at for name, at in config.dial.items()}
        self._transport = GrpcTransport(
            identity, addresses, on_message, on_broken, times, security, dialed
        )
        return self._transport

    async def _replicate(self, requests: Any, context: Any) -> None:
        """Handler of peers' streams, of whichever transport is connected when one comes."""
        await self._transport.serve(requests, context)

    async def _open_doors(self, replica: Replica) -> None:
        """Everybody can reach the node, and learns at first that it doesn't serve."""
        config = self.config
        self._open_metrics(replica)
        self._door = GrpcDoor(
            replica.services,
            replica.member,
            self._transport.serve,
            max_held_pulls=config.broker.max_held_pulls,
            connections=ConnectionBounds(
                self._descriptors.connections, config.broker.idle_connection_ms
            ),
        )
        self._doors.push_async_callback(self._door.close)
        await self._door.open(entrances(config, self._tls))

    def _open_metrics(self, replica: Replica) -> None:
        if self.config.metrics_listen is None:
            return
        host, port = split_address(self.config.metrics_listen)
        loop = asyncio.get_running_loop()

        async def take() -> NodeFacts:
            services, links = replica.services, replica.transport.links()
            return node_facts(facts_of(replica.parts, services.sends, services.pulls, links))

        def facts() -> NodeFacts:
            return asyncio.run_coroutine_threadsafe(take(), loop).result(timeout=5)

        collector = NodeCollector(facts, self.config.broker_group, self.config.node_id)
        try:
            close = self._metrics.serve(collector, host, port)
        except OSError as error:
            address = f"{host}:{port}"
            reason = why_not_listening(address) or error.strerror or str(error)
            raise OSError(f"can't listen on {address} for metrics: {reason}") from error
        # Elsewhere, as it waits for those who are being answered, and they wait for this loop.
        self._doors.push_async_callback(asyncio.to_thread, close)

    # --- stop ---------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """The node stops as soon as it has started; safe from a signal handler."""
        self._stop_asked = True
        if self._holed is not None:
            self._holed.ask_to_stop()
        if self._replica is not None:
            self._replica.ask_to_stop()

    @property
    def is_to_be_reopened(self) -> bool:
        """Whether, once it has stopped, another one is to be started in its place: it has got the
        state that its log is to begin with (ADR 43)."""
        replica = self.replica
        return replica.wants_reopening and replica.failure is None and not self._stop_asked

    async def stop(self) -> int:
        """Everything is closed; the exit code: 0, or after a failure what stands for it."""
        try:
            await self.replica.stop(self._doors.aclose)
        finally:
            self._hand.close()
            self._metrics.loop_lateness_seconds.close()
        failure = self.replica.failure
        if failure is None:
            return int(ExitCode.DONE)
        return int(ending_of(failure, self.config.data_directory))


def tls_of(config: NodeConfig, now_ms: Callable[[], int]) -> TlsSource | None:
    """The node's certificates, valid by its clock; None for a node without TLS, which says so where
    it matters.

    Raises:
        CredentialUnusable: a file of `[tls]` can't be used.
    """
    if config.tls is None:
        exposed = [each for each in config.doors.values() if not is_loopback(each)]
        if exposed:
            log.warning(
                "listens_without_tls",
                addresses=exposed,
                meaning="whoever is on the network reads and changes everything that is said",
            )
        return None
    tls = config.tls
    files = TlsFiles(tls.ca, tls.certificate, tls.key, tls.revoked)

    def tell(error: CredentialUnusable) -> None:
        log.error("certificates_not_reloaded", error=str(error))

    return TlsSource(files, tell, now_ms)


def entrances(config: NodeConfig, tls: TlsSource | None) -> list[Entrance]:
    """Where the node listens, and for whom: what has no address of its own is at `listen`."""
    main = For.CLIENTS | For.PEERS | For.ADMINISTRATION
    found: list[tuple[str, For]] = []
    for address, purpose in (
        (config.peer_listen, For.PEERS),
        (config.admin_listen, For.ADMINISTRATION),
    ):
        if address is not None:
            main &= ~purpose
            found.append((address, purpose))
    found.append((config.listen, main))

    def asks(offers: For) -> bool:
        required = config.tls is not None and config.tls.client_certificates == "required"
        return required or offers == For.PEERS

    elsewhere = config.admin_address or ""
    return [
        Entrance(
            address,
            offers,
            None if tls is None else tls.server_credentials(asks_for_certificate=asks(offers)),
            admin_address="" if offers & For.ADMINISTRATION else elsewhere,
            callers=None if tls is None or not asks(offers) else RevokedCallers(tls),
        )
        for address, offers in found
    ]


class ThreadHand:
    """`DiskHand` on threads of its own.

    A disk takes several fsyncs at once in little more than the time of one, as they share a commit
    of the file system's journal; more threads than these gain little, and wait for the interpreter.
    """

    def __init__(self) -> None:
        self._one = ThreadPoolExecutor(1, thread_name_prefix="housekeeping")
        self._several = ThreadPoolExecutor(HAND_WIDTH, thread_name_prefix="housekeeping")

    async def run(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._one, step)

    async def run_all(self, steps: Sequence[Callable[[], None]]) -> None:
        loop = asyncio.get_running_loop()
        left = iter(steps)

        async def take() -> None:
            for step in left:
                try:
                    await loop.run_in_executor(self._several, step)
                except BaseException:
                    for _ in left:  # nobody begins another
                        pass
                    raise

        takers = (take() for _ in range(min(HAND_WIDTH, len(steps))))
        ended = [e for e in await asyncio.gather(*takers, return_exceptions=True) if e is not None]
        if ended:
            raise min(ended, key=_is_of_a_full_disk)

    def close(self) -> None:
        """The threads are gone."""
        self._one.shutdown()
        self._several.shutdown()


def _is_of_a_full_disk(error: BaseException) -> bool:
    """It gets over that: of several errors it is the last to be told."""
    return isinstance(error, OSError) and error.errno in FULL_ERRNOS


def _store_host(address: str) -> tuple[bytes, int]:
    host, port = split_address(address)
    return socket.inet_aton(socket.gethostbyname(host)), port


async def run_node(
    config: NodeConfig,
    machine: Machine | None = None,
    reopen_log: Callable[[], None] | None = None,
) -> int:
    """Runs a node until SIGTERM or SIGINT, or until it fails; the exit code. One that is no member
    yet stands by until it is.

    Args:
        reopen_log: called on SIGHUP; None: SIGHUP stops the node as SIGTERM does,
            unless it was started to ignore that (nohup).

    Raises:
        StorageFailed: it could not start, as its disk failed.
        StoreError, HardStateCorrupt, FormingError, OSError: it could not start.
    """
    try:
        return await _run(config, machine, reopen_log)
    except OSError as error:
        failure = disk_failure_in(error, config.data_directory)
        if failure is None:
            raise
        raise failure from error


async def _run(
    config: NodeConfig, machine: Machine | None, reopen_log: Callable[[], None] | None
) -> int:
    """See `run_node`."""
    tune_interpreter()
    machine = machine or this_machine()

    def opens() -> list[Entrance]:
        return entrances(config, tls_of(config, machine.now_ms))

    standby, aside = Standby(config, machine.files, opens), Aside(config, machine.files, opens)
    node, is_asked = Node(config, machine), False

    def another() -> Node:
        """The next one. Whoever was asked to stop while the one before ended stops, too."""
        made = Node(config, machine)
        if is_asked:
            made.ask_to_stop()
        return made

    def ask_to_stop() -> None:
        nonlocal is_asked
        is_asked = True
        standby.ask_to_stop()
        aside.ask_to_stop()
        node.ask_to_stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop)  # also while a long start is under way
    if reopen_log is not None or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, reopen_log or ask_to_stop)
    if not await standby.until_member():
        return 0
    try:
        while True:
            try:
                await node.start()
            except GapFound as found:
                node = another()
                if not await node.refill(found):
                    return int(ExitCode.DONE)
                node = another()
                continue
            # What was made up to here lives as long as the node: the collector need not look again.
            gc.collect()
            gc.freeze()
            await node.replica.wait()
            code = await node.stop()
            if isinstance(node.replica.failure, OutOfService):
                raise node.replica.failure
            if not node.is_to_be_reopened:
                return code
            gc.unfreeze()
            node = another()
    except OutOfService as out:
        await aside.until_stopped(out)
        return int(ExitCode.DONE)


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

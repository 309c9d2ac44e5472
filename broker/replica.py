"""One replica: a member of a broker group, built from ports.

This owns the life of a member's parts: in which order they start, how they are kept, handed over,
drained and closed, and what a failure does to them. They are made and joined in
`broker.replication` (the recovered store, core and driver, state machine, what keeps them sound)
and `broker.wiring` (what only a leader does, what keeps house, services), and nowhere else. A
process (`broker.node`) adds sockets, signals and metrics; whoever has other disks, links and clocks
hands in those.

It must never touch the operating system but through its ports, and it must never limp on: a part
that fails for good (a disk, an invariant, a divergence) ends it, and what it had promised is on a
majority of disks.

    open ─ recover ─ build      start ─ links, driver, ticker, housekeeping
    stop ─ hand over ─ drain ─ rest ─ doors shut ─ last round ─ close

Source: TigerBeetle's replica, which is generic over storage, message bus and time, and is what
its simulator instantiates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import structlog

from broker.assembly import committed_log
from broker.config import NodeConfig
from broker.errors import BrokerError
from broker.first_election import FirstElection
from broker.last_words import ROT_ADVICE, LastWords
from broker.ports import ReplicaPorts
from broker.recovery import Recovered, recover
from broker.replication import Replication
from broker.space_watch import SpaceWatch
from broker.wiring import Wiring
from dledger.core.group_epoch import Lineage
from dledger.core.types import NodeId
from dledger.errors import ReplicaDiverged
from dledger.wire import raft_pb2
from store.errors import BeyondRepair, CorruptionFound, StoreError
from store.out_of_service import Divergence
from store.starting.errors import OutOfService

log = structlog.get_logger(__name__)


class Replica:
    """A member of a broker group: `open`, `start`, then `wait`, then `stop`."""

    def __init__(self, config: NodeConfig, ports: ReplicaPorts, recovered: Recovered) -> None:
        """Has the parts made and connected; no I/O, and nothing runs yet."""
        self.config = config
        self.metrics = ports.latencies
        self.stopping = False
        self.failure: BaseException | None = None
        self.wants_reopening = False  # it is to be opened again once it has stopped
        self._ports = ports
        self._recovered = recovered
        self._stop_asked = asyncio.Event()
        self.member = recovered.member
        made = Replication(config, ports, recovered, self)
        self.log, self.queues, self.machine = made.log, made.queues, made.machine
        self.transport, self.driver = made.transport, made.driver
        self.appender, self.leadership = made.appender, made.leadership
        self.reader, self.held = made.reader, made.held
        self.memory, self.mender = made.memory, made.mender
        self.repairs, self.comparison = made.repairs, made.comparison
        self.base, self.snapshots, self.installer = made.base, made.snapshots, made.installer
        self._proven_index = made.proven_index
        wired = Wiring(config, ports, recovered, made, self)
        self.log_start, self.retention = wired.log_start, wired.retention
        self.housekeeping, self.scrubber = wired.housekeeping, wired.scrubber
        self.membership, self.levels = wired.membership, wired.levels
        self.groups, self._delays = wired.groups, wired.delays
        self.archiver = wired.archiver
        self.ticker, self.parts, self.services = wired.ticker, wired.parts, wired.services
        self._first_election = FirstElection(
            NodeId(config.node_id), self.driver, self.transport.links
        )
        self._space_watch = SpaceWatch(lambda: self.log.statistics().is_full)
        self._last_words = LastWords(ports.files, config.data_directory, self.log)

    @classmethod
    def open(cls, config: NodeConfig, ports: ReplicaPorts) -> Replica:
        """A replica of what is on the disk; it takes part once it is started.

        Raises:
            StoreError, HardStateCorrupt, FormingError, OSError: it can't be; nothing is left open.
        """
        return cls(config, ports, recover(config, ports.files, ports.machinery, ports.known_level))

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """The replica takes part in its broker group."""
        self.driver.introduce()
        self.transport.start()
        self.driver.start()
        self._recall_doubt()
        self.ticker.start()
        self.housekeeping.start(self._ports.rhythm.housekeeping_s)
        self.mender.start()
        self.repairs.start()
        self.comparison.start()
        self.scrubber.start()
        self.log_start.start()
        self.retention.start()
        log.info("node_started", listen=self.config.listen, last_index=self.log.last_index)

    def _recall_doubt(self) -> None:
        """Before anything is said to anybody."""
        try:
            self.repairs.recall()
            self.comparison.recall()
        except (StoreError, OSError) as error:
            self.fail(error)

    def ask_to_stop(self) -> None:
        """`wait` returns; safe from a signal handler."""
        self._stop_asked.set()

    async def propose_log_start(self, index: int) -> None:
        """The group may let everything before entry `index` go; see `LogStartKeeper.propose`, whose
        `holders` are asked first.

        Raises:
            BrokerError: it may not, or this node doesn't lead.
        """
        await self.log_start.propose(index)

    async def wait(self) -> None:
        """Until the replica is asked to stop, or fails."""
        await self._stop_asked.wait()

    async def stop(self, shut_doors: Callable[[], Awaitable[None]]) -> bool:
        """Everything is closed; True if nothing has failed.

        Args:
            shut_doors: is awaited when everybody who waited has been answered, and before the
                files are closed that calls under way may still read.
        """
        self.leadership.draining = True
        if self.failure is None and not self.wants_reopening:
            await self._hand_over()
            await self._drain()
        try:
            await self._rest()
            await shut_doors()
        finally:
            await self.close()
        log.info("node_stopped", failed=self.failure is not None)
        return self.failure is None

    async def _hand_over(self) -> None:
        node, configuration = NodeId(self.config.node_id), self.driver.core.configuration
        if not self.leadership.serving or configuration.members() == {node}:
            return
        try:
            view = await self.leadership.hand_over(None)
            log.info("leadership_handed_over", to=view.leader.node_id if view.leader else None)
        except BrokerError as error:
            log.warning("leadership_not_handed_over", reason=error.message)

    async def _drain(self) -> None:
        """Waits, but not for ever, until everybody who waits for a commit has an answer, and what
        has rotted is back: a start would refuse, as it has nobody to ask."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._ports.rhythm.drain_s):
                while not self.appender.idle:  # a call that was let in before may still submit
                    await self.appender.idled()
                await self.repairs.idled()

    async def _rest(self) -> None:
        """Nothing happens here of itself any more, and nobody waits."""
        self.stopping = True
        if self.failure is None:
            await self.housekeeping.stop()  # while an error of its round still finds the driver
        # After a failure the streams close first: by them the others learn that they have to
        # elect, and a round of housekeeping may take its time.
        self.ticker.stop()
        self.driver.stop()
        self.leadership.end_serving("the node stopped")
        await self.transport.stop()
        await self.installer.stop()
        await self.retention.stop()
        await self.log_start.stop()
        await self.scrubber.stop()
        await self.repairs.stop()
        await self.comparison.stop()
        await self.mender.stop()
        await self.housekeeping.stop()
        self.services.cluster.close()
        self.groups.close()
        self._delays.close()

    async def close(self) -> None:
        """The files are flushed and closed; without `stop` before it, for a replica that was
        opened and not started. After a failure the next start verifies everything."""
        recovered, hand = self._recovered, self._ports.hand
        with contextlib.closing(recovered.directory), contextlib.closing(self.queues):
            try:
                if self.failure is None:
                    await self.housekeeping.make_round()
            except Exception as error:  # noqa: BLE001  whatever it was, the stop wasn't clean
                self.fail(error)
            try:
                # What is rotten and not repaired has to be found again by the next start.
                is_clean = self.failure is None and not self.repairs.is_at_work
                await hand.run(partial(self.log.close, is_clean=is_clean))
            except StoreError as error:
                self.fail(error)
            if isinstance(self.failure, ReplicaDiverged):
                await hand.run(partial(self._last_words.suspect_memory, self.failure.index))
            if isinstance(self.failure, OutOfService):
                await hand.run(partial(self._last_words.mark, self.failure.divergence))

    def fail(self, error: BaseException) -> None:
        """The replica serves nobody from now on; `wait` returns, and `stop` tells of it."""
        if self.failure is not None:
            return
        self.failure = error
        self._stop_asked.set()  # whatever becomes of the words that follow
        if isinstance(error, CorruptionFound):
            self._last_words.tell_of_rot(error)
        elif isinstance(error, BeyondRepair):
            log.critical("log_corrupt", file=error.file, reason=error.why, advice=ROT_ADVICE)
        self.leadership.end_for_good("the node failed")
        if isinstance(error, OutOfService):
            log.critical("node_out_of_service", reason=str(error))
            return
        log.critical("node_failed", error=str(error), kind=type(error).__name__, exc_info=error)

    def fall_silent(self, reason: str) -> None:
        """This log isn't the group's: nothing is voted, acknowledged, led or served from here on.
        What was handed to the disk before is finished."""
        self.ticker.stop()
        self.driver.fall_silent(reason)
        self.leadership.end_serving(reason)

    def on_given_up(self, peer: NodeId, recoveries: Lineage) -> None:
        """`peer` is of the group that went on without this member (ADR 52)."""
        if self.failure is not None or self.stopping:
            return
        self.fall_silent("the group was recovered by force without this member")
        named = tuple(each.hex() for each in recoveries)
        self.leave_service(Divergence(peers=(peer,), recoveries=named))

    async def mark_at_once(self, divergence: Divergence) -> None:
        """No process after this one is a member, whatever becomes of this one before it has found
        out more."""
        await self._ports.hand.run(partial(self._last_words.mark, self._told_of(divergence)))

    def leave_service(self, divergence: Divergence) -> None:
        """It ends, and no process after it is a member."""
        told, path = self._told_of(divergence), self.config.data_directory
        self.fail(OutOfService(str(path), self.config.node_id, told))

    def _told_of(self, divergence: Divergence) -> Divergence:
        """The same, with what this log is."""
        core, ends = self.driver.core, committed_log(self.parts)
        settled, known = self._proven_index(), core.configuration
        addresses, proven, offset, digest = dict(known.addresses), 0, 0, 0
        # Where the entry has rotted, that this log isn't the group's is all the more to be said;
        # and no digest that it hasn't, as others would be found to differ from that.
        with contextlib.suppress(StoreError):
            end = ends.end_of_entry(settled)
            digest = self.log.digest_at(settled) if settled else 0
            proven, offset = settled, end
        return replace(
            divergence,
            found_ms=max(0, self._ports.now_ms()),
            term=core.term,
            first_index=self.log.first_index,
            last_index=self.log.last_index,
            committed_index=proven,
            committed_offset=offset,
            committed_digest=digest,
            members=tuple((name, addresses.get(name, "")) for name in sorted(known.members())),
        )

    def reopen(self) -> None:
        """The replica is to be closed, and opened again on what is on its disk then."""
        self.wants_reopening = True
        self.ask_to_stop()

    # --- what the parts tell each other -------------------------------------------------------

    def tick(self) -> None:
        """One tick of the core's clock has gone by; who looks at what is due by it looks."""
        try:
            if self._ports.rhythm.hastens_first_election:
                self._first_election.on_tick()
            self.driver.tick()
            self.leadership.on_tick()
            self.levels.on_tick()
            self.membership.on_tick()
            self.appender.units.go_on()
            self.groups.on_tick()
            self._space_watch.on_tick()
            self._delays.on_tick()
        except Exception as error:  # noqa: BLE001  the loop would tell it, and tick on
            self.fail(error)

    def on_message(self, peer: NodeId, message: raft_pb2.PeerMessage) -> None:
        """It goes to whom it is meant for; to nobody while the log may not be the group's."""
        if self.comparison.on_message(peer, message) or self.comparison.is_silent:
            return
        heeded = self.repairs.on_message(peer, message) or self.installer.on_message(peer, message)
        if not heeded:
            self.driver.on_message(peer, message)

    def on_broken(self, peer: NodeId) -> None:
        """The streams of a node that dies end before it is missed otherwise."""
        self.driver.suspect(peer)

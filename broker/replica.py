"""One replica: a member of a broker group, built from ports.

This is the only place where the parts of a member are made and joined: the recovered store, the
core and its driver, the state machine, what only a leader does, what reads, what keeps house. It
owns their life: in which order they start, how they are kept, handed over, drained and closed,
and what a failure does to them. A process (`broker.node`) adds sockets, signals and metrics;
whoever has other disks, links and clocks hands in those. The rules of the wiring stand here only.

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
from pathlib import Path

import structlog

from broker.announcing import Announcer
from broker.archiving import Archiver
from broker.assembly import Parts, Surrounds, committed_log, services_of
from broker.comparing import Comparison, Neighbours
from broker.config import NodeConfig
from broker.disk_usage import DiskUsage
from broker.errors import BrokerError
from broker.filling import Filling
from broker.front import LogFront
from broker.housekeeping import Housekeeping, Notes
from broker.installing import Around as InstallerAround
from broker.installing import Installer
from broker.leader.append import Appender
from broker.leader.commands import Commands, makes_room
from broker.leader.groups.keeper import GroupKeeper
from broker.leader.leadership import Leadership
from broker.leader.levels import LevelKeeper
from broker.leader.membership import Membership
from broker.leader.retention import Retention, Rules
from broker.leader.retries.own_topics import OwnTopics
from broker.leader.retries.pump import MOST_BYTES, DelayPump
from broker.leader.retries.waiting import Waiting
from broker.leader.topic_retention import TopicRetention
from broker.log_start import Front, LogStartKeeper
from broker.memory import Memory
from broker.mending import Mender
from broker.ports import ReplicaPorts
from broker.probes import CommitProbe, TimedMachine
from broker.reading.held import HeldPulls
from broker.reading.queues import QueueReader
from broker.recovery import Recovered, recover
from broker.repairs import Repairs, SteadyView, Surroundings
from broker.scrubbing import Scrubber
from broker.sealing import Sealer
from broker.services.messages import SendTimings
from broker.services.services import Services
from broker.snapshots import Base, SnapshotKeeper, SnapshotSource
from broker.state.machine import QueueFiles, StateMachine
from broker.state.replay import QueueStarts
from broker.suspecting import Suspecting
from broker.ticker import Ticker
from broker.upkeep import KeptQueues, Upkeep
from dledger.codec import decode_configuration
from dledger.core import Raft
from dledger.core.group_epoch import Lineage
from dledger.core.types import Configuration, DiskId, Index, NodeId, RaftOptions
from dledger.driver import Ports, RaftDriver
from dledger.errors import InvalidFrames, ReplicaDiverged
from dledger.greeting import Identity
from dledger.level import LOG_START_LEVEL
from dledger.promises import NOBODY, Start
from dledger.reading.entry import HEADER_SIZE, EntryHeader, walk_frames
from dledger.reading.log_start import LogStart
from dledger.records.errors import InvalidFrame
from dledger.wire import raft_pb2
from store.directory import DirectoryState
from store.doubt import DoubtNote
from store.errors import BeyondRepair, CorruptionFound, StoreError
from store.files import FULL_ERRNOS
from store.keepsakes import Keepsake, constant_file
from store.log_start import Install, StartNote
from store.out_of_service import Divergence, mark
from store.repair_journal import RepairJournal
from store.scrub_note import ScrubNote
from store.snapshot_files import SnapshotFiles
from store.starting.errors import OutOfService
from store.suspicion import Suspicion, SuspicionNote

STALLED_DISK_MS = 500  # far beyond what a healthy disk takes for an fsync under load
HOUR_S = 3_600
HOUR_MS = HOUR_S * 1000
HAND_OVER_INTERVAL_MS = 1_000  # a leader with a sick disk hands over no sooner and no oftener

# Of being well, until the preferred member is to lead: longer than anything that only passes.
PREFERRED_AFTER_MS = 10_000

ROT_ADVICE = (
    "stopped: dledger log repair, with bytes of its peers; else a new disk: docs/operations.md, "
    "Corruption"
)

log = structlog.get_logger(__name__)


class Replica:
    """A member of a broker group: `open`, `start`, then `wait`, then `stop`."""

    def __init__(self, config: NodeConfig, ports: ReplicaPorts, recovered: Recovered) -> None:
        """Makes the parts and connects them; no I/O, and nothing runs yet."""
        self.config = config
        self.metrics = ports.latencies
        self.stopping = False
        self.failure: BaseException | None = None
        self.wants_reopening = False  # it is to be opened again once it has stopped
        self._ports = ports
        self._recovered = recovered
        self._stop_asked = asyncio.Event()
        self.log, self.queues = recovered.log, recovered.queues
        self._memory = Memory(ports.files, config.data_directory / "raft")
        self.machine = recovered.machine
        self.transport = ports.connect(self._greeting(), self._on_message, self._on_broken)
        self.held = HeldPulls(config.broker.max_held_pulls, ports.turns.later)
        self.repairs = self._make_repairs()
        self.comparison = self._make_comparison()
        self.base = self._make_base()
        self.mender = Mender(
            self.machine,
            self.queues,
            self.log,
            self.fail,
            self.repairs.takes,
            self._machine_at_base,
        )
        self.mender.suspect_all(recovered.wrong_queues)
        self.reader = QueueReader(self.machine, self.queues, self.log, self.mender.suspect)
        node = NodeId(config.node_id)
        probe = CommitProbe(ports.latencies.commit_seconds)
        self.appender = self._make_appender(probe)
        self.leadership = Leadership(
            config.broker_group, node, self._members, self.appender, self.held
        )
        self.disk_usage = DiskUsage(ports.files, config.data_directory, ports.machinery.clock)
        self.driver = self._make_driver(probe)
        self.snapshots = self._make_snapshots()
        self.sealer = Sealer(
            self.log.seals,
            # Not over what is known to be rotten.
            lambda: 0 if self.repairs.is_at_work else self.snapshots.statistics().index,
            ports.hand,
        )
        self.installer = self._make_installer()
        self.archiver = self._make_archiver()
        self.log_start = self._make_log_start()
        self.retention = self._make_retention()
        self.housekeeping = Housekeeping(
            Notes(self._derived_index, self._note_derived, self._remember),
            self.queues,
            ports.hand,
            self.driver.on_storage_failed,
            self._look_after_the_disk,
        )
        self._queue_starts = recovered.queue_starts
        self.scrubber = self._make_scrubber()
        self.member = recovered.member
        self.membership = Membership(
            self.driver,
            node,
            lambda: self.machine.level.current,
            lambda: self.transport.links(),
        )
        self.ticker = Ticker(
            config.raft.tick_ms / 1000, self._tick, ports.latencies.loop_lateness_seconds
        )
        self.groups = self._make_groups()
        self.own_topics = OwnTopics(self.machine, Commands(self.appender))
        self.delays = self._make_delays()
        self.parts = Parts(
            self.log,
            self.machine,
            self.driver,
            self.leadership,
            self.appender,
            self.reader,
            self.held,
            self.membership,
            self.mender,
            self.snapshots,
            self.repairs,
            self.scrubber,
            self.comparison,
            self.log_start,
            self.archiver,
            self.groups,
            self.own_topics,
        )
        self.services = self._make_services()
        self.levels = self._make_levels()
        self._join(probe)

    def _make_appender(self, probe: CommitProbe) -> Appender:
        config, ports = self.config, self._ports
        return Appender(
            probe,
            self.machine,
            self.log.read_at,
            self._is_full,
            ports.store_host,
            config.broker.max_message_bytes,
        )

    def _make_snapshots(self) -> SnapshotKeeper:
        ports, recovered = self._ports, self._recovered
        return SnapshotKeeper(
            SnapshotSource(self.machine, self.log, recovered.directory.disk.disk_id),
            self.base.files,
            ports.hand,
            ports.turns.share,
            recovered.snapshot,
            ports.rhythm.snapshots,
        )

    def _make_base(self) -> Base:
        recovered = self._recovered
        return Base(
            SnapshotFiles(
                self.config.data_directory, self._ports.files, self.log.options.reserve_bytes
            ),
            self.log,
            recovered.directory.disk.disk_id,
            self.machine.options,
            self._ports.known_level,
        )

    async def _machine_at_base(self, queues: QueueFiles) -> StateMachine:
        return await self._ports.hand.run(partial(self.base.machine, queues))

    def _make_installer(self) -> Installer:
        around = InstallerAround(
            ask=self.transport.send_answer,
            give=self.transport.send_request,
            needs=lambda offer: self.driver.core.needs(offer),
            is_compared=lambda: self.comparison.is_under_way,
            fall_silent=self.driver.stop,
            reopen=self._reopen,
            failed=self.fail,
        )
        install = Install(self._ports.files, self.config.data_directory)
        return Installer(self.base, self.snapshots, install, self._ports.hand, around)

    def _make_log_start(self) -> LogStartKeeper:
        ports = self._ports
        front = Front(
            self.log,
            self.queues,
            self.machine,
            self.snapshots,
            self.base,
            StartNote(ports.files, self.config.data_directory),
            ports.files,
            self.archiver,
            self.driver.begin_at,
            self._on_queue_starts,
            self._is_front_held,
            self.repairs.takes,
        )
        commands = Commands(self.appender)
        look_s = ports.rhythm.log_start_s
        keeper = LogStartKeeper(front, ports.hand, commands, self.fail, look_s)
        filling = Filling(
            lambda: self.driver.core.statistics().peers,
            lambda: self.log.first_index,
            lambda: self.driver.core.commit_index,
            self._is_full,
            asyncio.get_running_loop().time,
        )
        keeper.holders += [filling, Waiting(self.machine, self.queues, self.log.index_at)]
        return keeper

    def _make_archiver(self) -> Archiver:
        wanted, ports = self.config.retention, self._ports

        def is_full() -> bool:
            figure, percent = self.disk_usage.figure(), wanted.disk_percent
            return bool(percent) and figure is not None and figure.is_used_to(percent)

        return Archiver(
            wanted.archive,
            wanted.archive_hold_hours * HOUR_S,
            ports.run_command,
            is_full,
            ports.machinery.clock,
        )

    def _is_front_held(self) -> bool:
        """Whether what is before the log's start may still be needed here: by a repair, or as what
        shows where two logs part."""
        told = self.comparison.statistics()
        return (
            self.repairs.is_at_work
            or self.mender.is_at_work
            or self.wants_reopening
            or told.is_silent
            or bool(told.suspected)
        )

    def _make_retention(self) -> Retention:
        wanted, ports = self.config.retention, self._ports
        rules = Rules(wanted.age_hours * HOUR_MS, wanted.bytes, wanted.disk_percent)
        front = LogFront(
            self.log,
            self.machine,
            wanted.disk_percent,
            self.driver.voters_disks,
            self.repairs.takes,
            self._machine_at_base,
        )
        return Retention(
            front,
            rules,
            self._make_topic_retention(),
            self.propose_log_start,
            lambda: self.leadership.serving,
            self.fail,
            ports.rhythm.retention_s,
        )

    def _make_topic_retention(self) -> TopicRetention:
        commands, slack_ms = Commands(self.appender), self._ports.rhythm.topic_slack_ms
        return TopicRetention(self.machine, self.reader, commands, self.repairs.takes, slack_ms)

    def _reopen(self) -> None:
        """The replica is to be closed, and opened again on what is on its disk then."""
        self.wants_reopening = True
        self.ask_to_stop()

    def _makes_sense_of_offers(self, peer: NodeId) -> bool:
        link = self.transport.links().get(peer)
        return link is not None and link.level >= LOG_START_LEVEL

    def _make_scrubber(self) -> Scrubber:
        config, ports = self.config, self._ports
        return Scrubber(
            self.log,
            self._proven_index,
            ports.hand,
            self.repairs,
            self.fail,
            ports.now_ms,
            replace(ports.rhythm.scrub, share=config.store.scrub_percent / 100),
            self._make_upkeep().round,
            ScrubNote(ports.files, config.data_directory),
        )

    def _make_upkeep(self) -> Upkeep:
        files, path = self._ports.files, self.config.data_directory
        recovered = self._recovered
        queues = KeptQueues(
            files,
            path / "consumequeue",
            self.queues.units_per_file,
            self.machine,
            lambda: self._queue_starts,
            self.mender,
        )
        keepsakes = [
            Keepsake(str(path / "raft" / "hard_state"), recovered.hard_state_store.mend),
            Keepsake(str(path / "identity.json"), recovered.directory.mend),
            Keepsake(str(path / "checkpoint"), self.log.checkpoint.mend),
            Keepsake(str(path / "log_start"), self._mend_note),
            Keepsake(str(path / "raft" / "promises.json"), self._memory.mend),
        ]
        constant = (path / "formation.json", path / "raft" / "boot")
        keepsakes += filter(None, (constant_file(files, each) for each in constant))
        return Upkeep(
            self._ports.hand,
            keepsakes,
            self.log.seals,
            self.snapshots,
            self.base.files,
            lambda: self.log.start.index,
            queues,
        )

    def _noted_start(self) -> LogStart:
        """Where the start note says that the log begins; what it should say, where it can't be
        read: that is rot or want of something, and no other log."""
        note = StartNote(self._ports.files, self.config.data_directory)
        try:
            note.mend(self.log.start)
            return note.read()
        except (StoreError, OSError):
            return self.log.start

    def _mend_note(self) -> bool:
        return StartNote(self._ports.files, self.config.data_directory).mend(self.log.start)

    def _on_queue_starts(self, starts: QueueStarts) -> None:
        self._queue_starts = starts

    def _make_services(self) -> Services:
        config, ports = self.config, self._ports
        latencies = ports.latencies
        timings = SendTimings(latencies.append_seconds.observe, latencies.send_seconds.observe)
        around = Surrounds(
            self.transport.links, self.fail, ports.turns, timings, self._own_disk, ports.premises
        )
        return services_of(config, self.parts, around)

    def _make_groups(self) -> GroupKeeper:
        config = self.config
        pace = replace(
            self._ports.rhythm.groups,
            tick_ms=config.raft.tick_ms,
            unused_ms=config.broker.group_unused_hours * HOUR_MS,
        )

        return GroupKeeper(
            self.machine,
            Commands(self.appender),
            self.reader,
            self._led_term,
            self.repairs.takes,
            config.broker_group,
            pace,
        )

    def _make_delays(self) -> DelayPump:
        return DelayPump(
            self.machine,
            self.reader,
            self.appender.units,
            self.own_topics,
            self._led_term,
            lambda: self.driver.log_time_ms,
            self.repairs.takes,
            self.fail,
            self._ports.rhythm.delays_ms,
            self.config.raft.tick_ms,
            min(MOST_BYTES, self.config.store.segment_size_bytes // 4),
        )

    def _led_term(self) -> int:
        """The term in which this node leads and serves; 0: it doesn't."""
        return self.driver.core.term if self.leadership.serving else 0

    def _make_levels(self) -> LevelKeeper:
        ports, node = self._ports, NodeId(self.config.node_id)
        return LevelKeeper(
            ports.known_level,
            Commands(self.appender),
            current=lambda: self.machine.level.current,
            serves=lambda: self.leadership.serving,
            others=lambda: self.driver.core.configuration.members() - {node},
            links=self.transport.links,
        )

    @classmethod
    def open(cls, config: NodeConfig, ports: ReplicaPorts) -> Replica:
        """A replica of what is on the disk; it takes part once it is started.

        Raises:
            StoreError, HardStateCorrupt, FormingError, OSError: it can't be; nothing is left open.
        """
        return cls(config, ports, recover(config, ports.files, ports.machinery, ports.known_level))

    def _members(self) -> dict[NodeId, str]:
        """The members, and where they are found: where this node was told so, or else where the
        group's log says."""
        configuration = self.driver.core.configuration
        told = {NodeId(name): address for name, address in self.config.peers.items()}
        if not self.driver.core.knows_own_disk and not configuration.addresses:
            return told  # it joins, and its log doesn't say more yet
        places = {**dict(configuration.addresses), **told}
        return {node: places.get(node, "") for node in sorted(configuration.members())}

    def _greeting(self) -> Identity:
        """Who this replica is to its peers, in this life."""
        config, recovered = self.config, self._recovered
        return Identity(
            config.broker_group,
            NodeId(config.node_id),
            config.store.segment_size_bytes,
            DiskId(recovered.directory.disk.disk_id),
            self._start_told(),
            self._ports.known_level,
        )

    def _own_disk(self) -> DiskId:
        return DiskId(self._recovered.directory.disk.disk_id)

    def _start_told(self) -> Start:
        """What this process found on its disk, which peers compare with what that has promised."""
        recovered = self._recovered
        return Start(
            recovered.boot_number,
            self._ports.random.getrandbits(64),
            recovered.hard_state.term,
            recovered.hard_state.vote or NOBODY,
            recovered.summary.last_index,
            is_synced=self.config.store.flush == "sync",
        )

    def _make_repairs(self) -> Repairs:
        """They speak to parts that are made later, and not before the replica has started."""
        around = Surroundings(
            through=self._proven_index,
            holds=self._holds,
            term_at=lambda index: self.driver.core.term_at(Index(index)),
            links=self.transport.links,
            request=self.transport.send_request,
            answer=self.transport.send_answer,
            doubt=lambda *, is_in_doubt: self.driver.report_doubt(is_in_doubt=is_in_doubt),
            failed=self.fail,
        )
        journal = RepairJournal(self._ports.files, self.config.data_directory)
        note = DoubtNote(self._ports.files, self.config.data_directory)
        return Repairs(self.log, journal, self._ports.hand, around, note)

    def _make_comparison(self) -> Comparison:
        """As the repairs, it speaks to parts that are made later."""
        around = Neighbours(
            node=NodeId(self.config.node_id),
            durable=lambda: min(self.driver.core.durable_index, self.log.synced_index),
            term_at=lambda index: self.driver.core.term_at(Index(index)),
            configuration=lambda: self.driver.core.configuration,
            noted_start=self._noted_start,
            links=self.transport.links,
            request=self.transport.send_request,
            answer=self.transport.send_answer,
            is_mended=self.repairs.takes,
            silence=partial(self._fall_silent, "the log differs from a majority's"),
            leaving=self._mark_at_once,
            diverged=self._leave_service,
            failed=self.fail,
        )
        note = SuspicionNote(self._ports.files, self.config.data_directory)
        return Comparison(self.log, around, Suspecting(note, self._ports.hand))

    def _make_driver(self, probe: CommitProbe) -> RaftDriver[EntryHeader]:
        ports, recovered, node = self._ports, self._recovered, NodeId(self.config.node_id)
        applied = Index(self.machine.applied_index)
        core = Raft(
            node,
            recovered.base,
            view=SteadyView(self.log, self.repairs.takes),
            rng=ports.random,
            options=raft_options(self.config),
            log=recovered.summary,
            hard_state=recovered.hard_state,
            commit_index=applied,
            disk=DiskId(recovered.directory.disk.disk_id),
        )
        driver_ports = Ports(
            log=self.log,
            parse_frames=parse_frames,
            hard_state=recovered.hard_state_store,
            transport=self.transport,
            machine=TimedMachine(self.machine, ports.latencies.apply_seconds),
            observer=probe,
            configuration_of=configuration_of,
            call_soon=ports.call_soon,
            turns=ports.turns,
            wall_ms=ports.now_ms,
            monotonic_s=ports.machinery.clock,
            fail=self.fail,
            is_mended=self.repairs.takes,
            contradicted=self.comparison.suspect,
            offered=lambda offer: self.installer.offered(offer),
            takes_offers=self._makes_sense_of_offers,
            makes_room=makes_room,
            own_disk=self.disk_usage.figure,
        )
        return RaftDriver(
            core, node, driver_ports, applied, apply_slice_bytes=ports.rhythm.apply_slice_bytes
        )

    def _join(self, probe: CommitProbe) -> None:
        """Who tells whom; made last, as each of them has to be there."""
        probe.attach(self.driver, self.leadership)
        self.leadership.attach(self.driver, self.services.cluster.notify)
        self.machine.listen(Announcer(self.appender, self.held, self.groups))
        from_worker = self._ports.call_from_worker
        self.transport.recall(self._memory.read())
        self.transport.speak_for(lambda: self.driver.core.holding)
        self.transport.when_given_up(self._on_given_up)
        self.log.on_durable = partial(from_worker, self.driver.on_durable)
        self.log.on_failed = partial(from_worker, self.driver.on_storage_failed)

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
        self.delays.close()

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
                await hand.run(partial(self._suspect_memory, self.failure.index))
            if isinstance(self.failure, OutOfService):
                await hand.run(partial(self._mark, self.failure.divergence))

    def _suspect_memory(self, index: int) -> None:
        """The next process reads the whole log, and compares it with the others'."""
        note = SuspicionNote(self._ports.files, self.config.data_directory)
        try:
            note.write(Suspicion(index, is_memory=True))
        except OSError as error:
            log.error("suspicion_not_noted", index=index, reason=str(error))

    def _mark(self, divergence: Divergence) -> None:
        """The last thing that is written. Without it the next process finds out anew."""
        try:
            mark(self._ports.files, self.config.data_directory, divergence)
        except OSError as error:
            log.error("out_of_service_not_marked", reason=str(error))

    def fail(self, error: BaseException) -> None:
        """The replica serves nobody from now on; `wait` returns, and `stop` tells of it."""
        if self.failure is not None:
            return
        self.failure = error
        self._stop_asked.set()  # whatever becomes of the words that follow
        if isinstance(error, CorruptionFound):
            self._tell_of_rot(error)
        elif isinstance(error, BeyondRepair):
            log.critical("log_corrupt", file=error.file, reason=error.why, advice=ROT_ADVICE)
        self.leadership.end_serving("the node failed")
        if isinstance(error, OutOfService):
            log.critical("node_out_of_service", reason=str(error))
            return
        log.critical("node_failed", error=str(error), kind=type(error).__name__, exc_info=error)

    def _fall_silent(self, reason: str) -> None:
        """This log isn't the group's: nothing is voted, acknowledged, led or served from here on.
        What was handed to the disk before is finished."""
        self.ticker.stop()
        self.driver.fall_silent(reason)
        self.leadership.end_serving(reason)

    def _on_given_up(self, peer: NodeId, recoveries: Lineage) -> None:
        """`peer` is of the group that went on without this member (ADR 52)."""
        if self.failure is not None or self.stopping:
            return
        self._fall_silent("the group was recovered by force without this member")
        named = tuple(each.hex() for each in recoveries)
        self._leave_service(Divergence(peers=(peer,), recoveries=named))

    async def _mark_at_once(self, divergence: Divergence) -> None:
        """No process after this one is a member, whatever becomes of this one before it has found
        out more."""
        await self._ports.hand.run(partial(self._mark, self._told_of(divergence)))

    def _leave_service(self, divergence: Divergence) -> None:
        told, path = self._told_of(divergence), self.config.data_directory
        self.fail(OutOfService(str(path), self.config.node_id, told))

    def _told_of(self, divergence: Divergence) -> Divergence:
        """The same, with what this log is."""
        core, ends = self.driver.core, committed_log(self.parts)
        settled, known = self._proven_index(), core.configuration
        addresses = dict(known.addresses)
        return replace(
            divergence,
            found_ms=max(0, self._ports.now_ms()),
            term=core.term,
            first_index=self.log.first_index,
            last_index=self.log.last_index,
            committed_index=settled,
            committed_offset=ends.end_of_entry(settled),
            committed_digest=self.log.digest_at(settled) if settled else 0,
            members=tuple((name, addresses.get(name, "")) for name in sorted(known.members())),
        )

    # --- what the parts tell each other -------------------------------------------------------

    def _tick(self) -> None:
        try:
            self.driver.tick()
            self.levels.on_tick()
            self.membership.on_tick()
            self.appender.units.go_on()
            self.groups.on_tick()
            self.delays.on_tick()
        except Exception as error:  # noqa: BLE001  the loop would tell it, and tick on
            self.fail(error)

    def _on_message(self, peer: NodeId, message: raft_pb2.PeerMessage) -> None:
        if self.comparison.on_message(peer, message) or self.comparison.is_silent:
            return
        heeded = self.repairs.on_message(peer, message) or self.installer.on_message(peer, message)
        if not heeded:
            self.driver.on_message(peer, message)

    def _on_broken(self, peer: NodeId) -> None:
        self.driver.suspect(peer)

    def _is_full(self) -> bool:
        return self.log.statistics().is_full or self.driver.statistics().is_apply_paused

    def _proven_index(self) -> int:
        """The last entry that is committed, and on this node's disk whatever happens."""
        core = self.driver.core
        return min(core.commit_index, core.durable_index, self.log.synced_index)

    def _holds(self, index: int, term: int) -> bool:
        """Whether the entry of that term is on this node's disk."""
        core = self.driver.core
        durable = min(core.durable_index, self.log.synced_index)
        is_held = self.log.first_index <= index <= durable  # what it asks for may have been retired
        return is_held and core.term_at(Index(index)) == term

    async def _look_after_the_disk(self) -> None:
        """How full it is, and the state on it."""
        await self._ports.hand.run(self.disk_usage.measure)
        await self._keep_snapshots()

    async def _keep_snapshots(self) -> None:
        """A snapshot needs the log's word for the entry that it is of: it waits for a repair."""
        try:
            await self.snapshots.step()
            await self.sealer.step()
        except CorruptionFound as error:
            if not self.repairs.takes(error):
                raise

    def _derived_index(self) -> int:
        """Through which entry the queues are derived, for all that is known; 0: nothing new is to
        be noted, as one of them is wrong and the next start has to find it so."""
        return 0 if self.mender.is_at_work else self.driver.settled_index

    def _tell_of_rot(self, error: CorruptionFound) -> None:
        """What an operator needs to know of rot in the log."""
        entry: int | None = None
        with contextlib.suppress(StoreError, ValueError):
            entry = self.log.index_at(int(Path(error.file).name) + error.offset)
        log.critical(
            "log_corrupt",
            file=error.file,
            offset=error.offset,
            entry=entry,
            expected=str(error.expected),
            found=str(error.found),
            advice=ROT_ADVICE,
        )

    def _remember(self) -> Callable[[], None] | None:
        return self._memory.step(self.transport.promises())

    def _note_derived(self, settled_index: int) -> None:
        """The ConsumeQueues hold everything up to `settled_index`, durably, and so does the log.
        When that was is said by the log's time: this node's own clock may be before all time."""
        self.log.checkpoint.note_consume_queue(settled_index, self.machine.append_time_ms)
        self._note_membership(settled_index)

    def _note_membership(self, settled_index: int) -> None:
        """A disk that was taken in is a member's for good once its log, committed, says so: from
        then on it doesn't start without that log."""
        directory = self._recovered.directory
        if directory.disk.state is not DirectoryState.JOINING:
            return
        bodies = [b for index, b in self.log.configuration_entries() if index <= settled_index]
        if bodies:
            named = decode_configuration(raft_pb2.Configuration.FromString(bodies[-1]))
            if named.disk_of(NodeId(self.config.node_id)) == directory.disk.disk_id:
                try:
                    directory.mark(DirectoryState.FORMED)
                except OSError as error:
                    if error.errno not in FULL_ERRNOS:
                        raise  # a full disk only delays it: each round comes here again


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
    hand_over_ms = max(HAND_OVER_INTERVAL_MS, 4 * raft.election_timeout_ms[1])
    return RaftOptions(
        election_timeout_min_ticks=raft.election_timeout_ms[0] // tick,
        election_timeout_max_ticks=raft.election_timeout_ms[1] // tick,
        heartbeat_ticks=raft.heartbeat_ms // tick,
        suspicion_delay_min_ticks=raft.suspicion_delay_ms[0] // tick,
        suspicion_delay_max_ticks=raft.suspicion_delay_ms[1] // tick,
        transfer_timeout_ticks=raft.transfer_timeout_ms // tick,
        stalled_disk_ticks=STALLED_DISK_MS // tick,
        hand_over_interval_ticks=hand_over_ms // tick,
        preferred_after_ticks=max(PREFERRED_AFTER_MS, hand_over_ms) // tick,
        max_append_bytes=raft.max_append_bytes,
        max_append_entries=raft.max_append_entries,
        max_inflight_appends=raft.max_inflight_appends,
        max_uncommitted_bytes=raft.max_uncommitted_bytes,
        noop_size=HEADER_SIZE,
    )

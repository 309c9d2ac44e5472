"""The half of a member that replicates: log, core, driver, machine, and what keeps them sound.

Made and joined here, in the order in which they need each other; those that speak to parts made
later do so not before the replica has started. Nothing runs yet. What a member does beside is
`broker.wiring`, its life `broker.replica`.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from broker.comparing import Comparison, Neighbours
from broker.config import NodeConfig
from broker.disk_usage import DiskUsage
from broker.greeting import greeting_of
from broker.installing import Around as InstallerAround
from broker.installing import Installer
from broker.leader.append import Appender
from broker.leader.commands import Commands, makes_room
from broker.leader.leadership import Leadership
from broker.leader.old_sessions import OldSessions
from broker.memory import Memory
from broker.mending import Mender
from broker.ports import ReplicaPorts
from broker.probes import CommitProbe, TimedMachine
from broker.raft_options import configuration_of, parse_frames, raft_options
from broker.reading.held import HeldPulls
from broker.reading.queues import QueueReader
from broker.recovery import Recovered
from broker.repairs import Repairs, SteadyView, Surroundings
from broker.sealing import Sealer
from broker.snapshots import Base, SnapshotKeeper, SnapshotSource
from broker.state.machine import StateMachine
from broker.state.queue_files import QueueFiles
from broker.suspecting import Suspecting
from dledger.core import Raft
from dledger.core.group_epoch import Lineage
from dledger.core.types import DiskId, Index, NodeId
from dledger.driver import Ports, RaftDriver
from dledger.level import LOG_START_LEVEL
from dledger.reading.entry import EntryHeader
from dledger.reading.log_start import LogStart
from dledger.wire import raft_pb2
from store.doubt import DoubtNote
from store.errors import CorruptionFound, StoreError
from store.log_start import Install, StartNote
from store.out_of_service import Divergence
from store.repair_journal import RepairJournal
from store.snapshot_files import SnapshotFiles
from store.suspicion import SuspicionNote


class Life(Protocol):
    """The replica that the parts belong to, as far as they tell it something."""

    @property
    def wants_reopening(self) -> bool:
        """It is to be opened again once it has stopped."""

    def fail(self, error: BaseException) -> None:
        """It ends for good."""

    def reopen(self) -> None:
        """It is to be closed, and opened again on what is on its disk then."""

    def fall_silent(self, reason: str) -> None:
        """Its log isn't the group's."""

    async def mark_at_once(self, divergence: Divergence) -> None:
        """No process after this one is a member."""

    def leave_service(self, divergence: Divergence) -> None:
        """It is no member any more."""

    def on_message(self, peer: NodeId, message: raft_pb2.PeerMessage) -> None:
        """A peer said that."""

    def on_broken(self, peer: NodeId) -> None:
        """A stream with the peer has ended."""

    def on_given_up(self, peer: NodeId, recoveries: Lineage) -> None:
        """The peer is of a group that went on without this member."""

    def tick(self) -> None:
        """Time goes by."""


class Replication:
    """The parts, connected.

    Args:
        life: the replica that they belong to.
    """

    def __init__(
        self, config: NodeConfig, ports: ReplicaPorts, recovered: Recovered, life: Life
    ) -> None:
        self._config = config
        self._ports = ports
        self._recovered = recovered
        self._life = life
        self.log, self.queues = recovered.log, recovered.queues
        self.memory = Memory(ports.files, config.data_directory / "raft")
        self.machine = recovered.machine
        greeting = greeting_of(config, ports, recovered)
        self.transport = ports.connect(greeting, life.on_message, life.on_broken)
        self.held = HeldPulls(config.broker.max_held_pulls, ports.turns.later)
        self.repairs = self._make_repairs()
        self.comparison = self._make_comparison()
        self.base = self._make_base()
        self.mender = Mender(
            self.machine,
            self.queues,
            self.log,
            life.fail,
            self.repairs.takes,
            self.machine_at_base,
            ports.turns.share,
        )
        self.mender.suspect_all(recovered.wrong_queues)
        self.reader = QueueReader(self.machine, self.queues, self.log, self.mender.suspect)
        self.probe = CommitProbe(ports.latencies.commit_seconds)
        self.appender = self._make_appender(self.probe)
        self.leadership = Leadership(
            config.broker_group,
            NodeId(config.node_id),
            self._members,
            self.appender,
            self.held,
            self._make_old_sessions(),
        )
        self.disk_usage = DiskUsage(ports.files, config.data_directory, ports.machinery.clock)
        self.driver = self._make_driver(self.probe)
        self.snapshots = self._make_snapshots()
        self.sealer = Sealer(
            self.log.seals,
            # Not over what is known to be rotten.
            lambda: 0 if self.repairs.is_at_work else self.snapshots.statistics().index,
            ports.hand,
        )
        self.installer = self._make_installer()

    def _make_repairs(self) -> Repairs:
        """They speak to parts that are made later, and not before the replica has started."""
        around = Surroundings(
            through=self.proven_index,
            holds=self._holds,
            term_at=lambda index: self.driver.core.term_at(Index(index)),
            links=self.transport.links,
            request=self.transport.send_request,
            answer=self.transport.send_answer,
            doubt=lambda *, is_in_doubt: self.driver.report_doubt(is_in_doubt=is_in_doubt),
            failed=self._on_repairs_failed,
        )
        journal = RepairJournal(self._ports.files, self._config.data_directory)
        note = DoubtNote(self._ports.files, self._config.data_directory)
        return Repairs(self.log, journal, self._ports.hand, around, note)

    def _on_repairs_failed(self, error: BaseException) -> None:
        """Of a disk that failed the core hears in the same turn: the flusher, which writes to the
        same one, may be about to call something durable (ADR 8)."""
        if isinstance(error, OSError):
            self.driver.on_storage_failed(error)
        self._life.fail(error)

    def _make_comparison(self) -> Comparison:
        """As the repairs, it speaks to parts that are made later."""
        around = Neighbours(
            node=NodeId(self._config.node_id),
            durable=lambda: min(self.driver.core.durable_index, self.log.synced_index),
            term_at=lambda index: self.driver.core.term_at(Index(index)),
            configuration=lambda: self.driver.core.configuration,
            followed=self._followed,
            noted_start=self._noted_start,
            links=self.transport.links,
            request=self.transport.send_request,
            answer=self.transport.send_answer,
            is_mended=self.repairs.takes,
            silence=partial(self._life.fall_silent, "the log differs from a majority's"),
            leaving=self._life.mark_at_once,
            diverged=self._life.leave_service,
            failed=self._life.fail,
        )
        note = SuspicionNote(self._ports.files, self._config.data_directory)
        return Comparison(self.log, around, Suspecting(note, self._ports.hand))

    def _make_base(self) -> Base:
        recovered = self._recovered
        return Base(
            SnapshotFiles(
                self._config.data_directory, self._ports.files, self.log.options.reserve_bytes
            ),
            self.log,
            recovered.directory.disk.disk_id,
            self.machine.options,
            self._ports.known_level,
        )

    async def machine_at_base(self, queues: QueueFiles) -> StateMachine:
        return await self._ports.hand.run(partial(self.base.machine, queues))

    def _make_appender(self, probe: CommitProbe) -> Appender:
        config, ports = self._config, self._ports
        return Appender(
            probe,
            self.machine,
            self._read_at,
            self.is_full,
            ports.store_host,
            config.broker.max_message_bytes,
            config.store.segment_size_bytes,
        )

    def _read_at(self, at: int, size: int) -> bytes:
        """For the leader's answers. Rot is got back, or the replica ends; it is raised as well."""
        try:
            return self.log.read_at(at, size)
        except CorruptionFound as error:
            if not self.repairs.takes(error):
                self._life.fail(error)
            raise

    def _make_old_sessions(self) -> OldSessions:
        return OldSessions(
            lambda: self.driver.core.configuration.epoch,
            lambda: self.machine.groups.sessions(),
            Commands(self.appender).end_sessions,
        )

    def _members(self) -> dict[NodeId, str]:
        """The members, and where they are found: where this node was told so, or else where the
        group's log says."""
        configuration = self.driver.core.configuration
        told = {NodeId(name): address for name, address in self._config.peers.items()}
        if not self.driver.core.knows_own_disk and not configuration.addresses:
            return told  # it joins, and its log doesn't say more yet
        places = {**dict(configuration.addresses), **told}
        return {node: places.get(node, "") for node in sorted(configuration.members())}

    def _make_driver(self, probe: CommitProbe) -> RaftDriver[EntryHeader]:
        ports, recovered, node = self._ports, self._recovered, NodeId(self._config.node_id)
        applied = Index(self.machine.applied_index)
        core = Raft(
            node,
            recovered.base,
            view=SteadyView(self.log, self.repairs.takes),
            rng=ports.random,
            options=raft_options(self._config),
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
            fail=self._life.fail,
            is_mended=self.repairs.takes,
            contradicted=self.comparison.suspect,
            offered=lambda offer: self.installer.offered(offer),
            takes_offers=self._makes_sense_of_offers,
            can_lead=self._knows_the_level,
            makes_room=makes_room,
            own_disk=self.disk_usage.figure,
        )
        return RaftDriver(
            core, node, driver_ports, applied, apply_slice_bytes=ports.rhythm.apply_slice_bytes
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

    def _make_installer(self) -> Installer:
        around = InstallerAround(
            ask=self.transport.send_answer,
            give=self.transport.send_request,
            needs=lambda offer: self.driver.core.needs(offer),
            peers=self._givers,
            is_compared=lambda: self.comparison.is_under_way,
            fall_silent=self.driver.stop,
            reopen=self._life.reopen,
            failed=self._life.fail,
        )
        install = Install(self._ports.files, self._config.data_directory)
        return Installer(self.base, self.snapshots, install, self._ports.hand, around)

    def _followed(self) -> list[NodeId]:
        return [peer for peer in (self.driver.core.leader, self.installer.offering) if peer]

    def _givers(self) -> list[NodeId]:
        links = self.transport.links()
        return [
            peer for peer, link in links.items() if link.connected and link.level >= LOG_START_LEVEL
        ]

    def _makes_sense_of_offers(self, peer: NodeId) -> bool:
        link = self.transport.links().get(peer)
        return link is not None and link.level >= LOG_START_LEVEL

    def _knows_the_level(self, peer: NodeId) -> bool:
        level = self.transport.level_of(peer)
        return not level or level >= self.machine.level.current

    def is_full(self) -> bool:
        return self.log.statistics().is_full or self.driver.statistics().is_apply_paused

    def proven_index(self) -> int:
        """The last entry that is committed, and on this node's disk whatever happens."""
        core = self.driver.core
        return min(core.commit_index, core.durable_index, self.log.synced_index)

    def _holds(self, index: int, term: int) -> bool:
        """Whether the entry of that term is on this node's disk."""
        core = self.driver.core
        durable = min(core.durable_index, self.log.synced_index)
        is_held = self.log.first_index <= index <= durable  # what it asks for may have been retired
        return is_held and core.term_at(Index(index)) == term

    def _noted_start(self) -> LogStart:
        """Where the start note says that the log begins; what it should say, where it can't be
        read: that is rot or want of something, and no other log."""
        note = StartNote(self._ports.files, self._config.data_directory)
        try:
            note.mend(self.log.start)
            return note.read()
        except (StoreError, OSError):
            return self.log.start

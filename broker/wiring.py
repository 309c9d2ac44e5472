"""What a member does beside replicating, made and joined: leading groups, keeping house, services.

The rules of the wiring stand here and in `broker.replication` only: which parts there are, and who
tells whom. Nothing runs yet; the replica (`broker.replica`) starts, keeps and stops them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from broker.announcing import Announcer
from broker.archiving import Archiver
from broker.assembly import Parts, Surrounds, services_of
from broker.config import NodeConfig
from broker.filling import Filling, Missing
from broker.front import LogFront
from broker.greeting import own_disk
from broker.housekeeping import Housekeeping, Notes
from broker.leader.commands import Commands
from broker.leader.groups.keeper import GroupKeeper
from broker.leader.levels import LevelKeeper
from broker.leader.membership import Membership
from broker.leader.retention import Retention, Rules
from broker.leader.retries.own_topics import OwnTopics
from broker.leader.retries.pump import MOST_BYTES, DelayPump
from broker.leader.retries.waiting import Waiting
from broker.leader.topic_retention import TopicRetention
from broker.log_start import LogStartKeeper
from broker.log_start_parts import Front
from broker.noting import Noting
from broker.ports import ReplicaPorts
from broker.pulling import head_of
from broker.recovery import Recovered
from broker.replication import Life, Replication
from broker.scrubbing import Scrubber
from broker.services.messages import SendTimings
from broker.services.services import Services
from broker.services.soundness import Soundness
from broker.state.replay import QueueStarts
from broker.ticker import Ticker
from broker.upkeep import KeptBase, KeptQueues, Upkeep
from dledger.core.types import Index, NodeId
from store.errors import CorruptionFound, OutOfRange
from store.keepsakes import Keepsake, constant_file
from store.log_start import StartNote
from store.scrub_note import ScrubNote

HOUR_S = 3_600
HOUR_MS = HOUR_S * 1000


class Wiring:
    """All parts of a member, connected.

    Args:
        replication: those that are there already.
        life: the replica that they belong to.
    """

    def __init__(
        self,
        config: NodeConfig,
        ports: ReplicaPorts,
        recovered: Recovered,
        replication: Replication,
        life: Life,
    ) -> None:
        self._config = config
        self._ports = ports
        self._recovered = recovered
        self._life = life
        self._member = replication
        self._queue_starts = recovered.queue_starts
        self.archiver = self._make_archiver()
        replication.repairs.heed(self.archiver.forget)
        self.log_start = self._make_log_start()
        replication.installer.when_lost(self.log_start.on_base_rotted)
        self.retention = self._make_retention()
        self.housekeeping = self._make_housekeeping()
        self.scrubber = self._make_scrubber()
        self.membership = Membership(
            replication.driver,
            NodeId(config.node_id),
            lambda: replication.machine.level.current,
            replication.transport.links,
            self._digest_at,
        )
        self.ticker = Ticker(
            config.raft.tick_ms / 1000, life.tick, ports.latencies.loop_lateness_seconds
        )
        self.groups = self._make_groups()
        self.own_topics = OwnTopics(replication.machine, Commands(replication.appender))
        self.delays = self._make_delays()
        self.parts = self._gather_parts()
        self.services = self._make_services()
        self.levels = self._make_levels()
        self._join()

    def _digest_at(self, index: Index) -> int | None:
        """The running digest of the log there; None where it holds no such entry.

        Raises:
            BrokerError: NOT_READY, it has rotted there.
        """
        member = self._member
        soundness = Soundness(self._life.fail, member.repairs.takes)
        try:
            return soundness.read(lambda: member.log.digest_at(index))
        except OutOfRange:
            return None

    def _gather_parts(self) -> Parts:
        member = self._member
        return Parts(
            member.log,
            member.machine,
            member.driver,
            member.leadership,
            member.appender,
            member.reader,
            member.held,
            self.membership,
            member.mender,
            member.snapshots,
            member.repairs,
            self.scrubber,
            member.comparison,
            member.installer,
            self.log_start,
            self.archiver,
            self.groups,
            self.own_topics,
            self.delays,
        )

    def _make_housekeeping(self) -> Housekeeping:
        member = self._member
        noting = Noting(
            NodeId(self._config.node_id),
            member.log,
            member.machine,
            member.driver,
            member.transport,
            member.mender,
            member.memory,
            self._recovered.directory,
        )
        return Housekeeping(
            Notes(noting.settled, noting.note, noting.remember),
            member.queues,
            self._ports.hand,
            member.driver.on_storage_failed,
            self._look_after_the_disk,
        )

    def _make_log_start(self) -> LogStartKeeper:
        member, ports = self._member, self._ports
        front = Front(
            member.log,
            member.queues,
            member.machine,
            member.snapshots,
            member.base,
            StartNote(ports.files, self._config.data_directory),
            ports.files,
            self.archiver,
            member.driver.begin_at,
            self._on_queue_starts,
            self._is_front_held,
            self._is_front_disputed,
            lambda: member.mender.waits_for_space,
            lambda: min(member.driver.core.durable_index, member.log.synced_index),
            lambda: self.housekeeping.is_checkpoint_held,
            member.repairs,
            member.installer.fetched,
            ports.turns.share,
        )
        commands = Commands(member.appender)
        look_s = ports.rhythm.log_start_s
        keeper = LogStartKeeper(front, ports.hand, commands, self._life.fail, look_s)
        filling = Filling(
            lambda: member.driver.core.statistics().peers,
            lambda: member.log.first_index,
            self._missing_behind,
            member.is_full,
            asyncio.get_running_loop().time,
        )
        takes, index_at = member.repairs.takes, member.log.index_at
        waiting = Waiting(member.machine, member.reader, index_at, takes)
        keeper.holders += [filling, waiting]
        return keeper

    def _missing_behind(self, index: int) -> Missing:
        member = self._member
        entries, log = member.driver.core.commit_index - index, member.log
        segments = log.segments_from(index + 1)
        return Missing(entries, segments, segments * log.options.segment_size_bytes)

    def _make_archiver(self) -> Archiver:
        wanted, ports = self._config.retention, self._ports

        def is_full() -> bool:
            figure, percent = self._member.disk_usage.figure(), wanted.disk_percent
            return bool(percent) and figure is not None and figure.is_used_to(percent)

        return Archiver(
            wanted.archive,
            wanted.archive_hold_hours * HOUR_S,
            ports.run_command,
            is_full,
            ports.machinery.clock,
        )

    def _is_front_held(self) -> bool:
        """Whether what is before the log's start may still be needed here: by a repair, as what
        shows where two logs part, or by who is being given the state that it begins with. Not by
        one that waits for the space that it takes up."""
        member, mender = self._member, self._member.mender
        is_mended = mender.is_at_work and not mender.waits_for_space
        members = member.driver.core.configuration.members()
        is_given = not member.is_full() and member.installer.giving.is_awaited(members)
        return member.repairs.is_at_work or is_mended or is_given or self._is_front_disputed()

    def _is_front_disputed(self) -> bool:
        told = self._member.comparison.statistics()
        return self._life.wants_reopening or told.is_silent or bool(told.suspected)

    def _make_retention(self) -> Retention:
        member, ports, wanted = self._member, self._ports, self._config.retention
        rules = Rules(wanted.age_hours * HOUR_MS, wanted.bytes, wanted.disk_percent)
        front = LogFront(
            NodeId(self._config.node_id),
            member.log,
            member.machine,
            wanted.disk_percent,
            member.driver.voters_disks,
            self.log_start.takes,
            member.machine_at_base,
        )
        return Retention(
            front,
            rules,
            self._make_topic_retention(),
            self.log_start.propose,
            self.log_start.first_needed,
            lambda: member.leadership.serving,
            self._life.fail,
            ports.rhythm.retention_s,
            lambda: member.driver.statistics().clock.behind_ms,
        )

    def _make_topic_retention(self) -> TopicRetention:
        member = self._member
        commands, rhythm = Commands(member.appender), self._ports.rhythm
        return TopicRetention(
            *(member.machine, member.reader, commands, member.repairs.takes),
            rhythm.topic_slack_ms,
            rhythm.retention_s,
        )

    def _make_scrubber(self) -> Scrubber:
        member, config, ports = self._member, self._config, self._ports
        return Scrubber(
            member.log,
            member.proven_index,
            ports.hand,
            member.repairs,
            self._life.fail,
            ports.now_ms,
            replace(ports.rhythm.scrub, share=config.store.scrub_percent / 100),
            self._make_upkeep().round,
            ScrubNote(ports.files, config.data_directory),
        )

    def _make_upkeep(self) -> Upkeep:
        files, path = self._ports.files, self._config.data_directory
        member, recovered = self._member, self._recovered
        queues = KeptQueues(
            files,
            path / "consumequeue",
            member.queues.units_per_file,
            member.machine,
            lambda: self._queue_starts,
            member.mender,
        )
        keepsakes = [
            Keepsake(str(path / "raft" / "hard_state"), recovered.hard_state_store.mend),
            Keepsake(str(path / "identity.json"), recovered.directory.mend),
            Keepsake(str(path / "checkpoint"), member.log.checkpoint.mend),
            Keepsake(str(path / "log_start"), self._mend_note),
            Keepsake(str(path / "raft" / "promises.json"), member.memory.mend),
        ]
        constant = (path / "formation.json", path / "raft" / "boot")
        keepsakes += filter(None, (constant_file(files, each) for each in constant))
        return Upkeep(
            self._ports.hand,
            keepsakes,
            member.log.seals,
            member.snapshots,
            member.base.files,
            KeptBase(
                lambda: head_of(recovered.directory.disk.disk_id, member.log.start),
                self.log_start.on_base_rotted,
            ),
            queues,
        )

    def _mend_note(self) -> bool:
        note = StartNote(self._ports.files, self._config.data_directory)
        return note.mend(self._member.log.start)

    def _on_queue_starts(self, starts: QueueStarts) -> None:
        self._queue_starts = starts

    def _make_services(self) -> Services:
        config, ports = self._config, self._ports
        latencies = ports.latencies
        timings = SendTimings(latencies.append_seconds.observe, latencies.send_seconds.observe)
        around = Surrounds(
            self._member.transport.links,
            self._life.fail,
            ports.call_turns or ports.turns,
            ports.turns,
            timings,
            lambda: own_disk(self._recovered),
            ports.premises,
            ports.rhythm.part_weight,
            ports.rhythm.answer_bytes,
        )
        return services_of(config, self.parts, around)

    def _make_groups(self) -> GroupKeeper:
        member, config = self._member, self._config
        pace = replace(
            self._ports.rhythm.groups,
            tick_ms=config.raft.tick_ms,
            unused_ms=config.broker.group_unused_hours * HOUR_MS,
        )
        return GroupKeeper(
            member.machine,
            Commands(member.appender),
            member.reader,
            self._led_term,
            member.repairs.takes,
            config.broker_group,
            self._ports.turns,
            pace,
            lambda group: self.services.deliveries.is_waited_for(group),
            lambda: member.appender.room.times_short,
        )

    def _make_delays(self) -> DelayPump:
        member = self._member
        return DelayPump(
            member.machine,
            member.reader,
            member.appender.units,
            self.own_topics,
            self._led_term,
            lambda: member.driver.log_time_ms,
            member.repairs.takes,
            self._life.fail,
            self._ports.rhythm.delays_ms,
            self._config.raft.tick_ms,
            min(MOST_BYTES, self._config.store.segment_size_bytes // 4),
        )

    def _led_term(self) -> int:
        """The term in which this node leads and serves; 0: it doesn't."""
        member = self._member
        return member.driver.core.term if member.leadership.serving else 0

    def _make_levels(self) -> LevelKeeper:
        member = self._member
        ports, node = self._ports, NodeId(self._config.node_id)
        return LevelKeeper(
            ports.known_level,
            Commands(member.appender),
            current=lambda: member.machine.level.current,
            serves=lambda: member.leadership.serving,
            others=lambda: member.driver.core.configuration.members() - {node},
            links=member.transport.links,
        )

    async def _look_after_the_disk(self) -> None:
        """How full it is, and the state on it."""
        await self._ports.hand.run(self._member.disk_usage.measure)
        await self._keep_snapshots()

    async def _keep_snapshots(self) -> None:
        """A snapshot needs the log's word for the entry that it is of: it waits for a repair."""
        member = self._member
        try:
            await member.snapshots.step()
            await member.sealer.step()
        except CorruptionFound as error:
            if not member.repairs.takes(error):
                raise

    def _join(self) -> None:
        """Who tells whom; made last, as each of them has to be there."""
        member = self._member
        member.probe.attach(member.driver, member.leadership)
        member.leadership.attach(member.driver, self.services.cluster.notify)
        member.machine.listen(Announcer(member.appender, member.held, self.groups))
        from_worker = self._ports.call_from_worker
        member.transport.recall(member.memory.read())
        member.transport.speak_for(lambda: member.driver.core.holding)
        member.transport.when_given_up(self._life.on_given_up)
        member.log.on_durable = partial(from_worker, member.driver.on_durable)
        member.log.on_failed = partial(from_worker, member.driver.on_storage_failed)

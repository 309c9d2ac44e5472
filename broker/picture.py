"""A node's own picture of itself: status for people and tools, facts for metrics.

Both are made of the parts' frozen statistics, taken at one moment; nothing is kept here and no
part is asked a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from broker.archiving import ArchiveStatistics
from broker.comparing import ComparisonStatistics
from broker.config import NodeConfig
from broker.fullness import fills_of
from broker.leader.append import AppenderStatistics
from broker.leader.epochs import EpochName
from broker.leader.groups.keeper import KeeperStatistics
from broker.leader.leadership import LeadershipStatistics
from broker.leader.retries.pump import DelayStatistics
from broker.mending import MendStatistics
from broker.metrics import NodeFacts
from broker.premises import Premises
from broker.reading.committed import LogEnds
from broker.reading.held import HoldStatistics
from broker.repairs import RepairStatistics
from broker.services.cluster import Fill, MemberHealth, NodeHealth, NodeStatus, PeerStatus
from broker.snapshots import SnapshotStatistics
from broker.state.machine import MachineStatistics
from dledger.core.types import Configuration, CoreStatistics, DiskId, NodeId, Role
from dledger.driver import DriverStatistics
from dledger.peers import PeerLink
from store.commitlog import LogStatistics
from store.scrubbing import ScrubStatistics


@dataclass(frozen=True, slots=True)
class Facts:
    """What the parts of a replica said of themselves at one moment. `request_bytes` and
    `answer_bytes` are of Sends under way and of pulls not read yet."""

    core: CoreStatistics
    driver: DriverStatistics
    log: LogStatistics
    end_offset: int
    machine: MachineStatistics
    leadership: LeadershipStatistics
    appender: AppenderStatistics
    held: HoldStatistics
    mending: MendStatistics
    snapshots: SnapshotStatistics
    repairs: RepairStatistics
    scrub: ScrubStatistics
    comparison: ComparisonStatistics
    archive: ArchiveStatistics
    groups: KeeperStatistics
    delays: DelayStatistics
    base_refused: str  # why this program can't begin with what it is offered; empty: it can
    front_held: str  # why what may go is still here; empty: nothing holds it
    links: Mapping[NodeId, PeerLink]
    addresses: Mapping[NodeId, str]  # of the members
    request_bytes: int
    answer_bytes: int
    configuration: Configuration


def program_version() -> str:
    """The installed version; "unknown" from a bare checkout."""
    try:
        return version("dledger")
    except PackageNotFoundError:
        return "unknown"


def node_status(config: NodeConfig, facts: Facts, ends: LogEnds, health: NodeHealth) -> NodeStatus:
    """A node as its operators see it."""
    core = facts.core
    return NodeStatus(
        broker_group=config.broker_group,
        node_id=config.node_id,
        role=core.role.value,
        term=core.term,
        leader=facts.leadership.leader,
        first_index=ends.first_index,
        last_index=core.last_index,
        durable_index=core.durable_index,
        commit_index=core.commit_index,
        applied_index=facts.driver.applied_index,
        end_offset=ends.end_offset,
        committed_offset=ends.committed_offset,
        committed_digest=ends.committed_digest,
        peers=tuple(_peer_status(facts, peer) for peer in sorted(facts.links)),
        version=program_version(),
        segment_size_bytes=config.store.segment_size_bytes,
        data_directory=str(config.data_directory),
        is_serving=facts.leadership.is_serving,
        apply_stopped=facts.driver.apply_stopped or facts.base_refused,
        level=facts.machine.level,
        known_level=facts.machine.known_level,
        health=health,
        log_damages=facts.repairs.damages,
        scrub_ended_ms=facts.scrub.last_pass_ended_ms,
        preferred=facts.configuration.preferred or "",
        epoch=EpochName.of(facts.configuration.epoch.recoveries),
        last_term=ends.last_term,
        newer_epoch=facts.leadership.newer_epoch,
    )


def node_health(config: NodeConfig, facts: Facts, disk: DiskId, premises: Premises) -> NodeHealth:
    """What the node can say of its own health; see `dledger group doctor`."""
    configuration, clocks = facts.configuration, facts.driver.clock.off_ms
    is_leader, places = facts.core.role is Role.LEADER, dict(configuration.addresses)
    return NodeHealth(
        disk_id=disk,
        members=tuple(
            MemberHealth(
                member,
                member in configuration.voters,
                configuration.disk_of(member),
                clocks.get(member) if is_leader else None,
                is_observer=member in configuration.observers,
                is_leaving_voter=member in configuration.voters_outgoing,
                address=places.get(member, ""),
            )
            for member in sorted(configuration.members())
        ),
        is_log_full=facts.log.is_full,
        is_apply_paused=facts.driver.is_apply_paused,
        is_short_of_space=facts.driver.is_short_of_space,
        free_bytes=premises.free_bytes,
        reserve_bytes=config.store.reserve_bytes,
        queues_wrong=facts.mending.queues_wrong,
        contradictions=facts.driver.contradictions,
        last_fsync_ms=facts.log.last_flush_s * 1000,
        certificate_expires_ms=premises.certificate_expires_ms or 0,
        suspected_index=facts.comparison.suspected,
        differing=tuple(sorted(facts.comparison.differing)),
        front_held=facts.front_held,
        log_behind_ms=facts.driver.clock.behind_ms,
        fills=_fills(facts),
        certificate_begins_ms=premises.certificate_begins_ms or 0,
        next_certificate_ms=premises.next_certificate_ms or 0,
        now_ms=premises.now_ms or 0,
    )


def _fills(facts: Facts) -> tuple[Fill, ...]:
    return fills_of(facts.machine, facts.snapshots.size_bytes)


def _peer_status(facts: Facts, peer: NodeId) -> PeerStatus:
    address, link = facts.addresses.get(peer, ""), facts.links[peer]
    progress = facts.core.peers.get(peer)
    if progress is None:
        return PeerStatus(peer, address, link.connected, is_older_copy=link.is_older_copy)
    return PeerStatus(
        peer,
        address,
        link.connected,
        is_older_copy=link.is_older_copy,
        state=progress.state,
        match_index=progress.match_index,
        is_recently_active=progress.recently_active,
    )


def node_facts(facts: Facts) -> NodeFacts:
    """What the metrics endpoint shows."""
    return NodeFacts(
        role=facts.core.role, gauges=_gauges(facts), counters=_counters(facts), peers=_peers(facts)
    )


def _gauges(facts: Facts) -> dict[str, tuple[str, float]]:
    core, driver, log = facts.core, facts.driver, facts.log
    held, appender, machine = facts.held, facts.appender, facts.machine
    return {
        "term": ("The current term.", core.term),
        "serving": ("1 while this node answers sends and pulls.", facts.leadership.is_serving),
        "last_index": ("The last entry in the log.", core.last_index),
        "durable_index": ("The last entry on this disk.", core.durable_index),
        "commit_index": ("The last committed entry known here.", core.commit_index),
        "applied_index": ("The last applied entry.", driver.applied_index),
        "uncommitted_bytes": ("Bytes proposed and not yet committed.", core.uncommitted_bytes),
        "sends_pending": ("Batches that wait for their commit.", appender.sends_pending),
        "commands_pending": ("Commands that wait for their commit.", appender.commands_pending),
        "request_bytes": ("Bytes of Sends under way.", facts.request_bytes),
        "answer_bytes": ("Bytes of pulls not read yet.", facts.answer_bytes),
        "pulls_held": ("Pulls that wait for messages.", held.held),
        "reads_waiting": ("Linearizable reads under way.", driver.reads_waiting),
        "persists_in_flight": ("Durable work handed to the flusher.", driver.uncompleted_persists),
        "log_end_offset_bytes": ("Where the log ends.", facts.end_offset),
        "log_pending_bytes": ("Bytes appended and not yet written.", log.pending_bytes),
        "log_segments": ("Segment files that hold entries.", log.segments),
        "log_segments_ready": ("Segment files prepared ahead.", log.preallocated_segments),
        "log_full": ("1 while the disk has no room for another segment.", log.is_full),
        "log_time_off_seconds": (
            "Leader: how far the log's time is from what a majority's clocks show; behind is "
            "positive.",
            driver.clock.behind_ms / 1000,
        ),
        "apply_paused": (
            "1 while the disk has no room for what is derived from the log.",
            driver.is_apply_paused,
        ),
        "consume_queues_wrong": (
            "ConsumeQueues that were found wrong and aren't mended yet.",
            facts.mending.queues_wrong,
        ),
        "snapshot_index": (
            "The entry of the newest snapshot of state; 0: there is none.",
            facts.snapshots.index,
        ),
        "snapshot_bytes": ("The size of the last one written.", facts.snapshots.size_bytes),
        "last_snapshot_seconds": ("How long it took.", facts.snapshots.last_seconds),
        "log_front_held": (
            "1 while something holds what the group let go of the log's front.",
            bool(facts.front_held),
        ),
        **_rot_gauges(facts),
        **_standing_gauges(facts),
        "log_cached_bytes": ("Recent frames kept in memory.", log.cached_bytes),
        "last_fsync_seconds": ("How long the last group commit took.", log.last_flush_s),
        "topics": ("Topics.", machine.topics),
        "queues": ("Queues over all topics.", machine.queues),
        "producers": ("Producers registered.", machine.producers),
        "producer_sequences": ("Producer-queue pairs remembered.", machine.sequences),
        "consumer_groups": ("Consumer groups with committed offsets.", machine.groups),
        "consumer_group_topics": ("Pairs of a group and a topic of it.", machine.progress),
        "consumer_group_offsets": ("Queues in which groups have an offset.", machine.offsets),
        "fullest_bound_ratio": (
            "How much is in use of what is nearest to its bound; at 1 no more of it is taken.",
            max(each.used / each.limit for each in _fills(facts)),
        ),
        **_group_gauges(facts),
    }


def _standing_gauges(facts: Facts) -> dict[str, tuple[str, float]]:
    """Whether this log and this program are the group's."""
    driver, machine = facts.driver, facts.machine
    return {
        "out_of_service": (
            "1 if this node's log isn't the group's: it takes no part.",
            facts.comparison.is_silent,
        ),
        # Of a node that has left service, which has this from its mark.
        "differs_at_entry": ("Out of service: the first entry that differs.", 0),
        "suspected_index": (
            "An entry that differs on a peer, and it isn't known yet whose is wrong; 0: none.",
            facts.comparison.suspected,
        ),
        "members_differing": (
            "Members whose logs differ from what a majority holds, this node among it.",
            len(facts.comparison.differing),
        ),
        "apply_stopped": (
            "1 if this program is too old for what is committed: nothing is applied any more.",
            bool(driver.apply_stopped or facts.base_refused),
        ),
        "group_epoch": (
            "How many recoveries by force led to the group as this node's log has it.",
            facts.leadership.epoch,
        ),
        "newer_epoch_heard_of": (
            "1 if a client was served in a newer epoch of the group: nobody is served here.",
            bool(facts.leadership.newer_epoch),
        ),
        "level": ("The level of formats and commands in use.", machine.level),
        "known_level": ("The highest level that this program understands.", machine.known_level),
    }


def _counters(facts: Facts) -> dict[str, tuple[str, float]]:
    driver, log, held = facts.driver, facts.log, facts.held
    appender, machine = facts.appender, facts.machine
    return {
        "elections": ("Times this node became a candidate.", facts.leadership.elections),
        "leader_changes": ("Changes of the leader known here.", facts.leadership.leader_changes),
        "messages_appended": ("Messages taken as leader.", appender.messages_appended),
        "batches_appended": ("Batches taken as leader.", appender.batches_appended),
        "bytes_appended": ("Record bytes taken as leader.", appender.bytes_appended),
        "batches_duplicate": ("Batches that were known already.", appender.duplicates),
        "batches_refused": ("Batches refused.", appender.refused),
        "messages_applied": ("Messages applied.", machine.messages_applied),
        "entries_void": (
            "Committed entries without effect that no leader may write.",
            machine.entries_void,
        ),
        "pulls_woken": ("Held pulls woken by an arrival.", held.woken),
        "pulls_refused": ("Pulls refused because too many are held.", held.refused),
        "peer_messages_received": ("Messages of peers.", driver.messages_in),
        "peer_messages_sent": ("Messages to peers.", driver.messages_out),
        "peer_messages_invalid": (
            "Messages that no working peer sends: dropped, their streams closed.",
            driver.messages_refused,
        ),
        "peer_contradictions": (
            "Messages of peers that contradict what is settled here: replicas differ.",
            driver.contradictions,
        ),
        "comparisons": (
            "Times this node asked the others whose log is wrong.",
            facts.comparison.inquiries,
        ),
        "digests_told": ("Digests told to others that asked.", facts.comparison.digests_told),
        "appends_refused_for_space": (
            "Appends dropped: disk full.",
            driver.appends_refused_for_space,
        ),
        "consume_queues_found_wrong": (
            "ConsumeQueues found to be not what the log says.",
            facts.mending.queues_found,
        ),
        "consume_queue_units_mended": (
            "Units of ConsumeQueues overwritten with what the log says.",
            facts.mending.units_mended,
        ),
        "snapshots_written": ("Snapshots of state written.", facts.snapshots.written),
        "snapshots_failed": (
            "Snapshots of state that couldn't be written.",
            facts.snapshots.failed,
        ),
        **_archive_counters(facts.archive),
        **_group_counters(facts.groups),
        **_rot_counters(facts),
        "fsyncs": ("Group commits made durable.", log.flush_count),
        "fsync_seconds": ("Seconds spent in them.", log.total_flush_s),
        "log_written_bytes": ("Bytes written to the log.", log.written_bytes),
    }


def _rot_gauges(facts: Facts) -> dict[str, tuple[str, float]]:
    scrub = facts.scrub
    return {
        "log_damages": (
            "Places in the log that have rotted and aren't repaired yet: while there is one this "
            "node neither votes nor acknowledges.",
            facts.repairs.damages,
        ),
        "scrub_pass_bytes": (
            "Bytes that the scrub's present pass has read.",
            scrub.pass_bytes,
        ),
        "scrub_pass_total_bytes": ("Bytes that it is to read.", scrub.pass_total_bytes),
        "scrub_last_pass_seconds": ("How long the last full pass took.", scrub.last_pass_s),
        "scrub_last_pass_timestamp_seconds": (
            "When it ended, seconds since the epoch; 0: there was none since the start.",
            scrub.last_pass_ended_ms / 1000,
        ),
    }


def _archive_counters(archive: ArchiveStatistics) -> dict[str, tuple[str, float]]:
    return {
        "segments_archived": (
            "Segments that the archive command was given before they went.",
            archive.archived,
        ),
        "archive_failures": ("Times that it failed.", archive.failed),
        "segments_unarchived": (
            "Segments that went although it failed: they had been held for long enough.",
            archive.unarchived,
        ),
    }


def _group_gauges(facts: Facts) -> dict[str, tuple[str, float]]:
    machine = facts.machine
    return {
        "group_members": ("Members of consumer groups: sessions.", machine.members),
        "single_messages_unfinished": (
            "Messages handed out one by one and not finished, of all groups.",
            machine.unfinished,
        ),
        "single_message_rows": (
            "Rows that these take: what was handed out together and is still alike is one.",
            machine.handouts,
        ),
        "resent_ranges": (
            "Ranges of dead letters that were sent again, of all groups.",
            machine.resent_ranges,
        ),
        "group_leases": ("Queues that a member holds.", machine.leases),
        "group_streams": ("Streams of members at this leader.", facts.groups.streams),
        "group_members_attached": ("Members on them.", facts.groups.attached),
        "delay_levels_held": (
            "Leader: delay levels whose first message is due and couldn't be moved.",
            facts.delays.held,
        ),
    }


def _group_counters(groups: KeeperStatistics) -> dict[str, tuple[str, float]]:
    return {
        "leases_granted": ("Queues handed to members as leader.", groups.granted),
        "leases_taken": (
            "Queues taken from members that didn't give them back in time.",
            groups.taken,
        ),
        "sessions_silent": ("Sessions ended as leader because nothing came.", groups.ended),
        "groups_forgotten": ("Consumer groups forgotten: unused for long.", groups.forgotten),
        "assignments_failed": (
            "Times that a group's strategy was missing or failed: nothing was moved.",
            groups.failed,
        ),
        "assignments_dropped": (
            "Plans of which nothing was used: who was in the group had changed meanwhile.",
            groups.dropped,
        ),
    }


def _rot_counters(facts: Facts) -> dict[str, tuple[str, float]]:
    return {
        "scrub_bytes": ("Bytes of the log read again and found sound.", facts.scrub.checked_bytes),
        "scrub_passes": ("Full passes of the scrub.", facts.scrub.passes),
        "log_damages_found": ("Places in the log found rotten.", facts.repairs.found),
        "log_damages_repaired": ("Of those, sound again.", facts.repairs.repaired),
        "log_repaired_bytes": ("Bytes written back.", facts.repairs.bytes_repaired),
        "repair_answers_refused": (
            "Entries that a peer gave and that weren't the ones.",
            facts.repairs.answers_refused,
        ),
        "repair_answers_given": (
            "Requests of peers for entries that were answered with them.",
            facts.repairs.answers_given,
        ),
    }


def _peers(facts: Facts) -> dict[str, tuple[str, dict[str, float]]]:
    core, links, clock = facts.core, facts.links, facts.driver.clock
    return {
        "clock_off_seconds": (
            "Leader: how far a member's wall clock, its own too, is ahead of what a majority's "
            "clocks show.",
            {node: off_ms / 1000 for node, off_ms in clock.off_ms.items()},
        ),
        "peer_match_index": (
            "The last entry known to be durable at the peer.",
            {peer: float(progress.match_index) for peer, progress in core.peers.items()},
        ),
        "peer_connected": (
            "1 while the stream to the peer is up.",
            {peer: float(link.connected) for peer, link in links.items()},
        ),
        "peer_older_copy": (
            "1 while the peer is refused because its disk was put back as it once was.",
            {peer: float(link.is_older_copy) for peer, link in links.items()},
        ),
        "peer_reconnects": (
            "Streams to the peer that ended.",
            {peer: float(link.reconnects) for peer, link in links.items()},
        ),
    }

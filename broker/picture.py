"""A node's own picture of itself: status for people and tools, facts for metrics.

Both are read from the parts' frozen statistics; nothing is kept here.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from broker.metrics import NodeFacts
from dledger.wire.cluster_pb2 import NodeStatus

if TYPE_CHECKING:
    from broker.replica import Replica as Node


def program_version() -> str:
    """The installed version; "unknown" from a bare checkout."""
    try:
        return version("dledger")
    except PackageNotFoundError:
        return "unknown"


def node_status(node: Node) -> NodeStatus:
    """What GetStatus answers."""
    core = node.driver.core.statistics()
    commit = core.commit_index
    links = node.transport.links()
    status = NodeStatus(
        group=node.config.group,
        node_id=node.config.node_id,
        role=core.role.value,
        term=core.term,
        leader=node.leadership.leader(),
        last_index=core.last_index,
        durable_index=core.durable_index,
        commit_index=commit,
        applied_index=node.driver.applied_index,
        end_offset=node.log.end_offset,
        committed_offset=node.end_of_entry(commit),
        committed_digest=node.log.digest_at(commit) if commit else 0,
        version=program_version(),
        segment_size_bytes=node.config.store.segment_size_bytes,
        data_directory=str(node.config.data_directory),
        serving=node.leadership.serving,
        first_index=node.log.first_index,
    )
    for peer, link in sorted(links.items()):
        progress = core.peers.get(peer)
        status.peers.add(
            node_id=peer,
            address=node.config.peers[peer],
            connected=link.connected,
            state=progress.state if progress else "",
            match_index=progress.match_index if progress else 0,
            recently_active=progress.recently_active if progress else False,
        )
    return status


def node_facts(node: Node) -> NodeFacts:
    """What the metrics endpoint shows; call it on the event loop's thread."""
    core = node.driver.core.statistics()
    return NodeFacts(
        role=core.role, gauges=_gauges(node), counters=_counters(node), peers=_peers(node)
    )


def _gauges(node: Node) -> dict[str, tuple[str, float]]:
    core = node.driver.core.statistics()
    driver = node.driver.statistics()
    log = node.log.statistics()
    held = node.held.statistics()
    appender = node.appender.statistics()
    machine = node.machine.statistics()
    return {
        "term": ("The current term.", core.term),
        "serving": ("1 while this node answers sends and pulls.", node.leadership.serving),
        "last_index": ("The last entry in the log.", core.last_index),
        "durable_index": ("The last entry on this disk.", core.durable_index),
        "commit_index": ("The last committed entry known here.", core.commit_index),
        "applied_index": ("The last applied entry.", driver.applied_index),
        "uncommitted_bytes": ("Bytes proposed and not yet committed.", core.uncommitted_bytes),
        "sends_pending": ("Batches that wait for their commit.", appender.sends_pending),
        "commands_pending": ("Commands that wait for their commit.", appender.commands_pending),
        "request_bytes": ("Bytes of Sends under way.", node.broker_service.requests.used_bytes),
        "answer_bytes": ("Bytes of pulls not read yet.", node.broker_service.answers.used_bytes),
        "pulls_held": ("Pulls that wait for messages.", held.held),
        "reads_waiting": ("Linearizable reads under way.", driver.reads_waiting),
        "persists_in_flight": ("Durable work handed to the flusher.", driver.uncompleted_persists),
        "log_end_offset_bytes": ("Where the log ends.", node.log.end_offset),
        "log_pending_bytes": ("Bytes appended and not yet written.", log.pending_bytes),
        "log_segments": ("Segment files that hold entries.", log.segments),
        "log_segments_ready": ("Segment files prepared ahead.", log.preallocated_segments),
        "log_full": ("1 while the disk has no room for another segment.", log.is_full),
        "apply_paused": (
            "1 while the disk has no room for what is derived from the log.",
            driver.is_apply_paused,
        ),
        "log_cached_bytes": ("Recent frames kept in memory.", log.cached_bytes),
        "last_fsync_seconds": ("How long the last group commit took.", log.last_flush_s),
        "topics": ("Topics.", machine.topics),
        "queues": ("Queues over all topics.", machine.queues),
        "producer_sequences": ("Producer-queue pairs remembered.", machine.sequences),
        "consumer_groups": ("Groups with committed offsets.", machine.groups),
    }


def _counters(node: Node) -> dict[str, tuple[str, float]]:
    driver = node.driver.statistics()
    log = node.log.statistics()
    held = node.held.statistics()
    appender = node.appender.statistics()
    machine = node.machine.statistics()
    return {
        "elections": ("Times this node became a candidate.", node.leadership.elections),
        "leader_changes": ("Changes of the leader known here.", node.leadership.leader_changes),
        "messages_appended": ("Messages taken as leader.", appender.messages_appended),
        "batches_appended": ("Batches taken as leader.", appender.batches_appended),
        "bytes_appended": ("Record bytes taken as leader.", appender.bytes_appended),
        "batches_duplicate": ("Batches that were known already.", appender.duplicates),
        "batches_refused": ("Batches refused.", appender.refused),
        "messages_applied": ("Messages applied.", machine.messages_applied),
        "pulls_woken": ("Held pulls woken by an arrival.", held.woken),
        "pulls_refused": ("Pulls refused because too many are held.", held.refused),
        "peer_messages_received": ("Messages of peers.", driver.messages_in),
        "peer_messages_sent": ("Messages to peers.", driver.messages_out),
        "peer_messages_invalid": ("Appends with broken frames.", driver.invalid_frames),
        "appends_refused_for_space": (
            "Appends dropped: disk full.",
            driver.appends_refused_for_space,
        ),
        "fsyncs": ("Group commits made durable.", log.flush_count),
        "fsync_seconds": ("Seconds spent in them.", log.total_flush_s),
        "log_written_bytes": ("Bytes written to the log.", log.written_bytes),
    }


def _peers(node: Node) -> dict[str, tuple[str, dict[str, float]]]:
    core = node.driver.core.statistics()
    links = node.transport.links()
    return {
        "peer_match_index": (
            "The last entry known to be durable at the peer.",
            {peer: float(progress.match_index) for peer, progress in core.peers.items()},
        ),
        "peer_connected": (
            "1 while the stream to the peer is up.",
            {peer: float(link.connected) for peer, link in links.items()},
        ),
        "peer_reconnects": (
            "Streams to the peer that ended.",
            {peer: float(link.reconnects) for peer, link in links.items()},
        ),
    }

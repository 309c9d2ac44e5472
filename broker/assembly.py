"""How the services of one replica are connected to its parts, and how its parts are pictured.

The one place that knows both sides: services know the parts they are given, parts know no service.
Nothing is started here and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.archiving import Archiver
from broker.comparing import Comparison
from broker.config import NodeConfig
from broker.installing import Installer
from broker.leader.append import Appender
from broker.leader.batches import PART_WEIGHT
from broker.leader.budget import ANSWER_BYTES
from broker.leader.commands import Commands
from broker.leader.groups.keeper import GroupKeeper
from broker.leader.leadership import Leadership
from broker.leader.membership import Membership
from broker.leader.retries.own_topics import OwnTopics
from broker.leader.retries.pump import DelayPump
from broker.log_start import LogStartKeeper
from broker.mending import Mender
from broker.picture import Facts, node_health, node_status
from broker.premises import Premises, nothing_known
from broker.reading.committed import CommittedLog
from broker.reading.held import HeldPulls
from broker.reading.queues import QueueReader
from broker.repairs import Repairs
from broker.roster import members_of
from broker.scrubbing import Scrubber
from broker.services.audit import Audit, AuditedLog, AuditedPlace
from broker.services.cluster import Cluster, Members, NodeStatus
from broker.services.consumers import Consumers, Held
from broker.services.deliveries import Deliveries
from broker.services.gate import Gate
from broker.services.groups import Groups
from broker.services.messages import UNTIMED, HoldTimes, Lookups, Pulls, Sends, SendTimings
from broker.services.offsets import Offsets
from broker.services.producers import Producers
from broker.services.queue_pulls import QueuePulls
from broker.services.retries import Retries
from broker.services.services import Services
from broker.services.soundness import Soundness
from broker.services.styles import Styles
from broker.services.times import Times
from broker.services.topic_figures import TopicFigures
from broker.services.topics import Topics
from broker.snapshots import SnapshotKeeper
from broker.state.machine import StateMachine
from dledger.core.types import NO_DISK, DiskId, NodeId
from dledger.driver import RaftDriver
from dledger.peers import PeerLink
from dledger.ports import Turns
from dledger.reading.entry import EntryHeader
from store.commitlog import CommitLog


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one replica that its services and its picture are made of."""

    log: CommitLog
    machine: StateMachine
    driver: RaftDriver[EntryHeader]
    leadership: Leadership
    appender: Appender
    reader: QueueReader
    held: HeldPulls
    membership: Membership
    mender: Mender
    snapshots: SnapshotKeeper
    repairs: Repairs
    scrubber: Scrubber
    comparison: Comparison
    installer: Installer
    log_start: LogStartKeeper
    archiver: Archiver
    groups: GroupKeeper
    own_topics: OwnTopics
    delays: DelayPump


@dataclass(frozen=True, slots=True)
class Surrounds:
    """What a replica's services need of what is around it.

    Attributes:
        links: the connections to the peers, as of now.
        fail: stops the replica for good.
        turns: how long calls share the event loop.
        send_turns: and how long Sends do, of which one is proposed at a time.
        timings: who is told how long Sends take.
        disk: the one that the replica is on.
        premises: what there is to say of where it lives.
        part_weight: of a Send: what is proposed in one turn.
        answer_bytes: over all answers that clients have not read yet.
    """

    links: Callable[[], Mapping[NodeId, PeerLink]]
    fail: Callable[[BaseException], None]
    turns: Turns
    send_turns: Turns
    timings: SendTimings = UNTIMED
    disk: Callable[[], DiskId] = lambda: NO_DISK
    premises: Callable[[], Premises] = nothing_known
    part_weight: int = PART_WEIGHT
    answer_bytes: int = ANSWER_BYTES


def services_of(config: NodeConfig, parts: Parts, surrounds: Surrounds) -> Services:
    """The services of the replica that consists of `parts`."""
    gate = Gate(parts.leadership, parts.driver)
    commands = Commands(parts.appender)
    committed = committed_log(parts)
    limits, reader = config.broker, parts.reader
    hold = HoldTimes(default_ms=limits.long_poll_default_ms, max_ms=limits.long_poll_max_ms)
    sends = Sends(
        gate, parts.appender, surrounds.send_turns, surrounds.timings, surrounds.part_weight
    )
    soundness = Soundness(surrounds.fail, parts.repairs.takes)
    answers = surrounds.answer_bytes
    pulls = Pulls(gate, reader, parts.held, hold, surrounds.turns, soundness, answers)

    def status() -> NodeStatus:
        facts = facts_of(parts, sends, pulls, surrounds.links())
        health = node_health(config, facts, surrounds.disk(), surrounds.premises())
        return node_status(config, facts, soundness.read(committed.ends), health)

    def members() -> Members:
        return members_of(NodeId(config.node_id), parts.driver.core, surrounds.links())

    times = Times(reader, soundness, surrounds.turns)
    styles = Styles(parts.machine, reader, soundness, surrounds.turns, commands)
    topics = Topics(gate, reader, commands, parts.machine, styles)
    return Services(
        sends=sends,
        producers=Producers(gate, commands, parts.machine),
        pulls=pulls,
        queue_pulls=QueuePulls(gate, pulls, reader, parts.held, parts.machine, surrounds.turns),
        lookups=Lookups(gate, reader, committed, soundness, pulls.account),
        offsets=Offsets(gate, reader, commands, parts.machine, times),
        groups=Groups(
            *(gate, commands, parts.machine, parts.groups, surrounds.turns),
            styles,
        ),
        consumers=Consumers(
            gate,
            Held(parts.machine, parts.groups, reader, soundness),
            commands,
            surrounds.turns,
        ),
        deliveries=deliveries_of(config, parts, gate, pulls, surrounds.turns, soundness),
        retries=Retries(
            *(gate, reader, soundness, parts.appender.units, parts.own_topics, parts.machine),
            surrounds.turns,
        ),
        topics=topics,
        topic_figures=TopicFigures(gate, topics, reader, soundness, surrounds.turns),
        cluster=Cluster(
            config.broker_group,
            parts.leadership,
            parts.membership,
            gate,
            status,
            members,
            limits.max_held_pulls,
        ),
        audit=audit_of(config, committed),
    )


def deliveries_of(
    config: NodeConfig,
    parts: Parts,
    gate: Gate,
    pulls: Pulls,
    turns: Turns,
    soundness: Soundness,
) -> Deliveries:
    """What hands out single messages."""
    return Deliveries(
        gate,
        parts.appender.units,
        pulls,
        parts.reader,
        parts.held,
        parts.machine,
        lambda: parts.driver.log_time_ms,
        config.broker.max_held_pulls,
        parts.own_topics,
        config.store.segment_size_bytes,
        parts.groups.pace.unused_ms,
        turns,
        soundness,
        parts.appender.room.check,
        lambda group, topic: parts.appender.coming.is_placing(group, topic),
    )


def audit_of(config: NodeConfig, log: AuditedLog) -> Audit:
    """What tells auditors of that log, which lies in the node's directory."""
    folder = Path(config.data_directory) / "commitlog"
    size = config.store.segment_size_bytes
    place = AuditedPlace(config.broker_group, config.node_id, folder, size)
    return Audit(place, log, config.broker.audit_bytes_per_s)


def committed_log(parts: Parts) -> CommittedLog:
    """The replica's log, as far as it may be told to somebody."""
    return CommittedLog(
        parts.log,
        applied_index=lambda: parts.driver.applied_index,
        core=parts.driver.core.statistics,
        took_effect=parts.reader.took_effect,
    )


def facts_of(parts: Parts, sends: Sends, pulls: Pulls, links: Mapping[NodeId, PeerLink]) -> Facts:
    """What the parts say of themselves now; on the thread that owns them."""
    return Facts(
        core=parts.driver.core.statistics(),
        driver=parts.driver.statistics(),
        log=parts.log.statistics(),
        end_offset=parts.log.end_offset,
        machine=parts.machine.statistics(),
        leadership=parts.leadership.statistics(),
        appender=parts.appender.statistics(),
        held=parts.held.statistics(),
        mending=parts.mender.statistics(),
        snapshots=parts.snapshots.statistics(),
        configuration=parts.driver.core.configuration,
        repairs=parts.repairs.statistics(),
        scrub=parts.scrubber.statistics(),
        comparison=parts.comparison.statistics(),
        base_refused=parts.installer.apply_stopped,
        front_held=parts.log_start.held,
        archive=parts.archiver.statistics(),
        groups=parts.groups.statistics(),
        delays=parts.delays.statistics(),
        links=links,
        addresses=parts.leadership.members(),
        request_bytes=sends.budget.used_bytes,
        answer_bytes=pulls.budget.used_bytes,
    )

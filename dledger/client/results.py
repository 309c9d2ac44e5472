"""What the client answers with: plain values, cheap where there is one per message.

`Message` is the store's decoded record: properties, tags, keys and the message id are worked out
only when asked for. `SendResult` is a tuple for the same reason: a producer makes tens of
thousands a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from dledger.client.errors import BodyUnreadable, CodecMissing, RecordCorrupt, Subject
from dledger.outcome import Outcome
from dledger.records import errors as records
from dledger.records.message_id import message_id_of
from dledger.records.record import CompressedRecord, decode_records
from dledger.records.record import DecodedRecord as Message
from dledger.wire import cluster_pb2 as cpb

__all__ = [
    "LeaderInfo",
    "Message",
    "NewMessage",
    "NodeState",
    "PeerState",
    "Permission",
    "ProducerStatistics",
    "PullResult",
    "PushStatistics",
    "QueueInfo",
    "QueueOffsets",
    "QueueStats",
    "RevokedQueues",
    "SendResult",
    "TopicDescription",
    "TopicInfo",
    "TopicStats",
    "decode_messages",
    "node_state",
]


class SendResult(NamedTuple):
    """Where a message was stored, on a majority of disks. Offsets as the leader stamped them;
    `store_host` is 8 bytes, IPv4 and port, big-endian. Of a duplicate that was stored so long ago
    that its place is not remembered, offsets and time are -1 (`has_place`)."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_time_ms: int
    store_host: bytes
    duplicate: bool  # an earlier attempt of this client had stored it

    @property
    def has_place(self) -> bool:
        """Whether it is known where the message lies."""
        return self.queue_offset >= 0

    @property
    def message_id(self) -> str:
        """RocketMQ's offsetMsgId: 32 upper-case hex digits; empty without a place."""
        return message_id_of(self.store_host, self.physical_offset) if self.has_place else ""


def stored_before(topic: str, queue_id: int) -> SendResult:
    """The result of a message that was stored before, nobody remembers where."""
    return SendResult(topic, queue_id, -1, -1, -1, b"", duplicate=True)


class CompressedMessage(CompressedRecord):
    """A `Message` whose body is compressed; the first to ask for it has it decompressed."""

    @cached_property
    def body(self) -> bytes:
        """The body as it was sent.

        Raises:
            BodyUnreadable: it can't be decompressed.
        """
        try:
            return super().body
        except records.BodyUnreadable as error:
            kind = CodecMissing if isinstance(error, records.CodecMissing) else BodyUnreadable
            place = f"{self.topic}/{self.queue_id} offset {self.queue_offset}"
            raise kind(f"{place}: {error}", subject=Subject.BODY) from error


class NewMessage(NamedTuple):
    """A message to send; see `Producer.send`."""

    topic: str
    body: bytes
    key: str | bytes | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    queue_id: int | None = None
    deadline_s: float | None = None


class QueueOffsets(NamedTuple):
    """The first offset that is kept, and one past the last message."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages from one queue, in order; `next_offset` is where to go on."""

    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int


class Permission(Enum):
    """What may be done with a topic."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic; the time is of its creation, ms since the epoch. `incarnation` tells it from others
    that have had or will have its name; `retention_hours` is how long its messages are wanted, 0:
    as long as the broker group keeps any; `permission` is what may be done with it."""

    name: str
    queue_count: int
    created_time_ms: int
    incarnation: int = 0
    retention_hours: float = 0.0
    permission: Permission = Permission.READ_WRITE


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue of a described topic."""

    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What is in one queue. `last_stored_ms`: when the last message was stored, ms since the epoch
    by the leader's clock; None: none is held."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_stored_ms: int | None

    @property
    def held(self) -> int:
        """How many messages can be read; void offsets count as well."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic, and what is in each of its queues."""

    topic: TopicInfo
    queues: list[QueueStats]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, its queues, and each consumer group's committed offset by queue id."""

    topic: TopicInfo
    queues: list[QueueInfo]
    groups: dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class LeaderInfo:
    """The leader, as last heard."""

    node_id: str
    address: str
    term: int


@dataclass(frozen=True, slots=True)
class PeerState:
    """A peer as the answering node sees it; `state` is empty unless that node leads."""

    node_id: str
    address: str
    state: str
    match_index: int
    recently_active: bool
    connected: bool
    older_copy: bool = False  # refused by that node: its disk was put back as it once was


@dataclass(frozen=True, slots=True)
class NodeState:
    """One member. A node that did not answer has `alive` false and says nothing else."""

    node_id: str
    address: str
    alive: bool
    broker_group: str = ""
    role: str = ""
    term: int = 0
    leader_id: str = ""
    leader_address: str = ""
    serving: bool = False
    first_index: int = 0
    last_index: int = 0
    durable_index: int = 0
    commit_index: int = 0
    applied_index: int = 0
    end_offset: int = 0
    committed_offset: int = 0
    committed_digest: int = 0
    segment_size_bytes: int = 0
    data_directory: str = ""
    version: str = ""
    peers: tuple[PeerState, ...] = ()
    apply_stopped: str = ""  # why it doesn't apply what is committed any more
    level: int = 0  # of formats and commands in use, as far as it has applied
    known_level: int = 0  # the highest that its program understands
    log_damages: int = 0  # places in its log that have rotted and aren't repaired yet
    scrub_ended_ms: int = 0  # when its log was last read to its end, since the epoch; 0: not yet


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """A producer's counts since it was made, and what it holds now."""

    accepted: int
    stored: int
    failed: int  # did not happen
    unknown: int  # may have happened
    duplicates: int  # stored by an earlier attempt
    buffered_messages: int
    buffered_bytes: int
    requests: int
    requests_in_flight: int
    batches_retried: int
    one_way_failed: int = 0  # of those that failed, or may have happened: nobody was told
    batches_busy: int = 0  # refused as the brokers had no room; of those that were sent again
    hook_failures: int = 0  # of `stamp`


@dataclass(frozen=True, slots=True)
class PushStatistics:
    """A push consumer's counts since it began, and what it holds now."""

    handled: int = 0  # handlers that returned
    failed: int = 0  # handlers that raised, or took too long: those messages are tried again
    overdue: int = 0  # handlers that took too long
    queues: int = 0  # held
    waiting: int = 0  # messages in memory, running ones too
    running: int = 0  # messages in handlers' hands
    retrying: int = 0  # messages that wait for their next attempt
    full: int = 0  # queues that are read no further until something in them is finished
    commits: int = 0
    refused: int = 0  # queues whose commit was refused
    lost: int = 0  # queues that went without being given back: sessions that ended, leases taken
    skipped: Mapping[tuple[str, int], int] = field(default_factory=dict)  # by topic and queue: gone
    hook_failures: int = 0  # of `around`


@dataclass(frozen=True, slots=True)
class RevokedQueues:
    """Queues of a topic that a member has no more, or soon."""

    topic: str
    queue_ids: list[int]
    lost: bool  # they are somebody else's already: what wasn't committed comes again, there


def decode_messages(content: bytes) -> list[Message]:
    """The messages in an answer's record bytes.

    Raises:
        RecordCorrupt: they are not whole, intact records.
    """
    try:
        return decode_records(content, CompressedMessage)
    except records.InvalidRecord as error:
        raise RecordCorrupt(
            f"the node answered with bytes that are no records: {error}",
            outcome=Outcome.DID_NOT_HAPPEN,
        ) from error


def node_state(address: str, status: cpb.NodeStatus) -> NodeState:
    """What the node at `address` says of itself."""
    return NodeState(
        node_id=status.node_id,
        address=address,
        alive=True,
        broker_group=status.broker_group,
        role=status.role,
        term=status.term,
        leader_id=status.leader.node_id,
        leader_address=status.leader.address,
        serving=status.serving,
        first_index=status.first_index,
        last_index=status.last_index,
        durable_index=status.durable_index,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        end_offset=status.end_offset,
        committed_offset=status.committed_offset,
        committed_digest=status.committed_digest,
        segment_size_bytes=status.segment_size_bytes,
        data_directory=status.data_directory,
        version=status.version,
        peers=tuple(
            PeerState(
                peer.node_id,
                peer.address,
                peer.state,
                peer.match_index,
                peer.recently_active,
                peer.connected,
                peer.older_copy,
            )
            for peer in status.peers
        ),
        apply_stopped=status.apply_stopped,
        level=status.level,
        known_level=status.known_level,
        log_damages=status.log_damages,
        scrub_ended_ms=status.scrub_ended_ms,
    )

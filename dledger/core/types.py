"""The vocabulary of the Raft core: identifiers, messages, and the effects it asks for.

Everything here is a value. The core never sees a payload: an entry is its index, term, kind
and size (ADR 4). Incoming appends carry `EntryMeta`s that the driver parsed from the bytes;
outgoing appends name a range of indexes that the driver reads from the log.

Source: Ongaro & Ousterhout, "In Search of an Understandable Consensus Algorithm" (the Raft
paper), figure 2; Ongaro's dissertation, chapters 4 (membership), 6.4 (reads), 9.6 (PreVote).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple, NewType, Protocol

from dledger.core.group_epoch import FIRST_EPOCH, GroupEpoch

NodeId = NewType("NodeId", str)
Term = NewType("Term", int)
Index = NewType("Index", int)
PersistSequence = NewType("PersistSequence", int)
DiskId = NewType("DiskId", bytes)

NO_INDEX = Index(0)
NO_TERM = Term(0)
DISK_ID_BYTES = 16
NO_DISK = DiskId(b"")  # of a member of whom no disk is named
MAX_NAME_CHARACTERS = 255  # of a member, as far as a log may name one

# No group ever gets here; two bits stay free in 64, so that sums need no thought.
MAX_TERM = Term((1 << 62) - 1)
MAX_INDEX = Index((1 << 62) - 1)
MAX_ROUND = (1 << 62) - 1  # of heartbeats
MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999: no clock is that wrong by itself


class Role(Enum):
    """What a node is in its current term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class EntryKind(IntEnum):
    """What an entry's body is; the values are the `type` byte of the entry header."""

    NOOP = 1
    DATA = 2
    COMMAND = 3
    CONFIGURATION = 4


@dataclass(frozen=True, slots=True)
class Configuration:
    """Who votes, and with which disk. Joint while `voters_outgoing` is not empty: then both
    majorities are needed.

    A configuration is in force from the moment its entry is appended (dissertation §4.1). What
    another disk than the named one says in a member's name counts for nothing (ADR 22). Where the
    members listen is carried along for those who dial, and decides nothing.

    `observers` are those of the learners that stay so; the others vote once they have caught up.
    Who votes only as long as it is joint may be a learner already. `preferred` is the member that
    is to lead, while it votes and is well; None: whoever is elected. `epoch` goes on from one
    configuration to the next; only a recovery by force, which no core does, begins another.
    """

    voters: frozenset[NodeId]
    voters_outgoing: frozenset[NodeId] = frozenset()
    learners: frozenset[NodeId] = frozenset()
    observers: frozenset[NodeId] = frozenset()
    disks: tuple[tuple[NodeId, DiskId], ...] = ()  # sorted
    addresses: tuple[tuple[NodeId, str], ...] = ()  # sorted
    preferred: NodeId | None = None
    epoch: GroupEpoch = FIRST_EPOCH

    def disk_of(self, node: NodeId) -> DiskId:
        """The disk with which `node` is a member; `NO_DISK` if none is named."""
        return next((disk for name, disk in self.disks if name == node), NO_DISK)

    def members(self) -> frozenset[NodeId]:
        """Every node that entries are replicated to, the local one included."""
        return self.voters | self.voters_outgoing | self.learners

    def is_voter(self, node: NodeId) -> bool:
        return node in self.voters or node in self.voters_outgoing


class EntryMeta(NamedTuple):
    """What the core knows of one entry. `size` is the frame's bytes, header included."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    term: Term
    size: int
    kind: EntryKind = EntryKind.DATA
    configuration: Configuration | None = None


@dataclass(frozen=True, slots=True)
class HardState:
    """What must survive a crash before anything that depends on it is said (Raft fig. 2)."""

    term: Term = NO_TERM
    vote: NodeId | None = None


class TermRun(NamedTuple):
    """Entries from `first_index` to the next run's first index - 1 carry `term`."""

    first_index: Index
    term: Term


class ConfigurationPlace(NamedTuple):
    """Where the configuration in force stands in the log: of two logs that are the same up to the
    earlier of their configurations, the later one knows more. Zeros: the log holds none."""

    term: Term = NO_TERM
    at: Index = NO_INDEX


NOWHERE = ConfigurationPlace()


@dataclass(frozen=True, slots=True)
class LogBase:
    """What a log knows of what was before its first entry; zeros: it begins with entry 1 (ADR 43).

    Attributes:
        index, term, digest, append_time_ms: of the last entry before the first. It is committed.
        end_offset: the byte behind that one. Digest, time and end are carried along: they decide
            nothing here.
        place, configuration: the configuration in force there, None if no entry says it.
    """

    index: Index = NO_INDEX
    term: Term = NO_TERM
    digest: int = 0
    append_time_ms: int = 0
    end_offset: int = 0
    place: ConfigurationPlace = NOWHERE
    configuration: Configuration | None = None


NO_BASE = LogBase()


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The durable log as recovery found it: every entry from the one behind `base` on. `term_runs`
    covers `1 .. last_index`, or, where there is a base, `base.index .. last_index`;
    `configurations` are those behind the base."""

    last_index: Index = NO_INDEX
    term_runs: tuple[TermRun, ...] = ()
    configurations: tuple[tuple[Index, Configuration], ...] = ()
    base: LogBase = NO_BASE


class LogView(Protocol):
    """The one question the core asks of the log: how much fits into one message.

    It is a pure function of the entries the core itself has accepted, so the core stays
    deterministic.
    """

    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int:
        """The greatest index in `[first, last]` such that `[first, index]` is at most
        `max_bytes` long; `first` itself when even that one is longer."""
        ...


class CampaignReason(Enum):
    """Why a candidate asks: a transfer overrides leader stickiness (dissertation §3.10)."""

    TIMEOUT = "timeout"
    TRANSFER = "transfer"


class Holding(NamedTuple):
    """What this node's disk holds in its term, and will go on holding: *held* is in the log of that
    term's leader, *settled* is committed. Zeros: nothing that could be told."""

    term: Term = NO_TERM
    held_index: Index = NO_INDEX
    settled_index: Index = NO_INDEX


# --- Messages between cores -----------------------------------------------------------------
# `term` is always the sender's current term, except in a PreVote, where it is the term the
# sender would campaign in, and in a granted PreVoteResponse, which echoes that term.


@dataclass(frozen=True, slots=True)
class PreVoteRequest:
    sender: NodeId
    to: NodeId
    term: Term
    last_index: Index
    last_term: Term


@dataclass(frozen=True, slots=True)
class PreVoteResponse:
    sender: NodeId
    to: NodeId
    term: Term
    granted: bool


@dataclass(frozen=True, slots=True)
class VoteRequest:
    sender: NodeId
    to: NodeId
    term: Term
    last_index: Index
    last_term: Term
    reason: CampaignReason = CampaignReason.TIMEOUT


@dataclass(frozen=True, slots=True)
class VoteResponse:
    sender: NodeId
    to: NodeId
    term: Term
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Entries `prev_index + 1 ..` and the leader's commit index. Incoming form: `entries` are
    metas. Outgoing form: see `AppendRange`."""

    sender: NodeId
    to: NodeId
    term: Term
    prev_index: Index
    prev_term: Term
    entries: tuple[EntryMeta, ...]
    commit_index: Index


@dataclass(frozen=True, slots=True)
class AppendRange:
    """An outgoing append: the driver reads `[first_index, last_index]` from its log and sends
    an `AppendRequest`. Empty when `last_index < first_index` (then it only probes/commits)."""

    sender: NodeId
    to: NodeId
    term: Term
    prev_index: Index
    prev_term: Term
    first_index: Index
    last_index: Index
    commit_index: Index


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """`match_index` is durable here when `accepted`. When refused: `rejected_prev_index` echoes
    the request's, `conflict_term`/`conflict_first_index` are the hint (term of the entry that
    stands at `prev_index` here and the first index of that term; term 0 and last_index + 1 when
    the log is too short), `last_index` is the follower's log end. A refusal with
    `rejected_prev_index` 0 answers no append: the follower asks to be probed, because the leader
    believes it holds entries that it has not seen verified (it was restarted or wiped)."""

    sender: NodeId
    to: NodeId
    term: Term
    accepted: bool
    match_index: Index = NO_INDEX
    rejected_prev_index: Index = NO_INDEX
    conflict_term: Term = NO_TERM
    conflict_first_index: Index = NO_INDEX
    last_index: Index = NO_INDEX


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """Keeps followers loyal. `commit_index` is already clamped to what this follower is known
    to match. `read_context` numbers the leader's heartbeat rounds and is echoed: ReadIndex needs
    an answer to a round that began after the read, and loss detection one that began after the
    append."""

    sender: NodeId
    to: NodeId
    term: Term
    commit_index: Index
    read_context: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """`is_short_of_space`: the sender's disk has no room left; it is no good successor."""

    sender: NodeId
    to: NodeId
    term: Term
    read_context: int = 0
    last_index: Index = NO_INDEX
    is_short_of_space: bool = False


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader tells a caught-up target to campaign at once (dissertation §3.10)."""

    sender: NodeId
    to: NodeId
    term: Term


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """The leader's log begins behind `base`, and this peer needs what is before: it is to begin
    anew with the state as of there. It acknowledges the base if it has it."""

    sender: NodeId
    to: NodeId
    term: Term
    base: LogBase


IncomingMessage = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | HeartbeatRequest
    | HeartbeatResponse
    | TimeoutNow
    | SnapshotOffer
)
OutgoingMessage = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendRange
    | AppendResponse
    | HeartbeatRequest
    | HeartbeatResponse
    | TimeoutNow
    | SnapshotOffer
)


# --- Effects --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """One step of durable work. Requests are made durable in the order of `sequence`; inside
    one: hard state, then truncation, then append. When it is durable the driver calls
    `on_persisted(sequence)`, which covers every earlier one too."""

    sequence: PersistSequence
    hard_state: HardState | None = None
    truncate_from: Index | None = None  # drop this index and everything after it
    append_first: Index | None = None  # entries [append_first, append_last] become durable
    append_last: Index | None = None


@dataclass(frozen=True, slots=True)
class Proposed:
    """The place a proposal was given."""

    index: Index
    term: Term


@dataclass(frozen=True, slots=True)
class ReadReady:
    """Read `context` is linearizable once the state machine has applied `index`."""

    context: int
    index: Index


@dataclass(frozen=True, slots=True)
class ReadAborted:
    """Read `context` can't be served: leadership was lost before it was confirmed."""

    context: int


# Events say what happened, for the driver's log and metrics; nothing depends on them.


@dataclass(frozen=True, slots=True)
class RoleChanged:
    role: Role
    term: Term
    reason: str


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The leader this node knows of changed; None: it knows of none."""

    leader: NodeId | None
    term: Term


@dataclass(frozen=True, slots=True)
class LogTruncated:
    from_index: Index
    term: Term


@dataclass(frozen=True, slots=True)
class PeerStateChanged:
    peer: NodeId
    state: str  # "probe" | "replicate" | "snapshot"


@dataclass(frozen=True, slots=True)
class TransferEnded:
    target: NodeId
    outcome: str  # "done" | "aborted"


@dataclass(frozen=True, slots=True)
class HandOverBegun:
    """This leader's own disk is sick, and `target`'s is not: it hands over of itself."""

    target: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class PeerMessageRefused:
    """A peer said what no working peer can say. `unreported` others came since the last report."""

    peer: NodeId
    reason: str
    unreported: int


@dataclass(frozen=True, slots=True)
class PeerContradicted:
    """A peer holds, or claims, other than what is settled here: one of the two nodes is wrong.
    The alarm of a divergence. `unreported` others came since the last report."""

    peer: NodeId
    reason: str
    unreported: int


@dataclass(frozen=True, slots=True)
class OwnLogVerified:
    """After a contradiction: this node's log up to `index`, read again from its files, is what it
    always said it was."""

    index: Index
    digest: int


@dataclass(frozen=True, slots=True)
class ClockOff:
    """The wall clock of `node` is `off_ms` ahead of what a majority's clocks show (behind, if
    negative). Said by the leader, once a minute for each node."""

    node: NodeId
    off_ms: int


@dataclass(frozen=True, slots=True)
class LogTimeStepped:
    """This node, newly elected, took the log's time forward to `time_ms`, `by_ms` further than it
    could have run."""

    time_ms: int
    by_ms: int


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """The disk failed: this node leads, votes, acknowledges and campaigns no more (ADR 8)."""

    term: Term


Event = (
    RoleChanged
    | LeaderChanged
    | LogTruncated
    | PeerStateChanged
    | HandOverBegun
    | TransferEnded
    | PeerMessageRefused
    | PeerContradicted
    | OwnLogVerified
    | ClockOff
    | LogTimeStepped
    | StorageFailed
)


@dataclass(frozen=True, slots=True)
class Effects:
    """What the driver must do, in this order: append the frame of the `noop`, start the
    `persist` work, send the `messages` (they are safe to send now), apply up to `commit_index`,
    complete the reads, log the events. `offer` is wanted: the driver says so to who can get it.
    """

    noop: Proposed | None = None  # this node was elected: build this entry's frame first
    persist: Persist | None = None
    messages: tuple[OutgoingMessage, ...] = ()
    commit_index: Index = NO_INDEX
    reads: tuple[ReadReady | ReadAborted, ...] = ()
    events: tuple[Event, ...] = ()
    offer: SnapshotOffer | None = None


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Times are in ticks, so that the core has no clock. Defaults are for 10 ms ticks: the
    seeds' 150-300 ms election timeout, a heartbeat every 50 ms."""

    election_timeout_min_ticks: int = 15
    election_timeout_max_ticks: int = 30  # inclusive
    heartbeat_ticks: int = 5
    suspicion_delay_min_ticks: int = 1  # after `suspect_leader`
    suspicion_delay_max_ticks: int = 4
    transfer_timeout_ticks: int = 30
    # A leader's disk is stalled when it lacks for so long what others made committed...
    stalled_disk_ticks: int = 50
    # ... and a leader with a sick disk hands over no sooner than this after its election, and
    # after its last try: the bound on how often leadership moves.
    hand_over_interval_ticks: int = 100
    preferred_after_ticks: int = 1_000  # of being well, until the preferred member is to lead
    max_append_bytes: int = 1 << 20  # one append message, ...
    max_append_entries: int = 1_024  # ... and so many entries: each costs both sides microseconds
    max_inflight_appends: int = 32  # messages not yet acknowledged, per peer
    max_inflight_bytes: int = 8 << 20
    max_uncommitted_bytes: int = 64 << 20
    noop_size: int = 56  # bytes of a no-op's frame: an entry header without a body
    max_pending_reads: int = 16384  # linearizable reads that wait for their heartbeat round
    pre_vote: bool = True
    check_quorum: bool = True
    eager_commit: bool = False  # an idle peer gets an empty append when the commit index moves


@dataclass(frozen=True, slots=True)
class PeerStatistics:
    state: str
    match_index: Index
    next_index: Index
    inflight: int
    recently_active: bool  # or tracked for no longer than that
    is_short_of_space: bool
    has_answered: bool  # a heartbeat, since it is tracked; before, the two say nothing yet


@dataclass(frozen=True, slots=True)
class CoreStatistics:
    """A frozen picture of the core, for status pages, metrics and invariant checks."""

    node: NodeId
    role: Role
    term: Term
    vote: NodeId | None
    leader: NodeId | None
    last_index: Index
    durable_index: Index
    commit_index: Index
    uncommitted_bytes: int
    transfer_target: NodeId | None
    peers: dict[NodeId, PeerStatistics] = field(default_factory=dict)

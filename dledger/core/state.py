"""Everything one Raft node remembers, and the gate every message leaves through.

`RaftState` is the single owner of the core's mutable state; `election`, `replication`,
`follower`, `reading` and `transfer` hold the rules as functions over it, and `roles` the
transitions. Nothing here decides anything. What it does guard is ADR 3: while the current
term and vote are not durable, `send` holds messages back, and a held message is dropped when the
term moves on, so that a vote of an old term is never delivered as news.

Bound: at most one held message per kind and receiver (a newer one replaces it, which to the
receiver is the loss of a message).
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from dledger.core.log import RaftLog
from dledger.core.persistence import PersistQueue
from dledger.core.progress import Moment, Progress
from dledger.core.reads import PendingReads
from dledger.core.types import (
    MAX_TERM,
    NO_INDEX,
    NO_TERM,
    AppendResponse,
    Configuration,
    DiskId,
    Event,
    HardState,
    Index,
    LeaderChanged,
    LogView,
    NodeId,
    OutgoingMessage,
    PreVoteRequest,
    PreVoteResponse,
    Proposed,
    RaftOptions,
    ReadAborted,
    ReadReady,
    Role,
    SnapshotOffer,
    Term,
    VoteRequest,
    VoteResponse,
)

MOST_DOUBLINGS = 3  # of the longest election timeout: to 2.4 s, where it is 300 ms


class Transfer:
    """A handover of leadership under way; it outlives the leadership until it is decided."""

    __slots__ = ("elapsed_ticks", "target")

    def __init__(self, target: NodeId) -> None:
        self.target = target
        self.elapsed_ticks = 0


class OwnDisk:
    """What is known of this node's own disk, as far as leading depends on it."""

    __slots__ = (
        *("behind_index", "behind_since_tick", "can_serve", "is_short"),
        *("fresh_after", "not_before_tick", "since_tick"),
    )

    def __init__(self) -> None:
        self.is_short = False  # of space, as the driver says
        self.can_serve = True  # whether what is committed is applied here, as the driver says
        self.since_tick = 0  # when that, or leading, began
        self.fresh_after: int | None = None  # a heartbeat round: later ones began long since that
        self.behind_index = NO_INDEX  # committed and not durable here; 0: there was no such entry
        self.behind_since_tick = 0  # when that was seen first
        self.not_before_tick = 0  # no hand-over of its own accord before this

    @property
    def is_unfit(self) -> bool:
        """Whether somebody else had better lead, as far as the driver knows."""
        return self.is_short or not self.can_serve

    def doubt_peers(self, now_tick: int) -> None:
        """What peers have said of themselves is too old."""
        self.since_tick, self.fresh_after = now_tick, None

    def on_tick(self, now: Moment, ticks: int) -> None:
        """Once so many have passed, what peers answer to rounds that begin from now on counts."""
        if self.fresh_after is None and now.tick - self.since_tick >= ticks:
            self.fresh_after = now.round

    def begin_leading(self, now_tick: int, not_before_tick: int) -> None:
        """A leadership begins: nothing is known of peers, and it has to last for a while."""
        self.doubt_peers(now_tick)
        self.behind_index = NO_INDEX
        self.not_before_tick = not_before_tick


class Preference:
    """What a leader has seen of the member that is preferred, and how often this node has tried."""

    __slots__ = ("target", "tries", "well_since_tick")

    def __init__(self) -> None:
        self.target: NodeId | None = None
        self.well_since_tick: int | None = None
        self.tries = 0  # to hand over to it, in all leaderships since it has led

    def prefer(self, target: NodeId | None) -> None:
        """It is another member by now: nothing has been seen of it."""
        self.target, self.well_since_tick, self.tries = target, None, 0

    def begin_leading(self) -> None:
        """Nothing has been seen of it in this leadership. The tries stay: one that can't take over
        may end the leadership of whoever tries, and each would begin to count anew."""
        self.well_since_tick = None

    def on_leader(self, leader: NodeId) -> None:
        """That one was elected: if it is the target, it can take over."""
        if leader == self.target:
            self.tries = 0


class Overtaking:
    """What a follower has seen of a leader that can't serve."""

    __slots__ = ("due_tick", "heard_commit_index", "term")

    def __init__(self) -> None:
        self.term = NO_TERM  # of that leader
        self.due_tick: int | None = None  # when this node takes over
        self.heard_commit_index = NO_INDEX  # in that leader's newest heartbeat


def _promises(message: OutgoingMessage) -> bool:
    """Whether it says what only a disk can say that holds all that it did."""
    match message:
        case VoteResponse() | PreVoteResponse():
            return message.granted
        case AppendResponse():
            return message.accepted
        case _:
            return False


class RaftState:
    """The memory of one node. See figure 2 of the paper for the first three groups."""

    def __init__(
        self,
        node: NodeId,
        *,
        own_disk: DiskId,
        log: RaftLog,
        hard_state: HardState,
        view: LogView,
        rng: random.Random,
        options: RaftOptions,
    ) -> None:
        self.node = node
        self.own_disk = own_disk
        self.options = options
        self.rng = rng
        self.view = view
        # Persistent (fig. 2), and what the disk has of it.
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.log = log
        self.persists = PersistQueue()
        self.has_failed = False  # the disk failed: silent from then on
        self.disk = OwnDisk()
        self.is_in_doubt = False  # committed entries have rotted here; see `Raft.report_doubt`
        # Volatile on all nodes.
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None  # whom this node trusts now
        self.term_leader: NodeId | None = None  # who was elected in this term, once known
        self.now_tick = 0
        self.terms_adopted = 0  # how far the messages of others have moved the term, in this life
        self.leader_heard_tick = 0
        self.election_elapsed_ticks = 0
        self.election_timeout_ticks = 0
        self.suspicion_attempt = 0  # 0: no; else campaigns since the leader was suspected, + 1
        self.campaigns = 0  # real ones in a row, since anybody led; without those of a suspicion
        self.votes: dict[NodeId, bool] = {}  # of this term; with the own one, once it is durable
        self.pre_votes: dict[NodeId, bool] = {}  # for the next term, while that is asked for
        # Volatile on a follower: what this term's leader has shown to be in its own log.
        self.verified_index = NO_INDEX
        self.ack_wanted_index = NO_INDEX  # answer once this entry is durable; 0: nothing owed
        self.overtaking = Overtaking()
        # Volatile on a leader.
        self.peers: dict[NodeId, Progress] = {}  # in sorted order, without this node
        self.term_start_index = NO_INDEX  # this leader's no-op
        self.heartbeat_elapsed_ticks = 0
        self.heartbeat_round = 0
        self.reads = PendingReads()
        self.reads_round = 0  # the round that the newest pending read waits for
        self.transfer: Transfer | None = None
        self.preference = Preference()
        self.is_retiring = False  # it votes no more, and has tried to hand over
        # Effects being gathered.
        self.appends_due = False
        self.has_more_to_send = False  # to peers that were just sent one append each
        self.noop: Proposed | None = None
        self.offer: SnapshotOffer | None = None  # wanted, and not handed out yet
        self.outbox: list[OutgoingMessage] = []
        self.held: dict[tuple[type, NodeId], OutgoingMessage] = {}
        self.read_results: list[ReadReady | ReadAborted] = []
        self.events: list[Event] = []
        self.commit_reported = log.commit_index

    # --- Derived facts ----------------------------------------------------------------------

    def is_promotable(self) -> bool:
        """Whether this node may campaign: only voters do (`test_s25`), while there are terms. Who
        votes no more by an entry that may not be committed does as well: without it those who
        haven't that entry might never be a majority, nor elect anybody whose log is as long."""
        may_count = self.log.configurations_that_may_count()
        is_voter = any(self._is_named_by(each) and each.is_voter(self.node) for each in may_count)
        return is_voter and self.term < MAX_TERM and not self.is_in_doubt

    @property
    def is_known(self) -> bool:
        """Whether the configuration in force names this very disk, or the one before, as long as
        that may count. One that takes another's place reads, while it catches up, that the other
        was a voter: that vote is not its own. A learner may vote when it is asked, as whoever asks
        may know already that it is a voter."""
        return any(map(self._is_named_by, self.log.configurations_that_may_count()))

    def _is_named_by(self, configuration: Configuration) -> bool:
        return configuration.disk_of(self.node) == self.own_disk

    @property
    def held_index(self) -> Index:
        """What is both durable here and known to be in the log of this term's leader: no more than
        that stays for as long as the term lasts."""
        log = self.log
        if self.role is Role.LEADER:
            return log.durable_index
        return min(log.durable_index, max(self.verified_index, log.commit_index))

    @property
    def moment(self) -> Moment:
        """Now, as a leader's messages count it."""
        return Moment(self.heartbeat_round, self.now_tick)

    def other_voters(self) -> list[NodeId]:
        """Every other voter, in sorted order: iteration must not depend on hashing."""
        configuration = self.log.configuration
        voters = configuration.voters | configuration.voters_outgoing
        return sorted(voters - {self.node})

    def match_of(self, node: NodeId) -> Index:
        """What `node` has on disk, as far as this leader knows; its own disk counts alike, unless
        it doesn't hold what it once did."""
        if node == self.node and not self.is_in_doubt:
            return self.log.durable_index
        progress = self.peers.get(node)
        return progress.match_index if progress is not None else NO_INDEX

    # --- Saying things ----------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Record what happened, for the driver's log."""
        self.events.append(event)

    def send(self, message: OutgoingMessage) -> None:
        """Send once the current term and vote are durable; now, if they are (ADR 3)."""
        if self.persists.hard_state_is_durable:
            self.outbox.append(message)
        else:
            self.held[type(message), message.to] = message

    def send_all(self, messages: Iterable[OutgoingMessage]) -> None:
        """`send` each."""
        for message in messages:
            self.send(message)

    def release_held(self) -> None:
        """Send what was held, if the term and vote it depends on are durable now."""
        if not self.held or not self.persists.hard_state_is_durable:
            return
        self.outbox.extend(message for message in self.held.values() if self._still_true(message))
        self.held.clear()

    def withhold(self) -> None:
        """What is not out yet, and not true any more, is not said; an acknowledgement is owed."""
        for message in self.outbox:
            if isinstance(message, AppendResponse) and not self._still_true(message):
                self.ack_wanted_index = max(self.ack_wanted_index, message.match_index)
        self.outbox[:] = [message for message in self.outbox if self._still_true(message)]

    def _still_true(self, message: OutgoingMessage) -> bool:
        if self.is_in_doubt and _promises(message):
            return False
        if isinstance(message, VoteRequest):
            return self.role is Role.CANDIDATE
        if isinstance(message, PreVoteRequest):
            return self.role is Role.PRE_CANDIDATE
        if isinstance(message, AppendResponse) and message.accepted:
            return message.match_index <= self.log.durable_index
        return True

    # --- Changing what must be durable ------------------------------------------------------

    def set_term(self, term: Term) -> None:
        """Enter a later term: no vote yet, no leader yet, nothing verified yet."""
        self.term = term
        self.vote = None
        self.term_leader = None
        self.verified_index = NO_INDEX
        self.ack_wanted_index = NO_INDEX
        self.held.clear()
        self.persists.want_hard_state(HardState(term, None))

    def set_vote(self, candidate: NodeId) -> None:
        """Vote in the current term."""
        self.vote = candidate
        self.persists.want_hard_state(HardState(self.term, candidate))

    def set_leader(self, leader: NodeId | None) -> None:
        """Trust `leader` from now on; None: nobody."""
        if leader is not None:
            self.term_leader = leader
            self.preference.on_leader(leader)
        if leader != self.leader:
            self.leader = leader
            self.emit(LeaderChanged(leader, self.term))

    # --- Time -------------------------------------------------------------------------------

    def reset_election_timer(self) -> None:
        """Draw a fresh election timeout; the only randomness there is. From the second campaign in
        a row the longest one doubles with each: candidates whose voters are slower than they are
        depose each other until one of them waits for long enough."""
        options = self.options
        doublings = min(max(0, self.campaigns - 1), MOST_DOUBLINGS)
        self.election_elapsed_ticks = 0
        self.election_timeout_ticks = self.rng.randint(
            options.election_timeout_min_ticks, options.election_timeout_max_ticks << doublings
        )

    def trusts_a_leader(self) -> bool:
        """Whether a leader was heard within the minimum election timeout (stickiness)."""
        window = self.options.election_timeout_min_ticks
        return self.leader is not None and self.now_tick - self.leader_heard_tick < window

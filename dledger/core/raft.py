"""The Raft core as its driver sees it: events in, effects out (ADR 2).

`Raft` owns one node's `RaftState`, fences every incoming message by its term, and hands it to the
rule that decides. It must never touch a clock, a socket, a file or a thread, and never let a
message out that isn't safe to send. The shape (a message-driven core that returns what is to be
persisted and sent) comes from etcd-io/raft; the code does not. It is longer than most modules
because it is the whole public surface; the rules are in the modules it calls.

    driver                                core
      step / tick / propose / ... ──────▶  state changes, nothing leaves
      take_effects ◀──────────────────── persist, messages, commit index, reads, events
      on_persisted ─────────────────────▶  releases what waited for the disk
"""

from __future__ import annotations

import random
from typing import assert_never

from dledger.core.admission import admit
from dledger.core.election import (
    hasten_election,
    on_election_tick,
    on_own_vote_durable,
    on_pre_vote_request,
    on_pre_vote_response,
    on_timeout_now,
    on_vote_request,
    on_vote_response,
    suspect_leader,
)
from dledger.core.errors import InvariantViolation, UnknownEntry
from dledger.core.follower import (
    on_append_request,
    on_entries_durable,
    on_heartbeat_request,
    on_snapshot_offer,
)
from dledger.core.heartbeat import (
    on_heartbeat_response,
    on_leader_tick,
    read_index,
    start_round_for_reads,
)
from dledger.core.log import RaftLog
from dledger.core.membership import due_change
from dledger.core.overtaking import note_leader, overtake_if_due
from dledger.core.preference import hand_over_to_preferred
from dledger.core.replication import (
    advance_commit,
    on_append_response,
    peer_unreachable,
    propose,
    send_appends,
    send_more,
)
from dledger.core.retiring import retire_if_voter_no_more
from dledger.core.roles import become_follower, end_transfer
from dledger.core.sick_disk import hand_over_if_disk_is_sick, report_fitness
from dledger.core.state import RaftState
from dledger.core.transfer import on_transfer_tick, transfer_leadership
from dledger.core.types import (
    MAX_TERM,
    NO_DISK,
    NO_INDEX,
    NO_TERM,
    AppendRequest,
    AppendResponse,
    Configuration,
    ConfigurationPlace,
    CoreStatistics,
    DiskId,
    Effects,
    EntryKind,
    HardState,
    HeartbeatRequest,
    HeartbeatResponse,
    Holding,
    IncomingMessage,
    Index,
    LogBase,
    LogSummary,
    LogView,
    NodeId,
    PeerStatistics,
    PersistSequence,
    PreVoteRequest,
    PreVoteResponse,
    Proposed,
    RaftOptions,
    Role,
    SnapshotOffer,
    StorageFailed,
    Term,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

_NO_EFFECTS = Effects()
_DEFAULT_OPTIONS = RaftOptions()
_EMPTY_LOG = LogSummary()
_FRESH_HARD_STATE = HardState()


class Raft:
    """One node's Raft state machine. Not thread-safe: one event loop owns it (ADR 9)."""

    __slots__ = ("_state",)

    def __init__(
        self,
        node: NodeId,
        configuration: Configuration,
        *,
        view: LogView,
        rng: random.Random,
        options: RaftOptions = _DEFAULT_OPTIONS,
        log: LogSummary = _EMPTY_LOG,
        hard_state: HardState = _FRESH_HARD_STATE,
        commit_index: Index = NO_INDEX,
        disk: DiskId = NO_DISK,
    ) -> None:
        """Boot as a follower from what recovery found on disk.

        Args:
            node: this node's name.
            configuration: in force where the log holds no configuration entry.
            view: answers how much of the log fits into one append.
            rng: draws the election timeouts; the only source of randomness.
            options: times in ticks, sizes in bytes.
            log: the durable log.
            hard_state: the durable term and vote.
            commit_index: known to be committed; may be lower than it really is.
            disk: the one that this node is on. It is a member only where the configuration in
                force names that disk.

        Raises:
            InvariantViolation: these facts contradict each other; the node must not start.
        """
        check_options(options)
        if hard_state.term > MAX_TERM:
            raise InvariantViolation(f"term {hard_state.term} is beyond what any group reaches")
        if hard_state.term < max((run.term for run in log.term_runs), default=NO_TERM):
            raise InvariantViolation(f"the log is ahead of the durable term {hard_state.term}")
        self._state = RaftState(
            node,
            own_disk=disk,
            log=RaftLog(configuration, log, commit_index),
            hard_state=hard_state,
            view=view,
            rng=rng,
            options=options,
        )
        self._state.reset_election_timer()

    # --- Inputs -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Let one tick pass."""
        state = self._state
        if state.has_failed:
            return
        state.now_tick += 1
        on_transfer_tick(state)
        if state.role is Role.LEADER:
            hand_over_if_disk_is_sick(state)
            retire_if_voter_no_more(state)
            hand_over_to_preferred(state)
        if state.role is Role.LEADER:
            on_leader_tick(state)
        else:
            overtake_if_due(state)
            on_election_tick(state)

    def step(self, message: IncomingMessage) -> None:
        """Take one message from a peer; a message for another node is ignored.

        Take the effects after each `AppendRequest`: the entries of its `persist` are then those
        of that request.

        Raises:
            MessageRefused: no working peer says this to this node; nothing has changed.
            InvariantViolation: this core broke a rule of its own; stop the node.
        """
        state = self._state
        if state.has_failed or message.to != state.node:
            return
        admit(state, message)
        match message:
            # These three have their own rules about terms.
            case PreVoteRequest():
                on_pre_vote_request(state, message)
            case PreVoteResponse():
                on_pre_vote_response(state, message)
            case VoteRequest():
                on_vote_request(state, message)
            case _:
                if message.term > state.term:
                    become_follower(state, message.term, None, reason="higher term in a message")
                if message.term == state.term:
                    self._step_in_term(message)
                else:
                    self._answer_old_term(message)

    def admit(self, message: IncomingMessage) -> None:
        """As `step` looks at a message before it takes it, for who has to look first.

        Raises:
            MessageRefused: `step` would refuse it.
        """
        admit(self._state, message)

    def propose(
        self,
        size: int,
        kind: EntryKind = EntryKind.DATA,
        configuration: Configuration | None = None,
    ) -> Proposed:
        """Give one entry its place in the log; the append to peers is made by `take_effects`.

        Args:
            size: bytes of the entry's frame, header included.
            kind: what the entry is.
            configuration: for kind CONFIGURATION only.

        Raises:
            ProposalRefused: nothing was appended; see its subclasses for what to do.
        """
        return propose(self._state, size, kind, configuration)

    def on_persisted(self, sequence: PersistSequence) -> None:
        """Every persist request up to `sequence` is durable.

        Raises:
            InvariantViolation: no such request was handed out.
        """
        state = self._state
        if state.has_failed:
            return
        state.log.persisted_to(state.persists.complete(sequence))
        state.release_held()
        if state.role is Role.LEADER:
            advance_commit(state)
            return
        if state.role is Role.CANDIDATE and state.persists.hard_state_is_durable:
            on_own_vote_durable(state)
        on_entries_durable(state)

    def report_fitness(
        self, *, is_short: bool, can_serve: bool = True, leader_can_serve: bool = True
    ) -> None:
        """Learn whether this node is fit to lead, and its leader; tell it each tick.

        A leader that isn't hands over to a voter that is; a voter that isn't lets others campaign
        first; and one that is takes over from a leader that can't serve and stays.

        Args:
            is_short: its disk has no room for what a leader appends.
            can_serve: what is committed is applied here. A node that can't apply still takes
                entries, so a majority may count on its disk, whoever leads.
            leader_can_serve: as far as is known of whom this node follows.
        """
        report_fitness(self._state, is_short=is_short, can_serve=can_serve)
        note_leader(self._state, can_serve=leader_can_serve)

    @property
    def is_in_doubt(self) -> bool:
        """Whether committed entries on this node's disk have rotted, and aren't back yet."""
        return self._state.is_in_doubt

    def report_doubt(self, *, is_in_doubt: bool) -> None:
        """Learn that committed entries on this node's disk have rotted, or that they are back.

        Until they are it can't prove that it holds what it acknowledged: it doesn't vote, campaign
        or acknowledge, its own disk doesn't count where it leads, and it hands over to a voter
        that can lead. It follows, takes entries and answers heartbeats as ever. Safe to be called
        from within whatever reads the log; what has to change at once does.
        """
        state = self._state
        if state.has_failed or state.is_in_doubt == is_in_doubt:
            return
        state.is_in_doubt = is_in_doubt
        if is_in_doubt:
            if state.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
                become_follower(state, state.term, None, reason="committed entries have rotted")
            state.withhold()
        elif state.role is Role.LEADER:
            advance_commit(state)
        else:
            on_entries_durable(state)

    def on_storage_failed(self) -> None:
        """The disk failed: stop leading, and never vote, acknowledge or campaign again (ADR 8)."""
        state = self._state
        if not state.has_failed:
            self.fall_silent("storage failed")
            state.emit(StorageFailed(state.term))

    def fall_silent(self, reason: str) -> None:
        """Stop leading, and never vote, acknowledge or campaign again."""
        state = self._state
        if state.has_failed:
            return
        end_transfer(state, "aborted")
        become_follower(state, state.term, None, reason=reason)
        state.has_failed = True
        state.noop = state.offer = None
        state.outbox.clear()
        state.held.clear()

    def suspect_leader(self, peer: NodeId) -> None:
        """The stream from `peer` broke: if it leads, campaign soon unless it is heard again."""
        if not self._state.has_failed:
            suspect_leader(self._state, peer)

    def hasten_election(self) -> None:
        """Campaign at the next tick if nobody leads, as far as is known here. Others that know
        better refuse, as they do whenever a timeout was too short."""
        if not self._state.has_failed:
            hasten_election(self._state)

    def peer_unreachable(self, peer: NodeId) -> None:
        """What is under way to `peer` may be lost: probe it before streaming again."""
        peer_unreachable(self._state, peer)

    def transfer_leadership(self, target: NodeId | None) -> None:
        """Begin to hand leadership to `target`; None: to the best caught-up voter.

        Proposals are fenced until it ends; `TransferEnded` says how it did, at the latest
        `transfer_timeout_ticks` from now. Asking again for the same target changes nothing.

        Raises:
            NotLeader: there is nothing to hand over.
            TransferInProgress: to another target.
            TargetUnfit: the target votes, and can't take it now.
            ProposalRefused: the target can't lead, or there is none.
        """
        transfer_leadership(self._state, target)

    def read_index(self, context: int) -> None:
        """Begin a linearizable read; `Effects.reads` says when and where it may be served.

        Args:
            context: positive, and unique among the pending reads.

        Raises:
            ReadRefused: not the leader, no entry of its term committed yet, or too many.
            InvariantViolation: the context is not positive and unique.
        """
        read_index(self._state, context)

    def send_more(self) -> None:
        """Send peers that are far behind another append each; see `has_more_to_send`."""
        send_more(self._state)

    # --- Outputs ----------------------------------------------------------------------------

    @property
    def has_more_to_send(self) -> bool:
        """Whether peers wait for more than the one append that each is sent with one set of
        effects: making those appends takes as long as their entries are many, so the driver asks
        for them one after the other (`send_more`), with other things between."""
        return self._state.has_more_to_send

    def has_effects(self) -> bool:
        """Tell cheaply whether `take_effects` may have something to say."""
        state = self._state
        return bool(
            state.outbox
            or state.appends_due
            or state.persists.is_wanted
            or state.commit_reported != state.log.commit_index
            or state.reads_round > state.heartbeat_round
            or state.read_results
            or state.events
            or state.noop is not None
            or state.offer is not None
        )

    def take_effects(self) -> Effects:
        """Hand out everything to be done, once; an empty `Effects` when there is nothing."""
        state = self._state
        if state.has_failed:
            return self._take_last_effects()
        if state.reads_round > state.heartbeat_round:
            start_round_for_reads(state)
        if state.appends_due:
            send_appends(state)
        if not self.has_effects():
            return _NO_EFFECTS
        effects = Effects(
            state.noop,
            state.persists.take(),
            tuple(state.outbox),
            state.log.commit_index,
            tuple(state.read_results),
            tuple(state.events),
            state.offer,
        )
        state.noop = state.offer = None
        state.outbox.clear()
        state.read_results.clear()
        state.events.clear()
        state.commit_reported = state.log.commit_index
        return effects

    def term_at(self, index: Index) -> Term:
        """Return the term of the entry at `index`; 0 at index 0.

        Raises:
            UnknownEntry: the log doesn't hold it.
        """
        log = self._state.log
        is_known = index == NO_INDEX or log.base.index <= index <= log.last_index
        if not is_known:
            raise UnknownEntry(index, log.last_index)
        return log.term_at(index)

    def statistics(self) -> CoreStatistics:
        """Return a frozen picture of the core."""
        state = self._state
        return CoreStatistics(
            node=state.node,
            role=state.role,
            term=state.term,
            vote=state.vote,
            leader=state.leader,
            last_index=state.log.last_index,
            durable_index=state.log.durable_index,
            commit_index=state.log.commit_index,
            uncommitted_bytes=state.log.uncommitted_bytes(),
            transfer_target=state.transfer.target if state.transfer else None,
            peers={peer: self._peer_statistics(peer) for peer in state.peers},
        )

    @property
    def options(self) -> RaftOptions:
        """The options it was made with."""
        return self._state.options

    @property
    def base(self) -> LogBase:
        """What is known of what was before the log's first entry."""
        return self._state.log.base

    def begin_at(self, base: LogBase) -> None:
        """Entries up to `base` are gone from this node's log.

        Raises:
            InvariantViolation: not all of them are committed, and on this node's disk.
        """
        self._state.log.begin_at(base)
        self._state.appends_due = self._state.role is Role.LEADER

    def needs(self, offer: SnapshotOffer) -> bool:
        """Whether this node may begin anew with what it was offered, if it takes no message from
        now on: it follows in a durable term, and doesn't have that entry. Then nothing in its log
        was ever counted that is not retired (ADR 43)."""
        state, base = self._state, offer.base
        is_here = base.index <= state.log.commit_index or state.log.matches(base.index, base.term)
        is_safe = state.persists.hard_state_is_durable and base.term <= state.term
        return state.role is Role.FOLLOWER and is_safe and not is_here and not state.has_failed

    @property
    def outline(self) -> tuple[Term, NodeId | None, Role, Index, Index, Index]:
        """Term, vote and role; where the log ends, is durable and is committed. A watcher asks
        after every event, and compares it with the one before."""
        state = self._state
        log = state.log
        ends = log.last_index, log.durable_index, log.commit_index
        return state.term, state.vote, state.role, *ends

    @property
    def role(self) -> Role:
        """What this node is in its current term."""
        return self._state.role

    @property
    def term(self) -> Term:
        """The current term; not necessarily durable yet."""
        return self._state.term

    @property
    def vote(self) -> NodeId | None:
        """Whom this node voted for in the current term; not necessarily durable yet."""
        return self._state.vote

    @property
    def leader(self) -> NodeId | None:
        """Whom this node trusts to lead now."""
        return self._state.leader

    @property
    def last_index(self) -> Index:
        """The end of the log."""
        return self._state.log.last_index

    @property
    def durable_index(self) -> Index:
        """The last entry that is on this node's disk."""
        return self._state.log.durable_index

    @property
    def commit_index(self) -> Index:
        """The last entry known to be committed."""
        return self._state.log.commit_index

    @property
    def is_ready_leader(self) -> bool:
        """Whether this node leads and has committed an entry of its term."""
        state = self._state
        return state.role is Role.LEADER and state.log.commit_index >= state.term_start_index

    @property
    def configuration(self) -> Configuration:
        """The newest configuration in the log, in force since it was appended."""
        return self._state.log.configuration

    @property
    def configurations_that_may_count(self) -> tuple[Configuration, ...]:
        """That one, and the one before while it isn't known to be committed."""
        return self._state.log.configurations_that_may_count()

    @property
    def configuration_place(self) -> ConfigurationPlace:
        """Where that stands in the log."""
        return self._state.log.configuration_place

    @property
    def holding(self) -> Holding:
        """What this node's disk holds; nothing while its term isn't durable."""
        state = self._state
        if state.has_failed or not state.persists.hard_state_is_durable:
            return Holding()
        if state.is_in_doubt:
            return Holding()
        settled = min(state.log.durable_index, state.log.commit_index)
        return Holding(state.term, state.held_index, settled)

    @property
    def knows_own_disk(self) -> bool:
        """Whether it names the disk that this node is on."""
        return self._state.is_known

    def due_change(self) -> Configuration | None:
        """The configuration that a leader has to propose without being asked (ADR 41): a joint one
        is left, learners that have caught up vote. None: nothing is due, or not now."""
        return due_change(self._state)

    # --- Inside -----------------------------------------------------------------------------

    def _step_in_term(
        self,
        message: AppendRequest
        | AppendResponse
        | HeartbeatRequest
        | HeartbeatResponse
        | VoteResponse
        | TimeoutNow
        | SnapshotOffer,
    ) -> None:
        state = self._state
        match message:
            case AppendResponse():
                on_append_response(state, message)
            case AppendRequest():
                on_append_request(state, message)
            case HeartbeatResponse():
                on_heartbeat_response(state, message)
            case HeartbeatRequest():
                on_heartbeat_request(state, message)
            case VoteResponse():
                on_vote_response(state, message)
            case TimeoutNow():
                on_timeout_now(state, message)
            case SnapshotOffer():
                on_snapshot_offer(state, message)
            case _:
                assert_never(message)

    def _answer_old_term(self, message: IncomingMessage) -> None:
        # A deposed leader learns the term from the answer. Without one, a node that is ahead of
        # the leader's term could neither follow nor be elected (`test_s17`).
        state = self._state
        node, sender, term = state.node, message.sender, state.term
        match message:
            case AppendRequest():
                # Without the index that was asked about, as below: the sender may lead this node's
                # term by then with a shorter log, and an answer about what it doesn't hold would
                # look like a lie.
                state.send(AppendResponse(node, sender, term, accepted=False))
            case HeartbeatRequest():
                # Without its round: should the sender lead this node's term by the time it hears
                # of it, it would take the number for one of its own rounds, begun or to come, and
                # confirm reads by an answer that was given before they were asked.
                state.send(HeartbeatResponse(node, sender, term))
            case _:
                pass

    def _take_last_effects(self) -> Effects:
        """After a storage failure: what was lost and what happened, and nothing to do."""
        state = self._state
        effects = Effects(reads=tuple(state.read_results), events=tuple(state.events))
        state.persists = type(state.persists)()
        state.appends_due = state.has_more_to_send = False
        state.commit_reported = state.log.commit_index
        state.read_results.clear()
        state.events.clear()
        return effects

    def _peer_statistics(self, peer: NodeId) -> PeerStatistics:
        state = self._state
        progress = state.peers[peer]
        silent_ticks = state.now_tick - progress.last_heard_tick
        return PeerStatistics(
            state=progress.state.value,
            match_index=progress.match_index,
            next_index=progress.next_index,
            inflight=progress.inflight_count,
            recently_active=silent_ticks <= state.options.election_timeout_max_ticks,
            is_short_of_space=progress.is_short_of_space,
            has_answered=progress.acked_round > 0,
        )


def check_options(options: RaftOptions) -> None:
    """Raises:
    InvariantViolation: the options make no sense together.
    """
    shortest, longest = options.election_timeout_min_ticks, options.election_timeout_max_ticks
    if not 0 < options.heartbeat_ticks < shortest <= longest:
        raise InvariantViolation(f"heartbeats must be shorter than elections: {options}")
    if not 0 < options.suspicion_delay_min_ticks <= options.suspicion_delay_max_ticks:
        raise InvariantViolation(f"the suspicion delay is not a range: {options}")
    if options.hand_over_interval_ticks < longest:
        raise InvariantViolation(f"hand-overs must be rarer than elections: {options}")
    if options.preferred_after_ticks < options.hand_over_interval_ticks:
        raise InvariantViolation(f"what is preferred must wait for what is needed: {options}")
    appends = (options.max_append_bytes, options.max_append_entries, options.max_inflight_appends)
    if min(*appends, options.max_inflight_bytes, options.max_uncommitted_bytes) <= 0:
        raise InvariantViolation(f"a bound is not positive: {options}")

"""The transitions between roles; there is no other place where `role` changes.

                                ┌──────────── timeout ───────────────┐
                                ▼                                    │
    FOLLOWER ──timeout──▶ PRE_CANDIDATE ──majority would vote──▶ CANDIDATE ──majority──▶ LEADER
        ▲                       │                                    │                     │
        └───────────────────────┴─── leader heard, lost, higher term ┴─────────────────────┘

A candidate that asks for the next term (the arrow back) still becomes the leader of this one, if
the votes for it come late.

Source: Raft paper figure 4; dissertation §9.6 (PreVote), §3.10 (transfer skips it).
"""

from __future__ import annotations

from dledger.core.errors import InvariantViolation
from dledger.core.progress import Progress
from dledger.core.state import RaftState
from dledger.core.types import (
    CampaignReason,
    Index,
    NodeId,
    PreVoteRequest,
    Proposed,
    Role,
    RoleChanged,
    Term,
    TransferEnded,
    VoteRequest,
)

_SUSPICION_RETRIES = 3


def become_follower(state: RaftState, term: Term, leader: NodeId | None, *, reason: str) -> None:
    """Follow in `term`. The vote is cleared by a later term only (`test_s18`)."""
    old_role = state.role
    if term > state.term:
        state.terms_adopted += term - state.term
        state.set_term(term)
    elif term < state.term:
        raise InvariantViolation(f"term would go back from {state.term} to {term}")
    if old_role is Role.LEADER:
        _lay_down_leadership(state)
    if old_role is not Role.FOLLOWER:
        state.role = Role.FOLLOWER
        state.votes.clear()
        state.pre_votes.clear()
        state.emit(RoleChanged(Role.FOLLOWER, term, reason))
        start_retry_timer(state)
    state.set_leader(leader)


def become_pre_candidate(state: RaftState) -> None:
    """Ask who would vote, without touching term or vote. Asking again is no change of roles: a
    node that is cut off asks several times a second for as long as that lasts."""
    if state.role is not Role.PRE_CANDIDATE:
        state.role = Role.PRE_CANDIDATE
        state.emit(RoleChanged(Role.PRE_CANDIDATE, state.term, "election timeout"))
    state.set_leader(None)
    state.pre_votes = {state.node: True}
    start_retry_timer(state)
    log = state.log
    asked_term = Term(state.term + 1)
    for voter in state.other_voters():
        state.send(PreVoteRequest(state.node, voter, asked_term, log.last_index, log.last_term))


def become_candidate(state: RaftState, campaign_reason: CampaignReason) -> None:
    """Start an election in the next term. The own vote counts, and the requests leave, when
    the vote is durable (ADR 3)."""
    state.set_term(Term(state.term + 1))
    state.set_vote(state.node)
    state.role = Role.CANDIDATE
    state.emit(RoleChanged(Role.CANDIDATE, state.term, campaign_reason.value))
    state.set_leader(None)
    state.votes, state.pre_votes = {}, {}
    if not state.suspicion_attempt:
        state.campaigns += 1
    start_retry_timer(state)
    log = state.log
    for voter in state.other_voters():
        state.send(
            VoteRequest(
                state.node, voter, state.term, log.last_index, log.last_term, campaign_reason
            )
        )


def become_leader(state: RaftState) -> None:
    """Lead: everything about peers is unknown, and a no-op of this term is appended at once,
    because an older entry can't be committed by counting (§5.4.2, DLedger #305)."""
    if state.noop is not None:
        raise InvariantViolation("elected twice before the effects were taken")
    state.role = Role.LEADER
    state.suspicion_attempt = state.campaigns = 0
    state.votes.clear()
    state.pre_votes.clear()
    state.emit(RoleChanged(Role.LEADER, state.term, "won the election"))
    state.set_leader(state.node)
    end_transfer(state, "aborted")  # one that this node began in an earlier term
    state.is_retiring = False
    state.heartbeat_elapsed_ticks = 0
    state.disk.begin_leading(
        state.now_tick, state.now_tick + state.options.hand_over_interval_ticks
    )
    state.preference.begin_leading()
    track_members(state)
    index = state.log.append(state.term, state.options.noop_size)
    state.persists.want_append(index, index)
    state.term_start_index = index
    state.noop = Proposed(index, state.term)
    state.appends_due = True


def track_members(state: RaftState) -> None:
    """Keep one `Progress` per other member of the configuration in force, and disk: what another
    disk had acknowledged is not on this one."""
    configuration = state.log.configuration
    next_index = Index(state.log.last_index + 1)
    known, state.peers = state.peers, {}
    for peer in sorted(configuration.members() - {state.node}):
        disk, progress = configuration.disk_of(peer), known.get(peer)
        if progress is None or progress.disk != disk:
            progress = Progress(peer, disk, next_index, state.now_tick)
        state.peers[peer] = progress


def start_retry_timer(state: RaftState) -> None:
    """Set the time until the next campaign.

    Normally a fresh random timeout. After a suspected leader the retry is quick, with a spread
    that doubles each time, so that split votes stay cheap; after three it is normal again.
    """
    options = state.options
    attempt = state.suspicion_attempt
    if not 0 < attempt <= _SUSPICION_RETRIES + 1:
        state.suspicion_attempt = 0
        state.reset_election_timer()
        return
    longest = options.suspicion_delay_max_ticks
    # A round under way gets the time to be answered; a lost one may be followed at once.
    is_waiting = state.role is not Role.FOLLOWER
    least = longest if is_waiting else options.suspicion_delay_min_ticks
    most = max(least, min(longest << attempt, options.election_timeout_max_ticks))
    state.election_elapsed_ticks = 0
    state.election_timeout_ticks = state.rng.randint(least, most)


def end_transfer(state: RaftState, outcome: str) -> None:
    """Close the handover under way, if there is one."""
    if state.transfer is not None:
        state.emit(TransferEnded(state.transfer.target, outcome))
        state.transfer = None


def _lay_down_leadership(state: RaftState) -> None:
    # The transfer stays: who is heard as the next leader decides whether it was done.
    state.read_results.extend(state.reads.abort())
    state.reads_round = 0
    state.peers = {}
    state.appends_due = state.has_more_to_send = False

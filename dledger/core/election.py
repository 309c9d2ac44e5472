"""Elections: timeouts, pre-votes, votes, and the suspicion of a leader whose stream broke.

A vote is granted in `on_vote_request`, under the conditions of `_may_vote_for`. A pre-vote never
changes the receiver's term or vote. A node that trusts a living leader answers neither
(stickiness), unless leadership is being transferred.

An election takes two saves, the candidate's and its voters', and a disk may take longer for them
than any timeout. So a node's time stands still while its term or vote is being saved, and a
candidate's voters get as long for theirs; meanwhile nobody is told that it would vote for the next
term; and votes that come after a candidate has begun to ask for that one count for this one: it has
given it its own vote, and follows nobody.

Source: Raft paper §5.2, §5.4.1; dissertation §3.10, §4.2.3 (disruptive servers), §9.6.
"""

from __future__ import annotations

from typing import assert_never

from dledger.core.quorum import VoteResult, has_quorum, vote_result
from dledger.core.roles import (
    become_candidate,
    become_follower,
    become_leader,
    become_pre_candidate,
)
from dledger.core.sick_disk import yielded_ticks
from dledger.core.state import MOST_DOUBLINGS, RaftState
from dledger.core.types import (
    CampaignReason,
    Index,
    NodeId,
    PreVoteRequest,
    PreVoteResponse,
    Role,
    Term,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)


def on_election_tick(state: RaftState) -> None:
    """One tick of a node that does not lead; campaigns when its time is up. While its term or vote
    isn't durable what it says is held: nobody would hear that it campaigns again."""
    if not state.persists.hard_state_is_durable:
        if state.role is Role.CANDIDATE:
            _grant_a_tick(state)
        return
    state.election_elapsed_ticks += 1
    if state.election_elapsed_ticks < state.election_timeout_ticks + yielded_ticks(state):
        return
    if not state.is_promotable():
        state.reset_election_timer()
        return
    if state.suspicion_attempt:
        state.suspicion_attempt += 1
    if state.options.pre_vote:
        become_pre_candidate(state)
        _count_pre_votes(state)
    else:
        become_candidate(state, CampaignReason.TIMEOUT)


def hasten_election(state: RaftState) -> None:
    """The next tick is the one at which this node campaigns, unless it follows somebody by then;
    with PreVote, and as late as ever where it isn't fit to lead."""
    if state.role is Role.FOLLOWER and state.leader is None:
        state.election_elapsed_ticks = state.election_timeout_ticks


def on_own_vote_durable(state: RaftState) -> None:
    """The candidate's vote for itself survives a crash: it counts from now on (ADR 3)."""
    if state.role is Role.CANDIDATE and state.node not in state.votes:
        state.votes[state.node] = True
        _count_votes(state)


def on_pre_vote_request(state: RaftState, message: PreVoteRequest) -> None:
    """Say whether a vote would be granted; nothing here changes. Whose vote is being saved says
    nothing: it would be told together with that vote, and depose whoever is elected by it."""
    if not state.persists.hard_state_is_durable:
        return  # it is asked again
    granted = (
        message.term >= state.term
        and state.is_known
        and not state.is_in_doubt
        and not _is_sticky(state)
        and _is_fresh(state, message.last_index, message.last_term)
        and (message.term > state.term or _is_free_to_vote_for(state, message.sender))
    )
    # A refusal carries this node's term, so that one who lags behind catches up.
    term = message.term if granted else state.term
    state.send(PreVoteResponse(state.node, message.sender, term, granted))


def on_pre_vote_response(state: RaftState, message: PreVoteResponse) -> None:
    """Count it if it belongs to the round under way."""
    if not message.granted and message.term > state.term:
        become_follower(state, message.term, None, reason="higher term in a pre-vote answer")
        return
    if state.role is not Role.PRE_CANDIDATE:
        return
    if message.granted and message.term != state.term + 1:
        return
    state.pre_votes[message.sender] = message.granted
    _count_pre_votes(state)


def on_vote_request(state: RaftState, message: VoteRequest) -> None:
    """Grant the vote of this term at most once, and only to a log at least as fresh."""
    is_transfer = message.reason is CampaignReason.TRANSFER
    if message.term > state.term:
        if not is_transfer and _is_sticky(state):
            return
        become_follower(state, message.term, None, reason="higher term in a vote request")
    granted = message.term == state.term and _may_vote_for(state, message)
    if granted:
        if state.vote is None:
            state.set_vote(message.sender)
        state.reset_election_timer()
    state.send(VoteResponse(state.node, message.sender, state.term, granted))


def on_vote_response(state: RaftState, message: VoteResponse) -> None:
    """Count the answer of this term's election, late ones too. The own vote is there from when it
    is durable until this node follows: its log is the one that the voters were told of."""
    if state.node in state.votes:
        state.votes[message.sender] = message.granted
        _count_votes(state)


def on_timeout_now(state: RaftState, message: TimeoutNow) -> None:
    """The leader that this node follows hands over: campaign at once, without PreVote
    (dissertation §3.10)."""
    if state.term_leader == message.sender:
        campaign_at_once(state)


def campaign_at_once(state: RaftState) -> None:
    """Without PreVote, and heard by those who have a leader, if this node may campaign."""
    if state.is_promotable():
        become_candidate(state, CampaignReason.TRANSFER)


def suspect_leader(state: RaftState, peer: NodeId) -> None:
    """Forget the leader `peer` and campaign soon; its next message restores everything."""
    if state.role is not Role.FOLLOWER or state.leader != peer:
        return
    options = state.options
    state.set_leader(None)
    state.suspicion_attempt = 1
    left = state.election_timeout_ticks - state.election_elapsed_ticks
    delay = state.rng.randint(options.suspicion_delay_min_ticks, options.suspicion_delay_max_ticks)
    state.election_elapsed_ticks = 0
    state.election_timeout_ticks = max(1, min(left, delay))


def _grant_a_tick(state: RaftState) -> None:
    """One more for the voters, who save as well: their disks may be as slow as this one."""
    most = state.options.election_timeout_max_ticks << MOST_DOUBLINGS
    state.election_elapsed_ticks = max(-most, state.election_elapsed_ticks - 1)


def _may_vote_for(state: RaftState, message: VoteRequest) -> bool:
    return (
        state.is_known
        and not state.is_in_doubt
        and _is_free_to_vote_for(state, message.sender)
        and _is_fresh(state, message.last_index, message.last_term)
    )


def _is_free_to_vote_for(state: RaftState, candidate: NodeId) -> bool:
    """One vote per term; the same candidate may ask again (`test_s06`)."""
    if state.vote is None:
        return state.term_leader is None
    return state.vote == candidate


def _is_fresh(state: RaftState, last_index: Index, last_term: Term) -> bool:
    """§5.4.1: by the last *entry's* term, never by the current term (DLedger #52)."""
    return (last_term, last_index) >= (state.log.last_term, state.log.last_index)


def _is_sticky(state: RaftState) -> bool:
    if state.role is not Role.LEADER:
        return state.trusts_a_leader()
    window = state.options.election_timeout_min_ticks
    active = {
        progress.peer
        for progress in state.peers.values()
        if state.now_tick - progress.last_heard_tick < window
    }
    return has_quorum(state.log.configuration, active | {state.node})


def _count_pre_votes(state: RaftState) -> None:
    result = vote_result(state.log.configuration, state.pre_votes)
    match result:
        case VoteResult.PENDING:
            pass
        case VoteResult.LOST:
            become_follower(state, state.term, None, reason="lost the election")
        case VoteResult.WON:
            become_candidate(state, CampaignReason.TIMEOUT)
        case _:
            assert_never(result)


def _count_votes(state: RaftState) -> None:
    result = vote_result(state.log.configuration, state.votes)
    match result:
        case VoteResult.PENDING:
            pass
        case VoteResult.LOST:
            if state.role is Role.CANDIDATE:  # else it asks for the next one already
                become_follower(state, state.term, None, reason="lost the election")
        case VoteResult.WON:
            become_leader(state)
        case _:
            assert_never(result)

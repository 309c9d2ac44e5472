"""A member that knows that committed entries have rotted on its disk: what it doesn't promise until
they are back, and what it goes on doing (docs/adr/0039-rot-in-the-log-is-repaired.md)."""

from __future__ import annotations

import pytest

from dledger.core import (
    AppendResponse,
    CampaignReason,
    HandOverBegun,
    Index,
    PreVoteRequest,
    PreVoteResponse,
    RaftOptions,
    Role,
    Term,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tests.core.harness import A, B, C, Cluster, Node

OPTIONS = RaftOptions()
INTERVAL = OPTIONS.hand_over_interval_ticks
LONGEST = OPTIONS.election_timeout_max_ticks


def in_doubt(node: Node, *, is_in_doubt: bool = True) -> None:
    node.core.report_doubt(is_in_doubt=is_in_doubt)


def follower_alone() -> Node:
    """A voter that has heard nobody for longer than it trusts a leader."""
    cluster = Cluster()
    cluster.elect(A)
    cluster.deliver()
    node = cluster[B]
    for _ in range(OPTIONS.election_timeout_min_ticks):
        node.core.tick()
    return node


@pytest.mark.parametrize("is_transfer", [False, True])
def test_it_votes_for_nobody(*, is_transfer: bool) -> None:
    """Neither in a pre-vote nor in a vote, however fresh the candidate's log is; it says no."""
    node = follower_alone()
    in_doubt(node)
    asked = PreVoteRequest(C, B, Term(node.term + 1), Index(99), Term(node.term))
    assert [m.granted for m in node.step(asked) if isinstance(m, PreVoteResponse)] == [False]
    reason = CampaignReason.TRANSFER if is_transfer else CampaignReason.TIMEOUT
    vote = VoteRequest(C, B, Term(node.term + 1), Index(99), Term(node.term), reason)
    assert [m.granted for m in node.step(vote) if isinstance(m, VoteResponse)] == [False]
    assert node.core.vote is None
    in_doubt(node, is_in_doubt=False)
    again = VoteRequest(C, B, Term(node.term), Index(99), Term(node.term - 1), reason)
    assert [m.granted for m in node.step(again) if isinstance(m, VoteResponse)] == [True]


def test_it_does_not_campaign() -> None:
    """Not when its time is up, nor when a leader asks it to."""
    node = follower_alone()
    in_doubt(node)
    term = Term(node.term)
    assert node.tick(10 * LONGEST) == []
    node.step(TimeoutNow(A, B, term))
    assert (node.core.role, node.term) == (Role.FOLLOWER, term)
    in_doubt(node, is_in_doubt=False)
    node.tick(2 * LONGEST)
    assert node.core.role is not Role.FOLLOWER


def test_a_candidate_steps_back_at_once() -> None:
    """A vote that is under way to it makes no leader of it."""
    node = follower_alone()
    node.tick(2 * LONGEST)
    roles = [node.core.role]
    in_doubt(node)
    roles.append(node.core.role)
    node.step(PreVoteResponse(C, B, Term(node.term + 1), granted=True))
    roles.append(node.core.role)
    assert roles == [Role.PRE_CANDIDATE, Role.FOLLOWER, Role.FOLLOWER]


def test_it_takes_entries_and_owes_their_acknowledgement() -> None:
    """It follows and answers heartbeats, with the word that it is no successor; what it has taken
    it acknowledges when it is sound again, and others commit without it meanwhile."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.deliver()
    node = cluster[C]
    in_doubt(node)
    placed = leader.propose()
    cluster.deliver()
    cluster.tick(OPTIONS.heartbeat_ticks + 1)
    cluster.deliver()
    assert leader.core.commit_index >= placed.index, "by B"
    assert node.core.durable_index >= placed.index
    assert leader.core.statistics().peers[C].match_index < placed.index
    assert leader.core.statistics().peers[C].is_short_of_space
    assert node.core.holding.held_index == 0
    node.core.report_doubt(is_in_doubt=False)
    cluster.tick()
    cluster.deliver()
    assert leader.core.statistics().peers[C].match_index >= placed.index


def test_what_it_owes_it_gives_without_being_asked() -> None:
    """The acknowledgement is the first thing that it says."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.deliver()
    node = cluster[C]
    in_doubt(node)
    placed = leader.propose()
    cluster.deliver()
    node.take_sent()
    in_doubt(node, is_in_doubt=False)
    node.core.tick()
    said = node.core.take_effects().messages
    acknowledged = [m.match_index for m in said if isinstance(m, AppendResponse) and m.accepted]
    assert acknowledged == [placed.index]


def test_its_own_disk_does_not_count_where_it_leads() -> None:
    """With one follower away nothing is committed by it and the other alone."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.deliver()
    in_doubt(leader)
    cluster[C].crash()
    placed = leader.propose()
    cluster.deliver()
    assert leader.core.statistics().peers[B].match_index >= placed.index
    assert leader.core.commit_index < placed.index
    in_doubt(leader, is_in_doubt=False)
    assert leader.core.commit_index >= placed.index


def test_a_leader_hands_over_and_leads_no_more_while_it_lasts() -> None:
    """As one with a full disk does: to a voter that is well, an interval after its election."""
    cluster = Cluster()
    leader = cluster.elect(A)
    for _ in range(INTERVAL):
        cluster.tick()
    in_doubt(leader)
    for _ in range(INTERVAL):
        cluster.tick()
    begun = [each for each in leader.events if isinstance(each, HandOverBegun)]
    assert begun
    assert "rotted" in begun[0].reason
    assert cluster.leader() not in (None, leader)


def test_what_waited_for_the_disk_is_not_said_any_more() -> None:
    """A vote that was given, and whose write was under way when the rot was found."""
    node = follower_alone()
    node.writes_complete = False
    vote = VoteRequest(C, B, Term(node.term + 1), Index(99), Term(node.term))
    assert node.step(vote) == []
    in_doubt(node)
    said = node.complete_writes()
    assert node.disk_hard_state.vote == C, "it is durable, and nobody hears of it"
    assert not [m for m in said if isinstance(m, VoteResponse) and m.granted]


def test_what_is_on_its_way_out_is_not_said_any_more_and_still_owed() -> None:
    """One place has been repaired, and before the driver has taken the acknowledgement another one
    is found rotten (found by seed 3042 of the simulator)."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.deliver()
    node = cluster[C]
    in_doubt(node)
    placed = leader.propose()
    cluster.deliver()
    in_doubt(node, is_in_doubt=False)
    in_doubt(node)
    assert not [m for m in node.core.take_effects().messages if isinstance(m, AppendResponse)]
    in_doubt(node, is_in_doubt=False)
    said = node.core.take_effects().messages
    assert [m.match_index for m in said if isinstance(m, AppendResponse)] == [placed.index]


def test_heartbeats_are_answered_as_ever() -> None:
    """A leader with nobody else goes on: that it still leads depends on no log."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.deliver()
    in_doubt(cluster[C])
    cluster[B].crash()
    for _ in range(3 * LONGEST):
        cluster.tick()
    assert cluster.leader() is leader

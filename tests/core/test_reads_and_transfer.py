"""Linearizable reads and leadership transfer, as transcripts; numbered as in `test_election`."""

from __future__ import annotations

import pytest

from dledger.core import (
    AppendResponse,
    Configuration,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    InvariantViolation,
    NodeId,
    NotLeader,
    ProposalRefused,
    RaftOptions,
    ReadAborted,
    ReadReady,
    ReadRefused,
    Role,
    TargetUnfit,
    Term,
    TimeoutNow,
    TransferEnded,
    TransferInProgress,
    VoteRequest,
)
from tests.core.harness import A, B, C, Cluster, D, Node, entries_of

TRANSFER_TICKS = RaftOptions().transfer_timeout_ticks


def beats_to(messages: list[IncomingMessage], to: NodeId) -> list[HeartbeatRequest]:
    return [m for m in messages if isinstance(m, HeartbeatRequest) and m.to == to]


def ended(node: Node) -> list[TransferEnded]:
    return [event for event in node.events if isinstance(event, TransferEnded)]


def test_s58_no_read_before_an_entry_of_the_own_term_is_committed() -> None:
    """A new leader may not know yet what its predecessor acknowledged (dissertation §6.4)."""
    cluster = Cluster(logs={name: entries_of(1, 1) for name in (A, B, C)})
    for node in cluster.nodes.values():
        node.lose_trust()
    cluster.campaign(A)
    cluster.deliver(lambda m: not isinstance(m, AppendResponse))
    leader = cluster[A]
    assert leader.core.role is Role.LEADER
    with pytest.raises(ReadRefused):
        cluster.read(A)
    cluster.tick(12)
    context = cluster.read(A)
    cluster.deliver()
    assert leader.reads == [ReadReady(context, Index(3))]


def test_s58_only_a_leader_serves_reads() -> None:
    """A follower refuses and names the leader."""
    cluster = Cluster()
    cluster.elect(A)
    with pytest.raises(ReadRefused) as refused:
        cluster.read(B)
    assert refused.value.leader == A


def test_s59_read_needs_a_round_that_began_after_it() -> None:
    """An answer to an earlier heartbeat proves nothing about the read (dissertation §6.4)."""
    cluster = Cluster()
    leader = cluster.elect(A)
    (early,) = beats_to(leader.tick(5), B)
    context = cluster.read(A)
    (late,) = beats_to(leader.step(HeartbeatResponse(B, A, Term(1), early.read_context)), B)
    assert late.read_context > early.read_context
    assert leader.reads == []
    leader.step(HeartbeatResponse(B, A, Term(1), late.read_context))
    assert leader.reads == [ReadReady(context, Index(1))]


def test_s59_paused_old_leader_serves_no_stale_read() -> None:
    """A leader that was replaced while it slept aborts the read it began [etcd #20418]."""
    cluster = Cluster()
    old = cluster.elect(A)
    cluster.isolate(A)
    cluster.tick(80, B, C)  # A sleeps: its clock stands still
    new = cluster.leader()
    assert new is not None
    assert new is not old
    new.propose()
    cluster.deliver()
    assert old.leads, "it does not know yet"
    context = cluster.read(A)
    cluster.deliver()
    assert old.reads == []
    cluster.heal()
    cluster.tick(10)
    assert old.reads == [ReadAborted(context)]


def test_s59_partitioned_leader_aborts_its_reads_when_it_steps_down() -> None:
    """CheckQuorum ends the leadership, and the reads with it."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.isolate(A)
    contexts = [cluster.read(A), cluster.read(A)]
    cluster.tick(40, A)
    assert leader.reads == [ReadAborted(context) for context in contexts]


def test_s59_reads_of_one_turn_share_a_round() -> None:
    """Many reads cost one heartbeat to each peer."""
    cluster = Cluster()
    leader = cluster.elect(A)
    contexts = [cluster.read(A) for _ in range(5)]
    (beat,) = beats_to(leader.pump(), B)
    leader.step(HeartbeatResponse(B, A, Term(1), beat.read_context))
    assert leader.reads == [ReadReady(context, Index(1)) for context in contexts]


def test_s59_a_learners_answer_confirms_no_read() -> None:
    """Only voters prove that the leader still leads."""
    cluster = Cluster(A, B, C, D, learners=[D])
    leader = cluster.elect(A)
    cluster.read(A)
    (beat,) = beats_to(leader.pump(), D)
    leader.step(HeartbeatResponse(D, A, Term(1), beat.read_context))
    assert leader.reads == []
    leader.step(HeartbeatResponse(C, A, Term(1), beat.read_context))
    assert len(leader.reads) == 1


def test_s59_single_voter_confirms_at_once() -> None:
    """A group of one asks nobody."""
    node = Node(A, Configuration(frozenset({A})))
    node.tick(31)
    node.core.read_index(7)
    node.pump()
    assert node.reads == [ReadReady(7, Index(1))]


def test_s59_read_contexts_are_positive_and_unique() -> None:
    """A context that means two reads would complete the wrong one."""
    cluster = Cluster()
    leader = cluster.elect(A)
    leader.core.read_index(3)
    for context in (0, 3):
        with pytest.raises(InvariantViolation):
            leader.core.read_index(context)


def test_s59_pending_reads_are_bounded() -> None:
    """At the bound reads are refused."""
    cluster = Cluster(options=RaftOptions(max_pending_reads=2))
    cluster.elect(A)
    cluster.read(A)
    cluster.read(A)
    with pytest.raises(ReadRefused):
        cluster.read(A)


def test_s60_transfer_moves_leadership_at_once() -> None:
    """A caught-up target campaigns at once, without PreVote and past stickiness (§3.10)."""
    cluster = Cluster()
    old = cluster.elect(A)
    old.core.transfer_leadership(B)
    cluster.transcript.clear()
    cluster.deliver()
    assert cluster[B].core.role is Role.LEADER
    assert cluster[B].term == 2
    assert cluster.transcript[0] == "A>B TimeoutNow t1"
    assert not [line for line in cluster.transcript if "PreVote" in line]
    cluster.tick()
    assert ended(old) == [TransferEnded(B, "done")]
    assert old.core.statistics().transfer_target is None


def test_s60_target_is_caught_up_first() -> None:
    """TimeoutNow waits until the target has the whole log (§3.10)."""
    cluster = Cluster()
    leader = cluster.elect(A)
    leader.propose()
    leader.core.transfer_leadership(C)
    sent = leader.pump()
    assert not [m for m in sent if isinstance(m, TimeoutNow)]
    assert not [
        m
        for m in leader.step(AppendResponse(C, A, Term(1), True, Index(1)))
        if isinstance(m, TimeoutNow)
    ]
    sent = leader.step(AppendResponse(C, A, Term(1), True, Index(2)))
    assert [m.to for m in sent if isinstance(m, TimeoutNow)] == [C]


def test_s60_proposals_are_fenced_and_resume_after_the_timeout() -> None:
    """A transfer to a dead node blocks proposals until its timeout and no longer [DLedger #39]."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster[B].crash()
    leader.core.transfer_leadership(B)
    with pytest.raises(TransferInProgress) as refused:
        leader.propose()
    assert refused.value.target == B
    cluster.tick(TRANSFER_TICKS - 1)
    with pytest.raises(TransferInProgress):
        leader.propose()
    cluster.tick(1)
    assert ended(leader) == [TransferEnded(B, "aborted")]
    placed = leader.propose()
    cluster.deliver()
    assert leader.core.commit_index == placed.index


def test_s60_lost_timeout_now_is_sent_again() -> None:
    """The order to campaign may get lost; a heartbeat's answer brings it back."""
    cluster = Cluster()
    leader = cluster.elect(A)
    leader.core.transfer_leadership(B)
    cluster.deliver(lambda m: not isinstance(m, TimeoutNow))
    assert leader.leads
    cluster.tick(6)
    assert cluster[B].leads


def test_s60_impossible_targets_are_refused_clearly() -> None:
    """Self, strangers and learners can't be given leadership; a follower has none to give."""
    cluster = Cluster(A, B, C, D, learners=[D])
    leader = cluster.elect(A)
    for target in (A, D, NodeId("Z")):
        with pytest.raises(ProposalRefused, match=f"{target} "):
            leader.core.transfer_leadership(target)
    with pytest.raises(NotLeader):
        cluster[B].core.transfer_leadership(A)
    leader.propose()  # nothing was fenced
    single = Node(A, Configuration(frozenset({A})))
    single.tick(31)
    with pytest.raises(ProposalRefused, match="no other voter"):
        single.core.transfer_leadership(None)


def refusal(leader: Node, target: NodeId) -> str:
    """Why leadership isn't handed to `target`; nothing was fenced for that."""
    with pytest.raises(TargetUnfit) as refused:
        leader.core.transfer_leadership(target)
    assert leader.core.statistics().transfer_target is None
    leader.propose()
    return str(refused.value)


def test_s60_a_target_that_is_not_heard_is_refused_at_once() -> None:
    """Nothing is known of it for longer than an election timeout: a fence would be in vain."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.tick(5)
    cluster[B].crash()
    cluster.tick(RaftOptions().election_timeout_max_ticks + 6)
    assert refusal(leader, B) == "B wasn't heard for an election timeout"
    leader.core.transfer_leadership(C)


def test_s60_a_target_without_room_is_refused() -> None:
    """It would refuse what is sent, and hand over again."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster[B].core.report_fitness(is_short=True)
    cluster.tick(6)
    assert refusal(leader, B).startswith("B is unfit by its own word: its disk is full")


@pytest.mark.parametrize("trouble", ["space", "rot"])
def test_s60_a_leader_that_is_no_better_hands_over_to_a_level_target_without_room(
    trouble: str,
) -> None:
    """All disks are full: an operator may still say who leads, as long as nothing is to be sent."""
    cluster = Cluster()
    leader = cluster.elect(A)
    for node in (leader, cluster[B]):
        node.core.report_fitness(is_short=trouble == "space")
        node.core.report_doubt(is_in_doubt=trouble == "rot")
    cluster[B].core.report_fitness(is_short=True)
    cluster.tick(6)
    cluster.isolate(B)
    leader.propose()
    assert "unfit" in refusal(leader, B), "it can't take what it lacks"
    cluster.heal()
    cluster[B].core.report_doubt(is_in_doubt=False)
    cluster.tick(12)
    leader.core.transfer_leadership(B)
    cluster.deliver()
    assert cluster[B].leads


def test_s60_a_target_that_lacks_more_than_is_under_way_at_a_time_is_refused() -> None:
    """By count and by size; one that lacks less is caught up within the transfer."""
    for options in (
        RaftOptions(max_inflight_appends=2, max_append_entries=2),
        RaftOptions(max_inflight_bytes=400),
    ):
        cluster = Cluster(options=options)
        leader = cluster.elect(A)
        cluster[B].writes_complete = False
        for _ in range(4):
            leader.propose()
        cluster.deliver()
        leader.core.transfer_leadership(B)
        cluster.tick(TRANSFER_TICKS)
        assert ended(leader) == [TransferEnded(B, "aborted")]
        leader.propose()
        cluster.deliver()
        assert refusal(leader, B) == "B lacks 5 entries"


def test_s60_of_a_target_of_which_nothing_is_known_yet_nothing_is_held_against_it() -> None:
    """Just elected, a leader knows no matching entry of it: the timeout bounds what that costs."""
    many = entries_of(*(1 for _ in range(9)))
    options = RaftOptions(max_inflight_appends=1, max_append_entries=1)
    cluster = Cluster(logs=dict.fromkeys((A, B, C), many), options=options)
    cluster.isolate(B)
    cluster.campaign(A)
    cluster.deliver()
    assert cluster[A].core.is_ready_leader
    cluster[A].core.transfer_leadership(B)
    cluster.heal()
    cluster.tick(12)
    assert cluster[B].leads


def test_s60_best_caught_up_voter_is_chosen() -> None:
    """Without a target, the voter with the longest log takes over."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.isolate(B)
    leader.propose()
    cluster.deliver()
    leader.core.transfer_leadership(None)
    assert leader.core.statistics().transfer_target == C
    leader.core.transfer_leadership(C)  # again: nothing changes
    with pytest.raises(TransferInProgress):
        leader.core.transfer_leadership(B)


def test_s60_transfer_waits_for_the_targets_disk() -> None:
    """The target asks for votes only when its own vote is durable (ADR 3)."""
    cluster = Cluster()
    cluster.elect(A)
    target = cluster[B]
    target.writes_complete = False
    assert target.step(TimeoutNow(A, B, Term(1))) == []
    assert {type(m) for m in target.complete_writes()} == {VoteRequest}


def test_s60_reads_survive_a_transfer_that_is_aborted() -> None:
    """A read that began before goes on: the leader still leads."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster[B].crash()
    leader.core.transfer_leadership(B)
    context = cluster.read(A)
    cluster.deliver()
    assert leader.reads == [ReadReady(context, Index(1))]

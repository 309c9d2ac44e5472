"""Replication, as transcripts of the pure core; numbered as in `test_election`."""

from __future__ import annotations

import tracemalloc

import pytest

from dledger.core import (
    AppendRange,
    AppendRequest,
    AppendResponse,
    Configuration,
    Contradiction,
    EntryMeta,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    InvariantViolation,
    LogTruncated,
    NodeId,
    NotLeader,
    PersistSequence,
    PreVoteRequest,
    PreVoteResponse,
    ProposalRefused,
    Raft,
    RaftOptions,
    Role,
    StorageFailed,
    Term,
    TermRun,
    TooMuchUncommitted,
    VoteRequest,
    VoteResponse,
)
from dledger.core.log import RaftLog
from dledger.core.types import EntryKind, LogSummary
from tests.core.harness import A, B, C, Cluster, D, E, Node, entries_of

THREE = Configuration(frozenset({A, B, C}))
FIGURE_7_LEADER = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
FIGURE_7_FOLLOWERS = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


def append(
    term: int,
    prev: int,
    prev_term: int,
    *terms: int,
    commit: int = 0,
    size: int = 100,
    sender: NodeId = B,
) -> AppendRequest:
    entries = tuple(entries_of(*terms, first=prev + 1, size=size))
    return AppendRequest(
        sender, A, Term(term), Index(prev), Term(prev_term), entries, Index(commit)
    )


def ack(match: int, term: int) -> AppendResponse:
    return AppendResponse(A, B, Term(term), True, Index(match))


def appends_to(messages: list[IncomingMessage], to: NodeId) -> list[AppendRequest]:
    return [m for m in messages if isinstance(m, AppendRequest) and m.to == to]


def connected(leader_is: Node, options: RaftOptions | None = None) -> Node:
    """`leader_is` elected, with both peers acknowledging the no-op, in REPLICATE."""
    node = leader_is
    for message in node.tick(30):
        if isinstance(message, PreVoteRequest) and node.core.role is Role.PRE_CANDIDATE:
            node.step(PreVoteResponse(message.to, A, message.term, True))
    assert node.core.role is Role.CANDIDATE
    term = node.core.term
    node.step(VoteResponse(B, A, term, True))
    for peer in (B, C):
        node.step(AppendResponse(peer, A, term, True, node.core.last_index))
    assert node.core.is_ready_leader
    return node


@pytest.mark.parametrize("which", list(FIGURE_7_FOLLOWERS))
def test_s26_figure_7_followers_converge(which: str) -> None:
    """Each follower of figure 7 converges to the leader's log (§5.3)."""
    leader_log = entries_of(*FIGURE_7_LEADER)
    logs = {A: leader_log, B: leader_log, C: entries_of(*FIGURE_7_FOLLOWERS[which])}
    # The term of the leader in the figure is 8; (d) holds entries of term 7.
    cluster = Cluster(logs=logs, terms={A: 7, B: 7, C: 7})
    cluster.cut |= {(C, A), (C, B)}
    leader = cluster.elect(A)
    cluster.heal()
    cluster.tick(20)
    assert leader.terms() == [*FIGURE_7_LEADER, 8]
    assert cluster[C].log == leader.log
    assert cluster[C].disk == leader.log
    assert cluster[C].core.commit_index == 11


def test_s27_old_term_entry_is_not_committed_by_counting() -> None:
    """Figure 8: an old term's entry on a majority commits only with one of this term (§5.4.2)."""
    node = Node(A, Configuration(frozenset({A, B, C, D, E})), entries=entries_of(1, 2), term=3)
    for message in node.tick(30):
        if isinstance(message, PreVoteRequest) and node.core.role is Role.PRE_CANDIDATE:
            node.step(PreVoteResponse(message.to, A, message.term, True))
    assert node.core.role is Role.CANDIDATE
    node.step(VoteResponse(B, A, Term(4), True))
    node.step(VoteResponse(C, A, Term(4), True))
    assert node.terms() == [1, 2, 4]
    for peer in (B, C):  # figure 8 (c): entry 2 is on a majority
        node.step(AppendResponse(peer, A, Term(4), True, Index(2)))
    assert node.core.commit_index == 0
    for peer in (B, C):  # figure 8 (e)
        node.step(AppendResponse(peer, A, Term(4), True, Index(3)))
    assert node.core.commit_index == 3


def test_s28_uncommitted_tail_of_an_old_leader_is_overwritten() -> None:
    """An old leader's uncommitted entries give way to the new leader's log (§5.3)."""
    cluster = Cluster()
    old = cluster.elect(A)
    cluster.isolate(A)
    for _ in range(3):
        old.propose()
    cluster.tick(40)
    new = cluster.leader()
    assert new is not None
    assert new is not old
    new.propose()
    cluster.heal()
    cluster.tick(30)
    assert old.log == new.log == old.disk
    assert old.terms() == [1, new.term, new.term]
    assert LogTruncated(Index(2), Term(new.term)) in old.events


def test_s29_stale_append_never_truncates_a_matching_suffix() -> None:
    """A reordered older append leaves the longer, matching log alone (§5.3)."""
    node = Node(A, THREE)
    node.step(append(1, 0, 0, 1, 1, 1, 1))
    node.step(append(1, 0, 0, 1, 1))
    node.step(append(1, 1, 1))
    assert node.terms() == [1, 1, 1, 1]
    assert not [event for event in node.events if isinstance(event, LogTruncated)]


@pytest.mark.parametrize(
    "message",
    [append(9, 0, 0, 1, 2), append(9, 1, 1, 2, 2, 2), append(9, 2, 2), append(9, 3, 2, 3)],
    ids=["entry", "entry-and-more", "prev-at-commit-1", "prev-at-commit"],
)
def test_s30_truncation_below_commit_is_refused(message: AppendRequest) -> None:
    """A leader that contradicts a committed entry is refused, never silently, and what it says
    changes nothing: neither the log nor the term."""
    node = Node(A, THREE, entries=entries_of(1, 1, 1, 1), term=8)
    node.start(commit_index=Index(3))
    before = node.core.statistics()
    with pytest.raises(Contradiction):
        node.step(message)
    assert node.core.statistics() == before
    assert node.pump() == []
    assert [entry.term for entry in node.disk] == [1, 1, 1, 1]


def test_s31_append_below_commit_is_answered_with_the_commit_index() -> None:
    """An append below the commit index is answered with it, and nothing is rewritten."""
    node = Node(A, THREE, entries=entries_of(1, 1, 1, 1))
    node.start(commit_index=Index(3))
    disk = list(node.disk)
    assert node.step(append(1, 0, 0, 1, 1)) == [ack(3, 1)]
    assert node.disk == disk
    # One that reaches beyond the commit index is used from there on.
    assert node.step(append(1, 1, 1, 1, 1, 1, 1)) == [ack(5, 1)]
    assert node.terms() == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("long_side", ["follower", "leader"])
def test_s32_back_off_takes_a_round_per_term(long_side: str) -> None:
    """Conflict hints skip whole terms, whichever log is longer (§5.3)."""
    divergent = (1, *[2] * 200, *[4] * 200, *[6] * 200)
    short = (1, *[3] * 20, *[5] * 20)
    follower, leader = (divergent, short) if long_side == "follower" else (short, divergent)
    if long_side == "follower":
        leader = (*leader, 7)
    cluster = Cluster(logs={A: entries_of(*leader), C: entries_of(*follower), B: []})
    cluster.elect(A)
    cluster.tick(20)
    assert cluster[C].log == cluster[A].log
    refusals = [line for line in cluster.transcript if "C>A AppendR" in line and "False" in line]
    assert 1 <= len(refusals) <= 6


def test_s33_duplicate_appends_are_idempotent() -> None:
    """A duplicate append changes nothing and is acknowledged again (§5.5)."""
    node = Node(A, THREE)
    message = append(1, 0, 0, 1, 1, commit=1)
    assert node.step(message) == [ack(2, 1)]
    before = (list(node.disk), node.core.statistics())
    assert node.step(message) == [ack(2, 1)]
    assert (node.disk, node.core.statistics()) == before


def test_s33_duplicate_of_an_append_being_written_waits_for_the_disk() -> None:
    """A duplicate is not acknowledged before the first one's entries are durable (ADR 3)."""
    node = Node(A, THREE)
    node.writes_complete = False
    message = append(1, 0, 0, 1, 1)
    assert node.step(message) == []
    assert node.step(message) == []
    assert node.complete_writes() == [ack(2, 1)]


def test_s33_acknowledgement_waits_for_the_disk() -> None:
    """A follower acknowledges an entry when it is durable and not before (figure 2, ADR 3)."""
    node = Node(A, THREE, term=1)
    node.writes_complete = False
    assert node.step(append(1, 0, 0, 1)) == []
    assert node.step(append(1, 1, 1, 1, 1)) == []
    assert node.complete_writes(1) == [ack(1, 1)], "as far as the disk has come"
    assert node.complete_writes() == [ack(3, 1)]


def test_s33_acknowledgement_covers_only_what_this_leader_verified() -> None:
    """A tail that this leader has not shown is not acknowledged, though it is durable."""
    node = Node(A, THREE, entries=entries_of(1, 1, 1, 1))
    assert node.step(append(2, 2, 1)) == [ack(2, 2)]


def test_s34_full_window_pauses_a_peer() -> None:
    """A full window pauses the peer; an acknowledgement resumes it."""
    options = RaftOptions(max_inflight_appends=2, max_append_bytes=150)
    node = connected(Node(A, THREE, options=options))
    for _ in range(5):
        node.propose(100)
    sent = appends_to(node.pump(), B)
    assert [m.entries[0].index for m in sent] == [2, 3]
    assert node.core.statistics().peers[B].inflight == 2
    node.propose(100)
    assert appends_to(node.pump(), B) == []
    sent = appends_to(node.step(AppendResponse(B, A, Term(1), True, Index(2))), B)
    assert [m.entries[0].index for m in sent] == [4]


def test_s34_window_is_bounded_in_bytes_too() -> None:
    """No append is added once the window's bytes are under way."""
    options = RaftOptions(max_inflight_bytes=250, max_append_bytes=100)
    node = connected(Node(A, THREE, options=options))
    for _ in range(6):
        node.propose(100)
    assert len(appends_to(node.pump(), B)) == 3


def test_s34_heartbeat_answers_resume_a_stuck_window() -> None:
    """When appends or their answers are lost, heartbeat answers bring the peer back."""
    node = connected(Node(A, THREE, options=RaftOptions(max_inflight_appends=1)))
    node.propose()
    (lost,) = appends_to(node.pump(), B)
    node.propose()
    resent: list[AppendRequest] = []
    for _ in range(5):
        for message in node.tick(5):
            if isinstance(message, HeartbeatRequest):
                answer = HeartbeatResponse(message.to, A, Term(1), message.read_context, Index(1))
                resent += appends_to(node.step(answer), B)
    assert resent[0].entries[0] == lost.entries[0]


def test_s34_old_heartbeat_answers_prove_no_loss() -> None:
    """Answers to heartbeats sent before the append say nothing about it."""
    node = connected(Node(A, THREE))
    beats = [m for m in node.tick(25) if isinstance(m, HeartbeatRequest) and m.to == B]
    node.propose()
    assert len(appends_to(node.pump(), B)) == 1
    for beat in beats:
        answer = HeartbeatResponse(B, A, Term(1), beat.read_context, Index(1))
        assert appends_to(node.step(answer), B) == []
    assert node.core.statistics().peers[B].state == "replicate"


def test_s34_proposals_of_one_turn_become_one_append() -> None:
    """Sends are lazy: a turn's proposals travel together (ADR 10)."""
    node = connected(Node(A, THREE))
    for _ in range(10):
        node.propose()
    sent = node.pump()
    assert [len(m.entries) for m in appends_to(sent, B)] == [10]
    assert [len(m.entries) for m in appends_to(sent, C)] == [10]


def test_s35_unreachable_peer_is_probed_and_then_replicated() -> None:
    """Unreachable: replicate becomes probe; caught up: probe becomes replicate."""
    node = connected(Node(A, THREE))
    node.core.peer_unreachable(B)
    assert node.core.statistics().peers[B].state == "probe"
    for _ in range(3):
        node.propose()
    (probe,) = appends_to(node.pump(), B)
    assert probe.prev_index == 1
    node.propose()
    assert appends_to(node.pump(), B) == [], "one probe at a time"
    sent = node.step(AppendResponse(B, A, Term(1), True, Index(1)))
    assert node.core.statistics().peers[B].state == "replicate"
    assert [m.entries[0].index for m in appends_to(sent, B)] == [2]


def test_s35_lost_probe_is_repeated_after_a_heartbeat_answer() -> None:
    """A probe that got lost is sent again when the peer answers a later heartbeat."""
    node = connected(Node(A, THREE))
    node.core.peer_unreachable(B)
    assert len(appends_to(node.pump(), B)) == 1
    (beat,) = [m for m in node.tick(5) if isinstance(m, HeartbeatRequest) and m.to == B]
    answer = HeartbeatResponse(B, A, Term(1), beat.read_context, Index(1))
    assert len(appends_to(node.step(answer), B)) == 1


def test_s35_slow_disk_is_not_flooded_with_probes() -> None:
    """A probe that has arrived is not repeated with every heartbeat while the disk is slow."""
    node = connected(Node(A, THREE))
    node.core.peer_unreachable(B)
    node.propose()
    assert len(appends_to(node.pump(), B)) == 1
    repeated = []
    for round_number in range(1, 12):
        for beat in [m for m in node.tick(5) if isinstance(m, HeartbeatRequest)]:
            answer = HeartbeatResponse(beat.to, A, Term(1), beat.read_context, Index(2))
            if appends_to(node.step(answer), B):
                repeated.append(round_number)
    assert repeated == [9]


def test_s35_refusal_of_a_gap_resends_from_the_gap() -> None:
    """A follower that misses an append refuses the next one, and both are sent again (§5.3)."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.tick(10)
    leader.propose()
    leader.pump()  # lost
    leader.propose()
    cluster.deliver()
    assert [cluster[name].core.last_index for name in (A, B, C)] == [3, 3, 3]


def test_s36_cap_on_uncommitted_bytes() -> None:
    """At the cap proposals are refused, retriably; after commit they are taken again."""
    node = connected(Node(A, THREE, options=RaftOptions(max_uncommitted_bytes=1000)))
    node.propose(5000)  # nothing is uncommitted: any size is taken
    with pytest.raises(TooMuchUncommitted):
        node.propose(1)
    node.pump()
    node.step(AppendResponse(B, A, Term(1), True, Index(2)))
    for _ in range(10):
        node.propose(100)
    with pytest.raises(TooMuchUncommitted) as refused:
        node.propose(1)
    assert (refused.value.uncommitted_bytes, refused.value.limit) == (1000, 1000)
    assert node.core.statistics().uncommitted_bytes == 1000


def test_s36_memory_does_not_grow_with_the_log() -> None:
    """Memory is O(term runs + uncommitted entries), never O(entries) (ADR 4)."""
    log = RaftLog(THREE, LogSummary(), Index(0))

    def grow(entries: int) -> None:
        for _ in range(entries):
            log.commit_to(log.append(Term(1), 100))

    grow(1000)
    tracemalloc.start()
    grow(20_000)
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert current < 20_000
    assert log.term_at(Index(17)) == 1
    assert log.bytes_between(Index(17), Index(18)) is None


def test_s37_single_voter_commits_only_what_is_durable() -> None:
    """A group of one commits when its own disk is done, not before [etcd #14370]."""
    node = Node(A, Configuration(frozenset({A})))
    node.tick(31)
    assert node.core.is_ready_leader
    node.writes_complete = False
    placed = node.propose()
    node.pump()
    assert node.core.commit_index == placed.index - 1
    node.complete_writes()
    assert node.core.commit_index == placed.index


def test_s38_late_completion_counts_for_no_other_entry() -> None:
    """A write of an old term completes late: the new entry at its index is not durable yet
    [etcd: append ABA race]."""
    node = Node(A, THREE, term=2)
    node.writes_complete = False
    node.step(append(1, 0, 0, 1, 1))  # an older leader's: refused
    node.step(append(2, 0, 0, 2, 2))
    node.pump()
    node.step(append(3, 1, 2, 3, 3))  # truncates 2, writes other entries at 2 and 3
    assert node.complete_writes(1) == []
    assert node.core.durable_index == 1, "entry 2 of term 2 is not entry 2 of term 3"
    assert node.complete_writes()[-1] == ack(3, 3)
    assert node.core.durable_index == 3


def test_s38_durable_index_falls_with_a_truncation() -> None:
    """Entries that are truncated are not durable any more, whatever was reported."""
    node = Node(A, THREE, entries=entries_of(1, 1, 1))
    node.writes_complete = False
    node.step(append(2, 1, 1, 2, 2))
    assert node.core.durable_index == 1
    with pytest.raises(InvariantViolation):
        node.core.on_persisted(PersistSequence(99))


def test_s39_followers_commit_past_a_slow_leader_disk() -> None:
    """The leader's disk is slow: entries commit through the followers (dissertation §10.2.1)."""
    node = connected(Node(A, THREE))
    node.writes_complete = False
    placed = node.propose()
    assert len(appends_to(node.pump(), B)) == 1, "sent in parallel with the own write"
    node.step(AppendResponse(B, A, Term(1), True, placed.index))
    assert node.core.commit_index == placed.index - 1, "B alone is no majority"
    node.step(AppendResponse(C, A, Term(1), True, placed.index))
    assert node.core.commit_index == placed.index
    assert node.core.durable_index == placed.index - 1


def test_s40_leader_whose_storage_fails_stops_leading() -> None:
    """The leader's storage fails: it stops leading and falls silent (ADR 8)."""
    cluster = Cluster()
    leader = cluster.elect(A)
    leader.propose()
    leader.core.on_storage_failed()
    assert leader.pump() == []
    assert leader.core.role is Role.FOLLOWER
    assert StorageFailed(Term(1)) in leader.events
    with pytest.raises(NotLeader):
        leader.propose()
    cluster.tick(60)
    new = cluster.leader()
    assert new is not None
    assert new is not leader
    assert leader.step(append(9, 0, 0, 1)) == []
    assert not leader.core.has_effects()


def test_s41_commit_never_exceeds_what_is_verified() -> None:
    """A follower commits at most what this leader has shown to be there [DLedger #278]."""
    node = Node(A, THREE, entries=entries_of(1, 1, 1, 1))
    node.step(append(2, 1, 1, commit=4))
    assert node.core.commit_index == 1
    node.step(HeartbeatRequest(B, A, Term(2), Index(4), 1))
    assert node.core.commit_index == 1
    node.step(append(2, 1, 1, 1, commit=9))
    assert node.core.commit_index == 2


def test_s41_what_an_old_leader_verified_is_forgotten() -> None:
    """A new term's leader has to verify anew: its log may differ (§5.3)."""
    node = Node(A, THREE)
    node.step(append(1, 0, 0, 1, 1, 1))
    node.step(HeartbeatRequest(C, A, Term(2), Index(3), 1))
    assert node.core.commit_index == 0


def test_s41_leader_clamps_the_commit_of_heartbeats() -> None:
    """A heartbeat names at most what this follower is known to match (§5.3)."""
    node = connected(Node(A, THREE))
    node.propose()
    node.pump()
    node.step(AppendResponse(B, A, Term(1), True, Index(2)))
    beats = {m.to: m.commit_index for m in node.tick(5) if isinstance(m, HeartbeatRequest)}
    assert beats == {B: 2, C: 1}


def test_s42_commit_stays_below_last_after_truncation() -> None:
    """Commit index ≤ last index after every truncation [DLedger #316]."""
    node = Node(A, THREE, entries=entries_of(1, 1, 1, 1))
    node.step(append(2, 2, 1, 2, commit=4))
    assert node.terms() == [1, 1, 2]
    assert (node.core.commit_index, node.core.last_index) == (3, 3)
    log = RaftLog(THREE, LogSummary(Index(3), (TermRun(Index(1), Term(1)),)), Index(2))
    with pytest.raises(InvariantViolation):
        log.commit_to(Index(4))
    with pytest.raises(InvariantViolation):
        log.truncate_from(Index(2))


def test_s43_wiped_follower_of_an_idle_leader_is_replicated_again() -> None:
    """A follower that lost its disk gets everything again without a new write [DLedger #61]."""
    cluster = Cluster()
    leader = cluster.elect(A)
    for _ in range(20):
        leader.propose()
    cluster.tick(20)
    cluster[C].crash()
    cluster[C].disk.clear()
    cluster[C].disk_hard_state = type(cluster[C].disk_hard_state)()
    cluster[C].start()
    cluster.tick(20)
    assert cluster[C].disk == leader.log
    assert cluster[C].core.commit_index == leader.core.commit_index
    assert (leader.leads, leader.term) == (True, 1)


def test_s43_what_a_wiped_follower_had_does_not_count_any_more() -> None:
    """A peer that refuses what it acknowledged has lost it: its match is taken back."""
    node = connected(Node(A, THREE))
    node.core.peer_unreachable(B)
    (probe,) = appends_to(node.pump(), B)
    refusal = AppendResponse(
        B,
        A,
        Term(1),
        False,
        rejected_prev_index=probe.prev_index,
        conflict_first_index=Index(1),
    )
    (again,) = appends_to(node.step(refusal), B)
    assert (again.prev_index, len(again.entries)) == (0, 1)
    assert node.core.statistics().peers[B].match_index == 0


def test_s43_restarted_follower_of_an_idle_leader_learns_the_commit_index() -> None:
    """A restart forgets the commit index; an idle leader gives it back without resending."""
    cluster = Cluster()
    leader = cluster.elect(A)
    leader.propose()
    cluster.tick(20)
    cluster[C].crash()
    cluster[C].start()
    assert cluster[C].core.commit_index == 0
    cluster.transcript.clear()
    cluster.tick(15)
    assert cluster[C].core.commit_index == 2
    assert [line for line in cluster.transcript if "A>C Append" in line] == [
        "A>C AppendRequest t1 prev=2/1 [3..2] commit=2"
    ]


@pytest.mark.parametrize(
    "message",
    [append(1, 1, 1, 1), append(2, 3, 1, 2), append(2, 2, 2, 2)],
    ids=["old term", "gap", "other entry before"],
)
def test_s44_changes_are_fenced_by_term_and_previous_entry(message: AppendRequest) -> None:
    """A message changes the log only in its term and after a matching entry (§5.3)."""
    node = Node(A, THREE, entries=entries_of(1, 1), term=2)
    disk = list(node.disk)
    (answer,) = node.step(message)
    assert isinstance(answer, AppendResponse)
    assert (answer.accepted, answer.term) == (False, 2)
    assert node.disk == disk


def test_s44_second_leader_of_a_term_is_refused() -> None:
    """Two leaders in one term mean that one of them lies: the first one heard stays (§5.2)."""
    node = Node(A, THREE)
    node.step(append(1, 0, 0, 1, sender=B))
    before = node.core.statistics()
    with pytest.raises(Contradiction):
        node.step(append(1, 0, 0, 1, sender=C))
    assert node.core.statistics() == before


# --- Beyond the numbered scenarios ----------------------------------------------------------


class NoView:
    """A view that must not be asked."""

    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int:
        raise AssertionError("asked")


def test_appends_are_cut_to_their_size() -> None:
    """An append holds at most max_append_bytes, and at least one entry."""
    node = connected(Node(A, THREE, options=RaftOptions(max_append_bytes=250)))
    for size in (100, 100, 100, 900, 100):
        node.propose(size)
    sent = appends_to(node.pump(), B)
    assert [[entry.size for entry in m.entries] for m in sent] == [[100, 100], [100], [900], [100]]


def test_the_view_is_not_asked_for_one_entry() -> None:
    """The no-op's frame is not in the log when the effects are made: nobody asks for it."""
    cluster = Cluster()
    cluster[A].core._state.view = NoView()
    cluster.elect(A)
    assert cluster[A].core.is_ready_leader


def test_proposal_waits_for_the_noop_frame() -> None:
    """Between the election and its effects a proposal would overtake the no-op's frame."""
    node = Node(A, Configuration(frozenset({A})))
    for _ in range(31):
        node.core.tick()
    persist = node.core.take_effects().persist
    assert persist is not None
    node.core.on_persisted(persist.sequence)
    assert node.core.role is Role.LEADER
    with pytest.raises(ProposalRefused):
        node.core.propose(100)
    assert node.core.take_effects().noop is not None
    assert node.core.propose(100).index == 2


def test_eager_commit_tells_an_idle_peer_at_once() -> None:
    """With eager_commit an empty append carries a new commit index; by default none does."""
    for eager in (False, True):
        node = connected(Node(A, THREE, options=RaftOptions(eager_commit=eager)))
        node.take_sent()
        placed = node.propose()
        node.pump()
        sent = node.step(AppendResponse(B, A, Term(1), True, placed.index))
        told = [(m.to, m.commit_index, m.entries) for m in appends_to(sent, B)]
        assert told == ([(B, 2, ())] if eager else [])


def test_learner_is_replicated_to_and_does_not_count() -> None:
    """A learner gets entries; its acknowledgement commits nothing (dissertation §4.2.1)."""
    cluster = Cluster(A, B, C, learners=[C])
    leader = cluster.elect(A)
    cluster.isolate(B)
    placed = leader.propose()
    cluster.deliver()
    assert cluster[C].core.last_index == placed.index
    assert leader.core.commit_index == placed.index - 1


@pytest.mark.parametrize("order", [(B, C, D), (D, E, B)], ids=["old first", "new first"])
def test_joint_configuration_needs_both_majorities(order: tuple[NodeId, ...]) -> None:
    """While joint, an entry commits with a majority of both halves (dissertation §4.3)."""
    node = connected(Node(A, Configuration(frozenset({A, B, C}), learners=frozenset({D, E}))))
    node.tick(node.options.heartbeat_ticks)
    for peer in (D, E):
        node.step(HeartbeatResponse(peer, A, Term(1), read_context=1))
        node.step(AppendResponse(peer, A, Term(1), True, node.core.last_index))
    joint = Configuration(frozenset({A, D, E}), frozenset({A, B, C}))
    placed = node.core.propose(100, EntryKind.CONFIGURATION, joint)
    node.log.append(EntryMeta(placed.index, placed.term, 100, EntryKind.CONFIGURATION, joint))
    assert node.core.configuration == joint
    assert {m.to for m in node.pump()} == {B, C, D, E}
    with pytest.raises(ProposalRefused):
        node.core.propose(100, EntryKind.CONFIGURATION, THREE)
    for peer in order[:2]:
        node.step(AppendResponse(peer, A, Term(1), True, placed.index))
    assert node.core.commit_index == placed.index - 1
    node.step(AppendResponse(order[2], A, Term(1), True, placed.index))
    assert node.core.commit_index == placed.index


def test_truncated_configuration_brings_back_the_one_before() -> None:
    """The newest configuration in the log is in force, and a truncation takes it away."""
    two = Configuration(frozenset({A, B}))
    node = Node(A, THREE, entries=entries_of(1))
    entry = EntryMeta(Index(2), Term(1), 100, EntryKind.CONFIGURATION, two)
    node.step(AppendRequest(B, A, Term(1), Index(1), Term(1), (entry,), Index(0)))
    assert node.core.configuration == two
    node.step(append(2, 1, 1, 2))
    assert node.core.configuration == THREE


@pytest.mark.parametrize(
    ("log", "commit", "term"),
    [
        (LogSummary(), 1, 0),
        (LogSummary(Index(2)), 0, 1),
        (LogSummary(Index(2), (TermRun(Index(2), Term(1)),)), 0, 1),
        (LogSummary(Index(2), (TermRun(Index(1), Term(3)), TermRun(Index(2), Term(2)))), 0, 3),
        (LogSummary(Index(2), (TermRun(Index(1), Term(3)),)), 0, 2),
    ],
    ids=["commit", "no runs", "hole", "terms go back", "term below log"],
)
def test_nonsense_at_boot_is_refused(log: LogSummary, commit: int, term: int) -> None:
    """Facts that contradict each other stop the node before it says anything."""
    node = Node(A, THREE)
    with pytest.raises(InvariantViolation):
        Raft(
            A,
            THREE,
            view=NoView(),
            rng=node.rng,
            log=log,
            hard_state=type(node.disk_hard_state)(Term(term)),
            commit_index=Index(commit),
        )


def test_vote_request_reaches_a_deposed_leader() -> None:
    """A leader without an active quorum yields to a fresh candidate (§5.1)."""
    node = connected(Node(A, THREE))
    node.lose_trust()
    (answer,) = node.step(VoteRequest(B, A, Term(2), Index(1), Term(1)))
    assert answer == VoteResponse(A, B, Term(2), True)
    assert node.core.role is Role.FOLLOWER


def test_appends_are_cut_to_so_many_entries() -> None:
    """Entries that are small cost as much as large ones: an append holds max_append_entries."""
    node = connected(Node(A, THREE, options=RaftOptions(max_append_entries=3)))
    for _ in range(7):
        node.propose(1)
    sent = appends_to(node.pump(), B)
    assert [len(m.entries) for m in sent] == [3, 3, 1]


def test_who_is_far_behind_is_sent_one_append_at_a_time() -> None:
    """One set of effects holds one append for each peer; the rest is asked for, while the window
    is open and this node leads."""
    core = connected(Node(A, THREE, options=RaftOptions(max_append_entries=1))).core
    for _ in range(3):
        core.propose(100, EntryKind.DATA)
    ranges: list[list[tuple[NodeId, Index]]] = []
    while core.has_effects():
        effects = core.take_effects()
        appends = [m for m in effects.messages if isinstance(m, AppendRange)]
        ranges.append([(m.to, m.first_index) for m in appends])
        more = core.has_more_to_send
        assert more is (len(ranges) < 3)
        assert not core.has_effects()
        core.send_more()
    assert ranges == [[(B, Index(at)), (C, Index(at))] for at in (2, 3, 4)]


def test_who_no_longer_leads_sends_no_more() -> None:
    """Between two turns another leader may have been heard."""
    node = connected(Node(A, THREE, options=RaftOptions(max_append_entries=1)))
    for _ in range(3):
        node.propose(100)
    core = node.core
    core.take_effects()
    waiting = [core.has_more_to_send]
    core.step(append(2, 0, 0, sender=B))
    core.send_more()
    waiting.append(core.has_more_to_send)
    effects = core.take_effects()
    assert waiting == [True, False]
    assert not [m for m in effects.messages if isinstance(m, AppendRange)]

"""Elections, as transcripts of the pure core. The number in a name, `s06`, is what the core's
comments find the test by."""

from __future__ import annotations

import pytest

from dledger.core import (
    AppendRequest,
    AppendResponse,
    CampaignReason,
    Configuration,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    LeaderChanged,
    MessageRefused,
    NodeId,
    NotLeader,
    PreVoteRequest,
    PreVoteResponse,
    RaftOptions,
    Role,
    RoleChanged,
    StorageFailed,
    Term,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.core.types import Holding
from tests.core.harness import A, B, C, Cluster, D, E, Node, entries_of

THREE = Configuration(frozenset({A, B, C}))
WITHOUT_PRE_VOTE = RaftOptions(pre_vote=False)


def vote_request(
    term: int, last_index: int = 0, last_term: int = 0, *, sender: NodeId = B
) -> VoteRequest:
    return VoteRequest(sender, A, Term(term), Index(last_index), Term(last_term))


def heartbeat(term: int, *, sender: NodeId = B, commit: int = 0) -> HeartbeatRequest:
    return HeartbeatRequest(sender, A, Term(term), Index(commit), 1)


def append(term: int, prev: int, prev_term: int, *terms: int, commit: int = 0) -> AppendRequest:
    entries = tuple(entries_of(*terms, first=prev + 1))
    return AppendRequest(B, A, Term(term), Index(prev), Term(prev_term), entries, Index(commit))


def of_type(messages: list[IncomingMessage], kind: type) -> list[IncomingMessage]:
    return [message for message in messages if isinstance(message, kind)]


@pytest.mark.parametrize(
    "message",
    [
        append(5, 0, 0),
        heartbeat(5),
        vote_request(5),
        VoteResponse(B, A, Term(5), False),
        AppendResponse(B, A, Term(5), False),
        HeartbeatResponse(B, A, Term(5)),
        PreVoteResponse(B, A, Term(5), False),
    ],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_s01_higher_term_makes_a_follower_without_vote(
    message: IncomingMessage, role: Role
) -> None:
    """A higher term in any message: become follower, clear the vote (§5.1)."""
    cluster = Cluster()
    node = cluster[A]
    if role is not Role.FOLLOWER:
        cluster.campaign(A)
        cluster.deliver(lambda m: isinstance(m, PreVoteRequest | PreVoteResponse))
        if role is Role.LEADER:
            for peer in (B, C):
                node.step(VoteResponse(peer, A, Term(1), True))
        assert node.core.role is role
        assert node.vote == A
    node.lose_trust()  # nobody is trusted, and no quorum is active
    node.step(message)
    assert (node.core.role, node.term) == (Role.FOLLOWER, 5)
    assert node.vote == (
        B if isinstance(message, VoteRequest) and role is not Role.LEADER else None
    )
    assert node.disk_hard_state.term == 5


@pytest.mark.parametrize(
    "message",
    [
        append(1, 1, 1, 1),
        heartbeat(1),
        vote_request(2, 9, 1),
        VoteResponse(B, A, Term(1), True),
        AppendResponse(B, A, Term(1), True, Index(1)),
        HeartbeatResponse(B, A, Term(1)),
        TimeoutNow(B, A, Term(1)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_s02_older_term_changes_nothing(message: IncomingMessage) -> None:
    """A message from an older term is rejected or ignored, with no state change (§5.1)."""
    node = Node(A, THREE, entries=entries_of(1), term=3, vote=C)
    before = node.core.statistics()
    answers = node.step(message)
    assert node.core.statistics() == before
    for answer in answers:
        assert answer.term == 3
        assert not getattr(answer, "granted", False)
        assert not getattr(answer, "accepted", False)


def test_heartbeat_of_an_older_term_is_answered_without_its_round() -> None:
    """Its sender may lead the newer term when the answer comes, and have begun that round anew:
    the reads of that round would be confirmed by what was said before them (dissertation §6.4)."""
    node = Node(A, THREE, term=3, vote=B)
    [answer] = node.step(HeartbeatRequest(B, A, Term(2), Index(0), 5))
    assert answer == HeartbeatResponse(A, B, Term(3), 0)


def test_s03_boots_as_follower() -> None:
    """A node boots as a follower, with the term and vote of its disk (figure 4)."""
    node = Node(A, THREE, term=7, vote=A)
    assert (node.core.role, node.term, node.vote) == (Role.FOLLOWER, 7, A)
    assert node.core.leader is None
    assert node.pump() == []


@pytest.mark.parametrize("pre_vote", [True, False])
def test_s04_election_timeout_starts_a_campaign(pre_vote: bool) -> None:
    """Election timeout: (pre-)candidate, then term + 1 and a vote for itself (§5.2)."""
    cluster = Cluster(options=RaftOptions(pre_vote=pre_vote))
    node = cluster[A]
    assert node.tick(14) == []
    cluster.campaign(A)
    if pre_vote:
        assert (node.core.role, node.term, node.vote) == (Role.PRE_CANDIDATE, 0, None)
        assert [m.term for m in of_type(cluster.network, PreVoteRequest)] == [1, 1]
        cluster.deliver(lambda m: isinstance(m, PreVoteRequest | PreVoteResponse))
    assert (node.core.role, node.term, node.vote) == (Role.CANDIDATE, 1, A)


def test_s04_timeouts_are_random_within_their_range() -> None:
    """Timeouts are drawn from [min, max] and differ, or votes would split for ever (§5.2)."""
    timeouts = set()
    for seed in range(60):
        node = Node(A, THREE, seed=seed)
        ticks = 0
        while node.core.role is Role.FOLLOWER and ticks < 100:
            node.tick()
            ticks += 1
        timeouts.add(ticks)
    assert min(timeouts) >= 15
    assert max(timeouts) <= 30
    assert len(timeouts) > 8


def test_s05_majority_elects_a_leader_that_appends_a_noop() -> None:
    """A majority of votes makes a leader, which appends a no-op at once (§8, DLedger #305)."""
    cluster = Cluster(logs={name: entries_of(1, 1) for name in (A, B, C)})
    leader = cluster.elect(A)
    assert leader.terms() == [1, 1, 2]
    assert leader.core.is_ready_leader
    assert leader.core.commit_index == 3  # the old tail with it, without any write
    cluster.tick(10)
    assert cluster[B].core.commit_index == 3


def test_s05_a_minority_elects_nobody() -> None:
    """Two votes of five are no majority (§5.2)."""
    cluster = Cluster(A, B, C, D, E, options=WITHOUT_PRE_VOTE)
    cluster.campaign(A)
    cluster.deliver(lambda m: m.to in (A, B))
    assert cluster[A].core.role is Role.CANDIDATE
    cluster[A].step(VoteResponse(C, A, Term(1), True))
    assert cluster[A].core.role is Role.LEADER


def test_s06_one_vote_per_term() -> None:
    """One vote per term; the same candidate asking again is granted again (§5.2)."""
    node = Node(A, THREE)
    assert node.step(vote_request(1, sender=B)) == [VoteResponse(A, B, Term(1), True)]
    assert node.step(vote_request(1, sender=C)) == [VoteResponse(A, C, Term(1), False)]
    assert node.step(vote_request(1, sender=B)) == [VoteResponse(A, B, Term(1), True)]
    assert node.vote == B


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(2, 2, False), (9, 1, False), (3, 2, True), (1, 3, True)],
)
def test_s07_vote_denied_to_an_older_log(last_index: int, last_term: int, granted: bool) -> None:
    """Votes go to logs at least as fresh: last term first, then length (§5.4.1)."""
    node = Node(A, THREE, entries=entries_of(1, 1, 2))
    (pre,) = node.step(PreVoteRequest(B, A, Term(5), Index(last_index), Term(last_term)))
    (vote,) = node.step(vote_request(5, last_index, last_term))
    assert isinstance(pre, PreVoteResponse)
    assert isinstance(vote, VoteResponse)
    assert (pre.granted, vote.granted) == (granted, granted)


def test_s08_equal_logs_are_granted() -> None:
    """A candidate with an equal log gets the vote (§5.4.1)."""
    node = Node(A, THREE, entries=entries_of(1, 1))
    assert node.step(vote_request(2, 2, 1)) == [VoteResponse(A, B, Term(2), True)]


@pytest.mark.parametrize("seed", range(10))
def test_s09_split_vote_is_resolved(seed: int) -> None:
    """A split vote is resolved by randomised retries within a few rounds (§5.2)."""
    cluster = Cluster(seed=seed, options=WITHOUT_PRE_VOTE)
    for name in (A, B, C):
        cluster.campaign(name)
    cluster.deliver()
    assert cluster.leader() is None
    assert [cluster[name].vote for name in (A, B, C)] == [A, B, C]
    cluster.tick(120)
    leader = cluster.leader()
    assert leader is not None
    assert leader.term <= 5


def test_s10_candidate_follows_the_leader_of_its_term() -> None:
    """A candidate that hears the leader of its term follows, in the same term (§5.2)."""
    cluster = Cluster(options=WITHOUT_PRE_VOTE)
    cluster.campaign(A)
    node = cluster[A]
    node.step(append(1, 0, 0, 1))
    assert (node.core.role, node.term, node.vote) == (Role.FOLLOWER, 1, A)
    assert node.core.leader == B


def test_s11_delayed_own_vote_does_not_count_for_a_lost_candidacy() -> None:
    """A candidate that lost ignores its own vote when the disk reports it late."""
    cluster = Cluster(options=WITHOUT_PRE_VOTE)
    node = cluster[A]
    node.writes_complete = False
    cluster.campaign(A)
    node.step(heartbeat(1))  # somebody else won this term
    node.step(VoteResponse(C, A, Term(1), True))
    node.complete_writes()
    assert node.core.role is Role.FOLLOWER
    assert node.core.leader == B


def test_nothing_is_told_of_a_disk_while_its_term_is_being_written() -> None:
    """Whoever heard of the term would hold it against the disk after a crash that lost it; and what
    is held, is held in that term."""
    cluster = Cluster()
    cluster.elect(A)
    node = cluster[B]
    before = node.core.holding
    assert before.term == 1
    node.writes_complete = False
    node.step(VoteRequest(C, B, Term(2), Index(9), Term(1), CampaignReason.TRANSFER))
    assert (node.term, node.core.holding) == (2, Holding())
    node.complete_writes()
    assert node.core.holding == Holding(Term(2), Index(0), before.settled_index)


def test_s12_pre_votes_are_not_votes() -> None:
    """A pre-vote that arrives after the candidacy began is not counted as a vote (§9.6)."""
    cluster = Cluster(A, B, C, D, E)
    cluster.campaign(A)
    cluster.deliver(lambda m: isinstance(m, PreVoteRequest | PreVoteResponse))
    node = cluster[A]
    assert node.core.role is Role.CANDIDATE
    for peer in (B, C, D, E):
        node.step(PreVoteResponse(peer, A, Term(1), True))
        node.step(PreVoteResponse(peer, A, Term(2), True))
    assert node.core.role is Role.CANDIDATE


def test_s12_a_stale_pre_vote_is_not_counted() -> None:
    """An answer to the pre-vote of another term belongs to no round under way (§9.6), and one of a
    term that was never asked about is refused."""
    cluster = Cluster(terms={A: 3})
    cluster.campaign(A)
    cluster[A].step(PreVoteResponse(B, A, Term(2), True))
    cluster[A].step(PreVoteResponse(C, A, Term(3), True))
    for asked_by_nobody in (0, 5, 7):
        with pytest.raises(MessageRefused):
            cluster[A].step(PreVoteResponse(C, A, Term(asked_by_nobody), True))
    assert (cluster[A].core.role, cluster[A].term) == (Role.PRE_CANDIDATE, 3)


def test_s13_rejoining_node_disturbs_nobody() -> None:
    """With PreVote a partitioned node rejoins without a new term or leader (§9.6)."""
    cluster = Cluster()
    cluster.elect(A)
    cluster.isolate(C)
    cluster.tick(200)
    assert cluster[C].term == 1
    assert cluster[C].core.role is Role.PRE_CANDIDATE
    cluster.heal()
    cluster.tick(60)
    leader = cluster.leader()
    assert leader is not None
    assert (leader.node_id, leader.term) == (A, 1)
    assert cluster[C].core.leader == A


def test_cut_off_node_asks_on_and_changes_its_role_once() -> None:
    """However long it lasts: what is told of roles is a line of its log, for each."""
    cluster = Cluster()
    cluster.elect(A)
    node = cluster[C]
    node.events.clear()
    asked = of_type(node.tick(2_000), PreVoteRequest)
    assert len(asked) > 20
    roles = [each for each in node.events if isinstance(each, RoleChanged)]
    assert roles == [RoleChanged(Role.PRE_CANDIDATE, Term(1), "election timeout")]


def test_s14_stickiness_refuses_votes_while_a_leader_lives() -> None:
    """A voter that hears a leader refuses, except in a transfer (dissertation §4.2.3, §3.10)."""
    cluster = Cluster()
    cluster.elect(A)
    cluster.tick(3)
    request = VoteRequest(C, B, Term(2), Index(9), Term(1))
    assert cluster[B].step(request) == []
    assert cluster[B].term == 1
    (refused,) = cluster[B].step(PreVoteRequest(C, B, Term(2), Index(9), Term(1)))
    assert refused == PreVoteResponse(B, C, Term(1), False)
    by_transfer = VoteRequest(C, B, Term(2), Index(9), Term(1), CampaignReason.TRANSFER)
    assert cluster[B].step(by_transfer) == [VoteResponse(B, C, Term(2), True)]


def test_s14_trust_ends_after_the_minimum_election_timeout() -> None:
    """Once the leader was silent for the minimum election timeout, votes are free again."""
    cluster = Cluster()
    cluster.elect(A)
    cluster.isolate(A)
    for _ in range(14):
        cluster[B].core.tick()
    assert cluster[B].step(PreVoteRequest(C, B, Term(2), Index(1), Term(1))) == [
        PreVoteResponse(B, C, Term(1), False)
    ]
    cluster[B].core.tick()
    assert cluster[B].step(PreVoteRequest(C, B, Term(2), Index(1), Term(1))) == [
        PreVoteResponse(B, C, Term(2), True)
    ]


def test_s14_leader_with_an_active_quorum_is_sticky() -> None:
    """A leader that hears a majority refuses to be deposed by a vote request."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.tick(20)
    assert leader.step(vote_request(9, 9, 8)) == []
    assert (leader.core.role, leader.term) == (Role.LEADER, 1)


def test_s15_one_way_partition_does_not_inflate_terms() -> None:
    """A node that sends and cannot receive does not drive the term up (§9.6)."""
    cluster = Cluster()
    cluster.elect(A)
    cluster.cut |= {(A, C), (B, C)}
    cluster.tick(300)
    assert {node.term for node in cluster.nodes.values()} == {1}
    assert cluster[A].core.role is Role.LEADER


def test_s16_leader_without_majority_steps_down() -> None:
    """CheckQuorum: a leader that reaches no majority steps down (dissertation §6.2)."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.isolate(A)
    cluster.tick(40, A)
    assert leader.core.role is Role.FOLLOWER
    assert leader.term == 1
    with pytest.raises(NotLeader):
        leader.propose()


def test_s16_one_living_follower_of_two_is_enough() -> None:
    """A leader that hears one of two followers keeps leading."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.isolate(C)
    cluster.tick(200)
    assert leader.core.role is Role.LEADER


def test_s17_candidate_stuck_at_a_higher_term_is_freed() -> None:
    """A node whose term ran ahead gets the group a new leader, not a livelock [etcd]."""
    cluster = Cluster()
    cluster.elect(A)
    cluster[C].crash()
    cluster[C].disk_hard_state = type(cluster[C].disk_hard_state)(Term(8), C)
    cluster[C].start()
    cluster.tick(150)
    leader = cluster.leader()
    assert leader is not None
    assert leader.term >= 8
    proposed = leader.propose()
    cluster.tick(10)
    assert [node.core.commit_index for node in cluster.nodes.values()] == [proposed.index] * 3


def test_s18_stepping_down_in_a_term_keeps_the_vote() -> None:
    """Stepping down in the same term keeps the vote, or it could be given twice [NATS]."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster.isolate(A)
    cluster.tick(40, A)
    assert (leader.core.role, leader.vote) == (Role.FOLLOWER, A)
    (answer,) = leader.step(vote_request(1))
    assert answer == VoteResponse(A, B, Term(1), False)


def test_s18_losing_an_election_keeps_the_vote() -> None:
    """A candidate that lost refuses who has a better log than it in the same term."""
    node = Node(A, THREE, term=1, options=RaftOptions(pre_vote=False))
    node.tick(31)
    assert (node.core.role, node.term) == (Role.CANDIDATE, 2)
    for peer in (B, C):
        node.step(VoteResponse(peer, A, Term(2), False))
    assert (node.core.role, node.vote) == (Role.FOLLOWER, A)
    assert node.step(vote_request(2, 9, 1)) == [VoteResponse(A, B, Term(2), False)]


def test_s19_vote_survives_a_crash() -> None:
    """After granting a vote and a restart a node can't vote for another in that term (§5.2)."""
    node = Node(A, THREE)
    node.step(vote_request(1, sender=B))
    node.crash()
    node.start()
    assert node.step(vote_request(1, sender=C)) == [VoteResponse(A, C, Term(1), False)]
    assert node.step(vote_request(1, sender=B)) == [VoteResponse(A, B, Term(1), True)]


def test_s19_vote_leaves_only_when_durable() -> None:
    """The answer to a vote request waits for the disk (figure 2, ADR 3)."""
    node = Node(A, THREE)
    node.writes_complete = False
    assert node.step(vote_request(1, sender=B)) == []
    assert node.complete_writes() == [VoteResponse(A, B, Term(1), True)]


def test_s19_a_vote_of_a_past_term_is_never_released() -> None:
    """A held vote is dropped when the term moves on: it would be false (ADR 3)."""
    node = Node(A, THREE)
    node.writes_complete = False
    node.step(vote_request(1, sender=B))
    node.step(vote_request(2, sender=C))
    assert node.complete_writes() == [VoteResponse(A, C, Term(2), True)]


def test_s20_no_vote_without_a_disk() -> None:
    """The vote can't be persisted: none is requested or granted; the node falls silent (ADR 8)."""
    cluster = Cluster(options=WITHOUT_PRE_VOTE)
    node = cluster[A]
    node.writes_complete = False
    cluster.campaign(A)
    assert node.core.role is Role.CANDIDATE
    assert cluster.network == []
    node.step(VoteResponse(B, A, Term(1), True))
    assert node.core.role is Role.CANDIDATE, "its own vote is not durable"
    node.core.on_storage_failed()
    node.pump()
    assert StorageFailed(Term(1)) in node.events
    assert node.complete_writes() == []
    assert node.step(vote_request(9, 9, 9)) == []
    assert node.tick(200) == []
    assert node.core.statistics().role is Role.FOLLOWER


def test_s20_an_earlier_write_does_not_make_the_own_vote_count() -> None:
    """A candidate asks for votes when the write that holds its own is done, no earlier (ADR 3)."""
    node = Node(A, THREE, options=WITHOUT_PRE_VOTE)
    node.step(heartbeat(4))
    node.writes_complete = False
    node.step(append(4, 0, 0, 4))  # an entry that takes its time
    node.tick(31)
    assert (node.core.role, node.term) == (Role.CANDIDATE, 5)
    assert node.complete_writes(1) == []
    node.step(VoteResponse(B, A, Term(5), True))
    assert node.core.role is Role.CANDIDATE
    assert len(of_type(node.complete_writes(1), VoteRequest)) == 2
    node.step(VoteResponse(B, A, Term(5), True))
    assert node.core.statistics().role is Role.LEADER


def test_s21_terms_never_go_back_over_a_restart_of_all() -> None:
    """All nodes restart together: the next term is above every earlier one [PySyncObj #202]."""
    cluster = Cluster()
    cluster.elect(A)
    cluster.elect(B)
    before = cluster[B].term
    for node in cluster.nodes.values():
        node.crash()
        node.start()
    assert {node.term for node in cluster.nodes.values()} == {before}
    cluster.tick(100)
    leader = cluster.leader()
    assert leader is not None
    assert leader.term > before


def test_s22_freshness_comes_from_the_last_entry() -> None:
    """A lagging log with a high current term is not fresh [DLedger #52]."""
    cluster = Cluster(
        logs={A: entries_of(1), B: entries_of(1, 2, 2), C: entries_of(1, 2, 2)}, terms={A: 50}
    )
    cluster.campaign(A)
    requests = of_type(cluster.network, PreVoteRequest)
    assert {(m.last_index, m.last_term) for m in requests if isinstance(m, PreVoteRequest)} == {
        (1, 1)
    }
    cluster.deliver()
    assert cluster[A].core.role is not Role.LEADER
    cluster.tick(200)
    leader = cluster.leader()
    assert leader is not None
    assert leader.node_id != A
    assert cluster[A].terms() == leader.terms()


@pytest.mark.parametrize("old_style", [A, B, C])
def test_s23_nodes_with_and_without_pre_vote_elect_together(old_style: NodeId) -> None:
    """During an upgrade some nodes know no PreVote: an election still completes."""
    cluster = Cluster()
    cluster.nodes[old_style] = Node(old_style, THREE, options=WITHOUT_PRE_VOTE)
    cluster.tick(100)
    first = cluster.leader()
    assert first is not None
    cluster.isolate(first.node_id)
    cluster.tick(150)
    others = [n for n in cluster.nodes.values() if n is not first and n.leads]
    assert len(others) == 1


def test_s24_learner_votes_when_asked() -> None:
    """A learner may be a voter in a configuration it has not seen yet: it votes (§4.2.2)."""
    node = Node(C, Configuration(frozenset({A, B}), learners=frozenset({C})))
    request = VoteRequest(B, C, Term(3), Index(0), Term(0))
    assert node.step(request) == [VoteResponse(C, B, Term(3), True)]
    assert node.tick(200) == [], "but it never campaigns"


def test_s24_a_learners_vote_does_not_count() -> None:
    """Only voters of the configuration in force elect."""
    cluster = Cluster(A, B, C, learners=[C], options=WITHOUT_PRE_VOTE)
    cluster.campaign(A)
    cluster[A].step(VoteResponse(C, A, Term(1), True))
    assert cluster[A].core.role is Role.CANDIDATE


def test_s25_removed_node_neither_campaigns_nor_disturbs() -> None:
    """A removed node that knows never campaigns; one that doesn't is refused (§4.2.3)."""
    knows = Node(D, THREE, term=1)
    assert knows.tick(300) == []
    knows.step(HeartbeatRequest(A, D, Term(1), Index(0)))
    assert knows.step(TimeoutNow(A, D, Term(1))) == []
    cluster = Cluster()
    cluster.elect(A)
    stranger = Node(D, Configuration(frozenset({A, B, C, D})), term=1)
    for _ in range(20):
        cluster.tick(7)
        for message in stranger.tick(7):
            for answer in cluster[message.to].step(message):
                stranger.step(answer)
        for peer in (A, B, C):
            request = VoteRequest(D, peer, Term(99), Index(99), Term(98))
            assert cluster[peer].step(request) == []
    assert {node.term for node in cluster.nodes.values()} == {1}
    assert cluster[A].core.role is Role.LEADER
    assert stranger.term == 1


def test_suspected_leader_is_replaced_fast() -> None:
    """When the streams from a dead leader break at once, a new one leads within 150 ms."""
    worst = 0
    for seed in range(30):
        cluster = Cluster(seed=seed)
        cluster.elect(A)
        cluster.tick(7)
        cluster[A].crash()
        for name in (B, C):
            cluster[name].core.suspect_leader(A)
        ticks = 0
        while cluster.leader() is None and ticks < 100:
            cluster.tick()
            ticks += 1
        worst = max(worst, ticks)
    assert worst <= 15


def test_flapping_connection_never_grows_terms() -> None:
    """A follower that suspects a living leader again and again disturbs nobody."""
    cluster = Cluster()
    cluster.elect(A)
    for _ in range(60):
        cluster[B].core.suspect_leader(A)
        cluster.tick(3)
    cluster.tick(10)
    assert {node.term for node in cluster.nodes.values()} == {1}
    assert cluster[A].core.role is Role.LEADER
    changes = [event.leader for event in cluster[B].events if isinstance(event, LeaderChanged)]
    assert changes[-2:] == [None, A]


def test_suspicion_of_another_peer_changes_nothing() -> None:
    """Only the leader's stream matters to a follower."""
    cluster = Cluster()
    cluster.elect(A)
    before = cluster[B].core.statistics()
    cluster[B].core.suspect_leader(C)
    assert cluster[B].core.statistics() == before
    assert not cluster[B].core.has_effects()


def test_hastened_node_campaigns_at_its_next_tick() -> None:
    """With PreVote, as whenever its time is up; and once."""
    cluster = Cluster()
    cluster[A].core.hasten_election()
    assert not cluster[A].take_sent()
    asked = of_type(cluster[A].tick(), PreVoteRequest)
    assert [message.to for message in asked] == [B, C]
    assert not cluster[A].tick()


def test_nobody_is_hastened_that_follows_or_is_silent() -> None:
    """A leader that is heard stays, and a disk that failed campaigns for nothing."""
    cluster = Cluster()
    node = cluster[A]
    node.step(heartbeat(1))
    node.core.hasten_election()
    assert not of_type(node.tick(), PreVoteRequest)
    silent = cluster[B]
    silent.core.on_storage_failed()
    silent.core.hasten_election()
    assert not silent.tick(40)

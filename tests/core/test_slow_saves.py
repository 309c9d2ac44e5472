"""Disks on which a term or a vote is long in being saved: somebody is elected all the same.

Nothing a node says in a term leaves before that term is on its disk (ADR 3), so an election takes
two saves, the candidate's and its voters', one after the other. Where they took longer than a
timeout, every candidate gave up before the votes for it came, and none ever led.
"""

from __future__ import annotations

import pytest

from chaos.invariants import InvariantChecker
from dledger.core import (
    Configuration,
    HeartbeatRequest,
    Index,
    NodeId,
    PreVoteRequest,
    PreVoteResponse,
    RaftOptions,
    Role,
    Term,
    VoteRequest,
    VoteResponse,
)
from tests.core.harness import A, B, C, Cluster, D, E, Node, entries_of

SAVES = (5, 16, 20, 25, 35, 100)  # ticks that a save takes; an election's timeout is 15 to 30
SAVES_UNTIL_LED = 12  # at most, the candidate's, its voters' and the first entry's; by many seeds
SOME_TICKS = 100  # and the timeouts until somebody campaigns


class SlowDisks:
    """A group whose disks take `ticks` for a write, which is of all that was asked for when it
    began; those of the first `fast` members take one."""

    def __init__(self, cluster: Cluster, ticks: int, *, fast: int = 0) -> None:
        self.cluster = cluster
        self.now = 0
        names = enumerate(cluster.nodes)
        self._ticks = {name: 1 if number < fast else ticks for number, name in names}
        self._writing: dict[NodeId, tuple[int, int]] = {}  # until when, and how many requests
        self._checker = InvariantChecker()
        for node in cluster.nodes.values():
            node.writes_complete = False

    def tick(self) -> None:
        """Messages take no time."""
        self.now += 1
        self.cluster.tick()
        for name, node in self.cluster.nodes.items():
            until, count = self._writing.get(name, (0, 0))
            if count and until <= self.now:
                self.cluster.network += node.complete_writes(count)
                count = 0
            if not count and node.outstanding:
                until, count = self.now + self._ticks[name], len(node.outstanding)
            self._writing[name] = until, count
        self.cluster.deliver()
        self._checker.check(list(self.cluster.nodes.values()), set())

    def ticks_until_led(self, most: int) -> int | None:
        """When somebody leads who has committed an entry; None: not within `most` ticks."""
        while self.now < most:
            self.tick()
            if any(node.core.is_ready_leader for node in self.cluster.nodes.values()):
                return self.now
        return None


@pytest.mark.parametrize("ticks", SAVES)
def test_lone_voter_leads_after_its_save(ticks: int) -> None:
    """In the first term: another one would only have to be saved as well."""
    slow = SlowDisks(Cluster(A), ticks)
    assert slow.ticks_until_led(30 + 3 * ticks) is not None
    assert slow.cluster[A].term == 1


@pytest.mark.parametrize("ticks", SAVES)
@pytest.mark.parametrize("names", [(A, B, C), (A, B, C, D, E)], ids=len)
def test_somebody_leads_where_every_disk_is_slow(names: tuple[NodeId, ...], ticks: int) -> None:
    """Whoever draws what."""
    for seed in range(20):
        slow = SlowDisks(Cluster(*names, seed=seed), ticks)
        assert slow.ticks_until_led(SOME_TICKS + SAVES_UNTIL_LED * ticks) is not None, seed


@pytest.mark.parametrize("ticks", SAVES)
@pytest.mark.parametrize("fast", [1, 2])
def test_somebody_leads_where_too_few_disks_are_fast(fast: int, ticks: int) -> None:
    """Whose own save is fast knows nothing of how long the others' take."""
    for seed in range(20):
        slow = SlowDisks(Cluster(A, B, C, D, E, seed=seed), ticks, fast=fast)
        assert slow.ticks_until_led(SOME_TICKS + SAVES_UNTIL_LED * ticks) is not None, seed


@pytest.mark.parametrize("ticks", SAVES)
def test_leader_whose_stream_broke_is_replaced_where_every_disk_is_slow(ticks: int) -> None:
    """The first tries come fast, faster than any save; they are not what keeps everybody out."""
    for seed in range(20):
        slow = SlowDisks(Cluster(seed=seed), ticks)
        assert slow.ticks_until_led(SOME_TICKS + SAVES_UNTIL_LED * ticks) is not None
        old = slow.cluster.leader()
        assert old is not None
        old.crash()
        for node in slow.cluster.nodes.values():
            if node.is_running:
                node.core.suspect_leader(old.node_id)
        del slow.cluster.nodes[old.node_id]
        most = slow.now + SOME_TICKS + SAVES_UNTIL_LED * ticks
        assert slow.ticks_until_led(most) is not None, seed


def test_nobody_campaigns_again_while_its_vote_is_being_saved() -> None:
    """It would save another term, and another, and be heard in none; afterwards the voters have a
    whole timeout to answer, and as long as the candidate's own save took."""
    node = Node(A, Configuration(frozenset({A, B, C})), options=RaftOptions(pre_vote=False))
    node.writes_complete = False
    while node.core.role is not Role.CANDIDATE:
        node.tick()
    assert node.tick(100) == []
    assert (node.core.role, node.term) == (Role.CANDIDATE, 1)
    assert [type(each) for each in node.complete_writes()] == [VoteRequest, VoteRequest]
    node.tick(114)
    assert node.term == 1, "sooner than the shortest timeout"
    node.tick(16)
    assert node.term == 2


def test_nobody_waits_for_voters_without_end() -> None:
    """A save that took a minute says little of the others' disks: eight of the longest timeouts."""
    node = Node(A, Configuration(frozenset({A, B, C})), options=RaftOptions(pre_vote=False))
    node.writes_complete = False
    node.tick(6_000)
    node.complete_writes()
    node.tick(8 * 30 + 30)
    assert node.term == 2


def test_whose_vote_is_being_saved_promises_nothing_for_the_next_term() -> None:
    """Both would be told together, and whom the vote elects be deposed by who was promised one."""
    node = Node(A, Configuration(frozenset({A, B, C})))
    node.writes_complete = False
    asked = PreVoteRequest(C, A, Term(2), Index(0), Term(0))
    node.step(VoteRequest(B, A, Term(1), Index(0), Term(0)))
    assert node.step(asked) == []
    assert node.complete_writes() == [VoteResponse(A, B, Term(1), True)]
    assert node.step(asked) == [PreVoteResponse(A, C, Term(2), True)]


def candidate_that_asks_again() -> Node:
    """In term 1, for which it has voted, and asking who would vote in term 2."""
    node = Node(A, Configuration(frozenset({A, B, C})), entries=())
    node.tick(30)
    node.step(PreVoteResponse(B, A, Term(1), True))
    assert node.core.role is Role.CANDIDATE
    asked = node.tick(30)
    assert PreVoteRequest(A, B, Term(2), Index(0), Term(0)) in asked
    assert (node.core.role, node.term) == (Role.PRE_CANDIDATE, 1)
    return node


def test_late_vote_counts_while_the_next_round_is_asked_for() -> None:
    """Who asks anew is still in the term that it was voted for in, and has voted for itself."""
    node = candidate_that_asks_again()
    node.step(VoteResponse(C, A, Term(1), True))
    assert (node.core.role, node.term) == (Role.LEADER, 1)


def test_late_refusal_ends_no_round() -> None:
    """An election that is lost says nothing of the next one."""
    node = candidate_that_asks_again()
    for voter in (B, C):
        node.step(VoteResponse(voter, A, Term(1), False))
    assert node.core.role is Role.PRE_CANDIDATE
    node.step(PreVoteResponse(B, A, Term(2), True))
    assert (node.core.role, node.term) == (Role.CANDIDATE, 2)


def test_a_pre_vote_is_no_vote_of_the_term_before() -> None:
    """What is granted for the next term isn't added to what was granted in this one."""
    names = frozenset({A, B, C, D, E})
    node = Node(A, Configuration(names))
    node.tick(30)
    for voter in (B, C):
        node.step(PreVoteResponse(voter, A, Term(1), True))
    node.tick(30)
    assert node.core.role is Role.PRE_CANDIDATE
    node.step(PreVoteResponse(B, A, Term(2), True))
    node.step(VoteResponse(C, A, Term(1), True))
    assert (node.core.role, node.term) == (Role.PRE_CANDIDATE, 1)
    node.step(VoteResponse(D, A, Term(1), True))
    assert (node.core.role, node.term) == (Role.LEADER, 1)


def test_votes_that_come_after_following_do_not_count() -> None:
    """Who has followed in between may hold another log than the one that it was voted for."""
    node = candidate_that_asks_again()
    node.step(HeartbeatRequest(B, A, Term(1), Index(0), 1))
    node.lose_trust()
    node.tick(31)
    assert (node.core.role, node.term) == (Role.PRE_CANDIDATE, 1)
    for voter in (B, C):
        node.step(VoteResponse(voter, A, Term(1), True))
    assert node.core.role is Role.PRE_CANDIDATE


def test_votes_of_an_earlier_life_do_not_count() -> None:
    """They were given to a log whose end may not have been on the disk."""
    node = Node(A, Configuration(frozenset({A, B, C})), entries=entries_of(1), term=2, vote=A)
    node.tick(30)
    assert (node.core.role, node.term) == (Role.PRE_CANDIDATE, 2)
    for voter in (B, C):
        node.step(VoteResponse(voter, A, Term(2), True))
    assert node.core.role is Role.PRE_CANDIDATE


def test_timeouts_grow_with_campaigns_in_a_row() -> None:
    """So that candidates whose saves take longer than a timeout get out of each other's way; they
    are what they were once somebody leads."""
    node = Node(A, Configuration(frozenset({A, B, C})), options=RaftOptions(pre_vote=False))

    def longest_of(draws: int) -> int:
        state, drawn = node.core._state, set()
        for _ in range(draws):
            state.reset_election_timer()
            drawn.add(state.election_timeout_ticks)
        assert min(drawn) >= 15
        return max(drawn)

    longest = []
    for _ in range(6):
        node.core._state.election_elapsed_ticks = 1_000
        node.tick()
        assert node.core.role is Role.CANDIDATE
        longest.append(longest_of(500))
    assert longest == pytest.approx([30, 60, 120, 240, 240, 240], rel=0.1)
    node.step(HeartbeatRequest(B, A, Term(node.term), Index(0), 1))
    assert longest_of(500) <= 30

"""A leader that can't serve and doesn't hand over, as releases before level 8: who takes over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger.core import NodeId, RaftOptions, Role
from tests.core.harness import A, B, C, Cluster, D, E

OPTIONS = RaftOptions()
INTERVAL = OPTIONS.hand_over_interval_ticks
BY_THEN = INTERVAL + OPTIONS.election_timeout_max_ticks


def pass_time(cluster: Cluster, ticks: int, *unable: NodeId) -> list[NodeId]:
    """Time passes; all but themselves know of these that they can't serve. Who led, in order."""
    led: list[NodeId] = []
    for _ in range(ticks):
        for node in cluster.nodes.values():
            if node.is_running:
                can_serve = node.core.leader not in unable
                node.core.report_fitness(is_short=False, leader_can_serve=can_serve)
        cluster.tick()
        leader = cluster.leader()
        if leader is not None and led[-1:] != [leader.node_id]:
            led.append(leader.node_id)
    return led


def test_voter_takes_over_though_one_is_away() -> None:
    """Not before the leader had the time to hand over by itself, and once."""
    cluster = Cluster()
    cluster.elect(A)
    cluster[C].crash()
    assert pass_time(cluster, INTERVAL - 1, A) == [A]
    assert pass_time(cluster, 5 * BY_THEN, A) == [A, B]


def test_leader_that_can_serve_is_left_alone() -> None:
    """However long it leads."""
    cluster = Cluster()
    cluster.elect(A)
    assert pass_time(cluster, 5 * BY_THEN) == [A]


def test_who_cannot_serve_itself_takes_nothing_over() -> None:
    """Where nobody is better everything stays as it is."""
    cluster = Cluster()
    cluster.elect(A)
    for _ in range(3 * BY_THEN):
        for node in cluster.nodes.values():
            is_leader = node.core.role is Role.LEADER
            node.core.report_fitness(is_short=False, can_serve=is_leader, leader_can_serve=False)
        cluster.tick()
    assert cluster.leader() is cluster[A]


def test_who_lacks_what_it_heard_of_waits_until_it_holds_it() -> None:
    """Its campaign would be lost, and cost the others an election each time."""
    cluster = Cluster()
    leader = cluster.elect(A)
    term = leader.core.term
    cluster[C].crash()
    cluster[B].writes_complete = False
    for _ in range(3):
        leader.propose()
    pass_time(cluster, 3 * BY_THEN, A)
    assert (leader.core.role, leader.core.term) == (Role.LEADER, term)
    cluster[B].writes_complete = True
    cluster[B].complete_writes()
    assert pass_time(cluster, BY_THEN, A)[-1] == B
    assert cluster[B].log[: len(leader.log)] == leader.log


@given(st.integers(3, 5), st.sets(st.sampled_from((A, B, C, D, E)), min_size=1, max_size=2))
def test_leadership_settles_with_one_that_can_serve(count: int, unable: set[NodeId]) -> None:
    """Whoever leads first, and however many can't, as long as one can and a majority is there."""
    names = (A, B, C, D, E)[:count]
    unable &= set(names)
    cluster = Cluster(*names)
    cluster.elect(min(unable, default=A))
    led = pass_time(cluster, 6 * BY_THEN, *unable)
    assert led[-1] not in unable
    assert len(led) <= 4

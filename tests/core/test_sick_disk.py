"""A leader whose disk is full or stalled: when it hands over, to whom, how often, and when not."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dledger.core import (
    HandOverBegun,
    HeartbeatResponse,
    IncomingMessage,
    NodeId,
    RaftOptions,
    Role,
    RoleChanged,
    TimeoutNow,
    TransferEnded,
)
from tests.core.harness import A, B, C, Cluster, D, E, Node

OPTIONS = RaftOptions()
INTERVAL = OPTIONS.hand_over_interval_ticks
LONGEST = OPTIONS.election_timeout_max_ticks


def pass_time(cluster: Cluster, ticks: int, *full: NodeId) -> list[NodeId]:
    """Time passes while the disks of `full`, and no others, have no room; who led, in order."""
    led: list[NodeId] = []
    for _ in range(ticks):
        for name, node in cluster.nodes.items():
            node.core.report_fitness(is_short=name in full)
        cluster.tick()
        leader = cluster.leader()
        if leader is not None and led[-1:] != [leader.node_id]:
            led.append(leader.node_id)
    return led


def given_up(node: Node) -> list[HandOverBegun]:
    return [event for event in node.events if isinstance(event, HandOverBegun)]


def test_leader_without_room_hands_over_to_a_voter_with_room() -> None:
    """Leadership moves once, to one of those that have room, and stays there."""
    cluster = Cluster(A, B, C, D, E)
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL)
    led = pass_time(cluster, 5 * INTERVAL, A, B)
    assert led[0] == A
    assert len(led) == 2
    assert [each.target for each in given_up(leader)] == [led[1]]
    assert led[1] in (C, D, E)
    assert TransferEnded(led[1], "done") in leader.events


def test_hand_over_takes_a_few_heartbeats() -> None:
    """A leadership that has lasted long enough ends as soon as the peers' word is fresh."""
    cluster = Cluster()
    cluster.elect(A)
    pass_time(cluster, INTERVAL)
    pass_time(cluster, 4 * OPTIONS.heartbeat_ticks, A)
    assert cluster.leader() not in (None, cluster[A])


def test_nothing_committed_is_lost_on_the_way() -> None:
    """The successor has what the leader took, committed or not."""
    cluster = Cluster()
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL)
    for _ in range(20):
        leader.propose()
    cluster.deliver()
    committed = leader.core.commit_index
    pass_time(cluster, INTERVAL, A)
    successor = cluster.leader()
    assert successor is not None
    assert successor is not leader
    assert successor.core.commit_index > committed
    assert leader.log[:committed] == successor.log[:committed]


def test_new_leader_is_left_alone_for_a_while() -> None:
    """Elected with a full disk it leads for one interval: the bound on how often leaders change."""
    cluster = Cluster()
    cluster.elect(A)
    assert pass_time(cluster, INTERVAL - 1, A) == [A]
    assert A not in pass_time(cluster, 2, A)[-1:]


def test_leader_stays_when_nobody_has_room() -> None:
    """Without a better node nothing changes: it leads and refuses, as one node would."""
    cluster = Cluster()
    leader = cluster.elect(A)
    term = leader.term
    assert pass_time(cluster, 10 * INTERVAL, A, B, C) == [A]
    assert leader.term == term
    assert given_up(leader) == []


def test_leader_stays_when_nothing_would_commit_without_its_disk() -> None:
    """With two of three disks full nobody commits, whoever leads: it refuses, which is honest."""
    cluster = Cluster()
    leader = cluster.elect(A)
    assert pass_time(cluster, 3 * INTERVAL, A, B) == [A]
    assert given_up(leader) == []
    assert pass_time(cluster, INTERVAL, A)[-1] != A, "one more has room: that makes two"


def test_successor_has_all_that_is_committed() -> None:
    """A peer that lacks it because its own disk is slow is passed over, whatever its name."""
    for slow in (B, C):
        cluster = Cluster()
        leader = cluster.elect(A)
        pass_time(cluster, INTERVAL)
        cluster[slow].writes_complete = False  # it takes appends, and nothing gets durable
        leader.propose()
        cluster.deliver()
        pass_time(cluster, INTERVAL, A)
        assert slow not in {each.target for each in given_up(leader)}
        assert cluster.leader() not in (None, leader)


def test_leader_waits_for_a_successor_that_is_caught_up() -> None:
    """One of two lags, and the stream to the other has just broken: not now."""
    cluster = Cluster()
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL - 6, A)
    cluster[C].writes_complete = False
    leader.propose()
    cluster.deliver()
    assert leader.core.commit_index == leader.core.last_index
    cluster.isolate(B)
    leader.core.peer_unreachable(B)
    pass_time(cluster, 10, A)
    assert given_up(leader) == []


def test_silent_peers_room_does_not_count() -> None:
    """With two of five full, one of the other three out of reach makes a majority impossible."""
    cluster = Cluster(A, B, C, D, E)
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL - 2 * LONGEST, A, B)
    cluster.isolate(C)
    pass_time(cluster, 3 * LONGEST, A, B)
    assert given_up(leader) == []


def test_operators_transfer_goes_first() -> None:
    """One that is under way to another node is neither disturbed nor a failure."""
    cluster = Cluster()
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL - 5, A)
    leader.core.transfer_leadership(C)
    leader.take_sent()  # TimeoutNow is lost
    for _ in range(10):
        leader.tick()
    assert leader.core.statistics().transfer_target == C
    assert given_up(leader) == []


def test_learner_is_no_successor() -> None:
    """Only voters lead (`test_s25_removed_node_neither_campaigns_nor_disturbs`)."""
    cluster = Cluster(A, B, C, D, learners=[A])
    leader = cluster.elect(B)
    pass_time(cluster, 2 * INTERVAL, B)
    assert [each.target for each in given_up(leader)] == [C]


def test_word_from_before_the_trouble_does_not_count() -> None:
    """What filled this disk may be filling the others: their answers must be newer than it."""
    cluster = Cluster()
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL)
    leader.core.report_fitness(is_short=True)
    timeouts: list[IncomingMessage] = []
    for _ in range(2 * OPTIONS.heartbeat_ticks - 1):
        timeouts += [each for each in leader.tick() if isinstance(each, TimeoutNow)]
    assert timeouts == []
    for peer in (B, C):
        round_number = leader.core._state.heartbeat_round
        leader.step(HeartbeatResponse(peer, A, leader.core.term, round_number))
    leader.tick()
    assert given_up(leader) == [], "one round is not enough"


def test_rounds_of_reads_make_no_word_fresh() -> None:
    """They are over within a moment of the trouble; what peers said then is as old when time has
    passed as it was at once, and an answer that comes late was given when it was asked for."""
    cluster = Cluster()
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL)
    leader.core.report_fitness(is_short=True)
    first = leader.core._state.heartbeat_round
    for context in range(1, 5):
        leader.core.read_index(context)
        cluster.deliver()
    last = leader.core._state.heartbeat_round
    assert last >= first + 2
    for ticks in (2 * OPTIONS.heartbeat_ticks, 1):
        for _ in range(ticks):
            leader.tick()
        assert given_up(leader) == []
        for peer in (B, C):  # that of the round before this tick, at last
            leader.step(HeartbeatResponse(peer, A, leader.core.term, last + 1))
    for _ in range(OPTIONS.heartbeat_ticks):
        leader.tick()
    for peer in (B, C):
        newest = leader.core._state.heartbeat_round
        leader.step(HeartbeatResponse(peer, A, leader.core.term, newest))
    leader.tick()
    assert len(given_up(leader)) == 1


def test_aborted_hand_over_is_tried_again_at_the_same_pace() -> None:
    """A successor that can't be reached costs one transfer timeout an interval and no more."""
    cluster = Cluster()
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL)
    for _ in range(5 * INTERVAL):
        for node in cluster.nodes.values():
            node.core.report_fitness(is_short=node is leader)
        for node in cluster.nodes.values():
            cluster.network += node.tick()
        cluster.deliver(lambda message: not isinstance(message, TimeoutNow))
    assert leader.core.role is Role.LEADER
    assert len(given_up(leader)) == 5
    ended = [event for event in leader.events if isinstance(event, TransferEnded)]
    assert {each.outcome for each in ended} == {"aborted"}


def test_leadership_never_moves_faster_than_the_interval() -> None:
    """Disks that get full as soon as their node leads, and empty when it doesn't."""
    cluster = Cluster()
    cluster.elect(A)
    led: list[NodeId] = []
    for _ in range(20 * INTERVAL):
        leader = cluster.leader()
        led += pass_time(cluster, 1, leader.node_id if leader else A)
    changes = sum(1 for before, after in pairwise(led) if before != after)
    assert 10 <= changes <= 20


def test_single_voter_stays() -> None:
    """There is nobody else."""
    cluster = Cluster(A)
    pass_time(cluster, 2 * LONGEST)
    assert pass_time(cluster, 3 * INTERVAL, A) == [A]


# --- stalled disks ------------------------------------------------------------------------------


def test_leader_with_a_stalled_disk_hands_over() -> None:
    """What others have committed waits for this disk for too long: one of them leads."""
    cluster = Cluster()
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL)
    leader.writes_complete = False
    leader.propose()
    assert pass_time(cluster, OPTIONS.stalled_disk_ticks) == [A]
    assert pass_time(cluster, 3)[-1] != A
    assert [each.reason for each in given_up(leader)] == ["the disk is stalled"]


def test_leader_with_a_slow_disk_stays() -> None:
    """Commits don't wait for it, so as long as it gets on there is nothing to win."""
    cluster = Cluster()
    leader = cluster.elect(A)
    leader.writes_complete = False
    for _ in range(10):
        leader.propose()
        assert pass_time(cluster, OPTIONS.stalled_disk_ticks - 1) == [A]
        assert leader.core.commit_index == leader.core.last_index > leader.core.durable_index
        leader.complete_writes()
    assert given_up(leader) == []


def test_stalled_leader_whose_disk_is_needed_stays() -> None:
    """With one of three nodes down nothing commits without this disk: nobody is better."""
    cluster = Cluster()
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL)
    cluster[C].crash()
    leader.writes_complete = False
    leader.propose()
    assert pass_time(cluster, 3 * INTERVAL) == [A]


def test_stalled_leader_prefers_a_follower_that_keeps_up() -> None:
    """Of five, the two whose disks have all that is committed are asked, not the one that lags."""
    for seed in range(5):
        cluster = Cluster(A, B, C, D, E, seed=seed)
        leader = cluster.elect(A)
        pass_time(cluster, INTERVAL)
        leader.writes_complete = cluster[B].writes_complete = False
        leader.propose()
        pass_time(cluster, OPTIONS.stalled_disk_ticks + 3)
        (begun,) = given_up(leader)
        assert begun.target in (C, D, E)


# --- elections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_suspected", [False, True])
def test_full_node_leaves_the_election_to_one_with_room(seed: int, *, is_suspected: bool) -> None:
    """After the leader's death the node with room wins, whatever the timeouts that were drawn."""
    cluster = Cluster(seed=seed)
    cluster.elect(A)
    pass_time(cluster, 20, B)
    cluster[A].crash()
    if is_suspected:
        for name in (B, C):
            cluster[name].core.suspect_leader(A)
    led = pass_time(cluster, 3 * LONGEST, B)
    assert led == [C]


@pytest.mark.parametrize("seed", range(10))
def test_full_node_leads_when_nobody_else_can(seed: int) -> None:
    """Yielding is a delay: the only electable node is elected within two more timeouts."""
    cluster = Cluster(seed=seed)
    leader = cluster.elect(A)
    cluster[C].writes_complete = False
    leader.propose()
    pass_time(cluster, 20, B)
    cluster[C].crash()  # it comes back without the committed entry
    cluster[C].writes_complete = True
    cluster[C].start()
    leader.crash()
    assert pass_time(cluster, 4 * LONGEST, B) == [B]


@pytest.mark.parametrize("seed", range(10))
def test_full_nodes_suspect_a_dead_leader_soon(seed: int) -> None:
    """After a broken stream they yield some suspicion delays, far less than an election."""
    cluster = Cluster(seed=seed)
    cluster.elect(A)
    pass_time(cluster, 20, B, C)
    cluster[A].crash()
    for name in (B, C):
        cluster[name].core.suspect_leader(A)
    pass_time(cluster, 5 * OPTIONS.suspicion_delay_max_ticks, B, C)
    events = [*cluster[B].events, *cluster[C].events]
    assert any(isinstance(each, RoleChanged) for each in events)


def test_planned_transfer_prefers_a_voter_with_room() -> None:
    """SIGTERM on a leader doesn't hand over to a full node while there is another."""
    for full, other in ((B, C), (C, B)):
        cluster = Cluster()
        leader = cluster.elect(A)
        pass_time(cluster, 20, full)
        leader.core.transfer_leadership(None)
        cluster.deliver()
        assert cluster[other].core.role is Role.LEADER


# --- a program that can't apply what is committed -----------------------------------------------


def cannot_serve(cluster: Cluster, ticks: int, *unfit: NodeId) -> list[NodeId]:
    """Time passes while `unfit` take entries and can't apply them; who led, in order."""
    led: list[NodeId] = []
    for _ in range(ticks):
        for name, node in cluster.nodes.items():
            node.core.report_fitness(is_short=False, can_serve=name not in unfit)
        cluster.tick()
        leader = cluster.leader()
        if leader is not None and led[-1:] != [leader.node_id]:
            led.append(leader.node_id)
    return led


def test_leader_that_cannot_apply_hands_over_although_its_disk_is_needed() -> None:
    """With one of three down nothing is committed without it; as a follower it takes the entries
    as before, and somebody else serves."""
    cluster = Cluster()
    leader = cluster.elect(A)
    cluster[C].crash()
    assert cannot_serve(cluster, 3 * INTERVAL, A) == [A, B]
    assert [each.reason for each in given_up(leader)] == ["what is committed can't be applied"]
    proposed = cluster[B].propose()
    cluster.deliver()
    assert cluster[B].core.commit_index == proposed.index


@pytest.mark.parametrize("trouble", ["space", "doubt"])
def test_leader_that_cannot_apply_stays_if_its_needed_disk_takes_nothing(trouble: str) -> None:
    """Whoever leads, nothing would be committed."""
    cluster = Cluster()
    leader = cluster.elect(A)
    pass_time(cluster, INTERVAL)
    cluster[C].crash()
    for _ in range(3 * INTERVAL):
        leader.core.report_fitness(is_short=trouble == "space", can_serve=False)
        leader.core.report_doubt(is_in_doubt=trouble == "doubt")
        cluster.tick()
    assert leader.core.role is Role.LEADER
    assert given_up(leader) == []


def test_nobody_who_can_apply_is_there() -> None:
    """All but one are of the older program, and that one is away: it stays as it is."""
    cluster = Cluster()
    cluster.elect(A)
    cluster[C].crash()
    assert cannot_serve(cluster, 3 * INTERVAL, A, B) == [A]


@pytest.mark.parametrize("lagging", [B, C])
def test_goodbye_goes_to_a_voter_that_serves_though_it_lacks_an_entry(lagging: NodeId) -> None:
    """The one that has everything can't apply it: the other is caught up on the way."""
    level = C if lagging == B else B
    cluster = Cluster()
    leader = cluster.elect(A)
    cannot_serve(cluster, 20, level)
    cluster[lagging].writes_complete = False
    leader.propose()
    cluster.deliver()
    statistics = leader.core.statistics().peers
    assert statistics[lagging].match_index < leader.core.commit_index
    leader.core.transfer_leadership(None)
    cluster[lagging].writes_complete = True
    cluster.network += cluster[lagging].complete_writes()
    cluster.deliver()
    assert cluster[lagging].core.role is Role.LEADER

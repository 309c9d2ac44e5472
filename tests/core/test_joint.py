"""Members come, go, rise and are put down: joint configurations, learners first, and the leader
that votes no more (ADR 41)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.core import MessageRefused, ProposalRefused
from dledger.core.group_epoch import GroupEpoch, Recovery
from dledger.core.membership import (
    check_change,
    left,
    reshaped,
    with_disk,
    with_learner,
    with_voter,
    with_voters,
    without,
)
from dledger.core.quorum import has_quorum
from dledger.core.types import (
    AppendRequest,
    Configuration,
    DiskId,
    EntryKind,
    EntryMeta,
    HeartbeatResponse,
    Index,
    NodeId,
    Role,
    Term,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tests.core.harness import A, B, C, Cluster, D, E, Node
from tests.core.test_chaos import OPTIONS, RELAXED, Storm
from tests.core.test_replication import connected
from tests.scale import examples

Sick = Callable[..., None]
ALL = (A, B, C, D, E)
DISK = {node: DiskId(node.encode() * 16) for node in ALL}


def learns(configuration: Configuration, *nodes: NodeId, observes: bool = False) -> Configuration:
    for node in nodes:
        configuration = with_learner(configuration, node, DiskId(b""), "", observes=observes)
    return configuration


def cluster(*founders: NodeId, names: tuple[NodeId, ...] = ALL) -> Cluster:
    group = Cluster(*names, strangers=set(names) - set(founders))
    leader = group[founders[0]]
    if len(founders) > 1:
        group.elect(founders[0])
    group.tick(40)
    assert leader.leads
    return group


def settle(group: Cluster, leader: Node, ticks: int = 60) -> None:
    """Time passes, and whoever leads does what is due."""
    for _ in range(ticks):
        for node in group.nodes.values():
            if node.is_running and node.leads:
                with suppress(ProposalRefused):
                    node.change_what_is_due()
        group.tick()


# --- which configuration may follow which --------------------------------------------------------


def quorums(configuration: Configuration) -> Iterator[frozenset[NodeId]]:
    """Every set of nodes that decides, by counting and by nothing of the product's: the model."""
    sets = [each for each in (configuration.voters, configuration.voters_outgoing) if each]
    subsets = chain.from_iterable(combinations(ALL, size) for size in range(len(ALL) + 1))
    for subset in map(frozenset, subsets):
        if all(2 * len(subset & each) > len(each) for each in sets):
            yield subset


SOME = st.frozensets(st.sampled_from(ALL))


def some_configuration(
    voters: frozenset[NodeId],
    outgoing: frozenset[NodeId],
    learners: frozenset[NodeId],
    observers: frozenset[NodeId],
) -> Configuration:
    learners = learners - voters
    return Configuration(voters, outgoing, learners, learners & observers)


def configurations() -> st.SearchStrategy[Configuration]:
    """Any that makes sense; half of them are joint."""
    nobody = st.just(frozenset[NodeId]())
    return st.builds(some_configuration, SOME.filter(bool), st.one_of(nobody, SOME), SOME, SOME)


@RELAXED
@given(configuration=configurations(), nodes=st.frozensets(st.sampled_from(ALL)))
def test_quorums_are_majorities_of_each_set(
    configuration: Configuration, nodes: frozenset[NodeId]
) -> None:
    assert has_quorum(configuration, nodes) == (nodes in set(quorums(configuration)))


@RELAXED
@given(
    present=configurations(),
    asked=st.tuples(
        st.frozensets(st.sampled_from(ALL)),
        st.frozensets(st.sampled_from(ALL)),
        configurations(),
        st.integers(0, 3),
    ),
)
def test_whatever_may_follow_shares_a_node_with_every_quorum(
    present: Configuration,
    asked: tuple[frozenset[NodeId], frozenset[NodeId], Configuration, int],
) -> None:
    """Of any two majorities, one under each, somebody is in both, and knows what was agreed: what
    else the rules let through would have to be an exception to Raft."""
    voters, gone, other, way = asked
    wanted = [
        reshaped(present, voters - gone, gone=gone),
        without(present, gone),
        left(present),
        other,
    ][way]
    node = connected(Node(A, Configuration(frozenset({A, B, C}))))
    state = node.core._state
    state.log.configuration = present
    for progress in state.peers.values():
        progress.become_replicate()
        progress.match_index = state.log.last_index
        progress.acked_round = 1
    try:
        check_change(state, wanted)
    except ProposalRefused:
        return
    after = list(quorums(wanted))
    assert after
    assert all(one & other for one in quorums(present) for other in after)
    assert wanted.voters - present.voters <= present.learners


# --- scenarios --------------------------------------------------------------------------------


def test_s51_a_second_change_is_refused_while_one_is_pending() -> None:
    group = cluster(A, B, C)
    leader = group[A]
    leader.change(learns(leader.core.configuration, D))
    with pytest.raises(ProposalRefused, match="pending"):
        leader.change(learns(leader.core.configuration, E))


def joint(group: Cluster) -> Index:
    """A, B, C are on their way to A, D, E; where that entry lies."""
    leader = group[A]
    leader.change(learns(leader.core.configuration, D, E, observes=True))
    group.tick(5)
    wanted = reshaped(leader.core.configuration, {A, D, E}, gone={B, C})
    assert wanted.voters_outgoing == {A, B, C}
    return leader.change(wanted).index


@pytest.mark.parametrize("lost", [(D, E), (B, C)])
def test_s53_both_majorities_are_needed(lost: tuple[NodeId, ...]) -> None:
    """To commit, to read, and to be elected."""
    group = cluster(A, B, C)
    at = joint(group)
    group.cut = {(x, y) for x in lost for y in ALL} | {(y, x) for x in lost for y in ALL}
    group.tick(12)
    assert group[A].core.commit_index < at
    group.read(A)
    group.tick(12)
    assert not group[A].reads
    group[A].crash()
    group.tick(200)
    assert group.leader() is None
    group[A].start()
    group.heal()
    group.tick(100)
    assert group.leader() is not None


def test_s53_a_new_leader_finishes() -> None:
    """When the leader dies with the joint entry on both sides, whoever follows leaves it."""
    group = cluster(A, B, C)
    at = joint(group)
    group.tick(2)
    assert group[A].core.commit_index >= at
    group[A].crash()
    settle(group, group[A], 150)
    new = group.leader()
    assert new is not None
    assert new.node_id in (D, E)
    assert new.core.configuration == Configuration(frozenset({A, D, E}))
    assert new.core.commit_index >= new.core.configuration_place.at


def test_who_votes_no_more_campaigns_until_that_is_committed() -> None:
    """A takes itself out of A and B, and dies before B hears of it. B needs A's vote, and A's log
    is longer: nobody but A could ever be elected."""
    group = cluster(A, B)
    leader = group[A]
    group.isolate(A)
    leader.change(without(leader.core.configuration, {A}))
    leader.pump()
    leader.crash()
    leader.start()
    group.heal()
    settle(group, leader, 150)
    assert group[B].core.role is Role.LEADER
    assert group[B].core.configuration == Configuration(frozenset({B}))
    assert group[A].core.role is Role.FOLLOWER


def test_who_is_no_member_any_more_votes_until_that_is_committed() -> None:
    """A is taken out by an entry that only it has seen beside its leader, who dies: the others may
    need its vote. Once the entry is committed they don't."""
    disks = tuple((node, DISK[node]) for node in (A, B, C))
    node = Node(A, Configuration(frozenset({A, B, C}), disks=disks))
    node.core._state.own_disk = DISK[A]
    gone = Configuration(frozenset({B, C}), disks=disks[1:])
    entry = EntryMeta(Index(1), Term(1), 100, EntryKind.CONFIGURATION, gone)
    node.step(AppendRequest(B, A, Term(1), Index(0), Term(0), (entry,), Index(0)))
    node.lose_trust()
    asked = VoteRequest(C, A, Term(2), Index(1), Term(1))
    assert VoteResponse(A, C, Term(2), granted=True) in node.step(asked)
    node.step(AppendRequest(C, A, Term(2), Index(1), Term(1), (), Index(1)))
    node.lose_trust()
    again = VoteRequest(B, A, Term(3), Index(1), Term(1))
    assert VoteResponse(A, B, Term(3), granted=False) in node.step(again)


def test_joint_configuration_is_not_left_before_it_is_committed() -> None:
    group = cluster(A, B, C)
    leader = group[A]
    leader.change(learns(leader.core.configuration, D, E, observes=True))
    group.tick(5)
    leader.change(with_voters(leader.core.configuration, {A, D, E}))
    assert leader.core.due_change() is None
    with pytest.raises(ProposalRefused):
        leader.change(left(leader.core.configuration))
    group.tick(2)
    assert leader.core.due_change() == left(leader.core.configuration)


@pytest.mark.parametrize("beside", [(), (B,), (B, C)])
def test_s54_leader_that_is_taken_out_leads_until_that_commits(beside: tuple[NodeId, ...]) -> None:
    """Alone, or with others; it counts without itself, hands over and follows."""
    group = cluster(*ALL)
    leader = group[A]
    group.cut = {(A, each) for each in ALL}
    leader.change(without(leader.core.configuration, {A, *beside}))
    leader.tick(3)
    assert leader.core.statistics().transfer_target is None
    assert leader.core.commit_index < leader.core.configuration_place.at
    group.heal()
    term = leader.core.term
    assert leader.leads
    settle(group, leader, 40)
    assert [each for each in group.nodes.values() if each.leads] == [group.leader()]
    new = group.leader()
    assert new is not None
    assert new.node_id in set(ALL) - {A, *beside}
    assert new.core.term == term + 1, "handed over, not waited for"
    assert new.core.configuration == Configuration(frozenset(ALL) - {A, *beside})


def test_leader_without_a_successor_stops_when_its_time_is_up() -> None:
    """Nobody answers the hand-over: it doesn't go on as a leader that nobody counts."""
    group = cluster(A, B, C)
    leader = group[A]
    leader.change(without(leader.core.configuration, {A}))
    group.deliver(lambda message: not isinstance(message, TimeoutNow))
    assert leader.core.commit_index >= leader.core.configuration_place.at
    for _ in range(leader.options.transfer_timeout_ticks + 3):
        group.network += leader.tick()
        group.deliver(lambda message: not isinstance(message, TimeoutNow))
    assert leader.core.role is Role.FOLLOWER


def test_s55_an_empty_node_learns_before_it_votes() -> None:
    group = cluster(A, B, C)
    leader = group[A]
    for _ in range(50):
        leader.propose()
    group.deliver()
    with pytest.raises(ProposalRefused, match="no learner"):
        leader.change(with_voter(leader.core.configuration, D))
    group.isolate(D)
    leader.change(learns(leader.core.configuration, D))
    group.tick(5)
    assert leader.core.due_change() is None
    with pytest.raises(ProposalRefused, match="caught up"):
        leader.change(with_voter(leader.core.configuration, D))
    group.heal()
    settle(group, leader, 20)
    assert leader.core.configuration.voters == {A, B, C, D}


def is_short(node: Node, *, is_so: bool) -> None:
    node.core.report_fitness(is_short=is_so)


def is_in_doubt(node: Node, *, is_so: bool) -> None:
    node.core.report_doubt(is_in_doubt=is_so)


@pytest.mark.parametrize("is_sick", [is_short, is_in_doubt])
def test_a_learner_with_a_sick_disk_does_not_vote_yet(is_sick: Sick) -> None:
    """It has no room for more, or lacks what it once had: as a voter it would hold up commits."""
    group = cluster(A, B, C)
    leader = group[A]
    leader.change(learns(leader.core.configuration, D, observes=True))
    is_sick(group[D], is_so=True)
    settle(group, leader, 20)
    leader.change(replace(leader.core.configuration, observers=frozenset()))
    settle(group, leader, 20)
    assert group[D].core.last_index == leader.core.last_index
    assert leader.core.configuration.learners == {D}
    with pytest.raises(ProposalRefused, match="caught up"):
        leader.change(with_voter(leader.core.configuration, D))
    is_sick(group[D], is_so=False)
    settle(group, leader, 20)
    assert leader.core.configuration.voters == {A, B, C, D}


def test_a_learner_that_has_gone_does_not_vote() -> None:
    """It had caught up, and died before its turn: the one that served alone would serve nobody."""
    group = cluster(A)
    leader = group[A]
    leader.change(learns(leader.core.configuration, B))
    group.tick(5)
    assert leader.core.due_change() is not None
    group[B].crash()
    settled = leader.options.election_timeout_min_ticks
    group.tick(settled)
    assert leader.core.due_change() is None
    with pytest.raises(ProposalRefused, match="B hasn't caught up yet, or doesn't answer now"):
        leader.change(with_voter(leader.core.configuration, B))
    placed = leader.propose()
    group.tick(settled)
    assert leader.core.commit_index >= placed.index
    group[B].start()
    settle(group, leader, 20)
    assert leader.core.configuration.voters == {A, B}


def test_a_learner_that_a_new_leader_has_not_heard_does_not_vote() -> None:
    """When it was heard last is only supposed then, and so is that its disk has room."""
    group = cluster(A, B, C)
    group[A].change(learns(group[A].core.configuration, D, observes=True))
    settle(group, group[A], 20)
    group[A].change(replace(group[A].core.configuration, observers=frozenset()))
    group.tick(5)
    leader = group.elect(B)
    group.deliver(lambda each: not isinstance(each, HeartbeatResponse))
    assert leader.core.is_ready_leader
    assert leader.core._state.peers[D].match_index == leader.core.last_index
    assert leader.core.due_change() is None
    settle(group, leader, 20)
    assert leader.core.configuration.voters == {A, B, C, D}


@pytest.mark.parametrize(("silent", "is_due"), [((C,), True), ((B, C), False)])
def test_learners_vote_where_those_that_answer_are_a_majority(
    silent: tuple[NodeId, ...], is_due: bool
) -> None:
    """With one more voter one more is needed: not while nobody but the leader and it is there."""
    group = cluster(A, B, C)
    leader = group[A]
    leader.change(learns(leader.core.configuration, D))
    group.tick(5)
    for node in silent:
        group.isolate(node)
    group.tick(leader.options.election_timeout_min_ticks + 1)
    assert leader.leads
    assert (leader.core.due_change() is not None) is is_due
    group.heal()
    settle(group, leader, 20)
    assert leader.core.configuration.voters == {A, B, C, D}


def test_who_is_in_doubt_counts_in_neither_half() -> None:
    """It is a voter of both halves, and counts in neither: of three that are to vote two are in
    doubt, so it stays joint until one of them isn't, and leads then."""
    group = cluster(A, B, C)
    leader = group[A]
    leader.change(learns(leader.core.configuration, D, E))
    settle(group, leader)
    assert leader.core.configuration.voters == set(ALL)
    group[B].core.report_doubt(is_in_doubt=True)
    group.tick(10)
    leader.change(with_voters(leader.core.configuration, {A, B, C}))
    leader.core.report_doubt(is_in_doubt=True)
    placed = leader.core.configuration_place.at
    settle(group, leader, 100)
    assert all(node.core.commit_index < placed for node in group.nodes.values())
    assert leader.core.configuration.voters_outgoing == set(ALL)
    group[B].core.report_doubt(is_in_doubt=False)
    settle(group, leader, 200)
    (serving,) = (node for node in group.nodes.values() if node.leads)
    assert serving in (group[B], group[C])
    assert serving.core.configuration.voters == {A, B, C}
    assert not serving.core.configuration.voters_outgoing


def test_observers_stay_learners() -> None:
    group = cluster(A, B, C)
    leader = group[A]
    leader.change(learns(leader.core.configuration, D, observes=True))
    settle(group, leader, 20)
    assert group[D].core.commit_index == leader.core.commit_index
    assert leader.core.configuration.learners == {D}


def test_s56_a_change_that_is_cut_off_is_undone() -> None:
    group = cluster(A, B, C)
    before = group[A].core.configuration
    group.isolate(A)
    group[A].change(without(before, {C}))
    group.deliver()
    group.elect(B)
    group.heal()
    group.tick(30)
    assert group[A].core.configuration == before


def test_several_that_have_caught_up_vote_at_once() -> None:
    """One becomes three without ever being two: the joint entry needs the one and two of three."""
    group = cluster(A)
    leader = group[A]
    seen = {leader.core.configuration.voters}
    leader.change(learns(leader.core.configuration, B, C))
    group.tick(4)
    for _ in range(30):
        with suppress(ProposalRefused):
            leader.change_what_is_due()
        seen.add(leader.core.configuration.voters)
        group.tick()
    assert seen == {frozenset({A}), frozenset({A, B, C})}
    assert not leader.core.configuration.voters_outgoing


def test_a_disk_changes_only_while_its_member_does_not_vote() -> None:
    named = Configuration(frozenset({A, B, C}), disks=((C, DISK[C]),))
    node = connected(Node(A, named))
    state = node.core._state
    for wanted in (
        Configuration(frozenset({A, B, C}), disks=((C, DISK[D]),)),
        Configuration(frozenset({A}), frozenset({A, B, C}), disks=((C, DISK[D]),)),
    ):
        with pytest.raises(ProposalRefused, match="disk"):
            check_change(state, wanted)
    check_change(state, with_disk(named, C, DISK[D]))


def test_an_epoch_goes_on_whoever_comes_and_goes() -> None:
    """Only a recovery by force begins another one, and that is nobody's proposal (ADR 52)."""
    group = cluster(A, B, C)
    leader, present = group[A], group[A].core.configuration
    for wanted in (present, learns(present, D), without(present, (C,))):
        later = replace(wanted, epoch=GroupEpoch((b"r" * 16,), Recovery("a", 1, 1, 1, 1)))
        with pytest.raises(ProposalRefused, match="epoch"):
            check_change(leader.core._state, later)
    for shaped in (without(present, (B, C)), left(present), with_voters(present, (A, B))):
        assert shaped.epoch == present.epoch


def test_a_configuration_of_no_sense_is_refused_from_a_peer() -> None:
    for nonsense in (
        Configuration(frozenset({A, B}), learners=frozenset({B})),
        Configuration(frozenset({A, B}), observers=frozenset({C})),
    ):
        node = Node(A, Configuration(frozenset({A, B, C})))
        entry = EntryMeta(Index(1), Term(1), 100, EntryKind.CONFIGURATION, nonsense)
        with pytest.raises(MessageRefused):
            node.step(AppendRequest(B, A, Term(1), Index(0), Term(0), (entry,), Index(0)))


# --- under fire ---------------------------------------------------------------------------------


class ChurnStorm(Storm):
    """A storm in which members change all the time: everybody runs, and who is a member is in the
    log."""

    def __init__(self, founders: int, seed: int) -> None:
        super().__init__(ALL, seed)
        self.cluster = Cluster(*ALL, seed=seed, options=OPTIONS, strangers=ALL[founders:])
        self.changes = 0
        self.joint = 0

    def act(self, what: int, rng: random.Random) -> None:
        leaders = [node for node in self.cluster.nodes.values() if node.is_running and node.leads]
        for node in leaders:
            with suppress(ProposalRefused):
                self.changes += node.change_what_is_due(next(self.sizes))
            if rng.random() < 0.4:
                self._change(node, rng)
        super().act(what, rng)

    def _change(self, node: Node, rng: random.Random) -> None:
        present = node.core.configuration
        some = rng.sample(ALL, rng.choice((1, 1, 2, 3)))
        outside = [each for each in some if each not in present.members()]
        way = rng.randrange(4)
        if way == 0 or not present.voters & set(some):
            wanted, observes = present, rng.random() < 0.2
            for each in outside:
                wanted = with_learner(wanted, each, self.disk_of(each), "", observes=observes)
        elif way == 1:
            wanted = without(present, some)
        elif way == 2:
            wanted = with_voters(present, (present.voters - set(some)) | present.learners)
        else:
            gone = present.voters & set(some)
            wanted = reshaped(present, (present.voters - gone) | present.learners, gone=gone)
        if wanted == present:
            return
        with suppress(ProposalRefused):
            node.change(wanted, next(self.sizes))
            self.changes += 1
            self.joint += bool(wanted.voters_outgoing)

    def disk_of(self, node: NodeId) -> DiskId:
        """As the configuration is to name it; none: any."""
        return DiskId(b"")

    def calm_down(self) -> None:
        """Within 600 ticks the members in force have a leader that has left what was joint, and
        that has everything committed."""
        self.cluster.heal()
        for node in self.cluster.nodes.values():
            node.writes_complete = True
            if not node.is_running:
                self.checker.on_restart(node.name)
                node.start()
            self.cluster.network += node.complete_writes()
        for _ in range(600):
            self.cluster.tick()
            for node in self.cluster.nodes.values():
                if node.leads:
                    with suppress(ProposalRefused):
                        node.change_what_is_due(next(self.sizes))
            self.settle()
            if self._is_calm():
                self.check_no_read_waits()
                return
        raise AssertionError(f"the group did not recover: {self._states()}")

    def _is_calm(self) -> bool:
        leader = self.cluster.leader()
        if leader is None or not leader.core.is_ready_leader:
            return False
        configuration = leader.core.configuration
        members = [self.cluster[each] for each in configuration.members()]
        if leader not in members or configuration.voters_outgoing:
            return False
        if configuration.learners - configuration.observers:
            return False
        ends = {(node.last_index, node.commit_index) for node in members}
        if len(ends) > 1 or len(set(ends.pop())) > 1:
            return False
        assert leader.commit_index >= len(self.checker.acknowledged)
        self.checker.check_nothing_lost(members)
        return True

    def _states(self) -> list[object]:
        return [
            (node.name, node.core.role.value, node.term, node.last_index, node.core.configuration)
            for node in self.cluster.nodes.values()
        ]


def churn(founders: int, seed: int, steps: int) -> ChurnStorm:
    storm = ChurnStorm(founders, seed)
    storm.run(random.Random(seed), steps)
    storm.calm_down()
    return storm


@settings(RELAXED, max_examples=examples(50))
@given(founders=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_members_change_under_fire(founders: int, seed: int) -> None:
    """Figure 3's properties hold whatever the members do, with the majorities in force."""
    churn(founders, seed, 1_200)


def test_churn_is_no_idle_noise() -> None:
    storms = [churn(3, seed, 1_500) for seed in range(8)]
    assert sum(storm.changes for storm in storms) > 30
    assert sum(storm.joint for storm in storms) > 3
    assert sum(len(storm.checker.acknowledged) for storm in storms) > 100

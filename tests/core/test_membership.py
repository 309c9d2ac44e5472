"""A lost disk is replaced: who counts, who votes, and in which order the entries come."""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.membership import Membership
from dledger.core import Raft
from dledger.core.errors import ProposalRefused
from dledger.core.membership import with_disk, with_voter
from dledger.core.roles import track_members
from dledger.core.types import (
    AppendRequest,
    Configuration,
    ConfigurationPlace,
    DiskId,
    EntryKind,
    EntryMeta,
    HeartbeatResponse,
    Index,
    Proposed,
    Role,
    Term,
    VoteRequest,
    VoteResponse,
)
from tests.core.harness import A, B, C, Node
from tests.core.test_replication import connected

OLD, NEW = DiskId(b"o" * 16), DiskId(b"n" * 16)
THREE = Configuration(frozenset({A, B, C}))
NAMED = Configuration(THREE.voters, disks=((C, OLD),))


def change(node: Node, wanted: Configuration) -> Index:
    placed = node.core.propose(100, EntryKind.CONFIGURATION, wanted)
    node.log.append(EntryMeta(placed.index, placed.term, 100, EntryKind.CONFIGURATION, wanted))
    node.pump()
    return placed.index


def test_a_replaced_disk_neither_counts_nor_votes_until_it_is_promoted() -> None:
    lost = with_disk(NAMED, C, NEW)
    assert lost.voters == {A, B}
    assert lost.learners == {C}
    assert lost.disk_of(C) == NEW
    again = with_voter(lost, C)
    assert again.voters == THREE.voters
    assert not again.learners


def test_progress_begins_anew_with_a_peers_disk() -> None:
    """What the lost disk had acknowledged is not on the new one."""
    node = connected(Node(A, NAMED))
    state = node.core._state
    state.peers[C].match_index = Index(7)
    kept = state.peers[B]
    change(node, with_disk(NAMED, C, NEW))
    assert state.peers[C].match_index == 0
    assert state.peers[B] is kept
    track_members(state)
    assert state.peers[C].disk == NEW


def test_one_voter_changes_at_a_time_and_never_the_leader() -> None:
    """So that majorities of one configuration meet those of the next."""
    node = connected(Node(A, NAMED))
    for wanted in (
        Configuration(frozenset({A})),
        Configuration(frozenset({B, C})),
        with_disk(NAMED, A, NEW),
    ):
        with pytest.raises(ProposalRefused):
            node.core.propose(100, EntryKind.CONFIGURATION, wanted)
    assert node.core.role is Role.LEADER


def test_a_learner_is_promoted_once_it_holds_the_entry_that_named_it() -> None:
    """Not before that is committed, nor on what the lost disk acknowledged."""
    node = connected(Node(A, NAMED))
    state = node.core._state
    assert node.core.due_change() is None
    index = change(node, with_disk(NAMED, C, NEW))
    assert node.core.due_change() is None
    state.log.persisted_to(index)
    state.log.commit_to(index)
    progress = state.peers[C]
    progress.become_replicate()
    assert node.core.due_change() is None
    progress.match_index = Index(index - 1)
    assert node.core.due_change() is None
    progress.match_index = index
    assert node.core.due_change() is None, "it has answered no heartbeat yet"
    node.tick(node.options.heartbeat_ticks)
    for peer in (B, C):
        node.step(HeartbeatResponse(peer, A, node.core.term, state.heartbeat_round, index))
    assert node.core.due_change() == with_voter(with_disk(NAMED, C, NEW), C)


def test_a_disk_that_its_log_does_not_name_gives_no_vote() -> None:
    """While it catches up it reads that the lost one was a voter: that vote is not its own."""
    node = Node(C, NAMED, term=3)  # on a disk without a name
    said = node.step(VoteRequest(A, C, Term(4), Index(5), Term(3)))
    assert VoteResponse(C, A, Term(4), granted=False) in said
    assert not node.core._state.is_promotable()
    assert not node.core.knows_own_disk


def test_the_place_of_a_configuration_orders_what_is_known() -> None:
    assert ConfigurationPlace(Term(2), Index(5)) > ConfigurationPlace(Term(1), Index(9))
    assert ConfigurationPlace() < ConfigurationPlace(Term(1), Index(1))


class Replication:
    """A driver that applies nothing by itself."""

    def __init__(self, node: Node) -> None:
        self.applied_index = Index(0)
        self._node = node

    @property
    def core(self) -> Raft:
        return self._node.core

    def propose_configuration(self, wanted: Configuration) -> Proposed:
        change(self._node, wanted)
        return Proposed(self.core.last_index, self.core.term)


def test_a_replacement_that_another_leader_cut_off_is_not_called_done() -> None:
    """Between two looks, its own entry gives way to another leader's, and that is applied."""

    async def run() -> None:
        node = connected(Node(A, NAMED))
        node.core._state.peers[C].match_index = Index(0)  # its disk is lost
        replication = Replication(node)
        asked = asyncio.create_task(Membership(replication, A).replace(C, NEW))
        await asyncio.sleep(0)
        at, term = node.core.configuration_place.at, Term(node.core.term + 1)
        assert node.core.configuration.disk_of(C) == NEW
        others = tuple(EntryMeta(Index(at + more), term, 100) for more in range(3))
        node.step(AppendRequest(B, A, term, Index(at - 1), Term(term - 1), others, Index(at + 2)))
        assert node.core.configuration.disk_of(C) == OLD
        replication.applied_index = Index(at + 2)
        with pytest.raises(BrokerError) as refused:
            await asked
        assert refused.value.code is ErrorCode.LEADERSHIP_LOST

    asyncio.run(run())

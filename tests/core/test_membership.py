"""A lost disk is replaced: who counts, who votes, and in which order the entries come."""

from __future__ import annotations

import pytest

from dledger.core.errors import ProposalRefused
from dledger.core.membership import with_disk, with_voter
from dledger.core.roles import track_members
from dledger.core.types import (
    Configuration,
    ConfigurationPlace,
    DiskId,
    EntryKind,
    EntryMeta,
    Index,
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
    assert node.core.promotion() is None
    index = change(node, with_disk(NAMED, C, NEW))
    assert node.core.promotion() is None
    state.log.persisted_to(index)
    state.log.commit_to(index)
    progress = state.peers[C]
    progress.become_replicate()
    assert node.core.promotion() is None
    progress.match_index = Index(index - 1)
    assert node.core.promotion() is None
    progress.match_index = index
    assert node.core.promotion() == with_voter(with_disk(NAMED, C, NEW), C)


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

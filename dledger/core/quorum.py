"""Majorities, joint ones included: who decides an election and which index is agreed.

Pure functions over a `Configuration`; they own nothing. A joint configuration decides only when
both of its halves do, and a learner never counts. Everything that needs a majority (votes,
commit, ReadIndex, CheckQuorum) comes here, so that membership changes touch one file.

Source: Raft paper §5.2, §5.3; dissertation §4.3 (joint consensus); etcd-io/raft `quorum`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum

from dledger.core.types import Configuration, NodeId


class VoteResult(Enum):
    """How an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def agreed(configuration: Configuration, value_of: Callable[[NodeId], int]) -> int:
    """Return the greatest value that a majority (of both halves, when joint) has reached.

    A configuration without voters agrees on nothing: 0.
    """
    value = _agreed_by(configuration.voters, value_of)
    if configuration.voters_outgoing:
        return min(value, _agreed_by(configuration.voters_outgoing, value_of))
    return value


def has_quorum(configuration: Configuration, nodes: Collection[NodeId]) -> bool:
    """Tell whether `nodes` hold a majority (of both halves, when joint)."""
    return agreed(configuration, lambda node: 1 if node in nodes else 0) == 1


def vote_result(configuration: Configuration, votes: Mapping[NodeId, bool]) -> VoteResult:
    """Tell how an election stands, from the answers so far (True: granted)."""
    granted = {node for node, answer in votes.items() if answer}
    if has_quorum(configuration, granted):
        return VoteResult.WON
    refused = votes.keys() - granted
    still_possible = configuration.members() - refused
    if has_quorum(configuration, still_possible):
        return VoteResult.PENDING
    return VoteResult.LOST


def _agreed_by(voters: frozenset[NodeId], value_of: Callable[[NodeId], int]) -> int:
    if not voters:
        return 0
    values = sorted(map(value_of, voters), reverse=True)
    return values[len(values) // 2]

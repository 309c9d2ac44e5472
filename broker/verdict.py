"""Whose log differs, by what members say of theirs. Pure: it asks nobody and changes nothing.

Two logs that hold an entry of one index and term hold the same up to it (Raft's log matching), so
their running digests there are equal; if they aren't, one of the two is wrong. Which one, a third
can tell: a majority of the voters has every committed entry, and no single member's word is one.
Where there are two voters there is no third, and nobody is ever found wrong here
(docs/adr/0044-the-live-divergence-alarm.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from dledger.core.quorum import has_quorum
from dledger.core.types import Configuration, NodeId


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of somebody's log: index, term, and the running digest at it."""

    index: int
    term: int
    digest: int


class Standing(Enum):
    """What becomes of the log that is judged."""

    SOUND = "sound"  # a majority holds the same
    OUTVOTED = "outvoted"  # a majority holds something else, and all of it the same
    OPEN = "open"  # neither is known


@dataclass(frozen=True, slots=True)
class Judgement:
    """`others`: who holds something else at that entry."""

    standing: Standing
    others: frozenset[NodeId] = frozenset()


def judge(
    configuration: Configuration, node: NodeId, own: Place, told: Mapping[NodeId, Place]
) -> Judgement:
    """What `told`, by others and of the same index, says of this node's log. Who has an entry of
    another term there has another entry, of which nothing follows: it may be cut off yet."""
    same = {peer for peer, place in told.items() if place == own}
    others: defaultdict[int, set[NodeId]] = defaultdict(set)
    for peer, place in told.items():
        if place.term == own.term and place.digest != own.digest:
            others[place.digest].add(peer)
    differing = frozenset(peer for peers in others.values() for peer in peers)
    if any(has_quorum(configuration, peers) for peers in others.values()):
        return Judgement(Standing.OUTVOTED, differing)
    if has_quorum(configuration, same | {node}):
        return Judgement(Standing.SOUND, differing)
    return Judgement(Standing.OPEN, differing)

"""Partitions by their shapes: who still hears whom."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.real.arena import Arena
from chaos.real.blow import Blow
from chaos.real.links import (
    Pairs,
    around,
    bridge,
    cut_off,
    deaf,
    isolated,
    mute,
    ring,
    scattered,
    unanswered,
    unheard,
    unreached,
)
from chaos.real.network import CLIENTS
from chaos.real.scenario import node_ids


def blow(nodes: int, *victims: str, seed: int = 1) -> Blow:
    arena = cast(Arena, SimpleNamespace(node_ids=node_ids(nodes)))
    return Blow(arena, cast(Any, None), "label", victims, {}, Random(seed), cast(Any, None))


def heard_by(nodes: int, cut: Pairs) -> dict[str, set[str]]:
    """For each node, whom it hears, itself included."""
    names, gone = node_ids(nodes), set(cut)
    return {b: {a for a in names if a == b or (a, b) not in gone} for b in names}


def test_isolated_nodes_hear_each_other_and_nobody_else() -> None:
    """Both sides of the cut are whole in themselves."""
    heard = heard_by(5, isolated(blow(5, "n1", "n2")))
    assert heard["n1"] == heard["n2"] == {"n1", "n2"}
    assert heard["n3"] == heard["n4"] == heard["n5"] == {"n3", "n4", "n5"}


def test_deaf_and_mute_nodes_are_cut_one_way() -> None:
    """The deaf is heard, the mute hears."""
    heard = heard_by(3, deaf(blow(3, "n1")))
    assert heard == {"n1": {"n1"}, "n2": {"n1", "n2", "n3"}, "n3": {"n1", "n2", "n3"}}
    heard = heard_by(3, mute(blow(3, "n1")))
    assert heard == {"n1": {"n1", "n2", "n3"}, "n2": {"n2", "n3"}, "n3": {"n2", "n3"}}


def test_scattered_nodes_hear_only_themselves() -> None:
    """Nobody has a majority."""
    assert heard_by(5, scattered(blow(5))) == {name: {name} for name in node_ids(5)}


@pytest.mark.parametrize("nodes", [3, 4, 5, 7, 9])
@pytest.mark.parametrize("seed", range(5))
def test_in_a_ring_each_hears_a_majority_and_no_two_the_same(nodes: int, seed: int) -> None:
    """Jepsen's majorities ring."""
    heard = heard_by(nodes, ring(blow(nodes, seed=seed)))
    assert all(len(those) >= nodes // 2 + 1 for those in heard.values())
    assert len({frozenset(those) for those in heard.values()}) == nodes


@pytest.mark.parametrize("nodes", [3, 5, 7])
@pytest.mark.parametrize("seed", range(5))
def test_a_bridge_is_one_node_that_hears_both_halves(nodes: int, seed: int) -> None:
    """The halves hear nothing of each other; links are cut both ways."""
    heard = heard_by(nodes, bridge(blow(nodes, seed=seed)))
    sizes = sorted(len(those) for those in heard.values())
    assert sizes == [nodes // 2 + 1] * (nodes - 1) + [nodes]
    assert all((a in heard[b]) == (b in heard[a]) for a in heard for b in heard)


def test_clients_are_cut_from_victims_and_from_nobody_else() -> None:
    """Either way, or one of them; nodes hear each other as before."""
    there, back = (CLIENTS, "n1"), ("n1", CLIENTS)
    assert set(unreached(blow(3, "n1"))) == {there, back}
    assert set(unanswered(blow(3, "n1"))) == {back}
    assert set(unheard(blow(3, "n1"))) == {there}


def test_who_is_cut_off_sees_neither_peers_nor_clients() -> None:
    """While one that is isolated is reached by clients: the stale leader that they still ask."""
    cut = set(cut_off(blow(3, "n1")))
    assert cut == set(isolated(blow(3, "n1"))) | {("n1", CLIENTS), (CLIENTS, "n1")}
    assert not any(CLIENTS in pair for pair in isolated(blow(3, "n1")))


def test_bad_network_is_bad_for_clients_too() -> None:
    """Every link of a victim."""
    others = ("n2", "n3", CLIENTS)
    assert {pair for pair in around(blow(3, "n1")) if pair[0] != pair[1]} == {
        *(("n1", other) for other in others),
        *((other, "n1") for other in others),
    }

"""The nemeses of links: which directed links a partition cuts, and how bad the others become.

Partitions are sets of directed pairs `(from, to)`; what a cut or a loss does to a connection is
the network's (`chaos.real.network`). Source: Jepsen's grudges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from chaos.real.blow import Act, Blow
from chaos.real.network import CLIENTS, PERFECT, Quality

Pairs = Iterable[tuple[str, str]]
CUT: Final = Quality(cut=True)
SILENT: Final = Quality(silent=True)


def _both_ways(a: Iterable[str], b: Iterable[str]) -> Pairs:
    pairs = [(x, y) for x in a for y in b]
    return [*pairs, *((y, x) for x, y in pairs)]


def isolated(blow: Blow) -> Pairs:
    return _both_ways(blow.victims, blow.others)


def scattered(blow: Blow) -> Pairs:
    everybody = blow.arena.node_ids
    return [(a, b) for a in everybody for b in everybody if a != b]


def deaf(blow: Blow) -> Pairs:
    return [(other, victim) for victim in blow.victims for other in blow.others]


def mute(blow: Blow) -> Pairs:
    return [(victim, other) for victim in blow.victims for other in blow.others]


def ring(blow: Blow) -> Pairs:
    """Each node sees a majority, no two the same one. Of three nodes in a ring with both
    directions each would see all, so there each is heard by its neighbour only."""
    nodes = blow.chance.sample(blow.arena.node_ids, len(blow.arena.node_ids))
    count = len(nodes)
    reach = (count // 2 + 1) // 2
    near = {step % count for step in range(1, reach + 1)}
    if count > 3:
        near |= {-step % count for step in range(1, reach + 1)}
    return [
        (nodes[i], nodes[j])
        for i in range(count)
        for j in range(count)
        if i != j and (j - i) % count not in near
    ]


def bridge(blow: Blow) -> Pairs:
    """Two halves that don't see each other, and one node that sees both."""
    nodes = blow.chance.sample(blow.arena.node_ids, len(blow.arena.node_ids))
    half = len(nodes) // 2
    return _both_ways(nodes[:half], nodes[half + 1 :])


def unreached(blow: Blow) -> Pairs:
    """Clients and victims are cut, both ways; the victims' peers reach them."""
    return _both_ways(blow.victims, (CLIENTS,))


def unanswered(blow: Blow) -> Pairs:
    """What clients ask arrives, the answers don't."""
    return [(victim, CLIENTS) for victim in blow.victims]


def unheard(blow: Blow) -> Pairs:
    """What clients ask doesn't arrive; what was asked before is answered."""
    return [(CLIENTS, victim) for victim in blow.victims]


def cut_off(blow: Blow) -> Pairs:
    """The victims see nobody: neither peers nor clients."""
    return _both_ways(blow.victims, (*blow.others, CLIENTS))


def around(blow: Blow) -> Pairs:
    """Every link of the victims, those to clients too."""
    return _both_ways(blow.victims, (*blow.arena.node_ids, CLIENTS))


def cutting(pairs: Callable[[Blow], Pairs]) -> Act:
    return worsening(pairs, lambda _: CUT)


def silencing(pairs: Callable[[Blow], Pairs]) -> Act:
    return worsening(pairs, lambda _: SILENT)


def worsening(pairs: Callable[[Blow], Pairs], quality: Callable[[Blow], Quality]) -> Act:
    async def strike(blow: Blow) -> str:
        links = [(a, b) for a, b in pairs(blow) if a != b]
        blow.arena.network.set_fault(blow.label, links, quality(blow))
        return ""

    return strike


async def clear(blow: Blow) -> str:
    blow.arena.network.clear_fault(blow.label)
    return ""


def slow(blow: Blow) -> Quality:
    return replace(PERFECT, delay_ms=blow.number("delay_ms"), jitter_ms=blow.number("jitter_ms"))


def lossy(blow: Blow) -> Quality:
    return replace(PERFECT, loss=blow.number("loss"))


def repeating(blow: Blow) -> Quality:
    return replace(PERFECT, reset=blow.number("chance"))

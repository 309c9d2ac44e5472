"""Whom a strike hits: a scenario's words for nodes, resolved when the strike is made."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


def victims_of(
    targets: Sequence[str], nodes: Sequence[str], leader: str | None, chance: Random
) -> tuple[str, ...] | None:
    """The nodes that `targets` mean now, each once; None if the leader is meant and there is none.

    Args:
        targets: node ids and `scenario.ROLES`.
        nodes: all nodes.
        chance: draws where several would do.
    """
    found: list[str] = []
    for target in targets:
        match target:
            case "leader":
                if leader is None:
                    return None
                found.append(leader)
            case "follower":
                found.append(chance.choice([each for each in nodes if each != leader]))
            case "one":
                found.append(chance.choice(nodes))
            case "minority":
                found += chance.sample(nodes, (len(nodes) - 1) // 2)
            case "majority":
                found += chance.sample(nodes, len(nodes) // 2 + 1)
            case "all":
                found += nodes
            case _:
                found.append(target)
    return tuple(dict.fromkeys(found))

"""Whom a fault meets, and when what follows of it happens: what all families of faults share.

Victims are drawn from the fault's own randomness at the moment it happens. What is put off happens
unless peace has come meanwhile; what has to happen all the same (a disk that goes back to where it
belongs) is put on the timeline itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from chaos.sim.node import SimNode
from chaos.sim.plan import Fault
from chaos.sim.world import NOBODY, World
from dledger.core.types import NodeId, Role

Strike = Callable[[Random], None]
Strikes = Mapping[Fault, Strike]


class Aim:
    """The choice of victims and moments in one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_over = False  # peace has come

    @property
    def nodes(self) -> list[SimNode]:
        """Every machine."""
        return list(self.world.nodes.values())

    def leader(self) -> SimNode | None:
        """Who leads, or believes so."""
        for node in self.nodes:
            if node.life is not None and node.life.core.role is Role.LEADER:
                return node
        return None

    def any(self, chance: Random) -> SimNode:
        """Some node; often the leader, where most can go wrong."""
        leader = self.leader()
        return leader if leader is not None and chance.random() < 0.4 else chance.choice(self.nodes)

    def names(self, chance: Random) -> list[NodeId]:
        """The members, in an order that is drawn."""
        names = list(self.world.members)
        chance.shuffle(names)
        return names

    def later(self, delay_ms: float, call: Callable[..., object], *arguments: object) -> None:
        """`call` after a while, unless peace has come."""

        def unless_over() -> None:
            if not self.is_over:
                call(*arguments)

        self.world.timeline.after(int(delay_ms * 1000), NOBODY, unless_over)

    def start_later(self, node: SimNode, chance: Random) -> None:
        """`node`, which is down, is started again within some seconds."""
        self.later(chance.choice((1, 50, 500, 2000)) * (0.5 + chance.random()), node.boot)

    def power_on(self, node: SimNode) -> None:
        """`node` is started again if it is down; on and on where its disk is still off."""
        if node.disk.is_off:
            node.boot()
            if node.life is None and node.disk.is_off:
                self.later(100, self.power_on, node)
        elif node.life is None:
            node.boot()

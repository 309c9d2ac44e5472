"""Streams that break or carry what nobody sent, and members that say what isn't so.

The links work; what comes over them is late, garbled, a stranger's, or a lie. A lie is told by one
member at a time and counts as harm to its disk, as it may be shut out for it.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from chaos.sim.copies import Copies, may_harm
from chaos.sim.links import Thief
from chaos.sim.network import Garbling
from chaos.sim.plan import Fault
from chaos.sim.strikes.aim import Aim, Strikes
from chaos.sim.world import NOBODY


class Streams:
    """Faults of what is said.

    Args:
        copies: is told whose disk may be refused for what was said of it.
    """

    def __init__(self, aim: Aim, copies: Copies) -> None:
        self._aim = aim
        self._world = aim.world
        self._copies = copies

    @property
    def strikes(self) -> Strikes:
        return {
            Fault.BREAK_STREAMS: self._break_streams,
            Fault.MUTE_STREAMS: self._mute_streams,
            Fault.STOLEN_STREAM: self._stolen_stream,
            Fault.SLOW_CONNECT: self._slow_connect,
            Fault.GARBLE: self._garble,
            Fault.LIAR: self._liar,
        }

    def _break_streams(self, chance: Random) -> None:
        one, other = self._aim.names(chance)[:2]
        self._world.log("network", f"streams between {one} and {other} break")
        self._world.network.reset(one, other)

    def _mute_streams(self, chance: Random) -> None:
        names = self._aim.names(chance)
        for one, other in pairwise(names[: chance.randint(2, len(names))]):
            self._world.log("network", f"streams between {one} and {other} carry nothing any more")
            self._world.network.mute(one, other)

    def _stolen_stream(self, chance: Random) -> None:
        world = self._world
        thief = Thief(world.network, world.timeline, NOBODY, chance)
        for _ in range(chance.choice((1, 1, 2, 6))):
            name, victim = self._aim.names(chance)[:2]
            world.log("nemesis", f"somebody calls {victim} as {name}")
            thief.steal(self._world.nodes[name].identity, victim)

    def _slow_connect(self, chance: Random) -> None:
        network = self._world.network
        network.connecting_us = chance.choice((300_000, 3_000_000))
        self._aim.later(chance.choice((1_000, 4_000)), setattr, network, "connecting_us", 0)

    def _garble(self, chance: Random) -> None:
        """Bits flip on all links, for a while."""
        network = self._world.network
        network.garbling = Garbling(chance.choice((0.001, 0.01, 0.1)), chance)
        self._aim.later(chance.randrange(200, 3000), setattr, network, "garbling", None)

    def _liar(self, chance: Random) -> None:
        """One member says absurd and contradictory things among the true ones, for a while. As a
        rule the leader, whose word moves most."""
        leader = self._aim.leader()
        node = leader if leader and chance.random() < 0.6 else self._aim.any(chance)
        if node.is_foreign or not may_harm(node, self._world):
            return  # it may be shut out for what it says of itself, like a disk that is lost
        node.has_lied = True
        self._copies.suspect(node)
        liars = self._world.network.liars
        liars[node.name] = chance
        self._world.watch.clocks.distrust(node.name)
        self._world.log("nemesis", f"{node.name} lies")
        self._aim.later(chance.randrange(200, 4000), liars.pop, node.name, None)

"""Links that are cut: partitions of every shape, and the schedules that are worst with them.

This owns which links are cut and when they work again. A cut link loses what is said and tells
nobody; only some of the connections over it are noticed to be dead.
"""

from __future__ import annotations

from random import Random

from chaos.sim import network
from chaos.sim.network import Link
from chaos.sim.plan import Fault
from chaos.sim.strikes.aim import Aim, Strikes
from chaos.sim.world import World
from dledger.core.types import NodeId


class Partitions:
    """Faults of links between members, and between them and clients."""

    def __init__(self, aim: Aim) -> None:
        self._aim = aim
        self._world = aim.world

    @property
    def strikes(self) -> Strikes:
        return {
            Fault.HALVES: self._halves,
            Fault.ISOLATE_LEADER: self._isolate_leader,
            Fault.ISOLATE: self._isolate,
            Fault.RING: self._ring,
            Fault.BRIDGE: self._bridge,
            Fault.ONE_WAY: self._one_way,
            Fault.SILENCE: self._silence,
            Fault.CLIENT_CUT: self._client_cut,
            Fault.STALE_LEADER: self._stale_leader,
            Fault.KILLER: self._killer,
        }

    def _halves(self, chance: Random) -> None:
        names = self._aim.names(chance)
        middle = len(names) // 2
        self._cut(network.between(names[:middle], names[middle:]), chance)

    def _isolate_leader(self, chance: Random) -> None:
        leader = self._aim.leader()
        if leader is not None:
            self._cut(network.between([leader.name], self._world.members), chance)

    def _isolate(self, chance: Random) -> None:
        self._cut(network.between(self._aim.names(chance)[:1], self._world.members), chance)

    def _ring(self, chance: Random) -> None:
        self._cut(network.ring(self._aim.names(chance)), chance)

    def _bridge(self, chance: Random) -> None:
        self._cut(network.bridge(self._aim.names(chance)), chance)

    def _one_way(self, chance: Random) -> None:
        victim = self._aim.any(chance).name
        others = [name for name in self._world.members if name != victim]
        self._cut(network.one_way(victim, others, sends=chance.random() < 0.5), chance)

    def _silence(self, chance: Random) -> None:
        links = network.between(self._world.members, self._world.members)
        self._world.network.cut.update(links)
        self._world.log("network", "nobody hears of anybody")
        self._aim.later(chance.choice((300, 1_000, 4_000)), heal, self._world, links)

    def _client_cut(self, chance: Random) -> None:
        node = self._aim.any(chance).name
        clients = [f"producer-{i}" for i in range(4)] + [f"consumer-{i}" for i in range(3)]
        cuts = [(client, node) for client in clients if chance.random() < 0.5]
        ends_ms = chance.randrange(200, 2000)
        cuts += [(name, node) for name in self._world.members_of_crews if chance.random() < 0.5]
        self._world.client_cuts.update(cuts)
        self._aim.later(ends_ms, self._world.client_cuts.difference_update, cuts)

    def _stale_leader(self, chance: Random) -> None:
        """A leader sleeps through its own end, and wakes up where only clients reach it
        (etcd #20418)."""
        leader = self._aim.leader()
        if leader is None:
            return
        links = network.between([leader.name], self._world.members)
        self._world.network.cut.update(links)
        self._world.log("network", f"{leader.name} is cut off from its peers")
        leader.pause()
        asleep_ms = chance.choice((400, 800, 1500))
        self._aim.later(asleep_ms, leader.resume)
        self._aim.later(asleep_ms + chance.choice((100, 400, 1000)), heal, self._world, links)

    def _killer(self, chance: Random) -> None:
        """Isolate a minority, write, power-fail one of the majority, isolate the rest of it,
        restart the crashed one together with the minority, write, heal: what
        `chaos.scenarios.killer` does to real nodes."""
        names = self._aim.names(chance)
        world = self._world
        minority = names[: (len(names) - 1) // 2]
        victim, *holders = names[len(minority) :]
        first = network.between(minority, [victim, *holders])
        second = network.between(holders, [victim, *minority])
        step = chance.choice((400, 1000, 2000))
        world.network.cut.update(first)
        world.log("network", f"minority {', '.join(minority)} is isolated")

        def swap() -> None:
            world.nodes[victim].cut_power()
            world.network.cut.difference_update(first)
            world.network.cut.update(second)
            world.log("network", f"{', '.join(holders)} are isolated")
            self._aim.later(100, world.nodes[victim].boot)

        self._aim.later(step, swap)
        self._aim.later(2 * step + 100, heal, world, second)

    def _cut(self, links: list[Link], chance: Random) -> None:
        cut = self._world.network.cut
        cut.update(links)
        names = sorted({name for link in links for name in link})
        self._world.log("network", f"{len(links)} links are cut among {', '.join(names)}")
        ends_ms = chance.choice((100, 700, 3000)) * (0.5 + chance.random())
        self._aim.later(ends_ms, heal, self._world, links)
        if chance.random() < 0.3:  # a connection that is noticed to be dead
            for one, other in links:
                self._aim.later(chance.randrange(10, 1000), self._notice, one, other)

    def _notice(self, one: NodeId, other: NodeId) -> None:
        if (one, other) in self._world.network.cut:
            self._world.network.give_up(one, other)


def heal(world: World, links: list[Link]) -> None:
    """Those links carry again what is said."""
    world.network.cut.difference_update(links)
    world.log("network", f"{len(links)} links work again")

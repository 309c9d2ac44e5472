"""After the peace: a member that can be called and can't call anybody doesn't take the group down.

    all at rest ─▶ (it is preferred as the leader) ─▶ nobody is reached by its calls, and those that
    it made are over ─▶ writes are answered, each within a bound, and leadership rests ─▶ it can
    call again, and everything is whole

What a firewall or an address that is wrong on one machine makes of a network. The others' streams
to it work in both directions: it hears them, and answers, so that to all others it looks well; its
own requests, those for votes and its appends among them, reach nobody. It is no fault among others,
for the same reason as `chaos.sim.one_away`.
"""

from __future__ import annotations

from typing import Final

from chaos.sim.clients import Shared
from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from chaos.sim.node import SimNode
from chaos.sim.rest_round import SERVES_US, RestRound, Spawn
from chaos.sim.strikes.requests import ask_to_prefer
from chaos.sim.world import World

LASTS_US: Final = 100_000_000  # as long as ten times a preferred member is waited for
WRITES: Final = 5  # in that time
# Of leadership, and one for each voter: away from it, and for each try to hand over to it. Each
# leader counts its own tries, and waits twice as long for the next.
MOST_MOVES: Final = 5
PREFERRED_SHARE: Final = 0.6
LEADER_SHARE: Final = 0.4


class OneWay(RestRound):
    """One such round."""

    def __init__(self, world: World, shared: Shared, spawn: Spawn) -> None:
        super().__init__(world, shared, spawn, purpose="one-way", writer="one-way-writer")
        self.moves = 0  # of leadership, while it couldn't call
        self.was_preferred = self.was_leader = False

    def go_through(self) -> bool:
        """Does it; False where the group isn't one of three voters or more that all run.

        Raises:
            Defect: a write isn't answered, or leadership doesn't come to rest.
        """
        found = self._whole_group()
        if found is None or found[0].life is None:
            return False
        leader, _, voters = found
        others = [node for node in voters if node is not leader]
        victim = leader if self._chance.random() < LEADER_SHARE else self._chance.choice(others)
        self.was_leader = victim is leader
        if self._chance.random() < PREFERRED_SHARE:
            self.was_preferred = True
            self._prefer(found[0].life, victim)
        self._cut_calls(victim, MOST_MOVES + len(voters))
        return True

    def _cut_calls(self, victim: SimNode, most_moves: int) -> None:
        world = self._world
        before = len(world.watch.checker.leaders)
        world.log("operator", f"{victim.name} can be called, and reaches nobody itself")
        world.network.forbid_calls(victim.name)
        for _ in range(WRITES):
            self._write(f"{victim.name} can be called, and can't call")
            self._pass(LASTS_US // WRITES)
        self.moves = len(world.watch.checker.leaders) - before
        if self.moves > most_moves:
            detail = f"{victim.name} can't call; leadership moved {self.moves} times"
            raise Defect("restless leadership", detail)
        world.network.allow_calls(victim.name)

    def _prefer(self, leader: Life, victim: SimNode) -> None:
        """An operator's wish; a refusal is fine."""
        self._world.log("operator", f"asks {leader.core.leader} to prefer {victim.name}")
        self._world.timeline.after(0, leader.loop, ask_to_prefer, leader, str(victim.name))
        self._pass(SERVES_US // 4)

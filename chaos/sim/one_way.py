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

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from broker.errors import BrokerError
from broker.leader.changes import Change
from chaos.sim.clients import Administrator, Shared
from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from chaos.sim.node import SimNode
from chaos.sim.one_away import SERVES_US, is_whole, serves
from chaos.sim.timeline import ActorDied
from chaos.sim.world import World

LASTS_US: Final = 100_000_000  # as long as ten times a preferred member is waited for
WRITES: Final = 5  # in that time
# Of leadership, and one for each voter: away from it, and for each try to hand over to it. Each
# leader counts its own tries, and waits twice as long for the next.
MOST_MOVES: Final = 5
PREFERRED_SHARE: Final = 0.6
LEADER_SHARE: Final = 0.4

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class OneWay:
    """One such round, on a world at rest."""

    def __init__(self, world: World, shared: Shared, spawn: Spawn) -> None:
        self._world = world
        self._spawn = spawn
        self._chance: Random = world.plan.random("one-way")
        self._writer = Administrator("one way", shared, world.plan.random("one-way/writer"), 1.0)
        self._written = self._tried = 0
        self.moves = 0  # of leadership, while it couldn't call
        self.was_preferred = self.was_leader = False

    def go_through(self) -> bool:
        """Does it; False where the group isn't one of three voters or more that all run.

        Raises:
            Defect: a write isn't answered, or leadership doesn't come to rest.
        """
        leader = self._serving()
        if leader is None or leader.life is None:
            return False
        configuration = leader.life.core.configuration
        members = [self._world.nodes[name] for name in sorted(configuration.members())]
        voters = [node for node in members if node.name in configuration.voters]
        if len(voters) < 3 or not is_whole(configuration, members):
            return False
        others = [node for node in voters if node is not leader]
        victim = leader if self._chance.random() < LEADER_SHARE else self._chance.choice(others)
        self.was_leader = victim is leader
        if self._chance.random() < PREFERRED_SHARE:
            self.was_preferred = True
            self._prefer(leader.life, victim)
        self._cut_calls(victim, MOST_MOVES + len(voters))
        return True

    def _cut_calls(self, victim: SimNode, most_moves: int) -> None:
        world = self._world
        before = len(world.watch.checker.leaders)
        world.log("operator", f"{victim.name} can be called, and reaches nobody itself")
        world.network.forbid_calls(victim.name)
        for _ in range(WRITES):
            self._write(victim)
            self._pass(LASTS_US // WRITES)
        self.moves = len(world.watch.checker.leaders) - before
        if self.moves > most_moves:
            detail = f"{victim.name} can't call; leadership moved {self.moves} times"
            raise Defect("restless leadership", detail)
        world.network.allow_calls(victim.name)

    def _prefer(self, leader: Life, victim: SimNode) -> None:
        """An operator's wish; a refusal is fine."""
        self._world.log("operator", f"asks {leader.core.leader} to prefer {victim.name}")
        self._world.timeline.after(0, leader.loop, self._ask_to_prefer, leader, str(victim.name))
        self._pass(SERVES_US // 4)

    def _ask_to_prefer(self, leader: Life, prefer: str) -> None:
        """On the leader's event loop: its answer is awaited there."""
        task = leader.loop.create_task(leader.replica.membership.change(Change(prefer=prefer)))
        task.add_done_callback(_on_preferred)

    def _write(self, victim: SimNode) -> None:
        wanted = self._written + 1
        self._spawn(self._write_one())
        if not self._until(SERVES_US, lambda: self._written >= wanted):
            raise Defect("nobody serves", f"{victim.name} can be called, and can't call")

    async def _write_one(self) -> None:
        """Another name each time: what became of an attempt without an answer nobody knows."""
        while True:
            self._tried += 1
            done = await self._writer.create(f"one-way-{self._tried}", 1)
            if done.is_ok:
                self._written += 1
                return
            await self._writer.back_off()

    def _serving(self) -> SimNode | None:
        return next((node for node in self._world.nodes.values() if serves(node.life)), None)

    def _pass(self, time_us: int) -> None:
        self._world.timeline.run(self._world.now_us + time_us)

    def _until(self, within_us: int, holds: Callable[[], bool]) -> bool:
        return self._world.timeline.run(self._world.now_us + within_us, holds)


def _on_preferred(done: asyncio.Task[Any]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, (BrokerError, ActorDied)):
        raise Defect("preferring", repr(error)) from error

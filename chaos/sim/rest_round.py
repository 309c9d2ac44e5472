"""What the rounds at rest have in common: a group that is whole, and writes that are answered.

When everything has been checked and all members run, something may be done to one of them of which
the group's promise says that the others go on (`chaos.sim.one_away`, `chaos.sim.one_way`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from chaos.sim.clients import Administrator, Shared
from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from chaos.sim.node import SimNode
from chaos.sim.world import World
from dledger.core.types import Configuration

SERVES_US: Final = 8_000_000  # within which a write is answered; an election takes 0.3 s at most

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class RestRound:
    """One of them, on a world at rest.

    Args:
        purpose: what its choices are drawn for.
        writer: who writes, and what is written is called.
    """

    def __init__(
        self, world: World, shared: Shared, spawn: Spawn, *, purpose: str, writer: str
    ) -> None:
        self._world = world
        self._spawn = spawn
        self._chance: Random = world.plan.random(purpose)
        self._name = writer
        self._writer = Administrator(writer, shared, world.plan.random(writer), 1.0)
        self._begun = self._written = 0  # topics that are to be made, and were: one write each
        self._tried = 0

    # --- who ---------------------------------------------------------------------------------

    def _serving(self) -> SimNode | None:
        nodes = self._world.nodes.values()
        return next((node for node in nodes if serves(node.life)), None)

    def _whole_group(self) -> tuple[SimNode, list[SimNode], list[SimNode]] | None:
        """Who leads, the members and the voters; None unless these are three or more, and all
        run."""
        leader = self._serving()
        if leader is None or leader.life is None:
            return None
        configuration = leader.life.core.configuration
        members = [self._world.nodes[name] for name in sorted(configuration.members())]
        voters = [node for node in members if node.name in configuration.voters]
        if len(voters) < 3 or not _is_whole(configuration, members):
            return None
        return leader, members, voters

    # --- writing -----------------------------------------------------------------------------

    def _write(self, detail: str) -> None:
        """One write more is answered, in time, and those that were under way.

        Raises:
            Defect: one isn't.
        """
        self._begin_write()
        if not self._until(SERVES_US, lambda: self._written >= self._begun):
            raise Defect("nobody serves", f"{detail}; {self._states()}")

    def _begin_write(self) -> None:
        self._begun += 1
        self._spawn(self._write_one())

    async def _write_one(self) -> None:
        """Another name each time: what became of an attempt without an answer nobody knows."""
        while True:
            self._tried += 1
            done = await self._writer.create(f"{self._name}-{self._tried}", 1)
            if done.is_ok:
                self._written += 1
                return
            await self._writer.back_off()

    # --- how it runs -------------------------------------------------------------------------

    def _pass(self, time_us: int) -> None:
        self._world.timeline.run(self._world.now_us + time_us)

    def _until(self, within_us: int, holds: Callable[[], bool]) -> bool:
        return self._world.timeline.run(self._world.now_us + within_us, holds)

    def _states(self) -> str:
        return "; ".join(
            f"{node.name}: down"
            if node.life is None
            else f"{node.name}: {node.life.core.role.value} of term {node.life.core.term}, last "
            f"{node.life.core.last_index}, applied {node.life.replica.driver.applied_index}, "
            f"serving {serves(node.life)}"
            for node in self._world.nodes.values()
        )


def serves(life: Life | None) -> bool:
    """Whether the node of that life leads, and serves."""
    return life is not None and life.replica.leadership.serving


def _is_whole(configuration: Configuration, members: list[SimNode]) -> bool:
    """Whether nothing is under way, and all members run."""
    is_still = configuration.voters_outgoing or configuration.learners - configuration.observers
    return not is_still and all(node.is_running and not node.is_harmed for node in members)

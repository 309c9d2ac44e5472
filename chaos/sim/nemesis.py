"""Makes a plan's faults happen, and ends them all.

This owns the table from a kind of fault to what carries it out (`chaos.sim.strikes`, a family a
module), and the peace: no more faults, and what is broken and can be healed is. Every kind has
exactly one family.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaos.sim.altered import AlteredLogs
from chaos.sim.churn import Churn
from chaos.sim.copies import Copies
from chaos.sim.network import FAIR
from chaos.sim.operator import Operator
from chaos.sim.plan import Fault, FaultEvent
from chaos.sim.rot import LogRot
from chaos.sim.strikes.aim import Aim, Strike, Strikes
from chaos.sim.strikes.clocks import Clocks
from chaos.sim.strikes.disks import Disks
from chaos.sim.strikes.partitions import Partitions
from chaos.sim.strikes.processes import Processes
from chaos.sim.strikes.requests import Requests
from chaos.sim.strikes.rot import Rot
from chaos.sim.strikes.streams import Streams
from chaos.sim.strikes.whole_disks import WholeDisks
from chaos.sim.world import NOBODY, World

REVIVE_US = 200_000
# Where there is one machine these pass: they are between two, or somebody else has to tell.
BETWEEN_TWO = frozenset(
    {
        *(Fault.BREAK_STREAMS, Fault.MUTE_STREAMS, Fault.STOLEN_STREAM),
        *(Fault.SWAP, Fault.OLDER_COPY),
    }
)


class Nemesis:
    """Carries out a plan's faults on a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._aim = aim = Aim(world)
        operator = Operator(world)
        self.copies = Copies(world, operator)
        self.churn = Churn(world, world.plan.random("churn/lingering"))
        self._clocks = Clocks(aim)
        self._strikes = _table(
            Processes(aim).strikes,
            Requests(aim).strikes,
            Partitions(aim).strikes,
            Streams(aim, self.copies).strikes,
            self._clocks.strikes,
            Disks(aim).strikes,
            WholeDisks(aim, operator, self.copies).strikes,
            Rot(aim).strikes,
            {
                Fault.CHURN: self.churn.change,
                Fault.ALTERED_LOG: AlteredLogs(world, operator).strike,
                Fault.LOG_ROT: LogRot(world, aim.later, aim.power_on).strike,
            },
        )

    def schedule(self, events: Iterable[FaultEvent]) -> None:
        """All of `events` are going to happen."""
        for event in events:
            self._world.timeline.at(event.time_ms * 1000, NOBODY, self._strike, event)

    def _strike(self, event: FaultEvent) -> None:
        if self._aim.is_over or (event.kind in BETWEEN_TWO and len(self._aim.nodes) < 2):
            return
        chance = self._world.plan.random(f"fault/{event.number}")
        self._world.log("nemesis", f"#{event.number} {event.kind.value}")
        self._strikes[event.kind](chance)

    def make_peace(self) -> None:
        """No more faults; what is broken and can be healed is healed."""
        self._aim.is_over = self.copies.is_over = self.churn.is_over = True
        world = self._world
        world.network.heal(FAIR)
        world.client_cuts.clear()
        self._clocks.look()
        for node in world.nodes.values():
            node.disk.heal()
            node.sync_us = world.plan.tuning.sync_us
            node.drift, node.wall_offset_ms = 1.0, 0
            if node.life is not None:
                node.life.loop.drift(1.0)
                node.life.loop.wall_offset_ms = 0
            node.resume()
            if node.has_rotten_queues:
                node.kill("is started again, to find what nobody has read")
        world.log("nemesis", "everything is healed")
        self._revive()

    def _revive(self) -> None:
        """A supervisor starts what is down, again and again: a stop may be under way."""
        for node in self._aim.nodes:
            node.boot()
        self._world.timeline.after(REVIVE_US, NOBODY, self._revive)


def _table(*families: Strikes) -> dict[Fault, Strike]:
    """What carries out each kind.

    Raises:
        AssertionError: a kind has no family, or two.
    """
    pairs = [pair for family in families for pair in family.items()]
    table = dict(pairs)
    assert len(pairs) == len(table) == len(Fault), "every fault has one family"
    return table

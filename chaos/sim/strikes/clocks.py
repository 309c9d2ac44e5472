"""Wall clocks that are wrong, that leap and that drift.

This owns which clocks are wrong and until when somebody may believe what one showed. Where a
majority has to be right (`Fault.CLOCK_LEAP`), a clock counts as wrong for that long.
"""

from __future__ import annotations

from random import Random

from chaos.sim.clock_watch import BELIEVED_US
from chaos.sim.node import SimNode
from chaos.sim.plan import Fault
from chaos.sim.strikes.aim import Aim, Strikes
from dledger.core.types import NodeId

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
YEAR_MS = 365 * DAY_MS


class Clocks:
    """Faults of clocks."""

    def __init__(self, aim: Aim) -> None:
        self._aim = aim
        self._world = aim.world
        self._righted: dict[NodeId, int] = {}  # until when somebody may believe a clock's past

    @property
    def strikes(self) -> Strikes:
        return {
            Fault.CLOCK_STEP: self._clock_step,
            Fault.CLOCK_DRIFT: self._clock_drift,
            Fault.CLOCK_LEAP: self._clock_leap,
            Fault.CLOCKS_LEAP: self._clocks_leap,
        }

    def _clock_step(self, chance: Random) -> None:
        node = self._aim.any(chance)
        by_ms = chance.choice((-3_600_000, -500, 500, 86_400_000))
        self._set_clock(node, node.wall_offset_ms + by_ms)

    def _clock_drift(self, chance: Random) -> None:
        node = self._aim.any(chance)
        self.look()
        node.drift = chance.choice((0.8, 0.98, 1.02, 1.25))
        if node.life is not None:
            node.life.loop.drift(node.drift)

    def _clock_leap(self, chance: Random) -> None:
        """Far enough that whatever is forgotten by time would be; back before 1970, too. Of a
        minority at a time: if that many are wrong, or were a moment ago, one is put right."""
        node, now_us = self._aim.any(chance), self._world.now_us
        wrong = [
            each
            for each in self._aim.nodes
            if each is not node
            and (each.wall_offset_ms or self._righted.get(each.name, 0) > now_us)
        ]
        if len(wrong) >= (len(self._aim.nodes) - 1) // 2:
            self._set_clock(chance.choice(wrong), 0)
            return
        self._set_clock(node, _leap_ms(chance))
        if chance.random() < 0.5:
            self._aim.later(chance.randrange(500, 6_000), self._set_clock, node, 0)

    def _clocks_leap(self, chance: Random) -> None:
        """Of any number of clocks: to the same time, each to another, or to the right one."""
        names = self._aim.names(chance)
        leaping = [self._world.nodes[name] for name in names[: chance.randint(1, len(names))]]
        is_together = chance.random() < 0.5
        same_ms = chance.choice((0, _leap_ms(chance), _leap_ms(chance)))
        for node in leaping:
            self._set_clock(node, same_ms if is_together else _leap_ms(chance))
        if chance.random() < 0.3:
            after_ms = chance.randrange(500, 6_000)
            for node in leaping:
                self._aim.later(after_ms, self._set_clock, node, 0)

    def _set_clock(self, node: SimNode, offset_ms: int) -> None:
        self.look()
        node.wall_offset_ms = offset_ms
        self._righted[node.name] = self._world.now_us + BELIEVED_US
        if node.life is not None:
            node.life.loop.wall_offset_ms = offset_ms
        self.look()

    def look(self) -> None:
        """Whoever watches clocks has seen them as they are now, before one of them changes."""
        self._world.watch.clocks.look(self._world.now_us)


def _leap_ms(chance: Random) -> int:
    """So far that whatever is forgotten by time would be; back before 1970, too."""
    far_ms = chance.choice((5 * MINUTE_MS, DAY_MS, 8 * DAY_MS, YEAR_MS, 60 * YEAR_MS))
    return chance.choice((-far_ms, far_ms, far_ms))

"""Processes and machines that die, sleep, stop and are started again.

This owns what happens to a process as a whole; what it finds on its disk then is the disk's matter.
Each is started again, by what comes later or by the peace.
"""

from __future__ import annotations

from random import Random

from chaos.sim.plan import Fault
from chaos.sim.strikes.aim import Aim, Strikes


class Processes:
    """Faults of processes."""

    def __init__(self, aim: Aim) -> None:
        self._aim = aim
        self._world = aim.world

    @property
    def strikes(self) -> Strikes:
        return {
            Fault.KILL: self._kill,
            Fault.KILL_MAJORITY: self._kill_majority,
            Fault.KILL_MIDWAY: self._kill_midway,
            Fault.POWER: self._power,
            Fault.POWER_MIDWAY: self._power_midway,
            Fault.POWER_ALL: self._power_all,
            Fault.RESTART_LOOP: self._restart_loop,
            Fault.TERMINATE: self._terminate,
            Fault.PAUSE: self._pause,
            Fault.PAUSE_LEADER: self._pause_leader,
        }

    def _kill(self, chance: Random) -> None:
        node = self._aim.any(chance)
        node.kill()
        self._aim.start_later(node, chance)

    def _kill_majority(self, chance: Random) -> None:
        for name in self._aim.names(chance)[: len(self._aim.nodes) // 2 + 1]:
            self._world.nodes[name].kill()
            self._aim.start_later(self._world.nodes[name], chance)

    def _kill_midway(self, chance: Random) -> None:
        node = self._aim.any(chance)
        node.disk.cut_power_in(chance.randrange(1, 40), keeps_cache=True)
        self._aim.later(2_000, self._aim.power_on, node)

    def _power(self, chance: Random) -> None:
        node = self._aim.any(chance)
        node.cut_power()
        self._aim.start_later(node, chance)

    def _power_midway(self, chance: Random) -> None:
        node = self._aim.any(chance)
        node.disk.cut_power_in(chance.randrange(1, 40))
        self._aim.later(2_000, self._aim.power_on, node)

    def _power_all(self, chance: Random) -> None:
        for node in self._aim.nodes:
            node.cut_power()
            self._aim.start_later(node, chance)

    def _restart_loop(self, chance: Random) -> None:
        node = self._aim.any(chance)
        for turn in range(5):
            self._aim.later(turn * 150, node.kill)
            self._aim.later(turn * 150 + chance.randrange(1, 140), node.boot)

    def _terminate(self, chance: Random) -> None:
        node = self._aim.any(chance)
        node.stop()
        self._aim.later(3_000, node.boot)

    def _pause(self, chance: Random) -> None:
        node = self._aim.any(chance)
        node.pause()
        self._aim.later(chance.choice((20, 200, 1500)), node.resume)

    def _pause_leader(self, chance: Random) -> None:
        leader = self._aim.leader()
        if leader is not None:
            leader.pause()
            self._aim.later(chance.choice((200, 600, 2500)), leader.resume)

"""Bits that rot in files: of a start's own, of derived ones, of snapshots of state.

A majority of disks never rots in what can't be made again; what is derived from the log may rot
everywhere. Rot in the logs of running members, which they repair, is `chaos.sim.rot`.
"""

from __future__ import annotations

from random import Random

from chaos.sim.copies import may_harm
from chaos.sim.machine_config import DATA
from chaos.sim.plan import Fault
from chaos.sim.restored import spoil_a_snapshot
from chaos.sim.rot import cold_bytes
from chaos.sim.strikes.aim import Aim, Strikes
from dledger.records.layout import UNIT, file_name


class Rot:
    """Faults of single bytes."""

    def __init__(self, aim: Aim) -> None:
        self._aim = aim
        self._world = aim.world

    @property
    def strikes(self) -> Strikes:
        return {
            Fault.BIT_FLIP: self._bit_flip,
            Fault.QUEUE_ROT: self._queue_rot,
            Fault.SNAPSHOT_ROT: self._snapshot_rot,
        }

    def _bit_flip(self, chance: Random) -> None:
        """A bit of a cold part of the log, the hard state or the checkpoint rots."""
        if chance.random() < 0.25:
            self._queue_rot(chance)
            return
        node = chance.choice(self._aim.nodes)
        if not may_harm(node, self._world):
            return
        disk = node.disk
        limit = cold_bytes(node)
        if limit == 0:
            return
        at = chance.randrange(limit)
        base = at - at % self._world.plan.tuning.segment_bytes
        path = DATA / "commitlog" / file_name(base)
        if chance.random() < 0.2:
            path, at, base = DATA / "raft" / "hard_state", chance.randrange(16), 0
        # Behind a filler there is nothing that could rot.
        if path in disk.paths() and at - base < len(disk.content(path)):
            node.flip(path, at - base, chance)

    def _queue_rot(self, chance: Random) -> None:
        """A ConsumeQueue isn't what was derived: of any node, up or down, of as many as there are.
        It is no excuse for anything: derived files are made again."""
        node = self._aim.any(chance)
        disk, folder = node.disk, DATA / "consumequeue"
        files = [
            path
            for path in disk.paths()
            if folder in path.parents and not path.relative_to(folder).parts[0].startswith(".")
        ]
        if not files:
            return
        path = chance.choice(files)
        size = len(disk.content(path))
        full = self._world.plan.tuning.units_per_file * UNIT.size
        at = chance.randrange(max(1, size))
        what = chance.choice(("flip", "flip", "flip", "zeros", "noise", "cut", "grow"))
        match what:
            case "flip" if size:
                disk.flip(path, at, chance.randrange(8))
            case "zeros":
                disk.spoil(path, at, bytes(chance.choice((1, 20, 200))))
            case "noise":
                disk.spoil(path, at, chance.randbytes(chance.choice((1, 20, 200))))
            case "cut":
                disk.cut_short(path, at)
            case "grow":
                disk.spoil(path, full + chance.randrange(100), chance.randbytes(30))
        node.note_queue_rot()
        name = path.relative_to(folder)
        self._world.log("nemesis", f"{what} at byte {at} of {name} on {node.name}")

    def _snapshot_rot(self, chance: Random) -> None:
        """A snapshot of state isn't what was written: of any node, up or down, the newest as a
        rule. It is no excuse for anything: the node has its log."""
        node = self._aim.any(chance)
        what = spoil_a_snapshot(node, self._aim.nodes, chance)
        self._world.log("nemesis", f"{what} on {node.name}")

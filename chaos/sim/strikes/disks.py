"""Disks that are slow, that refuse a write or a sync, and that are full.

Whatever they hold stays as it is: a node gives up, or waits, and is started again later.
"""

from __future__ import annotations

import errno
from random import Random

from broker.ending import DISK_ERRNOS
from chaos.sim.plan import Fault
from chaos.sim.strikes.aim import Aim, Strikes

SLOW_SYNC_US = 200_000
STALLED_SYNC_US = 700_000
# Of calls that fail though the disk is there and has room; those of `DISK_ERRNOS` come first.
ODD_ERRNOS = (
    *(errno.EIO, errno.EIO, errno.EROFS),
    *(errno.EACCES, errno.EPERM),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)


class Disks:
    """Faults of disks that keep what they have."""

    def __init__(self, aim: Aim) -> None:
        self._aim = aim
        self._world = aim.world

    @property
    def strikes(self) -> Strikes:
        return {
            Fault.SLOW_DISK: self._slow_disk,
            Fault.WRITE_ERROR: self._write_error,
            Fault.SYNC_ERROR: self._sync_error,
            Fault.ODD_ERROR: self._odd_error,
            Fault.DISK_FULL: self._disk_full,
        }

    def _slow_disk(self, chance: Random) -> None:
        node = self._aim.any(chance)
        before = self._world.plan.tuning.sync_us
        node.sync_us = chance.choice((10_000, SLOW_SYNC_US, STALLED_SYNC_US))
        self._aim.later(chance.randrange(300, 3000), setattr, node, "sync_us", before)

    def _write_error(self, chance: Random) -> None:
        self._fail_disk(chance, "pwritev")

    def _sync_error(self, chance: Random) -> None:
        self._fail_disk(chance, chance.choice(("fdatasync", "fsync", "fsync_directory")))

    def _fail_disk(self, chance: Random, operation: str) -> None:
        node = self._aim.any(chance)
        name = chance.choice(("", "0000", "hard_state"))
        node.disk.fail_next(operation, chance.choice(sorted(DISK_ERRNOS)), name)
        self._aim.later(2_500, node.boot)
        self._aim.later(5_000, node.boot)

    def _odd_error(self, chance: Random) -> None:
        """Soon, or in the midst of the next start, and now and then for a good while."""
        node = self._aim.any(chance)
        count = chance.choice((1, 1, 1, 2, 5, 40))
        node.disk.fail_calls(chance.randrange(1, 300), chance.choice(ODD_ERRNOS), count)
        if chance.random() < 0.3:
            node.kill()
            self._aim.later(chance.randrange(100), node.boot)
        self._aim.later(2_500, node.boot)
        self._aim.later(5_000, node.boot)

    def _disk_full(self, chance: Random) -> None:
        node = self._aim.any(chance)
        disk = node.disk
        disk.capacity_bytes = disk.used_bytes() + chance.choice((0, 1_000, 20_000))
        if chance.random() < 0.3:  # found out by the fsync, as where blocks are given late
            disk.fail_next("fsync", errno.ENOSPC, "consumequeue")
        if chance.random() < 0.6:
            # To the byte, in the midst of whatever it does, and nothing that it frees comes back.
            room = chance.choice((0, 0, 1, 19, 21, 300, 600, chance.randrange(20_000)))
            disk.fill_up(room, in_operations=chance.randrange(60))
        self._aim.later(chance.randrange(500, 4000), disk.make_room)
        self._aim.later(4_100, node.boot)

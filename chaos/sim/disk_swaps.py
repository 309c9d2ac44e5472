"""Disks that simulated machines lose, and are given: empty ones, old copies, those of before."""

from __future__ import annotations

from chaos.sim.disk import SimulatedDisk
from chaos.sim.node import SimNode


def lose_disk(node: SimNode) -> None:
    """The machine is given a new, empty disk, and nobody tells the program."""
    node.kill("lost its disk")
    node.lost.append(node.disk.wipe())
    if not node.is_harmed:
        node.replaced.append(node.lost[-1].image())
    if node.altered_from:
        node.lost_altered.append((node.lost[-1], node.altered_from))
        node.altered_from = 0
    node.is_lost = True
    node.is_past = node.has_lied = False
    node.world.network.liars.pop(node.name, None)  # whoever comes on it tells the truth
    node.has_started = False
    node.rot.clear()
    node.passing_rot.clear()


def stand_by(node: SimNode) -> None:
    """It is a member no more: stopped, emptied, and ready to be taken in anew."""
    node.kill("is stopped for good")
    node.disk.power_on()
    node.lost.append(node.disk.wipe())
    node.replaced.clear()
    node.is_spare, node.is_lost, node.has_started = True, False, False
    node.rot.clear()
    node.passing_rot.clear()
    node.world.log(node.name, "stands by, on an empty disk")


def put_back(node: SimNode, copy: SimulatedDisk) -> None:
    """The machine is given an older copy of its disk, and nobody tells the program."""
    node.kill("is put back to what it was")
    node.disk.power_on()
    node.lost.append(node.disk.put_in(copy))
    node.is_past = True


def find_again(node: SimNode) -> None:
    """The machine is given the disk that was replaced last, as it was then."""
    node.kill("is given a disk that was replaced")
    node.disk.power_on()
    node.lost.append(node.disk.put_in(node.replaced.pop()))
    node.is_returned = True


def put_right(node: SimNode) -> None:
    """It has the disk again with which it is a member."""
    node.kill("is given its own disk again")
    node.disk.power_on()
    node.disk.put_in(node.lost.pop())
    node.is_returned = False
    node.boot()

"""Disks that are lost, mixed up, found again, or put back as they once were.

Nothing acknowledged is lost while a majority of disks is intact, so one at a time is harmed, and
none while another one's harm could make it worse. What is wrong with a disk is put right again also
when the faults are over: by the operator, or by whoever has mixed it up.
"""

from __future__ import annotations

from functools import partial
from random import Random

from chaos.sim import network
from chaos.sim.copies import Copies, may_harm
from chaos.sim.disk_swaps import find_again, lose_disk, put_right
from chaos.sim.node import SimNode
from chaos.sim.operator import Operator
from chaos.sim.plan import Fault
from chaos.sim.strikes.aim import Aim, Strikes
from chaos.sim.strikes.partitions import heal
from chaos.sim.world import NOBODY


class WholeDisks:
    """Faults of whole disks.

    Args:
        operator: replaces disks that are lost.
        copies: takes copies of disks, and puts them back.
    """

    def __init__(self, aim: Aim, operator: Operator, copies: Copies) -> None:
        self._aim = aim
        self._world = aim.world
        self._operator = operator
        self._copies = copies

    @property
    def strikes(self) -> Strikes:
        return {
            Fault.WIPE: self._wipe,
            Fault.SWAP: self._swap,
            Fault.RETURNED: self._returned_disk,
            Fault.OLDER_COPY: self._older_copy,
        }

    def _wipe(self, chance: Random) -> None:
        """A disk is lost, or isn't mounted: the program starts on an empty one, and an operator
        replaces it. Nothing acknowledged is lost while a majority of disks is intact."""
        node = self._aim.any(chance)
        if not node.is_running or node.is_lost or node.is_swapped:
            return
        if not may_harm(node, self._world):
            return
        if node.is_past or node.is_returned or any(each.is_past for each in self._aim.nodes):
            return  # the new disk would know nothing of the older copy's promises
        if self._is_one_altered():
            return  # it may be who leads for a moment, and gives its own to who has nothing
        lose_disk(node)
        self._aim.start_later(node, chance)
        self._operator.replace(node)

    def _swap(self, chance: Random) -> None:
        """Two disks are mixed up: neither node starts until they are put right."""
        one, other = chance.sample(self._aim.nodes, 2)
        pair = (one, other)
        if any(each.is_foreign or each.is_swapped or each.is_ruined for each in pair):
            return
        if self._is_one_altered():
            return
        self._exchange(one, other)
        for node in (one, other):
            self._aim.later(chance.randrange(10, 500), node.boot)
        # Also when the faults are over.
        back_us = chance.randrange(300_000, 2_000_000)
        self._world.timeline.after(back_us, NOBODY, self._exchange, one, other)

    def _exchange(self, one: SimNode, other: SimNode) -> None:
        self._world.log("nemesis", f"{one.name} and {other.name} change disks")
        for node in (one, other):
            node.kill("is switched off")
            node.disk.power_on()
            node.is_swapped = not node.is_swapped
        one.disk, other.disk = other.disk, one.disk
        if not one.is_swapped:
            one.boot()
            other.boot()

    def _returned_disk(self, chance: Random) -> None:
        """A disk that was replaced is found again and started, as if nothing had happened. It knows
        no better; whoever knows of its successor may not listen to it."""
        found = [
            each
            for each in self._aim.nodes
            if each.replaced and not each.is_harmed and not each.is_swapped and each.is_running
        ]
        if not found or not may_harm(found[0], self._world) or self._is_one_altered():
            return
        node = chance.choice(found)
        find_again(node)
        node.boot()
        self._copies.watch()
        back_us = chance.randrange(300_000, 2_500_000)  # also when the faults are over
        self._world.timeline.after(back_us, NOBODY, partial(put_right, node))

    def _older_copy(self, chance: Random) -> None:
        """A copy is taken now, and put back later if everybody else can tell by then; in the same
        start of the process, or after others."""
        node = self._aim.any(chance)
        if not node.is_running or node.is_harmed or node.is_swapped or self._is_one_altered():
            return
        if chance.random() < 0.4 and self._corner(node, chance):
            return
        age_us = 1_000 * chance.choice((50, 300, 1_000, 3_000))
        names = self._aim.names(chance)
        witness = self._world.nodes[next(name for name in names if name != node.name)]
        then = partial(self._forget, witness if chance.random() < 0.5 else None)
        self._copies.take(node, int(age_us * (0.5 + chance.random())), chance, then)
        if chance.random() < 0.3:
            self._aim.later(chance.randrange(1, 200), node.kill)
            self._aim.later(chance.randrange(200, 400), node.boot)

    def _forget(self, witness: SimNode | None) -> None:
        """Whoever knows of a promise is started again before it needs to."""
        if witness is not None and witness.is_running:
            witness.kill()
            witness.boot()

    def _corner(self, node: SimNode, chance: Random) -> bool:
        """The schedule to which an older copy is worst: a majority with `node` in it goes on
        without the rest, which hears of it by `node` alone; when that has been put back, it is left
        with those who lag. Not if `node` leads."""
        leader = self._aim.leader()
        if leader is None or leader is node:
            return False
        others = [name for name in self._aim.names(chance) if name not in (node.name, leader.name)]
        holders = [leader.name, *others[: len(self._aim.nodes) // 2 - 1]]
        laggards = others[len(holders) - 1 :]
        first = network.between(holders, laggards)
        second = network.between(holders, [node.name])
        cut = self._world.network.cut
        cut.update(first)
        self._world.log("network", f"{', '.join(laggards)} hear of nobody but {node.name}")
        self._copies.take(
            node, chance.choice((1_300_000, 2_500_000)), chance, partial(cut.update, second)
        )
        self._aim.later(chance.choice((4_000, 6_000)), heal, self._world, [*first, *second])
        return True

    def _is_one_altered(self) -> bool:
        return any(each.altered_from for each in self._aim.nodes)

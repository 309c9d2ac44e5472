"""The operator of a simulated group: takes new disks in, as `dledger group replace` does.

It repeats itself until it is through, whoever leads and whatever fails meanwhile, and goes on when
the faults are over.
"""

from __future__ import annotations

import asyncio

from broker.errors import BrokerError
from chaos.forming import describe_disk, join_disk
from chaos.sim.disk import MachineDied
from chaos.sim.disk_swaps import lose_disk
from chaos.sim.machine import Life
from chaos.sim.node import SimNode
from chaos.sim.world import NOBODY, World
from dledger.core.types import Configuration, DiskId
from store.errors import StoreError

AGAIN_US = 250_000
# What faults do to a disk that is being looked at: the next look finds out.
TROUBLE = (StoreError, OSError, MachineDied)


class Operator:
    """Looks after the nodes whose disks were lost."""

    def __init__(self, world: World) -> None:
        self._world = world

    def replace(self, node: SimNode) -> None:
        """From now on `node` is being taken in on its new disk."""
        self._world.timeline.after(AGAIN_US, NOBODY, self._look, node, len(node.lost))

    def _look(self, node: SimNode, number: int) -> None:
        if not node.is_lost or len(node.lost) != number:
            return
        if node.is_ruined:  # The new disk has rotted before it was a member's: another one.
            lose_disk(node)
            node.is_ruined, number = False, len(node.lost)
        self._world.timeline.after(AGAIN_US, NOBODY, self._look, node, number)
        leader = self._serving()
        if leader is None:  # It may be the node's own: who was taken in may lead.
            return
        if node.life is not None:
            disk = node.identity.disk
            core = leader.core
            known = core.configuration
            is_settled = core.configuration_place.at <= core.commit_index
            is_back = known.is_voter(node.name) or node.name in known.observers
            node.is_lost = not (known.disk_of(node.name) == disk and is_back and is_settled)
        elif not node.disk.is_off:
            self._world.timeline.after(0, leader.loop, self._ask, leader, node, number)

    def _serving(self) -> Life | None:
        for node in self._world.nodes.values():
            if node.is_running and node.life and node.life.replica.leadership.serving:
                return node.life
        return None

    def _ask(self, leader: Life, node: SimNode, number: int) -> None:
        """On the leader's event loop: its answer is awaited there."""
        if node.life or node.refill or node.disk.is_off or len(node.lost) != number:
            return
        try:
            disk = DiskId(describe_disk(node.config, node.disk, node.machinery).disk_id)
        except TROUBLE:
            return
        finally:
            node.disk.kill()
        self._world.log("operator", f"replaces the disk of {node.name}")
        task = leader.loop.create_task(leader.replica.membership.replace(node.name, disk))
        task.add_done_callback(lambda done: self._on_answer(done, node, number))

    def _on_answer(self, done: asyncio.Task[Configuration], node: SimNode, number: int) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._world.timeline.after(0, NOBODY, self._join, node, number)
        elif isinstance(error, BrokerError):
            self._world.log("operator", f"is refused: {error.message}")

    def _join(self, node: SimNode, number: int) -> None:
        is_down = node.life is None and node.refill is None
        if is_down and not node.disk.is_off and len(node.lost) == number:
            try:
                join_disk(node.config, node.disk, node.machinery)
            except TROUBLE:
                return
            finally:
                node.disk.kill()
            node.boot()

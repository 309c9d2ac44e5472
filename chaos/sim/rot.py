"""Rot in the logs of running members, which they have to find and to get back from each other.

Bytes of what is committed and cold change on the platter and in what is read. One member at a time
may keep them so for good, as a majority of disks has to stay intact; while it is at it, others may
rot elsewhere, but what has rotted there is read rightly by their next process: a start asks nobody.
Whatever rots is intact on some other member's disk at that moment. Half of the members that begin
to repair die over it, at a drawn operation of the disk, with their page cache or without.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Final

from chaos.sim.copies import may_harm, voters_for_now
from chaos.sim.files import SECTOR_BYTES
from chaos.sim.machine_config import DATA
from chaos.sim.node import SimNode
from chaos.sim.world import World
from dledger.core.types import NodeId
from dledger.reading.checkpoint import decode_checkpoint
from dledger.records.layout import file_name
from store.errors import StoreError

NEAR_BYTES: Final = 8 << 10  # perhaps of the same entry
LOOK_MS: Final = 1.0
LOST_SHARE: Final = 0.02  # of the bytes that rot: their sector can't be read any more
RUNS: Final = (1, 1, 4, 300)  # bytes that rot together
FULL_LOOKS: Final = 3  # the pass under way, one from the front, one at what that has passed over

Later = Callable[..., None]


class LogRot:
    """What the nemesis does to logs.

    Args:
        later: calls something after milliseconds, unless peace has come.
        power_on: a machine that died starts again.
    """

    def __init__(self, world: World, later: Later, power_on: Callable[[SimNode], None]) -> None:
        self._world = world
        self._later = later
        self._power_on = power_on
        self._sectors = world.plan.random("lost-sectors")
        self._rotten: dict[tuple[NodeId, Path], list[int]] = {}  # of others, during one stroke

    def strike(self, chance: Random) -> None:
        """Some bytes of one member rot, in one place or in three."""
        fit = [
            node
            for node in self._nodes
            if node.is_running and not node.is_harmed and not node.is_swapped
        ]
        if not fit:
            return
        node = chance.choice(fit)
        self._rotten.clear()
        limit = cold_bytes(node)
        # Who only learns has to get to its end: a disk that is ruined would be in the way of that.
        is_lasting = may_harm(node, self._world) and node.name in voters_for_now(self._world)
        if self._world.plan.moves_start and not is_lasting:
            return  # whoever could give it back may lose it, or let it go
        size = self._world.plan.tuning.segment_bytes
        for _ in range(chance.choice((1, 1, 3)) if limit > front_of(node) else 0):
            first = chance.randrange(front_of(node), limit)
            for at in range(first, min(limit, first + chance.choice(RUNS))):
                path, within = _segment(at - at % size), at % size
                if self._is_elsewhere(node, path, within):
                    node.flip(path, within, chance)
                    if not is_lasting:
                        node.passing_rot.add((path, within))
                    if self._sectors.random() < LOST_SHARE:
                        self._lose_sector(node, path, within)
        if chance.random() < 0.5:
            # Where flushing is later a loss of power takes what was acknowledged, as documented.
            is_async = self._world.plan.tuning.flush == "async"
            keeps_cache = chance.random() < 0.5 or is_async
            self._die_of_it(node, chance.randrange(1, 40), keeps_cache=keeps_cache)

    def _lose_sector(self, node: SimNode, path: Path, at: int) -> None:
        """The disk can't read the sector any more in which a byte has just rotted, all of it
        entries that others have."""
        first = at - at % SECTOR_BYTES
        last = first + SECTOR_BYTES - 1
        rotten = {within for file, within in node.rot if file == path}
        others = [each for each in range(first, last + 1) if each not in rotten]
        if _are_entries(node, path, first, last) and all(
            self._is_elsewhere(node, path, each) for each in others
        ):
            node.disk.lose_sector(path, at)
            self._world.log("nemesis", f"sector {at // SECTOR_BYTES} of it can't be read")

    @property
    def _nodes(self) -> list[SimNode]:
        return list(self._world.nodes.values())

    def _is_elsewhere(self, node: SimNode, path: Path, at: int) -> bool:
        """Whether there is such a byte, and the same on the platter of another member that counts,
        and goes on doing so, with nothing rotten near it."""
        staying = voters_for_now(self._world)
        byte = node.disk.bytes_between(path, at, at + 1, on_platter=False)
        if not byte or (path, at) in node.rot:
            return False
        return any(
            other.disk.bytes_between(path, at, at + 1, on_platter=True) == byte
            for other in self._nodes
            if other is not node and other.name in staying and self._is_sound_at(other, path, at)
        )

    def _is_sound_at(self, other: SimNode, path: Path, at: int) -> bool:
        if other.is_foreign or other.is_swapped or other.is_ruined or other.altered_from:
            return False
        if other.has_lied:
            return False  # it may be shut out for that, and its disk be replaced
        rotten = self._rotten.get((other.name, path))
        if rotten is None:
            rotten = sorted(within for file, within in other.rot if file == path)
            self._rotten[other.name, path] = rotten
        next_one = bisect_right(rotten, at - NEAR_BYTES)  # the first that is near, or beyond
        return next_one == len(rotten) or rotten[next_one] >= at + NEAR_BYTES

    def _die_of_it(self, node: SimNode, operations: int, *, keeps_cache: bool) -> None:
        """So many disk operations after a repair has begun, of a member or of a start."""
        if not node.rot or (node.life is None and node.refill is None):
            return
        if node.life is None or node.life.replica.repairs.is_at_work:
            node.disk.cut_power_in(operations, keeps_cache=keeps_cache)
            self._later(2_000, self._power_on, node)
        else:
            again = partial(self._die_of_it, node, operations, keeps_cache=keeps_cache)
            self._later(LOOK_MS, again)


def _are_entries(node: SimNode, path: Path, first: int, last: int) -> bool:
    """Whether bytes of a segment are of entries that are known to be committed and durable."""
    if node.life is None or int(path.name) + last >= cold_bytes(node):
        return False
    log = node.life.replica.log
    node.disk.is_observed = True
    try:
        for at in (first, last):
            log.index_at(int(path.name) + at)
    except StoreError:  # a filler, or rot
        return False
    finally:
        node.disk.is_observed = False
    return True


@cache
def _segment(first: int) -> Path:
    """The file that begins with that byte of the log; one object, as many bytes of it may rot."""
    return DATA / "commitlog" / file_name(first)


def front_of(node: SimNode) -> int:
    """The first byte of a running node's log."""
    if node.life is None:
        return 0
    log = node.life.replica.log
    return log.start.offset(node.config.store.segment_size_bytes)


def cold_bytes(node: SimNode) -> int:
    """The end of what is committed and durably known to be durable on a running node."""
    page = node.disk.durable(DATA / "checkpoint")
    state = decode_checkpoint(page.ljust(4096, b"\0")) if page else None
    if state is None or node.life is None or node.life.replica.driver.applied_index == 0:
        return 0
    log, applied = node.life.replica.log, node.life.replica.driver.applied_index
    if applied < log.first_index:
        return 0  # it begins behind what was applied, and holds nothing yet
    return max(0, min(state.watermark - 512, log.position_of(applied)))


def full_looks(nodes: Iterable[SimNode]) -> dict[tuple[NodeId, int], int]:
    """How often each has looked at all of its log, by life."""
    return {
        (node.name, node.boots): node.life.replica.scrubber.statistics().passes
        for node in nodes
        if node.life is not None
    }


def is_unread(nodes: Iterable[SimNode], before: dict[tuple[NodeId, int], int]) -> bool:
    """Whether somebody whose log has rotted needn't have found it by looking since `before`."""
    rotten = [node for node in nodes if node.has_log_rot]
    return any(
        looks - before.get(life, 0) < FULL_LOOKS for life, looks in full_looks(rotten).items()
    )

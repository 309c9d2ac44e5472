"""Logs that are sound in themselves and not the group's: what the live alarm has to find.

A member is switched off, and an entry of its log, committed and on the platter of every other
member, becomes another one: a byte of a message, with the record's checksum, the frame's, and the
running digest of it and of all that follows made to fit. Nothing on that disk tells. The group has
to: the member must find itself outvoted, stop taking part, leave its disk as it is and stay out
after a start, until the operator replaces it. Nobody else may do any of it.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

from chaos.altering import alter
from chaos.sim.copies import may_harm, voters_for_now
from chaos.sim.defect import Defect
from chaos.sim.disk_swaps import lose_disk
from chaos.sim.machine_config import DATA
from chaos.sim.node import SimNode
from chaos.sim.operator import Operator
from chaos.sim.world import NOBODY, World
from dledger.reading.entry import EntryHeader
from store.out_of_service import FILE_NAME

LOOK_US: Final = 100_000
SILENT_LOOKS: Final = 8
TRIES: Final = 20  # entries that are looked at, for one that every member has


class AlteredLogs:
    """All of one run."""

    def __init__(self, world: World, operator: Operator) -> None:
        self._world = world
        self._operator = operator
        self._kept: dict[SimNode, dict[Path, bytes]] = {}
        self._silent: dict[SimNode, int] = {}  # in so many looks, and not marked
        self._met: dict[SimNode, int] = {}  # calls that its disk has failed, as of the last look
        self._chance = world.plan.random("altered-log/operator")
        self._is_watching = False

    @property
    def _nodes(self) -> list[SimNode]:
        return list(self._world.nodes.values())

    def strike(self, chance: Random) -> None:
        """A member's next start finds another entry on its disk."""
        if any(node.is_harmed or node.is_swapped or node.is_ruined for node in self._nodes):
            return
        fit = [node for node in self._nodes if node.is_running and self._may_alter(node)]
        if not fit:
            return
        node = chance.choice(fit)
        header = self._choose(node, chance)
        if header is None:
            return
        node.kill("is switched off")
        node.disk.power_on()
        self._alter(node, header.index, chance)
        node.altered_from = header.index
        self._world.log("nemesis", f"entry {header.index} of {node.name} is another one")
        self._world.timeline.after(1000 * chance.choice((10, 100, 500)), NOBODY, node.boot)
        self._watch()

    def _may_alter(self, node: SimNode) -> bool:
        return may_harm(node, self._world) and node.name in voters_for_now(self._world)

    def _choose(self, node: SimNode, chance: Random) -> EntryHeader | None:
        """An entry with messages that is committed, and on the platter of all."""
        life = node.life
        if life is None or life.replica.driver.settled_index == 0:
            return None
        log, watch = life.replica.log, self._world.watch
        for _ in range(TRIES):
            header = log.header_at(chance.randint(1, life.replica.driver.settled_index))
            if not header.is_batch or header.total_size <= header.first_record_at:
                continue
            if all(
                watch.durable_digest(each.disk, header, needs_platter=True) == header.digest
                for each in self._nodes
            ):
                return header
        return None

    def _alter(self, node: SimNode, index: int, chance: Random) -> None:
        disk, folder = node.disk, DATA / "commitlog"
        there = frozenset(disk.paths())

        def content(name: str) -> bytes | None:
            return disk.content(folder / name) if folder / name in there else None

        def put(name: str, at: int, data: bytes) -> None:
            disk.spoil(folder / name, at, data)

        alter(content, put, self._world.plan.tuning.segment_bytes, index, chance)

    # --- what has to come of it --------------------------------------------------------------

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._look()

    def _look(self) -> None:
        """The operator looks after whoever has taken itself out: in peace, too."""
        self._world.timeline.after(LOOK_US, NOBODY, self._look)
        for node in self._nodes:
            self._check_mark(node)
            is_marked = node.altered_from and node.disk.has(DATA / FILE_NAME)
            if node.life is None and is_marked and not node.disk.is_off and node not in self._kept:
                self._kept[node] = _content(node)
                delay_us = 1000 * self._chance.choice((100, 1_000, 3_000))
                self._world.timeline.after(delay_us, NOBODY, self._replace, node)

    def _check_mark(self, node: SimNode) -> None:
        """Whoever knows that its log is another one has said so on its disk, long before it has
        found out where they part: what is killed meanwhile mustn't come back."""
        is_silent = node.life is not None and node.life.replica.comparison.is_silent
        if not is_silent or not self._is_able(node) or node.disk.has(DATA / FILE_NAME):
            self._silent.pop(node, None)
            return
        self._silent[node] = self._silent.get(node, 0) + 1
        if self._silent[node] > SILENT_LOOKS:
            raise Defect("silent and not marked", node.name)

    def _is_able(self, node: SimNode) -> bool:
        """Whether it can write a mark, for all that is done to it now."""
        met, self._met[node] = self._met.get(node, 0), len(node.disk.failures)
        is_slow = node.sync_us > self._world.plan.tuning.sync_us
        is_unwell = is_slow or node.disk.is_limited or len(node.disk.failures) > met
        return not (is_unwell or node.life is None or node.life.loop.paused)

    def _replace(self, node: SimNode) -> None:
        if node.disk.is_off:
            self._world.timeline.after(LOOK_US, NOBODY, self._replace, node)
            return
        kept, now = self._kept.pop(node), _content(node)
        if changed := [str(path) for path in kept if kept[path] != now.get(path)]:
            raise Defect("written out of service", f"{node.name}: {', '.join(changed)}")
        self._world.log("operator", f"keeps the disk of {node.name}, whose log differs")
        lose_disk(node)
        self._world.timeline.after(LOOK_US, NOBODY, node.boot)
        self._operator.replace(node)


def _content(node: SimNode) -> dict[Path, bytes]:
    """What the log is, and what was promised. Who holds the directory may change; what is derived
    is spoilt by other faults."""
    folders = (DATA, DATA / "commitlog", DATA / "raft")
    paths = (path for path in node.disk.paths() if path.parent in folders and path.name != "LOCK")
    return {path: node.disk.content(path).rstrip(b"\0") for path in paths}

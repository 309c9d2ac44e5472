"""A small group's directories, as real nodes leave them: made by the simulator, put on the disk.

Real replicas wrote every byte, on simulated disks: several segments and terms, leaders killed,
topics deleted and made anew, entries with several records. One plan makes the same bytes always.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from chaos.sim.disk import SimulatedDisk
from chaos.sim.node import DATA
from chaos.sim.plan import Fault, FaultEvent, Plan, Tuning
from chaos.sim.run import run_plan
from chaos.sim.world import World
from dledger.records.layout import UNITS_PER_FILE

STOPPED_US = 5_000_000  # within which nodes that were asked to have stopped
SEGMENT = 16 << 10


def group_plan(seed: int = 5) -> Plan:
    """A group that changes its leaders while topics come and go."""
    kinds = (Fault.TRANSFER, Fault.KILL, Fault.TRANSFER, Fault.ISOLATE_LEADER)
    return replace(
        Plan(seed, duration_ms=6_000, rate=60, producers=2, consumers=0, queues=2),
        tuning=Tuning(segment_bytes=SEGMENT, units_per_file=UNITS_PER_FILE),
        faults=tuple(FaultEvent(n, 1_000 + 1_200 * n, kind) for n, kind in enumerate(kinds)),
    )


def make_group(root: Path, plan: Plan, *, killed: bool = False) -> dict[str, Path]:
    """The data directories of the plan's nodes, below `root`, after they stopped, or were killed.

    Raises:
        AssertionError: the run failed, or a node didn't stop.
    """
    found: dict[str, Path] = {}

    def at_rest(world: World) -> None:
        for node in world.nodes.values():
            node.is_ruined = True  # Nobody starts it again.
            if killed:
                node.kill()
            else:
                node.stop()
        nodes = list(world.nodes.values())
        world.timeline.run(world.now_us + STOPPED_US, lambda: not any(n.is_up for n in nodes))
        assert not any(node.is_up for node in nodes)
        for node in nodes:
            found[node.name] = _put(node.disk, root / node.name)

    report = run_plan(plan, at_rest)
    assert report.failure is None, report.failure
    return found


def _put(disk: SimulatedDisk, target: Path) -> Path:
    """The disk's data directory, with holes where its files have them."""
    for path in disk.paths():
        placed = target / path.relative_to(DATA)
        placed.parent.mkdir(parents=True, exist_ok=True)
        with placed.open("wb") as file:
            content = disk.content(path)
            file.write(content.rstrip(b"\0"))
            handle = disk.open(path)
            os.truncate(placed, disk.size(handle))
            disk.close(handle)
    return target

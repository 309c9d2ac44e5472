"""A small group's directories, as real nodes leave them: made by the simulator, put on the disk.

Real replicas wrote every byte, on simulated disks: several segments and terms, leaders killed,
topics deleted and made anew, entries with several records. One plan makes the same bytes always.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from chaos.sim.disk import SimulatedDisk
from chaos.sim.machine_config import DATA
from chaos.sim.plan import Fault, FaultEvent, Plan, Tuning
from chaos.sim.run import run_plan
from chaos.sim.world import World
from dledger.records.layout import UNITS_PER_FILE

LOOK_MS = 2_000
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


def later_plan(seed: int = 5) -> Plan:
    """The same of a group whose log begins later than with entry 1, where the members' begin apart:
    the front goes a segment at a time, and they look seldom whether it may."""
    plan = group_plan(seed)
    tuning = replace(
        plan.tuning, snapshot_entries=20, log_start_ms=LOOK_MS, retention_bytes=4 * SEGMENT
    )
    last = FaultEvent(len(plan.faults), 3_000, Fault.MOVE_START)
    return replace(plan, tuning=tuning, faults=(*plan.faults, last))


def make_group(
    root: Path, plan: Plan, *, killed: bool = False, apart: bool = False
) -> dict[str, Path]:
    """The data directories of the plan's nodes, below `root`, after they stopped, or were killed.

    Args:
        apart: while their logs didn't all begin alike.

    Raises:
        AssertionError: the run failed, or a node didn't stop.
    """
    found: dict[str, Path] = {}

    def at_rest(world: World) -> None:
        if apart:
            _move_apart(world)
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


def _move_apart(world: World) -> None:
    """The front of the log may go a little further, and of one node it has."""
    nodes = list(world.nodes.values())

    def begins() -> set[int]:
        return {node.life.replica.log.first_index for node in nodes if node.life is not None}

    world.timeline.run(world.now_us + LOOK_MS * 2_000, lambda: len(begins()) == 1)
    (begin,) = begins()
    leader = next(n for n in nodes if n.life is not None and n.life.replica.leadership.serving)
    assert leader.life is not None
    log = leader.life.replica.log
    behind = next(i for i in range(begin, log.last_index) if log.start_before(i) is not None)
    leader.move_start(behind)
    world.timeline.run(world.now_us + LOOK_MS * 2_000, lambda: len(begins()) > 1)
    assert len(begins()) == 2


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

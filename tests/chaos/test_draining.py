"""When the simulator's consumers may end: not while the level that groups need is about to rise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.sim.drawing.plans import draw_plan
from chaos.sim.keyed import GROUP
from chaos.sim.plan import Plan
from chaos.sim.quiet import quiet_logs
from chaos.sim.run import Run
from chaos.sim.world import NOBODY, World
from dledger.core.types import NodeId
from dledger.level import DELIVERY_LEVEL

AWAY = NodeId("n3")
LOAD_MS = 600
LATE_US = 1_500_000  # after the load, and after all but members of groups have ended


def busy(seed: int) -> Plan:
    """Groups of every kind, and no fault but what a test does."""
    plan = draw_plan(seed, duration_ms=LOAD_MS, rate=60, nodes=3, churn=False)
    plan = replace(plan, faults=(), upgraded=False, one_away=False, gatekeeper=False, overseers=0)
    return replace(plan, crews=(2, 2), failing=2, stopping=1, poppers=(1, 1), keyed=1)


def joined(world: World) -> set[str]:
    """The groups that were ever joined, as the leader has it."""
    return {
        group.name
        for node in world.nodes.values()
        if node.life is not None and node.life.replica.leadership.serving
        for group in node.life.replica.machine.groups
        if group.created
    }


@pytest.mark.parametrize("seed", range(3))
def test_consumers_wait_for_a_level_that_is_to_rise(seed: int) -> None:
    """Who is away when the load ends holds it back, comes, and nobody has ended: what is to be done
    members do that have joined."""
    found: list[set[str]] = []
    with quiet_logs():
        run = Run(busy(seed), lambda world: found.append(joined(world)))
        world, late = run.world, run.world.nodes[AWAY]
        late.is_kept_down = True

        def come() -> None:
            late.is_kept_down = False

        world.timeline.after(LOAD_MS * 1000 + LATE_US, NOBODY, come)
        assert run.to_the_end() is None
    with_work = set(world.crews)
    if not run.cast.keyed.stored:
        with_work.discard(GROUP)
    (groups,) = found
    assert groups >= with_work


def test_consumers_end_where_the_level_never_rises() -> None:
    """Somebody's disk has rotted before it has said what it knows: nobody can be in a group."""
    found: list[tuple[set[str], int]] = []

    def look(world: World) -> None:
        lives = [node.life for node in world.nodes.values() if node.life is not None]
        level = max(life.replica.machine.level.current for life in lives)
        found.append((joined(world), level))

    with quiet_logs():
        run = Run(busy(0), look)
        run.world.nodes[AWAY].is_ruined = True
        assert run.to_the_end() is None
    ((groups, level),) = found
    assert not groups
    assert level < DELIVERY_LEVEL

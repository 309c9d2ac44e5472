"""The first election of a group: who need not wait for it, and who waits as ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.sim.drawing.plans import draw_plan
from chaos.sim.run import run_plan
from dledger.core.types import NodeId, Role
from tests.node.world import TICK_MS, Kind, World

N1, N2, N3 = (NodeId(name) for name in ("n1", "n2", "n3"))
USUAL = Kind(hastens_first_election=True)
SHORTEST_TICKS = 150 // TICK_MS  # of an election timeout


def asked(world: World) -> int:
    """The pre-votes that were asked for."""
    return world.said.count("pre_vote_request")


def test_new_group_elects_the_first_by_name_at_once() -> None:
    """Once, and it asks as anybody does who campaigns."""
    world = World(kind=USUAL)
    world.tick()
    assert world.nodes[N1].driver.core.role is Role.LEADER
    assert asked(world) == 2
    world.run_for(4 * SHORTEST_TICKS)
    assert asked(world) == 2
    assert world.nodes[N1].driver.core.term == 2


def test_first_waits_for_a_majority_that_it_can_ask() -> None:
    """Before, it would only ask nobody; afterwards it is the only one that doesn't wait."""
    world = World(kind=USUAL)
    others = {name: world.ends.pop(name) for name in (N2, N3)}
    world.run_for(SHORTEST_TICKS // 2)
    assert asked(world) == 0
    world.ends[N3] = others[N3]
    world.tick()
    assert world.nodes[N1].driver.core.role is Role.LEADER


def test_others_wait_for_their_timeouts() -> None:
    """The first isn't there: the others' votes are asked for as ever."""
    world = World(kind=USUAL)
    world.crash(N1)
    world.run_for(SHORTEST_TICKS - 1)
    assert asked(world) == 0
    assert world.elect().name in (N2, N3)


def test_group_that_had_a_leader_waits() -> None:
    """After a loss of power there may be one that is only not heard yet."""
    world = World(kind=USUAL)
    world.serving()
    for name in world.members:
        world.crash(name)
    before = asked(world)
    for name in world.members:
        world.restart(name)
    world.run_for(SHORTEST_TICKS - 1)
    assert asked(world) == before


def test_lone_voter_never_waits() -> None:
    """There is nobody to wait for, at the first start and at any."""
    world = World(1, kind=USUAL)
    for term in (2, 3, 4):
        world.tick()
        assert world.nodes[N1].driver.core.role is Role.LEADER
        assert world.nodes[N1].driver.core.term == term
        world.crash(N1)
        world.restart(N1)


def test_who_was_refused_waits_as_ever() -> None:
    """One try is all that is given away: what the answer was is no matter."""
    world = World(kind=USUAL)
    world.isolate(N1)
    world.run_for(2 * SHORTEST_TICKS)
    assert asked(world) >= 2
    first = world.nodes[N1].driver.core
    assert first.role is not Role.LEADER
    world.cut.clear()
    assert world.elect().driver.core.term >= 2


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 3))]
)
def test_runs_under_faults_that_begin_so(seed: int) -> None:
    """The first leader is there before any timeout has passed, and nothing else is different."""
    plan = draw_plan(seed, duration_ms=2_000)
    plan = replace(plan, tuning=replace(plan.tuning, hastens_first_election=True))
    report = run_plan(plan)
    assert report.failure is None
    first = next(line for line in report.transcript if line.what.startswith("leads term"))
    assert (first.who, first.what) == ("n1", "leads term 2")
    assert first.time_us < 150_000

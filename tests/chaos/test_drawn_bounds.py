"""What is drawn beside faults: how long things are kept, and what machines and networks bear."""

from __future__ import annotations

import pytest

from broker.leader.retention import Measured, SegmentEnd
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.plan import Plan
from chaos.sim.run import run_plan
from chaos.sim.world import World


def aged(seed: int) -> Plan:
    """A group that lets go what is too old, and nothing else."""
    plan = draw_plan(seed, duration_ms=6_000)
    assert plan.goes_by_age_alone
    return plan


def test_what_is_old_goes_and_nothing_else() -> None:
    """By the leader's own word, and by the whole history."""
    found: list[int] = []

    def look(world: World) -> None:
        assert world.archive is not None
        assert world.archive.ages is not None
        found.append(world.archive.ages.moves)

    assert run_plan(aged(9), look).failure is None
    assert found > [0]


def test_an_age_that_is_reckoned_too_high_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything as old as the log is."""

    def oldest(_: SegmentEnd, measured: Measured) -> int:
        return measured.lived_ms

    monkeypatch.setattr(SegmentEnd, "age_ms", oldest)
    failure = run_plan(aged(9)).failure
    assert failure is not None
    assert failure.check == "retired too early"


def test_a_part_of_the_seeds_goes_by_age_alone() -> None:
    """Some of those whose log's front goes at all."""
    plans = [draw_plan(seed) for seed in range(200)]
    assert 10 < sum(plan.goes_by_age_alone for plan in plans) < 50
    assert sum(plan.tuning.retention_age_ms > 0 for plan in plans) < 80

"""What runs inside a mutated tree: seeds, one after the other, until one of them notices.

Each is told on a line of its own before it begins, so that whoever waits knows which one it was
that crashed or didn't end.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from chaos.sim.applications.run import run_library
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.plan import Plan
from chaos.sim.run import run_plan


def hunt(
    first_seed: int, seeds: int, duration_ms: int, limit_s: float, under: str
) -> tuple[int, str, str] | None:
    """`(seed, check, detail)` of the first seed that fails; None if none does in time.

    Args:
        first_seed: where to begin.
        seeds: how many to try at most.
        duration_ms: of each run's phase with faults, virtual.
        limit_s: seconds of processor time after which no further seed is tried: what else the
            machine does must not decide what is found.
        under: only seeds with this kind of fault; empty for all.
    """
    give_up_at = time.process_time() + limit_s
    for seed, plan in itertools.islice(_plans(first_seed, duration_ms, under), seeds):
        print(seed, flush=True)
        failure = run_plan(plan).failure
        if failure is not None:
            return seed, failure.check, failure.detail[:300]
        if time.process_time() > give_up_at:
            return None
    return None


def hunt_applications(
    first_seed: int, seeds: int, duration_ms: int, limit_s: float
) -> tuple[int, str, str] | None:
    """The same with seeds of the library's schedule."""
    give_up_at = time.process_time() + limit_s
    for seed in range(first_seed, first_seed + seeds):
        print(seed, flush=True)
        failure = run_library(seed, duration_ms).failure
        if failure is not None:
            return seed, failure.check, failure.detail[:300]
        if time.process_time() > give_up_at:
            return None
    return None


def _plans(first_seed: int, duration_ms: int, under: str) -> Iterator[tuple[int, Plan]]:
    for seed in itertools.count(first_seed):
        plan = draw_plan(seed, duration_ms=duration_ms)
        if not under or any(fault.kind.value == under for fault in plan.faults):
            yield seed, plan

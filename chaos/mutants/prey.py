"""What runs inside a mutated tree: seeds, one after the other, until one of them notices."""

from __future__ import annotations

import time

from chaos.sim.plan import draw_plan
from chaos.sim.run import run_plan


def hunt(
    first_seed: int, seeds: int, duration_ms: int, limit_s: float
) -> tuple[int, str, str] | None:
    """`(seed, check, detail)` of the first seed that fails; None if none does in time.

    Args:
        first_seed: where to begin.
        seeds: how many to try at most.
        duration_ms: of each run's phase with faults, virtual.
        limit_s: real seconds after which no further seed is tried.
    """
    give_up_at = time.monotonic() + limit_s
    for seed in range(first_seed, first_seed + seeds):
        failure = run_plan(draw_plan(seed, duration_ms=duration_ms)).failure
        if failure is not None:
            return seed, failure.check, failure.detail[:300]
        if time.monotonic() > give_up_at:
            return None
    return None

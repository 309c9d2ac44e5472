"""The plan of a seed: which parts are drawn, and in which order.

The order matters: a part may look at what was drawn before it (what rots, at whether fronts move).
Swarm testing: a seed draws which features are on at all, because a run with every fault at once
hides the defects that need one of them to be absent (Groce et al., "Swarm Testing", ISSTA 2012).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.drawing.bounds import draw_tuning, draw_weather, with_crowds, with_flush, with_slices
from chaos.sim.drawing.disks import (
    with_altered_logs,
    with_copies,
    with_disk_faults,
    with_log_rot,
    with_moves,
    with_returns,
    with_snapshots,
)
from chaos.sim.drawing.faults import (
    draw_faults,
    with_churn,
    with_focus,
    with_leaps,
    with_link_faults,
    with_priorities,
    with_speech,
)
from chaos.sim.drawing.load import (
    with_crews,
    with_doubters,
    with_failing,
    with_gatekeeper,
    with_keyed,
    with_overseers,
    with_poppers,
    with_racers,
    with_slow_readers,
    with_unit_writers,
    with_wisher,
)
from chaos.sim.plan import DEFAULT_DURATION_MS, DEFAULT_RATE, Plan

UPGRADED_SHARE = 0.25
ONE_AWAY_SHARE = 0.3  # of the seeds
ONE_AWAY_UPGRADED_SHARE = 0.8  # of those that are upgraded: there is more to find
ONE_WAY_SHARE = 0.1


def draw_plan(
    seed: int,
    *,
    duration_ms: int = DEFAULT_DURATION_MS,
    rate: int = DEFAULT_RATE,
    nodes: int = 0,
    churn: bool = True,
) -> Plan:
    """The plan of `seed`. `nodes` 0: the seed decides, 3 or 5; fewer, where members change.

    Args:
        churn: whether they may; without it the seed is the one that it was before there was this,
            and what has come since.
    """
    chance = Random(f"{seed}/plan")
    drawn_nodes = chance.choice((3, 3, 3, 5))
    plan = Plan(
        seed,
        nodes=nodes or drawn_nodes,
        duration_ms=duration_ms,
        rate=rate,
        producers=chance.randint(1, 4),
        consumers=chance.randint(1, 3),
        queues=chance.randint(1, 4),
        weather=draw_weather(chance),
        tuning=draw_tuning(chance),
        faults=draw_faults(chance, duration_ms),
    )
    plan = with_leaps(with_link_faults(with_focus(with_speech(plan))))
    plan = with_crowds(with_racers(with_slices(with_flush(plan))))
    plan = with_copies(with_returns(with_disk_faults(plan)))
    plan = with_log_rot(with_snapshots(plan))
    if churn:
        plan = with_moves(with_altered_logs(with_priorities(with_churn(plan, nodes))))
    upgraded = plan.random("upgraded").random() < UPGRADED_SHARE
    share = ONE_AWAY_UPGRADED_SHARE if upgraded else ONE_AWAY_SHARE
    one_away = plan.random("one-away/drawn").random() < share
    one_way = plan.random("one-way/drawn").random() < ONE_WAY_SHARE
    plan = replace(plan, upgraded=upgraded, one_away=one_away, one_way=one_way)
    plan = with_overseers(with_crews(with_unit_writers(plan)))
    plan = with_doubters(with_slow_readers(with_poppers(plan)))
    return with_wisher(with_keyed(with_gatekeeper(with_failing(plan))))

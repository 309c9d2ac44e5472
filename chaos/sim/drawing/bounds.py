"""What a group runs on: the network's weather, the bounds of store and replication, and flushing.

Bounds are small, so that they are met often.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.network import Weather
from chaos.sim.plan import Fault, Plan, Tuning, bounds

# After these a log that is flushed later may lack what was acknowledged, as documented.
NEED_SYNC = frozenset(
    {Fault.POWER, Fault.POWER_MIDWAY, Fault.POWER_ALL, Fault.SYNC_ERROR, Fault.KILLER}
)
ASYNC_SHARE = 0.3  # of the seeds without any of those


def draw_weather(chance: Random) -> Weather:
    """What the network does to messages: in half of the groups it only takes its time."""
    fair = Weather(
        delay_us=chance.choice((50, 150, 500, 2_000, 10_000)),
        jitter_us=chance.choice((0, 100, 1_000, 10_000)),
    )
    if chance.random() < 0.5:
        return fair  # streams, as in production
    return Weather(
        fair.delay_us,
        fair.jitter_us,
        loss=chance.choice((0.0, 0.001, 0.01, 0.05)),
        duplication=chance.choice((0.0, 0.01, 0.1)),
        reordering=chance.choice((0.0, 0.01, 0.2)),
        spikes=chance.choice((0.0, 0.001, 0.01)),
        spike_us=chance.choice((50_000, 300_000)),
    )


def draw_tuning(chance: Random) -> Tuning:
    """Bounds that there were first."""
    return Tuning(
        segment_bytes=chance.choice((8, 16, 64, 256)) << 10,
        cache_bytes=chance.choice((0, 2 << 10, 16 << 10, 8 << 20)),
        units_per_file=chance.choice((16, 64, 1_000)),
        max_append_bytes=chance.choice((1 << 10, 4 << 10, 64 << 10)),
        max_inflight_appends=chance.choice((1, 4, 32)),
        max_uncommitted_bytes=chance.choice((8 << 10, 64 << 10, 1 << 20)),
        sync_us=chance.choice((50, 300, 1_000, 5_000)),
        turn_us=chance.choice((0, 0, 200, 2_000)),
        housekeeping_ms=chance.choice((20, 200, 1_000)),
    )


def with_crowds(plan: Plan) -> Plan:
    """Some groups have room for a few producers only."""
    room = plan.random("crowds").choice((8, 20, 1_000))
    return replace(plan, tuning=replace(plan.tuning, producers=bounds(room)))


def with_slices(plan: Plan) -> Plan:
    """Applying takes turns of one entry, of a few, or of all there are; so does whatever else is
    done in pieces, and who is far behind is sent as many at once."""
    chance = plan.random("slices")
    size, steps = chance.choice((1, 2 << 10, 1 << 20)), chance.choice((1, 3, 1_000))
    entries = plan.random("append-entries").choice((1, 3, 16, 1_024))
    return replace(
        plan,
        tuning=replace(
            plan.tuning, apply_slice_bytes=size, turn_steps=steps, max_append_entries=entries
        ),
    )


def with_flush(plan: Plan) -> Plan:
    """Some groups flush later, where no fault makes that lose data."""
    drawn = plan.random("flush").random() < ASYNC_SHARE
    if not drawn or any(fault.kind in NEED_SYNC for fault in plan.faults):
        return plan
    return replace(plan, tuning=replace(plan.tuning, flush="async"))

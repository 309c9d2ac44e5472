"""Disks that are only slow, in the simulator: nobody is elected for one, and nobody waits for it;
where all of them are, somebody is elected all the same."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from chaos.checkers.history import Send
from chaos.sim.at_rest import somebody_leads
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.node import SimNode
from chaos.sim.plan import SMALL, Plan
from chaos.sim.quiet import quiet_logs
from chaos.sim.run import Run
from dledger.core.types import Role

SLOW_SYNC_US = 100_000
SETTLED_US = 3_000_000
SLOW_US = 6_000_000


def quiet(seed: int) -> Plan:
    """Three nodes on disks that sync in 300 us, a calm network, some load, and no fault. Segments,
    and what may be unwritten, are large beside what is sent, as they are in life: a leader whose
    disk is further behind than that answers BUSY (ADR 17)."""
    plan = draw_plan(seed, duration_ms=60_000, churn=False)
    weather = replace(
        plan.weather, delay_us=500, jitter_us=50, loss=0, duplication=0, reordering=0, spikes=0
    )
    tuning = replace(SMALL, segment_bytes=1 << 20, max_uncommitted_bytes=1 << 20)
    plan = replace(plan, nodes=3, rate=200, producers=2, consumers=1, queues=2, racers=0)
    return replace(plan, admin=False, upgraded=False, faults=(), weather=weather, tuning=tuning)


def latencies_us(run: Run, since_us: int) -> list[int]:
    """Of the sends that began since then and were stored."""
    return [
        each.completed_us - each.invoked_us
        for each in run.world.history.operations
        if each.is_ok
        and isinstance(each.action, Send)
        and each.completed_us is not None
        and each.invoked_us >= since_us
    ]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "whose", [Role.LEADER, pytest.param(Role.FOLLOWER, marks=pytest.mark.long)]
)
def test_slow_disk_moves_no_leader_and_slows_no_majority(whose: Role, seed: int) -> None:
    """50 to 150 ms a sync on one node: its group has the leader that it had, and sends take what
    they took."""
    with quiet_logs():
        check(whose, seed)


def check(whose: Role, seed: int) -> None:
    run = Run(quiet(seed))
    world = run.world
    world.start()
    run._spawn(run._create_topic())
    for client in run.cast.make():
        run._spawn(client.run())
    run._advance(SETTLED_US)
    leaders = dict(world.watch.checker.leaders)
    before = latencies_us(run, SETTLED_US // 2)

    def is_of_that_role(node: SimNode) -> bool:
        return node.life is not None and node.life.core.role is whose

    slow = next(node for node in world.nodes.values() if is_of_that_role(node))
    slow.sync_us = SLOW_SYNC_US
    run._advance(SETTLED_US + SLOW_US)
    after = latencies_us(run, SETTLED_US + SLOW_US // 10)
    assert len(before) > 50
    assert len(after) > 2 * len(before)
    assert dict(world.watch.checker.leaders) == leaders
    assert statistics.median(after) < 1.2 * statistics.median(before)
    # A send that waited for the slow disk would take half of this at least. Some take that long on
    # any disk: their producers let batches overtake each other, and wait before they try again.
    assert statistics.quantiles(after, n=4)[2] < SLOW_SYNC_US // 4
    for node in world.nodes.values():
        assert node.life is not None
        node.life.loop.die()
    world.clients.die()


@pytest.mark.parametrize("sync_us", [60_000, 150_000])
@pytest.mark.parametrize("nodes", [1, 3])
def test_leader_is_elected_where_every_disk_is_slow(nodes: int, sync_us: int) -> None:
    """A save of term and vote is three syncs: it takes longer than any election timeout, or as long
    as the shortest. The leader dies, and the group has one again."""
    for seed in range(2):
        with quiet_logs():
            check_election(replace(quiet(seed), nodes=nodes), sync_us)


def check_election(plan: Plan, sync_us: int) -> None:
    run = Run(plan)
    world = run.world
    world.start()
    run._advance(SETTLED_US)
    assert somebody_leads(world)
    leader = next(
        each for each in world.nodes.values() if each.life and each.life.core.is_ready_leader
    )
    for node in world.nodes.values():
        node.sync_us = sync_us
    leader.kill()
    if plan.nodes == 1:
        leader.boot()
    run._advance(world.now_us + SLOW_US)
    assert somebody_leads(world)
    for node in world.nodes.values():
        if node.life is not None:
            node.life.loop.die()
    world.clients.die()

"""Schedules of one kind of trouble over and over: each shows a rule at work that a drawn schedule
meets seldom. Where the rule is broken one of these seeds fails (`chaos.mutants`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import pytest

from chaos.sim.drawing.plans import draw_plan
from chaos.sim.holed import HoledProcess
from chaos.sim.plan import Fault, FaultEvent, Plan
from chaos.sim.run import run_plan

# The first few are the time of a step of the disk.
STOPPED_AFTER_S: Final = (0.00001, 0.00003, 0, 0.0001, 0.001, 0.01, 0.03)

LONG = pytest.mark.long


def plain(seed: int, duration_ms: int, rate: int, faults: tuple[FaultEvent, ...]) -> Plan:
    """Three nodes, and nothing but these faults."""
    plan = draw_plan(seed, duration_ms=duration_ms, rate=rate, nodes=3, churn=False)
    plan = replace(plan, faults=faults, upgraded=False, one_away=False, gatekeeper=False)
    return replace(plan, overseers=0, keyed=0, admin=True)


def stale_leaders(seed: int) -> Plan:
    """Leaders that others take over from while they are cut off and stand still: for a moment
    afterwards they know nothing of it, and members send back to them what has failed."""
    faults = tuple(FaultEvent(n, 600 + 900 * n, Fault.STALE_LEADER) for n in range(8))
    plan = plain(seed, 8_000, 60, faults)
    return replace(plan, crews=(), failing=2, stopping=0, poppers=(2,))


def stopped_on_a_failing_disk(seed: int) -> Plan:
    """Nodes that are asked to stop, and whose disk fails meanwhile."""
    faults = tuple(
        each
        for n in range(8)
        for each in (
            FaultEvent(2 * n, 500 + 600 * n, Fault.TERMINATE),
            FaultEvent(2 * n + 1, 504 + 600 * n + 2 * (n % 6), Fault.SYNC_ERROR),
        )
    )
    return plain(seed, 6_000, 100, faults)


@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=LONG) for each in (0, 2))])
def test_leaders_of_before_deny_nothing(seed: int) -> None:
    """Whatever they are asked."""
    assert run_plan(stale_leaders(seed)).failure is None


@pytest.mark.parametrize("seed", [14, *(pytest.param(each, marks=LONG) for each in (13, 15))])
def test_who_stops_on_a_failing_disk_does_not_stop_cleanly(seed: int) -> None:
    """And says so, also where nobody listens any more when it fails."""
    assert run_plan(stopped_on_a_failing_disk(seed)).failure is None


def rotten_and_started_again(seed: int) -> Plan:
    """Members whose log rots, and who find it as they start: they ask the others for it."""
    faults = tuple(
        each
        for n in range(10)
        for each in (
            FaultEvent(2 * n, 1_000 + 500 * n, Fault.LOG_ROT),
            FaultEvent(2 * n + 1, 1_100 + 500 * n, Fault.POWER if n % 2 else Fault.KILL),
        )
    )
    return plain(seed, 7_000, 100, faults)


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(each, marks=LONG) for each in (1, 5))])
def test_who_stops_before_its_log_is_whole_leaves_nothing_at_work(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked to at any moment, every other time: it closes its directory when no step on it goes on,
    and a later start gets back what is missing."""
    begun: list[HoledProcess] = []
    until_whole = HoledProcess.until_whole

    async def until_asked(process: HoledProcess) -> bool:
        begun.append(process)
        if len(begun) % 2:
            delay_s = STOPPED_AFTER_S[(seed + len(begun) // 2) % len(STOPPED_AFTER_S)]
            asyncio.get_running_loop().call_later(delay_s, process.ask_to_stop)
        return await until_whole(process)

    monkeypatch.setattr(HoledProcess, "until_whole", until_asked)
    report = run_plan(rotten_and_started_again(seed))
    assert report.failure is None
    assert 0 < report.refills < len(begun)

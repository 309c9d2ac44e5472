"""The simulator itself: determinism, a short swarm, shrinking, and its command."""

from __future__ import annotations

import functools
import os
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.sim import worker
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.nemesis import BETWEEN_TWO
from chaos.sim.plan import Fault, FaultEvent, Plan
from chaos.sim.rot import FULL_LOOKS, full_looks, is_unread
from chaos.sim.run import Failure, Report, run_plan
from chaos.sim.shrink import Recipe, shrink

SHORT_MS = 3_000
SAME_MS = 1_000


@functools.cache
def report_of(seed: int) -> Report:
    """Of a short run that several tests look at."""
    return run_plan(draw_plan(seed, duration_ms=SHORT_MS))


def test_run_asks_this_process_and_machine_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits of a process id, in a lock's file, once made disks fill a byte later: a seed's trace
    was another one in another process."""

    here = threading.get_ident()  # others' threads, as those of a Spark session, may ask

    def asking(real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*given: object, **named: object) -> Any:
            if threading.get_ident() != here:
                return real(*given, **named)
            raise AssertionError("a run depends on where and when it is made")

        return ask

    asked = [
        *((os, name) for name in ("getpid", "urandom", "getenv", "stat", "open", "listdir")),
        *((time, name) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "sleep")),
        *((random, name) for name in ("random", "randint", "choice", "getrandbits")),
        *((secrets, name) for name in ("token_bytes", "token_hex", "randbits")),
    ]
    run_plan(draw_plan(42, duration_ms=100))  # imports what it needs
    with monkeypatch.context() as patched:
        for module, name in asked:
            patched.setattr(module, name, asking(getattr(module, name)))
        reports = [report_of(seed) for seed in range(2)]
    assert [report.failure for report in reports] == [None] * 2


def test_same_seed_is_the_same_run() -> None:
    """The trace depends on the seed and on nothing else, Python's hashing included."""
    here = run_plan(draw_plan(42, duration_ms=SAME_MS)).trace
    assert run_plan(draw_plan(42, duration_ms=SAME_MS)).trace == here
    assert run_plan(draw_plan(43, duration_ms=SAME_MS)).trace != here
    code = (
        "from chaos.sim.drawing.plans import draw_plan; from chaos.sim.run import run_plan;"
        f"print(run_plan(draw_plan(42, duration_ms={SAME_MS})).trace)"
    )
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == here


def test_transcript_tells_who_leads() -> None:
    """Once for each term that has a leader, besides starts and faults."""
    report = run_plan(replace(draw_plan(42, duration_ms=SHORT_MS), faults=()))
    told = [line.what for line in report.transcript if line.what.startswith("leads term")]
    assert report.leaders == len(told) == len(set(told))
    assert told


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, pytest.param(6, marks=pytest.mark.long)])
def test_swarm_finds_nothing(first: int) -> None:
    """Half a dozen seeds, each with its own faults, break no promise; `make sim` has more."""
    for seed in range(first, first + 6):
        report = report_of(seed)
        assert report.failure is None, f"{Recipe(seed, SHORT_MS).command()}: {report.failure}"


@pytest.mark.slow
def test_swarm_is_no_idle_noise() -> None:
    """The runs elect, crash, commit and answer, else they would prove nothing."""
    reports = [report_of(seed) for seed in range(6)]
    assert sum(report.leaders for report in reports) > len(reports)
    assert sum(report.boots for report in reports) > 3 * len(reports)
    assert sum(report.committed for report in reports) > 300
    assert sum(report.acknowledged for report in reports) > 500
    assert sum(report.checks for report in reports) > 1_000


def test_what_takes_two_machines_spares_one() -> None:
    """A group of one has its faults all the same, and those of links and pairs pass."""
    plan = replace(draw_plan(3, duration_ms=900), nodes=1, spares=0)
    kinds = (*sorted(BETWEEN_TWO, key=lambda each: each.value), Fault.RING, Fault.BRIDGE)
    faults = tuple(FaultEvent(at, 500 + 60 * at, kind) for at, kind in enumerate(kinds))
    assert run_plan(replace(plan, faults=faults)).failure is None


def test_group_that_cannot_progress_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a majority of disks that sync nobody leads, and the run says so."""
    plan = replace(draw_plan(3, duration_ms=500), nodes=1, faults=())
    assert run_plan(plan).failure is None
    monkeypatch.setattr(worker, "MAX_STEP_US", 600_000_000)
    lame = replace(plan, tuning=replace(plan.tuning, sync_us=600_000_000))
    failure = run_plan(lame).failure
    assert failure is not None
    assert failure.check == "no leader"


# --- shrinking ----------------------------------------------------------------------------------


def fake_report(plan: Plan, *, fails: bool) -> Report:
    """A report as a run would give it, without running."""
    failure = Failure("invariant", "invented", 2_000_000) if fails else None
    return Report(
        plan=plan,
        failure=failure,
        trace="",
        events=0,
        checks=0,
        simulated_s=0,
        cpu_s=0,
        operations=0,
        acknowledged=0,
        committed=0,
        leaders=0,
        boots=0,
        ruined=0,
        repaired_bytes=0,
        refills=0,
        away=None,
        transcript=(),
    )


def has_many_faults(seed: int) -> bool:
    """Of which none was left out, as some are where members change."""
    faults = draw_plan(seed).faults
    return [fault.number for fault in faults[:5]] == [0, 1, 2, 3, 4] and len(faults) > 8


def test_shrinking_keeps_what_the_failure_needs() -> None:
    """Of many faults two are needed; nodes, clients and the rest of the time go."""
    recipe = next(Recipe(seed) for seed in range(100) if has_many_faults(seed))

    def run(plan: Plan) -> Report:
        numbers = {fault.number for fault in plan.faults}
        return fake_report(plan, fails={1, 4} <= numbers and plan.producers >= 1)

    smaller, report = shrink(recipe, run(recipe.plan()), run=run)
    assert smaller.faults == (1, 4)
    assert report.plan.nodes == 3
    assert report.plan.producers == 1
    assert report.plan.consumers == 0
    assert smaller.duration_ms == 2_050
    assert "--faults 1,4" in smaller.command()


def test_shrinking_names_no_fault_that_the_cut_time_leaves_out() -> None:
    """What is printed can be typed in: a fault beyond the end would be refused."""
    recipe = next(Recipe(seed) for seed in range(100) if len(draw_plan(seed).faults) > 8)
    first, last = recipe.plan().faults[0], recipe.plan().faults[-1]
    assert first.time_ms < 2_050 < last.time_ms

    def run(plan: Plan) -> Report:
        return fake_report(plan, fails=first in plan.faults)

    given = replace(recipe, faults=(first.number, last.number))
    smaller, _ = shrink(given, run(given.plan()), run=run)
    assert smaller.duration_ms == 2_050
    assert smaller.faults == (first.number,)


def test_shrinking_keeps_the_same_check() -> None:
    """A smaller run that fails another check is another failure."""
    recipe = Recipe(1)
    first = fake_report(recipe.plan(), fails=True)

    def run(plan: Plan) -> Report:
        report = fake_report(plan, fails=True)
        return replace(report, failure=Failure("other", "", 1))

    assert shrink(recipe, first, run=run)[0] == recipe
    with pytest.raises(ValueError, match="nothing to shrink"):
        shrink(recipe, fake_report(recipe.plan(), fails=False))


def test_shorter_plan_begins_as_the_longer_one() -> None:
    """Cutting the time leaves the faults before the cut as they were."""
    long, short = draw_plan(9, duration_ms=20_000), draw_plan(9, duration_ms=5_000)
    assert tuple(fault for fault in long.faults if fault.time_ms < 5_000) == short.faults
    assert long.tuning == short.tuning


# --- the command --------------------------------------------------------------------------------


def test_command_runs_a_seed() -> None:
    """Exit 0 and facts, when nothing is wrong."""
    done = CliRunner().invoke(app, ["sim", "--seed", "1", "--duration", "0.5", "--faults", "none"])
    assert done.exit_code == 0, done.output
    assert "trace" in done.output


def test_command_tells_how_to_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure gives exit 1, the transcript and the command that repeats it."""
    monkeypatch.setattr("chaos.cli.run_plan", lambda plan: fake_report(plan, fails=True))
    done = CliRunner().invoke(app, ["sim", "--seed", "7", "--faults", "0,2", "--no-shrink"])
    assert done.exit_code == 1
    assert "replay: dledger chaos sim --seed 7 --faults 0,2" in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--faults", "one"],
        ["--faults", "9999"],
        ["--faults", "-1"],
        ["--seeds", "0"],
        ["--nodes", "99"],
        ["--transcript", "/"],
        ["--transcript", "no/such/folder/t.txt"],
    ],
)
def test_command_used_wrongly(arguments: list[str]) -> None:
    """Exit 2 for what can't be meant."""
    assert CliRunner().invoke(app, ["sim", *arguments]).exit_code == 2


def test_rot_is_waited_for_until_its_own_node_has_looked_everywhere() -> None:
    """Looks of others, of before, and of a life that is over don't count; those of this one do, or
    a scrub that sees nothing would be waited for without end."""

    def node(name: str, boots: int, looks: int, *, rots: bool) -> Any:
        scrubber = SimpleNamespace(statistics=lambda: SimpleNamespace(passes=looks))
        life = SimpleNamespace(replica=SimpleNamespace(scrubber=scrubber))
        return SimpleNamespace(name=name, boots=boots, life=life, has_log_rot=rots)

    before = full_looks([node("n1", 1, 7, rots=True), node("n2", 1, 0, rots=False)])
    well = node("n2", 1, 0, rots=False)
    assert is_unread([node("n1", 1, 7 + FULL_LOOKS - 1, rots=True), well], before)
    assert not is_unread([node("n1", 1, 7 + FULL_LOOKS, rots=True), well], before)
    assert is_unread([node("n1", 2, FULL_LOOKS - 1, rots=True), well], before)
    assert not is_unread([node("n1", 2, FULL_LOOKS, rots=True), well], before)
    assert not is_unread([node("n1", 1, 7, rots=False), well], before)

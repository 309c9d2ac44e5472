"""The simulator itself: determinism, a short swarm, shrinking, and seeds kept for good."""

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
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.sim.nemesis import BETWEEN_TWO
from chaos.sim.plan import SPEECH, Fault, FaultEvent, Plan, draw_plan
from chaos.sim.run import Failure, Report, run_plan
from chaos.sim.shrink import Recipe, shrink

SHORT_MS = 3_000
SAME_MS = 1_500

# Seeds that once found a defect, with the duration that shows it and what it was. The code that
# they ran on is gone; they stay because what broke once may break again.
KEPT = (
    (2, 8_000, "a proposal between a failed flush and its news left the core ahead of the log"),
    (5045, 5_000, "the same, seen by a producer"),
    (12, 4_000, "a follower that had paused applying on a full disk spun its event loop"),
    (38, 4_000, "the same"),
    (5072, 12_500, "the killer schedule on five nodes with a rotten disk"),
    (51, 4_000, "a topic made anew with fewer queues while its batches were in flight"),
    (14, 4_000, "the same, with data of several producers"),
    (200311, 20_000, "term and vote of a dead process were taken from the page cache"),
    (162, 4_000, "a segment's file was closed before what fills it up was flushed"),
    (2038, 20_000, "rot beside an entry that could be reached over other rotten bytes only"),
)


@functools.cache
def report_of(seed: int) -> Report:
    """Of a short run that several tests look at."""
    return run_plan(draw_plan(seed, duration_ms=SHORT_MS))


def full_disks(seed: int) -> Plan:
    """Small segments, full disks, failing syncs: the schedule that found the store's index reading
    entries that were not yet written."""
    kinds = (Fault.DISK_FULL, Fault.KILL, Fault.ISOLATE_LEADER, Fault.SYNC_ERROR, Fault.SLOW_DISK)
    plan = draw_plan(seed, duration_ms=8_000, churn=False)
    faults = tuple(
        FaultEvent(number, 500 + 400 * number, kinds[(number * 7 + seed) % len(kinds)])
        for number in range(18)
    )
    return replace(plan, faults=faults, tuning=replace(plan.tuning, segment_bytes=8192))


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
        reports = [run_plan(draw_plan(seed, duration_ms=SHORT_MS)) for seed in (42, 77, 79, 528)]
    assert [report.failure for report in reports] == [None] * 4


def test_a_voter_goes_and_whoever_is_left_serves() -> None:
    """Also beside one whose program is older than the log, one that lags, and both."""
    found: set[str] = set()
    for seed in range(3, 9):
        plan = draw_plan(seed, duration_ms=400, rate=10, nodes=3, churn=False)
        plan = replace(plan, faults=(), upgraded=True, one_away=True, gatekeeper=False)
        report = run_plan(plan)
        assert report.failure is None
        assert report.away is not None
        found.update(report.away)
        if {"older", "lagging"} <= {*report.away}:
            found.add("both")
    assert found == {"older", "lagging", "asked", "both", "clinging"}


def test_same_seed_is_the_same_run() -> None:
    """The trace depends on the seed and on nothing else, Python's hashing included."""
    here = run_plan(draw_plan(42, duration_ms=SAME_MS)).trace
    assert run_plan(draw_plan(42, duration_ms=SAME_MS)).trace == here
    assert run_plan(draw_plan(43, duration_ms=SAME_MS)).trace != here
    code = (
        "from chaos.sim.plan import draw_plan; from chaos.sim.run import run_plan;"
        f"print(run_plan(draw_plan(42, duration_ms={SAME_MS})).trace)"
    )
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
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
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_swarm_finds_nothing(first: int) -> None:
    """Forty seeds, each with its own faults, break no promise."""
    for seed in range(first, first + 10):
        report = report_of(seed)
        assert report.failure is None, f"{Recipe(seed, SHORT_MS).command()}: {report.failure}"


@pytest.mark.slow
def test_swarm_is_no_idle_noise() -> None:
    """The runs elect, crash, commit and answer, else they would prove nothing."""
    reports = [report_of(seed) for seed in range(8)]
    assert sum(report.leaders for report in reports) > len(reports)
    assert sum(report.boots for report in reports) > 3 * len(reports)
    assert sum(report.committed for report in reports) > 300
    assert sum(report.acknowledged for report in reports) > 500
    assert sum(report.checks for report in reports) > 1_000


@pytest.mark.parametrize(("seed", "duration_ms", "what"), KEPT)
def test_seed_that_once_failed(seed: int, duration_ms: int, what: str) -> None:
    """A defect that was found stays found."""
    assert run_plan(draw_plan(seed, duration_ms=duration_ms, churn=False)).failure is None, what


@pytest.mark.parametrize("seed", [2, 40, 64])
def test_full_disks_that_once_failed(seed: int) -> None:
    """Entries that wait for a stalled disk aren't looked for in the files."""
    assert run_plan(full_disks(seed)).failure is None


def lost_disks(seed: int) -> Plan:
    """Disks are lost and mixed up while nodes are cut off and lag."""
    kinds = (Fault.WIPE, Fault.ISOLATE, Fault.KILL, Fault.WIPE, Fault.SWAP, Fault.ISOLATE_LEADER)
    faults = tuple(
        FaultEvent(number, 500 + 450 * number, kinds[number % len(kinds)]) for number in range(12)
    )
    return replace(draw_plan(seed, duration_ms=7_000, churn=False), faults=faults)


@pytest.mark.parametrize("seed", [1, 3, 4, 11])
def test_nothing_is_lost_with_a_disk_while_a_majority_is_intact(seed: int) -> None:
    """A new disk takes part once the group's log names it, and the old one's word is nobody's."""
    report = run_plan(lost_disks(seed))
    assert report.failure is None
    told = [line.what for line in report.transcript]
    assert "lost its disk" in told
    assert any(what.startswith("replaces the disk of") for what in told)
    assert any(what.startswith("doesn't take part") for what in told)


def with_speech(seed: int, kind: Fault) -> Plan:
    """A group in which every second fault is of `kind`, and the others kill."""
    faults = tuple(
        FaultEvent(number, 300 + 400 * number, kind if number % 2 else Fault.KILL)
        for number in range(7)
    )
    return replace(draw_plan(seed, duration_ms=SHORT_MS, churn=False), faults=faults)


def refusals(report: Report) -> int:
    return sum(line.what.startswith("refuses: ") for line in report.transcript)


def test_flipped_bits_change_nothing() -> None:
    """Every message with a flipped bit is refused, and none without; nobody stops for it."""
    reports = [run_plan(with_speech(seed, Fault.GARBLE)) for seed in range(4)]
    assert [report.failure for report in reports] == [None] * 4
    assert sum(refusals(report) for report in reports) > 20


def test_lying_member_harms_nobody() -> None:
    """It may stop progress while it lies, never safety, and never another node."""
    reports = [run_plan(with_speech(seed, Fault.LIAR)) for seed in range(4)]
    assert [report.failure for report in reports] == [None] * 4
    assert sum(refusals(report) for report in reports) > 50


def test_seeds_without_speech_are_what_they_were() -> None:
    """Its faults take the place of others in a quarter of the seeds, and change no other draw."""

    def has_speech(seed: int, duration_ms: int) -> bool:
        faults = draw_plan(seed, duration_ms=duration_ms, churn=False).faults
        return any(fault.kind in SPEECH for fault in faults)

    assert 20 < sum(has_speech(seed, 20_000) for seed in range(200)) < 60
    assert not any(has_speech(seed, duration_ms) for seed, duration_ms, _ in KEPT)


@pytest.mark.parametrize("seed", range(4))
def test_clocks_that_leap_by_decades_move_nothing(seed: int) -> None:
    """A minority of the clocks, forwards and backwards, under changes of leadership: with the
    leader's own clock in the log three of these failed at the first leap of a leader's."""
    kinds = (Fault.CLOCK_LEAP, Fault.TRANSFER, Fault.CLOCK_LEAP, Fault.KILL)
    plan = draw_plan(seed, duration_ms=SHORT_MS, churn=False)
    faults = tuple(FaultEvent(number, 300 + 300 * number, kinds[number % 4]) for number in range(9))
    report = run_plan(replace(plan, faults=faults))
    assert report.failure is None
    assert report.acknowledged > 20


@pytest.mark.parametrize("seed", range(2))
def test_all_clocks_may_leap_by_decades(seed: int) -> None:
    """Together, and each by itself, under changes of leadership."""
    kinds = (Fault.CLOCKS_LEAP, Fault.TRANSFER, Fault.CLOCKS_LEAP, Fault.KILL)
    plan = draw_plan(seed, duration_ms=SHORT_MS, churn=False)
    faults = tuple(FaultEvent(number, 300 + 300 * number, kinds[number % 4]) for number in range(9))
    report = run_plan(replace(plan, faults=faults))
    assert report.failure is None
    assert report.acknowledged > 20


@pytest.mark.parametrize(("seed", "word"), [(15, "puts n"), (35, "puts n"), (70, "was replaced")])
def test_nobody_listens_to_older_copies_and_replaced_disks(seed: int, word: str) -> None:
    """Where only the number of starts was compared one of these elected a leader that lacked a
    committed entry; one forgot promises at a restart, and one counted a disk that was replaced."""
    report = run_plan(draw_plan(seed, duration_ms=6_000, churn=False))
    assert report.failure is None
    assert any(word in line.what for line in report.transcript)


def test_members_come_and_go() -> None:
    """Under kills, cuts and lost disks, by two administrators who don't know of each other."""
    plans = [draw_plan(seed, duration_ms=8_000) for seed in (5, 8, 16, 33, 64, 68)]
    assert all(any(fault.kind is Fault.CHURN for fault in plan.faults) for plan in plans)
    reports = [run_plan(plan) for plan in plans]
    assert [report.failure for report in reports] == [None] * len(plans)
    told = [line.what for report in reports for line in report.transcript]
    assert sum(what.endswith(" joins") for what in told) > 3
    assert sum(what.startswith("stands by") for what in told) > 2
    assert sum(what == "is told that it is so" for what in told) > 8
    assert any("is under way" in what for what in told)


def test_seeds_without_leaps_are_what_they_were() -> None:
    """Leaps come to a quarter of the seeds, beside what else happens there."""

    def leaps(seed: int, duration_ms: int) -> bool:
        faults = draw_plan(seed, duration_ms=duration_ms, churn=False).faults
        return any(fault.kind in (Fault.CLOCK_LEAP, Fault.CLOCKS_LEAP) for fault in faults)

    assert 25 < sum(leaps(seed, 20_000) for seed in range(200)) < 60
    # The one that is excepted was found among leaps.
    assert not any(leaps(seed, duration_ms) for seed, duration_ms, _ in KEPT if seed != 2038)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_nothing_is_noted_beyond_the_own_log(flush: Literal["sync", "async"]) -> None:
    """A disk that lags behind what the others have committed, and kills: seeds 0 to 3 each noted
    what the node's own disk didn't hold."""
    kinds = (Fault.SLOW_DISK, Fault.KILL, Fault.ISOLATE_LEADER, Fault.KILL)
    for seed in range(4):
        plan = draw_plan(seed, duration_ms=4_000)
        faults = tuple(
            FaultEvent(number, 400 + 250 * number, kinds[(number * 3 + seed) % 4])
            for number in range(14)
        )
        tuning = replace(plan.tuning, housekeeping_ms=20, flush=flush)
        assert run_plan(replace(plan, faults=faults, tuning=tuning)).failure is None


def test_what_takes_two_machines_spares_one() -> None:
    """A group of one has its faults all the same, and those of links and pairs pass."""
    plan = replace(draw_plan(3, duration_ms=900), nodes=1, spares=0)
    kinds = (*sorted(BETWEEN_TWO, key=lambda each: each.value), Fault.RING, Fault.BRIDGE)
    faults = tuple(FaultEvent(at, 500 + 60 * at, kind) for at, kind in enumerate(kinds))
    assert run_plan(replace(plan, faults=faults)).failure is None


def test_group_that_cannot_progress_is_noticed() -> None:
    """Without a majority of intact disks nothing is acknowledged, and the run says so."""
    plan = replace(draw_plan(3, duration_ms=500), nodes=1, faults=())
    assert run_plan(plan).failure is None
    lame = replace(plan, tuning=replace(plan.tuning, sync_us=60_000_000))
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


@pytest.mark.parametrize("seed", [7, 122])
def test_member_whose_log_was_altered_takes_itself_out(seed: int) -> None:
    """Each of them, and nobody else: the run would have failed."""
    report = run_plan(draw_plan(seed, duration_ms=10_000))
    assert report.failure is None
    lines = [line.what for line in report.transcript]
    altered = sum("is another one" in line for line in lines)
    assert altered
    assert sum("OutOfService" in line for line in lines) == altered


def test_member_that_is_preferred_leads_when_all_is_well() -> None:
    """Somebody else leads when peace comes, and hands over in its time."""
    report = run_plan(draw_plan(83, duration_ms=8_000))
    assert report.failure is None
    lines = [line.what for line in report.transcript]
    assert any("to prefer n" in line for line in lines)
    assert report.simulated_s > 25, "the group was at peace for as long as it takes"

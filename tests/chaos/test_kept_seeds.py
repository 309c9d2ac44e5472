"""Seeds and schedules that are kept for good: each once found a defect, or shows a rule at work."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from chaos.sim.drawing.disks import with_odd_errors
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.plan import SPEECH, Fault, FaultEvent, Plan
from chaos.sim.run import Report, run_plan
from tests.scale import stride

SHORT_MS = 3_000
LONG = pytest.mark.long

# Seeds that once found a defect, with the duration that shows it and what it was. The code that
# they ran on is gone; they stay because what broke once may break again.
KEPT = (
    (2, 8_000, "a proposal between a failed flush and its news left the core ahead of the log"),
    (12, 4_000, "a follower that had paused applying on a full disk spun its event loop"),
    (5072, 8_000, "the killer schedule on five nodes with a rotten disk"),
    (51, 4_000, "a topic made anew with fewer queues while its batches were in flight"),
    (200311, 8_000, "term and vote of a dead process were taken from the page cache"),
    (162, 4_000, "a segment's file was closed before what fills it up was flushed"),
    (2038, 8_000, "rot beside an entry that could be reached over other rotten bytes only"),
)
REACHED = (12, 51)  # of these, in make test


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


@pytest.mark.parametrize(
    ("seed", "duration_ms", "what"),
    [
        pytest.param(*each, marks=[LONG] if each[0] in (2, 5072, 200311, 2038) else [])
        for each in KEPT
    ],
)
def test_seed_that_once_failed(seed: int, duration_ms: int, what: str) -> None:
    """A defect that was found stays found."""
    assert run_plan(draw_plan(seed, duration_ms=duration_ms, churn=False)).failure is None, what


@pytest.mark.parametrize("seed", [2, pytest.param(40, marks=LONG), pytest.param(64, marks=LONG)])
def test_full_disks_that_once_failed(seed: int) -> None:
    """Entries that wait for a stalled disk aren't looked for in the files."""
    assert run_plan(full_disks(seed)).failure is None


@pytest.mark.parametrize(
    "seed", [1, 102, 241, *(pytest.param(each, marks=LONG) for each in (3, 106))]
)
def test_calls_that_fail_in_odd_ways_lose_nothing(seed: int) -> None:
    """Whichever call of the file layer it is, one or many, while members run and while they start:
    who can't go on ends for that and says so, and starts again."""
    report = run_plan(with_odd_errors(draw_plan(seed, duration_ms=3_000), 150))
    assert report.failure is None


def lost_disks(seed: int) -> Plan:
    """Disks are lost and mixed up while nodes are cut off and lag."""
    kinds = (Fault.WIPE, Fault.ISOLATE, Fault.KILL, Fault.WIPE, Fault.SWAP, Fault.ISOLATE_LEADER)
    faults = tuple(
        FaultEvent(number, 500 + 450 * number, kinds[number % len(kinds)]) for number in range(12)
    )
    return replace(draw_plan(seed, duration_ms=7_000, churn=False), faults=faults)


@pytest.mark.parametrize("seed", [11, *(pytest.param(each, marks=LONG) for each in (1, 3, 4))])
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
    reports = [run_plan(with_speech(seed, Fault.GARBLE)) for seed in range(0, 4, stride(2))]
    assert [report.failure for report in reports] == [None] * len(reports)
    assert sum(refusals(report) for report in reports) > 5 * len(reports)


def test_lying_member_harms_nobody() -> None:
    """It may stop progress while it lies, never safety, and never another node."""
    reports = [run_plan(with_speech(seed, Fault.LIAR)) for seed in range(0, 4, stride(2))]
    assert [report.failure for report in reports] == [None] * len(reports)
    assert sum(refusals(report) for report in reports) > 12 * len(reports)


def test_seeds_without_speech_are_what_they_were() -> None:
    """Its faults take the place of others in a quarter of the seeds, and change no other draw."""

    def has_speech(seed: int, duration_ms: int) -> bool:
        faults = draw_plan(seed, duration_ms=duration_ms, churn=False).faults
        return any(fault.kind in SPEECH for fault in faults)

    assert 20 < sum(has_speech(seed, 20_000) for seed in range(200)) < 60
    assert not any(has_speech(seed, duration_ms) for seed, duration_ms, _ in KEPT)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(each, marks=LONG) for each in (2, 3))])
def test_clocks_that_leap_by_decades_move_nothing(seed: int) -> None:
    """A minority of the clocks, forwards and backwards, under changes of leadership: with the
    leader's own clock in the log three of these failed at the first leap of a leader's."""
    kinds = (Fault.CLOCK_LEAP, Fault.TRANSFER, Fault.CLOCK_LEAP, Fault.KILL)
    plan = draw_plan(seed, duration_ms=SHORT_MS, churn=False)
    faults = tuple(FaultEvent(number, 300 + 300 * number, kinds[number % 4]) for number in range(9))
    report = run_plan(replace(plan, faults=faults))
    assert report.failure is None
    assert report.acknowledged > 20


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=LONG)])
def test_all_clocks_may_leap_by_decades(seed: int) -> None:
    """Together, and each by itself, under changes of leadership."""
    kinds = (Fault.CLOCKS_LEAP, Fault.TRANSFER, Fault.CLOCKS_LEAP, Fault.KILL)
    plan = draw_plan(seed, duration_ms=SHORT_MS, churn=False)
    faults = tuple(FaultEvent(number, 300 + 300 * number, kinds[number % 4]) for number in range(9))
    report = run_plan(replace(plan, faults=faults))
    assert report.failure is None
    assert report.acknowledged > 20


@pytest.mark.parametrize(
    ("seed", "word"),
    [
        pytest.param(35, "puts n"),
        pytest.param(70, "was replaced", marks=LONG),
        pytest.param(15, "puts n", marks=LONG),
    ],
)
def test_nobody_listens_to_older_copies_and_replaced_disks(seed: int, word: str) -> None:
    """Where only the number of starts was compared one of these elected a leader that lacked a
    committed entry; one forgot promises at a restart, and one counted a disk that was replaced."""
    report = run_plan(draw_plan(seed, duration_ms=6_000, churn=False))
    assert report.failure is None
    assert any(word in line.what for line in report.transcript)


@pytest.mark.long
def test_members_come_and_go() -> None:
    """Under kills, cuts and lost disks, by two administrators who don't know of each other."""
    plans = [draw_plan(seed, duration_ms=6_000) for seed in (33, 64)]
    assert all(any(fault.kind is Fault.CHURN for fault in plan.faults) for plan in plans)
    reports = [run_plan(plan) for plan in plans]
    assert [report.failure for report in reports] == [None] * len(plans)
    told = [line.what for report in reports for line in report.transcript]
    assert sum(what.endswith(" joins") for what in told) > 1
    assert sum(what.startswith("stands by") for what in told) > 1
    assert sum(what == "is told that it is so" for what in told) > 4
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
    """A disk that lags behind what the others have committed, and kills: both seeds noted what
    the node's own disk didn't hold."""
    kinds = (Fault.SLOW_DISK, Fault.KILL, Fault.ISOLATE_LEADER, Fault.KILL)
    for seed in range(2):
        plan = draw_plan(seed, duration_ms=4_000)
        faults = tuple(
            FaultEvent(number, 400 + 250 * number, kinds[(number * 3 + seed) % 4])
            for number in range(14)
        )
        tuning = replace(plan.tuning, housekeeping_ms=20, flush=flush)
        assert run_plan(replace(plan, faults=faults, tuning=tuning)).failure is None


@pytest.mark.parametrize("seed", [7, pytest.param(122, marks=LONG)])
def test_member_whose_log_was_altered_takes_itself_out(seed: int) -> None:
    """Each of them, and nobody else: the run would have failed."""
    report = run_plan(draw_plan(seed, duration_ms=10_000))
    assert report.failure is None
    lines = [line.what for line in report.transcript]
    altered = sum("is another one" in line for line in lines)
    assert altered
    assert sum("OutOfService" in line for line in lines) == altered


@pytest.mark.long
def test_member_that_is_preferred_leads_when_all_is_well() -> None:
    """Somebody else leads when peace comes, and hands over in its time."""
    report = run_plan(draw_plan(83, duration_ms=4_000))
    assert report.failure is None
    lines = [line.what for line in report.transcript]
    assert any("to prefer n" in line for line in lines)
    assert report.simulated_s > 25, "the group was at peace for as long as it takes"

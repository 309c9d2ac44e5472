"""Lived time: what counts towards forgetting, and what doesn't (ADR 26)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.lived_time import MAX_GAP_MS, LivedTime
from dledger.applying import APPLY_RETRY_TICKS
from dledger.core.errors import InvariantViolation
from tests.broker.leader import Bench, batch

DAY_MS = 24 * 3600 * 1000


def lived_after(*times_ms: int) -> int:
    lived, before = LivedTime(), 0
    for time_ms in times_ms:
        lived.advance(before, time_ms)
        before = time_ms
    return lived.lived_ms


def test_the_first_entry_has_lived_nothing() -> None:
    """Else every log would begin with the age of the calendar, or a gap's worth of it."""
    assert lived_after(1_700_000_000_000) == 0


def test_a_gap_counts_for_a_minute_at_most() -> None:
    """A group that stood still for days, or whose clocks stepped by years, has lived a minute."""
    assert lived_after(1_000, 3_000, 3_000 + 8 * DAY_MS, 4_000 + 8 * DAY_MS) == 2_000 + 61_000


@given(st.lists(st.integers(0, 10 * MAX_GAP_MS), max_size=50))
def test_lived_time_neither_falls_nor_runs_ahead_of_the_log(gaps_ms: list[int]) -> None:
    """Whatever the append times, which never fall."""
    lived, time_ms, before_ms = LivedTime(), 1, 0
    for gap_ms in gaps_ms:
        held = lived.lived_ms
        lived.advance(before_ms, time_ms)
        lived.check_invariants(time_ms)
        assert held <= lived.lived_ms <= held + MAX_GAP_MS
        before_ms, time_ms = time_ms, time_ms + gap_ms


def test_every_kind_of_entry_counts() -> None:
    """A group in which only offsets are committed lives, too."""
    bench = Bench()
    before = bench.machine.lived_time.lived_ms
    for name in "abc":
        bench.later(1_000)
        bench.topic(name)
    bench.later(1_000)
    bench.send(batch(0, b"x", topic="a"))
    bench.commit()
    assert bench.machine.lived_time == LivedTime(before + 4_000)
    assert bench.replay().lived_time == LivedTime(before + 4_000)


def test_an_entry_that_found_no_space_has_not_been_lived() -> None:
    """It is applied again later, and counts once."""
    bench = Bench()
    bench.topic("t")
    before = bench.machine.lived_time.lived_ms
    bench.later(5_000)
    bench.disk.fill_up(0)
    bench.send(batch(0, b"x"))
    bench.commit()
    assert bench.node.driver.statistics().is_apply_paused
    assert bench.machine.lived_time == LivedTime(before)
    bench.disk.make_room()
    bench.world.run_for(APPLY_RETRY_TICKS)
    assert bench.machine.lived_time == LivedTime(before + 5_000)


def test_lived_time_outlives_a_snapshot() -> None:
    """And what isn't one is refused."""
    (payload,) = LivedTime(12_345).snapshot().payloads
    again = LivedTime()
    again.restore(1, [payload])
    assert again == LivedTime(12_345)
    for wrong in (payload[:-1], payload + b"\0", b""):
        with pytest.raises(SnapshotDamaged):
            LivedTime().restore(1, [wrong])
    with pytest.raises(SnapshotUnknown):
        LivedTime().restore(2, [payload])
    with pytest.raises(InvariantViolation):
        again.check_invariants(12_344)

"""The summary of a run: its keys, its counts, its percentiles."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.client import ClientError, Outcome
from dledger_cli.tally import Latencies, Tally


def test_summary_has_the_designs_keys() -> None:
    """Scripts read them; with nothing sent there is no latency to tell."""
    facts = Tally().facts()
    assert list(facts) == [
        "sent",
        "acked",
        "failed",
        "unknown",
        "duration_s",
        "msgs_per_s",
        "mb_per_s",
        "latency_ms",
    ]
    assert facts["latency_ms"] == {"p50": None, "p99": None, "max": None}


def test_unknown_is_neither_acknowledged_nor_failed() -> None:
    """What may have been stored is counted apart: an honest error."""
    tally = Tally(sent=4)
    tally.on_acked(10, 0.001)
    tally.on_error(3, ClientError("timed out", outcome=Outcome.MAY_HAVE_HAPPENED))
    tally.on_error(2, ClientError("refused", outcome=Outcome.DID_NOT_HAPPEN))
    facts = tally.facts()
    assert (facts["sent"], facts["acked"], facts["failed"], facts["unknown"]) == (4, 1, 1, 2)
    assert not tally.complete


def test_first_error_is_the_first_lines() -> None:
    """Answers come in any order; a person resumes at the first line that is missing."""
    tally = Tally(sent=9)
    for line in (7, 3, 5):
        tally.on_error(line, ClientError(f"of {line}"))
    assert tally.first_error is not None
    assert tally.first_error[0] == 3


def test_run_is_complete_when_all_is_acknowledged() -> None:
    """And not before."""
    tally = Tally(sent=2)
    tally.on_acked(1, 0.001)
    assert not tally.complete
    tally.on_acked(1, 0.001)
    assert tally.complete


@given(
    st.lists(st.floats(min_value=1e-6, max_value=1000.0), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.9, 0.99, 1.0]),
)
def test_percentile_is_within_a_percent_and_a_bit(durations: list[float], share: float) -> None:
    """The value that the share doesn't exceed, at most one bucket above the true one."""
    latencies = Latencies()
    for duration in durations:
        latencies.add(duration)
    true_ms = sorted(durations)[math.ceil(share * len(durations)) - 1] * 1000
    found_ms = latencies.percentile_ms(share)
    assert found_ms is not None
    assert true_ms * 0.999 - 0.001 <= found_ms <= true_ms * 1.011 + 0.001
    assert latencies.longest_ms == pytest.approx(max(durations) * 1000, abs=0.001)


@pytest.mark.parametrize("duration", [0.0, -0.001, 1e9])
def test_durations_beyond_the_buckets_are_counted(duration: float) -> None:
    """A clock's step or a night's sleep breaks nothing."""
    latencies = Latencies()
    latencies.add(duration)
    assert latencies.percentile_ms(0.5) is not None


def test_memory_does_not_grow_with_the_run() -> None:
    """An endless standard input is counted in constant memory."""
    latencies = Latencies()
    dice = random.Random(7)
    size = len(vars(latencies)["_buckets"])
    for _ in range(10_000):
        latencies.add(dice.expovariate(100))
    assert len(vars(latencies)["_buckets"]) == size

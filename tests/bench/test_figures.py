"""Figures, their targets, and the JSON that others read. No clock runs here."""

from __future__ import annotations

import json

import pytest

from dledger.terminal.figures import percentile
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target, ratios

AT_LEAST_4 = Target(Comparison.AT_LEAST, 4)
NONE = Target(Comparison.AT_MOST, 0, must=True)


def report_of(*figures: Figure) -> Report:
    return Report("produce", {"rounds": 3}, (), figures, ("a note",))


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank: never between two measurements, and p100 is the greatest."""
    ordered = [float(value) for value in range(1, 101)]
    assert [percentile(ordered, share) for share in (0.01, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0


@pytest.mark.parametrize(("ordered", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.5)])
def test_a_percentile_of_nothing_is_refused(ordered: list[float], share: float) -> None:
    """No number is made up."""
    with pytest.raises(ValueError, match="percentile"):
        percentile(ordered, share)


def test_each_round_is_set_against_the_yardsticks_around_it() -> None:
    """A machine that halves its speed midway leaves the ratio alone."""
    assert ratios([400.0, 300.0, 200.0], [100.0, 100.0, 50.0, 50.0]).rounds == (4.0, 4.0, 4.0)


def test_rounds_without_their_yardsticks_are_refused() -> None:
    """One yardstick more than rounds, or the pairing is wrong."""
    with pytest.raises(ValueError, match="2 rounds"):
        ratios([1.0, 2.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("comparison", "median", "reached"),
    [
        (Comparison.AT_LEAST, 3.9, False),
        (Comparison.AT_LEAST, 4.0, True),
        (Comparison.AT_MOST, 4.0, True),
        (Comparison.AT_MOST, 4.1, False),
    ],
)
def test_a_target_is_judged_by_the_median(
    comparison: Comparison, median: float, reached: bool
) -> None:
    """The bound itself is good enough, and one bad round changes nothing."""
    spread = Spread.of([0.0, median, 100.0])
    assert Figure("x", "ms", spread, target=Target(comparison, 4)).reached is reached


def test_a_target_of_a_ratio_ignores_the_value() -> None:
    """Where there is a yardstick, the promise was made in its terms."""
    figure = Figure(
        "x", "msgs/s", Spread.of([1.0]), "echo_rate", Spread.of([5.0]), target=AT_LEAST_4
    )
    assert figure.reached is True


def test_a_missed_speed_is_no_failure_but_a_lost_message_is() -> None:
    """`holds` decides the exit code, `targets_reached` only with --strict."""
    slow = Figure("rate", "msgs/s", Spread.of([1.0]), target=AT_LEAST_4)
    lost = Figure("lost", "msgs", Spread.of([1.0]), target=NONE)
    nothing_lost = Figure("lost", "msgs", Spread.of([0.0]), target=NONE)
    assert (report_of(slow).holds, report_of(slow).targets_reached) == (True, False)
    assert report_of(slow, lost).holds is False
    assert (report_of(nothing_lost).holds, report_of(nothing_lost).targets_reached) == (True, True)


def test_the_report_is_the_json_that_is_documented() -> None:
    """Other programs read these keys."""
    figure = Figure(
        "rate", "msgs/s", Spread.of([8.0, 10.0, 12.0]), "echo_rate", Spread.of([2.0]), AT_LEAST_4
    )
    facts = json.loads(json.dumps(report_of(figure).facts({"cpus": 2})))
    assert facts == {
        "format": "dledger-bench/1",
        "benchmark": "produce",
        "machine": {"cpus": 2},
        "parameters": {"rounds": 3},
        "yardsticks": [],
        "figures": [
            {
                "name": "rate",
                "unit": "msgs/s",
                "min": 8.0,
                "median": 10.0,
                "max": 12.0,
                "rounds": [8.0, 10.0, 12.0],
                "yardstick": "echo_rate",
                "ratio": {"min": 2.0, "median": 2.0, "max": 2.0, "rounds": [2.0]},
                "target": {"comparison": "at_least", "bound": 4, "of": "ratio", "must": False},
                "reached": False,
            }
        ],
        "notes": ["a note"],
        "holds": True,
        "targets_reached": False,
    }


def test_a_spread_of_nothing_cannot_be_made() -> None:
    """A figure that was never measured must not look like one."""
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])

"""A report on a narrow terminal: which figure a row is about can always be told."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.tables import FULL_WIDTH, print_report, report_console

NAMES = [
    "in_flight_1_of_1024B_p50",
    "in_flight_1_of_1024B_p99",
    "in_flight_1_of_1024B_max",
    "signal_to_next_ack_p99",
]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_names_and_numbers_are_never_cut(width: int) -> None:
    """Three rows of milliseconds are told apart at 80 columns."""
    spread = Spread((12_345.0, 23_456.0, 34_567.0))
    ratio = Spread((10.5, 11.5, 12.5))
    target = Target(Comparison.AT_MOST, 1_000.0)
    figures = tuple(Figure(name, "msgs/s", spread, "echo_rate", ratio, target) for name in NAMES)
    yardsticks = (Figure("echo_rate", "calls/s", spread),)
    out = io.StringIO()
    report = Report("produce", {"rounds": 3}, yardsticks, figures, ("a note",))
    print_report(Console(file=out, width=width), report, {"cpus": 2})
    printed = out.getvalue()
    assert "\u2026" not in printed
    assert all(len(line) <= width for line in printed.splitlines())
    for name in NAMES:
        (row,) = [line for line in printed.splitlines() if line.split()[:1] == [name]]
        assert row.split()[1:5] == ["msgs/s", "12,345", "23,456", "34,567"]


def test_what_no_terminal_shows_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe has no width; whoever wants one says so."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert report_console().width == FULL_WIDTH
    monkeypatch.setenv("COLUMNS", "90")
    assert report_console().width == 90

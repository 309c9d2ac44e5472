"""How a report looks on a terminal: one table of yardsticks, one of figures, the notes."""

from __future__ import annotations

import os

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dledger_cli.bench.figures import Comparison, Figure, Report, Spread

FULL_WIDTH = 200  # of what no terminal shows: wider than any table

SIGNS = {Comparison.AT_LEAST: "≥", Comparison.AT_MOST: "≤"}


def report_console() -> Console:
    """As wide as its terminal or `$COLUMNS`; what goes to a file or a pipe isn't folded."""
    console = Console()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(width=FULL_WIDTH)


def print_report(console: Console, report: Report, machine: dict[str, str | int]) -> None:
    """Prints everything of the report but its single rounds."""
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    console.print(f"[bold]bench {report.benchmark}[/bold]  ({facts})", highlight=False)
    parameters = ", ".join(f"{name} {value}" for name, value in report.parameters.items())
    console.print(parameters, highlight=False)
    if report.yardsticks:
        console.print(_yardstick_table(report.yardsticks))
    console.print(_figure_table(report.figures))
    for note in report.notes:
        console.print(f"· {note}", highlight=False)


def number(value: float) -> str:
    """A number as people read it: three digits that count, thousands apart."""
    if value != 0 and abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}"


def _yardstick_table(yardsticks: tuple[Figure, ...]) -> Table:
    table = _table("yardstick")
    for figure in yardsticks:
        table.add_row(figure.name, figure.unit, *_cells(figure.spread))
    return table


def _figure_table(figures: tuple[Figure, ...]) -> Table:
    table = _table("figure")
    table.add_column("× yardstick", justify="right", overflow="fold")
    table.add_column("target", justify="right", overflow="fold")
    table.add_column("reached", overflow="fold")
    for figure in figures:
        table.add_row(
            figure.name,
            figure.unit,
            *_cells(figure.spread),
            _ratio(figure),
            _target(figure),
            {True: "[green]yes", False: "[red]no", None: ""}[figure.reached],
        )
    return table


def _table(what: str) -> Table:
    """Its first columns: names, units and numbers are whole on any terminal. Where there is too
    little room the other columns take more lines; nothing is cut."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(what, no_wrap=True, overflow="fold")
    table.add_column("unit", no_wrap=True, overflow="fold")
    for name in ("min", "median", "max"):
        table.add_column(name, justify="right", no_wrap=True, overflow="fold")
    return table


def _cells(spread: Spread) -> tuple[str, str, str]:
    if len(spread.rounds) == 1:
        return "", number(spread.median), ""
    return number(spread.minimum), number(spread.median), number(spread.maximum)


def _ratio(figure: Figure) -> str:
    if figure.ratio is None:
        return ""
    ratio = figure.ratio
    rounds = f" ({ratio.minimum:.1f}-{ratio.maximum:.1f})" if len(ratio.rounds) > 1 else ""
    return f"{ratio.median:.2f}{rounds} × {figure.yardstick}"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    times = " ×" if figure.ratio is not None else ""
    return f"{SIGNS[figure.target.comparison]} {number(figure.target.bound)}{times}"

"""What commands print: JSON for programs, columns for people.

Results go to standard output, everything else (progress, remarks) to standard error and only
when that is a terminal, so that a command in a pipe says nothing but its result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)


def print_json(facts: object) -> None:
    """One line of JSON."""
    typer.echo(json.dumps(facts, ensure_ascii=False))


def shown(value: object) -> str:
    """A value in one line for a person; `-` stands for nothing. What would move a terminal's
    cursor, or tell it anything else, is written out: names and texts are whatever others chose."""
    if value is None or value in ("", {}):
        return "-"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in str(value)
    )


def print_facts(facts: Mapping[str, object]) -> None:
    """A line for each."""
    for name, value in facts.items():
        typer.echo(f"{name:14} {shown(value)}")


def print_columns(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table whose columns are as wide as their widest cell; `-` stands for nothing."""
    lines = [[str(title) for title in titles]]
    lines += [["" if cell == "" else shown(cell) for cell in row] for row in rows]
    widths = [max(cell_len(line[at]) for line in lines) for at in range(len(titles))]
    for line in lines:
        cells = (set_cell_size(cell, width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def remark(text: str) -> None:
    """A line for a person who watches; nothing when nobody does."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


def progress_bar(unit: str) -> Progress:
    """A bar on standard error, shown only on a terminal. Tasks count `unit`."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TaskProgressColumn(show_speed=True),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )

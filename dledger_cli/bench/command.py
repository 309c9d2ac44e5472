"""What the benchmarks' commands share: options, the group to measure, how a report is told.

Exit codes: 0 when what must hold holds, 1 when it doesn't or, with --strict, when a target was
missed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated, Final, NoReturn

import structlog
import typer
from rich.console import Console

from broker.config import MAX_MEMBERS
from broker.local_group import GroupOptions
from dledger.terminal.loops import run, sigterm_interrupts
from dledger.terminal.options import parse_addresses
from dledger.terminal.outcome import ExitCode, end, errors_told
from dledger.terminal.output import print_json
from dledger_cli.bench.arena import Arena, arena
from dledger_cli.bench.figures import FORMAT, Report
from dledger_cli.bench.machine import machine_facts
from dledger_cli.bench.rounds import Tell
from dledger_cli.bench.tables import print_report, report_console
from dledger_cli.bench.yardsticks import echo_server

TEMPORARY: Final = Path(gettempdir())
Measure = Callable[[Arena, str, Tell], Coroutine[object, object, Report]]

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="Measure the local group in DIR. If there is none, a new group is made beside DIR.",
        show_default="a new group where temporary files go",
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option("--bootstrap", metavar="HOST:PORT,...", help="Measure this group instead."),
]
NodesOption = Annotated[
    int, typer.Option("--nodes", min=1, max=MAX_MEMBERS, help="Of a new group.")
]
BenchFolderOption = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Where a folder for each round is made.")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Exit 1 if a target was missed.")]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="How many rounds.")]
SizeOption = Annotated[int, typer.Option("--size", min=8, max=4 << 20, help="Bytes of a body.")]
InFlightOption = Annotated[
    int, typer.Option("--in-flight", min=1, max=65_536, help="Messages outstanding at once.")
]
SecondsOption = Annotated[
    float, typer.Option("--seconds", min=0.1, max=86_400, help="Of load, a case.")
]
MinutesOption = Annotated[
    float, typer.Option("--minutes", min=0.01, max=100_000, help="Of steady load.")
]


@dataclass(frozen=True, slots=True)
class Place:
    """What the options say of the group to measure."""

    directory: Path | None
    bootstrap: str | None
    nodes: int


def benchmark(measures: list[Measure], where: Place, *, as_json: bool, strict: bool) -> None:
    """Runs each on a group as asked for, prints the reports, ends with the exit code."""
    found: list[tuple[Report, dict[str, str | int]]] = []
    with errors_told(), sigterm_interrupts():
        for measure in measures:
            found.append(_measured(measure, where))
            if not as_json:
                print_report(report_console(), *found[-1])
    if as_json:
        facts = [report.facts(machine) for report, machine in found]
        print_json(facts[0] if len(facts) == 1 else {"format": FORMAT, "reports": facts})
    good = all(report.holds and (report.targets_reached or not strict) for report, _ in found)
    end(ExitCode.DONE if good else ExitCode.FAILED)


def tell_report(report: Report, directory: Path, *, as_json: bool, strict: bool) -> None:
    """Prints what was measured in `directory` without a group, and ends with the exit code."""
    machine = machine_facts(directory)
    if as_json:
        print_json(report.facts(machine))
    else:
        print_report(report_console(), report, machine)
    good = report.holds and (report.targets_reached or not strict)
    end(ExitCode.DONE if good else ExitCode.FAILED)


def _measured(measure: Measure, where: Place) -> tuple[Report, dict[str, str | int]]:
    bootstrap = None if where.bootstrap is None else parse_addresses(where.bootstrap)
    options = GroupOptions(nodes=where.nodes)
    with (
        arena(bootstrap=bootstrap, directory=where.directory, options=options) as place,
        echo_server() as echo,
        progress() as tell,
    ):
        report = run(measure(place, echo, tell))
        return report, machine_facts(place.directory)


@contextlib.contextmanager
def progress() -> Iterator[Tell]:
    """Says on a terminal what is going on; in a pipe nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _text: None
        return
    with console.status("starting") as status:
        yield status.update


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """What nodes in this process say goes nowhere: standard output is the report's."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(_logger: object, _name: str, _event: object) -> NoReturn:
    raise structlog.DropEvent

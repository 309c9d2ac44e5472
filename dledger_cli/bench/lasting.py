"""`dledger bench restart`, `replace`, `changes`, `scrub`, `snapshot`: what a group of years meets.

A process dies beside a long log, a disk is lost, members and leaders change, the log is read again
and again, the state is written down. Each command measures one of these; the modules of the same
names do it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Final

import typer

from broker.state.registration import STANDARD
from dledger.terminal.loops import sigterm_interrupts
from dledger.terminal.options import JsonOption, parse_size
from dledger.terminal.outcome import errors_told
from dledger_cli.bench.arena import Arena
from dledger_cli.bench.changes import changes as measure_changes
from dledger_cli.bench.command import (
    TEMPORARY,
    BenchFolderOption,
    DirectoryOption,
    InFlightOption,
    Measure,
    NodesOption,
    Place,
    RoundsOption,
    SizeOption,
    StrictOption,
    benchmark,
    progress,
    quietly,
    tell_report,
)
from dledger_cli.bench.figures import Report
from dledger_cli.bench.filled import Shape
from dledger_cli.bench.replace import replace as measure_replace
from dledger_cli.bench.restart import restart as measure_restart
from dledger_cli.bench.rounds import Tell
from dledger_cli.bench.scrub import measure_scrub
from dledger_cli.bench.snapshot import measure_snapshot

LEAST_LOG_BYTES: Final = 1 << 20

LogSizeOption = Annotated[
    str, typer.Option("--log", metavar="SIZE", help="How long the log is (2GiB, 500MiB).")
]
PerEntryOption = Annotated[
    int, typer.Option("--per-entry", min=1, max=32_768, help="Messages an entry of the log.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands to `dledger bench`."""
    for command in (restart, replace, changes, scrub, snapshot):
        app.command()(command)


def _log_size(text: str) -> int:
    """Raises typer.BadParameter: it is no size, or less than a log has to be worth measuring."""
    size = parse_size(text)
    if size < LEAST_LOG_BYTES:
        raise typer.BadParameter(f"{text}: a log of at least 1 MiB", param_hint="--log")
    return size


def _shape(size: int, per_entry: int) -> Shape:
    """Raises typer.BadParameter: no producer makes such entries."""
    shape = Shape(size, per_entry)
    if (reason := shape.wrong()) is not None:
        raise typer.BadParameter(reason, param_hint="--per-entry")
    return shape


def restart(
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log", metavar="SIZE", help="How long the log is.", show_default="1, 2, 4 GiB"
        ),
    ] = None,
    per_entry: Annotated[
        list[int] | None,
        typer.Option("--per-entry", min=1, max=32_768, help="Messages.", show_default="1, 200"),
    ] = None,
    size: SizeOption = 1024,
    rounds: RoundsOption = 5,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """A follower's way back after SIGKILL, by the length of its log and of its entries.

    Each --log is measured with each --per-entry, on a new group for each of the latter, which takes
    the longest log's bytes once for each node.

    \b
    Examples:
      dledger bench restart
      dledger bench restart --log 256MiB --per-entry 1 --rounds 3
    """
    sizes = [_log_size(each) for each in log or ("1GiB", "2GiB", "4GiB")]
    shapes = [_shape(size, each) for each in per_entry or (1, 200)]

    def measured(shape: Shape) -> Measure:
        def measure(place: Arena, _echo: str, tell: Tell) -> Coroutine[object, object, Report]:
            return measure_restart(place, sizes=sizes, shape=shape, rounds=rounds, tell=tell)

        return measure

    where = Place(directory, None, nodes)
    benchmark([measured(shape) for shape in shapes], where, as_json=as_json, strict=strict)


def replace(
    log: LogSizeOption = "2GiB",
    size: SizeOption = 1024,
    per_entry: PerEntryOption = 200,
    in_flight: InFlightOption = 512,
    rounds: RoundsOption = 3,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """From a wiped disk to a vote, beside writing as much; and what clients notice of it.

    \b
    Examples:
      dledger bench replace
      dledger bench replace --log 256MiB --rounds 1
    """
    size_bytes, shape = _log_size(log), _shape(size, per_entry)

    def measure(place: Arena, _echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_replace(
            place, size=size_bytes, shape=shape, in_flight=in_flight, rounds=rounds, tell=tell
        )

    benchmark([measure], Place(directory, None, nodes), as_json=as_json, strict=strict)


def changes(
    count: Annotated[
        int, typer.Option("--changes", min=1, max=10_000, help="How many, in cycles of seven.")
    ] = 35,
    per_second: Annotated[
        int, typer.Option("--rate", min=1, max=100_000, help="Messages sent a second.")
    ] = 500,
    size: SizeOption = 1024,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """The longest wait of a send while leadership moves, and while members come and go.

    \b
    Examples:
      dledger bench changes
      dledger bench changes --changes 70 --rate 2000
    """

    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_changes(
            place, echo, count=count, size_bytes=size, per_second=per_second, tell=tell
        )

    benchmark([measure], Place(directory, None, nodes), as_json=as_json, strict=strict)


def scrub(
    log: LogSizeOption = "512MiB",
    size: SizeOption = 1024,
    per_entry: PerEntryOption = 64,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.5, max=3600, help="Of scrubbing as a node does it.")
    ] = 10.0,
    rounds: RoundsOption = 5,
    directory: BenchFolderOption = TEMPORARY,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """What reading the log again for rot costs: for each byte, and of a processor.

    \b
    Examples:
      dledger bench scrub
      dledger bench scrub --log 64MiB --per-entry 1
    """
    size_bytes, shape = _log_size(log), _shape(size, per_entry)
    with errors_told(), sigterm_interrupts(), quietly(), progress() as tell:
        report = measure_scrub(
            directory, size=size_bytes, shape=shape, seconds=seconds, rounds=rounds, tell=tell
        )
    tell_report(report, directory, as_json=as_json, strict=strict)


def snapshot(
    sequences: Annotated[
        int, typer.Option("--sequences", min=1, max=STANDARD.pairs, help="Of producers in queues.")
    ] = 50_000,
    rounds: RoundsOption = 5,
    directory: BenchFolderOption = TEMPORARY,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """How long the event loop is held while a large state is written down.

    \b
    Examples:
      dledger bench snapshot --rounds 9
      dledger bench snapshot --sequences 100000
    """
    with errors_told(), sigterm_interrupts(), quietly(), progress() as tell:
        report = measure_snapshot(directory, sequences=sequences, rounds=rounds, tell=tell)
    tell_report(report, directory, as_json=as_json, strict=strict)

"""`dledger audit delivery`: clients' histories against the log, on a terminal or as JSON.

Exit codes: 0 delivered, 1 an anomaly was found, 2 used wrongly, 3 undecided.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from audit.commands.outcome import errors_told
from audit.commands.selection import wanted_replicas
from audit.delivery.check import DeliveryReport, audit_delivery, delivery_as_json
from audit.delivery.history import sizes_of
from audit.delivery.judge import Anomaly, Kind
from audit.delivery.judged import QueueCount
from audit.engines.choice import EngineName, make_engine
from audit.reading.live import Over
from audit.showing.terminal import progress_shown
from dledger.reading.files import printable

SHOWN_ANOMALIES: Final = 20
_TITLES: Final = (
    "TOPIC", "QUEUE", "ACKED", "UNKNOWN", "REFUSED", "STORED", "DELIVERED",
    *(kind.value.upper() for kind in Kind),
)  # fmt: skip


def delivery(
    history: Annotated[
        list[Path],
        typer.Option("--history", metavar="FILE", help="What clients saw; repeat it for each."),
    ],
    replica: Annotated[
        list[str] | None,
        typer.Option(
            "--replica",
            metavar="NAME=PATH[@HOST]",
            help="A data directory; of several that agree, the longest is read.",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="A local group.", show_default="run"),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", metavar="HOST:PORT,...", help="Ask these nodes first."),
    ] = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="Who does the work.")
    ] = EngineName.LOCAL,
    master: Annotated[str | None, typer.Option("--master", help="Of Spark.")] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Of the local engine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Find lost, duplicated, reordered and phantom messages: clients' histories against the log.

    \b
    Examples:
      dledger audit delivery --history run/history.jsonl --dir run
      dledger audit delivery --history p.jsonl --history c.jsonl --replica n1=data
    """
    with errors_told():
        paths = [str(path.absolute()) for path in history]
        named = (replica, directory, bootstrap, engine, Over.FILES)
        # In this order: what a history says behind its size was begun after the nodes have answered
        # for the first time, and may have happened after they do for the second.
        earlier, ends = wanted_replicas(*named), sizes_of(paths)
        replicas = wanted_replicas(*named)
        runner = make_engine(engine, master, processes)
        try:
            with progress_shown() as started:
                shown = started("delivery", 0)
                report = audit_delivery(replicas, paths, runner, shown, ends=ends, earlier=earlier)
        finally:
            runner.close()
        if as_json:
            typer.echo(json.dumps(delivery_as_json(report)))
        else:
            for line in delivery_lines(report):
                sys.stdout.write(line + "\n")
        raise typer.Exit(int(report.exit_code))


def delivery_lines(report: DeliveryReport) -> Iterator[str]:
    """The report, line by line; nothing in it speaks to a terminal."""
    return map(printable, _lines(report))


def _lines(report: DeliveryReport) -> Iterator[str]:
    rows = [_TITLES, *map(_cells, report.queues)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_TITLES))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
    yield from map(_line, report.anomalies[:SHOWN_ANOMALIES])
    if len(report.anomalies) > SHOWN_ANOMALIES:
        yield f"... and {len(report.anomalies) - SHOWN_ANOMALIES} more (--json has them)"
    yield from (f"note: {note}" for note in report.notes)
    found = ", ".join(f"{count} {kind}" for kind, count in report.counts.items() if count)
    yield (
        f"{report.verdict.upper()}: {found or 'no anomaly'}; {report.operations} operations "
        f"against {report.replica} up to byte {report.committed}, engine {report.engine}, "
        f"{report.total_s:.2f} s"
    )


def _cells(queue: QueueCount) -> Sequence[str]:
    numbers = (
        queue.queue_id,
        queue.acknowledged,
        queue.unknown,
        queue.refused,
        queue.stored,
        queue.delivered,
        *(queue.anomalies.get(kind.value, 0) for kind in Kind),
    )
    return (queue.topic, *map(str, numbers))


def _line(anomaly: Anomaly) -> str:
    """One anomaly; a value is any client's bytes, so it is quoted and cut."""
    who = f" ({anomaly.process})" if anomaly.process else ""
    where = f"{anomaly.topic}/{anomaly.queue_id}"
    return f"{anomaly.kind.upper()} in {where}: {anomaly.value[:80]!r}{who} {anomaly.detail[:300]}"

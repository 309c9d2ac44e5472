"""`dledger audit`: the commands, which parse, call what does the work, print and end.

Exit codes: 0 consistent, 1 not, 2 used wrongly, 3 incomplete or unreachable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from audit.commands.bench import bench
from audit.commands.copy import copy
from audit.commands.data import export, stats
from audit.commands.delivery import delivery
from audit.commands.history import history
from audit.commands.outcome import check_target, errors_told, parse_size, write_page
from audit.commands.selection import run_audit, wanted_replicas
from audit.commands.watch import package, watch
from audit.engines.choice import EngineName
from audit.proof.plan import DEFAULT_BLOCK_BYTES
from audit.proof.replicas import LOCATED_BLOCKS, Options
from audit.proof.report import report_as_json
from audit.reading.live import Over
from audit.showing.page import render_page
from audit.showing.terminal import print_report
from dledger.terminal.program import new_program

app = new_program(
    "Prove that the replicas agree, and read the log as data.\n\n"
    "Exit codes: 0 consistent, 1 not, 2 used wrongly, 3 incomplete or unreachable.",
)

ReplicaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--replica",
        metavar="NAME=PATH[@HOST]",
        help="A data directory (or its commitlog). Repeat it for each replica.",
    ),
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="A local group (group up), running or not.",
        show_default="run",
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help="Ask these nodes for their positions first, then audit them as they run.",
    ),
]
EngineOption = Annotated[EngineName, typer.Option("--engine", help="Who does the work.")]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Of Spark: local[2], spark://host:port, yarn, k8s://..."),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option("--processes", min=1, help="Of the local engine.", show_default="one a core"),
]
RateOption = Annotated[
    str | None,
    typer.Option("--rate", metavar="SIZE", help="Read so many bytes a second at most: 200MB."),
]
OverOption = Annotated[
    Over,
    typer.Option(
        "--over",
        help="Read files, or ask the nodes over gRPC; auto asks those whose files aren't here.",
    ),
]
BlockOption = Annotated[
    str, typer.Option("--block-size", metavar="SIZE", help="What one digest covers.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


app.command()(copy)
app.command()(export)
app.command()(stats)
app.command()(delivery)
app.command()(watch)
app.command()(history)
app.command()(package)
app.command()(bench)


@app.callback()
def audit() -> None:
    """Prove that the replicas agree, and read the log as data."""


@app.command()
def replicas(
    replica: ReplicaOption = None,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    engine: EngineOption = EngineName.LOCAL,
    master: MasterOption = None,
    processes: ProcessesOption = None,
    derived: Annotated[
        bool | None,
        typer.Option(
            "--derived/--log-only",
            help="Running digests and ConsumeQueues too, or only the log's bytes.",
            show_default="what can be read",
        ),
    ] = None,
    accept_retention: Annotated[
        bool,
        typer.Option("--accept-retention", help="A log that begins later is as good."),
    ] = False,
    block_size: BlockOption = f"{DEFAULT_BLOCK_BYTES >> 10}KiB",
    rate: RateOption = None,
    over: OverOption = Over.AUTO,
    located: Annotated[
        int, typer.Option("--locate", min=1, help="Look into so many differing blocks.")
    ] = LOCATED_BLOCKS,
    as_json: JsonOption = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a map.")
    ] = None,
) -> None:
    """Compare the replicas of a group, block by block.

    \b
    Examples:
      dledger audit replicas --dir run
      dledger audit replicas --bootstrap host:7001 --engine spark --master yarn
      dledger audit replicas --bootstrap 10.0.0.1:7001 --over grpc --rate 50MB
      dledger audit replicas --replica n1=run/n1/data --replica n2=run/n2/data
      dledger audit replicas --replica n1=old/n1 --replica n2=old/n2 --html a.html
    """
    with errors_told():
        options = Options(
            block_size=parse_size(block_size),
            bytes_per_s=0 if rate is None else parse_size(rate),
            located_blocks=located,
            derived=derived,
            accept_retention=accept_retention,
        )
        if html is not None:
            check_target(html)
        audited = run_audit(
            wanted_replicas(replica, directory, bootstrap, engine, over),
            (engine, master, processes),
            options,
        )
        if html is not None:
            write_page(html, render_page(audited))
        if as_json:
            typer.echo(json.dumps(report_as_json(audited.report)))
        else:
            print_report(audited.report)
        raise typer.Exit(int(audited.report.exit_code))

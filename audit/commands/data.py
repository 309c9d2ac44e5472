"""`dledger audit export` and `dledger audit stats`: the log as data, from one replica."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, assert_never

import typer

from audit.commands.outcome import check_target, errors_told, write_page
from audit.contents.export import Exported, export_messages
from audit.contents.stats import LogSum, counted_percentile, stats_as_json, sum_log
from audit.engines.choice import EngineName, make_engine
from audit.errors import NotTheGroups, UsageMistake
from audit.reading.live import replicas_of_directory
from audit.reading.replica import Replica, parse_replica
from audit.reading.service import not_the_groups
from audit.reading.through import WantedSegment
from audit.showing.stats_page import render_stats
from audit.showing.terminal import progress_shown
from audit.tables.delta import DeltaMessages
from audit.tables.export import MessageTable, TableExported, export_to_table
from audit.tables.iceberg import IcebergMessages
from dledger.reading.files import printable
from dledger.reading.objects import is_object, plain
from dledger.terminal.figures import human_bytes

ReplicaOption = Annotated[
    str | None,
    typer.Option(
        "--replica",
        metavar="NAME=PATH[@HOST]",
        help="The replica to read: they are all the same.",
        show_default="the first of the group in --dir that runs, or the first",
    ),
]
DirectoryOption = Annotated[Path, typer.Option("--dir", metavar="DIR", help="A local group.")]
EngineOption = Annotated[EngineName, typer.Option("--engine", help="Who does the work.")]
MasterOption = Annotated[str | None, typer.Option("--master", help="Of Spark.")]
TopicOption = Annotated[
    list[str] | None, typer.Option("--topic", help="Only these topics; repeat it.")
]
DeletedOption = Annotated[
    bool, typer.Option("--include-deleted", help="Messages of deleted topics, too.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print facts as JSON.")]


class Format(StrEnum):
    """What `export` writes."""

    PARQUET = "parquet"  # a folder of files, by topic and date
    DELTA = "delta"
    ICEBERG = "iceberg"


def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A folder, shared with all executors if they write; of Delta a folder or URL; of "
            "Iceberg CATALOG.NAMESPACE.TABLE.",
        ),
    ],
    kind: Annotated[
        Format, typer.Option("--format", help="Parquet files, or a table that says what it has.")
    ] = Format.PARQUET,
    replica: ReplicaOption = None,
    directory: DirectoryOption = Path("run"),
    topic: TopicOption = None,
    include_deleted: DeletedOption = False,
    accept_retention: Annotated[
        bool,
        typer.Option("--accept-retention", help="Go on behind what was deleted unexported."),
    ] = False,
    through: Annotated[
        Path | None,
        typer.Option(
            "--through",
            metavar="FILE",
            help="End with 3 unless this segment is exported to its end: for archives.",
        ),
    ] = None,
    engine: EngineOption = EngineName.LOCAL,
    master: MasterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write what is committed and not yet exported, each message once.

    \b
    Examples:
      dledger audit export messages/
      dledger audit export messages/ --replica n1=/backup/n1 --topic orders
      dledger audit export s3://lake/messages --format delta
      dledger audit export main.broker.messages --format iceberg
    """
    wanted = frozenset(topic) if topic else None
    with errors_told():
        segment = None if through is None else WantedSegment.at(through)
        if kind is Format.PARQUET:
            target = plain(target)
            if is_object(target):
                raise UsageMistake("files are written here; into a store go tables: --format delta")
            runner = make_engine(engine, master, None)
            source = _replica(replica, directory)
            try:
                with progress_shown() as started:
                    done = export_messages(
                        source, Path(target), runner, wanted, started("export", 0),
                        includes_deleted=include_deleted, accept_retention=accept_retention,
                    )  # fmt: skip
            finally:
                runner.close()
            typer.echo(json.dumps(asdict(done)) if as_json else _said_of_files(done))
            if segment is not None:
                segment.check_reached(done.end)
            return
        if engine is not EngineName.LOCAL or master is not None:
            raise UsageMistake(f"--format {kind} is written by this process: no --engine, --master")
        table = _table(kind, target)
        with progress_shown() as started:
            appended = export_to_table(
                _replica(replica, directory), table, (wanted, include_deleted),
                started("export", 0), accept_retention=accept_retention,
            )  # fmt: skip
        typer.echo(json.dumps(asdict(appended)) if as_json else _said_of_table(appended))
        if segment is not None:
            segment.check_reached(appended.end)


def _said_of_files(done: Exported) -> str:
    return (
        f"{done.messages} messages of bytes {done.start} to {done.end} in {done.files} "
        f"files, {human_bytes(done.written_bytes)}"
    )


def _said_of_table(done: TableExported) -> str:
    return f"{done.messages} messages of bytes {done.start} to {done.end} in {done.commits} commits"


def _table(kind: Format, target: str) -> MessageTable:
    """The table of that format.

    Raises:
        UsageMistake: the target can't be one.
    """
    match kind:
        case Format.DELTA:
            return DeltaMessages(target)
        case Format.ICEBERG:
            return IcebergMessages(target)
        case Format.PARQUET:
            raise AssertionError("a folder of files is no table")
        case _:
            assert_never(kind)


def stats(
    replica: ReplicaOption = None,
    directory: DirectoryOption = Path("run"),
    topic: TopicOption = None,
    include_deleted: DeletedOption = False,
    engine: EngineOption = EngineName.LOCAL,
    master: MasterOption = None,
    as_json: JsonOption = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a picture.")
    ] = None,
) -> None:
    """Show messages, bytes, rates, sizes, delays and hot keys by topic and queue.

    The delay is from the producer's clock to the leader's.

    \b
    Examples:
      dledger audit stats --topic orders
      dledger audit stats --dir run --html stats.html
    """
    with errors_told():
        source = _replica(replica, directory)
        if html is not None:
            check_target(html)
        runner = make_engine(engine, master, None)
        try:
            with progress_shown() as started:
                wanted = frozenset(topic) if topic else None
                sums = sum_log(
                    source, runner, wanted, started("stats", 0), includes_deleted=include_deleted
                )
        finally:
            runner.close()
        if html is not None:
            write_page(html, render_stats(sums, source.path))
        if as_json:
            typer.echo(json.dumps(stats_as_json(sums)))
        else:
            _print_stats(sums)


def _replica(named: str | None, directory: Path) -> Replica:
    """The named replica; or of the group in `directory` the first member whose node runs, else the
    first copy: what its checkpoint says is committed is enough for reading.

    Raises:
        NotTheGroups: the log of each is another one than the group's.
    """
    if named is not None:
        return parse_replica(named)
    replicas = replicas_of_directory(directory)
    wrong = {each.id: not_the_groups(each) for each in replicas}
    sound = [each for each in replicas if not wrong[each.id]]
    if not sound:
        raise NotTheGroups(list(wrong.values()))
    first = next((each for each in sound if each.position is not None), sound[0])
    return Replica(first.id, first.path, position=first.position)


def _print_stats(sums: LogSum) -> None:
    titles = ("TOPIC", "QUEUE", "MESSAGES", "BYTES", "MSGS/S", "SIZE P50", "DELAY P50", "P99")
    rows: list[tuple[str, ...]] = [titles]
    for topic, total in sums.topics().items():
        own = sorted((q, s) for (name, q), s in sums.queues.items() if name == topic)
        for label, queue in [("all", total), *((str(number), s) for number, s in own)]:
            seconds = max(queue.last_ms - queue.first_ms, 1) / 1000
            rows.append(
                (
                    topic,
                    label,
                    str(queue.messages),
                    human_bytes(queue.body_bytes),
                    f"{queue.messages / seconds:.0f}",
                    human_bytes(counted_percentile(queue.size_counts, 0.5)),
                    f"{counted_percentile(queue.delay_counts, 0.5)} ms",
                    f"{counted_percentile(queue.delay_counts, 0.99)} ms",
                )
            )
    widths = [max(len(row[at]) for row in rows) for at in range(len(titles))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(printable("  ".join(cells).rstrip()) + "\n")
    hot = [
        f"{topic} {key}: {'at least ' if topic in sums.keys_forgotten else ''}{count}"
        for (topic, key), count in sums.keys.most_common(10)
    ]
    if hot:
        sys.stdout.write(printable("hot keys: " + ", ".join(hot)) + "\n")  # any producer's texts

"""An audit's report for a person at a terminal: one table of replicas, one line a finding.

Plain text in columns, the same in a pipe; progress goes to standard error and only to a terminal.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from audit.engines.engine import PassStarted
from audit.engines.engine import Progress as Told
from audit.keeping.history import Round
from audit.proof.findings import EntryView, Finding
from audit.proof.report import Report
from audit.showing.words import (
    entry_in_words,
    right_in_words,
    scope_in_words,
    where_in_words,
)
from dledger.reading.files import printable
from dledger.terminal.figures import human_bytes

SHOWN_FINDINGS = 20
SHOWN_OF_ROUND = 3
WIDTH = 80


def report_lines(report: Report) -> Iterator[str]:
    """The report, line by line."""
    yield from _table(
        ("REPLICA", "VERDICT", "FROM", "TO", "SEGMENTS", "COMPARED", "PATH"),
        [
            (
                each.replica,
                each.verdict.value,
                str(each.start),
                str(each.end),
                str(each.segments),
                human_bytes(each.compared_bytes),
                each.path + (f"@{each.host}" if each.host else ""),
            )
            for each in report.coverage
        ],
    )
    for finding in report.findings[:SHOWN_FINDINGS]:
        yield ""
        yield from _finding_lines(finding)
    if len(report.findings) > SHOWN_FINDINGS:
        yield f"\n... and {len(report.findings) - SHOWN_FINDINGS} more findings (--json has all)"
    if report.not_located:
        yield f"\n{report.not_located} more differing blocks were not looked into (--locate)"
    for note in report.notes:
        yield ""
        yield from _wrapped(f"note: {note}")
    yield ""
    yield from _summary(report)


@contextmanager
def progress_shown() -> Iterator[PassStarted]:
    """A bar a pass on standard error while this lasts; nothing where nobody watches."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    with bar:

        def started(name: str, weight: int) -> Told:
            task = bar.add_task(name, total=weight)
            return lambda done: bar.advance(task, done)

        yield started


def history_lines(rounds: Sequence[Round]) -> Iterator[str]:
    """One line a round, and one for each of the gravest findings of those that had any."""
    rows = [
        (
            datetime.fromtimestamp(each.finished, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            each.outcome,
            str(each.finding_count),
            human_bytes(each.read),
            human_bytes(each.believed),
            f"{each.seconds:.1f} s",
            ", ".join(f"{r.replica} {human_bytes(r.lag)}" for r in each.replicas if r.lag),
        )
        for each in rounds
    ]
    titles = ("ENDED (UTC)", "VERDICT", "FINDINGS", "READ", "BELIEVED", "TOOK", "LAG")
    title, *lines = _table(titles, rows)
    yield title
    for each, line in zip(rounds, lines, strict=True):
        yield line
        for said in (each.why, *each.findings[:SHOWN_OF_ROUND]):
            if said:
                yield f"  {printable(said)}"


def print_report(report: Report) -> None:
    """The report on standard output."""
    for text in report_lines(report):
        for line in text.split("\n"):
            sys.stdout.write(printable(line) + "\n")


def _summary(report: Report) -> Iterator[str]:
    """The verdict and what it speaks of, then what was done for it."""
    yield from _wrapped(f"{report.verdict.upper()}: {scope_in_words(report.scope)}")
    timings = report.timings
    rate = timings.digested_bytes / timings.digest_s if timings.digest_s else 0
    yield from _wrapped(
        f"{report.blocks} blocks of {human_bytes(report.block_size)}, "
        f"{human_bytes(timings.digested_bytes)} hashed in {timings.digest_s:.2f} s "
        f"({human_bytes(rate)}/s, engine {report.engine})"
    )
    if report.derived is not None:
        yield from _wrapped(
            f"{report.derived.entries} entries, {report.derived.records} records and "
            f"{report.derived.queues} queues checked in {timings.derived_s:.2f} s"
        )
    yield f"{timings.total_s:.2f} s in all"


def _finding_lines(finding: Finding) -> Iterator[str]:
    who = " and ".join(finding.replicas)
    yield from _wrapped(f"{finding.verdict.upper()} on {who}: {finding.cause}")
    if finding.file:
        yield f"  file {finding.file}"
    for said in (where_in_words(finding), finding.detail, right_in_words(finding)):
        if said:
            yield from _wrapped(said, "  ")
    if finding.entry_offset is not None and finding.views:
        yield f"  {entry_in_words(finding)}:"
        rows = [_view_cells(view) for view in finding.views]
        for line in _table(("", "IS", "CRC", "INDEX", "TERM", "QUEUE", "QUEUE OFFSET", ""), rows):
            yield f"    {line}"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _view_cells(view: EntryView) -> tuple[str, ...]:
    queue = f"{view.topic}/{view.queue_id}" if view.queue_id is not None else "-"
    numbers = (view.index, view.term)
    crc = "-" if view.kind in ("absent", "zeros") else "good" if view.crc_valid else "BAD"
    return (
        view.replica,
        view.kind,
        crc,
        *("-" if number is None else str(number) for number in numbers),
        queue,
        "-" if view.queue_offset is None else str(view.queue_offset),
        view.detail,
    )


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns as wide as their widest cell."""
    lines = [titles, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(titles))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(cells).rstrip()

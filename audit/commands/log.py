"""`dledger log`: one member's log by itself: verified and shown, which only reads, or repaired."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from audit.commands.outcome import errors_told
from audit.commands.repair import repair
from audit.errors import UsageMistake
from audit.proof.dump import Wanted, dump
from audit.proof.log import SegmentVerified, open_log, verify_log, weight_of
from audit.proof.ranges import EVERYTHING
from audit.showing.log import (
    DUMP_TITLE,
    dump_line,
    segment_facts,
    segment_lines,
    sum_facts,
    sum_lines,
)
from audit.showing.terminal import progress_shown
from dledger.outcome import ExitCode
from dledger.terminal.program import new_program

app = new_program(
    "Verify one member's log, show what lies in it, or put right what has rotted.\n\n"
    "Exit codes: 0 sound, 1 damaged, 2 used wrongly or no log there, 3 incomplete.",
)

app.command()(repair)

DataOption = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="A member's data directory, or its commitlog."),
]
FirstOption = Annotated[
    int, typer.Option("--from", min=1, metavar="INDEX", help="The first entry that is wanted.")
]
LastOption = Annotated[
    int | None,
    typer.Option("--to", min=1, metavar="INDEX", help="The last one.", show_default="the last"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print lines of JSON.")]


@app.command()
def verify(
    data: DataOption, first: FirstOption = 1, last: LastOption = None, as_json: JsonOption = False
) -> None:
    """Check each entry, record, checksum and running digest of one log, and nothing beside it.

    A range is checked in whole segments, and incomplete if not all of it is there. Of a directory
    on which a node runs it reads what that node had settled. Whether a node would start there, and
    its queues: dledger audit copy. Whether replicas agree: dledger audit replicas.

    Exit codes: 0 sound, 1 damaged, 2 used wrongly or no log there, 3 incomplete.

    \b
    Examples:
      dledger log verify --data /srv/dledger/n1
      dledger log verify --data /backup/n1 --json | jq 'select(.places != [])'
    """
    with errors_told():
        wanted = _range(first, last)
        log = open_log(data)

        def tell(segment: SegmentVerified) -> None:
            lines = [json.dumps(segment_facts(segment))] if as_json else segment_lines(segment)
            for line in lines:
                sys.stdout.write(line + "\n")

        with progress_shown() as started:
            total = verify_log(log, wanted, tell, started("log", weight_of(log, wanted)))
        lines = [json.dumps(sum_facts(log, total))] if as_json else sum_lines(log, total)
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        raise typer.Exit(int(total.verdict.exit_code))


@app.command(name="dump")
def show(
    data: DataOption,
    first: FirstOption = 1,
    last: LastOption = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only this topic's messages, and damage.")
    ] = None,
    messages: Annotated[
        bool, typer.Option("--messages", help="With --json: each message of an entry, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what lies in one log: entries with what they carry, and what is no intact entry.

    It goes on behind damage. Messages' bodies: dledger audit export.

    Exit codes: 0 all of it intact, 1 something isn't, 2 used wrongly or no log there,
    3 not all of it is there.

    \b
    Examples:
      dledger log dump --data run/n1/data --from 100 --to 120
      dledger log dump --data run/n1/data --topic orders --messages --json
    """
    with errors_told(), _reader_may_go():
        low, high = _range(first, last)
        if messages and not as_json:
            raise UsageMistake("--messages are shown with --json")
        log = open_log(data)
        if not as_json:
            sys.stdout.write(DUMP_TITLE + "\n")
        ending = ExitCode.DONE
        for each in dump(log, Wanted(low, high, topic, messages)):
            if not each.is_intact:
                ending = ExitCode.FAILED
            elif each.is_missing and ending is ExitCode.DONE:
                ending = ExitCode.INCOMPLETE
            sys.stdout.write((json.dumps(each.facts) if as_json else dump_line(each)) + "\n")
        if log.holder is not None and not as_json:
            sys.stdout.write(f"held by {log.holder}: what it had settled is shown\n")
        sys.stdout.flush()
        raise typer.Exit(int(ending))


def _range(first: int, last: int | None) -> tuple[int, int]:
    """Raises:
    UsageMistake: it ends before it begins.
    """
    if last is not None and last < first:
        raise UsageMistake(f"--to {last} is before --from {first}")
    return first, EVERYTHING[1] if last is None else last


@contextmanager
def _reader_may_go() -> Iterator[None]:
    """Whoever reads the output has seen enough (`| head`): no failure, and nothing more to say."""
    try:
        yield
    except BrokenPipeError:
        # What is still in the buffer would be written at the end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(int(ExitCode.DONE)) from None

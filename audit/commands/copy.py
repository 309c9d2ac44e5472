"""`dledger audit copy`: a cold copy of one member's directory, judged whole."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from audit.commands.outcome import errors_told
from audit.engines.choice import EngineName, make_engine
from audit.errors import UsageMistake
from audit.proof.copy import audit_copy, copy_as_json
from audit.showing.copy import copy_lines
from audit.showing.terminal import progress_shown
from dledger.reading.files import printable


def copy(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A member's data directory, or a copy of it.")
    ],
    group: Annotated[
        str | None,
        typer.Option("--group", help="The broker group it must be of.", show_default="as it says"),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", help="The member it must be.", show_default="as it says"),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="How many read.", show_default="one a core"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Judge a cold copy of one member: would a node start on it, and is every byte right?

    Nothing is written there. Exit codes: 0 sound, 1 damaged, 3 incomplete; 2 no such directory.

    \b
    Examples:
      dledger audit copy /backup/n1
      dledger audit copy /backup/n1 --group orders --node n1 --json
    """
    with errors_told():
        _check_directory(directory)
        runner = make_engine(EngineName.LOCAL, None, processes)
        try:
            with progress_shown() as started:
                report = audit_copy(directory, runner, group=group, node=node, started=started)
        finally:
            runner.close()
        if as_json:
            typer.echo(json.dumps(copy_as_json(report)))
        else:
            for text in copy_lines(report):
                for line in text.split("\n"):
                    sys.stdout.write(printable(line) + "\n")
        raise typer.Exit(int(report.exit_code))


def _check_directory(directory: Path) -> None:
    """Raises:
    UsageMistake: nothing there can be judged, not even as missing: a mistake of the caller's.
    """
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise UsageMistake(f"{directory}: {error.strerror}") from error
    if not names:
        raise UsageMistake(f"{directory} is empty: no member's directory")

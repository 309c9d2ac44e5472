"""Completion of commands and options in a shell: what `dledger --install-completion` has it call.

The shell calls the program at each TAB with the line in its environment. Words are programs of
their own (`dledger_cli.app`), and only the one that is on the line is imported. Names of topics and
groups aren't completed: each TAB would start a client, and might wait for a broker group that isn't
there.
"""

from __future__ import annotations

import os
from typing import Final

import typer

from dledger.terminal.program import new_program
from dledger_cli.app import PROGRAMS, certificates, version

LINE_VARIABLES: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # of bash, and of the others


def complete() -> None:
    """The shell has its answer; the process ends."""
    line = " ".join(os.environ.get(name, "") for name in LINE_VARIABLES)
    program_for(line.split())(prog_name="dledger")


def program_for(words: list[str]) -> typer.Typer:
    """The program as far as a line with these words needs it, each command where it is typed."""
    whole = new_program("", name="dledger", completes=True)
    whole.callback()(certificates)
    whole.command()(version)
    for name, part in PROGRAMS.items():
        if name not in words:
            whole.command(name, help=part.help)(_nothing)
            continue
        program = part.load()
        if program.registered_callback is None and len(program.registered_commands) == 1:
            (only,) = program.registered_commands
            assert only.callback is not None
            whole.command(name, help=part.help)(only.callback)
        else:
            whole.add_typer(program, name=name, help=part.help)
    return whole


def _nothing() -> None:
    """Stands where a command isn't on the line."""

"""The `dledger` program: its commands put together, and its entry.

Each word is a program of its own, imported when it is called: none waits for what another needs.
Commands parse, call what does the work, print and pick an exit code (`outcome`); none of them
holds logic of the broker. Help texts are plain, so that they read the same in a pipe.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from dledger.terminal.importing import importing
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import ExitCode, complain
from dledger.terminal.output import print_json
from dledger.terminal.program import new_program, program_of
from dledger.terminal.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, choose

app = new_program(
    "A message broker on a Raft-replicated CommitLog.\n\n"
    "Exit codes: 0 done, 1 failed, 2 used wrongly, 3 the broker group can't be reached, "
    "4 a node's disk failed, 130 interrupted.",
    name="dledger",
    completes=True,
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if wanted:
        from broker.picture import program_version  # brings the metrics library with it

        typer.echo(f"dledger {program_version()}")
        raise typer.Exit


@app.callback()
def certificates(
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help="Authority of the nodes' certificates; with it connections are under TLS. "
            f"Also {CA_VARIABLE}.",
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-certificate",
            metavar="FILE",
            help=f"Certificate to show to nodes that ask for one. Also {CERTIFICATE_VARIABLE}.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help=f"Its key. Also {KEY_VARIABLE}."),
    ] = None,
    _version_wanted: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="The program's; then it ends."
        ),
    ] = False,
) -> None:
    """Options before the command hold for all of it."""
    choose(tls_ca, tls_certificate, tls_key)


class OwnProgram(TyperCommand):
    """A word that a program of its own stands behind: it gets all that follows, as it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # typer's own, not public
        """Nothing is taken away, not even `--`."""
        ctx.args = list(args)
        return []


@dataclass(frozen=True, slots=True)
class Program:
    """What stands behind a word. `load` imports it: that costs only those who call it."""

    help: str
    load: Callable[[], typer.Typer]


def _group() -> typer.Typer:
    from dledger_cli.group import app as program

    return program


def _member() -> typer.Typer:
    from dledger_cli.member import app as program

    return program


@cache
def _node() -> typer.Typer:
    from dledger_cli.node import node

    return program_of(node)


def _topic() -> typer.Typer:
    from dledger_cli.topic import app as program

    return program


def _produce() -> typer.Typer:
    from dledger_cli.produce import produce

    return program_of(produce)


def _consume() -> typer.Typer:
    from dledger_cli.consume import consume

    return program_of(consume)


def _consumers() -> typer.Typer:
    from dledger_cli.consumers import app as program

    return program


def _query() -> typer.Typer:
    from dledger_cli.query import app as program

    return program


def _dlq() -> typer.Typer:
    from dledger_cli.dlq import app as program

    return program


def _audit() -> typer.Typer:
    from audit.commands.app import app as program

    return program


def _log() -> typer.Typer:
    from audit.commands.log import app as program

    return program


def _chaos() -> typer.Typer:
    from chaos.cli import app as program

    return program


def _bench() -> typer.Typer:
    from dledger_cli.bench.cli import app as program

    return program


def _certs() -> typer.Typer:
    from dledger_cli.certs import app as program

    return program


PROGRAMS: Final = {
    "group": Program("Start, look at, disturb and stop groups.", _group),
    "member": Program("Take members in, let them go, let them vote.", _member),
    "node": Program("Run one node until SIGTERM or Ctrl-C.", _node),
    "topic": Program("Create, change, list, describe, measure and delete topics.", _topic),
    "produce": Program("Send lines as messages; wait until all are stored.", _produce),
    "consume": Program("Write a topic's messages, a line each, as they come.", _consume),
    "consumers": Program("Look at consumer groups, move them, copy them.", _consumers),
    "query": Program("Find messages.", _query),
    "dlq": Program("List, show and send again a consumer group's dead letters.", _dlq),
    "audit": Program("Prove that the replicas agree, and read the log as data.", _audit),
    "log": Program("Verify one member's log, show what lies in it, repair it.", _log),
    "chaos": Program("Break things on purpose and check that every promise holds.", _chaos),
    "bench": Program("Measure it beside yardsticks of the same run.", _bench),
    "certs": Program("Make certificates and secrets that tell members from strangers.", _certs),
}


def _mount(name: str, part: Program) -> None:
    def begin(context: typer.Context) -> None:
        with importing():
            program = part.load()
        program(context.args, prog_name=f"dledger {name}")

    app.command(name, cls=OwnProgram, help=part.help)(begin)


for _name, _part in PROGRAMS.items():
    _mount(_name, _part)

STANDARD_OUTPUT = 1


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Show the versions of the program and of what it runs on.

    \b
    Example:
      dledger version --json
    """
    from broker.picture import program_version  # brings the metrics library with it

    facts = {
        "dledger": program_version(),
        "python": platform.python_version(),
        "grpc": installed("grpcio"),
    }
    if as_json:
        print_json(facts)
    else:
        for name, number in facts.items():
            typer.echo(f"{name} {number}")


def main() -> None:
    """The program `dledger`: a command, and its result on standard output."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # else the interpreter would, and fail in its own words
    except OSError as error:
        # Commands tell what files do to them; what is left is the result that nobody takes.
        if not isinstance(error, BrokenPipeError):
            complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_OUTPUT)
        sys.exit(ExitCode.FAILED)

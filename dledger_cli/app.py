"""The `dledger` program: its commands put together, and its entry.

Commands parse, call what does the work, print and pick an exit code (`outcome`); none of them
holds logic of the broker. Help texts are plain, so that they read the same in a pipe.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Annotated

import grpc
import typer

from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import ExitCode, complain
from dledger.terminal.output import print_json
from dledger.terminal.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, choose
from dledger_cli import group, member, query, topic
from dledger_cli.bench.cli import app as bench_app
from dledger_cli.consume import consume
from dledger_cli.node import node
from dledger_cli.produce import produce

app = typer.Typer(
    name="dledger",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help=(
        "A message broker on a Raft-replicated CommitLog.\n\n"
        "Exit codes: 0 done, 1 failed, 2 used wrongly, 3 the broker group can't be reached, "
        "4 a node's disk failed, 130 interrupted."
    ),
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


app.add_typer(group.app, name="group")
app.add_typer(member.app, name="member")
app.command()(node)
app.add_typer(topic.app, name="topic")
app.command()(produce)
app.command()(consume)
app.add_typer(query.app, name="query")
app.add_typer(bench_app, name="bench")


STANDARD_OUTPUT = 1

# A program of its own behind one word: what it imports costs only those who call it.
OWN_PROGRAM = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


@app.command(context_settings=OWN_PROGRAM)
def audit(context: typer.Context) -> None:
    """Prove that the replicas agree, and read the log as data."""
    from audit.commands.app import app as audit_app

    audit_app(context.args, prog_name="dledger audit")


@app.command(context_settings=OWN_PROGRAM)
def log(context: typer.Context) -> None:
    """Verify one member's log, or show what lies in it."""
    from audit.commands.log import app as log_app

    log_app(context.args, prog_name="dledger log")


@app.command(context_settings=OWN_PROGRAM)
def chaos(context: typer.Context) -> None:
    """Break things on purpose and check that every promise still holds."""
    from chaos.cli import app as chaos_app

    chaos_app(context.args, prog_name="dledger chaos")


@app.command(context_settings=OWN_PROGRAM)
def certs(context: typer.Context) -> None:
    """Make certificates and secrets that tell members from strangers."""
    from dledger_cli.certs import app as certs_app  # brings a library that nothing else needs

    certs_app(context.args, prog_name="dledger certs")


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
        "grpc": grpc.__version__,
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

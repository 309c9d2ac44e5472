"""Which group a command is about: `--bootstrap`, `--dir`, and the client that they lead to.

Every command that asks a group has these two options and reads them here.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from broker.local_group import LocalGroup
from dledger.client import Client, ClientOptions
from dledger.terminal.options import parse_addresses
from dledger.terminal.tls import chosen_files, forget

BOOTSTRAP_VARIABLE = "DLEDGER_BOOTSTRAP"
DEFAULT_DIRECTORY = Path("run")
# Said by commands that change members, where they are interrupted.
BEGUN_GOES_ON = (
    "what was begun goes on without this command: `dledger member list` shows it, the same command "
    "finishes it, and `dledger member remove` takes back who was to come"
)
CALL_DEADLINE_S = 10.0  # one call to the brokers, retries included


def bootstrap_addresses(bootstrap: str | None, directory: Path) -> list[str]:
    """Where a client begins: the addresses that were chosen, else the group in `--dir`, at whose
    addresses nobody else answers.

    Raises:
        typer.BadParameter: the addresses make no sense.
        LocalGroupError: none are given, and `directory` holds no group, or another group's nodes
            answer in its place.
    """
    if bootstrap is not None:
        return parse_addresses(bootstrap)
    forget()
    return LocalGroup.open(directory).checked_addresses()


def connect(addresses: list[str]) -> AbstractAsyncContextManager[Client]:
    """A client of the group at `addresses`; a call that gets no answer ends the command."""
    return Client.connect(
        addresses, options=ClientOptions(deadline_s=CALL_DEADLINE_S, tls=chosen_files())
    )


def _chosen(context: typer.Context, bootstrap: str | None) -> str | None:
    """The addresses; None where it is the group in `--dir` that was named. Who names one at the
    command line means it, whatever the shell's environment says: to act on another group, and
    tell nobody, would be the end of that one's topic.

    Raises:
        typer.BadParameter: both are named there.
    """
    if bootstrap is None or not _is_given(context, "directory"):
        return bootstrap
    if _is_given(context, "bootstrap"):
        raise typer.BadParameter("--dir and --bootstrap exclude each other")
    return None


def _is_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help="Addresses of some nodes of the broker group; the others are learned from them. "
        f"--dir goes before ${BOOTSTRAP_VARIABLE}.",
        show_default="the group in --dir",
        callback=_chosen,
    ),
]
DirectoryOption = Annotated[
    Path,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="Folder of a local group (group up).",
        is_eager=True,  # so that who reads --bootstrap knows whether this was given
    ),
]

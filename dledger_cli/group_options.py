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
    """Where a client begins: `--bootstrap` or its variable, else the group in `--dir`, at whose
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


BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help="Addresses of some nodes of the broker group; the others are learned from them.",
        show_default="the group in --dir",
    ),
]
DirectoryOption = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Folder of a local group (group up).")
]

"""Options that several commands share, and the rules for reading their values."""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from broker.config import split_address
from broker.local_group import LocalGroup
from dledger.client import Client, ClientOptions

BOOTSTRAP_VARIABLE = "DLEDGER_BOOTSTRAP"
DEFAULT_DIRECTORY = Path("run")
CALL_DEADLINE_S = 10.0  # one call to the group, retries included

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"([0-9]+) *([kmg]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """`64MiB`, `64M` or `67108864` in bytes; all units are powers of two.

    Raises:
        typer.BadParameter: it is none of these.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size like 64MiB or 67108864")
    return int(match[1]) * _UNITS[match[2].lower()]


def parse_addresses(text: str) -> list[str]:
    """`host:port,host:port` as a list.

    Raises:
        typer.BadParameter: one of them is no address.
    """
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    if not addresses:
        raise typer.BadParameter("no address given; wanted: host:port,host:port")
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return addresses


def bootstrap_addresses(bootstrap: str | None, directory: Path) -> list[str]:
    """Where a client begins: `--bootstrap` or its variable, else the group in `--dir`.

    Raises:
        typer.BadParameter: the addresses make no sense.
        LocalGroupError: none are given, and `directory` holds no group.
    """
    if bootstrap is not None:
        return parse_addresses(bootstrap)
    return LocalGroup.open(directory).addresses


def connect(addresses: list[str]) -> AbstractAsyncContextManager[Client]:
    """A client of the group at `addresses`; a call that gets no answer ends the command."""
    return Client.connect(addresses, options=ClientOptions(deadline_s=CALL_DEADLINE_S))


BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help="Addresses of some nodes of the group; the others are learned from them.",
        show_default="the group in --dir",
    ),
]
DirectoryOption = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Folder of a local group (group up).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print facts as JSON.")]

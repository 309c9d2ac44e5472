"""Options that commands of several packages share, and the rules for reading their values.

What an option means to the group (which nodes to ask, where a local group lies) is the program's:
see `dledger_cli.group_options`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dledger import addresses
from dledger.terminal.sizes import size_in_bytes


def parse_size(text: str) -> int:
    """`64MiB`, `64M` or `67108864` in bytes; all units are powers of two.

    Raises:
        typer.BadParameter: it is none of these.
    """
    try:
        return size_in_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def parse_addresses(text: str) -> list[str]:
    """`host:port,host:port` as a list.

    Raises:
        typer.BadParameter: one of them is no address, or there are none.
    """
    try:
        return addresses.parse_addresses(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


JsonOption = Annotated[bool, typer.Option("--json", help="Print facts as JSON.")]

"""`dledger certs`: an authority for tests and small groups, and a broker group's secret.

Who has an authority of their own uses that one; what a node's certificate must carry is told by
`dledger certs name`. What is made is `dledger_cli.authority`'s matter.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from dledger.addresses import split_address
from dledger.credentials.secret import GroupSecret
from dledger.credentials.tls import fingerprint, peer_name
from dledger.terminal.outcome import errors_told
from dledger.terminal.program import new_program
from dledger_cli.authority import (
    AUTHORITY,
    Pair,
    certificate_in,
    make_authority,
    sign_client,
    sign_node,
)

DEFAULT_DAYS = 825
MAX_DAYS = 36_500

app = new_program("Certificates and secrets that tell members from strangers.")

PEER_NAMES = ".dledger"  # what the names end with that peers are believed under
_NAME = re.compile(
    r"[A-Za-z0-9_-]{1,64}"
)  # of nodes and broker groups, as configurations take them
_CLIENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def _checked_name(name: str) -> str:
    """Anything else could be another node's name, or a pattern that fits all of them."""
    if not _NAME.fullmatch(name):
        raise typer.BadParameter("1 to 64 characters of A-Z, a-z, 0-9, _ and -")
    return name


def _checked_client(name: str) -> str:
    if name == AUTHORITY:
        raise typer.BadParameter(f"{name!r} is the authority's")
    if not _CLIENT.fullmatch(name):
        raise typer.BadParameter("1 to 64 of A-Z, a-z, 0-9, _, - and dots, no dot or - first")
    return name


def _checked_hosts(hosts: list[str]) -> list[str]:
    for host in hosts:
        try:
            split_address(f"[{host}]:1" if ":" in host else f"{host}:1")
        except ValueError:
            raise typer.BadParameter(f"{host!r} is no host name and no IP address") from None
        if f".{host.lower()}".endswith(PEER_NAMES):
            raise typer.BadParameter(f"{host!r} would be a node's name, not a host's")
    return hosts


FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of the authority: ca.pem and ca.key.")
]
DaysOption = Annotated[
    int, typer.Option("--days", min=1, max=MAX_DAYS, help="How long it is believed.")
]
GroupOption = Annotated[
    str,
    typer.Option(
        "--broker-group", metavar="NAME", help="The node's broker group.", callback=_checked_name
    ),
]
NodeArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The node's id.", callback=_checked_name)
]


@app.command()
def authority(folder: FolderArgument, days: DaysOption = 3_650) -> None:
    """Make an authority: DIR/ca.pem, which everybody gets, and DIR/ca.key, which nobody gets.

    \b
    Example:
      dledger certs authority certs
    """
    with errors_told():
        _tell(make_authority(folder, days))


@app.command()
def node(
    folder: FolderArgument,
    node_id: NodeArgument,
    broker_group: GroupOption,
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="NAME",
            help="Host name or address that clients dial.",
            callback=_checked_hosts,
        ),
    ],
    days: DaysOption = DEFAULT_DAYS,
) -> None:
    """Make a node's certificate and key: DIR/ID.pem and DIR/ID.key.

    \b
    Example:
      dledger certs node certs n1 --broker-group g1 --host n1.lan --host 10.0.0.1
    """
    with errors_told():
        _tell(sign_node(folder, node_id, broker_group, hosts, days))


@app.command()
def client(
    folder: FolderArgument,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="What the client is called.", callback=_checked_client),
    ],
    days: DaysOption = DEFAULT_DAYS,
) -> None:
    """Make a client's certificate and key: DIR/NAME.pem and DIR/NAME.key. It opens no peer stream.

    \b
    Example:
      dledger certs client certs billing
    """
    with errors_told():
        _tell(sign_client(folder, name, days))


@app.command()
def secret(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, mode 0600.")],
) -> None:
    """Make a broker group's secret, for `secret_file` of each of its nodes.

    \b
    Example:
      dledger certs secret group.secret
    """
    with errors_told():
        GroupSecret.create(file)
    typer.echo(f"{file}: a new secret; every node of the group gets the same")


@app.command(name="name")
def name_of(
    node_id: NodeArgument,
    broker_group: GroupOption,
) -> None:
    """Show the DNS name that a node's certificate must carry, for authorities other than this one.

    \b
    Example:
      dledger certs name n1 --broker-group orders
    """
    typer.echo(peer_name(broker_group, node_id))


@app.command(name="fingerprint")
def fingerprint_of(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate in PEM.")],
) -> None:
    """Show a certificate's SHA-256 fingerprint, as a list of revoked ones has it (`tls.revoked`).

    \b
    Example:
      dledger certs fingerprint certs/n3.pem >> certs/revoked
    """
    with errors_told():
        typer.echo(fingerprint(certificate_in(file)[0]))


def _tell(made: Pair) -> None:
    typer.echo(f"{made.certificate}, {made.key}: until {made.until:%Y-%m-%d}")
    if made.is_key_kept:
        typer.echo(f"{made.key} was there: no new key was made", err=True)

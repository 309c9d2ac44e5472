"""`dledger member`: who belongs to a broker group, and who votes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from broker.forming.calls import GrpcCalls
from broker.forming.joining import Wish, change, newcomers
from broker.forming.patience import persistently
from broker.local_group import group_status
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import (
    ExitCode,
    complain,
    end,
    errors_told,
    interruption_told,
    run,
)
from dledger.terminal.output import print_columns, print_json, remark
from dledger.terminal.program import new_program
from dledger.terminal.tls import chosen_material
from dledger.wire import cluster_pb2 as cpb
from dledger_cli import group, recover
from dledger_cli.group_options import (
    BEGUN_GOES_ON,
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
)
from dledger_cli.held_up import tell_what_holds_up

app = new_program("Take members in, let them go, let them vote.")

IdsArgument = Annotated[list[str], typer.Argument(metavar="ID...")]
WaitOption = Annotated[
    float, typer.Option("--wait", min=0, metavar="S", help="How long until all of it is so.")
]
DEFAULT_WAIT_S = 60.0
DISK_WIDTH = 16  # of 32 digits: the table fits 80 columns, and --json has all of them


@app.command("list")
def list_members(
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the members as the leader's log has them: voters, learners, observers, who is leaving.

    \b
    Examples:
      dledger member list
      dledger member list --json | jq -r '.members[] | .id + " " + .role'
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    _tell(run(_list(addresses)), as_json=as_json)


@app.command()
def add(
    members: Annotated[list[str], typer.Argument(metavar="ID ADDRESS...")],
    observe: Annotated[bool, typer.Option("--observe", help="To learn, and not to vote.")] = False,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    wait_s: WaitOption = DEFAULT_WAIT_S,
    as_json: JsonOption = False,
) -> None:
    """Take nodes in that run on empty directories and stand by.

    They catch up first, and vote then. Who is a member already is found at that address from now
    on. Repeating it finishes what was begun. Ends with 3 if they don't vote in time; the group goes
    on with it.

    \b
    Examples:
      dledger member add n4 10.0.0.4:7001
      dledger member add n4 10.0.0.4:7001 n5 10.0.0.5:7001
      dledger member add n4 10.0.0.4:7001 --observe
    """
    with errors_told():
        wish = Wish(add=newcomers(members, observe=observe))
    _carry_out(wish, bootstrap, directory, wait_s, as_json=as_json)


@app.command()
def remove(
    ids: IdsArgument,
    promote: Annotated[
        list[str] | None,
        typer.Option("--promote", metavar="ID", help="Who votes in their place, in one step."),
    ] = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    wait_s: WaitOption = DEFAULT_WAIT_S,
    as_json: JsonOption = False,
) -> None:
    """Let members go, running or not; stop them afterwards, and empty their directories.

    Repeating it finishes what was begun; it ends with 0, and a remark, if all of them are no
    members.

    \b
    Examples:
      dledger member remove n4 n5
      dledger member remove n3 --promote n6
    """
    wish = Wish(remove=tuple(ids), promote=tuple(promote or ()))
    _carry_out(wish, bootstrap, directory, wait_s, as_json=as_json)


@app.command()
def promote(
    ids: IdsArgument,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    wait_s: WaitOption = DEFAULT_WAIT_S,
    as_json: JsonOption = False,
) -> None:
    """Let observers vote, once they have caught up.

    \b
    Example:
      dledger member promote n4
    """
    _carry_out(Wish(promote=tuple(ids)), bootstrap, directory, wait_s, as_json=as_json)


@app.command()
def demote(
    ids: IdsArgument,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    wait_s: WaitOption = DEFAULT_WAIT_S,
    as_json: JsonOption = False,
) -> None:
    """Let voters stay as observers, which learn and don't vote.

    \b
    Example:
      dledger member demote n3
    """
    _carry_out(Wish(demote=tuple(ids)), bootstrap, directory, wait_s, as_json=as_json)


app.command()(group.replace)
app.command()(recover.recover)


def _carry_out(
    wish: Wish, bootstrap: str | None, directory: Path, wait_s: float, *, as_json: bool
) -> None:
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    attempt = partial(_change, addresses, wish)
    with interruption_told(BEGUN_GOES_ON):
        members, is_done = run(persistently(attempt, lambda found: found[1], wait_s, remark))
        _tell(members, as_json=as_json)
        if not is_done:
            tell_what_holds_up(addresses)
            end(ExitCode.UNREACHABLE)


async def _change(addresses: Sequence[str], wish: Wish, wait_s: float) -> tuple[cpb.Members, bool]:
    tls = chosen_material()
    newcomers = {each.node_id for each in wish.add}
    leader = (await group_status(addresses, tls)).leading(besides=newcomers).admin_address
    return await change(GrpcCalls(tls), leader, wish, wait_s, complain)


async def _list(addresses: Sequence[str]) -> cpb.Members:
    tls = chosen_material()
    leader = (await group_status(addresses, tls)).leading().admin_address
    return await GrpcCalls(tls).list_members(leader)


def _tell(members: cpb.Members, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "joint": members.joint,
                "committed": members.committed,
                "configuration_index": members.configuration_index,
                "last_index": members.last_index,
                "preferred": members.preferred or None,
                "members": [
                    {
                        "id": each.node_id,
                        "role": each.role,
                        "disk": each.disk_id.hex(),
                        "address": each.address,
                        "connected": each.connected,
                        "match_index": each.match_index,
                    }
                    for each in members.members
                ],
            }
        )
        return
    print_columns(
        ("ID", "ROLE", "ADDRESS", "CONNECTED", "MATCH", "DISK"),
        (
            (
                each.node_id,
                each.role,
                each.address or "-",
                "yes" if each.connected else "no",
                each.match_index,
                each.disk_id.hex()[:DISK_WIDTH] or "-",
            )
            for each in members.members
        ),
    )
    if members.preferred:
        typer.echo(f"{members.preferred} is preferred as the leader")
    if members.joint or not members.committed:
        typer.echo(f"a change is under way, in entry {members.configuration_index}")

"""`dledger group`: a local group's processes; status and leadership of any group."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from broker.config import MAX_MEMBERS
from broker.local_group import (
    FlushName,
    GroupOptions,
    GroupStatus,
    LocalGroup,
    group_status,
)
from broker.local_group.status import OUT_OF_SERVICE_ROLE, NodeView
from dledger.reading.files import printable
from dledger.terminal.options import JsonOption, parse_size
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
from dledger_cli.backup import backup, restore
from dledger_cli.doctor import doctor
from dledger_cli.group_options import (
    BEGUN_GOES_ON,
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
)
from dledger_cli.held_up import tell_what_holds_up
from dledger_cli.names import check_node
from dledger_cli.transfer import transferred

if TYPE_CHECKING:
    # What forms groups knows the log's files, and numpy with them: imported by who needs it.
    from broker.forming.replacing import Replaced

app = new_program("Start, look at, disturb and stop groups.")
app.command()(doctor)
app.command()(backup)
app.command()(restore)


class Flush(StrEnum):
    """When a node calls an entry durable."""

    SYNC = "sync"
    ASYNC = "async"

    @property
    def setting(self) -> FlushName:
        """The value in the configuration."""
        return "sync" if self is Flush.SYNC else "async"


class SignalName(StrEnum):
    """What `group kill` can send."""

    KILL = "KILL"
    TERM = "TERM"
    STOP = "STOP"
    CONT = "CONT"

    @property
    def number(self) -> signal.Signals:
        """The system's signal."""
        return signal.Signals[f"SIG{self.value}"]

    @property
    def ends_process(self) -> bool:
        """Whether the process is expected to be over soon."""
        return self in (SignalName.KILL, SignalName.TERM)


NodesOption = Annotated[
    int | None,
    typer.Option("--nodes", min=1, max=MAX_MEMBERS, help="How many nodes.", show_default="3"),
]
BasePortOption = Annotated[
    int | None,
    typer.Option(
        "--base-port",
        min=1,
        max=65535,
        metavar="N",
        help="Nodes listen on N, N+1, ..., their metrics on N+1000, ...",
        show_default="free ports",
    ),
]
SegmentSizeOption = Annotated[
    str | None,
    typer.Option(
        "--segment-size", metavar="SIZE", help="Of the CommitLog's files.", show_default="64MiB"
    ),
]
FlushOption = Annotated[
    Flush | None,
    typer.Option("--flush", help="async is weaker: see docs/operations.md.", show_default="sync"),
]
WhoArgument = Annotated[str, typer.Argument(metavar="WHO", help="A node's id, leader, follower.")]
SignalOption = Annotated[SignalName, typer.Option("--signal", case_sensitive=False)]
WipeOption = Annotated[bool, typer.Option("--wipe", help="Remove the group's files as well.")]


@app.command()
def up(
    nodes: NodesOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    base_port: BasePortOption = None,
    segment_size: SegmentSizeOption = None,
    flush: FlushOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a local group and wait until it serves.

    Repeating it starts the nodes that are missing and leaves the others alone.

    \b
    Examples:
      dledger group up
      dledger group up --nodes 5 --dir run5 --base-port 7001
    """
    size = None if segment_size is None else parse_size(segment_size)
    setting = None if flush is None else flush.setting
    options = GroupOptions(nodes, base_port, size, setting)
    with errors_told():
        group = LocalGroup.open_or_create(directory, options)
    _tell_status(run(group.up()), as_json=as_json)
    if not group.has_secret:
        complain(
            f"the group in {directory} is from before groups had a secret: any program of this "
            "machine can speak as one of its nodes. One that is made anew has one"
        )


@app.command()
def status(
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who leads, and each node's role, term and indexes.

    Ends with 3 when no leader serves.

    \b
    Examples:
      dledger group status
      dledger group status --json | jq -r .leader
    """
    if bootstrap is None:
        with errors_told():
            group = LocalGroup.open(directory)
        found = run(group.status())
    else:
        with errors_told():
            addresses, tls = bootstrap_addresses(bootstrap, directory), chosen_material()
        found = run(group_status(addresses, tls))
    _tell_status(found, as_json=as_json)
    if not found.serves:
        complain("no leader serves" if any(each.alive for each in found.nodes) else found.nobody)
        end(ExitCode.UNREACHABLE)


@app.command()
def kill(
    who: WhoArgument,
    name: SignalOption = SignalName.KILL,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Send a signal to a node of a local group.

    After KILL and TERM it waits until the process is over (10 s at most).

    \b
    Examples:
      dledger group kill leader
      dledger group kill n2 --signal STOP
      dledger group kill n2 --signal CONT
    """
    with errors_told():
        group = LocalGroup.open(directory)
    node_id = run(_kill(group, who, name))
    if as_json:
        print_json({"id": node_id, "signal": name.value})
    else:
        typer.echo(f"{node_id}: SIG{name.value}")


async def _kill(group: LocalGroup, who: str, name: SignalName) -> str:
    node = await group.resolve(who)
    group.signal(node.id, name.number)
    if name.ends_process and not await group.wait_gone(node.id):
        complain(f"{node.id} still runs")
        end(ExitCode.FAILED)
    return node.id


@app.command()
def start(
    node_id: Annotated[str, typer.Argument(metavar="ID")],
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Start a node of a local group that isn't running, and wait until it answers.

    \b
    Example:
      dledger group start n2
    """
    with errors_told():
        group = LocalGroup.open(directory)
    _tell_status(run(group.start(node_id)), as_json=as_json)


@app.command()
def down(
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    wipe: WipeOption = False,
) -> None:
    """Stop a local group's nodes; what they hold is kept unless --wipe is given.

    \b
    Examples:
      dledger group down
      dledger group down --wipe
    """
    with errors_told():
        group = LocalGroup.open(directory)
    for node_id in run(group.down()):
        complain(f"{node_id} didn't stop within 10 s of SIGTERM and was killed")
    if wipe:
        with errors_told():
            group.wipe()
    remark("stopped and removed" if wipe else "stopped")


@app.command()
def transfer(
    target: Annotated[
        str, typer.Argument(metavar="[ID]", help="The next leader.", show_default=False)
    ] = "",
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hand leadership over to a node, or to the one whose log is longest.

    Ends when that node takes messages; when it doesn't within 10 s, or another one leads by then,
    with 0 and a line that says so. It is tried once: with 1 where the node isn't heard, is full, or
    lacks too much, at once and without a pause for anybody; or didn't take over in time.

    \b
    Examples:
      dledger group transfer
      dledger group transfer n2 --bootstrap 10.0.0.1:7001
    """
    with errors_told():
        check_node(target)
        addresses = bootstrap_addresses(bootstrap, directory)
    done = run(transferred(addresses, target))
    if as_json:
        print_json({"leader": done.leader})
    else:
        typer.echo(f"{done.leader or 'nobody'} leads")
    if done.complaint:
        complain(done.complaint)


@app.command()
def priority(
    node_id: Annotated[
        str, typer.Argument(metavar="[ID]", help="Who is to lead.", show_default=False)
    ] = "",
    nobody: Annotated[bool, typer.Option("--none", help="Prefer nobody any more.")] = False,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which voter is preferred as the leader, in the group's log; or show it.

    It is handed leadership when it has been well for ten seconds: it has caught up, answers, and
    has room. While it isn't, anybody leads. Without ID and --none nothing changes.

    \b
    Examples:
      dledger group priority n2
      dledger group priority --none
      dledger group priority --json | jq -r .preferred
    """
    if node_id and nobody:
        raise typer.BadParameter("give either ID or --none")
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    leader, preferred = run(_priority(addresses, "" if nobody else node_id or None))
    if as_json:
        print_json({"preferred": preferred or None, "leader": leader})
    elif preferred:
        typer.echo(f"{preferred} is preferred as the leader; {leader} leads now")
    else:
        typer.echo(f"nobody is preferred as the leader; {leader} leads now")


async def _priority(addresses: list[str], prefer: str | None) -> tuple[str, str]:
    """Who leads, and who is preferred; `prefer` None: nothing changes."""
    from broker.forming.calls import GrpcCalls
    from broker.forming.joining import Wish, change

    tls = chosen_material()
    leader = (await group_status(addresses, tls)).leading()
    if prefer is None:
        members = await GrpcCalls(tls).list_members(leader.admin_address)
    else:
        wish = Wish(prefer=prefer)
        members, _ = await change(GrpcCalls(tls), leader.admin_address, wish, 0.0)
    return leader.id, members.preferred


@app.command()
def init(
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take in directories of the version before.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Form a new group, once: its members and their disks are laid down in its log.

    All members have to run and answer; one address is enough to find them. Repeating it, from
    anywhere, finishes what was begun. Ends with 0 when the group is formed, now or before.

    \b
    Examples:
      dledger group init --bootstrap 10.0.0.1:7001
      dledger group init --bootstrap 10.0.0.1:7001 --adopt
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
        tls = chosen_material()
    from broker.forming.calls import GrpcCalls
    from broker.forming.initiator import form

    formed = run(form(GrpcCalls(tls), addresses, adopt=adopt))
    if as_json:
        facts = {"group": formed.broker_group, "members": list(formed.members)}
        print_json({**facts, "was_formed_before": formed.was_before})
    else:
        when = " already" if formed.was_before else ""
        typer.echo(f"group {formed.broker_group} is formed{when}: {', '.join(formed.members)}")


@app.command()
def replace(
    node_id: Annotated[str, typer.Argument(metavar="ID")],
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, metavar="S", help="How long until it votes.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Take a new, empty disk into a group in the place of a member's lost one.

    The member has to run on the new disk. The lost one counts no more from here on, whatever comes
    back on it. Repeating it finishes what was begun. Ends with 3 if the disk doesn't vote in time;
    the group goes on with it. An observer's is done once the log names it: it never votes. Ends
    with 1 if another administrator names another disk for the member meanwhile: that one counts.

    \b
    Example:
      dledger group replace n2 --bootstrap 10.0.0.1:7001
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    from broker.forming.patience import persistently

    attempt = partial(_replace, addresses, node_id)
    with interruption_told(BEGUN_GOES_ON):
        replaced = run(persistently(attempt, lambda found: found.is_done, wait_s, remark))
    if as_json:
        disk = {"id": replaced.node_id, "disk": replaced.disk_id.hex()}
        print_json({**disk, "votes": replaced.votes, "observes": replaced.observes})
    else:
        waits = "observes" if replaced.observes else "catches up, and doesn't vote yet"
        state = "votes" if replaced.votes else waits
        typer.echo(f"{replaced.node_id} is on disk {replaced.disk_id.hex()} and {state}")
    if not replaced.is_done:
        with interruption_told(BEGUN_GOES_ON):
            tell_what_holds_up(addresses)
        end(ExitCode.UNREACHABLE)


async def _replace(addresses: list[str], node_id: str, wait_s: float) -> Replaced:
    from broker.forming.calls import GrpcCalls
    from broker.forming.errors import FormationRefused
    from broker.forming.replacing import Replacement
    from broker.forming.replacing import replace as replace_disk

    tls = chosen_material()
    status = await group_status(addresses, tls)
    leader = status.leading(besides={node_id})  # else nobody says who the members are
    where = {view.id: view.admin_address for view in status.nodes}
    if node_id not in where:
        raise FormationRefused(f"{node_id} is no member: {', '.join(sorted(where))} are")
    wanted = Replacement(node_id, where[node_id], leader.admin_address)
    return await replace_disk(GrpcCalls(tls), wanted, wait_s)


def _tell_status(status: GroupStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(status.facts())
        return
    preferred = f", preferred {status.preferred}" if status.preferred else ""
    leader, term = status.leader or "-", status.term or "-"
    typer.echo(printable(f"group {status.group or '-'}: leader {leader}, term {term}{preferred}"))
    titles = ("ID", "ROLE", "TERM", "LAST", "COMMIT", "APPLIED", "ADDRESS", "ALIVE")
    print_columns(
        titles,
        (
            (
                node.id or None,
                node.role,
                node.term,
                node.last_index,
                node.commit_index,
                node.applied_index,
                node.address,
                "yes" if node.alive else "no",
            )
            for node in status.nodes
        ),
    )
    for node in status.nodes:
        for line in _remarks_on(node):
            typer.echo(printable(line))  # whoever answers there has chosen its words


def _remarks_on(node: NodeView) -> Iterator[str]:
    if node.other_group:
        yield (
            f"at {node.address}, where {node.id} is to be, a node of broker group "
            f"{node.other_group} answers, on {node.other_directory}"
        )
    if node.is_gone:
        yield (
            f"{node.id} runs on, and is no member any more by the group's log. `dledger group "
            "doctor` says what to do"
        )
    if node.role == OUT_OF_SERVICE_ROLE:
        yield (
            f"{node.id} is out of service: its log isn't the group's. `dledger group doctor` "
            "says where they part and what to do"
        )
    if node.apply_stopped:
        yield f"{node.id} has stopped applying: {node.apply_stopped}"
    if node.newer_epoch:
        yield (
            f"{node.id} serves nobody until it is started again: a client was served in epoch "
            f"{node.newer_epoch} of the group, which {node.id} knows nothing of. `dledger "
            "group doctor` says what to do"
        )
    if node.log_damages:
        places = "a place" if node.log_damages == 1 else f"{node.log_damages} places"
        yield (
            f"{node.id} is getting back from its peers what has rotted in {places} of its log, "
            "and neither votes nor acknowledges until then: look at its disk"
        )
    for peer in node.older_copies:
        yield (
            f"{node.id} refuses {peer}: its disk is an older copy of itself. Stop it, empty "
            f"its directory, start it and `dledger group replace {peer}`"
        )

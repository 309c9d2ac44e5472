"""`dledger topic`: topics are created, listed, described and deleted through the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, NamedTuple

import typer

from dledger.client import Client, ClientError, Permission, TopicDescription, TopicInfo
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import errors_told, run
from dledger.terminal.output import print_columns, print_json
from dledger.terminal.program import new_program
from dledger_cli import topic_stats
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
    connect,
)
from dledger_cli.names import checked_topic
from dledger_cli.tables import WIDTH, cut

app = new_program("Create, change, list, describe, measure and delete topics.")

MAX_QUEUES = 1024
DEFAULT_QUEUES = 4
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="1 to 127 characters of A-Z a-z 0-9 _ % -.", callback=checked_topic
    ),
]


RETENTION_HELP = (
    "How long its messages are wanted; 0: as long as the broker group keeps messages. Shorter: "
    "older ones are read no more. Longer: segments are kept, within the group's bounds in bytes."
)
PermissionOption = Annotated[
    Permission | None,
    typer.Option(
        "--perm",
        help="What may be done with it: written and read, only read, or only written.",
    ),
]


@app.command()
def create(
    name: NameArgument,
    queues: Annotated[
        int,
        typer.Option("--queues", "--read-queues", min=1, max=MAX_QUEUES, help="How many queues."),
    ] = DEFAULT_QUEUES,
    write_queues: Annotated[
        int | None,
        typer.Option(
            "--write-queues",
            min=1,
            max=MAX_QUEUES,
            metavar="N",
            help="How many of them take messages: the first N.",
            show_default="all",
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Content with an equal topic that exists.")
    ] = False,
    retention_hours: Annotated[
        float | None,
        typer.Option("--retention-hours", min=0, metavar="H", help=RETENTION_HELP),
    ] = None,
    permission: PermissionOption = None,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Create a topic.

    With wishes for it: it is made with all of them, or not at all. Only fewer written queues are a
    second step: if that fails, the topic is there with all of them.

    \b
    Examples:
      dledger topic create logs --queues 8
      dledger topic create logs --read-queues 8 --write-queues 4
      dledger topic create archive --retention-hours 720 --perm w
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    wish = _Wish(name, queues, write_queues, retention_hours, permission)
    info = run(_create(addresses, wish, if_not_exists=if_not_exists))
    _tell(info, as_json=as_json)


@app.command()
def update(
    name: NameArgument,
    read_queues: Annotated[
        int | None,
        typer.Option(
            "--read-queues",
            min=1,
            max=MAX_QUEUES,
            metavar="N",
            help="How many queues are read. Fewer: once every consumer group has read the others.",
            show_default="as now",
        ),
    ] = None,
    write_queues: Annotated[
        int | None,
        typer.Option(
            "--write-queues",
            min=1,
            max=MAX_QUEUES,
            metavar="N",
            help="How many of them take messages: the first N. The others are read to their ends.",
            show_default="as now",
        ),
    ] = None,
    drop: Annotated[
        bool,
        typer.Option("--drop", help="Queues go though no group has read them: messages with it."),
    ] = False,
    retention_hours: Annotated[
        float | None,
        typer.Option(
            "--retention-hours", min=0, metavar="H", help=RETENTION_HELP, show_default="as now"
        ),
    ] = None,
    permission: PermissionOption = None,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Change how many queues a topic has, what it wishes for its messages, and what may be done
    with it.

    To grow: both numbers of queues at once. To shrink: first --write-queues, and when every group
    has read the queues that are closed by that, --read-queues. Of a topic that no group reads yet
    only empty queues go, unless with --drop; nor of one that members of a broadcast group read, as
    nobody else knows how far they are.

    Only read, nothing that is sent is stored: producers are refused. Only written, consumers get no
    more, and go on from where they are when it is read again. What was stored stays.

    Numbers of queues, retention and --perm are a change each, in that order. If one fails, those
    before it have taken effect, which is said; to give the whole command again is safe.

    \b
    Examples:
      dledger topic update clicks --read-queues 8 --write-queues 8
      dledger topic update clicks --write-queues 4
      dledger topic update clicks --read-queues 4
      dledger topic update clicks --retention-hours 6
      dledger topic update clicks --retention-hours 0
      dledger topic update clicks --perm r
    """
    wish = _Wish(name, read_queues, write_queues, retention_hours, permission)
    if wish.is_empty:
        raise typer.BadParameter("give --read-queues, --write-queues, --retention-hours, or --perm")
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    info = run(_update(addresses, wish, drop=drop))
    _tell(info, as_json=as_json)


def _tell(info: TopicInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(_facts(info))
        return
    count = info.queue_count
    kept = f", kept {info.retention_hours:g} h" if info.retention_hours else ""
    closed = f", {info.write_queues} of them written" if info.write_queues < count else ""
    only = {Permission.READ: ", only read", Permission.WRITE: ", only written"}
    typer.echo(
        f"{info.name}: {count} {'queue' if count == 1 else 'queues'}{closed}{kept}"
        f"{only.get(info.permission, '')}"
    )


@app.command("list")
def list_topics(
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """List the topics.

    \b
    Example:
      dledger topic list --json
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    topics = run(_list(addresses))
    if as_json:
        print_json([_facts(info) for info in topics])
    else:
        print_columns(
            ("NAME", "QUEUES", "WRITTEN", "PERM"),
            (
                (cut(info.name, 50), info.queue_count, info.write_queues, info.permission.value)
                for info in topics
            ),
        )


@app.command()
def describe(
    name: NameArgument,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Show a topic's queues, and how far each consumer group is.

    \b
    Example:
      dledger topic describe logs
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    described = run(_describe(addresses, name))
    if as_json:
        print_json(_description_facts(described))
        return
    _show(described)


def _show(described: TopicDescription) -> None:
    """A column for each consumer group; a line for each where that is too wide for a terminal."""
    groups = sorted(described.groups)
    if described.topic.write_queues < described.topic.queue_count:
        typer.echo(f"Queues 0 to {described.topic.write_queues - 1} take messages.")
    titles = ("QUEUE", "MIN", "MAX", *groups)
    rows = [
        (
            queue.queue_id,
            queue.min_offset,
            queue.max_offset,
            *(described.groups[group].get(queue.queue_id) for group in groups),
        )
        for queue in described.queues
    ]
    widths = (max(len(str(cell)) for cell in column) for column in zip(titles, *rows, strict=True))
    if sum(widths) + 2 * (len(titles) - 1) <= WIDTH:
        print_columns(titles, rows)
        return
    print_columns(titles[:3], (row[:3] for row in rows))
    typer.echo("")
    print_columns(
        ("GROUP", "BEHIND"), ((cut(group, 56), _behind(described, group)) for group in groups)
    )


def _behind(described: TopicDescription, group: str) -> int:
    """Messages that are there and not committed by the group."""
    committed = described.groups[group]
    return sum(
        queue.max_offset - max(committed.get(queue.queue_id, 0), queue.min_offset)
        for queue in described.queues
    )


app.command("stats")(topic_stats.stats)


@app.command()
def delete(
    name: NameArgument,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic with its messages and its consumers' offsets. %RETRY%GROUP and %DLQ%GROUP
    can be deleted once their group is forgotten.

    \b
    Example:
      dledger topic delete logs
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    run(_delete(addresses, name))
    if as_json:
        print_json({"deleted": name})
    else:
        typer.echo(f"{name}: deleted")


class _Wish(NamedTuple):
    """What is wished of a topic."""

    name: str
    read_queues: int | None = None
    write_queues: int | None = None
    retention_hours: float | None = None
    permission: Permission | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is wished."""
        return self == _Wish(self.name)


async def _create(addresses: list[str], wish: _Wish, *, if_not_exists: bool) -> TopicInfo:
    async with connect(addresses) as client:
        return await client.create_topic(
            wish.name,
            queues=wish.read_queues or DEFAULT_QUEUES,
            write_queues=wish.write_queues,
            if_not_exists=if_not_exists,
            retention_hours=wish.retention_hours,
            permission=wish.permission,
        )


async def _update(addresses: list[str], wish: _Wish, *, drop: bool) -> TopicInfo:
    """Each change is an entry of its own: what has taken effect is said, should the next fail."""
    async with connect(addresses) as client:
        info: TopicInfo | None = None
        changes = _changes(client, wish, drop=drop)
        for at, (_, change) in enumerate(changes):
            try:
                info = await change(0 if info is None else info.incarnation)
            except ClientError:
                if at:
                    _tell_half(wish.name, [option for option, _ in changes], at)
                raise
        assert info is not None
        return info


_Change = Callable[[int], Awaitable[TopicInfo]]  # of the topic with that incarnation; 0: any


def _changes(client: Client, wish: _Wish, *, drop: bool) -> list[tuple[str, _Change]]:
    """What is to be done, one after the other, by the options that say so."""
    name, hours, permission = wish.name, wish.retention_hours, wish.permission
    numbers = {"--read-queues": wish.read_queues, "--write-queues": wish.write_queues}
    found: list[tuple[str, _Change]] = []

    def number(_: int) -> Awaitable[TopicInfo]:
        return client.update_topic(
            name, read_queues=wish.read_queues, write_queues=wish.write_queues, drop=drop
        )

    said = [f"{option} {count}" for option, count in numbers.items() if count is not None]
    if said:
        found.append((" ".join(said), number))
    if hours is not None:
        retain = partial(client.retain_topic, name, hours)
        found.append((f"--retention-hours {hours:g}", lambda of: retain(incarnation=of)))
    if permission is not None:
        permit = partial(client.permit_topic, name, permission)
        found.append((f"--perm {permission.value}", lambda of: permit(incarnation=of)))
    return found


def _tell_half(name: str, options: list[str], failed_at: int) -> None:
    done, left = ", ".join(options[:failed_at]), ", ".join(options[failed_at:])
    typer.echo(
        f"{name}: {done} took effect; {left} didn't, or it isn't known: the error says which. "
        "To give the whole command again is safe.",
        err=True,
    )


async def _list(addresses: list[str]) -> list[TopicInfo]:
    async with connect(addresses) as client:
        return sorted(await client.topics(), key=lambda info: info.name)


async def _describe(addresses: list[str], name: str) -> TopicDescription:
    async with connect(addresses) as client:
        return await client.describe_topic(name)


async def _delete(addresses: list[str], name: str) -> None:
    async with connect(addresses) as client:
        await client.delete_topic(name)


def _facts(info: TopicInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "queue_count": info.queue_count,
        "write_queues": info.write_queues,
        "created_time_ms": info.created_time_ms,
        "retention_hours": info.retention_hours,
        "permission": info.permission.value,
    }


def _description_facts(described: TopicDescription) -> dict[str, object]:
    return _facts(described.topic) | {
        "queues": [
            {
                "queue_id": queue.queue_id,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
            }
            for queue in described.queues
        ],
        "groups": described.groups,
    }

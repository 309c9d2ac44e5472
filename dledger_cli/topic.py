"""`dledger topic`: topics are created, listed, described and deleted through the log."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from dledger.client import TopicDescription, TopicInfo
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import errors_told, run
from dledger.terminal.output import print_columns, print_json
from dledger.terminal.program import new_program
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
    connect,
)
from dledger_cli.names import checked_topic

app = new_program("Create, change, list, describe and delete topics.")

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
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Create a topic.

    \b
    Example:
      dledger topic create logs --queues 8
      dledger topic create logs --read-queues 8 --write-queues 4
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    wish = _Wish(name, queues, write_queues, retention_hours)
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
        typer.Option("--drop", help="Queues go though groups haven't read them: messages with it."),
    ] = False,
    retention_hours: Annotated[
        float | None,
        typer.Option(
            "--retention-hours", min=0, metavar="H", help=RETENTION_HELP, show_default="as now"
        ),
    ] = None,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Change in how many queues a topic is read and written, and how long it is kept.

    To grow: both numbers at once. To shrink: first --write-queues, and when every group has read
    the queues that are closed by that, --read-queues.

    \b
    Examples:
      dledger topic update clicks --read-queues 8 --write-queues 8
      dledger topic update clicks --write-queues 4
      dledger topic update clicks --read-queues 4
      dledger topic update clicks --retention-hours 6
      dledger topic update clicks --retention-hours 0
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    wish = _Wish(name, read_queues, write_queues, retention_hours)
    if wish == _Wish(name):
        raise typer.BadParameter(
            "say what is to be changed: --read-queues, --write-queues, --retention-hours"
        )
    info = run(_update(addresses, wish, drop=drop))
    _tell(info, as_json=as_json)


def _tell(info: TopicInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(_facts(info))
        return
    count = info.queue_count
    kept = f", kept {info.retention_hours:g} h" if info.retention_hours else ""
    closed = f", {info.write_queues} of them written" if info.write_queues < count else ""
    typer.echo(f"{info.name}: {count} {'queue' if count == 1 else 'queues'}{closed}{kept}")


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
            ("NAME", "READ", "WRITE"),
            ((info.name, info.queue_count, info.write_queues) for info in topics),
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
    groups = sorted(described.groups)
    print_columns(
        ("QUEUE", "MIN", "MAX", "WRITTEN", *groups),
        (
            (
                queue.queue_id,
                queue.min_offset,
                queue.max_offset,
                "yes" if queue.queue_id < described.topic.write_queues else "no",
                *(described.groups[group].get(queue.queue_id) for group in groups),
            )
            for queue in described.queues
        ),
    )


@app.command()
def delete(
    name: NameArgument,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic with its messages and its consumers' offsets.

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


async def _create(addresses: list[str], wish: _Wish, *, if_not_exists: bool) -> TopicInfo:
    async with connect(addresses) as client:
        return await client.create_topic(
            wish.name,
            queues=wish.read_queues or DEFAULT_QUEUES,
            write_queues=wish.write_queues,
            if_not_exists=if_not_exists,
            retention_hours=wish.retention_hours,
        )


async def _update(addresses: list[str], wish: _Wish, *, drop: bool) -> TopicInfo:
    async with connect(addresses) as client:
        if wish.retention_hours is not None:
            info = await client.retain_topic(wish.name, wish.retention_hours)
        if wish.read_queues is not None or wish.write_queues is not None:
            info = await client.update_topic(
                wish.name,
                read_queues=wish.read_queues,
                write_queues=wish.write_queues,
                drop=drop,
            )
        return info


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

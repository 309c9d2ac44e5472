"""`dledger query`: one message, by its id or by its place."""

from __future__ import annotations

from typing import Annotated

import typer

from dledger.client import Message
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import errors_told, run
from dledger.terminal.output import print_facts, print_json
from dledger.terminal.program import new_program
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
    connect,
)
from dledger_cli.messages import message_facts
from dledger_cli.names import TopicArgument

app = new_program("Find messages.")


@app.command("id")
def by_id(
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID")],
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Show the message of an id, as produce and consume --json tell it.

    \b
    Example:
      dledger query id 7F00000100001B5900000000000000F0
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    _tell(run(_find_id(addresses, message_id)), as_json=as_json)


@app.command("offset")
def by_offset(
    topic: TopicArgument,
    queue_id: Annotated[int, typer.Argument(metavar="QUEUE", min=0)],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0)],
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Show the message at an offset of a queue.

    \b
    Example:
      dledger query offset logs 0 41
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    _tell(run(_find_offset(addresses, topic, queue_id, offset)), as_json=as_json)


async def _find_id(addresses: list[str], message_id: str) -> Message:
    async with connect(addresses) as client:
        return await client.get_message(message_id=message_id)


async def _find_offset(addresses: list[str], topic: str, queue_id: int, offset: int) -> Message:
    async with connect(addresses) as client:
        return await client.get_message(topic=topic, queue_id=queue_id, offset=offset)


def _tell(message: Message, *, as_json: bool) -> None:
    facts = message_facts(message)
    if as_json:
        print_json(facts)
        return
    print_facts(facts)

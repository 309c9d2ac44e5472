"""`dledger dlq`: dead letters of a consumer group are listed, shown and sent again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from dledger.client import DeadLetters, DeadQueue, Message, Resent
from dledger.records.reserved import (
    DEAD_REASON,
    ORIGIN_OFFSET,
    ORIGIN_QUEUE,
    ORIGIN_TOPIC,
    dead_letter_topic,
)
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import complain, errors_told, interruption_told, run
from dledger.terminal.output import print_columns, print_facts, print_json
from dledger.terminal.program import new_program
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
    connect,
)
from dledger_cli.messages import message_facts
from dledger_cli.names import checked_group_of_members

app = new_program("List, show and send again what a consumer group couldn't work on.")

MOST_LISTED = 10_000
GOES_ON = (
    "the one after these may have been sent again as well; the same command goes on there, and "
    "sends none twice"
)
TOPIC_WIDTH = 28  # of the table, which fits 80 columns
GroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="The consumer group: 1 to 119 characters of A-Z a-z 0-9 _ % -.",
        callback=checked_group_of_members,
    ),
]
Letter = tuple[Message, bool]  # and whether it was sent again


@dataclass(frozen=True, slots=True)
class _Listed:
    """Some dead letters, and how many are left behind them, from `next_offset` on."""

    letters: list[Letter]
    next_offset: int
    left: int


@app.command("list")
def list_letters(
    group: GroupArgument,
    first: Annotated[
        int, typer.Option("--from", min=0, metavar="OFFSET", help="Not before this one.")
    ] = 0,
    most: Annotated[
        int, typer.Option("--max", min=1, max=MOST_LISTED, metavar="N", help="So many.")
    ] = 50,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """List a group's dead letters, the oldest first.

    \b
    Examples:
      dledger dlq list billing
      dledger dlq list billing --from 50 --json
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    listed = run(_list(addresses, group, first, most))
    if as_json:
        print_json([_facts(*letter) for letter in listed.letters])
    else:
        print_columns(
            ("OFFSET", "TRIES", "WHY", "TOPIC", "WAS AT", "AGAIN"),
            (_row(message, was_resent=was_resent) for message, was_resent in listed.letters),
        )
    if listed.left:
        complain(f"... and up to {listed.left:,} more: --from {listed.next_offset}")


@app.command()
def show(
    group: GroupArgument,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0)],
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: where it came from, why it is dead, what it says.

    \b
    Example:
      dledger dlq show billing 3
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    facts = _facts(*run(_show(addresses, group, offset)))
    if as_json:
        print_json(facts)
        return
    print_facts(facts)


@app.command()
def resend(
    group: GroupArgument,
    offsets: Annotated[list[int], typer.Argument(metavar="OFFSET...", min=0)],
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Make dead letters messages of their topic again, each once, for all its consumer groups.

    They are sent one after the other. Where one can't be, those before it are told, and none behind
    it was sent; the same command goes on there, as none is sent twice.

    \b
    Examples:
      dledger dlq resend billing 3
      dledger dlq resend billing 3 4 7
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    done: list[tuple[int, Resent]] = []
    try:
        with interruption_told(GOES_ON):
            run(_resend(addresses, group, offsets, done))
    finally:  # what ends it says so itself
        if done:
            _tell(done, as_json=as_json)


async def _list(addresses: list[str], group: str, first: int, most: int) -> _Listed:
    async with connect(addresses) as client:
        found: list[Letter] = []
        left: list[tuple[int, int]] = []  # of each queue: where it would go on, and how many
        letters = await client.dead_letters(group)
        if not letters.queues:  # none so far, or nobody knows the group: that is told
            await client.consumer_groups.describe(group)
        for queue in letters.queues:
            at = max(first, queue.min_offset)
            while at < queue.max_offset and len(found) < most:
                wanted = min(most - len(found), queue.max_offset - at)
                answer = await client.pull(letters.topic, queue.queue_id, at, max_messages=wanted)
                found += [(each, queue.was_resent(each.queue_offset)) for each in answer.messages]
                at = answer.next_offset
            if at < queue.max_offset:
                left.append((at, queue.max_offset - at))
        return _Listed(found, min(left, default=(0, 0))[0], sum(count for _, count in left))


async def _show(addresses: list[str], group: str, offset: int) -> Letter:
    async with connect(addresses) as client:
        letters = await client.dead_letters(group)
        queue = _queue_of(letters)
        message = await client.get_message(
            topic=dead_letter_topic(group), queue_id=queue.queue_id, offset=offset
        )
        return message, queue.was_resent(offset)


def _queue_of(letters: DeadLetters) -> DeadQueue:
    """The one that there is; if there is none, asking for its messages says so."""
    return letters.queues[0] if letters.queues else DeadQueue(0, 0, 0)


async def _resend(
    addresses: list[str], group: str, offsets: list[int], done: list[tuple[int, Resent]]
) -> None:
    """Each is in `done` as soon as it was sent."""
    async with connect(addresses) as client:
        for offset in offsets:
            done.append((offset, await client.resend(group, offset)))


def _tell(done: list[tuple[int, Resent]], *, as_json: bool) -> None:
    if as_json:
        print_json([_place(offset, resent) for offset, resent in done])
        return
    for offset, resent in done:
        place = f"sent again, as {resent.topic}/{resent.queue_id} offset {resent.offset}"
        typer.echo(f"{offset}: {'was sent again before' if resent.offset is None else place}")


def _row(message: Message, *, was_resent: bool) -> tuple[object, ...]:
    properties = message.properties
    topic = properties.get(ORIGIN_TOPIC, "")
    shown = topic if len(topic) <= TOPIC_WIDTH else f"{topic[: TOPIC_WIDTH - 1]}…"
    place = f"{properties.get(ORIGIN_QUEUE, '?')}/{properties.get(ORIGIN_OFFSET, '?')}"
    why = properties.get(DEAD_REASON)
    again = "yes" if was_resent else None
    return message.queue_offset, message.reconsume_times, why, shown, place, again


def _facts(message: Message, was_resent: bool) -> dict[str, object]:  # noqa: FBT001 - of a pair
    properties = message.properties
    return message_facts(message) | {
        "attempts": message.reconsume_times,
        "reason": properties.get(DEAD_REASON),
        "origin_topic": properties.get(ORIGIN_TOPIC),
        "resent": was_resent,
    }


def _place(offset: int, resent: Resent) -> dict[str, object]:
    return {
        "dead_offset": offset,
        "resent": resent.offset is not None,
        "topic": resent.topic,
        "queue_id": resent.queue_id,
        "offset": resent.offset,
    }

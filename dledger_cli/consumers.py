"""`dledger consumers`: consumer groups are listed, looked at, moved and copied.

`dledger group` is the broker group. What a command shows is the leader's picture; rates are what
happens between two of them. Tables fit a terminal: long names are cut there, never in JSON.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Annotated

import typer

from dledger.client import (
    GroupDescription,
    GroupInfo,
    GroupQueue,
    MovedQueue,
    StartFrom,
)
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import errors_told, run
from dledger.terminal.output import print_columns, print_json, shown
from dledger.terminal.program import new_program
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
    connect,
)
from dledger_cli.names import TopicArgument, checked_consumer_group
from dledger_cli.tables import cut, duration

app = new_program("Look at consumer groups, move them, copy them.")


MAX_OFFSET_DIGITS = 18  # no queue is that long
LISTED_WIDTH = 33  # of a group's name, beside the longest style and time
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", callback=checked_consumer_group)]
QueuesOption = Annotated[
    list[int] | None,
    typer.Option("--queue", min=0, metavar="ID", help="This queue; may be given more than once."),
]
IntervalOption = Annotated[
    float,
    typer.Option(
        "--interval", min=0, metavar="S", help="Time over which rates are measured; 0: none."
    ),
]


# --- looking -----------------------------------------------------------------------------------


@app.command("list")
def list_groups(
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """List the consumer groups.

    Those without a style have only committed offsets: nobody ever joined them. Singles are handed
    their messages one by one.

    \b
    Example:
      dledger consumers list
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    groups = run(_list(addresses))
    if as_json:
        print_json([asdict(each) for each in groups])
        return
    print_columns(
        ("GROUP", "MEMBERS", "STYLE", "TOPICS", "UNUSED"),
        (
            (
                cut(each.name, LISTED_WIDTH),
                each.member_count,
                _style(each),
                each.topic_count,
                None if each.member_count else duration(each.unused_s),
            )
            for each in groups
        ),
    )


@app.command()
def describe(
    group: GroupArgument,
    interval: IntervalOption = 1.0,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Show a group's members, and how far it is in each queue.

    AHEAD counts messages above the committed offset that are finished already, LAG those that are
    there and unfinished. RATE is messages finished a second. OLDEST is how long ago the oldest
    unfinished message was stored, by this machine's clock. BY says which member holds the queue; a
    star, that it was asked back; of a group of single messages IN HAND says how many are handed out
    or given back, and not finished.

    \b
    Examples:
      dledger consumers describe billing
      dledger consumers describe billing --interval 10
      dledger consumers describe billing --interval 0 --json
    """
    if not math.isfinite(interval):
        raise typer.BadParameter(f"--interval {interval} is no time")
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    found, rates = run(_describe(addresses, group, interval))
    if as_json:
        print_json(_description_facts(found, rates))
    else:
        _show(found, rates)


def _show(found: GroupDescription, rates: Rates) -> None:
    group = found.group
    parts = [_style(group) or "only offsets", group.strategy]
    parts += [
        f"from {group.start}" if group.start else "",
        f"version {group.version}" if group.joined else "",
    ]
    typer.echo(shown(f"{group.name}: {', '.join(part for part in parts if part)}"))
    numbers = {each.session: at for at, each in enumerate(found.members, 1)}
    if found.members:
        typer.echo("")
        print_columns(
            ("NR", "MEMBER", "SESSION", "QUEUES", "STREAM", "EXPIRES"),
            (
                (
                    at,
                    cut(shown(each.name)),
                    each.session,
                    each.queue_count,
                    "here" if each.attached else None,
                    duration(each.expires_s),
                )
                for at, each in enumerate(found.members, 1)
            ),
        )
    for topic, queues in groupby(found.queues, key=lambda each: each.topic):
        holder = _in_hand if group.singles else partial(_holder, numbers=numbers)
        _show_topic(topic, list(queues), rates, "IN HAND" if group.singles else "BY", holder)


def _show_topic(
    topic: str,
    queues: Sequence[GroupQueue],
    rates: Rates,
    last: str,
    shown_last: Callable[[GroupQueue], object],
) -> None:
    typer.echo(f"\n{topic}: lag {sum(each.lag for each in queues)}")
    now_ms = time.time() * 1000
    print_columns(
        ("QUEUE", "COMMITTED", "END", "AHEAD", "LAG", "RATE", "OLDEST", last),
        (
            (
                each.queue_id,
                each.committed,
                each.max_offset,
                each.finished,
                each.lag,
                _rate(rates.get((topic, each.queue_id))),
                _age(each, now_ms),
                shown_last(each),
            )
            for each in queues
        ),
    )


def _in_hand(queue: GroupQueue) -> int:
    return queue.in_hand


def _holder(queue: GroupQueue, numbers: Mapping[int, int]) -> str | None:
    if not queue.session:
        return None
    number = numbers.get(queue.session)  # it joined, or left, between two answers
    return f"{'?' if number is None else number}{'*' if queue.asked else ''}"


def _age(queue: GroupQueue, now_ms: float) -> str | None:
    stored_ms = queue.oldest_unfinished_ms
    return None if stored_ms is None else duration(max(now_ms - stored_ms, 0.0) / 1000)


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:.1f}"


def _style(group: GroupInfo) -> str | None:
    if not group.joined and not group.singles:
        return None
    style = "singles" if group.singles else "broadcast" if group.broadcast else "shared"
    return f"{style} in order" if group.in_order else style


# --- moving ------------------------------------------------------------------------------------


def _parsed_target(text: str) -> StartFrom | datetime | int:
    """`first`, `last`, an offset, or a time with its zone.

    Raises:
        typer.BadParameter: it is none of these.
    """
    if text in ("first", "last"):
        return StartFrom[text.upper()]
    if text.isascii() and text.isdigit() and len(text) <= MAX_OFFSET_DIGITS:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text[:80]!r} isn't first, last, an offset, or a time like 2026-01-31T12:00:00Z"
        ) from error
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text} names no moment: end it with Z, or an offset like +01:00")
    return moment


@app.command("reset-offset")
def reset_offset(
    group: GroupArgument,
    topic: TopicArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="first|last|OFFSET|TIME",
            help="Where the group goes on. TIME: at the first message stored then or later.",
        ),
    ],
    queues: QueuesOption = None,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Have a group go on elsewhere in a topic, in all queues or some.

    It works while members are at it: they lose these queues, and are given them anew; what they
    commit late is refused. Who commits for the group without being a member has to be stopped.

    \b
    Examples:
      dledger consumers reset-offset billing orders --to first
      dledger consumers reset-offset billing orders --to 2026-01-31T12:00:00Z
      dledger consumers reset-offset billing orders --to 1200 --queue 3
    """
    target = _parsed_target(to)
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    _tell_moved(run(_reset(addresses, group, topic, target, queues or [])), as_json=as_json)


@app.command()
def skip(
    group: GroupArgument,
    topic: TopicArgument,
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, metavar="N", help="The N oldest unfinished of each queue."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that are there, those that no member has seen too.")
    ] = False,
    queues: QueuesOption = None,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Have a group pass over unfinished messages: they count as finished.

    As reset-offset it works while members are at it. Nothing that is finished comes again.

    \b
    Examples:
      dledger consumers skip billing orders --queue 3 --count 1
      dledger consumers skip billing orders --all
    """
    if (count is None) != everything:
        raise typer.BadParameter("give one of --count and --all")
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    _tell_moved(run(_skip(addresses, group, topic, count, queues or [])), as_json=as_json)


def _tell_moved(moved: Iterable[MovedQueue], *, as_json: bool) -> None:
    if as_json:
        print_json([each._asdict() for each in moved])
    else:
        print_columns(("QUEUE", "BEFORE", "NOW"), moved)


@app.command()
def clone(
    source: Annotated[str, typer.Argument(metavar="SOURCE", callback=checked_consumer_group)],
    target: Annotated[str, typer.Argument(metavar="TARGET", callback=checked_consumer_group)],
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Copy a group's committed offsets to a group that isn't there yet.

    What the source has finished above its committed offsets comes to the target.

    \b
    Example:
      dledger consumers clone billing billing-trial
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    count = run(_clone(addresses, source, target))
    if as_json:
        print_json({"source": source, "target": target, "topic_count": count})
    else:
        typer.echo(
            f"{target}: offsets of {source} in {count} {'topic' if count == 1 else 'topics'}"
        )


# --- asking ------------------------------------------------------------------------------------

Rates = Mapping[tuple[str, int], float]  # messages finished a second, by topic and queue


async def _list(addresses: list[str]) -> list[GroupInfo]:
    async with connect(addresses) as client:
        return await client.consumer_groups.list()


async def _describe(
    addresses: list[str], group: str, interval_s: float
) -> tuple[GroupDescription, Rates]:
    async with connect(addresses) as client:
        groups = client.consumer_groups
        before: list[GroupQueue] = []
        begun_s = time.monotonic()
        if interval_s:
            before = await groups.progress(group)
            begun_s = time.monotonic()
            await asyncio.sleep(interval_s)
        found = await groups.describe(group)
        return found, rates_of(before, found.queues, time.monotonic() - begun_s)


def rates_of(before: Sequence[GroupQueue], after: Sequence[GroupQueue], seconds: float) -> Rates:
    """Messages finished a second; of a queue that was moved back, or is new, nothing."""
    done = {(each.topic, each.queue_id): each.done for each in before}
    return {
        (each.topic, each.queue_id): (each.done - known) / seconds
        for each in after
        if (known := done.get((each.topic, each.queue_id))) is not None and each.done >= known
    }


async def _reset(
    addresses: list[str],
    group: str,
    topic: str,
    to: StartFrom | datetime | int,
    queues: Sequence[int],
) -> list[MovedQueue]:
    async with connect(addresses) as client:
        return await client.consumer_groups.reset(group, topic, to, queues=queues)


async def _skip(
    addresses: list[str], group: str, topic: str, count: int | None, queues: Sequence[int]
) -> list[MovedQueue]:
    async with connect(addresses) as client:
        return await client.consumer_groups.skip(group, topic, count, queues=queues)


async def _clone(addresses: list[str], source: str, target: str) -> int:
    async with connect(addresses) as client:
        return await client.consumer_groups.clone(source, target)


def _description_facts(found: GroupDescription, rates: Rates) -> dict[str, object]:
    return asdict(found.group) | {
        "members": [asdict(each) for each in found.members],
        "queues": [
            asdict(each) | {"rate_per_s": rates.get((each.topic, each.queue_id))}
            for each in found.queues
        ],
        "lag": sum(each.lag for each in found.queues),
    }

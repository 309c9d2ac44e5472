"""`dledger topic stats`: what is in a topic's queues, and how fast messages come.

Rates are the difference of two pictures of the leader's, taken by this command.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from dledger.client import QueueStats, TopicStats
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import errors_told, run
from dledger.terminal.output import print_columns, print_json
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
    connect,
)
from dledger_cli.names import TopicArgument
from dledger_cli.tables import duration

Rates = Mapping[int, float]  # messages stored a second, by queue
TOTAL: Final = "all"


def stats(
    name: TopicArgument,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", min=0, metavar="S", help="Time over which rates are measured; 0: none."
        ),
    ] = 1.0,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Show how many messages each queue holds, when the last one came, and how many come.

    HELD is how many offsets can be read, RATE messages stored a second, LAST how long ago the last
    one was stored, by this machine's clock.

    \b
    Examples:
      dledger topic stats logs
      dledger topic stats logs --interval 10 --json
    """
    if not math.isfinite(interval):
        raise typer.BadParameter(f"--interval {interval} is no time")
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
    found, rates = run(_measure(addresses, name, interval))
    if as_json:
        print_json(_facts(found, rates))
    else:
        _show(found, rates)


async def _measure(addresses: list[str], name: str, interval_s: float) -> tuple[TopicStats, Rates]:
    async with connect(addresses) as client:
        if not interval_s:
            return await client.topic_stats(name), {}
        before = await client.topic_stats(name)
        begun_s = time.monotonic()
        await asyncio.sleep(interval_s)
        found = await client.topic_stats(name)
        return found, rates_of(before, found, time.monotonic() - begun_s)


def rates_of(before: TopicStats, after: TopicStats, seconds: float) -> Rates:
    """Messages stored a second, by queue; of a topic made anew, and of new queues, nothing."""
    if before.topic.incarnation != after.topic.incarnation:
        return {}
    ends = {each.queue_id: each.max_offset for each in before.queues}
    return {
        each.queue_id: (each.max_offset - ends[each.queue_id]) / seconds
        for each in after.queues
        if each.queue_id in ends
    }


def _show(found: TopicStats, rates: Rates) -> None:
    now_ms = time.time() * 1000
    rows: list[tuple[object, ...]] = [
        (
            each.queue_id,
            each.min_offset,
            each.max_offset,
            each.held,
            _rate(rates.get(each.queue_id)),
            _age(each.last_stored_ms, now_ms),
        )
        for each in found.queues
    ]
    if len(found.queues) > 1:
        last_ms = max((each.last_stored_ms or 0 for each in found.queues), default=0)
        total = sum(rates.values()) if rates else None
        age = _age(last_ms or None, now_ms)
        rows.append((TOTAL, None, None, _held(found.queues), _rate(total), age))
    print_columns(("QUEUE", "MIN", "MAX", "HELD", "RATE", "LAST"), rows)


def _held(queues: Sequence[QueueStats]) -> int:
    return sum(each.held for each in queues)


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:.1f}"


def _age(stored_ms: int | None, now_ms: float) -> str | None:
    return None if stored_ms is None else duration(max(now_ms - stored_ms, 0.0) / 1000)


def _facts(found: TopicStats, rates: Rates) -> dict[str, object]:
    return {
        "name": found.topic.name,
        "permission": found.topic.permission.value,
        "retention_hours": found.topic.retention_hours,
        "held": _held(found.queues),
        "rate_per_s": sum(rates.values()) if rates else None,
        "queues": [
            {
                "queue_id": each.queue_id,
                "min_offset": each.min_offset,
                "max_offset": each.max_offset,
                "held": each.held,
                "last_stored_ms": each.last_stored_ms,
                "rate_per_s": rates.get(each.queue_id),
            }
            for each in found.queues
        ],
    }

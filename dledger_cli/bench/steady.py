"""`bench steady`: full load without a fault. Nothing may happen, and memory must not grow.

Watches what nobody sees in a rate: changes of leader, how late the nodes' event loops came, the
memory of each node. Reads nothing back; `failover` does.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.local_group import LocalGroup, LocalGroupError
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.load import NumberedLoad
from dledger_cli.bench.node_watch import (
    NodeMetricsSample,
    ProcessUse,
    greatest_lateness_bound,
    metrics_of,
    uses_of,
)
from dledger_cli.bench.rounds import MS, Tell, Yardsticks
from dledger_cli.bench.yardsticks import echo_client

MIB = 1 << 20
MEMORY_TARGET_MIB = 200
SAMPLE_EVERY_S = 1.0
EXPECTED_BYTES_PER_S = 50 * MIB  # for judging beforehand whether the disk is large enough
LOG_BYTES_PER_BODY_BYTE = 1.25  # headers, and ConsumeQueues


@dataclass(slots=True)
class Watched:
    """What was seen from second to second."""

    uses: list[dict[str, ProcessUse]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


async def steady(
    place: Arena,
    echo_address: str,
    *,
    minutes: float,
    bytes_limit: int | None,
    size_bytes: int,
    in_flight: int,
    tell: Tell,
) -> Report:
    """Loads the group for `minutes`, or until `bytes_limit` bytes of bodies are acknowledged.

    Raises:
        LocalGroupError: the disk is too small for that.
    """
    group = place.local_group()
    require_room(group, minutes=minutes, bytes_limit=bytes_limit)
    async with (
        connected(place) as client,
        fresh_topic(place, client) as topic,
        client.producer() as producer,
        echo_client(echo_address) as echo,
    ):
        yardsticks = Yardsticks(echo, place.directory, tell)
        await yardsticks.sample()
        term = (await group.status()).term or 0
        before = await _all_metrics(group)
        load = NumberedLoad(producer, topic, size_bytes=size_bytes, limit=in_flight)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(), name="load")
            watched = await _watch(group, load, minutes * 60, bytes_limit, tell)
            load.stop()
        after = await _all_metrics(group)
        terms = ((await group.status()).term or 0) - term
        await yardsticks.sample()
    return Report(
        "steady",
        {
            "minutes": minutes,
            "bytes_limit": bytes_limit or 0,
            "size_bytes": size_bytes,
            "in_flight": in_flight,
        },
        yardsticks.figures(),
        (
            *_traffic_figures(load, watched),
            *_calm_figures(terms, before, after),
            *_memory_figures(watched),
        ),
        tuple(f"{count} × {text}" for text, count in load.errors.most_common()),
    )


def require_room(group: LocalGroup, *, minutes: float, bytes_limit: int | None) -> None:
    """Refuses a run that would fill the disk.

    Raises:
        LocalGroupError: there is less room than the run may need.
    """
    bodies = minutes * 60 * EXPECTED_BYTES_PER_S if bytes_limit is None else bytes_limit
    needed = int(bodies * LOG_BYTES_PER_BODY_BYTE * len(group.nodes))
    free = shutil.disk_usage(group.directory).free
    if free < needed:
        raise LocalGroupError(
            f"this run may write {needed // MIB:,} MiB and {group.directory} has "
            f"{free // MIB:,} MiB left; set --bytes, or another --dir"
        )


async def _watch(
    group: LocalGroup, load: NumberedLoad, seconds: float, bytes_limit: int | None, tell: Tell
) -> Watched:
    """Looks every second until the time is over or enough was acknowledged."""
    watched = Watched()
    nodes = group.nodes
    began = last = time.monotonic()
    count = 0
    while time.monotonic() - began < seconds:
        await asyncio.sleep(SAMPLE_EVERY_S)
        now, acknowledged = time.monotonic(), load.ledger.acknowledged
        watched.rates.append((acknowledged - count) / (now - last))
        watched.uses.append(uses_of(nodes))
        last, count = now, acknowledged
        tell(f"{now - began:.0f} s, {load.bytes_acknowledged / 1e6:,.0f} MB")
        if bytes_limit is not None and load.bytes_acknowledged >= bytes_limit:
            break
    return watched


async def _all_metrics(group: LocalGroup) -> list[NodeMetricsSample]:
    return [await asyncio.to_thread(metrics_of, node) for node in group.nodes]


def _traffic_figures(load: NumberedLoad, watched: Watched) -> tuple[Figure, ...]:
    audit = load.ledger.audit()
    none = Target(Comparison.AT_MOST, 0, must=True)
    return (
        Figure("rate", "msgs/s", Spread.of(watched.rates)),
        Figure("bodies", "MB", Spread.of([load.bytes_acknowledged / 1e6])),
        Figure("acknowledged", "msgs", Spread.of([audit.acknowledged])),
        Figure("not_acknowledged", "msgs", Spread.of([audit.refused + audit.unknown]), target=none),
    )


def _calm_figures(
    terms: int, before: Sequence[NodeMetricsSample], after: Sequence[NodeMetricsSample]
) -> tuple[Figure, ...]:
    none = Target(Comparison.AT_MOST, 0)
    elections = sum(
        _elections(now) - _elections(then) for then, now in zip(before, after, strict=True)
    )
    lateness_ms = greatest_lateness_bound(before, after) * MS
    return (
        Figure("leader_changes", "terms", Spread.of([float(terms)]), target=none),
        Figure("candidacies", "times", Spread.of([elections]), target=none),
        Figure("loop_lateness_below", "ms", Spread.of([lateness_ms])),
    )


def _elections(sample: NodeMetricsSample) -> float:
    return sample.values["dledger_elections_total"]


def _memory_figures(watched: Watched) -> tuple[Figure, ...]:
    target = Target(Comparison.AT_MOST, MEMORY_TARGET_MIB)
    figures = []
    for node_id in sorted(watched.uses[0]):
        uses = [use[node_id] for use in watched.uses if node_id in use]
        greatest = max(use.resident_bytes for use in uses) / MIB
        own = max(use.anonymous_bytes for use in uses) / MIB
        first, last = uses[0].resident_bytes / MIB, uses[-1].resident_bytes / MIB
        figures += [
            Figure(f"{node_id}_memory_peak", "MiB", Spread.of([greatest]), target=target),
            Figure(f"{node_id}_memory_own_peak", "MiB", Spread.of([own])),
            Figure(f"{node_id}_memory_growth", "MiB", Spread.of([last - first])),
        ]
    return tuple(figures)

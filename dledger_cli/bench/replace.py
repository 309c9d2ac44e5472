"""`bench replace`: how long a member whose disk was wiped takes until it votes again.

Its process is killed and its directory emptied; it is started on that and taken in as
`dledger member replace` does it. The time runs from the group's being asked to its vote, so the
process's own start isn't in it (`bench restart` has that). Each round does it twice: while nobody
sends anything, and under full load, where the rate that clients get is held against what they got
just before. Beside it what the disk gives a program that writes as much, one after the other.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from broker.forming.calls import GrpcCalls
from broker.forming.patience import patiently
from broker.forming.replacing import Replaced, Replacement
from broker.forming.replacing import replace as replace_disk
from broker.local_group import LocalGroup, LocalGroupError, LocalNode
from dledger.client import Client
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target, ratios
from dledger_cli.bench.filled import QUEUES, Shape, fill_to, status_of, until_level
from dledger_cli.bench.load import NumberedLoad, under
from dledger_cli.bench.rounds import Tell
from dledger_cli.bench.steady import require_room

T = TypeVar("T")

SHARE: Final = 0.3  # of what the disk takes, at least
KEPT: Final = 0.5  # of the rate before, at least
BLOCK_BYTES: Final = 1 << 20
SYNC_BYTES: Final = 64 << 20
BASELINE_S: Final = 5.0  # of load, before the member is replaced under it
REPLACE_S: Final = 1_200.0
POLL_S: Final = 0.05
GROWTH: Final = 3  # times the log's size is reckoned with for the load's messages
QUIET, LOADED = "quiet", "loaded"


@dataclass(slots=True)
class Taken:
    """What the rounds gave."""

    disk: list[float] = field(default_factory=list)  # bytes a second; one more than rounds
    rates: dict[str, list[float]] = field(default_factory=lambda: {QUIET: [], LOADED: []})
    seconds: dict[str, list[float]] = field(default_factory=lambda: {QUIET: [], LOADED: []})
    before: list[float] = field(default_factory=list)  # messages a second
    meanwhile: list[float] = field(default_factory=list)
    failed: int = 0


async def replace(
    place: Arena, *, size: int, shape: Shape, in_flight: int, rounds: int, tell: Tell
) -> Report:
    """Wipes a follower twice a round, once beside a load.

    Raises:
        LocalGroupError: it doesn't vote again; the disk is too small; no majority would be left.
    """
    group, taken = place.local_group(), Taken()
    if len(group.nodes) < 3:
        raise LocalGroupError("a majority has to stay: --nodes 3")
    require_room(group, minutes=0, bytes_limit=GROWTH * size)
    async with connected(place) as client, fresh_topic(place, client, QUEUES) as topic:
        tell(f"filling the log to {size / 1e6:,.0f} MB")
        await fill_to(group, client, topic, shape, size)
        taken.disk.append(sample_writing(group.directory, size))
        for number in range(1, rounds + 1):
            tell(f"round {number} of {rounds}: nobody sends")
            await _quiet(group, taken)
            tell(f"round {number} of {rounds}: under load")
            await _loaded(group, client, topic, (shape.size_bytes, in_flight), taken)
            taken.disk.append(sample_writing(group.directory, size))
    return _report(taken, size, shape, in_flight)


async def _quiet(group: LocalGroup, taken: Taken) -> None:
    seconds, copied = await _replaced(group)
    taken.rates[QUIET].append(copied / seconds)
    taken.seconds[QUIET].append(seconds)
    await until_level(group)


async def _loaded(
    group: LocalGroup, client: Client, topic: str, how: tuple[int, int], taken: Taken
) -> None:
    size_bytes, in_flight = how
    async with client.producer() as producer:
        load = NumberedLoad(producer, topic, size_bytes=size_bytes, limit=in_flight)
        async with under(load):
            first, _ = await _rate(load, _baseline(load))
            during, (seconds, copied) = await _rate(load, _replaced(group))
    audit = load.ledger.audit()
    taken.failed += audit.refused + audit.unknown
    taken.before.append(first)
    taken.meanwhile.append(during)
    taken.rates[LOADED].append(copied / seconds)
    taken.seconds[LOADED].append(seconds)
    await until_level(group)


async def _baseline(load: NumberedLoad) -> None:
    """Some seconds, and some messages.

    Raises:
        LocalGroupError: none is acknowledged.
    """
    deadline, count = time.monotonic() + REPLACE_S, load.ledger.acknowledged
    await asyncio.sleep(BASELINE_S)
    while load.ledger.acknowledged == count:
        if time.monotonic() > deadline:
            raise LocalGroupError("no message is acknowledged")
        await asyncio.sleep(POLL_S)


async def _rate(load: NumberedLoad, meanwhile: Awaitable[T]) -> tuple[float, T]:
    """Acknowledged messages a second until `meanwhile` is over, and what that gave."""
    count, began = load.ledger.acknowledged, time.monotonic()
    given = await meanwhile
    return (load.ledger.acknowledged - count) / (time.monotonic() - began), given


async def _replaced(group: LocalGroup) -> tuple[float, int]:
    """A follower's disk is another, and it votes: seconds, and bytes of its log then.

    Raises:
        LocalGroupError: it doesn't, in time.
        FormationRefused, MemberUnreachable: the group doesn't take it.
    """
    victim = await group.resolve("follower")
    await _wiped(group, victim)
    began = time.monotonic()

    async def attempt() -> Replaced:
        """By whoever leads now."""
        leader = await group.resolve("leader")
        wanted = Replacement(victim.id, victim.address, leader.address)
        return await replace_disk(GrpcCalls(), wanted, REPLACE_S)

    done = await patiently(attempt, REPLACE_S, lambda _: None)
    if not done.votes:
        raise LocalGroupError(f"{victim.id} doesn't vote after {REPLACE_S:g} s")
    seconds = time.monotonic() - began
    return seconds, (await status_of(victim)).end_offset


async def _wiped(group: LocalGroup, victim: LocalNode) -> None:
    """It runs on an empty directory."""
    group.signal(victim.id, signal.SIGKILL)
    if not await group.wait_gone(victim.id):
        raise LocalGroupError(f"{victim.id} outlived its SIGKILL")
    shutil.rmtree(Path(victim.data_directory))
    await group.start(victim.id)


def sample_writing(directory: Path, size: int) -> float:
    """Bytes a second that a program writes there in blocks of 1 MiB, with an fdatasync a 64 MiB;
    it blocks.

    Raises:
        OSError: the directory can't be written, or is full.
    """
    block = os.urandom(BLOCK_BYTES)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        began = time.perf_counter()
        for at in range(0, size, BLOCK_BYTES):
            file.write(block)
            if (at + BLOCK_BYTES) % SYNC_BYTES == 0:
                os.fdatasync(file.fileno())
        os.fdatasync(file.fileno())
        return size / (time.perf_counter() - began)


def _report(taken: Taken, size: int, shape: Shape, in_flight: int) -> Report:
    share = Target(Comparison.AT_LEAST, SHARE)
    kept = [now / was for now, was in zip(taken.meanwhile, taken.before, strict=True)]
    figures = []
    for name in (QUIET, LOADED):
        rates = taken.rates[name]
        beside = ratios(rates, taken.disk)
        figures += [
            Figure(f"{name}_copied", "MB/s", _mb(rates), "disk_write", beside, share),
            Figure(f"{name}_until_it_votes", "s", Spread.of(taken.seconds[name])),
        ]
    none = Target(Comparison.AT_MOST, 0, must=True)
    return Report(
        "replace",
        {
            "log_bytes": size,
            "body_bytes": shape.size_bytes,
            "messages_per_entry": shape.per_entry,
            "in_flight": in_flight,
            "rounds": len(taken.before),
        },
        (
            Figure("disk_write", "MB/s", _mb(taken.disk)),
            Figure("rate_before", "msgs/s", Spread.of(taken.before)),
        ),
        (
            *figures,
            Figure(
                "rate_meanwhile",
                "msgs/s",
                Spread.of(taken.meanwhile),
                "rate_before",
                Spread.of(kept),
                Target(Comparison.AT_LEAST, KEPT),
            ),
            Figure("failed", "msgs", Spread.of([float(taken.failed)]), target=none),
        ),
        ("quiet: nobody sends; loaded: under full load, which copies its messages as well",),
    )


def _mb(rates: list[float]) -> Spread:
    return Spread.of([rate / 1e6 for rate in rates])

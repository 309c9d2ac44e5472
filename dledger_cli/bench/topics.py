"""`bench topics`: what many topics cost: making them, starting with them, holding them.

They are made by one client, some at a time, beside the echo's calls of the same run, and each queue
is given a message. Then a follower is killed and started, round by round: the time runs from its
process's start to a member that has applied what was committed. Memory is that of the node that
uses most: before the first topic, when all are made, when each queue has its message, and after
each start.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from uuid import uuid4

from broker.local_group import LocalGroup, LocalGroupError, LocalNode, probe
from dledger.client import Client, SendResult
from dledger_cli.bench.arena import Arena, connected
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target, ratios
from dledger_cli.bench.filled import status_of
from dledger_cli.bench.load import FILL_IN_FLIGHT
from dledger_cli.bench.node_watch import uses_of
from dledger_cli.bench.rounds import Tell, Yardsticks, in_ms
from dledger_cli.bench.yardsticks import echo_client

RATE = Target(Comparison.AT_LEAST, 500)
START = Target(Comparison.AT_MOST, 10_000)
MEMORY = Target(Comparison.AT_MOST, 500)
PROMISED = (10_000, 4)  # topics, queues of each
START_S = 600.0
POLL_S = 0.02
QUEUES_A_PRODUCER = 4_096  # as many as one remembers
MIB = 1 << 20


@dataclass(slots=True)
class Taken:
    """What was found. Memory in MiB: that of the node that uses most."""

    before_mib: float
    rates: list[float] = field(default_factory=list)
    made_mib: float = 0.0
    filled: float = 0.0
    filled_mib: float = 0.0
    starts_s: list[float] = field(default_factory=list)
    started_mib: list[float] = field(default_factory=list)


async def topics(
    place: Arena,
    echo_address: str,
    *,
    count: int,
    queues: int,
    in_flight: int,
    rounds: int,
    tell: Tell,
) -> Report:
    """Makes `count` topics in `rounds` parts, then kills and starts a follower that many times.

    Raises:
        LocalGroupError: a node doesn't come back; there is no follower.
        ClientError: a topic can't be made.
    """
    group, prefix = place.local_group(), f"bench-{uuid4().hex[:8]}"
    if len(group.nodes) < 2:
        raise LocalGroupError("a group of one has no follower: --nodes 3")
    async with connected(place) as client, echo_client(echo_address) as echo:
        taken, yardsticks = Taken(_most_mib(group)), Yardsticks(echo, place.directory, tell)
        names = iter([f"{prefix}-{number:05}" for number in range(count)])
        sizes = iter([len(range(count)[part::rounds]) for part in range(rounds)])

        async def make() -> None:
            some = [next(names) for _ in range(next(sizes))]
            taken.rates.append(await _made(client, some, queues, in_flight))

        await yardsticks.around(rounds, make)
        taken.made_mib = _most_mib(group)
        tell("a message into each queue")
        taken.filled = await _filled(client, prefix, count, queues)
        taken.filled_mib = _most_mib(group)
        for number in range(1, rounds + 1):
            tell(f"start {number} of {rounds}")
            victim = await _follower(group, number)
            taken.starts_s.append(await _restarted(group, victim))
            use = uses_of(group.nodes)[victim.id]
            taken.started_mib.append(use.resident_bytes / MIB)
    return _report((count, queues, in_flight), taken, yardsticks)


async def _made(client: Client, names: list[str], queues: int, in_flight: int) -> float:
    """They are there; how many a second."""
    left, began = iter(names), time.perf_counter()

    async def make_some() -> None:
        for name in left:
            await client.create_topic(name, queues=queues, if_not_exists=True)

    await asyncio.gather(*(make_some() for _ in range(in_flight)))
    return len(names) / (time.perf_counter() - began)


async def _filled(client: Client, prefix: str, count: int, queues: int) -> float:
    """A message is in each queue; how many a second.

    Raises:
        ClientError: one of them isn't.
    """
    began = time.perf_counter()
    for first in range(0, count * queues, QUEUES_A_PRODUCER):
        window = deque[asyncio.Future[SendResult]]()
        async with client.producer() as producer:
            for number in range(count * queues)[first : first + QUEUES_A_PRODUCER]:
                if len(window) == FILL_IN_FLIGHT:
                    await window.popleft()
                topic = f"{prefix}-{number // queues:05}"
                window.append(producer.send(topic, b"x", queue_id=number % queues))
            await asyncio.gather(*window)
    return count * queues / (time.perf_counter() - began)


def _most_mib(group: LocalGroup) -> float:
    return max(use.resident_bytes for use in uses_of(group.nodes).values()) / MIB


async def _follower(group: LocalGroup, number: int) -> LocalNode:
    """Another one each time."""
    leader = (await group.resolve("leader")).id
    followers = [node for node in group.nodes if node.id != leader]
    return followers[number % len(followers)]


async def _restarted(group: LocalGroup, victim: LocalNode) -> float:
    """Seconds from the start of its process until it has applied what was committed then.

    Raises:
        LocalGroupError: it ends, or doesn't come that far.
    """
    wanted = (await status_of(victim)).commit_index
    group.signal(victim.id, signal.SIGKILL)
    if not await group.wait_gone(victim.id):
        raise LocalGroupError(f"{victim.id} outlived its SIGKILL")
    began = time.monotonic()
    starting = asyncio.create_task(group.start(victim.id, START_S))
    try:
        while time.monotonic() < began + START_S:
            status = await probe(victim.address)
            is_member = status is not None and status.role in ("follower", "leader")
            if status is not None and is_member and status.applied_index >= wanted:
                took = time.monotonic() - began
                await starting
                return took
            if starting.done():
                starting.result()
            await asyncio.sleep(POLL_S)
        raise LocalGroupError(f"{victim.id} hasn't caught up in {START_S:g} s")
    finally:
        starting.cancel()


def _report(what: tuple[int, int, int], taken: Taken, yardsticks: Yardsticks) -> Report:
    count, queues, in_flight = what
    is_promised = (count, queues) == PROMISED
    rate = ratios(taken.rates, [echo.calls_per_s for echo in yardsticks.echoes])
    a_topic = (taken.filled_mib - taken.before_mib) * 1024 / count
    return Report(
        "topics",
        {
            "topics": count,
            "queues": queues,
            "in_flight": in_flight,
            "rounds": len(taken.rates),
        },
        yardsticks.figures(),
        (
            _figure("creations", "topics/s", taken.rates, RATE if is_promised else None),
            Figure("creations_beside_echo", "× calls", rate),
            _figure("first_messages", "msgs/s", [taken.filled], None),
            Figure(
                "start",
                "ms",
                in_ms(taken.starts_s),
                target=START if is_promised else None,
            ),
            _figure("memory_before", "MiB", [taken.before_mib], None),
            _figure("memory", "MiB", [taken.made_mib], MEMORY if is_promised else None),
            _figure("memory_filled", "MiB", [taken.filled_mib], MEMORY if is_promised else None),
            _figure("memory_started", "MiB", taken.started_mib, MEMORY if is_promised else None),
            _figure("memory_a_topic", "KiB", [a_topic], None),
        ),
        ("memory: resident, of the node that uses most; start: files are warm",),
    )


def _figure(name: str, unit: str, values: list[float], target: Target | None) -> Figure:
    return Figure(name, unit, Spread.of(values), target=target)

"""`bench push`: sent, handled and committed by a group's members, beside producing alone.

Each round has two halves with the same load, one after the other: messages into a topic that nobody
reads, and messages into one whose group has members at work, each a process of its own. The second
half's time runs until the group has committed the last of them. Who is first changes by the round.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

from dledger.client import Client, Producer
from dledger_cli.bench.arena import QUEUES, Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.load import saturate
from dledger_cli.bench.node_watch import process_use
from dledger_cli.bench.produce import MICROSECONDS, ProcessorTime, processor_time
from dledger_cli.bench.rounds import Tell, Yardsticks
from dledger_cli.bench.yardsticks import echo_client

TARGET = Target(Comparison.AT_LEAST, 0.8)
ALONE = "alone_rate"
LOOK_S = 0.02  # between looks at what is committed
BEHIND_TIMEOUT_S = 120.0  # from the last acknowledgement until all must be committed
READY_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Half:
    """What one half of a round got done, and by whose processor time."""

    messages: int
    seconds: float
    used: ProcessorTime | None
    members_s: float = 0.0

    @property
    def per_second(self) -> float:
        """Messages a second, by what the half counts as done."""
        return self.messages / self.seconds


@dataclass(slots=True)
class Halves:
    """All rounds."""

    alone: list[Half] = field(default_factory=list)
    worked: list[Half] = field(default_factory=list)
    failed: int = 0


class Members:
    """The processes of a group's members."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def cpu_s(self) -> float:
        """Seconds of processor time that all of them have used."""
        uses = [process_use(process.pid) for process in self._processes]
        return sum(use.cpu_s for use in uses if use is not None)

    def end(self) -> int:
        """They say goodbye; how many messages were handled.

        Raises:
            RuntimeError: one of them failed; its words are on standard error.
        """
        handled = 0
        for process in self._processes:
            output, _ = process.communicate(timeout=END_TIMEOUT_S)
            if process.returncode != 0:
                raise RuntimeError(f"a member ended with exit code {process.returncode}")
            handled += int(output)
        return handled


@contextlib.contextmanager
def members_of(
    place: Arena, group: str, topic: str, size_bytes: int, count: int
) -> Iterator[Members]:
    """So many members, each in a process of its own; none is left behind."""
    addresses = ",".join(place.addresses)
    program = [sys.executable, "-P", "-m", "dledger_cli.bench.push_member"]
    words = [addresses, group, topic, str(size_bytes)]
    with contextlib.ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = stack.enter_context(
                subprocess.Popen(
                    [*program, *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )
            stack.callback(process.kill)
            processes.append(process)
        yield Members(processes)


async def push(
    place: Arena,
    echo_address: str,
    *,
    size_bytes: int,
    in_flight: int,
    members: int,
    seconds: float,
    rounds: int,
    tell: Tell,
) -> Report:
    """Sends for `seconds` in all with a group at work, and for as long without, over `rounds`."""
    halves = Halves()
    group = f"bench-{uuid4().hex[:12]}"
    async with (
        connected(place) as client,
        fresh_topic(place, client) as alone,
        fresh_topic(place, client) as worked,
        client.producer() as producer,
        echo_client(echo_address) as echo,
    ):
        yardsticks = Yardsticks(echo, place.directory, tell)
        with members_of(place, group, worked, size_bytes, members) as crew:
            tell("members join")
            sent = await _until_at_work(client, producer, group, worked, size_bytes)
            send = partial(saturate, producer, body=bytes(size_bytes), in_flight=in_flight)

            async def without() -> None:
                async with _watched(place, client, crew) as half:
                    got = await send(topic=alone, seconds=seconds / rounds)
                    half.messages, half.seconds = got.acknowledged, got.seconds
                halves.failed += got.failed
                halves.alone.append(half)

            async def with_members() -> None:
                nonlocal sent
                async with _watched(place, client, crew) as half:
                    began = time.perf_counter()
                    got = await send(topic=worked, seconds=seconds / rounds)
                    sent += got.acknowledged
                    await _until_committed(client, group, worked, sent)
                    half.messages, half.seconds = got.acknowledged, time.perf_counter() - began
                halves.failed += got.failed
                halves.worked.append(half)

            async def one_round() -> None:
                order = [without, with_members]
                for each in order if len(halves.alone) % 2 else reversed(order):
                    await each()

            await yardsticks.around(rounds, one_round)
            handled = await asyncio.to_thread(crew.end)
    facts: dict[str, str | int | float] = {
        "size_bytes": size_bytes,
        "in_flight": in_flight,
        "members": members,
        "rounds": rounds,
    }
    return _report(facts, halves, handled - sent, yardsticks)


@contextlib.asynccontextmanager
async def _watched(place: Arena, client: Client, crew: Members) -> AsyncIterator[Half]:
    before, members_s = await processor_time(place, client), crew.cpu_s()
    half = Half(0, 1.0, None)
    yield half
    after = await processor_time(place, client)
    half.members_s = crew.cpu_s() - members_s
    if before is not None and after is not None:
        half.used = after.since(before)


async def _until_at_work(
    client: Client, producer: Producer, group: str, topic: str, size_bytes: int
) -> int:
    """Every queue is somebody's: a message of each is committed; how many were sent."""
    sends = [producer.send(topic, bytes(size_bytes), queue_id=each) for each in range(QUEUES)]
    await asyncio.gather(*sends)
    async with asyncio.timeout(READY_TIMEOUT_S):
        await _until_committed(client, group, topic, QUEUES)
    return QUEUES


async def _until_committed(client: Client, group: str, topic: str, messages: int) -> None:
    """The group is through with so many messages of the topic.

    Raises:
        TimeoutError: it isn't, for too long.
    """
    async with asyncio.timeout(BEHIND_TIMEOUT_S):
        while await _committed(client, group, topic) < messages:  # noqa: ASYNC110  only asking tells
            await asyncio.sleep(LOOK_S)


async def _committed(client: Client, group: str, topic: str) -> int:
    """How many messages of the topic the group is through with."""
    return sum((await client.fetch_offsets(group, topic)).values())


def _report(
    facts: dict[str, str | int | float], halves: Halves, more_often: int, yardsticks: Yardsticks
) -> Report:
    rates = [half.per_second for half in halves.alone]
    worked = [half.per_second for half in halves.worked]
    share = [mine / alone for mine, alone in zip(worked, rates, strict=True)]
    target = TARGET if (facts["size_bytes"], facts["members"]) == (1024, 2) else None
    none_failed = Target(Comparison.AT_MOST, 0, must=True)
    figures = [
        yardsticks.against_rate(ALONE, rates, None),
        Figure("worked_rate", "msgs/s", Spread.of(worked), ALONE, Spread.of(share), target),
        *_processor_figures(halves),
        Figure("failed", "msgs", Spread.of([halves.failed]), target=none_failed),
        # Without a fault nothing is handled twice, and nothing is committed that wasn't handled.
        Figure("handled_again", "msgs", Spread.of([max(more_often, 0)]), target=none_failed),
        Figure("not_handled", "msgs", Spread.of([max(-more_often, 0)]), target=none_failed),
    ]
    return Report("push", facts, yardsticks.figures(), tuple(figures))


def _processor_figures(halves: Halves) -> list[Figure]:
    """Of each message, by who used it: with members, and without."""
    figures = []
    for name, taken in (("alone", halves.alone), ("worked", halves.worked)):
        used = [half for half in taken if half.used is not None]
        by_who: dict[str, list[float]] = {}
        for half in used:
            scale = MICROSECONDS / max(half.messages, 1)
            assert half.used is not None
            by_who.setdefault("client", []).append(half.used.client_s * scale)
            by_who.setdefault("leader", []).append(half.used.leader_s * scale)
            by_who.setdefault("follower", []).append(half.used.followers_s * scale)
            if name == "worked":
                by_who.setdefault("members", []).append(half.members_s * scale)
        figures += [
            Figure(f"{name}_cpu_{who}", "µs/msg", Spread.of(values))
            for who, values in by_who.items()
        ]
    return figures

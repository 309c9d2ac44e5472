"""`bench rebalance`: how soon a group's queues are at work again when a member dies or comes.

Messages come into each queue at a steady pace, and members, a process each, tell when they have
handled one. Each round one of them is killed: the time runs from the signal until the last of its
queues is worked on by somebody else. Then another one is started: the time runs from its first word
until it has handled a message. How long any member that stays has nothing to do is told as well.

At the end many members share a topic of many queues, and one more joins: how many queues have
another holder then. What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import uuid4

from dledger.client import Client, GroupNotFound, Producer
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.crew import Worker, crew
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.rounds import Tell, Yardsticks, in_ms
from dledger_cli.bench.yardsticks import echo_client

DEATH = Target(Comparison.AT_MOST, 1_000)
IDLE = Target(Comparison.AT_MOST, 3_000)
EVERY_S = 0.025  # between two messages of a queue
READY_S = 60.0
SETTLE_S = 1.0  # before and after a death
CALM_S = 4.0  # a hand-over's time and more: nothing moves any more
BODY = b"x"


@dataclass(slots=True)
class Seen:
    """Which worker has handled what and when, as they tell it."""

    by_queue: dict[int, list[tuple[float, int]]] = field(default_factory=dict)  # when, by whom
    by_worker: dict[int, list[float]] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)

    def hear(self, who: int, line: str) -> None:
        """A worker's line."""
        what, _, when = line.rpartition(" ")
        if what == "at work":
            self.began[who] = float(when)
            return
        self.by_queue.setdefault(int(what), []).append((float(when), who))
        self.by_worker.setdefault(who, []).append(float(when))

    def holder(self, queue_id: int) -> int:
        """Who has handled the queue's newest message."""
        return self.by_queue[queue_id][-1][1]

    def taken_over(self, queue_id: int, since: float, victim: int) -> float | None:
        """When somebody else handled a message of the queue; None: nobody has."""
        found = (when for when, who in self.by_queue[queue_id] if when > since and who != victim)
        return next(found, None)

    def longest_pause(self, who: int, since: float, until: float) -> float:
        """The longest that the worker handled nothing."""
        times = [since, *(when for when in self.by_worker[who] if since < when < until), until]
        return max(later - sooner for sooner, later in pairwise(times))


@dataclass(slots=True)
class Taken:
    """What the rounds gave, in seconds."""

    death_s: list[float] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)
    joined_s: list[float] = field(default_factory=list)
    moved: int = 0


async def rebalance(
    place: Arena,
    echo_address: str,
    *,
    members: int,
    queues: int,
    many: tuple[int, int],
    rounds: int,
    tell: Tell,
) -> Report:
    """Kills a member and starts another, `rounds` times.

    Args:
        many: members and queues of the group that one more joins at the end.

    Raises:
        TimeoutError: a queue isn't worked on for too long.
    """
    taken, group = Taken(), f"bench-{uuid4().hex[:8]}"
    async with (
        connected(place) as client,
        fresh_topic(place, client, queues) as topic,
        fresh_topic(place, client, many[1]) as wide,
        client.producer() as producer,
        echo_client(echo_address) as echo,
    ):
        yardsticks = Yardsticks(echo, place.directory, tell)
        crowd = _Crowd(place, group, topic, queues, taken)
        async with crowd.stack, asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_send(producer, topic, queues), name="send")
            for _ in range(members):
                await crowd.start()
            await crowd.until(lambda: len(set(map(crowd.holder, range(queues)))) == members)
            await yardsticks.around(rounds, crowd.one_round)
            sending.cancel()
        tell(f"{many[0]} members")
        taken.moved = await _moved(place, client, f"{group}-wide", wide, many[0])
    facts: dict[str, str | int | float] = {
        "members": members,
        "queues": queues,
        "many": many[0],
        "many_queues": many[1],
        "rounds": rounds,
    }
    return _report(facts, taken, yardsticks)


async def _send(producer: Producer, topic: str, queues: int) -> None:
    """A message into each queue, again and again. One that isn't taken is followed by another."""
    while True:
        sends = [producer.send(topic, BODY, queue_id=each) for each in range(queues)]
        await asyncio.sleep(EVERY_S)
        await asyncio.gather(*sends, return_exceptions=True)


class _Crowd:
    """Members at work, a process each."""

    def __init__(self, place: Arena, group: str, topic: str, queues: int, taken: Taken) -> None:
        self._words = (",".join(place.addresses), group, topic)
        self._queues = queues
        self._taken = taken
        self._workers: dict[int, Worker] = {}
        self._started = 0
        self.seen = Seen()
        self.stack = AsyncExitStack()

    async def start(self) -> int:
        """Another member; its number."""
        number, self._started = self._started, self._started + 1
        words = (*self._words, f"m{number}", 1)
        hear = crew("told_members", [words], lambda _, line: self.seen.hear(number, line))
        (self._workers[number],) = await self.stack.enter_async_context(hear)
        await self._workers[number].until_it_says(1)
        return number

    def holder(self, queue_id: int) -> int:
        """Who works on the queue; -1: nobody did so far."""
        return self.seen.holder(queue_id) if queue_id in self.seen.by_queue else -1

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Raises TimeoutError: it doesn't come to that."""
        async with asyncio.timeout(READY_S):
            while not is_so():  # noqa: ASYNC110  only looking tells
                await asyncio.sleep(EVERY_S)

    async def one_round(self) -> None:
        """A death, and a birth."""
        await asyncio.sleep(SETTLE_S)
        victim = next(iter(self._workers))
        queues = [each for each in range(self._queues) if self.holder(each) == victim]
        struck = time.monotonic()
        self._workers.pop(victim).kill()

        def times() -> list[float | None]:
            return [self.seen.taken_over(each, struck, victim) for each in queues]

        await self.until(lambda: None not in times())
        self._taken.death_s.append(max([when for when in times() if when is not None]) - struck)
        await asyncio.sleep(SETTLE_S)
        stay = list(self._workers)
        newcomer = await self.start()
        await self.until(lambda: newcomer in self.seen.by_worker)
        began = self.seen.began[newcomer]
        self._taken.joined_s.append(self.seen.by_worker[newcomer][0] - began)
        await asyncio.sleep(SETTLE_S)
        end = time.monotonic()
        self._taken.idle_s.append(max(self.seen.longest_pause(each, struck, end) for each in stay))


async def _moved(place: Arena, client: Client, group: str, topic: str, many: int) -> int:
    """How many queues have another holder when one more has joined so many.

    Raises:
        TimeoutError: they don't get all queues, or the newcomer none.
    """
    addresses = ",".join(place.addresses)
    async with crew("told_members", [(addresses, group, topic, "many", many)]):
        before = await _holders(client, group, many)
        async with crew("told_members", [(addresses, group, topic, "one", 1)]):
            after = await _holders(client, group, many + 1)
    return sum(after[queue] != holder for queue, holder in before.items())


async def _holders(client: Client, group: str, members: int) -> dict[tuple[str, int], int]:
    """Session by queue, when each of so many members has some, and nothing moves any more."""
    found: dict[tuple[str, int], int] = {}
    since = time.monotonic()
    async with asyncio.timeout(READY_S):
        while True:
            try:
                queues = await client.consumer_groups.progress(group)
            except GroupNotFound:
                queues = []
            now = {(each.topic, each.queue_id): each.session for each in queues}
            if now != found:
                found, since = now, time.monotonic()
            is_shared = all(now.values()) and len(set(now.values())) == members
            if is_shared and time.monotonic() - since > CALM_S:
                return found
            await asyncio.sleep(10 * EVERY_S)


def _report(facts: dict[str, str | int | float], taken: Taken, yardsticks: Yardsticks) -> Report:
    bound = int(facts["many_queues"]) // int(facts["many"]) + 1
    return Report(
        "rebalance",
        facts,
        yardsticks.figures(),
        (
            Figure("death_to_all_at_work", "ms", in_ms(taken.death_s), target=DEATH),
            Figure("join_to_work", "ms", in_ms(taken.joined_s), target=IDLE),
            Figure("longest_idle", "ms", in_ms(taken.idle_s), target=IDLE),
            Figure(
                f"moved_by_1_joining_{facts['many']}",
                "queues",
                Spread.of([taken.moved]),
                target=Target(Comparison.AT_MOST, bound),
            ),
        ),
        (f"a message a queue and {EVERY_S * 1e3:g} ms, which the times include",),
    )

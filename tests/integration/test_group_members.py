"""The client's members of consumer groups at real nodes: they die, fall silent, come and go."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from broker.leader.groups.pace import Pace
from broker.ports import Rhythm
from dledger.client import (
    Client,
    ClientOptions,
    ConsumerOptions,
    Message,
    PushConsumer,
    PushOptions,
)
from dledger.records.reserved import LEVEL_DELAYS_MS
from tests.integration.group import Group, make_configs

# As usual, but for what a test would wait for.
PACE = Pace(
    heartbeat_ms=500, session_ms=3_000, return_ms=2_100, release_ms=700, orderly_release_ms=1_400
)
PUSH = PushOptions(hold_ms=1_000)
QUEUES = 6
ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def some_group(
    directory: Path,
    count: int = 1,
    pace: Pace = PACE,
    delays_ms: tuple[int, ...] = LEVEL_DELAYS_MS,
) -> AsyncIterator[tuple[Group, Client, str]]:
    """Nodes with topic `t`, a client, and the nodes' addresses."""
    configs = make_configs(directory, count)
    group = Group(configs, rhythm=Rhythm(groups=pace, delays_ms=delays_ms))
    addresses = ",".join(config.listen for config in configs)
    try:
        await group.start()
        await group.at_its_level()
        await group.create_topic(queues=QUEUES)
        async with Client.connect(addresses, options=ClientOptions(deadline_s=30)) as client:
            yield group, client, addresses
    finally:
        await group.close()


async def fill(client: Client, count: int) -> None:
    """So many more messages in each queue."""
    async with client.producer() as producer:
        for number in range(count):
            for queue_id in range(QUEUES):
                producer.send("t", b"%d" % number, queue_id=queue_id)


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Returns once it holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


class Member:
    """A member in a process of its own, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[list[str]] = []
        self.warnings: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._reading = [
            asyncio.create_task(
                self._read(process.stdout, lambda line: self.lines.append(line.split()))
            ),
            asyncio.create_task(self._read(process.stderr, self.warnings.append)),
        ]

    @classmethod
    async def begin(cls, addresses: str, name: str, seconds: float) -> Member:
        words = (addresses, "g", "t", name, str(seconds))
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.integration.member_program", *words),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
        )

    async def _read(self, stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
        while (line := await stream.readline()).endswith(b"\n"):
            take(line.decode().rstrip())

    def said(self, word: str) -> list[tuple[int, int]]:
        """Queue and offset of each line that begins so."""
        return [(int(line[1]), int(line[2])) for line in self.lines if line[0] == word]

    async def end(self, number: signal.Signals) -> None:
        """By that signal; everything that it said is known."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        await self.process.wait()
        await asyncio.wait(self._reading)


@contextlib.asynccontextmanager
async def members(addresses: str, *names: str, seconds: float) -> AsyncIterator[list[Member]]:
    """Processes that are killed at the end at the latest."""
    begun = [await Member.begin(addresses, name, seconds) for name in names]
    try:
        yield begun
    finally:
        for member in begun:
            await member.end(signal.SIGKILL)


@contextlib.asynccontextmanager
async def running(service: PushConsumer) -> AsyncIterator[None]:
    """It runs meanwhile."""
    task = asyncio.create_task(service.run())
    try:
        yield
    finally:
        service.stop()
        await asyncio.wait([task])
    task.result()


EVERYTHING = {(queue, offset) for queue in range(QUEUES) for offset in range(40)}


def test_member_that_is_killed_is_replaced_by_the_other(tmp_path: Path) -> None:
    """Everything is handled; twice only what the dead one had not committed."""

    async def scenario() -> None:
        async with (
            some_group(tmp_path) as (_, client, addresses),
            members(addresses, "a", "b", seconds=0.02) as (first, second),
        ):
            await until(lambda: first.lines and second.lines)
            await fill(client, 40)
            await until(lambda: len(first.said("done")) > 20 and len(second.said("done")) > 20)
            await first.end(signal.SIGKILL)
            dead = Counter(first.said("handled"))
            await until(lambda: {*first.said("done"), *second.said("done")} >= EVERYTHING)
            await until_committed(client)
            twice = [place for place in dead if place in {*second.said("handled")}]
            assert max(Counter(second.said("handled")).values()) == 1
            assert len(twice) <= 4 + 50, "what ran, and a quarter of a second's commits"

    asyncio.run(scenario())


def unfinished(member: Member) -> set[tuple[int, int]]:
    """What it has begun and not finished."""
    return {*member.said("handled")} - {*member.said("done")}


def begun_twice(*members: Member) -> set[tuple[int, int]]:
    """What was handed out again."""
    times = Counter(place for member in members for place in member.said("handled"))
    return {place for place, count in times.items() if count > 1}


async def until_committed(client: Client) -> None:
    """The group is done with everything."""
    async with asyncio.timeout(60):
        while await client.fetch_offsets("g", "t") != dict.fromkeys(range(QUEUES), 40):
            await asyncio.sleep(0.05)


def test_member_that_was_stopped_past_its_session_commits_nothing_more(tmp_path: Path) -> None:
    """Its queues went to the other; awake, it is refused by name, drops all, and joins anew."""

    async def scenario() -> None:
        async with (
            some_group(tmp_path) as (_, client, addresses),
            members(addresses, "a", "b", seconds=0.3) as (first, second),
        ):
            await until(lambda: first.lines and second.lines)
            await fill(client, 40)
            await until(lambda: len(first.said("done")) > 3)
            first.process.send_signal(signal.SIGSTOP)
            held = {queue for queue, _ in first.said("handled")}
            await until(lambda: held <= {queue for queue, _ in second.said("handled")})
            begun, interrupted = len(first.said("handled")), unfinished(first)
            assert interrupted
            first.process.send_signal(signal.SIGCONT)
            await until(lambda: any("SESSION_ENDED" in line for line in first.warnings))
            await until(lambda: len(first.said("handled")) > begun)
            # By the other, or by itself as another session, if it has got the queue back before.
            await until(lambda: interrupted <= begun_twice(first, second))
            for member in (first, second):
                await member.end(signal.SIGTERM)
                assert member.lines[-1] == ["ended", "well"]
            committed = await client.fetch_offsets("g", "t")
            finished = {*first.said("done"), *second.said("done")}
            for queue, frontier in committed.items():
                assert all((queue, offset) in finished for offset in range(frontier))

    asyncio.run(scenario())


def test_member_that_is_told_to_stop_drains_and_commits(tmp_path: Path) -> None:
    """SIGTERM: what runs is finished, everything finished is committed, nothing is repeated."""

    async def scenario() -> None:
        async with (
            some_group(tmp_path) as (_, client, addresses),
            members(addresses, "a", seconds=0.05) as (first,),
        ):
            await until(lambda: first.lines)
            await fill(client, 40)
            await until(lambda: len(first.said("done")) > 10)
            await first.end(signal.SIGTERM)
            assert first.lines[-1] == ["ended", "well"]
            assert sorted(first.said("handled")) == sorted(first.said("done"))
            done = first.said("done")
            seen = Counter(done)
            service = client.push_consumer("g", PUSH)

            @service.on("t")
            async def handle(message: Message) -> None:
                seen[message.queue_id, message.queue_offset] += 1

            async with running(service):
                await until(lambda: seen.keys() >= EVERYTHING)
            assert set(seen.values()) == {1}

    asyncio.run(scenario())


@pytest.mark.slow
def test_change_of_leader_moves_no_lease(tmp_path: Path) -> None:
    """Nothing is handled twice, though the leader is stopped in the middle of it."""

    async def scenario() -> None:
        async with some_group(tmp_path, 3) as (group, client, _):
            await fill(client, 40)
            seen: Counter[tuple[int, int]] = Counter()
            services = [client.push_consumer("g", PUSH) for _ in range(2)]
            for service in services:

                @service.on("t")
                async def handle(message: Message) -> None:
                    seen[message.queue_id, message.queue_offset] += 1
                    await asyncio.sleep(0.15)

            async with running(services[0]), running(services[1]):
                await until(lambda: all(service.statistics().handled for service in services))
                await until(lambda: [s.statistics().queues for s in services] == [3, 3])
                before = [epochs_of(service) for service in services]
                leader = (await group.leader()).config.node_id
                await group.stop(leader)
                await until(lambda: len(seen) == QUEUES * 40)
                assert [epochs_of(service) for service in services] == before
            assert set(seen.values()) == {1}
            assert await client.fetch_offsets("g", "t") == dict.fromkeys(range(QUEUES), 40)

    asyncio.run(scenario())


def epochs_of(service: PushConsumer) -> dict[int, int]:
    """By queue, the lease it is held by; no public call tells."""
    assert service._membership is not None
    held = service._membership.member.queues
    return {place.queue_id: queue.epoch for place, queue in held.items()}


def test_third_member_gets_its_share_without_repetition(tmp_path: Path) -> None:
    """Queues are worked off before they go; those that leave give theirs to the others."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (_, client, _):
            seen: Counter[tuple[int, int]] = Counter()
            services = [client.push_consumer("g", PUSH) for _ in range(3)]
            for service in services:

                @service.on("t")
                async def handle(message: Message) -> None:
                    seen[message.queue_id, message.queue_offset] += 1
                    await asyncio.sleep(0.01)

            async with running(services[0]), running(services[1]):
                await until(lambda: [s.statistics().queues for s in services] == [3, 3, 0])
                await fill(client, 20)
                async with running(services[2]):
                    await until(lambda: [s.statistics().queues for s in services] == [2, 2, 2])
                    await fill(client, 20)
                    await until(lambda: len(seen) > QUEUES * 25)
                await until(lambda: [s.statistics().queues for s in services[:2]] == [3, 3])
                await until(lambda: len(seen) == QUEUES * 40)
            assert set(seen.values()) == {1}
            assert [service.statistics().lost for service in services] == [0, 0, 0]
            await until_committed(client)

    asyncio.run(scenario())


def test_pull_and_push_members_share_a_group(tmp_path: Path) -> None:
    """A loop and handlers, of one group: each message once."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (_, client, _):
            seen: Counter[tuple[int, int]] = Counter()
            service = client.push_consumer("g", PUSH)

            @service.on("t")
            async def handle(message: Message) -> None:
                seen[message.queue_id, message.queue_offset] += 1

            options = ConsumerOptions(commit_every_s=0.1, hold_ms=500)
            async with running(service):
                async with client.pull_consumer("t", group="g", options=options) as consumer:
                    reading = asyncio.create_task(read(consumer, seen))
                    await until(lambda: service.statistics().queues == 3)
                    await fill(client, 40)
                    await until(lambda: len(seen) == QUEUES * 40)
                    consumer.stop()
                    await reading
                await until(lambda: service.statistics().queues == QUEUES)
            assert sum(seen.values()) - len(seen) <= 1, "what the loop had in hand"
            await until_committed(client)

    async def read(consumer: object, seen: Counter[tuple[int, int]]) -> None:
        async for message in consumer:  # type: ignore[attr-defined]
            seen[message.queue_id, message.queue_offset] += 1

    asyncio.run(scenario())

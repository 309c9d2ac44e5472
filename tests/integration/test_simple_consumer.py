"""The simple consumer at real nodes: work that is done, given back, kept, lost with a leader."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client import (
    Client,
    ClientClosed,
    Delivery,
    GroupStyled,
    InvalidArgument,
    ReceiptExpired,
    Resent,
    SimpleConsumer,
    StartFrom,
)
from dledger.client.blocking import BlockingClient
from dledger.client.blocking_simple import BlockingSimpleConsumer
from dledger.records.reserved import ORIGIN_TOPIC
from tests.integration.group import Group, make_configs

TOPIC = "videos"


@contextlib.asynccontextmanager
async def some_client(directory: Path, count: int = 1) -> AsyncIterator[tuple[Group, Client]]:
    """A client of nodes with a topic, at their level."""
    group = Group(make_configs(directory, count))
    try:
        await group.start()
        await group.at_its_level()
        await group.create_topic(TOPIC)
        addresses = ",".join(config.listen for config in group.configs.values())
        async with Client.connect(addresses) as client:
            yield group, client
    finally:
        await group.close()


async def send(client: Client, *bodies: bytes) -> None:
    async with client.producer() as producer:
        for body in bodies:
            await producer.send(TOPIC, body, queue_id=0)


async def received(consumer: SimpleConsumer, count: int, wait_s: float = 0) -> list[bytes]:
    return [each.message.body for each in await consumer.receive(count, wait_s=wait_s)]


def test_work_is_done_or_comes_again(tmp_path: Path) -> None:
    """Leaving acknowledges, an exception gives back at once, and counts."""

    async def scenario() -> None:
        async with some_client(tmp_path) as (_, client):
            await send(client, b"0", b"1")
            consumer = client.simple_consumer(TOPIC, "encoders")
            attempts: list[tuple[bytes, int]] = []
            async for job in consumer:
                attempts.append((job.message.body, job.attempt))
                with contextlib.suppress(ZeroDivisionError):
                    async with job as message:
                        if (message.body, job.attempt) == (b"0", 1):
                            raise ZeroDivisionError
                if len(attempts) == 3:
                    break
            assert sorted(attempts) == [(b"0", 1), (b"0", 2), (b"1", 1)]
            assert await received(consumer, 1) == []
            assert await client.fetch_offsets("encoders", TOPIC) == {0: 2, 1: 0}

    asyncio.run(scenario())


def test_acknowledgements_ride_and_late_ones_are_told(tmp_path: Path) -> None:
    """What came with the news is the next receive's."""

    async def scenario() -> None:
        async with some_client(tmp_path) as (_, client):
            await send(client, b"0", b"1", b"2")
            slow = client.simple_consumer(TOPIC, "g", invisible_s=0.2)
            first = await slow.receive(1)
            quick = client.simple_consumer(TOPIC, "g")
            (one, two) = await quick.receive(2)  # the next ones
            assert await received(quick, 1, 10) == [b"0"]  # the slow one's time is over
            with pytest.raises(ReceiptExpired):
                await first[0].ack()
            with pytest.raises(ReceiptExpired):
                await slow.receive(1, wait_s=0, done=first)
            assert await quick.receive(1, wait_s=0, done=[one, two]) == []
            await one.ack()  # again, which is nothing
            assert await client.fetch_offsets("g", TOPIC) == {0: 0, 1: 0}

    asyncio.run(scenario())


def test_what_is_worked_on_stays_hidden(tmp_path: Path) -> None:
    """For longer than its invisible time, as long as the work goes on."""

    async def scenario() -> None:
        async with some_client(tmp_path) as (_, client):
            await send(client, b"long")
            consumer = client.simple_consumer(TOPIC, "g", invisible_s=0.9)
            (job,) = await consumer.receive()
            async with job:
                other = client.simple_consumer(TOPIC, "g")
                assert await received(other, 1, 2.5) == []
            assert await client.fetch_offsets("g", TOPIC) == {0: 1, 1: 0}

    asyncio.run(scenario())


async def worked_off(consumer: SimpleConsumer) -> list[Delivery]:
    """Whatever it is given, until it is closed."""
    return [each async for each in consumer]


def test_what_is_in_hand_is_given_back_at_the_end(tmp_path: Path) -> None:
    """And so is what a cancelled receive has brought, unless the next one takes it."""

    async def scenario() -> None:
        async with some_client(tmp_path) as (_, client):
            consumer = client.simple_consumer(TOPIC, "g")
            waiting = asyncio.ensure_future(consumer.receive(wait_s=30))
            await asyncio.sleep(0.2)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            await send(client, b"0", b"1")
            found: list[Delivery] = []
            while len(found) < 2:
                found += await consumer.receive(2, wait_s=5)
            assert sorted(each.message.body for each in found) == [b"0", b"1"]
            await found[0].retry(after_s=0.1)
            loop = asyncio.ensure_future(worked_off(consumer))
            waiting = asyncio.ensure_future(consumer.receive(wait_s=30))
            await asyncio.sleep(0.01)
            await consumer.close()
            with pytest.raises(ClientClosed):  # and not cancelled: nobody has cancelled it
                await waiting
            assert await loop == []
            with pytest.raises(ClientClosed):
                await consumer.receive()
            other = client.simple_consumer(TOPIC, "g")
            again: list[bytes] = []
            while len(again) < 2:
                again += await received(other, 2, 5)
            assert sorted(again) == [b"0", b"1"]

    asyncio.run(scenario())


def test_a_leader_that_goes_takes_nothing_along(tmp_path: Path) -> None:
    """What is in hand stays so, what was finished is never handed out again, and all of it is
    handed out."""

    async def scenario() -> None:
        async with some_client(tmp_path, 3) as (group, client):
            await send(client, *(b"%d" % n for n in range(40)))
            consumer = client.simple_consumer(TOPIC, "g")
            held = await consumer.receive(5)
            done: list[bytes] = []
            while len(done) < 35:
                if len(done) == 10:
                    await group.stop((await group.leader()).config.node_id)
                batch = await consumer.receive(5, wait_s=10)
                done += [each.message.body for each in batch]
                for each in batch:
                    await each.ack()
            for each in held:
                await each.ack()
            bodies = done + [each.message.body for each in held]
            assert sorted(bodies) == sorted(b"%d" % n for n in range(40))
            assert await client.fetch_offsets("g", TOPIC) == {0: 40, 1: 0}

    asyncio.run(scenario())


def test_where_a_group_begins_and_how_it_is_used(tmp_path: Path) -> None:
    """As its first receive says; arguments without a meaning are refused at once."""

    async def scenario() -> None:
        async with some_client(tmp_path) as (_, client):
            await send(client, b"old")
            last = client.simple_consumer(TOPIC, "late", start=StartFrom.LAST)
            assert await received(last, 1) == []
            await send(client, b"new")
            assert await received(last, 1, 10) == [b"new"]
            await client.delete_topic(TOPIC)
            await client.create_topic(TOPIC)
            await send(client, b"made anew")  # while nobody asks
            assert await received(last, 1, 10) == [b"made anew"]
            with pytest.raises(GroupStyled):
                await client.commit_offsets("late", TOPIC, {0: 0})
            in_order = client.simple_consumer(TOPIC, "one by one", in_order=True)
            with pytest.raises(InvalidArgument):
                await in_order.receive()  # no group has blanks in its name
            for wrong in ({"invisible_s": 0}, {"start": StartFrom.COMMITTED}):
                with pytest.raises(InvalidArgument):
                    client.simple_consumer(TOPIC, "g", **wrong)
            with pytest.raises(InvalidArgument):
                await last.receive(0)

    asyncio.run(scenario())


def test_callers_without_an_event_loop(tmp_path: Path) -> None:
    """The same, with `for` and `with`."""

    async def scenario() -> None:
        async with some_client(tmp_path) as (group, client):
            await send(client, b"0", b"1", b"2")
            (address,) = [config.listen for config in group.configs.values()]
            await asyncio.to_thread(work, address)
            assert await client.fetch_offsets("g", TOPIC) == {0: 3, 1: 0}

    def work(address: str) -> None:
        with BlockingClient.connect(address) as client, client.simple_consumer(TOPIC, "g") as jobs:
            for job in jobs:
                with job as message:
                    assert message.body == b"0"
                break
            batch = jobs.receive(2)
            batch[0].extend(60)
            batch[0].retry()
            (given,) = jobs.receive(1, wait_s=5, done=batch[1:])
            assert given.attempt == 2
            with pytest.raises(ZeroDivisionError):
                fail(batch)
            given.retry()
            interrupted(jobs)
            (again,) = jobs.receive(wait_s=0)  # it would be hidden, and have an attempt less
            assert again.attempt == 3
        with BlockingClient.connect(address) as client, client.simple_consumer(TOPIC, "g") as jobs:
            (last,) = jobs.receive(wait_s=10)  # given back as the one before was left
            last.ack()

    def fail(batch: object) -> None:
        raise ZeroDivisionError(batch)

    def interrupted(jobs: BlockingSimpleConsumer) -> None:
        """By a signal, which comes when the messages are there already."""
        call = jobs._thread.call

        def late(work: Any) -> None:
            call(work)
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(jobs._thread, "call", late)
            with pytest.raises(KeyboardInterrupt):
                jobs.receive(wait_s=10)

    asyncio.run(scenario())


@pytest.mark.parametrize("in_order", [False, True])
def test_what_nobody_can_do_is_a_dead_letter_after_its_attempts(
    tmp_path: Path, in_order: bool
) -> None:
    """And holds up nobody from then on; it says where it came from, and can be sent again."""

    async def scenario() -> None:
        async with some_client(tmp_path) as (_, client):
            await send(client, b"poison", b"fine")
            consumer = client.simple_consumer(TOPIC, "encoders", max_attempts=3, in_order=in_order)
            attempts: list[int] = []
            done: list[bytes] = []
            while (not done or len(attempts) < 3) and len(attempts) < 6:
                for job in await consumer.receive(1, wait_s=5):
                    if job.message.body == b"poison":
                        attempts.append(job.attempt)
                        await job.retry()
                    else:
                        done.append(job.message.body)
                        await job.ack()
            assert await received(consumer, 1, wait_s=0.3) == []
            assert (attempts, done) == ([1, 2, 3], [b"fine"])
            found = await client.dead_letters("encoders")
            assert found.count == 1
            (letter,) = (await client.pull(found.topic, 0, 0)).messages
            assert (letter.body, letter.reconsume_times) == (b"poison", 3)
            assert letter.properties[ORIGIN_TOPIC] == TOPIC
            assert await client.resend("encoders", 0) == Resent(TOPIC, 0, 2)
            (again,) = await consumer.receive(1, wait_s=5)
            assert (again.message.body, again.attempt) == (b"poison", 1)
            await again.ack()

    asyncio.run(scenario())

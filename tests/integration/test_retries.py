"""Messages that fail, at real nodes: they come again, in the end they are dead letters, and those
are sent again. The levels' delays are shortened; which level it is stays as it is."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import BrokerError
from dledger.client import (
    Client,
    DeadlineExceeded,
    DeadQueue,
    InvalidArgument,
    Message,
    PushConsumer,
    Reject,
    Resent,
)
from dledger.records.reserved import (
    DEAD_REASON,
    LEVELS,
    ORIGIN_OFFSET,
    ORIGIN_QUEUE,
    SCHEDULE_TOPIC,
)
from dledger.wire import commands_pb2 as cpb
from tests.client.loops import async_test
from tests.integration.test_group_members import PUSH, QUEUES, fill, some_group, until

DELAY_MS = 200


DELAYS_MS = (DELAY_MS,) * LEVELS


@contextlib.asynccontextmanager
async def running(consumer: PushConsumer) -> AsyncIterator[None]:
    """It runs meanwhile."""
    task = asyncio.create_task(consumer.run())
    try:
        yield
    finally:
        consumer.stop()
        await task


@async_test
async def test_a_message_comes_again_and_is_dead_after_its_attempts(tmp_path: Path) -> None:
    """Each of its attempts is counted, whoever makes it; others aren't held up by it."""
    async with some_group(tmp_path, delays_ms=DELAYS_MS) as (_, client, _):
        await fill(client, 2)
        attempts: dict[tuple[int, bytes], list[int]] = {}
        consumer = client.push_consumer("g", options=replace(PUSH, max_attempts=3))

        @consumer.on("t")
        async def handle(message: Message) -> None:
            origin = message.properties.get(ORIGIN_QUEUE, str(message.queue_id))
            attempts.setdefault((int(origin), message.body), []).append(message.attempt)
            assert message.topic == "t"
            if message.body == b"1":
                raise RuntimeError("poison")

        async with running(consumer):
            poison = [(queue_id, b"1") for queue_id in range(QUEUES)]
            await until(lambda: all(len(attempts.get(each, ())) == 3 for each in poison))

            async with asyncio.timeout(30):
                while (await client.dead_letters("g")).count < QUEUES:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(3 * DELAY_MS / 1000)
        assert attempts == {
            (queue_id, body): times
            for queue_id in range(QUEUES)
            for body, times in ((b"0", [1]), (b"1", [1, 2, 3]))
        }
        assert consumer.statistics().failed == 3 * QUEUES
        committed = await client.describe_topic("t")
        assert committed.groups["g"] == dict.fromkeys(range(QUEUES), 2)


@async_test
async def test_what_is_rejected_is_dead_at_once_and_can_be_sent_again(tmp_path: Path) -> None:
    """It says where it came from; sent again, which happens once, it is as new."""
    async with some_group(tmp_path, delays_ms=DELAYS_MS) as (_, client, _):
        async with client.producer() as producer:
            producer.send("t", b"bad", key="k", tag="a", properties={"x": "y"}, queue_id=4)
        seen: list[Message] = []
        consumer = client.push_consumer("g", options=PUSH)

        @consumer.on("t")
        def handle(message: Message) -> None:
            seen.append(message)
            if len(seen) == 1:
                raise Reject("nobody can")

        async with running(consumer):
            await until(lambda: seen)
            async with asyncio.timeout(30):
                while not (found := await client.dead_letters("g")).count:
                    await asyncio.sleep(0.05)
            assert found.queues == (DeadQueue(0, 0, 1),)
            letters = await client.pull(found.topic, 0, 0)
            (letter,) = letters.messages
            assert (letter.body, letter.keys, letter.tags) == (b"bad", "k", "a")
            assert letter.properties[ORIGIN_QUEUE] == "4"
            assert letter.properties[ORIGIN_OFFSET] == "0"
            assert await client.resend("g", 0) == Resent("t", 4, 1)
            assert await client.resend("g", 0) == Resent("t", None, None)
            await until(lambda: len(seen) == 2)
            assert (await client.dead_letters("g")).queues[0].was_resent(0)
        producer = client.producer()
        with pytest.raises(InvalidArgument, match="%DLQ%g"):
            await producer.send("%DLQ%g", b"forged")
        await producer.close()
        assert Counter(each.attempt for each in seen) == {1: 2}
        assert seen[1].properties == seen[0].properties


@async_test
async def test_dead_letters_that_many_send_again_at_once_are_messages_once(tmp_path: Path) -> None:
    """Whoever asks, in one entry or in many, and through a change of leader."""
    count = 6
    async with (
        some_group(tmp_path, count=3, delays_ms=DELAYS_MS) as (_, client, addresses),
        Client.connect(addresses) as other,
    ):
        async with client.producer() as producer:
            for number in range(count):
                producer.send("t", b"%d" % number, queue_id=0)
        consumer = client.push_consumer("g", options=PUSH)

        @consumer.on("t")
        async def reject(message: Message) -> None:
            raise Reject

        async with running(consumer), asyncio.timeout(60):
            while (await client.dead_letters("g")).count < count:
                await asyncio.sleep(0.05)

        async def resend(who: Client, offset: int) -> int:
            return (await who.resend("g", offset, deadline_s=60)).offset is not None

        asking = [
            asyncio.create_task(resend(who, offset))
            for offset in range(count)
            for who in (client, other) * 4
        ]
        async with asyncio.timeout(60):
            while True:
                with suppress(DeadlineExceeded):  # on a busy machine nobody may be elected in time
                    await client.transfer_leadership(deadline_s=60)
                    break
        told = await asyncio.gather(*asking)
        # Of one whose answer was lost the second attempt hears that it was done before.
        assert sum(told) <= count
        bounds = await client.queue_offsets("t", 0)
        assert bounds.max_offset == 2 * count, "each once"
        again = (await client.pull("t", 0, count)).messages
        assert sorted(each.body for each in again) == [b"%d" % number for number in range(count)]


@async_test
async def test_the_brokers_own_topics_are_read_only(tmp_path: Path) -> None:
    """Nobody makes them, nor deletes what all groups use; refusals name them."""
    async with some_group(tmp_path, delays_ms=DELAYS_MS) as (_, client, _):
        for name in (SCHEDULE_TOPIC, "%RETRY%g", "%DLQ%g"):
            with pytest.raises(InvalidArgument, match=name):
                await client.create_topic(name)
        with pytest.raises(InvalidArgument, match=SCHEDULE_TOPIC):
            await client.delete_topic(SCHEDULE_TOPIC)


@async_test
async def test_what_waits_to_be_tried_again_holds_the_front_of_the_log(tmp_path: Path) -> None:
    """For as long as it waits, and no longer: it is nowhere else."""
    async with some_group(tmp_path, delays_ms=(4_000,) * LEVELS) as (group, client, _):
        await fill(client, 1)
        seen: list[int] = []
        consumer = client.push_consumer("g", options=PUSH)

        @consumer.on("t")
        async def handle(message: Message) -> None:
            seen.append(message.attempt)
            if len(seen) == 1:
                raise RuntimeError("for a while")

        async with running(consumer):
            (node,) = group.nodes.values()
            front = node.log_start
            waiting = front.holders[-1]
            assert waiting.first_needed() is None
            await until(lambda: waiting.first_needed() is not None)
            needed = waiting.first_needed()
            assert needed is not None
            await front.propose(needed)
            with pytest.raises(BrokerError, match="messages that wait to be tried again"):
                await front.propose(needed + 1)
            await until(lambda: seen.count(2) == 1)
            await until(lambda: waiting.first_needed() is None)
            await front.propose(needed + 1)


@async_test
async def test_what_fails_and_is_gone_from_the_log_has_its_attempts_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can copy it any more: the member tries it by itself, and then gives it up."""
    async with some_group(tmp_path, delays_ms=DELAYS_MS) as (group, client, _):
        await fill(client, 1)
        (node,) = group.nodes.values()
        topic = node.machine.topics.get("t")
        assert topic is not None

        def take(queue_id: int) -> Awaitable[object]:
            starts = [cpb.QueueStart(queue_id=queue_id, offset=1)]
            moved = cpb.MoveQueueStartsCommand(
                name="t", incarnation=topic.incarnation, starts=starts
            )
            return node.appender.submit(cpb.Command(move_queue_starts=moved))

        attempts: dict[int, list[int]] = {}
        options = replace(PUSH, max_attempts=2, retry_delays_s=(0.1,))
        consumer = client.push_consumer("g", options=options)

        @consumer.on("t")
        async def handle(message: Message) -> None:
            attempts.setdefault(message.queue_id, []).append(message.attempt)
            assert await take(message.queue_id) is None
            if message.queue_id == 1:
                raise Reject("nobody can")
            raise RuntimeError("poison")

        async with running(consumer):
            given_up = {queue_id: [1, 2] for queue_id in range(QUEUES)} | {1: [1]}
            await until(lambda: attempts == given_up)
            async with asyncio.timeout(30):
                while any((await consumer.lag()).values()):
                    await asyncio.sleep(0.05)
        assert attempts == given_up
        told = [each.message for each in caplog.records if "given up" in each.message]
        assert len(told) == QUEUES
        assert all("retention has taken it" in each for each in told)
        assert (await client.dead_letters("g")).count == 0


@async_test
async def test_in_order_the_next_member_goes_on_with_the_next_attempt(tmp_path: Path) -> None:
    """And after the last one the queue goes on without the message, whoever made those before."""
    async with some_group(tmp_path, delays_ms=DELAYS_MS) as (_, client, _):
        async with client.producer() as producer:
            for body in (b"poison", b"fine"):
                await producer.send("t", body, queue_id=0)
        handled: list[bytes] = []
        assert await fail_in_order(client, handled, stops_after=2) == [1, 2]
        assert handled == []
        assert await fail_in_order(client, handled, stops_after=3) == [3, 4]
        assert handled == [b"fine"]
        found = await client.dead_letters("g")
        assert found.count == 1
        (letter,) = (await client.pull(found.topic, 0, 0)).messages
        assert (letter.body, letter.reconsume_times) == (b"poison", 4)
        assert letter.properties[DEAD_REASON] == "attempts"


async def fail_in_order(client: Client, handled: list[bytes], *, stops_after: int) -> list[int]:
    """The attempts that a member makes at poison, until it has made so many, or has the next."""
    options = replace(PUSH, in_order=True, max_attempts=4, suspend_s=0.01)
    consumer = client.push_consumer("g", options=options)
    attempts: list[int] = []

    @consumer.on("t")
    async def handle(message: Message) -> None:
        if message.body != b"poison":
            handled.append(message.body)
            return
        attempts.append(message.attempt)
        if len(attempts) == stops_after:
            consumer.stop()
        raise RuntimeError("nobody can")

    async with running(consumer):
        await until(lambda: len(attempts) == stops_after or handled)
    return attempts


@async_test
async def test_what_a_function_failed_at_stays_on_its_threads(tmp_path: Path) -> None:
    """Where handlers are of both kinds: its further attempt is no other thread's than the first,
    and one that takes too long keeps its message. It used to run on the program's own threads, and
    went back to the brokers while the function was still at it, who gave it out once more."""
    async with some_group(tmp_path, delays_ms=DELAYS_MS) as (_, client, _):
        await client.create_topic("u", queues=1)
        async with client.producer() as producer:
            producer.send("u", b"slow")
        names: list[str] = []
        at_it, let_go = threading.Event(), threading.Event()
        options = replace(PUSH, handlers=1, handler_timeout_s=0.05)
        consumer = client.push_consumer("g", options=options)
        done: list[bytes] = []

        @consumer.on("u")
        def block(message: Message) -> None:
            names.append(threading.current_thread().name)
            if len(names) == 1:
                raise RuntimeError("not yet")
            at_it.set()
            let_go.wait()

        @consumer.on("t")
        async def handle(message: Message) -> None:
            done.append(message.body)

        async with running(consumer):
            try:
                await until(at_it.is_set)
                await until(lambda: consumer.statistics().overdue)
                await fill(client, 1)
                await until(lambda: len(done) == QUEUES)  # it keeps no coroutine's worker
                assert consumer.statistics().failed == 1, "the slow attempt is one that goes on"
                assert consumer.statistics().running == 1
            finally:
                let_go.set()
            await until(lambda: consumer.statistics().handled == QUEUES + 1)
        assert names == ["dledger-handler-0"] * 2

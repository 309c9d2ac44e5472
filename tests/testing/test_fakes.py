"""What fake nodes do with what failed, and with messages handed out one by one: as real ones, but
for time (docs/testing.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from dledger.client import (
    Client,
    GroupDiffers,
    GroupExists,
    GroupHasMembers,
    GroupNotFound,
    GroupStyled,
    InvalidArgument,
    Message,
    OffsetOutOfRange,
    PushOptions,
    ReceiptExpired,
    Reject,
    Resent,
    StartFrom,
    TopicNotFound,
)
from dledger.client.blocking import BlockingClient
from dledger.testing import BlockingFakeGroup, FakeGroup
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.client.members.test_push import QUICK, fill, running, until

PUSH = PushOptions(commit_every_s=0.02, suspend_s=0.02)


@asynccontextmanager
async def nodes(queues: int = 1, count: int = 0) -> AsyncIterator[tuple[FakeGroup, Client]]:
    """A topic `t` with so many messages in each queue."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.model.create("t", queues)
        await fill(client, queues, count)
        yield group, client


# --- what failed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_coroutine", [True, False])
@async_test
async def test_failed_message_comes_again_and_is_a_dead_letter_in_the_end(
    is_coroutine: bool,
) -> None:
    """After as many attempts as the group wishes; its queue is finished meanwhile."""
    async with nodes(2, 3) as (group, client):
        service = client.push_consumer("g", replace(PUSH, max_attempts=3))
        seen: list[tuple[str, int, bytes]] = []

        def handle(message: Message) -> None:
            seen.append((message.topic, message.attempt, message.body))
            if message.body == b"1":
                raise ValueError("not that one")

        async def handle_it(message: Message) -> None:
            handle(message)

        service.on("t")(handle_it if is_coroutine else handle)
        async with running(service):
            await until(lambda: "%DLQ%g" in group.model.topics)
            await until(lambda: len(group.model.bodies("%DLQ%g", 0)) == 2)
            await until(lambda: group.members.frontier("g", "t", 1) == 3)
        assert sorted(attempt for _, attempt, body in seen if body == b"1") == [1, 1, 2, 2, 3, 3]
        assert {topic for topic, _, _ in seen} == {"t"}
        assert len(seen) == 10
        letters = await client.dead_letters("g")
        assert letters.count == 2
        dead = (await client.pull(letters.topic, 0, 0)).messages
        assert [letter.reconsume_times for letter in dead] == [3, 3]
        assert {letter.properties["DLQ_REASON"] for letter in dead} == {"attempts"}


@async_test
async def test_rejected_message_is_a_dead_letter_at_once_and_sent_again_once() -> None:
    """Twice at the same time, too: as a message of its topic, as it was first sent."""
    async with nodes(4) as (group, client):
        async with client.producer() as producer:
            await producer.send("t", b"poison", key="k", tag="a", properties={"p": "q"})
        service = client.push_consumer("g", PUSH)
        seen: list[Message] = []

        @service.on("t")
        async def reject(message: Message) -> None:
            seen.append(message)
            if len(seen) == 1:
                raise Reject

        async with running(service):
            await until(lambda: "%DLQ%g" in group.model.topics)
            done = await asyncio.gather(*(client.resend("g", 0) for _ in range(8)))
            await until(lambda: len(seen) == 2)
        assert sorted(each.offset is not None for each in done) == [False] * 7 + [True]
        first, again = seen
        assert again.raw_properties == first.raw_properties
        assert (again.queue_id, again.attempt) == (first.queue_id, 1)
        assert (await client.dead_letters("g")).queues[0].was_resent(0)
        with pytest.raises(OffsetOutOfRange):
            await client.resend("g", 1)
        with pytest.raises(TopicNotFound):
            await client.resend("nobody", 0)
        group.model.topics["%DLQ%g"][0].min_offset = 1
        assert await client.resend("g", 0) == Resent("", None, None)


@async_test
async def test_in_order_failures_are_counted_over_all_members() -> None:
    """The message stays in front of its queue, whoever has that."""
    async with nodes(1, 2) as (group, client):
        options = replace(PUSH, in_order=True, max_attempts=4)
        attempts: list[int] = []
        for _ in range(2):
            service = client.push_consumer("g", options)

            @service.on("t")
            async def handle(message: Message) -> None:
                if message.body == b"0":
                    attempts.append(message.attempt)
                    raise ValueError

            async with running(service):
                wanted = 2 if len(attempts) < 2 else 4
                await until(lambda wanted=wanted: len(attempts) >= wanted)
                if wanted == 4:
                    await until(lambda: group.members.frontier("g", "t") == 2)
        assert sorted(set(attempts)) == [1, 2, 3, 4]
        assert (await client.dead_letters("g")).count == 1


@async_test
async def test_nodes_that_take_nothing_back_leave_it_with_its_member() -> None:
    """As brokers do that have no room: it isn't finished."""
    async with nodes(1, 1) as (group, client):
        group.retries.takes_failed = False
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def fail(message: Message) -> None:
            raise Reject

        running_ = asyncio.create_task(service.run())
        await group.nodes[0].called("SendBack", 1)
        assert service.statistics().waiting == 1
        service.stop()
        await running_
        assert (await client.fetch_offsets("g", "t")).get(0, 0) == 0
        assert (await client.dead_letters("g")).queues == ()


# --- one by one -----------------------------------------------------------------------------------


@async_test
async def test_messages_are_handed_out_to_any_worker_once() -> None:
    """Acknowledged by themselves, by a receive, and by leaving a block."""
    async with nodes(3, 4) as (_, client):
        one, other = (client.simple_consumer("t", "g") for _ in range(2))
        first = await one.receive(5)
        second = await other.receive(16, done=first)
        assert len(first) + len(second) == 12
        for delivery in second[:-1]:
            await delivery.ack()
        async with second[-1]:
            pass
        assert await one.receive(1, wait_s=0) == []
        await second[0].ack()  # again is all right
        await fill(client, 1, 1)
        (late,) = await other.receive(1)
        assert late.message.queue_offset == 4


@async_test
async def test_message_comes_again_when_its_time_is_over_and_its_old_receipt_is_refused() -> None:
    """To whoever asks; after as many times as are wished it is a dead letter."""
    async with nodes(1, 1) as (_, client):
        worker = client.simple_consumer("t", "g", invisible_s=0.05, max_attempts=3)
        former = (await worker.receive())[0]
        for attempt in (2, 3):
            (delivery,) = await worker.receive(wait_s=5)
            assert delivery.attempt == attempt
            with pytest.raises(ReceiptExpired):
                await former.ack()
            with pytest.raises(ReceiptExpired):
                await former.extend(1)
            former = delivery
        assert await worker.receive(wait_s=0.2) == []
        assert (await client.dead_letters("g")).count == 1


@async_test
async def test_returned_message_comes_after_its_pause_and_a_receive_waits_for_it() -> None:
    """An exception within the block gives it back at once."""
    async with nodes(1, 1) as (_, client):
        worker = client.simple_consumer("t", "g")
        (delivery,) = await worker.receive()
        await delivery.retry(0.1)
        (delivery,) = await worker.receive(wait_s=10)
        with pytest.raises(LookupError):
            async with delivery:
                raise LookupError
        (delivery,) = await worker.receive(wait_s=0)
        assert delivery.attempt == 3


@async_test
async def test_in_order_one_worker_has_something_of_a_queue_at_a_time() -> None:
    """What is behind it waits; all say so."""
    async with nodes(1, 4) as (_, client):
        worker = client.simple_consumer("t", "g", in_order=True)
        first = await worker.receive(2)
        assert await worker.receive(2, wait_s=0.05) == []
        rest = await worker.receive(2, wait_s=5, done=first)
        assert [each.message.queue_offset for each in rest] == [2, 3]
        with pytest.raises(GroupDiffers):
            await client.simple_consumer("t", "g").receive(wait_s=0)


@async_test
async def test_lost_answer_is_asked_for_again_and_brings_the_same() -> None:
    """And nothing is handed out twice."""
    async with nodes(1, 3) as (group, client):
        lost = [True]

        async def lose(method: str, node: object, request: object) -> None:
            if method == "Receive" and lost.pop():
                lost.append(False)
                raise Refusal(wire_error(epb.LEADERSHIP_LOST, "the answer was lost"))

        group.after.append(lose)
        found = await client.simple_consumer("t", "g").receive(3)
        assert [each.attempt for each in found] == [1, 1, 1]
        assert group.nodes[0].calls["Receive"] == 2


@async_test
async def test_delivery_is_only_settled_where_it_was_handed_out() -> None:
    """The same numbers mean another message elsewhere."""
    async with nodes(1, 1) as (group, client):
        group.model.create("u", 1)
        one, other = client.simple_consumer("t", "g"), client.simple_consumer("t", "h")
        (delivery,) = await one.receive()
        for wrong in (other, client.simple_consumer("u", "g")):
            with pytest.raises(InvalidArgument, match="isn't of topic"):
                await wrong.receive(done=[delivery])
        assert await client.simple_consumer("t", "g").receive(wait_s=0, done=[delivery]) == []
        assert delivery.is_settled


@async_test
async def test_group_is_used_in_one_style() -> None:
    """Whichever came first."""
    async with nodes(1, 2) as (_, client):
        await client.simple_consumer("t", "singles").receive()
        with pytest.raises(GroupStyled):
            await anext(client.pull_consumer("t", group="singles"))
        with pytest.raises(GroupStyled):
            await client.commit_offsets("singles", "t", {0: 1})
        await anext(client.pull_consumer("t", group="loops"))
        with pytest.raises(GroupStyled):
            await client.simple_consumer("t", "loops").receive()


# --- groups looked after -------------------------------------------------------------------------


@async_test
async def test_groups_are_told_moved_and_copied() -> None:
    """While members are at it: they are given what they lost."""
    async with nodes(2, 5) as (group, client):
        groups = client.consumer_groups
        service = client.push_consumer("g", replace(PUSH, member="m"))
        seen: list[int] = []

        @service.on("t")
        async def handle(message: Message) -> None:
            seen.append(message.queue_offset)

        async with running(service):
            await until(lambda: len(seen) == 10)
            await until(lambda: group.members.frontier("g", "t", 1) == 5)
            (info,) = await groups.list()
            assert (info.name, info.joined, info.member_count) == ("g", True, 1)
            found = await groups.describe("g")
            assert [(each.name, each.queue_count) for each in found.members] == [("m", 2)]
            assert [(q.committed, q.lag, q.session) for q in found.queues] == [
                (5, 0, found.members[0].session)
            ] * 2
            moved = await groups.reset("g", "t", StartFrom.FIRST, queues=[0])
            assert [tuple(each) for each in moved] == [(0, 5, 0)]
            await until(lambda: len(seen) == 15)
        assert await groups.clone("g", "copy") == 1
        assert (await client.fetch_offsets("copy", "t"))[1] == 5
        with pytest.raises(GroupExists):
            await groups.clone("g", "copy")
        with pytest.raises(GroupNotFound):
            await groups.describe("nobody")
        with pytest.raises(OffsetOutOfRange):
            await groups.reset("copy", "t", 6)
        await groups.reset("copy", "t", 1)
        assert [each.offset for each in await groups.skip("copy", "t", 2)] == [3, 3]
        assert [each.offset for each in await groups.skip("copy", "t")] == [5, 5]
        group.page_size = 1
        assert [each.name for each in await groups.list()] == ["copy", "g"]
        assert len(await groups.progress("g")) == 2


@async_test
async def test_deleted_topic_is_nobodys_at_once() -> None:
    """Its members hold nothing of it, and failures of its messages are forgotten."""
    async with nodes(2, 1) as (group, client):
        service = client.push_consumer("g", replace(PUSH, in_order=True, max_attempts=9))

        @service.on("t")
        async def handle(message: Message) -> None:
            raise ValueError

        async with running(service):
            await until(lambda: len(group.members.holders("g")) == 2)
            place = group.members.place("t", 0)
            await until(lambda: group.retries.failures("g", place, 0) > 0)
            group.model.delete("t")
            record = group.members.records["g"]
            assert (record.leases, record.finished, record.started) == ({}, {}, set())
            assert group.retries.failures("g", place, 0) == 0


def test_blocking_fakes_do_the_same() -> None:
    """What a suite without an event loop sees of it; how long it takes is the test's to say."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        with client.producer() as producer:
            producer.send(topic, b"bill")
        group.retry_after(0.01)
        service = client.push_consumer("g", PUSH)
        attempts: list[int] = []

        @service.on(topic)
        def handle(message: Message) -> None:
            attempts.append(message.attempt)
            if message.attempt == 2:
                service.stop()
                raise Reject
            raise ValueError

        service.run()
        assert attempts == [1, 2]
        assert group.bodies("%DLQ%g") == [b"bill"]
        with client.simple_consumer(topic, "workers") as worker:
            (delivery,) = worker.receive()
            with delivery as message:
                assert message.body == b"bill"
            assert worker.receive(wait_s=0) == []
        with pytest.raises(GroupStyled):
            client.commit_offsets("workers", topic, {0: 1})


def test_groups_with_members_take_no_offsets_by_others() -> None:
    """As before; nothing of that is new."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        with client.producer() as producer:
            producer.send(topic, b"x")
        with client.pull_consumer(topic, group="g") as consumer:
            next(iter(consumer))
            with pytest.raises(GroupHasMembers):
                client.commit_offsets("g", topic, {0: 1})

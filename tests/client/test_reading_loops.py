"""One loop reads, and only what is finished is committed: what a user may rely on while reading."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest

from dledger.client import (
    ALL,
    ConsumerInUse,
    ConsumerOptions,
    InvalidArgument,
    Message,
    OffsetOutOfRange,
    PullConsumer,
    QueueNotFound,
    RecordCorrupt,
    StartFrom,
    TopicNotFound,
    WhenGone,
)
from dledger.testing.fake_nodes import FakeNode
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2
from tests.client.loops import async_test
from tests.client.test_consumer import drain, stocked

SMALL_PULLS = ConsumerOptions(pull_bytes=400)


class WorkFailed(Exception):
    """The application's own."""


async def offsets_of(consumer: PullConsumer) -> list[int]:
    return [message.queue_offset async for message in consumer]


async def read_into(messages: list[Message], consumer: PullConsumer, work_s: float = 0.0) -> None:
    async for message in consumer:
        messages.append(message)
        await asyncio.sleep(work_s)  # the fetching goes on meanwhile


@async_test
async def test_second_loop_is_refused_and_the_first_gets_everything() -> None:
    """Four loops on one fresh consumer used to be given each message four times or more."""
    async with stocked({0: 250, 1: 250}) as (_, client):
        consumer = client.pull_consumer("t", idle_timeout_s=0, options=SMALL_PULLS)
        loops = [asyncio.ensure_future(drain(consumer)) for _ in range(4)]
        ended = await asyncio.gather(*loops, return_exceptions=True)
        assert ended[0] == {0: list(range(250)), 1: list(range(250))}
        assert all(isinstance(error, ConsumerInUse) for error in ended[1:])


@async_test
async def test_loop_is_refused_while_another_one_works() -> None:
    """Not only while it waits: its message is in its hand."""
    async with stocked({0: 3}) as (_, client):
        consumer = client.pull_consumer("t", idle_timeout_s=0)
        async for _ in consumer:
            with pytest.raises(ConsumerInUse):
                await anext(consumer)
            with pytest.raises(ConsumerInUse):
                await anext(consumer.batches())
            break
        assert (await anext(consumer)).queue_offset == 1, "a loop that was left is over"


@async_test
async def test_loops_of_all_kinds_follow_each_other_without_a_gap() -> None:
    """One by one, then in batches, then one by one again."""
    async with stocked({0: 30}) as (_, client):
        consumer = client.pull_consumer("t", idle_timeout_s=0, options=SMALL_PULLS)
        seen = [(await anext(consumer)).queue_offset]
        async for batch in consumer.batches():
            seen += [message.queue_offset for message in batch]
            break
        seen += await offsets_of(consumer)
        assert seen == list(range(30))


@async_test
async def test_wait_that_is_cancelled_loses_nothing() -> None:
    """A timeout around each message, far too short."""
    async with stocked({0: 40}) as (_, client):
        seen: list[int] = []
        consumer = client.pull_consumer("t", options=SMALL_PULLS)
        while len(seen) < 40:
            try:
                async with asyncio.timeout(0.0005):
                    seen.append((await anext(consumer)).queue_offset)
            except TimeoutError:
                await asyncio.sleep(0.001)
        assert seen == list(range(40))


@async_test
async def test_caller_of_little_patience_begins_all_the_same() -> None:
    """A beginning that takes longer than each wait used to be begun anew for ever; where it fails,
    whoever asks next is told."""
    async with stocked({0: 1}) as (group, client):

        async def slow(method: str, node: FakeNode, request: Any) -> None:
            if method == "DescribeTopic":
                await asyncio.sleep(0.1)

        async def patiently(consumer: PullConsumer) -> Message:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        return await anext(consumer)

        group.before.append(slow)
        before = group.nodes[0].calls["DescribeTopic"]
        assert (await patiently(client.pull_consumer("t"))).queue_offset == 0
        assert group.nodes[0].calls["DescribeTopic"] == before + 1
        with pytest.raises(TopicNotFound):
            await patiently(client.pull_consumer("absent"))
        left = client.pull_consumer("t")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(left)
        await left.close()
        with pytest.raises(StopAsyncIteration):
            await anext(left)


# --- commits ----------------------------------------------------------------------------------


@async_test
async def test_commit_after_a_failure_leaves_out_what_failed() -> None:
    """`finally: commit()` must not say that the work was done."""
    async with stocked({0: 5}) as (_, client):

        async def work(fail_at: int) -> None:
            consumer = client.pull_consumer("t", group="g", queues=[0], idle_timeout_s=0)
            try:
                async for message in consumer:
                    if message.queue_offset == fail_at:
                        raise WorkFailed
            finally:
                await consumer.commit()

        with pytest.raises(WorkFailed):
            await work(0)
        assert await client.fetch_offsets("g", "t") == {}
        with pytest.raises(WorkFailed):
            await work(3)
        assert await client.fetch_offsets("g", "t") == {0: 3}
        await work(-1)
        assert await client.fetch_offsets("g", "t") == {0: 5}, "the end finishes the last one"


@async_test
async def test_batch_in_hand_is_left_out_as_a_whole() -> None:
    """Unless its last message is committed by name."""
    async with stocked({0: 30}) as (_, client):
        consumer = client.pull_consumer("t", group="g", queues=[0], options=SMALL_PULLS)
        loop = aiter(consumer.batches())
        first = await anext(loop)
        await consumer.commit()
        assert await client.fetch_offsets("g", "t") == {}
        second = await anext(loop)
        await consumer.commit()
        assert await client.fetch_offsets("g", "t") == {0: second[0].queue_offset}
        await consumer.commit(second[-1])
        assert await client.fetch_offsets("g", "t") == {0: len(first) + len(second)}


@async_test
async def test_commit_of_what_was_not_given_is_refused() -> None:
    """Of another topic, another consumer, or the future."""
    async with stocked({0: 3}) as (_, client):
        consumer = client.pull_consumer("t", group="g", queues=[0])
        first = await anext(consumer)
        for wrong in (first._replace(queue_offset=1), first._replace(topic="u")):
            with pytest.raises(InvalidArgument, match="not handed over"):
                await consumer.commit(wrong)
        with pytest.raises(InvalidArgument, match="not handed over"):
            await client.pull_consumer("t", group="g", queues=[0]).commit(first)
        assert await client.fetch_offsets("g", "t") == {}


@async_test
async def test_group_goes_on_where_it_committed() -> None:
    """Without a word about where to start; who says FIRST gets the first."""
    async with stocked({0: 4, 1: 2}) as (_, client):
        await client.commit_offsets("g", "t", {0: 3})
        async with client.pull_consumer("t", group="g", queues=ALL, idle_timeout_s=0) as consumer:
            assert await drain(consumer) == {0: [3], 1: [0, 1]}
        first = client.pull_consumer("t", group="g", queues=[0], start=StartFrom.FIRST)
        assert (await anext(first)).queue_offset == 0


@async_test
async def test_group_without_a_name_is_refused() -> None:
    """As a member, and otherwise."""
    async with stocked({0: 1}) as (_, client):
        for queues in (ALL, None):
            with pytest.raises(InvalidArgument, match="empty"):
                client.pull_consumer("t", group="", queues=queues)


# --- places -----------------------------------------------------------------------------------


@async_test
async def test_seek_goes_back_and_forth() -> None:
    """What was fetched of the queue is dropped; the other queue notices nothing."""
    async with stocked({0: 20, 1: 1}) as (_, client):
        consumer = client.pull_consumer("t", idle_timeout_s=0, options=SMALL_PULLS)
        assert await drain(consumer) == {0: list(range(20)), 1: [0]}
        await consumer.seek(0, 18)
        assert await drain(consumer) == {0: [18, 19]}
        await consumer.seek(0, StartFrom.LAST)
        assert await drain(consumer) == {}
        await consumer.seek(0, StartFrom.FIRST)
        assert (await anext(consumer)).queue_offset == 0
        await consumer.seek(0, 10)
        assert (await drain(consumer))[0] == list(range(10, 20))
        with pytest.raises(QueueNotFound):
            await consumer.seek(2, 0)


@async_test
async def test_seek_does_not_commit_what_it_jumps_over() -> None:
    """Nor what was finished in the queue before and not committed then."""
    async with stocked({0: 10}) as (_, client):
        consumer = client.pull_consumer("t", group="g", queues=[0])
        for _ in range(3):
            await anext(consumer)
        await consumer.seek(0, 8)
        await consumer.commit()
        assert await client.fetch_offsets("g", "t") == {}


@async_test
async def test_seek_by_time() -> None:
    """To the first message that was stored then or later; a time without a zone is no time."""
    async with stocked({0: 0}) as (_, client), client.producer() as producer:
        for number in range(5):
            await producer.send("t", b"%d" % number)
        consumer = client.pull_consumer("t", idle_timeout_s=0)
        messages = [message async for message in consumer]
        third = datetime.fromtimestamp(messages[2].store_time_ms / 1000, UTC)
        await consumer.seek(0, third)
        assert await offsets_of(consumer) == [2, 3, 4]
        later = client.pull_consumer("t", start=third, idle_timeout_s=0)
        assert await offsets_of(later) == [2, 3, 4]
        with pytest.raises(InvalidArgument, match="time zone"):
            client.pull_consumer("t", start=third.replace(tzinfo=None))


@async_test
async def test_seek_after_a_failure_goes_on() -> None:
    """The failed queue at its new place, the others where they were."""
    async with stocked({0: 10, 1: 3}) as (group, client):
        consumer = client.pull_consumer("t", idle_timeout_s=0.05, options=SMALL_PULLS)
        group.model.topics["t"][0].min_offset = 4
        await consumer.seek(0, 0)
        messages: list[Message] = []
        with pytest.raises(OffsetOutOfRange):
            await read_into(messages, consumer)
        seen: dict[int, list[int]] = {}
        for message in messages:
            seen.setdefault(message.queue_id, []).append(message.queue_offset)
        await consumer.seek(0, StartFrom.FIRST)
        for queue_id, offsets in (await drain(consumer)).items():
            seen.setdefault(queue_id, []).extend(offsets)
        assert seen == {0: list(range(4, 10)), 1: [0, 1, 2]}


@async_test
async def test_failed_queue_is_told_however_busy_another_one_is() -> None:
    """The others fetch no further, so what they had is soon taken."""
    async with stocked({0: 10, 1: 300}) as (group, client):
        consumer = client.pull_consumer("t", options=ConsumerOptions(pull_bytes=100))
        group.model.topics["t"][0].min_offset = 4
        await consumer.seek(0, 0)
        taken: list[Message] = []
        with pytest.raises(OffsetOutOfRange):
            await read_into(taken, consumer, work_s=0.005)
        assert len(taken) < 100


@async_test
async def test_corrupt_queue_stops_the_others_until_it_is_sought() -> None:
    """They are not skipped over: each goes on where it was."""
    async with stocked({0: 4, 1: 40}) as (group, client):
        records = group.model.topics["t"][0].records
        records[0] = records[0][:-1] + b"?"
        consumer = client.pull_consumer("t", idle_timeout_s=0.05, options=SMALL_PULLS)
        seen: list[Message] = []
        with pytest.raises(RecordCorrupt):
            await read_into(seen, consumer)
        with pytest.raises(RecordCorrupt):
            await anext(consumer)
        await consumer.seek(0, 1)
        seen += [message async for message in consumer]
        assert sorted(m.queue_offset for m in seen if m.queue_id == 1) == list(range(40))
        assert [m.queue_offset for m in seen if m.queue_id == 0] == [1, 2, 3]


@async_test
async def test_paused_queue_is_withheld_and_goes_on() -> None:
    """From the next message on, within a batch as well."""
    async with stocked({0: 30, 1: 5}) as (_, client):
        consumer = client.pull_consumer("t", options=SMALL_PULLS)
        seen: dict[int, list[int]] = {0: [], 1: []}
        async for message in consumer:
            seen[message.queue_id].append(message.queue_offset)
            if message.queue_id == 0:
                consumer.pause(0)
            if len(seen[1]) == 5 and seen[0]:
                break
        assert seen[0] == [0]
        assert seen[1] == list(range(5))
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        consumer.resume(0)
        seen[0].append((await waiting).queue_offset)
        while len(seen[0]) < 30:
            seen[0].append((await anext(consumer)).queue_offset)
        assert seen[0] == list(range(30))


@async_test
async def test_seek_while_a_loop_waits() -> None:
    """From another task: the loop goes on from there."""
    async with stocked({0: 5}) as (group, client):
        consumer = client.pull_consumer("t", start=StartFrom.LAST)
        waiting = asyncio.ensure_future(anext(consumer))
        await group.nodes[0].called("Pull", 1)
        await consumer.seek(0, 2)
        assert (await waiting).queue_offset == 2


@async_test
async def test_close_while_a_seek_asks() -> None:
    """No task is left behind, whichever was first."""
    async with stocked({0: 5}) as (group, client):
        hold = asyncio.Event()

        async def gate(method: str, node: FakeNode, request: Any) -> None:
            if method == "GetQueueOffsets":
                await hold.wait()

        consumer = client.pull_consumer("t")
        await anext(consumer)
        group.before.append(gate)
        seeking = asyncio.ensure_future(consumer.seek(0, StartFrom.FIRST))
        await group.nodes[0].called("GetQueueOffsets", 1)
        await consumer.close()
        hold.set()
        await seeking
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)


@async_test
async def test_commit_after_the_group_was_set_back_counts_from_there() -> None:
    """What this consumer had committed before used to make its commits do nothing, in silence."""
    async with stocked({0: 10}) as (group, client):
        consumer = client.pull_consumer("t", group="g", queues=ALL, idle_timeout_s=0)
        assert len([message async for message in consumer]) == 10
        await consumer.commit()
        await client.commit_offsets("g", "t", {0: 2}, reset=True)
        await consumer.seek(0, StartFrom.COMMITTED)
        message = await anext(consumer)
        assert message.queue_offset == 2
        await consumer.commit(message)
        assert group.model.offsets["g", "t"] == {0: 3}


# --- what has gone --------------------------------------------------------------------------------


@async_test
async def test_what_has_gone_is_an_error_that_says_what_there_is() -> None:
    """Nothing is passed over unless the application said so."""
    async with stocked({0: 10}) as (group, client):
        group.model.topics["t"][0].min_offset = 4
        await client.commit_offsets("readers", "t", {0: 1})
        consumer = client.pull_consumer("t", group="readers", queues=ALL, idle_timeout_s=0)
        with pytest.raises(OffsetOutOfRange) as caught:
            await drain(consumer)
        assert caught.value.valid == (4, 10)
        assert consumer.skipped == {}
        await consumer.commit()
        assert await client.fetch_offsets("readers", "t") == {0: 1}
        await consumer.seek(0, caught.value.valid[0])
        assert await drain(consumer) == {0: list(range(4, 10))}


@pytest.mark.parametrize(
    ("when_gone", "taken", "skipped"),
    [(WhenGone.FIRST, [4, 5, 6, 7, 8, 9], 3), (WhenGone.LAST, [], 9)],
)
@async_test
async def test_reading_goes_on_where_the_application_said(
    when_gone: WhenGone, taken: list[int], skipped: int
) -> None:
    """The other queue is read as ever. Commits cover what was passed over, or a consumer that goes
    on from the last would pass over what came meanwhile as well, at its next start."""
    options = ConsumerOptions(when_gone=when_gone, pull_bytes=400)
    async with stocked({0: 10, 1: 5}) as (group, client):
        group.model.topics["t"][0].min_offset = 4
        await client.commit_offsets("readers", "t", {0: 1, 1: 2})
        consumer = client.pull_consumer(
            "t", group="readers", queues=ALL, idle_timeout_s=0, options=options
        )
        seen = await drain(consumer)
        assert seen == {**({0: taken} if taken else {}), 1: [2, 3, 4]}
        assert consumer.skipped == {0: skipped}
        await consumer.commit()
        assert await client.fetch_offsets("readers", "t") == {0: 10, 1: 5}
        await consumer.close()
        async with client.producer() as producer:
            for _ in range(3):
                await producer.send("t", b"later", queue_id=0)
        again = client.pull_consumer(
            "t", group="readers", queues=ALL, idle_timeout_s=0, options=options
        )
        assert await drain(again) == {0: [10, 11, 12]}
        assert again.skipped == {}


@async_test
async def test_front_that_goes_while_it_is_read_is_passed_over_once_more() -> None:
    """Between two Pulls; what is in hand when that is found is not committed by it."""
    options = ConsumerOptions(when_gone=WhenGone.FIRST, pull_bytes=1)
    async with stocked({0: 30}) as (group, client):
        consumer = client.pull_consumer(
            "t", group="readers", queues=ALL, idle_timeout_s=0, options=options
        )
        seen: list[int] = []
        async for message in consumer:
            seen.append(message.queue_offset)
            if message.queue_offset in (2, 12):
                group.model.topics["t"][0].min_offset = message.queue_offset + 8
            if message.queue_offset in (10, 20):
                await consumer.commit()
                assert await client.fetch_offsets("readers", "t") == {0: message.queue_offset}
        assert seen == sorted(set(seen))
        assert seen[-1] == 29
        missing = set(range(30)) - set(seen)
        assert missing
        assert consumer.skipped == {0: len(missing)}


@pytest.mark.parametrize("when_gone", WhenGone)
@async_test
async def test_what_never_was_is_an_error_whatever_was_said(when_gone: WhenGone) -> None:
    """A queue that is shorter than it was is none that something was let go of."""
    options = ConsumerOptions(when_gone=when_gone)
    async with stocked({0: 10}) as (_, client):
        consumer = client.pull_consumer("t", idle_timeout_s=0, options=options)
        await consumer.seek(0, 11)
        with pytest.raises(OffsetOutOfRange) as caught:
            await drain(consumer)
        assert caught.value.valid == (0, 10)
        assert consumer.skipped == {}


@async_test
async def test_node_that_does_not_say_what_there_is_is_not_guessed_about() -> None:
    """As one of the release before: an error, and nothing is passed over."""
    async with stocked({0: 10}) as (group, client):

        async def refuse(name: str, node: FakeNode, request: object) -> None:
            if name == "Pull":
                raise Refusal(wire_error(errors_pb2.OFFSET_OUT_OF_RANGE))

        group.before.append(refuse)
        options = ConsumerOptions(when_gone=WhenGone.FIRST)
        consumer = client.pull_consumer("t", idle_timeout_s=0, options=options)
        await consumer.seek(0, 0)
        with pytest.raises(OffsetOutOfRange) as caught:
            await drain(consumer)
        assert caught.value.valid is None


@pytest.mark.parametrize("when_gone", [WhenGone.FIRST, WhenGone.LAST])
@async_test
async def test_what_is_there_by_the_nodes_own_word_is_not_passed_over(when_gone: WhenGone) -> None:
    """A node that refuses an offset and says that it is one of those that it has."""
    async with stocked({0: 10}) as (group, client):

        async def refuse(name: str, node: FakeNode, request: object) -> None:
            if name == "Pull":
                error = wire_error(errors_pb2.OFFSET_OUT_OF_RANGE)
                error.valid.min_offset, error.valid.max_offset = 0, 10
                raise Refusal(error)

        group.before.append(refuse)
        options = ConsumerOptions(when_gone=when_gone)
        consumer = client.pull_consumer("t", idle_timeout_s=0, options=options)
        await consumer.seek(0, 4)
        with pytest.raises(OffsetOutOfRange):
            await drain(consumer)
        assert consumer.skipped == {}

"""The producer against a group of fake nodes: batching, bounds, retries, failover, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dledger.client import (
    BufferFull,
    Client,
    ClientError,
    ClientOptions,
    DeadlineExceeded,
    InvalidArgument,
    MessageTooLarge,
    Outcome,
    OutOfSequence,
    Producer,
    ProducerClosed,
    ProducerOptions,
    QueueNotFound,
    SendResult,
    SendsFailed,
    ServerError,
    TopicNotFound,
    TopicReplaced,
    queue_of_key,
)
from dledger.records.record import decode_records
from dledger.testing.fake_nodes import FakeGroup, FakeNode
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb
from tests.client.hearing import leaderless
from tests.client.loops import async_test

QUICK = ClientOptions(presume_after_s=0.02)
Setting = tuple[FakeGroup, Client, Producer]


@asynccontextmanager
async def producing(
    options: ProducerOptions | None = None, *, nodes: int = 3, queues: int = 1
) -> AsyncIterator[Setting]:
    """A group with the topic `t`, a client, a producer."""
    async with FakeGroup(nodes) as group:
        group.model.create("t", queues)
        async with (
            Client.connect(group.bootstrap, options=QUICK) as client,
            client.producer(options) as producer,
        ):
            yield group, client, producer


class Gate:
    """Holds calls of one method at the node; `arrived` counts them."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.opened = asyncio.Event()
        self.arrived: asyncio.Queue[Any] = asyncio.Queue()
        self.waiting = self.most_waiting = 0

    async def __call__(self, method: str, node: FakeNode, request: Any) -> None:
        if method != self.method:
            return
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        self.arrived.put_nowait(request)
        try:
            await self.opened.wait()
        finally:
            self.waiting -= 1


def refusing(method: str, *errors: epb.Error) -> Callable[[str, FakeNode, Any], Awaitable[None]]:
    """Refuses the first calls of `method`, one error each."""
    left = list(errors)

    async def refuse(called: str, node: FakeNode, request: Any) -> None:
        if called == method and left:
            raise Refusal(left.pop(0))

    return refuse


async def error_of(future: asyncio.Future[SendResult]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        await future
    return caught.value


def batches(group: FakeGroup) -> list[pb.SendBatch]:
    return [batch for request in group.sends for batch in request.batches]


# --- placing and batching -------------------------------------------------------------------------


@async_test
async def test_result_tells_where_the_message_lies() -> None:
    """Queue, offset and message id lead back to the same bytes."""
    async with producing(queues=2) as (_, client, producer):
        results = await asyncio.gather(*(producer.send("t", b"m%d" % n) for n in range(3)))
        assert [result.queue_offset for result in results] == [0, 1, 2]
        assert len({result.queue_id for result in results}) == 1
        for number, result in enumerate(results):
            by_id = await client.get_message(message_id=result.message_id)
            at = await client.get_message(
                topic="t", queue_id=result.queue_id, offset=result.queue_offset
            )
            assert by_id == at
            assert at.body == b"m%d" % number
            assert at.physical_offset == result.physical_offset
            assert at.store_time_ms == result.store_time_ms


@async_test
async def test_sends_of_one_turn_share_a_batch() -> None:
    """Nothing in flight: the flush waits for the loop's next turn, and no longer."""
    async with producing() as (group, _, producer):
        await producer.send("t", b"first")
        await asyncio.gather(*(producer.send("t", b"x") for _ in range(100)))
        assert [batch.count for batch in batches(group)] == [1, 100]


@async_test
async def test_unkeyed_messages_change_queues_with_each_batch() -> None:
    """Round-robin over the queues, batch by batch."""
    async with producing(queues=3) as (_, _, producer):
        queues = [(await producer.send("t", b"x")).queue_id for _ in range(6)]
        assert sorted(queues[:3]) == [0, 1, 2]
        assert queues[3:] == queues[:3]


@async_test
async def test_keyed_messages_keep_their_order_in_the_queue_of_their_key() -> None:
    """The queue is the key's hash, as RocketMQ's; the record carries the key."""
    async with producing(queues=4) as (group, _, producer):
        sent = [(f"key-{n % 7}", b"%d" % n) for n in range(200)]
        await asyncio.gather(*(producer.send("t", body, key=key) for key, body in sent))
        for queue_id, queue in enumerate(group.model.topics["t"]):
            stored = [decode_records(record)[0] for record in queue.records]
            expected = [(k, b) for k, b in sent if queue_of_key(k, 4) == queue_id]
            assert [(message.keys, message.body) for message in stored] == expected


@async_test
async def test_explicit_queue_wins_over_the_key() -> None:
    """The caller knows best."""
    async with producing(queues=4) as (_, _, producer):
        other = (queue_of_key("k", 4) + 1) % 4
        assert (await producer.send("t", b"x", key="k", queue_id=other)).queue_id == other


@async_test
async def test_labels_and_properties_reach_the_record() -> None:
    """Key, tag, properties: as RocketMQ writes them."""
    async with producing() as (group, _, producer):
        await producer.send("t", b"", key="k", tag="g", properties={"a": "ü"})
        (record,) = decode_records(group.model.topics["t"][0].records[0])
        assert record.properties == {"a": "ü", "KEYS": "k", "TAGS": "g"}
        assert record.body == b""


@async_test
async def test_batch_is_cut_at_its_size() -> None:
    """`batch_bytes` bounds a batch of several messages; a longer message goes alone."""
    options = ProducerOptions(batch_bytes=4_096)
    async with producing(options) as (group, _, producer):
        sizes = [1_000] * 20 + [9_000] + [1_000] * 5
        await asyncio.gather(*(producer.send("t", bytes(size)) for size in sizes))
        assert all(len(b.records) <= 4_096 or b.count == 1 for b in batches(group))
        assert [len(body) for body in group.model.bodies("t", 0)] == sizes


@async_test
async def test_requests_in_flight_are_bounded() -> None:
    """However much is buffered, two calls are under way at most."""
    options = ProducerOptions(batch_bytes=1_024, max_inflight_requests=2)
    async with producing(options, queues=8) as (group, _, producer):
        await producer.send("t", b"warm up")
        gate = Gate("Send")
        group.before.append(gate)
        futures = [producer.send("t", bytes(600), key=str(n)) for n in range(100)]
        await gate.arrived.get()
        await gate.arrived.get()
        assert producer.statistics().requests_in_flight == 2
        gate.opened.set()
        await asyncio.gather(*futures)
        assert gate.most_waiting <= 2


@async_test
async def test_message_in_company_waits_for_the_answer_not_for_the_linger() -> None:
    """An answer flushes what was gathered since; an hour of linger is not waited for."""
    async with producing(ProducerOptions(linger_ms=3_600_000)) as (group, _, producer):
        await producer.send("t", b"warm up")
        gate = Gate("Send")
        group.before.append(gate)
        first = producer.send("t", b"a")
        await gate.arrived.get()
        second = producer.send("t", b"b")
        gate.opened.set()
        assert (await first).queue_offset == 1
        assert (await second).queue_offset == 2


@async_test
async def test_message_with_little_time_waits_for_company_a_part_of_it_only() -> None:
    """Nobody answers, and an hour of linger is longer than it may take."""
    async with producing(ProducerOptions(linger_ms=3_600_000)) as (group, _, producer):
        gate = Gate("Send")
        group.before.append(gate)
        first = producer.send("t", b"first")
        await gate.arrived.get()
        usual = producer.send("t", b"usual")
        hasty = producer.send("t", b"hasty", deadline_s=30)
        later = producer.send("t", b"hastier", deadline_s=2)
        async with asyncio.timeout(20):
            await gate.arrived.get()
        gate.opened.set()
        await asyncio.gather(first, usual, hasty, later)
        assert group.model.bodies("t", 0) == [b"first", b"usual", b"hasty", b"hastier"]


@async_test
async def test_linger_ends_though_an_answer_is_awaited() -> None:
    """A slow answer must not hold up what could go beside it."""
    async with producing(ProducerOptions(linger_ms=1)) as (group, _, producer):
        await producer.send("t", b"warm up")
        gate = Gate("Send")
        group.before.append(gate)
        futures = [producer.send("t", b"a")]
        await gate.arrived.get()
        futures.append(producer.send("t", b"b"))
        request = await gate.arrived.get()
        assert [batch.base_sequence for batch in request.batches] == [2]
        gate.opened.set()
        await asyncio.gather(*futures)


# --- bounds and bad input -------------------------------------------------------------------------


@async_test
async def test_buffer_is_bounded_in_messages() -> None:
    """BufferFull comes at once and nothing was accepted; `room` waits for the answers."""
    options = ProducerOptions(max_buffered_messages=8)
    async with producing(options) as (group, _, producer):
        gate = Gate("Send")
        group.before.append(gate)
        futures = [producer.send("t", b"x") for _ in range(8)]
        with pytest.raises(BufferFull) as caught:
            producer.send("t", b"one too many")
        assert caught.value.retriable
        assert "was not stored" in str(caught.value)
        waiting = asyncio.ensure_future(producer.room())
        await gate.arrived.get()
        assert not waiting.done()
        gate.opened.set()
        await waiting
        await asyncio.gather(*futures, producer.send("t", b"now"))
        assert len(group.model.bodies("t", 0)) == 9


@async_test
async def test_buffer_is_bounded_in_bytes() -> None:
    """`room` waits until what was refused would fit, so that asking again can't spin."""
    options = ProducerOptions(max_buffered_bytes=10_000)
    async with producing(options) as (group, _, producer):
        gate = Gate("Send")
        group.before.append(gate)
        small = producer.send("t", bytes(1_000))
        with pytest.raises(BufferFull):
            producer.send("t", bytes(9_500))
        waiting = asyncio.ensure_future(producer.room())
        await gate.arrived.get()
        assert not waiting.done()
        gate.opened.set()
        await waiting
        await asyncio.gather(small, producer.send("t", bytes(9_500)))


@async_test
async def test_empty_buffer_accepts_a_message_above_its_bound() -> None:
    """Otherwise it could never be sent."""
    async with producing(ProducerOptions(max_buffered_bytes=100)) as (_, _, producer):
        assert (await producer.send("t", bytes(5_000))).queue_offset == 0


@async_test
async def test_largest_message_passes_and_the_next_larger_one_is_refused() -> None:
    """4 MiB of body is the limit."""
    async with producing() as (group, _, producer):
        with pytest.raises(MessageTooLarge):
            producer.send("t", bytes((4 << 20) + 1))
        await producer.send("t", bytes(4 << 20))
        assert [len(body) for body in group.model.bodies("t", 0)] == [4 << 20]


@pytest.mark.parametrize("topic", ["", "a b", "ü", "x" * 128, "a/b"])
def test_ill_named_topic_is_refused_at_once(topic: str) -> None:
    """No call is made, and the name is remembered nowhere."""

    @async_test
    async def check() -> None:
        async with producing() as (group, _, producer):
            with pytest.raises(InvalidArgument, match="topic name"):
                producer.send(topic, b"x")
            assert producer.statistics().accepted == 0
            await producer.flush()
            assert sum(node.calls["DescribeTopic"] for node in group.nodes) == 0

    check()


@async_test
async def test_unencodable_properties_are_refused_at_once() -> None:
    """Separators, empty names, labels given twice."""
    async with producing() as (_, _, producer):
        with pytest.raises(InvalidArgument):
            producer.send("t", b"x", key="a\x01b")
        with pytest.raises(InvalidArgument):
            producer.send("t", b"x", properties={"": "v"})
        with pytest.raises(InvalidArgument, match="KEYS"):
            producer.send("t", b"x", key="a", properties={"KEYS": "b"})
        assert producer.statistics().accepted == 0


# --- topics ---------------------------------------------------------------------------------------


@async_test
async def test_messages_wait_in_order_until_the_topic_is_known() -> None:
    """`send` never blocks, not even the first time."""
    async with producing(queues=2) as (group, _, producer):
        gate = Gate("DescribeTopic")
        group.before.append(gate)
        futures = [producer.send("t", b"%d" % n, queue_id=1) for n in range(5)]
        misplaced = producer.send("t", b"?", queue_id=2)
        await gate.arrived.get()
        assert group.sends == []
        gate.opened.set()
        assert [(await future).queue_offset for future in futures] == [0, 1, 2, 3, 4]
        assert group.model.bodies("t", 1) == [b"0", b"1", b"2", b"3", b"4"]
        assert isinstance(await error_of(misplaced), QueueNotFound)
        assert sum(node.calls["DescribeTopic"] for node in group.nodes) == 1


@async_test
async def test_unknown_topic_fails_its_messages_and_may_exist_later() -> None:
    """Nothing was stored; the name is asked for again with the next message."""
    async with producing() as (group, _, producer):
        error = await error_of(producer.send("later", b"x"))
        assert isinstance(error, TopicNotFound)
        assert error.outcome is Outcome.DID_NOT_HAPPEN
        group.model.create("later", 2)
        assert (await producer.send("later", b"x")).queue_offset == 0


@async_test
async def test_queue_that_does_not_exist_is_refused_at_once_when_known() -> None:
    """And the topic is asked for again: it may have been made anew."""
    async with producing(queues=2) as (group, _, producer):
        await producer.send("t", b"x")
        with pytest.raises(QueueNotFound):
            producer.send("t", b"x", queue_id=2)
        group.model.topics["t"].append(type(group.model.topics["t"][0])())
        assert (await producer.send("t", b"x", queue_id=2)).queue_id == 2


@async_test
async def test_topic_made_anew_is_sent_to_under_a_new_id() -> None:
    """The group forgot the sequences with the topic; no message is refused for it, if nodes don't
    tell one topic of the name from another."""
    async with producing() as (group, client, producer):
        group.model.incarnations["t"] = 0
        await producer.send("t", b"old")
        await client.delete_topic("t")
        group.model.create("t", 1)
        group.model.incarnations["t"] = 0
        assert (await producer.send("t", b"new")).queue_offset == 0
        assert len({request.producer_id for request in group.sends}) == 2


@async_test
async def test_what_was_sent_to_a_topic_is_not_stored_in_a_later_one() -> None:
    """Told by name; the next message goes to the new topic, from its first sequence on."""
    async with producing() as (group, _, producer):
        former = group.model.incarnations["t"]
        for _ in range(3):
            await producer.send("t", b"old", queue_id=0)
        group.model.create("t", 1)
        error = await error_of(producer.send("t", b"late", queue_id=0))
        assert isinstance(error, TopicReplaced)
        assert error.outcome is Outcome.DID_NOT_HAPPEN
        assert (await producer.send("t", b"new", queue_id=0)).queue_offset == 0
        named = [(b.topic_incarnation, b.base_sequence) for s in group.sends for b in s.batches]
        assert named[-2:] == [(former, 3), (group.model.incarnations["t"], 0)]
        assert group.model.bodies("t", 0) == [b"new"]


@async_test
async def test_topic_deleted_meanwhile_fails_its_messages() -> None:
    """Definitive: not stored; the route is forgotten."""
    async with producing() as (_, client, producer):
        await producer.send("t", b"old")
        await client.delete_topic("t")
        for _ in range(2):  # the second time, the topic is asked for
            error = await error_of(producer.send("t", b"x"))
            assert isinstance(error, TopicNotFound)
            assert "the message was not stored" in str(error)


@async_test
async def test_failure_of_old_messages_does_not_lose_those_that_wait_for_the_topic() -> None:
    """The topic is being asked for again while a batch to it is refused."""
    options = ProducerOptions(close_timeout_ms=20)
    async with producing(options) as (group, client, producer):
        await producer.send("t", b"warm up")
        sends, describes = Gate("Send"), Gate("DescribeTopic")
        group.before += [sends, describes]
        old = producer.send("t", b"old")
        await sends.arrived.get()
        with pytest.raises(QueueNotFound):
            producer.send("t", b"?", queue_id=9)
        held = producer.send("t", b"held")
        await describes.arrived.get()
        await client.delete_topic("t")
        sends.opened.set()
        assert isinstance(await error_of(old), TopicNotFound)
        with pytest.raises(SendsFailed):
            await producer.close()
        assert isinstance(held.exception(), ProducerClosed)


# --- retries --------------------------------------------------------------------------------------


@async_test
async def test_lost_answer_is_retried_and_stored_once() -> None:
    """Stored once; the result says that an earlier attempt had stored it."""
    async with producing() as (group, _, producer):
        group.after.append(refusing("Send", wire_error(epb.LEADERSHIP_LOST)))
        result = await producer.send("t", b"once")
        assert result.duplicate
        assert group.model.bodies("t", 0) == [b"once"]
        first, second = batches(group)
        assert first == second


@pytest.mark.parametrize(
    "code", [epb.BUSY, epb.STORAGE_FULL, epb.NOT_READY, epb.NOT_LEADER, epb.SHUTTING_DOWN]
)
def test_retriable_refusals_are_retried(code: epb.ErrorCode) -> None:
    """They did not happen, so the retry is no duplicate."""

    @async_test
    async def check() -> None:
        async with producing() as (group, _, producer):
            group.before.append(refusing("Send", wire_error(code), wire_error(code)))
            result = await producer.send("t", b"x")
            assert not result.duplicate
            assert producer.statistics().batches_retried == 2

    check()


def refusing_queue(group: FakeGroup, queue_id: int, *errors: epb.Error) -> None:
    """The model refuses the first batches for one queue, each with an error."""
    left, store = list(errors), group.model.store

    def picky(producer: bytes, batch: pb.SendBatch) -> pb.SendResult:
        if batch.queue_id == queue_id and left:
            raise Refusal(left.pop(0))
        return store(producer, batch)

    group.model.store = picky  # type: ignore[method-assign]


@async_test
async def test_batches_of_a_request_fail_independently() -> None:
    """One queue is busy: its batch is retried, the other's is acknowledged once."""
    async with producing(queues=2) as (group, _, producer):
        refusing_queue(group, 0, wire_error(epb.BUSY))
        zero, one = producer.send("t", b"0", queue_id=0), producer.send("t", b"1", queue_id=1)
        await asyncio.gather(zero, one)
        assert [(batch.queue_id, batch.base_sequence) for batch in batches(group)] == [
            (0, 0),
            (1, 0),
            (0, 0),
        ]


@async_test
async def test_refused_batch_does_not_take_the_next_ones_with_it() -> None:
    """They are numbered anew and stored, in order."""
    async with producing() as (group, _, producer):
        await producer.send("t", b"warm up")
        gate = Gate("Send")
        group.before.append(gate)
        refusing_queue(group, 0, wire_error(epb.INVALID_ARGUMENT, "no"))
        bad = producer.send("t", b"bad")
        await gate.arrived.get()
        good = [producer.send("t", b"good")]
        await gate.arrived.get()
        good.append(producer.send("t", b"better"))
        gate.opened.set()
        error = await error_of(bad)
        assert (type(error), error.outcome) == (InvalidArgument, Outcome.DID_NOT_HAPPEN)
        assert [(await future).queue_offset for future in good] == [1, 2]
        assert group.model.bodies("t", 0) == [b"warm up", b"good", b"better"]


@async_test
async def test_retry_goes_out_under_the_id_of_its_first_attempt() -> None:
    """Though another queue has begun a new epoch: a request names one id for all in it."""
    async with producing(queues=2) as (group, _, producer):
        refusing_queue(group, 0, wire_error(epb.INTERNAL))
        refusing_queue(group, 1, wire_error(epb.BUSY))
        bad, busy = producer.send("t", b"0", queue_id=0), producer.send("t", b"1", queue_id=1)
        await error_of(bad)
        await asyncio.gather(producer.send("t", b"good", queue_id=0), busy)
        ids = {
            q: [r.producer_id for r in group.sends for b in r.batches if b.queue_id == q]
            for q in (0, 1)
        }
        assert ids[1][0] == ids[1][1]
        assert ids[0][0] != ids[0][1]


@async_test
async def test_answer_that_does_not_fit_the_request_is_no_answer() -> None:
    """The batch may have been stored: it is sent again."""
    async with producing() as (group, _, producer):
        honest = group.on_Send
        answers = [pb.SendResponse()]

        async def odd(node: FakeNode, request: pb.SendRequest) -> pb.SendResponse:
            answer = await honest(node, request)
            return answers.pop() if answers else answer

        group.on_Send = odd  # type: ignore[method-assign]
        assert (await producer.send("t", b"x")).duplicate


@async_test
async def test_node_that_breaks_leaves_the_outcome_open() -> None:
    """An exception in the handler reaches the client as a bare status."""
    async with producing() as (group, _, producer):

        async def crash(method: str, node: FakeNode, request: Any) -> None:
            if method == "Send":
                raise ValueError("a bug")

        group.before.append(crash)
        error = await error_of(producer.send("t", b"x"))
        assert isinstance(error, ServerError)
        assert error.outcome is Outcome.MAY_HAVE_HAPPENED
        assert "may have been stored" in str(error)


# --- failover -------------------------------------------------------------------------------------


@async_test
async def test_death_of_the_leader_costs_no_message() -> None:
    """In flight, gathered and new ones: each is stored once, in order."""
    async with producing(ProducerOptions(batch_bytes=1_024)) as (group, _, producer):
        await producer.send("t", b"warm up")
        gate = Gate("Send")
        group.after.append(gate)  # stored, and the answer held back
        futures = [producer.send("t", b"%03d" % n + bytes(200)) for n in range(40)]
        await gate.arrived.get()
        group.after.remove(gate)
        await group.nodes[0].kill()
        futures += [producer.send("t", b"%03d" % n + bytes(200)) for n in range(40, 60)]
        group.elect(group.nodes[1])
        results = await asyncio.gather(*futures)
        assert [result.queue_offset for result in results] == list(range(1, 61))
        assert [b[:3] for b in group.model.bodies("t", 0)[1:]] == [b"%03d" % n for n in range(60)]
        assert results[0].duplicate
        assert producer.statistics().unknown == 0


@async_test
async def test_leader_that_hangs_is_left_when_the_next_one_shows_itself() -> None:
    """SIGSTOP: no connection breaks and no error ever comes."""
    async with producing() as (group, _, producer):
        await producer.send("t", b"warm up")
        group.nodes[0].running.clear()
        stuck = producer.send("t", b"stuck")
        await group.nodes[0].called("Send", 2)
        group.elect(group.nodes[2])
        assert (await stuck).queue_offset == 1
        assert group.model.bodies("t", 0) == [b"warm up", b"stuck"]


@async_test
async def test_nothing_is_sent_before_the_new_leader_serves() -> None:
    """Elected is not ready: batches wait for its word instead of being refused."""
    async with producing() as (group, client, producer):
        await producer.send("t", b"warm up")
        group.elect(group.nodes[1], serving=False)
        await leaderless(client)
        waiting = producer.send("t", b"x")
        group.tell(group.nodes[1], serving=True)
        await waiting
        assert group.nodes[1].calls["Send"] == 1
        assert producer.statistics().batches_retried == 0


@async_test
async def test_restarted_single_node_is_found_again() -> None:
    """A group of one: its watch is all there is."""
    async with producing(nodes=1) as (group, _, producer):
        await producer.send("t", b"a")
        await group.nodes[0].kill()
        waiting = producer.send("t", b"b")
        await group.nodes[0].start()
        assert (await waiting).queue_offset == 1


@async_test
async def test_group_that_refuses_watches_is_usable() -> None:
    """The hint in a refusal leads to the leader."""
    async with FakeGroup() as group:
        group.refuse_watches = True
        group.model.create("t", 1)
        group.elect(group.nodes[2])
        async with (
            Client.connect(group.nodes[0].address, options=QUICK) as client,
            client.producer() as producer,
        ):
            assert (await producer.send("t", b"x")).queue_offset == 0


# --- deadlines ------------------------------------------------------------------------------------


@async_test
async def test_deadline_without_a_leader_is_a_certain_failure() -> None:
    """Never sent, so not stored."""
    async with producing(ProducerOptions(delivery_timeout_ms=500)) as (group, client, producer):
        await producer.send("t", b"warm up")
        group.elect(None)
        await leaderless(client)
        error = await error_of(producer.send("t", b"x"))
        assert (type(error), error.outcome) == (DeadlineExceeded, Outcome.DID_NOT_HAPPEN)
        assert "was not stored" in str(error)


@async_test
async def test_deadline_at_a_silent_leader_leaves_the_outcome_open() -> None:
    """What follows fails with it; the producer goes on under a new id."""
    options = ProducerOptions(delivery_timeout_ms=500, linger_ms=0, max_inflight_requests=2)
    async with producing(options) as (group, _, producer):
        await producer.send("t", b"warm up")
        group.nodes[0].running.clear()
        sent = [producer.send("t", b"a")]
        await group.nodes[0].called("Send", 2)
        sent.append(producer.send("t", b"b"))
        await group.nodes[0].called("Send", 3)
        unsent = producer.send("t", b"c")
        first, second = [await error_of(future) for future in sent]
        assert (type(first), first.outcome) == (DeadlineExceeded, Outcome.MAY_HAVE_HAPPENED)
        assert (type(second), second.outcome) == (OutOfSequence, Outcome.MAY_HAVE_HAPPENED)
        assert "may have been stored" in str(first)
        third = await error_of(unsent)
        assert (type(third), third.outcome) == (OutOfSequence, Outcome.DID_NOT_HAPPEN)
        group.nodes[0].running.set()
        await producer.send("t", b"later")
        ids = {request.producer_id for request in group.sends if request.batches[0].count}
        assert len(ids) == 2
        assert b"c" not in group.model.bodies("t", 0)
        assert producer.statistics().unknown == 2


@async_test
async def test_topic_that_is_never_learnt_fails_by_the_deadline() -> None:
    """Held messages have no other limit."""
    async with producing(ProducerOptions(delivery_timeout_ms=50)) as (group, client, producer):
        group.elect(None)
        await leaderless(client)
        error = await error_of(producer.send("t", b"x"))
        assert (type(error), error.outcome) == (DeadlineExceeded, Outcome.DID_NOT_HAPPEN)
        assert producer.statistics().buffered_messages == 0


# --- futures and the end --------------------------------------------------------------------------


@async_test
async def test_cancelled_future_takes_nothing_back_and_harms_nobody() -> None:
    """The message is in its batch already."""
    async with producing() as (group, _, producer):
        futures = [producer.send("t", b"%d" % n) for n in range(3)]
        futures[1].cancel()
        await producer.flush()
        assert futures[2].result().queue_offset == 2
        assert group.model.bodies("t", 0) == [b"0", b"1", b"2"]


@async_test
async def test_failure_that_nobody_looks_at_is_told_by_flush_once() -> None:
    """`async_test` fails on any complaint about a dropped exception."""
    async with producing() as (_, _, producer):
        for _ in range(3):
            producer.send("missing", b"x")
        with pytest.raises(SendsFailed, match="3 messages failed") as told:
            await producer.flush()
        assert [type(error) for error in told.value.failures] == [TopicNotFound] * 3
        assert told.value.outcome is Outcome.DID_NOT_HAPPEN
        assert producer.statistics().failed == 3
        await producer.flush()


@async_test
async def test_each_message_has_its_own_exception() -> None:
    """Shared ones would grow a traceback with every await."""
    async with producing() as (_, _, producer):
        futures = [producer.send("missing", b"x") for _ in range(2)]
        errors = [await error_of(future) for future in futures]
        assert errors[0] is not errors[1]


@async_test
async def test_flush_covers_what_was_accepted_before_it() -> None:
    """Also what still waits for its topic to be known."""
    async with producing(ProducerOptions(linger_ms=3_600_000), queues=4) as (_, _, producer):
        futures = [producer.send("t", b"x", key=str(n)) for n in range(50)]
        await producer.flush()
        assert all(future.done() for future in futures)
        assert producer.statistics().buffered_messages == 0


@async_test
async def test_close_flushes_and_then_refuses() -> None:
    """Leaving the block is enough."""
    async with producing() as (group, client, _):
        async with client.producer() as producer:
            future = producer.send("t", b"x")
        assert future.result().queue_offset == 0
        with pytest.raises(ProducerClosed):
            producer.send("t", b"y")
        await producer.close()
        assert group.model.bodies("t", 0) == [b"x"]


@async_test
async def test_close_gives_up_in_time_and_says_what_is_known() -> None:
    """Sent without an answer: may have been stored. Not sent: was not."""
    options = ProducerOptions(close_timeout_ms=50, max_inflight_requests=1)
    async with producing(options) as (group, _, producer):
        await producer.send("t", b"warm up")
        group.nodes[0].running.clear()
        sent = producer.send("t", b"a")
        await group.nodes[0].called("Send", 2)
        unsent = producer.send("t", b"b")
        with pytest.raises(SendsFailed) as told:
            await producer.close()
        assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED
        errors = [await error_of(sent), await error_of(unsent)]
        assert isinstance(errors[0], ProducerClosed)
        assert [error.outcome for error in errors] == [
            Outcome.MAY_HAVE_HAPPENED,
            Outcome.DID_NOT_HAPPEN,
        ]


@async_test
async def test_room_after_the_end_is_an_error() -> None:
    """Who waits for it is woken: there will be none."""
    options = ProducerOptions(max_buffered_messages=1, close_timeout_ms=20)
    async with producing(options) as (group, _, producer):
        group.elect(None)
        producer.send("t", b"x")
        waiting = asyncio.ensure_future(producer.room())
        with pytest.raises(SendsFailed):
            await producer.close()
        with pytest.raises(ProducerClosed):
            await waiting


@async_test
async def test_cancelled_block_does_not_wait_for_the_flush() -> None:
    """Ctrl-C ends a script although the group is silent."""
    async with producing() as (group, client, _):
        group.nodes[0].running.clear()
        entered = asyncio.Event()
        futures: list[asyncio.Future[SendResult]] = []

        async def script() -> None:
            async with client.producer() as producer:
                futures.append(producer.send("t", b"x"))
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(script())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert isinstance(futures[0].exception(), ProducerClosed)

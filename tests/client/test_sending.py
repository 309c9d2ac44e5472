"""What a single send may ask for: no answer, a deadline of its own, compression. And brokers that
have no room."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tenacity import AsyncRetrying, RetryCallState

from dledger.client import (
    BodyUnreadable,
    BufferFull,
    Client,
    ClientError,
    CodecMissing,
    ConsumerOptions,
    DeadlineExceeded,
    InvalidArgument,
    Message,
    MessageTooLarge,
    NewMessage,
    Outcome,
    Producer,
    ProducerClosed,
    ProducerOptions,
    SendsFailed,
)
from dledger.client.broker_group import _backoff
from dledger.client.errors import Busy, NotReady
from dledger.client.results import decode_messages
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.records.compression import Codec
from dledger.records.record import RecordTemplate, decode_records
from dledger.testing.fake_nodes import FakeNode
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.client.test_producer import Gate, error_of, producing, refusing_queue
from tests.codecs import EACH, HERE
from tests.scale import examples

READING = ConsumerOptions(hold_ms=50)
LINE = b"a line as logs have it, again and again\n"


async def read(client: Client, topic: str = "t") -> list[Message]:
    """Everything that is in the topic."""
    consumer = client.pull_consumer(topic, idle_timeout_s=0.01, options=READING)
    return [message async for message in consumer]


class Refusing:
    """Every call of one method is refused until it is told to stop."""

    def __init__(self, method: str, code: epb.ErrorCode) -> None:
        self.method, self.code, self.lasts = method, code, True

    async def __call__(self, method: str, node: FakeNode, request: Any) -> None:
        if method == self.method and self.lasts:
            raise Refusal(wire_error(self.code, "refused"))


# --- one way --------------------------------------------------------------------------------------


@async_test
async def test_one_way_is_stored_once_and_in_order() -> None:
    """Beside others, over a leader that dies and an answer that is lost."""
    async with producing() as (group, _, producer):
        for number in range(50):
            producer.send_one_way("t", b"%02d" % number, key="k")
        await producer.flush()
        await group.nodes[0].kill()
        group.elect(group.nodes[1])
        for number in range(50, 100):
            send = producer.send_one_way if number % 2 else producer.send
            send("t", b"%02d" % number, key="k")
        await producer.flush()
        assert group.model.bodies("t", 0) == [b"%02d" % number for number in range(100)]
        counts = producer.statistics()
        assert (counts.stored, counts.one_way_failed, counts.buffered_messages) == (100, 0, 0)


@async_test
async def test_failed_one_way_is_counted_and_told_to_nobody() -> None:
    """`flush` and `close` raise for sends that somebody may have meant to look at."""
    async with producing() as (_, _, producer):
        for _ in range(3):
            producer.send_one_way("absent", b"x")
        await producer.flush()
        counts = producer.statistics()
        assert (counts.failed, counts.one_way_failed, counts.accepted) == (3, 3, 3)


@async_test
async def test_one_way_in_doubt_is_counted_at_the_close() -> None:
    """It may have been stored, and that is what the count says."""
    gate = Gate("Send")
    async with producing(ProducerOptions(close_timeout_ms=50)) as (group, _, producer):
        group.before.append(gate)
        producer.send_one_way("t", b"x")
        await gate.arrived.get()
        await producer.close()
        counts = producer.statistics()
        assert (counts.unknown, counts.one_way_failed, counts.buffered_messages) == (1, 1, 0)
        gate.opened.set()


@async_test
async def test_one_way_keeps_to_the_bounds_and_to_what_can_be_sent() -> None:
    """Memory is bounded as it is for any send, and mistakes are told."""
    async with producing(ProducerOptions(max_buffered_messages=2)) as (group, _, producer):
        gate = Gate("Send")
        group.before.append(gate)
        with pytest.raises(InvalidArgument):
            producer.send_one_way("t", b"x", key="two words")
        producer.send_one_way("t", b"1")
        producer.send_one_way("t", b"2")
        with pytest.raises(BufferFull):
            producer.send_one_way("t", b"3")
        gate.opened.set()
        await producer.flush()
        await producer.close()
        with pytest.raises(ProducerClosed):
            producer.send_one_way("t", b"x")


# --- deadlines ------------------------------------------------------------------------------------


async def ended(producer: Producer, deadline_s: float) -> tuple[ClientError, float]:
    """What a send with that deadline ends with, and how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    error = await error_of(producer.send("t", b"x", deadline_s=deadline_s))
    return error, loop.time() - began


@async_test
async def test_deadline_without_a_leader_did_not_happen() -> None:
    """Long before the producer's own; and what has more time is stored when there is a leader."""
    async with producing() as (group, _, producer):
        await producer.send("t", b"0")
        group.elect(None)
        patient = producer.send("t", b"patient")
        error, took_s = await ended(producer, 0.1)
        assert isinstance(error, DeadlineExceeded)
        assert error.outcome is Outcome.DID_NOT_HAPPEN
        assert took_s >= 0.1
        group.elect(group.nodes[1])
        await patient
        assert group.model.bodies("t", 0) == [b"0", b"patient"]


@async_test
async def test_deadline_in_flight_may_have_happened_and_fails_nobody_else() -> None:
    """The answer hangs beyond it. The message keeps its place; what was sent behind it is stored
    behind it."""
    gate = Gate("Send")
    async with producing(ProducerOptions(max_inflight_requests=1)) as (group, _, producer):
        group.before.append(gate)
        hasty = producer.send("t", b"hasty", deadline_s=0.1)
        await gate.arrived.get()
        patient = producer.send("t", b"patient")
        error = await error_of(hasty)
        assert (type(error), error.outcome) == (DeadlineExceeded, Outcome.MAY_HAVE_HAPPENED)
        counts = producer.statistics()
        assert (counts.unknown, counts.buffered_messages, counts.accepted) == (1, 2, 2)
        gate.opened.set()
        await patient
        assert group.model.bodies("t", 0) == [b"hasty", b"patient"]
        counts = producer.statistics()
        assert (counts.unknown, counts.stored, counts.accepted) == (1, 1, 2)
        assert (counts.buffered_messages, counts.buffered_bytes) == (0, 0)


@async_test
async def test_deadline_holds_while_brokers_refuse() -> None:
    """Through retries; each was refused, so that it certainly did not happen."""
    async with producing() as (group, _, producer):
        await producer.send("t", b"0")
        refusing = Refusing("Send", epb.BUSY)
        group.before.append(refusing)
        error, _ = await ended(producer, 0.2)
        assert (type(error), error.outcome) == (DeadlineExceeded, Outcome.DID_NOT_HAPPEN)
        refusing.lasts = False
        await producer.send("t", b"1")
        assert group.model.bodies("t", 0) == [b"0", b"1"]


@async_test
async def test_deadline_holds_while_the_topic_is_looked_for() -> None:
    """The others' search goes on."""
    async with producing() as (group, _, producer):
        gate = Gate("DescribeTopic")
        group.before.append(gate)
        patient = producer.send("t", b"patient")
        error, _ = await ended(producer, 0.1)
        assert (type(error), error.outcome) == (DeadlineExceeded, Outcome.DID_NOT_HAPPEN)
        longer = producer.send("t", b"longer", deadline_s=20)
        assert not patient.done()
        gate.opened.set()
        await asyncio.gather(patient, longer)
        assert group.model.bodies("t", 0) == [b"patient", b"longer"]


@async_test
async def test_longer_deadline_outlasts_the_producers() -> None:
    """It overrides it in either direction; what is behind it has the producer's."""
    async with producing(ProducerOptions(delivery_timeout_ms=1_000)) as (group, _, producer):
        await producer.send("t", b"0")
        group.elect(None)
        longer = producer.send("t", b"longer", deadline_s=25)
        usual = producer.send("t", b"usual")
        assert (await error_of(usual)).outcome is Outcome.DID_NOT_HAPPEN
        group.elect(group.nodes[0])
        await longer
        assert group.model.bodies("t", 0) == [b"0", b"longer"]


@async_test
async def test_flush_does_not_wait_for_what_was_told() -> None:
    """A message whose deadline is over is settled for who flushes; its place isn't."""
    gate = Gate("Send")
    async with producing() as (group, _, producer):
        group.before.append(gate)
        hasty = producer.send("t", b"hasty", deadline_s=0.1)
        with pytest.raises(SendsFailed) as told:
            await producer.flush()
        assert isinstance(told.value.failures[0], DeadlineExceeded)
        assert hasty.done()
        assert producer.statistics().buffered_messages == 1
        gate.opened.set()


@pytest.mark.parametrize("deadline_s", [0, -1.5])
def test_deadline_that_is_over_is_refused(deadline_s: float) -> None:
    """As who shares out what is left of a request's time may come to it."""

    @async_test
    async def check() -> None:
        async with producing() as (_, _, producer):
            with pytest.raises(DeadlineExceeded) as told:
                producer.send("t", b"x", deadline_s=deadline_s)
            assert told.value.outcome is Outcome.DID_NOT_HAPPEN
            assert producer.statistics().accepted == 0

    check()


@async_test
async def test_deadline_of_a_wrong_kind_is_named() -> None:
    """Before anything has happened."""
    async with producing() as (_, _, producer):
        for wrong in ("5", True, float("nan")):
            with pytest.raises(InvalidArgument, match="deadline_s"):
                producer.send("t", b"x", deadline_s=wrong)  # type: ignore[arg-type]


@async_test
async def test_messages_of_one_deadline_share_batches() -> None:
    """In bulk, too: a deadline isn't what makes small requests."""
    async with producing() as (group, _, producer):
        await producer.send("t", b"0")
        before = len(group.sends)
        bulk = [NewMessage("t", b"x", deadline_s=20.0) for _ in range(200)]
        assert await producer.send_all(bulk) == 200
        assert len(group.sends) - before < 20


# --- brokers without room -------------------------------------------------------------------------


@async_test
async def test_busy_brokers_are_asked_less_and_less_often() -> None:
    """One second of it, eight queues: without pauses there would be thousands of calls. What was
    refused is counted, and stored once there is room."""
    async with producing(queues=8) as (group, _, producer):
        await producer.send("t", b"0", queue_id=0)
        before = group.nodes[0].calls["Send"]
        refusing = Refusing("Send", epb.BUSY)
        group.before.append(refusing)
        futures = [producer.send("t", b"x", queue_id=queue_id) for queue_id in range(8)]
        await asyncio.wait(futures, timeout=1.0)
        assert group.nodes[0].calls["Send"] - before < 60
        assert producer.statistics().batches_busy >= 8
        refusing.lasts = False
        await asyncio.gather(*futures)


@async_test
async def test_room_for_some_is_no_reason_to_ask_sooner() -> None:
    """One queue's budget is used up, another's messages are stored: the pauses grow."""
    async with producing(ProducerOptions(linger_ms=0), queues=2) as (group, _, producer):
        await producer.send("t", b"0", queue_id=1)
        refusing_queue(group, 0, *[wire_error(epb.BUSY)] * 6)
        pause = producer._dispatcher._pause
        refused, longest = producer.send("t", b"x", queue_id=0), 0.0
        while not refused.done():
            await producer.send("t", b"y", queue_id=1)
            longest = max(longest, pause._next_s)
        assert longest >= 0.04, "5, 10, 20, 40 ms"


def ninth_attempt(error: ClientError) -> RetryCallState:
    """A call that has failed so often, the last time with `error`."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = 9
    state.set_exception((type(error), error, None))
    return state


def test_calls_back_off_longer_from_busy_brokers_and_by_chance() -> None:
    """An election is over soon; a lack of room isn't, and who was refused together must not come
    back together."""

    busy = [_backoff(ninth_attempt(Busy("full"))) for _ in range(200)]
    assert max(busy) - min(busy) > 0.5
    assert 0.005 <= min(busy) <= max(busy) <= 1.0
    assert _backoff(ninth_attempt(NotReady("elected"))) <= 0.52


# --- compression ----------------------------------------------------------------------------------

sizes = st.sampled_from([0, 1, 100, 4_096, 4_097, 70_000])
compressible = st.builds(
    lambda piece, size: (piece * (size + 1))[:size], st.binary(min_size=1), sizes
)


@settings(max_examples=examples(25), deadline=None)
@given(
    bodies=st.lists(st.one_of(st.binary(max_size=300), compressible), min_size=1, max_size=8),
    codec=st.sampled_from([None, *HERE]),
    above=st.sampled_from([0, 64, 4_096, 1 << 20]),
)
def test_what_is_consumed_is_what_was_sent(
    bodies: list[bytes], codec: Codec | None, above: int
) -> None:
    """Any body, any codec, any threshold; and no body is stored larger than it is."""

    @async_test
    async def check() -> None:
        name = None if codec is None else codec.name.lower()
        options = ProducerOptions(compression=name, compress_above_bytes=above)
        async with producing(options, nodes=1) as (_, client, producer):
            futures = [producer.send("t", body) for body in bodies]
            await asyncio.gather(*futures)
            messages = await read(client)
            assert [message.body for message in messages] == bodies
            for message, body in zip(messages, bodies, strict=True):
                assert len(message.stored_body) <= len(body)
                assert bool(message.sysflag) == (len(message.stored_body) < len(body))
                assert not message.sysflag or (codec is not None and len(body) > above)

    check()


@pytest.mark.parametrize("codec", EACH)
def test_bodies_are_stored_compressed(codec: Codec) -> None:
    """What the brokers get is smaller, says by what, and its CRC is over what it is."""

    @async_test
    async def check() -> None:
        options = ProducerOptions(compression=codec.name.lower())
        async with producing(options) as (group, client, producer):
            stored = await producer.send("t", LINE * 1_000, key="k", properties={"a": "b"})
            await producer.send("t", b"small")
            records = group.model.topics["t"][0].records
            assert len(records[0]) < 2_000
            compressed, plain = decode_records(b"".join(records))
            assert (compressed.sysflag, plain.sysflag) == (codec.sysflag, 0)
            message = await client.get_message(message_id=stored.message_id)
            assert (message.body, message.keys) == (LINE * 1_000, "k")
            assert message.properties["a"] == "b"
            assert (await client.pull("t", 0, 0)).messages[0].body == LINE * 1_000

    check()


@async_test
async def test_body_over_the_limit_is_refused_however_well_it_compresses() -> None:
    """Nobody could read it."""
    async with producing(ProducerOptions(compression="zlib")) as (_, _, producer):
        await producer.send("t", bytes(MAX_MESSAGE_BYTES))
        with pytest.raises(MessageTooLarge):
            producer.send("t", bytes(MAX_MESSAGE_BYTES + 1))


@async_test
async def test_message_that_cannot_be_read_fails_who_asks_and_the_loop_goes_on() -> None:
    """A poison message: those around it are consumed, and it says where it lies."""
    async with producing() as (group, client, producer):
        await producer.send("t", b"before")
        registration = await producer.register()
        template = RecordTemplate("t", ("127.0.0.1", 0))
        garbage = template.encode(0, b"garbage", b"KEYS\x01k\x02", 1, 0, Codec.ZSTD.sysflag)
        unknown = template.encode(0, b"garbage", b"", 1, 0, 1 | 7 << 8)
        batch = pb.SendBatch(topic="t", base_sequence=1, count=2, records=garbage + unknown)
        group.model.store(registration.producer_id, batch)
        bodies: list[bytes] = []
        errors: list[BodyUnreadable] = []
        consumer = client.pull_consumer("t", idle_timeout_s=0.01, options=READING)
        async for message in consumer:
            try:
                bodies.append(message.body)
            except BodyUnreadable as error:
                bodies.append(message.stored_body)
                errors.append(error)
        assert bodies == [b"before", b"garbage", b"garbage"]
        assert ["t/0 offset 1" in str(errors[0]), "t/0 offset 2" in str(errors[1])] == [True] * 2
        assert {(error.retriable, error.outcome) for error in errors} == {
            (False, Outcome.DID_NOT_HAPPEN)
        }
        assert consumer.positions == {0: 3}


@pytest.mark.parametrize(
    "wrong",
    [
        {"compression": "snappy"},
        {"compression": 3},
        {"compression": ""},
        {"compression": "zlib", "compression_level": 0},
        {"compression": "zlib", "compression_level": 10},
        {"compression": "zlib", "compression_level": 2.0},
        {"compression_level": 3},
        {"compress_above_bytes": -1},
        {"stamp": "traceparent"},
    ],
)
def test_impossible_options_fail_where_they_are_written(wrong: dict[str, Any]) -> None:
    """And name themselves."""
    with pytest.raises(InvalidArgument):
        ProducerOptions(**wrong)


def test_codec_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is chosen, and by who reads; with what to install."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(CodecMissing, match="pip install zstandard"):
        ProducerOptions(compression="zstd")
    record = RecordTemplate("t", ("127.0.0.1", 0)).encode(0, b"x", b"", 1, 0, Codec.ZSTD.sysflag)
    (message,) = decode_messages(record)
    with pytest.raises(CodecMissing, match="pip install zstandard"):
        _ = message.body


@async_test
async def test_bulk_of_large_bodies_leaves_the_loop_its_turns() -> None:
    """Compressing takes time: no more than a few bodies go between two turns."""
    async with producing(ProducerOptions(compression="zlib"), nodes=1) as (_, _, producer):
        turns, most, seen = 0, 0, 0

        def tick() -> None:
            nonlocal turns, most, seen
            accepted = producer.statistics().accepted
            most, seen, turns = max(most, accepted - seen), accepted, turns + 1
            if accepted < 24:
                asyncio.get_running_loop().call_soon(tick)

        tick()
        assert await producer.send_all(NewMessage("t", bytes(2 << 20)) for _ in range(24)) == 24
        assert most <= 4

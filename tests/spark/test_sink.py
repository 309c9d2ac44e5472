"""Tasks that write: each row once, however often and by whomever a task is run (ADR 33)."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
import pyarrow as pa
from pyspark.sql.types import StructType

from dledger.client import ProducerOptions
from dledger.client.blocking import BlockingClient
from dledger.client.errors import ProducerFenced, TopicNotFound
from dledger.client.routing import queue_of_key
from dledger.records.marks import mark_of
from dledger.spark import BadOption, sending, sink
from dledger.spark.brokers import Access, Brokers
from dledger.spark.errors import RowRefused, WriteRefused
from dledger.spark.network import TopicsSource
from dledger.spark.progress import Intent
from dledger.spark.sink import Writing, Written, commit_batch, write_task
from dledger.testing import BrokerGroup
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2
from tests.spark.group import rows_of, source, stored

BODIES = [f"m{number:03}".encode() for number in range(40)]


class Killed(BaseException):
    """The executor is gone: nothing of the task runs any more."""


@pytest.fixture
def writing(dledger_group: BrokerGroup, monkeypatch: pytest.MonkeyPatch) -> Writing:
    """Of a new query into a new topic of one queue; sends are cut small."""
    monkeypatch.setattr(sending, "MAX_BATCH_RECORDS", 8)
    access = Access.of({"bootstrap": dledger_group.addresses, "timeoutSeconds": "20"})
    return Writing(access, dledger_group.topic(), f"q-{os.urandom(4).hex()}", 0, "rows")


def batches(bodies: list[bytes], **columns: Any) -> Iterator[pa.RecordBatch]:
    """The rows, a few a batch."""
    table = pa.table({"body": pa.array(bodies, pa.binary()), **columns})
    return iter(table.to_batches(max_chunksize=7))


def write(writing: Writing, bodies: list[bytes], partition: int = 0, batch: int = 0) -> Written:
    return write_task(replace(writing, batch=batch), partition, batches(bodies))


def content(writing: Writing) -> list[bytes]:
    return stored(",".join(writing.access.addresses), writing.topic).get(0, [])


def killing(monkeypatch: pytest.MonkeyPatch, sends: int, *, before: bool) -> Callable[[], None]:
    """From the call with this number on, counted from 1, every send kills its task, before it goes
    out or before its answer is heard; until the function that is returned is called."""
    count = 0
    send = Brokers.send

    def sent(self: Brokers, producer: bytes, parts: list[pb.SendBatch]) -> list[pb.SendResult]:
        nonlocal count
        count += 1
        if count >= sends and before:
            raise Killed
        results = send(self, producer, parts)
        if count >= sends:
            raise Killed
        return results

    monkeypatch.setattr(Brokers, "send", sent)
    return lambda: monkeypatch.setattr(Brokers, "send", send)


def test_rows_are_stored_in_their_order(writing: Writing) -> None:
    """Batch after batch, numbers going on."""
    assert write(writing, BODIES[:10]).rows == 10
    assert write(writing, BODIES[10:], batch=1).stored_before == 0
    assert content(writing) == BODIES


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("sends", [1, 2, 3, 6])
def test_task_killed_at_any_send_is_repeated_and_each_row_is_there_once(
    writing: Writing, sends: int, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the intent, behind it, in the middle, and when all is stored and nobody was told."""
    write(writing, BODIES[:3])  # An earlier batch of the same producer: numbers don't begin at 0.
    live = killing(monkeypatch, sends, before=before)
    with pytest.raises(Killed):
        write(writing, BODIES[3:], batch=1)
    live()
    done = write(writing, BODIES[3:], batch=1)
    assert done.stored_before == min(len(BODIES) - 3, 8 * max(sends - 1 - before, 0))
    assert write(writing, BODIES[3:], batch=1).stored_before == len(BODIES) - 3
    assert content(writing) == BODIES


@pytest.mark.parametrize("is_stored", [True, False])
def test_answer_that_is_lost_is_asked_for_again_within_the_attempt(
    writing: Writing, is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that the leader couldn't take, or says so of, goes again as it was cut."""
    send, refusals = Brokers.send, iter([1, 3, 4])
    upcoming, count = next(refusals), 0

    def sent(self: Brokers, producer: bytes, parts: list[pb.SendBatch]) -> list[pb.SendResult]:
        nonlocal upcoming, count
        is_refused, count = count == upcoming, count + 1
        results = send(self, producer, parts) if is_stored or not is_refused else []
        if not is_refused:
            return results
        upcoming = next(refusals, -1)
        refused = pb.SendResult()
        refused.error.code, refused.error.retriable = errors_pb2.BUSY, True
        return [refused for _ in parts]

    monkeypatch.setattr(Brokers, "send", sent)
    write(writing, BODIES)
    assert content(writing) == BODIES


def test_two_attempts_at_once_end_with_one(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one takes the name; whatever the former one still sends is refused."""
    send, others = Brokers.send, [BODIES]

    def sent(self: Brokers, producer: bytes, parts: list[pb.SendBatch]) -> list[pb.SendResult]:
        results = send(self, producer, parts)
        if parts[0].topic == writing.topic and others:
            write(writing, others.pop())
        return results

    monkeypatch.setattr(Brokers, "send", sent)
    with pytest.raises(ProducerFenced):
        write(writing, BODIES)
    assert content(writing) == BODIES


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        (BODIES[::-1], "40 with digest .* before, 40 with"),
        (BODIES[:-1], "40 with digest .* before, 39 with"),
        ([*BODIES[:-1], b"else"], "has other rows"),
        ([], "40 with digest .* before, none now"),
    ],
)
def test_other_rows_than_before_are_refused(
    writing: Writing, bodies: list[bytes], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything more is sent: they could be stored twice, or never."""
    live = killing(monkeypatch, 3, before=False)
    with pytest.raises(Killed):
        write(writing, BODIES)
    live()
    there = content(writing)
    with pytest.raises(WriteRefused, match=said):
        write(writing, bodies)
    assert content(writing) == there
    write(writing, BODIES)
    assert content(writing) == BODIES


def test_order_of_the_rows_is_their_own_if_it_is_to_be(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a shuffle rows come in any order; the set is what counts."""
    by_content = replace(writing, order="content")
    live = killing(monkeypatch, 3, before=False)
    with pytest.raises(Killed):
        write(by_content, BODIES)
    live()
    assert write(by_content, BODIES[::-1]).stored_before == 16
    assert sorted(content(writing)) == BODIES


def test_attempt_that_outlived_its_batch_stores_nothing(writing: Writing) -> None:
    """A later batch has begun: this one is over."""
    write(writing, BODIES[:5])
    write(writing, BODIES[5:], batch=1)
    with pytest.raises(WriteRefused, match="batch 0 is over: batch 1 has begun"):
        write(writing, BODIES[:5], partition=1)
    assert content(writing) == BODIES


def test_partitions_that_a_repeated_batch_lacks_are_told_of(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are somebody else's now, and stored twice; the query ends and says so."""
    live = killing(monkeypatch, 3, before=False)
    with pytest.raises(Killed):
        write(writing, BODIES[20:], partition=1)
    live()
    with pytest.raises(WriteRefused, match=r"partitions \[1\], which this one doesn't have"):
        commit_batch([write(writing, BODIES)])
    both = [write(writing, BODIES, batch=1), write(writing, [], partition=1, batch=1)]
    commit_batch([pickle.loads(pickle.dumps(each)) for each in both])
    commit_batch([None])
    topic = writing.progress_topic
    with Brokers(writing.access) as brokers:
        marks = [brokers.committed(mark_of(topic, batch), topic, 0) for batch in range(3)]
    # The failed batch's is where it began; behind its intents, one more, and a word.
    assert marks == [0, 4, None]


def test_topic_made_anew_between_attempts_gets_the_whole_batch(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored of it is gone with the old one; attempts in the new one go on there."""
    write(writing, BODIES[:3])
    for sends in (4, 2):
        live = killing(monkeypatch, sends, before=False)
        with pytest.raises(Killed):
            write(writing, BODIES, batch=1)
        live()
        if sends == 4:
            with BlockingClient.connect(",".join(writing.access.addresses)) as client:
                client.delete_topic(writing.topic)
                client.create_topic(writing.topic, queues=1)
    assert write(writing, BODIES, batch=1).stored_before == 8
    assert content(writing) == BODIES


def resize(writing: Writing, read_queues: int, write_queues: int) -> None:
    with BlockingClient.connect(",".join(writing.access.addresses)) as client:
        client.update_topic(
            writing.topic, read_queues=read_queues, write_queues=write_queues, drop=True
        )


def keyed(writing: Writing, bodies: list[bytes], batch: int = 0) -> Written:
    """The rows, with one of seven keys each, or none."""
    keys = [f"k{int(body[1:]) % 8}" if int(body[1:]) % 8 else None for body in bodies]
    parts = batches(bodies, keys=pa.array(keys, pa.string()))
    return write_task(replace(writing, batch=batch), 0, parts)


def check_each_once(writing: Writing, bodies: list[bytes]) -> dict[int, list[bytes]]:
    """Every row is there once, and a key's rows are in their order within each queue; what is in
    the queues."""
    found = stored(",".join(writing.access.addresses), writing.topic)
    assert sorted(body for rows in found.values() for body in rows) == bodies
    for rows in found.values():
        for key in range(1, 8):
            own = [body for body in rows if int(body[1:]) % 8 == key]
            assert own == sorted(own)
    return found


def test_rows_go_to_queues_that_take_messages(writing: Writing) -> None:
    """There may be more that are read. A key's is the one that every client chooses."""
    resize(writing, 4, 2)
    keyed(writing, BODIES)
    found = check_each_once(writing, BODIES)
    assert [*sorted(found)] == [0, 1]
    for queue_id, rows in found.items():
        for number in (int(body[1:]) % 8 for body in rows):
            assert not number or queue_of_key(f"k{number}", 2) == queue_id


@pytest.mark.parametrize(("first", "then"), [(2, 4), (4, 2), (2, 5)])
@pytest.mark.parametrize("sends", [2, 3, 4])
def test_topic_resized_between_attempts_gets_each_row_once(
    writing: Writing,
    first: int,
    then: int,
    sends: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was stored stays where it is, and what is left goes where messages go now; the attempt
    after that knows of both, and one that ends finds everything stored."""
    monkeypatch.setattr(sending, "MAX_BATCH_RECORDS", 1)
    resize(writing, 8, first)
    keyed(writing, BODIES[:6])
    for resized in (then, first):
        live = killing(monkeypatch, sends, before=False)
        with pytest.raises(Killed):
            keyed(writing, BODIES[6:], batch=1)
        live()
        resize(writing, 8, resized)
    keyed(writing, BODIES[6:], batch=1)
    resize(writing, 8, 1)
    assert keyed(writing, BODIES[6:], batch=1).stored_before == len(BODIES) - 6
    check_each_once(writing, BODIES)
    resize(writing, 8, 2)
    with pytest.raises(WriteRefused, match="has other rows"):
        keyed(writing, BODIES[7:], batch=1)


@pytest.mark.parametrize("has_intents", [True, False])
def test_topic_resized_while_a_task_writes_gets_each_row_once(
    writing: Writing, has_intents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers refuse what was chosen by the queues of before: the task goes on by those of
    now, and where nothing is written down it ends, as a repetition couldn't go on."""
    resize(writing, 2, 2)
    send, upcoming = Brokers.send, [(8, 5)]

    def sent(self: Brokers, producer: bytes, parts: list[pb.SendBatch]) -> list[pb.SendResult]:
        results = send(self, producer, parts)
        if parts[0].topic == writing.topic and upcoming:
            resize(writing, *upcoming.pop())
        return results

    monkeypatch.setattr(Brokers, "send", sent)
    if has_intents:
        assert keyed(writing, BODIES).rows == len(BODIES)
        assert len(check_each_once(writing, BODIES)) > 2
        assert keyed(writing, BODIES).stored_before == len(BODIES)
    else:
        with pytest.raises(WriteRefused, match="was given other queues while partition 0"):
            keyed(replace(writing, has_intents=False), BODIES)


def test_write_without_a_name_ends_if_its_topic_was_resized_in_the_middle(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says how many queues the rows were spread over, so a repeated task would skip some
    and store others twice. What has stored nothing by then goes by the queues that there are."""
    made = TopicsSource(
        {"bootstrap": ",".join(writing.access.addresses), "topic": writing.topic}
    ).writer(StructType(_fields("body binary")), False)
    alone = made._writing
    resize(writing, 4, 2)
    assert keyed(alone, BODIES[:4]).rows == 4
    resize(writing, 4, 4)
    with pytest.raises(WriteRefused, match="a write with the option producer would go on"):
        keyed(alone, BODIES[:4])
    made = TopicsSource(
        {"bootstrap": ",".join(writing.access.addresses), "topic": writing.topic}
    ).writer(StructType(_fields("body binary")), False)
    live = killing(monkeypatch, 2, before=True)
    with pytest.raises(Killed):
        keyed(made._writing, BODIES[4:])
    live()
    keyed(made._writing, BODIES[4:])
    check_each_once(writing, BODIES)


def test_intents_of_the_release_before_are_taken_up(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say nothing of the number of queues: it chose by all that are read."""
    resize(writing, 3, 3)
    encode = Intent.encode

    def before(self: Intent) -> bytes:
        told = json.loads(encode(self)) | {"version": 1}
        for each in told["topics"].values():
            del each["write_queues"]
        return json.dumps(told).encode()

    with monkeypatch.context() as patched:
        patched.setattr(Intent, "encode", before)
        killing(patched, 3, before=False)
        with pytest.raises(Killed):
            keyed(writing, BODIES)
    assert keyed(writing, BODIES).stored_before > 0
    resize(writing, 3, 2)
    assert keyed(writing, BODIES).stored_before == len(BODIES)
    check_each_once(writing, BODIES)


def test_name_that_was_forgotten_is_noticed(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers begin anew, so nobody knows how much of the batch is stored."""
    write(writing, BODIES[:8])
    register = Brokers.register

    def forgotten(self: Brokers, name: str, token: bytes, *_: Any) -> pb.RegisterProducerResponse:
        answer = register(self, f"{name}-anew", token)
        assert not answer.next_sequences
        return answer

    monkeypatch.setattr(Brokers, "register", forgotten)
    with pytest.raises(WriteRefused, match="have forgotten the producer of partition 0 of batch 0"):
        write(writing, BODIES[:8])
    assert content(writing) == BODIES[:8]
    write(writing, BODIES[8:], batch=1)  # Nothing of it was stored: it needs no memory.
    assert content(writing) == BODIES


def test_somebody_else_under_the_name_is_noticed(writing: Writing) -> None:
    """More of its messages are there than the batch has rows."""
    write(writing, BODIES[:4])
    addresses = ",".join(writing.access.addresses)
    options = ProducerOptions(name=f"{writing.producer}-0")
    with BlockingClient.connect(addresses) as client, client.producer(options) as producer:
        for body in BODIES[4:]:
            producer.send(writing.topic, body, queue_id=0)
        producer.flush()
    with pytest.raises(WriteRefused, match=r"40 of 4 rows .* another program uses"):
        write(writing, BODIES[:4])


def test_single_write_needs_no_name_and_no_second_topic(writing: Writing) -> None:
    """A task of it that is repeated goes on behind what is stored."""
    alone = replace(writing, has_intents=False)
    assert write(alone, BODIES[:30]).rows == 30
    assert write(alone, BODIES).stored_before == 30
    assert content(writing) == BODIES
    with Brokers(writing.access) as brokers:
        assert brokers.topic(writing.progress_topic) is None
    commit_batch([write(alone, BODIES)])


def test_rows_say_where_they_go(dledger_group: BrokerGroup, writing: Writing) -> None:
    """Their topic, queue, key, tag and properties; unkeyed ones are spread by what they are."""
    topic = dledger_group.topic(8)
    columns = {
        "topic": pa.array([topic] * 40),
        "keys": pa.array([f"k{number}" if number % 2 else None for number in range(40)]),
        "tags": pa.array(["t"] * 40),
        "properties": pa.array([[("a", str(number))] for number in range(40)],
                               pa.map_(pa.string(), pa.string())),
    }  # fmt: skip
    write_task(replace(writing, topic=""), 0, batches(BODIES, **columns))
    rows = rows_of(source(dledger_group.addresses, topic).reader(None))
    assert sorted(row["body"] for row in rows) == BODIES
    for row in rows:
        number = int(row["body"][1:])
        assert dict(row["properties"])["a"] == str(number)
        assert row["tags"] == "t"
        if number % 2:
            assert row["queue_id"] == queue_of_key(row["keys"], 8)
    assert len({row["queue_id"] for row in rows if row["keys"] is None}) > 3


def test_what_was_read_can_be_written(dledger_group: BrokerGroup, writing: Writing) -> None:
    """The columns of a source are those of a sink; what the brokers give is passed over."""
    one, other = dledger_group.topic(2), dledger_group.topic(2)
    columns = {"keys": pa.array(["k"] * 40), "tags": pa.array(["t"] * 40)}
    write_task(replace(writing, topic=one), 0, batches(BODIES, **columns))
    reader = source(dledger_group.addresses, one).reader(None)
    read = [batch for part in reader.partitions() for batch in reader.read(part)]
    moved = [batch.drop_columns(["topic"]) for batch in read]
    again = replace(writing, topic=other, producer=f"{writing.producer}-b")
    write_task(again, 0, iter(moved))
    second = rows_of(source(dledger_group.addresses, other).reader(None))
    wanted = ("queue_id", "keys", "tags", "properties", "body")
    first = rows_of(reader)
    assert [[row[name] for name in wanted] for row in second] == [
        [row[name] for name in wanted] for row in first
    ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"queue_id": pa.array([7])}, "takes messages in queues 0 to 0, not 7"),
        ({"keys": pa.array(["a b"])}, "a row that can't be a message"),
        ({"properties": pa.array([[("WAIT", "x")]], pa.map_(pa.string(), pa.string()))}, "WAIT"),
    ],
)
def test_row_that_can_be_no_message_ends_its_task(
    writing: Writing, columns: dict[str, Any], said: str
) -> None:
    """Before anything of the task is sent."""
    with pytest.raises(RowRefused, match=said):
        write_task(writing, 0, batches([b"x"], **columns))
    with pytest.raises(RowRefused, match="a row whose body is null"):
        write_task(writing, 0, iter(pa.table({"body": pa.array([b"y", None])}).to_batches()))
    assert content(writing) == []


def test_topic_to_write_to_has_to_be_there(writing: Writing) -> None:
    """The sink makes none: how many queues would it have?"""
    with pytest.raises(TopicNotFound, match="there is no topic 'absent' to write to"):
        write_task(replace(writing, topic="absent"), 0, batches(BODIES))


def test_progress_topic_with_something_else_in_it_is_refused(writing: Writing) -> None:
    """It isn't this sink's, or of a later release."""
    addresses = ",".join(writing.access.addresses)
    for body in (b"hello", json.dumps({"version": 2}).encode()):
        other = replace(writing, producer=f"q-{os.urandom(4).hex()}")
        with BlockingClient.connect(addresses) as client, client.producer() as producer:
            client.create_topic(other.progress_topic, queues=1)
            producer.send(other.progress_topic, body).result()
        with pytest.raises(WriteRefused, match="at 0 is no intent of a sink"):
            write(other, BODIES)
    assert content(writing) == []


@pytest.mark.parametrize(
    ("options", "types", "said"),
    [
        ({}, "body binary", "topic: neither"),
        ({"topic": "a"}, "body binary, topic string", "option topic and column 'topic' exclude"),
        ({"topic": "a"}, "value binary", "no message has a column 'value'"),
        ({"topic": "a"}, "keys string", "there is no column 'body'"),
        ({"topic": "a"}, "body int", "column 'body' is of type int"),
        ({"topic": "a", "producer": "a b"}, "body binary", "producer is 'a b'"),
        ({"topic": "a", "batchId": "1"}, "body binary", "batchId says nothing without producer"),
        ({"topic": "a", "producer": "p", "batchId": "-1"}, "body binary", "batchId is '-1'"),
        ({"topic": "a", "order": "any"}, "body binary", "order is 'any'"),
        ({"topic": "a", "kye": "x"}, "body binary", "no option 'kye'"),
        ({"topic": "a", "bootstrap": ""}, "body binary", "bootstrap: no address"),
    ],
)
def test_options_and_columns_that_make_no_sense_are_refused_by_name(
    options: dict[str, str], types: str, said: str
) -> None:
    """Before any node is asked."""
    made = TopicsSource({"bootstrap": "127.0.0.1:1", **options})
    schema = StructType(_fields(types))
    with pytest.raises(BadOption, match=said):
        made.writer(schema, False)


def _fields(types: str) -> list[Any]:
    from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField

    kinds = {"binary": BinaryType(), "string": StringType(), "int": IntegerType()}
    pairs = [each.split() for each in types.split(", ")]
    return [StructField(name, kinds[kind]) for name, kind in pairs]


def test_modes_and_batches_that_a_sink_has_not_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic is appended to; a stream numbers its batches itself."""
    monkeypatch.setattr(sink, "_entry_now", lambda access: 1)
    made = TopicsSource({"bootstrap": "127.0.0.1:1", "topic": "a"})
    schema = StructType(_fields("body binary"))
    with pytest.raises(BadOption, match="never overwritten"):
        made.writer(schema, True)
    told = {"bootstrap": "127.0.0.1:1", "topic": "a", "producer": "p", "batchId": "1"}
    with pytest.raises(BadOption, match="a stream numbers its batches"):
        TopicsSource(told).streamWriter(schema, False)
    one, other = made.writer(schema, False), made.writer(schema, False)
    assert one._writing.producer != other._writing.producer
    assert sink.ORDERS[0] == one._writing.order

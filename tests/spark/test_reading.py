"""Topics read over the network: which ranges there are, what they bring, what isn't allowed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    StringStartsWith,
)

from dledger.client.blocking import BlockingClient
from dledger.client.errors import BrokerGroupUnreachable
from dledger.reading.decode import Pulled, decode_pulled
from dledger.records.errors import InvalidRecord
from dledger.records.layout import RECORD
from dledger.records.record import RecordTemplate
from dledger.spark import BadOption
from dledger.spark.errors import DataLost
from dledger.spark.network import NETWORK_COLUMNS, TopicsSource
from dledger.spark.topics import QueueRange
from dledger.testing import BrokerGroup
from tests.spark.group import fill, renewed, rows_of, source

BODIES = [f"m{number}".encode() for number in range(10)]
QUEUE_OFFSET = RECORD.run("queue_offset")


def ranges(reader: object) -> list[QueueRange]:
    return [part.value for part in reader.partitions()]  # type: ignore[attr-defined]


def bodies(rows: list[dict[str, object]]) -> list[object]:
    return [row["body"] for row in rows]


def test_every_message_comes_with_its_columns(dledger_group: BrokerGroup) -> None:
    """What the client reads of them, and the incarnation besides."""
    topic = dledger_group.topic(2)
    fill(dledger_group.addresses, topic, 1, BODIES, key="k", tag="t", properties={"a": "b"})
    made = source(dledger_group.addresses, topic)
    rows = rows_of(made.reader(None))
    with BlockingClient.connect(dledger_group.addresses) as client:
        incarnation = client.describe_topic(topic).topic.incarnation
        messages = client.pull(topic, 1, 0).messages
    assert [row["queue_offset"] for row in rows] == [*range(10)]
    for row, message in zip(rows, messages, strict=True):
        assert tuple(row) == NETWORK_COLUMNS
        assert (row["topic"], row["queue_id"], row["incarnation"]) == (topic, 1, incarnation)
        assert (row["keys"], row["tags"], row["body"]) == ("k", "t", message.body)
        assert dict(row["properties"]) == message.properties
        assert row["physical_offset"] == message.physical_offset
        assert row["store_time"] == datetime.fromtimestamp(message.store_time_ms / 1000, UTC)
        assert row["born_time"] == datetime.fromtimestamp(message.born_time_ms / 1000, UTC)


def test_only_the_columns_that_are_asked_for_come(dledger_group: BrokerGroup) -> None:
    """In the order in which they were named."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES[:1])
    made = source(dledger_group.addresses, topic, columns="body, queue_offset")
    assert rows_of(made.reader(None)) == [{"body": b"m0", "queue_offset": 0}]
    assert made.schema().simpleString() == "struct<body:binary,queue_offset:bigint>"


def test_ranges_are_cut_and_together_the_whole(dledger_group: BrokerGroup) -> None:
    """A task for so many messages of a queue."""
    topic = dledger_group.topic(2)
    fill(dledger_group.addresses, topic, 0, BODIES)
    reader = source(dledger_group.addresses, topic, maxOffsetsPerPartition="4").reader(None)
    assert [(each.start, each.end) for each in ranges(reader)] == [(0, 4), (4, 8), (8, 10)]
    assert bodies(rows_of(reader)) == BODIES


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": "Earliest", "endingOffsets": "latest"}, BODIES),
        ({"startingOffsets": '{"T": {"0": 7}}'}, BODIES[7:]),
        ({"startingOffsets": '{"T": {"0": -2}}', "endingOffsets": '{"T": {"0": 3}}'}, BODIES[:3]),
        ({"endingOffsets": '{"T": {"0": -1}}'}, BODIES),
        ({"startingTimestamp": "0"}, BODIES),
        ({"endingTimestamp": "1"}, []),
        ({"startingOffsetsByTimestamp": '{"T": {"0": 99999999999999}}'}, []),
    ],
)
def test_edges_are_where_the_options_say(
    dledger_group: BrokerGroup, options: dict[str, str], wanted: list[bytes]
) -> None:
    """Ends, offsets, times; for all queues or each."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    told = {name: value.replace('"T"', f'"{topic}"') for name, value in options.items()}
    assert bodies(rows_of(source(dledger_group.addresses, topic, **told).reader(None))) == wanted


def test_times_begin_with_the_first_message_at_or_after_them(dledger_group: BrokerGroup) -> None:
    """By store time, to the millisecond."""
    topic = dledger_group.topic()
    for body in BODIES[:3]:
        fill(dledger_group.addresses, topic, 0, [body])
        time.sleep(0.005)
    with BlockingClient.connect(dledger_group.addresses) as client:
        times = [each.store_time_ms for each in client.pull(topic, 0, 0).messages]
    assert times == sorted(set(times))
    told = {"startingTimestamp": str(times[1]), "endingTimestamp": str(times[2])}
    assert bodies(rows_of(source(dledger_group.addresses, topic, **told).reader(None))) == [b"m1"]


def test_filters_leave_fewer_ranges_and_are_all_spark_s_again(dledger_group: BrokerGroup) -> None:
    """Topic, queue, offset and store time; what isn't understood narrows nothing."""
    one, other = dledger_group.topic(2), dledger_group.topic(1)
    for topic, queue_id in ((one, 0), (one, 1), (other, 0)):
        fill(dledger_group.addresses, topic, queue_id, BODIES)
    now = datetime.now(UTC)

    def left(*filters: object) -> set[tuple[str, int, int, int]]:
        reader = source(dledger_group.addresses, f"{one},{other}").reader(None)
        assert [*reader.pushFilters([*filters])] == [*filters]
        return {(each.topic, each.queue_id, each.start, each.end) for each in ranges(reader)}

    whole = {(one, 0, 0, 10), (one, 1, 0, 10), (other, 0, 0, 10)}
    assert left(StringStartsWith(("body",), "m")) == whole
    assert left(EqualTo(("topic",), other)) == {(other, 0, 0, 10)}
    assert left(In(("topic",), (one,)), In(("queue_id",), (1, 5))) == {(one, 1, 0, 10)}
    assert left(EqualTo(("queue_offset",), 4), EqualTo(("topic",), other)) == {(other, 0, 4, 5)}
    offsets = left(GreaterThanOrEqual(("queue_offset",), 8), EqualTo(("queue_id",), 0))
    assert offsets == {(one, 0, 8, 10), (other, 0, 8, 10)}
    assert left(LessThan(("store_time",), datetime(2000, 1, 1, tzinfo=UTC))) == set()
    assert left(LessThan(("store_time",), now), GreaterThanOrEqual(("store_time",), now)) <= whole


def test_query_that_has_nothing_to_read_reads_nothing(dledger_group: BrokerGroup) -> None:
    """Spark makes a task of no ranges."""
    reader = source(dledger_group.addresses, dledger_group.topic(2)).reader(None)
    assert reader.partitions() == []
    assert rows_of(reader, [InputPartition(None)]) == []


def test_a_range_of_a_topic_made_anew_is_lost(dledger_group: BrokerGroup) -> None:
    """The messages that were planned are gone; the new topic's are others."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    strict = source(dledger_group.addresses, topic).reader(None)
    lenient = source(dledger_group.addresses, topic, failOnDataLoss="false").reader(None)
    planned = strict.partitions()
    renewed(dledger_group.addresses, topic)
    fill(dledger_group.addresses, topic, 0, BODIES[:2])
    with pytest.raises(DataLost, match=rf"messages 0 to 10 of {topic}/0 .*failOnDataLoss=false"):
        rows_of(strict, planned)
    assert rows_of(lenient, planned) == []


def test_offsets_beyond_the_end_of_a_planned_range_end_it(dledger_group: BrokerGroup) -> None:
    """A group that lost its end: an error, or what there is, and never a loop."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES[:2])
    lenient = source(dledger_group.addresses, topic, failOnDataLoss="false").reader(None)
    (part,) = ranges(lenient)
    far = [InputPartition(replace(part, end=5))]
    assert bodies(rows_of(lenient, far)) == BODIES[:2]
    with pytest.raises(DataLost, match="messages 2 to 5"):
        rows_of(source(dledger_group.addresses, topic).reader(None), far)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bootstrap": ""}, "bootstrap: no address"),
        ({"bootstrap": "here"}, "bootstrap: 'here' is not host:port"),
        ({"topics": ""}, "topics: which ones"),
        ({"topics": "a,,b"}, "topics is 'a,,b'"),
        ({"topics": "a,a"}, "topics is 'a,a'"),
        ({"startingOffset": "earliest"}, "(?i)no option 'startingOffset'"),
        ({"startingOffsets": "first"}, "startingOffsets is 'first': JSON"),
        ({"startingOffsets": "[1]"}, "startingOffsets is "),
        ({"startingOffsets": '{"a": {"zero": 1}}'}, "startingOffsets is "),
        ({"startingOffsets": '{"a": {"0": true}}'}, "startingOffsets is "),
        ({"startingOffsets": '{"b": {"0": 1}}'}, "startingOffsets names topic 'b'"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        (
            {"startingOffsets": "latest", "startingTimestamp": "5"},
            "startingOffsets and startingTimestamp exclude",
        ),
        ({"startingTimestamp": "today"}, "startingTimestamp is 'today'"),
        ({"maxOffsetsPerPartition": "0"}, "maxOffsetsPerPartition is '0'"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is a stream's"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'"),
        ({"columns": "body,index"}, "no column 'index'"),
        ({"timeoutSeconds": "nan"}, "timeoutSeconds is 'nan'"),
        ({"tlsKey": "k"}, "need tlsAuthority"),
        ({"tlsAuthority": "a", "tlsKey": "k"}, "tlsCertificate and tlsKey come together"),
        ({"tlsAuthority": "/nowhere"}, "tlsAuthority is '/nowhere': no such file"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, str], said: str) -> None:
    """Before any node is asked."""
    given = {"bootstrap": "127.0.0.1:1", "topics": "a", **options}
    with pytest.raises(BadOption, match=said):
        TopicsSource(given).reader(None)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ({"0": 11}, "startingOffsets: offset 11 of T/0 is outside 0 to 10"),
        ({"0": 1, "1": 0}, "startingOffsets: topic 'T' has queues 0 to 0, not 1"),
        ({}, "startingOffsets says nothing of T/0"),
        ({"0": -3}, "offset -3"),
    ],
)
def test_offsets_of_what_is_not_there_are_refused(
    dledger_group: BrokerGroup, offsets: dict[str, int], said: str
) -> None:
    """Nothing is guessed of a queue that isn't named."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    told = json.dumps({topic: offsets})
    with pytest.raises(
        BadOption, match=said.replace("T/", f"{topic}/").replace("'T'", f"'{topic}'")
    ):
        source(dledger_group.addresses, topic, startingOffsets=told).reader(None).partitions()


def test_topic_that_is_not_there_is_named(dledger_group: BrokerGroup) -> None:
    """And so is a group that can't be reached."""
    with pytest.raises(DataLost, match="there is no topic 'absent'"):
        source(dledger_group.addresses, "absent").reader(None).partitions()
    with pytest.raises(BrokerGroupUnreachable):
        source("127.0.0.1:1", "a", timeoutSeconds="0.2").reader(None).partitions()


def stamped(record: bytes, *offsets: int) -> bytes:
    """The record at each of these queue offsets, as a leader would have it."""
    made = bytearray(record * len(offsets))
    for at, offset in enumerate(offsets):
        QUEUE_OFFSET.pack_into(made, at * len(record) + RECORD.at("queue_offset"), offset)
    return bytes(made)


def test_answers_are_checked_before_they_are_data() -> None:
    """A flipped bit in a body, records too few or too many."""
    record = RecordTemplate("t", ("0.0.0.0", 0)).encode(0, b"body", b"", 5)
    names, asked = ("topic", "body", "queue_id"), Pulled("t", 7, 0, 3)
    both = stamped(record, 3, 4)
    found = decode_pulled(both, 2, asked, names)
    assert [*found.columns] == [*names]
    assert [*found.columns["body"]] == [b"body", b"body"]
    for count in (0, 1, 3):
        with pytest.raises(InvalidRecord):
            decode_pulled(both, count, asked, names)
    with pytest.raises(InvalidRecord, match="BODYCRC"):
        decode_pulled(stamped(record, 3).replace(b"body", b"bodY"), 1, asked, names)
    assert decode_pulled(b"", 0, asked, names).count == 0


@pytest.mark.parametrize(
    ("offsets", "asked", "said"),
    [
        ((3, 5), Pulled("t", 7, 0, 3), "queue_offset should be 4, is 5"),
        ((3, 3), Pulled("t", 7, 0, 3), "queue_offset should be 4, is 3"),
        ((4, 5), Pulled("t", 7, 0, 3), "queue_offset should be 3, is 4"),
        ((3, 4), Pulled("t", 7, 1, 3), "queue_id should be 1, is 0"),
        ((3, 4), Pulled("u", 7, 0, 3), "TOPIC should be u, is t"),
        ((3, 4), Pulled("tt", 7, 0, 3), "TOPIC should be tt, is t"),
    ],
)
def test_messages_of_another_place_are_no_answer(
    offsets: tuple[int, ...], asked: Pulled, said: str
) -> None:
    """Whole and intact, and not what was asked for: a row too few, twice, or of somebody else."""
    record = RecordTemplate("t", ("0.0.0.0", 0)).encode(0, b"body", b"", 5)
    with pytest.raises(InvalidRecord, match=said):
        decode_pulled(stamped(record, *offsets), 2, asked, ("body",))


def test_tls_files_are_what_the_client_is_given(tmp_path: Path) -> None:
    """The authority, and a certificate with its key."""
    for name in ("ca", "pem", "key"):
        (tmp_path / name).touch()
    made = source(
        "127.0.0.1:1", "a", tlsAuthority=str(tmp_path / "ca"),
        tlsCertificate=str(tmp_path / "pem"), tlsKey=str(tmp_path / "key"),
    ).reader(None)  # fmt: skip
    tls = made._reading.access.tls
    assert tls is not None
    assert (tls.ca.name, tls.certificate and tls.certificate.name) == ("ca", "pem")

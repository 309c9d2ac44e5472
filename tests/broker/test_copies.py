"""Copies of messages that failed: there is always one, whatever a producer wrote."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.leader.batches import Batch, BatchRules
from broker.leader.deliveries.over import buried_bytes
from broker.leader.retries.copies import Failure, copy_of, due_copy, resent_copy
from broker.state.handouts import SPAN
from dledger.client.errors import InvalidArgument
from dledger.client.routing import labels
from dledger.reading.compound import UnitBody, build_body
from dledger.reading.entry import HEADER_SIZE, position_after
from dledger.records.layout import HOST, RECORD
from dledger.records.properties import MAX_PROPERTIES_BYTES, MAX_SENT_PROPERTIES_BYTES
from dledger.records.record import BATCH_PREAMBLE, RecordTemplate, decode_records
from dledger.records.reserved import DEAD_REASON, EXHAUSTED, ORIGIN_TOPIC, REAL_TOPIC
from tests.scale import examples

LONG_TOPIC, LONG_GROUP = "t" * 127, "g" * 119
RULES = BatchRules(4 << 20, 8 << 20)


def stored(properties: bytes, body: bytes = b"x" * 100, topic: str = LONG_TOPIC) -> Batch:
    record = RecordTemplate(topic, ("127.0.0.1", 5555)).encode(0, body, properties, 1_000)
    return Batch(topic, 0, 0, 1, record)


def of_size(size: int) -> bytes:
    return b"KEYS\x01k\x02a\x01" + b"v" * (size - 10) + b"\x02"


@settings(max_examples=examples(30), deadline=None)
@given(size=st.integers(11, MAX_SENT_PROPERTIES_BYTES), dead=st.booleans())
def test_what_producers_may_send_is_copied_whole(size: int, dead: bool) -> None:
    """Even with the longest names that there are."""
    (record,) = decode_records(stored(of_size(size)).records)
    failure = Failure(LONG_GROUP, 1_000, (1 << 62), "attempts" if dead else "")
    (copy,) = decode_records(copy_of(record, failure).records)
    assert copy.properties["a"] == record.properties["a"]
    assert copy.properties[ORIGIN_TOPIC] == LONG_TOPIC
    assert copy.properties.get(DEAD_REASON) == ("attempts" if dead else None)


@pytest.mark.parametrize(
    "properties",
    [of_size(MAX_PROPERTIES_BYTES), b"KEYS\x01k\x02\x01nameless\x02", b"KEYS\x01" + b"k" * 32_700],
)
def test_what_left_no_room_before_is_copied_without_it(properties: bytes) -> None:
    """The body, and where it came from; its key, where that fits."""
    (record,) = decode_records(stored(properties).records)
    (copy,) = decode_records(copy_of(record, Failure("g", 1, 0)).records)
    assert copy.body == record.body
    assert copy.properties[ORIGIN_TOPIC] == LONG_TOPIC
    assert copy.properties[REAL_TOPIC] == "%RETRY%g"
    assert "a" not in copy.properties
    assert copy.properties.get("KEYS") == ("k" if record.keys == "k" else None)
    (again,) = decode_records(due_copy(copy, "%RETRY%g").records)
    assert again.properties[ORIGIN_TOPIC] == LONG_TOPIC


@pytest.mark.parametrize("port", [0, 65_535, 70_000, (1 << 32) - 1])
def test_whatever_host_a_producer_wrote_is_copied_as_it_lies(port: int) -> None:
    """Nobody checks it, so that no copy may fail at it: not one that waits, comes again, is dead or
    is sent again."""
    written = bytearray(stored(b"").records)
    HOST.struct().pack_into(written, RECORD.at("born_host"), bytes((1, 2, 3, 4)), port)
    (record,) = decode_records(bytes(written))
    waits = decode_records(copy_of(record, Failure("g", 1, 0)).records)[0]
    dead = decode_records(copy_of(record, Failure("g", 16, 0, EXHAUSTED)).records)[0]
    again = decode_records(due_copy(waits, "%RETRY%g").records)[0]
    resent = decode_records(resent_copy(dead, LONG_TOPIC, 0).records)[0]
    assert {each.born_host for each in (waits, dead, again, resent)} == {("1.2.3.4", port)}


def test_what_leaves_no_room_is_refused_by_client_and_broker() -> None:
    fits, wrong = of_size(MAX_SENT_PROPERTIES_BYTES), of_size(MAX_SENT_PROPERTIES_BYTES + 1)
    for body in (b"", b"x" * 100_000):
        batch = stored(fits, body)
        RULES.check_properties(batch, RULES.record_starts(batch))
        batch = stored(wrong, body)
        with pytest.raises(BrokerError, match="properties of 31744 bytes, 31743 at most") as found:
            RULES.check_properties(batch, RULES.record_starts(batch))
        assert found.value.code is ErrorCode.MESSAGE_TOO_LARGE
    room = MAX_SENT_PROPERTIES_BYTES - len("a\x01\x02")
    assert len(labels(None, None, {"a": "v" * room})) == MAX_SENT_PROPERTIES_BYTES
    with pytest.raises(InvalidArgument, match="properties: 31744 bytes in all, 31743 at most"):
        labels(None, None, {"a": "v" * (room + 1)})


@pytest.mark.parametrize("body_bytes", [1, 600, 4_000, 100_000])
@pytest.mark.parametrize("segment_bytes", [8 << 10, 2 << 20])
def test_dead_letters_of_one_unit_fit_a_segment(segment_bytes: int, body_bytes: int) -> None:
    """However much longer copies are: as many as one handout has, or as are read for a unit."""
    (record,) = decode_records(stored(b"", b"x" * body_bytes).records)
    count = min(SPAN, buried_bytes(segment_bytes) // record.size)
    if not count:
        return  # one alone, which is as large as a message may be
    copies = [copy_of(record, Failure(LONG_GROUP, 16, 1 << 40, EXHAUSTED)) for _ in range(count)]
    batches = [(bytes(BATCH_PREAMBLE.size) + each.records, 1) for each in copies]
    body, _ = build_body([UnitBody(batches, [bytes(512)])])
    assert position_after(0, HEADER_SIZE + len(body), segment_bytes) == 0

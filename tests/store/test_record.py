"""The record format: golden bytes, round trips, and what the leader's check refuses."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.records.errors import InvalidProperties, InvalidRecord
from dledger.records.record import (
    DecodedRecord,
    RecordTemplate,
    decode_properties,
    decode_records,
    encode_properties,
    find_property,
    message_id,
    parse_message_id,
    record_end,
    record_starts,
    set_queue_id,
    tags_code,
    validate_records,
)
from store.errors import OutOfRange, StoreError
from store.stamping import stamp_by_loop, stamp_by_scatter, stamp_records

HOST = ("10.1.2.3", 40_000)
BORN = 1_700_000_000_000
LIMIT = 1 << 20

names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
values = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))
topics = st.from_regex(r"[A-Za-z0-9_%-]{1,127}", fullmatch=True)


def batch(*bodies: bytes, topic: str = "orders", queue_id: int = 3) -> bytes:
    template = RecordTemplate(topic, HOST)
    return b"".join(template.encode(queue_id, body, b"", BORN) for body in bodies)


def test_record_has_rocketmqs_bytes() -> None:
    """Golden: the v1 layout of `MessageDecoder`, field by field."""
    properties = encode_properties({"KEYS": "k1", "TAGS": "blue"})
    record = RecordTemplate("orders", HOST).encode(3, b"hello", properties, BORN, flag=7)
    fixed = [
        "00000078",  # TOTALSIZE 120
        "daa320a7",  # MAGICCODE
        "3610a686",  # BODYCRC: the CRC-32 of "hello"
        "00000003",  # QUEUEID
        "00000007",  # FLAG
        "0000000000000000",  # QUEUEOFFSET
        "0000000000000000",  # PHYSICALOFFSET
        "00000000",  # SYSFLAG
        "0000018bcfe56800",  # BORNTIMESTAMP
        "0a01020300009c40",  # BORNHOST
        "0000000000000000",  # STORETIMESTAMP
        "0000000000000000",  # STOREHOSTADDRESS
        "00000000",  # RECONSUMETIMES
        "0000000000000000",  # PREPAREDTRANSACTIONOFFSET
        "00000005",  # BODYLENGTH
    ]
    assert record[:88].hex() == "".join(fixed)
    assert record[88:] == b"hello\x06orders\x00\x12KEYS\x01k1\x02TAGS\x01blue\x02"


def test_smallest_record_has_91_bytes_and_a_topic() -> None:
    assert len(RecordTemplate("t", HOST).encode(0, b"", b"", 0)) == 91 + 1


@given(
    topic=topics,
    queue_id=st.integers(0, 1023),
    bodies=st.lists(st.binary(max_size=300), max_size=8),
    properties=st.dictionaries(names, values, max_size=4),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_encoding_checking_stamping_and_decoding_agree(
    topic: str, queue_id: int, bodies: list[bytes], properties: dict[str, str], flag: int
) -> None:
    template = RecordTemplate(topic, HOST)
    encoded = encode_properties(properties)
    records = [template.encode(0, body, encoded, BORN + n, flag) for n, body in enumerate(bodies)]
    buf = bytearray(24) + b"".join(records)
    starts = record_starts(buf, 24, len(bodies))
    set_queue_id(buf, starts, queue_id)
    checked = validate_records(
        memoryview(buf)[24:], topic=topic, queue_id=queue_id, max_record_size=LIMIT
    )
    assert [start + 24 for start in checked] == starts
    stamp_records(
        buf,
        checked,
        at=24,
        base_queue_offset=1 << 40,
        base_physical_offset=(1 << 50) + 80,
        store_time_ms=BORN + 99,
        store_host=(bytes((192, 168, 0, 9)), 10911),
    )
    decoded = decode_records(bytes(buf[24:]))
    assert decoded == [
        DecodedRecord(
            topic=topic,
            queue_id=queue_id,
            queue_offset=(1 << 40) + n,
            physical_offset=(1 << 50) + 80 + checked[n],
            born_time_ms=BORN + n,
            born_host=HOST,
            store_time_ms=BORN + 99,
            store_host=("192.168.0.9", 10911),
            body=body,
            raw_properties=encoded,
            flag=flag,
            reconsume_times=0,
            sysflag=0,
            size=len(records[n]),
        )
        for n, body in enumerate(bodies)
    ]
    assert all(record.properties == properties for record in decoded)


@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=80),
    at=st.integers(0, 90),
    bases=st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62)),
    stored=st.binary(min_size=16, max_size=16),
)
def test_both_ways_of_stamping_write_the_same_bytes(
    sizes: list[int], at: int, bases: tuple[int, int], stored: bytes
) -> None:
    records = batch(*[bytes(size) for size in sizes])
    starts = record_starts(records, 0, len(sizes))
    one, other = bytearray(at) + records, bytearray(at) + records
    stamp_by_loop(one, starts, at, bases, stored)
    stamp_by_scatter(other, starts, at, bases, stored)
    assert one == other
    validate_records(one[at:], topic="orders", queue_id=3, max_record_size=LIMIT)


def test_scatter_never_writes_beyond_the_buffer() -> None:
    buf = bytearray(batch(b"x"))
    with pytest.raises(IndexError):
        stamp_by_scatter(buf, [len(buf) - 40], 0, (0, 0), bytes(16))


# Bytes of a record that the leader doesn't check: FLAG, what it stamps itself, times, hosts,
# RECONSUMETIMES, PREPAREDTRANSACTIONOFFSET; and of SYSFLAG all bits but the two of IPv6.
UNCHECKED = {*range(16, 36), *range(40, 84)}


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_that_matters_is_refused(bit: int) -> None:
    """In the first, a middle and the last record of a batch."""
    properties = encode_properties({"TAGS": "x"})
    record = RecordTemplate("orders", HOST).encode(3, b"hello", properties, BORN)
    unchecked = UNCHECKED | set(range(len(record) - len(properties), len(record)))
    for position in range(3):
        for at in range(len(record)):
            if at in unchecked or (at in range(36, 40) and (at != 39 or bit not in (4, 5))):
                continue
            buf = bytearray(record * 3)
            buf[position * len(record) + at] ^= 1 << bit
            with pytest.raises(InvalidRecord) as refused:
                validate_records(buf, topic="orders", queue_id=3, max_record_size=LIMIT)
            assert refused.value.position == position * len(record)


@given(st.binary(min_size=1, max_size=400))
def test_random_bytes_raise_nothing_but_invalid_record(noise: bytes) -> None:
    for buf in (noise, batch(b"x") + noise):
        with pytest.raises(InvalidRecord):
            validate_records(buf, topic="orders", queue_id=3, max_record_size=LIMIT)
        with pytest.raises(InvalidRecord):
            decode_records(buf)
        with pytest.raises(InvalidRecord):
            record_starts(buf, 0, 5)


def test_one_record_is_found_by_where_it_begins_and_none_behind_it_is_looked_at() -> None:
    """A batch may have tens of thousands; a wrong size behind the one that is meant says so."""
    buf = bytearray(8) + batch(b"first", b"second", b"third")
    starts = record_starts(buf, 8, 3)
    ends = dict(zip(starts, [*starts[1:], len(buf)], strict=True))
    for at in range(len(buf) + 1):
        assert record_end(buf, 8, 3, at) == ends.get(at)
    assert record_end(buf, 8, 2, starts[2]) is None
    buf[starts[2] : starts[2] + 4] = bytes(4)
    for at in range(starts[2]):
        assert record_end(buf, 8, 3, at) == ends.get(at)
    with pytest.raises(InvalidRecord):
        record_end(buf, 8, 3, starts[2])


@pytest.mark.parametrize("cut", range(1, 100))
def test_batch_cut_anywhere_is_refused(cut: int) -> None:
    whole = batch(b"first", b"second")
    if cut == len(whole) // 2:
        return
    for read in (
        lambda: validate_records(whole[:-cut], topic="orders", queue_id=3, max_record_size=LIMIT),
        lambda: decode_records(whole[:-cut]),
        lambda: record_starts(whole[:-cut], 0, 2),
    ):
        with pytest.raises(InvalidRecord):
            read()


def test_refusal_names_the_field() -> None:
    whole = batch(b"first", b"second")
    first = len(batch(b"first"))
    with pytest.raises(InvalidRecord) as refused:
        validate_records(whole, topic="other", queue_id=3, max_record_size=LIMIT)
    assert (refused.value.position, refused.value.field) == (0, "TOPIC")
    with pytest.raises(InvalidRecord, match="QUEUEID should be 4, is 3"):
        validate_records(whole, topic="orders", queue_id=4, max_record_size=LIMIT)
    with pytest.raises(InvalidRecord, match=f"TOTALSIZE should be 91 to {first}, is {first + 1}"):
        validate_records(whole, topic="orders", queue_id=3, max_record_size=first)
    spoiled = bytearray(whole)
    spoiled[first + 88] ^= 1
    with pytest.raises(InvalidRecord) as refused:
        decode_records(bytes(spoiled))
    assert (refused.value.position, refused.value.field) == (first, "BODYCRC")


@pytest.mark.parametrize("bit", [4, 5])
def test_ipv6_hosts_are_refused(bit: int) -> None:
    """Bit 4: born host, 5: store host. Stamped fields must lie at constant places."""
    record = bytearray(batch(b""))
    record[39] |= 1 << bit
    with pytest.raises(InvalidRecord, match="IPv4"):
        validate_records(record, topic="orders", queue_id=3, max_record_size=LIMIT)


def test_v2_records_are_refused() -> None:
    record = bytearray(batch(b""))
    record[4:8] = bytes.fromhex("daa320ab")
    with pytest.raises(InvalidRecord, match="MAGICCODE should be daa320a7, is daa320ab"):
        validate_records(record, topic="orders", queue_id=3, max_record_size=LIMIT)


@pytest.mark.parametrize("topic", ["", "a" * 128, "with blank", "ü", "a/b", "a.b", "a\n"])
def test_topics_outside_of_the_pattern_are_refused(topic: str) -> None:
    with pytest.raises(InvalidRecord, match="topic"):
        RecordTemplate(topic, HOST)


@pytest.mark.parametrize("host", [("::1", 1), ("localhost", 1), ("1.2.3.4", 65_536)])
def test_hosts_that_are_not_ipv4_are_refused(host: tuple[str, int]) -> None:
    with pytest.raises(InvalidRecord):
        RecordTemplate("t", host)


def test_body_crc_is_java_positive() -> None:
    """RocketMQ's `UtilAll.crc32` clears the sign bit."""
    body = next(bytes([n]) for n in range(256) if zlib.crc32(bytes([n])) >> 31)
    record = batch(body)
    assert int.from_bytes(record[8:12], "big") == zlib.crc32(body) & 0x7FFFFFFF


@given(st.dictionaries(names, values, max_size=6))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    assert decode_properties(encoded) == properties
    for name, value in properties.items():
        assert find_property(encoded, name.encode()) == value
    assert find_property(encoded, b"\x03absent") is None


def test_properties_have_rocketmqs_bytes() -> None:
    assert encode_properties({"KEYS": "a b", "TAGS": "ü"}) == b"KEYS\x01a b\x02TAGS\x01\xc3\xbc\x02"


@pytest.mark.parametrize(
    "properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"": "b"}, {"a": "x" * 32_765}]
)
def test_properties_that_can_not_be_read_back_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidProperties):
        encode_properties(properties)


def test_longest_properties_fit_a_record() -> None:
    encoded = encode_properties({"a": "x" * 32_764})
    record = RecordTemplate("t", HOST).encode(0, b"", encoded, 0)
    validate_records(record, topic="t", queue_id=0, max_record_size=LIMIT)
    with pytest.raises(InvalidProperties):
        RecordTemplate("t", HOST).encode(0, b"", encoded + b"x", 0)


def test_stored_properties_never_poison_a_reader() -> None:
    """What can't be split or decoded is passed over, as RocketMQ does."""
    assert decode_properties(b"KEYS\x01a\x02junk\x02\xff\x01b") == {"KEYS": "a", "\ufffd": "b"}
    assert find_property(b"XTAGS\x01a\x02TAGS\x01b", b"TAGS") == "b"


@pytest.mark.parametrize(
    ("tag", "code"),
    [("", 0), ("a", 97), ("TagA", 2_598_919), ("hello world", 1_794_106_052),
     ("polygenelubricants", -(1 << 31)), ("ü😀", 252 * 961 + 0xD83D * 31 + 0xDE00)],
)  # fmt: skip
def test_tags_code_is_javas_hash_code(tag: str, code: int) -> None:
    assert tags_code(tag) == code


def test_message_id_is_rocketmqs() -> None:
    """Golden: address, port and physical offset as 32 upper-case hex digits."""
    assert message_id(("10.1.2.3", 10911), 0x1234) == "0A01020300002A9F0000000000001234"
    assert parse_message_id("0a01020300002a9f0000000000001234") == (("10.1.2.3", 10911), 0x1234)
    for wrong in ("", "0A", "Z" * 32, "0" * 33):
        with pytest.raises(InvalidRecord, match="32 hex digits"):
            parse_message_id(wrong)


def test_errors_say_whether_a_retry_helps() -> None:
    error: StoreError = OutOfRange("index", 3, 1, 2)
    assert not error.retriable
    assert error.outcome.value == "did not happen"

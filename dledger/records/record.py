"""RocketMQ message records: encoding, checking, decoding. Pure functions over bytes.

A record is encoded once by the producer's client, checked and stamped by the leader (see
`store.stamping`), and then the same bytes go to disk, to peers and to consumers (ADR 5). This
module must never build an object per message on the leader's way (ADR 10): checking walks the
buffer with one `Struct` a record. Only consumers decode into `DecodedRecord`s.

The bytes are `dledger.records.layout.RECORD`: RocketMQ's v1 with 8-byte (IPv4) hosts. The v2 form
(2-byte topic length) and IPv6 hosts are refused: one form in the log keeps the stamped fields at
constant places, which is what makes stamping vectorisable.

Source: RocketMQ `CommitLog` and `MessageDecoder` (rocketmq 8fc57f1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final, NamedTuple
from zlib import crc32

from dledger.records.compression import COMPRESSED_BIT, decompress
from dledger.records.errors import InvalidProperties, InvalidRecord
from dledger.records.layout import BATCH, RECORD
from dledger.records.message_id import decode_host, encode_host, message_id, parse_message_id
from dledger.records.properties import (
    KEYS,
    MAX_PROPERTIES_BYTES,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
    find_property,
    tags_code,
)

__all__ = [
    "BATCH_PREAMBLE",
    "FIXED_SIZE",
    "KEYS",
    "MAX_PROPERTIES_BYTES",
    "MAX_TOPIC_BYTES",
    "RECORD_MAGIC",
    "TAGS",
    "TOPIC_PATTERN",
    "UNIQ_KEY",
    "CompressedRecord",
    "DecodedRecord",
    "RecordTemplate",
    "decode_properties",
    "decode_records",
    "encode_host",
    "encode_properties",
    "find_property",
    "message_id",
    "parse_message_id",
    "record_end",
    "record_starts",
    "set_queue_id",
    "tags_code",
    "validate_records",
]

RECORD_MAGIC: Final = RECORD.constant("magic")
MAX_TOPIC_BYTES: Final = 127
TOPIC_PATTERN: Final = re.compile(r"[A-Za-z0-9_%-]{1,127}")

BATCH_PREAMBLE: Final = BATCH.struct()  # Opens the body of a data entry.

FIXED_SIZE: Final = RECORD.size  # Up to and with BODYLENGTH.
MIN_RECORD_SIZE: Final = RECORD.at("properties")  # Without body, topic and properties.
V6_HOST_BITS: Final = 0x30  # SYSFLAG bits 4 (born host) and 5 (store host).

_CRC_MASK: Final = 0x7FFFFFFF
_NEW: Final = RECORD.struct(
    "total_size", "magic", "body_crc", "queue_id", "flag", "sysflag", "born_time_ms", "born_host",
    "body_length",
)  # fmt: skip
_CHECKED: Final = RECORD.struct(
    "total_size", "magic", "body_crc", "queue_id", "sysflag", "body_length"
)
_ALL: Final = RECORD.struct()
_TOTAL_SIZE: Final = RECORD.run("total_size")
_QUEUE_ID: Final = RECORD.run("queue_id")
_QUEUE_ID_AT: Final = RECORD.at("queue_id")
_PROPERTIES_LENGTH: Final = RECORD.run("properties_length")
_NO_PROPERTIES: Final = _PROPERTIES_LENGTH.pack(0)


class RecordTemplate:
    """Encodes records of one topic from one host; what is common to them is packed once.

    Args:
        topic: 1–127 bytes of `TOPIC_PATTERN`.
        born_host: the producer's IPv4 address and port.

    Raises:
        InvalidRecord: the topic or the host can't be written into a record.
    """

    __slots__ = ("_host", "_overhead", "_plain_tail", "_topic_field", "topic")

    def __init__(self, topic: str, born_host: tuple[str, int]) -> None:
        self.topic = topic
        self._host = encode_host(born_host)
        self._topic_field = _topic_field(topic)
        self._plain_tail = self._topic_field + _NO_PROPERTIES
        self._overhead = FIXED_SIZE + len(self._plain_tail)

    def encode(
        self,
        queue_id: int,
        body: bytes,
        properties: bytes,
        born_time_ms: int,
        flag: int = 0,
        sysflag: int = 0,
    ) -> bytes:
        """One record, the leader's fields zero.

        Args:
            queue_id: signed 32-bit; `set_queue_id` changes it later.
            body: as it is stored; BODYCRC is over these bytes.
            properties: as `encode_properties` makes them.
            born_time_ms: milliseconds since the epoch.
            flag: signed 32-bit, the application's own.
            sysflag: unsigned 32-bit; says how the body is compressed
                (`dledger.records.compression`).

        Raises:
            InvalidProperties: they are longer than `MAX_PROPERTIES_BYTES`.
        """
        body_size = len(body)
        size = self._overhead + body_size + len(properties)
        crc = crc32(body) & _CRC_MASK
        fixed = _NEW.pack(
            size, RECORD_MAGIC, crc, queue_id, flag, sysflag, born_time_ms, self._host, body_size
        )
        if not properties:
            return b"".join((fixed, body, self._plain_tail))
        properties_size = len(properties)
        if properties_size > MAX_PROPERTIES_BYTES:
            raise InvalidProperties("", f"{properties_size} bytes, {MAX_PROPERTIES_BYTES} at most")
        length = _PROPERTIES_LENGTH.pack(properties_size)
        return b"".join((fixed, body, self._topic_field, length, properties))


def set_queue_id(buf: bytearray, starts: Sequence[int], queue_id: int) -> None:
    """The records that begin at `starts` in `buf` belong to `queue_id`."""
    for start in starts:
        _QUEUE_ID.pack_into(buf, start + _QUEUE_ID_AT, queue_id)


def validate_records(
    buf: bytes | bytearray | memoryview,
    *,
    topic: str,
    queue_id: int,
    max_record_size: int,
    most: int | None = None,
) -> list[int]:
    """The start offset of each record in `buf`, every one of them checked.

    Checked: the sizes fill `buf` exactly and agree with the inner lengths, magic, body CRC, topic,
    queue id, host form. Not checked, as the leader overwrites them or they are the application's:
    FLAG, both offsets, both times, both hosts, RECONSUMETIMES, PREPAREDTRANSACTIONOFFSET, other
    SYSFLAG bits and what the properties hold.

    Args:
        buf: records back to back, of one topic and one queue.
        max_record_size: the largest TOTALSIZE accepted, bytes.
        most: no more records than that are accepted, nor looked at.

    Raises:
        InvalidRecord: with the position of the first bad record and its first bad field.
    """
    raw = bytes(buf) if isinstance(buf, memoryview) else buf
    view = memoryview(raw)
    topic_field = _topic_field(topic)
    topic_size = len(topic_field)
    unpack = _CHECKED.unpack_from
    has_topic = raw.startswith
    end = len(raw)
    starts: list[int] = []
    at = 0
    for _ in range(end if most is None else most):
        if at == end:
            break
        if end - at < MIN_RECORD_SIZE:
            raise InvalidRecord(at, "remaining size", f"at least {MIN_RECORD_SIZE}", end - at)
        size, magic, crc, queue, sysflag, body_size = unpack(raw, at)
        body_at = at + FIXED_SIZE
        topic_at = body_at + body_size
        properties_at = topic_at + topic_size
        # One comparison of each kind on the good path; `_explain` finds out which one failed.
        if (
            magic != RECORD_MAGIC
            or queue != queue_id
            or sysflag & V6_HOST_BITS
            or size > max_record_size
            or at + size > end
            or properties_at + 2 > at + size
            or not has_topic(topic_field, topic_at)
            or properties_at + 2 + (raw[properties_at] << 8 | raw[properties_at + 1]) != at + size
            or raw[properties_at] & 0x80
            or crc32(view[body_at:topic_at]) & _CRC_MASK != crc
        ):
            raise _explain(raw, at, topic_field, queue_id, max_record_size)
        starts.append(at)
        at += size
    if at < end:
        raise InvalidRecord(at, "remaining size", f"0 behind {most} records", end - at)
    return starts


def record_starts(buf: bytes | bytearray | memoryview, start: int, count: int) -> list[int]:
    """Where each of `count` records begins, the first of them at `start`; trusts the sizes.

    Raises:
        InvalidRecord: a size leads outside of `buf`.
    """
    starts: list[int] = []
    unpack = _TOTAL_SIZE.unpack_from
    end, at = len(buf), start
    for _ in range(count):
        if end - at < MIN_RECORD_SIZE:
            raise InvalidRecord(at, "remaining size", f"at least {MIN_RECORD_SIZE}", end - at)
        (size,) = unpack(buf, at)
        if not MIN_RECORD_SIZE <= size <= end - at:
            raise InvalidRecord(at, "TOTALSIZE", f"{MIN_RECORD_SIZE} to {end - at}", size)
        starts.append(at)
        at += size
    return starts


def record_end(buf: bytes | bytearray | memoryview, start: int, count: int, at: int) -> int | None:
    """Where the record ends that begins at `at`, of `count` from `start` on; None if none of them
    does. Trusts the sizes, and looks at none behind it: a batch may have 40,000.

    Raises:
        InvalidRecord: a size leads outside of `buf`.
    """
    here, left, whole, unpack = start, count, len(buf), _TOTAL_SIZE.unpack_from
    while here < at and left:
        (size,) = unpack(buf, here) if whole - here >= MIN_RECORD_SIZE else (0,)
        if not MIN_RECORD_SIZE <= size <= whole - here:
            raise InvalidRecord(here, "TOTALSIZE", f"{MIN_RECORD_SIZE} to {whole - here}", size)
        here, left = here + size, left - 1
    if here != at or not left:
        return None
    record_starts(buf, at, 1)
    end: int = at + unpack(buf, at)[0]
    return end


class DecodedRecord(NamedTuple):
    """A record as a consumer sees it. Times are ms since the epoch, offsets as stamped, `size` is
    TOTALSIZE in bytes; the properties are parsed only when asked for. As a tuple it holds the body
    as it is stored."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    born_time_ms: int
    born_host: tuple[str, int]
    store_time_ms: int
    store_host: tuple[str, int]
    body: bytes
    raw_properties: bytes
    flag: int
    reconsume_times: int
    sysflag: int
    size: int

    @property
    def stored_body(self) -> bytes:
        """The body as it is stored: compressed, if it is."""
        return self[8]  # `body`, which a compressed record answers otherwise

    @property
    def properties(self) -> dict[str, str]:
        """All properties; parsed anew at each call."""
        return decode_properties(self.raw_properties)

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return find_property(self.raw_properties, b"TAGS")

    @property
    def keys(self) -> str | None:
        """The KEYS property: keys separated by blanks."""
        return find_property(self.raw_properties, b"KEYS")

    @property
    def attempt(self) -> int:
        """Which time somebody of its consumer group is given it, as far as is known: 1 at first,
        one more for each failure before."""
        return self.reconsume_times + 1

    @property
    def message_id(self) -> str:
        """RocketMQ's offsetMsgId: it finds this record again on any replica."""
        return message_id(self.store_host, self.physical_offset)


class CompressedRecord(DecodedRecord):
    """A record whose body is compressed. It is decompressed when it is asked for, once: what can't
    be read fails whoever asks for it, and nobody else; and what waits takes no more room than it
    does in the log."""

    @cached_property
    def body(self) -> bytes:
        """The body as it was before it was compressed.

        Raises:
            BodyUnreadable: it can't be decompressed.
        """
        return decompress(self.stored_body, self.sysflag)


def decode_records(
    buf: bytes, compressed: type[CompressedRecord] = CompressedRecord
) -> list[DecodedRecord]:
    """Every record in `buf`, which holds whole records back to back.

    Args:
        compressed: what becomes of records whose bodies are compressed.

    Raises:
        InvalidRecord: lengths, magic, host form or body CRC of one of them are wrong.
    """
    records: list[DecodedRecord] = []
    unpack = _ALL.unpack_from
    make = tuple.__new__
    end, at = len(buf), 0
    topic_bytes, topic = b"", ""
    while at < end:
        if end - at < MIN_RECORD_SIZE:
            raise InvalidRecord(at, "remaining size", f"at least {MIN_RECORD_SIZE}", end - at)
        # fmt: off
        (size, magic, crc, queue_id, flag, queue_offset, physical_offset, sysflag, born_time_ms,
         born_host, store_time_ms, store_host, reconsume_times, _, body_size) = unpack(buf, at)
        # fmt: on
        body_at = at + FIXED_SIZE
        topic_at = body_at + body_size + 1
        record_end = at + size
        body = buf[body_at : topic_at - 1]
        if (
            magic != RECORD_MAGIC
            or sysflag & V6_HOST_BITS
            or record_end > end
            or topic_at + 2 > record_end
            or crc32(body) & _CRC_MASK != crc
        ):
            raise _explain(buf, at, None, queue_id, size)
        properties_at = topic_at + buf[topic_at - 1] + 2
        if (
            properties_at > record_end
            or properties_at + (buf[properties_at - 2] << 8 | buf[properties_at - 1]) != record_end
        ):
            raise _explain(buf, at, None, queue_id, size)
        if buf[topic_at : properties_at - 2] != topic_bytes:
            topic_bytes = buf[topic_at : properties_at - 2]
            topic = topic_bytes.decode(errors="replace")
        records.append(
            make(
                compressed if sysflag & COMPRESSED_BIT else DecodedRecord,
                (topic, queue_id, queue_offset, physical_offset,
                 born_time_ms, decode_host(born_host), store_time_ms, decode_host(store_host),
                 body, buf[properties_at:record_end], flag, reconsume_times, sysflag, size),
            )
        )  # fmt: skip
        at = record_end
    return records


@lru_cache(maxsize=4096)
def _topic_field(topic: str) -> bytes:
    if TOPIC_PATTERN.fullmatch(topic) is None:
        raise InvalidRecord(0, "topic", f"1–{MAX_TOPIC_BYTES} of A-Z a-z 0-9 _ % -", repr(topic))
    return bytes((len(topic),)) + topic.encode("ascii")


def _explain(
    raw: bytes | bytearray, at: int, topic_field: bytes | None, queue_id: int, max_size: int
) -> InvalidRecord:
    """The error for the record at `at`, of which some check has failed. Without a `topic_field`,
    any topic will do."""
    size, magic, crc, queue, sysflag, body_size = _CHECKED.unpack_from(raw, at)
    limit = min(max_size, len(raw) - at)
    if magic != RECORD_MAGIC:
        return InvalidRecord(at, "MAGICCODE", f"{RECORD_MAGIC:08x}", f"{magic:08x}")
    if not MIN_RECORD_SIZE <= size <= limit:
        return InvalidRecord(at, "TOTALSIZE", f"{MIN_RECORD_SIZE} to {limit}", size)
    if queue != queue_id:
        return InvalidRecord(at, "QUEUEID", queue_id, queue)
    if sysflag & V6_HOST_BITS:
        return InvalidRecord(at, "SYSFLAG", "hosts of 8 bytes (IPv4)", f"{sysflag:#x}")
    topic_at = at + FIXED_SIZE + body_size
    if topic_at + 3 > at + size:
        return InvalidRecord(at, "BODYLENGTH", f"at most {size - MIN_RECORD_SIZE}", body_size)
    found = bytes(raw[topic_at : min(topic_at + 1 + raw[topic_at], at + size)])
    if topic_field is not None and found != topic_field:
        return InvalidRecord(at, "TOPIC", topic_field, found)
    room = at + size - (topic_at + 1 + raw[topic_at] + 2)
    if room < 0:
        return InvalidRecord(at, "TOPICLENGTH", "within TOTALSIZE", raw[topic_at])
    (properties_size,) = _PROPERTIES_LENGTH.unpack_from(raw, at + size - room - 2)
    if properties_size != room or room > MAX_PROPERTIES_BYTES:
        allowed = min(room, MAX_PROPERTIES_BYTES)
        return InvalidRecord(at, "PROPERTIESLENGTH", allowed, properties_size)
    computed = crc32(raw[at + FIXED_SIZE : topic_at]) & _CRC_MASK
    return InvalidRecord(at, "BODYCRC", f"{computed:08x}", f"{crc:08x}")

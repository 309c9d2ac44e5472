"""Copies of messages that failed: for the schedule topic, for retry topics, for dead letters.

A copy has the body, key, tag and properties of what it was copied from, and the brokers' own
(`dledger.records.reserved`) say where it came from: topic, queue, offset, message id and time of
the *first* one, whatever lies between. How often it has failed is its RECONSUMETIMES, which is read
from copies only: a producer may have written anything there. This makes bytes; it decides nothing.

Any way of delivering uses the same: a failed handout's unit is one of these copies and its own
command (`broker.state.retrying` judges that of a leased queue).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from broker.leader.batches import Batch
from dledger.records.errors import InvalidProperties
from dledger.records.layout import HOST, RECORD
from dledger.records.properties import KEYS, TAGS, encode_properties
from dledger.records.record import DecodedRecord, RecordTemplate
from dledger.records.reserved import (
    DEAD_REASON,
    DELAY_LEVEL,
    FAILED_TIME,
    ORIGIN_MESSAGE_ID,
    ORIGIN_OFFSET,
    ORIGIN_QUEUE,
    ORIGIN_TIME,
    ORIGIN_TOPIC,
    OWN_PROPERTIES,
    REAL_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    dead_letter_topic,
    retry_level,
    retry_topic,
)

_NOWHERE: Final = ("0.0.0.0", 0)  # until a copy has its BORNHOST
_HOST: Final = HOST.struct()
_BORN_HOST_AT: Final = RECORD.at("born_host")
_RECONSUMED: Final = RECORD.run("reconsume_times")
_RECONSUMED_AT: Final = RECORD.at("reconsume_times")


@dataclass(frozen=True, slots=True)
class Failure:
    """That a group couldn't work on a message: how often by now, and why it is dead, if it is."""

    group: str
    count: int
    failed_ms: int
    dead_because: str = ""


def failures_before(group: str, record: DecodedRecord) -> int:
    """How often the group had failed to work on it before it was given this record."""
    is_copy = record.topic == retry_topic(group)
    return record.reconsume_times if is_copy else 0


def copy_of(record: DecodedRecord, failure: Failure) -> Batch:
    """What takes the failed record's place: a copy that waits at its level, or a dead letter.

    Raises:
        InvalidRecord: it can't be written; no record that is in a log is so.
    """
    properties = _origin(record) | {FAILED_TIME: str(failure.failed_ms)}
    if failure.dead_because:
        properties[DEAD_REASON] = failure.dead_because
        return _batch(record, dead_letter_topic(failure.group), 0, properties, failure.count)
    level = retry_level(failure.count)
    properties |= {REAL_TOPIC: retry_topic(failure.group), DELAY_LEVEL: str(level)}
    return _batch(record, SCHEDULE_TOPIC, level - 1, properties, failure.count)


def due_ms(record: DecodedRecord, delays_ms: Sequence[int]) -> int:
    """When a record of the schedule topic is due, by the log's clock, if levels wait so long."""
    return record.store_time_ms + delays_ms[record.queue_id]


def goes_to(record: DecodedRecord) -> str | None:
    """The retry topic that a record of the schedule topic waits for; None: no leader wrote it."""
    topic = record.properties.get(REAL_TOPIC, "")
    return topic if topic.startswith(RETRY_PREFIX) else None


def due_copy(record: DecodedRecord, topic: str) -> Batch:
    """What comes again of a record that has waited."""
    properties = record.properties
    for name in (REAL_TOPIC, DELAY_LEVEL):
        properties.pop(name, None)
    return _batch(record, topic, 0, properties, record.reconsume_times)


def resent_copy(record: DecodedRecord, topic: str, queue_id: int) -> Batch:
    """A dead letter as a new message of that topic: as it was first sent."""
    kept = {n: value for n, value in record.properties.items() if n not in OWN_PROPERTIES}
    return _batch(record, topic, queue_id, kept, 0)


def _origin(record: DecodedRecord) -> dict[str, str]:
    """The properties of a copy: its own, and where the first one lay."""
    properties = record.properties
    if record.topic.startswith(RETRY_PREFIX) and ORIGIN_TOPIC in properties:
        return properties
    kept = {n: value for n, value in properties.items() if n not in OWN_PROPERTIES}
    return kept | {
        ORIGIN_TOPIC: record.topic,
        ORIGIN_QUEUE: str(record.queue_id),
        ORIGIN_OFFSET: str(record.queue_offset),
        ORIGIN_MESSAGE_ID: record.message_id,
        ORIGIN_TIME: str(record.store_time_ms),
    }


def _batch(
    record: DecodedRecord, topic: str, queue_id: int, properties: dict[str, str], failures: int
) -> Batch:
    encoded = RecordTemplate(topic, _NOWHERE).encode(
        queue_id,
        record.stored_body,
        _encoded(properties),
        record.born_time_ms,
        record.flag,
        record.sysflag,
    )
    copy = bytearray(encoded)
    address, port = record.born_host  # as it lies there: a producer may have named any port
    _HOST.pack_into(copy, _BORN_HOST_AT, IPv4Address(address).packed, port)
    _RECONSUMED.pack_into(copy, _RECONSUMED_AT, failures)
    return Batch(topic, queue_id, 0, 1, bytes(copy), is_copy=True)


def _encoded(properties: Mapping[str, str]) -> bytes:
    """As a copy has them. Producers of releases before left no room for the brokers', or wrote what
    nobody would now: then only key, tag and the brokers' are kept, or the brokers' alone. All of
    them are in the first message, as long as that is in the log."""
    for kept in (properties.keys(), {*OWN_PROPERTIES, KEYS, TAGS}):
        with contextlib.suppress(InvalidProperties):
            return encode_properties({n: each for n, each in properties.items() if n in kept})
    return encode_properties({n: each for n, each in properties.items() if n in OWN_PROPERTIES})

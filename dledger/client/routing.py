"""Which queue a message goes to.

    explicit queue id   that queue
    a key               abs(Java's String.hashCode(key)) % write queues, as RocketMQ's
                        SelectMessageQueueByHash: the same key, the same queue, in any language
    neither             the sticky queue: one queue until its gather is sent, then the next one,
                        so that unkeyed messages make few large batches, not many small ones

A route holds what is known of one topic and, until that is known, the messages that wait for it
(they count against the producer's bounds). It never asks the brokers itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from dledger.client.arguments import checked_key, property_texts
from dledger.client.errors import InvalidArgument, QueueNotFound, Subject
from dledger.client.lane import Lane
from dledger.client.results import SendResult
from dledger.records.errors import InvalidProperties, InvalidRecord
from dledger.records.properties import MAX_SENT_PROPERTIES_BYTES, REMEMBERED_CHARACTERS
from dledger.records.record import (
    KEYS,
    TAGS,
    RecordTemplate,
    encode_properties,
    set_queue_id,
    tags_code,
)

_ARGUMENTS: Final = {KEYS: "key", TAGS: "tag"}  # what their callers call them


def queue_of_key(key: str, queue_count: int) -> int:
    """The queue of `key`, stable over clients, versions and languages.

    Source: RocketMQ `SelectMessageQueueByHash`.
    """
    if len(key) > REMEMBERED_CHARACTERS:
        return hash_of_key(key) % queue_count
    return _queue_of_key(key, queue_count)


@lru_cache(maxsize=65_536)
def _queue_of_key(key: str, queue_count: int) -> int:
    return hash_of_key(key) % queue_count


def hash_of_key(key: str) -> int:
    """What a key's queue is the remainder of."""
    return abs(tags_code(key))


def labels(key: str | None, tag: str | None, properties: Mapping[str, str] | None = None) -> bytes:
    """The properties string of a message.

    Raises:
        InvalidArgument: a name or value can't be encoded, or a label is given twice.
    """
    if properties is None:
        return labels_alone(key, tag)
    return _encode_labels(key, tag, properties)


def labels_alone(key: str | None, tag: str | None) -> bytes:
    """`labels` of a message without properties; often the same."""
    if _is_long(key) or _is_long(tag):
        return _encode_labels(key, tag, {})
    return _labels_alone(key, tag)


@lru_cache(maxsize=8_192)
def _labels_alone(key: str | None, tag: str | None) -> bytes:
    return _encode_labels(key, tag, {})


def _is_long(label: str | None) -> bool:
    """Whether it isn't remembered; what is no string is refused by others."""
    return isinstance(label, str) and len(label) > REMEMBERED_CHARACTERS


def _encode_labels(key: str | None, tag: str | None, properties: Mapping[str, str]) -> bytes:
    combined = property_texts(properties)
    if key is not None:
        combined[KEYS] = checked_key(key)
    if tag is not None:
        combined[TAGS] = tag
    try:
        encoded = encode_properties(combined)
    except InvalidProperties as error:
        told = f"{_ARGUMENTS.get(error.name, 'properties')}: {error}"
        raise InvalidArgument(told, subject=Subject.MESSAGE) from error
    except UnicodeEncodeError as error:
        told = f"{_not_unicode(combined)}: not valid Unicode"
        raise InvalidArgument(told, subject=Subject.MESSAGE) from error
    if len(encoded) > MAX_SENT_PROPERTIES_BYTES:
        told = f"properties: {len(encoded)} bytes in all, {MAX_SENT_PROPERTIES_BYTES} at most"
        raise InvalidArgument(told, subject=Subject.MESSAGE)
    return encoded


def _not_unicode(properties: Mapping[str, str]) -> str:
    """The argument that holds half a surrogate pair."""
    for name, value in properties.items():
        if any("\ud800" <= character <= "\udfff" for character in name + value):
            return _ARGUMENTS.get(name, "properties")
    return "properties"


@lru_cache(maxsize=1_024)
def check_topic(topic: str) -> None:
    """Returns if a topic can have this name.

    Raises:
        InvalidArgument: none can.
    """
    _template(topic, ("0.0.0.0", 0))


def _template(topic: str, born_host: tuple[str, int]) -> RecordTemplate:
    try:
        return RecordTemplate(topic, born_host)
    except InvalidRecord as error:
        raise InvalidArgument(
            f"topic name {topic[:160]!r}: 1 to 127 of the characters A-Z a-z 0-9 _ % - are allowed",
            subject=Subject.MESSAGE,
        ) from error


class HeldMessage(NamedTuple):
    """A message whose topic's queue count isn't known yet."""

    record: bytes
    key: str | None
    queue_id: int | None
    future: asyncio.Future[SendResult]
    deadline: float  # of the loop's clock: the wait for the topic counts
    timeout_s: float | None  # its own, if it has one


class Route:
    """What a producer knows of one topic.

    Args:
        topic: its name.
        born_host: the client's IPv4 address and port, written into each record.

    Raises:
        InvalidArgument: no topic can have this name.
    """

    __slots__ = ("encode", "held", "lanes", "sticky", "topic")

    def __init__(self, topic: str, born_host: tuple[str, int]) -> None:
        self.encode = _template(topic, born_host).encode
        self.topic = topic
        self.lanes: list[Lane] = []  # by queue id; empty until the topic is known
        self.sticky: Lane | None = None
        self.held: list[HeldMessage] = []

    def resolve(self, lanes: list[Lane], first_sticky: int) -> None:
        """The topic has these queues; the first sticky one is `first_sticky` modulo their count."""
        self.lanes = lanes
        self.sticky = lanes[first_sticky % len(lanes)]

    def forget(self) -> None:
        """Nothing is known of the topic: messages wait."""
        self.lanes, self.sticky = [], None

    def turn_sticky(self) -> None:
        """The sticky queue has sent a batch: the next queue's turn."""
        if self.sticky is not None:
            self.sticky = self.lanes[(self.sticky.queue_id + 1) % len(self.lanes)]

    def choose(self, key: str | None, queue_id: int | None) -> Lane:
        """The lane of a message. The topic is known.

        Raises:
            QueueNotFound: there is no such queue.
        """
        if queue_id is not None:
            if not 0 <= queue_id < len(self.lanes):
                raise QueueNotFound(
                    f"topic {self.topic!r} takes messages in queues 0 to {len(self.lanes) - 1}, "
                    f"not in {queue_id}",
                    subject=Subject.MESSAGE,
                )
            return self.lanes[queue_id]
        if key is not None:
            return self.lanes[queue_of_key(key, len(self.lanes))]
        if self.sticky is None:
            raise AssertionError("a resolved route has a sticky queue")
        return self.sticky


def for_queue(record: bytes, queue_id: int) -> bytes:
    """`record`, which was encoded before its queue was known, for `queue_id`."""
    patched = bytearray(record)
    set_queue_id(patched, (0,), queue_id)
    return bytes(patched)

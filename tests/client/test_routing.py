"""Queues by key, and labels in bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.client import routing
from dledger.client.epochs import Epochs
from dledger.client.errors import InvalidArgument, QueueNotFound
from dledger.client.lane import Lane
from dledger.client.routing import Route, for_queue, labels, queue_of_key
from dledger.records import properties
from dledger.records.record import RecordTemplate, decode_records


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96354),
        ("hello", 99162322),
        ("Hello World", -862545276),
        ("ü", 252),
        ("😀", 1772899),
    ],
)
def test_queue_of_key_is_javas(key: str, java_hash: int) -> None:
    """Known values of String.hashCode, as a Java producer would place the message."""
    for count in (1, 3, 8, 1_024):
        assert queue_of_key(key, count) == abs(java_hash) % count


@given(st.text(max_size=40), st.integers(1, 1_024))
def test_queue_of_key_is_a_queue(key: str, count: int) -> None:
    """Never negative, never beyond."""
    assert 0 <= queue_of_key(key, count) < count


def test_smallest_hash_is_placed_as_java_places_it() -> None:
    """abs(Integer.MIN_VALUE) overflows in Java; RocketMQ takes the remainder first."""
    assert queue_of_key("polygenelubricants", 7) == (1 << 31) % 7


def test_long_keys_are_not_remembered() -> None:
    """The caches count keys: so many of 31 KB would be gigabytes of a producer's memory."""
    caches = (routing._queue_of_key, routing._labels_alone, properties._remembered_code)
    before = [cache.cache_info().misses for cache in caches]
    longest = "x" * properties.REMEMBERED_CHARACTERS
    for key in (f"{longest}1", f"{longest}2"):
        assert queue_of_key(key, 7) == queue_of_key(key, 7) < 7
        assert key.encode() in labels(key, None)
        assert key.encode() in labels(None, key)
    assert [cache.cache_info().misses for cache in caches] == before
    queue_of_key(longest, 7)
    labels(longest, None)
    assert [cache.cache_info().misses for cache in caches] == [each + 1 for each in before]


def route(queues: int) -> Route:
    made = Route("t", ("127.0.0.1", 0))
    epochs = Epochs()
    made.resolve([Lane("t", queue_id, epochs) for queue_id in range(queues)], first_sticky=5)
    return made


def test_sticky_queue_turns_round() -> None:
    """Every queue gets its turn."""
    turning = route(3)
    turns = []
    for _ in range(4):
        turns.append(turning.choose(None, None).queue_id)
        turning.turn_sticky()
    assert turns == [2, 0, 1, 2]


@pytest.mark.parametrize("queue_id", [-1, 3])
def test_queue_outside_of_the_topic_is_refused(queue_id: int) -> None:
    """A negative one must not count from the end."""
    with pytest.raises(QueueNotFound):
        route(3).choose("k", queue_id)


def test_labels_are_what_encode_properties_makes() -> None:
    """KEYS before TAGS; nothing for neither."""
    assert labels("k", "t") == b"KEYS\x01k\x02TAGS\x01t\x02"
    assert labels(None, None) == b""
    with pytest.raises(InvalidArgument):
        labels("k\x02", None)


def test_record_is_moved_to_its_queue() -> None:
    """Nothing but the queue id changes."""
    record = RecordTemplate("t", ("127.0.0.1", 0)).encode(0, b"body", labels("k", None), 1)
    moved = decode_records(for_queue(record, 513))[0]
    assert moved == decode_records(record)[0]._replace(queue_id=513)

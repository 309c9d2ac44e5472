"""Topics as a stream: how far a batch goes, and what becomes of topics that change."""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from dledger.client.blocking import BlockingClient
from dledger.client.connection import GET_QUEUE_OFFSETS
from dledger.client.errors import DeadlineExceeded
from dledger.spark import BadOption
from dledger.spark.brokers import Brokers, Topic
from dledger.spark.errors import DataLost
from dledger.spark.following import Offsets, TopicsStream, continued, limited, ranges_between
from dledger.testing import BrokerGroup
from tests.spark.group import fill, renewed, rows_of, source

BODIES = [f"m{number}".encode() for number in range(10)]
ALL = ReadAllAvailable()


def stream_of(group: BrokerGroup, topics: str, **options: str) -> TopicsStream:
    told = {"startingOffsets": "earliest", **options}
    return source(group.addresses, topics, **told).streamReader(None)


def through_json(offsets: Offsets) -> Offsets:
    """As a checkpoint keeps it."""
    kept: Offsets = json.loads(json.dumps(offsets))
    return kept


def test_stream_goes_on_where_its_offset_says(dledger_group: BrokerGroup) -> None:
    """Batches together are everything, each once, whoever made the offset."""
    topic = dledger_group.topic(2)
    stream = stream_of(dledger_group, topic, columns="body")
    start = through_json(stream.initialOffset())
    found = []
    for bodies in (BODIES[:4], BODIES[4:], []):
        fill(dledger_group.addresses, topic, 1, bodies)
        end = through_json(stream.latestOffset(start, ALL))
        found += rows_of(stream, stream.partitions(start, end))
        start = end
    stream.stop()
    assert [row["body"] for row in found] == BODIES
    assert start[topic]["offsets"] == [0, 10]


def test_stream_begins_at_the_end_unless_told(dledger_group: BrokerGroup) -> None:
    """As Kafka's does; and travels without its connection."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    stream = source(dledger_group.addresses, topic).streamReader(None)
    start = stream.initialOffset()
    assert start[topic]["offsets"] == [10]
    assert pickle.loads(pickle.dumps(stream))._brokers is None
    assert stream.latestOffset(start, ALL) == start == stream.reportLatestOffset()
    stream.stop()


@given(
    lags=st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 50), max_size=4)),
    most=st.integers(1, 200),
)
def test_limited_batch_is_full_and_goes_on(lags: dict[str, list[int]], most: int) -> None:
    """Never more than the limit, nor less than there is of it; nothing goes back."""
    start: Offsets = {
        name: {"incarnation": 1, "created": 2, "offsets": [5] * len(each)}
        for name, each in lags.items()
    }
    end: Offsets = {
        name: {"incarnation": 1, "created": 2, "offsets": [5 + lag for lag in each]}
        for name, each in lags.items()
    }
    got = limited(start, end, most)
    parts = [part for name in end for part in ranges_between(start, got, name)]
    assert sum(part.end - part.start for part in parts) == min(most, sum(map(sum, lags.values())))
    for name, each in lags.items():
        for lag, offset in zip(each, got[name]["offsets"], strict=True):
            assert 5 <= offset <= 5 + lag


def test_batch_has_no_more_messages_than_allowed(dledger_group: BrokerGroup) -> None:
    """The option is the limit where the trigger sets none."""
    topic = dledger_group.topic(2)
    for queue_id in (0, 1):
        fill(dledger_group.addresses, topic, queue_id, BODIES)
    stream = stream_of(dledger_group, topic, maxOffsetsPerTrigger="7")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(7)
    at, sizes = stream.initialOffset(), []
    while (end := stream.latestOffset(at, limit)) != at:
        sizes.append(sum(part.value.end - part.value.start for part in stream.partitions(at, end)))
        at = end
    stream.stop()
    assert sizes == [7, 7, 6]


def test_available_now_means_when_the_run_began(dledger_group: BrokerGroup) -> None:
    """What is stored later is left to the next run, and the run ends."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES[:3])
    stream = stream_of(dledger_group, topic)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    fill(dledger_group.addresses, topic, 0, BODIES[3:])
    end = stream.latestOffset(start, ALL)
    assert end[topic]["offsets"] == [3]
    assert stream.latestOffset(end, ALL) == end
    assert stream.reportLatestOffset()[topic]["offsets"] == [10]
    stream.stop()


def test_topic_made_anew_ends_a_stream_or_begins_anew_in_it(dledger_group: BrokerGroup) -> None:
    """Its messages are other ones; what was unread of the old one is lost."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    strict = stream_of(dledger_group, topic)
    lenient = stream_of(dledger_group, topic, failOnDataLoss="false")
    start = strict.initialOffset()
    at = through_json(strict.latestOffset(start, ReadMaxRows(4)))
    incarnation = renewed(dledger_group.addresses, topic, queues=2)
    fill(dledger_group.addresses, topic, 1, [b"new"])
    with pytest.raises(DataLost, match=f"topic '{topic}' was deleted and made anew"):
        strict.latestOffset(at, ALL)
    end = lenient.latestOffset(at, ALL)
    assert end[topic]["incarnation"] == incarnation
    assert end[topic]["created"] >= at[topic]["created"] > 0
    assert end[topic]["offsets"] == [0, 1]
    found = rows_of(lenient, lenient.partitions(at, end))
    assert [(row["incarnation"], row["body"]) for row in found] == [(incarnation, b"new")]
    # A batch of the old topic that is repeated is lost, in whole or as it was told to be.
    with pytest.raises(DataLost, match=r"messages 0 to 4 .* can't be read"):
        rows_of(strict, strict.partitions(start, at))
    assert rows_of(lenient, lenient.partitions(start, at)) == []
    strict.stop()
    lenient.stop()


def test_deleted_topic_is_waited_for_or_ends_the_stream(dledger_group: BrokerGroup) -> None:
    """A lenient stream stays where it is until there is a topic of the name again."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    strict = stream_of(dledger_group, topic)
    lenient = stream_of(dledger_group, topic, failOnDataLoss="false")
    at = lenient.latestOffset(lenient.initialOffset(), ALL)
    with BlockingClient.connect(dledger_group.addresses) as client:
        client.delete_topic(topic)
        with pytest.raises(DataLost, match=f"there is no topic '{topic}'"):
            strict.latestOffset(at, ALL)
        assert lenient.latestOffset(at, ALL) == at
        client.create_topic(topic, queues=1)
    fill(dledger_group.addresses, topic, 0, [b"new"])
    end = lenient.latestOffset(at, ALL)
    assert [row["body"] for row in rows_of(lenient, lenient.partitions(at, end))] == [b"new"]
    strict.stop()
    lenient.stop()


def test_topics_come_and_go_with_the_option(dledger_group: BrokerGroup) -> None:
    """A topic that is named anew is read from its first message; one no longer named is left."""
    one, other = dledger_group.topic(), dledger_group.topic()
    for topic in (one, other):
        fill(dledger_group.addresses, topic, 0, BODIES[:2])
    first, both, last = (
        stream_of(dledger_group, names) for names in (one, f"{one},{other}", other)
    )
    start = first.latestOffset(first.initialOffset(), ALL)
    end = both.latestOffset(start, ALL)
    assert [part.value.topic for part in both.partitions(start, end)] == [other]
    assert last.latestOffset(end, ALL) == {other: end[other]}
    for stream in (first, both, last):
        stream.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is a batch's"),
        ({"maxOffsetsPerTrigger": "none"}, "maxOffsetsPerTrigger is 'none'"),
    ],
)
def test_options_of_batches_are_none_of_a_stream(options: dict[str, str], said: str) -> None:
    """Named, before any node is asked."""
    with pytest.raises(BadOption, match=said):
        source("127.0.0.1:1", "a", **options).streamReader(None)


def resized(group: BrokerGroup, topic: str, queues: int) -> None:
    """The topic has so many queues, whoever hasn't read those that go."""
    with BlockingClient.connect(group.addresses) as client:
        client.update_topic(topic, read_queues=queues, write_queues=queues, drop=True)


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(100)])
def test_stream_goes_on_when_its_topic_has_fewer_queues_and_more_again(
    dledger_group: BrokerGroup, limit: ReadLimit
) -> None:
    """Queues that it has read to their ends go and come back: each message once, and no end that no
    batch can be made of."""
    topic = dledger_group.topic(4)
    for queue_id in range(4):
        fill(dledger_group.addresses, topic, queue_id, BODIES[:2])
    stream = stream_of(dledger_group, topic)
    at = stream.initialOffset()
    found: list[tuple[int, bytes]] = []

    def read() -> None:
        nonlocal at
        end = through_json(stream.latestOffset(at, limit))
        rows = rows_of(stream, stream.partitions(at, end))
        found.extend((row["queue_id"], row["body"]) for row in rows)
        at = end

    read()
    resized(dledger_group, topic, 2)
    fill(dledger_group.addresses, topic, 0, [b"small"])
    read()
    assert at[topic]["offsets"] == [3, 2, 2, 2]
    assert stream.latestOffset(at, limit) == at
    resized(dledger_group, topic, 5)
    for queue_id in (3, 4):
        fill(dledger_group.addresses, topic, queue_id, [b"large"])
    read()
    stream.stop()
    both = [(queue_id, body) for queue_id in range(4) for body in BODIES[:2]]
    assert sorted(found) == sorted([*both, (0, b"small"), (3, b"large"), (4, b"large")])


def test_queue_that_went_unread_is_a_loss(dledger_group: BrokerGroup) -> None:
    """Its messages are given to nobody any more: said once, by its number."""
    topic = dledger_group.topic(2)
    for queue_id in (0, 1):
        fill(dledger_group.addresses, topic, queue_id, BODIES[:3])
    strict = stream_of(dledger_group, topic)
    lenient = stream_of(dledger_group, topic, failOnDataLoss="false")
    start = strict.initialOffset()
    at = strict.latestOffset(start, ReadMaxRows(4))
    resized(dledger_group, topic, 1)
    with pytest.raises(DataLost, match=f"queue 1 of topic '{topic}' went with messages 2 to 3"):
        strict.latestOffset(at, ALL)
    end = lenient.latestOffset(at, ALL)
    assert end[topic]["offsets"] == [3, 3]
    assert [row["body"] for row in rows_of(lenient, lenient.partitions(at, end))] == BODIES[2:3]
    assert lenient.latestOffset(end, ALL) == end
    strict.stop()
    lenient.stop()


@pytest.mark.parametrize("is_available_now", [False, True])
def test_queue_that_came_and_went_between_two_looks_is_a_loss(
    dledger_group: BrokerGroup, is_available_now: bool
) -> None:
    """Nobody gives its messages any more, and this stream never heard of them. Who goes on without
    them is told no more of them, and of those that come later."""
    topic = dledger_group.topic(2)
    strict = stream_of(dledger_group, topic)
    lenient = stream_of(dledger_group, topic, failOnDataLoss="false")
    at = through_json(strict.initialOffset())
    for stream in (strict, lenient):
        if is_available_now:
            stream.prepareForTriggerAvailableNow()

    def came_and_went(bodies: list[bytes]) -> None:
        resized(dledger_group, topic, 4)
        fill(dledger_group.addresses, topic, 3, bodies)
        resized(dledger_group, topic, 2)

    came_and_went([])
    assert strict.latestOffset(at, ALL)[topic]["offsets"][:2] == [0, 0]
    came_and_went(BODIES)
    with pytest.raises(DataLost, match=f"queue 3 of topic '{topic}' came and .* 0 to 10 since"):
        strict.latestOffset(at, ALL)
    end = through_json(lenient.latestOffset(at, ALL))
    assert rows_of(lenient, lenient.partitions(at, end)) == []
    later = stream_of(dledger_group, topic)
    end = through_json(later.latestOffset(end, ALL))
    came_and_went(BODIES[:2])
    with pytest.raises(DataLost, match=f"queue 3 of topic '{topic}' .* messages 10 to 12"):
        later.latestOffset(end, ALL)
    resized(dledger_group, topic, 4)
    fill(dledger_group.addresses, topic, 3, [b"new"])
    lenient.stop()
    lenient = stream_of(dledger_group, topic, failOnDataLoss="false")
    at, end = end, lenient.latestOffset(end, ALL)
    assert [row["body"] for row in rows_of(lenient, lenient.partitions(at, end))] == [b"new"]
    for stream in (strict, lenient, later):
        stream.stop()


@pytest.mark.parametrize("is_named_later", [False, True])
def test_queue_that_was_gone_before_the_stream_begins_where_it_ended(
    dledger_group: BrokerGroup, is_named_later: bool
) -> None:
    """What it held isn't the stream's, whether the topic is in it from the beginning or not."""
    other, topic = dledger_group.topic(), dledger_group.topic(3)
    for queue_id in range(3):
        fill(dledger_group.addresses, topic, queue_id, BODIES[:3])
    resized(dledger_group, topic, 1)
    stream = stream_of(dledger_group, f"{other},{topic}")
    at = through_json(stream.initialOffset())
    if is_named_later:
        del at[topic]
    end = through_json(stream.latestOffset(at, ALL))
    assert [row["body"] for row in rows_of(stream, stream.partitions(at, end))] == BODIES[:3]
    assert stream.latestOffset(end, ALL) == end
    resized(dledger_group, topic, 3)
    fill(dledger_group.addresses, topic, 2, [b"new"])
    at, end = end, through_json(stream.latestOffset(end, ALL))
    assert end[topic]["offsets"] == [3, 3, 4]
    assert [row["body"] for row in rows_of(stream, stream.partitions(at, end))] == [b"new"]
    stream.stop()


def test_queue_that_comes_while_its_end_is_asked_for_is_read_from_its_first_message(
    dledger_group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives: where it ends by then isn't where it went, and nothing of it was anybody else's."""
    topic = dledger_group.topic(2)
    stream = stream_of(dledger_group, topic)
    start = through_json(stream.initialOffset())
    stream.stop()
    stream = stream_of(dledger_group, topic)
    call, once = Brokers._call, [3]

    def called(self: Brokers, method: Any, request: Any, effect: Any) -> Any:
        if method == GET_QUEUE_OFFSETS and once:
            resized(dledger_group, topic, once.pop())
            fill(dledger_group.addresses, topic, 2, BODIES[:5])
        return call(self, method, request, effect)

    monkeypatch.setattr(Brokers, "_call", called)
    end = through_json(stream.latestOffset(start, ALL))
    assert end[topic]["offsets"] == [0, 0, 5]
    assert [row["body"] for row in rows_of(stream, stream.partitions(start, end))] == BODIES[:5]
    stream.stop()


def test_topic_whose_queues_never_stay_is_waited_for_no_longer_than_for_a_call(
    dledger_group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is guessed."""
    topic = dledger_group.topic(1)
    stream = stream_of(dledger_group, topic, timeoutSeconds="60")
    ask, queues, seconds = Brokers.topic, itertools.count(1), itertools.count(step=25)

    def asked(self: Brokers, name: str) -> Topic | None:
        found = ask(self, name)
        return found and replace(found, changed=next(queues))

    monkeypatch.setattr(Brokers, "topic", asked)
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("dledger.spark.brokers.time", clock)
    with pytest.raises(DeadlineExceeded, match="had other queues at each look"):
        stream.initialOffset()
    assert next(queues) == 5
    stream.stop()


def test_batch_that_a_release_before_planned_with_fewer_queues_is_repeated() -> None:
    """The checkpoint holds its end, and every start of the query plans it again."""
    start = {"T": {"incarnation": 1, "created": 2, "offsets": [5, 6, 7, 8]}}
    end = {"T": {"incarnation": 1, "created": 2, "offsets": [9, 6]}}
    assert [(part.queue_id, part.start, part.end) for part in ranges_between(start, end, "T")] == [
        (0, 5, 9)
    ]


@given(
    queues=st.lists(st.integers(0, 9), max_size=5),
    later=st.lists(st.integers(0, 9), max_size=5),
    read=st.integers(0, 5),
    most=st.integers(1, 20),
)
def test_every_two_offsets_of_a_topic_make_a_batch(
    queues: list[int], later: list[int], read: int, most: int
) -> None:
    """However many queues there were and are: nothing of a queue twice, none beyond its end."""
    start: Offsets = {"T": {"incarnation": 1, "created": 2, "offsets": queues}}
    begins = {str(at): later[at] for at in range(min(read, len(later)), len(later))}
    ends: Offsets = {"T": {"incarnation": 1, "created": 2, "offsets": later, "begins": begins}}
    end: Offsets = {"T": continued(start, ends, "T")}
    for wanted in (end, limited(start, end, most)):
        for part in ranges_between(start, wanted, "T"):
            known = queues[part.queue_id] if part.queue_id < len(queues) else 0
            assert known <= part.start < part.end <= later[part.queue_id]

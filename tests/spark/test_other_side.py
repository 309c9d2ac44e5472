"""What a source takes for granted of brokers and checkpoints, and what it does where that is wrong.

Nothing here is silent: rows are missing, twice or somebody else's with an error that says so, or
because the user has said that they may be (`failOnDataLoss` false).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from dledger.client.blocking import BlockingClient
from dledger.client.connection import PULL
from dledger.client.errors import DeadlineExceeded, ServerError
from dledger.spark import BadOption
from dledger.spark.brokers import Brokers
from dledger.spark.errors import DataLost
from dledger.spark.following import Offsets
from dledger.testing import BlockingFakeGroup, BrokerGroup
from dledger.wire import broker_pb2 as pb
from tests.spark.group import fill, renewed, rows_of, source
from tests.spark.test_following import stream_of, through_json

BODIES = [f"m{number}".encode() for number in range(10)]
ALL = ReadAllAvailable()


def answering(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pb.PullResponse], None], times: int = 1
) -> list[int]:
    """The next pulls are answered with what `change` makes of the answer; a number for each."""
    call = Brokers._call
    changed: list[int] = []

    def called(self: Brokers, method: Any, request: Any, effect: Any) -> Any:
        answer = call(self, method, request, effect)
        if method == PULL and len(changed) < times:
            changed.append(answer.count)
            change(answer)
        return answer

    monkeypatch.setattr(Brokers, "_call", called)
    return changed


def nothing_yet(answer: pb.PullResponse) -> None:
    """As a leader says that was voted out and has heard nothing of what came since."""
    answer.next_offset -= answer.count
    answer.max_offset = answer.next_offset
    answer.count, answer.records = 0, b""


@pytest.mark.parametrize("fails", ["true", "false"])
def test_former_leader_that_has_nothing_yet_is_no_loss(
    dledger_group: BrokerGroup, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range was planned with its successor: it is asked again, and no message is passed over,
    even where the user would have it so if it were gone."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    reader = source(dledger_group.addresses, topic, failOnDataLoss=fails).reader(None)
    changed = answering(monkeypatch, nothing_yet, times=3)
    assert [row["body"] for row in rows_of(reader)] == BODIES
    assert len(changed) == 3


def test_leader_that_never_has_what_there_is_ends_the_task(
    dledger_group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In time, and not as messages that are lost."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    reader = source(dledger_group.addresses, topic, timeoutSeconds="0.3").reader(None)
    answering(monkeypatch, nothing_yet, times=10_000)
    with pytest.raises(DeadlineExceeded, match=f"nobody gives offset 0 of {topic}/0"):
        rows_of(reader)


@pytest.mark.parametrize(
    ("field", "by"),
    [("count", 1), ("next_offset", 1), ("next_offset", -1), ("topic_incarnation", 1)],
)
def test_answer_to_another_question_is_refused(
    dledger_group: BrokerGroup, field: str, by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than was asked for, a gap behind it, a place that doesn't move, another topic."""

    def change(answer: pb.PullResponse) -> None:
        setattr(answer, field, getattr(answer, field) + by)

    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    reader = source(dledger_group.addresses, topic, failOnDataLoss="false").reader(None)
    answering(monkeypatch, change)
    with pytest.raises(ServerError, match="asked for 10 from 0 on, a node answers"):
        rows_of(reader)


def test_log_that_begins_later_is_read_from_there_or_is_an_error() -> None:
    """Retention: what was named or planned and is kept no longer is lost, `earliest` never is."""
    with BlockingFakeGroup() as group:
        topic = group.topic()
        fill(group.addresses, topic, 0, BODIES)
        strict = source(group.addresses, topic).reader(None)
        early = stream_of(group, topic)  # type: ignore[arg-type]  # It has addresses, too.
        start = early.initialOffset()
        planned = strict.partitions()
        group._group.model.topics[topic][0].min_offset = 4
        kept = BODIES[4:]
        assert [row["body"] for row in rows_of(strict)] == kept
        with pytest.raises(DataLost, match=f"messages 0 to 10 of {topic}/0 "):
            rows_of(strict, planned)
        told = f'{{"{topic}": {{"0": 2}}}}'
        named = source(group.addresses, topic, startingOffsets=told).reader(None)
        with pytest.raises(DataLost, match=r"messages 2 to 4 of .* are kept no longer"):
            named.partitions()
        lenient = source(group.addresses, topic, failOnDataLoss="false").reader(None)
        assert [row["body"] for row in rows_of(lenient, planned)] == kept
        # A stream that was behind, and one to which the topic is new.
        for before in (start, {}):
            end = early.latestOffset(before, ALL)
            with pytest.raises(DataLost, match="messages 0 to 10"):
                rows_of(early, early.partitions(before, end))
        early.stop()


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(3)])
def test_queue_that_ends_before_what_was_read_is_a_loss(
    dledger_group: BrokerGroup, limit: Any
) -> None:
    """Its offsets will be given to other messages, which nobody would read: a stream that waited
    for the end to come by again would pass over them."""
    topic = dledger_group.topic(2)
    for queue_id in (0, 1):
        fill(dledger_group.addresses, topic, queue_id, BODIES)
    strict = stream_of(dledger_group, topic)
    lenient = stream_of(dledger_group, topic, failOnDataLoss="false")
    at = strict.latestOffset(strict.initialOffset(), ALL)
    at[topic]["offsets"] = [14, 4]  # As it would be, had the group four messages more before.
    with pytest.raises(DataLost, match=f"{topic}/0 ends at 10, and this stream has read up to 14"):
        strict.latestOffset(at, limit)
    fill(dledger_group.addresses, topic, 1, [b"last"])
    found, end = [], lenient.latestOffset(at, limit)
    while end != at:
        found += rows_of(lenient, lenient.partitions(at, end))
        at, end = end, lenient.latestOffset(end, limit)
    assert [row["body"] for row in found] == [*BODIES[4:], b"last"]
    fill(dledger_group.addresses, topic, 0, [b"other"])
    end = lenient.latestOffset(at, limit)
    assert [row["body"] for row in rows_of(lenient, lenient.partitions(at, end))] == [b"other"]
    strict.stop()
    lenient.stop()


def test_checkpoint_of_another_broker_group_is_noticed(dledger_group: BrokerGroup) -> None:
    """Groups that began alike have topics of one name and incarnation. What tells them apart is
    when they were made: at the next batch, and in one of the checkpoint that is done again."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    strict = stream_of(dledger_group, topic)
    lenient = stream_of(dledger_group, topic, failOnDataLoss="false")
    start = strict.initialOffset()
    at = through_json(strict.latestOffset(start, ReadMaxRows(4)))
    for offsets in (start, at):
        offsets[topic]["created"] -= 1
    with pytest.raises(DataLost, match="the checkpoint is of another broker group"):
        strict.latestOffset(at, ALL)
    with pytest.raises(DataLost, match=r"messages 0 to 4 .* or is another broker group's"):
        rows_of(strict, strict.partitions(start, at))
    assert rows_of(lenient, lenient.partitions(start, at)) == []
    end = lenient.latestOffset(at, ALL)
    assert [row["body"] for row in rows_of(lenient, lenient.partitions(at, end))] == BODIES
    strict.stop()
    lenient.stop()


def test_topic_made_anew_between_two_answers_is_lost_in_the_middle(
    dledger_group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one message of the new one, and the place where the old one ended is said."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    reader = source(dledger_group.addresses, topic).reader(None)
    monkeypatch.setattr("dledger.spark.brokers.PULL_MESSAGES", 4)

    def renew(answer: pb.PullResponse) -> None:
        renewed(dledger_group.addresses, topic)
        fill(dledger_group.addresses, topic, 0, BODIES)

    answering(monkeypatch, renew)
    with pytest.raises(DataLost, match=f"messages 4 to 10 of {topic}/0 "):
        rows_of(reader)


def test_range_of_a_topic_of_the_same_incarnation_elsewhere_is_refused(
    dledger_group: BrokerGroup,
) -> None:
    """A batch planned with one group and read from another, where addresses were mixed."""
    topic = dledger_group.topic()
    fill(dledger_group.addresses, topic, 0, BODIES)
    reader = source(dledger_group.addresses, topic).reader(None)
    (part,) = reader.partitions()
    elsewhere = InputPartition(replace(part.value, created_ms=part.value.created_ms + 1))
    with pytest.raises(DataLost, match="another broker group's"):
        rows_of(reader, [elsewhere])


@pytest.mark.parametrize(
    "offsets",
    [
        {"offset": 4096},  # a replica's files
        {"T": {"0": 23}},  # Kafka's
        {"T": {"incarnation": 1, "offsets": [3]}},
        {"T": {"incarnation": 1, "created": 1, "offsets": [-1]}},
        {"T": {"incarnation": 1, "created": 1, "offsets": [True]}},
        {"T": {"incarnation": 1, "created": 1, "offsets": {"0": 3}}},
        {"T": {"incarnation": 1, "created": 1, "offsets": [1 << 63]}},
    ],
)
def test_checkpoint_of_another_source_is_refused(
    dledger_group: BrokerGroup, offsets: Offsets
) -> None:
    """By name, before any node is asked and before a range is planned of it."""
    with BlockingClient.connect(dledger_group.addresses):
        stream = stream_of(dledger_group, "T")
        with pytest.raises(BadOption, match="checkpointLocation holds another source's offsets"):
            stream.latestOffset(offsets, ALL)
        with pytest.raises(BadOption, match="checkpointLocation holds another source's offsets"):
            stream.partitions({}, offsets)
        stream.stop()

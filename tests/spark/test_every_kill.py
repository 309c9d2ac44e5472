"""A driver is killed at each call to a broker in turn, and what it wrote is what it read.

Spark's part is played by a dozen lines, in Spark's order: the offsets of a batch are in the
checkpoint before its tasks run, the batch is committed there when all have told, and whoever comes
next does the last batch again if it isn't. What is real is the source and the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
from pyspark.sql.streaming.datasource import ReadMaxRows

from dledger.spark import following, sink, topics
from dledger.spark.brokers import Access, Brokers
from dledger.spark.following import Offsets, TopicsStream
from dledger.spark.sink import Writing, Written, commit_batch, write_task
from dledger.testing import BlockingFakeGroup
from tests.spark.group import fill, source
from tests.spark.test_following import through_json

QUEUES, MESSAGES, BATCH = 2, 3, 4  # of each queue; of a batch
EVERY = 9  # kills at one of so many calls, each time begun elsewhere


class Killed(BaseException):
    """The driver is gone, with all its tasks."""


@dataclass
class Checkpoint:
    """What outlives a driver."""

    offsets: list[Offsets] = field(default_factory=list)
    committed: int = 0


@dataclass
class Stream:
    """From one topic to another; `calls` counts what is asked of brokers."""

    group: BlockingFakeGroup
    one: str
    other: str
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    def run(self) -> None:
        """As far as there is something to read."""
        made = source(
            self.group.addresses,
            self.one,
            startingOffsets="earliest",
            columns="queue_id,keys,body",
        ).streamReader(None)
        kept = self.checkpoint
        while True:
            start = kept.offsets[kept.committed - 1] if kept.committed else made.initialOffset()
            if len(kept.offsets) == kept.committed:
                end = through_json(made.latestOffset(start, ReadMaxRows(BATCH)))
                if end == start:
                    return
                kept.offsets.append(end)
            self._batch(made, start, kept.offsets[-1])
            kept.committed += 1

    def _batch(self, made: TopicsStream, start: Offsets, end: Offsets) -> None:
        access = Access.of({"bootstrap": self.group.addresses})
        writing = Writing(access, self.other, "spark-q", self.checkpoint.committed, "rows")
        told: list[Written] = [
            write_task(writing, number, made.read(part))
            for number, part in enumerate(made.partitions(start, end))
        ]
        commit_batch(told)


class Line:
    """The way to the brokers, one for all; cut at the calls with these numbers, counted from 0, on
    the way there or on the way back."""

    def __init__(self) -> None:
        self.calls = 0
        self.cuts: dict[int, bool] = {}  # by number: whether on the way there

    def call(self, brokers: Brokers, ask: Callable[..., Any], *asked: Any) -> Any:
        """The answer, if nothing is cut."""
        number, self.calls = self.calls, self.calls + 1
        if self.cuts.get(number) is True:
            raise Killed
        answer = ask(brokers, *asked)
        if self.cuts.get(number) is False:
            raise Killed
        return answer


class _Borrowed:
    """A connection that stays open for whoever wants it next."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def __enter__(self) -> Brokers:
        return self._brokers

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, group: BlockingFakeGroup) -> Iterator[Line]:
    """In place of a connection for each task, which only takes time."""
    made, ask = Line(), Brokers._call
    with Brokers(Access.of({"bootstrap": group.addresses})) as brokers:
        monkeypatch.setattr(Brokers, "_call", lambda self, *asked: made.call(self, ask, *asked))
        for module in (following, sink, topics):
            monkeypatch.setattr(module, "Brokers", lambda _: _Borrowed(brokers))
        yield made


def new_stream(group: BlockingFakeGroup) -> Stream:
    one, other = group.topic(QUEUES), group.topic(QUEUES)
    for queue_id in range(QUEUES):
        fill(group.addresses, one, queue_id, [b"%d" % number for number in range(MESSAGES)])
    group._group.model.forget()
    group._group.model.topics.pop("spark-q-progress", None)
    return Stream(group, one, other)


def drive(stream: Stream) -> int:
    """Drivers, one after the other, until one ends; how many were killed."""
    for killed in range(100):
        try:
            stream.run()
        except Killed:
            continue
        for queue_id in range(QUEUES):
            wanted = stream.group.bodies(stream.one, queue_id)
            assert stream.group.bodies(stream.other, queue_id) == wanted
        return killed
    raise AssertionError("no driver ends")


@pytest.fixture
def group() -> Iterator[BlockingFakeGroup]:
    with BlockingFakeGroup() as made:
        yield made


@pytest.mark.parametrize("on_the_way_there", [True, False])
def test_driver_killed_at_any_call_is_followed_by_one_that_ends_it(
    group: BlockingFakeGroup, line: Line, on_the_way_there: bool
) -> None:
    """Once each: before what was asked is done, and behind it. Which calls are left out is another
    one for the two."""
    stream = new_stream(group)
    line.calls = 0
    assert drive(stream) == 0
    calls = line.calls
    assert calls > 30
    for number in range(on_the_way_there, calls, EVERY):
        stream = new_stream(group)
        line.calls, line.cuts = 0, {number: on_the_way_there}
        assert drive(stream) == 1
    assert stream.checkpoint.committed == 2


@pytest.mark.parametrize("seed", range(6))
def test_drivers_killed_again_and_again(group: BlockingFakeGroup, line: Line, seed: int) -> None:
    """At nine calls anywhere, on either way; with answers that are lost besides."""
    random = Random(seed)
    stream = new_stream(group)
    line.calls = 0
    line.cuts = {random.randrange(90): random.random() < 0.5 for _ in range(9)}
    group.lose_answer("Send", times=random.randrange(4))
    assert drive(stream) > 0

"""Topics read over the network: what a query is planned as, and what a task pulls.

A *range* is `[start, end)` of one queue of one topic's incarnation, and nothing else: whoever reads
it, at whichever leader, reads the same messages or an error. So a batch that is repeated is the
same batch, and leaders may change in between. A task looks once whether the topic is the one that
was planned, and at every answer whether it is what was asked for: what isn't there is an error or,
if that was asked for, left out; something else in its place is always an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from dledger.client.errors import OffsetOutOfRange, QueueNotFound, TopicNotFound, TopicReplaced
from dledger.reading.arrow import to_arrow
from dledger.reading.decode import Pulled, decode_pulled
from dledger.spark.brokers import Access, Brokers, Topic
from dledger.spark.edges import Edge, resolved
from dledger.spark.errors import DataLost
from dledger.spark.filters import FAR, Narrowed

if TYPE_CHECKING:
    import pyarrow

DEFAULT_RANGE: Final = 1_000_000  # messages; a task each


@dataclass(frozen=True, slots=True)
class Reading:
    """What all readers of one table share.

    Attributes:
        max_range: messages that one task reads at most.
    """

    access: Access
    topics: tuple[str, ...]
    columns: tuple[str, ...]
    max_range: int = DEFAULT_RANGE
    fails_on_loss: bool = True


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages `[start, end)` of one queue of the topic that was made as `incarnation`, then."""

    topic: str
    incarnation: int
    created_ms: int
    queue_id: int
    start: int
    end: int

    def cut(self, most: int) -> Iterator[QueueRange]:
        """The range in pieces of `most` messages, the last one shorter."""
        for start in range(self.start, self.end, most):
            yield replace(self, start=start, end=min(start + most, self.end))


class TopicsReader(DataSourceReader):
    """Reads between two edges, which are looked up when the query is planned."""

    def __init__(self, reading: Reading, starting: Edge, ending: Edge) -> None:
        self._reading = reading
        self._starting = starting
        self._ending = ending
        self.narrowed = Narrowed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Reads no more ranges than the filters need; Spark applies all of them again."""
        for each in filters:
            self.narrowed = self.narrowed.by(each)
            yield each

    def partitions(self) -> Sequence[InputPartition]:
        with Brokers(self._reading.access) as brokers:
            ranges = [
                part
                for name in self._reading.topics
                if self.narrowed.topics is None or name in self.narrowed.topics
                for whole in self._ranges(brokers, name)
                for part in whole.cut(self._reading.max_range)
            ]
        return [InputPartition(part) for part in ranges]

    def _ranges(self, brokers: Brokers, name: str) -> Iterator[QueueRange]:
        topic = brokers.topic(name)
        if topic is None:
            raise DataLost(f"there is no topic {name!r} (topics)")
        strict = self._reading.fails_on_loss
        starts = resolved(self._starting, topic, brokers.offset_by_time, fails_on_loss=strict)
        ends = resolved(self._ending, topic, brokers.offset_by_time, fails_on_loss=False)
        for queue_id, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if self.narrowed.queues is None or queue_id in self.narrowed.queues:
                low, high = self._of_filters(brokers, topic, queue_id)
                both = max(start, low), min(end, high)
                yield QueueRange(name, topic.incarnation, topic.created_ms, queue_id, *both)

    def _of_filters(self, brokers: Brokers, topic: Topic, queue_id: int) -> tuple[int, int]:
        """The offsets that filters leave. Store times don't go back within a queue."""
        low, high = self.narrowed.offsets
        from_ms, until_ms = self.narrowed.times_ms
        if from_ms > 0:
            low = max(low, brokers.offset_by_time(topic, queue_id, from_ms))
        if until_ms < FAR:
            high = min(high, brokers.offset_by_time(topic, queue_id, max(until_ms, 0)))
        return low, high

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if partition.value is None:  # Where nothing is planned, Spark makes a task of that.
            return iter(())
        return read_range(self._reading, partition.value)


def read_range(reading: Reading, part: QueueRange) -> Iterator[pyarrow.RecordBatch]:
    """The messages of the range, an answer at a time.

    Raises:
        DataLost: not all of them are there any more.
        InvalidRecord: other messages were answered than those that were asked for.
        ClientError: the brokers could not be asked.
    """
    at = part.start
    with Brokers(reading.access) as brokers:
        while at < part.end:
            try:
                if at == part.start:
                    _check_planned(brokers, part)
                answer = brokers.pull(
                    part.topic, part.incarnation, part.queue_id, at, part.end - at
                )
            except (TopicNotFound, TopicReplaced, QueueNotFound, OffsetOutOfRange) as error:
                if reading.fails_on_loss:
                    raise _lost(replace(part, start=at), error.message) from error
                kept = _first_kept(brokers, part)
                at = kept if kept > at else part.end
                continue
            first = at + answer.void_count
            asked = Pulled(part.topic, part.incarnation, part.queue_id, first)
            yield from to_arrow(decode_pulled(answer.records, answer.count, asked, reading.columns))
            at = answer.next_offset


def _check_planned(brokers: Brokers, part: QueueRange) -> None:
    """The topic is the one that was planned. Of another broker group's, which a list of addresses
    or a checkpoint may lead to by mistake, the incarnation alone could be the same."""
    topic = brokers.topic(part.topic)
    if topic is None:
        raise TopicNotFound(f"there is no topic {part.topic!r}")
    if (topic.incarnation, topic.created_ms) != (part.incarnation, part.created_ms):
        raise TopicReplaced(
            f"topic {part.topic!r} was deleted and made anew, or is another broker group's"
        )


def _first_kept(brokers: Brokers, part: QueueRange) -> int:
    """Where the range goes on, at the earliest; its end if its topic is gone."""
    topic = brokers.topic(part.topic)
    if topic is None or (topic.incarnation, topic.created_ms) != (
        part.incarnation,
        part.created_ms,
    ):
        return part.end
    return topic.bounds[part.queue_id][0] if part.queue_id < len(topic.bounds) else part.end


def _lost(part: QueueRange, reason: str) -> DataLost:
    place = f"{part.topic}/{part.queue_id} (incarnation {part.incarnation})"
    return DataLost(f"messages {part.start} to {part.end} of {place} can't be read: {reason}")

"""The delivery audit as a distributed job: everything is read once and shuffled to its queue.

    histories, by ranges of bytes -> events -> shuffle by (file, operation) -> operations --+
                                                                                            |
    log, by segments -> messages -----------------------------------------------------------+
                                                                                            |
    counts and anomalies <- judged, one queue after the other <- shuffle by (topic, queue) <+

Both shuffles sort within their partitions, so that a task holds one operation, or one queue, at a
time, and Spark's sort spills to disk: memory is that of the largest queue, whatever all of them
are. Rows are a key, a place and a payload. Bad lines and damaged segments travel as rows too: an
error raised on an executor would come back as the cluster's. Tasks run anywhere, so histories and
log must be readable wherever there are executors.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from audit.delivery.history import (
    WHOLE,
    Operations,
    Polled,
    QueueKey,
    QueueStory,
    Sent,
    Story,
    told_then,
)
from audit.delivery.judge import LoggedQueue, sent_twice
from audit.delivery.judged import DeliveryTask, Judged, QueueStarts, payload_of, value_of
from audit.engines.engine import Progress
from dledger.history import event_of
from dledger.reading.decode import LogRange, Wanted, read_records
from dledger.reading.errors import ReadingError
from dledger.records.errors import BadEvent, FormatError, HistoryCorrupt

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from audit.engines.spark import SparkEngine

RANGE_BYTES: Final = 32 << 20  # Of a history, that one task reads.
BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 8 << 20
_COLUMNS: Final = ("topic", "queue_id", "queue_offset", "index", "body")
_LOG, _STORY = 0, 1  # Sources of rows: a queue's log comes before its story.
_ROW: Final = "key string, source int, file int, at long, payload binary"
_ORDER: Final = ("key", "source", "file", "at")
_BATCHES: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
}

T = TypeVar("T")


class Row(NamedTuple):
    """A row of either shuffle.

    Attributes:
        key: None: it concerns no operation or queue, and `payload` says what is wrong with a line
            or a segment, or is a pickled `Summary`.
        file: the number of a history; of a message, that of its topic among those of the name.
        at: the byte of a history's line, or the queue offset of a message.
    """

    key: str | None
    source: int
    file: int
    at: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """The lines of history number `file` that begin in its bytes `[start, end)`. `told`: how large
    it was before the log was asked for its end."""

    file: int
    path: str
    start: int
    end: int
    told: int = WHOLE


@dataclass(slots=True)
class Summary:
    """What some operations say beside what they say of queues. `mistake`: the first line that
    can't be used, as file, byte, reason."""

    operations: int = 0
    topics: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    deleted_later: set[str] = field(default_factory=set)
    mistake: tuple[int, int, str] | None = None

    def complain(self, file: int, at: int, reason: str) -> None:
        """A line can't be used."""
        told = (file, at, reason)
        self.mistake = told if self.mistake is None else min(self.mistake, told)


def judge_on_spark(
    task: DeliveryTask, partitions: int, engine: SparkEngine, progress: Progress
) -> list[Judged]:
    """The anomalies of all queues. The first value tells of the histories and has no queues.

    Args:
        partitions: how many to shuffle into.

    Raises:
        EngineFailed: the cluster failed.
    """
    from pyspark import StorageLevel

    with engine.jobs() as session, _small_batches(session):
        parts = history_ranges(task.histories, ends=task.ends)
        events = _generated(session, parts, read_events)
        by_operation = events.repartition(partitions, "key").sortWithinPartitions(*_ORDER)
        operations = _mapped(by_operation, join_events).persist(StorageLevel.DISK_ONLY)
        try:
            judged = _judge(session, task, partitions, operations)
        finally:
            operations.unpersist()
    progress(task.weight)
    return judged


def _judge(
    session: SparkSession, task: DeliveryTask, partitions: int, operations: DataFrame
) -> list[Judged]:
    summaries: list[Summary] = _unpickled(operations.where("key is null"))
    later = set[str]().union(*(each.deleted_later for each in summaries)) & task.ended
    told = Judged(
        deleted=tuple(sorted(later.union(*(each.deleted for each in summaries)))),
        operations=sum(each.operations for each in summaries),
    )
    mistakes = [each.mistake for each in summaries if each.mistake is not None]
    if mistakes:
        told.mistake = _as_a_person_counts(task.histories, *min(mistakes))
        return [told]
    topics = frozenset(set().union(*(each.topics for each in summaries)) - set(told.deleted))
    wanted = Wanted(_COLUMNS, topics, left_out=task.left_out)
    messages = _generated(session, task.parts, MessageReader(wanted, task.starts))
    by_queue = operations.where("key is not null").union(messages).repartition(partitions, "key")
    judge = QueueJudge(task.starts, task.tail_is_known, topics)
    judged = _mapped(by_queue.sortWithinPartitions(*_ORDER), judge)
    return [told, *_unpickled(judged)]


# --- what tasks do ----------------------------------------------------------------------------


def history_ranges(
    paths: Sequence[str], range_bytes: int = RANGE_BYTES, *, ends: Sequence[int] = ()
) -> list[HistoryRange]:
    """Ranges that together hold each line of each file once."""
    found = []
    for number, path in enumerate(paths):
        with open(path, "rb") as file:
            size = file.seek(0, 2)
        for start in range(0, size, range_bytes):
            end, told = min(start + range_bytes, size), ends[number] if ends else WHOLE
            found.append(HistoryRange(number, path, start, end, told))
    return found


def read_events(part: HistoryRange) -> Iterator[Row]:
    """The lines that begin in the range, keyed by file and operation."""
    try:
        with open(part.path, "rb") as file:
            if part.start:
                # A line across the start belongs to the range that it begins in.
                file.seek(part.start - 1)
                file.readline()
            at = file.tell()
            while at < part.end:
                line = file.readline()
                is_later = at + len(line) > part.told
                if is_later and not line.endswith(b"\n"):
                    return  # It is being written.
                yield _event_row(part.file, at, line, is_later=is_later)
                at += len(line)
    except OSError as error:
        yield Row(None, _STORY, part.file, part.start, str(error).encode())


def _event_row(file: int, at: int, line: bytes, *, is_later: bool) -> Row:
    try:
        event = event_of(line)
        then = told_then(event, is_later=is_later)
        if then != event and then.outcome is None:
            line = json.dumps(dict(then.fields)).encode() + b"\n"
        elif then != event and then.outcome is not None:
            line = json.dumps({"event": then.outcome.value, "op": then.op}).encode() + b"\n"
        return Row(f"{file}/{event.op}", _STORY, file, at, line)
    except BadEvent as error:
        return Row(None, _STORY, file, at, str(error).encode(errors="replace"))


def join_events(rows: Iterator[Row]) -> Iterator[Row]:
    """What operations say of queues, keyed by queue, at the byte of their invocation; then a
    summary without a key.

    Args:
        rows: events; those of one operation lie together, in the order of their file.
    """
    summary = Summary()
    key: str | None = None
    under_way: _Operation | None = None
    for row in rows:
        if row.key is None:
            summary.complain(row.file, row.at, row.payload.decode())
            continue
        if under_way is not None and row.key != key:
            yield from under_way.end(summary)
            under_way = None
        key, under_way = row.key, under_way or _Operation(row)
        if under_way.take(row, summary):
            yield from under_way.end(summary)
            under_way = None  # Its number may be used again.
    if under_way is not None:
        yield from under_way.end(summary)
    yield Row(None, _STORY, 0, 0, pickle.dumps(summary))


class _Operation:
    """One operation, from its first event on."""

    def __init__(self, first: Row) -> None:
        self._place = (first.file, first.at)
        self._story = Story()
        self._events = Operations(self._story, first.file, lambda queue: True)

    def take(self, row: Row, summary: Summary) -> bool:
        """Whether it is over with this event."""
        event = event_of(row.payload)
        try:
            self._events.take(event)
        except BadEvent as error:
            summary.complain(row.file, row.at, str(error))
        return event.outcome is not None

    def end(self, summary: Summary) -> Iterator[Row]:
        """What it says of its queue; the summary knows the rest."""
        self._events.end()
        summary.operations += self._story.operations
        summary.topics |= self._story.topics
        summary.deleted |= self._story.deleted
        summary.deleted_later |= self._story.deleted_later
        for queue, said in self._story.queues.items():
            for what in (*said.sends, *said.polls):
                yield Row(key_of(queue), _STORY, *self._place, pickle.dumps(what))


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads the wanted messages of a part of the log, keyed by queue."""

    wanted: Wanted
    starts: QueueStarts

    def __call__(self, part: LogRange) -> Iterator[Row]:
        keys: dict[tuple[str, int], str] = {}
        try:
            for records in read_records(part, self.wanted):
                columns: Any = [records.columns[name] for name in _COLUMNS]
                for topic, queue_id, offset, index, body in zip(*columns, strict=True):
                    place = (topic, int(queue_id))
                    key = keys.get(place) or keys.setdefault(place, key_of(place))
                    life = self.starts.life_of(topic, int(index))
                    yield Row(key, _LOG, life, int(offset), payload_of(body))
        except (ReadingError, FormatError, OSError) as error:
            yield Row(None, _LOG, 0, part.start, str(error).encode())


@dataclass(frozen=True, slots=True)
class QueueJudge:
    """Judges the queues of `topics`, of which it sees one after the other."""

    starts: QueueStarts
    tail_is_known: bool
    topics: frozenset[str]

    def __call__(self, rows: Iterator[Row]) -> Iterator[Row]:
        judged = Judged()
        key: str | None = None
        log, story = LoggedQueue(), QueueStory()
        for row in rows:
            if row.key is None:
                judged.damage = judged.damage or row.payload.decode()
                continue
            if row.key != key:
                self._judge(judged, key, log, story)
                key, log, story = row.key, self._log_of(row.key), QueueStory()
            if row.source == _LOG:
                log.life(row.file).add(row.at, value_of(row.payload))
            else:
                _tell(story, pickle.loads(row.payload))
        self._judge(judged, key, log, story)
        yield Row(None, _LOG, 0, 0, pickle.dumps(judged))

    def _log_of(self, key: str) -> LoggedQueue:
        return self.starts.log_of(_queue_of(key), tail_is_known=self.tail_is_known)

    def _judge(self, judged: Judged, key: str | None, log: LoggedQueue, story: QueueStory) -> None:
        if key is None:
            return
        queue = _queue_of(key)
        if queue[0] not in self.topics:
            return
        if mistake := sent_twice(queue, story):
            judged.complain(mistake)
        judged.judge(queue, log, story)


def key_of(queue: QueueKey) -> str:
    """The queue as a shuffle's key: ASCII, whatever characters a history calls a topic by."""
    return json.dumps(queue)


def _queue_of(key: str) -> QueueKey:
    topic, queue_id = json.loads(key)
    return topic, queue_id


def _tell(story: QueueStory, what: Sent | Polled) -> None:
    match what:
        case Sent():
            story.sends.append(what)
        case Polled():
            story.polls.append(what)


def _as_a_person_counts(paths: Sequence[str], file: int, at: int, reason: str) -> str:
    """The complaint with the line instead of the byte, which no task knows alone."""
    lines, left = 1, at
    with open(paths[file], "rb") as content:
        while left > 0 and (chunk := content.read(min(left, 1 << 20))):
            lines, left = lines + chunk.count(b"\n"), left - len(chunk)
    return str(HistoryCorrupt(paths[file], lines, reason))


# --- rows in Arrow's batches ------------------------------------------------------------------


def _generated(
    session: SparkSession, parts: Sequence[T], read: Callable[[T], Iterator[Row]]
) -> DataFrame:
    """The rows that `read` makes of each part, a task a part."""
    plan = list(parts)

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for position in batch.column(0).to_pylist():
                yield from _in_batches(read(plan[position]))

    return session.range(0, len(plan), 1, max(len(plan), 1)).mapInArrow(run, _ROW)


def _mapped(frame: DataFrame, work: Callable[[Iterator[Row]], Iterator[Row]]) -> DataFrame:
    """The rows that `work` makes of each partition's."""

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        return _in_batches(work(_rows(batches)))

    return frame.mapInArrow(run, _ROW)


def _rows(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        yield from map(Row._make, zip(*columns, strict=True))


def _in_batches(rows: Iterator[Row]) -> Iterator[pyarrow.RecordBatch]:
    """Batches of `BATCH_ROWS` and about `BATCH_BYTES` at most."""
    gathered: list[Row] = []
    size = 0
    for row in rows:
        gathered.append(row)
        size += len(row.payload)
        if len(gathered) == BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(gathered)
            gathered, size = [], 0
    if gathered:
        yield _batch(gathered)


def _batch(rows: Sequence[Row]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    types = (pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.binary())
    arrays = [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.record_batch(arrays, names=list(Row._fields))


def _unpickled(frame: DataFrame) -> list[Any]:
    """The values in the rows' payloads."""
    return [pickle.loads(each) for each in frame.select("payload").toArrow()["payload"].to_pylist()]


@contextmanager
def _small_batches(session: SparkSession) -> Iterator[None]:
    """Spark hands over batches as small as ours while this lasts: messages may be megabytes."""
    before = {name: session.conf.get(name) for name in _BATCHES}
    for name, value in _BATCHES.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)

"""The log as a table: `spark.read.format("commitlog").load("run/n1/data")`, and as a stream.

Options: `columns` (a comma-separated choice; Python sources are told of no column pruning, so it
must be asked for), `topics`, `fromTime` and `untilTime` (ms since the epoch), `bytesPerBatch` of
the stream. Equality on `topic` and comparisons on `store_time` are pushed down where the session
has `spark.sql.python.filterPushdown.enabled`.

A stream's offset is one byte position between entries, so a restart at any moment goes on exactly
where the last committed batch ended; a batch ends within one segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
)

from audit.arrow import SQL_TYPES, to_arrow
from audit.decode import COLUMNS, LogRange, Wanted, read_records
from audit.errors import UsageMistake
from audit.ranges import committed_log, entry_end_after, log_ranges
from audit.replica import Replica

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

DEFAULT_BATCH_BYTES: Final = 64 << 20
_SPLIT_BYTES: Final = 256 << 20


def register(session: SparkSession) -> None:
    """The session knows the format `commitlog` and pushes filters down to it."""
    session.dataSource.register(CommitLogSource)
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")


class CommitLogSource(DataSource):
    """One replica's committed messages."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> str:
        return ", ".join(f"{name} {SQL_TYPES[name]}" for name in _columns(self.options))

    def reader(self, schema: Any) -> CommitLogReader:
        return CommitLogReader(_path(self.options), _wanted(self.options))

    def streamReader(self, schema: Any) -> CommitLogStream:
        size = int(self.options.get("bytesPerBatch", DEFAULT_BATCH_BYTES))
        return CommitLogStream(_path(self.options), _wanted(self.options), size)


class CommitLogReader(DataSourceReader):
    """Reads what is committed when the query is planned, a task for some segments each."""

    def __init__(self, path: str, wanted: Wanted) -> None:
        self._path = path
        self.wanted = wanted

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes what whole entries can be chosen by; the rest is Spark's."""
        for each in filters:
            narrowed = _narrowed(self.wanted, each)
            if narrowed is None:
                yield each
            else:
                self.wanted = narrowed

    def partitions(self) -> Sequence[InputPartition]:
        log = committed_log(Replica("log", self._path))
        groups: list[list[LogRange]] = []
        size = 0
        for part in log_ranges(log, log.retained_from, log.settled):
            if not groups or size + part.end - part.start > _SPLIT_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += part.end - part.start
        return [InputPartition(group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return _read(partition.value, self.wanted)


class CommitLogStream(DataSourceStreamReader):
    """Follows the committed log of one replica."""

    def __init__(self, path: str, wanted: Wanted, batch_bytes: int) -> None:
        self._path = path
        self._wanted = wanted
        self._batch_bytes = batch_bytes

    def initialOffset(self) -> dict[str, int]:
        return {"offset": committed_log(Replica("log", self._path)).retained_from}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        """At most `bytesPerBatch` further (and one entry at least), whatever Spark would take:
        a batch's memory must not depend on how far behind a reader is."""
        log = committed_log(Replica("log", self._path))
        return {"offset": entry_end_after(log, start["offset"], self._batch_bytes)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if start["offset"] >= end["offset"]:
            return []
        log = committed_log(Replica("log", self._path))
        return [InputPartition([part]) for part in log_ranges(log, start["offset"], end["offset"])]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return _read(partition.value, self._wanted)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept here: the log stays as it is."""

    def stop(self) -> None:
        """Nothing is held open."""


def _read(parts: Sequence[LogRange], wanted: Wanted) -> Iterator[pyarrow.RecordBatch]:
    for part in parts:
        for records in read_records(part, wanted):
            yield to_arrow(records)


def _path(options: Mapping[str, str]) -> str:
    path = options.get("path")
    if not path:
        raise UsageMistake("no path given: load(PATH) of a data directory")
    return path


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    chosen = options.get("columns")
    if not chosen:
        return COLUMNS
    names = tuple(name.strip() for name in chosen.split(","))
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise UsageMistake(f"no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    return names


def _wanted(options: Mapping[str, str]) -> Wanted:
    topics = options.get("topics")
    first, last = options.get("fromTime"), options.get("untilTime")
    return Wanted(
        _columns(options),
        frozenset(topics.split(",")) if topics else None,
        int(first) if first else None,
        int(last) if last else None,
    )


def _narrowed(wanted: Wanted, given: Filter) -> Wanted | None:
    """`wanted` with the filter in it; None if Spark has to evaluate it."""
    match given:
        case EqualTo(("topic",), str(topic)):
            return _of_topics(wanted, {topic})
        case In(("topic",), topics):
            return _of_topics(wanted, set(topics))
        case GreaterThanOrEqual(("store_time",), datetime() as moment):
            first = max(_milliseconds(moment), wanted.from_ms or 0)
            return replace(wanted, from_ms=first)
        case LessThan(("store_time",), datetime() as moment):
            last = _milliseconds(moment)
            known = wanted.until_ms
            return replace(wanted, until_ms=last if known is None else min(last, known))
        case _:
            return None


def _of_topics(wanted: Wanted, topics: set[str]) -> Wanted:
    known = wanted.topics
    return replace(wanted, topics=frozenset(topics if known is None else topics & known))


def _milliseconds(moment: datetime) -> int:
    """Since the epoch, rounded up: store times are whole milliseconds."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    microseconds = round(aware.timestamp() * 1_000_000)
    return -(-microseconds // 1000)

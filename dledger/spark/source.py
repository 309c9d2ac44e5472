"""The log as a table: `spark.read.format("commitlog").load("run/n1/data")`, and as a stream.

Options: `columns` (a comma-separated choice; Python sources are told of no column pruning, so it
must be asked for), `topics`, `fromTime` and `untilTime` (ms since the epoch); of the stream
`bytesPerBatch`, `recordsPerBatch` and `failOnDataLoss`; `includeDeleted`, without which messages of
topics that were deleted since are left out; no others. Equality on `topic` and comparisons on
`store_time` are pushed down where the session has `spark.sql.python.filterPushdown.enabled`.

A stream's offset is one byte position between entries, so a restart at any moment goes on exactly
where the last committed batch ended. With it come the broker group's name and the running digest
there, by which a log is told from another one (`dledger.reading.places`); the release before said
the position alone, and is believed. Spark decides how much a batch may be: the source's own limit
as a rule, everything there is for `Trigger.Once`, and what there was at the start, a limited batch
at a time, for `Trigger.AvailableNow`. A limited batch ends within one segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
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
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dledger.reading.arrow import to_arrow
from dledger.reading.chunks import LogRange
from dledger.reading.decode import LeftOut, Wanted, read_records
from dledger.reading.errors import LogDamaged, OtherLog
from dledger.reading.places import (
    Place,
    check_same_log,
    check_same_range,
    first_place,
    gone_to,
    place_behind,
)
from dledger.reading.planned import check_planned, planned
from dledger.reading.ranges import entry_end_after, log_ranges, readable_log
from dledger.reading.survey import Survey, survey_folder
from dledger.spark import options as opt
from dledger.spark.catalog import schema_of, with_remembered
from dledger.spark.errors import BadOption
from dledger.spark.filters import whole_milliseconds

if TYPE_CHECKING:
    import pyarrow

    from dledger.reading.lifetimes import Lifetimes

Offset = dict[str, Any]  # what a `Place` says
DEFAULT_BATCH_BYTES: Final = 64 << 20
KNOWN: Final = (
    *("columns", "topics", "fromTime", "untilTime", "includeDeleted"),
    *("bytesPerBatch", "recordsPerBatch", "failOnDataLoss"),
)
_SPLIT_BYTES: Final = 256 << 20


class CommitLogSource(DataSource):
    """One replica's committed messages. Options of queries and streams may be in one list: a query
    passes over a stream's."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> StructType:
        opt.check_names(self.options, KNOWN)
        return schema_of(opt.columns(self.options), self.options)

    def reader(self, schema: Any) -> CommitLogReader:
        options = self._all_options(schema)
        leaves_out = not opt.is_true(options, "includeDeleted", "false")
        return CommitLogReader(_path(options), _wanted(options), leaves_out_deleted=leaves_out)

    def streamReader(self, schema: Any) -> CommitLogStream:
        options = self._all_options(schema)
        return CommitLogStream(
            _path(options),
            _wanted(options),
            _limit(options),
            fails_on_loss=opt.is_true(options, "failOnDataLoss"),
            leaves_out_deleted=not opt.is_true(options, "includeDeleted", "false"),
        )

    def _all_options(self, schema: Any) -> Mapping[str, str]:
        options = with_remembered(self.options, schema)
        opt.check_names(options, KNOWN)
        return options


class CommitLogReader(DataSourceReader):
    """Reads what is committed when the query is planned, a task for some segments each."""

    def __init__(self, path: str, wanted: Wanted, *, leaves_out_deleted: bool = True) -> None:
        self._path = path
        self.wanted = wanted
        self._leaves_out_deleted = leaves_out_deleted

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes what whole entries can be chosen by; the rest is Spark's."""
        for each in filters:
            narrowed = _narrowed(self.wanted, each)
            if narrowed is None:
                yield each
            else:
                self.wanted = narrowed

    def partitions(self) -> Sequence[InputPartition]:
        from dledger.reading.lifetimes import readable  # Executors may do without protobuf.

        log = _survey(self._path)
        log, left_out = readable(log, includes_deleted=not self._leaves_out_deleted)
        groups: list[list[LogRange]] = []
        size = 0
        for part in planned(log_ranges(log, log.retained_from, log.settled)):
            if not groups or size + part.end - part.start > _SPLIT_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += part.end - part.start
        return [InputPartition((group, left_out)) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return _read(partition.value, self.wanted)


class CommitLogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the committed log of one replica.

    Args:
        limit: of a batch, where the trigger sets no other.
        fails_on_loss: end with an error where retention was faster than this reader; else go on
            behind the gap.
        leaves_out_deleted: messages of topics that were deleted by the time a batch is planned.
    """

    def __init__(
        self,
        path: str,
        wanted: Wanted,
        limit: ReadLimit,
        *,
        fails_on_loss: bool = True,
        leaves_out_deleted: bool = True,
    ) -> None:
        self._path = path
        self._wanted = wanted
        self._limit = limit
        self._fails_on_loss = fails_on_loss
        self._lifetimes: Lifetimes | None = None
        self._leaves_out_deleted = leaves_out_deleted
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """It travels to executors with its `read`; ranges say what is left out there."""
        return self.__dict__ | {"_lifetimes": None}

    def initialOffset(self) -> Offset:
        return first_place(self._log()).told()

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._limit

    def prepareForTriggerAvailableNow(self) -> None:
        """What commits from now on is another run's."""
        self._target = self._readable().settled

    def reportLatestOffset(self) -> Offset:
        return {"offset": self._readable().settled}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """As far as `limit` lets a batch go, and one entry at least, if there is one.

        Raises:
            LogDamaged: retention has taken what comes next, or the log ends before it, or is
                damaged before the batch would end, or isn't one log up to there.
            OtherLog: it is another log than the one that was read.
        """
        whole, place = self._log(), Place.of(start)
        with _or_damaged(whole, place.offset):
            check_same_log(whole, place)
        self._check_reaches(whole, place.offset)
        lifetimes = self._followed(whole)
        log = lifetimes.cut(whole)
        if self._target is not None:
            log = replace(log, settled=min(log.settled, self._target))
        at = self._next(log, place.offset)
        match limit:
            case ReadMaxBytes(max_bytes):
                end = entry_end_after(log, at, max_bytes)
            case ReadMaxRows(max_rows):
                end = entry_end_after(log, at, log.settled, max_rows)
            case _:
                end = log.settled
        end = max(end, at)
        lifetimes.check_to(end)  # No offset is named that may be another log's.
        if end <= place.offset:
            return start  # Word for word, so that nothing is new.
        return place_behind(log, self._begin(log, place, at), end).told()

    def _begin(self, log: Survey, place: Place, at: int) -> Place:
        """Where a batch begins that was to begin at the place."""
        return place if at == place.offset else first_place(log)

    def _check_reaches(self, log: Survey, offset: int) -> None:
        """The log is durable up to the offset, as far as the user wants to know. It may be known
        committed to less for a moment: how far is derived anew where a replica lost its queues.

        Raises:
            LogDamaged: it isn't.
        """
        if self._fails_on_loss and max(log.end, log.settled) < offset:
            raise LogDamaged(
                f"the log at {self._path} ends at byte {log.end}, and this stream has read to "
                f"{offset}: it is another log, or has lost its end, or is a replica that isn't as "
                "far; failOnDataLoss=false waits until it is"
            )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """A task a segment. The end was known committed when it was named, and still is.

        Raises:
            LogDamaged: retention has taken some of it since then, or a segment is missing, or the
                log ends before, or is damaged, or isn't one log up to there; or which of its units
                were refused lies behind what is known committed by now.
            OtherLog: it is another log than the one that this was planned of.
        """
        begin, until = Place.of(start), Place.of(end)
        if begin.offset >= until.offset:
            return []
        log = self._log()
        self._check_planned(log, begin, until)
        parts = log_ranges(log, self._next(log, begin.offset), until.offset)
        lifetimes = self._followed(replace(log, settled=max(log.settled, until.offset)))
        lifetimes.check_to(until.offset)
        if lifetimes.cut(replace(log, settled=until.offset)).settled < until.offset:
            raise LogDamaged(
                f"the log at {self._path} is known committed to byte {log.settled} only, and which "
                f"units before byte {until.offset} were refused it says behind that: a batch that "
                "was planned up to there waits until more is known committed"
            )
        left_out = lifetimes.left_out(includes_deleted=not self._leaves_out_deleted)
        return [InputPartition(([part], left_out)) for part in planned(parts)]

    def _check_planned(self, log: Survey, begin: Place, until: Place) -> None:
        """The log is the one that the batch was planned of, from its begin to its end."""
        if max(log.end, log.settled) < until.offset:
            raise LogDamaged(
                f"the log at {self._path} ends at byte {log.end}, and a batch of this stream was "
                f"planned up to {until.offset}: it is another log, or has lost its end"
            )
        with _or_damaged(log, until.offset):
            check_same_range(log, begin, until)

    def _followed(self, log: Survey) -> Lifetimes:
        """What is no message, as far as the log is settled now."""
        if self._lifetimes is None:
            self._lifetimes = _lifetimes(log)
        self._lifetimes.follow(log)
        return self._lifetimes

    def _next(self, log: Survey, at: int) -> int:
        """`at`, or where the log begins if that is behind it and the user knows of it."""
        if at < gone_to(log) and self._fails_on_loss:
            raise LogDamaged(
                f"bytes {at} to {log.retained_from} of the log at {self._path} were deleted "
                "before this stream read them; failOnDataLoss=false goes on behind them"
            )
        return max(at, log.retained_from)

    def _log(self) -> Survey:
        return _survey(self._path)

    def _readable(self) -> Survey:
        """The log up to where all of it is known to be messages, or none."""
        log = self._log()
        return self._followed(log).cut(log)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return _read(partition.value, self._wanted)

    def commit(self, end: Offset) -> None:
        """Nothing is kept here: the log stays as it is."""

    def stop(self) -> None:
        """Nothing is held open."""


def _lifetimes(log: Survey) -> Lifetimes:
    from dledger.reading.lifetimes import Lifetimes  # Executors may do without protobuf.

    return Lifetimes(log.retained_from)


@contextmanager
def _or_damaged(log: Survey, at: int) -> Iterator[None]:
    """A log that isn't one up to the entry at the physical offset `at`, or is damaged, isn't taken
    for another log than was read.

    Raises:
        LogDamaged: instead of `OtherLog`.
    """
    try:
        yield
    except OtherLog:
        lifetimes = _lifetimes(log)  # Those that are kept may have followed another log.
        lifetimes.follow(log)
        lifetimes.check_to(at + 1)
        raise


def _read(
    task: tuple[Sequence[LogRange], LeftOut] | None, wanted: Wanted
) -> Iterator[pyarrow.RecordBatch]:
    """What the task is to read.

    Args:
        task: None: nothing was planned, of which Spark makes a task.

    Raises:
        OtherReplica: another log lies here.
        EntryDamaged: an entry isn't intact.
    """
    if task is None:
        return
    parts, left_out = task
    for part in parts:
        check_planned(part)
        for records in read_records(part, replace(wanted, left_out=left_out)):
            yield from to_arrow(records)


def _survey(path: str) -> Survey:
    """What is committed now.

    Raises:
        NotALog: there is no log.
        LogDamaged: where it ends isn't known, as damage hides it.
    """
    return readable_log(survey_folder("log", path))


def _path(options: Mapping[str, str]) -> str:
    path = options.get("path")
    if not path:
        raise BadOption("no path given: load(PATH) of a data directory")
    return path


def _limit(options: Mapping[str, str]) -> ReadLimit:
    """Of a batch: `recordsPerBatch` or `bytesPerBatch`."""
    records = options.get("recordsPerBatch")
    if records is None:
        return ReadMaxBytes(opt.count(options, "bytesPerBatch", DEFAULT_BATCH_BYTES))
    if "bytesPerBatch" in options:
        raise BadOption("recordsPerBatch and bytesPerBatch exclude each other")
    return ReadMaxRows(opt.count(options, "recordsPerBatch", 0))


def _wanted(options: Mapping[str, str]) -> Wanted:
    topics = options.get("topics")
    return Wanted(
        opt.columns(options),
        frozenset(name.strip() for name in topics.split(",")) if topics else None,
        _time(options, "fromTime"),
        _time(options, "untilTime"),
    )


def _time(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise BadOption(f"{name} is {text!r}: milliseconds since the epoch are wanted") from None


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
    whole = whole_milliseconds(moment)
    return whole + bool(moment.microsecond % 1000)

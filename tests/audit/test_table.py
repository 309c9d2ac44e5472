"""The log as data: decoding, the Spark source, the stream."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from audit.contents.stats import delays_ms
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from dledger.reading.columns import PropertyTable
from dledger.reading.decode import COLUMNS, Records, Wanted, read_records
from dledger.reading.entry import EntryKind
from dledger.reading.errors import EntryDamaged
from dledger.reading.ranges import entry_end_after, log_ranges
from dledger.records.record import decode_properties, decode_records
from tests.audit.replicas import TIME_MS, LogBuilder, ReplicaSet
from tests.audit.test_decode import cuts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def rows_of(path: Path, wanted: Wanted | None = None) -> list[Row]:
    """What the decoder gives, as rows."""
    log = committed_log(Replica("n1", str(path)))
    rows: list[Row] = []
    for part in log_ranges(log, 0, log.settled):
        for records in read_records(part, wanted or Wanted()):
            names = list(records.columns)
            columns = [list(column) for column in records.columns.values()]
            rows += [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return rows


def expected_rows(three: ReplicaSet) -> list[Row]:
    """The same by the record codec that consumers use."""
    rows: list[Row] = []
    for header in three.headers:
        if header.kind != EntryKind.DATA:
            continue
        base = header.physical_offset - header.physical_offset % 16384
        content = three.segment("n1", base).read_bytes()
        at = header.physical_offset - base
        for record in decode_records(content[at + 88 : at + header.total_size]):
            rows.append(
                {
                    "topic": record.topic,
                    "queue_id": record.queue_id,
                    "queue_offset": record.queue_offset,
                    "physical_offset": record.physical_offset,
                    "index": header.index,
                    "term": header.term,
                    "incarnation": 1,
                    "born_time": record.born_time_ms,
                    "store_time": record.store_time_ms,
                    "keys": record.keys,
                    "tags": record.tags,
                    "properties": record.properties,
                    "body": record.body,
                }
            )
    return rows


def test_columns_are_what_the_record_codec_reads(three: ReplicaSet) -> None:
    """Every message once, in the log's order, every column."""
    assert rows_of(three.paths["n1"]) == expected_rows(three)


def test_only_wanted_messages_and_columns_are_decoded(three: ReplicaSet) -> None:
    """By topic, by store time, and some columns."""
    wanted = Wanted(("queue_offset", "keys"), frozenset({"events"}), TIME_MS + 10, TIME_MS + 40)
    expected = [
        {name: row[name] for name in wanted.columns}
        for row in expected_rows(three)
        if row["topic"] == "events" and TIME_MS + 10 <= row["store_time"] < TIME_MS + 40
    ]
    assert expected
    assert rows_of(three.paths["n1"], wanted) == expected


def test_damaged_entry_ends_the_reading_with_its_place(three: ReplicaSet) -> None:
    """Rot is never passed over in silence."""
    header = three.header_of(after=20_000)
    path = three.flip("n1", header.physical_offset + 90)
    with pytest.raises(EntryDamaged) as caught:
        rows_of(three.paths["n1"])
    assert (caught.value.file, caught.value.offset) == (str(path), header.physical_offset - 16384)


def test_stream_steps_end_between_entries_and_reach_the_end(three: ReplicaSet) -> None:
    """Whatever the step, each lies at an entry's end; together they are the committed log."""
    log = committed_log(three.replicas[0])
    ends = {h.physical_offset + h.total_size for h in three.headers} | {16384, 32768}
    for step in (1, 700, 5000, 1 << 30):
        at, seen = 0, []
        while at < log.settled:
            at = entry_end_after(log, at, step)
            seen.append(at)
        assert set(seen) <= ends
        assert seen[-1] == three.end
        assert entry_end_after(log, at, step) == at


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"A\x01b\x02",
        b"A\x01b\x02C\x01\x02",
        b"A\x01b\x02nothing\x02D\x01e\x01f",
        b"\x02\x02A\x01b",
        b"A\x01\xff\xfe\x02",
        "Stra\u00dfe\x01\u20ac\x02".encode(),
    ],
)
def test_properties_are_split_as_consumers_split_them(encoded: bytes) -> None:
    """All at once in Arrow, as `decode_properties` one by one, between other messages."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    from dledger.reading.arrow import to_arrow

    given = [b"X\x01y\x02", encoded, b"", encoded]
    table = PropertyTable.of(cuts_of(given))
    (batch,) = to_arrow(Records(4, {"properties": table}))
    column = batch.column(0).to_pylist()
    assert [dict(each) for each in column] == [decode_properties(each) for each in given]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (-(1 << 63), datetime.min),
        (-(1 << 62) // 1000, datetime.min),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000)),
        (1 << 50, datetime.max.replace(microsecond=999_000)),
        ((1 << 63) - 1, datetime.max.replace(microsecond=999_000)),
    ],
)
def test_times_that_no_table_has_are_told_as_the_nearest(said: int, told: datetime) -> None:
    """A producer may say any number: one message would end whoever reads the table."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    from dledger.reading.arrow import to_arrow

    (batch,) = to_arrow(Records(1, {"born_time": np.array([said], np.int64)}))
    assert batch.column(0).to_pylist() == [told.replace(tzinfo=UTC)]


def test_delay_of_what_was_born_whenever_it_says_has_the_right_sign() -> None:
    born = np.array([-(1 << 63), 1, (1 << 63) - 1], np.int64)
    delays = delays_ms(np.array([1 << 41] * 3, np.int64), born)
    assert (delays > 0).tolist() == [True, True, False]


@pytest.mark.spark
def test_table_has_every_message(three: ReplicaSet, spark: SparkSession) -> None:
    """`spark.read.format("commitlog")` gives the decoder's rows."""
    from dledger.spark import register

    register(spark)
    frame = spark.read.format("commitlog").load(str(three.paths["n2"]))
    assert frame.columns == list(COLUMNS)
    rows = [row.asDict() for row in frame.collect()]
    for row in rows:
        for name in ("born_time", "store_time"):
            row[name] = round(row[name].timestamp() * 1000)
        row["body"] = bytes(row["body"])
    assert sorted(rows, key=lambda r: r["physical_offset"]) == expected_rows(three)


@pytest.mark.spark
def test_filters_are_pushed_down_and_change_nothing(three: ReplicaSet, spark: SparkSession) -> None:
    """Topic and store time reach the source; the rows are those that a filter would leave."""
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, StringContains

    from dledger.spark import register
    from dledger.spark.source import CommitLogReader

    register(spark)
    reader = CommitLogReader(str(three.paths["n1"]), Wanted())
    kept = StringContains(("keys",), "1")
    since = GreaterThanOrEqual(("store_time",), datetime.fromtimestamp(TIME_MS / 1000, UTC))
    assert list(reader.pushFilters([EqualTo(("topic",), "events"), since, kept])) == [kept]
    assert reader.wanted == Wanted(topics=frozenset({"events"}), from_ms=TIME_MS)
    frame = spark.read.format("commitlog").load(str(three.paths["n1"]))
    seen = frame.where("topic = 'events' and queue_id = 1").count()
    rows = expected_rows(three)
    assert seen == sum(r["topic"] == "events" and r["queue_id"] == 1 for r in rows)


@pytest.mark.spark
@pytest.mark.long
def test_stream_is_restarted_without_loss_or_repetition(
    three: ReplicaSet, spark: SparkSession, tmp_path: Path
) -> None:
    """Two runs over one checkpoint, in small batches: every message in exactly one batch."""
    from dledger.spark import register

    register(spark)
    seen: list[tuple[int, int]] = []

    def keep(frame: Any, batch: int) -> None:
        seen.extend((batch, row["physical_offset"]) for row in frame.collect())
        if len({number for number, _ in seen}) == 3 and stop_after:
            stop_after.pop()
            raise InterruptedError("the first run ends here")

    stop_after = [True]

    def run() -> None:
        source = spark.readStream.format("commitlog").option("bytesPerBatch", "9000")
        stream = source.option("columns", "physical_offset").load(str(three.paths["n1"]))
        query = (
            stream.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    with pytest.raises(Exception, match="the first run ends here"):
        run()
    failed = max(number for number, _ in seen)
    seen = [each for each in seen if each[0] != failed]
    run()
    offsets = [offset for _, offset in seen]
    assert sorted(offsets) == [row["physical_offset"] for row in expected_rows(three)]


def test_an_unsettled_tail_is_no_data(tmp_path: Path) -> None:
    """Entries that aren't known to have committed are left out."""
    from tests.audit.replicas import usual_entries

    builder = LogBuilder(tmp_path / "n1", "n1")
    for entry in usual_entries(20):
        builder.add(entry)
        builder.flush()
    builder.dispatch(12)
    builder.close()
    assert {row["index"] for row in rows_of(tmp_path / "n1")} <= set(range(1, 13))


COUNTS = """
import sys
from dledger.spark import register, start_session

spark = start_session("local[1]")
register(spark)
print(spark.read.format("commitlog").option("columns", "topic").load(sys.argv[1]).count())
spark.stop()
"""


# What Spark does of that beside its JVM: planned in one process, read in another.
PLANS = """
import pickle, sys
from pyspark import cloudpickle
from dledger.spark.source import CommitLogSource

source = CommitLogSource({"path": sys.argv[1], "columns": "topic"})
reader = source.reader(source.schema())
with open("planned", "wb") as file:
    cloudpickle.dump((reader, reader.partitions()), file)
"""
READS = """
import pickle

with open("planned", "rb") as file:
    reader, partitions = pickle.load(file)
print(sum(batch.num_rows for each in partitions for batch in reader.read(each)))
"""


@pytest.mark.parametrize(
    "programs",
    [
        (PLANS, READS),
        pytest.param((COUNTS,), marks=[pytest.mark.spark, pytest.mark.slow, pytest.mark.long]),
    ],
    ids=["source", "session"],
)
def test_table_works_beside_packages_of_the_same_names(
    three: ReplicaSet, tmp_path: Path, programs: tuple[str, ...]
) -> None:
    """A user's folder may have a store, a broker and an audit of its own: none is imported, neither
    by the program nor by its workers."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    folder = tmp_path / "theirs"
    for name in ("store", "broker", "audit", "chaos"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('their {name}')\n")
    for number, program in enumerate(programs):
        (folder / f"program{number}.py").write_text(program)
        done = subprocess.run(
            [sys.executable, f"program{number}.py", str(three.paths["n1"])],
            cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(each.record_count for each in three.headers)

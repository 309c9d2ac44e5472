"""The log as a stream: how far a batch goes, what ends it, and a driver that is killed."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from dledger.reading.decode import Wanted
from dledger.reading.entry import EntryHeader
from dledger.reading.errors import LogDamaged, OtherLog
from dledger.reading.places import Place, place_behind
from dledger.spark import BadOption, SparkUnavailable
from dledger.spark.java import find_java
from dledger.spark.source import CommitLogSource, CommitLogStream
from tests.audit.replicas import (
    Entry,
    LogBuilder,
    ReplicaSet,
    build,
    dropping,
    fill_first_segment,
    start_of,
    usual_entries,
)
from tests.audit.test_table import expected_rows

ROOT = Path(__file__).parent.parent.parent
SPARK_TIMEOUT_S = 120


def stream_of(three: ReplicaSet) -> CommitLogStream:
    return CommitLogStream(str(three.paths["n1"]), Wanted(), ReadMaxBytes(5000))


def between(headers: list[EntryHeader], start: int, end: int) -> list[EntryHeader]:
    return [each for each in headers if start <= each.physical_offset < end]


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_batch_has_no_more_records_than_spark_allows(three: ReplicaSet, limit: int) -> None:
    """Or one entry, if that has more; and as many as fit, within a segment."""
    stream, at = stream_of(three), 0
    while (end := stream.latestOffset({"offset": at}, ReadMaxRows(limit))["offset"]) > at:
        entries = between(three.headers, at, end)
        count = sum(each.record_count for each in entries)
        assert count <= limit or len(entries) == 1
        following = between(three.headers, end, end + 1)
        if following and end % 16384:
            assert count + following[0].record_count > limit
        at = end
    assert at == three.end


@pytest.mark.parametrize("limit", [1, 3000, 10**9])
def test_batch_has_no_more_bytes_than_spark_allows(three: ReplicaSet, limit: int) -> None:
    """Or one entry, if that is larger."""
    stream, at = stream_of(three), 0
    while (end := stream.latestOffset({"offset": at}, ReadMaxBytes(limit))["offset"]) > at:
        entries = between(three.headers, at, end)
        size = entries[-1].physical_offset + entries[-1].total_size - at
        assert size <= limit or len(entries) == 1
        at = end
    assert at == three.end


def test_trigger_that_takes_everything_gets_everything(three: ReplicaSet) -> None:
    """The source's own limit isn't Spark's then; a task for each segment."""
    stream = stream_of(three)
    end = stream.latestOffset({"offset": 0}, ReadAllAvailable())
    assert end["offset"] == three.end
    assert stream.reportLatestOffset() == {"offset": three.end}
    starts = [each.value[0][0].start for each in stream.partitions({"offset": 0}, end)]
    assert starts == three.bases()[: len(starts)]
    assert len(starts) > 1


def test_available_now_means_when_the_run_began(tmp_path: Path) -> None:
    """What commits later is left to the next run, and the run ends."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    stream = CommitLogStream(str(tmp_path / "n1"), Wanted(), ReadMaxBytes(1 << 20))
    ends: list[int] = []
    entries = list(usual_entries(20))
    for part in (entries[:10], entries[10:]):
        for entry in part:
            builder.add(entry)
            builder.flush()
        builder.dispatch()
        if not ends:
            stream.prepareForTriggerAvailableNow()
        ends.append(stream.latestOffset({"offset": 0}, ReadAllAvailable())["offset"])
    assert ends[0] == ends[1] < builder.log.end_offset == stream.reportLatestOffset()["offset"]
    assert stream.latestOffset({"offset": ends[0]}, ReadMaxBytes(1))["offset"] == ends[0]
    builder.close()


def test_retention_that_overtakes_a_stream_ends_it(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost messages are never passed over in silence; planned and unplanned batches alike."""
    log = replace(committed_log(Replica("n1", str(three.paths["n1"]))), retained_from=16384)
    monkeypatch.setattr("dledger.spark.source._survey", lambda path: log)
    end = three.header_of(after=20000).physical_offset
    stream, planned = stream_of(three), ({"offset": 0}, {"offset": end})
    with pytest.raises(LogDamaged, match=r"bytes 0 to 16384 .* failOnDataLoss"):
        stream.latestOffset({"offset": 0}, ReadMaxBytes(5000))
    with pytest.raises(LogDamaged, match="bytes 0 to 16384"):
        stream.partitions(*planned)
    path = str(three.paths["n1"])
    lenient = CommitLogStream(path, Wanted(), ReadMaxBytes(5000), fails_on_loss=False)
    assert lenient.latestOffset({"offset": 0}, ReadMaxBytes(5000))["offset"] > 16384
    assert [each.value[0][0].start for each in lenient.partitions(*planned)] == [16384]


def test_stream_that_has_all_but_what_fills_a_segment_up_goes_on(tmp_path: Path) -> None:
    """Of the segment that has gone: nothing was lost. One that ended there otherwise was another
    log's."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    end = fill_first_segment(builder)
    made = CommitLogSource({"path": str(tmp_path / "n1")})
    stream = made.streamReader(made.schema())
    before = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert before["offset"] == end
    builder.dispatch(len(builder.headers) - 1)
    planned = stream.latestOffset(before, ReadAllAvailable())
    builder.dispatch()
    builder.close()
    for _ in dropping(builder.path, start_of(builder.path, builder.headers[-1].index)):
        pass
    stream = made.streamReader(made.schema())
    after = stream.latestOffset(before, ReadAllAvailable())
    assert after["offset"] == builder.log.end_offset
    for until, count in ((planned, 0), (after, 2)):
        parts = stream.partitions(before, until)
        assert sum(batch.num_rows for part in parts for batch in stream.read(part)) == count
    with pytest.raises(OtherLog, match=f"ended at byte {end}"):
        stream.latestOffset(before | {"digest": before["digest"] ^ 1}, ReadAllAvailable())


def test_missing_segment_is_no_gap_to_step_over(three: ReplicaSet) -> None:
    """A file that is gone from the middle: the batch that would need it isn't planned."""
    three.segment("n1", 16384).unlink()
    stream = stream_of(three)
    with pytest.raises(LogDamaged, match="lacks bytes 16384 to 32768"):
        stream.partitions({"offset": 0}, {"offset": three.end})


# --- whose log it is ------------------------------------------------------------------------------


def replaced(path: Path, entries: list[Entry]) -> int:
    """Another log is in the directory, of these entries; where it ends."""
    shutil.rmtree(path, ignore_errors=True)
    return build(path, entries).log.end_offset


def read_to(path: Path, end: int) -> dict[str, Any]:
    """The offset of a stream that has read so far, a batch at a time."""
    stream = CommitLogStream(str(path), Wanted(), ReadMaxBytes(1))
    at = stream.initialOffset()
    while at["offset"] < end:
        at = stream.latestOffset(at, ReadMaxBytes(1))
    return at


def test_places_of_a_log_are_the_same_however_they_are_reached(three: ReplicaSet) -> None:
    """An entry at a time, or all at once; each is told, and each is of this log."""
    log, stream = committed_log(Replica("n1", str(three.paths["n1"]))), stream_of(three)
    first = at = stream.initialOffset()
    while (after := stream.latestOffset(at, ReadMaxBytes(1))) != at:
        assert after["digest"] == between(three.headers, at["offset"], after["offset"])[-1].digest
        assert place_behind(log, Place.of(first), after["offset"]).told() == after
        assert len(stream.partitions(first, after)) >= len(stream.partitions(at, after)) == 1
        at = after
    assert at == stream.latestOffset(first, ReadAllAvailable())
    assert at["offset"] == three.end


@pytest.mark.parametrize("count", [1, 19])
def test_log_that_ends_before_what_was_read_ends_a_stream(tmp_path: Path, count: int) -> None:
    """A restore to an earlier moment, a power cut, a replica that isn't as far: nothing was said,
    and nothing read. Who may lose messages waits."""
    path, entries = tmp_path / "n1", list(usual_entries(20))
    at = read_to(path, replaced(path, entries))
    replaced(path, entries[:count])
    stream = CommitLogStream(str(path), Wanted(), ReadMaxBytes(5000))
    with pytest.raises(LogDamaged, match=f"and this stream has read to {at['offset']}"):
        stream.latestOffset(at, ReadMaxBytes(5000))
    with pytest.raises(LogDamaged, match=f"was planned up to {at['offset']}"):
        stream.partitions(stream.initialOffset(), at)
    lenient = CommitLogStream(str(path), Wanted(), ReadMaxBytes(5000), fails_on_loss=False)
    assert lenient.latestOffset(at, ReadMaxBytes(5000)) == at
    replaced(path, [*entries, *entries])
    assert lenient.latestOffset(at, ReadAllAvailable())["offset"] > at["offset"]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("at_entry", [True, False])
def test_log_that_isnt_the_one_that_was_read_ends_a_stream(
    tmp_path: Path, at_entry: bool, strict: bool
) -> None:
    """Longer than what was read, so that its end says nothing: what lay before would never be read,
    or an entry would be said to be damaged where none begins."""
    path, entries = tmp_path / "n1", list(usual_entries(20))
    at, first = read_to(path, replaced(path, entries)), read_to(path, 0)
    others = [replace(each, producer=bytes(15) + b"x") for each in entries]
    if not at_entry:
        others = [entries[3], *others]
    replaced(path, [*others, *others])
    stream = CommitLogStream(str(path), Wanted(), ReadMaxBytes(5000), fails_on_loss=strict)
    with pytest.raises(OtherLog, match=f"read up to byte {at['offset']}: what lies there doesn't"):
        stream.latestOffset(at, ReadMaxBytes(5000))
    with pytest.raises(OtherLog):
        stream.partitions(first, at)
    before = {"offset": at["offset"]}  # Of the release before, which is believed.
    if at_entry:
        assert stream.latestOffset(before, ReadMaxBytes(5000))["offset"] > at["offset"]


def test_batch_of_a_log_that_was_other_within_it_isnt_planned(tmp_path: Path) -> None:
    """Up to its begin the log is the same, and it ends where it did."""
    path, entries = tmp_path / "n1", list(usual_entries(20))
    end = replaced(path, entries)
    begin, until = read_to(path, 1), read_to(path, end)
    assert replaced(path, [*entries[:-1], replace(entries[-1], producer=bytes(15) + b"x")]) == end
    stream = CommitLogStream(str(path), Wanted(), ReadMaxBytes(5000))
    assert stream.latestOffset(begin, ReadAllAvailable())["offset"] == end
    with pytest.raises(OtherLog, match="what lies before isn't what was read"):
        stream.partitions(begin, until)


def test_log_of_another_broker_group_is_told_by_its_name(three: ReplicaSet) -> None:
    """However alike they are."""
    stream = stream_of(three)
    at = stream.latestOffset(stream.initialOffset(), ReadMaxBytes(1)) | {"broker_group": "other"}
    with pytest.raises(OtherLog, match="and that was of 'other'") as caught:
        stream.latestOffset(at, ReadMaxBytes(1))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no path"),
        ({"path": "x", "bytesPerBatch": "many"}, "bytesPerBatch is 'many'"),
        ({"path": "x", "recordsPerBatch": "0"}, "recordsPerBatch is '0'"),
        ({"path": "x", "recordsPerBatch": "5", "bytesPerBatch": "5"}, "exclude each other"),
        ({"path": "x", "failOnDataLoss": "perhaps"}, "failOnDataLoss is 'perhaps'"),
        ({"path": "x", "fromTime": "yesterday"}, "fromTime is 'yesterday'"),
        ({"path": "x", "columns": "topic,colour"}, "no column 'colour'"),
        ({"path": "x", "topic": "orders"}, "no option 'topic'; there are columns, topics"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    """Before the query begins."""
    source = CommitLogSource(options)
    with pytest.raises(BadOption, match=said):
        source.streamReader(source.schema())
    with pytest.raises(BadOption, match=said):
        source.streamReader(CommitLogSource({}).schema())


def test_option_that_nobody_reads_is_refused_whoever_is_asked_first() -> None:
    """A query over one topic would be one over all, and nobody would hear of it. Spark's own, and
    what a table of its catalog remembers, are none of those."""
    source = CommitLogSource({"path": "x", "Topic": "orders"})
    plain = CommitLogSource(
        {"path": "x", "topics": "orders", "queryName": "q", "BYTESPERBATCH": "1"}
    )
    for ask in (source.reader, source.streamReader):
        with pytest.raises(BadOption, match=r"(?i)no option 'topic'"):
            ask(plain.schema())
    with pytest.raises(BadOption, match=r"(?i)no option 'topic'"):
        source.schema()
    assert plain.reader(plain.schema()).wanted.topics == frozenset({"orders"})
    assert CommitLogSource({}).streamReader(plain.schema()).getDefaultReadLimit() == ReadMaxBytes(1)


@contextmanager
def driver(log: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The driver, in a process group of its own; nothing of it is left."""
    command = [sys.executable, "-m", "tests.audit.stream_driver",
               str(log), str(folder / "out"), str(folder / "checkpoint")]  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run_until(process: subprocess.Popen[str], wanted: str | None) -> int:
    """Answers the driver until it says a line with `wanted`, then kills it and its JVM at once;
    how many lines it said."""
    assert process.stdin is not None
    assert process.stdout is not None
    count = 0
    for line in process.stdout:
        count += 1
        if wanted is not None and wanted in line and count > 2:
            os.killpg(process.pid, signal.SIGKILL)
            break
        process.stdin.write("\n")
        process.stdin.flush()
    return count


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_killed_driver_goes_on_with_every_message_once(three: ReplicaSet, tmp_path: Path) -> None:
    """As one that ends otherwise (`test_stream_is_restarted_without_loss_or_repetition`): here by
    SIGKILL of driver and JVM when a batch is written and not committed, or, in the long form
    (make spark-kills), before it is written, too, and again; the last run reads the rest."""
    import pyarrow.parquet as pq

    try:
        find_java(tmp_path / "cache")
    except SparkUnavailable as error:
        pytest.skip(str(error))
    for wanted in ("begins", "written", "begins") if "DRIVERS" in os.environ else ("written",):
        with driver(three.paths["n1"], tmp_path) as process:
            assert run_until(process, wanted) > 2
            assert process.wait(SPARK_TIMEOUT_S) == -signal.SIGKILL
    with driver(three.paths["n1"], tmp_path) as process:
        run_until(process, None)
        assert process.wait(SPARK_TIMEOUT_S) == 0, process.stderr and process.stderr.read()
    tables = [pq.read_table(path) for path in (tmp_path / "out").glob("*.parquet")]
    rows = [(row["physical_offset"], row["body"]) for table in tables for row in table.to_pylist()]
    assert sorted(rows) == [(row["physical_offset"], row["body"]) for row in expected_rows(three)]
    assert len(tables) > 4

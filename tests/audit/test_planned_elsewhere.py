"""Ranges that are planned of one replica and read on a machine where another lies at its path."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dledger.reading.chunks import LogRange
from dledger.reading.entry import EntryKind
from dledger.reading.errors import OtherReplica
from dledger.reading.planned import check_planned, planned
from dledger.spark.source import CommitLogSource
from tests.audit.replicas import (
    COMMAND,
    SEGMENT,
    Entry,
    LogBuilder,
    ReplicaSet,
    fill_first_segment,
    usual_entries,
)

SHARED = [*usual_entries(10)]
COMMITTED = [Entry(3, count=2, bodies=(b"yes", b"yes"))] * 3


def replica(path: Path, entries: list[Entry], known: int | None = None) -> Path:
    """A replica of these entries, of which so many are known committed."""
    builder = LogBuilder(path, "n1")
    for entry in entries:
        builder.add(entry)
        builder.flush()
    builder.dispatch(known)
    builder.close()
    return path


# What another replica has behind what all of them have: what an earlier leader sent it alone, as
# large or larger, so that it stands in the next segment; nothing yet; or the same.
OTHERS = {
    "as-large": [replace(each, term=2, bodies=(b"not", b"not")) for each in COMMITTED],
    "in-the-next-segment": [Entry(2, count=1, size=SEGMENT - 400)],
    "behind": [],
    "as-large-and-more": [*[replace(each, term=2) for each in COMMITTED], COMMITTED[0]],
    "shorter": [Entry(2, count=1, bodies=(b"not",))] * 9,
}


def rows_of(read: Callable[[InputPartition], Any], parts: Any) -> list[dict[str, Any]]:
    return [row for part in parts for batch in read(part) for row in batch.to_pylist()]


def made(path: Path) -> CommitLogSource:
    return CommitLogSource({"path": str(path), "columns": "term,body"})


def exchanged(here: Path, other: Path) -> None:
    """What lies at a path is another replica's, as on the machine of a task."""
    here.rename(here.with_name("before"))
    other.rename(here)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("is_stream", [False, True])
def test_task_that_finds_another_replica_gives_nothing(
    tmp_path: Path, kind: str, is_stream: bool
) -> None:
    """Rows that may never commit would be read, and the committed ones not; or fewer, and no error.
    What is there is in order, so it isn't called damaged alone."""
    here = replica(tmp_path / "here", [*SHARED, *COMMITTED])
    other = replica(tmp_path / "other", [*SHARED, *OTHERS[kind]], known=len(SHARED))
    source = made(here)
    if is_stream:
        stream = source.streamReader(source.schema())
        start = stream.initialOffset()
        parts: Any = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
        read: Any = stream.read
    else:
        reader = source.reader(source.schema())
        parts, read = reader.partitions(), reader.read
    assert [row["body"] for row in rows_of(read, parts) if row["term"] == 3] == [b"yes"] * 6
    exchanged(here, other)
    (part,) = parts
    with pytest.raises(OtherReplica, match="another replica lies at that path there, or") as caught:
        next(read(part))  # Before the first row: who wants one only sees no more.
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_task_reads_any_replica_that_is_the_same_to_its_range_s_end(tmp_path: Path) -> None:
    """Further on they may differ."""
    here = replica(tmp_path / "here", [*SHARED, *COMMITTED])
    other = replica(tmp_path / "other", [*SHARED, *COMMITTED, Entry(4, count=1)])
    source = made(here)
    reader = source.reader(source.schema())
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    rows = rows_of(reader.read, parts)
    exchanged(here, other)
    assert rows_of(reader.read, parts) == rows


def test_what_fills_a_segment_up_is_no_place_to_read_at(tmp_path: Path) -> None:
    """Elsewhere an entry may lie there: nothing that is planned tells whose it is."""
    builder = LogBuilder(tmp_path / "here", "n1")
    end = fill_first_segment(builder)
    folder = str(builder.path / "commitlog")
    first, filler = (LogRange(folder, 0, *each) for each in ((0, SEGMENT), (end, SEGMENT)))
    (known,) = planned([first, filler])
    assert known == replace(first, digest=builder.headers[-3].digest)
    source = made(builder.path)
    stream = source.streamReader(source.schema())
    begin = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert begin["offset"] == end
    builder.dispatch(len(builder.headers) - 1)
    builder.close()
    assert stream.partitions(begin, {"offset": SEGMENT}) == []
    (part,) = stream.partitions(begin, stream.latestOffset(begin, ReadAllAvailable()))
    assert part.value[0][0].start == SEGMENT


# A bit of a header, of the first entry or the last: of its size, its version, its digest.
BITS = {"size": (0, 0, 0), "version": (-1, 9, 1), "digest": (-1, 48, 0)}


@pytest.mark.parametrize("bit", BITS)
def test_file_that_is_damaged_where_a_task_runs_is_none_of_the_plan(
    three: ReplicaSet, bit: str
) -> None:
    """Its sizes lead elsewhere, or what they lead to isn't what ended there."""
    folder, (entry, at, number) = str(three.paths["n1"] / "commitlog"), BITS[bit]
    end = three.filler()
    header = [each for each in three.headers if each.physical_offset < end][entry]
    (part,) = planned([LogRange(folder, 0, 0, end)])
    check_planned(part)
    three.flip("n1", header.physical_offset + at, number)
    with pytest.raises(OtherReplica):
        check_planned(part)


def test_large_entries_are_passed_over_by_their_headers(tmp_path: Path) -> None:
    """However large and small ones follow each other."""
    builder = LogBuilder(tmp_path / "here", "n1", 8 << 20)
    for size in (100, 20_000, 400_000, 100, 100, 1_000_000, 20_000, 100):
        builder.add(Entry(1, count=1, size=size))
    builder.add(Entry(1, EntryKind.COMMAND, body=COMMAND))
    builder.flush()
    folder = str(builder.path / "commitlog")
    for header in builder.headers:
        end = header.physical_offset + header.total_size
        (part,) = planned([LogRange(folder, 0, 0, end)])
        assert part.digest == header.digest
    builder.close()


def test_query_that_has_nothing_to_read_reads_nothing(tmp_path: Path) -> None:
    """Spark makes a task of no ranges."""
    here = replica(tmp_path / "here", [])
    source = made(here)
    reader = source.reader(source.schema())
    assert reader.partitions() == []
    assert rows_of(reader.read, [InputPartition(None)]) == []


def test_what_lies_in_a_store_is_not_fetched_to_be_planned() -> None:
    """It is one for all machines, and a log of it may be large."""
    parts = [LogRange("s3://nowhere/n1/commitlog", 0, 0, SEGMENT)]
    assert planned(parts) == parts

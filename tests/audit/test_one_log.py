"""Who reads a log as data reads one log: behind a segment that doesn't go on from the one before
nothing is a message, and what lies before it may be. As with any other damage, who was refused goes
on once it is repaired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.contents.export import ExportState, export_messages, read_state, write_state
from audit.contents.stats import sum_log
from audit.engines.engine import LocalEngine
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from dledger.outcome import ExitCode
from dledger.reading.checkpoint import decode_checkpoint, encode_checkpoint
from dledger.reading.errors import EntryDamaged
from dledger.reading.files import opened
from dledger.reading.headers import walk_headers
from dledger.reading.lifetimes import Lifetimes
from tests.audit.replicas import SEGMENT, Entry, LogBuilder, dropping, start_of
from tests.audit.test_delivery_one_log import exchanged, two_segments

# The last entry of the first segment is missing, or the second one is of another log.
SEAMS = {"hole": (("a", "y"), "index 3"), "foreign": (("x",), "digest [0-9a-f]{16}")}


class Broken:
    """A replica whose second segment doesn't go on from the first, until it is `mended`."""

    def __init__(self, root: Path, kind: str) -> None:
        values, wanted = SEAMS[kind]
        self.path, self.damage = root / "n1", rf"{SEGMENT:020} at byte 0: .* with {wanted}"
        two_segments(self.path, "a")
        self.file = self.path / "commitlog" / f"{SEGMENT:020}"
        self._own = self.file.read_bytes()
        self.replica = exchanged(self.path, two_segments(root / "other", *values))

    @contextmanager
    def refused(self) -> Iterator[None]:
        with pytest.raises(EntryDamaged, match=self.damage):
            yield

    def mended(self) -> Replica:
        self.file.write_bytes(self._own)
        return self.replica


@pytest.fixture(params=list(SEAMS))
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Broken:
    return Broken(tmp_path, request.param)


def filler_of(path: Path) -> int:
    """Where the first segment's entries end."""
    with opened(str(path / "commitlog" / f"{0:020}")) as descriptor:
        return walk_headers(descriptor, 0, SEGMENT)[0]


def exported(target: Path) -> list[str]:
    """The messages that are in the target's files, by what their bodies say."""
    dataset = pytest.importorskip("pyarrow.dataset", reason="pip install '.[audit]'")
    table = dataset.dataset(target, format="parquet", partitioning="hive").to_table(["body"])
    return sorted(body.decode().strip() for body in table["body"].to_pylist())


def test_sums_are_of_one_log(broken: Broken) -> None:
    """A command says where, and ends as for any other damage."""
    with broken.refused():
        sum_log(broken.replica, LocalEngine())
    told = CliRunner().invoke(app, ["stats", "--replica", f"n1={broken.path}"])
    assert told.exit_code == ExitCode.FAILED
    assert f"{SEGMENT:020} at byte 0" in told.stderr
    queues = sum_log(broken.mended(), LocalEngine()).queues
    assert sum(each.messages for each in queues.values()) == 3


def test_an_export_is_of_one_log(broken: Broken, tmp_path: Path) -> None:
    """Its first run, too; the next one has each message once."""
    target = tmp_path / "out"
    with broken.refused():
        export_messages(broken.replica, target, LocalEngine())
    assert not list(target.rglob("*.parquet"))
    assert export_messages(broken.mended(), target, LocalEngine()).messages == 3
    assert exported(target) == ["a", "b", "c"]


def test_an_export_that_broke_off_goes_on_up_to_the_seam(broken: Broken, tmp_path: Path) -> None:
    """What it had begun lies before it, and is done."""
    target = tmp_path / "out"
    target.mkdir()
    write_state(target, ExportState("g", 0, SEGMENT))
    with broken.refused():
        export_messages(broken.replica, target, LocalEngine())
    state = read_state(target)
    assert state is not None
    assert (state.done, exported(target)) == (SEGMENT, ["a"])
    assert export_messages(broken.mended(), target, LocalEngine()).messages == 2
    assert exported(target) == ["a", "b", "c"]


def test_a_table_is_of_one_log(broken: Broken, tmp_path: Path) -> None:
    """It has what lies before."""
    pytest.importorskip("deltalake", reason="deltalake isn't installed: pip install '.[audit]'")
    import deltalake

    from audit.tables.delta import DeltaMessages
    from audit.tables.export import export_to_table

    def bodies() -> list[str]:
        rows = deltalake.DeltaTable(target).to_pyarrow_table(columns=["body"])
        return sorted(body.decode().strip() for body in rows["body"].to_pylist())

    target, choice = str(tmp_path / "table"), (None, False)
    with broken.refused():
        export_to_table(broken.replica, DeltaMessages(target), choice)
    assert bodies() == ["a"]
    assert export_to_table(broken.mended(), DeltaMessages(target), choice).messages == 2
    assert bodies() == ["a", "b", "c"]


def test_a_batch_of_spark_is_of_one_log(broken: Broken) -> None:
    """A query, and a stream that takes all there is; no end is named that is another log's, so the
    stream goes on from where it was."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from dledger.spark.source import CommitLogSource

    made = CommitLogSource({"path": str(broken.path), "columns": "body"})
    reader, stream = made.reader(made.schema()), made.streamReader(made.schema())
    first = stream.initialOffset()
    with broken.refused():
        reader.partitions()
    with broken.refused():
        stream.latestOffset(first, ReadAllAvailable())
    before = stream.latestOffset(first, limit := stream.getDefaultReadLimit())
    assert before["offset"] == SEGMENT
    with broken.refused():  # It isn't another log than the one that this has read, but none.
        stream.latestOffset(before, limit)
    with broken.refused():
        stream.partitions(before, {"offset": SEGMENT + 64})
    with broken.refused():
        stream.partitions(first, {"offset": SEGMENT + 64})  # planned by a release before
    broken.mended()
    assert stream.latestOffset(before, limit)["offset"] > SEGMENT
    for read, parts in (
        (reader.read, reader.partitions()),
        (stream.read, stream.partitions(first, stream.latestOffset(first, ReadAllAvailable()))),
    ):
        rows = [row for part in parts for batch in read(part) for row in batch.to_pylist()]
        assert [row["body"].decode().strip() for row in rows] == ["a", "b", "c"]


def test_a_log_that_begins_later_goes_on_from_its_note(tmp_path: Path) -> None:
    """What has gone is missed by nobody, at any moment of a drop; another log's file is."""
    broken = Broken(tmp_path / "it", "foreign")
    own = broken.mended()
    for number, _ in enumerate(dropping(broken.path, start_of(broken.path, 3))):
        done = export_messages(own, tmp_path / f"out{number}", LocalEngine())
        assert (done.start, done.messages) == (SEGMENT, 2)
    exchanged(broken.path, tmp_path / "it" / "other")
    target = tmp_path / "out"
    with broken.refused():
        sum_log(own, LocalEngine())
    with broken.refused():
        export_messages(own, target, LocalEngine())
    assert not list(target.rglob("*.parquet"))


def test_a_table_begins_with_the_entry_behind_the_note(tmp_path: Path) -> None:
    """Another log's file in that place is damage: there is no table yet that was another log's."""
    pytest.importorskip("deltalake", reason="deltalake isn't installed: pip install '.[audit]'")
    from audit.tables.delta import DeltaMessages
    from audit.tables.export import export_to_table

    broken = Broken(tmp_path, "foreign")
    other = broken.file.read_bytes()
    broken.mended()
    for _ in dropping(broken.path, start_of(broken.path, 3)):
        pass
    broken.file.write_bytes(other)
    target = DeltaMessages(str(tmp_path / "table"))
    with broken.refused():
        export_to_table(broken.replica, target, (None, False))
    assert export_to_table(broken.mended(), target, (None, False)).messages == 2


def test_a_seam_that_has_gone_is_in_nobodys_way(tmp_path: Path) -> None:
    """Each run is for a segment that is about to go; the second one doesn't go on from the first.
    Once it has gone, too, the rest is a log."""
    values = [f"{number}".encode().ljust(15_000) for number in range(4)]
    for name, first in (("n1", values[0]), ("n2", values[1])):
        builder = LogBuilder(tmp_path / name, name)
        for entry in (first, *values[1:]):
            builder.add(Entry(1, topic="t", count=1, bodies=(entry,)))
            builder.flush()
        builder.dispatch()
        builder.close()
    starts = [start_of(tmp_path / "n1", index) for index in (3, 4)]
    replica, target = exchanged(tmp_path / "n1", tmp_path / "n2"), tmp_path / "out"
    for _ in dropping(tmp_path / "n1", starts[0]):
        export_messages(replica, target, LocalEngine())
    assert exported(target) == ["2", "3"]
    for _ in dropping(tmp_path / "n1", starts[1]):
        assert export_messages(replica, target, LocalEngine()).messages == 0
    queues = sum_log(replica, LocalEngine()).queues
    assert [each.messages for each in queues.values()] == [1]


def test_a_reader_that_goes_on_living_is_told_once_the_log_has_grown(broken: Broken) -> None:
    """It had followed the first segment, up to the last entry or to the segment's end; and goes on
    once the right file is back."""
    log = committed_log(broken.replica)
    for settled in (log.settled, filler_of(broken.path), SEGMENT):
        lifetimes = Lifetimes(0)
        lifetimes.follow(replace(log, settled=settled))
        lifetimes.follow(log)
        lifetimes.check_to(SEGMENT)
        with broken.refused():
            lifetimes.check_to(SEGMENT + 1)
        with broken.refused():
            lifetimes.follow(log)
            lifetimes.check_to(log.settled)
    lifetimes.follow(committed_log(broken.mended()))
    lifetimes.check_to(log.settled)


def test_a_planned_batch_is_of_one_log_where_less_is_known_committed(broken: Broken) -> None:
    """As for a moment where a replica lost its queues: the batch's end was committed, and still is,
    and what is in it is looked at up to there."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    from dledger.spark.source import CommitLogSource

    whole = committed_log(broken.replica)
    page = broken.path / "checkpoint"
    state = decode_checkpoint(page.read_bytes())
    assert state is not None
    page.write_bytes(encode_checkpoint(replace(state, consume_queue_index=0)))
    made = CommitLogSource({"path": str(broken.path), "columns": "body"})
    stream = made.streamReader(made.schema())
    first = stream.initialOffset()
    assert stream.reportLatestOffset() == {"offset": 0}
    with broken.refused():
        stream.partitions(first, {"offset": whole.settled})
    broken.mended()
    assert len(stream.partitions(first, {"offset": whole.settled})) == 2

"""A backup is a log: what reads one reads it like a member's, up to where it says that it ends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.contents.export import ExportState, export_messages, read_state, write_state
from audit.contents.stats import stats_as_json, sum_log
from audit.engines.engine import Engine, LocalEngine
from audit.errors import UsageMistake
from audit.proof.findings import Cause, Verdict
from audit.proof.log import open_log, verify_log
from audit.proof.soundness import Soundness
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from dledger.reading.backup import FILE, Backup
from dledger.reading.checkpoint import CheckpointState, encode_checkpoint
from dledger.reading.entry import EntryHeader
from dledger.reading.errors import LogDamaged
from dledger.reading.survey import survey_folder
from store.backup import write_backup
from store.files import OsFiles
from tests.audit.replicas import (
    SEGMENT,
    ReplicaSet,
    copy_sparse,
    dropping,
    flip_bit,
    start_of,
)
from tests.audit.test_scope import audit
from tests.audit.test_table import expected_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def backed_up(three: ReplicaSet, folder: Path, last: EntryHeader | None = None) -> Replica:
    """The log as a backup holds it that ends with `last`; behind it lies what one that was
    interrupted copied, to the log's end, of which the checkpoint says that it has to be right."""
    last = last or three.headers[-1]
    shutil.copytree(
        three.paths["n1"] / "commitlog", folder / "commitlog", copy_function=copy_sparse
    )
    page = encode_checkpoint(CheckpointState(watermark=three.end))
    (folder / "checkpoint").write_bytes(page)
    end = last.physical_offset + last.total_size
    said = Backup("g", "n1", SEGMENT, 1, last.index, last.term, last.digest, end, 1)
    write_backup(OsFiles(), folder, said)
    return Replica("b", str(folder))


@pytest.fixture
def backup(three: ReplicaSet, tmp_path: Path) -> Replica:
    return backed_up(three, tmp_path / "backup")


def offsets(three: ReplicaSet, below: int) -> list[int]:
    return [row["physical_offset"] for row in expected_rows(three) if row["index"] <= below]


def exported(target: Path) -> list[int]:
    ds = pytest.importorskip("pyarrow.dataset")
    table = ds.dataset(target, format="parquet", partitioning="hive").to_table(["physical_offset"])
    return sorted(table["physical_offset"].to_pylist())


def test_its_messages_are_exported(
    three: ReplicaSet, backup: Replica, tmp_path: Path, engine: Engine
) -> None:
    """All of them: an export that finds none, and says that it is done, is worse than one that
    fails. It is of the broker group, so that a member's goes on from it."""
    target = tmp_path / "out"
    done = export_messages(backup, target, engine)
    wanted = offsets(three, three.headers[-1].index)
    assert exported(target) == wanted
    assert (done.messages, done.end) == (len(wanted), three.end)
    state = read_state(target)
    assert state is not None
    assert (state.broker_group, state.done) == ("g", three.end)
    assert export_messages(three.replicas[1], target, engine).messages == 0


def test_export_goes_on_from_a_backup_with_a_member(three: ReplicaSet, tmp_path: Path) -> None:
    """And from that with the next backup: they are one log."""
    cut = len(three.headers) // 2
    old = backed_up(three, tmp_path / "old", three.headers[cut])
    new = backed_up(three, tmp_path / "new")
    for name, sources in {"a": (old, three.replicas[0], new), "b": (old, new)}.items():
        for source in sources:
            export_messages(source, tmp_path / name, LocalEngine())
        assert exported(tmp_path / name) == offsets(three, three.headers[-1].index)
    with pytest.raises(UsageMistake, match="is committed to"):
        export_messages(old, tmp_path / "a", LocalEngine())


def test_its_statistics_are_the_members(three: ReplicaSet, backup: Replica, engine: Engine) -> None:
    own = stats_as_json(sum_log(backup, engine))
    assert own == stats_as_json(sum_log(three.replicas[0], engine))
    assert offsets(three, three.headers[-1].index)


@pytest.mark.spark
def test_spark_reads_its_messages(three: ReplicaSet, backup: Replica, spark: SparkSession) -> None:
    from dledger.spark import register

    register(spark)
    frame = spark.read.format("commitlog").load(backup.path)
    found = sorted(row.physical_offset for row in frame.select("physical_offset").collect())
    assert found == offsets(three, three.headers[-1].index)


def test_what_lies_behind_its_end_means_nothing(three: ReplicaSet, tmp_path: Path) -> None:
    """Whatever a backup that was interrupted left: committed entries, a checkpoint that speaks of
    them, or bytes that are none."""
    last = three.headers[len(three.headers) // 2]
    backup = backed_up(three, tmp_path / "b", last)
    end, wanted = last.physical_offset + last.total_size, offsets(three, last.index)
    for number in range(2):
        if number:
            flip_bit(tmp_path / "b" / "commitlog" / f"{end - end % SEGMENT:020d}", end % SEGMENT)
        found = committed_log(backup)
        assert (found.settled, found.settled_index, found.end) == (end, last.index, end)
        total = verify_log(open_log(tmp_path / "b"))
        assert (total.verdict, total.places, total.tail) == (Soundness.SOUND, 0, None)
        assert (total.first_index, total.last_index) == (1, last.index)
        export_messages(backup, tmp_path / f"out{number}", LocalEngine())
        assert exported(tmp_path / f"out{number}") == wanted


def test_its_checkpoint_is_not_needed(three: ReplicaSet, backup: Replica, tmp_path: Path) -> None:
    """What it would say is known."""
    before = survey_folder("b", backup.path)
    (Path(backup.path) / "checkpoint").unlink()
    assert survey_folder("b", backup.path) == before
    export_messages(backup, tmp_path / "out", LocalEngine())
    assert exported(tmp_path / "out") == offsets(three, three.headers[-1].index)


def test_a_backup_that_begins_later_is_read_from_there(three: ReplicaSet, tmp_path: Path) -> None:
    """Where its start note says, whatever its checkpoint does."""
    start = start_of(three.paths["n1"], three.headers[-5].index)
    wanted = [each for each in offsets(three, 1 << 60) if each >= start.offset(SEGMENT)]
    assert start.index > 0
    for _ in dropping(three.paths["n1"], start):
        pass
    backup, last = backed_up(three, tmp_path / "b"), three.headers[-1]
    shutil.copy(three.paths["n1"] / "log_start", tmp_path / "b")
    end = last.physical_offset + last.total_size
    said = Backup("g", "n1", SEGMENT, start.first_index, last.index, last.term, last.digest, end, 1)
    write_backup(OsFiles(), tmp_path / "b", said)
    for has_checkpoint in (True, False):
        if not has_checkpoint:
            (tmp_path / "b" / "checkpoint").unlink()
        total = verify_log(open_log(tmp_path / "b"))
        assert (total.verdict, total.first_index) == (Soundness.SOUND, start.first_index)
        target = tmp_path / f"out{has_checkpoint}"
        export_messages(backup, target, LocalEngine())
        assert exported(target) == wanted


def test_a_backup_that_was_never_finished_is_no_empty_log(
    three: ReplicaSet, backup: Replica, tmp_path: Path
) -> None:
    """Its checkpoint is there before what is in it was judged. What an older release has made of
    such a one is in nobody's way."""
    said = (tmp_path / "backup" / FILE).read_bytes()
    (tmp_path / "backup" / FILE).unlink()
    target = tmp_path / "out"
    with pytest.raises(LogDamaged, match="if it is a backup, it was never finished"):
        export_messages(backup, target, LocalEngine())
    with pytest.raises(LogDamaged):
        sum_log(backup, LocalEngine())
    (tmp_path / "backup" / FILE).write_bytes(said)
    target.mkdir(exist_ok=True)
    write_state(target, ExportState("", 0, 0))
    assert export_messages(backup, target, LocalEngine()).messages
    assert exported(target) == offsets(three, three.headers[-1].index)
    state = read_state(target)
    assert state is not None
    assert state.broker_group == "g"


def test_a_backup_of_which_nobody_can_tell_how_much_is_there_is_refused(
    three: ReplicaSet, backup: Replica, tmp_path: Path
) -> None:
    """Not taken for an empty log, nor for one that ends where its checkpoint says."""
    flip_bit(Path(backup.path) / FILE, 30)
    target = str(tmp_path / "out")
    done = CliRunner().invoke(app, ["export", target, "--replica", f"b={backup.path}"])
    assert done.exit_code == 2
    assert "nobody can tell how much of a backup is there" in done.output.replace("\n", " ")
    report = audit([*three.replicas, backup])
    assert report.verdict is Verdict.INCOMPLETE


def test_its_log_is_compared_with_members_and_it_has_no_queues(
    three: ReplicaSet, backup: Replica
) -> None:
    report = audit([*three.replicas, backup])
    assert (report.verdict, report.findings) == (Verdict.IDENTICAL, ())
    three.flip("n2", three.header_of(after=SEGMENT).physical_offset + 100)
    report = audit([three.replicas[1], backup])
    assert {each.replicas for each in report.findings} == {("n2",)}
    alone = audit([backup])
    assert {each.cause for each in alone.findings} == {Cause.ALONE}
    assert (alone.scope.index, alone.scope.derived_index) == (three.headers[-1].index, 0)

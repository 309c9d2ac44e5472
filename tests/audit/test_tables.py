"""Export into tables of Delta and Iceberg: each message once, whatever happened to runs before.

What a run does is the same for both formats, so each rule is tested with both, as far as their
packages are installed; a format that isn't is skipped by its name.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.errors import TableTaken, TableUnsynced, UsageMistake
from audit.reading.replica import Replica
from audit.tables import durable
from audit.tables.delta import DeltaMessages
from audit.tables.export import STEP_BYTES, TableExported, export_to_table
from audit.tables.mark import Choice, Mark, Queue
from dledger.outcome import ExitCode
from dledger.reading.decode import Records
from dledger.reading.entry import EntryKind
from dledger.reading.errors import EntryDamaged, OtherLog
from store.files import OsFiles
from store.log_start import StartNote
from tests.audit.replicas import (
    COMMAND,
    SEGMENT,
    TIME_MS,
    Entry,
    LogBuilder,
    ReplicaSet,
    build,
    dropping,
    fill_first_segment,
    start_of,
    usual_entries,
)
from tests.audit.tables import PACKAGES, Lake, keys_of, lake_of, use
from tests.audit.test_lifetimes import LIVES, data
from tests.audit.test_table import expected_rows

pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")

from dledger.reading import arrow


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Where tables of one of the formats can be made."""
    if importlib.util.find_spec(PACKAGES[request.param]) is None:
        pytest.skip(f"{PACKAGES[request.param]}: pip install '.[{request.param}]'")
    made = lake_of(request.param, tmp_path / "lake")
    for name in made.environment():
        monkeypatch.setenv(name, "")  # What it is now comes back after the test.
    use(made)
    return made


def export(lake: Lake, replica: Replica, step_bytes: int = STEP_BYTES) -> TableExported:
    """A run that takes everything."""
    return export_to_table(replica, lake.table(), (None, False), step_bytes=step_bytes)


def expected_keys(three: ReplicaSet) -> list[tuple[object, ...]]:
    return sorted(
        (row["topic"], row["incarnation"], row["queue_id"], row["queue_offset"])
        for row in expected_rows(three)
    )


def test_every_message_is_in_the_table_once(three: ReplicaSet, lake: Lake) -> None:
    """With all its columns; a run that finds nothing new makes no version."""
    first = export(lake, three.replicas[0])
    rows = expected_rows(three)
    assert keys_of(lake.rows()) == expected_keys(three)
    found = {(r["physical_offset"], r["body"], r["keys"]) for r in lake.rows().to_pylist()}
    assert found >= {(r["physical_offset"], r["body"], r["keys"]) for r in rows}
    assert (first.messages, first.end) == (len(rows), three.end)
    commits = lake.commits()
    again = export(lake, three.replicas[1])
    assert (again.start, again.messages, again.commits) == (three.end, 0, 0)
    assert lake.commits() == commits


def test_table_grows_with_the_log(tmp_path: Path, lake: Lake) -> None:
    """Each run appends what came since, though its steps are cut elsewhere."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    entries = list(usual_entries(30))
    for part, size in ((entries[:10], 1), (entries[10:13], 3000), (entries[13:], 1 << 20)):
        for entry in part:
            builder.add(entry)
        builder.flush()
        builder.dispatch()
        export(lake, Replica("n1", str(tmp_path / "n1")), step_bytes=size)
        stored = sum(header.record_count for header in builder.headers)
        keys = keys_of(lake.rows())
        assert len(keys) == len(set(keys)) == stored
    builder.close()


def test_transactions_end_where_bodies_grow(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few KiB of log may become gigabytes. They end between entries, and a run that was killed
    behind any goes on there; commands and fillers are between them."""
    sizes = (2, 1, 2, 9, 1, 1)
    entries = [data("t", *(bytes(900) for _ in range(count))) for count in sizes * 4]
    commands = [Entry(1, EntryKind.COMMAND, body=COMMAND) for _ in range(3)]
    entries[3:3] = commands
    build(tmp_path / "n1", [Entry(1, EntryKind.NOOP), *entries])
    replica, to_arrow = Replica("n1", str(tmp_path / "n1")), arrow.to_arrow
    counts: list[int] = []

    class Killed(Exception):
        pass

    class Noting:
        """A table whose process is killed behind each transaction."""

        def __init__(self) -> None:
            self._inner = lake.table()
            self.name, self.next_offset = self._inner.name, self._inner.next_offset
            self.opened, self.sync = self._inner.opened, self._inner.sync
            self.is_there = self._inner.is_there

        def append(self, rows: Any, mark: Mark, offsets: Mapping[Queue, int]) -> None:
            self._inner.append(rows, mark, offsets)
            if rows.num_rows:
                counts.append(rows.num_rows)
                raise Killed

    def in_rows(records: Records) -> Iterator[Any]:
        for batch in to_arrow(records):
            yield from (batch.slice(at, 1) for at in range(batch.num_rows))

    monkeypatch.setattr(arrow, "to_arrow", in_rows)
    for _ in range(100):
        with contextlib.suppress(Killed):
            export_to_table(replica, Noting(), (None, False), rows_bytes=3000)
            break
    keys = keys_of(lake.rows())
    assert len(keys) == len(set(keys)) == sum(counts) == sum(sizes) * 4
    assert max(counts) == max(sizes), "an entry is in one transaction"
    assert len(counts) >= 10


def test_a_table_outlives_the_topics_it_was_begun_with(tmp_path: Path, lake: Lake) -> None:
    """The ConsumeQueues of one that was deleted are gone; for a name that the log knows nothing of
    no table is begun."""
    later = [data("a", bytes(1000)) for _ in range(SEGMENT // 1000)]
    built = build(tmp_path / "n1", [*LIVES, *later])
    replica, chosen = Replica("n1", str(tmp_path / "n1")), (frozenset({"b"}), True)
    for folder in (tmp_path / "n1" / "consumequeue").glob("b*"):
        shutil.rmtree(folder)
    with pytest.raises(UsageMistake, match="no message of topic 'c'"):
        export_to_table(replica, lake.table(), (frozenset({"c"}), True))
    assert export_to_table(replica, lake.table(), chosen).messages == 1
    for _ in dropping(tmp_path / "n1", start_of(tmp_path / "n1", len(built.headers))):
        pass
    assert export_to_table(replica, lake.table(), chosen, accept_retention=True).messages == 0


def test_of_two_runs_that_read_the_same_position_one_wins(three: ReplicaSet, lake: Lake) -> None:
    """The other is told, writes nothing, and has nothing left to do when it is run again."""

    class Slow:
        """A table to which another run gets between reading and appending."""

        def __init__(self) -> None:
            self._inner = lake.table()
            self.name, self.next_offset = self._inner.name, self._inner.next_offset
            self.append, self.sync = self._inner.append, self._inner.sync
            self.is_there = self._inner.is_there

        def opened(self, choice: Choice) -> Mark | None:
            mark = self._inner.opened(choice)
            export(lake, three.replicas[1])
            return mark

    with pytest.raises(TableTaken):
        export_to_table(three.replicas[0], Slow(), (None, False))
    assert keys_of(lake.rows()) == expected_keys(three)
    assert export(lake, three.replicas[0]).commits == 0


def state_of(folder: Path) -> dict[Path, tuple[int, int]]:
    """Every file and folder, by size and when it was changed last."""
    found = {each: each.stat() for each in (folder, *folder.rglob("*"))}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def test_what_a_run_says_is_exported_is_on_disk(
    three: ReplicaSet, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages sync nothing, and an archive lets the segment go by it. Nothing is written after
    the sync, and a run that has nothing to append makes one, too: the one before may have been
    killed behind its commit."""
    synced: list[dict[Path, tuple[int, int]]] = []
    sync = durable._sync_file_system

    def observed(folder: str) -> None:
        assert Path(folder).is_relative_to(lake.folder)
        sync(folder)
        synced.append(state_of(lake.folder))

    monkeypatch.setattr(durable, "_sync_file_system", observed)
    assert export(lake, three.replicas[0], step_bytes=8_000).commits > 1
    assert synced[-1] == state_of(lake.folder)
    assert any(each.suffix == ".parquet" for each in synced[-1])
    synced.clear()
    assert export(lake, three.replicas[0]).commits == 0
    assert synced[-1] == state_of(lake.folder)


def test_table_whose_disk_fails_is_not_exported(
    three: ReplicaSet, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and what to look at."""

    def fail(folder: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), folder)

    monkeypatch.setattr(durable, "_sync_file_system", fail)
    with pytest.raises(TableUnsynced, match=r"isn't known to be on disk \(Input/output") as told:
        export(lake, three.replicas[0])
    assert told.value.exit_code == ExitCode.INCOMPLETE


def test_failure_of_a_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by a number that is easily passed over."""

    class Libc:
        """A disk that failed."""

        def syncfs(self, _descriptor: int) -> int:
            return -1

    durable.sync_folders("t", {str(tmp_path)})
    monkeypatch.setattr(durable, "_LIBC", Libc())
    with pytest.raises(TableUnsynced):
        durable.sync_folders("t", {str(tmp_path)})


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("lake/messages", "lake/messages"),
        ("file:///srv/lake", "/srv/lake"),
        ("file:/srv/lake", "/srv/lake"),
        ("s3://lake/messages", None),
        ("", None),
        (None, None),
    ],
)
def test_folders_are_synced_and_stores_are_not(place: str | None, folder: str | None) -> None:
    assert durable.local_folder(place) == folder


def test_table_in_a_folder_that_an_address_names_is_synced(
    three: ReplicaSet, tmp_path: Path
) -> None:
    """Where a space is %20, as deltalake reads it."""
    pytest.importorskip("deltalake", reason="deltalake isn't installed: pip install '.[delta]'")
    place = f"file://{tmp_path}/a%20lake"
    table = DeltaMessages(place)
    assert export_to_table(three.replicas[0], table, (None, False)).messages
    assert (tmp_path / "a lake").is_dir()


def test_another_log_of_the_same_name_is_refused(
    three: ReplicaSet, tmp_path: Path, lake: Lake
) -> None:
    """A group made anew has other bytes behind the position: its digests say so, not its name."""
    entries = list(usual_entries())
    short = LogBuilder(tmp_path / "old", "n1")
    for entry in [Entry(1, size=99, count=1), *entries[1:20]]:
        short.add(entry)
    short.flush()
    short.dispatch()
    short.close()
    end = export(lake, Replica("n1", str(tmp_path / "old"))).end
    builder = LogBuilder(tmp_path / "new", "n1")
    for entry in [Entry(1, size=98, count=1, bodies=(b"x" * 99,)), *entries[1:]]:
        builder.add(entry)
    builder.flush()
    builder.dispatch()
    builder.close()
    assert any(header.physical_offset == end for header in builder.headers)
    with pytest.raises(UsageMistake, match=f"at byte {end} doesn't follow"):
        export(lake, Replica("n1", str(tmp_path / "new")))


def test_table_is_of_the_choice_it_was_begun_with(three: ReplicaSet, lake: Lake) -> None:
    """Of one group, some topics, and deleted ones or not."""
    replica, orders = three.replicas[0], frozenset({"orders"})
    export_to_table(replica, lake.table(), (orders, False))
    assert {key[0] for key in keys_of(lake.rows())} == {"orders"}
    for other in ((None, False), (frozenset({"events"}), False), (orders, True)):
        with pytest.raises(UsageMistake, match="was begun with orders"):
            export_to_table(replica, lake.table(), other)
    with pytest.raises(UsageMistake, match="broker group 'g'"):
        lake.table().opened(Choice("h", orders, includes_deleted=False))


def test_log_that_is_behind_or_begins_later_is_refused(three: ReplicaSet, lake: Lake) -> None:
    """A hole in the table is the user's decision, and a position never goes back."""
    table = lake.table()
    assert table.opened(Choice("g", None, includes_deleted=False)) is None
    rows = lake.rows().slice(0, 0)
    table.append(rows, Mark(three.header_of(after=5000).physical_offset, 7), {})
    start = start_of(three.paths["n1"], three.header_of(after=SEGMENT).index)
    for _ in dropping(three.paths["n1"], start):
        pass
    with pytest.raises(UsageMistake, match="were deleted on n1 before"):
        export(lake, three.replicas[0])
    table.append(rows, Mark(three.end + SEGMENT, 7), {})
    with pytest.raises(UsageMistake, match="name a replica that is as far"):
        export(lake, three.replicas[1])


@pytest.mark.parametrize("lost", [False, True])
def test_what_goes_by_without_messages_is_no_hole(
    tmp_path: Path, lake: Lake, *, lost: bool
) -> None:
    """What an export has read may go, rows or none, as it does where that is the archive command;
    and a hole that was accepted once isn't one again, though no message has followed it."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    replica = Replica("n1", str(tmp_path / "n1"))
    quiet = Entry(2, EntryKind.COMMAND, body=COMMAND)
    for entry in [*usual_entries(10), Entry(2, count=2)]:
        builder.add(entry)
    builder.flush()
    builder.dispatch()
    rows = export(lake, replica).messages
    assert rows
    if lost:
        builder.add(Entry(2, count=2))
    while builder.headers[-1].physical_offset < 3 * SEGMENT:
        builder.add(quiet)
    builder.flush()
    builder.dispatch()
    if not lost:
        assert export(lake, replica).end == builder.log.end_offset
    builder.close()
    for _ in dropping(builder.path, start_of(builder.path, builder.headers[-1].index)):
        pass
    if lost:
        with pytest.raises(UsageMistake, match="were deleted on n1 before"):
            export(lake, replica)
        export_to_table(replica, lake.table(), (None, False), accept_retention=True)
    assert export(lake, replica).messages == 0
    assert len(keys_of(lake.rows())) == rows


def test_table_that_has_all_but_what_fills_a_segment_up_has_no_hole(
    tmp_path: Path, lake: Lake
) -> None:
    """Of the segment that has gone, and that ended without messages; it goes on behind it."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    end = fill_first_segment(builder)
    replica = Replica("n1", str(tmp_path / "n1"))
    assert export(lake, replica).end == end
    builder.dispatch()
    builder.close()
    for _ in dropping(builder.path, start_of(builder.path, builder.headers[-1].index)):
        pass
    done = export(lake, replica)
    assert (done.start, done.end) == (SEGMENT, builder.log.end_offset)
    assert len(keys_of(lake.rows())) == 4
    assert export(lake, replica).messages == 0


def test_table_of_a_log_that_went_otherwise_is_told_from_this_one(
    three: ReplicaSet, lake: Lake
) -> None:
    """It ended where this one's segment did that has gone, with another entry."""
    table = lake.table()
    assert table.opened(Choice("g", None, includes_deleted=False)) is None
    start = start_of(three.paths["n1"], three.header_of(after=SEGMENT).index)
    table.append(lake.rows().slice(0, 0), Mark(start.end_offset, start.digest ^ 1), {})
    for _ in dropping(three.paths["n1"], start):
        pass
    with pytest.raises(OtherLog, match=f"ended at byte {start.end_offset}"):
        export(lake, three.replicas[0])
    table.append(lake.rows().slice(0, 0), Mark(start.end_offset, start.digest), {})
    assert export(lake, three.replicas[0]).start == SEGMENT


def test_table_begins_with_the_entry_that_the_log_begins_with(
    three: ReplicaSet, lake: Lake
) -> None:
    """What its note says of the one before is what the first has to continue: else it is damaged,
    and not another log than the one that the table has the beginning of, which has none."""
    expected = set(expected_keys(three))
    start = start_of(three.paths["n1"], three.header_of(after=SEGMENT).index)
    for _ in dropping(three.paths["n1"], start):
        pass
    StartNote(OsFiles(), three.paths["n1"]).replace(replace(start, digest=start.digest ^ 1))
    with pytest.raises(EntryDamaged, match=f"{SEGMENT:020} at byte 0: .* with digest"):
        export(lake, three.replicas[0])
    StartNote(OsFiles(), three.paths["n1"]).replace(start)
    export(lake, three.replicas[0])
    found = set(keys_of(lake.rows()))
    assert found < expected
    assert len(found) > 1


def test_export_of_a_damaged_log_ends_before_the_damage(three: ReplicaSet, lake: Lake) -> None:
    """What was before is in the table, with its position; a sound replica goes on from there."""
    expected = expected_keys(three)
    three.flip("n1", three.header_of(after=20_000).physical_offset + 90)
    with pytest.raises(EntryDamaged):
        export(lake, three.replicas[0], step_bytes=4096)
    assert 0 < len(keys_of(lake.rows())) < len(expected)
    export(lake, three.replicas[1])
    assert keys_of(lake.rows()) == expected


def test_queue_that_would_go_back_is_refused(three: ReplicaSet, lake: Lake) -> None:
    """Whatever the position says: the table has those messages."""
    table = lake.table()
    table.opened(Choice("g", None, includes_deleted=False))
    table.append(lake.rows().slice(0, 0), Mark(0, 0), {("orders", 1, 1): 5})
    with pytest.raises(UsageMistake, match="queue 1 of 'orders' up to offset 5"):
        export(lake, three.replicas[0])
    assert not keys_of(lake.rows())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_killed_exports_write_each_message_once(kind: str) -> None:
    """A few kills at random moments; `make table-kills` has many."""
    if importlib.util.find_spec(PACKAGES[kind]) is None:
        pytest.skip(f"{PACKAGES[kind]}: pip install '.[{kind}]'")
    command = ["-m", "tests.audit.table_kills", "--format", kind, "--kills", "3", "--seed", "7"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] >= 3


# What a command says of tables that aren't right.


def told(lake: Lake, three: ReplicaSet, *options: str) -> tuple[int, str]:
    """Exit code, and the one line on standard error."""
    arguments = [
        "export",
        lake.place,
        "--format",
        lake.kind,
        "--replica",
        f"n1={three.paths['n1']}",
    ]
    done = CliRunner().invoke(app, [*arguments, *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    lines = [line for line in done.stderr.splitlines() if line.startswith("dledger: ")]
    return done.exit_code, lines[0] if lines else done.stdout


def test_table_that_lacks_some_of_a_segment_is_no_archive_of_it(tmp_path: Path, lake: Lake) -> None:
    """The command that is given a segment before it goes ends with 3 where what is known committed
    ends before, were it by an entry without a message; with 0 once only a filler is behind."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    fill_first_segment(builder)
    last = builder.headers[-3]
    builder.log.checkpoint.note_consume_queue(last.index - 1, TIME_MS)
    first, second = sorted((builder.path / "commitlog").iterdir())[:2]

    def archived(segment: Path) -> tuple[int, str]:
        replica = ["--replica", f"n1={builder.path}", "--through", str(segment)]
        command = ["export", lake.place, "--format", lake.kind, *replica]
        done = CliRunner().invoke(app, command)
        return done.exit_code, done.stderr

    code, said = archived(first)
    assert code == ExitCode.INCOMPLETE
    assert f"up to byte {last.physical_offset}, " in said
    assert f"{first} ends at {SEGMENT}" in said
    assert len(keys_of(lake.rows())) == 2
    builder.dispatch(last.index)
    assert archived(first)[0] == 0
    assert archived(second)[0] == ExitCode.INCOMPLETE
    builder.dispatch()
    builder.close()
    assert archived(first)[0] == 0
    assert archived(builder.path / "checkpoint")[0] == ExitCode.USAGE


def test_command_says_what_it_did(three: ReplicaSet, lake: Lake) -> None:
    """In words, and as JSON."""
    code, said = told(lake, three)
    assert code == 0
    assert said.startswith(f"{len(expected_keys(three))} messages of bytes 0 to {three.end} in")
    code, said = told(lake, three, "--json")
    assert json.loads(said) == {
        "start": three.end, "end": three.end, "messages": 0, "commits": 0,
    }  # fmt: skip


def test_command_refuses_what_no_export_made(three: ReplicaSet, lake: Lake) -> None:
    """Another's table, and a table that is half gone, each with a line and exit code 2."""
    told(lake, three)
    if lake.kind == "delta":
        import deltalake
        import pyarrow as pa

        log = lake.folder / "messages" / "_delta_log"
        shutil.move(log, lake.folder / "log")
        assert told(lake, three) == (
            2, f"dledger: {lake.place} isn't empty and holds no table (any more)",
        )  # fmt: skip
        shutil.rmtree(lake.folder / "messages")
        deltalake.write_deltalake(lake.place, pa.table({"topic": ["orders"]}))
    else:
        raw = lake.raw()
        metadata = Path(raw.metadata_location.removeprefix("file://"))
        hidden = metadata.rename(metadata.with_suffix(".away"))
        code, said = told(lake, three)
        assert (code, "can't be read as an Iceberg table" in said) == (2, True), said
        hidden.rename(metadata)
        with raw.transaction() as change:
            change.remove_properties("dledger.format")
    code, said = told(lake, three)
    assert (code, said) == (2, f"dledger: {lake.place} is a table that no export made")


def test_command_refuses_a_table_whose_schema_has_changed(three: ReplicaSet, lake: Lake) -> None:
    """One line names the columns that it has."""
    told(lake, three)
    if lake.kind == "delta":
        from deltalake import Field

        lake.raw().alter.add_columns([Field("more", "string")])
    else:
        with lake.raw().update_schema() as change:
            change.rename_column("body", "content")
    code, said = told(lake, three)
    assert (code, "has another schema than an export: topic" in said) == (2, True), said


def test_command_refuses_names_that_lead_nowhere(three: ReplicaSet, tmp_path: Path) -> None:
    """No such catalog, no name of a table, an address with credentials, an engine for a table."""
    pytest.importorskip("pyiceberg", reason="pyiceberg: pip install '.[iceberg]'")
    replica = ["--replica", f"n1={three.paths['n1']}"]
    for arguments, words in (
        (["nowhere.broker.messages", "--format", "iceberg"], "no Iceberg catalog 'nowhere'"),
        (["messages", "--format", "iceberg"], "CATALOG.NAMESPACE.TABLE"),
        (["s3://me:secret@lake/messages", "--format", "delta"], "with credentials in it"),
        ([str(tmp_path / "t"), "--format", "delta", "--engine", "spark"], "no --engine"),
    ):
        done = CliRunner().invoke(app, ["export", *arguments, *replica])
        assert done.exit_code == 2, done.output
        assert words in done.stderr
        assert "secret" not in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_restored_delta_table_ends_the_export(
    three: ReplicaSet, tmp_path: Path, lake: Lake
) -> None:
    """Its rows went back, and its position stayed: going on would leave a hole."""
    if lake.kind != "delta":
        pytest.skip("an Iceberg table's position goes back with its rows")
    export(lake, three.replicas[0], step_bytes=4096)
    lake.raw().restore(2)
    with pytest.raises(UsageMistake, match="was restored to an older version"):
        export(lake, three.replicas[0])


def forget_commits(lake: Lake) -> None:
    """The table's log is cleaned up: a checkpoint stands for all commits but the newest, which is
    nobody's that matters, as it does after 30 days."""
    lake.raw().alter.set_table_properties({"delta.appendOnly": "false"})
    lake.raw().create_checkpoint()
    *old, _ = sorted((lake.folder / "messages" / "_delta_log").glob("*.json"))
    for file in old:
        file.unlink()


@pytest.mark.parametrize("version", [0, 2])
def test_restored_delta_table_ends_the_export_when_its_log_has_forgotten_it(
    three: ReplicaSet, tmp_path: Path, version: int
) -> None:
    """That rows are missing which came last is seen for ever, whatever others do meanwhile."""
    lake = lake_of("delta", tmp_path / "lake")
    export(lake, three.replicas[0], step_bytes=4096)
    lake.raw().restore(version)
    before = lake.rows().num_rows
    forget_commits(lake)
    with pytest.raises(UsageMistake, match="rows that were exported last aren't there any more"):
        export(lake, three.replicas[0])
    assert lake.rows().num_rows == before


def test_rows_that_others_deleted_are_no_restore(three: ReplicaSet, tmp_path: Path) -> None:
    """As long as the table's log tells all that was done since."""
    lake = lake_of("delta", tmp_path / "lake")
    export(lake, three.replicas[0], step_bytes=4096)
    lake.raw().delete("topic = 'orders'")
    lake.raw().delete("topic = 'events'")
    assert export(lake, three.replicas[0]).commits == 0


def test_who_deleted_the_newest_rows_says_so(three: ReplicaSet, tmp_path: Path) -> None:
    """With what docs/tables.md has for it, once the table's log has forgotten why they are gone."""
    lake = lake_of("delta", tmp_path / "lake")
    export(lake, three.replicas[0], step_bytes=4096)
    lake.raw().delete("topic = 'orders'")
    lake.raw().delete("topic = 'events'")
    forget_commits(lake)
    with pytest.raises(UsageMistake, match=r"docs/tables\.md"):
        export(lake, three.replicas[0])
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```python\n(.*?)```", page.partition("*restored*")[2], re.DOTALL)
    exec(recipe, {"place": lake.raw().table_uri})
    assert export(lake, three.replicas[0]).commits == 0
    lake.raw().restore(lake.raw().version() - 1)
    with pytest.raises(UsageMistake, match="was restored to an older version"):
        export(lake, three.replicas[0])


def test_rows_that_others_compacted_are_there(three: ReplicaSet, tmp_path: Path) -> None:
    """Whatever the table's log has forgotten."""
    lake = lake_of("delta", tmp_path / "lake")
    export(lake, three.replicas[0], step_bytes=4096)
    lake.raw().optimize.compact()
    forget_commits(lake)
    assert export(lake, three.replicas[0]).commits == 0
    assert keys_of(lake.rows()) == expected_keys(three)


def test_delta_table_of_the_release_before_goes_on(three: ReplicaSet, tmp_path: Path) -> None:
    """It doesn't say which row was its last one, and is believed."""
    lake = lake_of("delta", tmp_path / "lake")
    table = lake.table()
    assert table.opened(Choice("g", None, includes_deleted=False)) is None
    lake.raw().delete()
    import deltalake

    said = {"dledger.position": three.end, "dledger.digest": 0}
    deltalake.write_deltalake(
        lake.raw(),
        lake.rows(),
        mode="append",
        commit_properties=deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(name, at) for name, at in said.items()]
        ),
    )
    forget_commits(lake)
    assert lake.table().opened(Choice("g", None, includes_deleted=False)) is not None


def test_delta_table_without_statistics_goes_by_its_log(three: ReplicaSet, tmp_path: Path) -> None:
    """Somebody wanted none: nothing tells which rows its files hold, and so none is missed."""
    lake = lake_of("delta", tmp_path / "lake")
    assert export(lake, three.replicas[0], step_bytes=4096).commits
    lake.raw().alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    lake.raw().optimize.compact()
    forget_commits(lake)
    assert export(lake, three.replicas[0]).commits == 0


def test_rolled_back_iceberg_table_is_filled_again(three: ReplicaSet, lake: Lake) -> None:
    """The position is the snapshot's, so what was rolled back is appended again, once."""
    if lake.kind != "iceberg":
        pytest.skip("a Delta table's position stays when its rows go back")
    export(lake, three.replicas[0], step_bytes=4096)
    raw = lake.raw()
    with raw.manage_snapshots() as manage:
        manage.rollback_to_snapshot(raw.snapshots()[1].snapshot_id)
    assert len(keys_of(lake.rows())) < len(expected_keys(three))
    export(lake, three.replicas[0])
    assert keys_of(lake.rows()) == expected_keys(three)


@pytest.mark.parametrize("left", ["", "_commit_0.json.tmp", f"{0:020d}.json#1"])
def test_a_table_that_was_only_begun_is_made(three: ReplicaSet, tmp_path: Path, left: str) -> None:
    """By a process that was killed before the first version had its name."""
    lake = lake_of("delta", tmp_path / "lake")
    use(lake)
    log = lake.folder / "messages" / "_delta_log"
    log.mkdir(parents=True)
    if left:
        (log / left).touch()
    code, _ = told(lake, three)
    assert code == 0
    assert lake.rows()

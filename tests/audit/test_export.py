"""Export to Parquet and statistics: every message once, however often and with either engine."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.contents.export import (
    STATE_FILE,
    ExportState,
    export_messages,
    read_state,
    write_state,
)
from audit.contents.stats import bucket_of, counted_percentile, stats_as_json, sum_log
from audit.engines.engine import Engine, LocalEngine
from audit.errors import UsageMistake
from audit.reading.replica import Replica
from dledger.outcome import ExitCode
from dledger.reading.entry import EntryKind
from dledger.reading.errors import EntryDamaged, OtherLog
from dledger.reading.places import Place
from dledger.reading.survey import survey_folder
from tests.audit.replicas import (
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
from tests.audit.test_table import expected_rows

pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")


def exported_offsets(target: Path) -> list[int]:
    import pyarrow.dataset as ds

    table = ds.dataset(target, format="parquet", partitioning="hive").to_table(["physical_offset"])
    return sorted(table["physical_offset"].to_pylist())


def test_every_message_is_exported_once(three: ReplicaSet, tmp_path: Path, engine: Engine) -> None:
    """By topic and date; a second run has nothing to do and changes nothing."""
    target = tmp_path / "out"
    first = export_messages(three.replicas[0], target, engine)
    expected = [row["physical_offset"] for row in expected_rows(three)]
    assert exported_offsets(target) == expected
    assert (first.messages, first.end) == (len(expected), three.end)
    folders = {str(p.parent.relative_to(target)) for p in target.rglob("*.parquet")}
    assert folders == {"topic=orders/date=2023-11-14", "topic=events/date=2023-11-14"}
    again = export_messages(three.replicas[0], target, engine)
    assert (again.messages, again.files) == (0, 0)
    assert exported_offsets(target) == expected


def test_export_goes_on_where_it_ended(tmp_path: Path) -> None:
    """The log grows between two runs; each exports its part."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    replica = Replica("n1", str(tmp_path / "n1"))
    entries = list(usual_entries(50))
    sizes = []
    for part in (entries[:20], entries[20:]):
        for entry in part:
            builder.add(entry)
            builder.flush()
        builder.dispatch()
        sizes.append(export_messages(replica, tmp_path / "out", LocalEngine()).messages)
    builder.close()
    offsets = exported_offsets(tmp_path / "out")
    assert len(offsets) == len(set(offsets)) == sum(sizes)
    assert all(sizes)


def test_export_goes_on_with_its_own_log_only(tmp_path: Path) -> None:
    """A directory with another one that is longer, be it alike up to some place; a run that broke
    off is taken up in its own log only, too. What the release before left is believed."""
    path, target, entries = tmp_path / "n1", tmp_path / "out", list(usual_entries(20))
    replica = Replica("n1", str(path))
    other = replace(entries[-1], producer=bytes(15) + b"x")
    build(path, entries[:10])
    first = export_messages(replica, target, LocalEngine())
    before, files = read_state(target), exported_offsets(target)
    for changed in ([other, *entries], [*entries[:9], other, *entries]):
        shutil.rmtree(path)
        build(path, changed)
        with pytest.raises(OtherLog, match=f"read up to byte {first.end}"):
            export_messages(replica, target, LocalEngine())
        assert (read_state(target), exported_offsets(target)) == (before, files)
    assert before is not None
    shutil.rmtree(path)
    builder = build(path, [*entries[:10], other, *entries])
    end = builder.headers[14].physical_offset
    write_state(target, replace(before, pending=end, pending_digest=1))
    with pytest.raises(OtherLog, match=f"read up to byte {end}"):
        export_messages(replica, target, LocalEngine())
    write_state(target, replace(before, pending=end, pending_digest=builder.headers[13].digest))
    assert export_messages(replica, target, LocalEngine()).end == builder.log.end_offset


def test_export_of_the_release_before_goes_on(tmp_path: Path) -> None:
    """It kept no digests, and is believed; from the next run on it has them."""
    path, target, entries = tmp_path / "n1", tmp_path / "out", list(usual_entries(20))
    replica = Replica("n1", str(path))
    build(path, entries[:10])
    first = export_messages(replica, target, LocalEngine())
    state = json.loads((target / STATE_FILE).read_text())
    del state["done_digest"], state["pending_digest"]
    (target / STATE_FILE).write_text(json.dumps(state))
    shutil.rmtree(path)
    builder = build(path, [replace(each, producer=bytes(15) + b"x") for each in entries])
    assert export_messages(replica, target, LocalEngine()).start == first.end
    again = read_state(target)
    assert again is not None
    assert again.done_place == Place(builder.log.end_offset, "g", builder.headers[-1].digest)


def test_export_is_of_the_topics_it_was_begun_with(three: ReplicaSet, tmp_path: Path) -> None:
    """One position stands for all of them: what a later run wants more would be missing below."""
    replica, target, engine = three.replicas[0], tmp_path / "out", LocalEngine()
    orders = frozenset({"orders"})
    first = export_messages(replica, target, engine, orders)
    expected = [row["physical_offset"] for row in expected_rows(three) if row["topic"] == "orders"]
    assert exported_offsets(target) == expected
    for other in (None, frozenset({"events"}), frozenset({"events", "orders"})):
        with pytest.raises(UsageMistake, match="begun with --topic orders"):
            export_messages(replica, target, engine, other)
    again = export_messages(replica, target, engine, orders)
    assert (again.start, again.files) == (first.end, 0)
    assert exported_offsets(target) == expected


@pytest.mark.parametrize("is_bare", [False, True])
def test_log_of_which_nothing_is_known_committed_is_not_empty(
    three: ReplicaSet, tmp_path: Path, is_bare: bool
) -> None:
    """Without its checkpoint a copy holds messages and nothing says which: none of them is no
    answer, and an export that ends well is taken for one that has them all."""
    path = three.paths["n1"]
    if is_bare:
        path = (path / "commitlog").rename(tmp_path / "bare")
    else:
        (path / "checkpoint").unlink()
    for command in (["export", str(tmp_path / "out")], ["stats"]):
        result = CliRunner().invoke(app, [*command, "--replica", f"n1={path}"])
        assert result.exit_code == 1
        assert "no readable checkpoint" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [45, -1])
def test_damage_is_no_silent_end(three: ReplicaSet, tmp_path: Path, number: int) -> None:
    """What is behind a header that has rotten, or in the last entry, is committed, and not
    exported: so nothing of the run counts as done, and the place is told."""
    entry = three.headers[number]
    three.flip("n1", entry.physical_offset + 5)
    settled = survey_folder("n1", str(three.paths["n1"])).settled
    assert settled == (three.end if number >= 0 else entry.physical_offset)
    for command in (["export", str(tmp_path / "out")], ["stats"]):
        result = CliRunner().invoke(app, [*command, "--replica", f"n1={three.paths['n1']}"])
        assert result.exit_code == 1, command
        assert str(entry.physical_offset % SEGMENT) in result.stderr
    state = read_state(tmp_path / "out") if (tmp_path / "out").exists() else None
    assert state is None or state.done == 0
    three.flip("n1", entry.physical_offset + 5)
    exported = export_messages(three.replicas[0], tmp_path / "out", LocalEngine())
    assert exported.messages == len(expected_rows(three))


@pytest.mark.parametrize("broken_off", [False, True])
def test_what_was_let_go_unexported_is_no_silent_hole(
    three: ReplicaSet, tmp_path: Path, broken_off: bool
) -> None:
    """The run is refused, by bytes, unless that is accepted; then it goes on behind the hole, and
    the next one behind that."""
    replica, target = three.replicas[0], tmp_path / "out"
    target.mkdir()
    expected = [row["physical_offset"] for row in expected_rows(three)]
    done = three.header_of(after=5000).physical_offset
    pending = three.header_of(after=9000).physical_offset if broken_off else done
    write_state(target, ExportState("g", done, pending))
    start = start_of(three.paths["n1"], three.header_of(after=SEGMENT).index)
    for _ in dropping(three.paths["n1"], start):
        pass
    command = ["export", str(target), "--replica", f"n1={three.paths['n1']}"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert f"bytes {done} to {SEGMENT} of the log were deleted on n1" in refused.stderr
    assert read_state(target) == ExportState("g", done, pending)
    went_on = CliRunner().invoke(app, [*command, "--accept-retention"])
    assert went_on.exit_code == 0, went_on.stderr
    assert exported_offsets(target) == [each for each in expected if each >= SEGMENT]
    again = export_messages(replica, target, LocalEngine())
    assert (again.start, again.end, again.files) == (three.end, three.end, 0)


def test_an_export_that_was_done_goes_on_behind_what_retention_took(
    three: ReplicaSet, tmp_path: Path
) -> None:
    """It ended where nothing is left to compare with, by a digest of its own."""
    replica, target = three.replicas[0], tmp_path / "out"
    export_messages(replica, target, LocalEngine())
    whole = read_state(target)
    assert whole is not None
    early = three.header_of(after=5000)
    write_state(
        target,
        replace(
            whole,
            done=early.physical_offset,
            pending=early.physical_offset,
            done_digest=7,
            pending_digest=7,
        ),
    )
    for _ in dropping(
        three.paths["n1"], start_of(three.paths["n1"], three.header_of(after=SEGMENT).index)
    ):
        pass
    done = export_messages(replica, target, LocalEngine(), accept_retention=True)
    assert (done.start, done.end) == (SEGMENT, three.end)


def test_an_export_that_has_all_but_what_fills_a_segment_up_has_no_hole(tmp_path: Path) -> None:
    """Of the segment that has gone; it goes on behind it, unless that was another log's."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    end = fill_first_segment(builder)
    replica, target = Replica("n1", str(tmp_path / "n1")), tmp_path / "out"
    assert export_messages(replica, target, LocalEngine()).end == end
    builder.dispatch()
    builder.close()
    for _ in dropping(builder.path, start_of(builder.path, builder.headers[-1].index)):
        pass
    state = read_state(target)
    assert state is not None
    assert state.done_digest is not None
    write_state(target, replace(state, done_digest=state.done_digest ^ 1))
    with pytest.raises(OtherLog, match=f"ended at byte {end}"):
        export_messages(replica, target, LocalEngine())
    write_state(target, state)
    done = export_messages(replica, target, LocalEngine())
    assert (done.start, done.end) == (SEGMENT, builder.log.end_offset)
    assert len(exported_offsets(target)) == 4


def test_an_export_that_lacks_some_of_a_segment_is_no_archive_of_it(tmp_path: Path) -> None:
    """The command that is given a segment before it goes ends with 3 where what is known committed
    ends before; with 0 once nothing but a filler is behind."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    fill_first_segment(builder)
    last = builder.headers[-3]
    builder.log.checkpoint.note_consume_queue(last.index - 1, TIME_MS)
    first, second = sorted((builder.path / "commitlog").iterdir())[:2]
    command = ["export", str(tmp_path / "out"), "--replica", f"n1={builder.path}", "--through"]
    refused = CliRunner().invoke(app, [*command, str(first)])
    assert refused.exit_code == ExitCode.INCOMPLETE
    assert f"up to byte {last.physical_offset}, " in refused.stderr
    assert f"{first} ends at {SEGMENT}" in refused.stderr
    assert len(exported_offsets(tmp_path / "out")) == 2, "what there is is exported"
    builder.dispatch(last.index)
    done = CliRunner().invoke(app, [*command, str(first)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert CliRunner().invoke(app, [*command, str(second)]).exit_code == ExitCode.INCOMPLETE
    builder.dispatch()
    builder.close()
    assert CliRunner().invoke(app, [*command, str(first)]).exit_code == 0
    for path in (builder.path / "checkpoint", builder.path / "commitlog" / f"{7 * SEGMENT:020}"):
        mistaken = CliRunner().invoke(app, [*command, str(path)])
        assert mistaken.exit_code == ExitCode.USAGE
        assert "names no segment" in mistaken.stderr


def test_export_begins_where_the_log_does(three: ReplicaSet, tmp_path: Path) -> None:
    """A first one has all that there is, and nothing to accept."""
    start = start_of(three.paths["n1"], three.header_of(after=SEGMENT).index)
    for _ in dropping(three.paths["n1"], start):
        pass
    done = export_messages(three.replicas[0], tmp_path / "out", LocalEngine())
    assert (done.start, done.end) == (SEGMENT, three.end)


def test_broken_off_export_is_repeated_over_the_same_ranges(tmp_path: Path) -> None:
    """A run wrote its files and not that it is done, and the log has grown since: the next one
    replaces the same files, so that no message is in two, and goes on behind them."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    replica, target = Replica("n1", str(tmp_path / "n1")), tmp_path / "out"
    entries = list(usual_entries(50))
    for entry in entries[:10]:
        builder.add(entry)
    builder.flush()
    builder.dispatch()
    first = export_messages(replica, target, LocalEngine())
    before = exported_offsets(target)
    write_state(target, ExportState("g", 0, first.end))
    for entry in entries[10:]:
        builder.add(entry)
    builder.flush()
    builder.dispatch()
    ended: list[int] = []
    repeated = export_messages(replica, target, telling(ended, target))
    builder.close()
    assert ended == [first.end, repeated.end]
    assert (repeated.start, repeated.end) == (0, builder.log.end_offset)
    assert set(before) <= set(exported_offsets(target))
    offsets = exported_offsets(target)
    assert len(offsets) == len(set(offsets)) == sum(h.record_count for h in builder.headers)


def telling(ended: list[int], target: Path) -> Engine:
    """An engine that tells up to where each of an export's steps will go."""

    class Telling(LocalEngine):
        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            state = read_state(target)
            assert state is not None
            ended.append(state.pending)
            return super().run(work, tasks, progress)

    return Telling(processes=1)


def elsewhere(away: Path) -> Engine:
    """An engine of another machine, whose folder of that name is `away`."""

    class Elsewhere(LocalEngine):
        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            return super().run(work, [replace(each, target=str(away)) for each in tasks], progress)

    return Elsewhere(processes=1)


@pytest.mark.parametrize("has_folder", [False, True])
def test_what_was_written_elsewhere_is_not_done(
    three: ReplicaSet, tmp_path: Path, has_folder: bool
) -> None:
    """Executors that don't have the target make none and say so; of those that have another folder
    under its name the files are missed here. Nothing counts as done, and the next run writes it."""
    replica, target, away = three.replicas[0], tmp_path / "out", tmp_path / "away"
    if has_folder:
        away.mkdir()
    with pytest.raises(UsageMistake, match="/out has to be one folder for whoever"):
        export_messages(replica, target, elsewhere(away))
    assert away.exists() is has_folder
    state = read_state(target)
    assert state is not None
    assert (state.done, state.pending) == (0, three.end)
    assert not list(target.rglob("*.parquet"))
    done = export_messages(replica, target, LocalEngine())
    assert (done.start, done.end) == (0, three.end)
    assert exported_offsets(target) == [row["physical_offset"] for row in expected_rows(three)]


def test_what_lies_here_is_what_was_written(three: ReplicaSet, tmp_path: Path) -> None:
    """A file of the name and of another size isn't it: a run that broke off may have left one."""
    replica, target, away = three.replicas[0], tmp_path / "out", tmp_path / "away"
    export_messages(replica, target, LocalEngine())
    shutil.copytree(target, away)
    write_state(target, ExportState("g", 0, three.end))
    next(target.rglob("*.parquet")).write_bytes(b"cut short")
    with pytest.raises(UsageMistake, match="has to be one folder"):
        export_messages(replica, target, elsewhere(away))
    state = read_state(target)
    assert state is not None
    assert state.done == 0


def test_target_is_the_same_in_whatever_folder_work_is_done(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's current folder is another one than the command's."""
    (tmp_path / "here").mkdir()
    (tmp_path / "work").mkdir()

    class Worker(LocalEngine):
        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            with contextlib.chdir(tmp_path / "work"):
                return super().run(work, tasks, progress)

    monkeypatch.chdir(tmp_path / "here")
    export_messages(three.replicas[0], Path("out"), Worker(processes=1))
    expected = [row["physical_offset"] for row in expected_rows(three)]
    assert exported_offsets(tmp_path / "here" / "out") == expected
    assert not list((tmp_path / "work").iterdir())


def test_two_runs_at_once_are_one(three: ReplicaSet, tmp_path: Path) -> None:
    """The second is refused while the first is at its files, and has nothing to do afterwards; what
    was there before is as it was."""
    replica, target = three.replicas[0], tmp_path / "out"

    class Slow(LocalEngine):
        """Somebody else runs the same export meanwhile."""

        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            command = ["export", str(target), "--replica", f"n1={three.paths['n1']}"]
            refused = CliRunner().invoke(app, command)
            assert refused.exit_code == 3
            assert "another export writes to" in refused.stderr
            return super().run(work, tasks, progress)

    first = export_messages(replica, target, Slow(processes=1))
    assert first.messages == len(expected_rows(three))
    again = export_messages(replica, target, LocalEngine())
    assert (again.files, exported_offsets(target)) == (
        0,
        [row["physical_offset"] for row in expected_rows(three)],
    )


def test_what_is_done_is_on_the_disk(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file before it has its name; each name, of files and of folders, before the run says
    that it is done; and that it says so before it ends."""
    target = tmp_path / "new" / "out"
    synced: set[tuple[int, int]] = set()  # inodes, as large as they were: files don't change later
    names_of: dict[int, set[str]] = {}  # folders, by their inodes: what was in them when synced
    fsync, rename = os.fsync, Path.replace

    def noting_fsync(descriptor: int) -> None:
        fsync(descriptor)
        state = os.fstat(descriptor)
        synced.add((state.st_ino, state.st_size))
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            names_of[state.st_ino] = set(os.listdir(descriptor))

    def noting_rename(path: Path, name: Path) -> Path:
        state = path.stat()
        assert (state.st_ino, state.st_size) in synced, name
        if name.name == STATE_FILE and json.loads(path.read_bytes())["done"] == three.end:
            check_names()
        return rename(path, name)

    def check_names() -> None:
        for folder, folders, files in os.walk(target):
            wanted = {*folders, *(each for each in files if each.endswith(".parquet"))}
            assert wanted <= names_of.get(os.stat(folder).st_ino, set()), folder

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "replace", noting_rename)
    export_messages(three.replicas[0], target, LocalEngine(processes=1))
    monkeypatch.undo()
    check_names()
    assert STATE_FILE in names_of[target.stat().st_ino]
    assert names_of[tmp_path.stat().st_ino] >= {"new"}
    assert names_of[target.parent.stat().st_ino] == {"out"}


def test_first_run_that_breaks_off_is_gone_on_with(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was killed, or found no space: what it left is an export's. And the target's own
    name is on the disk by the time that the state is, whoever made the folder."""
    expected = [row["physical_offset"] for row in expected_rows(three)]
    fsync, rename = os.fsync, Path.replace
    for calls in range(12):
        target, left = tmp_path / f"{calls}" / "out", [calls]
        synced: set[int] = set()

        def counted(*_: object, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.ENOSPC, "No space left on device")

        def failing_fsync(descriptor: int, synced: set[int] = synced) -> None:
            counted()
            fsync(descriptor)
            synced.add(os.fstat(descriptor).st_ino)

        def failing_rename(path: Path, name: Path) -> Path:
            counted()
            return rename(path, name)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing_fsync)
            patched.setattr(Path, "replace", failing_rename)
            with contextlib.suppress(OSError, UsageMistake):
                export_messages(three.replicas[0], target, LocalEngine(processes=1))
            had_state = (target / STATE_FILE).exists()
            synced.clear()
            left[0] = 1000
            export_messages(three.replicas[0], target, LocalEngine(processes=1))
        assert exported_offsets(target) == expected
        assert had_state or target.parent.stat().st_ino in synced


ODD_TOPICS = ("a%41", "aA", "a%", "a%25", "%DLQ%ac", "%RETRY%dd")


def of_odd_topics(path: Path) -> Replica:
    """A log with a message of each of them, whose body is the topic's name."""
    entries = [Entry(1, topic=each, count=1, bodies=(each.encode(),)) for each in ODD_TOPICS]
    build(path, [Entry(1, EntryKind.NOOP), *entries])
    return Replica(path.name, str(path))


def topics_read(target: Path) -> list[tuple[str, str]]:
    """What a reader of such folders takes for the topic of each message, and the true one."""
    import pyarrow.dataset as ds

    rows = ds.dataset(target, format="parquet", partitioning="hive").to_table(["topic", "body"])
    return sorted((row["topic"], row["body"].decode()) for row in rows.to_pylist())


def test_readers_of_folders_see_each_topic_as_it_is_called(tmp_path: Path) -> None:
    """They decode %41 to A and end at %ac, which is no text; both are in names of topics."""
    export_messages(of_odd_topics(tmp_path / "n1"), tmp_path / "out", LocalEngine(processes=1))
    assert topics_read(tmp_path / "out") == sorted((each, each) for each in ODD_TOPICS)


def test_what_a_broken_off_run_wrote_under_raw_names_is_written_once(tmp_path: Path) -> None:
    """The release before named folders by topics as they are, so that one's name may be what
    another one's is now; what was done then stays."""
    replica, target = of_odd_topics(tmp_path / "n1"), tmp_path / "out"
    first = export_messages(replica, target, LocalEngine(processes=1))
    before = {each.relative_to(target) for each in target.rglob("*.parquet")}
    (file,) = target.glob("topic=%25DLQ%25ac/date=*/*.parquet")
    for raw in ("%DLQ%ac", "a%2525", "a%25"):
        folder = target / f"topic={raw}" / file.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)
    done = target / "topic=%DLQ%ac" / file.parent.name / f"{0:020d}-{0:020d}.parquet"
    done.touch()
    write_state(target, ExportState("g", 0, first.end))
    export_messages(replica, target, LocalEngine(processes=1))
    assert {each.relative_to(target) for each in target.rglob("*.parquet")} == {
        *before,
        done.relative_to(target),
    }
    done.unlink()
    assert topics_read(target) == sorted((each, each) for each in ODD_TOPICS)


def test_what_a_broken_off_run_left_unfinished_is_removed(
    three: ReplicaSet, tmp_path: Path
) -> None:
    """Files on their way have names of their own, which no later run gives again."""
    replica, target = three.replicas[0], tmp_path / "out"
    first = export_messages(replica, target, LocalEngine())
    file = next(target.rglob("*.parquet"))
    left = file.with_name(f"_{file.name}.1-2.new")
    left.touch()
    write_state(target, ExportState("g", 0, first.end))
    export_messages(replica, target, LocalEngine())
    assert not left.exists()
    assert not list(target.rglob("_*.new"))


def test_export_of_a_damaged_log_is_not_done(three: ReplicaSet, tmp_path: Path) -> None:
    """The damage is named, and the next run begins at the same place."""
    three.flip("n1", three.header_of(after=20_000).physical_offset + 90)
    with pytest.raises(EntryDamaged):
        export_messages(three.replicas[0], tmp_path / "out", LocalEngine())
    state = read_state(tmp_path / "out")
    assert state is not None
    assert state.done == 0


def test_folder_of_something_else_is_left_alone(three: ReplicaSet, tmp_path: Path) -> None:
    """A folder with other files, or another group's export, is refused."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(UsageMistake, match="holds no export"):
        export_messages(three.replicas[0], tmp_path / "mine", LocalEngine())
    (tmp_path / "out").mkdir()
    write_state(tmp_path / "out", ExportState("other", 0, 0))
    with pytest.raises(UsageMistake, match="group 'other'"):
        export_messages(three.replicas[0], tmp_path / "out", LocalEngine())


def test_sums_are_those_of_the_messages(three: ReplicaSet, engine: Engine) -> None:
    """Messages, bytes and times of each queue, and the hottest keys."""
    sums = sum_log(three.replicas[1], engine)
    rows = expected_rows(three)
    assert Counter({q: s.messages for q, s in sums.queues.items()}) == Counter(
        (row["topic"], row["queue_id"]) for row in rows
    )
    assert sum(s.body_bytes for s in sums.queues.values()) == sum(len(r["body"]) for r in rows)
    assert sums.keys == Counter((row["topic"], row["keys"]) for row in rows)
    orders = sums.topics()["orders"]
    times = [row["store_time"] for row in rows if row["topic"] == "orders"]
    assert (orders.first_ms, orders.last_ms) == (min(times), max(times))
    facts = stats_as_json(sums)
    assert isinstance(facts["topics"], list)
    assert [topic["topic"] for topic in facts["topics"]] == ["events", "orders"]


def test_percentiles_are_right_to_a_fifth() -> None:
    """Against the exact ones, from 1 to a billion."""
    values = np.random.default_rng(1).lognormal(8, 3, 20_000).astype(np.int64) + 1
    counts = np.bincount(bucket_of(values), minlength=200)
    for share in (0.1, 0.5, 0.9, 0.99):
        exact = np.quantile(values, share)
        assert exact / 1.25 <= counted_percentile(counts, share) <= exact * 1.25


def test_commands_tell_what_they_did(three: ReplicaSet, tmp_path: Path) -> None:
    """`export` and `stats` in their JSON forms."""
    named = ["--replica", f"n1={three.paths['n1']}", "--json"]
    result = CliRunner().invoke(app, ["export", str(tmp_path / "out"), *named])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["end"] == three.end
    result = CliRunner().invoke(app, ["stats", *named, "--topic", "orders"])
    (topic,) = json.loads(result.output)["topics"]
    assert topic["topic"] == "orders"
    assert topic["messages"] == sum(queue["messages"] for queue in topic["queues"])


def test_a_target_that_is_a_file_is_a_mistake(three: ReplicaSet, tmp_path: Path) -> None:
    """Which no repetition mends."""
    (tmp_path / "out").touch()
    command = ["export", str(tmp_path / "out"), "--replica", f"n1={three.paths['n1']}"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "can't be made a folder" in refused.stderr


def test_a_folder_around_that_syncs_no_names_is_no_hindrance(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a target that is mounted below an automounter's map."""
    sync, target = os.fsync, tmp_path / "around" / "out"
    target.mkdir(parents=True)

    def fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(target.parent):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert export_messages(three.replicas[0], target, LocalEngine()).messages

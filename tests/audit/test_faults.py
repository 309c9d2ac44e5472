"""Every fault of a replica: found, named and classified, whichever engine looks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from audit.engines.engine import Engine
from audit.errors import UsageMistake
from audit.proof.derived import check_ends
from audit.proof.findings import Cause, Finding, Verdict
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report
from audit.reading.replica import Replica
from dledger.outcome import ExitCode
from dledger.reading.entry import ENTRY_HEADER, HEADER_SIZE, EntryKind
from store.dispatch import UNIT, UNIT_SIZE
from store.files import OsFiles
from store.log_start import StartNote
from tests.audit.replicas import (
    BLOCK,
    SEGMENT,
    Entry,
    LogBuilder,
    ReplicaSet,
    build,
    copy_sparse,
    cut,
    dropping,
    flip_bit,
    on_own_disk,
    start_of,
    usual_entries,
)

BYTES_ONLY = Options(block_size=BLOCK, derived=False)
WITH_DERIVED = Options(block_size=BLOCK, derived=True)


def audit(replicas: list[Replica], engine: Engine, options: Options = BYTES_ONLY) -> Report:
    return audit_replicas(replicas, engine, options).report


def only_finding(report: Report) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def test_equal_replicas_are_identical(three: ReplicaSet, engine: Engine) -> None:
    """Nothing is found, every byte of every replica was compared, and the exit code is 0."""
    report = audit(three.replicas, engine, WITH_DERIVED)
    assert (report.verdict, report.exit_code) == (Verdict.IDENTICAL, ExitCode.CONSISTENT)
    assert [each.compared_bytes for each in report.coverage] == [three.end] * 3
    assert report.derived is not None
    assert report.derived.entries == 3 * len(three.headers)
    assert not report.findings
    assert not report.notes


@pytest.mark.parametrize("at", [0, 13, 21, 33, 40, 50], ids=str)
def test_flipped_bit_in_a_header_is_bit_rot(three: ReplicaSet, engine: Engine, at: int) -> None:
    """A header's size, CRC, index, offset, time or digest: one replica has rotted, at its entry."""
    header = three.header_of(after=20_000)
    path = three.flip("n2", header.physical_offset + at)
    found = only_finding(audit(three.replicas, engine))
    assert (found.cause, found.replicas) == (Cause.BAD_CRC, ("n2",))
    assert (found.verdict, found.file) == (Verdict.BIT_ROT, str(path))
    assert found.entry_offset == header.physical_offset
    assert [(v.replica, v.crc_valid) for v in found.views] == [
        ("n1", True),
        ("n2", False),
        ("n3", True),
    ]
    assert (found.views[0].index, found.views[0].term) == (header.index, header.term)


def test_flipped_bit_in_a_record_names_its_queue_offset(three: ReplicaSet, engine: Engine) -> None:
    """The first divergent entry is told with index, term, topic, queue and queue offset."""
    header = three.header_of(after=40_000)
    three.flip("n3", header.physical_offset + header.total_size - 1)
    report = audit(three.replicas, engine)
    found = only_finding(report)
    assert (found.verdict, found.replicas) == (Verdict.BIT_ROT, ("n3",))
    good = found.views[0]
    assert (good.index, good.term, good.queue_id) == (
        header.index,
        header.term,
        (header.index - 1) % 3,
    )
    assert good.topic in ("orders", "events")
    assert good.queue_offset is not None
    assert report.exit_code == ExitCode.INCONSISTENT


def test_flipped_bit_in_a_filler_is_bit_rot(three: ReplicaSet, engine: Engine) -> None:
    """No CRC covers a filler; it must be zeros."""
    three.flip("n1", three.filler() + 100)
    found = only_finding(audit(three.replicas, engine))
    assert (found.cause, found.replicas) == (Cause.STRAY_FILLER, ("n1",))


@pytest.mark.parametrize("at", [3, 5])
def test_flipped_bit_in_a_fillers_header_is_bit_rot(
    three: ReplicaSet, engine: Engine, at: int
) -> None:
    """A filler whose size or magic is wrong fills nothing."""
    three.flip("n1", three.filler() + at)
    found = only_finding(audit(three.replicas, engine))
    assert (found.verdict, found.replicas) == (Verdict.BIT_ROT, ("n1",))
    assert found.entry_offset == three.filler()


def test_two_rotten_replicas_do_not_outvote_a_good_one(three: ReplicaSet, engine: Engine) -> None:
    """The same flip on two replicas is rot on both: their CRCs say so, not their number."""
    header = three.header_of(after=20_000)
    for name in ("n1", "n3"):
        three.flip(name, header.physical_offset + HEADER_SIZE + 3)
    found = only_finding(audit(three.replicas, engine))
    assert (found.verdict, found.replicas) == (Verdict.BIT_ROT, ("n1", "n3"))


def test_faults_of_two_replicas_in_one_block_are_both_found(
    three: ReplicaSet, engine: Engine
) -> None:
    """The second replica's fault isn't hidden behind the first one's."""
    first = three.header_of(after=SEGMENT)
    second = three.header_of(after=first.physical_offset + 1)
    three.flip("n1", first.physical_offset + 60)
    three.flip("n2", second.physical_offset + 60)
    report = audit(three.replicas, engine)
    assert {(f.replicas, f.entry_offset) for f in report.findings} == {
        (("n1",), first.physical_offset),
        (("n2",), second.physical_offset),
    }


def test_the_same_rot_everywhere_is_found_by_the_derived_check(
    three: ReplicaSet, engine: Engine
) -> None:
    """Replicas that are equal and all wrong: only their own CRCs can tell."""
    header = three.header_of(after=20_000)
    for name in three.paths:
        three.flip(name, header.physical_offset + HEADER_SIZE + 3)
    assert audit(three.replicas, engine).findings == ()
    report = audit(three.replicas, engine, WITH_DERIVED)
    rot = [f for f in report.findings if f.cause is Cause.BAD_CRC]
    assert [(f.replicas, f.entry_offset) for f in rot] == [
        ((name,), header.physical_offset) for name in three.paths
    ]


def test_lying_size_is_one_fault_and_hides_nothing_behind_it(
    three: ReplicaSet, engine: Engine
) -> None:
    """A size field that leads elsewhere: the entry is rotten, and later rot is found too."""
    header = three.header_of(after=SEGMENT)
    later = three.header_of(after=header.physical_offset + 6000)
    assert later.physical_offset < 2 * SEGMENT
    three.flip("n2", header.physical_offset + 2, bit=0)
    three.flip("n3", later.physical_offset + 60)
    report = audit(three.replicas, engine)
    assert [(f.verdict, f.replicas, f.entry_offset) for f in report.findings] == [
        (Verdict.BIT_ROT, ("n2",), header.physical_offset),
        (Verdict.BIT_ROT, ("n3",), later.physical_offset),
    ]


def test_other_bytes_with_good_crcs_are_a_divergence(tmp_path: Path, engine: Engine) -> None:
    """One index and term, intact on both replicas, and other bytes: Raft's safety is broken."""
    entries = list(usual_entries())
    other = list(entries)
    other[30] = Entry(other[30].term, topic="orders", queue_id=0, count=1, size=77)
    build(tmp_path / "n1", entries)
    build(tmp_path / "n2", other)
    replicas = [Replica(name, str(tmp_path / name)) for name in ("n1", "n2")]
    report = audit(replicas, engine)
    first = report.findings[0]
    assert (first.verdict, first.cause) == (Verdict.DIVERGENCE, Cause.DIFFERENT_BYTES)
    assert first.replicas == ("n1", "n2")
    assert [(view.index, view.crc_valid) for view in first.views] == [(31, True), (31, True)]
    assert report.exit_code == ExitCode.INCONSISTENT


def test_divergence_below_the_commit_of_both_is_one_whatever_the_terms(
    tmp_path: Path, engine: Engine
) -> None:
    """Two entries of different terms at one committed place: divergence."""
    entries = list(usual_entries(40))
    other = [*entries[:30], Entry(7, EntryKind.NOOP), Entry(7, topic="orders", count=2)]
    build(tmp_path / "n1", entries)
    build(tmp_path / "n2", other)
    report = audit([Replica(n, str(tmp_path / n)) for n in ("n1", "n2")], engine)
    assert Verdict.DIVERGENCE in {f.verdict for f in report.findings}
    assert next(f for f in report.findings if f.views).entry_offset is not None


def test_entries_that_lost_an_election_are_no_divergence(tmp_path: Path, engine: Engine) -> None:
    """A dead leader's uncommitted tail differs in term from what the others committed."""
    entries = list(usual_entries(30))
    lost = [Entry(2, topic="orders", count=1, size=200 + n) for n in range(6)]
    won = [Entry(3, EntryKind.NOOP), *(Entry(3, topic="orders", count=1) for _ in range(8))]
    for name, tail, through in (("n1", lost, 30), ("n2", won, 39), ("n3", won, 39)):
        builder = LogBuilder(tmp_path / name, name)
        for entry in [*entries, *tail]:
            builder.add(entry)
            builder.flush()
        builder.dispatch(through)
        builder.close()
    replicas = [Replica(name, str(tmp_path / name)) for name in ("n1", "n2", "n3")]
    report = audit(replicas, engine)
    assert Verdict.DIVERGENCE not in {f.verdict for f in report.findings}
    assert any("different terms" in note for note in report.notes)


def test_one_entry_with_two_contents_diverges_even_if_uncommitted(
    tmp_path: Path, engine: Engine
) -> None:
    """Index and term name one entry for ever (Raft's log matching), committed or not; a third
    replica's entry of another term excuses nothing."""
    entries = list(usual_entries(30))
    for name, tail in (
        ("n1", Entry(2, topic="orders", count=1, size=200)),
        ("n2", Entry(2, topic="orders", count=1, size=201)),
        ("n3", Entry(3, topic="orders", count=1, size=202)),
    ):
        builder = LogBuilder(tmp_path / name, name)
        for entry in [*entries, tail]:
            builder.add(entry)
            builder.flush()
        builder.dispatch(30)
        builder.close()
    report = audit([Replica(n, str(tmp_path / n)) for n in ("n1", "n2", "n3")], engine)
    assert report.verdict is Verdict.DIVERGENCE
    assert report.findings[0].views[0].index == 31


def test_truncated_segment_is_incomplete(three: ReplicaSet, engine: Engine) -> None:
    """A file that ends early lacks bytes; those before its end are still compared."""
    path = three.segment("n2", SEGMENT)
    cut(path, 5000)
    report = audit(three.replicas, engine)
    found = only_finding(report)
    assert (found.cause, found.replicas) == (Cause.TRUNCATED_SEGMENT, ("n2",))
    assert (found.verdict, found.file) == (Verdict.INCOMPLETE, str(path))
    assert found.start == SEGMENT + 5000
    assert report.exit_code == ExitCode.INCOMPLETE
    assert report.coverage[1].compared_bytes == three.end - (SEGMENT - BLOCK)


def test_missing_segment_is_incomplete(three: ReplicaSet, engine: Engine) -> None:
    """A segment that isn't there: absent is not divergent."""
    three.segment("n3", 0).unlink()
    report = audit(three.replicas, engine)
    found = only_finding(report)
    assert (found.cause, found.replicas, found.segment) == (Cause.MISSING_SEGMENT, ("n3",), 0)
    assert report.exit_code == ExitCode.INCOMPLETE
    assert [each.verdict for each in report.coverage] == [
        Verdict.IDENTICAL,
        Verdict.IDENTICAL,
        Verdict.INCOMPLETE,
    ]


def test_unreadable_segment_is_incomplete(three: ReplicaSet, engine: Engine) -> None:
    """A segment that can't be opened (here: a link to itself) is named with the reason."""
    path = three.segment("n1", SEGMENT)
    path.unlink()
    path.symlink_to(path)
    report = audit(three.replicas, engine)
    causes = {f.cause for f in report.findings}
    assert causes <= {Cause.UNREADABLE_SEGMENT, Cause.MISSING_SEGMENT}
    assert only_finding(report).file == str(path)


def test_swapped_segments_are_misplaced(three: ReplicaSet, engine: Engine) -> None:
    """Two files with each other's names: intact entries that claim to lie elsewhere."""
    first, second = three.segment("n2", 0), three.segment("n2", SEGMENT)
    aside = three.root / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    report = audit(three.replicas, engine)
    assert {(f.cause, f.replicas) for f in report.findings} == {(Cause.WRONG_PLACE, ("n2",))}
    assert {f.segment for f in report.findings} == {0, SEGMENT}
    assert "claims to lie at 16384" in report.findings[0].detail
    assert (report.verdict, report.exit_code) == (Verdict.MISPLACED, ExitCode.INCONSISTENT)


def test_old_copy_of_a_segment_is_incomplete(
    tmp_path: Path, three: ReplicaSet, engine: Engine
) -> None:
    """A segment as it was earlier: zeros where the replica's own checkpoint says durable."""
    earlier = build(tmp_path / "earlier", list(usual_entries())[:45])
    base = earlier.log.end_offset - earlier.log.end_offset % SEGMENT
    shutil.copy(tmp_path / "earlier" / "commitlog" / f"{base:020d}", three.segment("n2", base))
    report = audit(three.replicas, engine)
    found = report.findings[0]
    assert {(f.cause, f.replicas) for f in report.findings} == {(Cause.OLD_COPY, ("n2",))}
    assert found.entry_offset == earlier.log.end_offset
    assert report.exit_code == ExitCode.INCOMPLETE


def test_old_copy_of_a_whole_replica_is_shorter(
    tmp_path: Path, three: ReplicaSet, engine: Engine
) -> None:
    """An old data directory is equal up to its end, and ends below what is committed."""
    build(tmp_path / "earlier", list(usual_entries())[:45])
    shutil.rmtree(three.paths["n3"])
    shutil.copytree(tmp_path / "earlier", three.paths["n3"], copy_function=copy_sparse)
    on_own_disk(three.paths["n3"], "n3")
    report = audit(three.replicas, engine, WITH_DERIVED)
    found = only_finding(report)
    assert (found.cause, found.replicas) == (Cause.SHORTER, ("n3",))
    assert found.end == three.end
    assert report.exit_code == ExitCode.INCOMPLETE


def test_later_start_by_retention_is_not_divergent(three: ReplicaSet, engine: Engine) -> None:
    """A replica that deleted its first segment is incomplete there and compared elsewhere."""
    path = three.paths["n1"]
    three.segment("n1", 0).unlink()
    (path / "checkpoint").unlink()
    report = audit(three.replicas, engine)
    assert {f.cause for f in report.findings} == {Cause.RETAINED_LATER}
    assert report.exit_code == ExitCode.INCOMPLETE
    accepted = audit(
        three.replicas, engine, Options(block_size=BLOCK, derived=False, accept_retention=True)
    )
    assert accepted.exit_code == ExitCode.CONSISTENT
    assert accepted.coverage[0].compared_bytes == three.end - SEGMENT


def test_replicas_that_begin_apart_are_identical(three: ReplicaSet, engine: Engine) -> None:
    """Whoever dropped a segment says what came before, and the others hold that."""
    first = three.header_of(after=SEGMENT)
    start = start_of(three.paths["n2"], first.index)
    for _ in dropping(three.paths["n2"], start):
        pass
    report = audit(three.replicas, engine, WITH_DERIVED)
    assert (report.exit_code, report.findings) == (ExitCode.CONSISTENT, ())
    assert any(note.startswith("n2: begins later") for note in report.notes)
    StartNote(OsFiles(), three.paths["n2"]).replace(replace(start, digest=start.digest ^ 1))
    report = audit(three.replicas, engine)
    assert {f.replicas for f in report.findings if f.cause is Cause.START_DIFFERS} == {
        ("n2", "n1"),
        ("n2", "n3"),
    }
    assert report.exit_code == ExitCode.INCONSISTENT


def test_foreign_file_is_noted_and_no_fault(three: ReplicaSet, engine: Engine) -> None:
    """A file that isn't ours in the log's folder is named."""
    (three.paths["n2"] / "commitlog" / "notes.txt").write_text("?", encoding="utf-8")
    report = audit(three.replicas, engine)
    assert report.exit_code == ExitCode.CONSISTENT
    assert any("notes.txt" in note and note.startswith("n2") for note in report.notes)


def test_unreadable_path_is_incomplete(three: ReplicaSet, engine: Engine) -> None:
    """A replica whose folder isn't there is named; the others are still compared."""
    gone = Replica("n4", str(three.root / "nowhere"))
    report = audit([*three.replicas, gone], engine)
    found = only_finding(report)
    assert (found.cause, found.replicas) == (Cause.UNREADABLE_REPLICA, ("n4",))
    assert "No such file" in found.detail
    assert report.exit_code == ExitCode.INCOMPLETE
    assert report.coverage[0].compared_bytes == three.end


def test_who_was_compared_with_nobody_isnt_called_identical(
    three: ReplicaSet, engine: Engine
) -> None:
    gone = Replica("n4", str(three.root / "nowhere"))
    report = audit([three.replicas[0], gone], engine)
    assert [each.compared_bytes for each in report.coverage] == [0, 0]
    assert [each.verdict for each in report.coverage] == [Verdict.INCOMPLETE, Verdict.INCOMPLETE]


def test_data_directory_without_a_log_is_one(three: ReplicaSet, engine: Engine) -> None:
    """What lies beside the log that it will have isn't taken for what lies in a log."""
    folder = three.root / "n4"
    folder.mkdir()
    (folder / "identity.json").write_text("{}")
    report = audit([*three.replicas, Replica("n4", str(folder))], engine)
    assert only_finding(report).cause is Cause.UNREADABLE_REPLICA
    assert not report.notes


def test_folder_without_a_log_is_incomplete(three: ReplicaSet, engine: Engine) -> None:
    """An empty folder is a replica that holds nothing."""
    (three.root / "n4").mkdir()
    report = audit([*three.replicas, Replica("n4", str(three.root / "n4"))], engine)
    assert only_finding(report).cause is Cause.EMPTY_REPLICA


def test_different_segment_sizes_cannot_be_compared(
    tmp_path: Path, three: ReplicaSet, engine: Engine
) -> None:
    """Positions depend on the segment size; the message names both."""
    builder = LogBuilder(tmp_path / "other", "n4", segment_size=32768)
    builder.add(Entry(1, EntryKind.NOOP))
    builder.flush()
    builder.close()
    with pytest.raises(UsageMistake, match=r"segment size .*n1: 16384.*n4: 32768"):
        audit([*three.replicas, Replica("n4", str(tmp_path / "other"))], engine)


def test_broken_running_digest_is_found(three: ReplicaSet, engine: Engine) -> None:
    """Entries with good CRCs whose digests don't continue each other, the same on all replicas."""
    from crc32c import crc32c

    header = three.header_of(after=20_000)
    for name in three.paths:
        path = three.segment(name, SEGMENT)
        content = bytearray(path.read_bytes())
        at = header.physical_offset - SEGMENT
        content[at + 55] ^= 1
        frame = content[at : at + header.total_size]
        crc = crc32c(bytes(frame[16:]), crc32c(bytes(frame[:12])))
        content[at + 12 : at + 16] = crc.to_bytes(4, "big")
        path.write_bytes(content)
    assert audit(three.replicas, engine).findings == ()
    report = audit(three.replicas, engine, WITH_DERIVED)
    assert {f.cause for f in report.findings} == {Cause.DIGEST_BROKEN}
    places = {(f.replicas, f.entry_offset) for f in report.findings}
    for name in three.paths:
        assert ((name,), header.physical_offset) in places


def test_broken_digest_between_segments_is_found(three: ReplicaSet, engine: Engine) -> None:
    """The first entry of a segment continues the last one of the segment before."""
    from crc32c import crc32c

    path = three.segment("n1", SEGMENT)
    content = bytearray(path.read_bytes())
    size = ENTRY_HEADER.unpack_from(content)[0]
    content[55] ^= 1
    crc = crc32c(bytes(content[16:size]), crc32c(bytes(content[:12])))
    content[12:16] = crc.to_bytes(4, "big")
    path.write_bytes(content)
    report = audit([three.replicas[0]], engine, WITH_DERIVED)
    assert (SEGMENT, Cause.DIGEST_BROKEN) in {(f.entry_offset, f.cause) for f in report.findings}


def gives_errors(file: Path) -> None:
    file.unlink()
    file.mkdir()


def loses_its_end(file: Path) -> None:
    os.truncate(file, HEADER_SIZE + 1)


def loses_its_header(file: Path) -> None:
    flip_bit(file, 4)


def rots(file: Path) -> None:
    flip_bit(file, HEADER_SIZE)


@pytest.mark.parametrize(
    "spoil", [gives_errors, loses_its_end, loses_its_header, rots, Path.unlink]
)
def test_a_seam_that_nobody_can_read_any_more_is_not_passed_over(
    three: ReplicaSet, engine: Engine, spoil: Callable[[Path], None]
) -> None:
    """What is spoilt once it was read says nothing of what it went on from; what has gone was
    retention's matter."""

    class Spoiling:
        """An engine below which a segment is spoilt before the seams are looked at."""

        name, parallelism, task_bytes = engine.name, engine.parallelism, engine.task_bytes
        width, is_spread = engine.width, engine.is_spread

        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            if work is check_ends:
                spoil(three.segment("n1", SEGMENT))
            return engine.run(work, tasks, progress)

        def close(self) -> None:
            engine.close()

    report = audit(three.replicas, Spoiling(), Options(block_size=BLOCK, derived=True))
    found = {(each.cause, each.replicas) for each in report.findings}
    is_open = spoil is not Path.unlink
    assert ((Cause.UNREADABLE_SEGMENT, ("n1",)) in found) == is_open
    assert Cause.DIGEST_BROKEN not in {cause for cause, _ in found}
    assert report.exit_code == (ExitCode.INCOMPLETE if is_open else ExitCode.CONSISTENT)


def queue_file(three: ReplicaSet, name: str, topic: str = "orders", queue_id: int = 0) -> Path:
    return three.paths[name] / "consumequeue" / f"{topic}@1" / str(queue_id) / f"{0:020d}"


def test_flipped_bit_in_a_consume_queue_is_found(three: ReplicaSet, engine: Engine) -> None:
    """A unit that isn't what the log gives is named with queue and offset."""
    flip_bit(queue_file(three, "n2"), 3 * 20 + 7)
    report = audit(three.replicas, engine, WITH_DERIVED)
    found = only_finding(report)
    assert (found.cause, found.replicas) == (Cause.QUEUE_WRONG, ("n2",))
    assert found.detail.startswith("orders@1/0 at queue offset 3: ")
    assert report.exit_code == ExitCode.INCONSISTENT


def test_missing_consume_queue_is_found(three: ReplicaSet, engine: Engine) -> None:
    """A queue whose file is gone lacks every unit; one finding says how many."""
    queue_file(three, "n3", "events", 1).unlink()
    found = only_finding(audit(three.replicas, engine, WITH_DERIVED))
    assert (found.cause, found.replicas) == (Cause.QUEUE_MISSING, ("n3",))
    assert found.detail.startswith("events@1/1 at queue offset 0: ")
    assert "units in all" in found.detail


@pytest.mark.parametrize("physical_offset", [0, 1 << 40], ids=["in the log", "behind it"])
def test_extra_unit_is_found(three: ReplicaSet, engine: Engine, physical_offset: int) -> None:
    """A unit behind the queue's end by the log; a replica that was closed has no excuse for one
    of an entry yet to come either."""
    path = queue_file(three, "n1")
    used = len(path.read_bytes().rstrip(b"\x00"))
    end = used + -used % UNIT_SIZE
    with path.open("r+b") as file:
        file.seek(end)
        file.write(UNIT.pack(physical_offset, 300, 7))
    found = only_finding(audit(three.replicas, engine, WITH_DERIVED))
    assert (found.cause, found.replicas) == (Cause.QUEUE_EXTRA, ("n1",))
    assert f"orders@1/0 at queue offset {end // UNIT_SIZE}: " in found.detail


def test_replica_written_and_deleted_while_it_is_read(three: ReplicaSet, engine: Engine) -> None:
    """A segment that goes between the survey and the reading is missing, and no crash."""

    class Vanishing:
        """An engine below which retention deletes a segment once the survey is over."""

        name, parallelism, task_bytes = engine.name, engine.parallelism, engine.task_bytes
        width, is_spread = engine.width, engine.is_spread

        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            result = engine.run(work, tasks, progress)
            three.segment("n2", 0).unlink(missing_ok=True)
            with three.segment("n1", 32768).open("ab") as growing:
                growing.write(os.urandom(64))
            return result

        def close(self) -> None:
            engine.close()

    report = audit(three.replicas, Vanishing())
    found = only_finding(report)
    assert (found.cause, found.replicas, found.segment) == (Cause.MISSING_SEGMENT, ("n2",), 0)

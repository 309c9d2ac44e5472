"""What a verdict speaks of, and that nothing within it is passed over: each hole that there was."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audit.engines.engine import Engine, LocalEngine
from audit.proof.derived import MAX_QUEUES
from audit.proof.digest import digest_blocks
from audit.proof.findings import Cause, Verdict
from audit.proof.reading import MAX_FAULTS
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report
from audit.proof.scan import Scanned, scan_segment
from audit.proof.scope import Files
from audit.reading.replica import Replica
from dledger.outcome import ExitCode
from dledger.reading.checkpoint import decode_checkpoint, encode_checkpoint
from dledger.reading.entry import EPOCH_TERM_GAP, EntryHeader, EntryKind
from dledger.reading.files import opened
from dledger.reading.survey import Position
from dledger.records.layout import RECORD
from dledger.wire.commands_pb2 import Command, DeleteTopicCommand
from store.dispatch import UNIT_SIZE
from tests.audit.replicas import (
    BLOCK,
    COMMAND,
    SEGMENT,
    Entry,
    LogBuilder,
    ReplicaSet,
    build,
    copy_sparse,
    cut,
    on_own_disk,
    usual_entries,
)

NAMES = ("n1", "n2", "n3")


def audit(replicas: list[Replica], engine: Engine | None = None, **options: object) -> Report:
    wanted = replace(Options(block_size=BLOCK, derived=True), **options)  # type: ignore[arg-type]
    return audit_replicas(replicas, engine or LocalEngine(processes=1), wanted).report


def found(report: Report) -> set[tuple[Cause, tuple[str, ...]]]:
    return {(each.cause, each.replicas) for each in report.findings}


def lower_queue_index(data: Path, index: int) -> None:
    """The checkpoint says that the ConsumeQueues are durable up to there only."""
    path = data / "checkpoint"
    state = decode_checkpoint(path.read_bytes())
    assert state is not None
    path.write_bytes(encode_checkpoint(replace(state, consume_queue_index=index)))


def lose_checkpoint(data: Path) -> None:
    (data / "checkpoint").unlink()


def flip_checkpoint(data: Path) -> None:
    path = data / "checkpoint"
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "lost": lose_checkpoint,
    "flipped": flip_checkpoint,
    "lowered": lambda data: lower_queue_index(data, 3),
}


def zero_units(data: Path, queue: str, first: int, count: int) -> None:
    path = data / "consumequeue" / queue / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(first * UNIT_SIZE)
        file.write(bytes(count * UNIT_SIZE))


# --- nothing displaces a fault ------------------------------------------------------------------


def crowded() -> list[Entry]:
    """In one segment more than a hundred units of a topic that a later segment deletes, and behind
    them a few of one that lives on."""
    gone = [Entry(1, topic="gone", count=36, size=1) for _ in range(3)]
    delete = Command(delete_topic=DeleteTopicCommand(name="gone", incarnation=1))
    return [
        Entry(1, EntryKind.NOOP),
        *gone,
        Entry(1, topic="orders", count=6, size=1),
        *(Entry(1, topic="events", count=8, size=900) for _ in range(3)),
        Entry(1, EntryKind.COMMAND, body=delete.SerializeToString()),
        Entry(1, topic="orders", count=2, size=1),
    ]


def test_stale_units_hide_no_fault(tmp_path: Path, engine: Engine) -> None:
    """Deletions are known first: the live queue's units are missed, those of the deleted topic
    aren't, however many there were before them."""
    for name in NAMES:
        build(tmp_path / name, crowded(), name)
        shutil.rmtree(tmp_path / name / "consumequeue" / "gone@1")
    replicas = [Replica(name, str(tmp_path / name)) for name in NAMES]
    assert audit(replicas, engine).verdict is Verdict.IDENTICAL
    zero_units(tmp_path / "n2", "orders@1/0", 0, 6)
    report = audit(replicas, engine)
    assert found(report) == {(Cause.QUEUE_MISSING, ("n2",))}
    assert report.findings[0].count == 6


def test_zeroed_units_are_counted(three: ReplicaSet, engine: Engine) -> None:
    """All of them, as one finding a queue, on all replicas alike."""
    for path in three.paths.values():
        zero_units(path, "orders@1/0", 0, 12)
    report = audit(three.replicas, engine)
    assert found(report) == {(Cause.QUEUE_MISSING, (name,)) for name in NAMES}
    assert {each.count for each in report.findings} == {12}


def test_faults_beyond_what_is_named_are_counted(tmp_path: Path, engine: Engine) -> None:
    """Every second entry of a segment is rotten: a hundred places are named, the rest is told."""
    builder = build(tmp_path / "n1", [Entry(1, EntryKind.NOOP) for _ in range(280)])
    shutil.copytree(tmp_path / "n1", tmp_path / "n2", copy_function=copy_sparse)
    on_own_disk(tmp_path / "n2", "n2")
    path = tmp_path / "n1" / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    rotten = [h for h in builder.headers if h.index % 2 and h.physical_offset < SEGMENT]
    for header in rotten:
        content[header.physical_offset + 30] ^= 1
    path.write_bytes(content)
    (tmp_path / "n2" / "commitlog" / f"{0:020d}").write_bytes(content)
    report = audit([Replica(n, str(tmp_path / n)) for n in ("n1", "n2")], engine)
    for name in ("n1", "n2"):
        of_one = [f for f in report.findings if f.replicas == (name,) and f.cause is Cause.BAD_CRC]
        assert len(of_one) == MAX_FAULTS + 1
        assert sum(each.count for each in of_one) == len(rotten) > MAX_FAULTS
        assert f"{len(rotten) - MAX_FAULTS} more places than are named" in {
            each.detail for each in of_one
        }


def test_queues_beyond_what_is_named_are_counted(tmp_path: Path) -> None:
    """A replica without any of its many ConsumeQueues."""
    queues = MAX_QUEUES + 20
    entries = [Entry(1, queue_id=number, count=2, size=10) for number in range(queues)]
    for name in ("n1", "n2"):
        build(tmp_path / name, [Entry(1, EntryKind.NOOP), *entries], name)
    shutil.rmtree(tmp_path / "n2" / "consumequeue")
    report = audit([Replica(n, str(tmp_path / n)) for n in ("n1", "n2")])
    assert found(report) == {(Cause.QUEUE_MISSING, ("n2",))}
    assert len(report.findings) == MAX_QUEUES + 1
    assert sum(each.count for each in report.findings) == 2 * queues


# --- the checkpoint hides nothing ---------------------------------------------------------------


@pytest.mark.parametrize("damage", [lose_checkpoint, flip_checkpoint])
def test_lost_checkpoint_is_a_finding(
    three: ReplicaSet, engine: Engine, damage: Callable[[Path], None]
) -> None:
    """All that is there is equal, and what should be there isn't known."""
    damage(three.paths["n2"])
    report = audit(three.replicas, engine)
    assert found(report) == {(Cause.CHECKPOINT_LOST, ("n2",))}
    assert report.exit_code == ExitCode.INCOMPLETE


@pytest.mark.parametrize("damage", CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def test_checkpoint_hides_no_fault_of_a_queue(
    three: ReplicaSet, engine: Engine, damage: Callable[[Path], None]
) -> None:
    """Units are compared up to what anybody knows to have committed."""
    zero_units(three.paths["n2"], "orders@1/0", 2, 3)
    damage(three.paths["n2"])
    assert (Cause.QUEUE_MISSING, ("n2",)) in found(audit(three.replicas, engine))


@pytest.mark.parametrize("damage", CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
@pytest.mark.parametrize("derived", [True, False], ids=["derived", "log only"])
def test_checkpoint_hides_no_divergence(
    tmp_path: Path, engine: Engine, damage: Callable[[Path], None], *, derived: bool
) -> None:
    """Of entries of different terms: one that lost an election lies behind what is committed on
    that replica, and here nobody knows what is; what can't be compared isn't equal."""
    entries = list(usual_entries(40))
    other = [*entries[:30], *(Entry(7, topic="orders", count=2) for _ in range(10))]
    for name, content in (("n1", entries), ("n2", other), ("n3", entries)):
        build(tmp_path / name, content, name)
    replicas = [Replica(name, str(tmp_path / name)) for name in NAMES]
    assert audit(replicas, engine, derived=derived).verdict is Verdict.DIVERGENCE
    damage(tmp_path / "n2")
    report = audit(replicas, engine, derived=derived)
    assert report.exit_code != ExitCode.CONSISTENT
    assert any("n2" in each.replicas for each in report.findings)


def test_divergence_of_others_is_found_beside_a_lost_election(tmp_path: Path) -> None:
    """A replica that may rightly differ is left out, and the rest is compared."""
    entries = list(usual_entries(40))
    lost = [*entries[:20], *(Entry(2, topic="orders", count=2) for _ in range(5))]
    other = list(entries)
    other[33] = Entry(other[33].term, topic="orders", count=1, size=77)
    for name, content, through in (("n1", lost, 20), ("n2", entries, 40), ("n3", other, 40)):
        builder = LogBuilder(tmp_path / name, name)
        for entry in content:
            builder.add(entry)
        builder.flush()
        builder.dispatch(through)
        builder.close()
    report = audit([Replica(name, str(tmp_path / name)) for name in NAMES], derived=False)
    assert found(report) >= {
        (Cause.NOT_COMMITTED, ("n1",)),
        (Cause.DIFFERENT_BYTES, ("n2", "n3")),
    }


@pytest.mark.parametrize("derived", [True, False], ids=["derived", "log only"])
@pytest.mark.parametrize("shared", [5, 20], ids=["early", "late"])
def test_who_was_given_up_is_of_another_epoch(
    tmp_path: Path, engine: Engine, shared: int, *, derived: bool
) -> None:
    """Neither rotten nor divergent: the group was recovered by force from n1, behind `shared`
    entries and some of its own, and n2 has what it acknowledged before (ADR 52). n3 was taken in
    afterwards, and is compared."""
    entries = list(usual_entries(40))
    own = [Entry(2, topic="orders", count=1, size=60 + n) for n in range(4)]
    forced = [Entry(2 + EPOCH_TERM_GAP, EntryKind.COMMAND, body=COMMAND)]
    since = [Entry(3 + EPOCH_TERM_GAP, topic="orders", count=2) for _ in range(6)]
    after = [*entries[:shared], *own, *forced, *since]
    for name, content in (("n1", after), ("n2", entries), ("n3", after)):
        build(tmp_path / name, content, name)
    replicas = [Replica(name, str(tmp_path / name)) for name in NAMES]
    report = audit(replicas, engine, derived=derived)
    assert (Cause.ANOTHER_EPOCH, ("n2",)) in found(report)
    assert Verdict.DIVERGENCE not in {each.verdict for each in report.findings}
    assert report.exit_code == ExitCode.INCOMPLETE


@pytest.mark.parametrize("derived", [True, False], ids=["derived", "log only"])
def test_what_a_deleted_topic_left_is_no_queue(
    three: ReplicaSet, engine: Engine, *, derived: bool
) -> None:
    """Its folder is renamed first, and removed at the next flush: a replica that died between, or
    is looked at there, holds units that its log says nothing of any more."""
    queues = three.segment("n2", 0).parents[1] / "consumequeue"
    folder = next(path for path in sorted(queues.iterdir()) if path.is_dir())
    shutil.copytree(folder, queues / ".deleted-1")
    report = audit(three.replicas, engine, derived=derived)
    assert report.verdict is Verdict.IDENTICAL


# --- what a replica lacks isn't rotten ------------------------------------------------------------


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_segment_cut_between_entries_lacks_bytes(
    three: ReplicaSet, engine: Engine, segment: int
) -> None:
    """And nothing else is wrong: neither the next segment, nor the queues."""
    base = segment * SEGMENT
    inside = [h for h in three.headers if base < h.physical_offset < base + SEGMENT]
    header = inside[len(inside) // 2]
    cut(three.segment("n2", base), header.physical_offset - base)
    report = audit(three.replicas, engine)
    assert (Cause.TRUNCATED_SEGMENT, ("n2",)) in found(report)
    assert {each.verdict for each in report.findings} == {Verdict.INCOMPLETE}
    assert {each.replicas for each in report.findings} == {("n2",)}


def test_old_log_beside_newer_queues_lacks_entries(
    tmp_path: Path, three: ReplicaSet, engine: Engine
) -> None:
    """The queues know entries that the log doesn't: it is the log that is short."""
    earlier = build(tmp_path / "earlier", list(usual_entries())[:40])
    shutil.rmtree(three.paths["n2"] / "commitlog")
    shutil.copytree(tmp_path / "earlier" / "commitlog", three.paths["n2"] / "commitlog")
    shutil.copy(tmp_path / "earlier" / "checkpoint", three.paths["n2"] / "checkpoint")
    report = audit(three.replicas, engine)
    assert found(report) == {(Cause.SHORTER, ("n2",)), (Cause.LOG_LACKS, ("n2",))}
    assert report.verdict is Verdict.INCOMPLETE
    assert report.coverage[1].end == earlier.log.end_offset


def test_empty_log_lacks_everything(three: ReplicaSet, engine: Engine) -> None:
    """Told once, and nothing of it is rot."""
    for path in (three.paths["n2"] / "commitlog").iterdir():
        path.unlink()
    report = audit(three.replicas, engine)
    assert report.verdict is Verdict.INCOMPLETE
    assert found(report) == {(Cause.EMPTY_REPLICA, ("n2",)), (Cause.LOG_LACKS, ("n2",))}


# --- one divergence is one finding ----------------------------------------------------------------


@pytest.mark.parametrize("names", [NAMES, NAMES[:2]], ids=["three", "two"])
def test_divergence_is_one_finding(tmp_path: Path, engine: Engine, names: Sequence[str]) -> None:
    """With all its ranges, from the first byte to the last; who is right is said where a majority
    agrees, and of two that are whole in themselves it isn't."""
    entries = list(usual_entries(120))
    other = list(entries)
    other[30] = replace(other[30], size=other[30].size + 1)
    for name in names:
        build(tmp_path / name, other if name == "n2" else entries, name)
    report = audit([Replica(name, str(tmp_path / name)) for name in names], engine)
    (finding,) = [f for f in report.findings if f.cause is Cause.DIFFERENT_BYTES]
    assert finding.replicas == tuple(names)
    assert finding.views[0].index == 31
    assert finding.size == sum(end - start for start, end in report.differing)
    assert finding.end - finding.start > 3 * SEGMENT
    assert finding.right == (("n1", "n3") if len(names) == len(NAMES) else ())


def forge(three: ReplicaSet, name: str, header: EntryHeader) -> None:
    """The replica's entry there is another one, with a good CRC."""
    from crc32c import crc32c

    base = header.physical_offset // SEGMENT * SEGMENT
    path = three.segment(name, base)
    content = bytearray(path.read_bytes())
    at = header.physical_offset - base
    content[at + header.first_record_at + RECORD.at("body") + 3] ^= 1
    frame = bytes(content[at : at + header.total_size])
    content[at + 12 : at + 16] = crc32c(frame[16:], crc32c(frame[:12])).to_bytes(4, "big")
    path.write_bytes(content)


def test_whose_digests_break_is_not_right(three: ReplicaSet, engine: Engine) -> None:
    """An entry forged with a good CRC: of two replicas, too, it is known which of them lies."""
    forge(three, "n2", three.header_of(after=SEGMENT + 6000))
    for derived in (True, False):
        report = audit(three.replicas[:2], engine, derived=derived)
        (finding,) = report.findings
        assert (finding.verdict, finding.right) == (Verdict.DIVERGENCE, ("n1",))
        assert "digests break" in finding.right_by


# --- the scope --------------------------------------------------------------------------------


def behind(three: ReplicaSet, index: int) -> list[Replica]:
    """The three, of which n2 runs and has committed up to `index`."""
    last, header = three.headers[-1], three.headers[index]
    place = header.physical_offset
    digest = three.headers[index - 1].digest
    positions = {
        "n1": Position(three.end, last.digest, last.index, 1),
        "n2": Position(place, digest, index, 1),
        "n3": Position(three.end, last.digest, last.index, 1),
    }
    return [replace(each, position=positions[each.id]) for each in three.replicas]


def test_running_node_that_is_behind_moves_the_end(three: ReplicaSet, engine: Engine) -> None:
    """It is no fault; the verdict says up to where it goes, and a note why."""
    report = audit(behind(three, 40), engine)
    assert report.exit_code == ExitCode.CONSISTENT
    assert (report.scope.files, report.scope.index) == (Files.ALL, 40)
    assert report.scope.end == three.headers[40].physical_offset
    assert any(note.startswith("n2: runs ") for note in report.notes)


@pytest.mark.parametrize("what", ["", "events@1", "orders@1/0", f"orders@1/0/{0:020d}"])
def test_queue_that_cannot_be_read_hides_nothing(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whatever lies behind its end, or in a folder that nobody may list: an auditor may open what
    it can't list. A topic that goes meanwhile is no fault, and hides none behind it."""
    root = three.paths["n2"] / "consumequeue"
    bad, listdir = str(root / what).rstrip("/"), os.listdir
    number, kinds = errno.EACCES, (os.listdir, opened)

    def refused(path: Any) -> bool:
        return str(path) == bad

    def listing(path: Any = ".") -> list[str]:
        if refused(path):
            raise OSError(number, os.strerror(number), path)
        return listdir(path)

    @contextmanager
    def opening(path: str) -> Iterator[int]:
        if refused(path):
            raise OSError(number, os.strerror(number), path)
        with kinds[1](path) as descriptor:
            yield descriptor

    monkeypatch.setattr("os.listdir", listing)
    monkeypatch.setattr("audit.proof.queue_ends.opened", opening)
    report = audit(three.replicas, LocalEngine(processes=1))
    assert found(report) == {(Cause.QUEUE_UNREADABLE, ("n2",))}
    assert report.exit_code == ExitCode.INCOMPLETE
    number = errno.ENOENT
    zero = three.paths["n2"] / "consumequeue" / "orders@1" / "1" / f"{0:020d}"
    with zero.open("r+b") as file:
        file.seek(3000 * UNIT_SIZE)
        file.write(bytes([1]) * UNIT_SIZE)
    wanted = {(Cause.QUEUE_EXTRA, ("n2",))} if what else set()
    assert found(audit(three.replicas, LocalEngine(processes=1))) == wanted


@pytest.mark.parametrize("names", [("n1",), NAMES])
def test_segment_that_cannot_be_read_to_be_checked_is_told(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch, names: Sequence[str]
) -> None:
    """A disk gave its bytes to be hashed, and fails when its entries are to be looked at."""
    bad = {str(three.segment(name, SEGMENT)) for name in names}

    @contextmanager
    def failing(path: str) -> Iterator[int]:
        if path in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        with opened(path) as descriptor:
            yield descriptor

    monkeypatch.setattr("audit.proof.reading.opened", failing)
    report = audit(three.replicas, LocalEngine(processes=1))
    assert found(report) == {(Cause.UNREADABLE_SEGMENT, (name,)) for name in names}
    assert report.exit_code == ExitCode.INCOMPLETE
    assert {(each.start, each.segment) for each in report.findings} == {(SEGMENT, SEGMENT)}


@pytest.mark.parametrize("names", [("n3",), NAMES])
def test_node_that_knows_of_nothing_committed_is_compared_with_nobody(
    three: ReplicaSet, engine: Engine, names: Sequence[str]
) -> None:
    """As it was started just now, and hears no leader: whatever is in its files, nothing of it was
    compared. That is no proof, be it one of them or all."""
    last = three.headers[-1]
    whole = Position(three.end, last.digest, last.index, 1)
    nothing = Position(0, 0, 0, 1)
    replicas = [
        replace(each, position=nothing if each.id in names else whole) for each in three.replicas
    ]
    three.segment(names[0], 0).write_bytes(bytes(SEGMENT))
    report = audit(replicas, engine)
    assert found(report) == {(Cause.ALONE, (name,)) for name in names}
    assert report.exit_code == ExitCode.INCOMPLETE
    pair = [each for each in replicas if each.id in ("n1", "n3")]
    assert (Cause.ALONE, ("n1",)) in found(audit(pair, engine))


def test_copy_that_is_behind_is_incomplete(three: ReplicaSet, engine: Engine) -> None:
    """Its ConsumeQueues end below what others know committed; nobody makes them while it lies."""
    lower_queue_index(three.paths["n2"], 40)
    path = three.paths["n2"] / "consumequeue" / "orders@1" / "0" / f"{0:020d}"
    last = (len(path.read_bytes().rstrip(b"\0")) - 1) // UNIT_SIZE
    zero_units(three.paths["n2"], "orders@1/0", last, 1)
    report = audit(three.replicas, engine)
    assert found(report) == {(Cause.QUEUE_MISSING, ("n2",))}
    assert report.exit_code == ExitCode.INCOMPLETE
    assert report.scope.index == three.headers[-1].index


def test_blocks_that_nobody_looked_into_are_incomplete(tmp_path: Path, engine: Engine) -> None:
    """Beyond `--locate`, by name."""
    entries = list(usual_entries(60))
    for name in NAMES[:2]:
        changed = list(entries)
        if name == "n2":
            changed[30] = replace(changed[30], size=changed[30].size + 1)
        build(tmp_path / name, changed, name)
    replicas = [Replica(name, str(tmp_path / name)) for name in NAMES[:2]]
    report = audit(replicas, engine, located_blocks=1, derived=False)
    assert (Cause.NOT_LOCATED, ("n1", "n2")) in found(report)
    assert report.not_located > 0


@pytest.mark.parametrize("located", [2, 5])
def test_rot_of_one_replica_hides_no_divergence_of_others(
    three: ReplicaSet, engine: Engine, located: int
) -> None:
    """Though there is more of it than is looked into, and all of it lies in front: one of those
    two may be what the rotten one is rebuilt from."""
    for block in range(8):
        three.flip("n3", block * BLOCK + 900)
    forge(three, "n2", three.header_of(after=2 * SEGMENT))
    report = audit(three.replicas, engine, located_blocks=located, derived=False)
    assert (Cause.DIFFERENT_BYTES, NAMES) in found(report)
    assert (Cause.BAD_CRC, ("n3",)) in found(report)
    assert report.exit_code == ExitCode.INCONSISTENT
    assert report.not_located > 0


def test_block_that_is_gone_when_looked_into_is_not_equal(three: ReplicaSet) -> None:
    """It differed, and a second read failed: that is no proof that it didn't."""
    three.flip("n2", three.header_of(after=20_000).physical_offset + 70)

    class Forgetful(LocalEngine):
        """Reads nothing a second time."""

        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            if work is scan_segment:
                return [Scanned(task.replica, task.base, (), whole=False) for task in tasks]
            return super().run(work, tasks, progress)

    report = audit(three.replicas, Forgetful(processes=1), derived=False)
    assert found(report) == {(Cause.NOT_LOCATED, NAMES)}
    assert report.exit_code == ExitCode.INCOMPLETE


@pytest.mark.parametrize("is_blind", [False, True])
def test_block_that_differs_where_nothing_is_seen_is_not_equal(
    three: ReplicaSet, is_blind: bool
) -> None:
    """Its digests differ, and a look into it shows no difference, as of a disk that gives other
    bytes each time; or shows nothing of one replica at all."""
    three.flip("n2", three.header_of(after=20_000).physical_offset + 70)
    there = {name: str(path / "commitlog") for name, path in three.paths.items()}

    class Shifty(LocalEngine):
        """Looks into n1's log for n2's, or sees nothing there."""

        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            if work is scan_segment:
                tasks = [replace(task, commitlog=there["n1"]) for task in tasks]
            done = super().run(work, tasks, progress)
            if work is scan_segment and is_blind:
                done = [replace(each, items=()) if each.replica == "n2" else each for each in done]
            return done

    report = audit(three.replicas, Shifty(processes=1), derived=False)
    assert found(report) == {(Cause.NOT_LOCATED, NAMES)}
    assert report.exit_code == ExitCode.INCOMPLETE
    assert not any("no longer when read again" in note for note in report.notes)


def test_block_that_was_repaired_meanwhile_is_noted(three: ReplicaSet) -> None:
    """Nothing else changes a byte of what is committed: all replicas hold the same by now."""
    rotten = three.header_of(after=20_000).physical_offset + 70
    three.flip("n2", rotten)

    class Repaired(LocalEngine):
        """The node gets it back between the first pass and the second."""

        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            if work is scan_segment:
                three.flip("n2", rotten)
            return super().run(work, tasks, progress)

    report = audit(three.replicas, Repaired(processes=1), derived=False)
    assert (found(report), report.verdict) == (set(), Verdict.IDENTICAL)
    assert "1 blocks differed at first and no longer when read again" in report.notes


def test_one_replica_is_compared_with_nobody(three: ReplicaSet, engine: Engine) -> None:
    """It may be whole in itself; it isn't identical to anything."""
    report = audit(three.replicas[:1], engine)
    assert found(report) == {(Cause.ALONE, ("n1",))}
    assert report.exit_code == ExitCode.INCOMPLETE


def test_log_only_says_what_it_leaves_out(three: ReplicaSet, engine: Engine) -> None:
    """A fault of a queue isn't in its scope, nor is a checkpoint that is gone: that is a note."""
    zero_units(three.paths["n2"], "orders@1/0", 0, 5)
    lose_checkpoint(three.paths["n2"])
    report = audit(three.replicas, engine, derived=False)
    assert report.verdict is Verdict.IDENTICAL
    assert (report.scope.files, report.scope.starts) == (Files.LOG, False)
    assert any("no readable checkpoint" in note for note in report.notes)


@pytest.mark.parametrize("derived", [False, True])
def test_one_directory_under_several_names_is_not_compared_with_itself(
    three: ReplicaSet, tmp_path: Path, engine: Engine, derived: bool
) -> None:
    """By its log's folder, by a link, and as if it lay on two hosts, one of which reads the
    other's: a member's directory or a bare log, with or without what is derived."""
    path, link, bare = three.paths["n1"], tmp_path / "link", tmp_path / "bare"
    link.symlink_to(path)
    shutil.copytree(path / "commitlog", bare)
    (tmp_path / "other").symlink_to(bare)
    pairs = [
        (path, path / "commitlog"),
        (path, link),
        (bare, tmp_path / "other"),
    ]
    for one, other in pairs:
        replicas = [Replica("n1", str(one)), Replica("n2", str(other))]
        report = audit(replicas, engine, derived=derived)
        assert (Cause.SHARED_FILE, ("n1", "n2")) in found(report), (one, other)
        assert report.exit_code == ExitCode.INCOMPLETE
    replicas = [Replica(f"n{n}", str(path), host=f"10.0.0.{n}") for n in (1, 2)]
    assert (Cause.SHARED_FILE, ("n1", "n2")) in found(audit(replicas, engine, derived=derived))


def test_sealed_segment_of_two_replicas_is_one_copy(three: ReplicaSet, engine: Engine) -> None:
    """A hard link, as cheap backups have them; the log is otherwise each one's own."""
    linked = three.segment("n2", 0)
    linked.unlink()
    linked.hardlink_to(three.segment("n3", 0))
    report = audit(three.replicas, engine, derived=False)
    assert found(report) == {(Cause.SHARED_FILE, ("n2", "n3"))}
    assert report.verdict is Verdict.INCOMPLETE


def test_task_that_reads_another_replicas_file_proves_nothing(three: ReplicaSet) -> None:
    """Replicas of several hosts lie at one path: where a host has no executor, its tasks run on
    another one, and what lies there is that one's."""
    there = {name: str(path / "commitlog") for name, path in three.paths.items()}

    class Elsewhere(LocalEngine):
        """Hashes for n3 what is n1's."""

        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            if work is digest_blocks:
                astray = {there["n3"]: there["n1"]}
                tasks = [
                    replace(task, commitlog=astray.get(task.commitlog, task.commitlog))
                    for task in tasks
                ]
            return super().run(work, tasks, progress)

    report = audit(three.replicas, Elsewhere(processes=1), derived=False)
    assert found(report) == {(Cause.SHARED_FILE, ("n1", "n3"))}

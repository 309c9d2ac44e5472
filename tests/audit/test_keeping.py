"""What a watch believes: only what is still the same, never against anybody, and it says so."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audit.engines.engine import Engine, LocalEngine
from audit.errors import KeptUnreadable, StoreInUse, UsageMistake
from audit.keeping import remembering, store
from audit.keeping.history import Round, failed_round, growth, worst_exit
from audit.keeping.kept import (
    Kept,
    KeptDigests,
    Part,
    Row,
    decode_chain,
    decode_digests,
    encode_chain,
    encode_digests,
)
from audit.keeping.pace import Pace
from audit.keeping.program import program_digest
from audit.keeping.recalling import Recalling
from audit.keeping.remembering import Remembering
from audit.keeping.stamps import Stamps, stamped
from audit.keeping.store import FILE, WatchStore, _transaction, read_history
from audit.proof.chain import ChainTask, ReadTask
from audit.proof.findings import Cause, Verdict
from audit.proof.plan import DigestPart, DigestTask
from audit.proof.reading import read_chains
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report, report_as_json
from audit.reading.replica import Replica
from audit.showing.page import render_page
from audit.showing.words import scope_in_words
from dledger.outcome import ExitCode
from dledger.reading.entry import EntryKind
from dledger.reading.files import name_of_file
from dledger.reading.survey import Position
from dledger.wire.commands_pb2 import Command, DeleteTopicCommand
from tests.audit.replicas import (
    BLOCK,
    SEGMENT,
    Entry,
    LogBuilder,
    ReplicaSet,
    build,
    copy_sparse,
    dropping,
    on_own_disk,
    start_of,
    usual_entries,
)

PERIOD_S = 1000.0
START_S = 1_800_000_000.0
HOUR_NS = 3600 * 10**9


def an_hour_later(replicas: Sequence[Replica], engine: Engine) -> list[Stamps]:
    """Stamps that call files settled that a test has just made."""
    return [replace(each, taken_ns=each.taken_ns + HOUR_NS) for each in stamped(replicas, engine)]


class Watching:
    """Rounds over replicas, by a clock that a test moves."""

    def __init__(
        self,
        folder: Path,
        *,
        stamper: remembering.Stamper = an_hour_later,
        settled_s: float = 2.0,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.now = START_S
        self.store = WatchStore(folder)
        self.folder = folder
        self._stamper = stamper
        self._settled_s = settled_s

    def round(
        self, replicas: list[Replica], engine: Engine | None = None, **options: object
    ) -> Report:
        memory = Remembering(
            self.store,
            PERIOD_S,
            clock=lambda: self.now,
            settled_s=self._settled_s,
            stamper=self._stamper,
        )
        wanted = replace(Options(block_size=BLOCK), **options)  # type: ignore[arg-type]
        return memory.audit(replicas, engine or LocalEngine(processes=1), wanted).report

    def places(self) -> set[tuple[str, int]]:
        return set(self.store.kept(program_digest()))


def full(replicas: list[Replica], **options: object) -> Report:
    wanted = replace(Options(block_size=BLOCK), **options)  # type: ignore[arg-type]
    return audit_replicas(replicas, LocalEngine(processes=1), wanted).report


def found(report: Report) -> set[tuple[Cause, tuple[str, ...]]]:
    return {(each.cause, each.replicas) for each in report.findings}


def believed_segments(report: Report) -> int:
    return report.scope.believed.segments if report.scope.believed else 0


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Watching]:
    made = Watching(tmp_path / "audits")
    yield made
    made.store.close()


def sealed(three: ReplicaSet) -> list[int]:
    return [base for base in three.bases() if base + SEGMENT <= three.end]


def test_second_round_reads_what_is_not_sealed_and_says_so(
    three: ReplicaSet, watching: Watching, engine: Engine
) -> None:
    """The first reads everything and says nothing of belief; both engines alike."""
    first = watching.round(three.replicas, engine)
    assert first.scope.believed is None
    assert "believed" not in scope_in_words(first.scope)
    second = watching.round(three.replicas, engine)
    assert second.verdict is Verdict.IDENTICAL
    believed = second.scope.believed
    assert believed is not None
    assert believed.segments == 3 * len(sealed(three))
    assert believed.size == SEGMENT * believed.segments
    assert believed.read == 3 * three.end - believed.size
    assert believed.since == START_S
    assert "believed as proved since 2027-01-15 08:00 UTC" in scope_in_words(second.scope)
    assert second.derived == first.derived
    assert second.coverage == first.coverage


def test_page_claims_no_more_than_was_read(three: ReplicaSet, watching: Watching) -> None:
    """That every byte was compared is said where it was."""
    memory = Remembering(watching.store, PERIOD_S, clock=lambda: START_S, stamper=an_hour_later)
    audits = [
        memory.audit(three.replicas, LocalEngine(processes=1), Options(block_size=BLOCK))
        for _ in range(2)
    ]
    pages = [render_page(each) for each in audits]
    assert ["Every byte of this was compared" in page for page in pages] == [True, False]
    assert ["believed as proved since 2027-01-15" in page for page in pages] == [False, True]
    believed = report_as_json(audits[1].report)["scope"]
    assert isinstance(believed, dict)
    assert believed["believed"]["since"] == START_S


@pytest.mark.parametrize("name", ["n1", "n3"])
def test_change_of_a_believed_segment_is_found_at_once(
    three: ReplicaSet, watching: Watching, name: str
) -> None:
    """By anybody who goes through the file system, its modification time set back or not."""
    watching.round(three.replicas)
    place = three.header_of(after=SEGMENT).physical_offset + 80
    path = three.segment(name, SEGMENT)
    before = path.stat()
    three.flip(name, place)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    report = watching.round(three.replicas)
    assert found(report) == found(full(three.replicas)) == {(Cause.BAD_CRC, (name,))}
    assert (name, SEGMENT) not in watching.places()


def test_nobody_is_blamed_from_memory(three: ReplicaSet, watching: Watching) -> None:
    """A segment that was replaced everywhere but in the store: what is kept of the others is
    doubted, read again, and found equal."""
    watching.round(three.replicas)
    replicas = three.replicas
    kept = watching.store.kept(program_digest())
    wrong = kept["n2", 0].digests
    assert wrong is not None
    forged = KeptDigests(wrong.edges, bytes(len(wrong.digests)))
    watching.store.keep(None, watching.now, rows_of(kept["n2", 0], ("n2", 0), forged), [])
    report = watching.round(replicas)
    assert report.verdict is Verdict.IDENTICAL
    assert not report.differing
    assert believed_segments(report) == 3 * (len(sealed(three)) - 1)


def rows_of(kept: Kept, place: tuple[str, int], digests: KeptDigests) -> list[Row]:
    part, program = Part.DIGESTS, program_digest()
    return [Row(place, part, kept.stamp, program, START_S, encode_digests(digests))]


def frozen_stamps() -> remembering.Stamper:
    """Stamps as they were when first asked for: what rots below a file system changes none."""
    first: dict[str, Stamps] = {}

    def stamper(replicas: Sequence[Replica], engine: Engine) -> list[Stamps]:
        for each in an_hour_later(replicas, engine):
            first.setdefault(each.replica, each)
        return [first[replica.id] for replica in replicas]

    return stamper


def test_rot_that_changes_no_file_time_is_found_when_its_turn_comes(
    three: ReplicaSet, tmp_path: Path
) -> None:
    """Until then the verdict names the belief it rests on; within the period it is over."""
    watching = Watching(tmp_path / "audits", stamper=frozen_stamps())
    watching.round(three.replicas)
    three.flip("n2", three.header_of(after=SEGMENT).physical_offset + 80)
    verdicts = []
    for _ in range(10):
        watching.now += PERIOD_S / 10
        report = watching.round(three.replicas)
        verdicts.append(report.verdict)
        assert report.verdict is not Verdict.IDENTICAL or report.scope.believed is not None
    assert Verdict.BIT_ROT in verdicts
    watching.store.close()


def test_queues_are_never_believed(three: ReplicaSet, tmp_path: Path) -> None:
    """A unit that rots below the file system is found in the next round, and only it."""
    watching = Watching(tmp_path / "audits", stamper=frozen_stamps())
    watching.round(three.replicas)
    queue = next((three.paths["n2"] / "consumequeue").glob("orders@1/*/*"))
    with queue.open("r+b") as file:
        file.write(b"\xff")
    report = watching.round(three.replicas)
    assert found(report) == found(full(three.replicas))
    assert {cause for cause, _ in found(report)} == {Cause.QUEUE_WRONG}
    watching.store.close()


def grown(three: ReplicaSet, builder: LogBuilder) -> None:
    """All three are at the builder's state now; what is the same isn't written."""
    for name, data in three.paths.items():
        for path in sorted(p for p in builder.path.rglob("*") if p.is_file()):
            target = data / path.relative_to(builder.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            is_segment = path.parent.name == "commitlog"
            if is_segment and target.exists() and target.read_bytes() == path.read_bytes():
                continue
            copy_sparse(str(path), str(target))
        on_own_disk(data, name)
    three.headers, three.end = builder.headers, builder.log.end_offset


def test_log_that_grows_is_read_at_its_end(tmp_path: Path, watching: Watching) -> None:
    """What was sealed is believed, what was not is read, and queues that go on are compared."""
    three = ReplicaSet(tmp_path, build(tmp_path / "short", usual_entries(40)))
    watching.round(three.replicas)
    early = sealed(three)
    grown(three, build(tmp_path / "long", usual_entries(80)))
    report = watching.round(three.replicas)
    assert report.verdict is Verdict.IDENTICAL
    assert believed_segments(report) == 3 * len(early) > 0
    assert report.derived == full(three.replicas).derived
    assert watching.places() == {(name, base) for name in three.paths for base in sealed(three)}


def test_deleted_topic_voids_nothing(tmp_path: Path, watching: Watching) -> None:
    """Its queues go; the segments that held its messages are still what they were."""
    three = ReplicaSet(tmp_path, build(tmp_path / "short", usual_entries(60)))
    watching.round(three.replicas)
    early = sealed(three)
    gone = Command(delete_topic=DeleteTopicCommand(name="orders", incarnation=1))
    entries = [*usual_entries(60), Entry(4, EntryKind.COMMAND, body=gone.SerializeToString())]
    grown(three, build(tmp_path / "long", entries))
    for data in three.paths.values():
        shutil.rmtree(data / "consumequeue" / "orders@1")
    for old in (early, sealed(three)):
        report = watching.round(three.replicas)
        assert report.verdict is Verdict.IDENTICAL, found(report)
        assert believed_segments(report) == 3 * len(old) > 0


def test_queue_that_vanishes_without_a_deletion_is_missing(
    three: ReplicaSet, watching: Watching
) -> None:
    """Of a believed segment as of one that is read."""
    watching.round(three.replicas)
    shutil.rmtree(three.paths["n2"] / "consumequeue" / "orders@1")
    report = watching.round(three.replicas)
    assert found(report) == found(full(three.replicas))
    assert report.verdict is Verdict.INCOMPLETE


def test_segment_that_retention_takes_is_forgotten(three: ReplicaSet, watching: Watching) -> None:
    """Of one replica after the other: no fault, and in the end no row left."""
    watching.round(three.replicas)
    start = start_of(three.paths["n1"], three.header_of(after=SEGMENT).index)
    for data in three.paths.values():
        for _ in dropping(data, start):
            pass
        report = watching.round(three.replicas)
        assert found(report) == found(full(three.replicas))
        assert report.verdict is Verdict.IDENTICAL
    assert min(base for _, base in watching.places()) == SEGMENT


@pytest.mark.parametrize("liars", [("n3",), ("n1", "n2", "n3")], ids=["one", "all"])
def test_node_that_says_another_digest_is_not_believed_away(
    three: ReplicaSet, watching: Watching, liars: tuple[str, ...]
) -> None:
    """Within a believed segment, too; if all say the same, only the segment tells."""
    watching.round(three.replicas)
    inner = next(h for h in three.headers if h.physical_offset > SEGMENT)
    end = sealed(three)[-1] + SEGMENT
    replicas = [
        replace(each, position=Position(end, inner.digest + (each.id in liars), inner.index, 1))
        for each in three.replicas
    ]
    report = watching.round(replicas)
    assert found(report) == found(full(replicas))
    assert report.verdict is Verdict.DIVERGENCE


def touch(three: ReplicaSet, watching: Watching) -> None:
    os.utime(three.segment("n2", 0))


def copy_back(three: ReplicaSet, watching: Watching) -> None:
    path = three.segment("n2", 0)
    shutil.copy2(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


def other_blocks(three: ReplicaSet, watching: Watching) -> None:
    """The digests of n2 are cut elsewhere."""
    kept = watching.store.kept(program_digest())["n2", 0]
    assert kept.digests is not None
    edges = (kept.digests.edges[0], kept.digests.edges[-1])
    rows = rows_of(kept, ("n2", 0), KeptDigests(edges, bytes(8)))
    watching.store.keep(None, watching.now, rows, [])


@pytest.mark.parametrize("change", [touch, copy_back], ids=lambda change: change.__name__)
def test_file_that_is_another_is_read_again(
    three: ReplicaSet, watching: Watching, change: Callable[[ReplicaSet, Watching], None]
) -> None:
    """Once; then it is believed as it is now. The others' are believed all the time."""
    watching.round(three.replicas)
    change(three, watching)
    for fewer in (1, 0):
        report = watching.round(three.replicas)
        assert report.verdict is Verdict.IDENTICAL
        assert believed_segments(report) == 3 * len(sealed(three)) - fewer


class Astray(LocalEngine):
    """Reads for one replica what is another's, in passes that have one of the names."""

    def __init__(self, three: ReplicaSet, who: str, whose: str, names: set[str]) -> None:
        super().__init__(processes=1)
        self._folders = {str(three.paths[who] / "commitlog"): str(three.paths[whose] / "commitlog")}
        self._names = names

    def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
        if work.__name__ in self._names:
            tasks = [self._astray(task) for task in tasks]
        return super().run(work, tasks, progress)

    def _astray(self, task: Any) -> Any:
        if isinstance(task, ReadTask):
            return ReadTask(tuple(self._astray(each) for each in task.members))
        return replace(task, commitlog=self._folders.get(task.commitlog, task.commitlog))


@pytest.mark.parametrize("is_told", [False, True])
def test_what_was_read_of_another_file_is_not_kept(
    three: ReplicaSet, watching: Watching, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """Whether it is found that a file was read for two replicas or not: of nobody who may have read
    another's anything is kept, and the rot of the one that wasn't read is found the next time."""
    three.flip("n2", three.header_of(after=100).physical_offset + 70)
    if not is_told:
        monkeypatch.setattr("audit.proof.replicas.shared_findings", lambda plan, parts: [])
    report = watching.round(three.replicas, Astray(three, "n2", "n1", {"digest_blocks"}))
    assert ((Cause.SHARED_FILE, ("n1", "n2")) in found(report)) == is_told
    kept = {replica for replica, _ in watching.places()}
    assert kept == ({"n3"} if is_told else {"n1", "n3"})
    for _ in range(2):
        report = watching.round(three.replicas)
        assert (Cause.BAD_CRC, ("n2",)) in found(report)


def test_file_that_is_shared_by_now_is_not_believed_away(
    three: ReplicaSet, watching: Watching
) -> None:
    """What is kept of both says which file it was read of."""
    watching.round(three.replicas)
    replicas = [*three.replicas[:2], replace(three.replicas[2], path=str(three.paths["n2"]) + "/.")]
    for _ in range(2):
        report = watching.round(replicas)
        assert (Cause.SHARED_FILE, ("n2", "n3")) in found(report)
        assert "n2" not in {replica for replica, _ in watching.places()}


def test_believed_part_says_which_file_it_is_of(three: ReplicaSet, watching: Watching) -> None:
    """So that two that are believed are found to be one as well as two that are read."""
    watching.round(three.replicas)
    kept = watching.store.kept(program_digest())["n2", 0]
    assert kept.digests is not None
    assert kept.stamp.file == name_of_file(three.segment("n2", 0).stat())
    part = DigestPart(0, 0, kept.digests.edges)
    task = DigestTask("n2", "nowhere", (part,), 0)
    passes = Recalling(0, {("n2", 0): kept})
    ((known,), *_) = passes.digests(LocalEngine(processes=1), [task], lambda weight: None)
    assert known.file == kept.stamp.file


def test_file_that_was_just_written_is_not_kept(three: ReplicaSet, tmp_path: Path) -> None:
    """Within a tick of the clock it could be written again without a trace."""
    watching = Watching(tmp_path / "audits", stamper=stamped, settled_s=3600)
    path = three.segment("n2", 0)
    year = 366 * 24 * 3600
    os.utime(path, (path.stat().st_mtime - year, path.stat().st_mtime - year))
    watching.round(three.replicas)
    assert ("n2", 0) not in watching.places()
    watching.store.close()


def test_file_that_changes_while_it_is_read_is_not_kept(three: ReplicaSet, tmp_path: Path) -> None:
    """Whatever was read of it."""
    calls: list[int] = []

    def changing(replicas: Sequence[Replica], engine: Engine) -> list[Stamps]:
        calls.append(len(replicas))
        if len(calls) == 2:
            os.utime(three.segment("n2", 0))
        return an_hour_later(replicas, engine)

    watching = Watching(tmp_path / "audits", stamper=changing)
    watching.round(three.replicas)
    assert ("n2", 0) not in watching.places()
    assert ("n1", 0) in watching.places()
    watching.store.close()


def test_blocks_that_are_cut_elsewhere_are_read(three: ReplicaSet, watching: Watching) -> None:
    """Digests of other ranges say nothing of these."""
    watching.round(three.replicas)
    other_blocks(three, watching)
    report = watching.round(three.replicas)
    assert report.verdict is Verdict.IDENTICAL
    assert watching.round(three.replicas, block_size=2 * BLOCK).verdict is Verdict.IDENTICAL


def test_another_program_believes_nothing(
    three: ReplicaSet, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rules may be others."""
    watching.round(three.replicas)
    monkeypatch.setattr(remembering, "program_digest", lambda: "another")
    assert watching.round(three.replicas).scope.believed is None
    assert believed_segments(watching.round(three.replicas)) == 3 * len(sealed(three))


@pytest.mark.parametrize("step_s", [PERIOD_S, -1.0])
def test_time_that_is_up_or_went_back_believes_nothing(
    three: ReplicaSet, watching: Watching, step_s: float
) -> None:
    """A proof of tomorrow is none."""
    watching.round(three.replicas)
    watching.now += step_s
    assert watching.round(three.replicas).scope.believed is None


def test_period_comes_round_whatever_the_rounds(three: ReplicaSet, watching: Watching) -> None:
    """Each round takes its share, so that none has to take all of it."""
    watching.round(three.replicas)
    count, ages, read_again = 3 * len(sealed(three)), [], 0
    for _ in range(10):
        watching.now += PERIOD_S / 10
        report = watching.round(three.replicas)
        assert report.scope.believed is not None
        ages.append(watching.now - report.scope.believed.since)
        read_again += count - believed_segments(report)
    assert max(ages) < PERIOD_S
    assert count <= read_again <= 10 + count


def test_pace_takes_the_oldest_and_no_more_than_its_share() -> None:
    """And whatever is over, however much that is."""
    kept = {("n1", at): (float(at), 10) for at in range(100)}
    due = Pace(1000.0, 100.0).due(kept)
    assert due == {("n1", at) for at in range(90, 100)}
    assert Pace(1000.0, 0.0).due(kept) == set()
    assert Pace(50.0, 0.0).due(kept) == {("n1", at) for at in range(50, 100)}
    assert Pace(1000.0, -5.0).due(kept) == set()
    assert len(Pace(1000.0, 5000.0).due(kept)) == 100
    assert Pace(1000.0, 0.0).due({("n1", 0): (-1.0, 10)}) == {("n1", 0)}


def test_chain_comes_back_as_it_was(three: ReplicaSet) -> None:
    """All that other segments' checks take from it, digits and bytes."""
    task = ChainTask(
        "n1", str(three.paths["n1"] / "commitlog"), SEGMENT, SEGMENT, 2 * SEGMENT, 10**6, (0, 0), 0
    )
    (chain,) = read_chains(ReadTask((task,)))
    assert chain.units
    assert sum(run.units for run in chain.units) == chain.records
    payload = encode_chain(chain)
    kept = replace(chain, run=None)  # A start isn't rehearsed on what was read in another round.
    assert decode_chain(payload, ("n1", SEGMENT)) == kept
    for cut in (0, 1, len(payload) // 2, len(payload) - 1):
        with pytest.raises(KeptUnreadable):
            decode_chain(payload[:cut], ("n1", SEGMENT))
    digests = KeptDigests((0, 4096, 8192), bytes(range(16)))
    packed = encode_digests(digests)
    assert packed[:12].hex() == "020000000000000000000000"
    assert decode_digests(packed) == digests
    for wrong in (b"", packed[:-1], packed + b"\0", bytes(4)):
        with pytest.raises(KeptUnreadable):
            decode_digests(wrong)


def test_damaged_store_loses_rows_and_makes_none(three: ReplicaSet, watching: Watching) -> None:
    """Whatever byte of it is another: what is kept is as it was, or not kept, and it is told."""
    watching.round(three.replicas)
    before = watching.store.kept(program_digest())
    path = watching.folder / FILE
    whole = path.read_bytes()
    for at in range(100, len(whole), len(whole) // 60):
        rotten = bytearray(whole)
        rotten[at] ^= 0x10
        path.write_bytes(rotten)
        kept = watching.store.kept(program_digest())
        told = watching.store.problems()
        assert all(before.get(p, k) == k or _partly(before[p], k) for p, k in kept.items()), at
        assert kept == before or told, at
    path.write_bytes(whole[:512])
    assert watching.store.kept(program_digest()) == {}
    assert "was damaged" in watching.store.problems()[0]
    assert path.with_name(f"{FILE}.damaged").read_bytes() == whole[:512]
    assert watching.round(three.replicas).verdict is Verdict.IDENTICAL
    assert watching.store.kept(program_digest()) == before


def _partly(before: Kept, kept: Kept) -> bool:
    """One part of two is left."""
    return kept in (replace(before, digests=None), replace(before, chain=None))


def test_write_that_fails_keeps_nothing_and_costs_no_verdict(
    three: ReplicaSet, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a round's rows or none, wherever it breaks."""
    count = len(sealed(three)) * 6
    whole = store._stored
    for broken in range(0, count, 5):
        left = iter(range(broken))

        def stored(row: Row, left: Iterator[int] = left) -> tuple[object, ...]:
            if next(left, None) is None:
                raise sqlite3.OperationalError("disk is full")
            return whole(row)

        with monkeypatch.context() as patched:
            patched.setattr(store, "_stored", stored)
            assert watching.round(three.replicas).verdict is Verdict.IDENTICAL
        assert watching.places() == set()
        assert "disk is full" in watching.store.problems()[0]


def test_two_watches_dont_share_a_store(watching: Watching, tmp_path: Path) -> None:
    """The second is told so; the history can be read all the same."""
    with pytest.raises(StoreInUse) as refused:
        WatchStore(watching.folder)
    assert refused.value.exit_code == ExitCode.USAGE
    assert read_history(watching.folder) == ([], [])
    with pytest.raises(UsageMistake, match=r"no .*watch\.db"):
        read_history(tmp_path)


def test_history_is_read_behind_a_watch_that_was_killed_while_it_wrote(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had begun is undone first, and who can't do that is told so."""
    first = failed_round(0.0, 1.0, "no answer", ExitCode.INCOMPLETE)
    watching.store.add(first)
    if not (child := os.fork()):
        base = sqlite3.connect(watching.folder / FILE, isolation_level=None)
        base.execute("PRAGMA cache_size = 2")  # So that it writes before it commits.
        base.execute("BEGIN IMMEDIATE")
        base.execute("UPDATE rounds SET facts = 'begun'")
        for _ in range(200):
            base.execute("INSERT INTO rounds (facts) VALUES (?)", ("x" * 1_000,))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    rounds_in = store._rounds_in
    with monkeypatch.context() as patched:
        patched.setattr(store, "_rounds_in", lambda path, _mode: rounds_in(path, "ro"))
        with pytest.raises(UsageMistake, match="killed while it wrote"):
            read_history(watching.folder)
    assert read_history(watching.folder) == ([first], [])


def test_store_whose_header_rots_is_put_aside(three: ReplicaSet, watching: Watching) -> None:
    """No other program has these tables; what is lost is time, and the watch goes on."""
    watching.round(three.replicas)
    path = watching.folder / FILE
    rotten = bytearray(path.read_bytes())
    rotten[68] ^= 0x10  # of the application's id
    path.write_bytes(rotten)
    assert watching.store.kept(program_digest()) == {}
    assert "was damaged" in watching.store.problems()[0]
    assert path.with_name(f"{FILE}.damaged").read_bytes() == rotten


def test_store_that_cannot_be_made_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands know what to say of those; the folder is free for the next one."""

    def fail(_base: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_create", fail)
        with pytest.raises(OSError, match="disk is full") as told:
            WatchStore(tmp_path)
        assert told.value.filename == str(tmp_path / FILE)
    WatchStore(tmp_path).close()


def test_store_of_another_group_or_program_is_refused(
    three: ReplicaSet, watching: Watching, tmp_path: Path
) -> None:
    """What was proved of others is not mixed with this."""
    watching.store.keep("other", watching.now, [], [])
    with pytest.raises(UsageMistake, match="broker group other"):
        watching.round(three.replicas)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    with sqlite3.connect(foreign / FILE) as base:
        base.execute("CREATE TABLE mine (x)")
    base.close()
    with pytest.raises(UsageMistake, match="no store of this release"):
        WatchStore(foreign)


def test_good_rounds_displace_no_bad_one(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history is bounded for each kind apart."""
    monkeypatch.setattr(store, "KEPT_ROUNDS", 3)
    bad = failed_round(0.0, 1.0, "no answer", ExitCode.INCOMPLETE)
    watching.store.add(bad)
    for number in range(9):
        watching.store.add(Round(number, number + 1, "identical", 0, end=100 * number))
    rounds, unreadable = read_history(watching.folder)
    assert rounds[0] == bad
    assert [each.begun for each in rounds[1:]] == [6, 7, 8]
    assert unreadable == []
    assert growth(rounds) == [None, None, 100.0, 100.0]
    with sqlite3.connect(watching.folder / FILE) as base:
        base.execute("UPDATE rounds SET facts = replace(facts, 'failed', 'identical')")
    base.close()
    assert read_history(watching.folder)[1] == [0]


def test_incomplete_rounds_displace_no_damage(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do rounds with damage those that were incomplete; what can't be read may be damage."""
    monkeypatch.setattr(store, "KEPT_ROUNDS", 2)
    rot = Round(0.0, 1.0, "bit rot", ExitCode.INCONSISTENT)
    watching.store.add(rot)
    for number in range(1, 6):
        watching.store.add(failed_round(number, number + 1, "no answer", ExitCode.INCOMPLETE))
    with sqlite3.connect(watching.folder / FILE) as base:
        base.execute("UPDATE rounds SET facts = 'rotten' WHERE number = 5")
    base.close()
    for number in range(6, 9):
        watching.store.add(failed_round(number, number + 1, "no answer", ExitCode.INCOMPLETE))
    rounds, unreadable = read_history(watching.folder)
    assert rounds[0] == rot
    assert [each.begun for each in rounds[1:]] == [7, 8]
    assert unreadable == [1]


@pytest.mark.parametrize(
    ("codes", "worst"), [((), 0), ((0, 0), 0), ((0, 3), 3), ((3, 1, 0), 1), ((3, 1), 1)]
)
def test_worst_of_rounds(codes: tuple[int, ...], worst: int) -> None:
    """Inconsistent before incomplete, though its number is smaller."""
    assert worst_exit(codes) == worst


def test_full_disk_is_told_and_not_that_nothing_is_left_to_undo(tmp_path: Path) -> None:
    """SQLite ends the transaction by itself where the disk is full."""
    base = sqlite3.connect(tmp_path / "base", isolation_level=None)

    def fill() -> None:
        with _transaction(base):
            base.execute("ROLLBACK")
            raise sqlite3.OperationalError("database or disk is full")

    with closing(base), pytest.raises(sqlite3.OperationalError, match="is full"):
        fill()


@pytest.mark.parametrize("column", ["facts", "sum"])
def test_round_that_is_no_text_any_more_is_bad_alone(watching: Watching, column: str) -> None:
    """The others are told, and nothing of a traceback."""
    for number in range(2):
        watching.store.add(Round(number, number + 1, "identical", 0, end=100 * number))
    with closing(sqlite3.connect(watching.folder / FILE)) as base, base:
        rotten = f"UPDATE rounds SET {column} = CAST(x'ff' || CAST({column} AS BLOB) AS TEXT)"
        base.execute(f"{rotten} WHERE number = (SELECT min(number) FROM rounds)")
    rounds, bad = read_history(watching.folder)
    assert ([each.begun for each in rounds], bad) == ([1], [0])

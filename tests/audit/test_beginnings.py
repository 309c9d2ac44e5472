"""Replicas that begin at different places: whatever a crash left, and while a node drops its front.

A drop is a note, a page and some files, in that order (docs/adr/0043-a-log-that-begins-later.md);
what lies in a directory may be any beginning of that, and after a loss of power the page may be the
old one and any of the files there. All of that is one log.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from audit.engines.engine import Engine, LocalEngine, Progress, no_progress
from audit.proof.findings import Cause, Verdict
from audit.proof.log import open_log, verify_log
from audit.proof.ranges import EVERYTHING
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report
from audit.proof.soundness import Soundness
from audit.reading.replica import Replica
from dledger.outcome import ExitCode
from dledger.reading.log_start import FROM_THE_FIRST, LogStart
from dledger.reading.survey import Position, survey_folder
from dledger.records.layout import file_name
from store.files import OsFiles
from store.log_start import StartNote
from tests.audit.replicas import (
    BLOCK,
    SEGMENT,
    LogBuilder,
    build,
    copy_sparse,
    dropping,
    on_own_disk,
    start_of,
    usual_entries,
)

NAMES: Final = ("n1", "n2", "n3")
DRAWS: Final = 10

drawn = partial(
    settings,
    max_examples=DRAWS,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)


@dataclass(frozen=True)
class Original:
    """A log of five segments that begins with entry 1, and where it can begin."""

    builder: LogBuilder
    starts: tuple[LogStart, ...]
    scratch: Path

    @property
    def path(self) -> Path:
        return self.builder.path

    @property
    def position(self) -> Position:
        last = self.builder.headers[-1]
        end = last.physical_offset + last.total_size
        return Position(end, last.digest, last.index, 1)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """Not changed by anybody."""
    root = tmp_path_factory.mktemp("long")
    builder = build(root / "data", usual_entries(160))
    firsts = [h.index for h in builder.headers if h.physical_offset % SEGMENT == 0]
    assert len(firsts) >= 5
    starts = tuple(start_of(builder.path, first) for first in firsts[1:-1])
    assert [start.first_index for start in starts] == firsts[1:-1]
    return Original(builder, starts, root)


@dataclass(frozen=True, slots=True)
class Left:
    """What a directory was left with. `start`: which of the starts, -1: entry 1; `page`: the
    checkpoint says so as well; `files`: bits, which of those before it are still there."""

    start: int
    page: bool
    files: int


lefts = st.builds(Left, st.integers(-1, 2), st.booleans(), st.integers(0, 7))


def leave(long: Original, target: Path, left: Left) -> LogStart:
    """A directory as it is drawn."""
    shutil.copytree(long.path, target, copy_function=copy_sparse)
    on_own_disk(target, target.name)
    if left.start < 0:
        return FROM_THE_FIRST
    start = long.starts[left.start]
    old = (target / "checkpoint").read_bytes()
    for _ in dropping(target, start):
        pass
    if not left.page:
        (target / "checkpoint").write_bytes(old)
    for number in range(start.offset(SEGMENT) // SEGMENT):
        if left.files >> number & 1:
            name = file_name(number * SEGMENT)
            shutil.copy(long.path / "commitlog" / name, target / "commitlog" / name)
    return start


def audited(replicas: Sequence[Replica], *, derived: bool, engine: Engine | None = None) -> Report:
    options = Options(block_size=BLOCK, derived=derived)
    return audit_replicas(replicas, engine or LocalEngine(), options).report


def said(report: Report) -> str:
    found = [f"{f.verdict} of {f.replicas}: {f.cause} {f.detail}" for f in report.findings]
    return "\n".join([str(report.verdict), *found, *report.notes])


def check_identical(report: Report, starts: dict[str, LogStart]) -> None:
    """Nothing is wrong; from where on at least two hold it is what the verdict speaks of, and who
    begins later is named."""
    note(said(report))
    assert (report.verdict, report.findings) == (Verdict.IDENTICAL, ())
    begins = sorted(start.offset(SEGMENT) for start in starts.values())
    assert report.scope.start == (begins[1] if begins[0] != begins[-1] else begins[0])
    later = {name for name, start in starts.items() if start.offset(SEGMENT) > begins[0]}
    named = {each.partition(":")[0] for each in report.notes if "begins later" in each}
    assert named == later
    for each in report.coverage:
        assert each.start == starts[each.replica].offset(SEGMENT)
        assert each.compared_bytes >= report.scope.end - max(begins[1], each.start)


@pytest.mark.parametrize("derived", [True, False])
@pytest.mark.parametrize("runs", [False, True], ids=["copies", "running"])
def test_whatever_a_drop_left_is_one_log(long: Original, derived: bool, runs: bool) -> None:
    """Copies, and nodes that run; begun alike or apart."""

    @drawn()
    @given(st.tuples(lefts, lefts, lefts))
    def holds(left: tuple[Left, Left, Left]) -> None:
        with tempfile.TemporaryDirectory(dir=long.scratch) as folder:
            paths = {name: Path(folder) / name for name in NAMES}
            starts = {
                name: leave(long, paths[name], each) for name, each in zip(NAMES, left, strict=True)
            }
            replicas = [
                Replica(
                    name,
                    str(paths[name]),
                    position=replace(long.position, first_index=starts[name].first_index)
                    if runs
                    else None,
                )
                for name in NAMES
            ]
            check_identical(audited(replicas, derived=derived), starts)
            for name, path in paths.items():
                total = verify_log(open_log(path))
                assert total.verdict is Soundness.SOUND
                assert total.first_index == starts[name].first_index

    holds()


@pytest.mark.parametrize("runs", [False, True], ids=["copy", "running"])
def test_segment_that_is_gone_behind_the_start_is_missing(long: Original, runs: bool) -> None:
    """Also the very first, of a node that says that its log begins later; and never retention."""

    @drawn()
    @given(lefts, st.integers(0, 3))
    def holds(left: Left, number: int) -> None:
        with tempfile.TemporaryDirectory(dir=long.scratch) as folder:
            path = Path(folder) / "n1"
            start = leave(long, path, left)
            base = start.offset(SEGMENT) + number * SEGMENT
            if base >= long.position.committed:
                return
            (path / "commitlog" / file_name(base)).unlink()
            position = replace(long.position, first_index=start.first_index) if runs else None
            replicas = [Replica("n1", str(path), position=position)]
            replicas += [Replica(name, str(long.path)) for name in NAMES[1:2]]
            report = audited(replicas, derived=False)
            note(said(report))
            assert Cause.MISSING_SEGMENT in {each.cause for each in report.findings}
            assert report.exit_code is ExitCode.INCOMPLETE
            if not runs:
                assert verify_log(open_log(path)).verdict is Soundness.INCOMPLETE

    holds()


class Dropping:
    """An engine below which a node drops its front: a step before each of the chosen tasks."""

    def __init__(self, steps: Iterator[None], tasks: Sequence[int]) -> None:
        self._engine = LocalEngine()
        self.name, self.parallelism = self._engine.name, self._engine.parallelism
        self.task_bytes = 2 * BLOCK
        self.width, self.is_spread = self._engine.width, self._engine.is_spread
        self._steps, self._tasks, self._done = steps, list(tasks), 0

    def run(
        self,
        work: Callable[[Any], Any],
        tasks: Sequence[Any],
        progress: Progress = no_progress,
    ) -> list[Any]:
        found = []
        for task in tasks:
            for _ in range(self._tasks.count(self._done)):
                next(self._steps, None)
            self._done += 1
            found += self._engine.run(work, [task], progress)
        return found

    def close(self) -> None:
        self._engine.close()


@pytest.mark.parametrize("derived", [True, False])
def test_node_that_drops_its_front_meanwhile_lacks_nothing(long: Original, derived: bool) -> None:
    """Whatever it does between two reads, and whether others have done it before."""

    @drawn()
    @given(lefts, st.integers(0, 2), st.lists(st.integers(0, 60), min_size=1, max_size=6))
    def holds(left: Left, later: int, tasks: list[int]) -> None:
        with tempfile.TemporaryDirectory(dir=long.scratch) as folder:
            paths = {name: Path(folder) / name for name in NAMES[:2]}
            starts = {"n1": leave(long, paths["n1"], left), "n2": long.starts[later]}
            shutil.copytree(long.path, paths["n2"], copy_function=copy_sparse)
            on_own_disk(paths["n2"], "n2")
            engine = Dropping(dropping(paths["n2"], long.starts[later]), tasks)
            replicas = [
                Replica(name, str(path), position=long.position) for name, path in paths.items()
            ]
            report = audited(replicas, derived=derived, engine=engine)
            note(said(report))
            assert (report.verdict, report.findings) == (Verdict.IDENTICAL, ())
            begin = max(start.offset(SEGMENT) for start in starts.values())
            assert report.scope.start <= begin

    holds()


def early(long: Original, start: LogStart) -> Position:
    """What a node said a few entries before the one at which its log can begin."""
    last = long.builder.headers[start.index - 4]
    return Position(last.physical_offset + last.total_size, last.digest, last.index, 1)


@pytest.mark.parametrize("derived", [True, False])
def test_node_that_begins_anew_behind_what_is_audited_is_told_so(
    long: Original, derived: bool
) -> None:
    """A snapshot is installed, or retention goes on, after it said how far it is: whenever that
    happens it isn't called a replica without a log, and never one whose log begins later."""

    @drawn()
    @given(st.integers(0, 2), st.lists(st.integers(0, 40), min_size=1, max_size=6))
    def holds(number: int, tasks: list[int]) -> None:
        with tempfile.TemporaryDirectory(dir=long.scratch) as folder:
            paths = {name: Path(folder) / name for name in NAMES[:2]}
            for name, path in paths.items():
                shutil.copytree(long.path, path, copy_function=copy_sparse)
                on_own_disk(path, name)
            start = long.starts[number]
            engine = Dropping(dropping(paths["n2"], start), tasks)
            position = early(long, start)
            replicas = [Replica(name, str(path), position=position) for name, path in paths.items()]
            report = audited(replicas, derived=derived, engine=engine)
            note(said(report))
            for each in report.findings:
                assert (each.cause, each.replicas) == (Cause.OVERTAKEN, ("n2",))
                assert f"{position.committed}" in each.detail
                assert f"{start.offset(SEGMENT)}" in each.detail
            assert report.exit_code in (ExitCode.CONSISTENT, ExitCode.INCOMPLETE)

    holds()


@pytest.mark.parametrize("accepts", [True, False], ids=["accepted", "as it is"])
def test_node_that_began_anew_before_it_was_looked_at_shares_nothing(
    long: Original, tmp_path: Path, accepts: bool
) -> None:
    """It says so, and the others are compared; that retention is accepted changes nothing."""
    for name in NAMES:
        shutil.copytree(long.path, tmp_path / name, copy_function=copy_sparse)
        on_own_disk(tmp_path / name, name)
    for _ in dropping(tmp_path / "n2", long.starts[1]):
        pass
    position = early(long, long.starts[1])
    replicas = [Replica(name, str(tmp_path / name), position=position) for name in NAMES]
    options = Options(block_size=BLOCK, derived=True, accept_retention=accepts)
    report = audit_replicas(replicas, LocalEngine(), options).report
    (found,) = report.findings
    assert (found.cause, found.replicas) == (Cause.OVERTAKEN, ("n2",))
    assert report.exit_code is ExitCode.INCOMPLETE
    compared = {each.replica: each.compared_bytes for each in report.coverage}
    assert compared == {"n1": position.committed, "n2": 0, "n3": position.committed}
    assert all(each.start <= each.end for each in report.coverage)
    assert (report.scope.start, report.scope.end) == (0, position.committed)


def test_nodes_that_all_began_anew_are_told_so(long: Original, tmp_path: Path) -> None:
    """Nothing is left to be compared, and nobody is called identical."""
    for name in NAMES[:2]:
        shutil.copytree(long.path, tmp_path / name, copy_function=copy_sparse)
        on_own_disk(tmp_path / name, name)
        for _ in dropping(tmp_path / name, long.starts[1]):
            pass
    position = early(long, long.starts[1])
    replicas = [Replica(name, str(tmp_path / name), position=position) for name in NAMES[:2]]
    report = audited(replicas, derived=True)
    assert {(each.cause, each.replicas) for each in report.findings} == {
        (Cause.OVERTAKEN, (name,)) for name in NAMES[:2]
    }
    assert all(each.start <= each.end for each in report.findings)
    assert report.exit_code is ExitCode.INCOMPLETE


@dataclass(frozen=True, slots=True)
class Other:
    """A note that says something else of the entry before."""

    index: int = 0
    term: int = 0
    digest: int = 0
    end_offset: int = 0


others = st.one_of(
    st.builds(Other, index=st.sampled_from([-1, 1])),
    st.builds(Other, term=st.just(1)),
    st.builds(Other, digest=st.integers(1, (1 << 64) - 1)),
    st.builds(Other, end_offset=st.sampled_from([-1, 1, -200])),
)


@pytest.mark.parametrize("derived", [True, False])
def test_log_that_begins_behind_another_entry_is_different(long: Original, derived: bool) -> None:
    """Where somebody holds that entry, or begins behind it as well."""

    @drawn()
    @given(st.integers(0, 2), st.integers(-1, 2), others)
    def holds(number: int, before: int, other: Other) -> None:
        if before > number:
            return
        with tempfile.TemporaryDirectory(dir=long.scratch) as folder:
            paths = {name: Path(folder) / name for name in NAMES[:2]}
            leave(long, paths["n1"], Left(before, page=True, files=0))
            start = leave(long, paths["n2"], Left(number, page=True, files=0))
            wrong = replace(
                start,
                index=start.index + other.index,
                term=start.term + other.term,
                digest=start.digest ^ other.digest,
                end_offset=start.end_offset + other.end_offset,
            )
            StartNote(OsFiles(), paths["n2"]).replace(wrong)
            replicas = [Replica(name, str(path)) for name, path in paths.items()]
            report = audited(replicas, derived=derived)
            note(said(report))
            assert report.verdict is Verdict.DIVERGENCE
            assert Cause.START_DIFFERS in {each.cause for each in report.findings}
            if other.digest:
                total = verify_log(open_log(paths["n2"]))
                assert total.first is not None
                assert total.first.cause == Cause.DIGEST_BROKEN

    holds()


@pytest.mark.parametrize("derived", [True, False])
def test_start_that_nobody_can_vouch_for_is_incomplete(
    long: Original, tmp_path: Path, derived: bool
) -> None:
    """Its note is gone, or can't be read, or whoever holds the entry before holds it rotten."""
    paths = {name: tmp_path / name for name in NAMES[:2]}
    replicas = [Replica(name, str(path)) for name, path in paths.items()]
    shutil.copytree(long.path, paths["n1"], copy_function=copy_sparse)
    on_own_disk(paths["n1"], "n1")
    start = leave(long, paths["n2"], Left(1, page=True, files=0))
    kept = (paths["n2"] / "log_start").read_bytes()
    (paths["n2"] / "log_start").unlink()
    report = audited(replicas, derived=derived)
    assert Cause.RETAINED_LATER in {each.cause for each in report.findings}
    assert verify_log(open_log(paths["n2"])).verdict is Soundness.INCOMPLETE
    (paths["n2"] / "log_start").write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    report = audited(replicas, derived=derived)
    assert Cause.RETAINED_LATER in {each.cause for each in report.findings}
    assert verify_log(open_log(paths["n2"])).verdict is Soundness.INCOMPLETE
    (paths["n2"] / "log_start").write_bytes(kept)
    file = paths["n1"] / "commitlog" / file_name(start.offset(SEGMENT) - SEGMENT)
    content = bytearray(file.read_bytes())
    content[start.end_offset % SEGMENT - 3] ^= 1
    file.write_bytes(content)
    report = audited(replicas, derived=derived)
    assert Cause.RETAINED_LATER in {each.cause for each in report.findings}
    assert Cause.START_DIFFERS not in {each.cause for each in report.findings}


def test_where_nothing_is_shared_nothing_is_called_identical(
    long: Original, tmp_path: Path
) -> None:
    """One runs and ends where the other begins: the note fits, and no byte was compared."""
    start = leave(long, tmp_path / "n2", Left(2, page=True, files=0))
    shutil.copytree(long.path, tmp_path / "n1", copy_function=copy_sparse)
    on_own_disk(tmp_path / "n1", "n1")
    behind = Position(start.offset(SEGMENT), start.digest, start.index, 1)
    replicas = [
        Replica("n1", str(tmp_path / "n1"), position=behind),
        Replica("n2", str(tmp_path / "n2"), position=long.position),
    ]
    report = audited(replicas, derived=False)
    assert report.verdict is Verdict.INCOMPLETE
    assert {each.cause for each in report.findings} == {Cause.RETAINED_LATER}


def test_survey_knows_the_entry_before_the_first(long: Original, tmp_path: Path) -> None:
    """Of a log in which nothing was applied since it began as well."""
    start = leave(long, tmp_path / "n1", Left(1, page=False, files=7))
    found = survey_folder("n1", str(tmp_path / "n1"))
    assert (found.start, found.retained_from) == (start, start.offset(SEGMENT))
    assert min(each.base for each in found.segments) == found.retained_from
    assert EVERYTHING[0] == 1
    assert survey_folder("n1", str(long.path)).start == FROM_THE_FIRST


@pytest.mark.parametrize("lie", [0, 1], ids=["true", "another"])
def test_first_entry_continues_the_note_on_all_replicas_alike(
    long: Original, tmp_path: Path, lie: int
) -> None:
    """Where nobody holds what was before, the chain begins with the note's digest."""
    paths = {name: tmp_path / name for name in NAMES}
    for path in paths.values():
        start = leave(long, path, Left(1, page=True, files=0))
        StartNote(OsFiles(), path).replace(replace(start, digest=start.digest ^ lie))
    report = audited([Replica(name, str(path)) for name, path in paths.items()], derived=True)
    causes = {each.cause for each in report.findings}
    assert causes == ({Cause.DIGEST_BROKEN} if lie else set())


def test_chain_that_begins_nowhere_is_incomplete(long: Original, tmp_path: Path) -> None:
    """All of them begin later, and no note says behind what."""
    paths = {name: tmp_path / name for name in NAMES}
    for path in paths.values():
        leave(long, path, Left(1, page=True, files=0))
        (path / "log_start").unlink()
    report = audited([Replica(name, str(path)) for name, path in paths.items()], derived=True)
    assert {each.cause for each in report.findings} == {Cause.START_UNKNOWN}
    assert report.exit_code is ExitCode.INCOMPLETE

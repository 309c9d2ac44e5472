"""Starts that are rehearsed on what an audit has read: the same judgement, whatever befell."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from audit.engines.engine import LocalEngine, Progress, R, T, no_progress
from audit.proof.chain import Chain, ChainTask, ReadTask
from audit.proof.digest import FileProblem, PartDigests
from audit.proof.findings import Cause
from audit.proof.intact import (
    MAX_CONFIGURATION_BYTES,
    MAX_TERMS,
    Growing,
    ReadRun,
    read_runs,
)
from audit.proof.invariants import SegmentRules
from audit.proof.reading import read_chains
from audit.proof.replicas import Options, audit_replicas
from audit.proof.starting import StartTask
from audit.reading.file_state import FileState, state_of
from audit.reading.replica import Replica
from dledger.reading.entry import EntryHeader, EntryKind, parse_header
from dledger.reading.survey import survey_folder
from dledger.records.layout import ENTRY, UNITS_PER_FILE
from store.commitlog import CommitLog, CommitLogOptions
from store.directory import write_sealed
from store.errors import CorruptionFound
from store.files import OsFiles
from store.intact import IntactRun, Known
from store.rehearsal import RehearsedFiles
from store.starting.judgement import Judgement
from store.starting.judging import judge
from store.truncation import TruncationIntent
from store.worker import ManualWorker
from tests.audit.both_ways import unsettled
from tests.audit.replicas import copy_sparse, flip_bit
from tests.starting.changes import CHANGES, Change
from tests.starting.members import SEGMENT, UNITS, WHOSE, Lived, lived, segment

DRAWS = int(os.environ.get("DRAWS", "25"))
OPTIONS = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return lived(tmp_path_factory.mktemp("lived"))


@pytest.fixture(params=["clean", "killed"])
def path(request: pytest.FixtureRequest, healthy: Lived, tmp_path: Path) -> Path:
    """A member's directory, which may be changed."""
    source = healthy.clean if request.param == "clean" else healthy.killed
    return Path(shutil.copytree(source, tmp_path / "n1", copy_function=copy_sparse))


def read(path: Path) -> Known:
    """The runs that an audit tells of the directory's log, as far as it claims one."""
    survey = survey_folder("n1", str(path))
    if survey.problem:
        return ()
    chains = [
        read_chains(
            ReadTask(
                (
                    ChainTask(
                        *("n1", survey.commitlog, each.base, SEGMENT),
                        *(min(survey.end, each.base + SEGMENT), 0, (0, 0), 0),
                    ),
                )
            )
        )[0]
        for each in survey.segments
        if each.base < survey.end
    ]
    return tuple(chain.run for chain in chains if chain.run is not None)


def judged(path: Path, known: Known = ()) -> Judgement:
    return judge(path, WHOSE, units_per_file=UNITS, known=known)


def test_what_was_read_is_passed_over(path: Path) -> None:
    """All entries of all segments but the first of each; terms and members are known even so."""
    known = read(path)
    assert len(known) > 3
    assert any(each.terms for each in known)
    plain, passed = opened(path, ()), opened(path, known)
    assert passed.passed_over == tuple((each.first.index + 1, each.last.index) for each in known)
    assert plain.passed_over == ()
    for one, other in ((plain, passed), (passed, plain)):
        assert one.term_runs() == other.term_runs()
        assert one.configuration_entries() == other.configuration_entries()
        assert (one.last_index, one.last_digest) == (other.last_index, other.last_digest)
        assert one.end_offset == other.end_offset
    for index in range(1, plain.last_index + 1):
        assert passed.position_of(index) == plain.position_of(index)
        assert passed.read(index, index) == plain.read(index, index)
        behind = plain.position_of(index)
        for at in (behind - 1, behind, behind + 1):
            assert passed.ends_by(at) == plain.ends_by(at)


def opened(path: Path, known: Known) -> CommitLog:
    files = RehearsedFiles()
    return CommitLog.open(path, OPTIONS, files, workers=ManualWorker, known=known)


def test_entry_that_was_passed_over_is_not_read(path: Path) -> None:
    """Or nothing would be gained: what changes there afterwards only its file's state shows."""
    known = read(path)
    flip_bit(segment(path, 1), SEGMENT // 2)
    assert judged(path, known).starts
    assert not judged(path).starts


@pytest.mark.parametrize("at", [40, 200], ids=["header", "body"])
def test_first_entry_of_a_segment_is_read(path: Path, at: int) -> None:
    """It ties what is known to the log before it."""
    known = read(path)
    flip_bit(segment(path, 1), at)
    assert not judged(path, known).starts


def test_run_of_another_first_entry_is_not_believed(path: Path) -> None:
    """Whatever else it says: it is another log's."""
    known = tuple(
        replace(each, first=each.first._replace(digest=each.first.digest ^ 1))
        for each in read(path)
    )
    assert known
    assert opened(path, known).passed_over == ()


def test_what_lies_behind_is_read(path: Path) -> None:
    """Filler and tail are the walk's."""
    known = read(path)
    (run,) = (each for each in known if each.base == SEGMENT)
    flip_bit(segment(path, 1), run.size + 2)
    assert judged(path, known) == judged(path)
    assert not judged(path, known).starts


def test_run_that_leaves_no_room_for_a_filler_is_not_believed(path: Path) -> None:
    """No log of ours has one: eight bytes stay free. Where the file says so, too, it isn't one."""
    longer, known = [], read(path)
    for each in known:
        at = each.last.physical_offset - each.base
        size = SEGMENT - at - 7
        longer.append(replace(each, last=each.last._replace(total_size=size)))
        with segment(path, each.base // SEGMENT).open("r+b") as file:
            file.seek(at + ENTRY.at("total_size"))
            file.write(ENTRY.run("total_size").pack(size))
    assert known
    with pytest.raises(CorruptionFound):
        opened(path, tuple(longer))


def test_log_that_is_cut_first_is_walked(path: Path) -> None:
    """An unfinished cut changes what was read, for a judgement and for who opens the log."""
    known = read(path)
    cut = known[-2].last.physical_offset
    intent = TruncationIntent(OsFiles(), path / "truncation")
    intent.settle()
    intent.write(cut)
    assert judged(path, known) == judged(path)
    plain = opened(path, ())
    assert plain.recovery.redone_cut == cut
    assert opened(path, known).recovery == plain.recovery


def test_log_that_is_cut_before_it_is_opened_is_walked(path: Path) -> None:
    """One whose directory isn't marked as a member's yet is opened twice; the first time cuts."""
    stored = json.loads((path / "identity.json").read_text())
    del stored["crc32c"]
    write_sealed(OsFiles(), path / "identity.json", stored | {"state": "unformed"})
    known = read(path)
    intent = TruncationIntent(OsFiles(), path / "truncation")
    intent.settle()
    intent.write(known[-2].last.physical_offset)
    plain = judged(path)
    assert judged(path, known) == plain
    assert plain.starts


class Noting(LocalEngine):
    """Keeps the starts' tasks; beforehand, `meanwhile` happens."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(processes=1)
        self.starts: dict[str, StartTask] = {}
        self._meanwhile = meanwhile

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress = no_progress
    ) -> list[R]:
        """See `Engine.run`."""
        found = {each.replica: each for each in tasks if isinstance(each, StartTask)}
        if found:
            self._meanwhile()
        self.starts |= found
        with unsettled():
            return super().run(work, tasks, progress)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with queues of the size that audits know."""
    return lived(tmp_path_factory.mktemp("member"), UNITS_PER_FILE).clean


@pytest.fixture
def replicas(member: Path, tmp_path: Path) -> list[Replica]:
    """The same member's directory, three times."""
    names = ("n1", "n2", "n3")
    for name in names:
        shutil.copytree(member, tmp_path / name, copy_function=copy_sparse)
    return [Replica(name, str(tmp_path / name)) for name in names]


def audited(replicas: list[Replica], engine: Noting) -> set[tuple[Cause, tuple[str, ...]]]:
    """What is found, but that all of them are one member's."""
    report = audit_replicas(replicas, engine, Options(block_size=4096, derived=True)).report
    found = {(each.cause, each.replicas) for each in report.findings}
    assert (Cause.SAME_DISK, ("n1", "n2", "n3")) in found
    return {each for each in found if each[0] is not Cause.SAME_DISK}


def test_audit_reads_each_log_once(replicas: list[Replica]) -> None:
    """Also those that it compared with another's."""
    engine = Noting()
    assert not audited(replicas, engine)
    runs = {name: [each.run for each in task.runs] for name, task in engine.starts.items()}
    assert runs["n1"] == runs["n2"] == runs["n3"] == list(read(Path(replicas[0].path)))
    assert all(task.weight < SEGMENT for task in engine.starts.values())


def test_file_that_was_written_to_meanwhile_is_read_again(replicas: list[Replica]) -> None:
    """Between its proof and the rehearsal."""
    path = segment(Path(replicas[1].path), 1)
    engine = Noting(meanwhile=lambda: flip_bit(path, SEGMENT // 2))
    assert audited(replicas, engine) == {(Cause.WOULD_NOT_START, ("n2",))}
    assert engine.starts["n2"].runs


def test_nothing_is_believed_of_who_was_found_anything_wrong_with(replicas: list[Replica]) -> None:
    """Not even what was found right."""
    flip_bit(segment(Path(replicas[1].path), 1), SEGMENT // 2)
    engine = Noting()
    assert {who for _, who in audited(replicas, engine)} == {("n2",)}
    assert engine.starts["n2"].runs == ()
    assert engine.starts["n1"].runs


def test_file_tells_its_state_if_nobody_else_writes_to_it(tmp_path: Path) -> None:
    """Not right behind a change, which a later one could hide in; not under two names."""
    path = tmp_path / "file"
    path.write_bytes(b"some")
    assert state_of(str(path)) is None
    with unsettled():
        before = state_of(str(path))
        assert before is not None
        path.write_bytes(b"thing")
        assert state_of(str(path)) != before
        os.link(path, tmp_path / "other")
        assert state_of(str(path)) is None


def chain_of(run: IntactRun | None) -> Chain:
    ends = SegmentRules(0).ends()
    return Chain("n1", 0, (), (), 1, 1, (), (), (), ends, (), 0, 0, 0, run)


def header(index: int, term: int = 1, kind: int = EntryKind.NOOP, size: int = 100) -> EntryHeader:
    return EntryHeader(size, kind, 2, 0, 0, index, term, 100 * index - 100, 0, index)


def test_file_in_two_states_tells_nothing() -> None:
    """Its parts were hashed one after the other."""
    run = IntactRun(header(1), header(3), (), ())
    one, other = FileState(300, 1, 1, 7, 8), FileState(300, 1, 2, 7, 8)

    def part(state: FileState | None) -> PartDigests:
        return PartDigests("n1", 0, 0, bytes(8), 300, state=state)

    assert read_runs([part(one), part(one)], [chain_of(run)]) == {"n1": [ReadRun(run, one)]}
    for states in ([one, other], [one, None], [None]):
        assert read_runs(map(part, states), [chain_of(run)]) == {}
    failed = replace(part(one), problem=FileProblem.TRUNCATED)
    assert read_runs([part(one), failed], [chain_of(run)]) == {}
    assert read_runs([part(one)], [chain_of(None)]) == {}


def test_run_is_bounded() -> None:
    """A log of nothing but elections or configurations is walked again."""
    terms, configurations = Growing(), Growing()
    for index in range(1, MAX_TERMS + 2):
        terms.add(header(index, index), bytes)
    told = terms.told()
    assert told is not None
    assert len(told.terms) == MAX_TERMS
    terms.add(header(MAX_TERMS + 2, MAX_TERMS + 2), bytes)
    assert terms.told() is None
    assert Growing().told() is None
    for index in range(1, 4):
        assert configurations.told() is None or index > 1
        entry = header(index, 1, EntryKind.CONFIGURATION, MAX_CONFIGURATION_BYTES // 2 + 1)
        configurations.add(entry, lambda: bytes(100))
    assert configurations.told() is None


def test_segment_in_which_anything_was_found_is_no_run(path: Path) -> None:
    """Nor is one that begins or ends in damage."""
    known = {each.base for each in read(path)}
    for at in (30, SEGMENT // 2, 900):
        flip_bit(segment(path, 1), at)
        assert {each.base for each in read(path)} == known - {SEGMENT}
        flip_bit(segment(path, 1), at)
    short = segment(path, 1)
    os.truncate(short, SEGMENT // 2)
    assert {each.base for each in read(path)} == known - {SEGMENT}


def test_segment_whose_digests_break_is_no_run(path: Path) -> None:
    """Nothing in it is damaged: its entries' checksums are all right."""
    file, known = segment(path, 1), {each.base for each in read(path)}
    content = bytearray(file.read_bytes())
    size = parse_header(content, 0).total_size
    entry = content[size : size + parse_header(content, size).total_size]
    entry[-1] ^= 1
    at, behind = ENTRY.at("crc"), ENTRY.end("crc")
    entry[at:behind] = crc32c(bytes(entry[behind:]), crc32c(bytes(entry[:at]))).to_bytes(4, "big")
    content[size : size + len(entry)] = entry
    file.write_bytes(content)
    assert {each.base for each in read(path)} == known - {SEGMENT}
    assert judged(path, read(path)) == judged(path)


def settled(found: Judgement) -> Judgement:
    """Without what is drawn: a start gives a disk of the format before an identity of its own."""
    is_drawn = found.facts.state == "legacy"
    return replace(found, facts=replace(found.facts, disk_id="")) if is_drawn else found


@settings(
    max_examples=DRAWS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=tuple(Phase) if "DRAWS" in os.environ else (Phase.explicit, Phase.generate),
)
@given(change=CHANGES, is_clean=st.booleans())
def test_what_was_read_changes_no_judgement(
    healthy: Lived, change: Change, *, is_clean: bool
) -> None:
    """One change to any file of a member's directory: what an audit then reads of the log, and
    finds nothing in, is what its start would have found there."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "n1"
        source = healthy.clean if is_clean else healthy.killed
        shutil.copytree(source, path, copy_function=copy_sparse)
        note(change.apply(path))
        known = tuple(
            each
            for each in read(path)
            if segment(path, each.base // SEGMENT).stat().st_nlink == 1  # as `state_of` has it
        )
        assert settled(judged(path, known)) == settled(judged(path))

"""Any one change to any file of healthy replicas gets a verdict that the change allows.

Replicas are made once by the simulator, which runs the product's own; `tests.audit.changes` says
what is changed and what may be said of it. Each reading is made twice, entries taken together and
one by one, and both must find the same. `$AUDIT_DRAWS` changes of each kind are drawn:
`make audit-property` draws thousands, and other ones each time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st

from audit.engines.engine import Engine
from audit.proof.copy import audit_copy
from audit.proof.findings import Cause, Verdict
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report, report_as_json
from audit.proof.scope import Snapshots
from audit.proof.soundness import Soundness
from audit.reading.replica import Replica
from audit.showing.copy import copy_lines
from audit.showing.words import scope_in_words
from tests.audit.both_ways import BothWays
from tests.audit.changes import Change, Kind, Map, Repair, allowed, apply, copied, fits, noted
from tests.audit.simulated_group import group_plan, later_plan, make_group
from tests.scale import stride

BLOCK: Final = 4096
FEW: Final = 4
DRAWS: Final = int(os.environ.get("AUDIT_DRAWS", "0"))
MAX_FINDINGS: Final = 12  # of one change; a queue each, and the log's
OF_SNAPSHOTS: Final = (
    *(Kind.FLIP, Kind.ZERO, Kind.CUT, Kind.SWAP_FILES, Kind.SWAP_RANGES, Kind.RENAME),
    *(Kind.REMOVE, Kind.FORGE_SNAPSHOT),
)

drawn = partial(
    settings,
    deadline=None,
    database=None,
    derandomize=not DRAWS,
    suppress_health_check=list(HealthCheck),
    # Shrinking takes minutes; the long form does it.
    phases=tuple(Phase) if DRAWS else (Phase.explicit, Phase.generate),
)


@dataclass(frozen=True, slots=True)
class Group:
    """Healthy replicas that nobody changes, and where changed copies go."""

    replicas: dict[str, Path]
    known: Map
    scratch: Path


@pytest.fixture(scope="module", params=["stopped", "killed"])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Of nodes that were stopped, and of nodes that died."""
    root = tmp_path_factory.mktemp("group")
    replicas = make_group(root, group_plan(6), killed=request.param == "killed")
    return Group(replicas, Map(replicas["n2"]), root)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Of nodes that were stopped."""
    root = tmp_path_factory.mktemp("stopped")
    replicas = make_group(root, group_plan())
    return Group(replicas, Map(replicas["n2"]), root)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Of nodes that died, and had let go of the fronts of their logs, n2 less than another."""
    root = tmp_path_factory.mktemp("later")
    made = make_group(root, later_plan(), killed=True, apart=True)
    first, *_, last = sorted(made, key=lambda name: Map(made[name]).start.index)
    others = sorted(made.keys() - {first})
    replicas = dict(zip(("n2", "n1", "n3"), (made[first], *(made[n] for n in others)), strict=True))
    known = Map(replicas["n2"])
    assert 0 < known.start.index < Map(made[last]).start.index
    begins = sorted(Map(path).start.offset(known.segment_size) for path in made.values())
    known.alone_below = begins[1]
    return Group(replicas, known, root)


far = st.integers(0, (1 << 20) - 1)


def changes(kinds: list[Kind]) -> st.SearchStrategy[Change]:
    """Changes of these kinds."""
    return st.builds(
        Change,
        kind=st.sampled_from(kinds),
        file=st.integers(0, 400),
        at=far,
        size=st.one_of(st.integers(1, 64), st.integers(1, 9000)),
        other=st.integers(0, 30),
        to=far,
        bit=st.integers(0, 7),
        repair=st.sampled_from(Repair),
    )


@pytest.fixture
def copy_of(stopped: Group) -> Iterator[Callable[[str], Path]]:
    """Copies of replicas, for one draw."""
    with tempfile.TemporaryDirectory(dir=stopped.scratch) as folder:
        yield lambda name: copied(stopped.replicas[name], Path(folder) / name)


def audited(replicas: dict[str, Path], *, derived: bool, engine: Engine | None = None) -> Report:
    named = [Replica(name, str(path)) for name, path in replicas.items()]
    options = Options(block_size=BLOCK, derived=derived)
    return audit_replicas(named, engine or BothWays(), options).report


def said(report: Report) -> str:
    found = [f"{f.verdict} of {f.replicas}: {f.cause} {f.detail[:150]}" for f in report.findings]
    return "\n".join([str(report.verdict), *found[:MAX_FINDINGS], *report.notes])


def check(group: Group, change: Change, *, derived: bool) -> None:
    """The verdict is one that the change of n2 allows, and nobody else alone is blamed for it."""
    with tempfile.TemporaryDirectory(dir=group.scratch) as folder:
        target = copied(group.replicas["n2"], Path(folder) / "n2")
        apply(change, group.known, target)
        may_be = allowed(change, group.known, target, derived=derived)
        bad = noted(group.known, target)
        report = audited({**group.replicas, "n2": target}, derived=derived)
    note(said(report))
    assert report.verdict in may_be, sorted(may_be)
    # Whoever begins later is vouched for by n2, or by nobody.
    others = [each for each in report.findings if each.cause is not Cause.RETAINED_LATER]
    assert all("n2" in finding.replicas for finding in others)
    assert len(report.findings) <= MAX_FINDINGS
    assert all("n2" not in finding.right for finding in report.findings)
    check_snapshots(report, [] if change.kind is Kind.FORGE_SNAPSHOT else bad)


def check_snapshots(report: Report, bad: list[str]) -> None:
    """What was asked of them is in the scope; where they were looked at, the `bad` ones are noted,
    but for those whose sums are right: then the scope says that sums were all."""
    words = scope_in_words(report.scope)
    if report.scope.snapshots is Snapshots.UNREAD:
        assert "snapshots" in words
        return
    assert "snapshots: sums only" in words
    for name in bad:
        assert any(name in each for each in report.notes), name


@pytest.mark.parametrize("kind", OF_SNAPSHOTS, ids=lambda kind: kind.name.lower())
def test_snapshot_that_is_another_is_told(stopped: Group, kind: Kind) -> None:
    """Wherever it is changed: the replicas stay identical and it is noted; as a copy, the replica
    is damaged by one that can't be used, and sound by sums alone beside a forged one."""
    snapshots = stopped.known.snapshots

    @drawn(max_examples=DRAWS or FEW // stride(2))
    @given(changes([kind]))
    def holds(change: Change) -> None:
        files = stopped.known.files
        chosen, other = (
            files.index(snapshots[number % len(snapshots)])
            for number in (change.file, change.file + 1)
        )
        change = replace(change, file=chosen, other=other)
        with tempfile.TemporaryDirectory(dir=stopped.scratch) as folder:
            target = copied(stopped.replicas["n2"], Path(folder) / "n2")
            apply(change, stopped.known, target)
            bad = noted(stopped.known, target)
            report = audited({**stopped.replicas, "n2": target}, derived=True)
            copy = audit_copy(target, BothWays())
        note(said(report))
        assert report.verdict is Verdict.IDENTICAL
        assert report.scope.snapshots is copy.snapshots is Snapshots.SUMS
        assert "snapshots: sums only" in " ".join(" ".join(copy_lines(copy)).split())
        if kind is Kind.FORGE_SNAPSHOT:
            assert copy.verdict is Soundness.SOUND
            return
        check_snapshots(report, bad)
        used = [name for name in bad if _is_of_the_log(Path(name).name, stopped.known)]
        assert copy.verdict is (Soundness.DAMAGED if used else Soundness.SOUND)

    holds()


def _is_of_the_log(name: str, known: Map) -> bool:
    """Whether a start would look into the snapshot: others are strays, or ahead of its log."""
    return name.isdecimal() and int(name) <= known.entries[-1].index


def test_replicas_are_what_they_should_be(group: Group) -> None:
    """Several segments, terms, queues; a topic made anew; records in batches; nothing wrong."""
    engine = BothWays()
    report = audited(group.replicas, derived=True, engine=engine)
    assert report.verdict is Verdict.IDENTICAL, said(report)
    assert engine.passed_over["n2"] == sum(entry.size for entry in group.known.entries)
    assert not report.findings
    assert not report.notes
    assert report.scope.starts
    assert report.scope.index == group.known.entries[-1].index
    assert report.scope.end == group.known.end
    assert report.derived is not None
    assert len(group.known.used) >= FEW - 1
    assert len({entry.term for entry in group.known.entries}) >= FEW
    assert len({entry.base for entry in group.known.entries}) >= FEW
    assert max(entry.records for entry in group.known.entries) > 1
    topics = [path.parts[1].partition("@") for path in group.known.queues]
    assert any(int(incarnation) > FEW for _, _, incarnation in topics)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_one_change_has_a_verdict_that_it_allows(group: Group, kind: Kind) -> None:
    """Whatever it is, wherever it is."""

    @drawn(max_examples=DRAWS or FEW // stride(2))
    @given(changes([kind]), st.booleans())
    def holds(change: Change, log_only: bool) -> None:
        check(group, change, derived=not log_only)

    holds()


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_one_change_of_a_log_that_begins_later_has_such_a_verdict_too(
    later: Group, kind: Kind
) -> None:
    """Its start note and base as well; what nobody else holds any more is proved by its digests."""

    @drawn(max_examples=DRAWS or 2 * FEW // stride(2))
    @given(changes([kind]), st.booleans())
    def holds(change: Change, log_only: bool) -> None:
        check(later, change, derived=not log_only)

    holds()


def test_logs_that_begin_apart_are_identical(later: Group) -> None:
    """Over what they share, and named."""
    report = audited(later.replicas, derived=True)
    assert (report.verdict, report.findings) == (Verdict.IDENTICAL, ()), said(report)
    begins = {each.replica: each.start for each in report.coverage}
    assert report.scope.start == sorted(begins.values())[1]
    later_ones = {name for name, begin in begins.items() if begin > begins["n2"]}
    assert {each.partition(": begins later,")[0] for each in report.notes} == later_ones
    for path in later.replicas.values():
        assert audit_copy(path, BothWays()).verdict is Soundness.SOUND


def test_damage_to_the_checkpoint_hides_nothing(stopped: Group) -> None:
    """What is found beside an intact checkpoint is found beside any."""

    @drawn(max_examples=DRAWS or 2 * FEW // stride(2))
    @given(changes(list(Kind)), changes([Kind.CHECKPOINT, Kind.FLIP, Kind.CUT, Kind.REMOVE]))
    def holds(change: Change, second: Change) -> None:
        known = stopped.known
        with tempfile.TemporaryDirectory(dir=stopped.scratch) as folder:
            target = copied(stopped.replicas["n2"], Path(folder) / "n2")
            apply(change, known, target)
            alone = audited({**stopped.replicas, "n2": target}, derived=True)
            assume((target / "checkpoint").exists())
            assume(alone.verdict is not Verdict.IDENTICAL)
            apply(_of_checkpoint(second, known), known, target)
            both = audited({**stopped.replicas, "n2": target}, derived=True)
        note(said(alone))
        note(said(both))
        assert both.verdict is not Verdict.IDENTICAL

    holds()


def _of_checkpoint(change: Change, known: Map) -> Change:
    return Change(
        change.kind,
        known.files.index(Path("checkpoint")),
        change.at,
        change.size,
        0,
        change.to,
        change.bit,
    )


def test_the_same_change_everywhere_is_never_identical(stopped: Group) -> None:
    """Replicas that are equal and all wrong. Only sums that were forged up to the log's end can't
    be told from true ones."""
    forged = (Kind.RELABEL, Kind.FORGE)
    beside = (Kind.CHECKPOINT, Kind.SWAP_RANGES, Kind.FORGE_SNAPSHOT)

    @drawn(max_examples=DRAWS or 2 * FEW // stride(2))
    @given(changes([kind for kind in Kind if kind not in beside]))
    def holds(change: Change) -> None:
        assume(all(fits(change, stopped.known, path) for path in stopped.replicas.values()))
        assume(change.kind not in forged or change.repair is Repair.SUMS)
        with tempfile.TemporaryDirectory(dir=stopped.scratch) as folder:
            targets = {
                name: copied(path, Path(folder) / name) for name, path in stopped.replicas.items()
            }
            for target in targets.values():
                apply(change, stopped.known, target)
            may_be = allowed(change, stopped.known, targets["n2"], derived=True)
            assume(Verdict.IDENTICAL not in may_be)
            report = audited(targets, derived=True)
        note(said(report))
        assert report.verdict is not Verdict.IDENTICAL

    holds()


def test_replica_that_would_not_start_is_not_identical(
    stopped: Group, copy_of: Callable[[str], Path]
) -> None:
    """Though every byte of log and queues is: without term and vote no node starts."""
    target = copy_of("n2")
    for name in ("hard_state", "hard_state.copy"):
        (target / "raft" / name).unlink()
    report = audited({**stopped.replicas, "n2": target}, derived=True)
    (finding,) = report.findings
    assert (finding.cause, finding.replicas) == (Cause.WOULD_NOT_START, ("n2",))
    assert report.verdict is Verdict.INCOMPLETE
    assert audited({**stopped.replicas, "n2": target}, derived=False).verdict is Verdict.IDENTICAL


def test_file_of_two_replicas_is_one_copy(stopped: Group, copy_of: Callable[[str], Path]) -> None:
    """A hard link is told; a symbolic one no node starts on."""
    target, other = copy_of("n2"), copy_of("n1")
    path = stopped.known.segments[1]
    (target / path).unlink()
    (target / path).hardlink_to(other / path)
    report = audited({**stopped.replicas, "n1": other, "n2": target}, derived=True)
    assert [(f.cause, f.replicas) for f in report.findings] == [(Cause.SHARED_FILE, ("n1", "n2"))]
    (target / path).unlink()
    (target / path).symlink_to(other / path)
    report = audited({**stopped.replicas, "n1": other, "n2": target}, derived=True)
    assert {(f.cause, f.replicas) for f in report.findings} >= {(Cause.WOULD_NOT_START, ("n2",))}


@pytest.mark.parametrize("derived", [True, False])
def test_copies_of_one_members_disk_are_one_replica(
    stopped: Group, copy_of: Callable[[str], Path], *, derived: bool
) -> None:
    """That they are equal says nothing of another member, whoever else is compared. A copy that
    doesn't say whose disk it is of can't be told."""
    one, copy, other = stopped.replicas["n1"], copy_of("n1"), stopped.replicas["n2"]
    for replicas in ({"n1": one, "n2": copy}, {"n1": one, "n2": copy, "n3": other}):
        report = audited(replicas, derived=derived)
        told = [(each.cause, each.replicas) for each in report.findings]
        assert told == [(Cause.SAME_DISK, ("n1", "n2"))]
        assert report.verdict is Verdict.INCOMPLETE
    assert audited({"n1": one, "n3": other}, derived=derived).verdict is Verdict.IDENTICAL
    (copy / "identity.json").unlink()
    assert audited({"n1": one, "n2": copy}, derived=False).verdict is Verdict.IDENTICAL


@pytest.mark.parametrize(
    "change",
    [
        Change(Kind.FLIP, file=1, at=900),
        Change(Kind.FORGE, file=90, at=300, bit=3, repair=Repair.CHAIN),
        Change(Kind.EMPTY_FOLDER, file=1),
        Change(Kind.CUT_AT_ENTRY, file=60),
    ],
    ids=lambda change: change.kind.name.lower(),
)
def test_engines_agree(
    stopped: Group, copy_of: Callable[[str], Path], engine: Engine, change: Change
) -> None:
    """Field by field, whoever runs the tasks."""
    target = copy_of("n2")
    apply(change, stopped.known, target)
    replicas = {**stopped.replicas, "n2": target}
    for derived in (True, False):
        one = report_as_json(audited(replicas, derived=derived))
        other = report_as_json(audited(replicas, derived=derived, engine=engine))
        differing = {name for name in one if one[name] != other[name]}
        assert differing <= {"timings", "engine"}

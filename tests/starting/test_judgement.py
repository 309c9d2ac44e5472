"""A judgement says of a directory what a start does with it: the same, for whatever befell it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from dledger.core.types import HardState, NodeId, Term
from dledger.hard_state import encode_hard_state
from dledger.level import KNOWN_LEVEL
from dledger.reading.checkpoint import CheckpointState, encode_checkpoint
from dledger.reading.chunks import intact_entries
from dledger.reading.entry import HEADER_SIZE
from dledger.records.layout import BOOT
from store.atomic_file import AtomicFile
from store.directory import write_sealed
from store.files import OsFiles
from store.starting.judgement import (
    MAX_FINDINGS,
    Effect,
    Findings,
    Judgement,
    Kind,
    shared_files,
)
from store.starting.judging import REFUSALS, judge
from tests.audit.replicas import copy_sparse, flip_bit
from tests.starting.changes import CHANGES, Change
from tests.starting.members import SEGMENT, UNITS, WHOSE, Lived, lived, open_replica

# `make judgement` draws thousands.
DRAWS = int(os.environ.get("DRAWS", "100"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return lived(tmp_path_factory.mktemp("lived"))


def judged(path: Path) -> Judgement:
    return judge(path, WHOSE, units_per_file=UNITS)


def started(path: Path) -> str:
    """Why the replica doesn't start; empty if it does."""

    async def start() -> str:
        try:
            replica = open_replica(path)
        except REFUSALS as error:
            return f"{type(error).__name__}: {error}"
        await replica.close()
        return ""

    return asyncio.run(asyncio.wait_for(start(), 20))


def both_flipped(path: Path) -> None:
    """A bit of term and vote, and one of their copy."""
    for name in ("hard_state", "hard_state.copy"):
        flip_bit(path / "raft" / name, 9)


def both_gone(path: Path) -> None:
    """Neither term and vote nor their copy."""
    for name in ("hard_state", "hard_state.copy"):
        (path / "raft" / name).unlink()


def listed(path: Path) -> list[tuple[Path, int, int, int, int]]:
    """Names, kinds, sizes and times of everything below."""
    found = []
    for each in sorted(path.rglob("*")):
        state = each.lstat()
        found.append((each, state.st_mode, state.st_ino, state.st_size, state.st_mtime_ns))
    return found


@example(change=Change("to a second name", 0, 0, 3, 0), is_clean=False)  # LOCK is a segment's
@settings(max_examples=DRAWS, suppress_health_check=list(HealthCheck))
@given(change=CHANGES, is_clean=st.booleans())
def test_what_is_judged_to_start_starts_and_nothing_else(
    healthy: Lived, change: Change, *, is_clean: bool
) -> None:
    """One change to any file of a member's directory: the judgement and the start agree, and the
    judgement has left everything as it was. Of queues it may refuse more."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "n1"
        source = healthy.clean if is_clean else healthy.killed
        shutil.copytree(source, path, copy_function=copy_sparse)
        note(change.apply(path))
        before = listed(path)
        said = judged(path)
        assert listed(path) == before
        refusal = started(path)
        note(f"judged: {said.refusal or 'starts'}; started: {refusal or 'yes'}")
        refused = said.of(Effect.REFUSED)
        assert said.starts == (not refused)
        if said.starts or not refused[0].file.startswith("consumequeue"):
            assert said.starts == (not refusal)
        # In a group it would ask its peers for just that.
        asks = "peers may have what is missing" in said.refusal
        if asks or not refusal:
            assert asks == refusal.startswith("GapFound")
        # Else a start may have come through: a judgement knows no topics, so it looks at all
        # queues, and a start at those of its topics. It is never the other way round.


Damage = Callable[[Path], object]


def put_back(path: Path, state: HardState) -> None:
    """Term and vote are these; the copy beside them is left."""
    AtomicFile(OsFiles(), path / "raft" / "hard_state").replace(encode_hard_state(state))


def both(path: Path, state: HardState) -> None:
    """Term and vote are these, and there is no copy."""
    put_back(path, state)
    (path / "raft" / "hard_state.copy").unlink()


def segment(number: int) -> str:
    return f"commitlog/{number * SEGMENT:020d}"


REFUSED: dict[str, tuple[Damage, Kind, str]] = {
    "no identity": (
        lambda path: (path / "identity.json").unlink(), Kind.IDENTITY_MISSING, "",
    ),
    "another's identity": (
        lambda path: relabelled(path, node_id="n2"), Kind.IDENTITY_OTHER, "",
    ),
    "identity of another disk": (
        lambda path: relabelled(path, disk_id="00" * 16), Kind.DISK_REPLACED, "",
    ),
    "a bit of the identity": (
        lambda path: flip_bit(path / "identity.json", 40), Kind.IDENTITY_DAMAGED, "identity.json",
    ),
    "no member's identity": (
        lambda path: relabelled(path, state="legacy"), Kind.NOT_A_MEMBER, "",
    ),
    "a bit of term and vote": (
        both_flipped,
        Kind.HARD_STATE_DAMAGED, "raft/hard_state",
    ),
    "no term and vote": (
        both_gone, Kind.HARD_STATE_MISSING, "",
    ),
    "an old term": (lambda path: both(path, HardState(Term(2))), Kind.HARD_STATE_OLDER, ""),
    "another vote": (
        lambda path: put_back(path, HardState(Term(5), NodeId("n2"))), Kind.HARD_STATE_DAMAGED, "",
    ),
    "an impossible term": (
        lambda path: both(path, HardState(Term((1 << 62) + 5))), Kind.HARD_STATE_DAMAGED, "",
    ),
    "a bit of the boot number": (
        lambda path: flip_bit(path / "raft" / "boot", 9), Kind.BOOT_DAMAGED, "raft/boot",
    ),
    "a first segment less": (
        lambda path: (path / segment(0)).unlink(), Kind.SEGMENT_MISSING, segment(0),
    ),
    "a segment less": (
        lambda path: (path / segment(2)).unlink(), Kind.SEGMENT_MISSING, segment(2),
    ),
    "a segment off its place": (
        lambda path: shutil.copy(path / segment(1), path / f"commitlog/{SEGMENT + 1:020d}"),
        Kind.SEGMENT_MISSING, segment(2),
    ),
    "a segment beyond all offsets": (
        lambda path: (path / "commitlog" / ("9" * 20)).touch(), Kind.SEGMENT_MISSING, segment(7),
    ),
    "a last segment too long": (
        lambda path: os.truncate(path / segment(6), SEGMENT + 1), Kind.LOG_DAMAGED, segment(6),
    ),
    "a segment too short": (
        lambda path: os.truncate(path / segment(1), 100), Kind.LOG_DAMAGED, segment(1),
    ),
    "a bit of an entry": (
        lambda path: flip_bit(path / segment(1), 300), Kind.LOG_DAMAGED, segment(1),
    ),
    "a watermark beyond all offsets": (
        lambda path: (path / "checkpoint").write_bytes(
            encode_checkpoint(CheckpointState(watermark=1 << 63))
        ),
        Kind.LOG_DAMAGED, segment(5),
    ),
    "another founding": (
        lambda path: (path / "formation.json").write_text("{}"),
        Kind.FOUNDING_DAMAGED, "formation.json",
    ),
    "an empty log": (lambda path: emptied(path), Kind.LOG_MISSING, ""),
    "a pipe among the queues": (
        lambda path: replaced_by_pipe(path / f"consumequeue/orders@{KNOWN_LEVEL + 2}/0/{0:020d}"),
        Kind.NOT_A_FILE, f"consumequeue/orders@{KNOWN_LEVEL + 2}/0/{0:020d}",
    ),
    "a file among the topics": (
        lambda path: (path / "consumequeue" / "stray").touch(), Kind.UNREADABLE,
        "consumequeue/stray",
    ),
}  # fmt: skip


def relabelled(path: Path, **fields: object) -> None:
    stored = json.loads((path / "identity.json").read_text())
    del stored["crc32c"]
    write_sealed(OsFiles(), path / "identity.json", stored | fields)


def replaced_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def emptied(path: Path) -> None:
    for each in (*(path / "commitlog").iterdir(), path / "checkpoint"):
        each.unlink()


@pytest.fixture
def path(healthy: Lived, tmp_path: Path) -> Path:
    """A member that was killed."""
    shutil.copytree(healthy.killed, tmp_path / "n1", copy_function=copy_sparse)
    return tmp_path / "n1"


@pytest.mark.parametrize(("damage", "kind", "file"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal_has_a_name_and_a_file(path: Path, damage: Damage, kind: Kind, file: str) -> None:
    """The gravest finding is what the start ends with."""
    damage(path)
    said = judged(path)
    assert not said.starts
    assert (said.findings[0].kind, said.findings[0].effect) == (kind, Effect.REFUSED)
    assert said.findings[0].file == file


def test_healthy_member_starts_and_says_who_it_is(healthy: Lived) -> None:
    """After a clean stop and after a kill, and whoever is expected."""
    for place, is_clean in ((healthy.clean, True), (healthy.killed, False)):
        said = judge(place, units_per_file=UNITS)
        assert said.starts
        assert said.findings == ()
        facts = said.facts
        assert (facts.broker_group, facts.node_id, facts.state) == ("g1", "n1", "formed")
        assert (facts.term, facts.vote, facts.boot_number) == (5, "n1", 4)
        assert facts.last_term == 5
        assert facts.end_offset == facts.watermark
        assert facts.stopped_cleanly is is_clean


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("byte", [2, HEADER_SIZE])
def test_what_peers_may_have_is_named_by_both(
    healthy: Lived, tmp_path: Path, byte: int, number: int, *, is_clean: bool
) -> None:
    """An entry with others behind it, wherever a start reads it: its body, and its size, by which a
    walk over headers is led astray."""
    path = tmp_path / "n1"
    source = healthy.clean if is_clean else healthy.killed
    shutil.copytree(source, path, copy_function=copy_sparse)
    starts, _ = intact_entries((path / segment(number)).read_bytes())
    place = next(at for at in starts if number or at >= SEGMENT // 2)
    flip_bit(path / segment(number), place + byte)
    said = judged(path).refusal  # first: a start leaves a directory that didn't stop cleanly
    refusal = started(path)
    assert refusal.startswith("GapFound")
    assert said
    assert said in refusal


def test_entry_that_a_clean_start_would_replay_is_read(healthy: Lived, tmp_path: Path) -> None:
    """The walk passes over it, as its header is right; the replay doesn't."""
    path = tmp_path / "n1"
    shutil.copytree(healthy.clean, path, copy_function=copy_sparse)
    starts, _ = intact_entries((path / segment(0)).read_bytes())
    flip_bit(path / segment(0), next(at for at in starts if at >= SEGMENT // 2) + HEADER_SIZE)
    said = judged(path)
    assert said.facts.stopped_cleanly
    assert (said.findings[0].kind, said.findings[0].file) == (Kind.LOG_DAMAGED, segment(0))
    assert started(path)


@pytest.mark.parametrize("which", ["newest", "both"])
def test_snapshot_that_is_not_usable_is_told_and_passed_over(path: Path, which: str) -> None:
    """The one before is used, or the log; a start refuses nothing for it."""
    snapshots = sorted((path / "snapshot").iterdir())
    assert len(snapshots) == 2
    spoilt = snapshots[-1:] if which == "newest" else snapshots
    for each in spoilt:
        flip_bit(each, 100)
    said = judged(path)
    assert said.starts
    told = [(each.kind, each.file) for each in said.of(Effect.IGNORED)]
    assert sorted(told) == [(Kind.SNAPSHOT_UNUSABLE, f"snapshot/{each.name}") for each in spoilt]
    assert not started(path)


MENDED: dict[str, tuple[Damage, Kind]] = {
    "no checkpoint": (lambda path: (path / "checkpoint").unlink(), Kind.CHECKPOINT_MISSING),
    "a bit of the checkpoint": (
        lambda path: flip_bit(path / "checkpoint", 700), Kind.CHECKPOINT_DAMAGED,
    ),
    "a torn tail": (lambda path: flip_bit(path / segment(5), 8000), Kind.TAIL_TORN),
    "a last segment too short": (
        lambda path: os.truncate(path / segment(6), 5), Kind.SEGMENT_SHORT,
    ),
    "an unfinished file": (
        lambda path: (path / "commitlog" / f"{7 * SEGMENT:020d}.tmp").touch(), Kind.UNFINISHED,
    ),
    "a note from beyond": (
        lambda path: (path / "checkpoint").write_bytes(
            encode_checkpoint(CheckpointState(consume_queue_index=1 << 40))
        ),
        Kind.QUEUES_AHEAD,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "kind"), MENDED.values(), ids=MENDED.keys())
def test_what_a_start_mends_is_told(path: Path, damage: Damage, kind: Kind) -> None:
    """It starts, and not as if nothing were."""
    damage(path)
    said = judged(path)
    assert said.starts
    assert kind in {each.kind for each in said.of(Effect.MENDED)}


def test_strays_and_second_names_are_told_and_ignored(path: Path, tmp_path: Path) -> None:
    """Also names that are no text; a terminal gets nothing that it would obey."""
    (path / "commitlog" / "notes.txt").touch()
    Path(os.fsdecode(os.fsencode(path) + b"/\xff\x1b[2J")).touch()
    os.link(path / segment(0), tmp_path / "backup")
    said = judged(path)
    assert said.starts
    ignored = {(each.kind, each.file) for each in said.of(Effect.IGNORED)}
    assert ignored == {
        (Kind.STRAY, "commitlog/notes.txt"),
        (Kind.STRAY, r"\xff\x1b[2J"),
        (Kind.LINKED, segment(0)),
    }


def test_replicas_that_share_a_file_are_one(healthy: Lived, path: Path, tmp_path: Path) -> None:
    """By a hard link, or by a directory that is a link."""
    other = tmp_path / "n2"
    shutil.copytree(path, other, copy_function=copy_sparse)
    assert shared_files([judged(path), judged(other)]) == []
    (other / segment(1)).unlink()
    os.link(path / segment(1), other / segment(1))
    ((file, places),) = shared_files([judged(path), judged(other)])
    assert (file.file, places) == (segment(1), (str(path), str(other)))
    shutil.rmtree(other / "commitlog")
    (other / "commitlog").symlink_to(path / "commitlog")
    assert len(shared_files([judged(path), judged(other)])) == 7


@pytest.mark.parametrize("file", ["hard_state", "hard_state.copy"])
@pytest.mark.parametrize("harm", [lambda each: flip_bit(each, 9), Path.unlink])
def test_one_of_two_copies_of_term_and_vote_is_enough(
    path: Path, file: str, harm: Callable[[Path], None]
) -> None:
    before = judged(path).facts
    harm(path / "raft" / file)
    said = judged(path)
    assert said.starts
    assert (said.facts.term, said.facts.vote) == (before.term, before.vote)
    kinds = [(each.kind, each.effect) for each in said.findings]
    kind = Kind.HARD_STATE_MISSING if harm is Path.unlink else Kind.HARD_STATE_DAMAGED
    assert ((kind, Effect.MENDED) in kinds) == (file == "hard_state")


@pytest.mark.parametrize("older", [HardState(Term(2)), HardState(Term(5))])
def test_the_newer_of_two_copies_of_term_and_vote_counts(path: Path, older: HardState) -> None:
    """A file put back from before: of an older term, or from before it voted in this one."""
    before = judged(path).facts
    assert (before.term, before.vote) == (5, "n1")
    put_back(path, older)
    said = judged(path)
    assert said.starts
    assert (said.facts.term, said.facts.vote) == (5, "n1")
    (found,) = said.findings
    assert (found.kind, found.effect) == (Kind.HARD_STATE_OLDER, Effect.MENDED)


def test_a_copy_of_an_older_start_is_none(path: Path) -> None:
    """A release that doesn't know it has run since, and may have voted."""
    content = BOOT.struct().pack(BOOT.constant("magic"), BOOT.constant("version"), 7)
    AtomicFile(OsFiles(), path / "raft" / "boot").replace(content)
    assert judged(path).starts
    flip_bit(path / "raft" / "hard_state", 9)
    said = judged(path)
    assert not said.starts
    assert said.findings[0].kind is Kind.HARD_STATE_DAMAGED


def test_many_strays_hide_nothing(path: Path) -> None:
    """They are counted; what a start refuses is first."""
    for number in range(MAX_FINDINGS + 7):
        (path / "commitlog" / f"stray-{number}").touch()
    both_flipped(path)
    flip_bit(path / "raft" / "boot", 9)
    said = judged(path)
    assert [each.kind for each in said.findings[:2]] == [
        Kind.HARD_STATE_DAMAGED, Kind.BOOT_DAMAGED,
    ]  # fmt: skip
    assert said.findings_left_out == ((Effect.IGNORED, 7),)


def test_many_of_a_kind_hide_none_of_another() -> None:
    """Though a start does the same about both of them; of each kind the first are kept."""
    findings = Findings()
    for number in range(MAX_FINDINGS + 7):
        findings.add(Kind.STRAY, Effect.IGNORED, f"stray-{number}", "")
    findings.add(Kind.SNAPSHOT_UNUSABLE, Effect.IGNORED, "snapshot/1", "rotten")
    findings.add(Kind.SNAPSHOT_UNUSABLE, Effect.IGNORED, "snapshot/1", "told twice")
    found = findings.found()
    assert [each.kind for each in found].count(Kind.STRAY) == MAX_FINDINGS
    assert [each.detail for each in found if each.kind is Kind.SNAPSHOT_UNUSABLE] == ["rotten"]
    assert findings.left_out() == ((Effect.IGNORED, 7),)


def test_directory_that_is_none(tmp_path: Path) -> None:
    """A file, or nothing."""
    (tmp_path / "file").touch()
    for place in ("file", "nothing"):
        said = judge(tmp_path / place)
        assert not said.starts
        assert "no directory" in said.refusal


def test_directory_that_was_never_used(tmp_path: Path) -> None:
    """It is no member's, and nothing is made in it."""
    said = judge(tmp_path)
    assert said.findings[0].kind is Kind.NOT_A_MEMBER
    assert list(tmp_path.iterdir()) == []

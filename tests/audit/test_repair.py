"""`dledger log repair`: what is proven to have been there is put back, and nothing else ever is."""

from __future__ import annotations

import errno
import json
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from audit.commands.log import app
from audit.proof.log import open_log
from audit.repairing.refilling import LogRepair, Outcome
from audit.repairing.sources import Source, folder_source
from dledger.reading.checkpoint import CheckpointState, decode_checkpoint, encode_checkpoint
from dledger.records.layout import file_name
from store.doubt import MAX_PLACES, DoubtNote
from store.files import Buffer, Handle, OsFiles
from tests.audit.replicas import (
    SEGMENT,
    Entry,
    LogBuilder,
    build,
    copy_sparse,
    dropping,
    flip_bit,
    header_at,
    listed,
    start_of,
    usual_entries,
)
from tests.scale import examples

ENTRIES = 120


class Said(NamedTuple):
    code: int
    lines: list[dict[str, Any]]
    error: str


def repair(target: Path, *arguments: object) -> Said:
    """How the command ended, which is never in a traceback."""
    words = ["repair", "--data", str(target), "--json", *map(str, arguments)]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return Said(
        result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr
    )


@dataclass(frozen=True)
class Replicas:
    """One log's healthy replica, and a log that has entries of the same sizes and other bytes."""

    healthy: Path
    other: Path
    end: int

    def copy(self, folder: Path, of: Path | None = None) -> Path:
        target = folder / f"copy-{len(list(folder.iterdir()))}"
        shutil.copytree(of or self.healthy, target, copy_function=copy_sparse)
        return target

    def files(self, path: Path) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in sorted((path / "commitlog").glob("0*"))}


def changed(entry: Entry) -> Entry:
    """One with the same size, and another producer."""
    return Entry(
        entry.term,
        entry.kind,
        entry.topic,
        entry.queue_id,
        entry.count,
        entry.size,
        entry.body,
        bytes((9,)) * 16,
    )


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Replicas:
    root = tmp_path_factory.mktemp("replicas")
    entries = list(usual_entries(ENTRIES))
    builder = build(root / "n1", entries)
    build(root / "liar", [changed(each) for each in entries], "n3")
    return Replicas(root / "n1", root / "liar", builder.log.end_offset)


# --- any damage, any sources ----------------------------------------------------------------------


@dataclass(frozen=True)
class Harm:
    """Bytes that are others now, from `at` (of a million, of the log) on."""

    at: int
    size: int
    how: str

    def do(self, path: Path, end: int) -> None:
        at = self.at * (end - 1) // 1_000_000
        base, inside = at - at % SEGMENT, at % SEGMENT
        file = path / "commitlog" / file_name(base)
        content = bytearray(file.read_bytes())
        if self.how == "cut":
            content = content[:inside]
        for place in range(inside, min(inside + self.size, len(content))):
            content[place] = 0 if self.how == "zero" else content[place] ^ 0x41
        file.write_bytes(content)


def foreign(
    after: dict[str, bytes], before: dict[str, bytes], healthy: dict[str, bytes]
) -> list[str]:
    """Files with a byte that is neither the one that was found nor the one that was there."""
    return [
        file
        for file, content in after.items()
        if any(
            now not in (old, right)
            for now, old, right in zip(
                content.ljust(SEGMENT, b"\0"),
                before[file].ljust(SEGMENT, b"\0"),
                healthy[file],
                strict=True,
            )
        )
    ]


harms = st.lists(
    st.builds(
        Harm,
        at=st.integers(0, 1_000_000),
        size=st.one_of(st.integers(1, 4), st.integers(1, 6_000), st.integers(1, 40_000)),
        how=st.sampled_from(("flip", "zero", "cut")),
    ),
    min_size=1,
    max_size=5,
)


@settings(
    deadline=None,
    max_examples=examples(40),
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
@given(harms, st.lists(st.one_of(st.just("healthy"), st.just("liar"), harms), max_size=3))
@example([Harm(300_000, 1, "flip")], ["liar"])
@example([Harm(300_000, 1, "flip")], ["liar", "healthy"])
@example([Harm(120_000, 40_000, "zero")], [[Harm(200_000, 1, "flip")], "healthy"])
@example([Harm(1_000_000, 1, "flip")], ["healthy"])
def test_only_what_was_there_is_put_back(
    replicas: Replicas, harm: list[Harm], others: list[str | list[Harm]]
) -> None:
    """Each byte is the one that was there, or the one that was found. With a healthy replica to
    ask, only what no entry lies behind is left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = replicas.copy(folder)
        for each in harm:
            each.do(target, replicas.end)
        before, healthy = replicas.files(target), replicas.files(replicas.healthy)
        sources: list[object] = []
        for other in others or ["liar"]:
            path = replicas.copy(folder, replicas.other if other == "liar" else None)
            for one in other if isinstance(other, list) else ():
                one.do(path, replicas.end)
            sources += ["--from", path]
        said = repair(target, *sources)
        after = replicas.files(target)
        *places, total = said.lines
        assert len(places) == total["repaired"] + total["left"]
        assert not foreign(after, before, healthy)
        if after == healthy:
            assert said.code == 0
            assert total["verdict"] == "sound"
            assert not total["left"]
        else:
            assert said.code in (1, 3), said
            assert all(place["reasons"] for place in places if not place["source"])
        if "healthy" in others:
            left = [place for place in places if not place["source"]]
            assert all(int(Path(each["file"]).name) + SEGMENT >= replicas.end for each in left)
            assert left or after == healthy


@pytest.mark.parametrize("size", [1, 3_000])
@pytest.mark.parametrize("source_begins", ["first", "later"])
def test_first_entry_of_a_log_that_begins_later_is_put_right(
    replicas: Replicas, tmp_path: Path, source_begins: str, size: int
) -> None:
    """Its start note says what it has to go on from; that of another log proves nothing."""
    target, source = replicas.copy(tmp_path), replicas.copy(tmp_path)
    first = header_at(target / "commitlog" / file_name(SEGMENT), 0).index
    start = start_of(target, first)
    assert start.first_index == first
    for path in (target, source) if source_begins == "later" else (target,):
        for _ in dropping(path, start):
            pass
    right = replicas.files(target)
    assert file_name(0) not in right
    file = target / "commitlog" / file_name(SEGMENT)
    content = file.read_bytes()
    file.write_bytes(bytes(each ^ 0x41 for each in content[:size]) + content[size:])
    wrong = replicas.files(target)

    said = repair(target, "--from", replicas.other)
    assert (said.code, replicas.files(target)) == (1, wrong)
    said = repair(target, "--from", source)
    assert (said.code, said.lines[0]["first_index"]) == (0, first), said
    assert replicas.files(target) == right


def test_several_segments_in_a_row_are_put_right(replicas: Replicas, tmp_path: Path) -> None:
    """From the middle of one to the middle of the next but one, fillers between them too."""
    target = replicas.copy(tmp_path)
    Harm(150_000, SEGMENT, "zero").do(target, replicas.end)
    for base in (SEGMENT, 2 * SEGMENT):
        file = target / "commitlog" / file_name(base)
        file.write_bytes(bytes(SEGMENT // 2) + file.read_bytes()[SEGMENT // 2 :])
    said = repair(target, "--from", replicas.healthy)
    assert (said.code, said.lines[-1]["left"]) == (0, 0)
    assert replicas.files(target) == replicas.files(replicas.healthy)


def test_what_cannot_be_put_right_keeps_nothing_else_from_it(
    replicas: Replicas, tmp_path: Path
) -> None:
    """The only other replica has rotted in the first of two places."""
    target, other = replicas.copy(tmp_path), replicas.copy(tmp_path)
    for path, at in ((target, 2_000), (other, 2_000), (target, 9_000)):
        flip_bit(path / "commitlog" / file_name(SEGMENT), at)
    said = repair(target, "--from", other)
    left, right, _ = said.lines
    assert (said.code, left["source"], right["source"]) == (1, "", str(other))
    assert left["offset"] <= 2_000 < left["offset"] + left["size"] <= right["offset"] <= 9_000


def test_filler_is_one_to_its_last_byte(replicas: Replicas, tmp_path: Path) -> None:
    """It follows from the log: a replica whose own has rotted is enough."""
    target, other = replicas.copy(tmp_path), replicas.copy(tmp_path)
    for path in (target, other):
        flip_bit(path / "commitlog" / file_name(SEGMENT), SEGMENT - 1)
    said = repair(target, "--from", other)
    assert (said.code, said.lines[0]["source"]) == (0, "the log")
    assert replicas.files(target) == replicas.files(replicas.healthy)


def test_what_nobody_was_promised_is_not_touched(replicas: Replicas, tmp_path: Path) -> None:
    """Behind the durable end a start cuts; who put entries there would make promises."""
    target = replicas.copy(tmp_path)
    page = (target / "checkpoint").read_bytes()
    state = decode_checkpoint(page)
    assert state is not None
    bases = [int(name) for name in replicas.files(target)]
    watermark = bases[-2] + 64  # behind that segment's first entry, or within it
    first = open_first_entry_end(target, bases[-2])
    lowered = CheckpointState(watermark=first, consume_queue_index=0)
    (target / "checkpoint").write_bytes(encode_checkpoint(lowered))
    assert first >= watermark
    flip_bit(target / "commitlog" / file_name(bases[-2]), first - bases[-2] + 200)
    before = replicas.files(target)
    said = repair(target, "--from", replicas.healthy)
    assert (said.code, len(said.lines)) == (0, 1), said
    assert replicas.files(target) == before


def open_first_entry_end(path: Path, base: int) -> int:
    content = (path / "commitlog" / file_name(base)).read_bytes()
    return base + int.from_bytes(content[:4], "big")


def test_dry_run_writes_nothing(replicas: Replicas, tmp_path: Path) -> None:
    """And says all that would be done, also of damage that goes over the edge of a file."""
    target = replicas.copy(tmp_path)
    Harm(200_000, SEGMENT, "zero").do(target, replicas.end)
    file = target / "commitlog" / file_name(2 * SEGMENT)
    file.write_bytes(bytes(3_000) + file.read_bytes()[3_000:])
    (target / "LOCK").unlink()
    before = listed(target)
    dry = repair(target, "--from", replicas.healthy, "--dry-run")
    assert dry.code == 1
    assert dry.lines[-1]["dry_run"]
    assert listed(target) == before
    done = repair(target, "--from", replicas.healthy)
    assert done.code == 0
    (first, *_), (again, *_) = dry.lines, done.lines
    assert (first["offset"], first["first_index"]) == (again["offset"], again["first_index"])
    assert dry.lines[-1]["left"] == 0


# --- crashes --------------------------------------------------------------------------------------


class Dying(OsFiles):
    """The process ends at the operation of that number that changes something; a write is torn."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def _step(self) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        if self.left == 0:
            content = b"".join(map(bytes, buffers))
            super().pwritev(handle, [content[: len(content) // 2]], offset)
        self._step()
        return super().pwritev(handle, buffers, offset)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def fallocate(self, handle: Handle, size: int) -> None:
        self._step()
        super().fallocate(handle, size)


def mended(target: Path, sources: list[Source], files: OsFiles) -> list[Outcome]:
    """As the command does it, with files that may die."""
    log = open_log(target)
    work = LogRepair(log, sources, files)
    done: list[Outcome] = []
    work.finish_interrupted()
    for base in range(0, log.end, SEGMENT):
        work.mend(base, done.append)
    return done


def test_crash_at_any_step_leaves_what_the_next_run_finishes(
    replicas: Replicas, tmp_path: Path
) -> None:
    """And what the journal holds by then needs no other replica any more."""
    source = folder_source(replicas.healthy, SEGMENT)
    healthy, survived = replicas.files(replicas.healthy), 0
    for step in range(60):
        target = replicas.copy(tmp_path)
        for harm in (
            Harm(150_000, 3_000, "flip"),
            Harm(400_000, 1, "flip"),
            Harm(600_000, 1, "cut"),
        ):
            harm.do(target, replicas.end)
        before = replicas.files(target)
        try:
            mended(target, [source], Dying(step))
        except KeyboardInterrupt:
            assert not foreign(replicas.files(target), before, healthy), step
            if (target / "repair").exists():
                survived += 1
                left = mended(target, [], OsFiles())
                assert len([each for each in left if not each.source]) < 3
            mended(target, [source], OsFiles())
            assert replicas.files(target) == healthy, step
            assert not (target / "repair").exists()
            shutil.rmtree(target)
        else:
            break
    assert survived > 3
    assert step > 10


def test_journal_of_a_crash_is_enough(replicas: Replicas, tmp_path: Path) -> None:
    """What was proven before needs nobody to prove it again."""
    target = replicas.copy(tmp_path)
    Harm(300_000, 900, "flip").do(target, replicas.end)
    source = folder_source(replicas.healthy, SEGMENT)
    for step in range(9):
        with pytest.raises(KeyboardInterrupt):
            mended(target, [source], Dying(step))
        if (target / "repair").exists():
            break
    said = repair(target, "--from", replicas.other)
    assert (said.code, len(said.lines)) == (0, 1), said
    assert replicas.files(target) == replicas.files(replicas.healthy)


def test_disk_without_room_changes_nothing(replicas: Replicas, tmp_path: Path) -> None:
    """What is damaged stays as it is; nothing is left that keeps more of the disk."""

    class Full(OsFiles):
        def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    target = replicas.copy(tmp_path)
    Harm(300_000, 1, "flip").do(target, replicas.end)
    before = listed(target)
    with pytest.raises(OSError, match="No space"):
        mended(target, [folder_source(replicas.healthy, SEGMENT)], Full())
    assert [each[:3] for each in listed(target)] == [each[:3] for each in before]


# --- what the node had noted ----------------------------------------------------------------------


def noted(target: Path) -> DoubtNote:
    return DoubtNote(OsFiles(), target)


@pytest.mark.parametrize("places", [1, MAX_PLACES])
@pytest.mark.parametrize("rotten", [False, True])
def test_what_is_right_again_is_noted_no_more(
    replicas: Replicas, tmp_path: Path, places: int, *, rotten: bool
) -> None:
    """Whether this run has put it right, or one before, or the node itself. Else a recovery by
    force would go on asking for the repair. Also where the note has no room for all."""
    target = replicas.copy(tmp_path)
    if rotten:
        Harm(300_000, 1, "flip").do(target, replicas.end)
    noted(target).write([(file_name(0), 100 + at) for at in range(places)])
    assert repair(target, "--from", replicas.healthy, "--dry-run").code in (0, 1)
    assert len(noted(target).read()) == places
    assert repair(target, "--from", replicas.healthy).code == 0
    assert noted(target).read() == []
    assert noted(target).says_all()


def test_what_is_left_stays_noted(replicas: Replicas, tmp_path: Path) -> None:
    """All of it: the node finds out."""
    target = replicas.copy(tmp_path)
    Harm(300_000, 1, "flip").do(target, replicas.end)
    noted(target).write([(file_name(0), 100)])
    assert repair(target, "--from", replicas.other).code == 1
    assert noted(target).read() == [(file_name(0), 100)]


@pytest.mark.parametrize(
    ("back", "count", "stays"), [(-1, 1, True), (50, 1, False), (50, MAX_PLACES, True)]
)
def test_what_may_have_rotted_behind_the_durable_end_stays_noted(
    replicas: Replicas, tmp_path: Path, back: int, count: int, *, stays: bool
) -> None:
    """There a log may be sound and something wrong all the same, which a start cuts: it has to know
    of it. What lies before is right, if the note names all."""
    target = replicas.copy(tmp_path)
    base = int(list(replicas.files(target))[-2])
    end = open_first_entry_end(target, base)
    state = CheckpointState(watermark=end, consume_queue_index=0)
    (target / "checkpoint").write_bytes(encode_checkpoint(state))
    flip_bit(target / "commitlog" / file_name(base), end - base + 200)
    noted(target).write([(file_name(base), end - base - back)] * count)
    assert repair(target, "--from", replicas.healthy).code == 0
    assert bool(noted(target).read()) == stays


# --- who may be repaired, and from whom -----------------------------------------------------------


@pytest.fixture
def held(replicas: Replicas, tmp_path: Path) -> Iterator[Path]:
    target = replicas.copy(tmp_path)
    files = OsFiles()
    lock = files.lock(target / "LOCK")
    assert lock is not None
    yield target
    files.close(lock)


def test_directory_of_a_node_that_runs_is_refused(replicas: Replicas, held: Path) -> None:
    """It repairs itself; two who write to one log would spoil it."""
    said = repair(held, "--from", replicas.healthy)
    assert said.code == 2
    assert "is held by" in said.error


def test_directory_is_held_meanwhile(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is started now waits its turn."""
    target = replicas.copy(tmp_path)
    Harm(300_000, 1, "flip").do(target, replicas.end)
    taken: list[object] = []
    put = LogRepair._put

    def look(self: LogRepair, given: Any) -> None:
        taken.append(OsFiles().lock(target / "LOCK"))
        put(self, given)

    monkeypatch.setattr(LogRepair, "_put", look)
    assert repair(target, "--from", replicas.healthy).code == 0
    assert taken == [None]


def test_mistakes_are_told(replicas: Replicas, tmp_path: Path) -> None:
    """Nobody to ask; another group's segments; no log; a node that isn't there."""
    target = replicas.copy(tmp_path)
    assert "where from?" in repair(target).error
    build_other = tmp_path / "larger"
    builder = LogBuilder(build_other, "n9", 2 * SEGMENT)
    builder.add(next(usual_entries(1)))
    builder.flush()
    builder.close()
    said = repair(target, "--from", build_other)
    assert (said.code, "no replica of it" in said.error) == (2, True)
    assert repair(target, "--from", tmp_path / "nothing").code == 2
    assert repair(target, "--bootstrap", "127.0.0.1:1").code == 3


def test_file_that_is_not_there_is_left_to_a_new_disk(replicas: Replicas, tmp_path: Path) -> None:
    """It is more than rot; what else is wrong is put right."""
    target = replicas.copy(tmp_path)
    Harm(20_000, 1, "flip").do(target, replicas.end)
    (target / "commitlog" / file_name(SEGMENT)).unlink()
    said = repair(target, "--from", replicas.healthy)
    assert said.code != 0
    repaired, missing, _ = said.lines
    assert repaired["source"] == str(replicas.healthy)
    assert "no such file" in missing["reasons"][0]


def test_random_damage_all_over_is_put_right(replicas: Replicas, tmp_path: Path) -> None:
    """Hundreds of bits, one file after the other, from two replicas that are damaged elsewhere."""
    target, other = replicas.copy(tmp_path), replicas.copy(tmp_path)
    chance = random.Random(7)
    bases = [int(name) for name in replicas.files(target)][:-1]
    for base in bases:
        for path, part in ((target, 0), (other, 1)):
            for _ in range(20):
                at = part * SEGMENT // 2 + chance.randrange(SEGMENT // 2 - 2_000)
                flip_bit(path / "commitlog" / file_name(base), at, chance.randrange(8))
    said = repair(target, "--from", other)
    assert said.code == 0
    assert replicas.files(target) == replicas.files(replicas.healthy)

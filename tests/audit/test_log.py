"""`dledger log`: what is said of one log, how it ends, and that it only reads."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
from typer.testing import CliRunner

from audit.commands.log import app
from audit.proof import chain
from audit.proof.log import SCHEMA, open_log
from dledger.outcome import ExitCode
from dledger.reading.backup import FILE, Backup
from dledger.reading.checkpoint import CheckpointState, decode_checkpoint, encode_checkpoint
from dledger.reading.entry import HEADER_SIZE, EntryHeader, build_frame, parse_header
from dledger.reading.errors import LogDamaged
from dledger.reading.headers import walk_headers
from dledger.records.layout import UNITS_PER_FILE
from store.backup import write_backup
from store.files import OsFiles
from store.holding import LOCKS, holder_of
from tests.audit.replicas import copy_sparse, flip_bit, listed
from tests.starting.members import SEGMENT, Lived, lived, segment

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """A member that was killed, and the same one stopped."""
    return lived(tmp_path_factory.mktemp("lived"), UNITS_PER_FILE)


@pytest.fixture
def path(original: Lived, tmp_path: Path) -> Path:
    shutil.copytree(original.clean, tmp_path / "n1", copy_function=copy_sparse)
    return tmp_path / "n1"


class Said(NamedTuple):
    code: int
    text: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


def said(*arguments: object) -> Said:
    """How the command ended, which is never in a traceback."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return Said(result.exit_code, result.stdout)


def verified(path: Path, *arguments: object) -> Said:
    return said("verify", "--data", path, "--json", *arguments)


def dumped(path: Path, *arguments: object) -> list[dict[str, Any]]:
    return said("dump", "--data", path, "--json", *arguments).lines


def headers(path: Path, number: int) -> Iterator[EntryHeader]:
    """Of the intact segment, in order."""
    content = segment(path, number).read_bytes()
    with segment(path, number).open("rb") as file:
        end, _, _ = walk_headers(file.fileno(), number * SEGMENT, SEGMENT)
    at = 0
    while at < end:
        header = parse_header(content, at)
        yield header
        at += header.total_size


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def with_checkpoint(path: Path, **fields: int) -> None:
    state = decode_checkpoint((path / "checkpoint").read_bytes())
    assert state is not None
    values = {name: getattr(state, name) for name in CheckpointState.__slots__}
    (path / "checkpoint").write_bytes(encode_checkpoint(CheckpointState(**{**values, **fields})))


CASES: dict[str, tuple[Damage, int, str]] = {
    "nothing": (lambda path: None, 0, "SOUND: entries 1 to"),
    "a stray": (lambda path: (path / "commitlog" / "stray").touch(), 0, "SOUND"),
    "no identity": (lambda path: (path / "identity.json").unlink(), 0, "SOUND"),
    "no checkpoint": (lambda path: (path / "checkpoint").unlink(), 0, "no readable checkpoint"),
    "a bit of the checkpoint": (
        lambda path: flip_bit(path / "checkpoint", 99), 0, "no readable checkpoint",
    ),
    "a checkpoint from beyond": (
        lambda path: with_checkpoint(path, watermark=1 << 63), 1, "",
    ),
    "a checkpoint ahead of the log": (
        lambda path: with_checkpoint(path, watermark=7 * SEGMENT), 3, "INCOMPLETE",
    ),
    "a segment less": (lambda path: segment(path, 2).unlink(), 3, "segment missing"),
    "the first less": (lambda path: segment(path, 0).unlink(), 3, "segment missing"),
    "no segments": (lambda path: shutil.rmtree(path / "commitlog"), 2, ""),
    "an empty folder": (lambda path: to_empty(path / "commitlog"), 2, ""),
    "the last segment too long": (
        lambda path: os.truncate(segment(path, 5), SEGMENT + 9), 1, "segment too long",
    ),
    "a segment cut": (lambda path: os.truncate(segment(path, 1), 999), 3, "segment cut short"),
    "a segment cut to nothing": (
        lambda path: os.truncate(segment(path, 1), 0), 3, "segment cut short",
    ),
    "a segment too long": (
        lambda path: os.truncate(segment(path, 1), SEGMENT + 9), 1, "segment too long",
    ),
    "a segment of zeros": (
        lambda path: segment(path, 1).write_bytes(bytes(SEGMENT)), 3, "zeros below",
    ),
    "a segment of noise": (
        lambda path: segment(path, 1).write_bytes(random.Random(1).randbytes(SEGMENT)),
        1, "DAMAGED",
    ),
    "two segments swapped": (
        lambda path: (
            segment(path, 1).rename(path / "aside"),
            segment(path, 2).rename(segment(path, 1)),
            (path / "aside").rename(segment(path, 2)),
        ),
        1, "entries of another place",
    ),
    "a bit of an entry": (lambda path: flip_bit(segment(path, 1), 900), 1, "bad crc"),
    "a byte behind a filler": (
        lambda path: flip_bit(segment(path, 1), SEGMENT - 1), 1, "stray bytes in a filler",
    ),
    "a pipe": (lambda path: to_pipe(segment(path, 3)), 3, "segment"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "code", "words"), CASES.values(), ids=CASES.keys())
def test_log_is_verified_and_left_alone(path: Path, damage: Damage, code: int, words: str) -> None:
    """Every line fits a terminal, none moves its cursor, and nothing there has changed."""
    damage(path)
    before = listed(path)
    result = said("verify", "--data", path)
    shown = said("dump", "--data", path)
    assert listed(path) == before
    assert result.code == code, result.text
    assert words in " ".join(result.text.split())
    for line in (result.text + shown.text).splitlines():
        assert len(line) <= 80, line
        assert line.isprintable()


def test_every_entry_and_record_is_counted(path: Path) -> None:
    """Of each segment and of all of it; a bare commitlog folder is the same log."""
    result = verified(path)
    *segments, total = result.lines
    entries = [each for each in dumped(path) if each["what"] == "entry"]
    assert total["schema"] == SCHEMA
    assert (total["verdict"], total["exit_code"], result.code) == ("sound", 0, 0)
    assert (total["first_index"], total["last_index"]) == (1, len(entries))
    assert total["entries"] == len(entries) == sum(each["entries"] for each in segments)
    assert total["records"] == sum(each["records"] for each in entries)
    assert total["held_by"] is None
    assert verified(path / "commitlog").lines == result.lines


def test_any_flipped_bit_is_told_where_it_lies(path: Path) -> None:
    """Each in turn, anywhere in the log's files: the first place that is told holds that byte, and
    is the only one; the dump shows everything else."""
    draw = random.Random(13)
    end = verified(path).lines[-1]["must_be_right_to"]
    whole = len(dumped(path))
    for _ in range(20):
        at = draw.randrange(end)
        file, offset, bit = segment(path, at // SEGMENT), at % SEGMENT, draw.randrange(8)
        flip_bit(file, offset, bit)
        result = verified(path)
        first = result.lines[-1]["first"]
        assert (result.code, result.lines[-1]["places"]) == (1, 1), (at, bit)
        assert first["file"] == str(file)
        assert first["offset"] <= offset < first["offset"] + first["size"], (at, bit)
        shown = dumped(path)
        assert len([each for each in shown if each["what"] == "entry"]) >= whole - 1
        assert any(each["what"] != "entry" for each in shown)
        flip_bit(file, offset, bit)
    assert verified(path).code == 0


def test_forged_entry_breaks_the_digest(path: Path) -> None:
    """An entry whose checksum was made right again doesn't continue the log, or what follows it
    doesn't continue that; also where that lies in the next segment."""
    for which in (1, -1):
        fresh = path.with_name(f"forged{which}")
        shutil.copytree(path, fresh, copy_function=copy_sparse)
        file, known = segment(fresh, 1), list(headers(fresh, 1))
        content = bytearray(file.read_bytes())
        victim, before = known[which], known[which - 1]
        at = victim.physical_offset - SEGMENT
        body = content[at + HEADER_SIZE : at + victim.total_size]
        body[-1] ^= 1
        head, _ = build_frame(
            victim.kind, victim.index, victim.term, victim.physical_offset,
            victim.append_time_ms, victim.record_count, bytes(body), before.digest,
        )  # fmt: skip
        content[at : at + victim.total_size] = head + body
        file.write_bytes(content)
        result = verified(fresh)
        causes = {place["cause"] for each in result.lines[:-1] for place in each["places"]}
        assert result.code == 1
        assert "running digest does not continue" in causes


def test_a_seam_that_nobody_can_read_any_more_is_not_sound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that gives an entry once, and then no more."""

    def broken(name: str) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    monkeypatch.setattr(chain, "opened", broken)
    result = verified(path)
    causes = {place["cause"] for each in result.lines[:-1] for place in each["places"]}
    assert (result.code, causes) == (3, {"segment can't be read"})


def test_range_reads_the_segments_that_hold_it(path: Path) -> None:
    """What is wrong elsewhere isn't met; of a range beyond the log all is missing."""
    wanted = list(headers(path, 2))
    flip_bit(segment(path, 1), 900)
    chosen = verified(path, "--from", wanted[1].index, "--to", wanted[-1].index)
    assert chosen.code == 0
    assert [each["base"] for each in chosen.lines[:-1]] == [2 * SEGMENT]
    assert verified(path, "--to", wanted[0].index).code == 1
    shown = dumped(path, "--from", wanted[1].index, "--to", wanted[2].index)
    assert [each["index"] for each in shown] == [wanted[1].index, wanted[2].index]
    beyond = said("dump", "--data", path, "--json", "--from", 1 << 40)
    assert [(e["what"], e["first_index"], e["last_index"]) for e in beyond.lines] == [
        ("missing", 1 << 40, None)
    ]
    assert (beyond.code, verified(path, "--from", 1 << 40).code) == (3, 3)
    assert said("verify", "--data", path, "--from", 9, "--to", 8).code == 2


def test_dump_of_a_topic(path: Path) -> None:
    """Its batches and nothing else; with each message of them, if asked for."""
    everything = dumped(path, "--messages")
    topics = {each["topic"] for each in everything if "topic" in each}
    assert len(topics) > 1
    for topic in topics:
        mine = [each for each in everything if each.get("topic") == topic]
        assert dumped(path, "--messages", "--topic", topic) == mine
        assert all(len(each["messages"]) == each["records"] for each in mine)
    assert said("dump", "--data", path, "--messages").code == 2
    assert {each.get("command") for each in everything} >= {"create_topic", "delete_topic"}


def test_torn_tail_is_no_damage(original: Lived, tmp_path: Path) -> None:
    """What was behind the durable watermark when a node was killed may be torn anywhere: it is
    told as the tail. The same bytes below the watermark are damage."""
    path = tmp_path / "torn"
    shutil.copytree(original.killed, path, copy_function=copy_sparse)
    total = verified(path).lines[-1]
    last = dumped(path)[-1]
    with_checkpoint(path, watermark=last["physical_offset"])
    for cut in range(0, last["size"], 14):
        torn = tmp_path / f"cut{cut}"
        shutil.copytree(path, torn, copy_function=copy_sparse)
        file = torn / "commitlog" / Path(last["file"]).name
        content = bytearray(file.read_bytes())
        at = last["offset"]
        content[at + cut : at + last["size"]] = bytes(last["size"] - cut)
        file.write_bytes(content)
        found = verified(torn)
        assert found.code == 0, (cut, found.text)
        assert found.lines[-1]["last_index"] == total["last_index"] - 1
        assert said("dump", "--data", torn).code == 0
        with_checkpoint(torn, watermark=last["physical_offset"] + last["size"])
        assert verified(torn).code in (1, 3)
        assert said("dump", "--data", torn).code == 1


def test_held_directory_is_read_up_to_what_was_settled(path: Path) -> None:
    """A node that runs may still cut what isn't settled; it is named, and its lock left alone."""
    settled = next(iter(headers(path, 2)))
    with_checkpoint(path, consume_queue_index=settled.index)
    flip_bit(segment(path, 3), 900)
    assert verified(path).code == 1
    with (path / "LOCK").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = verified(path)
        assert result.code == 0
        assert result.lines[-1]["last_index"] == settled.index
        assert result.lines[-1]["held_by"] == holder_of(path) is not None
        assert "held by" in said("verify", "--data", path).text
        assert dumped(path)[-1]["index"] == settled.index
    assert holder_of(path) is None


def test_held_directory_of_which_nothing_is_settled_is_not_sound(path: Path) -> None:
    """As a node that has just begun leaves it: what is there was durable, and nothing was read."""
    with_checkpoint(path, consume_queue_index=0)
    with (path / "LOCK").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = verified(path)
        assert (result.code, result.lines[-1]["missing"]) == (3, [[1, None]])
        assert said("dump", "--data", path).code == 3
        assert verified(path, "--to", "4").lines[-1]["missing"] == [[1, 4]]


@pytest.mark.parametrize("is_last", [False, True])
def test_damage_hides_nothing_that_a_node_had_settled(path: Path, is_last: bool) -> None:
    """Where headers stop leading, as one has rotten, isn't the end of what is settled: whichever
    of its bytes it is, of an entry in between and of the very last one."""
    last = max(int(each.name) for each in (path / "commitlog").iterdir()) // SEGMENT
    while not (known := list(headers(path, last))):
        last -= 1
    with_checkpoint(path, consume_queue_index=known[-1].index)
    wanted = known[-1] if is_last else known[0]
    place = wanted.physical_offset - last * SEGMENT
    with (path / "LOCK").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert (verified(path).code, dumped(path)[-1]["index"]) == (0, known[-1].index)
        for byte in range(HEADER_SIZE):
            flip_bit(segment(path, last), place + byte, 6)
            result = verified(path)
            assert result.code == 1, byte
            assert result.lines[-1]["first"]["offset"] == place
            assert said("dump", "--data", path).code == 1
            flip_bit(segment(path, last), place + byte, 6)


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_backup_that_was_cut_short_lacks_what_it_says_it_holds(
    path: Path, has_checkpoint: bool
) -> None:
    """Whatever became of its checkpoint: a copy that came from an earlier one, or from none."""
    last = max(int(each.name) for each in (path / "commitlog").iterdir()) // SEGMENT
    while not (known := list(headers(path, last))):
        last -= 1
    (path / "identity.json").unlink()
    end = known[-1].physical_offset + known[-1].total_size
    whole = Backup("g1", "n1", SEGMENT, 1, known[-1].index, known[-1].term, 7, end, 1)
    write_backup(OsFiles(), path, whole)
    if has_checkpoint:
        with_checkpoint(path, watermark=SEGMENT, consume_queue_index=1)
    else:
        (path / "checkpoint").unlink()
    assert (verified(path).code, verified(path).lines[-1]["last_index"]) == (0, known[-1].index)
    place = known[-1].physical_offset - last * SEGMENT
    content = segment(path, last).read_bytes()
    segment(path, last).write_bytes(content[:place] + bytes(SEGMENT - place))
    assert verified(path).code == 3
    for number in range(last, last + 2):
        segment(path, number).unlink(missing_ok=True)
    assert verified(path).code == 3
    flip_bit(path / FILE, 30)
    assert said("verify", "--data", path).code == 1, "how much was there nobody can tell"
    with pytest.raises(LogDamaged, match=FILE):
        open_log(path)
    flip_bit(path / FILE, 30)
    for each in sorted((path / "commitlog").iterdir())[1:]:
        each.unlink()
    os.truncate(segment(path, 0), SEGMENT // 2)  # from which its size would be guessed
    assert said("verify", "--data", path).code == 3


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("is_bare", [False, True])
def test_zeros_with_something_behind_them_end_no_log(
    path: Path, number: int, is_bare: bool
) -> None:
    """As a page that a disk has lost, where an entry begins: the first of the last segment, too.
    Where no checkpoint says how far the log was durable, all that is there must be right."""
    last = max(int(each.name) for each in (path / "commitlog").iterdir()) // SEGMENT
    while len(known := list(headers(path, last))) < 5:
        segment(path, last).unlink()
        last -= 1
    with segment(path, last).open("r+b") as log:  # and it ends in the midst of this one
        log.truncate(known[-1].physical_offset + known[-1].total_size - last * SEGMENT)
        log.truncate(SEGMENT)
    (path / "checkpoint").unlink()
    data = path / "commitlog" if is_bare else path
    assert (verified(data).code, verified(data).lines[-1]["last_index"]) == (0, known[-1].index)
    place = known[number].physical_offset - last * SEGMENT
    with segment(path, last).open("r+b") as log:
        log.seek(place)
        log.write(bytes(known[number].total_size))
    result = verified(data)
    assert result.code == 1
    assert result.lines[-1]["first"]["offset"] == place
    assert result.lines[-1]["last_index"] == known[-1].index


def test_holder_where_the_kernel_doesnt_tell(path: Path, tmp_path: Path) -> None:
    """Then `abort` decides: a node that runs or died."""
    nowhere = tmp_path / "no locks"
    assert holder_of(path, nowhere) is None
    (path / "abort").touch()
    assert holder_of(path, nowhere) is not None


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("name", ["LOCK", "abort"])
def test_lock_that_cannot_be_looked_at_is_not_nobodys(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """The file is named, and nothing is read or repaired: what isn't settled may be changing."""
    stat = os.stat

    def refuse(file: Any, *words: Any, **more: Any) -> os.stat_result:
        if Path(os.fsdecode(file)) == path / name:
            raise OSError(number, os.strerror(number), os.fspath(file))
        return stat(file, *words, **more)

    monkeypatch.setattr("store.holding.os.stat", refuse)
    locks = tmp_path / "no locks" if name == "abort" else LOCKS
    monkeypatch.setattr("audit.proof.log.holder_of", lambda of: holder_of(of, locks))
    for command in (["verify", "--json"], ["dump", "--json"], ["repair", "--from", path]):
        result = CliRunner().invoke(app, [*map(str, command), "--data", str(path)])
        assert (result.exit_code, result.stdout) == (ExitCode.INCOMPLETE, "")
        assert f"dledger: {path / name}: {os.strerror(number)}: so nobody" in result.stderr


def test_mark_of_a_node_that_died_or_runs_elsewhere_is_told(path: Path) -> None:
    """A lock that is held in another container is on no list here: the log is read whole, and the
    verdict's company says what isn't known."""
    assert verified(path).lines[-1]["stopped_cleanly"]
    (path / "abort").touch()
    result = said("verify", "--data", path)
    assert result.code == 0
    assert "or runs in another container" in " ".join(result.text.split())
    assert not verified(path).lines[-1]["stopped_cleanly"]
    assert verified(path).lines[-1]["held_by"] is None


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_what_is_no_log(tmp_path: Path, command: str) -> None:
    """Exit code 2, whatever it is."""
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("file", "empty", "nowhere"):
        assert said(command, "--data", tmp_path / name).code == 2


def test_reader_of_a_dump_may_go(path: Path) -> None:
    """`| head` ends it without a word, and with 0."""
    call = [sys.executable, "-m", "dledger_cli", "log", "dump", "--data", str(path), "--json"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_memory_is_bounded_by_a_segment(tmp_path: Path) -> None:
    """A log of 64 MiB in segments of 1 MiB, of which sizes rot to the largest there are, is
    verified and dumped within little more than reading one entry takes."""
    from tests.audit.replicas import Entry, LogBuilder

    builder = LogBuilder(tmp_path / "n1", "n1", segment_size=1 << 20)
    for _ in range(64 * 9):
        builder.add(Entry(1, count=10, size=10_000))
        builder.flush()
    builder.close()
    file = tmp_path / "n1" / "commitlog" / f"{1 << 20:020d}"
    content = bytearray(file.read_bytes())
    content[0:4] = b"\x7f\xff\xff\xff"
    file.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert verified(tmp_path / "n1").code == 1
    assert said("dump", "--data", tmp_path / "n1").code == 1
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 48 << 10

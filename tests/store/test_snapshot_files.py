"""Snapshots as files: whole or not there, and checked to the last byte before they count."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from random import Random

import pytest

from chaos.sim.disk import MachineDied
from store.errors import CorruptionFound, NotARegularFile, StoreError
from store.files import OsFiles
from store.snapshot_files import MAX_PIECE_BYTES, SnapshotFiles, SnapshotHead
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA

DISK = bytes(range(16))
HEAD = SnapshotHead(DISK, 7, 3, 0x1122334455667788, 4_096)
CHUNKS = [b"first", b"x" * MAX_PIECE_BYTES, b"last"]


def written(files: SnapshotFiles, head: SnapshotHead = HEAD) -> None:
    """A snapshot that has its name."""
    unfinished = files.begin(head)
    unfinished.add(CHUNKS[:1])
    unfinished.add(CHUNKS[1:])
    unfinished.finish()
    files.publish(unfinished)


def begun_and_finished(files: SnapshotFiles) -> None:
    """Raises what keeps it from being written, after which it was dropped."""
    unfinished = files.begin(SnapshotHead(DISK, 9, 3, 1, 5_000))
    try:
        unfinished.finish()
    except OSError:
        unfinished.drop()
        raise


def content_of(files: SnapshotFiles, index: int = 7) -> tuple[SnapshotHead, list[bytes]]:
    with files.opened(index) as (head, chunks):
        return head, list(chunks)


def on_a_disk() -> tuple[SimulatedDisk, SnapshotFiles]:
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    disk.fsync_directory(DATA.parent)
    return disk, SnapshotFiles(DATA, disk)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """On a real disk; the newest is named first, and what is on its way isn't named."""
    files = SnapshotFiles(tmp_path, OsFiles())
    assert files.indexes() == []
    written(files)
    written(files, SnapshotHead(DISK, 12, 3, 5, 8_192))
    files.begin(HEAD)
    assert files.indexes() == [12, 7]
    assert content_of(files) == (HEAD, CHUNKS)
    assert files.remove_all_but({12}) == []
    assert files.indexes() == [12]


def test_the_layout_of_a_snapshot_file(tmp_path: Path) -> None:
    """Golden bytes: what is written today must be readable for as long as version 1 is."""
    files = SnapshotFiles(tmp_path, OsFiles())
    unfinished = files.begin(HEAD)
    unfinished.add([b"one", b"other"])
    unfinished.finish()
    files.publish(unfinished)
    assert files.path(7).read_bytes().hex() == (
        "daa320f500000001000102030405060708090a0b0c0d0e0f"
        "000000000000000700000000000000031122334455667788"
        "0000000000001000f9be8df1"
        "000000036f6e65000000056f74686572"
        "00000000e106aa95"
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_leaves_a_whole_one_or_none(seed: int) -> None:
    """Wherever it comes; what was there before stays."""
    chance = Random(seed)
    disk, files = on_a_disk()
    written(files)
    later = SnapshotHead(DISK, 9, 3, 1, 5_000)
    for fatal in range(1, 12):
        other = disk.clone()
        files = SnapshotFiles(DATA, other)
        other.cut_power_in(fatal)
        with contextlib.suppress(MachineDied):
            written(files, later)
        other.power_off(chance)
        other.power_on()
        named = files.indexes()
        assert named in ([7], [9, 7])
        for index in named:
            assert content_of(files, index)[1] == CHUNKS


def test_any_byte_that_changed_is_found() -> None:
    """Flipped, lost or added, anywhere in the file."""
    disk, files = on_a_disk()
    written(files)
    path = files.path(7)
    size = len(disk.content(path))
    for at in (*range(70), *range(size - 20, size), *range(70, size, 997)):
        spoilt = disk.clone()
        spoilt.flip(path, at, at % 8)
        with pytest.raises(StoreError):
            content_of(SnapshotFiles(DATA, spoilt))
    for kept in (0, 1, 59, 60, 63, size // 2, size - 4, size - 1):
        spoilt = disk.clone()
        spoilt.cut_short(path, kept)
        with pytest.raises(CorruptionFound):
            content_of(SnapshotFiles(DATA, spoilt))
    disk.spoil(path, size, b"\0")
    with pytest.raises(CorruptionFound, match="the end"):
        content_of(files)


def test_a_file_under_another_name_is_refused() -> None:
    """Its name says of which entry it is, and so does its head."""
    disk, files = on_a_disk()
    written(files)
    disk.rename(files.path(7), files.path(8))
    with pytest.raises(CorruptionFound, match="entry 8"):
        content_of(files, 8)


def test_what_is_no_file_is_told_by_name(tmp_path: Path) -> None:
    """A link is no file of this directory; a folder in a snapshot's place stays where it is."""
    files = SnapshotFiles(tmp_path, OsFiles())
    written(files)
    files.path(7).rename(tmp_path / "elsewhere")
    files.path(7).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotARegularFile):
        content_of(files)
    files.path(8).mkdir()
    (failed,) = files.remove_all_but({7})
    assert files.path(8).name in failed


def test_what_was_never_finished_is_in_nobodys_way() -> None:
    """A crash left it; the next one begins anew."""
    disk, files = on_a_disk()
    files.begin(HEAD).add([b"half"])
    disk.kill()
    written(files)
    assert content_of(files) == (HEAD, CHUNKS)


@pytest.mark.parametrize("operation", ["create", "pwritev", "fsync"])
def test_one_that_was_dropped_leaves_nothing(operation: str) -> None:
    """Whatever failed: no name, and the next one is written."""
    disk, files = on_a_disk()
    written(files)
    disk.fail_next(operation, errno.ENOSPC, "snapshot")
    with pytest.raises(OSError, match="space"):
        begun_and_finished(files)
    assert [path.name for path in disk.paths()] == [files.path(7).name]
    written(files, SnapshotHead(DISK, 9, 3, 1, 5_000))
    assert files.indexes() == [9, 7]


def test_the_logs_reserve_is_left_alone() -> None:
    """Where the log may get no segment any more, no snapshot takes its space."""
    disk, _ = on_a_disk()
    disk.capacity_bytes = 1 << 20
    with pytest.raises(OSError, match="kept for the log"):
        SnapshotFiles(DATA, disk, reserve_bytes=2 << 20).begin(HEAD)
    assert disk.paths() == []


def test_what_frees_more_than_it_takes_may_take_what_is_kept_for_the_log() -> None:
    """The base of a log that is to begin later, on a disk that is full of that log."""
    disk = SimulatedDisk()
    files = SnapshotFiles(DATA, disk, reserve_bytes=1 << 50)
    with pytest.raises(OSError):
        files.begin(HEAD)
    files.begin(HEAD, takes_reserve=True).drop()

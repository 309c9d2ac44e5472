"""The simulated disk: what survives a power cut, what fails, and what a name needs."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from chaos.sim.disk import MachineDied, SimulatedDisk
from store.atomic_file import replace_file
from store.files import write_all

ROOT = Path("/d")
FILE = ROOT / "f"


def made(content: bytes = b"old") -> SimulatedDisk:
    """A disk with one durable file."""
    disk = SimulatedDisk()
    disk.mkdir(ROOT)
    disk.fsync_directory(Path("/"))
    replace_file(disk, FILE, content)
    return disk


def read(disk: SimulatedDisk, path: Path = FILE) -> bytes:
    handle = disk.open(path)
    try:
        return disk.pread(handle, 1 << 20, 0)
    finally:
        disk.close(handle)


def after_power_cut(disk: SimulatedDisk, seed: int) -> SimulatedDisk:
    disk.power_off(Random(seed))
    disk.power_on()
    return disk


def test_synced_bytes_survive_every_power_cut() -> None:
    """fdatasync is a promise."""
    for seed in range(20):
        disk = made()
        handle = disk.open(FILE)
        write_all(disk, handle, [b"new"], 0)
        disk.fdatasync(handle)
        assert read(after_power_cut(disk, seed)) == b"new"


def test_unsynced_bytes_survive_whole_torn_or_not_at_all() -> None:
    """Every page has its own fate, so later bytes may survive earlier ones."""
    old, new = b"o" * 12_288, b"n" * 12_288
    seen = set()
    for seed in range(200):
        disk = made(old)
        write_all(disk, disk.open(FILE), [new], 0)
        found = read(after_power_cut(disk, seed))
        assert len(found) == len(old)
        seen.add(tuple(found[page * 4096 : page * 4096 + 4096].count(b"n") for page in range(3)))
    assert (0, 0, 0) in seen
    assert (4096, 4096, 4096) in seen
    assert any(first == 0 and last == 4096 for first, _, last in seen)
    assert any(0 < kept < 4096 for fates in seen for kept in fates)


def test_first_sector_is_written_whole() -> None:
    """What `store.checkpoint` builds on."""
    for seed in range(100):
        disk = made(b"o" * 512)
        write_all(disk, disk.open(FILE), [b"n" * 512], 0)
        assert read(after_power_cut(disk, seed)) in (b"o" * 512, b"n" * 512)


def test_name_needs_its_directory_synced() -> None:
    """A new file vanishes in some power cuts until its directory is synced, and then in none."""
    fates = set()
    for seed in range(40):
        disk = made()
        handle = disk.create(ROOT / "new")
        write_all(disk, handle, [b"x"], 0)
        disk.fsync(handle)
        fates.add(after_power_cut(disk, seed).exists(ROOT / "new"))
    assert fates == {True, False}
    disk = made()
    disk.fsync(disk.create(ROOT / "new"))
    disk.fsync_directory(ROOT)
    assert after_power_cut(disk, 1).exists(ROOT / "new")


def test_file_in_a_directory_without_a_durable_name_is_gone() -> None:
    """A synced directory is of no use when nothing durable leads to it."""
    disk = made()
    disk.mkdir(ROOT / "sub")
    disk.fsync(disk.create(ROOT / "sub" / "f"))
    disk.fsync_directory(ROOT / "sub")
    assert disk.durable(ROOT / "sub" / "f") is None
    fates = set()
    for seed in range(20):
        copy = made()
        copy.mkdir(ROOT / "sub")
        copy.fsync(copy.create(ROOT / "sub" / "f"))
        copy.fsync_directory(ROOT / "sub")
        after_power_cut(copy, seed)
        assert copy.exists(ROOT / "sub") == copy.exists(ROOT / "sub" / "f")
        fates.add(copy.exists(ROOT / "sub"))
    assert fates == {True, False}


def test_failed_fsync_marks_pages_clean() -> None:
    """A second fsync succeeds and saves nothing: the bytes never reach the platter (ATC'20)."""
    disk = made()
    handle = disk.open(FILE)
    write_all(disk, handle, [b"new"], 0)
    disk.fail_next("fdatasync", errno.EIO, "f")
    with pytest.raises(OSError, match="Input/output"):
        disk.fdatasync(handle)
    disk.fdatasync(handle)
    assert read(disk) == b"new"
    assert read(after_power_cut(disk, 3)) == b"old"


def test_killed_process_leaves_the_page_cache() -> None:
    """SIGKILL loses nothing that was written; a power cut after it may."""
    disk = made()
    write_all(disk, disk.open(FILE), [b"new"], 0)
    disk.kill()
    assert read(disk) == b"new"
    assert disk.durable(FILE) == b"old"


def test_power_goes_off_in_the_midst_of_an_operation() -> None:
    """The operation doesn't happen, and none after it."""
    disk = made()
    handle = disk.open(FILE)
    disk.cut_power_in(2)
    write_all(disk, handle, [b"1"], 0)
    for _ in range(2):
        with pytest.raises(MachineDied):
            write_all(disk, handle, [b"2"], 0)
    assert read(after_power_cut(disk, 5)) in (b"1ld", b"old")


def test_full_disk_refuses_what_needs_space() -> None:
    """Overwriting needs none, growing does."""
    disk = made(b"old")
    disk.capacity_bytes = disk.used_bytes() + 2
    handle = disk.open(FILE)
    write_all(disk, handle, [b"12345"], 0)
    with pytest.raises(OSError, match="No space"):
        write_all(disk, handle, [b"6"], 5)
    assert disk.free_bytes(ROOT) == 0


def test_sparse_file_reads_as_zeros() -> None:
    """A hole takes no space and reads as zeros up to the file's size."""
    disk = made()
    handle = disk.create(ROOT / "sparse")
    disk.truncate(handle, 1 << 30)
    write_all(disk, handle, [b"x"], 4)
    assert disk.pread(handle, 8, 0) == b"\0\0\0\0x\0\0\0"
    assert disk.size(handle) == 1 << 30
    assert list(disk.data_ranges(handle, 0, 1 << 30)) == [(0, 5)]
    assert disk.used_bytes() < 100


def test_flipped_bit_stays() -> None:
    """Rot is on the platter and in what is read."""
    disk = made(b"a")
    disk.flip(FILE, 0, 1)
    assert read(disk) == b"c"
    assert read(after_power_cut(disk, 1)) == b"c"

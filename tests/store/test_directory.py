"""The data directory: one owner, one identity; and small files replaced as a whole."""

from __future__ import annotations

import contextlib
import errno
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dledger.reading.checkpoint import CheckpointState, decode_checkpoint, encode_checkpoint
from dledger.records.layout import BOOT
from store.atomic_file import AtomicFile
from store.directory import Birth, DataDirectory, DirectoryState, Identity, write_sealed
from store.errors import CorruptionFound, DirectoryInUse, IdentityMissing, WrongIdentity
from store.files import OsFiles, first_nonzero, read_exactly, write_all, zero_range
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA

IDENTITY = Identity("group-a", "n1", 1 << 20)


def test_second_owner_is_refused_until_the_first_has_closed(tmp_path: Path) -> None:
    """With the kernel's own lock."""
    first = DataDirectory.open(tmp_path / "a" / "b", IDENTITY, holder="process 41")
    with pytest.raises(DirectoryInUse, match="is in use by process 41"):
        DataDirectory.open(tmp_path / "a" / "b", IDENTITY)
    first.close()
    first.close()
    DataDirectory.open(tmp_path / "a" / "b", IDENTITY).close()


def test_a_lock_outlives_the_name_of_its_file(tmp_path: Path) -> None:
    """Whoever takes it for a stale one and removes it lets no second process write to the log."""
    first = DataDirectory.open(tmp_path, IDENTITY, holder="process 41")
    for _ in range(2):
        (tmp_path / "LOCK").unlink()
        with pytest.raises(DirectoryInUse):
            DataDirectory.open(tmp_path, IDENTITY)
    first.close()
    DataDirectory.open(tmp_path, IDENTITY).close()


@pytest.mark.parametrize(
    ("field", "key", "value"),
    [
        ("broker_group", "group", "group-b"),
        ("node_id", "node_id", "n2"),
        ("segment_size_bytes", "segment_size_bytes", 1 << 21),
    ],
)
def test_directory_of_another_identity_is_refused(
    tmp_path: Path, field: str, key: str, value: str | int
) -> None:
    """The message names the file's key and both values, and the lock is free again."""
    DataDirectory.open(tmp_path, IDENTITY).close()
    other = replace(IDENTITY, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(WrongIdentity) as wrong:
        DataDirectory.open(tmp_path, other)
    assert (wrong.value.field, wrong.value.configured) == (key, value)
    assert repr(getattr(IDENTITY, field)) in str(wrong.value)
    assert repr(value) in str(wrong.value)
    DataDirectory.open(tmp_path, IDENTITY).close()


def test_identity_is_readable_by_people_and_checked(tmp_path: Path) -> None:
    disk_id = bytes(range(16))
    DataDirectory.open(tmp_path, IDENTITY, birth=lambda: Birth(disk_id, 1_000)).close()
    path = tmp_path / "identity.json"
    stored = json.loads(path.read_text())
    seal = stored.pop("crc32c")
    assert stored == {
        "format_version": 2,
        "group": "group-a",
        "node_id": "n1",
        "segment_size_bytes": 1 << 20,
        "disk_id": disk_id.hex(),
        "born_ms": 1_000,
        "state": "unformed",
    }
    assert len(seal) == 8
    for spoiled in (path.read_text().replace("n1", "n2"), "{", "[]", ""):
        path.write_text(spoiled)
        with pytest.raises(CorruptionFound):
            DataDirectory.open(tmp_path, IDENTITY)


def test_a_disk_keeps_its_identity_and_its_state(tmp_path: Path) -> None:
    """Made once, and another one for another directory."""
    first = DataDirectory.open(tmp_path / "a", IDENTITY)
    assert first.disk.state is DirectoryState.UNFORMED
    first.mark(DirectoryState.JOINING)
    first.close()
    again = DataDirectory.open(tmp_path / "a", IDENTITY)
    assert again.disk == first.disk
    assert again.disk.state is DirectoryState.JOINING
    assert DataDirectory.open(tmp_path / "b", IDENTITY).disk.disk_id != first.disk.disk_id


def test_a_log_without_an_identity_is_no_new_disk(tmp_path: Path) -> None:
    """Whoever formatted it would let a disk vote again that has forgotten who it was."""
    DataDirectory.open(tmp_path, IDENTITY).close()
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020}").touch()
    (tmp_path / "identity.json").unlink()
    with pytest.raises(IdentityMissing, match="group replace"):
        DataDirectory.open(tmp_path, IDENTITY)


def test_a_directory_of_version_1_is_legacy_and_gets_an_identity(tmp_path: Path) -> None:
    """It is never taken for a member's silently."""
    fields = {"format_version": 1, "group": "group-a", "node_id": "n1"}
    write_sealed(OsFiles(), tmp_path / "identity.json", {**fields, "segment_size_bytes": 1 << 20})
    first = DataDirectory.open(tmp_path, IDENTITY)
    assert first.disk.state is DirectoryState.LEGACY
    first.close()
    assert DataDirectory.open(tmp_path, IDENTITY).disk == first.disk


@pytest.mark.parametrize("fatal", range(16))
def test_every_start_has_a_number_of_its_own_wherever_the_power_fails(fatal: int) -> None:
    """A number is on the platter before anybody can be told of it."""
    disk = SimulatedDisk()
    directory = DataDirectory.open(DATA, IDENTITY, disk)
    told = [directory.next_boot()]
    fatal += len(disk.calls)

    def stop(_operation: str, _name: str) -> None:
        if len(disk.calls) > fatal:
            raise InterruptedError

    disk.before = stop
    with contextlib.suppress(InterruptedError):
        told.append(directory.next_boot())
    disk.before = lambda _operation, _name: None
    disk.power_cut(Random(fatal))
    assert DataDirectory.open(DATA, IDENTITY, disk).next_boot() > told[-1]


def test_identity_is_durable_when_open_returns() -> None:
    disk = SimulatedDisk()
    DataDirectory.open(DATA, IDENTITY, disk)
    disk.power_cut()
    with pytest.raises(WrongIdentity):
        DataDirectory.open(DATA, replace(IDENTITY, broker_group="other"), disk)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_directory_whose_name_was_not_synced_is_made_durable_by_the_next_start(code: int) -> None:
    """What was found there may be known to the page cache only; all that is in it hangs on it."""
    disk = SimulatedDisk()
    disk.fail_next("fsync_directory", code, str(DATA.parent))
    with pytest.raises(OSError, match="/"):
        DataDirectory.open(DATA, IDENTITY, disk)
    disk.kill()
    DataDirectory.open(DATA, IDENTITY, disk).close()
    disk.power_cut()
    assert disk.exists(DATA / "identity.json")


@pytest.mark.parametrize("spare_bytes", [0, 64])
@pytest.mark.parametrize("seed", range(30))
def test_replaced_file_is_old_or_new_wherever_the_power_fails(seed: int, spare_bytes: int) -> None:
    """And new once `replace` has returned."""
    chance = Random(seed)
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    disk.fsync_directory(Path("/"))
    file = AtomicFile(disk, DATA / "vote", spare_bytes)
    assert file.read() is None
    file.replace(b"old")
    steps = len(disk.calls)
    fatal = steps + chance.randrange(12)

    def stop(_operation: str, _name: str) -> None:
        if len(disk.calls) > fatal:
            raise InterruptedError

    disk.before = stop
    expected = [b"old", b"new"]
    try:
        file.replace(b"new")
        expected = [b"new"]
    except InterruptedError:
        pass
    disk.before = lambda _operation, _name: None
    disk.power_cut(chance)
    assert file.read() in expected
    file.replace(b"later")
    assert file.read() == b"later"


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("spare_bytes", [0, 64])
@pytest.mark.parametrize("fatal", range(10))
def test_settled_content_survives_a_power_cut_wherever_the_process_had_died(
    fatal: int, spare_bytes: int, *, is_full: bool
) -> None:
    """A vote that the page cache knows must not be answered for before the platter knows it."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    disk.fsync_directory(Path("/"))
    file = AtomicFile(disk, DATA / "vote", spare_bytes)
    assert file.settle() is None
    file.replace(b"old")
    fatal += len(disk.calls)

    def stop(_operation: str, _name: str) -> None:
        if len(disk.calls) > fatal:
            raise InterruptedError

    disk.before = stop
    with contextlib.suppress(InterruptedError):
        file.replace(b"new")
    disk.before = lambda _operation, _name: None
    disk.kill()
    if is_full:
        disk.capacity_bytes -= disk.free_bytes(DATA)
    settled = file.settle()
    assert settled == file.read()
    disk.power_cut()
    assert file.read() == settled


def test_full_disk_refuses_no_replacement_for_which_space_was_kept() -> None:
    """Not the first on the full disk and not a later one; a file without a spare is refused."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    kept, poor = AtomicFile(disk, DATA / "vote", 64), AtomicFile(disk, DATA / "other")
    for number in range(2):
        kept.replace(b"%d" % number)
        poor.replace(b"%d" % number)
    disk.capacity_bytes -= disk.free_bytes(DATA)
    with pytest.raises(OSError, match="No space"):
        poor.replace(b"new")
    for number in range(10):
        kept.replace(b"term %d" % number)
        assert kept.read() == b"term %d" % number
    assert poor.read() == b"1"


def test_spare_that_is_too_small_is_not_used() -> None:
    """A crash, or a full disk, may have left less than was asked for."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    file = AtomicFile(disk, DATA / "vote", 8)
    file.replace(b"short")
    file.replace(b"longer than the spare")
    assert file.read() == b"longer than the spare"


def test_no_replacement_sets_space_free() -> None:
    """Others take at once what is set free: the next term must not depend on it."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    file = AtomicFile(disk, DATA / "vote", 64)
    file.settle()
    file.replace(b"first")
    disk.fill_up(0)
    for number in range(10):
        file.replace(b"term %d" % number)
        assert file.read() == b"term %d" % number


def test_removed_file_leaves_its_space_to_the_next_one() -> None:
    """An intent is written and removed on a disk that has been full ever since the start."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    file = AtomicFile(disk, DATA / "truncation", 64)
    file.keep_space()
    disk.fill_up(0)
    for number in range(3):
        file.replace(b"%d" % number)
        file.remove()
        assert file.read() is None


def test_file_without_a_spare_is_no_surprise_later() -> None:
    """There is no space for the next one: the start says so."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    disk.fill_up(0)
    with pytest.raises(OSError, match="No space"):
        AtomicFile(disk, DATA / "vote", 64).settle()


class PlainFiles(OsFiles):
    """A file system that can't exchange names."""

    def exchange(self, one: Path, other: Path) -> bool:
        return False


@pytest.mark.parametrize("files", [OsFiles(), PlainFiles()], ids=["exchange", "plain"])
def test_replacements_and_removals_on_a_real_disk(tmp_path: Path, files: OsFiles) -> None:
    """Whatever the file system can do; nothing is left but the file and its spare."""
    file = AtomicFile(files, tmp_path / "vote", 64)
    assert file.settle() is None
    for content in (b"one", b"another", b"x" * 60, b"y" * 61):
        file.replace(content)
        assert AtomicFile(files, tmp_path / "vote", 64).settle() == content
    assert sorted(each.name for each in tmp_path.iterdir()) == ["vote", "vote.spare"]
    file.remove()
    assert [each.name for each in tmp_path.iterdir()] == ["vote.spare"]


def test_spoiled_atomic_file_is_found() -> None:
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    file = AtomicFile(disk, DATA / "vote")
    file.replace(b"content")
    for at in range(len(disk.bytes_of(DATA / "vote"))):
        disk.bytes_of(DATA / "vote")[at] ^= 1
        with pytest.raises(CorruptionFound):
            file.read()
        disk.bytes_of(DATA / "vote")[at] ^= 1
    disk.resize(DATA / "vote", 3)
    with pytest.raises(CorruptionFound):
        file.read()
    file.remove()
    file.remove()
    assert file.read() is None


def test_checkpoint_has_the_documented_bytes() -> None:
    """Golden: one page, everything within its first 64 bytes."""
    page = encode_checkpoint(CheckpointState(0x1000, 0x20, 3, 4, 5, 6))
    assert len(page) == 4096
    assert page[:8].hex() == "daa320c100000001"
    assert page[12:64].hex() == (
        "00000000" "0000000000001000" "0000000000000020" "0000000000000003"
        "0000000000000004" "0000000000000005" "0000000000000006"
    )  # fmt: skip
    assert not any(page[64:])
    assert decode_checkpoint(page) == CheckpointState(0x1000, 0x20, 3, 4, 5, 6)


def test_every_flipped_byte_makes_a_checkpoint_unreadable() -> None:
    page = encode_checkpoint(CheckpointState(1, 2, 3, 4, 5, 6))
    for at in range(len(page)):
        spoiled = bytearray(page)
        spoiled[at] ^= 0x20
        assert decode_checkpoint(bytes(spoiled)) is None


def test_real_files_do_what_the_simulated_disk_does(tmp_path: Path) -> None:
    """The same calls, the same answers: holes, zeroing, sizes, names."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    answers = []
    for files, root in ((OsFiles(), tmp_path), (disk, DATA)):
        handle = files.create(root / "file")
        files.fallocate(handle, 3 << 20)
        write_all(files, handle, [b"a", b"bc", b"d" * 5000] + [b"e"] * 3000, (1 << 20) - 10)
        files.fdatasync(handle)
        seen: list[object] = [files.size(handle)]
        seen.append(first_nonzero(files, handle, 0, 3 << 20))
        seen.append(read_exactly(files, handle, 8010, (1 << 20) - 10, "file"))
        zero_range(files, handle, 1 << 20, 3 << 20)
        seen.append(read_exactly(files, handle, 20, (1 << 20) - 15, "file"))
        seen.append(first_nonzero(files, handle, 1 << 20, 3 << 20))
        files.truncate(handle, 100)
        files.rename(root / "file", root / "other")
        files.fsync_directory(root)
        seen += [files.size(handle), files.listdir(root), files.exists(root / "file")]
        with pytest.raises(CorruptionFound, match="the file's end after 10"):
            read_exactly(files, handle, 30, 90, "file")
        with pytest.raises(FileExistsError):
            files.create(root / "other")
        files.unlink(root / "other")
        with pytest.raises(FileNotFoundError):
            files.open(root / "other")
        files.mkdir(root / "sub")
        files.mkdir(root / "sub")
        files.rmdir(root / "sub")
        seen.append(files.listdir(root))
        files.close(handle)
        answers.append(seen)
    assert answers[0] == answers[1]


def test_boot_number_that_nobody_has_reached_is_damage(tmp_path: Path) -> None:
    """The next one must have room in its field."""
    with contextlib.closing(DataDirectory.open(tmp_path, IDENTITY)) as directory:
        directory.next_boot()
        for number in ((1 << 62) + 1, (1 << 64) - 1):
            content = BOOT.struct().pack(BOOT.constant("magic"), BOOT.constant("version"), number)
            AtomicFile(OsFiles(), tmp_path / "raft" / "boot").replace(content)
            with pytest.raises(CorruptionFound, match="starts"):
                directory.next_boot()


def test_sealed_file_that_is_too_deep_is_damage(tmp_path: Path) -> None:
    """JSON can nest deeper than a reader can follow."""
    (tmp_path / "identity.json").write_text("[" * 60_000)
    with pytest.raises(CorruptionFound, match="JSON object"):
        DataDirectory.open(tmp_path, IDENTITY)

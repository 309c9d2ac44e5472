"""A directory that was moved or removed under the process that holds it: the one that has its name
now is another node's, and nothing is read or written there."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger.core.types import HardState, NodeId, Term
from dledger.hard_state import HardStateStore
from store.atomic_file import AtomicFile, replace_file
from store.directory import DataDirectory, Identity
from store.errors import DirectoryReplaced
from store.files import OsFiles
from store.preallocation import AllocationPolicy, Preallocator
from store.second_copy import SecondCopy

IDENTITY = Identity("group-a", "n1", 1 << 20)
NOTHING_HELD = AllocationPolicy(1 << 16, 0, warm_up=False, mlock=False)

CALLS: dict[str, Callable[[OsFiles, Path], object]] = {
    "open": lambda files, data: files.open(data / "file"),
    "create": lambda files, data: files.create(data / "fresh"),
    "rename": lambda files, data: files.rename(data / "file", data / "other"),
    "exchange": lambda files, data: files.exchange(data / "file", data / "other"),
    "unlink": lambda files, data: files.unlink(data / "file"),
    "mkdir": lambda files, data: files.mkdir(data / "fresh"),
    "rmdir": lambda files, data: files.rmdir(data / "folder"),
    "fsync_directory": lambda files, data: files.fsync_directory(data),
    "listdir": lambda files, data: files.listdir(data),
    "exists": lambda files, data: files.exists(data / "file"),
    "free_bytes": lambda files, data: files.free_bytes(data),
    "total_bytes": lambda files, data: files.total_bytes(data),
}


@pytest.fixture
def files() -> OsFiles:
    return OsFiles()


@pytest.fixture
def held(tmp_path: Path, files: OsFiles) -> Iterator[DataDirectory]:
    """A directory that is held, with something in it."""
    with contextlib.closing(DataDirectory.open(tmp_path / "data", IDENTITY, files)) as directory:
        fill(directory.path)
        yield directory


def fill(folder: Path) -> None:
    (folder / "folder").mkdir(parents=True)
    for name in ("file", "other"):
        (folder / name).write_text(name)


def replace_directory(path: Path) -> dict[Path, bytes]:
    """It was moved away, and another node has made its own there: what that holds."""
    path.rename(path.with_name("moved"))
    fill(path)
    (path / "raft").mkdir()
    DataDirectory.open(path, IDENTITY).close()
    return content_of(path)


def content_of(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() if each.is_file() else b"" for each in path.rglob("*")}


@pytest.mark.parametrize("name", CALLS)
def test_no_name_in_anothers_directory_is_used(
    held: DataDirectory, files: OsFiles, name: str
) -> None:
    there = replace_directory(held.path)
    with pytest.raises(DirectoryReplaced, match="moved or removed"):
        CALLS[name](files, held.path)
    assert content_of(held.path) == there


@pytest.mark.parametrize("name", CALLS)
def test_nor_where_there_is_none_any_more(held: DataDirectory, files: OsFiles, name: str) -> None:
    """A restart makes a new one: nothing that was acknowledged would be in it."""
    held.path.rename(held.path.with_name("moved"))
    with pytest.raises(DirectoryReplaced):
        CALLS[name](files, held.path)
    assert not held.path.exists()


def test_nor_where_directories_cant_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the lock stands for the directory then."""
    lock = fcntl.flock

    def files_only(descriptor: int, operation: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError("no locks on directories")
        lock(descriptor, operation)

    monkeypatch.setattr("store.files.fcntl.flock", files_only)
    files, path = OsFiles(), tmp_path / "data"
    with contextlib.closing(DataDirectory.open(path, IDENTITY, files)):
        assert files.exists(path / "identity.json")
        replace_directory(path)
        with pytest.raises(DirectoryReplaced):
            files.exists(path / "identity.json")


def test_who_was_let_go_of_the_directory_has_nothing_to_check(
    held: DataDirectory, files: OsFiles
) -> None:
    """Neither has a folder beside it, though its name begins alike."""
    replace_directory(held.path)
    beside = held.path.with_name("database")
    files.mkdir(beside)
    assert files.listdir(beside) == []
    held.close()
    assert files.exists(held.path / "file")


def test_one_that_comes_back_is_the_one_that_was_held(held: DataDirectory, files: OsFiles) -> None:
    """And one whose lock was taken for a stale one, and removed, never was another."""
    moved = held.path.rename(held.path.with_name("moved"))
    moved.rename(held.path)
    assert files.exists(held.path / "file")
    (held.path / "LOCK").unlink()
    assert files.exists(held.path / "file")


def test_neither_vote_nor_identity_nor_segment_is_written_over(
    held: DataDirectory, files: OsFiles
) -> None:
    """What a member that goes on would write by its path."""
    path = held.path
    (path / "raft").mkdir()
    store = HardStateStore(AtomicFile(files, path / "raft" / "hard_state", 64))
    copy = SecondCopy(files, path / "raft" / "hard_state.copy")
    store.save(HardState(Term(3), NodeId("n1")))
    store.keep_copy(copy, HardState(Term(3), NodeId("n1")))
    segments = Preallocator(files, path, NOTHING_HELD, 0, lambda *_: None)
    there = replace_directory(path)
    for write in (
        lambda: store.save(HardState(Term(4), NodeId("n1"))),
        store.mend,
        lambda: copy.write(b"content"),
        held.mend,
        segments.create,
        lambda: replace_file(files, path / "file", b"content"),
    ):
        with pytest.raises(DirectoryReplaced):
            write()
    assert content_of(path) == there

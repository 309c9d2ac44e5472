"""What an operating system doesn't tell is no "no"; what it says of a descriptor names a file."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.atomic_file import AtomicFile
from store.errors import StorageFailed
from store.files import Handle, OsFiles

UNTOLD = (errno.EIO, errno.EACCES, errno.ESTALE, errno.EUCLEAN)


@pytest.fixture(params=UNTOLD, ids=errno.errorcode.get)
def unread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What is said of every name: the directory that has it can't be read."""
    code = int(request.param)

    def refuse(path: os.PathLike[str], **_: Any) -> os.stat_result:
        raise OSError(code, os.strerror(code), os.fspath(path))

    monkeypatch.setattr(os, "lstat", refuse)
    return code


def test_a_name_that_cant_be_looked_up_isnt_taken_for_none(tmp_path: Path, unread: int) -> None:
    """Term and vote that are there would be none, and be given once more."""
    path = tmp_path / "hard_state"
    file = AtomicFile(OsFiles(), path)
    with pytest.raises(OSError, match="hard_state") as found:
        file.read()
    assert (found.value.errno, found.value.filename) == (unread, str(path))


def test_what_has_no_name_isnt_there(tmp_path: Path) -> None:
    """Nor is what would lie in a file; a link that leads nowhere is."""
    files = OsFiles()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert files.exists(tmp_path / "file")
    assert files.exists(tmp_path / "link")
    assert not files.exists(tmp_path / "nothing")
    assert not files.exists(tmp_path / "file" / "inner")


OF_A_DESCRIPTOR: dict[str, tuple[str, Callable[[OsFiles, Handle], object]]] = {
    "pread": ("pread", lambda files, handle: files.pread(handle, 1, 0)),
    "pwritev": ("pwritev", lambda files, handle: files.pwritev(handle, [b"x"], 0)),
    "fdatasync": ("fdatasync", lambda files, handle: files.fdatasync(handle)),
    "fsync": ("fsync", lambda files, handle: files.fsync(handle)),
    "fallocate": ("posix_fallocate", lambda files, handle: files.fallocate(handle, 9)),
    "truncate": ("ftruncate", lambda files, handle: files.truncate(handle, 9)),
    "size": ("fstat", lambda files, handle: files.size(handle)),
    "data_ranges": ("lseek", lambda files, handle: list(files.data_ranges(handle, 0, 9))),
}


@pytest.mark.parametrize("name", OF_A_DESCRIPTOR)
def test_error_of_a_descriptor_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whoever reads it has more than one file, and perhaps more than one disk; that it is renamed
    after it was opened, as segments are, makes no difference."""
    call, attempt = OF_A_DESCRIPTOR[name]
    files = OsFiles()
    handle = files.create(tmp_path / "made.tmp")
    files.rename(tmp_path / "made.tmp", tmp_path / "made")

    def refuse(*_: object) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="Input/output error") as found:
        attempt(files, handle)
    monkeypatch.undo()
    files.close(handle)
    assert found.value.filename == str(tmp_path / "made")
    assert str(tmp_path / "made") in str(StorageFailed("flush", found.value))


def test_error_of_a_directorys_sync_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue's folder, say: there are thousands."""

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error") as found:
        OsFiles().fsync_directory(tmp_path)
    assert found.value.filename == str(tmp_path)


def test_error_of_a_lock_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, or one that has gone."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available") as found:
        OsFiles().lock(tmp_path / "LOCK")
    assert found.value.filename == str(tmp_path / "LOCK")

"""What the store opens: regular files of the directory's own, and nothing else by their names."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from store.commitlog import CommitLog, CommitLogOptions
from store.errors import NotARegularFile
from store.files import OsFiles
from store.worker import ManualWorker

OPTIONS = CommitLogOptions(segment_size_bytes=4096, reserve_bytes=0)


def link_to_another(path: Path) -> None:
    other = path.with_name("another")
    other.write_bytes(bytes(4096))
    path.symlink_to(other)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (link_to_another, "symbolic link"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "symbolic link"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "symbolic link"),
    "a pipe": (os.mkfifo, "pipe"),
    "a socket": (bound_socket, "socket"),
    "a directory": (Path.mkdir, "directory"),
}


@pytest.mark.parametrize("name", ["checkpoint", "truncation", f"commitlog/{0:020d}"])
@pytest.mark.parametrize(("make", "kind"), NO_FILES.values(), ids=NO_FILES.keys())
def test_log_is_not_opened_over_what_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], object],
    kind: str,
) -> None:  # fmt: skip
    """It is named, and nobody waits for the other end of a pipe."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    CommitLog.open(tmp_path, OPTIONS, workers=ManualWorker).close()
    path = tmp_path / name
    path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(NotARegularFile, match=f"{path.name} is a {kind}"):
        CommitLog.open(tmp_path, OPTIONS, workers=ManualWorker)


def test_directory_of_the_log_may_be_a_link(tmp_path: Path) -> None:
    """A log on a disk of its own."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "commitlog").symlink_to("elsewhere")
    CommitLog.open(tmp_path, OPTIONS, workers=ManualWorker).close()
    assert OsFiles().exists(tmp_path / "elsewhere" / f"{0:020d}")


def test_second_name_of_a_file_is_none_of_the_stores_business(tmp_path: Path) -> None:
    """Backups are made so."""
    CommitLog.open(tmp_path, OPTIONS, workers=ManualWorker).close()
    segment = tmp_path / "commitlog" / f"{0:020d}"
    os.link(segment, tmp_path / "backup")
    CommitLog.open(tmp_path, OPTIONS, workers=ManualWorker).close()
    assert segment.samefile(tmp_path / "backup"), "the store wrote its segment anew"

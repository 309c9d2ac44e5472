"""A rehearsed disk gives back what a real one would, and the real one stays as it was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from store.files import FileSystem, Handle, OsFiles, first_nonzero
from store.rehearsal import PAGE, RehearsedFiles

SIZES = (0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 5 * PAGE + 17)
FILES = ("a", "b", "c", "d/e", "d/f")  # and g, a directory now and then


def outcome(call: str, files: FileSystem, root: Path, random: Random) -> object:
    """What one call does, seen from outside: what it gives, or the error's number."""
    names = FILES if call in ("rename", "exchange") else (*FILES, "g")
    one, other = (root / random.choice(names) for _ in range(2))
    size, at = random.choice(SIZES), random.choice(SIZES)
    content = bytes(random.choice(((0,) * 50, range(50)))) * (size // 50) or b"x"
    try:
        match call:
            case "create":
                files.close(files.create(one))
            case "unlink":
                files.unlink(one)
            case "mkdir":
                files.mkdir(root / "g")
            case "rmdir":
                files.rmdir(root / "g")
            case "rename":
                files.rename(one, other)
            case "exchange":
                return one != other and files.exchange(one, other)
            case "list":
                return files.listdir(root / random.choice((".", "d", "g")))
            case "exists":
                return files.exists(one)
            case _:
                return on_content(call, files, files.open(one), (content, size, at))
    except OSError as error:
        return error.errno
    except Exception as error:  # noqa: BLE001 - whatever it is, it has to be the same
        return type(error)
    return None


def on_content(
    call: str, files: FileSystem, handle: Handle, given: tuple[bytes, int, int]
) -> object:
    content, size, at = given
    try:
        match call:
            case "write":
                return files.pwritev(handle, [content, b"end"], at)
            case "truncate":
                files.truncate(handle, size)
            case "fallocate":
                files.fallocate(handle, size + 1)
            case "data":
                return first_nonzero(files, handle, at, at + size)
            case _:
                return files.size(handle), files.pread(handle, size, at)
        return None
    finally:
        files.close(handle)


CALLS = (
    *("create", "unlink", "mkdir", "rmdir", "rename", "exchange", "list", "exists"),
    *("write", "write", "write", "truncate", "fallocate", "data", "read", "read"),
)


@pytest.mark.parametrize("seed", range(6))
def test_rehearsal_is_like_the_disk(tmp_path: Path, seed: int) -> None:
    """The same calls on a rehearsal and on a copy give the same answers, and at the end the same
    content; the directory that was rehearsed on hasn't changed."""
    random = Random(seed)
    (tmp_path / "real" / "d").mkdir(parents=True)
    for name in FILES[:4]:
        (tmp_path / "real" / name).write_bytes(random.randbytes(random.choice(SIZES)))
    for folder in ("copy", "untouched"):
        shutil.copytree(tmp_path / "real", tmp_path / folder)
    for folder in ("real", "copy", "untouched"):  # two names of one file
        os.link(tmp_path / folder / "a", tmp_path / folder / "d" / "f")
    rehearsal, disk = RehearsedFiles(), OsFiles()
    for _ in range(150):
        call, step = random.choice(CALLS), random.random()
        said = outcome(call, rehearsal, tmp_path / "real", Random(step))
        assert said == outcome(call, disk, tmp_path / "copy", Random(step)), call
    for name in (*FILES, "g"):
        if (tmp_path / "copy" / name).is_file():
            handle = rehearsal.open(tmp_path / "real" / name)
            content = rehearsal.pread(handle, 1 << 20, 0)
            assert content == (tmp_path / "copy" / name).read_bytes()
    rehearsal.close_all()
    assert tree(tmp_path / "real") == tree(tmp_path / "untouched")


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()
    }


def test_nothing_is_left_open(tmp_path: Path) -> None:
    """A file has one descriptor while it has handles."""
    (tmp_path / "a").write_bytes(b"content")
    before = len(os.listdir("/proc/self/fd"))
    rehearsal = RehearsedFiles()
    for _ in range(3):
        rehearsal.open(tmp_path / "a")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    rehearsal.close_all()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_written_again_as_it_was_takes_no_memory(tmp_path: Path) -> None:
    """A recovery writes what it found once more, to be sure of it."""
    content = os.urandom(50 * PAGE)
    (tmp_path / "a").write_bytes(content)
    rehearsal = RehearsedFiles()
    handle = rehearsal.open(tmp_path / "a")
    rehearsal.pwritev(handle, [content], 0)
    assert rehearsal.held_pages() == 0
    rehearsal.pwritev(handle, [bytes((content[7 * PAGE] ^ 1,))], 7 * PAGE)
    assert rehearsal.held_pages() == 1
    rehearsal.close_all()

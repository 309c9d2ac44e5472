"""Local groups whose file knows less than is so: a process that nobody wrote down, a lock that was
wiped under who waited for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.local_group import GroupOptions, LocalGroup
from broker.local_group.errors import NodeUnrecorded
from broker.local_group.layout import LOCK_FILE, locked, read_group_file, write_group_file
from dledger.outcome import ExitCode
from tests.cli.called import command

HOLDS = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(lock, b"process 4711")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def group(tmp_path: Path) -> LocalGroup:
    return LocalGroup.open_or_create(tmp_path / "run", GroupOptions(3))


@pytest.fixture
def held(group: LocalGroup) -> Iterator[Path]:
    """The data of n2, which somebody else has locked."""
    data = group.directory / "n2" / "data"
    data.mkdir(parents=True)
    words = [sys.executable, "-c", HOLDS, str(data / "LOCK")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield data
        process.communicate()


def test_no_group_is_stopped_or_wiped_whose_data_somebody_holds(
    group: LocalGroup, held: Path
) -> None:
    """`group up` was killed between starting a node and writing that down."""
    for words in (("down",), ("down", "--wipe")):
        done = command("group", *words, "--dir", str(group.directory))
        assert done.returncode == ExitCode.FAILED
        assert "n2 runs, as a process that group.json doesn't know of: process 4711" in done.stderr
        assert "stopped\n" not in done.stdout + done.stderr
    with pytest.raises(NodeUnrecorded):
        group.wipe()
    assert held.is_dir()


def test_it_can_be_wiped_when_nobody_holds_it(group: LocalGroup) -> None:
    data = group.directory / "n2" / "data"
    data.mkdir(parents=True)
    (data / "LOCK").write_text("process 4711")
    done = command("group", "down", "--wipe", "--dir", str(group.directory))
    assert done.returncode == ExitCode.DONE, done.stderr
    assert not group.directory.exists()


def opened(path: Path) -> int:
    """How often this process has the file open."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    return found


def test_who_waited_for_a_lock_that_was_wiped_takes_the_next_one(tmp_path: Path) -> None:
    """Else two would have one each."""
    got = threading.Event()
    lock = tmp_path / LOCK_FILE

    def wait() -> None:
        with locked(tmp_path):
            got.set()

    with locked(tmp_path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        while opened(lock) < 2:  # it waits, or is about to: for the one that goes
            time.sleep(0.001)
        lock.unlink()
        second = os.open(lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(second, fcntl.LOCK_EX)
    assert not got.wait(0.3)
    os.close(second)
    waiting.join(10)
    assert got.is_set()


def test_a_group_file_is_on_disk_before_it_has_its_name(
    group: LocalGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves the old one or the new one."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}').rsplit('/', 1)[1]}")
        fsync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        done.append(f"replace {target.name}")
        return replace(path, target)

    record = read_group_file(group.directory)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_group_file(group.directory, record)
    assert done == ["fsync group.json.new", "replace group.json", "fsync run"]
    assert json.loads((group.directory / "group.json").read_text())

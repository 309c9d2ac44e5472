"""The archive command that the page gives: whatever broke off before, 0 says that all is there."""

from __future__ import annotations

import asyncio
import re
import tomllib
from pathlib import Path

import pytest

from broker.archiving import TIMEOUT_S, Archiver, CommandRunner

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
FOLDER = "/archive/n1"
SEGMENT = bytes(range(256)) * 4_096  # a MiB, of which every cut differs from the whole
NAME = f"{0:020d}"


def commands_of_the_page() -> list[list[str]]:
    """Those that are given as a block of configuration."""
    blocks = re.findall(r"```toml\n(archive = .*?)```", PAGE.read_text(), re.DOTALL)
    return [tomllib.loads(each)["archive"] for each in blocks]


def archived(tmp_path: Path, folder: Path) -> str:
    """Why a member, with a segment that is to go, says that it may not; empty: it may."""
    path = tmp_path / "commitlog" / NAME
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(SEGMENT)
    (command,) = commands_of_the_page()
    assert FOLDER in command
    command = [str(folder) if each == FOLDER else each for each in command]
    archiver = Archiver(command, 3_600.0, CommandRunner(), lambda: False, lambda: 0.0)
    return asyncio.run(archiver.release([path])).held


@pytest.mark.parametrize("cut", [0, 1, 4_096, len(SEGMENT) - 1, len(SEGMENT)])
@pytest.mark.parametrize("ending", ["", ".part"])
def test_what_is_told_to_be_archived_is_there_whole(tmp_path: Path, cut: int, ending: str) -> None:
    """Over what an attempt that broke off has left, under either name, in a folder with a space."""
    folder = tmp_path / "an archive"
    folder.mkdir()
    (folder / f"{NAME}{ending}").write_bytes(SEGMENT[:cut])
    assert archived(tmp_path, folder) == ""
    assert (folder / NAME).read_bytes() == SEGMENT
    assert [each.name for each in folder.iterdir()] == [NAME]
    assert archived(tmp_path, folder) == ""  # as after a restart
    assert (folder / NAME).read_bytes() == SEGMENT


@pytest.mark.parametrize("step", ["cp", "sync", "mv"])
def test_a_step_that_fails_is_no_archive(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a file on a full disk, a sync that fails: held, and nothing has the segment's name
    unless all of it is there."""
    folder, programs = tmp_path / "archive", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    broken = programs / step
    broken.write_text('#!/bin/sh\necho "no space left" >&2\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    assert "no space left" in archived(tmp_path, folder)
    assert not (folder / NAME).exists()
    broken.unlink()
    assert archived(tmp_path, folder) == ""
    assert (folder / NAME).read_bytes() == SEGMENT


def test_a_folder_that_is_not_there_holds_the_segment(tmp_path: Path) -> None:
    """An archive that isn't mounted is no file of that name."""
    assert "exit code 1" in archived(tmp_path, tmp_path / "away")
    assert not (tmp_path / "away").exists()


def test_a_command_that_is_ended_midway_is_no_archive(tmp_path: Path) -> None:
    """Broken off at the ten minutes, or by the node's end: it had no name yet."""
    (command,) = commands_of_the_page()
    folder, source = tmp_path / "archive", tmp_path / NAME
    folder.mkdir()
    source.write_bytes(SEGMENT)
    stuck = command[2].replace("sync", "sleep 60; sync", 1)
    assert stuck != command[2]
    places = {"{path}": str(source), FOLDER: str(folder), command[2]: stuck}
    told = asyncio.run(CommandRunner()([places.get(each, each) for each in command], 1.0))
    assert "longer than 1 s" in told
    assert TIMEOUT_S > 1.0
    assert not (folder / NAME).exists()

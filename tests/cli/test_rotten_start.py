"""A process whose log has rotted while it was down gets it back from its peers, and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config import load_config
from broker.local_group import LocalGroup
from dledger.outcome import ExitCode
from dledger.reading.entry import HEADER_SIZE
from tests.cli.called import command
from tests.cli.test_out_of_service import node, produce, until

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "run"
    up = command("group", "up", "--dir", str(where))
    assert up.returncode == ExitCode.DONE, up.stderr
    yield where
    command("group", "down", "--dir", str(where))


@pytest.mark.parametrize("how", ["KILL", pytest.param("TERM", marks=pytest.mark.long)])
def test_process_goes_on_by_itself_when_its_log_is_whole(folder: Path, how: str) -> None:
    """It needs no operator, and ends with the bytes that it had."""
    group = LocalGroup.open(folder)
    assert command("topic", "create", "logs", "--dir", str(folder)).returncode == 0
    lines = "".join(f"message {number}\n" for number in range(200))
    assert produce(folder, lines).returncode == 0
    leader = json.loads(command("group", "status", "--dir", str(folder), "--json").stdout)["leader"]
    name = next(each.id for each in group.nodes if each.id != leader)
    directory = load_config(Path(group.node(name).config)).data_directory
    wanted = node(folder, leader)["commit_index"]
    until(lambda: (node(folder, name)["applied_index"] or 0) >= wanted)
    command("group", "kill", name, "--signal", how, "--dir", str(folder))
    segment = directory / "commitlog" / f"{0:020}"
    before = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(HEADER_SIZE + 4)  # the entry that says who is a member
        file.write(bytes((before[HEADER_SIZE + 4] ^ 4,)))
    assert command("group", "start", name, "--dir", str(folder)).returncode == ExitCode.DONE
    until(lambda: node(folder, name)["role"] == "follower")
    end = len(before.rstrip(b"\0"))
    assert segment.read_bytes()[:end] == before[:end]
    more = produce(folder, "one more\n")
    assert more.returncode == ExitCode.DONE, more.stderr

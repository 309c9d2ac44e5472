"""What is meant for the group in `--dir` reaches no other, whoever answers at its addresses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.local_group import GROUP_FILE, GroupOptions, LocalGroup
from dledger.terminal.outcome import ExitCode
from tests.cli.called import command


@pytest.fixture(scope="module")
def group(
    tmp_path_factory: pytest.TempPathFactory, shared_runner: asyncio.Runner
) -> Iterator[LocalGroup]:
    """A group of one node that runs."""
    made = LocalGroup.create(tmp_path_factory.mktemp("group") / "run", GroupOptions(nodes=1))
    shared_runner.run(made.up())
    yield made
    made.kill_all()


@pytest.fixture
def earlier(group: LocalGroup, tmp_path: Path) -> LocalGroup:
    """A group whose node is down, and whose address the running one's node has now."""
    made = LocalGroup.create(tmp_path / "earlier", GroupOptions(nodes=1))
    change(made, address=group.addresses[0])
    return made


def change(group: LocalGroup, **changes: object) -> None:
    """Rewrites keys of the node in `group.json`."""
    file = group.directory / GROUP_FILE
    record = json.loads(file.read_text())
    record["nodes"][0] |= changes
    file.write_text(json.dumps(record))


def listed(group: LocalGroup) -> list[str]:
    done = command("topic", "list", "--json", "--dir", str(group.directory))
    assert (done.returncode, done.stderr) == (0, "")
    return [topic["name"] for topic in json.loads(done.stdout)]


def test_nothing_is_asked_of_another_groups_nodes(
    group: LocalGroup, earlier: LocalGroup, tmp_path: Path
) -> None:
    """Groups that are made one after the other with a base port have the same addresses: what is
    meant for the one that is down is refused, and the other one stays as it is."""
    made = command("topic", "create", "t", "--if-not-exists", "--dir", str(group.directory))
    assert made.returncode == 0, made.stderr
    backup = tmp_path / "backup"
    for words in (
        ["topic", "delete", "t"],
        ["topic", "list"],
        ["produce", "t"],
        ["consume", "t", "--max", "1"],
        ["group", "backup", str(backup)],
        ["group", "transfer", "n1"],
        ["group", "doctor"],
    ):
        done = command(*words, "--dir", str(earlier.directory))
        assert (done.returncode, done.stdout) == (ExitCode.USAGE, ""), words
        assert done.stderr.startswith(
            f"dledger: {group.addresses[0]} is answered by n1 of broker group local on "
            f"{group.node('n1').data_directory}, not by n1 of the group in {earlier.directory}: "
        )
    assert not backup.exists()
    assert "t" in listed(group)


def test_status_shows_nobody_elses_nodes(group: LocalGroup, earlier: LocalGroup) -> None:
    """They count as nobody: none leads, none is alive, none is the leader that is meant."""

    def asked(*words: str) -> Any:
        return command("group", *words, "--dir", str(earlier.directory))

    done = asked("status", "--json")
    assert (done.returncode, done.stderr) == (ExitCode.UNREACHABLE, "dledger: no node answers\n")
    status = json.loads(done.stdout)
    assert (status["leader"], status["term"]) == (None, None)
    assert [(each["role"], each["alive"]) for each in status["nodes"]] == [("stranger", False)]
    told = asked("status").stdout
    assert "where n1 is to be, a node of broker group local answers, on " in told
    assert group.node("n1").data_directory in told
    assert asked("kill", "leader").returncode == ExitCode.UNREACHABLE
    assert group.node("n1").is_running()


def test_own_node_that_another_hand_started_is_asked(group: LocalGroup, tmp_path: Path) -> None:
    """It is known by its id and directory, not by who started it; through a link as well."""
    kept = (group.directory / GROUP_FILE).read_text()
    (tmp_path / "link").symlink_to(group.directory)
    change(group, pid=None, started=None, data_directory=str(tmp_path / "link" / "n1" / "data"))
    try:
        listed(group)
        status = command("group", "status", "--json", "--dir", str(group.directory))
        assert json.loads(status.stdout)["leader"] == "n1"
    finally:
        (group.directory / GROUP_FILE).write_text(kept)


def test_another_node_of_a_group_is_not_this_one(group: LocalGroup) -> None:
    """Where two nodes have changed their addresses, say."""
    kept = (group.directory / GROUP_FILE).read_text()
    config = str(group.directory / "n2" / "node.toml")
    change(group, pid=None, started=None, id="n2", config=config)
    try:
        done = command("topic", "list", "--dir", str(group.directory))
        assert done.returncode == ExitCode.USAGE
        assert "not by n2 of the group" in done.stderr
    finally:
        (group.directory / GROUP_FILE).write_text(kept)

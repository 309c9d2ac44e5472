"""Processes that are forked from a warm one are processes of their own, and leave nothing."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.local_group.process import ProcessIdentity, is_running
from dledger.testing import BrokerGroup, GroupFailed
from dledger.testing import warm as leash
from dledger.testing.warm import Forked, WarmProgram

WAIT_S = 60.0


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmProgram]:
    program = WarmProgram()
    yield program
    program.close()


@pytest.fixture
def to_be_killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shared program is another one for this test."""
    monkeypatch.setattr(leash, "_shared", None)
    yield
    assert leash._shared is not None
    leash._shared.close()


def forked(warm: WarmProgram, output: Path, *words: str) -> Forked:
    with Path(os.devnull).open("rb") as nothing, output.open("ab") as file:
        streams = (nothing.fileno(), file.fileno(), file.fileno())
        return Forked.of(warm.path, "dledger_cli", words, streams)


def test_a_command_ends_as_one_that_was_started(
    warm: WarmProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code, its outputs apart, this folder and this environment."""
    done = warm.run("version", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "dledger" in json.loads(done.stdout)
    wrong = warm.run("nonsense")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "No such command" in wrong.stderr
    monkeypatch.chdir(tmp_path)
    absent = warm.run("group", "status", "--dir", "run")
    assert absent.returncode != 0
    monkeypatch.setenv("DLEDGER_BOOTSTRAP", "not an address")
    assert "not an address" in warm.run("topic", "list").stderr


def test_a_signal_that_ends_one_is_told_and_ends_no_other(
    warm: WarmProgram, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert warm.run("group", "up", "--nodes", "1", "--dir", str(run)).returncode == 0
    (node,) = json.loads((run / "group.json").read_text())["nodes"]
    waiting = forked(warm, tmp_path / "output", "consume", "none", "--dir", str(run))
    os.kill(waiting.pid, signal.SIGKILL)
    assert waiting.wait(WAIT_S) == -signal.SIGKILL
    waiting.close()
    assert is_running(ProcessIdentity(node["pid"], node["started"]))
    assert warm.run("group", "down", "--dir", str(run)).returncode == 0
    assert not is_running(ProcessIdentity(node["pid"], node["started"]))


def test_nodes_die_with_the_warm_process(tmp_path: Path) -> None:
    """Even if that is killed, and can clear nothing away."""
    warm = WarmProgram()
    run = tmp_path / "run"
    assert warm.run("group", "up", "--nodes", "1", "--dir", str(run)).returncode == 0
    (node,) = json.loads((run / "group.json").read_text())["nodes"]
    process = ProcessIdentity(node["pid"], node["started"])
    assert is_running(process)
    warm._process.kill()
    deadline = time.monotonic() + WAIT_S
    while is_running(process):
        assert time.monotonic() < deadline, "left behind"
        time.sleep(0.05)
    with pytest.raises(OSError):
        warm.run("version")
    warm.close()


def test_who_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its folders are removed for it."""
    monkeypatch.setattr(leash, "END_S", 0.1)
    warm = WarmProgram()
    folder = tmp_path / "folder"
    folder.mkdir()
    warm.remove_in_the_end(folder)
    warm._process.send_signal(signal.SIGSTOP)
    warm.close()
    assert not folder.exists()
    assert not warm.path.parent.exists()
    assert warm._process.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("to_be_killed")
def test_a_group_whose_warm_process_died_says_so_and_goes() -> None:
    """Its nodes died, too; the next group has another warm process."""
    group = BrokerGroup(nodes=1)
    group._warm._process.kill()
    group._warm._process.wait()
    with pytest.raises(GroupFailed, match="they with it"):
        group.restart("n1")
    group.close()
    assert not group._directory.exists()
    with BrokerGroup(nodes=1) as another:
        assert another.kill() == "n1"


@pytest.mark.usefixtures("to_be_killed")
def test_a_group_that_cannot_be_ended_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says that its nodes may run until the tests' process ends."""
    group = BrokerGroup(nodes=1)
    monkeypatch.setattr(leash, "START_S", 0.2)
    group._warm._process.send_signal(signal.SIGSTOP)
    with pytest.raises(GroupFailed, match="kill n1"):
        group.close()
    assert not group._directory.exists()
    group._warm._process.send_signal(signal.SIGCONT)


def test_a_node_that_cannot_be_killed_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed first is told when all have been tried."""
    group = BrokerGroup(nodes=3)
    nodes = json.loads((group._directory / "group.json").read_text())["nodes"]
    ran = group._group

    def failing(*words: str, tolerated: bool = False) -> str:
        if words == ("kill", "n1"):
            raise GroupFailed("not n1")
        return ran(*words, tolerated=tolerated)

    monkeypatch.setattr(group, "_group", failing)
    with pytest.raises(GroupFailed, match="not n1"):
        group.close()
    runs = [is_running(ProcessIdentity(node["pid"], node["started"])) for node in nodes]
    os.kill(nodes[0]["pid"], signal.SIGKILL)
    assert runs == [True, False, False]
    assert not group._directory.exists()


def test_what_cannot_be_started_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No processes, or no interpreter any more."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    with pytest.raises(GroupFailed, match=r"dledger can't be started: .*No such file"):
        WarmProgram()
    assert not list(tmp_path.iterdir())


def test_folders_for_temporary_files_may_be_far_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Unix socket's path has 107 bytes; build tools' sandboxes have longer ones."""
    far = tmp_path / ("down" * 30)
    far.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    warm = WarmProgram()
    run = far / "run"
    assert warm.run("group", "up", "--nodes", "1", "--dir", str(run)).returncode == 0
    warm.close()
    assert [each.name for each in far.iterdir()] == ["run"]


def test_what_cannot_be_imported_is_told() -> None:
    with pytest.raises(GroupFailed, match="no_such_module"):
        WarmProgram("no_such_module")

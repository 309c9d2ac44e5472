"""Commands that take long, ended by Ctrl-C and by SIGTERM: they say what they did and what goes on,
end with 130, and can be repeated or taken back."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dledger.terminal.outcome import ExitCode
from tests.audit.replicas import ReplicaSet, build, usual_entries
from tests.cli.test_members import PATIENCE_S, PROGRAM, Growing
from tests.warm import kill

pytestmark = pytest.mark.slow

SOON_S = 30.0  # much less than what a task takes

BOTH = [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM]


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    group = Growing(tmp_path / "run")
    yield group
    group.close()


def ended_by(number: int, words: list[str], is_under_way: Callable[[], bool]) -> tuple[int, str]:
    """Exit code and last words of a command that is signalled once it is under way."""
    process = subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + PATIENCE_S
    while not is_under_way():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, words
        time.sleep(0.05)
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENCE_S)
    return process.returncode, told


@pytest.mark.parametrize("number", [*BOTH, signal.SIGKILL])
def test_a_change_of_members_that_was_interrupted(growing: Growing, number: signal.Signals) -> None:
    """An observer that is down is to vote, so the command waits. The same command finishes that,
    and the opposite ones take it back."""
    words = growing.install("n2")
    ours = growing.addresses["n1"]
    assert growing.member("add", *words, "--observe").returncode == 0
    kill(growing.processes["n2"])

    def role() -> str:
        listed = growing.command("member", "list", "--json", "--bootstrap", ours)
        if listed.returncode:
            return ""
        roles = {each["id"]: each["role"] for each in json.loads(listed.stdout)["members"]}
        return str(roles.get("n2", "none"))

    asked = ["member", "promote", "n2", "--bootstrap", ours]
    for opposite in ("demote", "remove"):
        code, told = ended_by(number, asked, lambda: role() == "learner")
        if number == signal.SIGKILL:
            assert code == -number
        else:
            assert code == ExitCode.INTERRUPTED, told
            assert "what was begun goes on" in told
            assert "Traceback" not in told
        back = growing.command("member", opposite, "n2", "--bootstrap", ours)
        assert back.returncode == 0, back.stderr
        assert role() == {"demote": "observer", "remove": "none"}[opposite]
    growing.start("n2")
    growing.wait_until_it_listens("n2")
    asked = ["member", "add", *words, "--bootstrap", ours]
    refused = growing.command(*asked)
    assert "stop it, empty its directory, start it" in refused.stderr
    kill(growing.processes["n2"])
    shutil.rmtree(growing.folder / "n2" / "data")
    growing.start("n2")
    growing.wait_until_it_listens("n2")
    done = growing.command(*asked)
    assert done.returncode == 0, (done.stderr, growing.said("n2"))
    assert role() == "voter"


@pytest.mark.parametrize("number", BOTH)
def test_a_command_that_waits_for_nobody_ends_at_once(number: signal.Signals) -> None:
    """It says by what; nobody answers at that address, and it would ask for ten seconds."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        at = f"127.0.0.1:{mute.getsockname()[1]}"
        words = ["member", "add", "n2", at, "--bootstrap", at]
        code, told = ended_by(number, words, lambda: bool(select.select([mute], [], [], 0)[0]))
    assert code == ExitCode.INTERRUPTED
    assert "Traceback" not in told
    assert ("ended by SIGTERM" in told) is (number == signal.SIGTERM)


@pytest.mark.parametrize("words", [("group", "backup"), ("audit", "replicas", "--over", "grpc")])
def test_a_command_without_an_event_loop_ends_with_130(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """It is asking somebody who doesn't answer; by itself SIGTERM would end it where it stands."""
    folder = [str(tmp_path / "folder")] if words[0] == "group" else []
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        asked = [*words, *folder, "--bootstrap", f"127.0.0.1:{mute.getsockname()[1]}"]
        code, told = ended_by(
            signal.SIGTERM, asked, lambda: bool(select.select([mute], [], [], 0)[0])
        )
    assert code == ExitCode.INTERRUPTED, told
    assert told.splitlines()[-1] == "dledger: ended by SIGTERM"
    assert "Traceback" not in told


# An audit of a small log, with a pool all the same.
POOLED = """
from functools import partial
import audit.engines.choice as choice
from dledger_cli import main
choice.LocalEngine = partial(choice.LocalEngine, inline_bytes=0)
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_audit_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    """Those of its pool are in the middle of tasks, which would take minutes; each could go on
    giving the others work."""
    replicas = ReplicaSet(tmp_path, build(tmp_path / "made", usual_entries()))
    program = tmp_path / "pooled.py"
    program.write_text(POOLED, encoding="utf-8")
    words = [f"--replica={name}={path}" for name, path in replicas.paths.items()]
    slowly = ["--processes", "2", "--rate", "64", "--log-only", "--block-size", "4KiB"]
    process = subprocess.Popen(
        [sys.executable, str(program), "audit", "replicas", *words, *slowly],
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + PATIENCE_S
    log = str(replicas.root)
    while len(at_work := [pid for pid in children_of(process.pid) if has_open(pid, log)]) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    all_of_them = children_of(process.pid)
    assert set(at_work) <= set(all_of_them)
    began = time.monotonic()
    try:
        process.send_signal(number)
        _, told = process.communicate(timeout=SOON_S)  # they hold its standard error as well
        assert process.returncode == (130 if number == signal.SIGTERM else -number), told
        assert "Traceback" not in told
        while any(Path(f"/proc/{pid}/cmdline").exists() for pid in all_of_them):
            assert time.monotonic() < began + SOON_S
            time.sleep(0.05)
    finally:
        for pid in (process.pid, *all_of_them):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def children_of(parent: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(each.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(each.parent.name))
    return found


def has_open(pid: int, folder: str) -> bool:
    """Whether the process reads a file in there."""
    with suppress(OSError):
        return any(
            str(each.readlink()).startswith(folder) for each in Path(f"/proc/{pid}/fd").iterdir()
        )
    return False

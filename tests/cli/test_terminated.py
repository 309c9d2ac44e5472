"""Commands that take long, ended by Ctrl-C and by SIGTERM: they say what they did and what goes on,
end with 130, and can be repeated or taken back."""

from __future__ import annotations

import json
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger.terminal.outcome import ExitCode
from tests.cli.test_members import PATIENCE_S, PROGRAM, Growing
from tests.warm import kill

pytestmark = pytest.mark.slow

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

"""`dledger consumers` and members of groups on the command line, against a node of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import typer
from typer.testing import CliRunner

from broker.local_group import GroupOptions, LocalGroup
from dledger.client import GroupQueue
from dledger.terminal.outcome import ExitCode
from dledger_cli.app import app
from dledger_cli.consumers import _parsed_target, rates_of

pytestmark = pytest.mark.slow

WAIT_S = 60.0
WIDTH = 80
LONG = "g" * 119  # as long as the name of a group with members can be


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the module's group; nothing runs afterwards."""
    folder = tmp_path_factory.mktemp("group") / "run"
    group = LocalGroup.create(folder, GroupOptions(nodes=1))
    yield folder
    group.kill_all()


@pytest.fixture
def group(directory: Path, shared_runner: asyncio.Runner) -> LocalGroup:
    """The group, which runs."""
    group = LocalGroup.open(directory)
    shared_runner.run(group.up())
    return group


def invoked(group: LocalGroup, *arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of a command, run within this process."""
    result = CliRunner().invoke(app, [*arguments, "--dir", str(group.directory)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def told(group: LocalGroup, *arguments: str) -> str:
    """What a command that must succeed prints."""
    code, out, error = invoked(group, *arguments)
    assert (code, error) == (0, "")
    return out


def facts(group: LocalGroup, *arguments: str) -> Any:
    """What a command that must succeed prints with --json."""
    return json.loads(told(group, *arguments, "--json"))


def described(group: LocalGroup, name: str) -> Any:
    return facts(group, "consumers", "describe", name, "--interval", "0")


def topic_with(group: LocalGroup, name: str, count: int) -> str:
    """A topic of two queues with so many messages in one of them."""
    told(group, "topic", "create", name, "--queues", "2")
    lines = group.directory / f"{name}.lines"
    lines.write_bytes(b"".join(b"%d\n" % number for number in range(count)))
    told(group, "produce", name, "--input", str(lines), "--key", "k")
    return name


@contextmanager
def member(
    group: LocalGroup, topic: str, name: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`dledger consume` as a process, its lines in a pipe; it ends with the test at the latest."""
    command = [sys.executable, "-m", "dledger_cli", "consume", topic, "--group", name]
    with subprocess.Popen(
        [*command, *options, "--dir", str(group.directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(stream: IO[bytes] | None, count: int) -> list[int]:
    assert stream is not None
    return [int(stream.readline()) for _ in range(count)]


def until(group: LocalGroup, name: str, members: int) -> Any:
    """What is told of a group once it has so many members, and each queue a holder."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = described(group, name)
        sessions = {each["session"] for each in found["members"]}
        held = {each["session"] for each in found["queues"]}
        if len(sessions) == members and held == sessions:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_two_members_share_a_topic_and_drain_at_a_signal(group: LocalGroup) -> None:
    """Who is told to end commits what it has written, and gives its queues to the other one."""
    topic = topic_with(group, "shared", 5)
    with member(group, topic, "pair") as one:
        assert lines_of(one.stdout, 5) == list(range(5))
        with member(group, topic, "pair") as other:
            found = until(group, "pair", 2)
            assert (found["strategy"], found["lag"], found["member_count"]) == ("STICKY", 0, 2)
            one.send_signal(signal.SIGTERM)
            assert one.wait(WAIT_S) == ExitCode.INTERRUPTED
            assert one.stderr is not None
            assert one.stderr.read() == b""
            (left,) = until(group, "pair", 1)["members"]
            assert left["queue_count"] == 2
            other.send_signal(signal.SIGINT)
            assert other.wait(WAIT_S) == ExitCode.INTERRUPTED
            assert other.stdout is not None
            assert other.stdout.read() == b""  # nothing came twice
    found = described(group, "pair")
    assert (found["members"], found["lag"]) == ([], 0)


def test_a_working_group_is_sent_back_and_made_to_skip(group: LocalGroup) -> None:
    """Its member writes again from there on, and nothing that was skipped."""
    topic = topic_with(group, "moved", 8)
    with member(group, topic, "moved") as one:
        assert lines_of(one.stdout, 8) == list(range(8))
        moved = facts(group, "consumers", "reset-offset", "moved", topic, "--to", "first")
        assert [each["offset"] for each in moved] == [0, 0]
        assert lines_of(one.stdout, 8) == list(range(8))
        one.send_signal(signal.SIGINT)
        assert one.wait(WAIT_S) == ExitCode.INTERRUPTED
    assert described(group, "moved")["lag"] == 0
    told(group, "consumers", "reset-offset", "moved", topic, "--to", "1970-01-01T00:00:00Z")
    assert described(group, "moved")["lag"] == 8
    told(group, "consumers", "skip", "moved", topic, "--count", "6")
    assert facts(group, "consumers", "clone", "moved", "copy")["topic_count"] == 1
    for name in ("moved", "copy"):
        with member(group, topic, name, "--max", "2") as one:
            assert lines_of(one.stdout, 2) == [6, 7]
            assert one.wait(WAIT_S) == 0
    assert described(group, "copy")["lag"] == 0


def test_who_disagrees_with_the_group_is_told(group: LocalGroup) -> None:
    """By name, and ends with 1."""
    topic = topic_with(group, "agreed", 1)
    command = ["consume", topic, "--group", "agreed", "--output", "/dev/null"]
    told(group, *command, "--max", "1")
    code, _, error = invoked(group, *command, "--from", "last")
    assert code == ExitCode.FAILED
    assert "in start" in error
    assert error.count("\n") == 1


def test_tables_fit_eighty_columns(group: LocalGroup) -> None:
    """With names as long as they can be; JSON has all of them."""
    topic = topic_with(group, "t" * 127, 3)
    with member(group, topic, LONG) as one:
        lines_of(one.stdout, 3)
        until(group, LONG, 1)
        tables = told(group, "consumers", "list")
        tables += told(group, "consumers", "describe", LONG, "--interval", "0.1")
        one.send_signal(signal.SIGINT)
    tables += told(group, "consumers", "reset-offset", LONG, topic, "--to", "first")
    too_wide = [line for line in tables.splitlines() if len(line) > WIDTH]
    assert [line.partition(":")[0] for line in too_wide] == [LONG, topic]  # headings, not tables
    assert LONG in [each["name"] for each in facts(group, "consumers", "list")]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("describe nobody", "'nobody' does not exist"),
        ("reset-offset nobody not-theirs --to first", "'nobody' does not exist"),
        ("skip nobody not-theirs --all", "'nobody' does not exist"),
        ("clone nobody other", "'nobody' does not exist"),
    ],
)
def test_a_group_that_is_not_there_ends_with_1(group: LocalGroup, command: str, said: str) -> None:
    """One line that says which; the topic is there."""
    told(group, "topic", "create", "not-theirs", "--if-not-exists")
    code, out, error = invoked(group, "consumers", *command.split())
    assert (code, out) == (ExitCode.FAILED, "")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("text", ["1" * 19, "7" * 5_000, "-1", "soon", "2026-01-31T12:00:00"])
def test_a_target_that_is_none_is_told_as_a_wrong_option(text: str) -> None:
    """Exit code 2 and a sentence, however long it is."""
    with pytest.raises(typer.BadParameter) as refused:
        _parsed_target(text)
    assert len(str(refused.value)) < 300
    assert _parsed_target("1" * 18) == int("1" * 18)


def test_rates_are_of_what_was_there_before_and_went_on() -> None:
    """A queue that is new, or was moved back, has none."""

    def queue(queue_id: int, committed: int | None, finished: int = 0) -> GroupQueue:
        return GroupQueue(
            "t", queue_id, 0, 99, committed, finished, 0, 0, 0, 0, asked=False,
            oldest_unfinished_ms=None,
        )  # fmt: skip

    before = [queue(0, 10, 5), queue(1, 10), queue(2, None)]
    after = [queue(0, 20, 3), queue(1, 4), queue(2, 8), queue(3, 9)]
    assert rates_of(before, after, 4.0) == {("t", 0): 2.0, ("t", 2): 2.0}

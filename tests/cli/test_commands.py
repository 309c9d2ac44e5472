"""The program without a group: help, wrong use, exit codes, nobody there."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from broker.config import ConfigError
from broker.local_group import GROUP_FILE, LocalGroup, NoAnswer, NoSuchNode, NotAGroup, PortInUse
from dledger.client import BrokerGroupUnreachable, DeadlineExceeded, TopicNotFound
from dledger.terminal.interrupts import interrupts_caught
from dledger.terminal.options import parse_addresses, parse_size
from dledger.terminal.outcome import ExitCode, errors_told, exit_code_of, run
from dledger_cli.app import app
from dledger_cli.group_options import bootstrap_addresses
from store.errors import CorruptionFound, DirectoryInUse

COMMANDS = [
    ["node"],
    ["group", "up"],
    ["group", "status"],
    ["group", "kill"],
    ["group", "start"],
    ["group", "down"],
    ["group", "transfer"],
    ["topic", "create"],
    ["topic", "update"],
    ["topic", "list"],
    ["topic", "describe"],
    ["topic", "delete"],
    ["produce"],
    ["consume"],
    ["consumers", "list"],
    ["consumers", "describe"],
    ["consumers", "reset-offset"],
    ["consumers", "skip"],
    ["consumers", "clone"],
    ["query", "id"],
    ["query", "offset"],
    ["version"],
    ["member", "list"],
    ["member", "add"],
    ["member", "remove"],
    ["member", "promote"],
    ["member", "demote"],
    ["member", "recover"],
    ["audit", "package"],
    ["chaos", "list"],
]


@pytest.fixture
def dead_address() -> Iterator[str]:
    """An address that is taken, and where nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    """What to type stands in the help."""
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert f"dledger {' '.join(command)}" in result.stdout.partition("Example")[2]


def test_help_lists_every_command() -> None:
    """Those above, and those that other packages mount."""
    shown = CliRunner().invoke(app, ["--help"]).stdout.partition("Commands:")[2]
    listed = set(re.findall(r"^  ([a-z]+)", shown, re.MULTILINE))
    assert {command[0] for command in COMMANDS} | {"bench"} <= listed


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["produce"],
        ["topic", "create", "t", "--queues", "0"],
        ["topic", "create", "t", "--queues", "1025"],
        ["topic", "create", "t", "--retention-hours", "-1"],
        ["topic", "update", "t"],
        ["topic", "update", "t", "--drop"],
        ["topic", "update", "t", "--read-queues", "0"],
        ["topic", "update", "t", "--write-queues", "1025"],
        ["topic", "create", "t", "--write-queues", "0"],
        ["topic", "update", "t", "--retention-hours", "long"],
        ["group", "up", "--nodes", "16"],
        ["group", "up", "--segment-size", "large"],
        ["group", "up", "--flush", "never"],
        ["group", "kill", "n1", "--signal", "HUP"],
        ["consume", "t", "--from", "middle"],
        ["consume", "t", "--from", "committed"],
        ["consume", "t", "--max", "0"],
        ["consume", "t", "--group", ""],
        *(
            [*command, name]
            for command in (
                ["topic", "create"],
                ["topic", "describe"],
                ["topic", "delete"],
                ["produce"],
                ["consume"],
            )
            for name in ("", "a b", "a/b", "../x", "a" * 128)
        ),
        ["query", "offset", "a b", "0", "0"],
        ["consumers", "describe", "a b"],
        ["consumers", "describe", ""],
        ["consumers", "describe", "g", "--interval", "-1"],
        ["consumers", "describe", "g", "--interval", "nan"],
        ["consumers", "describe", "g", "--interval", "inf"],
        ["consumers", "reset-offset", "g", "t"],
        *(
            ["consumers", "reset-offset", "g", "t", "--to", to]
            for to in ("", "middle", "-1", "1.5", "2026-01-31", "2026-13-01T00:00:00Z", "٣")
        ),
        ["consumers", "reset-offset", "g", "t", "--to", "first", "--queue", "-1"],
        ["consumers", "skip", "g", "t"],
        ["consumers", "skip", "g", "t", "--count", "0"],
        ["consumers", "skip", "g", "t", "--count", "1", "--all"],
        ["consumers", "clone", "g"],
        ["query", "offset", "t", "x", "0"],
        *([*command, "--nonsense"] for command in COMMANDS),
        *([*command, "one", "two", "three", "four"] for command in COMMANDS),
        ["query", "offset", "t", "0", "-1"],
        ["topic", "list", "--bootstrap", "nowhere"],
        ["topic", "list", "--bootstrap", "host:0"],
        ["topic", "list", "--bootstrap", ","],
    ],
    ids=" ".join,
)
def test_wrong_use_ends_with_2(arguments: list[str], tmp_path: Path) -> None:
    """Before anything is asked of a group."""
    with_directory = arguments[0] == "group" and arguments[1] != "up"
    extra = ["--dir", str(tmp_path)] if with_directory else []
    result = CliRunner().invoke(app, arguments + extra)
    assert result.exit_code == ExitCode.USAGE
    assert result.stdout == "" or "Usage" in result.stdout
    assert result.stderr != "" or "Usage" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ["group", "status"],
        ["group", "kill", "leader"],
        ["group", "start", "n1"],
        ["group", "down"],
        ["topic", "list"],
        ["produce", "t", "--input", "/dev/null"],
        ["consume", "t"],
        ["query", "id", "00"],
    ],
    ids=" ".join,
)
def test_directory_without_a_group_ends_with_2(command: list[str], tmp_path: Path) -> None:
    """The remedy is told in one line."""
    result = CliRunner().invoke(app, [*command, "--dir", str(tmp_path)])
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr == (
        f"dledger: there is no group in {tmp_path} (make one with: dledger group up)\n"
    )


def test_broken_group_file_ends_with_1(tmp_path: Path) -> None:
    """Not a usage error: the file was right once."""
    (tmp_path / GROUP_FILE).write_text("{")
    result = CliRunner().invoke(app, ["group", "down", "--dir", str(tmp_path)])
    assert result.exit_code == ExitCode.FAILED
    assert "doesn't describe a local group: Invalid JSON" in result.stderr


def test_status_of_a_dead_group_is_told_and_ends_with_3(dead_address: str) -> None:
    """The JSON is complete all the same."""
    arguments = ["group", "status", "--json", "--bootstrap", dead_address]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert json.loads(result.stdout)["leader"] is None
    assert result.stderr.startswith(f"dledger: no node answers ({dead_address}: unavailable: ")


def test_status_of_a_group_that_was_never_started(tmp_path: Path) -> None:
    """Each node with all its keys, and none alive."""
    group = LocalGroup.create(tmp_path)
    result = CliRunner().invoke(app, ["group", "status", "--json", "--dir", str(tmp_path)])
    assert result.exit_code == ExitCode.UNREACHABLE
    facts = json.loads(result.stdout)
    assert list(facts) == ["group", "leader", "term", "nodes", "preferred"]
    silent = {"role": None, "term": None, "last_index": None, "commit_index": None}
    assert facts["nodes"] == [
        {"id": node.id, **silent, "applied_index": None, "address": node.address, "alive": False}
        | {"apply_stopped": "", "older_copies": [], "log_damages": 0, "scrub_ended_ms": None}
        | {"newer_epoch": 0}
        for node in group.nodes
    ]


def test_unreachable_group_ends_with_3(dead_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is bounded, and the variable names the group."""
    monkeypatch.setenv("DLEDGER_BOOTSTRAP", dead_address)
    monkeypatch.setattr("dledger_cli.group_options.CALL_DEADLINE_S", 0.3)
    result = CliRunner().invoke(app, ["topic", "list"])
    assert result.exit_code == ExitCode.UNREACHABLE
    assert result.stderr.startswith("dledger: ")


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "delete", "orders"],
        ["consumers", "reset-offset", "billing", "orders", "--to", "first"],
        ["group", "transfer", "n2"],
        ["group", "status"],
        ["group", "doctor"],
    ],
    ids=" ".join,
)
def test_a_directory_that_is_named_goes_before_the_environment(
    command: list[str], dead_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no group in it; and the one that the shell's environment names is left alone."""
    monkeypatch.setenv("DLEDGER_BOOTSTRAP", dead_address)
    monkeypatch.setattr("dledger_cli.group_options.CALL_DEADLINE_S", 0.3)
    for options in (["--dir", str(tmp_path / "none")], [f"--dir={tmp_path / 'none'}"]):
        result = CliRunner().invoke(app, [*command, *options])
        assert str(tmp_path / "none") in result.stderr, result.output
        assert result.exit_code == ExitCode.USAGE
        assert dead_address not in result.output


@pytest.mark.parametrize("turned", [1, -1], ids=["dir first", "bootstrap first"])
def test_two_groups_are_not_chosen_from(turned: int, tmp_path: Path) -> None:
    """Both named at the command line: which is meant isn't guessed."""
    options = [["--dir", str(tmp_path)], ["--bootstrap", "127.0.0.1:1"]][::turned]
    result = CliRunner().invoke(app, ["topic", "list", *options[0], *options[1]])
    assert result.exit_code == ExitCode.USAGE
    assert "exclude each other" in result.stderr


def test_wrong_configuration_ends_a_node_with_2(tmp_path: Path) -> None:
    """One line names file, key, found and expected."""
    file = tmp_path / "node.toml"
    file.write_text('broker_group = "g"\n')
    result = CliRunner().invoke(app, ["node", "--config", str(file)])
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith(f"dledger: {file}: node_id: found nothing")
    assert result.stderr.count("\n") == 1


def test_version_names_what_it_runs_on() -> None:
    """As text and as JSON."""
    facts = json.loads(CliRunner().invoke(app, ["version", "--json"]).stdout)
    assert set(facts) == {"dledger", "python", "grpc"}
    asked = CliRunner().invoke(app, ["--version"])
    assert (asked.exit_code, asked.stdout) == (0, f"dledger {facts['dledger']}\n")
    lines = CliRunner().invoke(app, ["version"]).stdout.splitlines()
    assert lines == [f"{name} {number}" for name, number in facts.items()]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(Path("f"), "k", "a", "b"), 2),
        (NotAGroup(Path("d")), 2),
        (NoSuchNode("n9", ["n1"]), 2),
        (NoAnswer("no leader"), 3),
        (PortInUse("n1", "a:1"), 1),
        (BrokerGroupUnreachable("nobody"), 3),
        (DeadlineExceeded("late"), 3),
        (TopicNotFound("t"), 1),
        (DirectoryInUse("d", "pid 7"), 1),
        (CorruptionFound("f", 1, "a", "b"), 1),
        (OSError(98, "Address already in use"), 1),
    ],
)
def test_error_is_told_in_one_line_with_its_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors of the world have no traceback."""
    with pytest.raises(typer.Exit) as ended, errors_told():
        raise error
    assert ended.value.exit_code == code
    assert capsys.readouterr().err == f"dledger: {error}\n"


def test_program_that_was_told_to_end_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """typer's own exceptions have an exit code too, and pass."""
    with pytest.raises(typer.Exit) as ended, errors_told():
        raise typer.Exit(7)
    assert ended.value.exit_code == 7
    with pytest.raises(typer.BadParameter), errors_told():
        raise typer.BadParameter("no")
    assert capsys.readouterr().err == ""


def test_file_that_the_system_refuses_is_named_first(capsys: pytest.CaptureFixture[str]) -> None:
    """No number, no quotes."""
    with pytest.raises(typer.Exit), errors_told(unreadable=ExitCode.UNREACHABLE):
        raise FileNotFoundError(2, "No such file or directory", "x.toml")
    assert capsys.readouterr().err == "dledger: x.toml: No such file or directory\n"


def test_bug_keeps_its_traceback() -> None:
    """What isn't in the table is ours to mend, and must not look like a user's mistake."""
    assert exit_code_of(AssertionError()) is None
    with pytest.raises(ZeroDivisionError), errors_told():
        raise ZeroDivisionError


def test_ctrl_c_ends_with_130() -> None:
    """128 + SIGINT, as shells do."""
    with pytest.raises(typer.Exit) as ended, errors_told():
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130


def test_sigterm_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    """As Ctrl-C does: what is within may tidy up, however deep, and no handler of errors keeps it.
    Before and after, the signal is what it was."""
    done: list[str] = []
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        try:
            with suppress(Exception):
                signal.raise_signal(signal.SIGTERM)
        finally:
            done.append("tidied")

    with pytest.raises(typer.Exit) as ended, errors_told(), errors_told():
        work()
    assert (ended.value.exit_code, done) == (130, ["tidied"])
    assert capsys.readouterr().err == "dledger: ended by SIGTERM\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_is_heard_after_a_loop() -> None:
    """A command that asks its group, and then works on by itself."""

    async def ask() -> None:
        pass

    def work() -> None:
        run(ask())
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "it would end the tests"
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(typer.Exit) as ended, errors_told():
        work()
    assert ended.value.exit_code == 130


def _as_spark_does(_number: int, _frame: object) -> None:
    """Spark leaves such a handler in a process that has had a session."""
    raise KeyboardInterrupt


@pytest.fixture(params=[_as_spark_does, signal.default_int_handler], ids=["Spark's", "Python's"])
def _before(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, request.param)
    yield
    assert signal.getsignal(signal.SIGINT) is request.param
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_before")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_interrupts_are_heard_after_they_were_caught(number: signal.Signals) -> None:
    """A command that goes on in its loop is ended as before: what it works on is cancelled."""
    done: list[str] = []

    async def work() -> None:
        with interrupts_caught() as interrupt:
            signal.raise_signal(number)
            await interrupt.wait()
        done.append("caught")
        assert signal.getsignal(number) is not signal.SIG_DFL, "it would end the tests"
        try:
            signal.raise_signal(number)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            done.append("cancelled")
            raise

    with pytest.raises(typer.Exit) as ended:
        run(work())
    assert (ended.value.exit_code, done) == (130, ["caught", "cancelled"])


def test_sigterm_that_somebody_handles_is_theirs() -> None:
    """As a watch's, which ends a round with it."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with errors_told():
            signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("64M", 64 << 20),
        ("64 mb", 64 << 20),
        ("1GiB", 1 << 30),
        ("4096", 4096),
    ],
)
def test_sizes_are_powers_of_two(text: str, size: int) -> None:
    """All the usual ways of writing them."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1.5G", "-1", "64TiB", "64 M B"])
def test_other_sizes_are_refused(text: str) -> None:
    """Rather than guessed."""
    with pytest.raises(typer.BadParameter):
        parse_size(text)


def test_bootstrap_goes_before_the_directory(tmp_path: Path) -> None:
    """The order of the design: option or variable, then the local group."""
    group = LocalGroup.create(tmp_path)
    assert bootstrap_addresses(None, tmp_path) == group.addresses
    assert bootstrap_addresses("a:1, b:2,", tmp_path) == ["a:1", "b:2"]
    assert parse_addresses("a:1") == ["a:1"]

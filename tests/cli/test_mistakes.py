"""Every command with every kind of wrong argument: told in one line, with the exit code that is
promised, and nothing begun.

The commands and their parameters are found in the program itself, so a new one is in the table
without being put there; what it takes (a number, a choice, a path, an address) decides which
mistakes are made with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from broker.local_group import group as local_group
from dledger_cli.app import PROGRAMS
from dledger_cli.app import app as program

PATIENCE_S = 60
USAGE = 2
# Refused by what is asked for, or because there is no group, node or file: never 0, never a signal.
TOLD = {1, 2, 3}
# What a command needs before it looks at anything else.
NEEDED = {
    "config": ["--config", "node.toml"],
    "history": ["--history", "history.jsonl"],
    "topic": ["t"],
    "name": ["t"],
    "message_id": ["7F00000100001B590000000000000000"],
    "queue_id": ["0"],
    "offset": ["0"],
    "who": ["leader"],
    "node_id": ["n1"],
    "scenario": ["kill-leader"],
    "directory": ["."],
    "data": ["--data", "."],
    "target": ["target"],
    "folder": ["certificates"],
    "file": ["secret"],
    "group": ["g"],
    "source": ["g"],
    "destination": ["copy"],
    "offsets": ["0"],
    "to": ["--to", "first"],
    "broker_group": ["--broker-group", "g"],
    "hosts": ["--host", "localhost"],
    "ids": ["n1"],
    "members": ["n4", "127.0.0.1:7004"],
    "retention_hours": ["--retention-hours", "5"],
}
NUMBERS = ["x", "", "1.5.2", "0x10", "1e", "-", "９９x", "9" * 400 + "x"]
NO_NUMBERS = ["nan", "inf", "-inf", "1e999"]  # of those with a fraction Python knows these
ADDRESSES = [
    "",
    ",",
    "http://127.0.0.1:7001",
    "nonsense",
    "127.0.0.1:99999",
    ":7001",
    "[::1",
    "a b:1",
]
SIZES = ["", "x", "-1", "1e999GB", "12 parsecs", "9" * 400]
CHOICES = {"permission", "flush", "fault", "name", "engine", "over", "start"}
PATHS = {"source", "output", "out", "transcript", "html", "reports", "folder", "target"}


class Command(NamedTuple):
    words: tuple[str, ...]
    app: typer.Typer
    parameters: tuple[Any, ...]  # typer's own, which has no public type

    @property
    def name(self) -> str:
        return " ".join(self.words)

    def needed(self, but: str = "") -> list[str]:
        """What it can't do without, `but` one parameter."""
        return [
            word
            for each in self.parameters
            if each.required and each.name != but
            for word in NEEDED[each.name]
        ]


class Case(NamedTuple):
    command: Command
    arguments: list[str]
    codes: set[int]

    def __str__(self) -> str:
        text = " ".join([self.command.name, *self.arguments])
        return text if len(text) < 90 else f"{text[:80]}…"


def commands() -> Iterator[Command]:
    yield from below(typer.main.get_command(program), program, ())
    for name, part in PROGRAMS.items():
        app = part.load()
        yield from below(typer.main.get_command(app), app, (name,))


def below(node: Any, app: typer.Typer, words: tuple[str, ...]) -> Iterator[Command]:
    if not hasattr(node, "commands"):
        yield Command(words, app, tuple(node.params))
        return
    for name, each in node.commands.items():
        if words or name not in PROGRAMS:
            yield from below(each, app, (*words, name))


def cases(command: Command) -> Iterator[Case]:
    needed = command.needed()
    yield Case(command, [*needed, "--no-such-option"], {USAGE})
    yield Case(command, [*needed, "-Q"], {USAGE})
    yield Case(command, [*needed, "surplus", "surplus"], {USAGE})
    for parameter in command.parameters:
        if parameter.required:
            yield Case(command, command.needed(but=parameter.name), {USAGE})
        for value in values(parameter):
            yield Case(command, with_value(command, parameter, value), {USAGE})
        if parameter.opts[0].startswith("--") and not flag(parameter):
            yield Case(command, [*needed, parameter.opts[0]], {USAGE})  # and no value


def flag(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))


def with_value(command: Command, parameter: Any, value: str) -> list[str]:
    """The command with one wrong value, the others in their places."""
    words: list[str] = []
    for each in command.parameters:
        option = each.opts[0] if each.opts[0].startswith("--") else None
        if each.name == parameter.name:
            words += [option, value] if option else [value if value[:1] != "-" else f"x{value}"]
        elif each.required:
            words += NEEDED[each.name]
    return words


def values(parameter: Any) -> list[str]:
    """Wrong ones for what it takes."""
    if flag(parameter):
        return []
    wrong: list[str] = []
    if parameter.min is not None or parameter.max is not None or parameter.name == "seed":
        wrong += NUMBERS
        wrong += NO_NUMBERS if parameter.name != "seed" else []
        if parameter.min is not None:
            wrong.append(str(parameter.min - 1))
        if parameter.max is not None:
            wrong.append(str(parameter.max + 1))
    elif parameter.name == "bootstrap":
        wrong += ADDRESSES
    elif parameter.name in CHOICES and parameter.opts[0].startswith("--"):
        wrong += ["no-such-choice", ""]
    elif parameter.name in {"segment_size", "bytes_limit", "rate", "block_size"}:
        wrong += SIZES
    return wrong


@pytest.fixture(autouse=True)
def _nothing_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In an empty folder, no process started, and an end to what hangs."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was about to be started")

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_group, "spawn", refuse)
    monkeypatch.setattr("typer.core.HAS_RICH", False, raising=False)
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def told(command: Command, arguments: list[str], codes: set[int]) -> str:
    """What it said on standard error, having ended as it must."""
    words = [*command.words, *arguments]
    result = CliRunner().invoke(command.app, words[1:] if words[0] in PROGRAMS else words)
    assert result.exception is None or isinstance(result.exception, SystemExit), words
    assert result.exit_code in codes, (words, result.exit_code, result.stderr)
    lines = [
        line
        for line in result.stderr.splitlines()
        if line.startswith(("dledger: ", "Error: ", "Error", "Invalid"))
    ]
    assert "Traceback" not in result.stderr
    assert len(lines) == 1, (words, result.stderr)
    return result.stderr


ALL = list(commands())


@pytest.mark.parametrize("command", ALL, ids=lambda each: each.name)
def test_wrong_arguments_are_told_with_exit_code_2(command: Command) -> None:
    """Options there aren't, too much, too little, numbers that are none, no choice, no address."""
    wrong = []
    for case in cases(command):
        try:
            told(command, case.arguments, case.codes)
        except AssertionError as error:
            wrong.append(f"{case}: {str(error).splitlines()[0][:300]}")
    assert not wrong, "\n".join(wrong)


def test_every_command_is_in_the_table() -> None:
    """A program whose commands can't be found would be tested by nothing."""
    names = {each.name for each in ALL}
    assert {"produce", "group up", "bench all", "chaos run", "audit replicas"} <= names
    assert len(names) > 30


# --- files and folders that aren't what they should be --------------------------------------------


def place(folder: Path, kind: str) -> Path:
    """What stands there instead of what a command wants."""
    path = folder / kind
    match kind:
        case "missing":
            pass
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "file":
            path.write_bytes(b"\xff\x00 nonsense")
        case "looped":
            path.symlink_to(path)
        case "endless":
            path = folder / ("x" * 300)
        case "below a file":
            (folder / "plain").write_bytes(b"")
            path = folder / "plain" / "there"
    return path


KINDS = ["missing", "folder", "pipe", "file", "looped", "endless", "below a file"]
READ = [
    each
    for each in ALL
    for parameter in each.parameters
    if parameter.name in {"config", "history", "directory", "replica", "scenario"}
    and each.words[0] != "bench"
    and each.words not in {("group", "up"), ("audit", "bench")}
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", dict.fromkeys(READ), ids=lambda each: each.name)
def test_files_that_are_something_else_are_told(
    command: Command, kind: str, tmp_path: Path
) -> None:
    """Whatever a command is to read: one line, and no wait for a pipe that nobody writes to."""
    path = place(tmp_path, kind)
    for parameter in command.parameters:
        match parameter.name:
            case "config" | "history" | "directory" | "replica":
                value = f"n1={path}" if parameter.name == "replica" else str(path)
            case "scenario":
                value = f"{path}.py"
                if kind == "pipe":
                    os.mkfifo(value)
            case _:
                continue
        told(command, with_value(command, parameter, value), TOLD)


@pytest.mark.parametrize("kind", ["folder", "pipe", "file", "looped"])
def test_group_whose_file_is_something_else_is_told(kind: str, tmp_path: Path) -> None:
    """`group.json` decides which processes are signalled and which folders go: it is a file."""
    directory = tmp_path / "run"
    directory.mkdir()
    place(tmp_path, kind).rename(directory / "group.json")
    for command in ALL:
        if command.words[0] == "group" or command.words == ("topic", "list"):
            told(command, [*command.needed(), "--dir", str(directory)], TOLD)

"""The program on a real terminal: it ends at Ctrl-C, and fits eighty columns."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dledger_cli.app import PROGRAMS, app

WIDTH = 80
PATIENCE_S = 120.0
CTRL_C = b"\x03"
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program whose three streams are a terminal of eighty columns."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.shown = b""
        self._master = master

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def until(self, text: str) -> None:
        """It shows that."""
        deadline = time.monotonic() + PATIENCE_S
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), self.shown

    def ended(self) -> int:
        """How it ended, having shown everything."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline, self.shown
        return self.process.wait(timeout=PATIENCE_S)

    @property
    def lines(self) -> list[str]:
        text = COLOURS.sub("", self.shown.decode("utf-8"))
        return [line for row in text.split("\n") for line in row.split("\r")]

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 1.0)
        if not ready:
            return True
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            if more := os.read(self._master, 65_536):
                self.shown += more
                return True
        return False


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    """`dledger` on a terminal of its own; nothing is left of it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dledger_cli", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=folder,
        env={**environment, "TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("chaos", "run", "kill-leader", "--seconds", "60"), "starting 3 nodes"),
        pytest.param(
            ("chaos", "fuzz", "--seconds", "60"), "starting 3 nodes", marks=pytest.mark.long
        ),
    ],
    ids=lambda each: " ".join(each[:2]) if isinstance(each, tuple) else None,
)
def test_ctrl_c_ends_it_with_130(arguments: tuple[str, ...], shown: str, tmp_path: Path) -> None:
    """Without a traceback, whatever was under way."""
    with terminal(tmp_path, *arguments) as opened:
        opened.until(shown)
        opened.press(CTRL_C)
        assert opened.ended() == 130, opened.shown
    assert b"Traceback" not in opened.shown


@pytest.mark.parametrize(
    "arguments",
    [
        *(("chaos", "list"), ("--help",)),
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (("bench", "--help"), ("audit", "--help"), ("version",))
        ),
    ],
    ids=" ".join,
)
def test_what_it_shows_fits_the_terminal(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """No table or help is cut or torn at eighty columns, but where a word is longer."""
    with terminal(tmp_path, *arguments) as opened:
        assert opened.ended() == 0, opened.shown
    assert b"Traceback" not in opened.shown
    if arguments[-1] == "--help":
        assert [line for line in opened.lines if len(line) > WIDTH] == []
    assert "…" not in "".join(opened.lines)


def test_no_commands_help_is_wider_than_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples are printed as they stand, so nothing else keeps them within eighty columns."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    wide, count = [], 0
    for words in every_command():
        result = CliRunner().invoke(app, [*words, "--help"])
        assert result.exit_code == 0, words
        count += 1
        wide += [(words, line) for line in result.stdout.splitlines() if len(line) > WIDTH]
    assert wide == []
    assert count > 80  # no word was passed over


def every_command() -> Iterator[list[str]]:
    """The words of each, those that only lead to others too."""
    yield []
    yield ["version"]
    for word, program in PROGRAMS.items():
        yield from _within(get_command(program.load()), [word])


def _within(command: Any, words: list[str]) -> Iterator[list[str]]:
    yield words
    for name, each in getattr(command, "commands", {}).items():
        yield from _within(each, [*words, name])

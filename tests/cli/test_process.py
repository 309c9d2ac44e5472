"""The program as a process: interrupted while it is being imported, with outputs that are full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.integration.group import free_ports

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 60.0

# Says when a module is about to be imported, and waits there for its Ctrl-C.
SLOW_IMPORT = textwrap.dedent(
    """
    import importlib.abc, os, sys, time

    class Slow(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == slow:
                os.write(1, b"here")
                time.sleep(60)
            return None

    sys.meta_path.insert(0, Slow())
    slow, sys.argv = sys.argv[1], ["dledger", *sys.argv[2:]]
    from dledger_cli import main
    main()
    """
)


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("dledger_cli.app", ["version"]),
        ("grpc", ["version"]),
        ("audit.commands.app", ["audit", "replicas"]),
        *(
            pytest.param(module, words, marks=pytest.mark.long)
            for module, words in (
                ("dledger_cli.topic", ["topic", "list"]),
                ("dledger_cli.bench.cli", ["bench", "all"]),
                ("chaos.cli", ["chaos", "sim"]),
            )
        ),
    ],
)
def test_ctrl_c_while_a_module_is_imported_ends_with_130(module: str, command: list[str]) -> None:
    """Without a word, and never by the signal: nothing had begun. (A node's own modules:
    `test_stopped_early`.)"""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT, module, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(4) == b"here"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize(
    ("missing", "command"), [("uvloop", ["version"]), ("tenacity", ["topic", "--help"])]
)
def test_library_that_is_missing_is_named(missing: str, command: list[str]) -> None:
    """By the program and by each word's own: only the client may have been installed."""
    without = f"import sys; sys.modules[{missing!r}] = None; from dledger_cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", without, *command],
        capture_output=True,
        cwd=REPOSITORY,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"dledger: the program needs more than the client does")
    assert f"({missing} is missing)".encode() in result.stderr


def ended(*arguments: str, stdout: int | None = None) -> subprocess.CompletedProcess[bytes]:
    """The program, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "dledger_cli", *arguments],
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        *(["version"], ["audit", "--help"]),
        *(
            pytest.param(words, marks=pytest.mark.long)
            for words in (["version", "--json"], ["--help"])
        ),
    ],
    ids=" ".join,
)
def test_result_that_finds_no_room_is_told(command: list[str]) -> None:
    """One line that says where, and 1: what was asked for was not delivered."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        result = ended(*command, stdout=full)
    finally:
        os.close(full)
    assert result.returncode == 1
    assert result.stderr == b"dledger: standard output: No space left on device\n"


def test_result_that_nobody_reads_ends_quietly() -> None:
    """As `| head` leaves it."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = ended("version", stdout=writing)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (1, b"")


CLOSING = 'exec "$@" <&- >&- 2>&-'


def test_nodes_files_never_take_the_place_of_a_standard_stream(tmp_path: Path) -> None:
    """Started with all three closed: a segment that were descriptor 2 would be written to by
    whatever C code complains, and libuv ends the process that closes such a descriptor."""
    port = free_ports(1)[0]
    config = tmp_path / "node.toml"
    config.write_text(
        'broker_group = "g"\nnode_id = "n"\ndata_directory = "data"\n'
        f'listen = "127.0.0.1:{port}"\n[log]\nfile = "node.log"\n'
        f'[peers]\nn = "127.0.0.1:{port}"\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "dledger_cli", "node", "--config", str(config)]
    with subprocess.Popen(["sh", "-c", CLOSING, "sh", *command], cwd=REPOSITORY) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not said(tmp_path / "node.log"):
                assert process.poll() is None, f"it ended with {process.returncode}"
                assert time.monotonic() < deadline, "it says nothing"
                time.sleep(0.05)
            held = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)}
            assert held == {os.devnull}
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def said(log: Path) -> bool:
    """Whether the node stands by: all its files and ports are open then."""
    return log.exists() and b"unformed" in log.read_bytes()


@pytest.mark.parametrize(
    "closed",
    [
        *(pytest.param(each, marks=pytest.mark.long) for each in ("<&-", ">&-", "2>&-")),
        "<&- >&- 2>&-",
    ],
)
def test_closed_stream_is_like_the_null_device(closed: str) -> None:
    """And no traceback."""
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "dledger_cli"]
    done = subprocess.run(
        [*words, "version"], capture_output=True, cwd=REPOSITORY, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("command", "closed", "named"),
    [
        ("consume orders --group billing --idle-timeout 5", ">&-", "standard output"),
        ("produce orders", "<&-", "standard input"),
    ],
    ids=["consume", "produce"],
)
def test_messages_are_neither_written_to_nor_read_from_a_closed_stream(
    command: str, closed: str, named: str
) -> None:
    """Nothing is asked for them: a group would commit what nobody got. There is no node here."""
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "dledger_cli"]
    done = subprocess.run(
        [*words, *command.split(), "--bootstrap", "127.0.0.1:1"],
        capture_output=True,
        cwd=REPOSITORY,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert f"{named}: it is closed" in done.stderr.decode()

"""Commands that are used wrongly: exit code 2 or 3, one line that says why, and nothing done."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.commands.outcome import parse_size
from audit.errors import UsageMistake
from dledger.reading.files import opened
from dledger.terminal.sizes import MAX_SIZE
from tests.audit.replicas import ReplicaSet

HISTORY = ["delivery", "--history", "history.jsonl"]
READERS = (["export", "out"], ["stats"], ["replicas"], HISTORY, ["watch", "--reports", "out"])


@pytest.fixture
def here(three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what can be mistaken for something else."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "file").write_text("x", encoding="utf-8")
    (folder / "history.jsonl").touch()
    (folder / "folder").mkdir()
    for name, content in (
        ("nobody", '{"nodes": []}'),
        ("listed", "[1]"),
        ("numbers", '{"nodes": [{"id": 1, "address": 2, "data_directory": 3}]}'),
        ("nameless", '{"nodes": [{"id": "n1", "address": "", "data_directory": "x"}]}'),
    ):
        (folder / name).mkdir()
        (folder / name / "group.json").write_text(content, encoding="utf-8")
    return folder


def complaint(arguments: list[str], code: int) -> str:
    """What the command says of itself, having done nothing else and ended with `code`."""
    if arguments[0] == "export" and "--dir" not in arguments:
        pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("dledger: ")
    return line.removeprefix("dledger: ")


def named(three: ReplicaSet, *ids: str) -> list[str]:
    return [part for each in ids for part in ("--replica", f"{each}={three.paths[each]}")]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", READERS, ids=lambda given: given[0])
@pytest.mark.parametrize(
    ("directory", "said"),
    [
        ("nosuch", "no local group in nosuch"),
        ("file", "no local group in file"),
        ("folder", "no local group in folder"),
        ("nobody", "names no node"),
        ("listed", "doesn't describe a local group"),
        ("numbers", "doesn't describe a local group"),
        ("nameless", "doesn't describe a local group"),
    ],
)
def test_directory_without_a_group(command: list[str], directory: str, said: str) -> None:
    """Every reader of a group says so, the watch at its first audit."""
    assert said in complaint([*command, "--dir", directory], 2)
    assert not Path("out").is_dir() or not any(Path("out").iterdir())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "file"], "file can't be made a folder: File exists"),
        (["export", "file/out"], "file/out can't be made a folder: Not a directory"),
        (["export", "out", "--topic", "nosuch"], "n1 has no message of topic 'nosuch'"),
        (["stats", "--topic", "nosuch"], "of events, orders it has"),
        (["stats", "--html", "nosuch/x.html"], "there is no folder nosuch"),
        (["stats", "--html", "folder"], "folder is a folder"),
        (["stats", "--master", "local[2]"], "add --engine spark"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_target_and_topic_that_are_none(three: ReplicaSet, arguments: list[str], said: str) -> None:
    """Of the commands that read one replica."""
    assert said in complaint([*arguments, *named(three, "n1")], 2)
    assert not Path("out").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replicas", "--html", "nosuch/x.html"], "there is no folder nosuch"),
        (["replicas", "--html", "file/x.html"], "there is no folder file"),
        (["replicas", "--html", ""], ". is a folder"),
        (["replicas", "--rate", ""], "'' is not a size"),
        (["replicas", "--rate", "\u00b2"], "is not a size"),
        (["replicas", "--block-size", "\uff11"], "is not a size"),
        (["replicas", "--block-size", "5000"], "a power of two"),
        (["watch", "--every", "99999d"], "of a year at most"),
        (["watch", "--every", "\u0663m"], "is not a time"),
        (["watch", "--reports", "file"], "file can't be made a folder: File exists"),
        (["watch", "--reports", "out", "--dir", "run"], "exclude each other"),
        (["watch", "--reports", "out", "--bootstrap", "x"], "exclude each other"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_option_that_makes_no_sense(three: ReplicaSet, arguments: list[str], said: str) -> None:
    """Of the commands that compare."""
    assert said in complaint([*arguments, *named(three, "n1", "n2")], 2)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["package", "nosuch/audit.zip"], "there is no folder nosuch"),
        (["package", "folder"], "folder is a folder"),
        (["bench", "--folder", "nosuch"], "there is no such folder"),
        (["bench", "--folder", "file"], "there is no such folder"),
        (["replicas", "--bootstrap", ""], "no address is given; wanted: host:port"),
        (["replicas", "--bootstrap", "10.0.0.1"], "'10.0.0.1' is not host:port"),
        (["replicas", "--bootstrap", "a:1,b c:1"], "'b c:1' is not host:port"),
        (["watch", "--reports", "out", "--replica", "nonsense"], "is no replica"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_place_that_is_none(arguments: list[str], said: str) -> None:
    """Files, folders, addresses and replicas."""
    assert said in complaint(arguments, 2)


def test_port_in_use(three: ReplicaSet, here: Path) -> None:
    """The watch's, for Prometheus."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = ["watch", "--metrics-port", port, *named(three, "n1", "n2")]
        assert complaint(given, 2) == f"--metrics-port {port}: Address already in use"


@pytest.mark.parametrize("command", [["stats"], ["export", "out"]], ids=["stats", "export"])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_segment_that_is_no_file(
    three: ReplicaSet, here: Path, make: Callable[[Path], None], command: list[str]
) -> None:
    """Named, with exit code 3: a log that can't be read is no log that is wrong. A pipe is not
    waited for."""
    segment = three.segment("n1", 16384)
    segment.unlink()
    make(segment)
    assert complaint([*command, *named(three, "n1")], 3) == f"{segment}: not a file"


def test_error_of_reading_names_the_file(tmp_path: Path) -> None:
    """As the kernel doesn't, which is given a descriptor."""
    path = tmp_path / "x"
    path.touch()
    with pytest.raises(OSError) as caught, opened(str(path)) as descriptor:
        os.pread(descriptor, 1, -5)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    "text", ["1" * 5000, str(MAX_SIZE + 1), "8589934592GiB", "1TiB", "", "MiB", "-1", "1.5MiB"]
)
def test_sizes_that_are_none(text: str) -> None:
    """Or that don't fit into what travels to a node."""
    with pytest.raises(UsageMistake, match="is not a size"):
        parse_size(text)


def test_largest_size() -> None:
    """The bound itself is one."""
    assert parse_size(str(MAX_SIZE)) == MAX_SIZE
    assert parse_size(" 200 MB/s ") == 200 << 20

"""The demo on a part of the library: flawless, and nothing left behind however it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.local_group import LocalGroup
from broker.local_group.process import ProcessIdentity, is_running
from chaos.demo import EXIT_INTERRUPTED
from tests.warm import program

pytestmark = pytest.mark.slow

WAIT_S = 120.0


@pytest.fixture
def demo(tmp_path: Path, *, keeps: bool) -> Iterator[subprocess.Popen[str]]:
    """A demo of thirty files that was just started."""
    yield from started(tmp_path, *["--keep"] * keeps, files=30)


@pytest.fixture
def long_demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """One that is still at work when somebody gets round to interrupting it."""
    yield from started(tmp_path, files=84)


def started(folder: Path, *more: str, files: int) -> Iterator[subprocess.Popen[str]]:
    options = ["--files", str(files), "--dir", str(folder / "run"), *more]
    with subprocess.Popen(
        [sys.executable, "-m", "chaos.demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        yield running
        running.terminate()


def processes_of(running: subprocess.Popen[str]) -> tuple[Path, list[ProcessIdentity]]:
    """The demo's folder, and its nodes' processes once the leader has been killed."""
    assert running.stdout is not None
    first = running.stdout.readline()
    folder = re.search(r"three nodes in (\S+)", first)
    assert folder is not None, first
    for line in running.stdout:
        first += line
        if line.startswith("killed "):
            nodes = LocalGroup.open(Path(folder[1])).nodes
            return Path(folder[1]), [node.process for node in nodes if node.process]
    raise AssertionError(f"the demo ended before its first kill: {first}")


@pytest.mark.parametrize("keeps", [True, pytest.param(False, marks=pytest.mark.long)])
def test_demo_loses_nothing_and_leaves_what_is_kept(
    demo: subprocess.Popen[str], tmp_path: Path, *, keeps: bool
) -> None:
    """Exit code 0, a table that says so, no process; and no file, or data on which the replicas
    agree."""
    folder, processes = processes_of(demo)
    assert demo.stdout is not None
    report = demo.stdout.read()
    assert demo.wait(WAIT_S) == 0, report
    assert re.search(r"files identical .* 30 of 30 ", report)
    for count in ("failed", "unknown", "lost", "duplicated", "out of order"):
        assert re.search(rf"{count} +│ +0 ", report), report
    for count in ("handled by nobody", "handled again for no reason"):
        assert re.search(rf"{count} +│ +0 ", report), report
    assert re.search(r"killed one of two consumers, which had handled [1-9]", report)
    sent, handled = (
        re.search(rf"{name} +│ +([0-9,]+) ", report)
        for name in ("sent", "lines handled by two consumers, one killed")
    )
    assert sent is not None
    assert handled is not None
    assert sent[1] == handled[1]
    assert len(re.findall(r"^.*kill [12] \(n[123], [1-9][0-9,]* under way\)", report, re.M)) == 2
    assert not any(is_running(process) for process in processes)
    if not keeps:
        assert not folder.exists()
        assert list(tmp_path.iterdir()) == []
        return
    assert list((tmp_path / "run").iterdir()) == [folder]
    assert f"make audit RUN={folder}" in report.replace("\n", "")
    group = LocalGroup.open(folder)
    assert not any(node.is_running() for node in group.nodes)
    found = program("audit", "replicas", "--dir", str(folder), "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["verdict"] == "identical"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
@pytest.mark.long
def test_interrupted_demo_leaves_nothing(
    long_demo: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C in the middle, while a node is dead."""
    _, processes = processes_of(long_demo)
    assert any(is_running(process) for process in processes)
    long_demo.send_signal(number)
    assert long_demo.wait(WAIT_S) == EXIT_INTERRUPTED
    assert not any(is_running(process) for process in processes)
    assert list(tmp_path.iterdir()) == []

"""A member whose log is another one, in a group of real processes: it takes itself out of service,
answers for itself, stays out over restarts, and is replaced."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from broker.config import load_config
from broker.local_group import LocalGroup
from chaos.altering import alter, frames_of
from dledger.outcome import ExitCode
from dledger.reading.entry import EntryKind
from store.out_of_service import FILE_NAME
from tests.cli.called import command

pytestmark = pytest.mark.slow

PROGRAM = (sys.executable, "-m", "dledger_cli")
PATIENCE_S = 60.0
SEGMENT_BYTES = 64 << 20


def produce(folder: Path, lines: str) -> subprocess.CompletedProcess[str]:
    """`dledger produce`, which reads what comes through a pipe, in a process of its own."""
    return subprocess.run(
        [*PROGRAM, "produce", "logs", "--dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        input=lines,
    )


def until(reached: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := reached():
            return found
        time.sleep(0.2)
    raise AssertionError("it doesn't happen in time")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "run"
    up = command("group", "up", "--dir", str(where))
    assert up.returncode == ExitCode.DONE, up.stderr
    yield where
    command("group", "down", "--dir", str(where))


def altered(directory: Path) -> int:
    """A message of the log is another one; the entry it is in."""
    folder = directory / "commitlog"

    def content(name: str) -> bytes | None:
        return (folder / name).read_bytes() if (folder / name).exists() else None

    def put(name: str, at: int, data: bytes) -> None:
        with (folder / name).open("r+b") as file:
            file.seek(at)
            file.write(data)

    kinds = {each.index: each.kind for each in frames_of(content, SEGMENT_BYTES)}
    index = next(index for index, kind in kinds.items() if kind == EntryKind.DATA)
    alter(content, put, SEGMENT_BYTES, index, Random(1))
    return index


def node(folder: Path, name: str) -> dict[str, Any]:
    status = json.loads(command("group", "status", "--dir", str(folder), "--json").stdout)
    found: dict[str, Any] = next(each for each in status["nodes"] if each["id"] == name)
    return found


def findings(folder: Path) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    done = command("group", "doctor", "--dir", str(folder), "--json")
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(done.stdout)["findings"]:
        by_kind.setdefault(each["kind"], []).append(each)
    return done.returncode, by_kind


def test_member_out_of_service_from_its_alarm_to_its_replacement(folder: Path) -> None:
    group = LocalGroup.open(folder)
    assert command("topic", "create", "logs", "--dir", str(folder)).returncode == 0
    lines = "".join(f"message {number}\n" for number in range(200))
    assert produce(folder, lines).returncode == 0
    leader = json.loads(command("group", "status", "--dir", str(folder), "--json").stdout)["leader"]
    name = next(each.id for each in group.nodes if each.id != leader)
    config = load_config(Path(group.node(name).config))
    directory = config.data_directory

    command("group", "kill", name, "--signal", "TERM", "--dir", str(folder))
    index = altered(directory)
    assert command("group", "start", name, "--dir", str(folder)).returncode == 0
    until(lambda: node(folder, name)["role"] == "out-of-service")

    # It says what it is, to people, programs and graphs; and the group serves.
    said = command("group", "status", "--dir", str(folder))
    assert said.returncode == ExitCode.DONE
    assert f"{name} is out of service" in said.stdout
    code, found = findings(folder)
    assert code == ExitCode.FAILED
    (finding,) = found["out of service"]
    assert finding["member"] == name
    assert f"entry {index} is the first that differs" in finding["detail"]
    assert f"dledger group replace {name}" in finding["remedy"]
    with urllib.request.urlopen(f"http://{config.metrics_listen}/metrics", timeout=5) as page:
        metrics = page.read().decode()
    assert f'dledger_out_of_service{{broker_group="{config.broker_group}",node="{name}"}} 1.0' in (
        metrics
    )
    assert "dledger_differs_at_entry" in metrics
    more = produce(folder, "one more\n")
    assert more.returncode == ExitCode.DONE, more.stderr

    # The audits of what runs reach it, and name the entry.
    addresses = ",".join(each.address for each in group.nodes)
    audit = command("audit", "replicas", "--bootstrap", addresses, "--json")
    assert audit.returncode == ExitCode.FAILED, audit.stderr
    assert "divergence" in audit.stdout
    assert f"{name} is out of service, as its log isn't that of" in audit.stdout
    assert f"dledger group replace {name}" in audit.stdout
    assert f'"index": {index}' in audit.stdout or f'"entry": {index}' in audit.stdout, audit.stdout

    # It stays as it is, through a kill and a stop.
    kept = {path: path.read_bytes() for path in (directory / "commitlog").iterdir()}
    for number in (signal.SIGKILL, signal.SIGTERM):
        command("group", "kill", name, "--signal", number.name[3:], "--dir", str(folder))
        assert command("group", "start", name, "--dir", str(folder)).returncode == 0
        assert node(folder, name)["role"] == "out-of-service"
    assert {path: path.read_bytes() for path in (directory / "commitlog").iterdir()} == kept
    assert (directory / FILE_NAME).exists()
    copy = command("audit", "copy", str(directory))
    assert copy.returncode == ExitCode.FAILED
    assert "out of service" in copy.stdout

    # What the doctor says to do ends it.
    command("group", "kill", name, "--signal", "TERM", "--dir", str(folder))
    shutil.move(directory, directory.with_name("kept"))
    assert command("group", "start", name, "--dir", str(folder)).returncode == 0
    # Not before the leader has noticed that who answered is gone.
    until(lambda: command("group", "replace", name, "--dir", str(folder)).returncode == 0)
    until(lambda: "out of service" not in findings(folder)[1])
    assert node(folder, name)["role"] in ("follower", "leader")

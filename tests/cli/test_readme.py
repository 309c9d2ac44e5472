"""The README's three machines, as they are written: three folders, and addresses of loopback."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from tests.integration.group import free_ports

README = Path(__file__).parents[2] / "README.md"
NAMES = ("n1", "n2", "n3")
WAIT_S = 90.0

pytestmark = pytest.mark.slow


def blocks() -> tuple[str, str, str]:
    """What is run to make certificates, a node's configuration, and what is run at the end; with
    addresses that this machine has."""
    text = README.read_text(encoding="utf-8")
    section = text.partition("## Three machines\n")[2].partition("\n## ")[0]
    for wanted, port in zip(("7001", "8001"), free_ports(2), strict=True):
        section = section.replace(f":{wanted}", f":{port}")
    section = section.replace("10.0.0.", "127.0.0.")
    found = re.findall(r"```(sh|toml)\n(.*?)```", section, flags=re.DOTALL)
    assert [kind for kind, _ in found] == ["sh", "toml", "sh"]
    return found[0][1], found[1][1], found[2][1]


def run_lines(lines: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the lines print: `dledger …` and `export NAME=VALUE …`, as a shell takes them.

    Within this process: eight programs of their own would take most of the test's time.
    """
    said = ""
    for line in lines.splitlines():
        word, *arguments = shlex.split(line, comments=True)
        if word == "export":
            for name, _, value in (each.partition("=") for each in arguments):
                monkeypatch.setenv(name, value)
            continue
        assert word == "dledger", line
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (line, result.output, result.exception)
        said += result.stdout
    return said


@contextmanager
def machine(folder: Path, desk: Path, name: str, configuration: str) -> Iterator[None]:
    """A node on a machine of its own, with what the README says it gets."""
    folder.mkdir()
    for file in ("ca.pem", f"{name}.pem", f"{name}.key"):
        shutil.copy(desk / "certs" / file, folder)
    own = configuration.replace('node_id = "n1"', f'node_id = "{name}"')
    own = own.replace('"n1.pem"', f'"{name}.pem"').replace('"n1.key"', f'"{name}.key"')
    own = re.sub(r'(listen = "127\.0\.0\.)1:', rf"\g<1>{name[1:]}:", own)
    (folder / "node.toml").write_text(own)
    command = [sys.executable, "-m", "dledger_cli", "node", "--config", "node.toml"]
    with (folder / "node.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_three_machines_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines, in their order, make a group that has a leader and takes a topic."""
    certificates, configuration, use = blocks()
    desk = tmp_path / "desk"
    desk.mkdir()
    monkeypatch.chdir(desk)
    run_lines(certificates, monkeypatch)
    machines = [machine(tmp_path / name, desk, name, configuration) for name in NAMES]
    with machines[0], machines[1], machines[2]:
        deadline = time.monotonic() + WAIT_S
        while not all(b"node_unformed" in log_of(tmp_path / name) for name in NAMES):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        said = run_lines(use, monkeypatch)
    assert "group g1 is formed: n1, n2, n3" in said
    assert re.search(r"group g1: leader n[123], term", said)
    assert "logs: 4 queues" in said
    assert b"listens_without_tls" not in b"".join(log_of(tmp_path / name) for name in NAMES)


def log_of(folder: Path) -> bytes:
    file = folder / "node.log"
    return file.read_bytes() if file.exists() else b""

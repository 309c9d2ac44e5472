"""Folders of runs: each run has its own, and what one has found stays found."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.errors import OutputInTheWay
from chaos.real import cli
from chaos.real.audited import HISTORY_FILE
from store.files import Handle, OsFiles
from tests.chaos_real.test_books import left_behind


def test_runs_that_begin_at_once_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many begin within the second that a folder is called by."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-120000")
    found = [cli.claimed(None, "kill-leader").name for _ in range(3)]
    name = "kill-leader-20260101-120000"
    assert found == [name, f"{name}-2", f"{name}-3"]
    monkeypatch.setattr(cli, "MAX_AT_ONCE", 3)
    with pytest.raises(OutputInTheWay):
        cli.claimed(None, "kill-leader")


def test_who_comes_second_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found the folder empty, and one of them has begun since."""
    out = cli.claimed(tmp_path / "out", "kill-leader")
    (out / HISTORY_FILE).write_text("of the first\n")
    (out / "group").mkdir()
    iterdir = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(()) if path == out else iterdir(path))
    with pytest.raises(OutputInTheWay):
        cli.claimed(out, "kill-leader")
    ran = CliRunner().invoke(app, ["run", "kill-leader", "--out", str(out)])
    assert ran.exit_code == 2
    assert "name another folder with --out" in ran.output
    assert sorted(os.listdir(out)) == ["group", HISTORY_FILE]
    assert (out / HISTORY_FILE).read_text() == "of the first\n"


def test_a_report_that_cannot_be_written_leaves_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the only place of the facts that a history doesn't tell."""

    def full(files: OsFiles, handle: Handle) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    report = left_behind(tmp_path) / "report.json"
    before = json.loads(report.read_text())
    monkeypatch.setattr(OsFiles, "fsync", full)
    ran = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert "No space left" in f"{ran.output}{ran.exception}"
    assert json.loads(report.read_text()) == before
    monkeypatch.undo()
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 1
    assert json.loads(report.read_text())["anomaly_counts"] == before["anomaly_counts"]
    assert not list(tmp_path.glob("*.tmp"))

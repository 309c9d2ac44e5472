"""A Spark session tuned for audits: short to start, small in memory.

Measured (2 cores, PySpark 4.3, OpenJDK 17): 4 to 6 s with the defaults; 3 s without the UI, with
C1 only and the serial collector; about 2 s with an archive of loaded classes, 150 MB, which the
first session writes at its end if `$DLEDGER_SPARK_ARCHIVE` names a file for it. Unix sockets
between JVM and Python halve the cost of a Python task.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from audit.errors import EngineUnavailable
from audit.package import write_package
from audit.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
ARCHIVE_VARIABLE: Final = "DLEDGER_SPARK_ARCHIVE"  # Tied to one JVM and one pyspark.
_LOG: Final = Path(__file__).parent / "log4j2.properties"
# With the whole heap in use, the command, its JVM and two workers take 1.33 GiB (measured).
_DRIVER_MEMORY: Final = "640m"
_PROJECT: Final = str(Path(__file__).parent.parent.parent)
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": _DRIVER_MEMORY,
    "spark.executor.memory": "512m",  # What hashes is Python, beside the JVM.
}


def start_session(
    master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on `master`; the caller stops it.

    Executors get this project's modules as a zip; what these need (numpy, xxhash, crc32c,
    protobuf) must be on them already, see docs/audit.md.

    Raises:
        EngineUnavailable: pyspark or Java is missing, or the master doesn't answer.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise EngineUnavailable(
            f"--engine spark needs the extra 'audit' ({error}): pip install 'dledger[audit]'. "
            "--engine local needs neither."
        ) from error
    master = master or DEFAULT_MASTER
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dledger"
    java = find_java(cache)
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("dledger audit")
    options = _jvm_options() if is_local else ""
    if is_local:
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*_python_path(), _PROJECT]))
    given = {"spark.driver.extraJavaOptions": options, **_SETTINGS, **(settings or {})}
    for name, value in given.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise EngineUnavailable(f"no Spark session on {master}: {first}") from error
    if not is_local:
        _ship_project(session, cache)
    return session


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def _jvm_options() -> str:
    """Fast start before fast code: an audit's JVM hardly computes anything itself."""
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={_LOG}"]
    archive = os.environ.get(ARCHIVE_VARIABLE)
    if archive and Path(archive).exists():
        options.append(f"-XX:SharedArchiveFile={archive}")
    elif archive:
        options.append(f"-XX:ArchiveClassesAtExit={archive}")
    return " ".join(options)


def _ship_project(session: SparkSession, cache: Path) -> None:
    """Executors on other machines can import what the tasks are made of. The driver serves the
    zip for as long as the session lasts, so it lies in the cache, named by its content."""
    cache.mkdir(parents=True, exist_ok=True)
    fresh = write_package(cache / f"audit-{os.getpid()}.new")
    named = cache / f"audit-{hashlib.sha256(fresh.read_bytes()).hexdigest()[:16]}.zip"
    fresh.replace(named)
    session.sparkContext.addPyFile(str(named))

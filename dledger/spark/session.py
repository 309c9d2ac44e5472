"""A Spark session tuned for reading logs: short to start, small in memory.

Measured (2 cores, PySpark 4.3, OpenJDK 17): 4 to 6 s with the defaults; 3 s without the UI, with
C1 only and the serial collector; about 2 s with an archive of loaded classes, 150 MB, which the
first session writes at its end if `$DLEDGER_SPARK_ARCHIVE` names a file for it. Unix sockets
between JVM and Python halve the cost of a Python task.

Spark waits for a cluster's executors for ever and says so only in a log. A session from here has
run a first job, or there is an error after `$DLEDGER_SPARK_WAIT` seconds.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dledger.spark.errors import BadOption, ClusterUnreachable, SparkUnavailable
from dledger.spark.java import find_java
from dledger.spark.package import SOURCE, write_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
ARCHIVE_VARIABLE: Final = "DLEDGER_SPARK_ARCHIVE"  # Tied to one JVM and one pyspark.
_ADDRESS: Final = r"[^\s:,/]+:\d{1,5}"
_MASTER: Final = re.compile(
    rf"local(\[(\*|[1-9]\d*)(,\d+)?\])?|local-cluster\[[\d,\s]+\]|yarn|k8s://\S+|"
    rf"spark://{_ADDRESS}(,{_ADDRESS})*"
)
_CONNECT_TIMEOUT_S: Final = 5.0
WAIT_VARIABLE: Final = "DLEDGER_SPARK_WAIT"
DEFAULT_WAIT_S: Final = 120.0
_FAST_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOG: Final = Path(__file__).parent / "log4j2.properties"
# The command, its JVM and two workers took 1.45 GiB with a full heap of 768 MiB (measured).
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
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    parts: tuple[str, ...] = SOURCE,
) -> SparkSession:
    """A session on `master`; the caller stops it.

    Executors get this project's modules as a zip; what these need (numpy, xxhash, crc32c,
    protobuf) must be on them already, see docs/audit.md.

    Args:
        master: `local[2]`, `spark://host:port`, `yarn`, `k8s://...`; this machine if None.
        settings: Spark's own, which come before those that are made here.
        parts: what executors get of this project; the log as a table, as a rule.

    Raises:
        BadOption: the master's address is none.
        SparkUnavailable: pyspark or Java is missing.
        ClusterUnreachable: the master doesn't answer, or gives no executor in time.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailable(
            f"Spark needs the extra 'audit' ({error}): pip install 'dledger[audit]'"
        ) from error
    wait_s = seconds_to_wait()
    master = master or DEFAULT_MASTER
    _check_master(master)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dledger"
    java = find_java(cache)
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_local = master.startswith("local")  # All of it runs on this machine.
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*_python_path(), _PROJECT]))
    builder = SparkSession.builder.master(master).appName("dledger")
    for name, value in {**_settings_for(master), **(settings or {})}.items():
        builder = builder.config(name, value)
    from dledger.spark.gateway import without_forking  # There is a pyspark.

    try:
        asks_first = master == "yarn" or master.startswith("k8s://")
        with without_forking():
            session = _created(builder, master, wait_s) if asks_first else builder.getOrCreate()
    except (PySparkException, Py4JError, OSError, RuntimeError) as error:
        if not is_local:
            raise ClusterUnreachable(master, _reason(error)) from error
        raise SparkUnavailable(f"no Spark session on {master}: {_reason(error)}") from error
    if _has_executors(master):
        _await_executor(session, master, wait_s)
    if not is_local:
        _ship_project(session, cache, parts)
    return session


def _has_executors(master: str) -> bool:
    """Whether tasks run in other processes than the driver's, which may never come."""
    return not master.startswith("local") or master.startswith("local-cluster")


def _settings_for(master: str) -> dict[str, str]:
    """What is set on `master` unless the caller says otherwise. The executors of a `local-cluster`
    start beside the driver, all at once and cold: with the JVM's own choice of compiler and
    collector they took 42 s of two cores under a load of 4, and nobody waited for them with a
    bound."""
    # The driver is a JVM of this machine, whatever the master.
    found = {**_SETTINGS, "spark.driver.extraJavaOptions": _jvm_options()}
    if master == "yarn":
        # YARN gives a container a folder for temporary files that lies so deep that no socket can
        # be named there: a name has 107 bytes, and the first Python task ended with that.
        found["spark.python.unix.domain.socket.enabled"] = "false"
    if master.startswith("local-cluster"):
        found["spark.executor.extraJavaOptions"] = " ".join(_FAST_START)
    return found


def _check_master(master: str) -> None:
    """Somebody may be there: Spark itself says so after a minute, or by a stack trace.

    Raises:
        BadOption: it is no master's address, or Hadoop's configuration is missing.
        ClusterUnreachable: nobody listens there.
    """
    if not _MASTER.fullmatch(master):
        raise BadOption(
            f"{master!r} is no master; wanted: local[N], spark://HOST:PORT, yarn or k8s://URL"
        )
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & set(os.environ):
        raise BadOption("--master yarn needs HADOOP_CONF_DIR or YARN_CONF_DIR")
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            reasons.append(getattr(error, "strerror", None) or str(error))
        else:
            return
    raise ClusterUnreachable(master, "; ".join(dict.fromkeys(reasons)))


def _reason(error: Exception) -> str:
    """The line that tells most: a Java exception's own, behind py4j's words about it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (told or lines or [repr(error)])[0][:500]


def seconds_to_wait() -> float:
    """How long a cluster may take to give an executor.

    Raises:
        BadOption: that isn't to be told.
    """
    text = os.environ.get(WAIT_VARIABLE, "")
    try:
        seconds = float(text) if text else DEFAULT_WAIT_S
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise BadOption(f"{WAIT_VARIABLE} is {text!r}: a number of seconds is wanted")
    return seconds


def _created(builder: SparkSession.Builder, master: str, wait_s: float) -> SparkSession:
    """The session on a cluster whose manager is asked while it is made: YARN's client waits for
    one as long as there is none.

    Raises:
        ClusterUnreachable: there was none in time; its JVM ends with this process.
        Exception: what creating it raised.
    """
    made: list[SparkSession] = []
    failures: list[Exception] = []

    def create() -> None:
        try:
            made.append(builder.getOrCreate())
        except Exception as error:  # noqa: BLE001  # Whatever it is, the caller gets it.
            failures.append(error)

    creating = threading.Thread(target=create, name="session", daemon=True)
    creating.start()
    creating.join(wait_s)
    if failures:
        raise failures[0]
    if not made:
        raise ClusterUnreachable(
            master, f"no session in {wait_s:g} s ({WAIT_VARIABLE} sets how long to wait)"
        )
    return made[0]


def _await_executor(session: SparkSession, master: str, wait_s: float) -> None:
    """A job has run: there is an executor. One that the cluster starts only for a job is asked for
    by this one.

    Raises:
        ClusterUnreachable: there was none in time, or the job failed; the session is stopped.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            session.range(1).count()
        except Exception as error:  # noqa: BLE001  # Whatever it is, the caller gets it.
            failures.append(error)

    job = threading.Thread(target=run, name="first-job", daemon=True)
    job.start()
    job.join(wait_s)
    if job.is_alive():
        session.stop()  # Ends the job with an error.
        job.join()
        raise ClusterUnreachable(
            master,
            f"no executor in {wait_s:g} s: no worker has a core and "
            f"{_SETTINGS['spark.executor.memory']} free ({WAIT_VARIABLE} sets how long to wait)",
        )
    if failures:
        session.stop()
        raise ClusterUnreachable(master, _reason(failures[0])) from failures[0]


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def _jvm_options() -> str:
    """Fast start before fast code: the JVM of a reader hardly computes anything itself."""
    options = [*_FAST_START, f"-Dlog4j2.configurationFile={_LOG}"]
    archive = os.environ.get(ARCHIVE_VARIABLE)
    if archive and Path(archive).exists():
        options.append(f"-XX:SharedArchiveFile={archive}")
    elif archive:
        options.append(f"-XX:ArchiveClassesAtExit={archive}")
    return " ".join(options)


def _ship_project(session: SparkSession, cache: Path, parts: tuple[str, ...]) -> None:
    """Executors on other machines can import what the tasks are made of. The driver serves the
    zip for as long as the session lasts, so it lies in the cache, named by its content."""
    cache.mkdir(parents=True, exist_ok=True)
    fresh = write_package(cache / f"dledger-{os.getpid()}.new", parts)
    named = cache / f"dledger-{hashlib.sha256(fresh.read_bytes()).hexdigest()[:16]}.zip"
    fresh.replace(named)
    session.sparkContext.addPyFile(str(named))

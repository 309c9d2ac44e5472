"""The Spark engine on a standalone cluster: a master and two workers on loopback addresses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import venv
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")

from dledger.testing import BrokerGroup
from dledger.testing.fixtures import dledger_group
from tests.audit.cluster_driver import KEY
from tests.audit.replicas import ReplicaSet
from tests.audit.test_table import expected_rows
from tests.spark.group import fill, stored

__all__ = ["dledger_group"]

ROOT = Path(__file__).parent.parent.parent
WORKERS = ("127.0.0.1", "127.0.0.2")
TIMEOUT_S = 600.0  # a bound for what hangs, however busy the machine
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOG = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %m%n
"""


EXECUTORS_NEED = ("numpy", "xxhash", "crc32c", "protobuf", "pyarrow")  # docs/audit.md
NETWORK_NEEDS = ("grpcio", "tenacity", "typing_extensions")  # docs/spark.md


def bare_python(folder: Path, wanted: tuple[str, ...] = EXECUTORS_NEED) -> Path:
    """The Python of an environment that has what the documents say executors need, and neither
    this project nor pyspark: both travel."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name in wanted:
        files = metadata.distribution(name).files or ()
        tops = {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}
        for top in sorted(tops):
            (site / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    return folder / "bin" / "python"


class Cluster:
    """The processes of the cluster, each in a group of its own so that all of it can be ended."""

    def __init__(self, folder: Path, java_home: Path) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        (folder / "log4j2.properties").write_text(LOG, encoding="utf-8")
        # What whoever runs a cluster may set. Executors live for seconds here.
        fast = f"spark.executor.extraJavaOptions {FAST_START}\n"
        (folder / "spark-defaults.conf").write_text(fast, encoding="utf-8")
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(java_home),
            "SPARK_CONF_DIR": str(folder),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(bare_python(folder / "bare")),
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self._server = {
            **{name: value for name, value in self.environment.items() if name != "PYTHONPATH"},
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_JAVA_OPTS": f"{FAST_START} "
            f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        self._command = str(home / "bin" / "spark-class")
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._files = ExitStack()

    def start(self) -> str:
        """The master's address, once both workers are registered with it."""
        names = "org.apache.spark.deploy"
        found = self._launch(
            "master", r"Starting Spark master at (spark://\S+)", f"{names}.master.Master",
            "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
        )  # fmt: skip
        for number, host in enumerate(WORKERS):
            self._launch(
                f"worker{number}", r"Successfully registered with master",
                f"{names}.worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1",
                "--memory", "700m", "--work-dir", str(self._folder / f"work{number}"), found,
            )  # fmt: skip
        return found

    def _launch(self, name: str, ready: str, *arguments: str) -> str:
        """Starts a process; what `ready` finds in its log first."""
        path = self._folder / f"{name}.log"
        log: IO[str] = self._files.enter_context(path.open("w", encoding="utf-8"))
        process = subprocess.Popen(
            [self._command, *arguments],
            env=self._server,
            stdout=log,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if match := re.search(ready, line):
                # Nobody reads on: what it still says goes nowhere, and must not block it.
                self._drain(process.stderr)
                return match[match.lastindex or 0]
        raise AssertionError(f"{name} ended: {''.join(lines[-20:])}")

    def _drain(self, stream: IO[str]) -> None:
        thread = threading.Thread(target=lambda: deque(stream, maxlen=0), name="drain")
        thread.start()
        self._files.callback(stream.close)
        self._files.callback(thread.join)

    def stop(self) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(TIMEOUT_S)
        self._files.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Cluster]]:
    """The cluster and its master's address."""
    from dledger.spark import SparkUnavailable
    from dledger.spark.java import find_java

    folder = tmp_path_factory.mktemp("cluster")
    try:
        java = find_java(folder / "cache")
    except SparkUnavailable as error:
        pytest.skip(str(error))
    made = Cluster(folder, java.home)
    try:
        yield made.start(), made
    finally:
        made.stop()


def report_of(three: ReplicaSet, environment: dict[str, str], *engine: str) -> dict[str, Any]:
    """The JSON report of the command as a user runs it; replicas lie on the workers' hosts."""
    replicas = []
    for number, (name, path) in enumerate(three.paths.items()):
        place = f"@{WORKERS[number % 2]}" if "spark" in engine else ""
        replicas += ["--replica", f"{name}={path}{place}"]
    command = [
        sys.executable, "-m", "dledger_cli", "audit", "replicas", *replicas,
        "--block-size", "4KiB", "--json", *engine,
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_cluster_reports_what_the_local_engine_does(
    three: ReplicaSet, cluster: tuple[str, Cluster]
) -> None:
    """Rot found on workers beside the replicas, in the same words. The workers' Python has neither
    this project nor its other dependencies: modules travel by themselves."""
    master, made = cluster
    three.flip("n2", three.header_of(after=20_000).physical_offset + 80)
    local = report_of(three, made.environment)
    there = report_of(three, made.environment, "--engine", "spark", "--master", master)
    for report in (local, there):
        for volatile in ("timings", "engine"):
            del report[volatile]
        for coverage in report["coverage"]:
            del coverage["host"]
    assert there == local
    assert [finding["replicas"] for finding in there["findings"]] == [["n2"]]


@pytest.mark.skipif("DRIVERS" not in os.environ, reason="the long form: make spark-kills")
@pytest.mark.spark
@pytest.mark.slow
def test_log_and_topics_are_tables_and_streams_there(
    three: ReplicaSet,
    cluster: tuple[str, Cluster],
    dledger_group: BrokerGroup,
    tmp_path: Path,
) -> None:
    """Export, a stream of the log, a topic over the network, and a stream from topic to topic: each
    message once, by executors on both workers that have nothing of this project but what travels
    with a job."""
    master, made = cluster
    one, other = dledger_group.topic(2), dledger_group.topic(2)
    bodies = {queue: [b"%d-%d" % (queue, each) for each in range(60)] for queue in range(2)}
    for queue, each in bodies.items():
        fill(dledger_group.addresses, one, queue, each)
    python = bare_python(tmp_path / "bare", EXECUTORS_NEED + NETWORK_NEEDS)
    log, folder = three.paths["n1"], tmp_path / "out"
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.audit.cluster_driver", master, str(log),
            dledger_group.addresses, one, other, str(folder),
        ],
        env={**made.environment, "PYSPARK_PYTHON": str(python)},
        cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    expected = sorted([row[name] for name in KEY] for row in expected_rows(three))
    assert told["exported"] == expected
    assert told["streamed"] == expected
    assert told["executors"] == len(WORKERS)
    assert told["read"] == {"0": 60, "1": 60}
    assert stored(dledger_group.addresses, other) == bodies

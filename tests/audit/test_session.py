"""Clusters that give nothing: an audit ends with a reason, and in time."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.engines.engine import MIB
from audit.engines.spark import SparkEngine, partitions
from audit.engines.standstill import Standstill
from audit.errors import EngineFailed, EngineUnavailable
from dledger.outcome import ExitCode
from dledger.spark import BadOption, SparkUnavailable, session, start_session
from dledger.spark.java import find_java
from tests.audit.replicas import ReplicaSet

pyspark = pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 600.0  # a bound for what hangs, however busy the machine
LOG = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %m%n
"""


@pytest.fixture
def lonely_master(tmp_path: Path) -> Iterator[str]:
    """The address of a standalone master that no worker ever joins."""
    try:
        java = find_java(tmp_path / "cache")
    except SparkUnavailable as error:
        pytest.skip(str(error))
    home = Path(pyspark.__file__).parent
    (tmp_path / "log4j2.properties").write_text(LOG, encoding="utf-8")
    environment = {
        **os.environ,
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(home),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={tmp_path / 'log4j2.properties'} "
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    command = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master",
               "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]  # fmt: skip
    log = tmp_path / "master.log"
    with log.open("w", encoding="utf-8") as out, subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                out.write(line)
                if match := re.search(r"Starting Spark master at (spark://\S+)", line):
                    yield match[1]
                    break
            else:
                raise AssertionError(log.read_text(encoding="utf-8"))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def audit_on(
    master: str, three: ReplicaSet, wait: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    named = [part for each in three.replicas for part in ("--replica", f"{each.id}={each.path}")]
    return subprocess.run(
        [sys.executable, "-m", "dledger_cli", "audit", "replicas", *named,
         "--engine", "spark", "--master", master],
        env={
            **os.environ, "DLEDGER_SPARK_WAIT": wait, "SPARK_LOCAL_IP": "127.0.0.1", **environment
        },
        cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_cluster_without_workers_is_unreachable(three: ReplicaSet, lonely_master: str) -> None:
    """Exit code 3 after the time that was given, the master and what is missing named."""
    done = audit_on(lonely_master, three, "2")
    assert done.returncode == 3, done.stderr
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"dledger: {lonely_master} can't be reached: no executor in 2 s")
    assert "Traceback" not in done.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_yarn_without_a_resource_manager_is_unreachable(three: ReplicaSet, tmp_path: Path) -> None:
    """Its client would wait for one for ever, while the session is being made."""
    (tmp_path / "hadoop").mkdir()
    done = audit_on("yarn", three, "2", HADOOP_CONF_DIR=str(tmp_path / "hadoop"))
    assert done.returncode == 3, done.stderr
    # The JVM ends after the command has spoken, and may say something itself until then.
    said = [line for line in done.stderr.splitlines() if line.startswith("dledger: ")]
    assert len(said) == 1
    assert said[0].startswith("dledger: yarn can't be reached: no session in 2 s")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("master", "waited_for"),
    [("local", False), ("local[2]", False), ("local-cluster[2,1,1024]", True),
     ("spark://h:7077", True), ("yarn", True)],
)  # fmt: skip
def test_executors_are_waited_for_wherever_there_are_any(master: str, waited_for: bool) -> None:
    """On this machine too: without a bound a session that never gets one says nothing."""
    assert session._has_executors(master) is waited_for
    starts_fast = "spark.executor.extraJavaOptions" in session._settings_for(master)
    assert starts_fast is master.startswith("local-cluster")


@pytest.mark.parametrize("wait", ["soon", "0", "-1", "nan", "inf"])
def test_wait_that_is_no_time_is_refused(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a JVM is started."""
    monkeypatch.setenv("DLEDGER_SPARK_WAIT", wait)
    with pytest.raises(BadOption, match="DLEDGER_SPARK_WAIT is"):
        start_session("local[1]")


@pytest.mark.parametrize(
    "master", ["nonsense", "local[0]", "local[two]", "spark://host", "spark://:7077", "yarn"]
)
def test_master_that_is_none_is_refused(
    master: str, three: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit code 2, by its name, and before a JVM is started."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    named = [part for each in three.replicas for part in ("--replica", f"{each.id}={each.path}")]
    given = ["replicas", *named, "--engine", "spark", "--master", master]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert master in result.stderr


def test_master_that_nobody_listens_for_is_unreachable(three: ReplicaSet) -> None:
    """At once, with exit code 3; Spark would try for a minute."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # Bound and not listening: nobody else can have it.
        master = f"spark://127.0.0.1:{bound.getsockname()[1]}"
        named = [
            part for each in three.replicas for part in ("--replica", f"{each.id}={each.path}")
        ]
        given = ["replicas", *named, "--engine", "spark", "--master", master]
        result = CliRunner().invoke(app, given)
    assert result.exit_code == 3
    assert result.stderr == f"dledger: {master} can't be reached: Connection refused\n"


def test_engine_that_cannot_start_names_the_one_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no Java needs none."""

    def fails(*_: object) -> None:
        raise SparkUnavailable("no Java")

    monkeypatch.setattr("audit.engines.spark.start_session", fails)
    with pytest.raises(EngineUnavailable, match=r"no Java\. --engine local needs neither"):
        SparkEngine.start("local[1]")


LACKS = """
 An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 1, in <module>
ModuleNotFoundError: No module named 'crc32c'
"""
NO_START = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted: Task 1 in stage 3.0 failed 4 times, (executor 1):
Error from python worker:
  Traceback (most recent call last):
    File "daemon.py", line 129, in manager
  OSError: AF_UNIX path too long
PYTHONPATH was:
  /x/pyspark.zip
Caused by: org.apache.spark.SparkException:
	at java.base/java.lang.Thread.run(Thread.java:840)
"""


class FakeContext:
    """Of a session without a JVM, whose one stage never moves; jobs end when they are cancelled."""

    defaultParallelism = 1

    def __init__(self, *, active: int = 0) -> None:
        self.cancelled = threading.Event()
        self._jsc = SimpleNamespace(clearJobGroup=lambda: None)
        self._stage = SimpleNamespace(numActiveTasks=active, numCompletedTasks=1)
        self._group = ""

    def engine(self) -> SparkEngine:
        return SparkEngine(cast(Any, SimpleNamespace(sparkContext=self)), stops_session=False)

    def statusTracker(self) -> SimpleNamespace:
        return SimpleNamespace(
            getActiveStageIds=lambda: [7], getStageInfo={7: self._stage}.__getitem__
        )

    def setJobGroup(self, group: str, description: str) -> None:
        self._group = group

    def cancelJobGroup(self, group: str) -> None:
        assert group == self._group
        self.cancelled.set()


def test_job_that_moves_is_not_ended() -> None:
    """However slowly: a task runs, or one has ended, or none is left to be run."""
    now = [0.0]
    standstill = Standstill(10, lambda: now[0])

    def is_over(active: int | None, done: int, after_s: float) -> bool:
        now[0] += after_s
        stage = SimpleNamespace(numActiveTasks=active, numCompletedTasks=done)
        return standstill.is_over_bound([] if active is None else [stage])

    assert not is_over(1, 0, 100)
    assert not is_over(1, 0, 100)
    assert not is_over(0, 1, 100)
    assert not is_over(None, 0, 100)
    assert not is_over(0, 1, 9)
    assert not is_over(0, 2, 9)
    assert not is_over(0, 2, 9)
    assert is_over(0, 2, 2)


def test_job_whose_executors_are_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark waits for others as long as there are none; nothing is known of any replica then."""
    from pyspark.errors import PySparkException

    monkeypatch.setenv("DLEDGER_SPARK_WAIT", "0.1")
    context = FakeContext()

    def collect() -> None:
        with context.engine().jobs():
            assert context.cancelled.wait(60)
            raise PySparkException("Job 3 cancelled part of cancelled job group")

    with pytest.raises(EngineFailed, match="no executor runs anything") as caught:
        collect()
    assert (caught.value.exit_code, caught.value.retriable) == (ExitCode.INCOMPLETE, True)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (LACKS, "ModuleNotFoundError: No module named 'crc32c'"),
        (NO_START, "OSError: AF_UNIX path too long"),
    ],
)
def test_what_a_worker_lacks_is_said(told: str, said: str) -> None:
    """The last line of its traceback, not the first of Spark's words about it."""
    from pyspark.errors import PySparkException

    engine = FakeContext().engine()
    with pytest.raises(EngineUnavailable) as caught, engine.jobs():
        raise PySparkException(told)
    assert str(caught.value) == f"the Spark job failed: on a worker: {said}"


def test_python_is_reached_through_ports_where_no_socket_can_be_named() -> None:
    """YARN's folders for temporary files lie deeper than the 107 bytes of a Unix socket's name."""
    setting = "spark.python.unix.domain.socket.enabled"
    masters = ("yarn", "local[2]", "spark://h:7077")
    assert [session._settings_for(master)[setting] for master in masters] == [
        *("false", "true", "true")
    ]


@dataclass(frozen=True)
class Weighed:
    weight: int
    host: str | None = None


@pytest.mark.parametrize(
    ("count", "weight", "parallelism", "expected"),
    [
        (51, 48, 2, 2),  # of next to no work: one a core
        (51, 2 * MIB, 2, 4),  # of some: no more than keep the cores busy to the end
        (1, 0, 2, 1),
        (17, 192 * MIB, 2, 6),
        (17, 192 * MIB, 64, 17),
        (4_000, 192 * MIB, 64, 1_500),  # of a large log: parts that can be done again
        (1, 1 << 50, 8, 1),
    ],
)
def test_tasks_share_partitions_that_are_worth_their_while(
    count: int, weight: int, parallelism: int, expected: int
) -> None:
    """A partition costs what a segment of a cached log does."""
    assert partitions([Weighed(weight)] * count, parallelism) == expected

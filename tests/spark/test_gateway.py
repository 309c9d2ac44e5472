"""A JVM is started beside threads of gRPC's, which no fork may meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
from pyspark import java_gateway

from dledger.client.blocking import BlockingClient
from dledger.spark.gateway import spawn, without_forking
from dledger.testing import BlockingFakeGroup

STARTS = 30
FORKED: list[int] = []


def on_fork() -> None:
    """Runs in this process before each fork that runs handlers, as gRPC's do."""
    FORKED.append(os.getpid())


os.register_at_fork(before=on_fork)


def test_processes_start_while_a_client_sends() -> None:
    """With pyspark's way of starting them about one of six dies of gRPC's handlers."""
    before = len(FORKED)
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        with client.producer() as producer:
            for _ in range(STARTS):
                for _ in range(20):
                    producer.send(topic, b"x")
                told = {"stdin": subprocess.PIPE, "preexec_fn": on_fork}
                with spawn(["/bin/true"], **told) as process:
                    assert process.wait(60) == 0
    assert FORKED[before:] == []


def test_process_is_deaf_to_ctrl_c(tmp_path: Path) -> None:
    """As pyspark has it: Ctrl-C is for the driver, which ends its JVM itself."""
    code = f"import pathlib, sys; pathlib.Path({str(tmp_path / 'up')!r}).touch(); sys.stdin.read()"
    process = spawn([sys.executable, "-c", "import signal; " + code], stdin=subprocess.PIPE)
    while not (tmp_path / "up").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.poll() is None
    assert process.communicate(timeout=30)
    assert process.returncode == 0


def test_pyspark_starts_its_jvm_like_that_and_is_left_as_it_was() -> None:
    """The name that is replaced is the one that pyspark calls."""
    found: list[object] = [java_gateway.Popen]
    with without_forking():
        found.append(java_gateway.Popen)
    assert [*found, java_gateway.Popen] == [subprocess.Popen, spawn, subprocess.Popen]
    assert "Popen" in java_gateway.launch_gateway.__code__.co_names

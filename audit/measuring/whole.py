"""Whole audits beside what reading the same files costs: a mapped reader, `sha256sum`.

Figures of one process are of time on a processor, its children's included, so that what else the
machine does counts little; those of the command are of the clock. Nothing is kept.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from xxhash import xxh3_64_intdigest

from audit.engines.engine import Engine
from audit.measuring.process_tree import watched
from audit.proof.replicas import Options, audit_replicas
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from dledger.reading.chunks import LogRange
from dledger.reading.files import opened
from dledger.reading.ranges import log_ranges

COMMAND_TIMEOUT_S: Final = 120
_MEBI: Final = 1e6


def mapped_rate(replicas: Sequence[Replica]) -> float:
    """MB of log that a second of a processor hashes with XXH3-64 from a map of the files."""
    began, size = time.process_time(), 0
    for part in _parts(replicas):
        with _mapped(part) as content:
            xxh3_64_intdigest(content)
            size += len(content)
    return size / _MEBI / (time.process_time() - began)


def sha256_rate(replicas: Sequence[Replica]) -> float:
    """The same with SHA-256, as `sha256sum` computes it; by OpenSSL, as its own process would."""
    began, size = time.process_time(), 0
    for part in _parts(replicas):
        with _mapped(part) as content:
            hashlib.sha256(content)
            size += len(content)
    return size / _MEBI / (time.process_time() - began)


def audit_rate(replicas: list[Replica], engine: Engine, options: Options) -> float:
    """MB of log, all replicas', that a second of a processor audits from end to end."""
    began = time.process_time()
    size = _audited(replicas, engine, options)
    return size / _MEBI / (time.process_time() - began)


def wall_rate(replicas: list[Replica], engine: Engine, options: Options) -> float:
    """MB of log, all replicas', that are audited in a second of the clock."""
    began = time.perf_counter()
    size = _audited(replicas, engine, options)
    return size / _MEBI / (time.perf_counter() - began)


def run_command(replicas: Sequence[Replica], *arguments: str) -> tuple[float, int]:
    """Seconds that `dledger audit replicas` takes, and the most memory that all its processes
    had.

    Raises:
        AssertionError: it didn't find the replicas equal.
    """
    named = [part for each in replicas for part in ("--replica", f"{each.id}={each.path}")]
    command = [sys.executable, "-P", "-m", "dledger_cli", "audit", "replicas", "--json"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, *named, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            with watched(process.pid) as peak:
                _, said = process.communicate(timeout=COMMAND_TIMEOUT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # Its JVM and workers too.
            raise
    if process.returncode:
        raise AssertionError(f"equal replicas ended with {process.returncode}: {said[-500:]}")
    return time.perf_counter() - began, peak.resident_bytes


def _audited(replicas: list[Replica], engine: Engine, options: Options) -> int:
    """Bytes that an audit has found equal.

    Raises:
        AssertionError: it found something else.
    """
    report = audit_replicas(replicas, engine, options).report
    if report.findings:
        raise AssertionError(f"equal replicas were found to be {report.verdict}")
    return report.timings.digested_bytes


def _parts(replicas: Sequence[Replica]) -> Iterator[LogRange]:
    for replica in replicas:
        log = committed_log(replica)
        yield from log_ranges(log, 0, log.settled)


@contextmanager
def _mapped(part: LogRange) -> Iterator[memoryview]:
    """The range's bytes; the sample's files are cut by nobody."""
    with (
        opened(part.path) as descriptor,
        mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as content,
        memoryview(content) as whole,
        whole[part.start - part.base : part.end - part.base] as piece,
    ):
        yield piece

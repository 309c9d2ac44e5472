"""Reading what nodes tell of themselves: metrics as Prometheus writes them, and /proc."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from dledger_cli.bench.node_watch import (
    LATENESS,
    NodeMetricsSample,
    greatest_lateness_bound,
    parse_metrics,
    process_use,
)


def sample_of(*lateness_s: float) -> NodeMetricsSample:
    """What a node says after ticks that were so late."""
    registry = CollectorRegistry()
    gauge = Gauge("dledger_term", "t", ["broker_group", "node"], registry=registry)
    gauge.labels("local", "n1").set(7)
    peer = Gauge("dledger_peer_connected", "p", ["broker_group", "node", "peer"], registry=registry)
    peer.labels("local", "n1", "n2").set(1)
    histogram = Histogram(LATENESS, "l", buckets=(0.001, 0.01, 0.1), registry=registry)
    for value in lateness_s:
        histogram.observe(value)
    return parse_metrics(generate_latest(registry).decode())


def test_values_of_the_node_are_read_and_those_of_its_peers_left() -> None:
    """A label beside broker group and node would make one name mean several values."""
    sample = sample_of(0.0005)
    assert sample.values["dledger_term"] == 7
    assert "dledger_peer_connected" not in sample.values


def test_lateness_is_that_of_the_worst_tick_of_any_node_in_between() -> None:
    """What had happened before the load doesn't count, and the worst node decides."""
    before = [sample_of(5.0, 0.0005), sample_of(0.0005)]
    after = [sample_of(5.0, 0.0005, 0.0006), sample_of(0.0005, 0.02, 0.0001)]
    assert greatest_lateness_bound(before, after) == 0.1
    assert greatest_lateness_bound(before, before) == 0.0


def test_lateness_beyond_every_bucket_has_no_bound() -> None:
    """It must not look like the greatest bucket."""
    assert greatest_lateness_bound([sample_of()], [sample_of(5.0)]) == float("inf")


def test_a_process_tells_its_memory_and_time() -> None:
    """Our own: a Python interpreter has some megabytes and has run for a while."""
    use = process_use(os.getpid())
    assert use is not None
    assert 1 << 20 < use.anonymous_bytes < use.resident_bytes
    assert use.cpu_s > 0


@pytest.mark.parametrize("reaped", [False, True])
def test_a_process_that_is_over_has_no_use(reaped: bool) -> None:
    """Neither a zombie nor a process that is gone: it is missing, not small."""
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read() == b""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        process.wait()
    assert process_use(process.pid) is None
    process.stdout.close()
    process.wait()

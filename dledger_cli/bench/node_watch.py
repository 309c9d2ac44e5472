"""What a local group's processes use: memory, processor time, lateness, bytes of traffic.

Memory and processor time come from /proc, the rest from the nodes' metrics endpoints. This only
looks: a node that is down is missing from the answer. It blocks for a few milliseconds a node;
call it between rounds, or from a thread.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from broker.local_group import LocalNode

METRICS_TIMEOUT_S = 5.0
LATENESS = "dledger_loop_lateness_seconds"
KIB = 1024


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process has used until now. Memory in bytes, time in seconds."""

    resident_bytes: int  # shared file pages included
    anonymous_bytes: int  # of them, what is the program's own
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """A Prometheus histogram: (upper bound, count of observations up to it), ascending."""

    buckets: tuple[tuple[float, float], ...]

    def bound_of_greatest_since(self, earlier: Histogram) -> float:
        """The bound of the highest bucket that got an observation since `earlier`; 0 if none.

        Raises:
            ValueError: the two have other buckets.
        """
        greatest = 0.0
        counted = 0.0
        for (bound, now), (_, before) in zip(self.buckets, earlier.buckets, strict=True):
            if now - before > counted:
                greatest, counted = bound, now - before
        return greatest


@dataclass(frozen=True, slots=True)
class NodeMetricsSample:
    """One reading of a node's metrics: plain values by name, and its lateness."""

    values: dict[str, float]
    lateness: Histogram


def process_use(pid: int) -> ProcessUse | None:
    """What the process has used; None when there is none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    sizes = dict(line.split(":", 1) for line in status.splitlines() if line.endswith(" kB"))
    if "VmRSS" not in sizes:  # a zombie has no memory any more
        return None
    # Fields 14 and 15, counted behind the name in brackets, which may hold spaces.
    fields = stat.rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ProcessUse(
        resident_bytes=int(sizes["VmRSS"].split()[0]) * KIB,
        anonymous_bytes=int(sizes["RssAnon"].split()[0]) * KIB,
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
    )


def uses_of(nodes: Iterable[LocalNode]) -> dict[str, ProcessUse]:
    """Node id -> what its process has used, for the nodes that run."""
    found = {node.id: process_use(node.pid) for node in nodes if node.pid is not None}
    return {node_id: use for node_id, use in found.items() if use is not None}


def metrics_of(node: LocalNode) -> NodeMetricsSample:
    """What the node's metrics endpoint says now; it blocks.

    Raises:
        OSError: it doesn't answer.
    """
    url = f"http://{node.metrics_address}/metrics"
    with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
        return parse_metrics(answer.read().decode("utf-8"))


def parse_metrics(text: str) -> NodeMetricsSample:
    """Prometheus' text format; of labelled values the node's own, and of histograms lateness."""
    values: dict[str, float] = {}
    buckets: list[tuple[float, float]] = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"{LATENESS}_bucket":
                buckets.append((float(sample.labels["le"]), sample.value))
            elif set(sample.labels) <= {"broker_group", "node"}:
                values[sample.name] = sample.value
    return NodeMetricsSample(values, Histogram(tuple(sorted(buckets))))


def greatest_lateness_bound(
    before: Sequence[NodeMetricsSample], after: Sequence[NodeMetricsSample]
) -> float:
    """Seconds that no tick of any node was later than, between two readings of each node."""
    pairs = zip(before, after, strict=True)
    return max(now.lateness.bound_of_greatest_since(then.lateness) for then, now in pairs)

"""Prometheus metrics of a node.

Counters that the parts keep are read from their frozen `statistics()` when Prometheus asks
(`NodeCollector`), so the hot path pays for an integer addition at most. Latencies that only the
event can measure are histograms, observed once per request or per flush, never per message.
The endpoint runs in its own thread; pictures are taken on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from broker.loop_watch import LoopWatch
from dledger.core.types import Role
from dledger.endpoint import Endpoint

LABELS = ("broker_group", "node")
LATENCY_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip


class NodeMetrics:
    """The histograms and event counts of one node, in a registry of its own."""

    def __init__(self, broker_group: str, node: str) -> None:
        self.registry = CollectorRegistry()
        # Open files beside how many there may be; read when asked, in the endpoint's thread.
        ProcessCollector(registry=self.registry)
        # One more series for each series, of no use here.
        disable_created_metrics()  # type: ignore[no-untyped-call]

        def latency(name: str, text: str) -> Histogram:
            family = Histogram(name, text, LABELS, buckets=LATENCY_BUCKETS, registry=self.registry)
            return family.labels(broker_group, node)

        self.send_seconds = latency(
            "dledger_send_seconds", "From a Send's arrival to its answer: append, fsync, quorum."
        )
        self.append_seconds = latency(
            "dledger_append_seconds", "Checking, stamping and proposing the batches of a Send."
        )
        self.commit_seconds = latency(
            "dledger_commit_seconds", "From a proposal to its commit, sampled, on the leader."
        )
        self.apply_seconds = latency(
            "dledger_apply_seconds", "Applying one slice of committed entries."
        )
        self.loop_lateness_seconds = LoopWatch(
            latency("dledger_loop_lateness_seconds", "How late a tick of the event loop came."),
            latency(
                "dledger_loop_turn_seconds",
                "Processor time of the event loop between two ticks; no turn was longer.",
            ),
        )

    def serve(self, collector: NodeCollector, host: str, port: int) -> Callable[[], None]:
        """Answers on http://host:port/metrics until the returned function is called.

        Raises:
            OSError: the address can't be used.
        """
        self.registry.register(collector)
        endpoint = Endpoint(lambda: (CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self.registry)))
        endpoint.open(host, port)
        return endpoint.close


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A picture of a node: name without prefix -> (help text, value)."""

    role: Role
    gauges: dict[str, tuple[str, float]]
    counters: dict[str, tuple[str, float]]
    peers: dict[str, tuple[str, dict[str, float]]]


class NodeCollector(Collector):
    """Reads the parts' statistics when asked."""

    def __init__(self, facts: Callable[[], NodeFacts], broker_group: str, node: str) -> None:
        self._facts = facts
        self._labels = list(LABELS)
        self._values = [broker_group, node]

    def describe(self) -> list[Metric]:
        """Nothing: asking for it must not need a running node."""
        return []

    def collect(self) -> Iterator[Metric]:
        facts = self._facts()
        for name, (text, value) in facts.gauges.items():
            gauge = GaugeMetricFamily(f"dledger_{name}", text, labels=self._labels)
            gauge.add_metric(self._values, value)
            yield gauge
        for name, (text, value) in facts.counters.items():
            counter = CounterMetricFamily(f"dledger_{name}", text, labels=self._labels)
            counter.add_metric(self._values, value)
            yield counter
        role = GaugeMetricFamily(
            "dledger_role", "1 for the role the node is in.", labels=[*self._labels, "role"]
        )
        for each in Role:
            role.add_metric([*self._values, each.value], float(each is facts.role))
        yield role
        for name, (text, by_peer) in facts.peers.items():
            family = GaugeMetricFamily(f"dledger_{name}", text, labels=[*self._labels, "peer"])
            for peer, value in by_peer.items():
                family.add_metric([*self._values, peer], value)
            yield family

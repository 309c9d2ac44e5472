"""Metrics of a node that takes no part: it stands by, is out of service, or its log has gaps.

A member's metrics are of its replica (`broker.metrics`), and such a node has none. What it has to
say is that it is what it is, so that whoever watches sees a node in need, and not one that can't be
reached.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from broker.config import NodeConfig
from broker.metrics import LABELS
from dledger.addresses import split_address
from dledger.endpoint import Endpoint
from dledger.listening import why_not_listening


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure; `name` without the prefix."""

    name: str
    text: str
    value: float


def serve_gauges(
    open_things: contextlib.AsyncExitStack, config: NodeConfig, read: Callable[[], Iterable[Gauge]]
) -> None:
    """They are told at `metrics_listen`, if there is one, until `open_things` are closed.

    Args:
        read: called in the endpoint's thread, each time somebody asks.

    Raises:
        OSError: the address can't be used.
    """
    if config.metrics_listen is None:
        return
    registry = CollectorRegistry()
    registry.register(_Gauges(config, read))
    endpoint = Endpoint(lambda: (CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)))
    try:
        endpoint.open(*split_address(config.metrics_listen))
    except OSError as error:
        reason = why_not_listening(config.metrics_listen) or str(error)
        raise OSError(f"can't listen on {config.metrics_listen} for metrics: {reason}") from error
    open_things.push_async_callback(asyncio.to_thread, endpoint.close)


class _Gauges(Collector):
    def __init__(self, config: NodeConfig, read: Callable[[], Iterable[Gauge]]) -> None:
        self._values = [config.broker_group, config.node_id]
        self._read = read

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for each in self._read():
            family = GaugeMetricFamily(f"dledger_{each.name}", each.text, labels=list(LABELS))
            family.add_metric(self._values, each.value)
            yield family

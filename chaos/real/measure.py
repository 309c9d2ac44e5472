"""From what a run left to the facts that its report shows.

This computes and formats nothing. Facts are plain values that go into `report.json` as they are,
so a report can be drawn again later and compared by other programs. Silences are measured between
acknowledgements as the producers saw them, failovers from just before the signal to the first
acknowledgement that another node stamped: an answer of the dead leader that is still under way
doesn't count.
"""

from __future__ import annotations

import math
import os
import platform
import socket
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from chaos.checkers.anomalies import Anomaly
from chaos.checkers.history import History, Send
from chaos.real.finished import POWER_CUT, Band, Finished
from chaos.real.watch import Span
from chaos.real.weaker import PowerCut
from chaos.real.workload import Acknowledgements
from dledger.addresses import split_address
from dledger.history import Outcome
from dledger.records.message_id import encode_host
from dledger.terminal.figures import percentile

FORMAT: Final = "dledger-chaos-report/1"
MAX_SLICES: Final = 600  # of the series: about one a pixel column of a wide screen
SLICES_MS: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
LISTED_ANOMALIES: Final = 200
PLANNED: Final = frozenset({"transfer", "terminate"})  # after these nobody should wait long


@dataclass(frozen=True, slots=True)
class Slices:
    """The run in equal slices of time: what was acknowledged in each, and how fast."""

    slice_ms: int
    acknowledged: list[int]
    p50_ms: list[float | None]
    p99_ms: list[float | None]


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing, in milliseconds."""

    count: int
    min: float
    median: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None if there are none."""
        if not values:
            return None
        ordered = sorted(values)
        return cls(
            len(ordered),
            round(ordered[0], 1),
            round(percentile(ordered, 0.5), 1),
            round(percentile(ordered, 0.99), 1),
            round(ordered[-1], 1),
        )


def report_facts(finished: Finished) -> dict[str, Any]:
    """Everything that a report shows."""
    options = finished.options
    acks = finished.acknowledged
    bands = [_band_facts(band, finished) for band in finished.bands]
    failovers = [band["failover_ms"] for band in bands if band["failover_ms"] is not None]
    planned = [
        silence
        for band in finished.bands
        if band.struck_us is not None and _is_planned_change(band, options.nodes)
        if (silence := silence_ms(acks, band.start_us, band.struck_us)) is not None
    ]
    return {
        "format": FORMAT,
        "scenario": options.scenario.name,
        "summary": options.scenario.summary,
        "seed": options.seed,
        "nodes": options.nodes,
        "seconds": options.seconds,
        "flush": options.flush,
        "load": asdict(options.load),
        "retain_bytes": options.scenario.retain_bytes,
        "holds": finished.holds,
        "duration_s": round(finished.ended_us / 1e6, 3),
        "counts": counts(finished),
        "history_events": event_count(finished.history),
        "sends": send_counts(finished.history),
        **anomaly_facts(finished.anomalies),
        "problems": finished.problems,
        "remarks": finished.remarks,
        "undecided": finished.undecided,
        "errors": finished.errors,
        "deliveries": finished.deliveries,
        "latency_ms": asdict(spread)
        if (spread := Spread.of([each / 1000 for each in acks.latency_us]))
        else None,
        "failover_ms": asdict(spread) if (spread := Spread.of(failovers)) else None,
        "planned_silence_ms": asdict(spread) if (spread := Spread.of(planned)) else None,
        "faults_began_ms": finished.faults_began_us // 1000,
        "healed_ms": finished.healed_us // 1000,
        "bands": bands,
        "skipped": dict(Counter(nemesis for nemesis, _ in finished.skipped)),
        "spans": {
            node_id: _span_facts(spans, finished.ended_us)
            for node_id, spans in sorted(finished.spans.items())
        },
        "series": asdict(slices(acks, finished.ended_us)),
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
        },
    }


def anomaly_facts(anomalies: Sequence[Anomaly]) -> dict[str, Any]:
    """What was found in the history; the first ones in full."""
    return {
        "anomalies": [
            {"name": each.name, "where": each.where, "detail": each.detail}
            for each in anomalies[:LISTED_ANOMALIES]
        ],
        "anomaly_counts": dict(_by_name(anomalies)),
    }


def _by_name(anomalies: Sequence[Anomaly]) -> Counter[str]:
    """How many there are, those that nobody shows included."""
    named: Counter[str] = Counter()
    for each in anomalies:
        named[each.name] += each.count
    return named


def power_cuts(facts: Mapping[str, Any]) -> list[PowerCut]:
    """The power cuts of a report's run that its mode of flushing may lose something in."""
    if facts.get("flush") != "async":
        return []
    return [
        PowerCut(1000 * band["start_ms"], 1000 * (band.get("struck_ms") or band["start_ms"]) + 999)
        for band in facts["bands"]
        if band["nemesis"] == POWER_CUT
    ]


def event_count(history: History) -> int:
    """How many lines the history has in a file: fewer, and it was cut short."""
    ended = sum(operation.completed_us is not None for operation in history.operations)
    return len(history.operations) + ended


def send_counts(history: History) -> dict[str, int]:
    """What became of the messages that producers sent."""
    outcomes: Counter[Outcome] = Counter()
    for operation in history.operations:
        if isinstance(operation.action, Send):
            outcomes[operation.outcome] += len(operation.action.values)
    return {
        "sent": outcomes.total(),
        "acknowledged": outcomes[Outcome.OK],
        "failed": outcomes[Outcome.FAIL],
        "unknown": outcomes[Outcome.UNKNOWN],
    }


def counts(finished: Finished) -> dict[str, int]:
    """How many of each kind of trouble; the first three are what people ask for."""
    named = _by_name(finished.anomalies)
    return {
        "lost": max(finished.lost, named["lost-write"] + named["unseen"]),
        "duplicated": named["duplicate"],
        "out_of_order": named["nonmonotonic-send"],
        "anomalies": named.total(),
        "problems": len(finished.problems),
        "permitted": len(finished.excused),
        "operations": len(finished.history.operations),
        "faults": len(finished.bands),
    }


def store_host(address: str) -> bytes:
    """What a leader at that address stamps into records: IPv4, then the port, big-endian."""
    host, port = split_address(address)
    return encode_host((socket.gethostbyname(host), port))


def failover_ms(
    band: Band,
    bands: Sequence[Band],
    acks: Acknowledgements,
    addresses: Mapping[str, str],
) -> float | None:
    """From the strike at a leader to the first acknowledgement by another; None if the band hit
    no leader, if none followed, or if another fault was on meanwhile, which would be measured
    with it."""
    if band.deposed is None:
        return None
    old = store_host(addresses[band.deposed])
    for at in range(bisect_left(acks.at_us, band.start_us), len(acks.at_us)):
        if acks.host[at] != old:
            alone = not any(
                other is not band and _overlaps(other, band.start_us, acks.at_us[at])
                for other in bands
            )
            return (acks.at_us[at] - band.start_us) / 1000 if alone else None
    return None


def _is_planned_change(band: Band, nodes: int) -> bool:
    """Whether somebody else could take over: of a group that is stopped as a whole nobody can."""
    return band.nemesis in PLANNED and len(band.victims) <= (nodes - 1) // 2


def _overlaps(band: Band, start_us: int, end_us: int) -> bool:
    return band.start_us < end_us and (band.end_us is None or band.end_us > start_us)


def silence_ms(acks: Acknowledgements, start_us: int, end_us: int) -> float | None:
    """The longest time between two acknowledgements, of which the second is later than
    `start_us` and the first earlier than `end_us`; None without acknowledgements around."""
    first = max(0, bisect_left(acks.at_us, start_us) - 1)
    last = min(len(acks.at_us), bisect_left(acks.at_us, end_us) + 1)
    gaps = [acks.at_us[i + 1] - acks.at_us[i] for i in range(first, last - 1)]
    return max(gaps) / 1000 if gaps else None


def slices(acks: Acknowledgements, end_us: int) -> Slices:
    """The acknowledgements by slices of time, as fine as fits `MAX_SLICES`."""
    slice_ms = next((each for each in SLICES_MS if end_us / 1000 / each <= MAX_SLICES), 60_000)
    count = max(1, math.ceil(end_us / 1000 / slice_ms))
    latencies: list[list[float]] = [[] for _ in range(count)]
    for at_us, latency_us in zip(acks.at_us, acks.latency_us, strict=True):
        latencies[min(count - 1, at_us // 1000 // slice_ms)].append(latency_us / 1000)
    ordered = [sorted(each) for each in latencies]
    return Slices(
        slice_ms,
        [len(each) for each in ordered],
        [round(percentile(each, 0.5), 1) if each else None for each in ordered],
        [round(percentile(each, 0.99), 1) if each else None for each in ordered],
    )


def _band_facts(band: Band, finished: Finished) -> dict[str, Any]:
    acks = finished.acknowledged
    end_us = finished.ended_us if band.end_us is None else band.end_us
    failover = failover_ms(band, finished.bands, acks, finished.addresses)
    silence = silence_ms(acks, band.start_us, end_us)
    return {
        "nemesis": band.nemesis,
        "victims": list(band.victims),
        "start_ms": band.start_us // 1000,
        "struck_ms": None if band.struck_us is None else band.struck_us // 1000,
        "end_ms": end_us // 1000,
        "detail": band.detail,
        "deposed": band.deposed,
        "failover_ms": None if failover is None else round(failover, 1),
        "silence_ms": None if silence is None else round(silence, 1),
    }


def _span_facts(spans: Sequence[Span], end_us: int) -> list[dict[str, Any]]:
    ends = [span.start_us for span in spans[1:]] + [end_us]
    return [
        {
            "start_ms": span.start_us // 1000,
            "end_ms": end // 1000,
            "role": span.role,
            "term": span.term,
        }
        for span, end in zip(spans, ends, strict=True)
        if span.start_us < end_us
    ]

"""`bench produce`: messages a second, and the latency of a single one, with a future each.

Cases run in turn within each round, against the same topic and with one producer. Beside the
promises this reports where processor time went, since on a small machine the rate is nothing
else: microseconds a message in this process, in the leader, and in a follower.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from dledger.client import Client, Producer
from dledger.terminal.figures import percentile
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.load import Throughput, one_at_a_time, saturate
from dledger_cli.bench.node_watch import uses_of
from dledger_cli.bench.rounds import MS, Tell, Yardsticks, in_ms
from dledger_cli.bench.yardsticks import echo_client

WARM_UP_SECONDS = 1.0
MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Case:
    """A body's size and how many messages are outstanding at once."""

    size_bytes: int
    in_flight: int

    @property
    def name(self) -> str:
        """How the case is called in reports."""
        return f"{self.size_bytes}B_x{self.in_flight}"

    @property
    def target(self) -> Target | None:
        """What was promised of it: of the rate, or for one in flight of the median latency."""
        return PROMISES.get(self)


PROMISES = {
    Case(1024, 512): Target(Comparison.AT_LEAST, 4),
    Case(128, 512): Target(Comparison.AT_LEAST, 9),
    Case(1024, 1): Target(Comparison.AT_MOST, 4),
}


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds of processor time used until a moment, by who used them."""

    client_s: float
    leader_s: float
    followers_s: float  # the mean of them

    def since(self, before: ProcessorTime) -> ProcessorTime:
        """What was used in between."""
        return ProcessorTime(
            self.client_s - before.client_s,
            self.leader_s - before.leader_s,
            self.followers_s - before.followers_s,
        )


@dataclass(slots=True)
class CaseRounds:
    """What one case gave, round by round."""

    case: Case
    rounds: list[Throughput] = field(default_factory=list)
    processor: list[ProcessorTime] = field(default_factory=list)


async def produce(
    place: Arena,
    echo_address: str,
    cases: Sequence[Case],
    *,
    seconds: float,
    rounds: int,
    tell: Tell,
) -> Report:
    """Measures every case for `seconds` in all, spread over `rounds`."""
    taken = [CaseRounds(case) for case in cases]
    async with (
        connected(place) as client,
        fresh_topic(place, client) as topic,
        client.producer() as producer,
        echo_client(echo_address) as echo,
    ):
        yardsticks = Yardsticks(echo, place.directory, tell)
        for case in cases:
            await load(producer, topic, case, WARM_UP_SECONDS)

        async def one_round() -> None:
            for each in taken:
                before = await processor_time(place, client)
                got = await load(producer, topic, each.case, seconds / rounds)
                after = await processor_time(place, client)
                each.rounds.append(got)
                if before is not None and after is not None:
                    each.processor.append(after.since(before))

        await yardsticks.around(rounds, one_round)
    figures = [figure for each in taken for figure in figures_of(each, yardsticks)]
    failed = sum(got.failed for each in taken for got in each.rounds)
    none_failed = Target(Comparison.AT_MOST, 0, must=True)
    figures.append(Figure("failed", "msgs", Spread.of([failed]), target=none_failed))
    return Report(
        "produce",
        {"seconds": seconds, "rounds": rounds},
        yardsticks.figures(),
        tuple(figures),
        ("B_x: bytes of a body x messages in flight; cpu: µs of processor time a message",),
    )


async def load(producer: Producer, topic: str, case: Case, seconds: float) -> Throughput:
    """What the case gives in that time."""
    body = bytes(case.size_bytes)
    if case.in_flight == 1:
        return await one_at_a_time(producer, topic, body, seconds=seconds)
    return await saturate(producer, topic, body, in_flight=case.in_flight, seconds=seconds)


async def processor_time(place: Arena, client: Client) -> ProcessorTime | None:
    """Used so far; None where the nodes' processes are not at hand."""
    if place.group is None:
        return None
    leader = (await place.group.status()).leader
    uses = uses_of(place.group.nodes)
    if leader not in uses:
        return None
    others = [use.cpu_s for node_id, use in uses.items() if node_id != leader]
    mean = sum(others) / len(others) if others else 0.0
    return ProcessorTime(time.process_time(), uses[leader].cpu_s, mean)


def figures_of(each: CaseRounds, yardsticks: Yardsticks) -> list[Figure]:
    """All that the rounds of a case say."""
    case = each.case
    ordered = [sorted(got.latencies_s) for got in each.rounds]
    p50 = [percentile(latencies, 0.5) for latencies in ordered]
    p99 = [percentile(latencies, 0.99) for latencies in ordered]
    if case.in_flight == 1:
        figures = [yardsticks.against_p50(f"{case.name}_p50", p50, case.target)]
    else:
        rates = [got.per_second for got in each.rounds]
        megabytes = Spread.of([rate * case.size_bytes / 1e6 for rate in rates])
        figures = [
            yardsticks.against_rate(f"{case.name}_rate", rates, case.target),
            Figure(f"{case.name}_bytes", "MB/s", megabytes),
            Figure(f"{case.name}_p50", "ms", in_ms(p50)),
        ]
    figures.append(Figure(f"{case.name}_p99", "ms", in_ms(p99)))
    figures.append(Figure(f"{case.name}_max", "ms", Spread.of([max(o) * MS for o in ordered])))
    return figures + _processor_figures(each)


def _processor_figures(each: CaseRounds) -> list[Figure]:
    if not each.processor:
        return []
    per_message = [
        (used, MICROSECONDS / max(got.acknowledged, 1))
        for used, got in zip(each.processor, each.rounds, strict=True)
    ]
    by_who = {
        "client": [used.client_s * scale for used, scale in per_message],
        "leader": [used.leader_s * scale for used, scale in per_message],
        "follower": [used.followers_s * scale for used, scale in per_message],
    }
    return [
        Figure(f"{each.case.name}_cpu_{who}", "µs/msg", Spread.of(values))
        for who, values in by_who.items()
    ]

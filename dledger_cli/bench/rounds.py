"""Rounds: a load and its yardsticks in turn, so that both see the same machine.

A machine that others use is now fast, now slow. The yardstick is taken before the first round
and after each; `dledger_cli.bench.figures.ratios` sets each round against its two neighbours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from dledger_cli.bench.figures import Figure, Spread, Target, ratios
from dledger_cli.bench.yardsticks import DiskSample, Echo, EchoSample, sample_disk, sample_echo

ECHO_SECONDS = 1.0
SETTLE_S = 0.5  # after a load: nodes still flush and preallocate, which would slow the yardsticks
ECHO_RATE = "echo_rate"
ECHO_P50 = "echo_p50"
MS = 1000

Tell = Callable[[str], None]


@dataclass(slots=True)
class Yardsticks:
    """The yardsticks of one run, round by round."""

    echo: Echo
    directory: Path | None  # where the disk is measured, if it is
    tell: Tell
    echo_seconds: float = ECHO_SECONDS
    echoes: list[EchoSample] = field(default_factory=list)
    disks: list[DiskSample] = field(default_factory=list)

    async def sample(self) -> None:
        """One more round of each."""
        await asyncio.sleep(SETTLE_S)
        self.echoes.append(await sample_echo(self.echo, self.echo_seconds))
        if self.directory is not None:
            self.disks.append(sample_disk(self.directory))

    async def around(self, rounds: int, one: Callable[[], Awaitable[None]]) -> None:
        """Runs `one` that many times, with a round of the yardsticks before and after each."""
        self.tell("yardsticks")
        await self.sample()
        for number in range(1, rounds + 1):
            self.tell(f"round {number} of {rounds}")
            await one()
            self.tell("yardsticks")
            await self.sample()

    def against_rate(self, name: str, per_second: list[float], target: Target | None) -> Figure:
        """A figure of messages a second, beside the echo's calls a second."""
        ratio = ratios(per_second, [echo.calls_per_s for echo in self.echoes])
        return Figure(name, "msgs/s", Spread.of(per_second), ECHO_RATE, ratio, target)

    def against_p50(self, name: str, seconds: list[float], target: Target | None) -> Figure:
        """A latency, beside the echo's median with one call in flight."""
        ratio = ratios(seconds, [echo.p50_s for echo in self.echoes])
        return Figure(name, "ms", in_ms(seconds), ECHO_P50, ratio, target)

    def figures(self) -> tuple[Figure, ...]:
        """The yardsticks themselves."""
        echoes, disks = self.echoes, self.disks
        found = [
            Figure(ECHO_RATE, "calls/s", Spread.of([echo.calls_per_s for echo in echoes])),
            Figure(ECHO_P50, "ms", in_ms([echo.p50_s for echo in echoes])),
        ]
        if disks:
            found += [
                Figure("disk_rate", "writes/s", Spread.of([disk.appends_per_s for disk in disks])),
                Figure("disk_p50", "ms", in_ms([disk.p50_s for disk in disks])),
                Figure("disk_p99", "ms", in_ms([disk.p99_s for disk in disks])),
            ]
        return tuple(found)


def in_ms(seconds: list[float]) -> Spread:
    """The same in milliseconds."""
    return Spread.of([value * MS for value in seconds])

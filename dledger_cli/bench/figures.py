"""What a benchmark found: figures with their spread, targets, and the report that holds them.

Pure values: this measures nothing and prints nothing. A figure is measured in several rounds and
given as least, median and greatest, because on a shared machine one round says little. Where it
has a yardstick, the ratio is taken round by round, against the yardstick's rounds just before
and just after, so that a machine that slows down for a while slows both sides.

The report's JSON (`--json`), `"format": "dledger-bench/1"`:

    {"format", "benchmark": "produce",
     "machine": {"cpus", "cpu", "kernel", "python", "grpcio", "file_system", "event_loop"},
     "parameters": {name: value},
     "yardsticks": [figure], "figures": [figure], "notes": [text],
     "holds": bool,           # every target that must be met is
     "targets_reached": bool} # every target is

    figure: {"name", "unit", "min", "median", "max", "rounds": [number],
             "yardstick": name or null,
             "ratio": {"min", "median", "max", "rounds"} or null,
             "target": {"comparison": "at_least" | "at_most", "bound",
                        "of": "ratio" | "value", "must": bool} or null,
             "reached": bool or null}

A figure is judged by its median. A latency's yardstick is a latency: its ratio is better small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, median
from typing import assert_never

FORMAT = "dledger-bench/1"


class Comparison(Enum):
    """On which side of its bound a figure should be."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"


@dataclass(frozen=True, slots=True)
class Target:
    """A bound from the project's promises. `must`: missing it is a failure, not a slow day."""

    comparison: Comparison
    bound: float
    must: bool = False

    def is_reached_by(self, value: float) -> bool:
        """Whether `value` is on the right side; the bound itself is."""
        match self.comparison:
            case Comparison.AT_LEAST:
                return value >= self.bound
            case Comparison.AT_MOST:
                return value <= self.bound
            case _:
                assert_never(self.comparison)


@dataclass(frozen=True, slots=True)
class Spread:
    """The rounds of one measurement, in the order in which they were taken."""

    rounds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ValueError("a spread needs at least one round")

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Spread:
        """The spread of `rounds`, at least one."""
        return cls(tuple(rounds))

    @property
    def minimum(self) -> float:
        """The least round."""
        return min(self.rounds)

    @property
    def median(self) -> float:
        """The middle round, or the mean of the two middle ones."""
        return median(self.rounds)

    @property
    def maximum(self) -> float:
        """The greatest round."""
        return max(self.rounds)

    def facts(self) -> dict[str, object]:
        """Its part of a figure's JSON."""
        return {
            "min": self.minimum,
            "median": self.median,
            "max": self.maximum,
            "rounds": list(self.rounds),
        }


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing. `ratio` is to the yardstick of that name in the same report.

    A target is for the ratio where there is one, and for the value itself otherwise.
    """

    name: str
    unit: str
    spread: Spread
    yardstick: str | None = None
    ratio: Spread | None = None
    target: Target | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the target is; None without one."""
        if self.target is None:
            return None
        return self.target.is_reached_by((self.ratio or self.spread).median)

    def facts(self) -> dict[str, object]:
        """The figure's JSON object."""
        target = self.target and {
            "comparison": self.target.comparison.value,
            "bound": self.target.bound,
            "of": "value" if self.ratio is None else "ratio",
            "must": self.target.must,
        }
        return {
            "name": self.name,
            "unit": self.unit,
            **self.spread.facts(),
            "yardstick": self.yardstick,
            "ratio": self.ratio and self.ratio.facts(),
            "target": target,
            "reached": self.reached,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All that one benchmark found."""

    benchmark: str
    parameters: dict[str, str | int | float]
    yardsticks: tuple[Figure, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every target is met that must be."""
        return not any(
            figure.target and figure.target.must and not figure.reached for figure in self.figures
        )

    @property
    def targets_reached(self) -> bool:
        """Whether every target is met."""
        return all(figure.reached is not False for figure in self.figures)

    def facts(self, machine: dict[str, str | int]) -> dict[str, object]:
        """The report's JSON object."""
        return {
            "format": FORMAT,
            "benchmark": self.benchmark,
            "machine": machine,
            "parameters": self.parameters,
            "yardsticks": [figure.facts() for figure in self.yardsticks],
            "figures": [figure.facts() for figure in self.figures],
            "notes": list(self.notes),
            "holds": self.holds,
            "targets_reached": self.targets_reached,
        }


def ratios(values: Sequence[float], yardstick: Sequence[float]) -> Spread:
    """Each round's value over the mean of the yardstick's rounds before and after it.

    Args:
        values: one a round.
        yardstick: one more than there are values: round `i` lies between `i` and `i + 1`.

    Raises:
        ValueError: the numbers of rounds don't fit.
    """
    if len(yardstick) != len(values) + 1:
        raise ValueError(f"{len(values)} rounds lie between {len(yardstick)} of the yardstick")
    return Spread.of([value / fmean(yardstick[at : at + 2]) for at, value in enumerate(values)])

"""What a run has left, and what is wrong with it: the history, the faults, the findings.

Everything that is judged after a run is judged here, once: by what clients saw, by what groups'
members did, and by whether there was anything to judge. A run in which no message was acknowledged,
or that hit nobody, holds for nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.local_group import FlushName
from chaos.checkers.anomalies import Anomaly
from chaos.checkers.history import History
from chaos.real.crew import BOOKS_FOLDER, read_deliveries
from chaos.real.deliveries import Fault, check_deliveries
from chaos.real.reading import Retained, missing_at_the_end
from chaos.real.scenario import Load, Scenario, Step, Strike
from chaos.real.verdict import ending, judge, unanswered, untested
from chaos.real.watch import Span
from chaos.real.weaker import PowerCut, may_be_lost
from chaos.real.workload import Acknowledgements
from dledger.outcome import ExitCode

POWER_CUT: Final = "power-cut"  # the nemesis that `flush = "async"` may lose messages to


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is run. `directory` gets the history and, below it, the group."""

    scenario: Scenario
    steps: tuple[Step, ...]
    nodes: int
    seconds: float
    seed: int
    load: Load
    directory: Path
    base_port: int | None = None
    flush: FlushName = "sync"

    @property
    def retained(self) -> Retained:
        """What queues hold in the end."""
        return Retained.NEWER if self.scenario.retain_bytes else Retained.ALL


@dataclass(slots=True)
class Band:
    """One fault, from its strike to the end of its healing. Times in µs of the run's clock."""

    label: str
    nemesis: str
    victims: tuple[str, ...]
    start_us: int
    struck_us: int | None = None  # the strike is done: a node that was asked to stop has stopped
    end_us: int | None = None
    detail: str = ""
    deposed: str | None = None  # the leader that it hit, where that ends leadership


@dataclass(slots=True)
class Finished:
    """Everything that a run left, for the report."""

    options: RunOptions
    addresses: dict[str, str]
    history: History
    acknowledged: Acknowledgements
    bands: list[Band] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # strikes that hit nobody, why
    spans: dict[str, list[Span]] = field(default_factory=dict)
    anomalies: list[Anomaly] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    excused: list[Anomaly] = field(default_factory=list)  # what a weaker mode permits
    lost: int = 0  # acknowledged, and not in the last reading
    deliveries: dict[str, Any] | None = None  # what consumer groups did, if there were any
    faults_began_us: int = 0
    healed_us: int = 0
    ended_us: int = 0

    @property
    def holds(self) -> bool:
        """Whether nothing was found, and all was decided."""
        return self.ending is ExitCode.DONE

    @property
    def ending(self) -> ExitCode:
        """How the run ends."""
        return ending((*self.anomalies, *self.problems), self.undecided)

    @property
    def power_cuts(self) -> list[PowerCut]:
        """Those that this run's mode of flushing may lose something in."""
        promised_less = self.options.flush == "async"
        cuts = [band for band in self.bands if promised_less and band.nemesis == POWER_CUT]
        return [PowerCut(band.start_us, band.struck_us or band.start_us) for band in cuts]


def check(finished: Finished) -> None:
    """Finds the anomalies in the history."""
    history, cuts = finished.history, finished.power_cuts
    missing = missing_at_the_end(history)
    finished.lost = len(missing)
    missing = [(value, sent) for value, sent in missing if not may_be_lost(sent, cuts)]
    if missing:
        shown = ", ".join(value for value, _ in missing[:3])
        finished.problems.append(
            f"{len(missing):,} acknowledged messages are not there in the end: {shown}, …"
        )
    verdict = judge(history, cuts)
    finished.anomalies, finished.excused = verdict.anomalies, verdict.excused
    finished.remarks += verdict.remarks
    finished.undecided += verdict.undecided
    deliveries = read_deliveries(finished.options.directory / BOOKS_FOLDER)
    if deliveries is not None:
        queues = finished.options.load.queues
        faults = [
            Fault(band.nemesis, band.start_us // 1000, (band.end_us or finished.ended_us) // 1000)
            for band in finished.bands
        ]
        delivered = check_deliveries(deliveries, history, queues, faults, may_lose=bool(cuts))
        finished.anomalies += delivered.anomalies
        finished.undecided += delivered.undecided
        finished.remarks += delivered.remarks
        finished.deliveries = delivered.facts
    _check_tested(finished)


def _check_tested(finished: Finished) -> None:
    """A run that tested nothing doesn't hold; strikes that hit nobody are told."""
    options = finished.options
    groups = (finished.deliveries or {}).get("groups", ())
    finished.problems += untested(
        acknowledged=len(finished.acknowledged.at_us),
        planned=sum(isinstance(step, Strike) for step in options.steps),
        struck=len(finished.bands),
        members=options.scenario.members,
        handled={group["name"]: group["handled"] for group in groups},
    )
    if finished.acknowledged.at_us:  # else that is said
        finished.problems += unanswered(finished.history, finished.healed_us)
    for (nemesis, why), count in sorted(Counter(finished.skipped).items()):
        finished.remarks.append(f"skipped: {count:,} × {nemesis}, {why}")

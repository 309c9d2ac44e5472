"""From a failing run to a smaller one that fails the same way.

A plan is made smaller by overrides: fewer faults, a shorter time, fewer nodes, clients and
queues, fair weather. An override is kept when the same check still fails. What comes out is a
command line, so that anybody can replay it, and its transcript is short enough to read.

Source: Zeller & Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (ddmin), on faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from chaos.sim.drawing.plans import draw_plan
from chaos.sim.network import FAIR
from chaos.sim.plan import DEFAULT_DURATION_MS, DEFAULT_RATE, Plan
from chaos.sim.run import Report, run_plan

MAX_RUNS = 80
MARGIN_MS = 50  # a run is cut this long after its failure


@dataclass(frozen=True, slots=True)
class Recipe:
    """A seed and what overrides its plan; None: as the seed decides. `faults` are numbers of the
    schedule."""

    seed: int
    duration_ms: int = DEFAULT_DURATION_MS
    rate: int = DEFAULT_RATE
    nodes: int | None = None
    producers: int | None = None
    consumers: int | None = None
    queues: int | None = None
    faults: tuple[int, ...] | None = None
    is_fair: bool = False
    without_admin: bool = False

    def plan(self) -> Plan:
        """The plan that this recipe stands for."""
        plan = draw_plan(self.seed, duration_ms=self.duration_ms, rate=self.rate)
        faults = plan.faults
        if self.faults is not None:
            faults = tuple(fault for fault in faults if fault.number in self.faults)
        return replace(
            plan,
            nodes=self.nodes or plan.nodes,
            spares=plan.spares if self.nodes is None else 0,
            producers=plan.producers if self.producers is None else self.producers,
            consumers=plan.consumers if self.consumers is None else self.consumers,
            queues=self.queues or plan.queues,
            weather=FAIR if self.is_fair else plan.weather,
            admin=plan.admin and not self.without_admin,
            faults=faults,
        )

    def command(self) -> str:
        """What to type to run it again."""
        words = [f"dledger chaos sim --seed {self.seed}"]
        if self.duration_ms != DEFAULT_DURATION_MS:
            words.append(f"--duration {self.duration_ms / 1000:g}")
        if self.rate != DEFAULT_RATE:
            words.append(f"--rate {self.rate}")
        for name in ("nodes", "producers", "consumers", "queues"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"--{name} {value}")
        if self.faults is not None:
            words.append(f"--faults {','.join(map(str, self.faults)) or 'none'}")
        words += ["--fair"] * self.is_fair + ["--no-admin"] * self.without_admin
        return " ".join(words)


def shrink(
    recipe: Recipe, report: Report, *, run: Callable[[Plan], Report] = run_plan
) -> tuple[Recipe, Report]:
    """The smallest recipe found whose run fails the same check, and its report.

    Args:
        recipe: one whose run failed.
        report: of that run.
        run: runs a plan.
    """
    if report.failure is None:
        raise ValueError("there is nothing to shrink: the run did not fail")
    check = report.failure.check
    runs = 0
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(recipe, report):
            if runs >= MAX_RUNS:
                return recipe, report
            runs += 1
            found = run(smaller.plan())
            if found.failure is not None and found.failure.check == check:
                recipe, report, progress = smaller, found, True
                break
    return recipe, report


def _without_later_faults(recipe: Recipe) -> Recipe:
    """The same run: its command doesn't name faults that the cut time leaves out anyway."""
    if recipe.faults is None:
        return recipe
    return replace(recipe, faults=tuple(fault.number for fault in recipe.plan().faults))


def _smaller(recipe: Recipe, report: Report) -> Iterator[Recipe]:
    """Recipes that are smaller than `recipe`, the boldest first."""
    plan = report.plan
    if report.failure is not None:
        cut_ms = report.failure.time_us // 1000 + MARGIN_MS
        if cut_ms < recipe.duration_ms:
            yield _without_later_faults(replace(recipe, duration_ms=cut_ms))
    numbers = tuple(fault.number for fault in plan.faults)
    size = len(numbers)
    while size >= 1:
        for at in range(0, len(numbers), size):
            yield replace(recipe, faults=numbers[:at] + numbers[at + size :])
        size //= 2
    if plan.nodes > 3:
        yield replace(recipe, nodes=3)
    if plan.admin:
        yield replace(recipe, without_admin=True)
    if plan.weather != FAIR:
        yield replace(recipe, is_fair=True)
    if plan.consumers > 0:
        yield replace(recipe, consumers=plan.consumers - 1)
    if plan.producers > 1:
        yield replace(recipe, producers=plan.producers - 1)
    if plan.queues > 1:
        yield replace(recipe, queues=1)
    if recipe.rate > 5:
        yield replace(recipe, rate=recipe.rate // 2)

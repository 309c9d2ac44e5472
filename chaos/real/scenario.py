"""A scenario: a small Python file that says which faults happen, to whom, and when.

    \"\"\"Kill the leader, again and again.\"\"\"

    from chaos.real.scenario import Plan, Steps, spell, wait, whole

    def schedule(plan: Plan) -> Steps:
        while True:
            yield wait(1)
            yield from spell("kill", "leader", seconds=2)
            yield whole()

A schedule is a generator of steps. It is run through once before anything is started, with the
seed's random source, until the steps fill the run's time: so a node or a nemesis that doesn't
exist is told at once, and the same seed gives the same schedule. What depends on the group's
state (who leads) is decided when the step is taken. A file may also set `NODES`, `LOAD`,
`RETAIN_BYTES` (nodes let the front of a log go that is longer) and `MEMBERS` (so many members
in each of three consumer groups: push consumers in any order and in order, and simple consumers).

This module knows steps, targets and files; what a nemesis does is `chaos.real.nemeses`'.
"""

from __future__ import annotations

import difflib
import errno
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Final

from chaos.errors import ScenarioInvalid

# Nemeses that strike members of consumer groups; for scenarios that have any.
OF_MEMBERS: Final = frozenset({"kill-member", "dismiss-member", "pause-member"})
MAX_MEMBERS: Final = 32
ROLES: Final = ("leader", "follower", "one", "minority", "majority", "all")
MAX_STEPS: Final = 100_000
MAX_NODES: Final = 9
LOAD_BOUNDS: Final = {
    "rate": (1, 100_000),
    "size_bytes": (1, 128 << 10),
    "producers": (1, 64),
    "consumers": (0, 64),
    "callers": (0, 64),
    "queues": (1, 64),
}
WHOLE_ABOUT_S: Final = 1.5  # how long `whole` takes, for planning
# A node that starts replays its whole log, seconds for each 100,000 messages on a busy machine.
WHOLE_WITHIN_S: Final = 120.0
PACKAGED: Final = Path(__file__).parent.parent / "scenarios"
Option = str | int | float
Choices = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault begins. `label` names it for `heal`; it is the nemesis' name unless given."""

    nemesis: str
    targets: tuple[str, ...]
    options: Mapping[str, Option]
    label: str


@dataclass(frozen=True, slots=True)
class Heal:
    """A fault ends; all of them, where no label is given."""

    label: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing happens for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Whole:
    """Waits until every node runs and has caught up with the leader."""

    timeout_s: float = WHOLE_WITHIN_S


Step = Strike | Heal | Wait | Whole
Steps = Iterator[Step]


def strike(nemesis: str, *targets: str, label: str | None = None, **options: Option) -> Strike:
    """`nemesis` strikes `targets` (node ids or `ROLES`; none: whom the nemesis takes itself)."""
    return Strike(nemesis, targets, options, label or nemesis)


def heal(label: str | None = None) -> Heal:
    """The fault of that label is over; without a label, every fault is."""
    return Heal(label)


def wait(seconds: float) -> Wait:
    """Lets time pass."""
    return Wait(seconds)


def whole(timeout_s: float = WHOLE_WITHIN_S) -> Whole:
    """Goes on when the group is whole; a group that isn't by then has failed the run."""
    return Whole(timeout_s)


def spell(nemesis: str, *targets: str, seconds: float, **options: Option) -> Steps:
    """A fault with a beginning and an end."""
    yield Strike(nemesis, targets, options, nemesis)
    yield wait(seconds)
    yield heal(nemesis)


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients do meanwhile. `rate` is messages a second over all producers."""

    rate: int = 400
    size_bytes: int = 256
    producers: int = 3
    consumers: int = 2
    callers: int = 2
    queues: int = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What a schedule may build on. `seconds` is the time that its steps are to fill."""

    nodes: tuple[str, ...]
    seconds: float
    rng: Random = field(repr=False)

    def shuffled(self) -> tuple[str, ...]:
        """The nodes in random order."""
        return tuple(self.rng.sample(self.nodes, len(self.nodes)))

    def split(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """A random minority (the largest), and the majority that is left."""
        nodes = self.shuffled()
        size = (len(nodes) - 1) // 2
        return nodes[:size], nodes[size:]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A loaded file."""

    name: str
    summary: str
    schedule: Callable[[Plan], Steps]
    nodes: int = 3
    load: Load = Load()
    retain_bytes: int = 0  # of the log; 0: all of it
    members: int = 0  # of each consumer group


def node_ids(count: int) -> tuple[str, ...]:
    """The ids of a group's nodes, as scenarios name them."""
    return tuple(f"n{number}" for number in range(1, count + 1))


def plan_steps(
    scenario: Scenario,
    *,
    nodes: int,
    seconds: float,
    seed: int,
    known: Mapping[str, Mapping[str, Option | Choices]],
) -> list[Step]:
    """The steps of one run, checked.

    Args:
        known: each nemesis' options with their defaults, or with what there is to choose from.

    Raises:
        ScenarioInvalid: the schedule fails, or asks for what there isn't.
    """
    plan = Plan(node_ids(nodes), seconds, Random(f"schedule {seed}"))
    steps: list[Step] = []
    labels: set[str] = set()
    filled = 0.0
    try:
        for step in scenario.schedule(plan):
            _check(step, plan, known, scenario.name)
            if isinstance(step, Strike) and step.nemesis in OF_MEMBERS and not scenario.members:
                raise ScenarioInvalid(scenario.name, f"{step.nemesis}: MEMBERS says there are none")
            if isinstance(step, Strike):
                labels.add(step.label)
            elif isinstance(step, Heal) and step.label is not None and step.label not in labels:
                raise ScenarioInvalid(scenario.name, _unhealed(step.label, labels))
            filled += _length(step)
            if filled > seconds:
                break
            steps.append(step)
            if len(steps) >= MAX_STEPS:
                raise ScenarioInvalid(scenario.name, f"{MAX_STEPS} steps take only {filled:g} s")
    except ScenarioInvalid:
        raise
    except (Exception, SystemExit) as error:  # someone else's code; whatever it raises is told
        raise ScenarioInvalid(
            scenario.name, f"its schedule fails: {type(error).__name__}: {error}"
        ) from error
    while steps and isinstance(steps[-1], Strike):
        steps.pop()  # it would be healed at once
    if not any(isinstance(step, Strike) for step in steps):
        raise ScenarioInvalid(scenario.name, f"no fault fits into {seconds:g} s")
    return steps


def _length(step: Step) -> float:
    if isinstance(step, Wait):
        return step.seconds
    return WHOLE_ABOUT_S if isinstance(step, Whole) else 0.0


def _check(
    step: object,
    plan: Plan,
    known: Mapping[str, Mapping[str, Option | Choices]],
    scenario: str,
) -> None:
    if isinstance(step, Wait) and not (_is_number(step.seconds) and step.seconds >= 0):
        raise ScenarioInvalid(scenario, f"can't wait for {step.seconds!r} s")
    if isinstance(step, Whole) and not (_is_number(step.timeout_s) and step.timeout_s > 0):
        raise ScenarioInvalid(scenario, f"can't wait for {step.timeout_s!r} s to be whole")
    if isinstance(step, Wait | Heal | Whole):
        return
    if not isinstance(step, Strike):
        raise ScenarioInvalid(scenario, f"yields {step!r}, which is no step")
    if step.nemesis not in known:
        raise ScenarioInvalid(scenario, _unknown("nemesis", step.nemesis, list(known)))
    for target in step.targets:
        if target not in plan.nodes and target not in ROLES:
            raise ScenarioInvalid(scenario, _unknown("node", target, [*plan.nodes, *ROLES]))
    options = known[step.nemesis]
    for name, value in step.options.items():
        if (reason := _wrong_option(name, value, options)) is not None:
            raise ScenarioInvalid(scenario, f"nemesis {step.nemesis}: {reason}")


def _wrong_option(name: str, value: Option, options: Mapping[str, Option | Choices]) -> str | None:
    """What is wrong with it; None if nothing is."""
    if name not in options:
        return _unknown("option", name, list(options) or ["none at all"])
    known = options[name]
    if isinstance(known, tuple):
        return None if value in known else _unknown(name, str(value), list(known))
    if isinstance(known, str):
        if not isinstance(value, str):
            return f"{name} must be a text"
        if name == "errno" and value not in errno.errorcode.values():
            return _unknown(name, value, sorted(errno.errorcode.values()))
        return None
    if not _is_number(value):
        return f"{name} must be a number"
    is_signed = name == "offset_ms"  # a clock may be off either way
    return None if is_signed or float(value) >= 0 else f"{name} can't be {value}"


def _is_number(value: object) -> bool:
    """Whether it is a finite one; a schedule is someone else's code, so types promise nothing."""
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _unhealed(label: str, labels: set[str]) -> str:
    return f"{_unknown('fault', label, sorted(labels) or ['none so far'])}: nothing struck before"


def _unknown(what: str, found: str, known: list[str]) -> str:
    close = difflib.get_close_matches(found, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    return f"no {what} {found!r}; {hint}"


# --- files ------------------------------------------------------------------------------------


def packaged() -> list[Scenario]:
    """The scenarios that come with the program, by name."""
    files = [path for path in sorted(PACKAGED.glob("*.py")) if path.stem != "__init__"]
    return [load_file(path) for path in files]


def find(name_or_file: str) -> Scenario:
    """The packaged scenario of that name, or the one in that file.

    Raises:
        ScenarioInvalid: there is none, or it can't be loaded.
    """
    if name_or_file.endswith(".py"):
        return load_file(Path(name_or_file))
    for scenario in packaged():
        if scenario.name == name_or_file:
            return scenario
    names = [scenario.name for scenario in packaged()]
    raise ScenarioInvalid(
        name_or_file, f"{_unknown('scenario', name_or_file, names)} (a file ends in .py)"
    )


def load_file(path: Path) -> Scenario:
    """The scenario in the Python file `path`.

    Raises:
        ScenarioInvalid: it can't be loaded or has no schedule.
    """
    name = path.stem.replace("_", "-")
    module = _module(path)
    schedule = getattr(module, "schedule", None)
    if not callable(schedule):
        raise ScenarioInvalid(str(path), "has no function `schedule(plan)`")
    nodes, load = getattr(module, "NODES", 3), getattr(module, "LOAD", Load())
    if type(nodes) is not int or not isinstance(load, Load):
        raise ScenarioInvalid(str(path), "NODES must be a number, LOAD a Load")
    if not 1 <= nodes <= MAX_NODES:
        raise ScenarioInvalid(str(path), f"NODES must be 1 to {MAX_NODES}, not {nodes}")
    if (reason := _wrong_load(load)) is not None:
        raise ScenarioInvalid(str(path), reason)
    retain = getattr(module, "RETAIN_BYTES", 0)
    if type(retain) is not int or retain < 0:
        raise ScenarioInvalid(str(path), f"RETAIN_BYTES must be a number of bytes, not {retain!r}")
    members = getattr(module, "MEMBERS", 0)
    if type(members) is not int or not 0 <= members <= MAX_MEMBERS:
        raise ScenarioInvalid(str(path), f"MEMBERS must be 0 to {MAX_MEMBERS}, not {members!r}")
    summary = (module.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return Scenario(name, summary, schedule, nodes, load, retain, members)


def _wrong_load(load: Load) -> str | None:
    """What is wrong with it; None if nothing is. Without a message a run would hold for nothing."""
    for name, (least, most) in LOAD_BOUNDS.items():
        found = getattr(load, name)
        if type(found) is not int or not least <= found <= most:
            return f"LOAD's {name} must be {least} to {most}, not {found!r}"
    return None


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise ScenarioInvalid(str(path), "there is no such file")
    specification = importlib.util.spec_from_file_location(f"chaos_scenario_{path.stem}", path)
    if specification is None or specification.loader is None:
        raise ScenarioInvalid(str(path), "is no Python file")
    module = importlib.util.module_from_spec(specification)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # beside a user's file
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # someone else's code; whatever it raises is told
        raise ScenarioInvalid(str(path), f"{type(error).__name__}: {error}") from error
    finally:
        sys.dont_write_bytecode = writes
    return module

"""A replica's files are read on one machine: the engine between an audit and the one that it uses.

Replicas of several hosts lie at one path as a rule, and a cluster gives a task to whoever is free:
a task of one replica that runs on another's machine reads that one's files, which are in order. So
each task that names a host says whether it runs where the host's first task ran, and whether the
host's name is its machine's, as containers of one kernel are told apart by that alone; it reads
nothing if not, and is given out again. What names no host may run anywhere, as its files can be
read everywhere.

Refusals are values and no errors: Spark gives a job up for a few failures, whoever's they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic

from audit.engines.engine import Engine, Progress, R, T, Task, no_progress
from audit.errors import NotBesideFiles, UsageMistake
from dledger.reading.files import machine
from dledger.reading.here import is_this_machine

MAX_IDLE_ROUNDS: Final = 3  # in a row in which no task came to its machine; then none will


@dataclass(frozen=True, slots=True)
class PlacedTask(Generic[T]):
    """A task for the machine that has the host's name, and of several `machine`, unless that is
    empty; any name will do, if `any_name`."""

    task: T
    machine: str
    any_name: bool

    @property
    def host(self) -> str | None:
        return self.task.host

    @property
    def weight(self) -> int:
        return self.task.weight


@dataclass(frozen=True, slots=True)
class Ran(Generic[R]):
    """What a task came to on `machine`; None if it was refused there."""

    machine: str
    results: tuple[R] | None


def run_here(work: Callable[[T], R], placed: PlacedTask[T]) -> Ran[R]:
    """The work, if this is the task's machine."""
    here = machine()
    if not _is_wanted(placed, here):
        return Ran(here, None)
    return Ran(here, (work(placed.task),))


def _is_wanted(placed: PlacedTask[T], here: str) -> bool:
    if placed.host is None:
        return True
    if placed.machine and placed.machine != here:
        return False
    return placed.any_name or is_this_machine(placed.host)


class PlacedEngine:
    """Runs tasks on another engine, those that name a host on one machine a host. Of one audit: a
    machine that is started again is another one.

    Args:
        engine: closed by its owner.
    """

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self.parallelism = engine.parallelism
        self.task_bytes = engine.task_bytes
        self.is_spread = engine.is_spread
        self._engine = engine
        self._machines: dict[str, str] = {}

    def width(self, tasks: Sequence[Task]) -> int:
        """See `Engine.width`."""
        return self._engine.width(tasks)

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress = no_progress
    ) -> list[R]:
        """See `Engine.run`.

        Raises:
            NotBesideFiles: nobody on a host's machine takes its tasks.
        """
        if not any(task.host for task in tasks):
            return self._engine.run(work, tasks, progress)
        done: dict[int, R] = {}
        idle = 0
        while len(done) < len(tasks):  # at most so often as `MAX_IDLE_ROUNDS` for each task
            left = [number for number in range(len(tasks)) if number not in done]
            taken = self._round(work, [tasks[number] for number in left], progress)
            done |= {left[number]: result for number, (result,) in taken.items()}
            idle = 0 if taken else idle + 1
            if idle == MAX_IDLE_ROUNDS:
                raise NotBesideFiles(sorted({str(tasks[number].host) for number in left}))
            progress = no_progress  # All of it was told.
        return [done[number] for number in range(len(tasks))]

    def close(self) -> None:
        """The engine is its owner's to close."""

    def _round(
        self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress
    ) -> dict[int, tuple[R]]:
        """What those came to that were taken, by their numbers."""
        wanted = [
            PlacedTask(task, self._machines.get(task.host or "", ""), not self.is_spread)
            for task in tasks
        ]
        taken: dict[int, tuple[R]] = {}
        for number, ran in enumerate(self._engine.run(partial(run_here, work), wanted, progress)):
            host = tasks[number].host
            if ran.results is None:
                continue
            # The first one decides for those that were sent with it.
            if host is None or self._machines.setdefault(host, ran.machine) == ran.machine:
                taken[number] = ran.results
        return taken


def placed_here(engine: Engine, replica: str, host: str | None) -> Engine:
    """The engine, for who reads the replica by itself, too, to tell what its tasks have to read.

    Raises:
        UsageMistake: what lies here at the replica's path is another one's.
    """
    if host is not None and engine.is_spread and not is_this_machine(host):
        raise UsageMistake(
            f"{replica} lies on {host}, and this command reads its log as well as the executors "
            "do: run it there, or, of files that can be read everywhere, name no host "
            "(--replica NAME=PATH)"
        )
    return placed(engine)


def placed(engine: Engine) -> Engine:
    """The engine, for one audit whose tasks name hosts."""
    return engine if isinstance(engine, PlacedEngine) else PlacedEngine(engine)

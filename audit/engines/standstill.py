"""A job whose executors are gone: Spark waits for others without end, and says nothing.

Whoever watches the job's stages tells what they do from time to time. It stands still while there
are tasks to be run, none of them runs and none has ended; after so long, nobody will run them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class Stage(Protocol):
    """What is looked at of a stage, as pyspark's `SparkStageInfo` tells it."""

    @property
    def numActiveTasks(self) -> int: ...  # Spark's name.

    @property
    def numCompletedTasks(self) -> int: ...


class Standstill:
    """Of the jobs of one session.

    Args:
        bound_s: so many seconds are too long.
        clock: seconds, of a clock that nobody sets.
    """

    def __init__(self, bound_s: float, clock: Callable[[], float]) -> None:
        self.bound_s = bound_s
        self._clock = clock
        self._moved = clock()
        self._done = 0

    def is_over_bound(self, stages: Iterable[Stage]) -> bool:
        """Whether those that aren't finished have stood still for too long."""
        known = list(stages)
        done = sum(stage.numCompletedTasks for stage in known)
        if not known or done != self._done or any(stage.numActiveTasks for stage in known):
            self._done, self._moved = done, self._clock()
        return self._clock() - self._moved > self.bound_s

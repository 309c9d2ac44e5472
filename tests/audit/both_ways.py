"""An engine that reads each segment in the fast way and entry by entry, rehearses each start with
and without what was read, and holds one against the other: both must have found the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

from audit.engines.engine import LocalEngine, Progress, R, T, no_progress
from audit.proof import reading
from audit.proof.chain import Chain, ReadTask
from audit.proof.reading import read_chains
from audit.proof.starting import StartJudged, StartTask, judge_start
from audit.reading import file_state


class BothWays(LocalEngine):
    """Runs tasks in this process; fails where the two ways differ. `passed_over`: how much of a
    replica's log its start didn't read again, bytes."""

    def __init__(self) -> None:
        super().__init__(processes=1)
        self.passed_over: dict[str, int] = {}

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress = no_progress
    ) -> list[R]:
        """See `Engine.run`."""
        with unsettled():
            results = super().run(work, tasks, progress)
        for task, result in zip(tasks, results, strict=True):
            if isinstance(task, ReadTask):
                assert result == read_singly(task)
            if isinstance(task, StartTask):
                whole = judge_start(replace(task, runs=()))
                assert whole == replace(cast(StartJudged, result), task=whole.task)
                self.passed_over[task.replica] = sum(each.run.size for each in task.runs)
        return results


def read_singly(task: ReadTask) -> list[Chain]:
    """Each member's segment by itself, entry by entry."""
    with runs_of(0):
        return [read_chains(ReadTask((member,)))[0] for member in task.members]


@contextmanager
def unsettled() -> Iterator[None]:
    """Files that were written just now are believed to be what they are: nobody writes to them."""
    usual = file_state.SETTLED_S
    file_state.SETTLED_S = 0.0  # type: ignore[misc]  # as below
    try:
        yield
    finally:
        file_state.SETTLED_S = usual  # type: ignore[misc]


@contextmanager
def runs_of(size: int) -> Iterator[None]:
    """Entries are taken together in runs of `size` bytes; 0: each alone."""
    usual = reading.RUN_BYTES
    reading.RUN_BYTES = size  # type: ignore[misc]  # it is final for all but who compares with it
    try:
        yield
    finally:
        reading.RUN_BYTES = usual  # type: ignore[misc]

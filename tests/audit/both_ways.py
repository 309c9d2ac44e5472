"""An engine that reads each segment in the fast way and entry by entry, and holds one against the
other: whatever is found, both must have found the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from audit.engines.engine import LocalEngine, Progress, R, T, no_progress
from audit.proof import reading
from audit.proof.chain import Chain, ReadTask
from audit.proof.reading import read_chains


class BothWays(LocalEngine):
    """Runs tasks in this process; fails where the two ways of reading differ."""

    def __init__(self) -> None:
        super().__init__(processes=1)

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress = no_progress
    ) -> list[R]:
        """See `Engine.run`."""
        results = super().run(work, tasks, progress)
        for task, result in zip(tasks, results, strict=True):
            if isinstance(task, ReadTask):
                assert result == read_singly(task)
        return results


def read_singly(task: ReadTask) -> list[Chain]:
    """Each member's segment by itself, entry by entry."""
    with runs_of(0):
        return [read_chains(ReadTask((member,)))[0] for member in task.members]


@contextmanager
def runs_of(size: int) -> Iterator[None]:
    """Entries are taken together in runs of `size` bytes; 0: each alone."""
    usual = reading.RUN_BYTES
    reading.RUN_BYTES = size  # type: ignore[misc]  # it is final for all but who compares with it
    try:
        yield
    finally:
        reading.RUN_BYTES = usual  # type: ignore[misc]

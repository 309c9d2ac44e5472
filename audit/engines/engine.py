"""Who runs an audit's tasks. One plan, several engines: a task is a small value, its work a
module-level function, its result a small value, so that all three can travel.

`LocalEngine` runs them in this process or in a pool of processes, without a JVM: below tens of
gigabytes on one machine nothing is faster. `audit.engines.spark` sends them to a cluster. Results
come back in the tasks' order whatever the engine, so that reports can be compared row by row.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from typing import Final, Protocol, TypeVar

from audit.errors import EngineFailed

MIB: Final = 1 << 20
# Starting the pool costs a good tenth of a second; one process hashes this much in that time.
INLINE_BYTES: Final = 512 * MIB
LOCAL_TASK_BYTES: Final = 128 * MIB


class Task(Protocol):
    """What an engine must know of a task: where its files are, and about how many bytes it
    reads."""

    @property
    def host(self) -> str | None: ...

    @property
    def weight(self) -> int: ...


T = TypeVar("T", bound=Task)
R = TypeVar("R")
Progress = Callable[[int], None]  # told the weight of what has been done since the last call
# Told the name of a pass and its weight; returns who is told of its progress.
PassStarted = Callable[[str, int], Progress]


class Engine(Protocol):
    """Runs tasks."""

    @property
    def name(self) -> str: ...

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""
        ...

    @property
    def task_bytes(self) -> int:
        """About how much one task should read."""
        ...

    @property
    def is_spread(self) -> bool:
        """Whether tasks may run on other machines than this one."""
        ...

    def width(self, tasks: Sequence[Task]) -> int:
        """How many of these tasks would run at once: what a rate for all of them is divided by."""
        ...

    def run(self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress = ...) -> list[R]:
        """`work` of each task, in their order.

        Args:
            work: a function of an importable module.
        """
        ...

    def close(self) -> None:
        """No process of the engine is left."""
        ...


def no_progress(weight: int) -> None:
    """Shows nothing."""


class LocalEngine:
    """Runs tasks here: in this process while they are small, else in a pool.

    Args:
        processes: how many at most; as many as there are cores by default.
        inline_bytes: below this the pool isn't worth its start.
    """

    name = "local"
    task_bytes = LOCAL_TASK_BYTES
    is_spread = False

    def __init__(self, processes: int | None = None, inline_bytes: int = INLINE_BYTES) -> None:
        self.parallelism = processes or len(os.sched_getaffinity(0))
        self._inline_bytes = inline_bytes
        self._pool: ProcessPoolExecutor | None = None

    def width(self, tasks: Sequence[Task]) -> int:
        """See `Engine.width`."""
        total = sum(task.weight for task in tasks)
        if total < self._inline_bytes:
            return 1
        return max(1, min(self.parallelism, len(tasks)))

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress = no_progress
    ) -> list[R]:
        """See `Engine.run`.

        Raises:
            EngineFailed: a process of the pool was killed, or there is no memory.
        """
        try:
            if self.width(tasks) == 1:
                return self._run_inline(work, tasks, progress)
            return self._run_in_pool(work, tasks, progress)
        except BrokenExecutor as error:
            self.close()  # It takes no task any more; the next run makes another.
            raise EngineFailed(
                "a process that ran tasks was killed, by the system for its memory perhaps; with "
                "fewer of them (--processes) less is needed"
            ) from error
        except MemoryError as error:
            raise EngineFailed("there is no memory left for a task") from error
        except Exception:
            raise
        except BaseException:  # Ctrl-C, SIGTERM: nobody waits for what is under way
            self._abandon()
            raise

    def close(self) -> None:
        """See `Engine.close`."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _abandon(self) -> None:
        """As `close`, in the middle of tasks: one may take minutes, at the rate that is wanted."""
        if self._pool is not None:
            for process in multiprocessing.active_children():  # the pool's: nobody else makes any
                process.terminate()
            self.close()

    def _run_inline(
        self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress
    ) -> list[R]:
        results = []
        for task in tasks:
            results.append(work(task))
            progress(task.weight)
        return results

    def _run_in_pool(
        self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress
    ) -> list[R]:
        if self._pool is None:
            # Spawned and not forked: this process may hold threads and gRPC's state.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self.parallelism, mp_context=context, initializer=_end_with_parent
            )
        futures = [self._pool.submit(work, task) for task in tasks]
        weights: dict[Future[R], int] = {
            future: task.weight for future, task in zip(futures, tasks, strict=True)
        }
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                progress(sum(weights[future] for future in done))
                for future in done:
                    future.result()  # The first failure ends the run.
        except Exception:
            # Not at an interrupt: the pool's thread fails on what was cancelled when it finds its
            # processes ended, and says so on standard error.
            for future in pending:
                future.cancel()
            raise
        return [future.result() for future in futures]


def _end_with_parent() -> None:
    """This process of a pool ends as soon as the one that made it does, however that ends: it would
    wait for tasks for ever, as every process of the pool can write into the pipe that they come
    from. (PR_SET_PDEATHSIG would go by the thread that made it, which may end before.)"""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent.join,), daemon=True).start()


def _leave_after(ended: Callable[[], None]) -> None:
    ended()
    os._exit(1)

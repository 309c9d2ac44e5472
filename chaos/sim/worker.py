"""The disk's threads of one process, in virtual time.

A step runs in one piece, when its process may run; what it announces (durable, failed) and what it
gives reach the event loop when the disk would have been done. That an announcement was true the
moment it was made is checked there and then, by whoever listens. Between two steps a process may
die, and so it may in the midst of one, at any disk operation (`SimulatedDisk.cut_power_in`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from chaos.sim.disk import SimulatedDisk
from chaos.sim.loop import ProcessLoop
from chaos.sim.timeline import Timeline
from store.worker import Step

WAKE_US = 20  # from a wake to a worker's first look
MAX_STEP_US = 2_000_000  # a stalled disk catches up in the end, however much is queued

T = TypeVar("T")
Chore = tuple[Callable[[], Any], Any]  # a step, and the future that waits for what it gives


class Workers:
    """Makes the store's workers, and is the replica's `DiskHand`."""

    def __init__(self, timeline: Timeline, loop: ProcessLoop, disk: SimulatedDisk) -> None:
        self._timeline = timeline
        self._loop = loop
        self.disk = disk
        self._chores: deque[Chore] = deque()
        self._is_hand_busy = False
        self._is_at_work = False
        self._news: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def make(self, name: str, step: Step) -> TimedWorker:
        """A `WorkerFactory`."""
        del name
        return TimedWorker(self, self._timeline, self._loop, step)

    def announce(self, call: Callable[..., object], *arguments: object) -> None:
        """`call` runs on the event loop, once the disk is done with the step that is running."""
        if self._is_at_work:
            self._news.append((call, arguments))
        else:
            self._timeline.after(0, self._loop, call, *arguments)

    def perform(self, step: Callable[[], T]) -> tuple[T, int]:
        """What `step` gives, and when the disk is done with it."""
        self._is_at_work = True
        try:
            result = step()
        finally:
            self._is_at_work = False
            done_at = self._timeline.now + min(self.disk.take_latency(), MAX_STEP_US)
            news, self._news = self._news, []
            for call, arguments in news:
                self._timeline.at(done_at, self._loop, call, *arguments)
        return result, done_at

    @property
    def is_idle(self) -> bool:
        """Whether no step waits for the hand, or is under way there."""
        return not (self._chores or self._is_hand_busy)

    # --- DiskHand ----------------------------------------------------------------------------

    async def run(self, step: Callable[[], T]) -> T:
        """One step at a time, in the order given."""
        waiting = self._loop.create_future()
        self._chores.append((step, waiting))
        self._begin_chore()
        result: T = await waiting
        return result

    async def run_all(self, steps: Sequence[Callable[[], None]]) -> None:
        """One after the other, each an event of its own: a process may die between any two."""
        for step in steps:
            await self.run(step)

    def _begin_chore(self) -> None:
        if self._chores and not self._is_hand_busy:
            self._is_hand_busy = True
            self._timeline.after(WAKE_US, self._loop, self._do, *self._chores.popleft())

    def _do(self, step: Callable[[], Any], waiting: Any) -> None:
        try:
            result, done_at = self.perform(step)
        except Exception as error:  # noqa: BLE001  it is raised where the step was asked for
            self._timeline.after(0, self._loop, self._finish, waiting, None, error)
        else:
            self._timeline.at(done_at, self._loop, self._finish, waiting, result, None)

    def _finish(self, waiting: Any, result: object, error: Exception | None) -> None:
        self._is_hand_busy = False
        if (
            not waiting.done()
        ):  # whoever asked may have been cancelled; the step is done all the same
            if error is None:
                waiting.set_result(result)
            else:
                waiting.set_exception(error)
        self._begin_chore()


class TimedWorker:
    """Runs a step `WAKE_US` after a wake at the earliest, and never while the disk is busy."""

    def __init__(self, workers: Workers, timeline: Timeline, loop: ProcessLoop, step: Step) -> None:
        self._workers = workers
        self._timeline = timeline
        self._loop = loop
        self._step = step
        self._busy_until = 0
        self._due: int | None = None
        self._turn = 0  # of the run that counts; an earlier appointment is void
        self._stopped = False

    def wake(self) -> None:
        self._run_at(max(self._timeline.now + WAKE_US, self._busy_until))

    def stop(self) -> None:
        self._stopped = True

    def _run_at(self, when: int) -> None:
        if self._due is not None and self._due <= when:
            return
        self._due = when
        self._turn += 1
        self._timeline.at(when, self._loop, self._run, self._turn)

    def _run(self, turn: int) -> None:
        if self._stopped or turn != self._turn:
            return
        self._due = None
        delay_s, self._busy_until = self._workers.perform(self._step)
        if delay_s is not None:
            self._run_at(self._busy_until + max(1, round(delay_s * 1e6)))

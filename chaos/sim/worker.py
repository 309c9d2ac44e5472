"""The store's worker threads in virtual time.

A step runs in one piece, when its process may run; what it announces (durable, failed) reaches
the event loop when the disk would have been done. That the announcement was true the moment it
was made is checked there and then, by whoever listens.
"""

from __future__ import annotations

from collections.abc import Callable

from chaos.sim.disk import SimulatedDisk
from chaos.sim.timeline import Actor, Timeline
from store.worker import Step

MAX_STEP_US = 2_000_000  # a stalled disk catches up in the end, however much is queued


class TimedWorker:
    """Runs a step `wake_us` after a wake at the earliest, and never while the disk is busy."""

    def __init__(
        self, timeline: Timeline, actor: Actor, disk: SimulatedDisk, step: Step, wake_us: int
    ) -> None:
        self._timeline = timeline
        self._actor = actor
        self._disk = disk
        self._step = step
        self._wake_us = wake_us
        self._busy_until = 0
        self._due: int | None = None
        self._turn = 0  # of the run that counts; an earlier appointment is void
        self._stopped = False
        self.news: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def wake(self) -> None:
        self._run_at(max(self._timeline.now + self._wake_us, self._busy_until))

    def stop(self) -> None:
        self._stopped = True

    def announce(self, call: Callable[..., object], *arguments: object) -> None:
        """`call` runs on the event loop once the disk is done with this step."""
        self.news.append((call, arguments))

    def _run_at(self, when: int) -> None:
        if self._due is not None and self._due <= when:
            return
        self._due = when
        self._turn += 1
        self._timeline.at(when, self._actor, self._run, self._turn)

    def _run(self, turn: int) -> None:
        if self._stopped or turn != self._turn:
            return
        self._due = None
        delay_s = self._step()
        done_at = self._timeline.now + min(self._disk.take_latency(), MAX_STEP_US)
        self._busy_until = done_at
        news, self.news = self.news, []
        for call, arguments in news:
            self._timeline.at(done_at, self._actor, call, *arguments)
        if delay_s is not None:
            self._run_at(done_at + max(1, round(delay_s * 1e6)))

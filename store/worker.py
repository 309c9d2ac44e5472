"""Who runs the store's blocking disk work.

The work itself is a `step`: do all that is due, say when to be called again. This module owns
only the calling: a thread in production, the simulator's own hand in tests. A step must never
wait for anything but the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

# Does what is due; returns the seconds after which it wants to be called without being woken,
# None for never. Must not raise: it reports failures itself.
Step = Callable[[], float | None]


class Worker(Protocol):
    """Calls a step soon after each `wake`, and when the step asked for it."""

    def wake(self) -> None:
        """There is something to do. Any thread; never blocks."""
        ...

    def stop(self) -> None:
        """The step isn't running and is never called again when this returns."""
        ...


# Name (for the thread list) and step.
WorkerFactory = Callable[[str, Step], Worker]


class ThreadWorker:
    """A daemon thread that sleeps until it is woken or due."""

    def __init__(self, name: str, step: Step) -> None:
        self._step = step
        self._condition = threading.Condition()
        self._woken = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        with self._condition:
            self._woken = True
            self._condition.notify()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        delay: float | None = None
        while True:
            with self._condition:
                if not self._woken and not self._stopping:
                    self._condition.wait(delay)
                self._woken = False
                if self._stopping:
                    return
            delay = self._step()


class InlineWorker:
    """Does its step whenever it is woken, before that returns: for a program that does one thing
    and has nobody to keep waiting."""

    def __init__(self, name: str, step: Step) -> None:
        self.name = name
        self._step = step
        self._stopped = False

    def wake(self) -> None:
        if not self._stopped:
            self._step()

    def stop(self) -> None:
        self._stopped = True


class ManualWorker:
    """Runs only when told: the simulator's clock and scheduler decide."""

    def __init__(self, name: str, step: Step) -> None:
        self.name = name
        self.due_in: float | None = None
        self.woken = False
        self._step = step
        self._stopped = False

    def wake(self) -> None:
        self.woken = True

    def stop(self) -> None:
        self._stopped = True

    def run_pending(self) -> None:
        """What is due has been done, as a woken thread would do it in one go."""
        self.woken = False
        if not self._stopped:
            self.due_in = self._step()

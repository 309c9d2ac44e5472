"""Calls something at a steady pace on the event loop, and measures how late it was.

A loop that was held up must not make up for lost ticks at once: the messages that would have
reset the timers are still waiting in the sockets, and a burst of ticks would start elections
for nothing. So a late tick counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Lateness(Protocol):
    """Where lateness goes, seconds."""

    def observe(self, amount: float) -> None: ...


class Ticker:
    """`tick` runs every `period_s` until `stop`."""

    def __init__(self, period_s: float, tick: Callable[[], None], lateness: Lateness) -> None:
        self._period_s = period_s
        self._tick = tick
        self._lateness = lateness
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The first tick comes one period from now."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._period_s
        self._timer = loop.call_at(self._due, self._on_due, loop)

    def stop(self) -> None:
        """No tick comes any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_due(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._lateness.observe(max(0.0, now - self._due))
        self._due += self._period_s
        if self._due <= now:
            self._due = now + self._period_s
        self._timer = loop.call_at(self._due, self._on_due, loop)
        self._tick()

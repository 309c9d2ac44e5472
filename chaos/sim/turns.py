"""How a simulated node's long work shares its event loop: in pieces of a few steps, with events of
the whole world between them.

A piece ends after as many steps as the plan says, one as a rule, and the next is an event of its
own on the timeline: a message, a fault or the death of the process may come before it. Real
pieces end by the clock; here no time passes within a turn, so steps are counted. Who pauses may
have to wait for others' work as long as a leader needs to be deposed and elected again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from chaos.sim.loop import ProcessLoop
from chaos.sim.timeline import Timeline

PAUSE_US = 20  # from one piece to the next
LATE_SHARE = 0.1  # of the pauses, in half of the runs
LATE_US = (2_000, 50_000, 400_000)


class CountedTurns:
    """`dledger.ports.Turns`: a piece has `steps` steps. `late`: draws which pauses are long, up to
    `late_until_us`."""

    def __init__(
        self,
        timeline: Timeline,
        loop: ProcessLoop,
        steps: int,
        late: Random,
        late_until_us: int,
    ) -> None:
        self._timeline = timeline
        self._loop = loop
        self._steps = steps
        self._late: Random | None = late if late.random() < 0.5 else None
        self._late_until_us = late_until_us
        self.paused: set[asyncio.Task[object] | None] = set()  # whose work has a turn to come

    def share(self) -> Callable[[], bool]:
        """See `Turns`."""
        left = self._steps

        def is_enough() -> bool:
            nonlocal left
            left -= 1
            return left <= 0

        return is_enough

    def later(self, call: Callable[[], None]) -> object:
        """See `Turns`. An error in `call` ends the run, as with `ProcessLoop.post`."""
        self._timeline.after(PAUSE_US, self._loop, call)
        return None

    async def pause(self) -> None:
        """See `Turns`."""
        task = asyncio.current_task()
        self.paused.add(task)
        try:
            await asyncio.sleep(self._pause_us() / 1e6)
        finally:
            self.paused.discard(task)

    def hurry(self) -> None:
        """The process stops: there is nothing left to pause for."""
        self._late = None

    def _pause_us(self) -> int:
        late = self._late
        if late is None or self._timeline.now > self._late_until_us:
            return PAUSE_US
        return late.choice(LATE_US) if late.random() < LATE_SHARE else PAUSE_US

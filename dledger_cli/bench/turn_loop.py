"""An event loop that measures its turns.

A turn is what the loop does between two looks at its sockets and timers: while one lasts, no
heartbeat is answered and no timer fires. It is counted in the processor time of the loop's thread,
so that what else runs on the machine, and waiting in the poll, count for nothing.

It is asyncio's own loop: uvloop, on which nodes run, can't be asked. The callbacks are the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """The longest turn since it was last forgotten."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @contextmanager
    def measured(self, into: dict[str, list[float]], name: str) -> Iterator[None]:
        """The longest turn of the block, milliseconds, is added to `into[name]`. The block begins
        and ends with a turn of its own: `await asyncio.sleep(0)` before and in it, at the end."""
        self.longest_s = 0.0
        yield
        into.setdefault(name, []).append(self.longest_s * 1e3)


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, whose turns are measured into `turns`."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()

    def _run_once(self) -> None:
        before = time.thread_time()
        super()._run_once()  # type: ignore[misc]  # the one place where a turn can be seen
        took = time.thread_time() - before
        self.turns.longest_s = max(self.turns.longest_s, took)

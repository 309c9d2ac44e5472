"""Linearizable reads that wait: for their round of heartbeats, then for the entries they need.

Reads of one loop turn share a round: the core is asked once for all of them. Whoever asked is told
exactly once, *serve* or *leadership was lost*. Nothing here decides whether a read is safe: the
core says so, and how far the state machine has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dledger.core.errors import ReadRefused
from dledger.core.types import Index, ReadAborted, ReadReady

ReadDone = Callable[[bool], None]  # True: serve; False: leadership was lost


class Reads:
    """The reads of one node, from the thread that owns it."""

    def __init__(self, begin_round: Callable[[int], None]) -> None:
        """`begin_round` asks the core for a round of this number, or raises `ReadRefused`."""
        self._begin_round = begin_round
        self._round = 0
        self._to_start: list[ReadDone] = []
        self._running: dict[int, list[ReadDone]] = {}
        self._to_apply: deque[tuple[Index, list[ReadDone]]] = deque()

    @property
    def waiting(self) -> int:
        """Rounds whose reads have begun and are not answered."""
        return len(self._running) + len(self._to_apply)

    def add(self, done: ReadDone) -> None:
        """One more for the next round."""
        self._to_start.append(done)

    def start(self) -> None:
        """Begins a round for all that were added since the last one."""
        if not self._to_start:
            return
        waiting, self._to_start = self._to_start, []
        self._round += 1
        try:
            self._begin_round(self._round)
        except ReadRefused:
            _finish(waiting, served=False)
            return
        self._running[self._round] = waiting

    def on_read(self, read: ReadReady | ReadAborted, applied: Index) -> None:
        """What the core says of a round, while `applied` is the last applied entry."""
        waiting = self._running.pop(read.context, [])
        if isinstance(read, ReadAborted):
            _finish(waiting, served=False)
        elif read.index <= applied:
            _finish(waiting, served=True)
        else:
            self._to_apply.append((read.index, waiting))

    def on_applied(self, applied: Index) -> None:
        """Everything up to `applied` is: who waited for it can be served."""
        while self._to_apply and self._to_apply[0][0] <= applied:
            _finish(self._to_apply.popleft()[1], served=True)

    def end_leadership(self) -> None:
        """This node leads no more: who waits for entries is told so, and asks who leads. They could
        be served later, and much later: where applying has been paused since it is for as long as
        the disk is full. The core tells whose round isn't over."""
        pending = [waiting for _, waiting in self._to_apply]
        self._to_apply.clear()
        for waiting in pending:
            _finish(waiting, served=False)

    def abort(self) -> None:
        """Nobody waits any longer: this node serves nothing from here on."""
        pending = [self._to_start, *self._running.values()]
        pending += [waiting for _, waiting in self._to_apply]
        self._to_start = []
        self._running.clear()
        self._to_apply.clear()
        for waiting in pending:
            _finish(waiting, served=False)


def _finish(waiting: list[ReadDone], *, served: bool) -> None:
    for done in waiting:
        done(served)

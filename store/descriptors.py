"""Descriptors that the disk path can always have, however many connections there are.

A process whose table of descriptors is full can't open a file, and a node must: the file of term
and vote is replaced by opening another, a segment that is full is followed by a new one. So some
descriptors are held open from the start and given up one at a time when the system has none left;
whichever file is closed next fills their place again. That the table is full, the machine's or
the process's, or that memory is short, says nothing about a disk: nothing was written, and the
same call may be made again. A failed sync is another matter and is never repeated (ADR 8).

A thread of its own waits, within bounds, until there is one; whoever runs on an event loop can't
wait, is told at once, and comes back later, as with a disk that is full.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
import weakref
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

T = TypeVar("T")

SCARCE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
PATIENCE_S: Final = 60.0  # far beyond a burst of connections, and a stop still ends
FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.25


class DescriptorReserve:
    """Holds `count` descriptors; any thread may use it."""

    def __init__(
        self,
        count: int,
        *,
        sleep: Callable[[float], None] = time.sleep,
        hold: Callable[[], int] = lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC),
    ) -> None:
        self._count = count
        self._sleep = sleep
        self._hold = hold
        self._lock = Lock()
        self._held: list[int] = []
        weakref.finalize(self, _close_all, self._held)
        self.refill()

    @property
    def held(self) -> int:
        """How many are there to be given up."""
        return len(self._held)

    def refill(self) -> None:
        """What was given up is held again, as far as the system has it. Called when a descriptor
        was closed, before a connection may take its place."""
        with self._lock:
            while len(self._held) < self._count:
                try:
                    self._held.append(self._hold())
                except OSError:
                    return

    def obtain(self, call: Callable[[], T]) -> T:
        """What `call` gives, which opens a file; repeated while the system is short of what it
        needs.

        Raises:
            OSError: what `call` raised: for another reason, on an event loop, or still after
                `PATIENCE_S`.
        """
        waited, pause = 0.0, FIRST_PAUSE_S
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in SCARCE_ERRNOS:
                    raise
                if error.errno == errno.EMFILE and self._give_one_up():
                    continue
                if waited >= PATIENCE_S or _is_on_a_loop():
                    raise
            self._sleep(pause)
            waited += pause
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _give_one_up(self) -> bool:
        with self._lock:
            if self._held:
                os.close(self._held.pop())
                return True
            return False


def _close_all(held: list[int]) -> None:
    while held:
        os.close(held.pop())


def _is_on_a_loop() -> bool:
    """Whether this thread runs an event loop, which must not sleep."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

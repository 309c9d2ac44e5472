"""Watches for turns of the event loop that are too long, and says in what they were spent.

The ticker calls at each tick; between two of them the loop's thread has used some processor time,
and no turn can have been longer than that: an upper bound that is right to a tick (10 ms as a
rule) and costs two clocks a tick, nothing a request. While a tick is overdue a thread of its own
looks at what the loop is doing, until it has seen code of the house. It must never be in the way:
it changes nothing, holds no lock, and says something every `TOLD_EVERY_S` at most.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from types import FrameType
from typing import Final, Protocol

import structlog

LONG_S: Final = 0.05  # a third of the shortest election timeout
LOOK_EVERY_S: Final = 0.025
TOLD_EVERY_S: Final = 10.0
NAMES: Final = 4  # functions that are named, the innermost first
_HOUSE: Final = ("broker", "dledger", "store")

log = structlog.get_logger(__name__)


class Histogram(Protocol):
    """Where seconds go."""

    def observe(self, amount: float) -> None: ...


class LoopWatch:
    """Where a ticker's lateness goes (`broker.ticker.Lateness`): into `lateness`, and the processor
    time since the tick before into `turns`."""

    def __init__(self, lateness: Histogram, turns: Histogram) -> None:
        self._lateness = lateness
        self._turns = turns
        self._used_s: float | None = None  # by the loop's thread, as of the last tick
        self._beat = time.perf_counter()
        self._doing: tuple[float, str] = (0.0, "")  # the beat it was seen after; empty: it wasn't
        self._longest: tuple[float, str] = (0.0, "")  # since it was last told
        self._count = 0
        self._told_at = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Looks from now on at what the calling thread, the loop's, is doing when a tick is due."""
        place = threading.get_ident()
        self._beat = time.perf_counter()
        self._thread = threading.Thread(
            target=self._look, args=(place,), name="loop-watch", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """The thread is gone."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def observe(self, amount: float) -> None:
        """A tick came, `amount` seconds late; on the loop's thread."""
        used, now, before = time.thread_time(), time.perf_counter(), self._beat
        self._lateness.observe(amount)
        if self._used_s is not None:
            self._take(used - self._used_s, before, now)
        self._used_s, self._beat = used, now

    def _take(self, turn_s: float, before: float, now: float) -> None:
        self._turns.observe(turn_s)
        if turn_s < LONG_S:
            return
        seen_after, doing = self._doing
        self._count += 1
        self._longest = max(self._longest, (turn_s, doing if seen_after == before else ""))
        if now >= self._told_at + TOLD_EVERY_S:
            longest_s, doing = self._longest
            log.warning(
                "event_loop_held",
                longest_ms=round(longest_s * 1e3),
                turns=self._count,
                doing=doing or "not seen",
            )
            self._longest, self._count, self._told_at = (0.0, ""), 0, now

    def _look(self, loop_thread: int) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            beat = self._beat
            if time.perf_counter() - beat < LONG_S or (self._doing[0] == beat and self._doing[1]):
                continue
            frame = frame_of(loop_thread)
            names: list[str] = []
            while frame is not None and len(names) < NAMES:
                module = str(frame.f_globals.get("__name__", ""))
                if module.split(".")[0] in _HOUSE:
                    names.append(f"{module}.{frame.f_code.co_name}")
                frame = frame.f_back
            # In code of others, as between two of ours, nothing is named: it looks once more.
            self._doing = (beat, " < ".join(names))


def frame_of(thread: int) -> FrameType | None:
    """What a thread is running now.

    The call holds the interpreter's list of threads. Were it to collect garbage meanwhile, and to
    free what belongs to one thread alone, it would wait for that list, and with it the process, for
    good (CPython's gh-106883)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if was_on:
            gc.enable()

"""Measuring without touching: wrappers that time, and log, what passes through them.

They change nothing and decide nothing. A commit is sampled at most every few milliseconds, so
the price doesn't grow with the load.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from broker.leader.append import Proposer
from dledger.core.types import EntryKind, Event, Index, Proposed
from dledger.driver import Stamp
from dledger.errors import ApplyPaused, ApplyStopped
from dledger.ports import USUAL_VERSION, Observer, StateMachine, never_enough

SAMPLE_EVERY_S = 0.005
log = structlog.get_logger(__name__)

MAX_SAMPLES = 1_024  # proposals under way that are timed


class Histogram(Protocol):
    """Where seconds go."""

    def observe(self, amount: float) -> None: ...


class CommitProbe:
    """Between the appender, the driver and the observer: times proposals until applied."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._proposer: Proposer | None = None
        self._observer: Observer | None = None
        self._samples: deque[tuple[int, float]] = deque(maxlen=MAX_SAMPLES)
        self._next_sample = 0.0

    def attach(self, proposer: Proposer, observer: Observer) -> None:
        """Connects what was made after this."""
        self._proposer = proposer
        self._observer = observer

    def propose(
        self,
        kind: EntryKind,
        record_count: int,
        body: bytes | bytearray,
        stamp: Stamp | None,
        version: int = USUAL_VERSION,
    ) -> Proposed:
        """`Proposer.propose`, timed."""
        if self._proposer is None:
            raise RuntimeError("attach() comes first")
        placed = self._proposer.propose(kind, record_count, body, stamp, version)
        now = time.perf_counter()
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_EVERY_S
            self._samples.append((placed.index, now))
        return placed

    def on_event(self, event: Event) -> None:
        """`Observer.on_event`."""
        if self._observer is not None:
            self._observer.on_event(event)

    def on_applied(self, index: Index) -> None:
        """`Observer.on_applied`; samples up to `index` are complete."""
        while self._samples and self._samples[0][0] <= index:
            self._histogram.observe(time.perf_counter() - self._samples.popleft()[1])
        if self._observer is not None:
            self._observer.on_applied(index)

    def on_configuration(self) -> None:
        """`Observer.on_configuration`."""
        if self._observer is not None:
            self._observer.on_configuration()


class TimedMachine:
    """A state machine whose slices are timed."""

    def __init__(self, machine: StateMachine, histogram: Histogram) -> None:
        self._machine = machine
        self._histogram = histogram

    def apply(self, frames: bytes, is_enough: Callable[[], bool] = never_enough) -> int:
        """`StateMachine.apply`, timed."""
        started = time.perf_counter()
        try:
            applied = self._machine.apply(frames, is_enough)
        except ApplyPaused as paused:
            log.warning("apply_paused", applied_index=paused.applied_index, reason=str(paused))
            raise
        except ApplyStopped as stopped:
            log.critical(
                "apply_stopped",
                applied_index=stopped.applied_index,
                level=stopped.level,
                known_level=stopped.known,
                reason=str(stopped),
            )
            raise
        self._histogram.observe(time.perf_counter() - started)
        return applied

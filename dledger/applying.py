"""Gives the state machine what is committed, in bounded slices.

This owns how far the machine has come, and the two ways in which it may stand still: *paused*,
when its disk is full, and asked again a while later; *stopped*, when it met something that only a
newer program understands, for as long as this process runs. Whatever it applies it is told to be
committed; it never reads the commit index by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from dledger.core.types import Index
from dledger.errors import ApplyPaused, ApplyStopped
from dledger.ports import FrameHeader, Ports

# Read at once to be applied, so that a backlog never starves heartbeats; and applied in one turn if
# that takes no longer than a share of it.
APPLY_SLICE_BYTES = 1 << 20
APPLY_SLICE_ENTRIES = 256
MENDED_RETRY_TICKS = 5  # the same, from finding rot that is being repaired
APPLY_RETRY_TICKS = 100  # a second, as a rule, from finding no space to trying again

H = TypeVar("H", bound=FrameHeader)


class Applier(Generic[H]):
    """One node's applying, from the thread that owns it."""

    def __init__(
        self,
        ports: Ports[H],
        applied: Index,
        slice_bytes: int,
        *,
        in_turn: Callable[[], None],
        on_applied: Callable[[Index], None],
    ) -> None:
        """`in_turn` is called in a turn of its own when there is more to apply, and calls `apply`;
        `on_applied` hears of each slice's last entry."""
        self._ports = ports
        self._applied = applied
        self._slice_bytes = slice_bytes
        self._in_turn = in_turn
        self._on_applied = on_applied
        self._is_applying = self._is_scheduled = False
        self._is_paused = False
        self._stopped: ApplyStopped | None = None
        self._ticks_to_wait = 0

    @property
    def applied(self) -> Index:
        return self._applied

    @property
    def is_paused(self) -> bool:
        """For want of space. Until it goes on no proposal is taken, so what waits for it stays
        bounded."""
        return self._is_paused

    @property
    def stopped(self) -> ApplyStopped | None:
        """Why nothing is applied any more, though what is committed still goes into the log."""
        return self._stopped

    @property
    def is_scheduled(self) -> bool:
        return self._is_scheduled

    def tick(self) -> None:
        """One tick of the core's clock has passed."""
        if self._ticks_to_wait:
            self._ticks_to_wait -= 1

    def schedule(self) -> None:
        """Applies in a turn of its own: on a follower nobody waits for it, but the flusher, which
        may just have been given work, waits for this thread to pause."""
        # While applying is paused the ticks come back here; asking again and again would spin.
        if self._stopped is not None:
            return
        if not self._is_scheduled and not self._ticks_to_wait:
            self._is_scheduled = True
            self._ports.turns.later(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._in_turn()

    def apply(self, commit: Index) -> None:
        """Applies one slice of what is committed up to `commit`; schedules the next when there is
        more."""
        if self._applied >= commit or self._is_applying or self._ticks_to_wait:
            return
        if self._stopped is not None:
            return
        self._is_applying = True
        try:
            frames = self._read(commit)
            if frames is not None:
                self._note(self._give(frames))
        finally:
            self._is_applying = False
        if self._applied < commit and not self._is_paused:
            self.schedule()

    def _read(self, commit: Index) -> bytes | None:
        """The next slice; None where it is being got back, and is asked for again later."""
        first = last = Index(self._applied + 1)
        log = self._ports.log
        try:
            if commit > first:
                most = Index(min(commit, first + APPLY_SLICE_ENTRIES - 1))
                last = Index(log.last_that_fits(first, most, self._slice_bytes))
            return log.read(first, last)
        except Exception as error:
            if not self._ports.is_mended(error):
                raise
            self._ticks_to_wait = MENDED_RETRY_TICKS
            return None

    def _give(self, frames: bytes) -> Index:
        """Gives the machine frames; the last entry that it took. A full disk pauses applying:
        nothing is lost, the log has it, and stopping would only stop again at each start."""
        try:
            last = Index(self._ports.machine.apply(frames, self._ports.turns.share()))
        except ApplyPaused as paused:
            self._is_paused, self._ticks_to_wait = True, APPLY_RETRY_TICKS
            return Index(paused.applied_index)
        except ApplyStopped as stopped:
            self._stopped = stopped
            return Index(stopped.applied_index)
        self._is_paused = False
        return last

    def _note(self, last: Index) -> None:
        if last > self._applied:
            self._applied = last
            self._on_applied(last)

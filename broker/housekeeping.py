"""What was derived becomes durable, now and then, and the checkpoint says how far it got.

A round has three steps. *Take*, on the event loop: which files were written, and which entry is
*settled*: applied, and durable in this node's own log. *Sync*, on the disk's hand, a few files at a
time and several at once: all of them are durable. *Note*, there as well, and only after that: the
checkpoint says so, and the next start replays up to there. A process may die between any two of
them, and between any two files of the second. It must never note what no sync has covered, nor what
only others hold, and no round may be torn away once it has begun: what it took nobody would sync
any more.

Then the node's memory of other members' disks is written (`broker/memory.py`). It depends on
nothing of the above, and nothing on it. What is due only now and then, and depends on what is
noted, comes between two rounds (`broker/snapshots.py`).

A full disk is no failure of the log. But what an fsync refused may be lost even if the next one
succeeds (ADR 8), so from then on the checkpoint stays where it is: the next start derives again
what lies behind it. What deleted topics left is removed all the same: it gives space back. Any
other error ends the replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from broker.ports import DiskHand
from store.files import FULL_ERRNOS


class Work(Protocol):
    """Files to be made durable (`store.queue_flush.FlushWork`)."""

    def stages(self) -> list[list[Callable[[], None]]]: ...


class Derived(Protocol):
    """The ConsumeQueues, as far as making them durable goes."""

    def take(self) -> Work: ...


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Notes:
    """What rounds write down.

    Attributes:
        settled: through which entry the queues are derived and this node's own log is durable: a
            start takes what is noted for committed, so nothing is noted that only others hold.
        note: writes into the checkpoint that everything through an entry is.
        remember: gives the step that writes down what is new in the node's memory, if anything is.
    """

    settled: Callable[[], int]
    note: Callable[[int], None]
    remember: Callable[[], Callable[[], None] | None]


async def _nothing() -> None:
    """There is nothing else to do."""


class Housekeeping:
    """Rounds, `period_s` apart, from `start` to `stop`.

    Args:
        notes: what is written down.
        queues: what is made durable.
        hand: runs the blocking steps.
        failed: is told, once, of an error that ends the rounds.
        between: is done after each round.
    """

    def __init__(
        self,
        notes: Notes,
        queues: Derived,
        hand: DiskHand,
        failed: Callable[[Exception], None],
        between: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._notes = notes
        self._queues = queues
        self._hand = hand
        self._failed = failed
        self._between = between
        self._period_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.is_checkpoint_held = False

    def start(self, period_s: float) -> None:
        """The first round comes one period from now."""
        self._period_s = period_s
        self._set_timer()

    async def stop(self) -> None:
        """The round under way is over, and no other begins."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._round is not None:
            await self._round

    async def make_round(self) -> None:
        """Everything applied so far is derived durably, and the checkpoint says so, unless the
        disk is full.

        Raises:
            OSError: the disk failed; nothing was noted.
        """
        notes = self._notes
        settled, work, remember = notes.settled(), self._queues.take(), notes.remember()
        for stage in work.stages():  # each: the last one gives space back
            await self._unless_full(self._hand.run_all(stage))
        if settled and not self.is_checkpoint_held:
            await self._unless_full(self._hand.run(partial(notes.note, settled)))
        if remember is not None:
            await self._hand.run(remember)

    async def _unless_full(self, step: Awaitable[None]) -> None:
        """It is done; or a full disk has refused it, and nothing is noted any more."""
        try:
            await step
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self.is_checkpoint_held = True
            log.warning("consume_queues_not_synced", reason=str(error))

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._period_s, self._begin_round)

    def _begin_round(self) -> None:
        loop = asyncio.get_running_loop()
        self._round = loop.create_task(self._keep(), name="housekeeping")

    async def _keep(self) -> None:
        try:
            await self.make_round()
            if not self._is_stopped:
                await self._between()
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._failed(error)
            return
        if not self._is_stopped:
            self._set_timer()

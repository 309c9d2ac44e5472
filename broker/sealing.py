"""Writes down what this member knows of its log, for its next start (`store.seals`).

After a snapshot has its name, everything through its entry is committed, derived, on this disk,
and noted as that on the platter: so that is as far as seals go. What can't be written is told, and
tried again later: a start without seals reads more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from broker.ending import DISK_ERRNOS
from store.errors import NotARegularFile
from store.seals import Seals

STEPS_A_ROUND: Final = 8
RETRY_S: Final = 30.0

log = structlog.get_logger(__name__)


class Hand(Protocol):
    """`broker.ports.DiskHand`, as far as it is used here."""

    async def run(self, step: Callable[[], object]) -> object: ...


class Sealer:
    """One log's, a few steps after each round of housekeeping.

    Args:
        through: the entry of the newest snapshot that is known to be good; 0: none.
        hand: runs the blocking steps.
    """

    def __init__(self, seals: Seals, through: Callable[[], int], hand: Hand) -> None:
        self._seals = seals
        self._through = through
        self._hand = hand
        self._not_before_s = 0.0

    async def step(self) -> None:
        """More of the log is sealed, if it may be.

        Raises:
            OSError: the disk failed.
            CorruptionFound: the log has rotted.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before_s:
            return
        for _ in range(STEPS_A_ROUND):
            due = self._seals.due(self._through())
            if due is None:
                return
            try:
                await self._hand.run(due.run)
            except (OSError, NotARegularFile) as error:
                if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
                    raise  # ADR 8
                self._not_before_s = loop.time() + RETRY_S
                log.warning("seal_not_written", reason=str(error), retry_s=RETRY_S)
                return
            self._seals.finish(due)

"""Keeps what is suspected of this member's log beyond the process (`store.suspicion`).

The note is written when a comparison of logs finds somebody who holds something else, and goes when
that is settled; what can't be written is told, and tried with the next round of asking. It must
never decide what a suspicion means.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from store.files import PASSING_ERRNOS
from store.suspicion import Suspicion, SuspicionNote

log = structlog.get_logger(__name__)


class Hand(Protocol):
    """`broker.ports.DiskHand`, as far as it is used here."""

    async def run(self, step: Callable[[], object]) -> object: ...


class Suspecting:
    """One member's."""

    def __init__(self, note: SuspicionNote, hand: Hand) -> None:
        self._note = note
        self._hand = hand
        self._noted: Suspicion | None = None

    def recall(self) -> int:
        """The entry at which a process before suspected its log; 0: none. Blocks: for a start.

        Raises:
            OSError: the note can't be read.
        """
        self._noted = self._note.read()
        return self._noted.index if self._noted is not None else 0

    @property
    def is_noted(self) -> bool:
        """Whether there is a note."""
        return self._noted is not None

    async def remember(self, index: int) -> None:
        """Logs differ at that entry, and it isn't known whose is wrong; 0: nothing is suspected
        any more.

        Raises:
            OSError: the disk failed.
        """
        wanted = Suspicion(index, is_memory=False) if index else None
        if wanted == self._noted:
            return
        try:
            await self._hand.run(partial(self._note.write, wanted))
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                raise
            log.warning("suspicion_not_noted", index=index, reason=str(error))
            return
        self._noted = wanted

"""Pulls that found nothing, waiting for what is not there yet.

A pull is held without a thread: a future each, woken when messages of its queue are applied,
re-checked now and then, bounded in number. This knows nothing of messages: whoever is woken looks
again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from broker.errors import BrokerError, ErrorCode
from broker.state.listening import QueueKey

RECHECK_S = 5.0  # a held pull looks again this often, should a wake-up ever be missed


@dataclass(frozen=True, slots=True)
class HoldStatistics:
    held: int
    woken: int
    refused: int


class HeldPulls:
    """Pulls that wait for messages; bounded."""

    def __init__(self, limit: int) -> None:
        """Args:
        limit: pulls held at once; past it a pull is refused as BUSY.
        """
        self._limit = limit
        # Dictionaries in the place of sets: pulls are woken in the order in which they came.
        self._waiting: defaultdict[QueueKey, dict[asyncio.Future[None], None]] = defaultdict(dict)
        self._held = self._woken = self._refused = 0

    def wake(self, key: QueueKey) -> None:
        """Messages arrived in a queue."""
        for future in self._waiting.pop(key, ()):
            if not future.done():
                self._woken += 1
                future.set_result(None)

    def wake_topic(self, incarnation: int) -> None:
        """The topic is gone: whoever waits for one of its queues looks again."""
        for key in [key for key in self._waiting if key[0] == incarnation]:
            self.wake(key)

    def wake_all(self) -> None:
        """Everybody looks again: leadership changed, or the node stops."""
        for key in list(self._waiting):
            self.wake(key)

    async def wait(self, key: QueueKey, timeout_s: float) -> None:
        """Returns when messages arrived, or after `timeout_s` or the re-check interval.

        Raises:
            BrokerError: BUSY when too many pulls are held.
        """
        if self._held >= self._limit:
            self._refused += 1
            raise BrokerError(ErrorCode.BUSY, f"{self._held} pulls are held, the limit")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[key][future] = None
        self._held += 1
        try:
            await asyncio.wait([future], timeout=min(timeout_s, RECHECK_S))
        finally:
            self._held -= 1
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.pop(future, None)
                if not waiting:
                    del self._waiting[key]

    def statistics(self) -> HoldStatistics:
        """A frozen picture, as of now."""
        return HoldStatistics(self._held, self._woken, self._refused)

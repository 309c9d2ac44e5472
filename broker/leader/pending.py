"""Who waits for what: Sends whose batches are on their way.

The appender owns these; nothing here decides anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.errors import ErrorCode, Failure
from broker.leader.batches import BatchAnswer

UNANSWERED: Final = Failure(ErrorCode.INTERNAL, "nobody has answered yet")  # never told to anybody


@dataclass(slots=True)
class PendingSend:
    """One Send whose batches are on their way; `done` gets the answer."""

    results: list[BatchAnswer]
    remaining: int
    done: asyncio.Future[list[BatchAnswer]]

    @classmethod
    def of(cls, count: int, done: asyncio.Future[list[BatchAnswer]]) -> PendingSend:
        """One of `count` batches, none of which is answered."""
        return cls([UNANSWERED] * count, count, done)

    def finish_one(self, position: int, result: BatchAnswer) -> None:
        """The batch at `position` is answered; with the last one the Send is."""
        self.results[position] = result
        self.remaining -= 1
        if self.remaining == 0 and not self.done.done():
            self.done.set_result(self.results)


class Waiting(NamedTuple):
    """A batch of a Send that waits for an entry to be applied."""

    send: PendingSend
    position: int
    result: BatchAnswer

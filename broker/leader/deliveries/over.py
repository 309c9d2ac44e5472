"""Messages whose attempts are over, as a desk finds them: some of them a turn become dead letters.

Each unit of them takes an entry of its own: so a few at a time, and in between whoever settles or
asks has a turn. What can't be buried is given again for a while. This reads the messages; it makes
no copies, and says nothing to the log (`broker.leader.deliveries.burying`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from broker.errors import BrokerError, ErrorCode
from broker.leader.deliveries.asking import Place
from broker.leader.deliveries.choosing import Choice, Read
from broker.leader.deliveries.hands import runs
from broker.reading.queues import Found
from broker.state.handouts import Handout

BURIED_A_TURN: Final = 16  # units, before others have their turn
MOST_BURIED: Final = 256 << 10  # bytes that are read for one unit
BURIED_SHARE: Final = 8  # of a segment: their copies say more, and an entry has to fit in one
TRIED_AGAIN_S: Final = 5.0  # after there was no room
# Why a message is no dead letter that say nothing of the others: all else is a want of room.
_OF_THE_MESSAGE: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.MESSAGE_NOT_FOUND,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.RECEIPT_SUPERSEDED,
    }
)

# (whose, queue id, in which hand, messages that follow each other, after so many attempts)
Bury = Callable[[Place, int, Handout, Found, int], Awaitable[None]]

log = structlog.get_logger(__name__)


def buried_bytes(segment_bytes: int) -> int:
    """How much is read for one unit of dead letters, one message at least."""
    return min(MOST_BURIED, segment_bytes // BURIED_SHARE)


class Burials:
    """One desk's."""

    def __init__(self, place: Place, bury: Bury, most_bytes: int, read: Read) -> None:
        """Args:
        most_bytes: of messages that become dead letters together; one at least.
        """
        self._place, self._bury_these = place, bury
        self._most_bytes, self._read = most_bytes, read
        self._not_before_s = 0.0  # by the loop's clock: there was no room lately

    @property
    def are_possible(self) -> bool:
        """Whether what is over is to be buried now, and not given again."""
        return asyncio.get_running_loop().time() >= self._not_before_s

    async def bury(self, choice: Choice) -> bool:
        """Whether there were messages whose attempts are over: they are dead letters, or given
        again for a while, as no topic or no message could be had. One that can't be holds up no
        other one. Each takes an entry of its own: so a few at a time, and in between whoever
        settles or asks has a turn; what is left is still due at the next look."""
        left = BURIED_A_TURN
        for queue_id, handout in choice.over:
            try:
                left = await self._bury_one(queue_id, handout, choice.max_attempts, left)
            except BrokerError as error:
                if error.code is ErrorCode.NOT_LEADER:
                    raise
                self._not_before_s = asyncio.get_running_loop().time() + TRIED_AGAIN_S
                log.warning("not_buried", group=self._place.group, reason=str(error))
                if error.code not in _OF_THE_MESSAGE:
                    break
            if left <= 0:
                break
        return bool(choice.over)

    async def _bury_one(self, queue_id: int, handout: Handout, attempts: int, left: int) -> int:
        """The handout's messages that follow each other, as many as a unit takes, in `left` units
        at most, after as many attempts as they were chosen for: who asks meanwhile may wish for
        others. How many units are left then."""
        for base, length in runs(handout):
            at = base
            while at < base + length:
                if left <= 0:
                    return 0
                found = await self._read(queue_id, at, base + length - at, self._most_bytes)
                await self._bury_these(self._place, queue_id, handout, found, attempts)
                at, left = at + found.count, left - 1
        return left

"""What the brokers refuse of a queue, told once for as long as it lasts. Pure.

The same call comes again every few moments, and is refused again until what was full has room. A
line for each would bury what else is told; none would hide it. So a *spell* is told when it begins:
from the first refusal of a kind to the first call that is taken, or to another lease.
"""

from __future__ import annotations

from dledger.client.errors import ClientError
from dledger.client.members.process_queue import Place, ProcessQueue


class Spells:
    """Of one kind of call. One entry a queue that was ever refused."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[Place, tuple[int, str]] = {}  # by which lease, and why

    def begins(self, queue: ProcessQueue, error: ClientError) -> bool:
        """Whether that is to be told: it wasn't yet, or something else was."""
        spell = (queue.epoch, error.code)
        if self._told.get(queue.place) == spell:
            return False
        self._told[queue.place] = spell
        return True

    def ends(self, queue: ProcessQueue) -> None:
        """A call about the queue was taken; what comes is news."""
        self._told.pop(queue.place, None)

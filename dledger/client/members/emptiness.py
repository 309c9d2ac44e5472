"""For how long all of many queues were empty, of which no one call asks for all.

Of each queue it is remembered when it was found empty first, by a call that was sent then, and
last, by one that was answered then, with nothing in between. All of them were empty together from
the latest of the first to the earliest of the last. What wasn't asked since isn't empty: an outage
must not look like the end. It keeps no more than the queues that were asked for, and are held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from dledger.client.members.process_queue import Place

Hold = tuple[Place, int]  # a queue, and the epoch by which it is held: another hold is another one


class _Seen(NamedTuple):
    since_s: float
    until_s: float


class Emptiness:
    """Of one member's queues; times are of one clock."""

    def __init__(self) -> None:
        self._seen: dict[Hold, _Seen] = {}

    def note(
        self, empty: Iterable[Hold], others: Iterable[Hold], sent_s: float, answered_s: float
    ) -> None:
        """A call was answered: these were empty, and the others weren't, or couldn't be read."""
        for hold in others:
            self._seen.pop(hold, None)
        for hold in empty:
            before = self._seen.get(hold)
            self._seen[hold] = _Seen(before.since_s if before else sent_s, answered_s)

    def forget(self) -> None:
        """Of no queue it is known."""
        self._seen.clear()

    def seconds(self, held: Collection[Hold]) -> float | None:
        """For how long all that are held were empty together; None: they weren't."""
        if len(self._seen) > len(held):  # who is held no more isn't remembered
            self._seen = {hold: self._seen[hold] for hold in held if hold in self._seen}
        found = [self._seen.get(hold) for hold in held]
        seen = [each for each in found if each is not None]
        if not seen or len(seen) < len(found):
            return None
        together = min(each.until_s for each in seen) - max(each.since_s for each in seen)
        return together if together >= 0 else None

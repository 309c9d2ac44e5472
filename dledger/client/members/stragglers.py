"""Handlers that are still at work on messages of leases that have ended.

This owns which messages those are. A queue goes when its time for handing over has, whatever runs,
or is lost; if its member has it again while such a handler runs, nobody has finished that message,
and it would be handed out a second time, beside the first. So the member waits for its own handler.

Bounds: no more than handlers can have in hand.
"""

from __future__ import annotations

from collections.abc import Collection

from dledger.client.members.process_queue import Place, ProcessQueue, Work


class Stragglers:
    """Of one member."""

    def __init__(self) -> None:
        self._offsets: dict[Place, set[int]] = {}

    def stay(self, queue: ProcessQueue) -> None:
        """The queue's lease is over; what is at work of it goes on."""
        if queue.at_work:
            self._offsets.setdefault(queue.place, set()).update(queue.at_work)

    def of(self, place: Place) -> Collection[int]:
        """Offsets that are at work."""
        return self._offsets.get(place, ())

    @property
    def are_there(self) -> bool:
        """Whether any handler is still at work."""
        return bool(self._offsets)

    def end(self, work: Work) -> None:
        """Its handler has ended, or nobody had begun with it."""
        offsets = self._offsets.get(work.queue.place)
        if offsets is not None:
            offsets.discard(work.message.queue_offset)
            if not offsets:
                del self._offsets[work.queue.place]

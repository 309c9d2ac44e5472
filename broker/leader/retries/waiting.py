"""What waits to be tried again holds the front of the log: it is in no other place.

A `broker.log_start.Holder`, of a leader. Each level of the schedule topic is a queue, so the first
message that waits there is the oldest of it. Waits end after two hours at most, and so does this,
unless a majority's disks are full: then nothing is moved, and this holds until there is room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from broker.state.retries import Queue, Retries
from broker.state.topics import Topics
from dledger.records.layout import UNIT
from dledger.records.reserved import SCHEDULE_TOPIC

_UNIT: Final = UNIT.struct()


class State(Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def topics(self) -> Topics: ...
    @property
    def retries(self) -> Retries: ...


class Queues(Protocol):
    """`store.consumequeue.ConsumeQueues`, as far as it is used here."""

    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def units(self, topic: str, queue_id: int, first: int, count: int) -> bytes: ...


class Waiting:
    """Of one replica.

    Args:
        index_at: the entry that a physical offset of the log belongs to.
    """

    name = "messages that wait to be tried again"

    def __init__(
        self,
        state: State,
        queues: Queues,
        index_at: Callable[[int], int],
    ) -> None:
        self._state = state
        self._queues = queues
        self._index_at = index_at

    def first_needed(self) -> int | None:
        """See `Holder`."""
        topic = self._state.topics.get(SCHEDULE_TOPIC)
        if topic is None:
            return None
        found = (
            self._first_of(topic.folder, queue_id, Queue(topic.incarnation, queue_id))
            for queue_id in range(len(topic.next_offsets))
        )
        return min((index for index in found if index is not None), default=None)

    def _first_of(self, folder: str, queue_id: int, level: Queue) -> int | None:
        queues = self._queues
        at = max(self._state.retries.moved_to(level), queues.min_offset(folder, queue_id))
        if at >= queues.max_offset(folder, queue_id):
            return None
        (physical_offset, *_) = _UNIT.unpack(queues.units(folder, queue_id, at, 1))
        return self._index_at(physical_offset)

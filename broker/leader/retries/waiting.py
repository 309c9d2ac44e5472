"""What waits to be tried again holds the front of the log: it is in no other place.

A `broker.log_start.Holder`, of a leader. Each level of the schedule topic is a queue, so the first
message that waits there is the oldest of it. Waits end after two hours at most, and so does this,
unless a majority's disks are full: then nothing is moved, and this holds until there is room. Where
it can't be told what waits, as its queue is wrong or the log has rotted there, everything is held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from broker.errors import BrokerError
from broker.reading.queues import Found
from broker.state.retries import Queue, Retries
from broker.state.topics import TopicRef, Topics, TopicState
from dledger.records.record import decode_records
from dledger.records.reserved import SCHEDULE_TOPIC

_EVERYTHING: Final = 0  # an index before all
_LEAST_BYTES: Final = 1  # one record, however long it is


class State(Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def topics(self) -> Topics: ...
    @property
    def retries(self) -> Retries: ...


class Reader(Protocol):
    """`broker.reading.queues.QueueReader`, as far as it is used here."""

    def bounds(self, topic: TopicRef, queue_id: int) -> tuple[int, int]: ...
    def pull(
        self, topic: TopicRef, queue_id: int, offset: int, max_messages: int, max_bytes: int
    ) -> Found: ...


class Waiting:
    """Of one replica.

    Args:
        index_at: the entry that a physical offset of the log belongs to.
        is_mended: whether an error tells of rot that is being repaired.
    """

    name = "messages that wait to be tried again"

    def __init__(
        self,
        state: State,
        reader: Reader,
        index_at: Callable[[int], int],
        is_mended: Callable[[BaseException], bool],
    ) -> None:
        self._state = state
        self._reader = reader
        self._index_at = index_at
        self._is_mended = is_mended

    def first_needed(self) -> int | None:
        """See `Holder`."""
        topic = self._state.topics.get(SCHEDULE_TOPIC)
        if topic is None:
            return None
        found = (self._first_of(topic, level) for level in range(len(topic.next_offsets)))
        return min((index for index in found if index is not None), default=None)

    def _first_of(self, topic: TopicState, queue_id: int) -> int | None:
        at = self._state.retries.moved_to(Queue(topic.incarnation, queue_id))
        if at >= topic.next_offsets[queue_id]:
            return None
        ref = TopicRef(topic.name, topic.incarnation)
        try:
            low, end = self._reader.bounds(ref, queue_id)
            found = self._reader.pull(ref, queue_id, max(at, low), 1, _LEAST_BYTES)
        except Exception as error:
            if not isinstance(error, BrokerError) and not self._is_mended(error):
                raise
            return _EVERYTHING
        for record in decode_records(found.records):
            return self._index_at(record.physical_offset)
        return None if found.next_offset >= end else _EVERYTHING

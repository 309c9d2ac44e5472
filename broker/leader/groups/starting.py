"""Where a group starts in the queues of a topic, as its settings wish.

Asked once for each queue, when the first lease in it is granted; the answer is written into the log
with that grant, and nobody asks again. What is younger than the group, topic or queue, starts with
its first message: the group was there before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.state.groups import Group, Start
from broker.state.topics import TopicRef, TopicState
from dledger.records.reserved import is_reserved


class Queues(Protocol):
    """`broker.reading.queues.QueueReader`, as far as it is used here."""

    def bounds(self, topic: TopicRef, queue_id: int) -> tuple[int, int]: ...
    def offset_by_time(self, topic: TopicRef, queue_id: int, time_ms: int) -> int: ...


def starts(reader: Queues, group: Group, topic: TopicState, started: int) -> Sequence[int]:
    """Where the group starts in each queue of the topic from `started` on.

    Raises:
        BrokerError, StoreError: it can't be told now.
    """
    ref, settings = TopicRef(topic.name, topic.incarnation), group.settings
    # What failed before is none of a group's wishes, and neither is what comes after it was made.
    is_all = started or topic.incarnation > group.created or is_reserved(topic.name)
    wish = Start.FIRST if is_all else settings.start
    found: list[int] = []
    for queue_id in range(started, len(topic.next_offsets)):
        first, last = reader.bounds(ref, queue_id)
        match wish:
            case Start.FIRST:
                found.append(first)
            case Start.LAST:
                found.append(last)
            case Start.TIME:
                found.append(reader.offset_by_time(ref, queue_id, settings.start_time_ms))
    return found

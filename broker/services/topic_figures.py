"""What is in a topic's queues: offsets, and when the last message came.

For operators who look whether messages come, and where they pile up. A picture as of a confirmed
leader (ReadIndex); between two queues of a page anything may be applied. Rates are the difference
of two pictures, taken by who asks (ADR 61).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from broker.errors import BrokerError, ErrorCode
from broker.reading.queues import QueueReader
from broker.services.gate import Gate
from broker.services.soundness import Soundness
from broker.services.topics import Topic, Topics
from broker.state.topics import TopicRef
from dledger.ports import Turns

PAGE_QUEUES: Final = 128  # of each the log is read once


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """One queue. `last_stored_ms`: when the last message was stored, by the log's clock; None:
    none is held."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_stored_ms: int | None


@dataclass(frozen=True, slots=True)
class FiguresPage:
    """Some queues, by id; `next_queue` is where the next page begins, 0 behind the last."""

    topic: Topic
    queues: tuple[QueueFigures, ...]
    next_queue: int


class TopicFigures:
    """Measures topics."""

    def __init__(
        self, gate: Gate, topics: Topics, reader: QueueReader, soundness: Soundness, turns: Turns
    ) -> None:
        self._gate = gate
        self._topics = topics
        self._reader = reader
        self._soundness = soundness
        self._turns = turns

    async def measure(self, wanted: TopicRef, first_queue: int = 0) -> FiguresPage:
        """The queues of the topic from `first_queue` on, `PAGE_QUEUES` at most.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, TOPIC_REPLACED, QUEUE_NOT_FOUND, NOT_LEADER, NOT_READY.
        """
        await self._gate.confirm()
        topic = self._topics.found(wanted)
        ref = TopicRef(topic.name, topic.incarnation)
        if first_queue >= topic.queue_count:
            text = f"topic {topic.name!r} has {topic.queue_count} queues: none is {first_queue}"
            raise BrokerError(ErrorCode.QUEUE_NOT_FOUND, text)
        end = min(first_queue + PAGE_QUEUES, topic.queue_count)
        found: list[QueueFigures] = []
        is_enough = self._turns.share()
        for queue_id in range(first_queue, end):
            found.append(self._soundness.read(partial(self._one, ref, queue_id)))
            if is_enough():
                await self._turns.pause()
                self._gate.check_serving()
                is_enough = self._turns.share()
        return FiguresPage(topic, tuple(found), 0 if end == topic.queue_count else end)

    def _one(self, topic: TopicRef, queue_id: int) -> QueueFigures:
        low, high = self._reader.bounds(topic, queue_id)
        last = None if low == high else self._reader.stored_at(topic, queue_id, high - 1)
        return QueueFigures(queue_id, low, high, last)

"""Which message was the first of a time, looked for in turns of the event loop.

A look is a binary search, and each probe reads an entry of the log: in a topic of a thousand queues
they take seconds.
"""

from __future__ import annotations

from broker.reading.queues import QueueReader
from broker.services.messages import Piece
from broker.services.soundness import Soundness
from broker.state.topics import TopicRef
from dledger.ports import Turns


class Times:
    """Looks for offsets by time, for calls."""

    def __init__(self, reader: QueueReader, soundness: Soundness, turns: Turns) -> None:
        self._reader = reader
        self._soundness = soundness
        self._turns = turns

    async def offset(
        self, topic: TopicRef, queue_id: int, time_ms: int, piece: Piece | None = None
    ) -> int:
        """See `QueueReader.offset_by_time`, with a pause between two probes where a turn has had
        its share. What comes meanwhile isn't looked at.

        Args:
            piece: of the event loop, which other looks have part of; None: its own.

        Raises:
            BrokerError: see `QueueReader.bounds`, also of a topic that is deleted meanwhile;
                NOT_READY, the log has rotted.
        """
        piece = piece or Piece(self._turns)
        steps = self._reader.offset_by_time_in_steps(topic, queue_id, time_ms)
        while True:
            try:
                self._soundness.read(lambda: next(steps))
            except StopIteration as found:
                offset: int = found.value
                return offset
            if piece.is_over():
                await piece.pause()

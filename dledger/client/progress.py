"""How far a consumer is in each of its queues: what is in hand, finished, passed over, committed.

    in hand       the message (or the batch) that the loop was given last: its work may have failed
    finished      what was in hand when the loop asked for the next one, or found the end
    passed over   read and not handed over, since its tag isn't wanted: as good as finished, once
                  everything before it in its queue is

This owns which offsets a commit covers. It must never cover a message whose work may not be done,
and it asks nobody: fetching and committing are the consumer's (`dledger.client.consumer`).
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.client.errors import InvalidArgument
from dledger.client.results import Message


class Progress:
    """Offsets by queue of one topic, each one past the last message that is meant."""

    __slots__ = (
        "_committed",
        "_finished",
        "_furthest",
        "_handed_over",
        "_in_hand",
        "_read",
        "_topic",
    )

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._in_hand: int | None = None  # the queue of what the loop was given last
        self._handed_over: dict[int, int] = {}
        self._read: dict[int, int] = {}  # handed over, and what was passed over right behind it
        self._furthest: dict[int, int] = {}  # handed over, whatever was sought since
        self._finished: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    @property
    def positions(self) -> dict[int, int]:
        """One past the last message handed over, for queues that gave any."""
        return dict(self._handed_over)

    # --- as messages go by --------------------------------------------------------------------

    def hand_over(self, message: Message, read_to: int) -> None:
        """`message`, and those before it in its queue, are in the application's hand; what was
        there before is finished.

        Args:
            read_to: where the queue goes on: what lies between is passed over.
        """
        self.finish()
        queue_id, after = message.queue_id, message.queue_offset + 1
        self._in_hand = queue_id
        self._handed_over[queue_id] = after
        self._read[queue_id] = read_to
        if after > self._furthest.get(queue_id, 0):
            self._furthest[queue_id] = after

    def has_in_hand(self, queue_id: int) -> bool:
        """Whether what was handed over last is of that queue, and may not be done."""
        return self._in_hand == queue_id

    def take_back(self, message: Message) -> bool:
        """What was handed over last, from `message` on, never reached the application; false: it
        isn't in hand, as its queue is read from elsewhere by now."""
        queue_id = message.queue_id
        if self._in_hand != queue_id:
            return False
        self._in_hand = None
        self._handed_over[queue_id] = self._read[queue_id] = message.queue_offset
        return True

    def pass_over(self, queue_id: int, read_to: int) -> None:
        """More of a queue of which nothing is in hand, up to `read_to`, isn't wanted."""
        self._read[queue_id] = self._finished[queue_id] = read_to

    def finish(self) -> None:
        """What was in hand is done: its loop has asked for more."""
        queue_id, self._in_hand = self._in_hand, None
        if queue_id is not None:
            self._finished[queue_id] = self._read[queue_id]

    def forget(self, queue_id: int) -> None:
        """The queue is read from elsewhere: what is not committed by now was not finished. What was
        committed may have been set back, by whoever resets offsets: only the brokers know.
        """
        for offsets in (self._handed_over, self._read, self._finished, self._committed):
            offsets.pop(queue_id, None)
        if self._in_hand == queue_id:
            self._in_hand = None

    # --- commits ------------------------------------------------------------------------------

    @property
    def finished(self) -> Mapping[int, int]:
        """What `commit()` covers."""
        return self._finished

    def up_to(self, message: Message) -> Mapping[int, int]:
        """What `commit(message)` covers: its queue up to and with it, and what was passed over
        right behind it.

        Raises:
            InvalidArgument: it was never handed over.
        """
        queue_id, after = message.queue_id, message.queue_offset + 1
        if message.topic != self._topic or after > self._furthest.get(queue_id, 0):
            raise InvalidArgument(
                f"{message.topic}/{queue_id} offset {message.queue_offset} was not handed over by "
                "this consumer"
            )
        is_last = after == self._handed_over.get(queue_id)
        return {queue_id: self._read[queue_id] if is_last else after}

    def uncommitted(self, done: Mapping[int, int]) -> dict[int, int]:
        """What of `done` goes beyond what is committed."""
        return {
            queue_id: offset
            for queue_id, offset in done.items()
            if self._committed.get(queue_id, 0) < offset
        }

    def on_committed(self, moved: Mapping[int, int]) -> None:
        """The brokers have taken it."""
        for queue_id, offset in moved.items():
            self._committed[queue_id] = max(offset, self._committed.get(queue_id, 0))

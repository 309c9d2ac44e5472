"""Readers that are new: one reads everything at the end, others look at what may have rotted.

At the end every queue is read from its first message to its end. Only the poll that reached the
end is marked final, so that a reading that broke off isn't taken for one that saw everything. What
a witness reads goes into the same history: a wrong value is an anomaly, whoever was given it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from chaos.checkers.anomalies import polled_by
from chaos.checkers.history import End, History, Operation, Poll, Send
from chaos.errors import TimeFarOff, TimesGoBack
from chaos.real.retired import READER, first_kept
from chaos.real.workload import DELIVERY_TIMEOUT_MS, READ_DEADLINE_S, TOPIC, value_of
from dledger.client import Client, ClientError, Message, OffsetOutOfRange
from dledger.history import Outcome

BATCH_MESSAGES: Final = 5_000
BATCH_BYTES: Final = 1 << 20


class Retained(Enum):
    """What a queue holds: every message from the first on, or those that aren't too old."""

    ALL = auto()
    NEWER = auto()


async def read_everything(
    client: Client,
    history: History,
    now_us: Callable[[], int],
    queues: int,
    within_ms: float,
    *,
    retained: Retained,
) -> None:
    """The history holds every message that can be read.

    Args:
        within_ms: how far the log's time may be from this machine's, by which messages were sent.

    Raises:
        ClientError: a queue can't be read to its end.
        TimesGoBack: a message was stored before one that lies before it.
        TimeFarOff: it was stored at a time when it can't have been.
    """
    for queue_id in range(queues):
        begun = history.invoke(now_us(), READER, End(TOPIC, queue_id))
        bounds = await client.queue_offsets(TOPIC, queue_id, deadline_s=READ_DEADLINE_S)
        history.complete(now_us(), begun, Outcome.OK, bounds.max_offset)
        reading = _Reading(client, history, now_us, READER, queue_id, retained, within_ms)
        await reading.read(None)


async def read_start(
    client: Client,
    history: History,
    now_us: Callable[[], int],
    queues: int,
    end: int,
    name: str,
    *,
    retained: Retained,
) -> str:
    """The history holds, as read by the process `name`, what clients can read of the log's bytes
    up to `end`; how that ended, in a few words."""
    refused: list[str] = []
    for queue_id in range(queues):
        try:
            await _Reading(client, history, now_us, name, queue_id, retained).read(end)
        except ClientError as error:
            refused.append(f"queue {queue_id}: {error.code}")
    return f"a reader was refused {', '.join(refused)}" if refused else "a reader had no trouble"


def missing_at_the_end(history: History) -> list[tuple[str, Operation]]:
    """Values that were acknowledged, each with its send, and that the last reading
    didn't find, of queues which it read to their end, from where they begin by then. This counts
    also what a consumer had seen before it was lost."""
    first = first_kept(history)
    found: set[str] = set()
    read: set[int] = set()
    for operation in history.operations:
        action = operation.action
        if operation.process == READER and isinstance(action, Poll):
            found.update(value for _, value in polled_by(operation))
            if action.final:
                read.add(action.queue_id)
    return [
        (value, operation)
        for operation in history.operations
        if isinstance(operation.action, Send)
        and operation.is_ok
        and operation.action.queue_id in read
        for value in operation.action.values
        if value not in found
        and not _is_before(operation.result, first.get((TOPIC, operation.action.queue_id), 0))
    ]


def _is_before(result: object, first: int) -> bool:
    """Whether what was acknowledged with that offset has gone by the time of the last reading; or
    may have, where nobody knows the offset."""
    return result < first if isinstance(result, int) else first > 0


@dataclass(slots=True)
class _Reading:
    """One queue, read from its first message on. Stored times never go back, whatever the clocks
    of leaders did."""

    client: Client
    history: History
    now_us: Callable[[], int]
    process: str
    queue_id: int
    retained: Retained
    within_ms: float | None = None  # of the sender's clock; None: not looked at
    _stored_ms: int = 0

    async def read(self, end: int | None) -> None:
        """Up to the first message at or behind byte `end` of the log; None: to the queue's end.

        Raises:
            ClientError: the queue can't be read.
            TimesGoBack: a message was stored before one that lies before it.
            TimeFarOff: it was stored at a time when it can't have been.
        """
        at, begins, ended = 0, True, False
        if self.retained is Retained.NEWER:
            at = await self._first()
        while not ended:
            asked_us, first = self.now_us(), at
            try:
                found = await self.client.pull(
                    TOPIC,
                    self.queue_id,
                    first,
                    max_messages=BATCH_MESSAGES,
                    max_bytes=BATCH_BYTES,
                    deadline_s=READ_DEADLINE_S,
                )
            except OffsetOutOfRange:
                if self.retained is Retained.ALL or (behind := await self._first()) <= at:
                    raise
                at, begins = behind, True  # more has gone meanwhile
                continue
            at = found.next_offset
            final = not found.messages or at >= found.max_offset
            poll = Poll(TOPIC, self.queue_id, first, seek=begins, final=final and end is None)
            begins = False
            begun = self.history.invoke(asked_us, self.process, poll)
            polled = tuple((each.queue_offset, value_of(each)) for each in found.messages)
            self.history.complete(self.now_us(), begun, Outcome.OK, polled)
            self._check_times(found.messages)
            is_past = end is not None and any(m.physical_offset >= end for m in found.messages)
            ended = final or is_past

    async def _first(self) -> int:
        """The offset of the first message that is kept."""
        bounds = await self.client.queue_offsets(TOPIC, self.queue_id, deadline_s=READ_DEADLINE_S)
        return bounds.min_offset

    def _check_times(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.store_time_ms < self._stored_ms:
                raise TimesGoBack(self.queue_id, message.queue_offset)
            self._stored_ms = message.store_time_ms
            self._check_time(message)

    def _check_time(self, message: Message) -> None:
        """It was stored after it was sent, and before nobody sent it again any more."""
        if self.within_ms is None:
            return
        after_ms = message.store_time_ms - message.born_time_ms
        off_ms = min(after_ms, 0) + max(after_ms - DELIVERY_TIMEOUT_MS, 0)
        if abs(off_ms) > self.within_ms:
            raise TimeFarOff(self.queue_id, message.queue_offset, off_ms)

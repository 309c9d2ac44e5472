"""The last look: every queue is read from its first message to its end, by a reader that is new.

Only the poll that reached the end is marked final, so that a reading that broke off isn't taken
for one that saw everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chaos.checkers.anomalies import polled_by
from chaos.checkers.history import End, History, Outcome, Poll, Send
from chaos.real.workload import READ_DEADLINE_S, TOPIC, value_of
from dledger.client import Client

READER: Final = "reader"
BATCH_MESSAGES: Final = 5_000
BATCH_BYTES: Final = 1 << 20


async def read_everything(
    client: Client, history: History, now_us: Callable[[], int], queues: int
) -> None:
    """The history holds every message that can be read.

    Raises:
        ClientError: a queue can't be read to its end.
    """
    for queue_id in range(queues):
        begun = history.invoke(now_us(), READER, End(TOPIC, queue_id))
        bounds = await client.queue_offsets(TOPIC, queue_id, deadline_s=READ_DEADLINE_S)
        history.complete(now_us(), begun, Outcome.OK, bounds.max_offset)
        await _read_queue(client, history, now_us, queue_id)


def missing_at_the_end(history: History) -> list[str]:
    """Values that were acknowledged and that the last reading didn't find, of queues which it
    read to their end. This counts also what a consumer had seen before it was lost."""
    found: set[str] = set()
    read: set[int] = set()
    for operation in history.operations:
        action = operation.action
        if operation.process == READER and isinstance(action, Poll):
            found.update(value for _, value in polled_by(operation))
            if action.final:
                read.add(action.queue_id)
    return [
        value
        for operation in history.operations
        if isinstance(operation.action, Send)
        and operation.is_ok
        and operation.action.queue_id in read
        for value in operation.action.values
        if value not in found
    ]


async def _read_queue(
    client: Client, history: History, now_us: Callable[[], int], queue_id: int
) -> None:
    at, ended = 0, False
    while not ended:
        asked_us, first = now_us(), at
        found = await client.pull(
            TOPIC,
            queue_id,
            first,
            max_messages=BATCH_MESSAGES,
            max_bytes=BATCH_BYTES,
            deadline_s=READ_DEADLINE_S,
        )
        at = found.next_offset
        ended = not found.messages or at >= found.max_offset
        poll = Poll(TOPIC, queue_id, first, seek=first == 0, final=ended)
        begun = history.invoke(asked_us, READER, poll)
        polled = tuple((each.queue_offset, value_of(each)) for each in found.messages)
        history.complete(now_us(), begun, Outcome.OK, polled)

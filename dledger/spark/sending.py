"""Sends what a spool holds, numbered by its place, so that sending it again stores nothing twice.

Numbers are `base + position` in each queue; where a send was cut follows from the position alone,
so that a batch whose answer was lost is sent again as it was. One request at a time, with one batch
of each queue that has something left. It never renumbers: what the brokers refuse for good ends it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dledger.client.errors import (
    ClientError,
    DeadlineExceeded,
    QueuesChanged,
    ServerError,
    from_wire,
)
from dledger.limits import MAX_SEND_BATCHES
from dledger.spark.brokers import Brokers
from dledger.spark.layout import Place
from dledger.spark.rows import Spool
from dledger.wire import broker_pb2 as pb

MAX_BATCH_BYTES: Final = 1 << 20
MAX_BATCH_RECORDS: Final = 16_384
MAX_REQUEST_BYTES: Final = 8 << 20
_PAUSE_S: Final = 0.05


@dataclass(slots=True)
class QueueSend:
    """What is still to be sent to one queue.

    Attributes:
        base: the number of `places[0]`.
        at: how many of them are stored.
        changed: the entry of the topic by which the queue was chosen (`Topic.changed`).
    """

    topic: str
    incarnation: int
    queue_id: int
    base: int
    places: Sequence[Place]
    at: int
    changed: int

    @property
    def is_over(self) -> bool:
        return self.at == len(self.places)

    def cut(self) -> Sequence[Place]:
        """The next batch; always the same one from the same place."""
        size, end = 0, self.at
        while end < len(self.places) and end - self.at < MAX_BATCH_RECORDS:
            size += self.places[end].size
            if size > MAX_BATCH_BYTES and end > self.at:
                break
            end += 1
        return self.places[self.at : end]


@dataclass(frozen=True, slots=True)
class Sent:
    """How many rows this attempt has stored."""

    rows: int
    requests: int


def send_all(
    brokers: Brokers,
    producer_id: bytes,
    spool: Spool,
    sends: Sequence[QueueSend],
    patience_s: float,
) -> Sent:
    """Everything is stored on a majority of disks.

    Args:
        patience_s: without any batch stored for so long, it ends.

    Raises:
        QueuesChanged: a topic takes messages in other queues now; some may have been stored.
        ClientError: not everything is; what was asked last may have been stored.
    """
    rows = requests = 0
    last_progress = time.monotonic()
    while left := [each for each in sends if not each.is_over]:
        parts = _request(left)
        batches = [_batch(each, part, spool) for each, part in parts]
        results = brokers.send(producer_id, batches)
        requests += 1
        if len(results) != len(batches):
            raise ServerError(f"{len(results)} results for {len(batches)} batches")
        stored, failure = _taken(parts, results)
        rows += stored
        if stored:
            last_progress = time.monotonic()
        elif failure is not None and time.monotonic() - last_progress > patience_s:
            told = f"nothing could be stored for {patience_s:g} s: {failure.message}"
            raise DeadlineExceeded(told) from failure
        else:
            time.sleep(_PAUSE_S)
    return Sent(rows, requests)


def _request(left: Sequence[QueueSend]) -> list[tuple[QueueSend, Sequence[Place]]]:
    """As many queues' next batches as a request holds, one at least."""
    found: list[tuple[QueueSend, Sequence[Place]]] = []
    size = 0
    for each in left[:MAX_SEND_BATCHES]:
        part = each.cut()
        size += sum(place.size for place in part)
        if found and size > MAX_REQUEST_BYTES:
            break
        found.append((each, part))
    return found


def _batch(send: QueueSend, part: Sequence[Place], spool: Spool) -> pb.SendBatch:
    return pb.SendBatch(
        topic=send.topic,
        topic_incarnation=send.incarnation,
        queue_id=send.queue_id,
        base_sequence=send.base + send.at,
        count=len(part),
        records=spool.read(part, send.queue_id),
        queues_changed=send.changed,
    )


def _taken(
    parts: Sequence[tuple[QueueSend, Sequence[Place]]], results: Sequence[pb.SendResult]
) -> tuple[int, ClientError | None]:
    """How many rows are stored, and the first failure that another attempt may mend.

    Raises:
        ClientError: the first that none will; QueuesChanged, another choice of queues may.
    """
    stored, failure = 0, None
    for (send, part), result in zip(parts, results, strict=True):
        if not result.HasField("error"):
            send.at += len(part)
            stored += len(part)
            continue
        error = from_wire(result.error)
        if not error.retriable or isinstance(error, QueuesChanged):
            raise error
        failure = failure or error
    return stored, failure

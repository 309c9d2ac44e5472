"""Which of a task's rows go to which queue of a topic, attempt after attempt (ADR 33).

A row's queue follows from the row and the number of queues that take messages. That number may
change while a batch is being written, and what was stored by then stays where it is. So a topic's
rows are written in *steps*, each by one number, each for what the one before left:

    step    by              its rows
    first   n₁ queues       all of the task's for the topic, in their order
    next    n₂ queues       those that the step before hasn't stored, in the same order

Of a step is written down where the numbers began in each queue (`base`), also in those of the step
before. What that one stored is the difference, so that whoever comes later finds the same steps.
Rows of one queue, and so those of a key, are sent in their order whatever the steps. Nothing here
asks or sends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

DIGEST_SIZE: Final = 16

Numbers = Mapping[int, int]  # by queue


class Place(NamedTuple):
    """A row of the spool: where it lies, and its queue.

    Attributes:
        choice: its queue if it names one, else what the queue is the remainder of.
    """

    digest: bytes
    start: int
    size: int
    choice: int = 0
    is_fixed: bool = False


Layout = dict[int, list[Place]]  # by queue, in the order in which they are sent


def routed(places: Iterable[Place], queues: int) -> Layout:
    """The rows over so many queues. Rows that name a queue have it, whether it is there or not."""
    found: Layout = {}
    for place in places:
        queue_id = place.choice if place.is_fixed else place.choice % queues
        found.setdefault(queue_id, []).append(place)
    return found


def digest_of(layout: Layout) -> str:
    """Of the rows, queue by queue, in order."""
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for queue_id, places in sorted(layout.items()):
        digest.update(queue_id.to_bytes(4, "big"))
        digest.update(len(places).to_bytes(8, "big"))
        digest.update(b"".join(place.digest for place in places))
    return digest.hexdigest()


def counts_of(layout: Layout) -> dict[int, int]:
    """How many rows go to each queue."""
    return {queue_id: len(places) for queue_id, places in layout.items()}


def left_of(places: Sequence[Place], layout: Layout, stored: Numbers) -> list[Place]:
    """What isn't stored, in order.

    Args:
        stored: how many of each queue's rows are, the first ones.
    """
    there = {
        place.start
        for queue_id, each in layout.items()
        for place in each[: stored.get(queue_id, 0)]
    }
    return [place for place in places if place.start not in there]

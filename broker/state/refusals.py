"""Why a command took no effect: what its proposer learns in the place of a result.

A refusal is decided while the entry is applied, by the log and the state before it, and so alike
on every replica. It is a value and no exception: the entry is applied, and applying it has changed
nothing. `broker.services.refused` says what a caller is told.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicExists:
    """There is a topic of that name, with `queue_count` queues."""

    topic: str
    queue_count: int


@dataclass(frozen=True, slots=True)
class TopicNotFound:
    """There is no topic of that name, or none any more."""

    topic: str


@dataclass(frozen=True, slots=True)
class TooManyQueues:
    """With `wanted` more, the broker group would have more than `limit` queues over all topics."""

    wanted: int
    limit: int


@dataclass(frozen=True, slots=True)
class TooMuchProgress:
    """With one more, more than `limit` pairs of consumer group and topic would have offsets."""

    limit: int


@dataclass(frozen=True, slots=True)
class OffsetOutOfRange:
    """The queue doesn't exist or ends before `offset`: the topic was deleted and made anew since
    the command was proposed."""

    topic: str
    queue_id: int
    offset: int


Refusal = TopicExists | TopicNotFound | TooManyQueues | TooMuchProgress | OffsetOutOfRange

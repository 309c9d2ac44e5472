"""Intents: what a task wrote down before it sent the first row of a batch (ADR 33).

This owns their form, their place (queue 0 of a topic of their own) and what follows from them. The
topic is read from its end, no further than to the batch before. It judges and never sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from dledger.records.record import decode_records
from dledger.spark.brokers import Brokers
from dledger.spark.errors import WriteRefused

QUEUE: Final = 0
VERSION: Final = 1
_PAGE: Final = 256  # records that one look back asks for


@dataclass(frozen=True, slots=True)
class TopicIntent:
    """What a task is going to store in one topic: by queue `(base, count)`, and a digest."""

    incarnation: int
    queues: Mapping[int, tuple[int, int]]
    digest: str


@dataclass(frozen=True, slots=True)
class Intent:
    """What a task is going to store. `origin`: its producer's first id, in hexadecimal digits."""

    batch: int
    partition: int
    origin: str
    topics: Mapping[str, TopicIntent]

    def encode(self) -> bytes:
        topics = {
            name: {
                "incarnation": each.incarnation,
                "queues": {str(queue): [*pair] for queue, pair in sorted(each.queues.items())},
                "digest": each.digest,
            }
            for name, each in sorted(self.topics.items())
        }
        told = {"version": VERSION, "batch": self.batch, "partition": self.partition}
        return json.dumps(told | {"origin": self.origin, "topics": topics}).encode()

    @classmethod
    def decode(cls, body: bytes, place: str) -> Self:
        """The intent.

        Raises:
            WriteRefused: it isn't one that this release knows.
        """
        try:
            told: dict[str, Any] = json.loads(body)
            if told["version"] != VERSION:
                raise ValueError(f"version {told['version']}")
            topics = {
                name: TopicIntent(
                    int(each["incarnation"]),
                    {int(queue): (int(b), int(c)) for queue, (b, c) in each["queues"].items()},
                    str(each["digest"]),
                )
                for name, each in told["topics"].items()
            }
            return cls(int(told["batch"]), int(told["partition"]), str(told["origin"]), topics)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WriteRefused(f"{place} is no intent of a sink: {error}") from error


def intents_since(brokers: Brokers, topic: str, batch: int) -> list[Intent]:
    """The intents of `batch` and of later ones, oldest first.

    Raises:
        WriteRefused: something else is in the topic, or it is gone.
    """
    found: list[Intent] = []
    for intent in _backwards(brokers, topic):
        if intent.batch < batch:
            break
        found.append(intent)
    return found[::-1]


def _backwards(brokers: Brokers, name: str) -> Iterator[Intent]:
    topic = brokers.topic(name)
    if topic is None:
        raise WriteRefused(f"there is no topic {name!r} any more, which the sink's intents were in")
    first, end = topic.bounds[QUEUE]
    while end > first:
        start = at = max(end - _PAGE, first)
        page: list[Intent] = []
        while at < end:
            answer = brokers.pull(name, topic.incarnation, QUEUE, at, end - at)
            page += [
                Intent.decode(each.body, f"{name}/{QUEUE} at {each.queue_offset}")
                for each in decode_records(answer.records)
            ]
            at = answer.next_offset
        yield from reversed(page)
        end = start


def own_intent(intents: list[Intent], batch: int, partition: int) -> Intent | None:
    """What this task wrote down at an earlier attempt; None: it hasn't.

    Raises:
        WriteRefused: a later batch has begun.
    """
    later = [each.batch for each in intents if each.batch > batch]
    if later:
        raise WriteRefused(f"batch {batch} is over: batch {max(later)} has begun")
    own = [each for each in intents if each.partition == partition]
    return own[0] if own else None


def check_same(before: Intent, now: Intent) -> None:
    """What was written down at an earlier attempt is what would be written down now.

    Raises:
        WriteRefused: the rows differ, or nobody knows what was stored of them.
    """
    place = f"partition {now.partition} of batch {now.batch}"
    if before.origin != now.origin and now.topics:
        raise WriteRefused(
            f"the brokers have forgotten the producer of {place} since it began to write: nobody "
            "knows what is stored"
        )
    for name in {*before.topics, *now.topics}:
        then, here = before.topics.get(name), now.topics.get(name)
        if then is not None and here is not None and then.incarnation != here.incarnation:
            continue  # Whatever it stored is gone with the topic.
        if then is None or here is None or _content(then) != _content(here):
            raise WriteRefused(
                f"{place} has other rows for {name!r} than when it began to write, or another "
                "order of them (order=content if only that differs): "
                f"{_told(then)} before, {_told(here)} now"
            )


def _content(intent: TopicIntent) -> tuple[str, dict[int, int]]:
    return intent.digest, {queue: count for queue, (_, count) in intent.queues.items()}


def _told(intent: TopicIntent | None) -> str:
    if intent is None:
        return "none"
    return f"{sum(count for _, count in intent.queues.values())} with digest {intent.digest[:8]}"


def check_all_told(intents: list[Intent], batch: int, told: set[int]) -> None:
    """Whoever began to write in the batch has ended.

    Raises:
        WriteRefused: a partition has begun that there is no longer.
    """
    lost = sorted({each.partition for each in intents if each.batch == batch} - told)
    if lost:
        raise WriteRefused(
            f"an earlier attempt of batch {batch} began to write partitions {lost}, which this one "
            "doesn't have: it was cut into fewer partitions, and rows are stored twice"
        )

"""Intents: what a task wrote down before it sent the first row of a batch (ADR 33).

This owns their form, their place (queue 0 of a topic of their own) and what follows from them. The
topic is read from its end, no further than to the batch before. It judges and never sends.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from dledger.records.record import decode_records
from dledger.spark.brokers import Brokers
from dledger.spark.errors import WriteRefused

QUEUE: Final = 0
VERSION: Final = 2
_BEFORE: Final = 1  # without the number of queues
_PAGE: Final = 256  # records that one look back asks for


@dataclass(frozen=True, slots=True)
class TopicIntent:
    """A step (`dledger.spark.layout`): what a task is going to store in one topic.

    Attributes:
        queues: `(base, count)`; those of the step before too, with a count of 0.
        write_queues: how many queues the rows are spread over; 0: the release before didn't say.
    """

    incarnation: int
    queues: Mapping[int, tuple[int, int]]
    digest: str
    write_queues: int

    @property
    def bases(self) -> dict[int, int]:
        return {queue_id: base for queue_id, (base, _) in self.queues.items()}

    @property
    def content(self) -> tuple[str, dict[int, int]]:
        """What has to be the same at every attempt."""
        return self.digest, {
            queue_id: count for queue_id, (_, count) in self.queues.items() if count
        }


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
                "write_queues": each.write_queues,
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
            if told["version"] not in (_BEFORE, VERSION):
                raise ValueError(f"version {told['version']}")
            is_before = told["version"] == _BEFORE
            topics = {
                name: TopicIntent(
                    int(each["incarnation"]),
                    {int(queue): (int(b), int(c)) for queue, (b, c) in each["queues"].items()},
                    str(each["digest"]),
                    0 if is_before else int(each["write_queues"]),
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


def own_intents(intents: list[Intent], batch: int, partition: int) -> list[Intent]:
    """What this task wrote down at earlier attempts, oldest first.

    Raises:
        WriteRefused: a later batch has begun.
    """
    later = [each.batch for each in intents if each.batch > batch]
    if later:
        raise WriteRefused(f"batch {batch} is over: batch {max(later)} has begun")
    return [each for each in intents if (each.batch, each.partition) == (batch, partition)]


def check_topics(task: str, before: Intent, topics: Collection[str]) -> None:
    """The task has rows for the topics that it had rows for when it began to write.

    Raises:
        WriteRefused: it hasn't, or has for others.
    """
    for name in {*before.topics} ^ {*topics}:
        raise other_rows(task, name, before.topics.get(name), None)


def check_origin(task: str, before: Intent, origin: str) -> None:
    """The brokers have known the task's producer since it began to write.

    Raises:
        WriteRefused: they haven't: nobody knows what is stored.
    """
    if before.origin != origin:
        raise WriteRefused(
            f"the brokers have forgotten the producer of {task} since it began to write: nobody "
            "knows what is stored"
        )


def other_rows(
    task: str, topic: str, before: TopicIntent | None, now: TopicIntent | None
) -> WriteRefused:
    """What the task has for the topic isn't what it had."""
    hint = "order=content if only that differs"
    if before is not None and not before.write_queues:
        hint += "; the release before, which wrote it down, knew nothing of queues that change"
    told = f"{_told(before)} before, {_told(now)} now"
    return WriteRefused(
        f"{task} has other rows for {topic!r} than when it began to write, or another order of "
        f"them ({hint}): {told}"
    )


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

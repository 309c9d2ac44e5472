"""Intents: what a task wrote down before it sent the first row of a batch (ADR 33).

This owns their form, their place (queue 0 of a topic of their own) and what follows from them. When
a batch is committed the driver writes behind its intents that it is over, and up to where that
holds: the topic is read from its end down to there. It judges and never sends.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from dledger.records.marks import MARKS, mark_of
from dledger.records.record import decode_records
from dledger.spark.brokers import Brokers, Topic
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

    @property
    def is_of_before(self) -> bool:
        """The release before wrote it, which never said that a batch is over."""
        return any(not each.write_queues for each in self.topics.values())

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


@dataclass(frozen=True, slots=True)
class Over:
    """A batch is committed. All intents before the offset `through` are of it or of earlier ones;
    late ones of attempts that outlived it may lie behind."""

    batch: int
    through: int

    def encode(self) -> bytes:
        told = {"version": VERSION, "over": self.batch, "through": self.through}
        return json.dumps(told).encode()


def decode(body: bytes, place: str) -> Intent | Over:
    """What a record of the topic says.

    Raises:
        WriteRefused: nothing that this release knows.
    """
    try:
        told = json.loads(body)
        if isinstance(told, dict) and told.get("version") == VERSION and "over" in told:
            return Over(int(told["over"]), int(told["through"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WriteRefused(f"{place} is no intent of a sink: {error}") from error
    return Intent.decode(body, place)


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look back over the topic found.

    Attributes:
        intents: of the batch and of later ones, oldest first.
        over: the latest batch that is said to be over; -1: none is.
        bounds: the first offset that is kept, and where the look began.
        is_whole: whether nothing of the batch can lie before what is kept, by what was seen.
        has_earlier: whether an intent of an earlier batch was seen that the release before wrote,
            whichever task's.
        incarnation: of the topic.
    """

    intents: list[Intent]
    over: int
    bounds: tuple[int, int]
    is_whole: bool
    has_earlier: bool
    incarnation: int


def look_back(
    brokers: Brokers, name: str, batch: int, own: Collection[int], behind: int = 0
) -> Looked:
    """What is in the topic of `batch` and later ones.

    No further than to where the batch before was over. An intent of an earlier batch by one of the
    partitions `own` lies before all of theirs of this one, as an attempt fences those before it;
    but it may be late, with others' of this or of later batches before it. By another partition it
    says nothing. The look ends at one only where nobody says that a batch is over.

    Args:
        behind: an offset, before which nothing is looked at.

    Raises:
        WriteRefused: something else is in the topic, or it is gone.
    """
    topic = brokers.topic(name)
    if topic is None:
        raise WriteRefused(f"there is no topic {name!r} any more, which the sink's intents were in")
    first, end = topic.bounds[QUEUE]
    floor, found, over = max(first, behind), list[Intent](), -1
    is_whole, has_earlier = first == 0, False
    for offset, each in _backwards(brokers, topic, floor):
        if offset < floor:
            break
        if isinstance(each, Over):
            over = max(over, each.batch)
            if each.batch < batch and each.through >= first:
                is_whole, floor = True, max(floor, each.through)
        elif each.batch >= batch:
            found.append(each)
        else:
            has_earlier = has_earlier or each.is_of_before
            if each.partition in own:
                is_whole = True
                if each.is_of_before and over < 0:
                    break
    return Looked(found[::-1], over, (first, end), is_whole, has_earlier, topic.incarnation)


def _backwards(brokers: Brokers, topic: Topic, floor: int) -> Iterator[tuple[int, Intent | Over]]:
    end = topic.bounds[QUEUE][1]
    while end > floor:
        start = at = max(end - _PAGE, floor)
        page: list[tuple[int, Intent | Over]] = []
        while at < end:
            answer = brokers.pull(topic.name, topic.incarnation, QUEUE, at, end - at)
            page += [
                (
                    each.queue_offset,
                    decode(each.body, f"{topic.name}/{QUEUE} at {each.queue_offset}"),
                )
                for each in decode_records(answer.records)
            ]
            at = answer.next_offset
        yield from reversed(page)
        end = start


# --- where retention doesn't reach ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marks:
    """How far the topic is over, by its marks: consumer groups, whose offsets outlive records, and
    which brokers don't forget. There are `MARKS` of them, taken in turn, so that a batch that is
    written again is told from the next one.

    Attributes:
        own: the mark of the batch, or of one that has the same.
        others: the greatest of all others.
        are_set: whether there is any, be it at 0: whoever finds the topic empty sets one there
            before the first intent, so that marks that have gone are told from those of a query
            that hasn't committed anything.
    """

    topic: str
    batch: int
    own: int
    others: int
    are_set: bool

    @classmethod
    def read(cls, brokers: Brokers, topic: str, batch: int) -> Self:
        groups = [mark_of(topic, batch + each) for each in range(MARKS)]
        found = [brokers.committed(group, topic, QUEUE) for group in groups]
        own, *others = [mark or 0 for mark in found]
        return cls(topic, batch, own, max(others), any(mark is not None for mark in found))

    def check_not_committed(self) -> None:
        """The batch isn't over, where batches are numbered one after the other: then its mark is
        that of the batch eleven before, and those between have moved theirs at least as far.

        Raises:
            WriteRefused: it is.
        """
        if self.own > self.others:
            raise committed(self.batch)

    def check_there(self, looked: Looked) -> None:
        """Marks were set, and are there; a query of the release before has none, and its intents no
        late ones to speak of.

        Raises:
            WriteRefused: they have gone.
        """
        if self.are_set or looked.has_earlier:
            return
        raise WriteRefused(
            f"{self.topic} begins at {looked.bounds[0]}, and its consumer groups {self.topic}-0 to "
            f"-{MARKS - 1}, which say what batches are over, are gone: nobody knows whether batch "
            f"{self.batch} is stored, in part or as a whole; failOnLostMarks=false goes on as if "
            "it wasn't, and stores those rows twice that are"
        )

    def check_kept(self, looked: Looked) -> None:
        """No intent of the batch can have been let go of by retention.

        Raises:
            WriteRefused: one can.
        """
        first = looked.bounds[0]
        if self.others >= first:
            return
        raise WriteRefused(
            f"{self.topic} begins at {first}, and what was written down of batch {self.batch} may "
            "lie before: nobody knows whether its rows are stored; failOnLostIntents=false goes on "
            "as if none was, and stores those twice that are"
        )


def committed(batch: int) -> WriteRefused:
    """The batch was committed, and nothing is left to hold the rows against."""
    return WriteRefused(
        f"batch {batch} is committed, and its rows are stored; what was written down of them is "
        "kept no longer, so that nobody knows whether these are the same: nothing is sent"
    )


def own_intents(looked: Looked, batch: int, partition: int) -> list[Intent]:
    """What this task wrote down at earlier attempts, oldest first.

    Raises:
        WriteRefused: a later batch has begun, or this one is over without the task.
    """
    check_not_over(looked, batch)
    own = [each for each in looked.intents if (each.batch, each.partition) == (batch, partition)]
    if not own and looked.over == batch:
        if not looked.is_whole:
            raise committed(batch)
        raise WriteRefused(
            f"batch {batch} is committed, and partition {partition} had no rows then: it has other "
            "rows now, or they are cut into other partitions"
        )
    return own


def check_not_over(looked: Looked, batch: int) -> None:
    """Nobody has begun a later batch.

    Raises:
        WriteRefused: somebody has.
    """
    later = max([looked.over, *(each.batch for each in looked.intents)])
    if later > batch:
        raise WriteRefused(f"batch {batch} is over: batch {later} has begun")


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


def check_all_seen(looked: Looked, batch: int, stored: Collection[int]) -> None:
    """Whoever stored rows of the batch had said before that it would, and that is there.

    Raises:
        WriteRefused: it isn't: the topic was deleted and made anew meanwhile.
    """
    lost = sorted({*stored} - {each.partition for each in looked.intents if each.batch == batch})
    if looked.is_whole and lost:
        raise WriteRefused(
            f"the intents of partitions {lost} of batch {batch} are gone, with a topic that was "
            "deleted since: nothing tells whether others had begun to write it"
        )


def check_all_told(looked: Looked, batch: int, told: Collection[int]) -> None:
    """Whoever began to write in the batch has ended, and it is the last one.

    Raises:
        WriteRefused: a partition has begun that there is no longer, or a later batch.
    """
    check_not_over(looked, batch)
    lost = sorted({each.partition for each in looked.intents if each.batch == batch} - {*told})
    if lost:
        raise WriteRefused(
            f"an earlier attempt of batch {batch} began to write partitions {lost}, which this one "
            "doesn't have: it was cut into fewer partitions, and rows are stored twice"
        )

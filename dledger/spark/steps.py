"""What a task has to send to a topic now: what earlier attempts wrote down, taken up (ADR 33).

This compares the rows with each step that is written down (`layout`) and with what the brokers hold
of the producer, and says what is left: of the last step, if the topic takes messages in as many
queues as it went by, or a new step. It judges and never sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dledger.spark.errors import RowRefused, WriteRefused
from dledger.spark.layout import Layout, Numbers, Place, counts_of, digest_of, left_of, routed
from dledger.spark.progress import TopicIntent, other_rows
from dledger.spark.rows import Target, check_queues


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be sent to a topic.

    Attributes:
        layout: the step's rows.
        bases: where their numbers began in each queue.
        stored: how many of each queue's rows are stored, the first ones.
        intent: what has to be written down before; None: it is.
    """

    layout: Layout
    bases: Numbers
    stored: Numbers
    intent: TopicIntent | None


_NOTHING: Final = Step({}, {}, {}, None)


@dataclass(frozen=True, slots=True)
class Rows:
    """A task's rows for a topic, which is as `target` says now.

    Attributes:
        task: the partition and its batch, in words.
        numbers: the producer's next number in each queue; 0 where it isn't.
    """

    task: str
    topic: str
    places: Sequence[Place]
    target: Target
    numbers: Numbers


def next_step(rows: Rows, taken: Sequence[TopicIntent], *, from_zero: bool) -> Step:
    """What is to be sent now.

    Args:
        taken: the steps that are written down, oldest first, of this incarnation of the topic.
        from_zero: where none is, whether the task's numbers in the topic began at 0; else they
            begin at the next ones.

    Raises:
        RowRefused: a row names a queue that takes no messages; nothing of the task is stored.
        WriteRefused: these aren't the rows that were written down, or can't be stored any more.
    """
    left, target = rows.places, rows.target
    for at, intent in enumerate(taken):
        queues = intent.write_queues or target.read_queues  # The release before took all.
        layout = routed(left, queues)
        _check_rows(rows, intent, layout)
        bases = intent.bases
        after = taken[at + 1].bases if at + 1 < len(taken) else rows.numbers
        stored = _stored(rows, layout, bases, after)
        if at + 1 == len(taken) and queues == target.write_queues:
            return Step(layout, bases, stored, None)
        left = left_of(left, layout, stored)
    if taken and not left:
        return _NOTHING
    return _new_step(rows, left, taken, from_zero=from_zero and not taken)


def _new_step(
    rows: Rows, left: Sequence[Place], taken: Sequence[TopicIntent], *, from_zero: bool
) -> Step:
    target, now = rows.target, rows.numbers
    layout = routed(left, target.write_queues)
    try:
        check_queues(rows.topic, layout, target)
    except RowRefused as error:
        if not taken:
            raise
        told = "its queues were changed while the batch was being written"
        raise WriteRefused(f"{rows.task} is stored in part, and has {error}; {told}") from error
    bases = {queue_id: 0 if from_zero else now.get(queue_id, 0) for queue_id in layout}
    stored = _stored(rows, layout, bases, now)
    # What the step before stored is the difference, in queues that have no rows now, too.
    before = {
        queue_id: (now.get(queue_id, 0), 0) for each in taken[-1:] for queue_id in each.queues
    }
    own = {queue_id: (bases[queue_id], count) for queue_id, count in counts_of(layout).items()}
    intent = TopicIntent(target.incarnation, before | own, digest_of(layout), target.write_queues)
    return Step(layout, bases, stored, intent)


def _stored(rows: Rows, layout: Layout, bases: Numbers, after: Numbers) -> dict[int, int]:
    """How many of each queue's rows are stored.

    Raises:
        WriteRefused: the brokers hold fewer or more of the producer's messages than can be.
    """
    found: dict[int, int] = {}
    for queue_id, places in layout.items():
        stored = found[queue_id] = after.get(queue_id, 0) - bases.get(queue_id, 0)
        if not 0 <= stored <= len(places):
            raise WriteRefused(
                f"{rows.topic}/{queue_id} holds {stored} of {len(places)} rows of {rows.task}: the "
                "brokers have lost messages, or another program uses this producer's name"
            )
    return found


def _check_rows(rows: Rows, intent: TopicIntent, layout: Layout) -> None:
    """The step's rows are those that were written down.

    Raises:
        WriteRefused: they aren't.
    """
    now = TopicIntent(
        intent.incarnation,
        {queue_id: (0, count) for queue_id, count in counts_of(layout).items()},
        digest_of(layout),
        intent.write_queues,
    )
    if intent.content != now.content:
        raise other_rows(rows.task, rows.topic, intent, now)


def steps_of(
    intents: Sequence[Mapping[str, TopicIntent]], topic: str, incarnation: int
) -> list[TopicIntent]:
    """The topic's steps in these intents. Whatever was stored in one before of its name is gone."""
    found = [each[topic] for each in intents if topic in each]
    return [each for each in found if each.incarnation == incarnation]

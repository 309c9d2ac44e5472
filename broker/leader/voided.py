"""What the producer of a batch is told when applying it had no effect.

In every case nothing was stored. `broker.services.refused` does the same for commands.
"""

from __future__ import annotations

from typing import assert_never

from broker.errors import ErrorCode, Failure, replaced
from broker.state.refusals import (
    BatchRefusal,
    Malformed,
    OffsetTaken,
    QueueNotFound,
    SequenceBroken,
    TopicNotFound,
    TopicReplaced,
)


def voided(refusal: BatchRefusal) -> Failure:
    """The failure for each kind of refusal."""
    match refusal:
        case TopicNotFound(topic):
            text = f"topic {topic!r} was deleted before the batch"
            return Failure(ErrorCode.TOPIC_NOT_FOUND, text)
        case TopicReplaced(topic, meant, present):
            return replaced(topic, meant, present).failure
        case QueueNotFound(topic, queue_id, queue_count):
            text = (
                f"topic {topic!r} was made anew with {queue_count} queues: there is no {queue_id}"
            )
            return Failure(ErrorCode.QUEUE_NOT_FOUND, text)
        case OffsetTaken(topic, queue_id, offset, next_offset):
            text = f"{topic}/{queue_id} goes on at {next_offset}, the batch was placed at {offset}"
            return Failure(ErrorCode.NOT_READY, text)
        case SequenceBroken(topic, queue_id, sequence, expected):
            text = f"sequence {sequence} came to {topic}/{queue_id} where {expected} is the next"
            return Failure(ErrorCode.OUT_OF_SEQUENCE, text)
        case Malformed(why):
            return Failure(ErrorCode.INTERNAL, f"the leader's entry can't be read: {why}")
        case _:
            assert_never(refusal)

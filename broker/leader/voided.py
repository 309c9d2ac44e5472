"""What the producer of a batch is told when the replicated state refuses it.

In every case nothing was stored by this attempt. `broker.services.refused` does the same for
commands.
"""

from __future__ import annotations

from typing import assert_never

from broker.errors import BrokerError, ErrorCode, Failure, not_writable, replaced
from broker.leader.numbering import not_registered
from broker.state.refusals import (
    BatchRefusal,
    Malformed,
    OffsetTaken,
    ProducerFenced,
    ProducerUnknown,
    QueueNotFound,
    SequenceBroken,
    TooManySequences,
    TopicNotFound,
    TopicNotWritable,
    TopicReplaced,
)


def voided(refusal: BatchRefusal) -> Failure:
    """The failure for each kind of refusal."""
    return refused_batch(refusal).failure


def refused_batch(refusal: BatchRefusal) -> BrokerError:
    """The error for each kind of refusal."""
    match refusal:
        case TopicNotFound(topic):
            text = f"topic {topic!r} was deleted before the batch"
            return BrokerError(ErrorCode.TOPIC_NOT_FOUND, text)
        case TopicReplaced(topic, meant, present):
            return replaced(topic, meant, present)
        case TopicNotWritable(topic):
            return not_writable(topic)
        case QueueNotFound(topic, queue_id, queue_count):
            text = (
                f"topic {topic!r} was made anew with {queue_count} queues: there is no {queue_id}"
            )
            return BrokerError(ErrorCode.QUEUE_NOT_FOUND, text)
        case OffsetTaken(topic, queue_id, offset, next_offset):
            text = f"{topic}/{queue_id} goes on at {next_offset}, the batch was placed at {offset}"
            return BrokerError(ErrorCode.NOT_READY, text)
        case SequenceBroken(queue_id, sequence, expected):
            text = f"sequence {sequence} came to queue {queue_id} where {expected} is the next"
            return BrokerError(ErrorCode.OUT_OF_SEQUENCE, text)
        case ProducerUnknown() | ProducerFenced():
            return not_registered(refusal)
        case TooManySequences(limit):
            text = f"the queues that producers send to are remembered, {limit:,} at most"
            return BrokerError(ErrorCode.LIMIT_REACHED, text)
        case Malformed(why):
            return BrokerError(ErrorCode.INTERNAL, f"the leader's entry can't be read: {why}")
        case _:
            assert_never(refusal)

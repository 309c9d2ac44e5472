"""What the proposer of a command is told when the replicated state refused it."""

from __future__ import annotations

from typing import assert_never

from broker.errors import BrokerError, ErrorCode, replaced
from broker.state.refusals import (
    KeyTaken,
    LevelNotNext,
    LogStartNotMoved,
    Malformed,
    OffsetOutOfRange,
    OutcomesDiffer,
    ProducerFenced,
    QueueStartNotMoved,
    Refusal,
    RegistrationMalformed,
    RetentionOutOfRange,
    TooManyProducers,
    TooManyQueues,
    TooMuchProgress,
    TopicExists,
    TopicNotFound,
    TopicReplaced,
)


def refused(refusal: Refusal) -> BrokerError:
    """The error for each kind of refusal."""
    match refusal:
        case TopicNotFound(topic):
            return BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic!r} does not exist")
        case TopicReplaced(topic, meant, present):
            return replaced(topic, meant, present)
        case TopicExists(topic, queue_count):
            return BrokerError(
                ErrorCode.TOPIC_EXISTS, f"topic {topic!r} exists, with {queue_count} queues"
            )
        case TooManyQueues(wanted):
            return BrokerError(
                ErrorCode.LIMIT_REACHED, f"no room for {wanted} more queues in this broker group"
            )
        case TooMuchProgress():
            return BrokerError(
                ErrorCode.LIMIT_REACHED, "too many consumer groups have committed offsets"
            )
        case OffsetOutOfRange(topic):
            return BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"topic {topic!r} was made anew meanwhile"
            )
        case ProducerFenced(name):
            return BrokerError(
                ErrorCode.PRODUCER_FENCED, f"another producer has registered the name {name!r}"
            )
        case RegistrationMalformed():
            return BrokerError(ErrorCode.INVALID_ARGUMENT, "token or name is too long or too short")
        case TooManyProducers(limit):
            text = f"{limit:,} producers are registered, none of which may be forgotten yet"
            return BrokerError(ErrorCode.LIMIT_REACHED, text)
        case LevelNotNext(wanted, current):
            return BrokerError(
                ErrorCode.INTERNAL, f"level {wanted} isn't the next one of {current}"
            )
        case LogStartNotMoved(wanted, first, applied):
            return BrokerError(
                ErrorCode.INTERNAL,
                f"the log can't begin with entry {wanted}: it begins with {first}, and ends with "
                f"{applied}",
            )
        case RetentionOutOfRange(wanted_ms, limit_ms):
            text = f"messages can be kept for 0 to {limit_ms} ms, not for {wanted_ms}"
            return BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        case QueueStartNotMoved(queue_id, offset):
            text = f"queue {queue_id} can't begin at offset {offset}"
            return BrokerError(ErrorCode.INTERNAL, text)
        case KeyTaken(topic, what):
            text = f"another unit is about the {what or 'whole'} of topic {topic!r}"
            return BrokerError(ErrorCode.INTERNAL, text)
        case OutcomesDiffer(through):
            text = f"what became of units up to entry {through} is something else"
            return BrokerError(ErrorCode.INTERNAL, text)
        case Malformed(why):
            return BrokerError(ErrorCode.INTERNAL, f"the leader's entry is void: {why}")
        case _:
            assert_never(refusal)

"""Errors that the broker tells its callers.

    BrokerError(code, message)      what a caller learns; never our own fault's traceback
    ├── refused(...)                did not happen; retriable or not, as the table says
    └── unknown(...)                may have happened (proposed, then leadership lost)

One table decides, for each `ErrorCode`, the gRPC status, whether retrying can help, and whether
the thing happened: `TRAITS`. Source: promise 6 of the design (honest errors).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import grpc

from broker.state.refusals import (
    OffsetOutOfRange,
    Refusal,
    TooManyQueues,
    TooMuchProgress,
    TopicExists,
    TopicNotFound,
)
from dledger.wire import errors_pb2 as pb

ERROR_METADATA_KEY = "dledger-error-bin"


@dataclass(frozen=True, slots=True)
class Traits:
    """What an error code implies."""

    status: grpc.StatusCode
    retriable: bool
    happened: pb.Outcome = pb.DID_NOT_HAPPEN


_S = grpc.StatusCode
TRAITS: dict[pb.ErrorCode, Traits] = {
    pb.INVALID_ARGUMENT: Traits(_S.INVALID_ARGUMENT, retriable=False),
    pb.MESSAGE_TOO_LARGE: Traits(_S.INVALID_ARGUMENT, retriable=False),
    pb.RECORD_CORRUPT: Traits(_S.DATA_LOSS, retriable=False),
    pb.TOPIC_NOT_FOUND: Traits(_S.NOT_FOUND, retriable=False),
    pb.TOPIC_EXISTS: Traits(_S.ALREADY_EXISTS, retriable=False),
    pb.QUEUE_NOT_FOUND: Traits(_S.NOT_FOUND, retriable=False),
    pb.OFFSET_OUT_OF_RANGE: Traits(_S.OUT_OF_RANGE, retriable=False),
    pb.MESSAGE_NOT_FOUND: Traits(_S.NOT_FOUND, retriable=False),
    pb.NOT_LEADER: Traits(_S.FAILED_PRECONDITION, retriable=True),
    pb.NOT_READY: Traits(_S.UNAVAILABLE, retriable=True),
    pb.BUSY: Traits(_S.RESOURCE_EXHAUSTED, retriable=True),
    pb.STORAGE_FULL: Traits(_S.RESOURCE_EXHAUSTED, retriable=True),
    pb.OUT_OF_SEQUENCE: Traits(_S.FAILED_PRECONDITION, retriable=True),
    # The state that would tell is gone, so the batch may be in the log.
    pb.UNKNOWN_PRODUCER: Traits(
        _S.FAILED_PRECONDITION, retriable=False, happened=pb.MAY_HAVE_HAPPENED
    ),
    pb.LEADERSHIP_LOST: Traits(_S.ABORTED, retriable=True, happened=pb.MAY_HAVE_HAPPENED),
    pb.TIMED_OUT: Traits(_S.DEADLINE_EXCEEDED, retriable=True, happened=pb.MAY_HAVE_HAPPENED),
    pb.SHUTTING_DOWN: Traits(_S.UNAVAILABLE, retriable=True),
    pb.WRONG_GROUP: Traits(_S.FAILED_PRECONDITION, retriable=False),
    pb.LIMIT_REACHED: Traits(_S.RESOURCE_EXHAUSTED, retriable=False),
    pb.TRANSFER_FAILED: Traits(_S.ABORTED, retriable=True),
    pb.INTERNAL: Traits(_S.INTERNAL, retriable=False, happened=pb.MAY_HAVE_HAPPENED),
}


class BrokerError(Exception):
    """An error that a caller is told. `leader` is added where the caller should go there."""

    def __init__(self, code: pb.ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.traits = TRAITS[code]
        self.leader: pb.NodeAddress | None = None
        self.term = 0

    def to_wire(self) -> pb.Error:
        """The wire form, for a SendResult or the trailing metadata."""
        return pb.Error(
            code=self.code,
            message=self.message,
            retriable=self.traits.retriable,
            outcome=self.traits.happened,
            leader=self.leader,
            term=self.term,
        )


def refused(refusal: Refusal) -> BrokerError:
    """What the proposer of a command is told when the replicated state refused it."""
    match refusal:
        case TopicNotFound(topic):
            return BrokerError(pb.TOPIC_NOT_FOUND, f"topic {topic!r} does not exist")
        case TopicExists(topic, queue_count):
            return BrokerError(
                pb.TOPIC_EXISTS, f"topic {topic!r} exists, with {queue_count} queues"
            )
        case TooManyQueues(wanted):
            return BrokerError(pb.LIMIT_REACHED, f"no room for {wanted} more queues in this group")
        case TooMuchProgress():
            return BrokerError(pb.LIMIT_REACHED, "too many groups have committed offsets")
        case OffsetOutOfRange(topic):
            return BrokerError(pb.OFFSET_OUT_OF_RANGE, f"topic {topic!r} was made anew meanwhile")
        case _:
            assert_never(refusal)

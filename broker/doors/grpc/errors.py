"""Errors on the wire: the one place where a `BrokerError` gets its gRPC status and its message.

A failed call ends with a status, and with the error itself in the trailing metadata; an answer
that holds several results carries the same message in each that failed.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc

from broker.errors import BrokerError, ErrorCode, Failure, NodeAddress
from dledger.limits import ERROR_METADATA_KEY
from dledger.outcome import Outcome
from dledger.wire import errors_pb2 as epb

Context = grpc.aio.ServicerContext[Any, Any]

_S = grpc.StatusCode
STATUS: Final[dict[ErrorCode, grpc.StatusCode]] = {
    ErrorCode.INVALID_ARGUMENT: _S.INVALID_ARGUMENT,
    ErrorCode.MESSAGE_TOO_LARGE: _S.INVALID_ARGUMENT,
    ErrorCode.RECORD_CORRUPT: _S.DATA_LOSS,
    ErrorCode.TOPIC_NOT_FOUND: _S.NOT_FOUND,
    ErrorCode.TOPIC_REPLACED: _S.NOT_FOUND,
    ErrorCode.TOPIC_EXISTS: _S.ALREADY_EXISTS,
    ErrorCode.QUEUE_NOT_FOUND: _S.NOT_FOUND,
    ErrorCode.OFFSET_OUT_OF_RANGE: _S.OUT_OF_RANGE,
    ErrorCode.MESSAGE_NOT_FOUND: _S.NOT_FOUND,
    ErrorCode.NOT_LEADER: _S.FAILED_PRECONDITION,
    ErrorCode.NOT_READY: _S.UNAVAILABLE,
    ErrorCode.BUSY: _S.RESOURCE_EXHAUSTED,
    ErrorCode.STORAGE_FULL: _S.RESOURCE_EXHAUSTED,
    ErrorCode.OUT_OF_SEQUENCE: _S.FAILED_PRECONDITION,
    ErrorCode.UNKNOWN_PRODUCER: _S.FAILED_PRECONDITION,
    ErrorCode.PRODUCER_FENCED: _S.FAILED_PRECONDITION,
    ErrorCode.LEADERSHIP_LOST: _S.ABORTED,
    ErrorCode.TIMED_OUT: _S.DEADLINE_EXCEEDED,
    ErrorCode.SHUTTING_DOWN: _S.UNAVAILABLE,
    ErrorCode.WRONG_BROKER_GROUP: _S.FAILED_PRECONDITION,
    ErrorCode.LIMIT_REACHED: _S.RESOURCE_EXHAUSTED,
    ErrorCode.TRANSFER_FAILED: _S.ABORTED,
    ErrorCode.GROUP_HAS_MEMBERS: _S.FAILED_PRECONDITION,
    ErrorCode.GROUP_DIFFERS: _S.FAILED_PRECONDITION,
    ErrorCode.SESSION_ENDED: _S.FAILED_PRECONDITION,
    ErrorCode.MEMBER_REPLACED: _S.FAILED_PRECONDITION,
    ErrorCode.LEASE_LOST: _S.FAILED_PRECONDITION,
    ErrorCode.STRATEGY_UNKNOWN: _S.FAILED_PRECONDITION,
    ErrorCode.GROUP_NOT_FOUND: _S.NOT_FOUND,
    ErrorCode.GROUP_EXISTS: _S.ALREADY_EXISTS,
    ErrorCode.GROUP_STYLED: _S.FAILED_PRECONDITION,
    ErrorCode.RECEIPT_SUPERSEDED: _S.FAILED_PRECONDITION,
    ErrorCode.QUEUES_CHANGED: _S.FAILED_PRECONDITION,
    ErrorCode.QUEUE_CLOSED: _S.FAILED_PRECONDITION,
    ErrorCode.QUEUES_UNREAD: _S.FAILED_PRECONDITION,
    ErrorCode.TOPIC_NOT_WRITABLE: _S.PERMISSION_DENIED,
    ErrorCode.TOPIC_NOT_READABLE: _S.PERMISSION_DENIED,
    ErrorCode.INTERNAL: _S.INTERNAL,
}
# A failed call's text travels twice beside its status, once with three bytes for each that isn't
# ASCII; beyond 8 KiB of metadata gRPC may put an error of its own in its place.
MAX_TEXT_BYTES: Final = 1_000
_CUT: Final = " …"
# Both have the same names on either side; one that the wire lacks fails at import.
_WIRE_CODES: Final[dict[ErrorCode, epb.ErrorCode]] = {
    code: getattr(epb, code.name) for code in ErrorCode
}
_WIRE_OUTCOMES: Final[dict[Outcome, epb.Outcome]] = {
    outcome: getattr(epb, outcome.name) for outcome in Outcome
}


def wire_error(failure: Failure) -> epb.Error:
    """The error as callers are told it: of a long text, as one that repeats what a caller gave may
    be, the beginning."""
    traits, valid = failure.traits, failure.valid
    return epb.Error(
        code=_WIRE_CODES[failure.code],
        message=_beginning(failure.message),
        retriable=traits.is_retriable,
        outcome=_WIRE_OUTCOMES[traits.outcome],
        leader=wire_address(failure.leader),
        term=failure.term,
        valid=None if valid is None else epb.OffsetRange(min_offset=valid[0], max_offset=valid[1]),
    )


def _beginning(text: str) -> str:
    encoded = text.encode(errors="backslashreplace")  # a path that it names may be no UTF-8
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded.decode()
    return encoded[:MAX_TEXT_BYTES].decode(errors="ignore") + _CUT


def wire_address(address: NodeAddress | None) -> epb.NodeAddress | None:
    """A node's address as callers are told it; nothing where none is known."""
    if address is None:
        return None
    return epb.NodeAddress(node_id=address.node_id, address=address.address)


async def abort(context: Context, error: BrokerError) -> NoReturn:
    """Ends the call with `error`'s status; the error travels in the trailing metadata."""
    wire = wire_error(error.failure)
    await context.abort(STATUS[error.code], wire.message, in_metadata(wire))
    raise AssertionError("context.abort raises")


def in_metadata(error: epb.Error) -> tuple[tuple[str, bytes]]:
    """The error as it travels beside a status."""
    return ((ERROR_METADATA_KEY, error.SerializeToString()),)


def malformed_request(why: str) -> BrokerError:
    """What a caller learns whose bytes are no request."""
    return BrokerError(ErrorCode.INVALID_ARGUMENT, why)

"""From what a call ended with to what its caller may conclude."""

from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from dledger.client import errors
from dledger.client.errors import from_rpc, from_wire
from dledger.limits import ERROR_METADATA_KEY
from dledger.outcome import Outcome
from dledger.wire import errors_pb2 as pb


def rpc_error(
    status: grpc.StatusCode, details: str = "", trailing: Metadata | None = None
) -> AioRpcError:
    return AioRpcError(status, Metadata(), trailing or Metadata(), details, None)


@pytest.mark.parametrize("code", [code for code in pb.ErrorCode.values() if code])
def test_every_code_of_the_wire_has_its_error(code: pb.ErrorCode) -> None:
    """A code added to the contract and forgotten here shows itself."""
    told = pb.Error(code=code, message="m", retriable=True, outcome=pb.DID_NOT_HAPPEN)
    error = from_wire(told)
    assert error.retriable
    assert error.outcome is Outcome.DID_NOT_HAPPEN
    if code != pb.INTERNAL:
        assert not isinstance(error, errors.ServerError)
    if code != pb.SHUTTING_DOWN:
        assert error.code == pb.ErrorCode.Name(code)


def test_error_in_the_trailing_metadata_is_the_error() -> None:
    """The status is only what it is carried by."""
    told = pb.Error(
        code=pb.NOT_LEADER,
        message="elsewhere",
        retriable=True,
        outcome=pb.DID_NOT_HAPPEN,
        leader=pb.NodeAddress(node_id="n2", address="h:1"),
        term=7,
    )
    trailing = Metadata((ERROR_METADATA_KEY, told.SerializeToString()))
    error = from_rpc(rpc_error(grpc.StatusCode.INTERNAL, trailing=trailing), "h:0")
    assert isinstance(error, errors.NotLeader)
    assert (error.leader, error.term) == (("n2", "h:1"), 7)
    assert str(error) == "elsewhere; the request was not carried out"


def test_outcome_that_is_not_said_is_open() -> None:
    """An old or broken node."""
    assert from_wire(pb.Error(code=pb.BUSY)).outcome is Outcome.MAY_HAVE_HAPPENED


@pytest.mark.parametrize(
    ("status", "details", "kind", "retriable", "happened"),
    [
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: ...",
            errors.Unavailable,
            True,
            Outcome.DID_NOT_HAPPEN,
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "Socket closed",
            errors.Unavailable,
            True,
            Outcome.MAY_HAVE_HAPPENED,
        ),
        (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "",
            errors.DeadlineExceeded,
            True,
            Outcome.MAY_HAVE_HAPPENED,
        ),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (5 vs. 4)",
            errors.MessageTooLarge,
            False,
            Outcome.DID_NOT_HAPPEN,
        ),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Concurrent RPC limit exceeded!",
            errors.Busy,
            True,
            Outcome.MAY_HAVE_HAPPENED,
        ),
        (
            grpc.StatusCode.CANCELLED,
            "",
            errors.Unavailable,
            True,
            Outcome.MAY_HAVE_HAPPENED,
        ),
        (
            grpc.StatusCode.UNIMPLEMENTED,
            "",
            errors.NotOffered,
            False,
            Outcome.DID_NOT_HAPPEN,
        ),
        (grpc.StatusCode.UNKNOWN, "", errors.ServerError, False, Outcome.MAY_HAVE_HAPPENED),
    ],
)
def test_bare_statuses(
    status: grpc.StatusCode,
    details: str,
    kind: type[errors.ClientError],
    retriable: bool,
    happened: Outcome,
) -> None:
    """Known to have been refused, or open."""
    error = from_rpc(rpc_error(status, details), "h:1")
    assert type(error) is kind
    assert (error.retriable, error.outcome) == (retriable, happened)
    assert "h:1" in str(error)


def test_copy_for_a_message_keeps_the_facts() -> None:
    """And speaks of the message."""
    error = errors.NotLeader("elsewhere", outcome=Outcome.MAY_HAVE_HAPPENED)
    error.leader, error.term = ("n2", "h:1"), 7
    copy = error.about_message(Outcome.DID_NOT_HAPPEN)
    assert str(copy) == "elsewhere; the message was not stored"
    assert (copy.leader, copy.term, copy.retriable) == (("n2", "h:1"), 7, True)

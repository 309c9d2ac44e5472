"""The gRPC door's tables: each plain word has its word on the wire, and the other way round."""

from __future__ import annotations

import pytest

from broker.doors.grpc.errors import STATUS, wire_address, wire_error
from broker.errors import TRAITS, BrokerError, ErrorCode, Failure, NodeAddress
from dledger.outcome import Outcome
from dledger.wire import errors_pb2 as epb


def test_errors_have_the_same_words_on_both_sides() -> None:
    """A code that only one side knows would reach callers as something else."""
    ours = {code.name for code in ErrorCode}
    assert ours == set(epb.ErrorCode.keys()) - {"ERROR_CODE_UNSPECIFIED"}
    assert ours == {code.name for code in STATUS} == {code.name for code in TRAITS}
    assert {each.name for each in Outcome} == set(epb.Outcome.keys()) - {"OUTCOME_UNSPECIFIED"}


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_keeps_its_facts_on_the_wire(code: ErrorCode) -> None:
    """Code, text, whether to retry, what may be concluded, whom to ask, and the term."""
    wire = wire_error(Failure(code, "why", NodeAddress("n2", "10.0.0.2:7000"), term=9))
    assert epb.ErrorCode.Name(wire.code) == code.name
    assert (wire.message, wire.term) == ("why", 9)
    assert wire.retriable == TRAITS[code].is_retriable
    assert epb.Outcome.Name(wire.outcome) == TRAITS[code].outcome.name
    assert (wire.leader.node_id, wire.leader.address) == ("n2", "10.0.0.2:7000")


def test_no_leader_is_told_as_none() -> None:
    """Absent, not a leader without a name."""
    assert wire_address(None) is None
    assert not wire_error(BrokerError(ErrorCode.BUSY, "").failure).HasField("leader")

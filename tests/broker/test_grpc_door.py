"""The gRPC door's tables: each plain word has its word on the wire, and the other way round."""

from __future__ import annotations

import asyncio
import os
from typing import Any, NoReturn

import grpc
import pytest

from broker.doors.grpc.errors import (
    MAX_TEXT_BYTES,
    STATUS,
    Context,
    abort,
    wire_address,
    wire_error,
)
from broker.errors import TRAITS, BrokerError, ErrorCode, Failure, NodeAddress
from dledger.limits import ERROR_METADATA_KEY
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


@pytest.mark.parametrize("size", [1, MAX_TEXT_BYTES])
def test_an_error_that_names_a_path_which_is_no_utf_8_reaches_its_caller(size: int) -> None:
    """It would end the call without a word of what became of it."""
    path = os.fsdecode(b"\xff" * size)
    error = wire_error(Failure(ErrorCode.TOPIC_NOT_FOUND, path))
    assert error.message.startswith("\\udcff")
    assert epb.Error.FromString(error.SerializeToString()) == error


@pytest.mark.parametrize("text", ["a" * 20_000, "ü" * 10_000, "€" * 10_000])
def test_an_error_with_a_long_text_reaches_its_caller(text: str) -> None:
    """It repeats what a caller gave, and travels twice beside the status: beyond 8 KiB of that gRPC
    refuses the answer, and its caller would learn nothing of what became of the call."""
    found = asyncio.run(_as_told(text))
    assert found.code() is grpc.StatusCode.NOT_FOUND
    trailing: Any = found.trailing_metadata()
    error = epb.Error.FromString(dict(trailing)[ERROR_METADATA_KEY])
    assert error.message.startswith(text[:300])
    assert error.message == found.details()


async def _as_told(text: str) -> grpc.aio.AioRpcError:
    """What a caller gets, over gRPC."""

    def as_it_is(data: bytes) -> bytes:
        return data

    async def fail(request: bytes, context: Context) -> NoReturn:
        await abort(context, BrokerError(ErrorCode.TOPIC_NOT_FOUND, request.decode()))

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(fail)
    handlers = grpc.method_handlers_generic_handler("long", {"Fail": method})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/long/Fail", as_it_is, as_it_is)(text.encode())
    await server.stop(None)
    return caught.value


def test_no_leader_is_told_as_none() -> None:
    """Absent, not a leader without a name."""
    assert wire_address(None) is None
    assert not wire_error(BrokerError(ErrorCode.BUSY, "").failure).HasField("leader")

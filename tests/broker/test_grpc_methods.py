"""The edge between gRPC and the broker: what a handler's failure looks like outside."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from broker.doors.grpc.methods import service_handler
from broker.errors import BrokerError, ErrorCode
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from tests.integration.group import SERVICES, error_of, free_ports


class Failing:
    """A Cluster service whose calls fail, each in its own way."""

    async def get_status(self, request: Any, context: Any) -> cpb.NodeStatus:
        raise ZeroDivisionError("secret detail")

    async def transfer_leadership(self, request: Any, context: Any) -> Any:
        raise BrokerError(ErrorCode.BUSY, "too much to do")

    async def change_members(self, request: Any, context: Any) -> Any:
        raise BrokerError(ErrorCode.BUSY, "too much to do")

    async def list_members(self, request: Any, context: Any) -> Any:
        raise ZeroDivisionError("secret detail")

    async def replace_disk(self, request: Any, context: Any) -> Any:
        raise BrokerError(ErrorCode.BUSY, "too much to do")

    async def watch_leader(self, request: Any, context: Any) -> None:
        raise ZeroDivisionError("secret detail")


async def errors() -> list[grpc.aio.AioRpcError]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service_handler(SERVICES["Cluster"], Failing()),))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    server.add_insecure_port(address)
    await server.start()
    found = []
    async with grpc.aio.insecure_channel(address) as channel:
        calls: Any = channel
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await calls.unary_unary("/dledger.v1.Cluster/GetStatus")(b"")
        found.append(failed.value)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await calls.unary_unary("/dledger.v1.Cluster/TransferLeadership")(b"")
        found.append(failed.value)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await calls.unary_stream("/dledger.v1.Cluster/WatchLeader")(b"").read()
        found.append(failed.value)
    await server.stop(0)
    return found


def test_failures_of_handlers_are_told_without_their_details() -> None:
    """Our fault is INTERNAL and may have happened; a refusal keeps its code and text."""
    ours, refusal, stream = asyncio.run(errors())
    for failure in (ours, stream):
        assert failure.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in (failure.details() or "")
        assert error_of(failure).outcome == epb.MAY_HAVE_HAPPENED
    assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_of(refusal).retriable


def test_a_service_without_a_handler_is_found_at_start() -> None:
    """A method that nobody handles fails when the node is built, not at the first call."""
    with pytest.raises(AttributeError, match="get_status"):
        service_handler(SERVICES["Cluster"], object())

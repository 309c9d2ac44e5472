"""What a node makes of the epoch that a caller tells (docs/adr/0052-the-last-resort.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker.doors.grpc.cluster import ClusterDoor
from broker.doors.grpc.epochs import heed_epoch
from broker.doors.grpc.errors import Context
from broker.doors.grpc.methods import service_handler
from broker.errors import BrokerError, ErrorCode
from broker.leader.epochs import EpochFence, EpochName
from broker.services.cluster import Cluster
from dledger.client import group_epoch as client
from dledger.core.group_epoch import RECOVERY_ID_BYTES, Lineage, Standing, standing_of
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from tests.broker.test_watches import FOLLOWS_N2, watched
from tests.client.loops import async_test
from tests.integration.group import SERVICES, error_of

W, X, Y, Z = (letter * RECOVERY_ID_BYTES for letter in (b"w", b"x", b"y", b"z"))
lineages = st.lists(st.sampled_from([W, X, Y, Z]), max_size=4, unique=True).map(tuple)
Metadata = Sequence[tuple[str, str | bytes]]


class Node:
    """One of these recoveries, and its gRPC door."""

    def __init__(self, own: Lineage) -> None:
        self.own = own
        self.shut = 0
        self.fence = EpochFence(lambda: self.own, self._on_shut)
        self.answered: Metadata = ()
        self.said: Metadata = ()

    def _on_shut(self) -> None:
        self.shut += 1

    # As `Cluster` and as `Context`, as far as that goes.

    @property
    def epoch(self) -> EpochName:
        return self.fence.name

    def heard_epoch(self, told: EpochName) -> None:
        self.fence.heard(told)

    def invocation_metadata(self) -> Metadata:
        return self.said

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self.answered = metadata

    def called(self, known: client.EpochName) -> client.EpochName:
        """A client that knows that one calls; what it is told."""
        self.said, self.answered = known.metadata, ()
        with capture_logs():
            heed_epoch(cast("Cluster", self), None, cast("Context", self))
        return client.epoch_in(self.answered)


def known_of(lineage: Lineage) -> client.EpochName:
    """What a client knows that was answered there."""
    return Node(lineage).called(client.FIRST_EPOCH)


def test_a_client_of_the_group_before_a_restored_one_shuts_nobody() -> None:
    """It was recovered by force, and is gone; the backup that this one was made of is older. By
    the number alone the client knows more than this node."""
    node = Node((W,))
    with pytest.raises(BrokerError) as refused:
        node.called(known_of((X, Y)))
    assert refused.value.code is ErrorCode.WRONG_BROKER_GROUP
    assert (node.shut, node.fence.is_shut) == (0, False)
    assert node.called(known_of((W,))) == client.FIRST_EPOCH


@given(lineages, lineages)
def test_a_node_is_shut_by_who_knows_a_later_epoch_of_its_own(own: Lineage, told: Lineage) -> None:
    """Whoever knows another one is refused, and only that caller."""
    node, known = Node(own), known_of(told)
    assert (known.number, known.earlier) == (len(told), told[:-1])
    standing = standing_of(told, own)
    if standing is Standing.OTHER:
        with pytest.raises(BrokerError) as refused:
            node.called(known)
        assert refused.value.code is ErrorCode.WRONG_BROKER_GROUP
    else:
        node.called(known)
    assert node.fence.is_shut == (standing is Standing.NEWER) == bool(node.shut)


def test_a_client_of_an_older_release_is_believed_by_the_number() -> None:
    """It doesn't know what was before; the event names both that may have happened."""
    node = Node((W,))
    with capture_logs() as told:
        node.heard_epoch(EpochName(2, Y))
    assert node.fence.is_shut
    assert "restored from a backup" in told[0]["what_to_do"]


@pytest.mark.parametrize("earlier", [(X, Z), (Y,), (X[:-1],)])
def test_epochs_that_no_group_has_been_in_are_refused(earlier: Lineage) -> None:
    """Nothing is concluded from what can't be."""
    node = Node(())
    with pytest.raises(BrokerError) as refused:
        node.heard_epoch(EpochName(2, Y, earlier))
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    assert not node.fence.is_shut


@asynccontextmanager
async def guarded(node: Node) -> AsyncIterator[Any]:
    """A channel to the door of that node, of group g."""
    leads, cluster = watched(FOLLOWS_N2)
    leads.fence = node.fence
    heed = partial(heed_epoch, cluster)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (service_handler(SERVICES["Cluster"], ClusterDoor(cluster), heed=heed),)
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        await server.stop(None)


def watch(channel: Any, request: bytes) -> Any:
    """A watch by who was served in epoch 1 of its group."""
    said = client.EpochName(1, X).metadata
    return channel.unary_stream("/dledger.v1.Cluster/WatchLeader")(request, metadata=said)


@async_test
async def test_what_a_client_of_another_group_knows_shuts_nobody() -> None:
    """The address was a member's of its own once, and of a group that was never recovered any epoch
    is a later one: one honest client had it serve nobody, again after each start."""
    node = Node(())
    async with guarded(node) as channel:
        with capture_logs(), pytest.raises(grpc.aio.AioRpcError) as refused:
            await watch(
                channel, cpb.WatchLeaderRequest(broker_group="h").SerializeToString()
            ).read()
        assert error_of(refused.value).code == epb.WRONG_BROKER_GROUP
        assert "of broker group 'g', not 'h'" in error_of(refused.value).message
        assert (node.shut, node.fence.is_shut) == (0, False)


@async_test
async def test_what_comes_with_bytes_that_are_no_request_shuts_nobody() -> None:
    """Nobody can say whose they are."""
    node = Node(())
    async with guarded(node) as channel:
        with capture_logs(), pytest.raises(grpc.aio.AioRpcError) as refused:
            await watch(channel, b"\xff\xff\xff").read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (node.shut, node.fence.is_shut) == (0, False)


@pytest.mark.parametrize("name", ["", "g"])
@async_test
async def test_what_a_client_of_the_group_knows_shuts_the_node(name: str) -> None:
    """Or of one that doesn't name it."""
    node = Node(())
    async with guarded(node) as channel:
        with capture_logs():
            call = watch(channel, cpb.WatchLeaderRequest(broker_group=name).SerializeToString())
            assert cpb.LeaderView.FromString(await call.read()).node_id == "n1"
            call.cancel()
        assert (node.shut, node.fence.is_shut) == (1, True)


@async_test
async def test_who_asks_for_a_status_shuts_nobody() -> None:
    """That is asked of any node, whosever it is, and names no group: a client of an earlier release
    tells its own group's epoch with it."""
    node = Node(())
    leads, cluster = watched(FOLLOWS_N2)
    leads.fence = node.fence

    class Asked:
        def invocation_metadata(self) -> object:
            return client.EpochName(1, X).metadata

        def set_trailing_metadata(self, _: object) -> None:
            raise AssertionError("nothing is told")

    context = cast("Context", Asked())
    heed_epoch(cluster, cpb.GetStatusRequest(), context)
    assert not node.fence.is_shut
    with capture_logs():
        heed_epoch(cluster, None, context)
    assert node.fence.is_shut, "as every other call would"

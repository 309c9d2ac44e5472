"""What a node makes of the epoch that a caller tells (docs/adr/0052-the-last-resort.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker.doors.grpc.epochs import heed_epoch
from broker.doors.grpc.errors import Context
from broker.errors import BrokerError, ErrorCode
from broker.leader.epochs import EpochFence, EpochName
from broker.services.cluster import Cluster
from dledger.client import group_epoch as client
from dledger.core.group_epoch import RECOVERY_ID_BYTES, Lineage, Standing, standing_of

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
            heed_epoch(cast("Cluster", self), cast("Context", self))
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

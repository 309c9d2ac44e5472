"""Rot that is met on the way to something else: that is done all the same, or the replica ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.checksum import seal
from dledger.core.types import NodeId
from dledger.wire import raft_pb2 as pb
from store.errors import CorruptionFound
from store.starting.errors import OutOfService
from tests.node.world import World

ROT = CorruptionFound("a file", 0, "a frame", "another")


def rotten(*_: object) -> int:
    raise ROT


def test_who_was_given_up_leaves_though_the_entry_that_it_tells_of_has_rotted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that has fallen silent and stays would be in nobody's way, and of no use: nobody
    repairs it, as no peer speaks with it."""
    node = World().serving()
    monkeypatch.setattr(node.log, "digest_at", rotten)
    with node.running():
        node.replica.on_given_up(NodeId("n2"), (bytes(16),))
    assert isinstance(node.failure, OutOfService)
    told = node.failure.divergence
    assert (told.committed_index, told.committed_offset, told.committed_digest) == (0, 0, 0)
    assert told.last_index == node.log.last_index


def test_rot_beyond_repair_that_a_peers_question_meets_ends_the_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever else reads it would: the peer can't wait for an answer that never comes."""
    node = World().serving()
    monkeypatch.setattr(node.log, "digest_at", rotten)
    monkeypatch.setattr(node.replica.repairs, "takes", lambda _: False)
    monkeypatch.setattr(
        node.replica.comparison,
        "_around",
        replace(node.replica.comparison._around, is_mended=lambda _: False),
    )
    index = node.log.last_index
    asked = pb.DigestRequest(number=1, index=index, entry_term=1, digest=7)
    with node.running():
        node.replica.on_message(NodeId("n2"), seal(pb.PeerMessage(digest_request=asked)))
    assert node.failure is ROT

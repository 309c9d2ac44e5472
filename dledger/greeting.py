"""What two nodes say to each other before anything else, and who is turned away.

A stream is opened by a Hello from each side; a peer of another broker group, version or segment
size is refused with a text that says what differs.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from dledger.checksum import is_intact, seal
from dledger.core.types import NodeId
from dledger.errors import PeerRefused
from dledger.level import FIRST_LEVEL, KNOWN_LEVEL
from dledger.wire.raft_pb2 import Hello, PeerMessage

# 2: every message has a checksum, and keep-alives are answered. There is no rolling upgrade from 1.
PROTOCOL_VERSION = 2


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is to its peers."""

    broker_group: str
    node: NodeId
    segment_size_bytes: int
    level: int = KNOWN_LEVEL

    def hello(self, to: NodeId) -> PeerMessage:
        """The first message of a stream."""
        return seal(
            PeerMessage(
                hello=Hello(
                    protocol_version=PROTOCOL_VERSION,
                    broker_group=self.broker_group,
                    node_id=self.node,
                    to_node_id=to,
                    segment_size_bytes=self.segment_size_bytes,
                    level=self.level,
                )
            )
        )

    def check(self, first: PeerMessage, members: Container[NodeId]) -> NodeId:
        """The id of the peer that `first`, the Hello of a stream, introduces.

        Raises:
            PeerRefused: it must not take part; the text names what differs.
        """
        hello = first.hello
        differing = {
            "protocol version": (hello.protocol_version, PROTOCOL_VERSION),
            "broker group": (hello.broker_group, self.broker_group),
            "addressed node": (hello.to_node_id, self.node),
            "segment size": (hello.segment_size_bytes, self.segment_size_bytes),
        }
        for what, (theirs, ours) in differing.items():
            if theirs != ours:
                raise PeerRefused(
                    f"peer {hello.node_id!r}: {what} is {theirs!r} there and {ours!r} here"
                )
        # After the version: a Hello of version 1 has none.
        if not is_intact(first):
            raise PeerRefused(f"peer {hello.node_id!r}: the checksum of its Hello is wrong")
        if hello.level < FIRST_LEVEL:
            raise PeerRefused(f"peer {hello.node_id!r}: it says no level of formats and commands")
        peer = NodeId(hello.node_id)
        if peer not in members or peer == self.node:
            raise PeerRefused(
                f"{hello.node_id!r} is not a peer of {self.node!r} in this broker group"
            )
        return peer

"""What two nodes say to each other before anything else, and who is turned away.

A stream is opened by a Hello from each side; a peer of another broker group, version or segment
size is refused with a text that says what differs. So is one on another disk than the one that the
configuration names, and one that speaks from a disk's past (ADR 22). This owns the rule; which
streams there are, and when a stream that is open has to end, is the links' matter.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from dledger.checksum import is_intact, seal
from dledger.core.types import (
    MAX_INDEX,
    MAX_TERM,
    NO_DISK,
    ConfigurationPlace,
    DiskId,
    Index,
    NodeId,
    Term,
)
from dledger.errors import OlderCopy, PeerRefused, UnknownDisk
from dledger.level import FIRST_LEVEL, KNOWN_LEVEL
from dledger.wire.raft_pb2 import Hello, PeerMessage

# 2: every message has a checksum, and keep-alives are answered. There is no rolling upgrade from 1.
PROTOCOL_VERSION = 2

_NOWHERE = ConfigurationPlace()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is to its peers."""

    broker_group: str
    node: NodeId
    segment_size_bytes: int
    disk: DiskId = NO_DISK
    boot_number: int = 0  # of this start, on that disk
    boot_nonce: int = 0  # of this start alone
    level: int = KNOWN_LEVEL

    def hello(self, to: NodeId, place: ConfigurationPlace = _NOWHERE) -> PeerMessage:
        """The first message of a stream; `place`: of this node's configuration in its log."""
        return seal(
            PeerMessage(
                hello=Hello(
                    protocol_version=PROTOCOL_VERSION,
                    broker_group=self.broker_group,
                    node_id=self.node,
                    to_node_id=to,
                    segment_size_bytes=self.segment_size_bytes,
                    disk_id=self.disk,
                    boot_number=self.boot_number,
                    boot_nonce=self.boot_nonce,
                    configuration_term=place.term,
                    configuration_index=place.at,
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
        if hello.configuration_term > MAX_TERM or hello.configuration_index > MAX_INDEX:
            raise PeerRefused(f"peer {hello.node_id!r}: its configuration is beyond any log")
        return peer


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who said Hello on a stream: a disk, one start on it, and what it knew of the members."""

    disk: DiskId
    boot_number: int
    boot_nonce: int
    place: ConfigurationPlace

    @classmethod
    def of(cls, hello: Hello) -> Speaker:
        """The speaker of a Hello that has been checked."""
        place = ConfigurationPlace(Term(hello.configuration_term), Index(hello.configuration_index))
        return cls(DiskId(hello.disk_id), hello.boot_number, hello.boot_nonce, place)


@dataclass(slots=True)
class KnownDisks:
    """Which disk each peer is, as the configuration in force says, and what was heard of them.

    Attributes:
        place: of that configuration in the log.
        disks: of the peers; one that isn't named may be any.
        is_known: whether that configuration names this node's own disk. While it doesn't, this
            node catches up, and what it reads about disks is the past.
    """

    place: ConfigurationPlace = _NOWHERE
    disks: dict[NodeId, DiskId] = field(default_factory=dict)
    is_known: bool = True
    _starts: dict[NodeId, Speaker] = field(default_factory=dict)  # the newest of each named disk

    def refusal_of(self, peer: NodeId, speaker: Speaker, *, answers: bool) -> PeerRefused | None:
        """Why `speaker` isn't heard as `peer`; None if it is.

        Args:
            answers: whether its answers are listened to on that stream, which count; or else its
                requests. Those are safe whoever makes them, as terms and logs decide them, and a
                new disk that leads is the only one to tell a node that lags of itself.
        """
        named = self.disks.get(peer, NO_DISK)
        if named == NO_DISK or speaker.disk == named or not self.is_known:
            return None
        if not answers and speaker.place > self.place:
            return None
        return UnknownDisk(peer, named, speaker.disk)

    def heard(self, peer: NodeId, speaker: Speaker) -> None:
        """`speaker` said Hello.

        Raises:
            OlderCopy: a later start on the same disk was heard before.
        """
        if speaker.disk == NO_DISK:
            return
        known = self._starts.get(peer)
        if known is not None and known.disk == speaker.disk:
            is_older = speaker.boot_number < known.boot_number
            is_twin = speaker.boot_number == known.boot_number
            if is_older or (is_twin and speaker.boot_nonce != known.boot_nonce):
                raise OlderCopy(peer, speaker.boot_number, known.boot_number)
        self._starts[peer] = speaker

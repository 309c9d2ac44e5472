"""What two nodes say to each other before anything else, and who is turned away.

A stream is opened by a Hello from each side; a peer of another broker group, version or segment
size is refused with a text that says what differs. So is one on another disk than the one that the
configuration names, and one that speaks from a disk's past (ADR 22, ADR 30). This owns the rule;
which streams there are, and when a stream that is open has to end, is the links' matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger.checksum import is_intact, seal
from dledger.core.group_epoch import Lineage, Standing, is_lineage, standing_of
from dledger.core.types import (
    DISK_ID_BYTES,
    MAX_INDEX,
    MAX_TERM,
    NO_DISK,
    ConfigurationPlace,
    DiskId,
    Index,
    NodeId,
    Term,
)
from dledger.errors import OlderCopy, PeerRefused, UnknownDisk, WrongEpoch
from dledger.level import FIRST_LEVEL, KNOWN_LEVEL
from dledger.naming import is_name
from dledger.promises import Promises, Start
from dledger.wire.raft_pb2 import Hello, PeerMessage

# 2: every message has a checksum, and keep-alives are answered. There is no rolling upgrade from 1.
PROTOCOL_VERSION = 2

MAX_SHOWN = 80  # characters of what a Hello says that are told of it

# Disks whose promises are kept: a record has half a kilobyte, and the file of all is read up to 64.
MAX_REMEMBERED = 64

_NOWHERE = ConfigurationPlace()
_SOMETIME = Start()
# But for the term, if it is new.
_PROMISE_NOTHING = frozenset({"append_request", "heartbeat_request", "heartbeat_response"})


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is to its peers."""

    broker_group: str
    node: NodeId
    segment_size_bytes: int
    disk: DiskId = NO_DISK
    start: Start = _SOMETIME
    level: int = KNOWN_LEVEL
    tells_log_start: bool = True  # not of one whose log has gaps

    def hello(
        self, to: NodeId, place: ConfigurationPlace = _NOWHERE, recoveries: Lineage = ()
    ) -> PeerMessage:
        """The first message of a stream; `place`: of this node's configuration in its log, and
        `recoveries`: the epoch that it names."""
        start = self.start
        return seal(
            PeerMessage(
                hello=Hello(
                    protocol_version=PROTOCOL_VERSION,
                    broker_group=self.broker_group,
                    node_id=self.node,
                    to_node_id=to,
                    segment_size_bytes=self.segment_size_bytes,
                    disk_id=self.disk,
                    boot_number=start.number,
                    boot_nonce=start.nonce,
                    configuration_term=place.term,
                    configuration_index=place.at,
                    level=self.level,
                    begun_term=start.term,
                    begun_vote=start.vote,
                    begun_index=start.last_index,
                    acknowledges_unsynced=not start.is_synced,
                    gives_entries=True,
                    compares_digests=True,
                    tells_log_start=self.tells_log_start,
                    recoveries=recoveries,
                )
            )
        )

    def check(self, first: PeerMessage) -> NodeId:
        """The id of the node that `first`, the Hello of a stream, introduces. Whether that is a
        peer is for others to say.

        Raises:
            PeerRefused: it must not take part; the text names what differs.
        """
        hello = first.hello
        called = f"peer {hello.node_id[:MAX_SHOWN]!r}"
        differing = {
            "protocol version": (hello.protocol_version, PROTOCOL_VERSION),
            "broker group": (hello.broker_group, self.broker_group),
            "addressed node": (hello.to_node_id, self.node),
            "segment size": (hello.segment_size_bytes, self.segment_size_bytes),
        }
        for what, (theirs, ours) in differing.items():
            if theirs != ours:
                told = theirs[:MAX_SHOWN] if isinstance(theirs, str) else theirs
                raise PeerRefused(f"{called}: {what} is {told!r} there and {ours!r} here")
        # After the version: a Hello of version 1 has none.
        if not is_intact(first):
            raise PeerRefused(f"{called}: the checksum of its Hello is wrong")
        if hello.level < FIRST_LEVEL:
            raise PeerRefused(f"{called}: it says no level of formats and commands")
        peer = NodeId(hello.node_id)
        if not peer or peer == self.node:
            raise self.refusal_of_stranger(peer)
        # Both are kept: the name in a vote, the disk among what its peers remember.
        if not is_name(peer):
            raise PeerRefused(f"{called}: no node is called so")
        if len(hello.disk_id) not in (len(NO_DISK), DISK_ID_BYTES):
            raise PeerRefused(f"{called}: no disk has an id of {len(hello.disk_id)} bytes")
        if hello.configuration_term > MAX_TERM or hello.configuration_index > MAX_INDEX:
            raise PeerRefused(f"{called}: its configuration is beyond any log")
        if not is_lineage(tuple(hello.recoveries)):
            raise PeerRefused(f"{called}: no group has such an epoch")
        if not _start_of(hello).is_in_range:
            raise PeerRefused(f"{called}: what it began with is beyond any log")
        return peer

    def refusal_of_stranger(self, name: NodeId) -> PeerRefused:
        """What one is told who is no member, as far as this node knows."""
        return PeerRefused(
            f"{str(name)!r} is not a peer of {str(self.node)!r} in this broker group"
        )


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who said Hello on a stream: a disk, one start on it, and what it knew of the members, and of
    the group's epoch."""

    disk: DiskId
    start: Start
    place: ConfigurationPlace
    recoveries: Lineage = ()

    @classmethod
    def of(cls, hello: Hello) -> Speaker:
        """The speaker of a Hello that has been checked."""
        place = ConfigurationPlace(Term(hello.configuration_term), Index(hello.configuration_index))
        recoveries = tuple(hello.recoveries)
        return cls(DiskId(hello.disk_id), _start_of(hello), place, recoveries)


def _start_of(hello: Hello) -> Start:
    return Start(
        hello.boot_number,
        hello.boot_nonce,
        Term(hello.begun_term),
        NodeId(hello.begun_vote),
        Index(hello.begun_index),
        is_synced=not hello.acknowledges_unsynced,
    )


@dataclass(slots=True)
class KnownDisks:
    """Which disk each peer is, as the configuration in force says, and what was heard of them.

    Attributes:
        place: of that configuration in the log.
        disks: of the peers; one that isn't named may be any.
        is_known: whether that configuration names this node's own disk. While it doesn't, this
            node catches up, and what it reads about disks is the past.
        recoveries: the epoch of that configuration.
    """

    place: ConfigurationPlace = _NOWHERE
    disks: dict[NodeId, DiskId] = field(default_factory=dict)
    is_known: bool = True
    recoveries: Lineage = ()
    _promises: dict[NodeId, Promises] = field(default_factory=dict)  # of the disk heard last
    _older: dict[NodeId, DiskId] = field(default_factory=dict)  # refused as older copies

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

    def refusal_of_epoch(self, peer: NodeId, speaker: Speaker) -> WrongEpoch | None:
        """Why nothing is heard from `speaker` in either direction: it is of another epoch. Who lags
        may not have read of this one yet; that is a member of it if its disk is named here, as no
        recovery leaves a disk a member but the survivor's."""
        if not self.is_known:
            return None
        standing = standing_of(speaker.recoveries, self.recoveries)
        is_named = self._is_named(peer, speaker)
        if standing is Standing.SAME or (standing is Standing.OLDER and is_named):
            return None
        return WrongEpoch(peer, standing, speaker.recoveries, self.recoveries)

    def is_given_up(self, peer: NodeId, speaker: Speaker) -> bool:
        """Whether `speaker` shows that the group was recovered without this node. Believed is a
        member, on the disk by which this node knows it, and nobody else: who came later says the
        same, and it is only that such a one isn't heard."""
        standing = standing_of(speaker.recoveries, self.recoveries)
        return self.is_known and standing is Standing.NEWER and self._is_named(peer, speaker)

    def _is_named(self, peer: NodeId, speaker: Speaker) -> bool:
        return speaker.disk != NO_DISK and speaker.disk == self.disks.get(peer, NO_DISK)

    def heard(self, peer: NodeId, speaker: Speaker, *, answers: bool) -> None:
        """`speaker` said Hello.

        Args:
            answers: whether it is what is found at the peer's address. Who calls in its name may
                be a stranger, or late: such a one is refused, and the peer isn't called a copy.

        Raises:
            OlderCopy: it doesn't know what its disk has promised.
            PeerRefused: that can be no start on that disk.
        """
        if speaker.disk == NO_DISK:
            return
        known = self._promises.get(peer)
        if known is None or known.disk != speaker.disk:
            # Who is heard although another disk is named may only be somebody who says so: what
            # the named one promised stands until it isn't named any more.
            if known is None or known.disk != self.disks.get(peer):
                self._remember(peer, speaker)
            return
        if not known.can_be_of(speaker.start):
            raise PeerRefused(
                f"{peer}: start number {speaker.start.number}, after number {known.start.number}: "
                "no disk is started so often in between"
            )
        if forgotten := known.forgotten_by(speaker.start):
            if answers:
                self._older[peer] = speaker.disk
            raise OlderCopy(peer, forgotten)
        known.begin(speaker.start)
        self._older.pop(peer, None)

    def named(self, peer: NodeId, speaker: Speaker) -> None:
        """Other disks may be named by now than when `speaker`, who is still heard, said Hello."""
        if speaker.disk == NO_DISK or speaker.disk != self.disks.get(peer):
            return
        known = self._promises.get(peer)
        if known is None or known.disk != speaker.disk:
            self._remember(peer, speaker)
        elif speaker.start.number > known.start.number and known.can_be_of(speaker.start):
            known.begin(speaker.start)  # of two calls, the later start's

    def _remember(self, peer: NodeId, speaker: Speaker) -> None:
        """From now on. Of those that are members no more the one that was known first is forgotten:
        members come and go for years, and what the others remember has to be read again."""
        strangers = [name for name in self._promises if name not in self.disks and name != peer]
        if len(self._promises) >= MAX_REMEMBERED and strangers:
            del self._promises[strangers[0]]
        self._promises[peer] = Promises(speaker.disk, speaker.start)

    def said(self, message: PeerMessage, peer: NodeId, speaker: Speaker, to: NodeId) -> None:
        """`speaker` said `message` to `to`, which is this node, and it wasn't refused. It may not
        have been looked at either, by a node that stops."""
        known = self._promises.get(peer)
        if known is None or known.disk != speaker.disk:
            return
        # Read late, on a stream of an earlier start: what that one hadn't synced may be gone, and
        # must not stand as a promise of a start that tells of nothing else.
        if known.start.is_synced and not speaker.start.is_synced:
            return
        if message.term == known.term and message.WhichOneof("body") in _PROMISE_NOTHING:
            return
        if message.term <= MAX_TERM and is_intact(message):
            known.note(peer, to, message)

    def is_older_copy(self, peer: NodeId) -> bool:
        """Whether `peer`, as the configuration names it, is known to be an older copy."""
        refused = self._older.get(peer)
        return refused is not None and self.disks.get(peer, refused) == refused

    @property
    def promises(self) -> dict[NodeId, Promises]:
        """What is remembered, as it is now."""
        return {peer: each.copy() for peer, each in self._promises.items()}

    def recall(self, promises: Mapping[NodeId, Promises]) -> None:
        """What an earlier start of this node remembered; before anybody is heard."""
        self._promises = {peer: each.copy() for peer, each in promises.items()}

"""Errors of the replication module, outside the core.

    ReplicationError
    ├── HardStateCorrupt   the term-and-vote file can't be trusted: the node must not start
    │   └── HardStateOlder it is older than the log: lost, or put back from a copy
    ├── PeerRefused        a peer is of another broker group, version or segment size (retriable)
    │   ├── UnknownDisk    it is on another disk than the one that the group knows as that member's
    │   ├── OlderCopy      it speaks from its disk's past: an older copy was put back
    │   └── WrongEpoch     the group was recovered by force, and only one of the two is of after it
    ├── StreamEnded        the other side ended a stream before it was greeted (retriable)
    ├── ReplicaDiverged    this replica's log isn't what it says it is: stop
    ├── LogFull            no room on the disk for another entry (retriable)
    ├── LogBehind          too much waits for the disk already (retriable)
    ├── InvalidMessage     no working peer sends this: dropped whole, stream made anew (retriable)
    │   └── InvalidFrames  bytes that a peer sent as frames are not
    ├── ApplyPaused        the state machine has no space to go on (retriable)
    └── ApplyStopped       what comes next is of a level that this program doesn't know

What raised one of them did not happen. The core has a family of its own, `dledger.core.errors`,
as it imports nothing.
"""

from __future__ import annotations

from typing import ClassVar

from dledger.core.group_epoch import Lineage, Standing
from dledger.outcome import ExitCode, Outcome
from dledger.wire.raft_pb2 import PeerMessage


class ReplicationError(Exception):
    """Root of the replication errors."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class HardStateCorrupt(ReplicationError):
    """The file that holds term and vote fails its check. Starting with a guess could vote twice
    in one term; the remedy is to wipe this replica and let it catch up under a new identity."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"hard state is corrupt: expected {expected}, found {found}")
        self.expected = expected
        self.found = found


class HardStateOlder(HardStateCorrupt):
    """Term and vote are durable before any entry of that term: this node may have voted since."""


class PeerRefused(ReplicationError):
    """The Hello of a peer doesn't fit this node. Configuration, not weather: retried slowly."""

    retriable = True


class UnknownDisk(PeerRefused):
    """Nothing of what the member had promised is known to be on that disk."""

    def __init__(self, peer: str, named: bytes, found: bytes) -> None:
        super().__init__(
            f"{peer} is on disk {found.hex() or 'without identity'}, and the group knows it on "
            f"{named.hex()}: if that disk is lost, `dledger group replace {peer}` takes the new "
            "one in; if it isn't (a mount?), start the node on it"
        )
        self.peer = peer
        self.named = named
        self.found = found


class OlderCopy(PeerRefused):
    """It doesn't know what its disk has promised: nothing that it says may count."""

    def __init__(self, peer: str, forgotten: str) -> None:
        super().__init__(
            f"{peer} speaks from its disk's past ({forgotten}): an older copy of its directory was "
            "put back, or two run. Stop it, empty the directory and take it in with "
            f"`dledger group replace {peer}`"
        )
        self.peer = peer
        self.forgotten = forgotten


class WrongEpoch(PeerRefused):
    """Between the two lies a recovery by force: what one counts as acknowledged the other may never
    have had (ADR 52).

    Attributes:
        standing: of the peer's epoch, seen from this node's.
        answer: what whoever calls is to be told before the call ends, so that it learns of it.
    """

    def __init__(self, peer: str, standing: Standing, theirs: Lineage, own: Lineage) -> None:
        texts = {
            Standing.OLDER: (
                f"{peer} is of epoch {len(theirs)} of the broker group, which was recovered by "
                f"force since and is in epoch {len(own)}: {peer} was given up. Stop it, empty its "
                f"directory, and take it in: `dledger member add {peer} ADDRESS`"
            ),
            Standing.NEWER: (
                f"{peer} is of epoch {len(theirs)} of the broker group, and this node of epoch "
                f"{len(own)}: the group was recovered by force without it, and it was given up"
            ),
        }
        other = (
            f"{peer} is of another epoch {len(theirs)} than this node's {len(own)}: the group was "
            "recovered by force twice, from two survivors. They are two groups now: keep one, and "
            "empty the directories of the other"
        )
        super().__init__(texts.get(standing, other))
        self.peer = peer
        self.standing = standing
        self.theirs = theirs
        self.own = own
        self.answer: PeerMessage | None = None


class StreamEnded(ReplicationError):
    """The other side ended the stream in the middle of a proof; its status says why."""

    retriable = True


class ReplicaDiverged(ReplicationError):
    """After a contradiction with a peer this node read its own log again, and the running digest
    of its files isn't the one that it has told others. It must not go on."""

    def __init__(self, index: int, told: int, found: int) -> None:
        super().__init__(
            f"this replica's log differs from what it says of itself at committed index {index}: "
            f"digest {told:016x} told, {found:016x} found in its files"
        )
        self.index = index
        self.told = told
        self.found = found


class LogFull(ReplicationError):
    """There is no room on the leader's disk for another entry: nothing was appended."""

    retriable = True


class LogBehind(ReplicationError):
    """Too much waits for the log's disk already: nothing was appended."""

    retriable = True


class InvalidMessage(ReplicationError):
    """No working peer sends this: the message is dropped whole and has changed nothing, and the
    stream that it came on has to be closed, so that it is made anew."""

    retriable = True


class InvalidFrames(InvalidMessage):
    """Bytes that a peer sent as frames are not."""


class ApplyPaused(ReplicationError):
    """The state machine has no space to go on: what came before was applied, the entry behind
    `applied_index` wasn't, and can be given again."""

    retriable = True

    def __init__(self, applied_index: int, reason: str) -> None:
        super().__init__(f"applying pauses behind entry {applied_index}: {reason}")
        self.applied_index = applied_index


class ApplyStopped(ReplicationError):
    """The entry behind `applied_index` raises the level of formats and commands beyond what this
    program knows. What came before was applied; the remedy is a newer program."""

    def __init__(self, applied_index: int, level: int, known: int) -> None:
        super().__init__(
            f"entry {applied_index + 1} raises the level of formats and commands to {level}, and "
            f"this program knows {known}: install a newer one"
        )
        self.applied_index = applied_index
        self.level = level
        self.known = known

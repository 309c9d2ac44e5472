"""Errors of the replication module, outside the core.

ReplicationError
├── HardStateCorrupt      the term-and-vote file can't be trusted: the node must not start
├── PeerRefused           a peer is of another group, version or segment size
└── ReplicaDiverged       this replica's committed bytes differ from the leader's: stop
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import ExitCode


class ReplicationError(Exception):
    """Root of the replication errors."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class HardStateCorrupt(ReplicationError):
    """The file that holds term and vote fails its check. Starting with a guess could vote twice
    in one term; the remedy is to wipe this replica and let it catch up under a new identity."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"hard state is corrupt: expected {expected}, found {found}")
        self.expected = expected
        self.found = found


class PeerRefused(ReplicationError):
    """The Hello of a peer doesn't fit this node. Configuration, not weather: retried slowly."""


class ReplicaDiverged(ReplicationError):
    """The running digests at a committed index differ: Raft's safety was violated somewhere."""

    def __init__(self, index: int, ours: int, theirs: int, peer: str) -> None:
        super().__init__(
            f"this replica differs from {peer} at committed index {index}: "
            f"digest {ours:016x} here, {theirs:016x} there"
        )
        self.index = index
        self.ours = ours
        self.theirs = theirs
        self.peer = peer

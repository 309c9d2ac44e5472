"""Errors of the replication module, outside the core.

ReplicationError
├── HardStateCorrupt      the term-and-vote file can't be trusted: the node must not start
├── PeerRefused           a peer is of another group, version or segment size
└── ReplicaDiverged       this replica's log isn't what it says it is: stop
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

"""What may be concluded from an error: by a caller, and by the shell that started a program.

Each package has a family of errors of its own (`dledger.records.errors`, `dledger.client.errors`,
`store.errors`). `outcome` says whether the operation did not happen, or may have; `exit_code` says
how a command ends that ends with this error. So the boundary where errors become a line of text
(`dledger.terminal.outcome`) needs to know no family: an error without an exit code is a bug.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Outcome(Enum):
    """What the caller may conclude about the thing that was asked for."""

    DID_NOT_HAPPEN = "did not happen"
    MAY_HAVE_HAPPENED = "may have happened"


class ExitCode(IntEnum):
    """What a program tells its caller.

    0   done, or holds                      1   failed, or doesn't hold
    2   used wrongly: arguments,            3   no quorum, or no node, could be reached
        configuration, no such group      130   interrupted (Ctrl-C): 128 + SIGINT, as shells do
    4   a node's disk failed a write, a sync or a read: look at it before the node is started again

    An audit has words of its own for three of them: what it looked at is consistent, is not, or
    could not all be looked at.
    """

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    DISK_FAILED = 4
    INTERRUPTED = 130

    CONSISTENT = 0
    INCONSISTENT = 1
    INCOMPLETE = 3

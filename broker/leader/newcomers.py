"""Whether a disk that comes with a log of its own may be taken in (ADR 41).

Names don't tell groups apart: two may have one name, and a node that is a member of the other one
may be asked for by mistake. Raft takes entries of one index and term for the same, so such a node
would be sent what follows *its* entries, vote, and hold another log than everybody: the group that
has grown by it may have no majority left. What tells groups apart is the running digest, which
covers the disks of the founders. So who comes with a log says where it is known to be committed
there, and the leader looks whether its own log is the same there. Pure, but for the one read.

Who says nothing holds no log, or is asked for by a command of an older release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.errors import BrokerError, ErrorCode
from broker.leader.epochs import FIRST, EpochName
from dledger.core.types import NO_INDEX, Configuration, DiskId, Index, NodeId

WHAT_TO_DO = "stop it, empty its directory, start it, and ask again"


@dataclass(frozen=True, slots=True)
class HeldLog:
    """The last entry that a disk knows to be committed, and the running digest there; zeros: it
    holds entries, and knows it of none. `epoch`: of the group, as that log has it; None: nobody
    says."""

    index: Index
    digest: int
    epoch: EpochName | None = None


@dataclass(frozen=True, slots=True)
class GroupLog:
    """The leader's log, as far as newcomers are compared with it. `digest_at` gives None for an
    entry that isn't held any more."""

    commit_index: Index
    digest_at: Callable[[Index], int | None]
    epoch: EpochName = FIRST


def check_held(node: NodeId, held: HeldLog | None, own: GroupLog) -> None:
    """Returns if what the newcomer's disk holds is the beginning of the group's log.

    Raises:
        BrokerError: INVALID_ARGUMENT, it isn't, or nobody can tell; what reading the log raises.
    """
    if held is None:
        return
    if held.epoch is not None and held.epoch != own.epoch:
        # It may be a beginning all the same, which lacks the entry that recovered the group: to
        # the first member that dials it it is one that was given up (ADR 52).
        reason = (
            f"it is of epoch {held.epoch.number} of the group, which was recovered by force and is "
            f"in another one, {own.epoch.number}"
        )
    elif held.index == NO_INDEX:
        reason = "since its start nobody has told it what is committed, so it can't be compared"
    elif held.index > own.commit_index:
        reason = f"entry {held.index} is committed there, and {own.commit_index} is the last here"
    elif (digest := own.digest_at(held.index)) is None:
        reason = f"what it knows ends at entry {held.index}, which is gone here"
    elif digest != held.digest:
        reason = f"up to entry {held.index} it is another one than this group's"
    else:
        return
    text = f"{node} holds a log: {reason}. If it is to be a member of this group, {WHAT_TO_DO}"
    raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)


def check_not_given_up(present: Configuration, node: NodeId, disk: DiskId) -> None:
    """Returns unless the group was recovered by force without that disk (ADR 52).

    Raises:
        BrokerError: INVALID_ARGUMENT, it was.
    """
    last = present.epoch.last
    given_up = () if last is None else last.given_up
    if any(disk == gone for _, gone in given_up):
        raise BrokerError(
            ErrorCode.INVALID_ARGUMENT,
            f"disk {disk.hex()} of {node} was given up when the group was recovered by force, and "
            f"what it holds isn't the group's: {WHAT_TO_DO}",
        )

"""Which life of a broker group a log belongs to: the epochs that recoveries by force begin.

A group whose majority is lost for ever is recovered from one survivor, by an entry that makes it
the only voter (ADR 52). What the given-up members held beyond the survivor's log is no longer the
group's, so nobody of before may be heard by anybody of after, whatever its term. An epoch is named
by the recoveries that led to it, an id each: of two epochs one is the other's past if its
recoveries are the other's first ones; else they are two groups that were one once, and neither is
right.

Pure values; who is heard is the greeting's matter (`dledger/greeting.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

RECOVERY_ID_BYTES: Final = 16
MAX_RECOVERIES: Final = 64  # of one group, ever: each costs 16 bytes in every Hello

# The ids of all recoveries, the first one first.
Lineage = tuple[bytes, ...]


class Standing(Enum):
    """Another's epoch, seen from one's own."""

    SAME = "the same"
    OLDER = "older"
    NEWER = "newer"
    OTHER = "another"


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery, as its entry tells it.

    Attributes:
        survivor: the member that was left as the only voter.
        time_ms: when, by the clock of who did it, since the epoch of clocks.
        term, index: of the entry that forced it; everything before is the survivor's log.
        committed_index: up to where the survivor knew that to be committed before.
        given_up: the other members, and their disks; none of them is the group's any more.
    """

    survivor: str
    time_ms: int
    term: int
    index: int
    committed_index: int
    given_up: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """The epoch of a configuration. `last`: the recovery that began it; None in the first epoch."""

    recoveries: Lineage = ()
    last: Recovery | None = None

    @property
    def number(self) -> int:
        """How many recoveries led to it."""
        return len(self.recoveries)


FIRST_EPOCH: Final = GroupEpoch()


def standing_of(theirs: Lineage, own: Lineage) -> Standing:
    """What `theirs` is to `own`."""
    if theirs == own:
        return Standing.SAME
    shared = min(len(theirs), len(own))
    if theirs[:shared] != own[:shared]:
        return Standing.OTHER
    return Standing.OLDER if len(theirs) < len(own) else Standing.NEWER


def is_lineage(recoveries: Lineage) -> bool:
    """Whether these can be the recoveries of a group."""
    return (
        len(recoveries) <= MAX_RECOVERIES
        and len(set(recoveries)) == len(recoveries)
        and all(len(each) == RECOVERY_ID_BYTES for each in recoveries)
    )

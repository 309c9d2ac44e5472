"""Whether a log's end is the end: was anything committed behind it that a client was told of?

Only a leader that is ready knows (`audit.reading.leading`).
"""

from __future__ import annotations

from collections.abc import Sequence

from audit.reading.leading import leader_among
from audit.reading.replica import Replica


def open_tail(replicas: Sequence[Replica], end: int) -> str:
    """Why a log that is known committed up to the physical offset `end` may go on, in words; empty
    if nothing was committed behind it when its nodes were asked."""
    leader = leader_among(replicas)
    if leader is None:
        answered = sum(each.position is not None for each in replicas)
        return (
            f"{answered} of {len(replicas)} replicas said how far they are committed, and among "
            "them is no leader that is ready, with a majority of those that vote"
        )
    assert leader.position is not None
    if end < leader.position.committed:
        return (
            f"{leader.id} leads, and is committed up to byte {leader.position.committed} of its "
            f"log, which was read up to byte {end}"
        )
    return ""


def known_committed(replicas: Sequence[Replica]) -> int:
    """The index of an entry that the group had committed when they were asked; 0: nobody can
    tell."""
    leader = leader_among(replicas)
    return 0 if leader is None or leader.position is None else leader.position.index

"""Whether a log's end is the end: was anything committed behind it that a client was told of?

A majority holds what is committed, and need not know that it is: the leader that acknowledges it
does, and the others hear of it with what comes next. If that leader dies first, all who are left
answer with an end before it. Whoever leads after it knows, once it is ready: an entry of its own
term is committed then, behind all of that. So a leader that is ready is asked for, in the newest
term that a majority of the voters knows: of a newer one, with a leader of its own, one of them
would know. Observers and learners elect nobody, and count for nothing.

Source: Raft, section 5.4.2 and 8: a leader knows what is committed once it has committed an entry
of its term.
"""

from __future__ import annotations

from collections.abc import Sequence

from audit.reading.replica import Replica


def leader_among(replicas: Sequence[Replica]) -> Replica | None:
    """The one that led when they were asked, by what a majority said; None if nobody can tell."""
    terms = {each.id: each.seat.term for each in _answering(replicas) if each.seat is not None}
    newest = max(terms.values(), default=0)
    for leader in _answering(replicas):
        if leader.seat is None or not leader.seat.serves or leader.seat.term < newest:
            continue
        # Where an older release doesn't say who votes, it may be all of them.
        ways = leader.seat.voters or (frozenset(each.id for each in replicas if each.is_member),)
        if all(2 * len(voters & terms.keys()) > len(voters) for voters in ways):
            return leader
    return None


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


def _answering(replicas: Sequence[Replica]) -> list[Replica]:
    """Members that answered. One that is out of service has another log."""
    return [
        each
        for each in replicas
        if each.position is not None and each.is_member and not each.standing
    ]

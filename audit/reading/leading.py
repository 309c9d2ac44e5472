"""Who leads the group and is ready, by what its members said when they were asked.

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


def _answering(replicas: Sequence[Replica]) -> list[Replica]:
    """Members that answered. One that is out of service has another log."""
    return [
        each
        for each in replicas
        if each.position is not None and each.is_member and not each.standing
    ]

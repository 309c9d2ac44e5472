"""Whose log histories are held against: one that is shown to be the group's.

The log that is committed furthest needn't be. A member that was given up, or parted from the
others, may have the longest of all; what it acknowledged, and the group has lost, is in it. So
where a leader is known, its log is read, or one that has the leader's running digest where the
leader is committed: every entry carries the digest of all before it. Where none is known, logs that
differ are nobody's word, and one that can't be compared, as it begins later, is damaged where the
other one ends or can't be read at all, is told of.

    out of service, or no member        ─▶ never read
    a leader is known                   ─▶ its log; else one that agrees with it; else one of a
                                           member that answers and is behind it: the tail is open
    none is                             ─▶ the one committed furthest, if all agree with it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from audit.errors import NotTheGroups, UsageMistake
from audit.reading.leading import leader_among
from audit.reading.replica import Replica
from audit.reading.service import not_the_groups
from audit.reading.survey import committed_log
from dledger.reading.errors import LogDamaged, NoAnswer
from dledger.reading.places import checked_digest, lies_across
from dledger.reading.survey import Position, Survey


class Witness(NamedTuple):
    """A replica, its committed log, and what is to be said of those that it stands for."""

    replica: Replica
    log: Survey
    notes: tuple[str, ...] = ()


def witness_among(replicas: Sequence[Replica]) -> Witness:
    """The replica whose log is the group's, and that log.

    Raises:
        UsageMistake: none of them holds a log.
        NoAnswer: none of them can be read.
        LogDamaged: none that can be read to its end.
        NotTheGroups: of those that can be read, none is shown to be the group's.
    """
    wanted = [each for each in replicas if not not_the_groups(each)]
    if replicas and not wanted:
        raise NotTheGroups(passed_over(replicas))
    (found, unread), leader = _readable(wanted), leader_among(replicas)
    if leader is None or leader.position is None:
        return _undisputed(found, unread)
    if own := [each for each in found if each.replica is leader]:
        return own[0]
    return _vouched(found, leader, leader.position)


def passed_over(replicas: Sequence[Replica]) -> list[str]:
    """Why some logs aren't read though they may be longer, in words."""
    reasons = ((each, not_the_groups(each)) for each in replicas)
    return [f"the log of {each.id} was not read: {why}" for each, why in reasons if why]


def _readable(replicas: Sequence[Replica]) -> tuple[list[Witness], dict[str, str]]:
    """Those of which the committed log can be read, at least one; and why of others it can't."""
    found: list[Witness] = []
    unread: dict[str, str] = {}
    worst: NoAnswer | LogDamaged | None = None
    for replica in replicas:
        try:
            found.append(Witness(replica, committed_log(replica)))
        except UsageMistake as error:
            unread[replica.id] = str(error)
        except NoAnswer as error:
            unread[replica.id], worst = str(error), worst or error
        except LogDamaged as error:
            unread[replica.id], worst = str(error), error
    if not found and worst is not None:
        raise worst
    if not found:
        raise UsageMistake("; ".join(unread.values()) or "no replica is given")
    return found, unread


def _undisputed(found: Sequence[Witness], unread: Mapping[str, str]) -> Witness:
    """The one committed furthest, where the others have nothing else.

    Args:
        unread: by replica, why its log can't be read: nobody knows if it has something else.

    Raises:
        NotTheGroups: one has.
    """
    furthest = max(found, key=_reach)
    name = furthest.replica.id
    uncompared = [_not_compared(each, name, why) for each, why in unread.items()]
    for replica, log, _ in found:
        place = log.settled
        if replica is furthest.replica or not place:
            continue
        ours, theirs = digest_at(furthest.log, place), digest_at(log, place)
        # A size that has rotted leads to a place where nothing ends, and shows nothing.
        is_parted = ours is None and theirs is not None and _lies_across(furthest.log, place)
        if not is_parted and (ours is None or theirs is None):
            whose = replica.id if theirs is None else name
            why = f"that of {whose} is damaged before byte {place}, or begins behind it"
            uncompared.append(_not_compared(replica.id, name, why))
        elif is_parted or ours != theirs:
            raise NotTheGroups(
                [
                    f"{name} and {replica.id} hold different logs up to byte {place}, "
                    "and no leader was asked which is the group's: ask again when there is one, "
                    "or name one of them (--replica)"
                ]
            )
    return furthest._replace(notes=tuple(uncompared))


def _not_compared(other: str, read: str, why: str) -> str:
    return f"the log of {other} was not compared with that of {read}, which was read: {why}"


def _vouched(found: Sequence[Witness], leader: Replica, said: Position) -> Witness:
    """One that has the leader's log as far as that is committed; or is behind, and its member.

    Raises:
        NotTheGroups: there is none.
    """
    if agreeing := [each for each in found if digest_at(each.log, said.committed) == said.digest]:
        return max(agreeing, key=_reach)
    behind = [
        each
        for each in found
        if each.replica.position is not None and each.log.settled < said.committed
    ]
    if behind:
        return max(behind, key=_reach)
    raise NotTheGroups(
        [
            f"{replica.id} holds another log than {leader.id}, which leads and can't be read here, "
            f"or nothing shows that it doesn't: up to byte {said.committed} its digest is "
            f"{_shown(digest_at(log, said.committed))}, that of {leader.id} {said.digest:016x}"
            for replica, log, _ in found
        ]
    )


def digest_at(log: Survey, place: int) -> int | None:
    """The running digest of all that lies before the physical offset `place`; None where the log
    doesn't reach there, begins behind it, or is damaged right before it."""
    if not log.retained_from <= place <= log.settled:
        return None
    try:
        return checked_digest(log, place)
    except OSError:
        return None


def _lies_across(log: Survey, place: int) -> bool:
    """Whether the log has an entry there that doesn't end where the other one's does."""
    try:
        return lies_across(log, place)
    except OSError:
        return False


def _reach(each: Witness) -> tuple[int, bool]:
    return each.log.settled, each.replica.position is not None


def _shown(digest: int | None) -> str:
    return "unknown" if digest is None else f"{digest:016x}"

"""What an administrator wants of the members, and which configuration that makes (ADR 41).

Pure: a wish and the configuration in force in, the one that follows out, or why there is none. A
wish that is fulfilled already gives the configuration as it is, so repeating one does no harm. That
what is given may follow what is there, and when, is the core's to decide
(`dledger/core/membership.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from broker.errors import BrokerError, ErrorCode
from broker.leader.newcomers import HeldLog, check_not_given_up
from dledger.addresses import plain_address, split_address
from dledger.core.membership import reshaped, with_learner
from dledger.core.quorum import has_quorum
from dledger.core.types import DISK_ID_BYTES, Configuration, DiskId, NodeId
from dledger.naming import NAME_RULE, is_name

MAX_SHOWN: Final = 80  # characters of a name or an address that is none


@dataclass(frozen=True, slots=True)
class NewMember:
    """Who is to be taken in, on which disk, and where it is found. `observes`: to learn, and not
    to vote once it has caught up. `held`: the log that it comes with; None: none, for all that
    is said."""

    node: NodeId
    disk: DiskId
    address: str
    observes: bool = False
    held: HeldLog | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """All of it at once, or nothing. `promote` names learners, `demote` voters that become such.
    `prefer`: the voter that is to lead while it is well; empty: nobody. None: as it is."""

    add: tuple[NewMember, ...] = ()
    remove: frozenset[NodeId] = frozenset()
    promote: frozenset[NodeId] = frozenset()
    demote: frozenset[NodeId] = frozenset()
    prefer: str | None = None


def planned(present: Configuration, change: Change) -> Configuration:
    """What follows `present`, which isn't joint, by `change`.

    Learners are promoted in the very entry only where others stop voting with them: else they are
    called to it, and vote as they catch up.

    Raises:
        BrokerError: INVALID_ARGUMENT, BUSY.
    """
    _check_named(present, change)
    wanted = present
    for each in change.add:
        wanted = _added(wanted, each)
    ending = (change.remove | change.demote) & wanted.voters
    rising = change.promote if ending else frozenset()
    wanted = reshaped(wanted, (wanted.voters - ending) | rising, gone=change.remove)
    if not wanted.voters:
        raise _refused("nobody would be left to vote")
    staying = (wanted.observers - change.promote) | (change.demote & wanted.learners)
    return _preferring(replace(wanted, observers=staying), change.prefer)


def _preferring(wanted: Configuration, prefer: str | None) -> Configuration:
    if prefer is None:
        return wanted
    if prefer and prefer not in wanted.voters:
        voters = ", ".join(sorted(wanted.voters))
        raise _refused(f"{prefer} doesn't vote, and only who votes can lead: {voters}")
    return replace(wanted, preferred=NodeId(prefer) if prefer else None)


def is_so(present: Configuration, change: Change) -> bool:
    """Whether there is nothing to do for `change`, or no more than comes by itself."""
    try:
        return not present.voters_outgoing and planned(present, change) == present
    except BrokerError:
        return False


def check_alone(present: Configuration, change: Change, *, is_committed: bool) -> None:
    """Returns if no other change is under way. Who is being taken in may be given up.

    Args:
        is_committed: whether `present`'s entry is.

    Raises:
        BrokerError: BUSY.
    """
    if present.voters_outgoing:
        now, then = (", ".join(sorted(each)) for each in (present.voters_outgoing, present.voters))
        raise _busy(f"another change is under way, from {now} as voters to {then}: after that")
    if not is_committed:
        raise _busy(f"another change is under way, to {_named(present)}: after that")
    if _only_moves(present, change):
        return  # nobody comes, goes or votes otherwise by that
    taken_in = present.learners - present.observers
    given_up = change.remove | change.demote
    if others := sorted(taken_in - given_up):
        # One after the other: what is acknowledged is on a majority of all who are to vote.
        raise _busy(f"{', '.join(others)} is being taken in and doesn't vote yet: after that")


def _only_moves(present: Configuration, change: Change) -> bool:
    """Whether all of it is that members are found elsewhere."""
    others = change.remove or change.promote or change.demote or change.prefer is not None
    return not others and {each.node for each in change.add} <= present.members()


def check_enough(wanted: Configuration, answering: Collection[NodeId]) -> None:
    """Returns if those that answer, and take entries, could commit under `wanted`: a change that
    nobody can commit would be in the way of everything.

    Raises:
        BrokerError: BUSY.
    """
    if not has_quorum(wanted, answering):
        voters = sorted(wanted.voters)
        silent = sorted((wanted.voters | wanted.voters_outgoing) - set(answering))
        raise _busy(
            f"of {', '.join(voters)} as voters no majority would answer and take entries: "
            f"{', '.join(silent)} doesn't now"
        )


def _check_named(present: Configuration, change: Change) -> None:
    members = present.members()
    strangers = (change.remove | change.promote | change.demote) - members
    if strangers:
        names = ", ".join(sorted(strangers))
        raise _refused(f"{names} is no member: {', '.join(sorted(members))} are")
    added = [each.node for each in change.add]
    groups = (frozenset(added), change.remove, change.promote, change.demote)
    if sum(map(len, groups)) != len(frozenset().union(*groups)) or len(set(added)) < len(added):
        raise _refused("somebody is named twice")


def _added(present: Configuration, new: NewMember) -> Configuration:
    named = present.disk_of(new.node)
    if new.node in present.members() and named != new.disk:
        raise _refused(
            f"{new.node} is a member, on disk {named.hex()}: `dledger member replace {new.node}` "
            "if that is lost"
        )
    check_not_given_up(present, new.node, new.disk)
    holders = [node for node, disk in present.disks if disk == new.disk and node != new.node]
    if len(new.disk) != DISK_ID_BYTES or holders:
        whose = f"that of {holders[0]}" if holders else "none"
        raise _refused(f"disk {new.disk.hex() or 'nothing'} of {new.node} is {whose}")
    if not is_name(new.node):
        raise _refused(f"a member has {NAME_RULE}, and {_shown(new.node)} is none")
    if not _is_address(new.address):
        raise _refused(f"{new.node} is found at host:port, and {_shown(new.address)} is none")
    plain = plain_address(new.address)
    at = [
        node
        for node, where in present.addresses
        if node != new.node and _is_address(where) and plain_address(where) == plain
    ]
    if at:
        raise _refused(f"{new.address} is the address of {at[0]}")
    if new.node in present.members():
        if new.observes != (new.node in present.observers):
            what = "observes" if new.node in present.observers else "votes, or is about to"
            raise _refused(f"{new.node} is a member and {what}: promote or demote it")
        moved = {**dict(present.addresses), new.node: new.address}
        return replace(present, addresses=tuple(sorted(moved.items())))
    return with_learner(present, new.node, new.disk, new.address, observes=new.observes)


def _is_address(address: str) -> bool:
    try:
        split_address(address)
    except ValueError:
        return False
    return True


def _shown(word: str) -> str:
    """Enough of what was given for who gave it; it may be anything."""
    return repr(word[:MAX_SHOWN])


def _named(configuration: Configuration) -> str:
    voters, learners = (
        ", ".join(sorted(each)) for each in (configuration.voters, configuration.learners)
    )
    return f"{voters} as voters" + (f" and {learners} as learners" if learners else "")


def _refused(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_ARGUMENT, reason)


def _busy(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.BUSY, reason)

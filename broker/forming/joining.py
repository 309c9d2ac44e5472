"""Members come, go and change what they are: those that come are looked at, the group's log names
them, and they are told to join (ADR 41).

It keeps nothing: whoever repeats it asks again and finishes what was begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from broker.forming.errors import (
    FormationRefused,
    MemberUnreachable,
    NotNewcomers,
    RefusedForNow,
    Superseded,
)
from broker.forming.planning import FORMED, JOINING, UNFORMED, Description, check_program
from dledger.addresses import split_address
from dledger.naming import NAME_RULE, is_name
from dledger.wire import cluster_pb2 as cpb

POLL_S: Final = 0.1
LEADER_WITHIN_S: Final = 3.0  # elections take less


class JoiningCalls(Protocol):
    """The nodes, by address. Each raises MemberUnreachable or FormationRefused."""

    async def describe(self, address: str) -> Description: ...
    async def join(self, address: str, disk_id: bytes) -> None: ...
    async def held_log(self, address: str) -> cpb.HeldLog | None: ...
    async def level(self, address: str) -> int: ...
    async def change_members(
        self, address: str, request: cpb.ChangeMembersRequest
    ) -> cpb.Members: ...
    async def list_members(self, address: str) -> cpb.Members: ...


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A node that stands by. `observes`: it is to learn and not to vote."""

    node_id: str
    address: str
    observes: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to become of the members: all of it in one change."""

    add: tuple[Newcomer, ...] = ()
    remove: tuple[str, ...] = ()
    promote: tuple[str, ...] = ()
    demote: tuple[str, ...] = ()
    prefer: str | None = None  # empty: nobody; None: as it is


def _tells_nobody(_: str) -> None: ...


async def change(
    calls: JoiningCalls,
    leader: str,
    wish: Wish,
    wait_s: float,
    tell: Callable[[str], None] = _tells_nobody,
) -> tuple[cpb.Members, bool]:
    """The members after `wish`, and whether all of it is so: who is to vote has caught up.

    Args:
        leader: its address.
        wait_s: how long to wait for that; the leader sees to it in any case.
        tell: is told who is to go and is no member, where all of it is so already.

    Raises:
        FormationRefused: it can't be; the text says why.
        MemberUnreachable: a node doesn't answer; asking again goes on.
        Superseded: another administrator has asked for something else since.
    """
    host = await calls.describe(leader)
    found = [(each, await calls.describe(each.address)) for each in wish.add]
    for newcomer, itself in found:
        _check(newcomer, itself, host)
        check_program(itself, await calls.level(leader))
    request = await _request_of(calls, wish, found)
    if wish.remove and (gone := await _gone_already(calls, leader, wish)) is not None:
        tell(_told_of_gone(wish, gone))
        return gone, True
    members = await calls.change_members(leader, request)
    for newcomer, itself in found:
        if itself.state == UNFORMED:
            await calls.join(newcomer.address, itself.disk_id)
    members = await _until_fulfilled(calls, leader, wish, members, wait_s)
    if not is_fulfilled(wish, members):
        return members, False
    return await _as_its_leader_sees_them(calls, members), True


async def _request_of(
    calls: JoiningCalls, wish: Wish, found: Sequence[tuple[Newcomer, Description]]
) -> cpb.ChangeMembersRequest:
    """What the leader is asked for. `found`: who is to come, as it says of itself."""
    return cpb.ChangeMembersRequest(
        add=[
            cpb.NewMember(
                node_id=newcomer.node_id,
                disk_id=itself.disk_id,
                address=newcomer.address,
                observes=newcomer.observes,
                # The leader compares it with its own: names don't tell groups apart.
                held=None if itself.state == UNFORMED else await calls.held_log(newcomer.address),
            )
            for newcomer, itself in found
        ],
        remove=wish.remove,
        promote=wish.promote,
        demote=wish.demote,
        prefer=wish.prefer,
    )


async def _until_fulfilled(
    calls: JoiningCalls, leader: str, wish: Wish, taken: cpb.Members, wait_s: float
) -> cpb.Members:
    """The members once they are as wished, or as they are when that time is over. `taken`: as the
    leader has taken the wish.

    Raises:
        Superseded: another administrator has asked for something else since.
    """
    loop = asyncio.get_running_loop()
    deadline, asked, members = loop.time() + wait_s, leader, taken
    while not is_fulfilled(wish, members) and loop.time() < deadline:
        await asyncio.sleep(POLL_S)
        try:
            heard = await calls.list_members(asked)
        except (MemberUnreachable, FormationRefused):
            # It may have been taken out itself, or stopped; whoever leads then finishes it.
            asked = next_address(members, asked)
            continue
        if heard.configuration_index >= members.configuration_index:
            members = heard
        # Also of what was taken: it may be another one's by the time that it was answered.
        _check_not_undone(wish, members)
    return members


async def _gone_already(calls: JoiningCalls, leader: str, wish: Wish) -> cpb.Members | None:
    """The members, if who is to go is none and the rest is as wished; else None: half of a wish is
    nobody's, and the leader refuses all of it by the name.

    The leader refuses names that are nobody's. Who let a member go, and wasn't answered as
    leadership moved with that, asks again, and would hear that it did not happen.

    Raises:
        RefusedForNow: it is so by an entry that may still be lost.
    """
    members = await calls.list_members(leader)
    if {each.node_id for each in members.members}.intersection(wish.remove):
        return None
    if not members.committed:
        raise RefusedForNow(
            f"who the members are is in entry {members.configuration_index}, which isn't committed"
        )
    if not is_fulfilled(wish, members):
        return None
    await _check_confirmed(calls, members)
    return members


async def _check_confirmed(calls: JoiningCalls, members: cpb.Members) -> None:
    """Returns if a majority of the voters knows of no other members: who leads may have been cut
    off, and those who go on without it may have taken in whom it doesn't know.

    Raises:
        RefusedForNow: they know of others, or don't answer.
    """
    voters = [each for each in members.members if each.role == "voter"]
    heard = await asyncio.gather(
        *(calls.list_members(each.address) for each in voters if each.address),
        return_exceptions=True,
    )
    index = members.configuration_index
    # Of those of which the log doesn't say where they are, who leads knows whether they follow.
    agreeing = sum(not v.address and v.connected and v.match_index >= index for v in voters)
    for each in heard:
        if isinstance(each, MemberUnreachable | FormationRefused):
            continue
        if isinstance(each, BaseException):
            raise each
        if each.configuration_index > index:
            raise RefusedForNow("a voter knows of newer members than who leads")
        agreeing += each.configuration_index == index
    if 2 * agreeing <= len(voters):
        raise RefusedForNow(
            f"{agreeing} of {len(voters)} voters say who the members are: no majority"
        )


def _told_of_gone(wish: Wish, members: cpb.Members) -> str:
    present = ", ".join(sorted(each.node_id for each in members.members))
    return f"{', '.join(wish.remove)} is no member: {present} are"


async def _as_its_leader_sees_them(calls: JoiningCalls, members: cpb.Members) -> cpb.Members:
    """Who led may be a member no more, and then knows of nobody's connection: the next leader
    does. For a while; then as they are known."""
    loop = asyncio.get_running_loop()
    deadline, asked = loop.time() + LEADER_WITHIN_S, ""
    while not is_of_leader(members) and loop.time() < deadline:
        asked = next_address(members, asked)
        try:
            heard = await calls.list_members(asked)
        except (MemberUnreachable, FormationRefused):
            continue
        finally:
            await asyncio.sleep(POLL_S)
        if heard.configuration_index >= members.configuration_index and is_of_leader(heard):
            return heard
    return members


def is_of_leader(members: cpb.Members) -> bool:
    """Whether it knows how far the others are: only a leader does."""
    known = sum(each.match_index > 0 for each in members.members)
    return known > 1 or len(members.members) == known


def next_address(members: cpb.Members, asked: str) -> str:
    """Whom to ask instead: each member in turn."""
    known = [each.address for each in members.members if each.address]
    if not known:
        return asked
    return known[(known.index(asked) + 1) % len(known) if asked in known else 0]


def is_fulfilled(wish: Wish, members: cpb.Members) -> bool:
    """Whether the members are as wished, and nothing is under way."""
    roles = {each.node_id: each.role for each in members.members}
    wanted = {each.node_id: "observer" if each.observes else "voter" for each in wish.add}
    wanted |= dict.fromkeys(wish.promote, "voter") | dict.fromkeys(wish.demote, "observer")
    return (
        members.committed
        and not members.joint
        and wish.prefer in (None, members.preferred)
        and all(roles.get(node_id) == role for node_id, role in wanted.items())
        and not any(node_id in roles for node_id in wish.remove)
    )


def _check_not_undone(wish: Wish, members: cpb.Members) -> None:
    """Returns unless what is wished for won't come by itself: a learner becomes a voter, a joint
    configuration is left, and nothing else changes without being asked for.

    Raises:
        Superseded: somebody has asked for something else.
    """
    if members.joint or not members.committed:
        return
    roles = {each.node_id: each.role for each in members.members}
    wanted: dict[str, tuple[str, ...]] = dict.fromkeys(wish.promote, ("voter", "learner"))
    for name in wish.demote:
        wanted[name] = ("observer",)
    for each in wish.add:
        wanted[each.node_id] = ("observer",) if each.observes else ("voter", "learner")
    undone = [name for name, fitting in wanted.items() if roles.get(name) not in fitting]
    undone += [name for name in wish.remove if name in roles]
    is_preferred = wish.prefer in (None, members.preferred)
    if undone or not is_preferred:
        told = [f"{name} is {roles.get(name, 'no member')}" for name in sorted(undone)]
        told += [] if is_preferred else [f"{members.preferred or 'nobody'} is preferred"]
        now = ", ".join(told)
        raise Superseded(
            f"another administrator has changed it since, in entry {members.configuration_index}: "
            f"{now}"
        )


def newcomers(pairs: Iterable[str], *, observe: bool) -> tuple[Newcomer, ...]:
    """From what was typed, `ID ADDRESS` each.

    Raises:
        NotNewcomers: they don't come in pairs, or one is none, or there twice.
    """
    words = list(pairs)
    if not words or len(words) % 2:
        raise NotNewcomers("each new member is given as ID ADDRESS")
    found: dict[str, Newcomer] = {}
    for node_id, address in zip(words[::2], words[1::2], strict=True):
        if not is_name(node_id):
            raise NotNewcomers(f"a member has {NAME_RULE}, and {node_id!r} is none")
        if node_id in found:
            raise NotNewcomers(f"{node_id} is named twice")
        try:
            split_address(address)
        except ValueError as error:
            raise NotNewcomers(f"{node_id}: {error}") from error
        found[node_id] = Newcomer(node_id, address, observe)
    return tuple(found.values())


def _check(newcomer: Newcomer, itself: Description, host: Description) -> None:
    """What is at the address may become a member."""
    name = newcomer.node_id
    if itself.node_id != name:
        raise FormationRefused(f"at {newcomer.address} there is {itself.node_id}, not {name}")
    if (itself.broker_group, itself.segment_size_bytes) != (
        host.broker_group,
        host.segment_size_bytes,
    ):
        raise FormationRefused(f"{name} is of another broker group or segment size")
    known_as = dict(itself.peers).get(name)
    if known_as != newcomer.address:
        raise FormationRefused(f"{name} is known to itself at {known_as}: give that address")
    if itself.state == UNFORMED and itself.founding is not None:
        raise FormationRefused(f"{name} is prepared for a founding: empty its directory")
    if itself.state not in (UNFORMED, JOINING, FORMED):
        raise FormationRefused(f"the directory of {name} is {itself.state}, not unformed")

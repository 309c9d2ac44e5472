"""A lost disk is replaced: the new one is looked at, named in the group's log, and told to join.

It keeps nothing: whoever repeats it asks again and finishes what was begun. Who waits only looks:
to name the disk at each look would undo what another administrator has named since, and that one's
look this, for as long as both wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from broker.forming.errors import FormationRefused, MemberUnreachable, Superseded
from broker.forming.joining import is_of_leader, next_address
from broker.forming.planning import FORMED, JOINING, UNFORMED, Description, check_program
from dledger.wire import cluster_pb2 as cpb

CATCH_UP_POLL_S: Final = 0.1


class ReplacingCalls(Protocol):
    """The nodes, by address. Each raises MemberUnreachable or FormationRefused."""

    async def describe(self, address: str) -> Description: ...
    async def join(self, address: str, disk_id: bytes) -> None: ...
    async def held_log(self, address: str) -> cpb.HeldLog | None: ...
    async def level(self, address: str) -> int: ...
    async def replace_disk(
        self, address: str, node_id: str, disk_id: bytes, held: cpb.HeldLog | None = None
    ) -> cpb.ReplaceDiskResponse: ...
    async def list_members(self, address: str) -> cpb.Members: ...


@dataclass(frozen=True, slots=True)
class Replacement:
    """Who is to be taken in, and by whom. Addresses are those in the nodes' own tables."""

    node_id: str
    address: str
    leader: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """A disk that the group knows now. `votes`: it has caught up, and counts. `observes`: it is an
    observer's, which never does by itself."""

    node_id: str
    disk_id: bytes
    votes: bool
    observes: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it is what the lost one was."""
        return self.votes or self.observes


async def replace(calls: ReplacingCalls, wanted: Replacement, wait_s: float) -> Replaced:
    """The group has the disk that is at the member's address in the place of the lost one.

    Args:
        wait_s: how long to wait until it votes, unless it observes; the leader sees to that in
            any case.

    Raises:
        FormationRefused: it can't be; the text says why.
        MemberUnreachable: a node doesn't answer; asking again goes on.
        Superseded: another administrator has taken the member out meanwhile, or has named another
            disk.
    """
    leader = await calls.describe(wanted.leader)
    new = await calls.describe(wanted.address)
    _check(wanted.node_id, new, leader)
    check_program(new, await calls.level(wanted.leader))
    held = None if new.state == UNFORMED else await calls.held_log(wanted.address)
    told = await calls.replace_disk(wanted.leader, wanted.node_id, new.disk_id, held)
    if new.state == UNFORMED:
        await calls.join(wanted.address, new.disk_id)
    named = Replaced(wanted.node_id, new.disk_id, told.votes, told.observes)
    return await _until_done(calls, wanted.leader, named, wait_s)


async def _until_done(
    calls: ReplacingCalls, leader: str, named: Replaced, wait_s: float
) -> Replaced:
    """What has become of the disk that was named, once it is done or that time is over.

    Raises:
        Superseded: nothing becomes of it any more.
    """
    loop = asyncio.get_running_loop()
    deadline, asked, members = loop.time() + wait_s, leader, cpb.Members()
    while not named.is_done and loop.time() < deadline:
        await asyncio.sleep(CATCH_UP_POLL_S)
        try:
            heard = await calls.list_members(asked)
        except (MemberUnreachable, FormationRefused):
            if not members.members:
                break  # What others say may be older than the disk: it is to be named again.
            asked = next_address(members, asked)
            continue
        if heard.configuration_index >= members.configuration_index:
            members = heard
        if not is_of_leader(heard):
            asked = next_address(members, asked)  # Another leads by now, and finishes it.
        if members.committed:
            named = _as_listed(named, members)
    return named


def _as_listed(named: Replaced, members: cpb.Members) -> Replaced:
    """What the disk is by now.

    Raises:
        Superseded: the group knows the member on another one, or not at all.
    """
    found = next((each for each in members.members if each.node_id == named.node_id), None)
    if found is None:
        raise Superseded(
            f"{named.node_id} was taken in, and isn't a member any more, by entry "
            f"{members.configuration_index}: another administrator has taken it out"
        )
    if found.disk_id != named.disk_id:
        raise Superseded(
            f"another administrator has named disk {found.disk_id.hex()} for {named.node_id} "
            f"since, in entry {members.configuration_index}; {named.disk_id.hex()} counts no more"
        )
    votes, observes = found.role == "voter", found.role == "observer"
    return Replaced(named.node_id, named.disk_id, votes, observes)


def _check(node_id: str, new: Description, leader: Description) -> None:
    """What is at the address may become the member's disk."""
    if new.node_id != node_id:
        raise FormationRefused(f"at the address of {node_id} there is {new.node_id}")
    if (new.broker_group, new.segment_size_bytes) != (
        leader.broker_group,
        leader.segment_size_bytes,
    ):
        raise FormationRefused(f"{node_id} is of another broker group or segment size")
    if new.state == UNFORMED and new.founding is not None:
        raise FormationRefused(f"{node_id} is prepared for a founding: empty its directory")
    if new.state not in (UNFORMED, JOINING, FORMED):
        raise FormationRefused(f"the directory of {node_id} is {new.state}, not unformed")

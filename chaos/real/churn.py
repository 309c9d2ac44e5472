"""The nemeses of membership: who leaves and comes back, who votes no more and then votes again.

They do what `dledger member` does, again after each change of the leader. A member that has left is
killed, and comes back on an empty directory, as docs/operations.md asks for it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.forming.calls import GrpcCalls
from broker.forming.errors import FormationRefused, MemberUnreachable
from broker.forming.joining import Newcomer, Wish, change, is_fulfilled
from broker.local_group import LocalGroupError
from chaos.real.arena import Arena
from chaos.real.blow import Blow
from chaos.real.network import client_address
from chaos.real.patience import Patience
from chaos.real.processes import kill

CHANGE_WAIT_S: Final = 5.0  # until it is in force, before the leader is looked for again
POLL_S: Final = 0.05


async def leave(blow: Blow) -> str:
    """The victims are members no more, and don't run."""
    for victim in blow.victims:
        blow.arena.meant_to_be_down.add(victim)  # it may end when it hears of it
        await _changed(blow.arena, Wish(remove=(victim,)))
    await kill(blow)
    return ""


async def come_back(blow: Blow) -> str:
    """The victims are voters on empty directories."""
    for victim in blow.victims:
        blow.arena.empty(victim)
        await blow.arena.start(victim)
        at = client_address(blow.arena.group.node(victim).address)
        await _changed(blow.arena, Wish(add=(Newcomer(victim, at),)))
    return f"{', '.join(blow.victims)} came back"


async def demote(blow: Blow) -> str:
    """The victims learn, and don't vote."""
    await _changed(blow.arena, Wish(demote=blow.victims))
    return ""


async def promote(blow: Blow) -> str:
    """The victims vote again."""
    await _changed(blow.arena, Wish(promote=blow.victims))
    return ""


async def _changed(arena: Arena, wish: Wish) -> None:
    """The members are as wished.

    Raises:
        LocalGroupError: they aren't, though there was time.
    """
    patience, calls, reason = Patience(), GrpcCalls(), "no node leads"
    while True:
        status = await arena.group.status()
        reached = max((view.commit_index or 0 for view in status.nodes), default=0)
        if patience.is_over(reached):
            raise LocalGroupError(f"{wish} doesn't come into force: {reason}")
        if status.leader is not None:
            leader = arena.group.node(status.leader).address
            try:
                _, is_done = await change(calls, leader, wish, CHANGE_WAIT_S)
            except (FormationRefused, MemberUnreachable) as error:
                # What was asked for before may be so, and can't be asked for again.
                reason, is_done = str(error), await _is_so(calls, leader, wish)
            if is_done:
                return
        await asyncio.sleep(POLL_S)


async def _is_so(calls: GrpcCalls, leader: str, wish: Wish) -> bool:
    try:
        return is_fulfilled(wish, await calls.list_members(leader))
    except (FormationRefused, MemberUnreachable):
        return False

"""Handing leadership over, for `dledger group transfer`."""

from __future__ import annotations

import asyncio

from broker.local_group import group_status
from dledger.client import InvalidArgument, ServerError
from dledger.outcome import Outcome
from dledger.terminal.tls import chosen_material
from dledger_cli.group_options import connect

# How long, and how often, it is looked whether who leads then serves.
SERVES_WITHIN_S = 10.0
LOOKS_EVERY_S = 0.05


async def transferred(addresses: list[str], target: str) -> tuple[str, bool]:
    """Who leads then, and whether it serves: who won an election serves once an entry of its term
    is committed and all before it is applied."""
    leader = await _handed_over(addresses, target)
    until = asyncio.get_running_loop().time() + SERVES_WITHIN_S
    while not (serves := (await group_status(addresses, chosen_material())).serves):
        if asyncio.get_running_loop().time() >= until:
            break
        await asyncio.sleep(LOOKS_EVERY_S)
    return leader, serves


async def _handed_over(addresses: list[str], target: str) -> str:
    from broker.forming.calls import GrpcCalls
    from broker.forming.errors import FormationRefused

    async with connect(addresses) as client:
        try:
            return (await client.transfer_leadership(target or None)).node_id
        except InvalidArgument as error:
            # Typed rightly: it is the group in which that node doesn't vote.
            raise FormationRefused(error.message) from error
        except ServerError as error:
            if error.outcome is not Outcome.DID_NOT_HAPPEN:
                raise
    # Clients are told *unimplemented* where administration has an address of its own.
    tls = chosen_material()
    leader = (await group_status(addresses, tls)).leading()
    return await GrpcCalls(tls).transfer_leadership(leader.admin_address, target)

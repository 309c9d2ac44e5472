"""Handing leadership over, for `dledger group transfer`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from broker.local_group import group_status
from dledger.client import DeadlineExceeded, InvalidArgument, ServerError, TransferFailed
from dledger.outcome import Outcome
from dledger.terminal.tls import chosen_material
from dledger_cli.group_options import connect

# How long, and how often, it is looked whether who leads then serves.
SERVES_WITHIN_S = 10.0
LOOKS_EVERY_S = 0.05
_ASK = "ask dledger group status"


@dataclass(frozen=True, slots=True)
class Transferred:
    """How it ended. `elected`: to whom leadership was handed over; `leader`: who leads by now, None
    if nobody says so; `serves`: it takes messages."""

    elected: str
    leader: str | None
    serves: bool

    @property
    def complaint(self) -> str:
        """What isn't as it was asked for, in words; empty if all is."""
        if self.leader is None:
            return f"{self.elected} was elected, and nobody leads by now: {_ASK}"
        if self.leader != self.elected:
            more = "" if self.serves else f", which doesn't take messages yet: {_ASK}"
            return f"{self.elected} was elected, and by now it is {self.leader} that leads{more}"
        if not self.serves:
            return f"{self.leader} leads, and doesn't take messages yet: {_ASK}"
        return ""


async def transferred(addresses: list[str], target: str) -> Transferred:
    """Leadership was handed over, and somebody serves, or too much time has passed. Who won an
    election serves once an entry of its term is committed and all before it is applied; until then
    another one may win the next."""
    elected = await _handed_over(addresses, target)
    until = asyncio.get_running_loop().time() + SERVES_WITHIN_S
    while not (status := await group_status(addresses, chosen_material())).serves:
        if asyncio.get_running_loop().time() >= until:
            break
        await asyncio.sleep(LOOKS_EVERY_S)
    return Transferred(elected, status.leader, status.serves)


async def _handed_over(addresses: list[str], target: str) -> str:
    from broker.forming.calls import GrpcCalls
    from broker.forming.errors import FormationRefused

    async with connect(addresses) as client:
        try:
            return (await client.transfer_leadership(target or None)).node_id
        except (InvalidArgument, TransferFailed) as error:
            # Typed rightly: it is the group in which that node doesn't vote, or can't lead now.
            raise FormationRefused(error.message) from error
        except DeadlineExceeded as error:
            # Whoever was told to stand for election may have won it all the same.
            if target and (await group_status(addresses, chosen_material())).leader == target:
                return target
            raise FormationRefused(error.message) from error
        except ServerError as error:
            if error.outcome is not Outcome.DID_NOT_HAPPEN:
                raise
    # Clients are told *unimplemented* where administration has an address of its own.
    tls = chosen_material()
    leader = (await group_status(addresses, tls)).leading()
    return await GrpcCalls(tls).transfer_leadership(leader.admin_address, target)

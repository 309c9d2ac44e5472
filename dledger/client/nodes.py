"""The nodes of a broker group: who leads, what each says of itself, and handing leadership over.

The work behind `Client.leader`, `status` and `transfer_leadership`. A node that doesn't answer is
told of as not alive; it is no error of the call.
"""

from __future__ import annotations

import asyncio

from dledger.client import connection as rpc
from dledger.client.arguments import text
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import WhenDeposed
from dledger.client.errors import ClientError
from dledger.client.results import LeaderInfo, NodeState, node_state
from dledger.wire import cluster_pb2 as cpb


async def leader(broker_group: BrokerGroup, total_s: float) -> LeaderInfo:
    """See `Client.leader`."""
    deadline = asyncio.get_running_loop().time() + total_s
    member, term = await broker_group.serving_leader(deadline)
    return LeaderInfo(member.node_id, member.address, term)


async def states(broker_group: BrokerGroup, timeout_s: float) -> list[NodeState]:
    """See `Client.status`."""
    found = await asyncio.gather(
        *(
            _state(broker_group, node_id, address, timeout_s)
            for address, node_id in sorted(broker_group.addresses.items())
        )
    )
    # Members named by a node that was heard only now are missing from the first round.
    known = {state.address for state in found}
    late = [
        await _state(broker_group, node_id, address, timeout_s)
        for address, node_id in sorted(broker_group.addresses.items())
        if address not in known and node_id not in {state.node_id for state in found}
    ]
    return sorted([*found, *late], key=lambda state: (state.node_id, state.address))


async def _state(
    broker_group: BrokerGroup, node_id: str, address: str, timeout_s: float
) -> NodeState:
    link = broker_group.link(address)
    try:
        status = await link.call(
            rpc.GET_STATUS, cpb.GetStatusRequest(), timeout_s, WhenDeposed.AWAIT
        )
    except ClientError:
        return NodeState(node_id=node_id, address=address, alive=False)
    return node_state(address, status)


async def hand_over(
    broker_group: BrokerGroup, target: str | None, deadline_s: float | None
) -> LeaderInfo:
    """See `Client.transfer_leadership`."""
    answer = await broker_group.call(
        rpc.TRANSFER_LEADERSHIP,
        cpb.TransferLeadershipRequest(target=text("target", target or "")),
        Effect.ONCE,
        deadline_s=deadline_s,
        when_deposed=WhenDeposed.AWAIT,
    )
    known = broker_group.leader()
    return LeaderInfo(
        answer.leader.node_id, answer.leader.address, known[1] if known is not None else 0
    )

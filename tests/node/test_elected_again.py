"""A leader that was deposed and is elected again, for what was let in before.

Whoever waits for an entry is known by its index. A Send may wait for its turn while leadership is
lost and won: what it would propose before all is applied might be truncated, and its index be
another leader's entry.
"""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import BatchAnswer
from dledger.core.types import NodeId, Role
from dledger.wire import commands_pb2 as kpb
from tests.broker.leader import batch
from tests.node.world import World, WorldNode

N1, N2 = NodeId("n1"), NodeId("n2")


def create(name: str) -> kpb.Command:
    return kpb.Command(create_topic=kpb.CreateTopicCommand(name=name, queue_count=1))


def elected_and_cut_off(world: World) -> WorldNode:
    """n1, which has served, lost leadership and won it again, and reaches nobody since: what it
    appends now isn't committed."""
    first = world.lead(N1)
    with first.running():
        first.replica.appender.submit(create("t"))
    world.settle()
    second, node = world.lead(N2), world.nodes[N1]
    with second.running():
        second.driver.transfer_leadership(N1)
    while node.driver.core.role is not Role.LEADER:
        world.turn()
        for each in world.nodes.values():
            each.take_turns()
            each.sync()
        if world.wires:
            world.deliver()
    world.isolate(N1)
    assert not node.replica.leadership.serving
    return node


def another_leads(world: World, node: WorldNode) -> None:
    """The others go on without it, with entries of their own at its indexes; then it is back."""
    last = node.log.last_index
    for _ in range(400):
        world.tick()
        leader = world.ready_leader() or node
        if leader is not node and leader.replica.leadership.serving:
            break
    while leader.log.last_index <= last + 1:
        with leader.running():
            leader.replica.appender.submit(create(f"other{leader.log.last_index}"))
        world.settle()
    world.cut.clear()
    for _ in range(400):
        world.tick()
        if node.replica.machine.applied_index >= leader.log.last_index:
            return
    raise AssertionError("it doesn't follow")


@pytest.mark.parametrize("producer", [b"", b"p" * 16])
def test_batch_of_before_is_not_stored_where_another_leaders_entry_is(producer: bytes) -> None:
    world = World()
    node = elected_and_cut_off(world)

    async def send() -> asyncio.Future[list[BatchAnswer]]:
        return node.replica.appender.send(producer, [batch(0, b"precious")])

    answer = world.run(node, send())
    another_leads(world, node)
    (found,) = answer.result()
    assert isinstance(found, Failure)
    assert found.code is ErrorCode.NOT_READY, "nothing happened, and it isn't judged either"


def test_command_of_before_has_not_taken_effect_where_anothers_has() -> None:
    world = World()
    node = elected_and_cut_off(world)
    last = node.log.last_index
    with node.running(), pytest.raises(BrokerError) as refused:
        node.replica.appender.submit(create("mine"))
    assert refused.value.code is ErrorCode.NOT_READY
    assert node.log.last_index == last
    another_leads(world, node)
    assert "mine" not in node.replica.machine.topics

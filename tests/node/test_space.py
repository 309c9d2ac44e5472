"""A driver tells its core when its disk is short of space, and a better node leads."""

from __future__ import annotations

import pytest

from dledger.core.types import EntryKind, HandOverBegun, RaftOptions
from dledger.driver import NOOPS_HEAD_ROOM, LogBehind, LogFull
from tests.node.world import MemoryLog, World, WorldNode

INTERVAL = 100  # ticks: RaftOptions.hand_over_interval_ticks
AMPLE = (8 << 20) + NOOPS_HEAD_ROOM * 56  # what may be under way, and the room of later no-ops
LARGE = 10 << 20


def leader_of_a_while(world: World) -> WorldNode:
    """A leader that has led long enough to hand over of itself."""
    leader = world.elect()
    for _ in range(INTERVAL):
        world.tick()
        world.settle()
    return leader


def propose(node: WorldNode, size: int) -> None:
    node.driver.propose(EntryKind.COMMAND, 0, bytes(size), None)


def limit(log: MemoryLog, free_bytes: int) -> None:
    """The disk takes so many more bytes of the log."""
    log.capacity_bytes = sum(map(len, log.frames)) + free_bytes


def leading(world: World) -> WorldNode | None:
    ready = (node for node in world.nodes.values() if node.up and node.driver.core.is_ready_leader)
    return max(ready, key=lambda node: node.driver.core.term, default=None)


def test_leadership_moves_before_a_proposal_is_refused() -> None:
    """The disk says so while there is still room for some more appends."""
    world = World()
    full = leader_of_a_while(world)
    limit(full.log, AMPLE + (64 << 10))
    taken = 0
    for _ in range(400):
        world.tick()
        world.settle()
        leader = leading(world)
        if leader is not None and leader.driver.core.statistics().transfer_target is None:
            propose(leader, 4 << 10)  # never LogFull
            taken += 1
    world.settle()
    assert leading(world) not in (None, full)
    assert taken > 350
    applied = leader_bodies(world)
    assert len(applied) == taken


def leader_bodies(world: World) -> list[bytes]:
    leader = leading(world)
    assert leader is not None
    return leader.record.bodies()


def test_a_refused_proposal_makes_a_leader_short_of_space() -> None:
    """A large message finds no room although a small one would: who has room leads."""
    world = World()
    full = leader_of_a_while(world)
    limit(full.log, AMPLE + (1 << 20))
    assert not full.driver.statistics().is_short_of_space
    with pytest.raises(LogFull):
        propose(full, LARGE)
    for _ in range(30):
        world.tick()
        world.settle()
    leader = leading(world)
    assert leader not in (None, full)
    assert leader is not None
    propose(leader, LARGE)
    world.settle()
    assert max(map(len, leader.record.bodies())) == LARGE


def test_space_that_comes_back_is_noticed() -> None:
    """What was refused once is forgotten as soon as it would fit."""
    world = World(count=1)
    leader = world.elect()
    limit(leader.log, AMPLE + (1 << 20))
    with pytest.raises(LogFull):
        propose(leader, LARGE)
    world.tick()
    assert leader.driver.statistics().is_short_of_space
    limit(leader.log, 2 * LARGE)
    world.tick()
    limit(leader.log, AMPLE + (1 << 20))
    assert not leader.driver.statistics().is_short_of_space


def test_leader_that_cannot_apply_hands_over() -> None:
    """Its log has room, and what is derived from it hasn't: nobody would be answered."""
    world = World()
    full = leader_of_a_while(world)
    full.record.full_from = full.driver.applied_index + 1
    propose(full, 10)
    for _ in range(30):
        world.tick()
        world.settle()
    leader = leading(world)
    assert leader not in (None, full)
    assert leader_bodies(world) == [bytes(10)]
    assert full.record.bodies() == []


def test_what_waits_for_a_stalled_disk_is_bounded() -> None:
    """The followers commit without it, so the bound on uncommitted bytes never bites."""
    limit_bytes = 1 << 20
    world = World(options=RaftOptions(max_uncommitted_bytes=limit_bytes))
    leader = world.elect()
    followers = [node for node in world.nodes.values() if node is not leader]
    for _ in range(100):
        if leader.log.unwritten_bytes > limit_bytes:
            break
        propose(leader, 100 << 10)
        world.settle(flush=False)
        for node in followers:
            node.log.flush()
        world.settle(flush=False)
        assert leader.driver.core.statistics().uncommitted_bytes == 0
    with pytest.raises(LogBehind):
        propose(leader, 10)
    world.settle()
    propose(leader, 10)


def test_follower_says_that_it_has_no_room() -> None:
    """Its heartbeat answers carry it over the wire, so no leader hands over to it."""
    world = World(count=5)
    full = leader_of_a_while(world)
    first = next(node for node in world.nodes.values() if node is not full)
    for node in (full, first):
        limit(node.log, 0)
    for _ in range(30):
        world.tick()
        world.settle()
    begun = [event for event in full.record.events if isinstance(event, HandOverBegun)]
    assert len(begun) == 1
    assert begun[0].target != first.name, "of equals it would have been the first"

"""A driver tells its core when its disk is short of space, and a better node leads."""

from __future__ import annotations

import pytest

from dledger.core.types import HandOverBegun
from dledger.driver import LogBehind, LogFull
from dledger.reading.entry import HEADER_SIZE
from dledger.room import NOOPS_HEAD_ROOM
from tests.broker.leader import batch
from tests.node.world import Kind, World, WorldNode

INTERVAL = 100  # ticks: RaftOptions.hand_over_interval_ticks
SEGMENT_RETRY_TICKS = 101  # from finding no space for a segment to trying again
MIB = 1 << 20
AMPLE = 8 * MIB + NOOPS_HEAD_ROOM * HEADER_SIZE  # what may be under way, and later no-ops' room
LARGE = 10 * MIB
SEGMENT = 12 * MIB
HEADERS = 1 << 10  # more than those of an entry take
KIND = Kind(segment_bytes=SEGMENT)


def leader_of_a_while(world: World) -> WorldNode:
    """A leader that has led long enough to hand over of itself."""
    leader = world.elect()
    world.run_for(INTERVAL)
    return leader


def limit(world: World, free_bytes: int, *short: WorldNode) -> None:
    """The disks of `short`, which have a segment to spare, take so many more bytes of the log."""
    for node in short:
        node.disk.capacity_bytes = node.disk.used_bytes()
    leader = world.elect()
    for name, size in (("all-of-one", SEGMENT - MIB), ("some-of-the-next", SEGMENT - free_bytes)):
        leader.propose(name, size - HEADERS)
        world.settle()
    for node in short:
        left = SEGMENT - node.log.end_offset % SEGMENT
        assert node.log.statistics().is_full
        assert free_bytes <= left <= free_bytes + 2 * HEADERS


def leading(world: World) -> WorldNode:
    leader = world.ready_leader()
    assert leader is not None
    return leader


def test_leadership_moves_before_a_proposal_is_refused() -> None:
    """The disk says so while there is still room for some more appends."""
    world = World(kind=KIND)
    full = leader_of_a_while(world)
    limit(world, AMPLE + 64 * 1024, full)
    taken: list[str] = []
    for number in range(400):
        world.tick()
        leader = world.ready_leader()
        if leader is not None and leader.driver.core.statistics().transfer_target is None:
            leader.propose(f"t{number}", 4 << 10)  # never LogFull
            taken.append(f"t{number}")
    world.settle()
    assert leading(world) is not full
    assert len(taken) > 350
    assert leading(world).topics()[2:] == taken


def test_a_refused_proposal_makes_a_leader_short_of_space() -> None:
    """A large message finds no room although a small one would: who has room leads."""
    world = World(kind=KIND)
    full = leader_of_a_while(world)
    limit(world, AMPLE + MIB, full)
    assert not full.driver.statistics().is_short_of_space
    with pytest.raises(LogFull):
        full.propose("large", LARGE)
    world.run_for(30)
    leader = leading(world)
    assert leader is not full
    leader.propose("large", LARGE)
    world.settle()
    assert leader.topics()[-1] == "large"


def test_space_that_comes_back_is_noticed() -> None:
    """What was refused once is forgotten as soon as it would fit."""
    world = World(count=1, kind=KIND)
    leader = world.elect()
    limit(world, AMPLE + MIB, leader)
    with pytest.raises(LogFull):
        leader.propose("large", LARGE)
    world.tick()
    assert leader.driver.statistics().is_short_of_space
    leader.disk.make_room()
    world.run_for(SEGMENT_RETRY_TICKS)
    assert not leader.driver.statistics().is_short_of_space
    leader.disk.capacity_bytes = leader.disk.used_bytes()
    for name, size in (("rest-of-this", AMPLE), ("some-of-the-next", SEGMENT - AMPLE - MIB)):
        leader.propose(name, size)
        world.settle()
    assert leader.log.statistics().is_full
    assert not leader.driver.statistics().is_short_of_space


def test_leader_that_cannot_apply_hands_over() -> None:
    """Its log has room, and what is derived from it hasn't: nobody would be answered."""
    world = World()
    full = leader_of_a_while(world)
    full.propose("t")
    world.settle()
    full.disk.fill_up(0)
    with full.running():
        full.replica.appender.send(b"", [batch(0, b"x")])
    world.run_for(30)
    leader = leading(world)
    assert leader is not full
    assert leader.replica.machine.topics["t"].next_offsets == [1]
    assert full.replica.machine.topics["t"].next_offsets == [0]


def test_what_waits_for_a_stalled_disk_is_bounded() -> None:
    """The followers commit without it, so the bound on uncommitted bytes never bites."""
    limit_bytes = MIB
    world = World(kind=Kind(max_uncommitted_bytes=limit_bytes))
    leader = world.elect()
    number = 0
    while leader.log.unwritten_bytes <= limit_bytes:
        leader.propose(f"t{number}", 100 << 10)
        number += 1
        assert number < 100
        world.settle(flush=False)
        for node in world.others(leader.name):
            node.sync()
        world.settle(flush=False)
        assert leader.driver.core.statistics().uncommitted_bytes == 0
    with pytest.raises(LogBehind):
        leader.propose("refused")
    world.settle()
    leader.propose("taken")


def test_follower_says_that_it_has_no_room() -> None:
    """Its heartbeat answers carry it over the wire, so no leader hands over to it."""
    world = World(count=5, kind=KIND)
    full = leader_of_a_while(world)
    first = world.others(full.name)[0]
    limit(world, MIB, full, first)
    world.run_for(30)
    begun = [event for event in full.events if isinstance(event, HandOverBegun)]
    assert len(begun) == 1
    assert begun[0].target != first.name, "of equals it would have been the first"

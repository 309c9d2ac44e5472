"""The fullest voter's disk decides what goes, and must have got that back before more does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dledger.checksum import seal
from dledger.core.types import NodeId
from dledger.level import LOG_START_LEVEL
from dledger.wire.raft_pb2 import PeerMessage
from tests.node.world import Kind, World, WorldNode

PERCENT = 85
SEGMENT = 2 << 20
KIND = Kind(
    segment_bytes=SEGMENT,
    known_level=LOG_START_LEVEL,
    retention={"age_hours": 0, "disk_percent": PERCENT},
)
HALF_A_MINUTE = 3_000  # ticks: three looks of a leader's


def grown(count: int = 3) -> tuple[World, WorldNode]:
    """A group with some ten segments of log, and its leader; disks have no end."""
    world = World(count, kind=KIND)
    leader = world.serving()
    while leader.replica.machine.level.current < LOG_START_LEVEL:
        world.tick()
    for number in range(80):
        leader.propose(f"t{number}", 256 << 10)
        world.settle()
    world.run_for(300)
    assert leader.log.first_index == 1
    return world, world.serving()


def used(node: WorldNode) -> float:
    return 100 * node.disk.used_bytes() / node.disk.capacity_bytes


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_segments_go_until_the_fullest_disk_is_less_full(whose: str) -> None:
    """Whoever it is; the others' have no end."""
    world, leader = grown()
    full = leader if whose == "leader" else world.others(leader.name)[0]
    full.disk.capacity_bytes = full.disk.used_bytes() * 100 // 95
    world.run_for(4 * HALF_A_MINUTE)
    assert used(full) < PERCENT
    assert used(full) > PERCENT - 2 * 100 * SEGMENT / full.disk.capacity_bytes, "no more than that"
    firsts = {node.replica.machine.log_start.first_index for node in world.nodes.values()}
    assert len(firsts) == 1
    for node in world.nodes.values():
        assert node.failure is None
        assert node.log.first_index > 1


def segments_gone(world: World) -> int:
    """As many as there were before the log's start, on whoever leads."""
    leader = world.serving()
    return leader.log.position_of(leader.log.first_index) // SEGMENT


def lying(liar: WorldNode, change: Callable[[PeerMessage], None]) -> None:
    """What that member answers to heartbeats is another thing from now on."""
    send = liar.replica.transport.send_answer

    def told(peer: NodeId, message: PeerMessage) -> None:
        if message.HasField("heartbeat_response"):
            change(message)
            seal(message)
        send(peer, message)

    liar.replica.transport.send_answer = told  # type: ignore[method-assign]


def is_full_for_ever(message: PeerMessage) -> None:
    message.heartbeat_response.disk_total_bytes = 1 << 40
    message.heartbeat_response.disk_free_bytes = 0


def test_member_that_says_it_is_full_for_ever_takes_one_segment() -> None:
    """Nothing that goes changes what it says, so no more goes; the log keeps what it has."""
    world, leader = grown()
    lying(world.others(leader.name)[0], is_full_for_ever)
    world.run_for(4 * HALF_A_MINUTE)
    assert world.serving() is leader
    assert segments_gone(world) == 1


def says_nothing(message: PeerMessage) -> None:
    message.heartbeat_response.disk_total_bytes = 0
    message.heartbeat_response.disk_free_bytes = 0


def test_what_is_not_said_is_no_reason() -> None:
    """As by a member of a release before; its disk is full all the same, and that is its affair."""
    world, leader = grown()
    full = world.others(leader.name)[0]
    lying(full, says_nothing)
    world.run_for(1_200)  # what it said before is forgotten
    full.disk.capacity_bytes = full.disk.used_bytes() * 100 // 95
    world.run_for(HALF_A_MINUTE)
    assert segments_gone(world) == 0


def test_no_disk_at_all_is_refused_and_no_reason() -> None:
    """More free than there is: the answer is refused, as any that no working member sends."""
    world, leader = grown()
    liar = world.others(leader.name)[0]

    def impossible(message: PeerMessage) -> None:
        message.heartbeat_response.disk_total_bytes = 5
        message.heartbeat_response.disk_free_bytes = 6

    refused = leader.driver.statistics().messages_refused
    liar.disk.capacity_bytes = liar.disk.used_bytes()
    lying(liar, impossible)
    with pytest.raises(Exception, match="of a disk free"):
        world.run_for(HALF_A_MINUTE)
    assert leader.driver.statistics().messages_refused > refused
    assert segments_gone(world) == 0


def test_follower_gets_its_disk_back_while_the_leader_mends() -> None:
    """A leader that mends a queue lets nothing go itself, for hours where the log is long; what the
    group decides meanwhile goes on from the decision before, one segment at a time."""
    world, leader = grown()
    keeper = leader.replica.log_start
    keeper._front = replace(keeper._front, is_hindered=lambda: True)
    full = world.others(leader.name)[0]
    full.disk.capacity_bytes = full.disk.used_bytes() * 100 // 95
    world.run_for(4 * HALF_A_MINUTE)
    assert world.serving() is leader
    assert leader.log.first_index == 1
    assert used(full) < PERCENT
    assert used(full) > PERCENT - 2 * 100 * SEGMENT / full.disk.capacity_bytes, "no more than that"

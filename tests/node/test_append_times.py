"""Append times of whole drivers, whose members' wall clocks are wrong (ADR 26)."""

from __future__ import annotations

import pytest

from dledger.checksum import seal
from dledger.core.types import MAX_TIME_MS, ClockOff, LogTimeStepped, NodeId
from dledger.errors import InvalidMessage
from dledger.wire import raft_pb2 as pb
from tests.node.world import World, WorldNode

DAY_MS = 24 * 3600 * 1000
SLACK_MS = 50
FIRST_NOOP = 2  # behind the configuration with which the group was founded


def append(world: World, leader: WorldNode) -> int:
    """The append time of a new entry, as ahead of true time, milliseconds."""
    leader.propose("t")
    world.settle()
    return leader.log.last_append_time_ms - world.now_ms


def set_walls(world: World, **off_ms: int) -> None:
    """These members' wall clocks are so far ahead of true time, everybody else's are right."""
    for node in world.nodes.values():
        node.set_wall(off_ms.get(node.name, 0))


def test_a_leader_whose_clock_is_a_day_ahead_does_not_write_it() -> None:
    """Nor does it freeze time for those after it."""
    world = World()
    for _ in range(4):
        leader = world.elect()
        assert -SLACK_MS <= append(world, leader) <= 0
        set_walls(world, **{leader.name: DAY_MS})
        world.run_for(20)
        assert -SLACK_MS <= append(world, leader) <= 0
        set_walls(world)
        world.run_for(500)  # until nobody believes any more what that clock had shown
        world.crash(leader.name)
        world.restart(leader.name)


def test_the_first_entry_has_the_time_of_a_majority() -> None:
    """Who is elected has heard the clocks of those that elected it: the no-op of an empty log is
    of today, although no heartbeat has been answered."""
    world = World()
    set_walls(world, n1=DAY_MS)
    leader = world.elect()
    time_ms = leader.log.header_at(FIRST_NOOP).append_time_ms
    assert world.now_ms - 1_000 <= time_ms <= world.now_ms


def test_a_leader_without_answers_waits_and_does_not_go_back() -> None:
    """All followers are cut off; the clock that is left is behind."""
    world = World()
    leader = world.elect()
    first = append(world, leader) + world.now_ms
    world.isolate(leader.name)
    set_walls(world, **{leader.name: -DAY_MS})
    world.run_for(10)
    leader.propose("u")
    time_ms = leader.log.last_append_time_ms
    assert first + 50 <= time_ms <= first + 200


def test_a_group_that_stood_still_goes_on_with_the_present() -> None:
    """A new leader steps, before anything is stored, and says so."""
    world = World()
    world.elect()
    for name in world.members:
        world.crash(name)
    world.pass_time(30 * DAY_MS)
    for name in world.members:
        world.restart(name)
    leader = world.elect()
    assert -SLACK_MS <= append(world, leader) <= 0
    world.run_for(2)
    steps = [each for each in leader.events if isinstance(each, LogTimeStepped)]
    assert [round(each.by_ms / DAY_MS) for each in steps] == [30]


def test_a_wrong_clock_is_named_by_the_leader() -> None:
    """In its events and in its statistics; a follower has nothing to compare with."""
    world = World()
    leader = world.elect()
    wrong = next(name for name in world.members if name != leader.name)
    set_walls(world, **{wrong: 10_000})
    world.run_for(20)
    named = [each for each in leader.events if isinstance(each, ClockOff)]
    assert [(each.node, round(each.off_ms, -2)) for each in named] == [(wrong, 10_000)]
    off_ms = leader.driver.statistics().clock.off_ms
    assert {node: round(each, -2) for node, each in off_ms.items()} == {
        name: 10_000 if name == wrong else 0 for name in world.members
    }
    assert world.nodes[wrong].driver.statistics().clock.off_ms == {}


@pytest.mark.parametrize("wrong_ms", [-(1 << 70), 1 << 70])
def test_a_clock_that_no_message_can_tell_stops_nobody(wrong_ms: int) -> None:
    """A machine that believes in the time before 1970, or after 9999, still votes and answers."""
    world = World()
    set_walls(world, n1=wrong_ms)
    for _ in range(3):
        leader = world.elect()
        world.run_for(10)  # it may have been elected by the wrong clock's vote alone
        assert -SLACK_MS <= append(world, leader) <= 0
        world.crash(leader.name)
        world.restart(leader.name)
    for node in world.nodes.values():
        assert node.failure is None


def test_a_clock_out_of_range_is_refused() -> None:
    """No node tells one (ADR 19)."""
    world = World()
    leader = world.elect()
    peer = next(name for name in world.members if name != leader.name)
    for body in (
        {"heartbeat_response": pb.HeartbeatResponse(wall_ms=MAX_TIME_MS + 1)},
        {"vote_response": pb.VoteResponse(wall_ms=MAX_TIME_MS + 1)},
    ):
        term = leader.driver.core.term
        with pytest.raises(InvalidMessage, match="wall clock"):
            leader.driver.on_message(NodeId(peer), seal(pb.PeerMessage(term=term, **body)))

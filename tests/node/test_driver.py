"""The driver's order of things: persist, send, apply; what it refuses and what stops it."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from dledger.applying import APPLY_RETRY_TICKS
from dledger.checksum import seal
from dledger.core.errors import NotLeader, ReadRefused
from dledger.core.types import EntryKind, LeaderChanged, NodeId
from dledger.driver import LogFull
from dledger.errors import InvalidMessage
from dledger.wire.raft_pb2 import PeerMessage
from store.errors import StorageFailed
from tests.node.world import World, WorldNode

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def propose(world: World, name: NodeId, body: bytes) -> int:
    return world.nodes[name].driver.propose(EntryKind.COMMAND, 0, body, None).index


def others(world: World, name: NodeId) -> list[NodeId]:
    return [each for each in world.members if each != name]


def test_committed_entries_are_applied_in_order_everywhere() -> None:
    """Proposals of one turn reach every state machine, in order and once."""
    world = World()
    leader = world.elect()
    for number in range(20):
        propose(world, leader.name, b"entry %d" % number)
    world.settle()
    for _ in range(6):  # a heartbeat carries the commit index to the followers
        world.tick()
        world.settle()
    expected = [b"entry %d" % number for number in range(20)]
    assert [node.record.bodies() for node in world.nodes.values()] == [expected] * 3


def test_proposals_of_one_turn_travel_in_one_append_per_peer() -> None:
    """Propose only schedules: a hundred proposals cost each peer one message."""
    world = World()
    leader = world.elect()
    for number in range(100):
        propose(world, leader.name, b"%d" % number)
    assert not world.wires
    leader.soon.popleft()()
    appends = [message for _, _, message in world.wires if message.append_request.frames]
    assert len(appends) == 2


def test_nothing_is_applied_before_a_majority_is_durable() -> None:
    """Without any fsync nothing commits, whatever travels (ADR 3)."""
    world = World()
    leader = world.elect()
    propose(world, leader.name, b"unsafe")
    world.settle(flush=False)
    assert leader.record.bodies() == []
    world.nodes[others(world, leader.name)[0]].log.flush()
    world.settle(flush=False)
    assert leader.record.bodies() == [], "one disk of three is no majority"
    leader.log.flush()
    world.settle(flush=False)
    assert leader.record.bodies() == [b"unsafe"]


def test_entries_commit_through_the_followers_when_the_leaders_disk_is_slow() -> None:
    """The leader's own write runs beside replication (dissertation §10.2.1)."""
    world = World()
    leader = world.elect()
    propose(world, leader.name, b"fast peers")
    world.settle(flush=False)
    for name in others(world, leader.name):
        world.nodes[name].log.flush()
    world.settle(flush=False)
    assert leader.record.bodies() == [b"fast peers"]


def test_vote_is_on_disk_before_it_is_told() -> None:
    """No vote leaves a node whose hard state is not durable."""
    world = World()
    for _ in range(40):
        world.tick(N1)
        world.settle(flush=False)
    world.nodes[N1].log.flush()
    told = [m for s, t, m in world.wires if m.WhichOneof("body") == "vote_response"]
    assert told == []
    world.settle()
    voter = world.nodes[N2]
    assert voter.file.content is not None
    assert voter.driver.core.term == world.nodes[N1].driver.core.term


def test_uncommitted_tail_of_an_old_leader_is_replaced() -> None:
    """A deposed leader's tail is truncated and the new leader's bytes take its place."""
    world = World()
    old = world.elect()
    world.isolate(old.name)
    propose(world, old.name, b"never committed")
    world.settle()
    for _ in range(100):
        world.tick(*others(world, old.name))
        world.settle()
    fresh = next(n for n in world.nodes.values() if n.driver.core.is_ready_leader and n is not old)
    propose(world, fresh.name, b"committed")
    world.settle()
    world.cut.clear()
    for _ in range(60):
        world.tick()
        world.settle()
    assert old.record.bodies() == [b"committed"]
    assert old.log.frames == fresh.log.frames


def test_propose_on_a_follower_is_refused_with_the_leader() -> None:
    """The error says whom to ask."""
    world = World()
    leader = world.elect()
    with pytest.raises(NotLeader) as refused:
        propose(world, others(world, leader.name)[0], b"x")
    assert refused.value.leader == leader.name


def test_propose_without_room_changes_nothing() -> None:
    """A full disk refuses before anything was appended, and ends when space is back."""
    world = World()
    leader = world.elect()
    before = leader.log.last_index
    leader.log.room = False
    with pytest.raises(LogFull):
        propose(world, leader.name, b"x")
    assert (leader.log.last_index, leader.driver.core.last_index) == (before, before)
    leader.log.room = True
    propose(world, leader.name, b"x")
    world.settle()
    assert leader.record.bodies() == [b"x"]


def test_follower_without_room_neither_acknowledges_nor_fails() -> None:
    """A follower's full disk costs its acknowledgement only; it catches up later."""
    world = World()
    leader = world.elect()
    full = world.nodes[others(world, leader.name)[0]]
    full.log.room = False
    propose(world, leader.name, b"x")
    world.settle()
    assert leader.record.bodies() == [b"x"]
    assert full.driver.statistics().appends_refused_for_space > 0
    assert full.record.failures == []
    full.log.room = True
    for _ in range(60):
        world.tick()
        world.settle()
    assert full.record.bodies() == [b"x"]


def fill(world: World, leader: WorldNode) -> None:
    """The disks take no further proposal of a byte."""
    for node in world.nodes.values():
        node.log.capacity_bytes = 64 << 10
    for _ in range(1_000):
        try:
            propose(world, leader.name, bytes(100))
        except LogFull:
            return
        world.settle()
    raise AssertionError("64 KiB take a thousand entries")


def test_full_disks_survive_one_election_after_the_other() -> None:
    """Proposals stop early enough for the no-ops of later leaders."""
    world = World()
    leader = world.elect()
    fill(world, leader)
    for _ in range(10):
        for _ in range(60):  # an idle moment, so that leadership may move again
            world.tick()
            world.settle()
        deposed = world.elect()
        deposed.driver.transfer_leadership(None)
        leader = world.elect()
        assert leader.name != deposed.name
    assert [node.record.failures for node in world.nodes.values()] == [[], [], []]
    with pytest.raises(LogFull):
        propose(world, leader.name, b"x")


def test_follower_leaves_room_for_its_own_no_op() -> None:
    """One whose disk is smaller than the leader's could lead next: it must be able to begin."""
    world = World()
    leader = world.elect()
    small = world.nodes[others(world, leader.name)[0]]
    small.log.capacity_bytes = 20 << 10
    for _ in range(200):
        propose(world, leader.name, bytes(100))
        world.settle()
    assert small.driver.statistics().appends_refused_for_space > 0
    assert small.log.has_room(256 * 56)


def test_proposal_that_the_log_refuses_stops_the_node() -> None:
    """The core has the entry and the log hasn't, as when a flush has failed and its news is still
    on the way: whatever this node said next would speak of an entry that nobody can read."""
    world = World()
    leader = world.elect()
    refusal = StorageFailed("fdatasync", OSError("the disk is gone"))
    with (
        patch.object(leader.log, "append", side_effect=refusal),
        pytest.raises(StorageFailed),
    ):
        propose(world, leader.name, b"x")
    assert leader.record.failures == [refusal]
    said = len(world.wires)
    for _ in range(60):
        leader.driver.tick()
        while leader.soon:
            leader.soon.popleft()()
    assert len(world.wires) == said


def test_repeated_append_is_acknowledged_on_a_full_disk() -> None:
    """What is here already needs no room; only a lost acknowledgement is made up for."""
    world = World()
    leader = world.elect()
    follower = world.nodes[others(world, leader.name)[0]]
    propose(world, leader.name, b"x")
    leader.soon.popleft()()
    appends = [wire for _, to, wire in world.wires if to == follower.name]
    world.settle()
    held = follower.log.last_index
    follower.log.room = False
    for wire in appends:
        follower.driver.on_message(leader.name, wire)
    follower.log.flush()
    answers = [wire.append_response for sender, _, wire in world.wires if sender == follower.name]
    assert [(each.accepted, each.match_index) for each in answers] == [(True, held)]
    assert follower.driver.statistics().appends_refused_for_space == 0


@pytest.mark.parametrize("taken", [0, 2])
def test_applying_pauses_while_the_machine_has_no_space(taken: int) -> None:
    """The part of a slice that was applied counts; the rest is given again, and only the rest."""
    world = World(count=1)
    leader = world.elect()
    before = leader.driver.applied_index
    leader.record.full_from = before + 1 + taken
    for number in range(5):
        propose(world, leader.name, b"%d" % number)
    world.settle()
    assert leader.driver.applied_index == leader.record.applied_index == before + taken
    assert leader.driver.statistics().is_apply_paused
    assert leader.record.failures == []
    with pytest.raises(LogFull):
        propose(world, leader.name, b"refused")
    leader.record.full_from = None
    for _ in range(APPLY_RETRY_TICKS - 1):
        world.tick()
        world.settle()
    assert leader.driver.applied_index == before + taken, "tried again at a bounded pace only"
    world.tick()
    world.settle()
    assert leader.record.bodies() == [b"0", b"1", b"2", b"3", b"4"]
    assert not leader.driver.statistics().is_apply_paused
    propose(world, leader.name, b"taken")


def test_a_failed_disk_stops_the_node() -> None:
    """After a failed fsync a leader leads no more and the node is stopped, once (ADR 8)."""
    world = World()
    leader = world.elect()
    leader.driver.on_storage_failed(OSError("fsync"))
    leader.driver.on_storage_failed(OSError("again"))
    assert [str(error) for error in leader.record.failures] == ["fsync"]
    assert world.elect(400).name != leader.name


def test_a_stopped_driver_takes_nothing_more() -> None:
    """After a failure nobody may wait for what will never run."""
    world = World()
    leader = world.elect()
    leader.driver.on_storage_failed(OSError("fsync"))
    with pytest.raises(NotLeader):
        propose(world, leader.name, b"x")
    with pytest.raises(ReadRefused):
        leader.driver.read_index(lambda _: None)


def test_broken_frames_are_refused_and_counted() -> None:
    """A peer's bytes that are no frames end the stream and change nothing."""
    world = World()
    leader = world.elect()
    follower = world.nodes[others(world, leader.name)[0]]
    before = list(follower.log.frames)
    message = PeerMessage(term=leader.driver.core.term)
    message.append_request.prev_index = follower.log.last_index
    message.append_request.frames = b"\x00\x00\x00\x40garbage" * 8
    message.append_request.frames_size = len(message.append_request.frames)
    with pytest.raises(InvalidMessage):
        follower.driver.on_message(leader.name, seal(message))
    assert follower.log.frames == before
    assert follower.driver.statistics().messages_refused == 1


def test_linearizable_read_is_confirmed_by_a_majority() -> None:
    """A read is served after a heartbeat round; an isolated leader serves none."""
    world = World()
    leader = world.elect()
    answers: list[bool] = []
    leader.driver.read_index(answers.append)
    leader.driver.read_index(answers.append)
    world.settle()
    assert answers == [True, True]
    world.isolate(leader.name)
    leader.driver.read_index(answers.append)
    for _ in range(100):
        world.tick()
        world.settle()
    assert answers == [True, True, False]


def test_broken_stream_from_a_dead_leader_elects_within_a_few_ticks() -> None:
    """Followers don't wait for their election timeout when the leader's streams break."""
    world = World()
    leader = world.elect()
    world.crash(leader.name)
    ticks = 0
    while not any(n.up and n.driver.core.is_ready_leader for n in world.nodes.values()):
        world.tick()
        world.settle()
        ticks += 1
        assert ticks < 15, "the shortest election timeout has passed"


def test_flapping_connection_grows_no_term() -> None:
    """One follower's broken streams to a living leader change neither leader nor term."""
    world = World()
    leader = world.elect()
    term = leader.driver.core.term
    flapping = others(world, leader.name)[0]
    for _ in range(50):
        world.nodes[flapping].driver.suspect(leader.name)
        leader.driver.suspect(flapping)
        for _ in range(8):
            world.tick()
            world.settle()
    assert {node.driver.core.term for node in world.nodes.values()} == {term}
    assert leader.driver.core.is_ready_leader
    seen = [e.leader for e in world.nodes[flapping].record.events if isinstance(e, LeaderChanged)]
    assert set(seen[1:]) <= {None, leader.name}


def test_restart_keeps_what_was_durable() -> None:
    """All nodes die after a commit; the entry is there after the restart, terms don't go back."""
    world = World()
    leader = world.elect()
    propose(world, leader.name, b"kept")
    world.settle()
    term = leader.driver.core.term
    for name in world.members:
        world.crash(name)
    for name in world.members:
        world.restart(name)
    fresh = world.elect()
    world.settle()
    assert fresh.driver.core.term > term
    assert fresh.record.bodies() == [b"kept"]


@pytest.mark.parametrize("seed", range(20))
def test_random_crashes_lose_nothing_acknowledged(seed: int) -> None:
    """Crashes, cuts and partial flushes: whatever was applied anywhere stays, in one order."""
    world = World(seed=seed)
    acknowledged: list[bytes] = []
    number = 0
    for _ in range(300):
        roll = world.random.random()
        name = world.random.choice(world.members)
        node = world.nodes[name]
        if roll < 0.03 and sum(n.up for n in world.nodes.values()) == 3:
            world.crash(name)
        elif roll < 0.10 and not node.up:
            world.restart(name)
        elif roll < 0.14:
            world.isolate(name)
        elif roll < 0.20:
            world.cut.clear()
        elif roll < 0.6 and node.up and node.driver.core.is_ready_leader:
            number += 1
            propose(world, name, b"%d" % number)
        world.tick()
        world.settle(flush=world.random.random() < 0.8)
        longest = max((n.record.bodies() for n in world.nodes.values()), key=len)
        acknowledged = max(acknowledged, longest, key=len)
    world.cut.clear()
    for name in world.members:
        if not world.nodes[name].up:
            world.restart(name)
    world.elect(1_000)
    for _ in range(100):
        world.tick()
        world.settle()
    for node in world.nodes.values():
        assert node.record.failures == []
        assert node.record.bodies()[: len(acknowledged)] == acknowledged
    assert len({tuple(node.log.frames) for node in world.nodes.values()}) == 1


def test_applying_goes_on_in_later_turns_when_a_turn_has_had_enough() -> None:
    """Every entry is applied once, in order, and between two pieces the observer knows how far."""
    world = World()
    leader = world.elect()
    world.turn_steps = 2
    bodies = [bytes((number,)) for number in range(1, 12)]
    for body in bodies:
        propose(world, leader.name, body)
    for _ in range(20):  # until followers have heard of the commit
        world.settle()
        world.tick()
    world.settle()
    for node in world.nodes.values():
        assert node.record.bodies() == bodies
        assert node.record.applied_index == node.log.last_index

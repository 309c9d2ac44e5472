"""The driver's order of things: persist, send, apply; what it refuses and what stops it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from dledger.checksum import seal
from dledger.core.errors import NotLeader, ReadRefused
from dledger.core.types import EntryKind, LeaderChanged
from dledger.errors import InvalidMessage
from dledger.wire.raft_pb2 import PeerMessage
from store.errors import StorageFailed
from tests.node.world import Kind, World


def test_committed_entries_are_applied_in_order_everywhere() -> None:
    """Proposals of one turn reach every state machine, in order and once."""
    world = World()
    leader = world.elect()
    names = [f"t{number}" for number in range(20)]
    for name in names:
        leader.propose(name)
    world.settle()
    world.run_for(6)  # a heartbeat carries the commit index to the followers
    assert [node.topics() for node in world.nodes.values()] == [names] * 3


def test_proposals_of_one_turn_travel_in_one_append_per_peer() -> None:
    """Propose only schedules: a hundred proposals cost each peer one message."""
    world = World()
    leader = world.elect()
    for number in range(100):
        leader.propose(f"t{number}")
    assert not world.wires
    leader.turn()
    appends = [message for _, _, message in world.wires if message.append_request.frames]
    assert len(appends) == 2


def test_nothing_is_applied_before_a_majority_is_durable() -> None:
    """Without any fsync nothing commits, whatever travels (ADR 3)."""
    world = World()
    leader = world.elect()
    leader.propose("unsafe")
    world.settle(flush=False)
    assert leader.topics() == []
    world.others(leader.name)[0].sync()
    world.settle(flush=False)
    assert leader.topics() == [], "one disk of three is no majority"
    leader.sync()
    world.settle(flush=False)
    assert leader.topics() == ["unsafe"]


def test_entries_commit_through_the_followers_when_the_leaders_disk_is_slow() -> None:
    """The leader's own write runs beside replication (dissertation §10.2.1)."""
    world = World()
    leader = world.elect()
    leader.propose("fast-peers")
    world.settle(flush=False)
    for node in world.others(leader.name):
        node.sync()
    world.settle(flush=False)
    assert leader.topics() == ["fast-peers"]


def test_vote_is_on_disk_before_it_is_told() -> None:
    """A candidate asks for no vote before its own is durable, and is given none before its voters'
    are."""
    world = World()
    while not (candidates := [n for n in world.nodes.values() if n.driver.core.term > 1]):
        world.tick(flush=False)
    world.settle(flush=False)
    assert not {"vote_request", "vote_response"} & set(world.said)
    (candidate,) = candidates
    candidate.sync()
    world.settle(flush=False)
    assert "vote_request" in world.said
    assert "vote_response" not in world.said
    for voter in world.others(candidate.name):
        voter.sync()
    world.settle(flush=False)
    assert world.said.count("vote_response") == 2
    for voter in world.others(candidate.name):
        world.crash(voter.name)
        assert voter.open().driver.core.term == candidate.driver.core.term


def test_uncommitted_tail_of_an_old_leader_is_replaced() -> None:
    """A deposed leader's tail is truncated and the new leader's bytes take its place."""
    world = World()
    old = world.elect()
    world.isolate(old.name)
    old.propose("never-committed")
    world.settle()
    world.run_for(100)
    fresh = world.elect()
    assert fresh is not old
    fresh.propose("committed")
    world.settle()
    world.cut.clear()
    world.run_for(60)
    assert old.topics() == ["committed"]
    assert old.frames() == fresh.frames()


def test_propose_on_a_follower_is_refused_with_the_leader() -> None:
    """The error says whom to ask."""
    world = World()
    leader = world.elect()
    with pytest.raises(NotLeader) as refused:
        world.others(leader.name)[0].propose("t")
    assert refused.value.leader == leader.name


def test_proposal_that_the_log_refuses_stops_the_node() -> None:
    """The core has the entry and the log hasn't, as when a flush has failed and its news is still
    on the way: whatever this node said next would speak of an entry that nobody can read."""
    world = World()
    leader = world.elect()
    leader.propose("t")
    leader.turn()
    leader.disk.fail_next("fdatasync", errno.EIO)
    leader.sync()
    with pytest.raises(StorageFailed):
        leader.propose("u")
    assert isinstance(leader.failure, StorageFailed)
    said = len(world.wires)
    for _ in range(60):
        leader.driver.tick()
        leader.turn()
    assert len(world.wires) == said


def test_a_proposal_that_cannot_be_stamped_stops_the_node_before_anything_is_sent() -> None:
    """The core counts an entry that the log doesn't have: its place must not be told, nor called
    durable."""
    world = World()
    leader = world.elect()
    world.settle()

    def stamp(physical_offset: int, append_time_ms: int) -> None:
        raise ValueError(f"{physical_offset} at {append_time_ms}")

    with pytest.raises(ValueError, match="at"):
        leader.driver.propose(EntryKind.COMMAND, 0, b"", stamp)
    assert isinstance(leader.failure, ValueError)
    with pytest.raises(NotLeader):
        leader.propose("t")


def test_a_failed_disk_stops_the_node() -> None:
    """After a failed fsync a leader leads no more and the node is stopped, once (ADR 8)."""
    world = World()
    leader = world.elect()
    leader.disk.fail_next("fdatasync", errno.EIO)
    leader.propose("t")
    world.settle()
    failure = leader.failure
    assert isinstance(failure, StorageFailed)
    leader.driver.on_storage_failed(OSError("again"))
    assert leader.failure is failure
    assert world.elect(400).name != leader.name


def test_a_stopped_driver_takes_nothing_more() -> None:
    """After a failure nobody may wait for what will never run."""
    world = World()
    leader = world.elect()
    leader.disk.fail_next("fdatasync", errno.EIO)
    leader.propose("t")
    world.settle()
    with pytest.raises(NotLeader):
        leader.propose("u")
    with pytest.raises(ReadRefused):
        leader.driver.read_index(lambda _: None)


def test_broken_frames_are_refused_and_counted() -> None:
    """A peer's bytes that are no frames end the stream and change nothing."""
    world = World()
    leader = world.elect()
    follower = world.others(leader.name)[0]
    before = follower.frames()
    message = PeerMessage(term=leader.driver.core.term)
    message.append_request.prev_index = follower.log.last_index
    message.append_request.frames = b"\x00\x00\x00\x40garbage" * 8
    message.append_request.frames_size = len(message.append_request.frames)
    with pytest.raises(InvalidMessage):
        follower.driver.on_message(leader.name, seal(message))
    assert follower.frames() == before
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
    world.run_for(100)
    assert answers == [True, True, False]


def test_broken_stream_from_a_dead_leader_elects_within_a_few_ticks() -> None:
    """Followers don't wait for their election timeout when the leader's streams break."""
    world = World()
    leader = world.elect()
    world.crash(leader.name)
    ticks = 0
    while world.ready_leader() is None:
        world.tick()
        ticks += 1
        assert ticks < 15, "the shortest election timeout has passed"


def test_flapping_connection_grows_no_term() -> None:
    """One follower's broken streams to a living leader change neither leader nor term."""
    world = World()
    leader = world.elect()
    term = leader.driver.core.term
    flapping = world.others(leader.name)[0]
    for _ in range(50):
        world.ends[flapping.name].on_broken(leader.name)
        world.ends[leader.name].on_broken(flapping.name)
        world.run_for(8)
    assert {node.driver.core.term for node in world.nodes.values()} == {term}
    assert leader.driver.core.is_ready_leader
    seen = [event.leader for event in flapping.events if isinstance(event, LeaderChanged)]
    assert set(seen[1:]) <= {None, leader.name}


def test_restart_keeps_what_was_durable() -> None:
    """All nodes die after a commit; the entry is there after the restart, terms don't go back."""
    world = World()
    leader = world.elect()
    leader.propose("kept")
    world.settle()
    term = leader.driver.core.term
    for name in world.members:
        world.crash(name)
    for name in world.members:
        world.restart(name)
    fresh = world.elect()
    world.settle()
    assert fresh.driver.core.term > term
    assert fresh.topics() == ["kept"]


@pytest.mark.parametrize("seed", range(20))
def test_random_crashes_lose_nothing_acknowledged(seed: int) -> None:
    """Crashes, cuts and partial flushes: whatever was applied anywhere stays, in one order."""
    world = World(seed=seed)
    acknowledged: list[str] = []
    number = 0
    for _ in range(300):
        roll = world.random.random()
        name = world.random.choice(world.members)
        node = world.nodes[name]
        if roll < 0.03 and all(each.is_up for each in world.nodes.values()):
            world.crash(name)
        elif roll < 0.10 and not node.is_up:
            world.restart(name)
        elif roll < 0.14:
            world.isolate(name)
        elif roll < 0.20:
            world.cut.clear()
        elif roll < 0.6 and node.is_up and node.driver.core.is_ready_leader:
            number += 1
            node.propose(f"t{number}")
        world.tick(flush=world.random.random() < 0.8)
        longest = max((each.topics() for each in world.nodes.values() if each.is_up), key=len)
        acknowledged = max(acknowledged, longest, key=len)
    world.cut.clear()
    for name in world.members:
        if not world.nodes[name].is_up:
            world.restart(name)
    world.elect(1_000)
    world.run_for(100)
    for node in world.nodes.values():
        assert node.failure is None
        assert node.topics()[: len(acknowledged)] == acknowledged
    assert len({node.frames() for node in world.nodes.values()}) == 1


def test_applying_goes_on_in_later_turns_when_a_turn_has_had_enough() -> None:
    """Every entry is applied once, in order, and between two pieces the observer knows how far."""
    world = World()
    leader = world.elect()
    pieces = 0

    def two_steps() -> Callable[[], bool]:
        nonlocal pieces
        pieces += 1
        steps = iter((False,))
        return lambda: next(steps, True)

    for node in world.nodes.values():
        node.hand.begin = two_steps
    names = [f"t{number}" for number in range(1, 12)]
    for name in names:
        leader.propose(name)
    world.run_for(20)  # until followers have heard of the commit
    for node in world.nodes.values():
        assert node.topics() == names
        assert node.driver.applied_index == node.log.last_index
    assert pieces >= 3 * 6


def test_who_is_far_behind_is_sent_an_append_in_each_turn() -> None:
    """Until the window is full, and without waiting for an answer: three entries are three turns'
    work where an append holds one."""
    world = World(kind=Kind(max_append_entries=1))
    leader = world.elect()
    for number in range(3):
        leader.propose(f"t{number}")
    sent: list[int] = []
    for _ in range(4):
        leader.turn()
        sent.append(sum(bool(message.append_request.frames) for _, _, message in world.wires))
        world.wires.clear()
        leader.take_turns()
    sent.append(len(world.wires))
    assert sent == [2, 2, 2, 0, 0]

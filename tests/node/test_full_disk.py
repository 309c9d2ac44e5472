"""Full disks: what is refused, what goes on, and that all of it ends when space is back."""

from __future__ import annotations

import pytest

from dledger.applying import APPLY_RETRY_TICKS
from dledger.checksum import seal
from dledger.driver import NOOPS_HEAD_ROOM, LogFull
from dledger.reading.entry import HEADER_SIZE
from dledger.wire.raft_pb2 import PeerMessage
from tests.broker.leader import batch
from tests.node.world import Kind, World, WorldNode

SMALL = Kind(segment_bytes=2 << 20)  # a log that is full soon
SEGMENT_RETRY_TICKS = 101  # from finding no space for a segment to trying again


def has_no_room(*nodes: WorldNode) -> None:
    """Their disks give no space from now on."""
    for node in nodes:
        node.disk.capacity_bytes = node.disk.used_bytes()


def fill(world: World, leader: WorldNode) -> None:
    """The log takes no further proposal, however small."""
    number = 0
    for size in (256 << 10, 16 << 10, 2 << 10, 0):
        refusals = 0
        while refusals < 2:  # the first may be for a moment only, until a segment is made
            try:
                leader.propose(f"fill{number}", size)
            except LogFull:
                refusals += 1
                world.settle()
            else:
                number, refusals = number + 1, 0
                assert number < 1_000, "two segments take a thousand entries"


def test_propose_without_room_changes_nothing() -> None:
    """A full disk refuses before anything was appended, and ends when space is back."""
    world = World(kind=SMALL)
    leader = world.elect()
    has_no_room(*world.nodes.values())
    fill(world, leader)
    before = leader.log.last_index
    with pytest.raises(LogFull):
        leader.propose("t")
    assert (leader.log.last_index, leader.driver.core.last_index) == (before, before)
    for node in world.nodes.values():
        node.disk.make_room()
    world.run_for(SEGMENT_RETRY_TICKS)
    leader.propose("t")
    world.settle()
    assert leader.topics()[-1] == "t"


def test_follower_without_room_neither_acknowledges_nor_fails() -> None:
    """A follower's full disk costs its acknowledgement only; it catches up later."""
    world = World(kind=SMALL)
    leader = world.elect()
    full = world.others(leader.name)[0]
    has_no_room(full)
    names = [f"t{number}" for number in range(100)]
    for name in names:
        leader.propose(name, 64 << 10)
        world.settle()
    assert leader.topics() == names
    assert full.driver.statistics().appends_refused_for_space > 0
    assert full.failure is None
    full.disk.make_room()
    world.run_for(SEGMENT_RETRY_TICKS + 60)
    assert full.topics() == names


def test_full_disks_survive_one_election_after_the_other() -> None:
    """Proposals stop early enough for the no-ops of later leaders."""
    world = World(kind=SMALL)
    leader = world.elect()
    has_no_room(*world.nodes.values())
    fill(world, leader)
    for _ in range(10):
        world.run_for(60)  # an idle moment, so that leadership may move again
        deposed = world.elect()
        deposed.driver.transfer_leadership(None)
        leader = world.elect()
        assert leader.name != deposed.name
    assert [node.failure for node in world.nodes.values()] == [None] * 3
    with pytest.raises(LogFull):
        leader.propose("t")


def test_follower_leaves_room_for_its_own_no_op() -> None:
    """One whose disk is smaller than the leader's could lead next: it must be able to begin."""
    world = World(kind=SMALL)
    leader = world.elect()
    small = world.others(leader.name)[0]
    has_no_room(small)
    for number in range(100):
        leader.propose(f"t{number}", 64 << 10)
        world.settle()
    assert small.driver.statistics().appends_refused_for_space > 0
    assert small.log.has_room(NOOPS_HEAD_ROOM * HEADER_SIZE)


def test_repeated_append_is_acknowledged_on_a_full_disk() -> None:
    """What is here already needs no room; only a lost acknowledgement is made up for."""
    world = World(kind=SMALL)
    leader = world.elect()
    follower = world.others(leader.name)[0]
    has_no_room(*world.nodes.values())
    fill(world, leader)
    held = follower.log.last_index
    append = PeerMessage(term=leader.driver.core.term)
    body = append.append_request
    body.frames = leader.log.read(held, held)
    body.frames_size = len(body.frames)
    body.prev_index = held - 1
    body.prev_term = leader.driver.core.term
    assert not follower.log.has_room(len(body.frames) + NOOPS_HEAD_ROOM * HEADER_SIZE)
    follower.driver.on_message(leader.name, seal(append))
    follower.turn()
    answers = [wire.append_response for sender, _, wire in world.wires if sender == follower.name]
    assert [(each.accepted, each.match_index) for each in answers] == [(True, held)]
    assert follower.driver.statistics().appends_refused_for_space == 0


def send(node: WorldNode, sequence: int) -> None:
    """A message to `t`: its unit needs space."""
    with node.running():
        node.replica.appender.send(b"", [batch(sequence, b"%d" % sequence)])


@pytest.mark.parametrize("taken", [0, 2])
def test_applying_pauses_while_the_machine_has_no_space(taken: int) -> None:
    """The part of a slice that was applied counts; the rest is given again, and only the rest."""
    world = World(count=1)
    leader = world.serving()
    leader.propose("t")
    world.settle()
    before = leader.driver.applied_index
    leader.disk.fill_up(0)
    for number in range(taken):
        leader.propose(f"u{number}")
    for number in range(3):
        send(leader, number)
    world.settle()
    applied = leader.driver.applied_index
    assert applied == leader.replica.machine.applied_index == before + taken
    assert leader.driver.statistics().is_apply_paused
    assert leader.failure is None
    with pytest.raises(LogFull):
        leader.propose("refused")
    leader.disk.make_room()
    world.run_for(APPLY_RETRY_TICKS - 1)
    assert leader.driver.applied_index == before + taken, "tried again at a bounded pace only"
    world.tick()
    assert leader.replica.machine.topics["t"].next_offsets == [3]
    assert not leader.driver.statistics().is_apply_paused
    leader.propose("taken")

"""Tails that nobody else has, on disks without a free byte: cut for what fits in their place, and
for nothing else; and what needs no room is answered."""

from __future__ import annotations

import pytest

from dledger.checksum import seal
from dledger.core.types import EntryKind, Index
from dledger.reading.entry import HEADER_SIZE, build_frame
from dledger.room import NOOPS_HEAD_ROOM
from dledger.wire.raft_pb2 import AppendResponse, PeerMessage
from tests.node.world import MAX_TICKS, Kind, World, WorldNode

SEGMENT = 2 << 20
SMALL = Kind(segment_bytes=SEGMENT)  # a log that is full soon
HEAD_ROOM = NOOPS_HEAD_ROOM * HEADER_SIZE
LEFT = 512 << 10  # in the last segment that there is, where the tail begins
SEGMENT_RETRY_TICKS = 101  # from finding no space for a segment to trying again
PROBE_TICKS = 200  # a probe that isn't taken waits for up to a second


def left_in(node: WorldNode) -> int:
    """Bytes behind the last entry, in its segment."""
    return SEGMENT - node.log.end_offset % SEGMENT


def deposed() -> tuple[World, WorldNode]:
    """A member that leads, on a disk without a free byte, and that is cut off from now on. `LEFT`
    is what its log had for what others don't know; of that it has used more than a half."""
    world = World(kind=SMALL)
    full = world.serving()
    full.disk.fill_up(0)
    while full.log.statistics().preallocated_segments or left_in(full) > LEFT:
        full.propose(f"agreed{full.log.last_index}", 32 << 10)
        world.settle()  # no time passes: it would hand over
    world.isolate(full.name)
    while left_in(full) > LEFT // 2:
        full.propose("lost", 16 << 10)
    world.settle()
    assert full.driver.core.durable_index == full.log.last_index
    return world, full


def next_leader(world: World, before: WorldNode) -> WorldNode:
    """Ticks until somebody else leads and has committed in its term."""
    for _ in range(MAX_TICKS):
        if (leader := world.elect()) is not before:
            return leader
    raise AssertionError("nobody else leads")


@pytest.mark.parametrize("is_killed", [False, True])
def test_tail_is_cut_for_what_fits_in_its_place(*, is_killed: bool) -> None:
    """The next leader's entries fit where the two logs part, and not behind the tail. They come
    again and again: nothing else would ever cut it."""
    world, full = deposed()
    lost = full.log.last_index
    leader = next_leader(world, full)
    for number in range(12):
        leader.propose(f"kept{number}", LEFT // 16)
    world.settle()
    assert not full.log.has_room(12 * LEFT // 16 + HEAD_ROOM)
    if is_killed:
        world.crash(full.name)
    world.cut.clear()
    if is_killed:
        world.restart(full.name)
        full.disk.fill_up(0)
    world.run_for(PROBE_TICKS)
    assert full.failure is None
    assert full.log.last_index == leader.log.last_index < lost
    assert full.driver.core.durable_index == full.log.last_index
    assert full.frames() == leader.frames()
    leader.propose("after")
    world.run_for(20)
    assert full.topics() == leader.topics()
    world.crash(full.name)
    world.restart(full.name)
    assert full.frames() == leader.frames()


def test_tail_stays_where_nothing_fits_in_its_place() -> None:
    """Nothing is cut for what can't be taken, and nothing of that is acknowledged."""
    world, full = deposed()
    lost = full.log.last_index
    frames = full.frames()
    leader = next_leader(world, full)
    leader.propose("kept", LEFT)
    world.settle()
    world.cut.clear()
    world.run_for(PROBE_TICKS)
    assert full.driver.statistics().appends_refused_for_space > 0
    assert full.failure is None
    assert full.frames() == frames
    assert full.driver.core.durable_index == lost
    full.disk.make_room()
    world.run_for(SEGMENT_RETRY_TICKS + PROBE_TICKS)
    assert full.frames() == leader.frames()
    assert full.topics() == leader.topics()


def append_of(leader: WorldNode, first: int) -> PeerMessage:
    """All that the leader has from `first` on, behind an entry that it has itself."""
    frames = leader.log.read(first, leader.log.last_index)
    append = PeerMessage(term=leader.driver.core.term)
    body = append.append_request
    body.prev_index = first - 1
    body.prev_term = leader.driver.core.term_at(Index(first - 1))
    body.frames = frames
    body.frames_size = len(frames)
    return append


def answers_of(node: WorldNode, world: World) -> list[AppendResponse]:
    """What it has said of appends, and nobody has heard yet."""
    found = [wire for name, _, wire in world.wires if name == node.name]
    return [each.append_response for each in found if each.HasField("append_response")]


def test_nothing_in_the_place_of_a_tail_is_acknowledged_before_it_is_durable() -> None:
    """Term, cut and what comes in its place are one piece of work for the disk: it has space for
    each part of that, or nothing was begun."""
    world, full = deposed()
    leader = next_leader(world, full)
    leader.propose("kept", 12 * LEFT // 16)
    world.settle()
    world.wires.clear()
    parted = leader.log.last_index - 1  # the leader's no-op; there lies what nobody else has
    full.driver.on_message(leader.name, seal(append_of(leader, parted)))
    full.turn()
    assert full.log.last_index == leader.log.last_index
    assert full.driver.core.durable_index == parted - 1
    assert answers_of(full, world) == []
    assert full.sync()
    full.turn()
    assert full.failure is None
    [answer] = answers_of(full, world)
    assert (answer.accepted, answer.match_index) == (True, leader.log.last_index)
    assert full.frames() == leader.frames()


def test_full_disk_says_where_the_logs_part() -> None:
    """An append that doesn't follow anything here is none for which there must be room: the leader
    is told how this log ends, or it would go on probing at the same place."""
    world, full = deposed()
    leader = next_leader(world, full)
    for number in range(40):
        leader.propose(f"kept{number}", LEFT // 16)
    world.settle()
    world.wires.clear()
    lost = full.log.last_index
    append = append_of(leader, leader.log.last_index)
    assert append.append_request.prev_index > lost
    full.driver.on_message(leader.name, seal(append))
    full.turn()
    assert full.sync()  # its term
    full.turn()
    [answer] = answers_of(full, world)
    assert not answer.accepted
    assert answer.last_index == lost


def test_full_disk_says_that_a_term_is_over() -> None:
    """To whoever led in it and doesn't know, though there is no room for what it sends."""
    world, full = deposed()
    while full.log.has_room(HEADER_SIZE + (8 << 10) + HEAD_ROOM):
        full.propose("lost", 7 << 10)
    world.settle()
    old_term, lost = full.driver.core.term, full.log.last_index
    leader = next_leader(world, full)
    for number in range(40):
        leader.propose(f"kept{number}", LEFT // 16)
    world.settle()
    world.cut.clear()
    world.run_for(PROBE_TICKS)
    assert (full.driver.core.term, full.log.last_index) == (leader.driver.core.term, lost)
    place = full.log.next_position(HEADER_SIZE + (8 << 10))
    body = bytes(8 << 10)
    head, _ = build_frame(EntryKind.COMMAND, lost + 1, old_term, place, 0, 0, body, 0)
    append = PeerMessage(term=old_term)
    append.append_request.frames = head + body
    append.append_request.frames_size = len(head + body)
    append.append_request.prev_index = lost
    append.append_request.prev_term = old_term
    world.wires.clear()
    full.driver.on_message(leader.name, seal(append))
    full.turn()
    [answer] = [wire for name, _, wire in world.wires if name == full.name]
    assert (answer.term, answer.append_response.accepted) == (leader.driver.core.term, False)
    assert full.log.last_index == lost

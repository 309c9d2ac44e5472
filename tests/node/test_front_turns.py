"""What the front of a log costs the event loop: a share of each turn, whatever there is to do.

A second machine applies the log once more beside everything else, for a later base or for queues
that are mended. Its slices are bounded by what they take and not by bytes alone: an entry of a few
bytes may commit the offsets of a hundred groups.
"""

from __future__ import annotations

from broker.snapshots import NoFiles
from store.consumequeue import ConsumeQueues
from store.dispatch import UNIT
from store.queue_files import FILES_A_TURN
from tests.node.test_front_flushed import about_to_go
from tests.node.test_full_disk import RETIRES
from tests.node.world import World, WorldNode
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA


def grown() -> tuple[World, WorldNode]:
    """A member with many small entries; a turn has had enough after each step."""
    world = World(kind=RETIRES)
    leader = world.serving()
    for number in range(40):
        leader.propose(f"t{number}")
    world.settle()
    return world, leader


def test_next_base_is_computed_a_share_of_a_turn_at_a_time() -> None:
    """One entry at least; the next slice goes on from there."""
    _, node = grown()
    keeper = node.replica.log_start
    with node.running():
        machine = node.replica.base.machine(NoFiles())
        assert keeper._apply_slice(machine, 10) > 0
        assert machine.applied_index == 10
        node.hand.begin = lambda: lambda: True
        for index in (11, 12, 13):
            assert keeper._apply_slice(machine, 20) > 0
            assert machine.applied_index == index


def test_queues_are_mended_a_share_of_a_turn_at_a_time() -> None:
    """As above."""
    _, node = grown()
    mender = node.replica.mender
    with node.running():
        machine = node.replica.base.machine(NoFiles())
        node.hand.begin = lambda: lambda: True
        for index in (1, 2, 3):
            assert mender._do_slice(machine, 20) > 0
            assert machine.applied_index == index


def test_queues_begin_later_a_share_of_a_turn_at_a_time() -> None:
    """Where they begin is known before the log lets go of anything, and no turn has them all."""
    world, node, front, start = about_to_go()
    keeper = node.replica.log_start
    machine = world.run(node, keeper._computed(start))
    assert world.run(node, keeper._is_ready(start, machine.snapshot))
    keeper._front = front
    looks: list[tuple[str, int]] = []
    turns: set[float] = set()
    begin_at = front.queues.begin_at

    def begins(topic: str, queue_id: int, first: int) -> bool:
        looks.append((topic, node.log.first_index))
        turns.add(node.loop.time())
        return begin_at(topic, queue_id, first)

    front.queues.begin_at = begins  # type: ignore[method-assign]
    topics = list(machine.topics.values())
    assert len(topics) > 3
    for topic in topics:
        topic.next_offsets[0] = 1
    node.hand.begin = lambda: lambda: True
    moving = node.begin(keeper._move(start, machine, lambda: False))
    world.run_for(100)
    assert moving.done()
    assert looks == [(topic.folder, 1) for topic in topics]
    assert len(turns) == len(looks)
    assert node.log.first_index == start.first_index


def test_files_go_some_a_turn() -> None:
    """A queue that was written to for years leaves many at once."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=1)
    for offset in range(40):
        queues.dispatch("t", 0, offset, UNIT.pack(80, 100, 0))
    assert queues.begin_at("t", 0, 39)
    left = []
    while queues.drop_unneeded("t", 0):
        left.append(len(disk.listdir(DATA / "consumequeue" / "t" / "0")))
    assert left == [40 - FILES_A_TURN, 40 - 2 * FILES_A_TURN]
    assert len(disk.listdir(DATA / "consumequeue" / "t" / "0")) == 1

"""What the front of a log costs the event loop: a share of each turn, whatever there is to do.

A second machine applies the log once more beside everything else, for a later base or for queues
that are mended. Its slices are bounded by what they take and not by bytes alone: an entry of a few
bytes may commit the offsets of a hundred groups.
"""

from __future__ import annotations

from broker.snapshots import NoFiles
from tests.node.test_full_disk import RETIRES
from tests.node.world import World, WorldNode


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

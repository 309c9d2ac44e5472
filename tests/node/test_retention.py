"""A leader of a group that keeps its messages for hours, and whose own disk rots, or fails while
it is put right."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from broker.state.log_start import FIRST_ENTRY
from dledger.core.types import NodeId
from dledger.level import LOG_START_LEVEL
from dledger.peers import PeerLink
from dledger.records.layout import ENTRY, file_name
from tests.node.world import Kind, Wires, World, WorldNode

SEGMENT = 2 << 20
KIND = Kind(segment_bytes=SEGMENT, known_level=LOG_START_LEVEL, retention={"age_hours": 72})
HALF_A_MINUTE = 3_000  # ticks: three looks of a leader's


def giving(
    links: Callable[[Wires], Mapping[NodeId, PeerLink]],
) -> Callable[[Wires], Mapping[NodeId, PeerLink]]:
    """The same links, to peers that give entries."""

    def found(wires: Wires) -> Mapping[NodeId, PeerLink]:
        return {name: replace(each, gives_entries=True) for name, each in links(wires).items()}

    return found


def grown() -> tuple[World, WorldNode]:
    """A group with some segments of log, a few seconds old, and its leader."""
    world = World(3, kind=KIND)
    leader = world.serving()
    while leader.replica.machine.level.current < LOG_START_LEVEL:
        world.tick()
    for number in range(20):
        leader.propose(f"t{number}", 256 << 10)
        world.settle()
    world.run_for(100)
    return world, world.serving()


@pytest.mark.parametrize("which", ["first leader's", "last of a segment"])
def test_bit_that_rots_on_the_leader_retires_nothing_and_is_mended(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a time by which everything, or a segment, would be decades old."""
    monkeypatch.setattr(Wires, "links", giving(Wires.links))
    world, leader = grown()
    index = FIRST_ENTRY + 1 if which == "first leader's" else leader.log.ends_by(SEGMENT)
    at = leader.log.position_of(index) + ENTRY.at("append_time_ms") + 2
    path = leader.config.data_directory / "commitlog" / file_name(at - at % SEGMENT)
    leader.disk.flip(path, at % SEGMENT, 0 if which == "last of a segment" else 1)
    world.run_for(HALF_A_MINUTE)
    for node in world.nodes.values():
        assert node.failure is None
        assert node.replica.machine.log_start.first_index == FIRST_ENTRY
        assert node.log.first_index == FIRST_ENTRY
    told = leader.replica.repairs.statistics()
    assert (told.found, told.repaired, told.damages) == (1, 1, 0)


def test_disk_that_fails_a_repair_silences_the_core_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the turn in which it is known: nothing is voted, led or acknowledged by that disk."""
    monkeypatch.setattr(Wires, "links", giving(Wires.links))
    world, leader = grown()
    at = leader.log.position_of(FIRST_ENTRY + 1) + ENTRY.at("append_time_ms") + 2
    path = leader.config.data_directory / "commitlog" / file_name(0)
    leader.disk.flip(path, at, 1)
    leader.disk.fail_next("pwritev", errno.EIO, "repair.tmp")
    silent_at_the_end: list[bool] = []
    end = leader.replica.leadership.end_for_good

    def ended(reason: str) -> None:
        silent_at_the_end.append(leader.driver.core._state.has_failed)
        end(reason)

    monkeypatch.setattr(leader.replica.leadership, "end_for_good", ended)
    for _ in range(HALF_A_MINUTE):
        world.tick()
        if leader.failure is not None:
            break
    assert isinstance(leader.failure, OSError)
    assert silent_at_the_end == [True]

"""What a wrong byte on a node's disk excuses in the simulator, and for how long."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.defect import Defect
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.last_look import check_comparable
from chaos.sim.machine_config import DATA, HARD_STATE
from chaos.sim.node import SimNode
from chaos.sim.world import World
from dledger.core.types import NodeId
from dledger.records.layout import file_name
from store.atomic_file import AtomicFile
from store.errors import OutOfRange

ENTRY_BYTES = 100
SEGMENT = DATA / "commitlog" / file_name(0)


class Log:
    """Three entries of a hundred bytes."""

    last_index, end_offset = 3, 3 * ENTRY_BYTES

    def __init__(self) -> None:
        self.is_lost = False

    def position_of(self, index: int) -> int:
        return (index - 1) * ENTRY_BYTES

    def header_at(self, index: int) -> SimpleNamespace:
        if self.is_lost:
            raise OutOfRange("entry", index, 1, 3)
        return SimpleNamespace(index=index)


@pytest.fixture
def node() -> SimNode:
    """One that runs, with a disk of its own."""
    made = World(draw_plan(0, duration_ms=1)).nodes[NodeId("n1")]
    life: Any = SimpleNamespace(replica=SimpleNamespace(log=Log()))
    made.life = life
    made.disk.power_on()
    for folder in (DATA, HARD_STATE.parent):
        made.disk.mkdir(folder)
        made.disk.fsync_directory(folder.parent)
    return made


def test_term_and_vote_that_are_written_anew_are_sound(node: SimNode) -> None:
    """Another term has other bytes: they are never what they were before the rot."""
    file = AtomicFile(node.disk, HARD_STATE)
    file.replace(b"term 1")
    node.flip(HARD_STATE, 5, Random(1))
    node.note_repairs()
    assert (node.has_rotten_hard_state, node.spoiled, node.has_another_log) == (True, True, False)
    file.replace(b"term 2")
    node.note_repairs()
    assert (dict(node.rot), node.spoiled) == ({}, False)


def test_rot_in_the_log_is_of_the_entry_that_has_it(node: SimNode) -> None:
    """Others of the same log are read and compared as ever."""
    node.rot[SEGMENT, ENTRY_BYTES] = 0
    node.rot[SEGMENT, 2 * ENTRY_BYTES - 1] = 0
    assert [node.sound_header(index) is not None for index in (1, 2, 3)] == [True, False, True]
    node.rot.clear()
    assert node.sound_header(2) is not None


def test_entry_that_cannot_be_read_is_rotten_only_where_something_is(node: SimNode) -> None:
    """Of a sector that is lost one byte is known; on a sound disk it is a defect of the log."""
    assert node.life is not None
    log: Any = node.life.replica.log
    log.is_lost = True
    with pytest.raises(OutOfRange):
        node.sound_header(2)
    node.rot[SEGMENT, 0] = 0
    assert node.sound_header(2) is None


def test_run_that_compares_nothing_has_shown_nothing() -> None:
    """Two nodes that can be held against each other, where two run."""

    def nodes(*others: bool, down: int = 0) -> Any:
        up = [SimpleNamespace(life=object(), has_another_log=other) for other in others]
        return [*up, *[SimpleNamespace(life=None, has_another_log=False)] * down]

    check_comparable(nodes(False, False, True))
    check_comparable(nodes(False, down=2))
    for wrong in (nodes(True, True, True), nodes(False, True, True), nodes(True, down=2)):
        with pytest.raises(Defect, match="are sound"):
            check_comparable(wrong)

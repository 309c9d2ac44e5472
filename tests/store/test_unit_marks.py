"""Units that are vouched for are those that were derived, whatever became of the files."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from chaos.sim.disk import SimulatedDisk
from store import unit_marks
from store.consumequeue import ConsumeQueues
from store.dispatch import UNIT, UNIT_SIZE
from store.unit_marks import UnitMarks

DATA = Path("/data")
A_FILE = 40  # units


def unit(offset: int) -> bytes:
    return UNIT.pack(100 * offset, 100, offset * 7 % 31)


def units(first: int, end: int) -> bytes:
    return b"".join(map(unit, range(first, end)))


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_marks, "STEP", 8)


def queues_on(disk: SimulatedDisk) -> ConsumeQueues:
    return ConsumeQueues(DATA, disk, units_per_file=A_FILE)


def flip(disk: SimulatedDisk, bit: int) -> None:
    at, of_byte = divmod(bit, 8)
    base = at - at % (A_FILE * UNIT_SIZE)
    disk.flip(DATA / "consumequeue" / "t" / "0" / f"{base:020}", at - base, of_byte)


@given(st.data())
def test_nothing_else_is_vouched_for(data: st.DataObject) -> None:
    """Dispatched in pieces, or found to be right at a start, or mended; with bits that flipped."""
    disk = SimulatedDisk()
    queues = queues_on(disk)
    end = 0
    for size in data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=8)):
        queues.dispatch("t", 0, end, units(end, end + size))
        end += size
    begins = data.draw(st.sampled_from(("as it is", "a start", "unknown", "begins later")))
    if begins == "begins later":
        queues.begin_at("t", 0, data.draw(st.integers(0, end)))
        queues.drop_unneeded("t", 0)
    elif begins != "as it is":
        queues.flush()
        queues = queues_on(disk)
        queues.look()
        queues.expect("t", 0, end)
        if begins == "a start":
            assert queues.bears_out("t", 0, end, crc32c(units(0, end)))
    more = data.draw(st.integers(0, 12))
    if more:
        queues.dispatch("t", 0, end, units(end, end + more))
        end += more
    low = queues.min_offset("t", 0)
    if low < end:  # else nothing is left that could flip
        for bit in data.draw(st.lists(st.integers(8 * UNIT_SIZE * low, 8 * UNIT_SIZE * end - 1))):
            flip(disk, bit)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(low, end))
        queues.mend("t", 0, at, units(at, end))
    for _ in range(8):
        first = data.draw(st.integers(low, end))
        count = data.draw(st.integers(0, end))
        found, sure = queues.vouched("t", 0, first, count)
        assert found == queues.units("t", 0, first, count)
        assert 0 <= sure <= len(found) // UNIT_SIZE
        assert found[: sure * UNIT_SIZE] == units(first, first + sure)


def test_what_is_right_is_vouched_for() -> None:
    """All of it, also after a start, and what is added since."""
    disk = SimulatedDisk()
    queues = queues_on(disk)
    for at in range(0, 100, 5):
        queues.dispatch("t", 0, at, units(at, at + 5))
    assert queues.vouched("t", 0, 3, 90) == (units(3, 93), 90)
    queues.flush()
    queues = queues_on(disk)
    queues.look()
    queues.expect("t", 0, 100)
    assert queues.vouched("t", 0, 0, 100) == (units(0, 100), 0)
    assert queues.bears_out("t", 0, 100, crc32c(units(0, 100)))
    queues.dispatch("t", 0, 100, units(100, 117))
    assert queues.vouched("t", 0, 0, 200) == (units(0, 117), 117)
    flip(disk, 8 * UNIT_SIZE * 50)
    assert queues.vouched("t", 0, 0, 200)[1] == 48  # the marks are at every eighth
    assert queues.mend("t", 0, 40, units(40, 60)) == 1
    assert queues.vouched("t", 0, 0, 200) == (units(0, 117), 117)
    queues.begin_at("t", 0, 13)
    assert queues.vouched("t", 0, 16, 90) == (units(16, 106), 90)
    with_new = units(0, 117)
    queues.delete_topic("t")
    queues.dispatch("t", 0, 0, with_new[:UNIT_SIZE])
    assert queues.vouched("t", 0, 0, 9) == (with_new[:UNIT_SIZE], 1)


def test_what_was_mended_from_the_front_on_is_known() -> None:
    """At a start that found it wrong nothing was."""
    disk = SimulatedDisk()
    queues = queues_on(disk)
    queues.dispatch("t", 0, 0, units(0, 50))
    queues.flush()
    flip(disk, 8 * UNIT_SIZE * 11)
    queues = queues_on(disk)
    queues.look()
    queues.expect("t", 0, 50)
    assert not queues.bears_out("t", 0, 50, crc32c(units(0, 50)))
    queues.dispatch("t", 0, 50, units(50, 60))
    for at in range(0, 60, 20):
        queues.mend("t", 0, at, units(at, at + 20))
    assert queues.vouched("t", 0, 0, 60) == (units(0, 60), 60)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12), st.data())
def test_marks_that_were_forgotten_are_missed_by_nobody(
    moves: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Of what the queue still has the same is known, however often its front moves."""
    first = data.draw(st.integers(0, 20))
    begin, kept, all_of_them = first, UnitMarks(first, 7), UnitMarks(first, 7)
    for added, gone in moves:
        end = kept.end + added
        kept.extend(units(kept.end, end))
        all_of_them.extend(units(all_of_them.end, end))
        begin = min(begin + gone, end)
        kept.forget_before(begin)
        assert len(kept) <= (end - begin) // unit_marks.STEP + 2
        assert (kept.end, kept.crc) == (all_of_them.end, all_of_them.crc)
        low, high = kept.around(begin, end)
        assert (low, high) == all_of_them.around(begin, end)
        found = units(low, data.draw(st.integers(low, high))) + units(0, high)
        found = found[: (high - low) * UNIT_SIZE]
        assert kept.proven(low, found) == all_of_them.proven(low, found)


def test_a_queue_whose_front_moves_keeps_its_marks_and_no_others() -> None:
    """A queue of years has had any number of units; what it has left counts."""
    queues = queues_on(SimulatedDisk())
    for at in range(0, 8_000, 40):
        queues.dispatch("t", 0, at, units(at, at + 40))
        queues.begin_at("t", 0, at + 13)
        assert queues.vouched("t", 0, at + 16, 80)[1] == 24  # from the first mark in it
    assert len(queues._marks[("t", 0)]) < 8


def test_marks_that_end_before_the_queue_begins_are_begun_anew() -> None:
    """They would learn nothing more, and nothing more of the queue would be vouched for."""
    disk = SimulatedDisk()
    queues = queues_on(disk)
    queues.dispatch("t", 0, 0, units(0, 50))
    queues.flush()
    queues = queues_on(disk)
    queues.look()
    queues.expect("t", 0, 50)
    queues.mend("t", 0, 0, units(0, 20))
    queues.begin_at("t", 0, 30)
    queues.dispatch("t", 0, 50, units(50, 60))
    assert queues.vouched("t", 0, 50, 10) == (units(50, 60), 10)

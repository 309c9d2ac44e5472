"""A disk that stalls while the log grows: nothing is looked for where it isn't yet."""

from __future__ import annotations

from store.segments import DENSE_SEGMENTS
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import LogUnderTest


def test_entries_of_many_unwritten_segments_are_found() -> None:
    """More segments than keep every start in memory wait for the flusher: their entries are known
    all the same (found by the simulator: the log was taken for corrupt)."""
    made = LogUnderTest(SimulatedDisk())
    while made.log.statistics().segments <= 2 * DENSE_SEGMENTS:
        made.append(b"x" * 700)
    places = [made.log.position_of(index) for index in range(1, made.log.last_index + 1)]
    assert places == sorted(places)
    made.flush()
    for index, place in enumerate(places, start=1):
        assert made.log.header_at(index).physical_offset == place

"""Room in a log: what is promised of it is had, also once a tail is cut off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger.reading.entry import FILLER_HEADER_SIZE, HEADER_SIZE, walk_frames
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import SEGMENT, LogUnderTest, all_frames

BODY = st.integers(0, SEGMENT - HEADER_SIZE - FILLER_HEADER_SIZE)
BODIES = st.lists(BODY, min_size=1, max_size=12)


def log_of(sizes: list[int]) -> LogUnderTest:
    """A log of bodies of such sizes; that it made segments for them has left it some spares."""
    made = LogUnderTest(SimulatedDisk())
    for size in sizes:
        made.append(bytes(size))
    made.flush()
    return made


@given(
    sizes=BODIES,
    kept=st.integers(0, 12),
    frame_bytes=st.integers(1, 5 * SEGMENT),
    is_full=st.booleans(),
)
def test_room_behind_an_entry_is_what_there_is_once_the_rest_is_cut(
    sizes: list[int], kept: int, frame_bytes: int, *, is_full: bool
) -> None:
    """Before and after the cut it is the same, and nothing that fits behind a tail doesn't fit in
    its place."""
    made = log_of(sizes)
    log = made.log
    if is_full:
        made.disk.capacity_bytes = 0
    last = min(kept, log.last_index)
    at_the_end, told = log.has_room(frame_bytes), log.has_room_behind(last, frame_bytes)
    assert told or not at_the_end
    if last < log.last_index:
        log.truncate_from(last + 1)
    assert log.has_room(frame_bytes) == told


@given(sizes=BODIES, kept=st.integers(0, 12), others=BODIES)
def test_frames_for_which_there_is_room_behind_an_entry_are_taken_by_a_full_disk(
    sizes: list[int], kept: int, others: list[int]
) -> None:
    """In one piece of work with the cut, and no byte of it needs more space than there is."""
    made, leader = log_of(sizes), log_of(sizes)
    last = min(kept, made.log.last_index)
    if last < leader.log.last_index:
        leader.log.truncate_from(last + 1)
    for size in others:
        leader.append(bytes(size), term=2)
    frames = leader.log.read(last + 1, leader.log.last_index)
    made.disk.fill_up(0)
    if not made.log.has_room_behind(last, len(frames)):
        return
    if last < made.log.last_index:
        made.log.truncate_from(last + 1)
    made.log.append_frames(frames, walk_frames(frames))
    made.flush()
    assert made.failures == []
    assert made.durable[-1] == made.ticket
    assert all_frames(made.log) == all_frames(leader.log)
    made.disk.kill()
    assert all_frames(LogUnderTest(made.disk).log) == all_frames(leader.log)

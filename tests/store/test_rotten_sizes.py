"""Sizes that have rotted in old segments, where entries are found by way of them: nobody is led to
a wrong place, what a read stumbles over is the damage, and once it is put right all is found."""

from __future__ import annotations

from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.reading.entry import HEADER_SIZE, EntryKind, build_frame
from dledger.records.layout import file_name
from store.commitlog import CommitLog, CommitLogOptions
from store.errors import CorruptionFound
from tests.scale import examples
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import LOG, LogUnderTest

SEGMENT = 160 << 10
OPTIONS = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0, cache_bytes=0)
FRAME = 1 << 10  # of each entry, so that a wrong size leads to where another one begins
COUNT = 2 * SEGMENT // FRAME  # entries; the third segment has some as well
OLD = LOG / file_name(0)
IN_OLD = (SEGMENT - 8) // FRAME  # so many entries are in the first segment
SIZE_BITS = 32


def body_of(index: int) -> bytes:
    """What that entry holds, unless told."""
    return index.to_bytes(2, "big") * ((FRAME - HEADER_SIZE) // 2)


def old_log(body: bytes = bytes(FRAME - HEADER_SIZE), at: int = 0) -> LogUnderTest:
    """A log that knows where few entries begin, as one of an hour ago does. Entry `at` holds
    `body`."""
    made = LogUnderTest(SimulatedDisk(), OPTIONS)
    for index in range(1, COUNT + 1):
        made.append(body if index == at else body_of(index))
        if index % 50 == 0:
            made.flush()
    made.flush()
    table = made.log._table
    for segment in table.segments[:-1]:
        segment.starts.forget(partial(table._walked, segment))
    return made


@cache
def uniform() -> LogUnderTest:
    """Always the same one; whoever spoils it puts it right."""
    return old_log()


def flip(disk: SimulatedDisk, index: int, bit: int) -> None:
    """That bit of the entry's size is another one, the highest first."""
    disk.bytes_of(OLD)[(index - 1) * FRAME + bit // 8] ^= 0x80 >> bit % 8


def check_found(log: CommitLog, index: int) -> None:
    """That entry is found, by its number and by its place."""
    place = (index - 1) * FRAME
    assert log.position_of(index) == place
    assert log.index_at(place) == log.index_at(place + FRAME - 1) == index


def check_all(log: CommitLog) -> None:
    """Every entry is found, and can be read."""
    for index in range(1, IN_OLD + 1):
        check_found(log, index)
        assert len(log.read(index, index)) == FRAME


@settings(max_examples=examples(40), deadline=None)
@given(
    index=st.integers(1, IN_OLD),
    bit=st.integers(0, SIZE_BITS - 1) | st.integers(12, 21),
    looked_at=st.lists(st.integers(1, IN_OLD), min_size=1, max_size=6),
)
def test_wrong_size_leads_nobody_astray(index: int, bit: int, looked_at: list[int]) -> None:
    """Whichever bit of whichever entry: a reader finds the right bytes, or stumbles, and then it
    says a place in which the damage begins with this very entry. A place that is sound would be
    asked to be put right for ever."""
    made = uniform()
    log = made.log
    log.damages.locate(str(OLD), 0)  # what was walked by the example before is forgotten
    flip(made.disk, index, bit)
    try:
        for each in looked_at:
            try:
                check_found(log, each)
                assert log.read(each, each)[HEADER_SIZE:] == body_of(each)
            except CorruptionFound as error:
                damage = log.damages.locate(error.file, error.offset)
                assert damage is not None
                assert damage.first_index == index <= damage.last_index
    finally:
        flip(made.disk, index, bit)
    assert log.damages.locate(str(OLD), (index - 1) * FRAME) is None
    check_all(log)


LIAR, INSIDE = 20, 512  # the entry whose body looks like another one, and from which byte on


def misled_log(claimed_index: int) -> tuple[LogUnderTest, bytes]:
    """A log in which a size has rotted and leads into its entry's own body, to what looks like an
    entry of that index, at that very place, with the right one behind it; and the file as it
    was."""
    place = (LIAR - 1) * FRAME + INSIDE
    rest = bytes(2 * FRAME - INSIDE - HEADER_SIZE)
    head, _ = build_frame(EntryKind.COMMAND, claimed_index, 1, place, 0, 0, rest, 0)
    body = bytes(INSIDE - HEADER_SIZE) + head
    made = old_log(body + bytes(FRAME - HEADER_SIZE - len(body)), LIAR)
    content = made.disk.bytes_of(OLD)
    whole = bytes(content)
    content[place - INSIDE : place - INSIDE + 4] = INSIDE.to_bytes(4, "big")
    return made, whole


@pytest.mark.parametrize("claimed_index", [LIAR, LIAR + 2])
def test_what_looks_like_another_entry_is_none(claimed_index: int) -> None:
    """Also where the walk goes on from it as if nothing had been."""
    made, whole = misled_log(claimed_index)
    with pytest.raises(CorruptionFound) as found:
        made.log.position_of(LIAR + 1)
    damage = made.log.damages.locate(found.value.file, found.value.offset)
    assert damage is not None
    assert damage.first_index == LIAR
    made.disk.bytes_of(OLD)[:] = whole
    check_all(made.log)


def test_what_a_body_says_of_entries_is_forgotten_once_the_place_is_sound() -> None:
    """Whoever chooses a body can write into it what looks like the next entry, with its number, and
    nothing tells it from that without its CRC. Whoever has been there must not go there again."""
    made, whole = misled_log(LIAR + 1)
    log = made.log
    with pytest.raises(CorruptionFound) as found:
        log.read(LIAR + 1, LIAR + 1)
    damage = log.damages.locate(found.value.file, found.value.offset)
    assert damage is not None
    assert damage.first_index == LIAR
    made.disk.bytes_of(OLD)[:] = whole
    assert log.damages.locate(found.value.file, found.value.offset) is None
    check_all(log)

"""How far the scrub has come, over processes: it orders the work, and vouches for nothing."""

from __future__ import annotations

from functools import partial

import pytest

from dledger.reading.entry import HEADER_SIZE
from dledger.records.layout import file_name
from store.commitlog import CommitLog
from store.directory import write_sealed
from store.errors import CorruptionFound
from store.scrub_note import FORMAT_VERSION, NAME, NOTHING, ScrubNote, ScrubPlace
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import BODIES, DATA, LOG, SEGMENT, LogUnderTest, stopped_log

NOW_MS = 1_700_000_000_000


def pass_from(log: CommitLog, place: int) -> int:
    """A whole pass; how many bytes it has looked at itself."""
    log.scrub.begin(log.last_index, place)
    before = log.scrub.checked_bytes
    while not log.scrub.is_over:
        log.scrub.finish(log.scrub.step()())
    return log.scrub.checked_bytes - before


def is_whole(log: CommitLog) -> bool:
    return log.scrub.is_whole


def sparse(disk: SimulatedDisk) -> LogUnderTest:
    """A log that knows where few entries begin, as one of an hour ago does."""
    made = LogUnderTest(disk)
    for segment in made.log._table.segments[:-1]:
        segment.starts.forget(partial(made.log._table._walked, segment))
    return made


@pytest.mark.parametrize("opened", [LogUnderTest, sparse], ids=["dense", "sparse"])
def test_pass_goes_on_where_it_was_and_the_next_one_looks_at_everything(opened: type) -> None:
    """From every byte of the log, and from bytes that are none."""
    sound = stopped_log(clean=False)
    whole = pass_from(LogUnderTest(sound.clone()).log, 0)
    end = LogUnderTest(sound.clone()).log.end_offset
    for place in [*range(0, end + 20, 53), 1 << 50]:
        log = opened(sound.clone()).log
        left = pass_from(log, place)
        if place < end:
            assert left >= whole - place
        assert left <= whole
        assert log.scrub.pass_bytes == log.scrub.pass_total_bytes
        assert pass_from(log, 0) == whole


def test_what_has_rotted_before_the_place_is_found_by_the_next_pass() -> None:
    """A note that says more than is so hides nothing for longer than a pass."""
    disk = stopped_log(clean=False)
    log = LogUnderTest(disk).log
    place = log.position_of(6)
    disk.bytes_of(LOG / file_name(0))[log.position_of(1) + 100] ^= 1
    pass_from(log, place)
    with pytest.raises(CorruptionFound) as found:
        pass_from(log, 0)
    assert found.value.file == str(LOG / file_name(0))


def test_pass_is_whole_if_it_has_looked_at_all_of_something() -> None:
    """Where a damage is passed over, wherever it is, it isn't, and the next one may be again; a log
    of which nothing is committed yet wasn't looked at."""
    disk = stopped_log(clean=False)
    log = LogUnderTest(disk).log
    log.scrub.begin(0)
    assert not is_whole(log)
    pass_from(log, 0)
    assert is_whole(log)
    for index in range(1, log.last_index + 1):
        segment, slot = log._table.locate(index)
        byte = disk.bytes_of(segment.path)
        at = log.position_of(index) - segment.base + HEADER_SIZE
        byte[at] ^= 1
        log.scrub.begin(log.last_index)
        while not log.scrub.is_over:
            step = log.scrub.step()
            try:
                log.scrub.finish(step())
            except CorruptionFound:
                log.scrub.pass_over(segment.end_of(slot))
        assert not is_whole(log)
        byte[at] ^= 1
        pass_from(log, 0)
        assert is_whole(log)


def test_note_says_what_was_written() -> None:
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    note = ScrubNote(disk, DATA)
    assert note.read(NOW_MS) == NOTHING
    written = ScrubPlace(3 * SEGMENT + 7, 2_000, NOW_MS - 5, 9_000)
    note.write(written)
    assert note.read(NOW_MS) == written


@pytest.mark.parametrize(
    "fields",
    [
        {"place": -1, "worked_ms": 0, "ended_ms": 0, "took_ms": 0},
        {"place": 1 << 62, "worked_ms": 0, "ended_ms": 0, "took_ms": 0},
        {"place": "7", "worked_ms": 0, "ended_ms": 0, "took_ms": 0},
        {"place": 7, "worked_ms": 0, "ended_ms": 0},
        {"format_version": 9, "place": 7, "worked_ms": 0, "ended_ms": 0, "took_ms": 0},
    ],
    ids=["negative", "beyond any log", "no number", "one is missing", "another version"],
)
def test_note_that_can_not_be_says_nothing(fields: dict[str, object]) -> None:
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    write_sealed(disk, DATA / NAME, {"format_version": FORMAT_VERSION, **fields})
    assert ScrubNote(disk, DATA).read(NOW_MS) == NOTHING


def test_no_pass_has_ended_in_the_future_and_a_rotten_note_is_none() -> None:
    """Else a step of the clock would silence whoever waits for the next pass."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    note = ScrubNote(disk, DATA)
    note.write(ScrubPlace(ended_ms=NOW_MS + 10_000))
    assert note.read(NOW_MS).ended_ms == NOW_MS
    disk.bytes_of(DATA / NAME)[5] ^= 1
    assert note.read(NOW_MS) == NOTHING
    assert BODIES

"""How long the group had lived at an entry is read from the log, where nobody knows any more."""

from __future__ import annotations

import asyncio

import pytest

from broker.leader.lived_marks import Mark
from broker.lived_reader import SLICE_ENTRIES, LivedReader, Point
from broker.state.lived_time import MAX_GAP_MS
from dledger.reading.entry import EntryKind
from dledger.records.layout import ENTRY, file_name
from dledger.resting import LONGEST_REST_S
from store.commitlog import CommitLogOptions
from store.errors import CorruptionFound
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import LOG, SEGMENT, LogUnderTest

FOUNDED_MS = 1_780_000_000_000
YEAR_MS = 365 * 24 * 3_600_000
SECOND_MS = 1_000
OPTIONS = CommitLogOptions(segment_size_bytes=SEGMENT << 6, reserve_bytes=0, cache_bytes=0)
ENTRIES = 3 * SLICE_ENTRIES
STEP = SLICE_ENTRIES + 10  # whose time is a year later
BEGIN = Point(2, FOUNDED_MS + 2 * SECOND_MS, 1_000)


def time_of(index: int) -> int:
    return FOUNDED_MS + index * SECOND_MS + (YEAR_MS if index >= STEP else 0)


def lived_at(index: int) -> int:
    return (index - 1) * SECOND_MS + (MAX_GAP_MS - SECOND_MS if index >= STEP else 0)


def filled() -> LogUnderTest:
    """An entry each second, and one that is a year later; all in files only."""
    made = LogUnderTest(SimulatedDisk(), OPTIONS)
    for index in range(1, ENTRIES + 1):
        made.log.append(EntryKind.COMMAND, index, 1, time_of(index), 0, bytes(100))
    made.flush()
    made.append(b"last")
    made.flush()
    return made


def read(reader: LivedReader, made: LogUnderTest, begin: Point, through: int) -> None:
    asyncio.run(reader.read_on(made.log, begin, through))


@pytest.mark.parametrize("through", [2, 3, STEP - 1, STEP, STEP + 1, ENTRIES])
def test_what_is_read_is_how_long_the_group_had_lived(through: int) -> None:
    reader = LivedReader()
    read(reader, filled(), BEGIN, through)
    now = Mark(time_of(ENTRIES), lived_at(ENTRIES))
    known = reader.marks.since(Mark(BEGIN.time_ms, BEGIN.lived_ms), now)
    age_ms = lived_at(ENTRIES) - lived_at(through)
    assert known.age_at_least(time_of(through)) == age_ms == known.age_at_most(time_of(through))


def reads_of(made: LogUnderTest) -> list[tuple[int, int]]:
    """What is read of the log from now on."""
    reads, honest = [], made.log.read

    def reading(first: int, last: int) -> bytes:
        reads.append((first, last))
        return honest(first, last)

    made.log.read = reading  # type: ignore[method-assign]
    return reads


def test_a_look_reads_some_of_it_and_the_next_goes_on() -> None:
    """However long a segment is, a look takes no more than its part; and what has been read isn't
    read again."""
    reader, made = LivedReader(look_bytes=1), filled()
    reads, counts = reads_of(made), []
    for _ in range(5):
        read(reader, made, BEGIN, ENTRIES - 1)
        counts.append(len(reads))
    assert reads == [(3, 258), (259, 514), (515, 767)]
    assert counts == [1, 2, 3, 3, 3]


def test_a_log_that_begins_later_by_now_is_read_from_there() -> None:
    reader, made = LivedReader(look_bytes=1), filled()
    read(reader, made, BEGIN, ENTRIES)
    reads = reads_of(made)
    begin = Point(STEP + 5, time_of(STEP + 5), lived_at(STEP + 5))
    for _ in range(3):
        read(reader, made, begin, ENTRIES)
    assert reads[0][0] == STEP + 6
    assert reader.marks._marks[-1] == Mark(time_of(ENTRIES), lived_at(ENTRIES))


def test_nothing_is_read_of_a_log_that_has_let_it_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two slices, or before the first: the next look knows where it begins."""
    made, reader = filled(), LivedReader()
    monkeypatch.setattr(type(made.log), "first_index", 4)
    read(reader, made, BEGIN, ENTRIES)
    assert not reader.marks._marks


def test_a_slice_that_was_held_up_is_followed_by_a_short_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by the process's being stopped for an hour: it worked for none of that time."""
    made, rests, stood_s = filled(), list[float](), 0.0
    honest = made.log.read

    def held_up(first: int, last: int) -> bytes:
        nonlocal stood_s
        stood_s += 3_600.0
        return honest(first, last)

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        time_s = loop.time
        loop.time = lambda: time_s() + stood_s  # type: ignore[method-assign]
        await LivedReader().read_on(made.log, BEGIN, ENTRIES)

    made.log.read = held_up  # type: ignore[method-assign]
    monkeypatch.setattr(asyncio, "sleep", rest)
    asyncio.run(work())
    assert rests == [LONGEST_REST_S] * 3


def test_no_time_that_has_rotted_is_taken_for_one() -> None:
    made = filled()
    at = made.log.position_of(STEP - 3) + ENTRY.at("append_time_ms") + 2
    made.disk.flip(LOG / file_name(0), at, 1)
    reader = LivedReader()
    with pytest.raises(CorruptionFound):
        read(reader, made, BEGIN, ENTRIES)
    assert all(mark.time_ms < time_of(STEP - 3) for mark in reader.marks._marks)

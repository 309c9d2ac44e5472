"""What a leader reads of its log's front: whatever has rotted there, nothing goes by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.front import LogFront
from broker.leader.retention import Rules, first_kept
from broker.state.lived_time import LivedTime
from broker.state.log_start import RetiredThrough
from dledger.core.types import NodeId
from dledger.disk_figures import DiskFigure
from dledger.reading.entry import HEADER_SIZE, EntryKind
from dledger.records.layout import ENTRY, file_name
from store.commitlog import CommitLogOptions
from store.errors import CorruptionFound
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import LOG, SEGMENT, LogUnderTest

ENTRIES = 12
MINUTE_MS = 60_000
FOUNDED_MS = 1_780_000_000_000
OPTIONS = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0, cache_bytes=0)
RULES = [Rules(age_ms=n * MINUTE_MS) for n in (1, 5, 8, 11, 60)]


def filled() -> LogUnderTest:
    """Two entries a segment, one each minute, all in files only."""
    made = LogUnderTest(SimulatedDisk(), OPTIONS)
    for index in range(1, ENTRIES + 1):
        if not made.log.has_room(HEADER_SIZE + 1500):
            made.preallocate()
        time_ms = FOUNDED_MS + index * MINUTE_MS
        made.log.append(EntryKind.COMMAND, index, 1, time_ms, 0, bytes(1500))
        made.flush()
    made.append(b"last")
    made.flush()
    return made


def front_of(made: LogUnderTest) -> LogFront:
    lived = LivedTime((ENTRIES - 1) * MINUTE_MS)
    whole = RetiredThrough()
    machine = SimpleNamespace(
        applied_index=made.log.last_index,
        append_time_ms=made.log.header_at(ENTRIES).append_time_ms,
        lived_time=lived,
        log_start=whole,
    )
    unused = cast("Any", None)
    return LogFront(NodeId("n1"), made.log, cast("Any", machine), 90, dict, lambda _: True, unused)


async def kept_by(front: LogFront) -> list[int | None]:
    """What has to be kept by each of the rules."""
    measured = await front.measured()
    return [first_kept(front.full_segments(64), measured, rules) for rules in RULES]


def header_bits(made: LogUnderTest, index: int) -> Iterator[tuple[int, int]]:
    """Each byte of the entry's header, by its physical offset, and each bit of it."""
    begin = made.log.position_of(index)
    for at in range(begin, begin + HEADER_SIZE):
        for bit in range(8):
            yield at, bit


@pytest.mark.parametrize("index", [1, 2, 4, 6, 8, 10])
def test_no_flipped_bit_of_a_header_lets_anything_go(index: int) -> None:
    """The entries are those that are looked at: the first two, and the last one of each segment."""
    made = filled()
    sound = asyncio.run(kept_by(front_of(made)))
    assert sound == [11, 7, 3, None, None], "some of it goes by some of the rules"
    times = range(ENTRY.at("append_time_ms"), ENTRY.at("append_time_ms") + 8)
    refused = 0
    for at, bit in header_bits(made, index):
        path, within = LOG / file_name(at - at % SEGMENT), at % SEGMENT
        made.disk.flip(path, within, bit)
        try:
            assert asyncio.run(kept_by(front_of(made))) == sound
        except CorruptionFound as error:
            is_there = error.file == str(path)
            refused += is_there and within - made.log.position_of(index) % SEGMENT in times
        made.disk.flip(path, within, bit)
    assert refused == 64, "whoever reads a time that has rotted says so"


def test_who_is_behind_lets_nothing_more_go_for_its_own_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It frees nothing here, whatever is decided: one segment an hour would go for nothing."""
    front = front_of(filled())
    full = {NodeId(name): DiskFigure(1, 100) for name in ("n1", "n2")}
    front = replace(front, disks=lambda: full)
    for is_behind, whose in ((False, {"n1", "n2"}), (True, {"n2"})):
        monkeypatch.setattr(LogFront, "is_behind", lambda _, is_behind=is_behind: is_behind)
        assert asyncio.run(front.measured()).in_need == whose


YEAR_MS = 365 * 24 * 60 * MINUTE_MS


def stepped(at: int) -> LogFront:
    """The same log, by whose time a year passed before that entry."""
    made = LogUnderTest(SimulatedDisk(), OPTIONS)
    for index in range(1, ENTRIES + 2):
        if not made.log.has_room(HEADER_SIZE + 1500):
            made.preallocate()
        time_ms = FOUNDED_MS + index * MINUTE_MS + (YEAR_MS if index >= at else 0)
        made.log.append(EntryKind.COMMAND, index, 1, time_ms, 0, bytes(1500))
        made.flush()
    return front_of(made)


@pytest.mark.parametrize("at", range(3, ENTRIES))
def test_a_step_of_the_logs_time_keeps_nothing_back(at: int) -> None:
    """A minute each was lived, whatever the log's time says of one of them. Its leader wasn't
    there, and reads it: what is old is known to be."""
    front = stepped(at)

    async def looked() -> list[int | None]:
        for last in (2, 4, 6, 8, 10):
            await front.read_on(last)
        return await kept_by(front)

    assert asyncio.run(looked()) == [11, 7, 3, None, None]


def test_who_was_there_reads_nothing() -> None:
    """A look before the step and one behind it."""
    front = stepped(6)
    machine = cast("Any", front.machine)
    lived_ms, now_ms = machine.lived_time.lived_ms, machine.append_time_ms
    for index in (5, 7):
        machine.lived_time.lived_ms = (index - 1) * MINUTE_MS
        machine.append_time_ms = FOUNDED_MS + index * MINUTE_MS + (YEAR_MS if index > 5 else 0)
        front.note_lived()
    machine.lived_time.lived_ms, machine.append_time_ms = lived_ms, now_ms
    assert asyncio.run(kept_by(front)) == [11, 7, 3, None, None]

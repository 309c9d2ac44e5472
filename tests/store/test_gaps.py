"""Gaps of a log that a start finds: where they are, and what may fill them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.reading.entry import frame_crc, parse_header
from dledger.records.errors import InvalidFrame
from dledger.records.layout import ENTRY, file_name
from store.errors import CorruptionFound, GapFound
from store.gap import Gap, GapFilling
from store.gap_files import GapFiles
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import (
    BODIES,
    DATA,
    LOG,
    SEGMENT,
    LogUnderTest,
    all_frames,
    make_log,
    stopped_log,
)


def frames_of(disk: SimulatedDisk) -> dict[int, bytes]:
    """Every entry's frame, by index."""
    log = LogUnderTest(disk.clone()).log
    return {index: log.read(index, index) for index in range(1, log.last_index + 1)}


def places_of(disk: SimulatedDisk) -> list[tuple[int, int]]:
    """Physical offsets, first and behind, of each entry."""
    headers = [parse_header(frame, 0) for frame in frames_of(disk).values()]
    return [(each.physical_offset, each.physical_offset + each.total_size) for each in headers]


def flip(disk: SimulatedDisk, place: int) -> None:
    disk.bytes_of(LOG / file_name(place - place % SEGMENT))[place % SEGMENT] ^= 0x10


def gaps_of(disk: SimulatedDisk) -> tuple[Gap, ...]:
    with pytest.raises(GapFound) as found:
        LogUnderTest(disk.clone())
    return found.value.holes.gaps


def fill(disk: SimulatedDisk, giver: dict[int, bytes]) -> None:
    """All gaps, as a start that has asked does it."""
    files = GapFiles(disk, DATA, SEGMENT)
    for gap in gaps_of(disk):
        filling = files.begin(gap)
        for index in range(gap.first_index, gap.last_index + 1):
            assert filling.take(giver[index]) == (index == gap.last_index)
        files.write(filling)


def segments(disk: SimulatedDisk) -> dict[Path, bytes]:
    return {path: bytes(disk.bytes_of(path)) for path in disk.paths() if path.parent == LOG}


def every_place(disk: SimulatedDisk) -> Iterator[int]:
    """Bytes of entries and of fillers that have an intact entry behind them."""
    end = places_of(disk)[-1][0]
    yield from (place for place in range(0, end, 7))


def test_whatever_rots_before_the_last_entry_is_filled_to_the_byte() -> None:
    """Entries, the first of a segment, fillers: what the log was is what it is again."""
    sound = stopped_log(clean=False)
    giver, before = frames_of(sound), segments(sound)
    for place in every_place(sound):
        disk = sound.clone()
        flip(disk, place)
        fill(disk, giver)
        assert segments(disk) == before, place
        disk.power_cut()
        assert all_frames(LogUnderTest(disk).log) == b"".join(giver.values())


def test_two_places_are_two_gaps_and_two_that_touch_are_one() -> None:
    """As many entries as lie between what is intact."""
    sound = stopped_log(clean=False)
    places = places_of(sound)
    disk = sound.clone()
    for index in (2, 5):
        flip(disk, places[index - 1][0] + 60)
    assert [(gap.first_index, gap.last_index) for gap in gaps_of(disk)] == [(2, 2), (5, 5)]
    fill(disk, frames_of(sound))
    assert segments(disk) == segments(sound)
    disk = sound.clone()
    for index in (3, 4, 5):
        flip(disk, places[index - 1][0] + 60)
    (gap,) = gaps_of(disk)
    assert (gap.first_index, gap.last_index) == (3, 5)
    assert gap.start == places[1][1]
    fill(disk, frames_of(sound))
    assert segments(disk) == segments(sound)


def test_entry_alone_between_two_that_have_rotted_is_part_of_the_gap() -> None:
    """Nothing that goes on from it says that it is the log's."""
    sound = stopped_log(clean=False)
    disk = sound.clone()
    for index in (2, 4):
        flip(disk, places_of(sound)[index - 1][0] + 60)
    (gap,) = gaps_of(disk)
    assert (gap.first_index, gap.last_index) == (2, 4)


def test_write_that_the_disk_has_lost_ends_no_gap() -> None:
    """What was there before is intact, of an older term: the log goes on behind it."""
    made = make_log(BODIES[:2])
    made.append(b"old" * 20, term=2)
    made.flush()
    old = made.log.read(3, 3)
    at = parse_header(old, 0).physical_offset
    made.log.truncate_from(3)
    made.flush()
    for number in range(4):
        made.append(bytes([number]) * 60, term=3)
        made.flush()
    made.disk.kill()
    sound, disk = made.disk, made.disk.clone()
    disk.bytes_of(LOG / file_name(0))[at : at + len(old)] = old
    flip(disk, places_of(sound)[1][0])
    (gap,) = gaps_of(disk)
    assert (gap.first_index, gap.behind.index, gap.behind.term) == (2, 4, 3)
    fill(disk, frames_of(sound))
    assert segments(disk) == segments(sound)


def test_term_of_what_is_missing_is_known_within_a_term_only() -> None:
    """By it a single entry is asked for, and this log's own is taken where a peer ends: one that a
    lost write has left behind may lie there."""
    made = make_log([])
    for number in range(9):
        made.append(bytes([number]) * 60, term=2 + number // 5)
        made.flush()
    made.disk.kill()
    for index in range(2, 8):
        disk = made.disk.clone()
        flip(disk, places_of(made.disk)[index - 1][0] + 60)
        (gap,) = gaps_of(disk)
        is_between_terms = index in (5, 6)
        expected = None if is_between_terms else gap.behind.term
        assert GapFiles(disk, DATA, SEGMENT).begin(gap).next_term() == expected


def test_last_entry_that_has_rotted_is_nobodys_to_give() -> None:
    """Nothing behind it proves what it was."""
    sound = stopped_log(clean=False)
    flip(sound, places_of(sound)[-1][0] + 10)
    with pytest.raises(CorruptionFound) as found:
        LogUnderTest(sound)
    assert not isinstance(found.value, GapFound)


def test_log_without_a_checkpoint_has_gaps_as_well() -> None:
    sound = stopped_log(clean=False)
    sound.bytes_of(DATA / "checkpoint")[:] = bytes(len(sound.bytes_of(DATA / "checkpoint")))
    disk = sound.clone()
    flip(disk, places_of(sound)[2][0] + 60)
    fill(disk, frames_of(sound))
    assert segments(disk) == segments(sound)


def test_what_is_not_proven_is_not_taken() -> None:
    """Another entry, another digest, another place, fewer bytes, more: none is what was there."""
    sound = stopped_log(clean=False)
    disk = sound.clone()
    flip(disk, places_of(sound)[3][0] + 60)
    (gap,) = gaps_of(disk)
    giver = frames_of(sound)
    files = GapFiles(disk, DATA, SEGMENT)
    for wrong in (giver[3], giver[5], b""):
        with pytest.raises(InvalidFrame):
            files.begin(gap).take(wrong)
    other = make_log([*BODIES[:3], b"D" * 40, *BODIES[4:]])
    other.disk.kill()
    with pytest.raises(InvalidFrame):
        files.begin(gap).take(frames_of(other.disk)[4])


def test_other_bytes_under_the_right_digest_are_not_taken() -> None:
    """The digest that a frame carries is the giver's word; that of its bytes is what counts."""
    sound = stopped_log(clean=False)
    disk = sound.clone()
    flip(disk, places_of(sound)[3][0] + 60)
    (gap,) = gaps_of(disk)
    frame = bytearray(frames_of(sound)[4])
    frame[-1] ^= 1
    crc = frame_crc(memoryview(frame), 0, len(frame))
    at = ENTRY.at("crc")
    frame[at : at + 4] = crc.to_bytes(4, "big")
    with pytest.raises(InvalidFrame) as found:
        GapFiles(disk, DATA, SEGMENT).begin(gap).take(bytes(frame))
    assert found.value.field == "digest"


def test_what_nothing_here_goes_on_from_is_not_taken() -> None:
    """A chain that is sound in itself, and leads elsewhere."""
    sound = stopped_log(clean=False)
    disk = sound.clone()
    flip(disk, places_of(sound)[3][0] + 60)
    (gap,) = gaps_of(disk)
    other = make_log([*BODIES[:3], b"D" * 40])
    other.disk.kill()
    filling = GapFiles(disk, DATA, SEGMENT).begin(gap)
    with pytest.raises(InvalidFrame) as found:
        filling.take(frames_of(other.disk)[4])
    assert found.value.field == "digest"
    assert "follows" in str(found.value.expected)


def test_term_beyond_the_entry_behind_is_refused() -> None:
    sound = stopped_log(clean=False)
    disk = sound.clone()
    flip(disk, places_of(sound)[3][0] + 60)
    (gap,) = gaps_of(disk)
    later = replace(gap, behind=gap.behind._replace(term=0))
    with pytest.raises(InvalidFrame) as found:
        GapFilling(later, SEGMENT, b"").take(frames_of(sound)[4])
    assert found.value.field == "term"


def test_sector_that_is_lost_is_written_whole_or_not_at_all() -> None:
    """Of one that has entries in it which a start has passed over, the gap is only a part: the next
    start has to look at them as well."""
    disk = stopped_log(clean=False)
    place = places_of(disk)[2][0]
    flip(disk, place + 60)
    (gap,) = gaps_of(disk)
    assert gap.start == places_of(stopped_log(clean=False))[1][1]
    disk.lose_sector(LOG / file_name(gap.start - gap.start % SEGMENT), gap.start % SEGMENT - 1)
    files = GapFiles(disk, DATA, SEGMENT)
    with pytest.raises(CorruptionFound):
        files.begin(gap)
    assert not files.unseal(gap)
    disk.mkdir(DATA / "seal")
    seal = DATA / "seal" / file_name(gap.start - gap.start % SEGMENT)
    disk.create(seal)
    assert files.unseal(gap)
    assert not disk.exists(seal)

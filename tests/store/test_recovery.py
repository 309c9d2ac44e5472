"""Recovery: cut at every byte above the watermark, spoiled at every byte below it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from dledger.reading.checkpoint import PAGE_SIZE, decode_checkpoint
from dledger.reading.entry import FILLER_HEADER_SIZE
from dledger.records.layout import file_name
from store.errors import CorruptionFound
from tests.scale import stride
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import (
    BODIES,
    DATA,
    LOG,
    SEGMENT,
    LogUnderTest,
    all_frames,
    assert_zeros_behind,
    make_log,
    segment_paths,
    stopped_log,
)


def frame_ends(disk: SimulatedDisk) -> list[int]:
    """Physical offset behind each entry, ascending."""
    log = LogUnderTest(disk.clone()).log
    return [log.header_at(n).physical_offset + log.header_at(n).total_size for n in range(1, 8)]


def recover_and_go_on(disk: SimulatedDisk) -> LogUnderTest:
    """Opening works, appending works, and both survive a power cut."""
    made = LogUnderTest(disk)
    made.append(b"after the crash", term=9)
    made.flush()
    expected = all_frames(made.log)
    disk.power_cut()
    again = LogUnderTest(disk)
    assert all_frames(again.log) == expected
    assert again.log.last_term == 9
    return again


def every_byte(disk: SimulatedDisk, end: int) -> Iterator[tuple[Path, int]]:
    """Each byte of the log below physical offset `end`, fillers included."""
    for offset in range(end):
        yield LOG / file_name(offset - offset % SEGMENT), offset % SEGMENT


@pytest.mark.slow
def test_flip_at_every_durable_byte_is_corruption() -> None:
    """FAST'18: below the watermark nothing is cut; file and offset are named."""
    disk = stopped_log(clean=False)
    before = {path: bytes(disk.bytes_of(path)) for path in disk.paths()}
    for path, at in islice(every_byte(disk, frame_ends(disk)[-1]), 0, None, stride(3)):
        spoiled = disk.clone()
        spoiled.bytes_of(path)[at] ^= 1 << at % 8
        with pytest.raises(CorruptionFound) as found:
            LogUnderTest(spoiled)
        assert found.value.file == str(path)
        assert found.value.offset <= at
        assert found.value.expected is not None
        assert spoiled.bytes_of(path)[at] == before[path][at] ^ 1 << at % 8, "left untouched"


def test_corruption_names_the_frame_that_was_hit() -> None:
    """The offset is the frame's first byte; for a filler's zeros, the byte itself."""
    disk = stopped_log(clean=False)
    ends = frame_ends(disk)
    hits = [(0, 0), (20, 0), (ends[0], ends[0]), (ends[0] + 100, ends[0])]
    filler_at = ends[1]
    hits += [(filler_at, filler_at), (filler_at + 5, filler_at), (filler_at + 9, filler_at + 9)]
    for at, named in hits:
        spoiled = disk.clone()
        spoiled.bytes_of(LOG / file_name(0))[at] ^= 0x10
        with pytest.raises(CorruptionFound) as found:
            LogUnderTest(spoiled)
        assert (found.value.file, found.value.offset) == (str(LOG / file_name(0)), named)


@pytest.mark.slow
def test_log_torn_at_every_byte_above_the_watermark_recovers_its_longest_prefix() -> None:
    """A crash between write and fdatasync tears anywhere; what was promised stays."""
    made = make_log(BODIES[:2])
    watermark = made.log.end_offset
    kept = made.disk.clone()
    for body in BODIES[2:]:
        made.append(body)
    made.flush()
    whole, end = all_frames(made.log), made.log.end_offset
    ends = frame_ends(made.disk)
    torn_log = {path: bytes(made.disk.bytes_of(path)) for path in segment_paths(made.disk)}
    for at in range(watermark, end + 1, stride(3)):
        disk = kept.clone()
        write_prefix(disk, torn_log, at)
        log = LogUnderTest(disk).log
        count = sum(each <= at for each in ends)
        assert log.last_index == count
        assert whole.startswith(all_frames(log))
        assert log.recovery.end_offset == ends[count - 1]
        if at % 61 == 0:
            disk.kill()
            recover_and_go_on(disk)


def write_prefix(disk: SimulatedDisk, segments: dict[Path, bytes], end: int) -> None:
    """The log's bytes below physical offset `end` are on the disk, zeros behind them."""
    there = frozenset(disk.paths())
    for path, content in segments.items():
        if path not in there:
            disk.create(path)
        kept = max(0, end - int(path.name))
        disk.bytes_of(path)[:] = content[:kept] + bytes(SEGMENT - len(content[:kept]))


@pytest.mark.slow
def test_flip_at_every_byte_above_the_watermark_cuts_there() -> None:
    """Never promised, so torn, even with intact frames behind: pages reach a disk in any order."""
    made = make_log(BODIES[:2])
    checkpoint = bytes(made.disk.bytes_of(DATA / "checkpoint"))
    watermark = made.log.end_offset
    for body in BODIES[2:]:
        made.append(body)
    made.flush()
    whole, ends = all_frames(made.log), frame_ends(made.disk)
    made.disk.kill()
    made.disk.bytes_of(DATA / "checkpoint")[:] = checkpoint
    for path, at in islice(every_byte(made.disk, ends[-1]), 0, None, stride(3)):
        if int(path.name) + at < watermark:
            continue
        disk = made.disk.clone()
        disk.bytes_of(path)[at] ^= 0x40
        log = LogUnderTest(disk).log
        offset = int(path.name) + at
        assert log.last_index == sum(each <= offset for each in ends)
        assert whole.startswith(all_frames(log))
        assert_zeros_behind(disk, log.end_offset)


def test_clean_stop_is_recognised_and_verifies_the_last_two_segments_only() -> None:
    """Sealed segments further back are walked by their headers."""
    disk = stopped_log(clean=True)
    report = LogUnderTest(disk).log.recovery
    assert report.clean_shutdown
    assert report.checkpoint_readable
    assert report.watermark == report.end_offset
    assert report.cut_from is None
    in_last_two = sum(len(body) + 56 for body in BODIES[2:])
    assert in_last_two <= report.verified_bytes < report.end_offset


@pytest.mark.parametrize("segment", [1, 2])
def test_clean_stop_does_not_hide_rot_in_the_last_two_segments(segment: int) -> None:
    disk = stopped_log(clean=True)
    disk.bytes_of(LOG / file_name(segment * SEGMENT))[90] ^= 1
    with pytest.raises(CorruptionFound) as found:
        LogUnderTest(disk)
    assert found.value.file.endswith(file_name(segment * SEGMENT))


def test_stop_after_a_failure_is_not_marked_clean() -> None:
    """A node that stopped because of rot in an old segment must not start again without having
    looked at that segment."""
    made = make_log(BODIES)
    made.log.close(is_clean=False)
    made.disk.kill()
    made.disk.bytes_of(LOG / file_name(0))[100] ^= 1
    with pytest.raises(CorruptionFound):
        LogUnderTest(made.disk)


def test_kill_without_close_is_an_unclean_stop() -> None:
    disk = stopped_log(clean=False)
    assert DATA / "abort" in disk.paths()
    assert not LogUnderTest(disk).log.recovery.clean_shutdown


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_missing_segment_is_corruption(missing: int) -> None:
    """The first, one in the middle, and the last one that holds promised bytes."""
    disk = stopped_log(clean=False)
    disk.unlink(LOG / file_name(missing * SEGMENT))
    with pytest.raises(CorruptionFound) as found:
        LogUnderTest(disk)
    assert file_name(missing * SEGMENT) in found.value.file


def test_all_segments_missing_is_corruption() -> None:
    disk = stopped_log(clean=False)
    for path in segment_paths(disk):
        disk.unlink(path)
    with pytest.raises(CorruptionFound, match="a segment"):
        LogUnderTest(disk)


def test_shortened_segment_is_corruption_where_it_counts() -> None:
    disk = stopped_log(clean=False)
    ends = frame_ends(disk)
    last = LOG / file_name(2 * SEGMENT)
    for size in (0, 10, ends[-1] - 2 * SEGMENT - 1):
        short = disk.clone()
        short.resize(last, size)
        with pytest.raises(CorruptionFound) as found:
            LogUnderTest(short)
        assert (found.value.file, found.value.offset) == (str(last), size)
    disk.resize(last, ends[-1] - 2 * SEGMENT)
    again = recover_and_go_on(disk)
    assert again.log.last_index == 8


def test_segment_that_is_too_long_is_corruption() -> None:
    disk = stopped_log(clean=False)
    disk.resize(LOG / file_name(0), SEGMENT + 1)
    with pytest.raises(CorruptionFound) as found:
        LogUnderTest(disk)
    assert found.value.offset == SEGMENT


def test_foreign_files_are_left_alone_and_reported() -> None:
    disk = stopped_log(clean=False)
    disk.create(LOG / "notes.txt")
    disk.create(LOG / f"{file_name(9 * SEGMENT)}.tmp")
    disk.kill()
    log = LogUnderTest(disk).log
    assert log.recovery.foreign_files == ("notes.txt",)
    assert LOG / "notes.txt" in disk.paths()
    assert LOG / f"{file_name(9 * SEGMENT)}.tmp" not in disk.paths()


def without_checkpoint(disk: SimulatedDisk, how: str) -> None:
    page = disk.bytes_of(DATA / "checkpoint")
    if how == "missing":
        disk.unlink(DATA / "checkpoint")
    elif how == "short":
        disk.resize(DATA / "checkpoint", 100)
    else:
        page[int(how)] ^= 1


@pytest.mark.parametrize("how", ["missing", "short", "0", "5", "9", "20", "4000"])
def test_without_a_readable_checkpoint_only_the_very_last_frame_may_be_torn(how: str) -> None:
    """Strict rule: a bad frame with an intact one behind it is corruption."""
    disk = stopped_log(clean=True)
    ends = frame_ends(disk)
    without_checkpoint(disk, how)
    assert LogUnderTest(disk.clone()).log.last_index == 7
    last = disk.clone()
    last.bytes_of(LOG / file_name(2 * SEGMENT))[ends[-1] - 2 * SEGMENT - 1] ^= 1
    log = LogUnderTest(last).log
    assert (log.last_index, log.recovery.checkpoint_readable) == (6, False)
    disk.bytes_of(LOG / file_name(SEGMENT))[300] ^= 1
    with pytest.raises(CorruptionFound, match="with an intact entry behind it"):
        LogUnderTest(disk)


def test_checkpoint_is_old_at_most_and_never_ahead() -> None:
    """The page on the platter speaks of bytes that are on the platter."""
    made = LogUnderTest(SimulatedDisk())
    for body in BODIES * 3:
        made.append(body)
        made.flush()
        made.clock.now += 0.011
        page = decode_checkpoint(made.disk.durable_content(DATA / "checkpoint")[:PAGE_SIZE])
        assert page is None or page.watermark <= made.log.end_offset
    made.clock.now += 1
    made.flusher.run_pending()
    page = decode_checkpoint(made.disk.durable_content(DATA / "checkpoint"))
    assert page is not None
    assert page.watermark == made.log.end_offset
    assert page.commit_log_timestamp_ms == made.log.last_append_time_ms


def test_what_a_kill_left_in_the_page_cache_is_durable_after_recovery() -> None:
    """A node must not acknowledge, after a restart, what only the page cache holds."""
    made = make_log(BODIES[:3])
    made.append(b"written, never synced")
    made.submit()
    made.disk.fail_next("fdatasync", 5, file_name(SEGMENT))  # EIO: the pages are clean now.
    made.flusher.run_pending()
    assert len(made.failures) == 1
    made.disk.kill()
    again = LogUnderTest(made.disk)
    assert again.log.last_index == 4
    made.disk.power_cut()
    assert LogUnderTest(made.disk).log.last_index == 4


def test_filler_without_an_entry_behind_it_goes() -> None:
    """A filler belongs to the next entry; a smaller one may still fit where it was."""
    made = make_log([b"x" * 3000])
    end = made.log.end_offset
    before = made.disk.clone()
    made.append(b"y" * 3000)
    filler = (SEGMENT - end).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    before.bytes_of(LOG / file_name(0))[end : end + FILLER_HEADER_SIZE] = filler
    again = recover_and_go_on(before)
    assert again.log.position_of(2) == end

"""The log while it runs: appending, reading, truncating, rolling."""

from __future__ import annotations

import pytest

from dledger.reading.entry import HEADER_SIZE, EntryKind, verify_frame, walk_frames
from dledger.records.errors import AppendRefused
from dledger.records.layout import file_name
from store.commitlog import CommitLog, CommitLogOptions
from store.errors import CorruptionFound, OutOfRange, StorageFull
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import (
    LOG,
    SEGMENT,
    LogUnderTest,
    all_frames,
    make_log,
    segment_paths,
)

BODIES = [bytes([65 + n]) * (300 + 170 * (n % 4)) for n in range(20)]


def test_frames_are_read_back_from_memory_and_from_files_alike() -> None:
    """The tail cache and the segment files give the same bytes."""
    made = make_log(BODIES)
    from_memory = all_frames(made.log)
    made.log.close()
    from_files = all_frames(LogUnderTest(made.disk).log)
    assert from_memory == from_files
    assert [header.index for header in walk_frames(from_files)] == list(range(1, 21))


def test_positions_follow_from_the_sizes() -> None:
    """An entry goes to the next segment when a filler's eight bytes would not stay free."""
    made = LogUnderTest(SimulatedDisk())
    assert made.append(bytes(SEGMENT - 2 * HEADER_SIZE - 8 - 1 - HEADER_SIZE)) == 0
    left = SEGMENT - made.log.end_offset
    assert made.log.next_position(left - 8) == made.log.end_offset
    assert made.log.next_position(left - 7) == SEGMENT
    assert made.append(bytes(left - 7 - HEADER_SIZE)) == SEGMENT


def test_each_frame_carries_its_place_and_the_digest_of_all_before() -> None:
    made = make_log(BODIES)
    digest = 0
    for index in range(1, 21):
        frame = made.log.read(index, index)
        header = verify_frame(frame, 0, digest)
        assert header.physical_offset == made.log.position_of(index)
        assert made.log.index_at(header.physical_offset + 5) == index
        digest = made.log.digest_at(index)
        assert digest == header.digest
    assert digest == made.log.last_digest


def test_filler_ends_a_segment_that_the_next_entry_does_not_fit() -> None:
    """RocketMQ's BLANK: what is left, 0xCBD43194, zeros."""
    made = make_log([bytes(3000), bytes(3000)])
    end = HEADER_SIZE + 3000
    content = made.disk.bytes_of(LOG / ("0" * 20))
    left = (SEGMENT - end).to_bytes(4, "big")
    assert content[end : end + 8] == left + bytes.fromhex("cbd43194")
    assert not any(content[end + 8 :])
    with pytest.raises(OutOfRange):
        made.log.read_at(end, 8)


def test_follower_holds_the_same_bytes_as_the_leader() -> None:
    """Replicas are byte-identical, whatever the batches in which frames came."""
    leader = make_log(BODIES)
    follower = LogUnderTest(SimulatedDisk())
    for first, last in ((1, 1), (2, 4), (5, 5), (6, 11), (12, 17), (18, 20)):
        blob = leader.log.read(first, last)
        if not follower.log.has_room(len(blob)):
            follower.preallocate()
        follower.log.append_frames(blob, walk_frames(blob))
        follower.flush()
    used = (leader.log.end_offset // SEGMENT) + 1
    for path in segment_paths(leader.disk)[:used]:
        assert follower.disk.bytes_of(path) == leader.disk.bytes_of(path)
    assert follower.log.last_digest == leader.log.last_digest


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("index", {"skip": 1}),
        ("digest", {"other": True}),
    ],
)
def test_frames_that_do_not_continue_the_log_are_refused(
    field: str, spoil: dict[str, bool]
) -> None:
    """A gap, or another history of the same length, changes nothing."""
    leader = make_log(BODIES)
    follower = LogUnderTest(SimulatedDisk())
    first = b"Z" * len(BODIES[0]) if spoil.get("other") else BODIES[0]
    follower.append(first)
    blob = leader.log.read(3 if spoil.get("skip") else 2, 4)
    with pytest.raises(AppendRefused) as refused:
        follower.log.append_frames(blob, walk_frames(blob))
    assert refused.value.field == field
    assert follower.log.last_index == 1


def test_frames_from_a_log_with_other_segments_are_refused() -> None:
    """Same history, same digests as far as sizes go, but the leader's segments are larger."""
    disk = SimulatedDisk()
    larger = CommitLogOptions(segment_size_bytes=2 * SEGMENT, reserve_bytes=0)
    leader = LogUnderTest(disk, larger)
    follower = LogUnderTest(SimulatedDisk())
    leader.append(b"x" * 3000)
    leader.append(b"y" * 3000)
    blob = leader.log.read(1, 2)
    follower.preallocate()
    with pytest.raises(AppendRefused, match=f"physical offset should be {SEGMENT}, is 3056"):
        follower.log.append_frames(blob, walk_frames(blob))
    assert follower.log.last_index == 0


def test_append_checks_index_and_term() -> None:
    made = make_log([b"x"])
    with pytest.raises(AppendRefused, match="index should be 2, is 3"):
        made.log.append(EntryKind.COMMAND, 3, 1, 0, 0, b"")
    with pytest.raises(AppendRefused, match="term should be at least 1, is 0"):
        made.log.append(EntryKind.COMMAND, 2, 0, 0, 0, b"")
    with pytest.raises(AppendRefused, match="frame size"):
        made.log.append(EntryKind.COMMAND, 2, 1, 0, 0, bytes(SEGMENT))


def test_blob_that_needs_a_segment_which_is_not_ready_changes_nothing() -> None:
    """`append_frames` appends all or none."""
    leader = make_log(BODIES)
    follower = LogUnderTest(SimulatedDisk())
    blob = leader.log.read(1, 20)
    with pytest.raises(StorageFull) as full:
        follower.log.append_frames(blob, walk_frames(blob))
    assert full.value.retriable
    assert follower.log.last_index == 0
    assert not follower.log.has_room(len(blob))
    follower.preallocate()
    assert follower.log.has_room(len(blob))
    follower.log.append_frames(blob, walk_frames(blob))
    assert follower.log.last_index == 20


def test_truncation_cuts_and_the_log_goes_on_in_the_same_places() -> None:
    """A log that took back its tail and appended anew is the log that never had that tail."""
    straight = make_log(BODIES[:7] + BODIES[3:9])
    made = make_log(BODIES)
    made.log.truncate_from(8)
    assert made.log.last_index == 7
    assert made.log.last_digest == straight.log.digest_at(7)
    for body in BODIES[3:9]:
        made.append(body)
        made.flush()
    assert all_frames(made.log) == all_frames(straight.log)
    used = (straight.log.end_offset // SEGMENT) + 1
    for path in segment_paths(straight.disk)[:used]:
        assert made.disk.bytes_of(path) == straight.disk.bytes_of(path)
    for path in segment_paths(made.disk)[used:]:
        assert not any(made.disk.bytes_of(path))


def test_truncation_in_one_submit_with_writes_around_it() -> None:
    """Work is done in the order in which it was asked for."""
    made = LogUnderTest(SimulatedDisk())
    for body in BODIES:
        made.append(body)
    made.log.truncate_from(2)
    made.append(b"after", term=2)
    made.flush()
    expected = all_frames(made.log)
    made.disk.power_cut()
    again = LogUnderTest(made.disk)
    assert all_frames(again.log) == expected
    assert again.log.term_runs() == [(1, 1), (2, 2)]


def test_truncating_everything_leaves_an_empty_log() -> None:
    made = make_log(BODIES)
    made.log.truncate_from(1)
    made.flush()
    assert (made.log.last_index, made.log.end_offset, made.log.last_digest) == (0, 0, 0)
    assert not any(any(made.disk.bytes_of(path)) for path in segment_paths(made.disk))


def test_truncation_outside_of_the_log_is_refused() -> None:
    made = make_log([b"x"])
    for index in (0, 2):
        with pytest.raises(OutOfRange):
            made.log.truncate_from(index)


def test_terms_and_configurations_are_known_without_reading() -> None:
    made = LogUnderTest(SimulatedDisk())
    made.append(b"a", term=1)
    made.append(b"three nodes", term=1, kind=EntryKind.CONFIGURATION)
    made.append(b"", term=4, kind=EntryKind.NOOP)
    made.append(b"five nodes", term=4, kind=EntryKind.CONFIGURATION)
    expected = [(2, b"three nodes"), (4, b"five nodes")]
    assert made.log.term_runs() == [(1, 1), (3, 4)]
    assert made.log.configuration_entries() == expected
    made.flush()
    made.log.close()
    again = LogUnderTest(made.disk)
    assert again.log.recovery.clean_shutdown
    assert again.log.term_runs() == [(1, 1), (3, 4)]
    assert again.log.configuration_entries() == expected
    again.log.truncate_from(3)
    assert again.log.term_runs() == [(1, 1)]
    assert again.log.configuration_entries() == expected[:1]
    assert again.log.last_term == 1


def test_record_bytes_are_read_across_file_and_memory() -> None:
    """Every range of a segment's entries reads the same, wherever the cache begins."""
    options = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0, cache_bytes=700)
    made = LogUnderTest(SimulatedDisk(), options)
    for body in BODIES[:5]:
        made.append(body)
        made.flush()
    made.append(b"")  # Evicts, as everything before was written.
    whole = made.log.read(1, 6)
    assert made.log.statistics().cached_bytes <= 700 + HEADER_SIZE
    for start in range(0, len(whole), 7):
        for size in (1, 8, 60, 700, len(whole) - start):
            if start + size <= len(whole):
                assert made.log.read_at(start, size) == whole[start : start + size]
    with pytest.raises(OutOfRange):
        made.log.read_at(len(whole) - 1, 2)


def test_last_that_fits_agrees_with_the_sizes() -> None:
    """Against the plain definition, across segments."""
    made = make_log(BODIES)
    sizes = {index: made.log.header_at(index).total_size for index in range(1, 21)}
    for first in (1, 5, 6, 19):
        for limit in range(0, 9000, 131):
            total, expected = 0, first
            for index in range(first, 21):
                total += sizes[index]
                if total > limit:
                    break
                expected = index
            assert made.log.last_that_fits(first, 20, limit) == expected


def test_rot_in_a_file_is_found_when_it_is_read() -> None:
    """A frame that no longer is what was written stops the reader; it does not travel."""
    made = make_log(BODIES)
    made.log.close()
    again = LogUnderTest(made.disk)
    path = segment_paths(made.disk)[0]
    made.disk.bytes_of(path)[100] ^= 1
    with pytest.raises(CorruptionFound) as found:
        again.log.read(1, 2)
    assert (found.value.file, found.value.offset) == (str(path), 0)


def test_no_byte_of_a_rotten_frame_is_read_by_position() -> None:
    """Whichever byte of the frame rotted, also one that was not asked for: a consumer would take
    the wrong properties for the right ones."""
    made = make_log(BODIES[:3])
    start, size = made.log.position_of(2), made.log.header_at(2).total_size
    made.log.close()
    again = LogUnderTest(made.disk)
    content = made.disk.bytes_of(segment_paths(made.disk)[0])
    asked = (start + HEADER_SIZE, size - HEADER_SIZE)
    intact = again.log.read_at(*asked)
    for at in range(start, start + size):
        content[at] ^= 0x20
        with pytest.raises(CorruptionFound):
            again.log.read_at(*asked)
        content[at] ^= 0x20
    assert again.log.read_at(*asked) == intact
    assert again.log.read_at(start + size, 0) == b""


def test_a_rotten_digest_is_not_told_to_anybody() -> None:
    """The digest at an index is vouched for by its frame's CRC: a flipped bit in it is corruption
    here, and no divergence of those who are told."""
    made = make_log(BODIES)
    made.log.close()
    again = LogUnderTest(made.disk)
    path = segment_paths(made.disk)[0]
    made.disk.bytes_of(path)[HEADER_SIZE - 1] ^= 1  # the last byte of entry 1's digest
    with pytest.raises(CorruptionFound):
        again.log.digest_at(1)


def test_unwritten_frames_stay_in_memory_however_small_the_cache() -> None:
    options = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0, cache_bytes=0)
    made = LogUnderTest(SimulatedDisk(), options)
    for body in BODIES[:4]:
        made.append(body)
    assert len(made.log.read(1, 4)) == made.log.end_offset
    assert made.log.statistics().pending_bytes == made.log.end_offset
    made.flush()
    made.append(b"")
    assert made.log.statistics().cached_bytes == HEADER_SIZE


def test_old_segments_find_entries_by_walking_one_block() -> None:
    """Beyond the newest eight segments only sparse starts are kept, and look-ups still agree."""
    bodies = [bytes([n % 256]) * (n % 97) for n in range(400)]
    made = make_log(bodies)
    positions = [made.log.position_of(index) for index in range(1, 401)]
    made.log.close()
    again = LogUnderTest(made.disk).log
    assert again.statistics().segments > 9
    assert [again.position_of(index) for index in range(1, 401)] == positions
    assert [again.index_at(position + 3) for position in positions] == list(range(1, 401))
    assert again.read(3, 398) == one_by_one(again, 3, 398)
    assert again.last_that_fits(2, 400, 5000) == made.log.last_that_fits(2, 400, 5000)


def one_by_one(log: CommitLog, first: int, last: int) -> bytes:
    return b"".join(log.read(index, index) for index in range(first, last + 1))


def test_frames_that_could_follow_are_told_before_anything_changes() -> None:
    """In place and in digest, behind the last entry or behind one whose successors are to be cut;
    what was found out is not computed again, and counts for these very frames and this end only."""
    leader, follower = make_log(BODIES[:9]), make_log(BODIES[:5])
    blob = memoryview(leader.log.read(6, 9))
    headers = walk_frames(blob)
    assert follower.log.refusal_of(blob, headers) is None
    follower.log.append_frames(blob, headers)
    assert follower.log.refusal_of(blob, headers) is None  # behind entry 5 as before
    with pytest.raises(AppendRefused):
        follower.log.append_frames(blob, headers)
    other = make_log([*BODIES[:4], b"another fifth entry"])
    refusal = other.log.refusal_of(blob, headers)
    assert refusal is not None
    assert other.log.last_index == 5


@pytest.mark.parametrize("path_number", [0, 1])
def test_digests_are_verified_from_the_files(path_number: int) -> None:
    """Past every cache: what rots in a file shows, although memory still has the right bytes."""
    made = make_log(BODIES)
    assert made.log.verify(1, 20, 0) == made.log.last_digest
    assert made.log.verify(8, 20, made.log.digest_at(7)) == made.log.last_digest
    with pytest.raises(CorruptionFound):
        made.log.verify(8, 20, 12345)
    made.disk.flip(segment_paths(made.disk)[path_number], 100, 3)
    with pytest.raises(CorruptionFound):
        made.log.verify(1, 20, 0)


def test_entries_that_end_by_an_offset() -> None:
    """Fillers and segments included; before the first entry's end there is none."""
    made = make_log(BODIES)
    log = made.log
    ends = [log.position_of(index) + HEADER_SIZE + len(BODIES[index - 1]) for index in range(1, 21)]
    for offset in {0, 1, *ends, *(end - 1 for end in ends), *(end + 1 for end in ends), SEGMENT}:
        assert log.ends_by(offset) == sum(end <= offset for end in ends)
    assert log.ends_by(log.end_offset + 1_000) == 20


def test_synced_index_follows_fdatasync_and_nothing_else() -> None:
    """Neither an append nor a write moves it."""
    made = make_log(BODIES[:3])
    assert made.log.synced_index == 3
    made.append(b"not yet")
    assert made.log.synced_index == 3
    made.flush()
    assert made.log.synced_index == 4


@pytest.mark.parametrize("at", range(HEADER_SIZE))
def test_nobody_is_judged_and_nothing_is_cut_by_a_header_that_has_rotted(at: int) -> None:
    """It is rot, and no peer's fault; and no log goes on from another digest."""
    options = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0, cache_bytes=0)
    made = LogUnderTest(SimulatedDisk(), options)
    for number in range(5):
        made.append(bytes([number]) * 50)
        made.flush()
    log = made.log
    made.append(b"evicts")
    made.flush()
    follows = log.read(4, 5)
    place, path = log.position_of(3), LOG / file_name(0)
    for bit in range(8):
        made.disk.flip(path, place + at, bit)
        with pytest.raises(CorruptionFound):
            log.refusal_of(memoryview(follows), walk_frames(follows))
        with pytest.raises(CorruptionFound):
            log.truncate_from(4)
        made.disk.flip(path, place + at, bit)
    assert log.last_index == 6
    log.truncate_from(4)
    assert log.last_digest == log.digest_at(3)

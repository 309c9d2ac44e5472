"""Sectors that the disk can't read any more: rot like any other, found where it is, and written
over."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from broker.ending import ending_of
from broker.memory import Memory
from chaos.sim.files import SECTOR_BYTES
from dledger.core.types import DiskId, NodeId
from dledger.outcome import ExitCode
from dledger.promises import Promises, Start
from dledger.records.layout import file_name
from store.atomic_file import AtomicFile
from store.commitlog import CommitLog
from store.damage import Damage, Refill
from store.directory import (
    DataDirectory,
    Identity,
    read_sealed,
    stored_boot_number,
    write_sealed,
)
from store.doubt import MAX_PLACES, DoubtNote
from store.errors import CorruptionFound, GapFound
from store.files import FileSystem, OsFiles, make_directory, read_exactly, read_upto
from store.gap_files import GapFiles
from store.repair_journal import RepairJournal
from store.scrub_note import NOTHING, ScrubNote, ScrubPlace
from store.suspicion import UNKNOWN, Suspicion, SuspicionNote
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA, LOG, SEGMENT, LogUnderTest, all_frames, make_log

SMALL_BODIES = [bytes([65 + number]) * 100 for number in range(20)]
PATH = LOG / file_name(0)


def test_what_can_be_read_is_and_what_cannot_is_named() -> None:
    """The first block that is lost, wherever the read began."""
    disk, path = SimulatedDisk(), Path("/f")
    handle = disk.create(path)
    disk.pwritev(handle, [bytes(range(256)) * 16], 0)
    disk.lose_sector(path, 1100)
    assert read_exactly(disk, handle, 1024, 0, "f") == bytes(range(256)) * 4
    assert read_exactly(disk, handle, 100, 1536, "f") == bytes(range(100))
    for size, offset, first in ((4096, 0, 1024), (1000, 700, 1024), (10, 1200, 1200)):
        with pytest.raises(CorruptionFound) as found:
            read_exactly(disk, handle, size, offset, "f")
        assert (found.value.file, found.value.offset) == ("f", first)


def test_another_failure_is_none_of_a_sector() -> None:
    disk = SimulatedDisk()
    handle = disk.create(Path("/f"))

    def fail(operation: str, _name: str, number: int) -> None:
        if operation == "pread":
            raise OSError(number, "refused")

    disk.before = partial(fail, number=errno.ENXIO)
    with pytest.raises(OSError, match="refused"):
        read_upto(disk, handle, 10, 0, "f")


@pytest.mark.parametrize("size", [600, 4_000])
@pytest.mark.parametrize("failing", [{1}, {1, 4}], ids=str)
def test_a_sector_that_is_lost_for_a_moment_is_read_the_second_time(
    size: int, failing: set[int]
) -> None:
    """And what was read of the others isn't asked for once more: a disk that fails now and then
    would fail then, and end the member."""
    disk, path = SimulatedDisk(), Path("/f")
    handle = disk.create(path)
    content = bytes(range(250)) * 4
    disk.pwritev(handle, [content], 0)
    reads = 0

    def fail(operation: str, _name: str) -> None:
        nonlocal reads
        reads += operation == "pread"
        if operation == "pread" and reads in failing:
            raise OSError(errno.EIO, "now and then")

    disk.before = fail
    assert read_upto(disk, handle, size, 0, "f") == content[:size]


def scrub(log: CommitLog) -> None:
    while not log.scrub.is_over:
        log.scrub.finish(log.scrub.step()())


def lost(at: int) -> tuple[CommitLog, SimulatedDisk, Damage, bytes]:
    """A log of small entries, one of whose sectors is lost; the damage, and the bytes there."""
    made = make_log(SMALL_BODIES)
    content = bytes(made.disk.bytes_of(PATH))
    made.disk.kill()
    log = LogUnderTest(made.disk).log
    made.disk.lose_sector(PATH, at)
    log.scrub.begin(log.last_index)
    with pytest.raises(CorruptionFound) as found:
        scrub(log)
    assert found.value.offset == at - at % SECTOR_BYTES
    damage = log.damages.locate(found.value.file, found.value.offset)
    assert damage is not None
    extent = damage.extents[0]
    return log, made.disk, damage, content[extent.start : extent.end]


@pytest.mark.parametrize("at", [600, 1024, 1300, 2047])
def test_a_lost_sector_is_written_over_whole(at: int) -> None:
    """What is damaged are all entries that have a byte in it, so the disk needn't read it."""
    log, disk, damage, content = lost(at)
    extent = damage.extents[0]
    assert extent.start <= at - at % SECTOR_BYTES
    assert extent.end >= at - at % SECTOR_BYTES + SECTOR_BYTES
    refill = Refill(damage, lambda _index: 1, log.damages.arrives)
    assert refill.take(content)
    RepairJournal(disk, DATA).write_back(extent, content)
    assert log.damages.locate(str(PATH), at) is None
    assert log.read(1, log.last_index)


def test_a_crash_before_the_bytes_are_back_is_finished_over_a_lost_sector() -> None:
    """The journal is there, and the place can't be read."""
    _, disk, damage, content = lost(1300)
    extent = damage.extents[0]

    def die(operation: str, name: str) -> None:
        if operation == "pwritev" and name == PATH.name:
            raise KeyboardInterrupt

    disk.before = die
    with pytest.raises(KeyboardInterrupt):
        RepairJournal(disk, DATA).write_back(extent, content)
    disk.before = lambda _operation, _name: None
    disk.kill()
    log = LogUnderTest(disk).log
    assert log.last_index == len(SMALL_BODIES)
    assert log.read(1, log.last_index)


def test_a_start_refuses_a_lost_sector_as_it_does_rot() -> None:
    made = make_log(SMALL_BODIES)
    made.disk.kill()
    made.disk.lose_sector(PATH, 700)
    with pytest.raises(CorruptionFound) as found:
        LogUnderTest(made.disk)
    assert found.value.file == str(PATH)
    assert made.log.end_offset < SEGMENT


def test_a_lost_sector_above_the_watermark_is_cut_off() -> None:
    """Nobody was promised what lay there; a power cut is likeliest to leave such a one."""
    made = make_log(SMALL_BODIES[:10])
    page = bytes(made.disk.bytes_of(DATA / "checkpoint"))
    end = made.log.end_offset
    for body in SMALL_BODIES[10:]:
        made.append(body)
        made.flush()
    made.disk.kill()
    made.disk.bytes_of(DATA / "checkpoint")[:] = page
    made.disk.lose_sector(PATH, end + 600)
    log = LogUnderTest(made.disk).log
    assert 10 <= log.last_index < len(SMALL_BODIES)
    assert log.read(1, log.last_index)


def test_a_lost_sector_that_nobody_asks_for_is_in_nobodys_way() -> None:
    """What follows the first entry of a segment that a seal speaks of isn't read by a start."""
    made = make_log(SMALL_BODIES)
    while (step := made.log.seals.due(20)) is not None:
        step.run()
        made.log.seals.finish(step)
    made.disk.kill()
    made.disk.lose_sector(PATH, 1300)
    log = LogUnderTest(made.disk).log
    assert log.last_index == 20
    with pytest.raises(CorruptionFound):
        scrub_all(log)


def scrub_all(log: CommitLog) -> None:
    log.scrub.begin(log.last_index)
    scrub(log)


def test_a_filler_that_cannot_be_read_is_written_again() -> None:
    made = make_log([b"x" * 2500, b"y" * 2500])
    made.disk.kill()
    log = LogUnderTest(made.disk).log
    made.disk.lose_sector(PATH, 2560)
    with pytest.raises(CorruptionFound) as found:
        scrub_all(log)
    damage = log.damages.locate(found.value.file, found.value.offset)
    assert damage is not None
    assert damage.is_filler


def test_a_filler_whose_sync_failed_is_as_rotten_as_before_and_found_again() -> None:
    """It has no journal. The next process reads from the page cache what is right, and takes
    nothing from it: after a loss of power it is found, put right without anybody's help, and no
    entry was ever another one."""
    made = make_log([b"x" * 2500, b"y" * 2500])
    disk, before = made.disk, all_frames(made.log)
    disk.kill()
    log = LogUnderTest(disk).log
    header = log.header_at(1)
    disk.flip(PATH, header.physical_offset + header.total_size + 5, 3)
    with pytest.raises(CorruptionFound) as rot:
        scrub_all(log)
    damage = log.damages.locate(rot.value.file, rot.value.offset)
    assert damage is not None
    assert damage.is_filler
    extent = damage.extents[0]
    disk.fail_next("fdatasync", errno.EIO, PATH.name)
    with pytest.raises(OSError, match=r"error"):
        RepairJournal(disk, DATA).write_filler(extent)
    disk.kill()
    again = LogUnderTest(disk).log
    assert all_frames(again) == before
    again.close()
    disk.power_cut()
    with pytest.raises(GapFound) as found:
        LogUnderTest(disk)
    (gap,) = found.value.holes.gaps
    assert gap.is_filler
    files = GapFiles(disk, DATA, SEGMENT)
    files.write(files.begin(gap))
    disk.power_cut()
    assert all_frames(LogUnderTest(disk).log) == before


@pytest.mark.parametrize("name", ["checkpoint", "repair", "raft/hard_state"])
def test_a_small_file_that_cannot_be_read_is_like_one_that_has_rotted(name: str) -> None:
    """And no failure of the disk that ends a start."""
    made = make_log(SMALL_BODIES)
    path = DATA / name
    if name == "repair":
        made.disk.create(path)
    if name == "raft/hard_state":
        made.disk.mkdir(path.parent)
        AtomicFile(made.disk, path).replace(b"content")
    handle = made.disk.open(path)
    made.disk.pwritev(handle, [bytes(100)], made.disk.size(handle))
    made.disk.kill()
    made.disk.lose_sector(path, 0)
    log = LogUnderTest(made.disk).log
    assert log.last_index == 20
    assert log.checkpoint.readable == (name != "checkpoint")
    if name == "raft/hard_state":
        with pytest.raises(CorruptionFound):
            AtomicFile(made.disk, path).read()


def doubted(files: FileSystem, path: Path) -> object:
    return DoubtNote(files, path).read(), DoubtNote(files, path).says_all()


def write_promises(files: FileSystem, path: Path) -> None:
    write = Memory(files, path).step({NodeId("n2"): Promises(DiskId(bytes(16)), Start())})
    assert write is not None
    write()


# What writes one, what it says that can't be read, and what reads it.
Note = tuple[Callable[[FileSystem, Path], object], object, Callable[[FileSystem, Path], object]]
NOTES: dict[str, Note] = {
    "doubt.json": (
        lambda files, path: DoubtNote(files, path).write([(file_name(0), 7)]),
        ([], False),
        doubted,
    ),
    "suspected.json": (
        lambda files, path: SuspicionNote(files, path).write(Suspicion(7, is_memory=False)),
        UNKNOWN,
        lambda files, path: SuspicionNote(files, path).read(),
    ),
    "scrub.json": (
        lambda files, path: ScrubNote(files, path).write(ScrubPlace(7, 8, 9, 10)),
        NOTHING,
        lambda files, path: ScrubNote(files, path).read(1_000),
    ),
    "promises.json": (write_promises, {}, lambda files, path: Memory(files, path).read()),
}


@pytest.mark.parametrize("name", sorted(NOTES))
def test_a_note_with_a_lost_sector_keeps_nobody_from_starting(name: str) -> None:
    """It says nothing, or the worst."""
    write, nothing, read = NOTES[name]
    disk = SimulatedDisk()
    make_directory(disk, DATA)
    write(disk, DATA)
    assert read(disk, DATA) != nothing
    disk.lose_sector(DATA / name, 0)
    assert read(disk, DATA) == nothing


@pytest.mark.parametrize("name", sorted(NOTES))
def test_a_note_that_is_no_file_keeps_nobody_from_starting(name: str, tmp_path: Path) -> None:
    _, nothing, read = NOTES[name]
    (tmp_path / name).mkdir()
    assert read(OsFiles(), tmp_path) == nothing


def test_what_says_whose_a_directory_is_is_missed_as_if_it_had_rotted() -> None:
    """By whoever looks; a start can't do without it, and says that the disk has failed."""
    disk = SimulatedDisk()
    make_directory(disk, DATA)
    write_sealed(disk, DATA / "identity.json", {"a": 1})
    disk.lose_sector(DATA / "identity.json", 0)
    with pytest.raises(CorruptionFound, match="a sector that can't be read"):
        read_sealed(disk, DATA / "identity.json")
    with pytest.raises(OSError) as failed:
        read_sealed(disk, DATA / "identity.json", is_needed=True)
    assert failed.value.errno == errno.EIO


def test_number_of_a_start_that_the_disk_does_not_give_is_its_failure() -> None:
    """It hasn't rotted, for all that anybody knows: the disk is looked at, and the next start may
    be given it. Whoever only looks is told of damage."""
    disk = SimulatedDisk()
    directory = DataDirectory.open(DATA, Identity("g", "n1", 4096), disk)
    number = directory.next_boot()
    disk.fail_next("pread", errno.EIO, "boot")
    assert directory.next_boot() == number + 1, "it was given when it was read again"
    disk.lose_sector(DATA / "raft" / "boot", 0)
    with pytest.raises(OSError, match="raft/boot") as failed:
        directory.next_boot()
    assert failed.value.errno == errno.EIO
    assert ending_of(failed.value, DATA) is ExitCode.DISK_FAILED
    with pytest.raises(CorruptionFound, match="a sector that can't be read"):
        stored_boot_number(disk, DATA)
    directory.close()


def test_a_note_of_doubt_that_is_full_says_so() -> None:
    """What came behind its last line nobody knows."""
    disk = SimulatedDisk()
    make_directory(disk, DATA)
    note = DoubtNote(disk, DATA)
    assert note.says_all()
    for count in (1, MAX_PLACES - 1, MAX_PLACES, MAX_PLACES + 1):
        note.write((file_name(0), each) for each in range(count))
        assert len(note.read()) == min(count, MAX_PLACES)
        assert note.says_all() == (count < MAX_PLACES)
    note.write([])
    assert note.says_all()

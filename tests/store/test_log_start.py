"""Logs that begin later than with entry 1: moved, dropped, begun anew, and cut off at any step."""

from __future__ import annotations

import errno
import os

import pytest

from chaos.sim.disk import MachineDied
from dledger.reading.entry import EntryKind
from dledger.reading.log_start import FROM_THE_FIRST, LogStart
from dledger.records.layout import file_name
from store.checkpoint import Checkpoint
from store.commitlog import CommitLogOptions
from store.errors import CorruptionFound, OutOfRange, StorageFailed, StorageFull
from store.files import make_directory
from store.log_start import Install, StartNote, decode_start
from store.scrubbing import Scrub
from store.snapshot_files import FOLDER, RECEIVED, SnapshotFiles
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import BODIES, DATA, LOG, SEGMENT, LogUnderTest, make_log, segment_paths

START = LogStart(7, 3, 1 << 63, SEGMENT - 100, 1_007, 2, 1, b"a configuration")


def moved(made: LogUnderTest, index: int) -> LogStart:
    """The log begins as late as leaves `index` in it, its files where they were."""
    start = made.log.start_before(index)
    assert start is not None
    StartNote(made.disk, DATA).replace(start)
    for segment in made.log.drop_before(start):
        made.disk.close(segment.handle)
        made.disk.unlink(segment.path)
    made.disk.fsync_directory(LOG)
    return start


def test_a_start_is_what_was_written() -> None:
    assert decode_start(START.encode(), "f") == START
    assert StartNote(SimulatedDisk(), DATA).read() == FROM_THE_FIRST
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    StartNote(disk, DATA).replace(START)
    assert StartNote(disk, DATA).read() == START
    for at in (0, 5, 40, len(START.encode()) - 1):
        changed = bytearray(START.encode())
        changed[at] ^= 1
        disk.pwritev(disk.open(DATA / "log_start"), [bytes(changed)], 0)
        with pytest.raises(CorruptionFound):
            StartNote(disk, DATA).read()


def test_a_note_is_mended_only_where_it_says_nothing() -> None:
    """One that is newer than what the mender knows stays."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    note = StartNote(disk, DATA)
    assert not note.mend(FROM_THE_FIRST)
    note.replace(START)
    older = LogStart(3, 3, 1, SEGMENT - 100, 1_007, 2, 1, b"a configuration")
    assert not note.mend(older)
    assert note.read() == START
    disk.bytes_of(DATA / "log_start")[20] ^= 1
    assert note.mend(START)
    assert note.read() == START
    disk.unlink(DATA / "log_start")
    assert note.mend(START)
    assert note.read() == START


@pytest.mark.parametrize("content", [b"", START.encode()[:20], START.encode() + b"x", bytes(80)])
def test_what_is_no_start_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptionFound):
        decode_start(content, "f")


def test_a_log_begins_behind_a_whole_segment_only() -> None:
    """As late as leaves the entry, and everything behind."""
    made = make_log(BODIES)
    firsts = [segment.first_index for segment in made.log._table.segments]
    assert firsts == [1, 3, 5]
    assert [made.log.start_before(index) for index in (0, 1, 2, 9)] == [None] * 4
    for index in (3, 4):
        start = made.log.start_before(index)
        assert start is not None
        assert start.index == 2
        assert start.offset(SEGMENT) == SEGMENT
    for index in (5, 6, 7, 8):
        start = made.log.start_before(index)
        assert start is not None
        assert (start.index, start.digest) == (4, made.log.digest_at(4))


def test_segments_from_an_entry_are_counted_without_reading() -> None:
    """What is gone counts as all there is, what is to come as the last one."""
    made = make_log(BODIES)
    made.log.read = None  # type: ignore[assignment]
    assert [made.log.segments_from(index) for index in range(10)] == [3, 3, 3, 2, 2, *[1] * 5]


def test_what_is_before_the_start_is_gone_and_the_rest_as_it_was() -> None:
    made = make_log(BODIES)
    kept = made.log.read(3, 7)
    digests = {index: made.log.digest_at(index) for index in range(2, 8)}
    start = moved(made, 4)
    assert made.log.first_index == 3
    assert made.log.read(3, 7) == kept
    assert made.log.term_runs() == [(2, 1)]
    assert {index: made.log.digest_at(index) for index in digests} == digests
    for index in (1, 2):
        with pytest.raises(OutOfRange):
            made.log.read(index, index)
    with pytest.raises(OutOfRange):
        made.log.read_at(100, 10)
    made.append(b"h")
    made.flush()
    made.disk.kill()
    again = LogUnderTest(made.disk)
    assert again.log.start == start
    assert again.log.read(3, 7) == kept
    assert again.log.recovery.first_index == 3
    assert segment_paths(made.disk)[0].name == file_name(SEGMENT)


def test_everything_behind_the_start_may_be_cut_off() -> None:
    """What follows a base may not be committed."""
    made = make_log(BODIES)
    start = moved(made, 4)
    made.log.truncate_from(3)
    assert (made.log.last_index, made.log.last_digest) == (2, start.digest)
    made.flush()
    made.append(b"another", term=2)
    made.flush()
    made.disk.power_cut()
    again = LogUnderTest(made.disk)
    assert (again.log.first_index, again.log.last_index) == (3, 3)
    assert again.log.term_runs() == [(2, 1), (3, 2)]


def test_configurations_before_the_start_are_remembered_by_the_last() -> None:
    made = make_log([])
    for number in range(4):
        made.append(b"c%d" % number, kind=EntryKind.CONFIGURATION)
        made.append(b"x" * 3000)
        made.flush()
    start = moved(made, 7)
    assert start.configuration_index <= start.index
    expected = [(start.configuration_index, start.configuration)]
    assert made.log.configuration_entries()[:1] == expected
    made.disk.kill()
    assert LogUnderTest(made.disk).log.configuration_entries()[:1] == expected


def test_a_hole_that_nobody_made_is_refused() -> None:
    """Files before the start go; one that is missing behind it is named."""
    made = make_log(BODIES)
    moved(made, 4)
    made.disk.unlink(LOG / file_name(SEGMENT))
    made.disk.kill()
    with pytest.raises(CorruptionFound) as refused:
        LogUnderTest(made.disk)
    assert refused.value.file == str(LOG / file_name(SEGMENT))


def test_a_note_that_is_gone_is_missed() -> None:
    """The checkpoint knows that there was one."""
    made = make_log(BODIES)
    start = moved(made, 4)
    made.log.checkpoint.note_first(start.offset(SEGMENT))
    made.disk.unlink(DATA / "log_start")
    made.disk.kill()
    with pytest.raises(CorruptionFound) as refused:
        LogUnderTest(made.disk)
    assert refused.value.file == str(DATA / "log_start")


@pytest.mark.parametrize("left", [(), (0,), (0, 1), (1,)])
def test_files_that_a_crash_left_of_a_drop_go(left: tuple[int, ...]) -> None:
    """Whichever of them are there: all lie before the start, so a gap among them is none."""
    made = make_log(BODIES)
    start = made.log.start_before(7)
    assert start is not None
    kept = made.log.read(5, 7)
    StartNote(made.disk, DATA).replace(start)
    for number in {0, 1} - set(left):
        made.disk.unlink(LOG / file_name(number * SEGMENT))
    made.disk.fsync_directory(LOG)
    made.disk.power_cut()
    again = LogUnderTest(made.disk)
    assert again.log.read(5, 7) == kept
    assert segment_paths(made.disk)[0].name == file_name(2 * SEGMENT)


def go_on(scrub: Scrub) -> None:
    """To the end of the pass."""
    while not scrub.is_over:
        scrub.finish(scrub.step()())


def test_a_scrub_goes_on_where_the_log_begins() -> None:
    """Also in the midst of a pass, and with a step under way in what is gone."""
    made = make_log(BODIES)
    scrub = made.log.scrub
    scrub.begin(7)
    step = scrub.step()
    done = step()
    moved(made, 7)
    scrub.finish(done)
    go_on(scrub)
    scrub.begin(7)
    go_on(scrub)
    assert made.log.damages.is_gone(str(LOG / file_name(0)))
    assert not made.log.damages.is_gone(str(LOG / file_name(2 * SEGMENT)))


def installed(disk: SimulatedDisk) -> LogStart | None:
    return Install(disk, DATA).settle(SEGMENT)


def test_an_intent_begins_the_log_anew() -> None:
    made = make_log(BODIES)
    Install(made.disk, DATA).intend(START)
    made.disk.kill()
    assert installed(made.disk) == START
    assert installed(made.disk) is None
    assert segment_paths(made.disk) == []
    again = LogUnderTest(made.disk)
    assert (again.log.first_index, again.log.last_index, again.log.last_term) == (8, 7, 3)
    assert again.log.checkpoint.state.consume_queue_index == 7
    assert again.append(b"first", term=3) == SEGMENT
    again.flush()
    again.disk.power_cut()
    assert LogUnderTest(made.disk).log.last_index == 8


def test_a_log_begins_anew_on_a_full_disk() -> None:
    """What is kept free doesn't keep it from beginning in the room of the log that it had; another
    segment waits for more (found by seed 74018, on whose disk no process began any more)."""
    made = make_log(BODIES)
    options = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=SEGMENT)
    Install(made.disk, DATA).intend(START)
    made.disk.kill()
    installed(made.disk)
    made.disk.capacity_bytes = made.disk.used_bytes() + SEGMENT + 200
    again = LogUnderTest(made.disk, options)
    assert again.append(b"first", term=3) == SEGMENT
    again.flush()
    assert not again.log.has_room(SEGMENT)
    made.disk.kill()
    made.disk.capacity_bytes -= SEGMENT
    assert LogUnderTest(made.disk, options).log.last_index == 8
    fresh = SimulatedDisk(2 * SEGMENT)
    with pytest.raises(StorageFull):
        LogUnderTest(fresh, options)


def test_an_install_needs_no_space() -> None:
    """Nor does the first segment behind it, whatever others take as soon as it is set free, and
    wherever it is cut off; nothing of the log that was comes back."""
    operations = 0
    while True:
        made = make_log(BODIES)
        Install(made.disk, DATA).intend(START)
        made.disk.kill()
        while not any(
            made.disk.content(segment_paths(made.disk)[-1])
        ):  # all that are left hold entries
            made.disk.unlink(segment_paths(made.disk)[-1])
        made.disk.fill_up(0)
        made.disk.cut_power_in(operations)
        if survived(made.disk):
            break
        made.disk.power_cut()
        made.disk.fill_up(0)
        installed(made.disk)
        again = LogUnderTest(made.disk)
        assert (again.log.start, again.log.last_index) == (START, 7)
        assert again.append(b"first", term=3) == SEGMENT
        again.flush()
        operations += 1
    assert operations > 10


def test_zeros_of_a_sync_that_failed_are_no_segment_yet() -> None:
    """The page cache calls them clean; what the log that was had written there comes back else."""
    made = make_log(BODIES)
    Install(made.disk, DATA).intend(START)
    made.disk.kill()
    made.disk.unlink(segment_paths(made.disk)[-1])  # all that are left hold entries
    made.disk.fill_up(0)
    made.disk.fail_next("fsync", errno.EIO, "commitlog")
    with pytest.raises(OSError, match="Input/output"):
        installed(made.disk)
    made.disk.kill()
    installed(made.disk)
    made.disk.power_cut()
    assert not any(made.disk.durable_content(segment_paths(made.disk)[0]))
    assert LogUnderTest(made.disk).log.start == START


def survived(disk: SimulatedDisk) -> bool:
    """Whether an install comes to its end."""
    try:
        installed(disk)
    except MachineDied:
        return False
    return True


def test_an_install_may_be_cut_off_at_any_operation() -> None:
    """Done again, it gives the same: nothing of the log that was, and all of what was intended."""
    operations = 0
    while True:
        made = make_log(BODIES)
        Install(made.disk, DATA).intend(START)
        made.disk.kill()
        made.disk.cut_power_in(operations)
        if survived(made.disk):
            break
        made.disk.power_cut()
        installed(made.disk)
        again = LogUnderTest(made.disk)
        assert (again.log.start, again.log.last_index) == (START, 7)
        assert again.log.recovery.watermark == SEGMENT
        operations += 1
    assert operations > 10


def test_the_checkpoint_says_where_the_log_begins() -> None:
    disk = SimulatedDisk()
    make_directory(disk, DATA)
    checkpoint = Checkpoint(disk, DATA / "checkpoint")
    checkpoint.begin_at(SEGMENT, 7, 1_007)
    checkpoint.close()
    disk.power_cut()
    state = Checkpoint(disk, DATA / "checkpoint").state
    assert (state.watermark, state.first_offset, state.consume_queue_index) == (SEGMENT, SEGMENT, 7)


@pytest.mark.parametrize("cut", ["kill", "power"])
def test_checkpoint_that_a_crash_left_behind_its_note_is_written_again(cut: str) -> None:
    """Whoever reads the directory later, and has the page alone, isn't told of what is gone."""
    made = make_log(BODIES)
    start = made.log.start_before(4)
    assert start is not None
    StartNote(made.disk, DATA).replace(start)
    if cut == "kill":
        made.disk.kill()
    else:
        made.disk.power_cut()
    again = LogUnderTest(made.disk)
    assert again.log.checkpoint.state.first_offset == start.offset(SEGMENT)
    again.log.close()
    made.disk.power_cut()
    state = Checkpoint(made.disk, DATA / "checkpoint").state
    assert state.first_offset == start.offset(SEGMENT)


@pytest.mark.parametrize("intended", [False, True])
def test_what_was_received_of_a_base_is_gone_after_a_start(intended: bool) -> None:
    """Whether it was installed or never came to that."""
    made = make_log(BODIES)
    snapshots = SnapshotFiles(DATA, made.disk)
    snapshots.receive(0, b"some of it")
    if intended:
        Install(made.disk, DATA).intend(START)
    made.disk.kill()
    assert (installed(made.disk) is not None) == intended
    assert not made.disk.exists(DATA / FOLDER / RECEIVED)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["create", "pwritev", "fsync", "rename"])
def test_a_note_that_finds_no_space_says_what_it_said(step: str, code: int) -> None:
    """It is refused before the new one has the name, and may be tried again."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    note, install = StartNote(disk, DATA), Install(disk, DATA)
    for put, read, before in (
        (note.replace, note.read, FROM_THE_FIRST),
        (install.intend, install.read, None),
    ):
        disk.fail_next(step, code)
        with pytest.raises(OSError, match=os.strerror(code)):
            put(START)
        assert read() == before
        put(START)
        assert read() == START


@pytest.mark.parametrize("which", ["note", "intent"])
def test_a_note_whose_name_is_not_synced_is_no_matter_of_space(which: str) -> None:
    """It says so already, and after a loss of power it may or may not: nobody may go on as if it
    didn't, and remove what it names."""
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    note, install = StartNote(disk, DATA), Install(disk, DATA)
    put, read = (note.replace, note.read) if which == "note" else (install.intend, install.read)
    disk.fail_next("fsync_directory", errno.ENOSPC)
    with pytest.raises(StorageFailed, match="No space left"):
        put(START)
    assert read() == START
    disk.kill()
    assert read() == START

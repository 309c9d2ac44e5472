"""Rot in a log: found by a scrub wherever it is, bounded, filled with the very bytes that were
there and with no others, and put back so that a crash at any moment does no harm."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dledger.reading.entry import HEADER_SIZE, build_frame, parse_header, walk_frames
from dledger.records.errors import InvalidFrame
from dledger.records.layout import file_name
from store import damage as damage_module
from store.commitlog import CommitLog, CommitLogOptions
from store.damage import Damage, Extent, Refill
from store.errors import BeyondRepair, CorruptionFound
from store.repair_journal import RepairJournal
from store.scrubbing import Scrub
from tests.scale import stride
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA, LOG, LogUnderTest
from tests.store.test_power_cuts import PowerCut

SEGMENT = 4096
OLD_SEGMENT = 160 << 10  # so many of them that old ones know few starts: marks every 64 KiB
MANY = CommitLogOptions(segment_size_bytes=OLD_SEGMENT, reserve_bytes=0)


def reopened(disk: SimulatedDisk, options: CommitLogOptions | None = None) -> LogUnderTest:
    """The log that is on the disk, with nothing of it in memory."""
    return LogUnderTest(disk) if options is None else LogUnderTest(disk, options)


def filled(sizes: list[int], options: CommitLogOptions | None = None) -> SimulatedDisk:
    """A disk with a log of entries of such sizes, stopped cleanly."""
    disk = SimulatedDisk()
    made = reopened(disk, options)
    chance = Random(7)
    for number, size in enumerate(sizes):
        made.append(chance.randbytes(size), term=1 + number // 5)
        if number % 8 == 7:
            made.flush()
    made.flush()
    made.log.close()
    return disk


SMALL_SIZES = [100, 900, 0, 1500, 40, 3000, 700, 700, 700, 10, 2000, 60, 60, 60]


def scrubbed(log: CommitLog) -> list[CorruptionFound]:
    """What a pass over the whole log finds, each of it passed over."""
    found: list[CorruptionFound] = []
    scrub = log.scrub
    scrub.begin(log.last_index)
    while not scrub.is_over:
        try:
            scrub.finish(scrub.step()())
        except CorruptionFound as error:
            found.append(error)
            if log.damages.locate(error.file, error.offset) is None:
                scrub.look_again()
            else:
                scrub.pass_over(log.damages.place_of(error.file, error.offset).end)
        assert len(found) < 1000
    return found


def located(log: CommitLog, error: CorruptionFound) -> Damage:
    damage = log.damages.locate(error.file, error.offset)
    assert damage is not None
    return damage


def term_of(log: CommitLog) -> Callable[[int], int]:
    runs = log.term_runs()
    return lambda index: next(term for first, term in reversed(runs) if first <= index)


def repair(log: CommitLog, damage: Damage, giver: CommitLog, disk: SimulatedDisk) -> None:
    journal = RepairJournal(disk, DATA)
    if damage.is_filler:
        extent = damage.extents[0]
        journal.write_filler(extent)
        return
    refill = Refill(damage, term_of(log), log.damages.arrives)
    is_complete = False
    while not is_complete:
        is_complete = refill.take(giver.read(refill.next_index, refill.next_index))
    for extent, content in refill.contents():
        journal.write_back(extent, content)


def contents(disk: SimulatedDisk) -> dict[Path, bytes]:
    """What the files hold; spares, which hold nothing, left out."""
    paths = [path for path in disk.paths() if path.parent == LOG and path.suffix == ""]
    found = {path: disk.content(path).rstrip(b"\0") for path in paths}
    return {path: content for path, content in found.items() if content}


def test_a_sound_log_is_found_sound_every_time() -> None:
    """All bytes are read in each pass: walked in the first, compared from then on."""
    made = reopened(filled(SMALL_SIZES))
    for passes in range(1, 4):
        assert scrubbed(made.log) == []
        assert made.log.scrub.pass_bytes >= made.log.scrub.pass_total_bytes - SEGMENT
        assert made.log.scrub.checked_bytes == passes * made.log.scrub.pass_bytes


@pytest.mark.parametrize("is_known", [False, True], ids=["walked", "compared"])
def test_every_flipped_byte_is_found_and_repaired(*, is_known: bool) -> None:
    """At each byte of each segment, entries and fillers: one pass finds it, the bytes of a twin
    fill it, and the next pass finds the log as it was."""
    disk = filled(SMALL_SIZES)
    giver = reopened(disk.clone()).log
    before = contents(disk)
    missed = []
    for path, content in before.items():
        for at in range(0, len(content), 7 * stride(3)):
            mine = disk.clone()
            made = reopened(mine)
            if is_known:
                assert scrubbed(made.log) == []
            mine.flip(path, at, at % 8)
            found = scrubbed(made.log)
            if not found:
                missed.append((path.name, at))
                continue
            repair(made.log, located(made.log, found[0]), giver, mine)
            assert scrubbed(made.log) == []
            assert contents(mine) == before
            assert DATA / "repair" not in mine.paths()
    assert missed == []


def test_rot_in_an_old_segment_ends_at_the_next_known_start() -> None:
    """Whose headers are the only index: what can't be walked to is got back with it."""
    sizes = [1_000] * 1_800
    disk = filled(sizes, MANY)
    giver = reopened(disk.clone(), MANY).log
    made = reopened(disk, MANY)
    assert len(contents(disk)) > 10
    before = contents(disk)
    at = made.log.position_of(70)
    disk.flip(LOG / file_name(0), at, 3)
    found = scrubbed(made.log)
    damage = located(made.log, found[0])
    assert damage.first_index == 70
    assert damage.last_index > 70
    assert damage.size < 2 * (64 << 10)
    repair(made.log, damage, giver, disk)
    assert contents(disk) == before
    assert scrubbed(made.log) == []


def test_rot_in_several_entries_side_by_side_is_one_damage() -> None:
    """What follows isn't intact either: there is nothing to go on from before its end."""
    disk = filled(SMALL_SIZES)
    giver = reopened(disk.clone()).log
    made = reopened(disk)
    before = contents(disk)
    for index in (3, 4, 5):
        at = made.log.position_of(index) + 20
        disk.flip(LOG / file_name(at - at % SEGMENT), at % SEGMENT, 1)
    damage = located(made.log, scrubbed(made.log)[0])
    assert (damage.first_index, damage.last_index) == (3, 5)
    repair(made.log, damage, giver, disk)
    assert contents(disk) == before


def test_a_segment_that_lost_its_end_gets_it_back() -> None:
    """Entries, filler and size."""
    disk = filled(SMALL_SIZES)
    giver = reopened(disk.clone()).log
    made = reopened(disk)
    path, before = LOG / file_name(0), contents(disk)
    disk.resize(path, 1_200)
    for _ in range(4):
        found = scrubbed(made.log)
        if not found:
            break
        repair(made.log, located(made.log, found[0]), giver, disk)
    assert scrubbed(made.log) == []
    made.log.close(is_clean=False)
    assert reopened(disk).log.last_index == giver.last_index
    assert contents(disk)[path] == before[path]


def test_rot_over_the_edge_of_two_segments_is_one_damage() -> None:
    """Neither part has a sound neighbour to be judged by, together they have two; whichever is
    looked at, and whatever else is rotten there."""
    disk = filled(SMALL_SIZES)
    giver = reopened(disk.clone()).log
    made = reopened(disk)
    before = contents(disk)
    first = next(index for index in range(2, 15) if made.log.position_of(index) == SEGMENT)
    for index in (first - 1, first):
        at = made.log.position_of(index) + 10
        disk.flip(LOG / file_name(at - at % SEGMENT), at % SEGMENT, 1)
    damage = made.log.damages.locate(str(LOG / file_name(SEGMENT)), 10)
    assert damage is not None
    assert (damage.first_index, damage.last_index) == (first - 1, first)
    assert [each.base for each in damage.extents] == [0, SEGMENT]
    assert located(made.log, scrubbed(made.log)[0]) == damage
    repair(made.log, damage, giver, disk)
    assert contents(disk) == before
    assert scrubbed(made.log) == []


def test_more_than_fits_into_memory_is_beyond_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has lost so much in a row is replaced."""
    monkeypatch.setattr(damage_module, "MAX_DAMAGE_BYTES", 2_000)
    disk = filled(SMALL_SIZES)
    made = reopened(disk)
    for index in range(3, 7):
        at = made.log.position_of(index) + 10
        disk.flip(LOG / file_name(at - at % SEGMENT), at % SEGMENT, 1)
    with pytest.raises(BeyondRepair, match="in a row"):
        made.log.damages.locate(str(LOG / file_name(0)), made.log.position_of(3) + 10)


# --- judging -----------------------------------------------------------------------------------


def damaged(index: int) -> tuple[LogUnderTest, Damage, CommitLog]:
    disk = filled(SMALL_SIZES)
    giver = reopened(disk.clone()).log
    made = reopened(disk)
    at = made.log.position_of(index) + HEADER_SIZE + 1
    disk.flip(LOG / file_name(at - at % SEGMENT), at % SEGMENT, 1)
    return made, located(made.log, scrubbed(made.log)[0]), giver


def forged(
    frame: bytes, previous_digest: int, *, body: bytes | None = None, term: int = 0
) -> bytes:
    """Another entry in the same place, as right by itself as the one that was there."""
    header = parse_header(frame, 0)
    content = frame[HEADER_SIZE:] if body is None else body
    head, _ = build_frame(
        header.kind,
        header.index,
        term or header.term,
        header.physical_offset,
        header.append_time_ms,
        header.record_count,
        content,
        previous_digest,
    )
    return head + content


@pytest.mark.parametrize("index", [2, 8, 14], ids=["first file", "later", "the last entry"])
def test_bytes_that_are_right_by_themselves_and_not_the_ones_are_refused(index: int) -> None:
    """Whole, with CRC, index, place, term and a digest that carries on: only the entry behind, or
    the log's last digest, tells that it isn't what was there."""
    made, damage, giver = damaged(index)
    frame = giver.read(index, index)
    other = bytes([frame[HEADER_SIZE] ^ 1]) + frame[HEADER_SIZE + 1 :]
    lie = forged(frame, damage.digest_before, body=other)
    assert walk_frames(lie)[0].total_size == len(frame)
    refill = Refill(damage, term_of(made.log), made.log.damages.arrives)
    with pytest.raises(InvalidFrame, match="digest"):
        refill.take(lie)


def test_every_other_lie_is_refused() -> None:
    """Another entry, another term, another chain, too much, too little, nothing, no frames."""
    made, damage, giver = damaged(4)
    frame = giver.read(4, 4)
    lies = {
        "index": giver.read(5, 5),
        "term": forged(frame, damage.digest_before, term=9),
        "digest": forged(frame, 12345),
        "frames": b"",
        "magic": bytes(len(frame)),
        "CRC32C": frame[:-1] + bytes([frame[-1] ^ 1]),
        "total size": frame[:-1],
        "remaining": frame + b"\0",
    }
    for what, lie in lies.items():
        refill = Refill(damage, term_of(made.log), made.log.damages.arrives)
        with pytest.raises(InvalidFrame, match=what):
            refill.take(lie)
    longer = forged(frame, damage.digest_before, body=bytes(len(frame)))
    with pytest.raises(InvalidFrame, match="size"):
        Refill(damage, term_of(made.log), made.log.damages.arrives).take(longer)
    beyond = frame + giver.read(5, 5)
    with pytest.raises(InvalidFrame, match="index"):
        Refill(damage, term_of(made.log), made.log.damages.arrives).take(beyond)
    shorter = forged(frame, damage.digest_before, body=b"short")
    with pytest.raises(InvalidFrame, match="end"):
        Refill(damage, term_of(made.log), made.log.damages.arrives).take(shorter)


# --- writing back ------------------------------------------------------------------------------


def count_steps_of_a_repair() -> int:
    made, damage, giver = damaged(4)
    before = len(made.disk.calls)
    repair(made.log, damage, giver, made.disk)
    return len(made.disk.calls) - before


@pytest.mark.parametrize("keep_some", [None, False, True], ids=["kill", "nothing", "torn"])
def test_a_repair_is_done_or_undone_wherever_it_ends(*, keep_some: bool | None) -> None:
    """Killed, or without power, before each of its calls: the next start finds the log whole, or
    the rot as it was; and whole it is from the journal's name on."""
    outcomes = []
    for step in range(count_steps_of_a_repair() + 1):
        for seed in range(6 if keep_some else 1):
            made, damage, giver = damaged(4)
            disk = made.disk
            fatal = len(disk.calls) + step

            def stop(_operation: str, _name: str, at: int = fatal) -> None:
                if len(disk.calls) > at:  # noqa: B023
                    raise PowerCut

            disk.before = stop
            with contextlib.suppress(PowerCut):
                repair(made.log, damage, giver, disk)
            disk.before = lambda _operation, _name: None
            if keep_some is None:
                disk.kill()
            else:
                disk.power_cut(Random(seed) if keep_some else None)
            try:
                again = reopened(disk).log
            except CorruptionFound:
                outcomes.append(False)
            else:
                assert again.read(1, again.last_index) == giver.read(1, giver.last_index)
                assert DATA / "repair" not in disk.paths()
                outcomes.append(True)
    assert not outcomes[0]
    assert outcomes[-1]
    if not keep_some:
        assert outcomes == sorted(outcomes), "once done, never undone"


def journal_of(content: bytes, place: int) -> SimulatedDisk:
    """A disk on which a repair was interrupted right behind its journal's name."""
    disk = filled(SMALL_SIZES)
    reopened(disk)
    extent = Extent(LOG / file_name(0), 0, place, place + len(content))

    def stop(operation: str, name: str) -> None:
        if operation == "pwritev" and name == file_name(0):
            raise PowerCut

    disk.before = stop
    with pytest.raises(PowerCut):
        RepairJournal(disk, DATA).write_back(extent, content)
    disk.before = lambda _operation, _name: None
    disk.kill()
    assert DATA / "repair" in disk.paths()
    return disk


def test_a_journal_changes_nothing_that_is_sound() -> None:
    """One of another log, or of another time: sound entries stay what they are, and it goes."""
    sound = filled(SMALL_SIZES)
    frame = reopened(sound.clone()).log.read(1, 1)
    disk = journal_of(forged(frame, 0, body=bytes(len(frame) - HEADER_SIZE)), 0)
    before = contents(disk)
    reopened(disk)
    assert contents(disk) == before
    assert DATA / "repair" not in disk.paths()


@pytest.mark.parametrize("at", [0, 5, 9, 17, 25, -1])
def test_a_journal_that_has_rotted_itself_is_none(at: int) -> None:
    """The start judges the log as if there were no journal."""
    frame = reopened(filled(SMALL_SIZES)).log.read(1, 1)
    disk = journal_of(frame, 0)
    size = len(disk.content(DATA / "repair"))
    disk.flip(DATA / "repair", at % size, 2)
    disk.flip(LOG / file_name(0), 30, 2)
    with pytest.raises(CorruptionFound):
        reopened(disk)


def test_without_space_nothing_has_happened() -> None:
    """The journal's beginning takes nobody's space, and the damage is as it was."""
    made, damage, giver = damaged(6)
    disk = made.disk
    before = contents(disk)
    disk.fill_up(100)
    disk.used_bytes()
    with pytest.raises(OSError, match="space"):
        repair(made.log, damage, giver, disk)
    disk.make_room()
    assert contents(disk) == before
    assert DATA / "repair.tmp" not in disk.paths()
    repair(made.log, damage, giver, disk)
    assert scrubbed(made.log) == []


def test_a_disk_that_does_not_keep_what_is_written_is_told() -> None:
    """Read back and compared, before anybody calls it repaired."""
    made, damage, giver = damaged(4)
    disk = made.disk

    def rot_again(operation: str, name: str) -> None:
        if operation == "fdatasync" and name == file_name(0):
            disk.before = lambda _operation, _name: None
            disk.flip(damage.extents[0].path, damage.extents[0].start + 1, 1)

    disk.before = rot_again
    with pytest.raises(CorruptionFound, match="just written"):
        repair(made.log, damage, giver, disk)


def test_scrubs_know_a_digest_that_does_not_carry_on() -> None:
    """Every frame intact by its CRC, and one of them not this log's: the chain tells."""
    disk = filled(SMALL_SIZES)
    made = reopened(disk)
    frame = made.log.read(4, 4)
    at = made.log.position_of(4)
    other = forged(frame, 99)
    disk.spoil(LOG / file_name(0), at % SEGMENT, other)
    assert scrubbed(made.log)
    assert isinstance(made.log.scrub, Scrub)


@pytest.mark.parametrize("puts_back", ["entry", "filler"])
def test_what_got_lost_of_a_flush_is_told_to_the_flusher_whoever_syncs_first(
    puts_back: str,
) -> None:
    """The kernel gave up the flusher's pages, and a repair in the same file asks first: both are
    told, and nothing is durable that isn't on the platter."""
    disk = filled(SMALL_SIZES)
    made = reopened(disk)
    last = made.log.last_index
    content, start = made.log.read(last, last), made.log.position_of(last) % SEGMENT
    path = LOG / file_name(made.log.position_of(last) - start)
    extent = Extent(path, int(path.name), start, start + len(content))
    if puts_back == "filler":
        extent = replace(extent, start=SEGMENT - 100, end=SEGMENT)
    journal, refused = RepairJournal(disk, DATA), list[OSError]()

    def lose(operation: str, name: str) -> None:
        if (operation, name) != ("fdatasync", path.name):
            return
        disk.before = lambda _operation, _name: None
        disk.fail_write_back(path)
        try:
            if puts_back == "filler":
                journal.write_filler(extent)
            else:
                journal.write_back(extent, content)
        except OSError as error:
            refused.append(error)

    made.append(b"new", term=made.log.last_term)
    disk.before = lose
    made.flush()
    assert [error.errno for error in refused] == [errno.EIO]
    assert made.durable == []
    assert len(made.failures) == 1


@pytest.mark.parametrize("change", ["head", "rest", "size", "sector", "nothing"])
def test_filler_is_damaged_if_anything_but_it_is_there(change: str) -> None:
    """And not because somebody says so."""
    disk = filled(SMALL_SIZES)
    log = reopened(disk).log
    last, path = log.ends_by(SEGMENT), LOG / file_name(0)
    at = log.position_of(last) + log.header_at(last).total_size
    if change == "head":
        disk.flip(path, at + 3, 0)
    elif change == "rest":
        disk.spoil(path, SEGMENT - 1, b"x")
    elif change == "size":
        disk.cut_short(path, SEGMENT - 1)
    elif change == "sector":
        disk.lose_sector(path, at)
    damage = log.damages.locate(str(path), at)
    assert (damage is None) == (change == "nothing")
    assert damage is None or damage.is_filler

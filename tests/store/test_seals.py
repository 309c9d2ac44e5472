"""Seals: what a start passes over must be what it would have found, and what isn't is walked."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.reading.entry import HEADER_SIZE, EntryKind
from dledger.reading.log_start import LogStart
from dledger.records.layout import file_name
from store.commitlog import CommitLog, CommitLogOptions
from store.doubt import DoubtNote
from store.errors import CorruptionFound, SealRefused
from store.files import make_directory
from store.intact import IntactRun, Marks
from store.log_start import Install
from store.scrubbing import Scrub
from store.seals import decode_seal, encode_seal
from store.starts import SPARSE_BYTES
from tests.scale import examples
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import BODIES, DATA, LOG, LogUnderTest, all_frames, make_log

SEAL = DATA / "seal"
LARGE = CommitLogOptions(segment_size_bytes=3 * SPARSE_BYTES, reserve_bytes=0)


def seal_all(log: CommitLog, through: int) -> list[int]:
    """Everything through entry `through` is sealed; the segments that were."""
    bases: list[int] = []
    while (step := log.seals.due(through)) is not None:
        step.run()
        log.seals.finish(step)
        bases.append(step.base)
    return bases


def sealed_disk(through: int = 7) -> SimulatedDisk:
    """A log of BODIES that was killed, sealed through an entry of its."""
    made = make_log(BODIES)
    seal_all(made.log, through)
    made.disk.kill()
    return made.disk


def known(log: CommitLog) -> list[object]:
    """All that a start learns of a log."""
    places = [log.position_of(index) for index in range(1, log.last_index + 1)]
    last = (log.last_index, log.last_term, log.last_digest, log.last_append_time_ms)
    return [places, last, log.end_offset, log.term_runs(), log.configuration_entries()]


def rot(disk: SimulatedDisk, path: Path, at: int) -> None:
    disk.bytes_of(path)[at] ^= 4


entries = st.lists(
    st.tuples(
        st.integers(1, 70_000),
        st.sampled_from([0, 0, 0, 1, 3]),
        st.sampled_from([EntryKind.COMMAND, EntryKind.COMMAND, EntryKind.CONFIGURATION]),
    ),
    min_size=1,
    max_size=25,
)


@given(drawn=entries, shares=st.lists(st.floats(0, 1), min_size=1, max_size=3), clean=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_a_start_by_seals_finds_what_one_by_walking_does(
    drawn: list[tuple[int, int, EntryKind]], shares: list[float], clean: bool
) -> None:
    """Whatever the log, however often it was sealed and through whichever entries: the same places,
    terms, configurations, digest, and the same bytes; and damage is placed as finely."""
    made = LogUnderTest(SimulatedDisk(), LARGE)
    term, through = 1, 0
    for number, (size, step, kind) in enumerate(drawn, start=1):
        term += step
        made.append(bytes([number]) * size, term=term, kind=kind)
        made.flush()
    for share in sorted(shares):
        through = int(share * len(drawn))
        seal_all(made.log, through)
    expected, frames = known(made.log), all_frames(made.log)
    if clean:
        made.log.close()
    made.disk.kill()
    without = made.disk.clone()
    for path in [path for path in without.paths() if path.parent == SEAL]:
        without.unlink(path)
    by_seals = LogUnderTest(made.disk, LARGE).log
    by_walking = LogUnderTest(without, LARGE).log
    assert known(by_seals) == known(by_walking) == expected
    assert all_frames(by_seals) == frames
    assert not by_walking.passed_over
    passed = [index for first, last in by_seals.passed_over for index in range(first, last + 1)]
    assert all(index <= through for index in passed)
    for segment in by_seals._table.segments:
        for at in range(0, segment.used, 10_000):
            place = by_seals.damages.place_of(str(segment.path), at)
            assert place.start <= at < place.end
            # A place ends before the next mark, which is no farther than an entry behind it.
            assert place.end - place.start < SPARSE_BYTES + 70_100


def test_only_what_no_seal_speaks_of_is_read() -> None:
    disk = sealed_disk(6)
    log = LogUnderTest(disk.clone()).log
    assert log.passed_over == ((2, 2), (4, 4), (6, 6))
    walked = (1, 3, 5, 7)  # the first of each segment is looked at as ever
    ends = [log.position_of(index) + HEADER_SIZE + len(BODIES[index - 1]) for index in (2, 4)]
    fillers = sum(4096 - end % 4096 for end in ends)
    frames = sum(HEADER_SIZE + len(BODIES[index - 1]) for index in walked)
    assert log.recovery.verified_bytes == frames + fillers


def test_rot_in_what_a_seal_speaks_of_is_found_by_the_scrub_and_by_who_reads_it() -> None:
    """The start goes by what was known; nothing rotten is ever given out."""
    disk = sealed_disk()
    log = LogUnderTest(disk.clone()).log
    at = log.position_of(2) + HEADER_SIZE + 5
    rot(disk, LOG / file_name(0), at)
    log = LogUnderTest(disk).log
    with pytest.raises(CorruptionFound):
        log.read(1, 3)
    log.scrub.begin(7)
    with pytest.raises(CorruptionFound):
        scrub(log.scrub)


def scrub(passing: Scrub) -> None:
    while not passing.is_over:
        passing.finish(passing.step()())


@pytest.mark.parametrize("index", [1, 2, 3])
def test_a_header_that_a_seal_names_is_looked_at(index: int) -> None:
    """The first and the last entry of what it speaks of: other bytes than those are walked, and a
    bad frame is a bad frame."""
    disk = sealed_disk(4)
    place = LogUnderTest(disk.clone()).log.position_of(index)
    path = LOG / file_name(place - place % 4096)
    rot(disk, path, place % 4096 + 30)
    with pytest.raises(CorruptionFound) as found:
        LogUnderTest(disk)
    assert found.value.file == str(path)


def test_rot_behind_what_is_sealed_ends_a_start() -> None:
    disk = sealed_disk(5)
    place = LogUnderTest(disk.clone()).log.position_of(6)
    rot(disk, LOG / file_name(8192), place - 8192 + HEADER_SIZE)
    with pytest.raises(CorruptionFound):
        LogUnderTest(disk)


def test_seals_of_bytes_that_nothing_says_are_durable_count_for_nothing() -> None:
    """Without a readable checkpoint, or beyond its watermark: a start proves those."""
    disk = sealed_disk()
    rot(disk, DATA / "checkpoint", 20)
    assert not LogUnderTest(disk).log.passed_over
    made = make_log(BODIES[:3])
    old = bytes(made.disk.bytes_of(DATA / "checkpoint"))
    for body in BODIES[3:]:
        made.append(body)
        made.flush()
    seal_all(made.log, 7)
    made.disk.kill()
    made.disk.bytes_of(DATA / "checkpoint")[:] = old
    log = LogUnderTest(made.disk).log
    assert log.passed_over == ((2, 2),)
    assert log.last_index == 7


def test_another_logs_seal_is_passed_over() -> None:
    """Sound, and of other entries."""
    disk, other = sealed_disk(), make_log([b"x" * len(body) for body in BODIES])
    seal_all(other.log, 7)
    for path in [path for path in disk.paths() if path.parent == SEAL]:
        disk.bytes_of(path)[:] = other.disk.bytes_of(path)
    log = LogUnderTest(disk).log
    assert not log.passed_over
    assert seal_all(log, 7) == [0, 4096, 8192], "and written anew"


def test_a_seal_of_the_same_beginning_and_another_end_is_passed_over() -> None:
    """As after a segment was cut and filled again: the end isn't where it says."""
    made = make_log([b"a" * 100, b"b" * 100, b"c" * 100])
    seal_all(made.log, 3)
    made.log.truncate_from(2)
    for body in (b"x" * 100, b"y" * 100, b"z" * 100):
        made.append(body, term=2)
        made.flush()
    made.disk.kill()
    log = LogUnderTest(made.disk).log
    assert not log.passed_over
    assert log.last_index == 4


@pytest.mark.parametrize("at", [0, 4, 9, 70, 121, 125, 129, 133, -1])
@pytest.mark.parametrize("how", ["changed", "cut"])
def test_what_is_no_seal_is_refused_and_walked(at: int, how: str) -> None:
    disk = sealed_disk()
    content = bytes(disk.bytes_of(SEAL / file_name(0)))
    at %= len(content)
    spoilt = content[:at] if how == "cut" else content[:at] + b"\xff" + content[at + 1 :]
    if spoilt == content:
        spoilt = content[:at] + b"\x00" + content[at + 1 :]
    with pytest.raises(SealRefused):
        decode_seal(spoilt)
    disk.resize(SEAL / file_name(0), len(spoilt))
    disk.bytes_of(SEAL / file_name(0))[:] = spoilt
    assert LogUnderTest(disk).log.passed_over == ((4, 4), (6, 7))


def run_of(disk: SimulatedDisk) -> tuple[IntactRun, bytes, bytes]:
    content = bytes(disk.bytes_of(SEAL / file_name(8192)))
    return decode_seal(content), content[8:64], content[64:120]


def with_marks(slots: list[int], starts: list[int]) -> dict[str, object]:
    return {"marks": Marks(array("I", slots), array("I", starts))}


@pytest.mark.parametrize(
    "changes",
    [
        {"terms": ((5, 2),)},
        {"terms": ((8, 2),)},
        {"terms": ((6, 0),)},
        {"terms": ((6, 2), (6, 3))},
        {"terms": ((6, 2),)},  # it doesn't lead to the last entry's
        {"configurations": ((5, b"c"),)},
        {"configurations": ((8, b"c"),)},
        {"configurations": ((7, b"c"), (6, b"c"))},
        {"marks": None},
        with_marks([1], [0]),
        with_marks([0], [4]),
        with_marks([0, 0], [0, 9]),
        with_marks([0, 1], [0, 0]),
        with_marks([0, 3], [0, 9]),
        with_marks([0, 1], [0, 4096]),
    ],
)
def test_a_seal_that_no_log_gives_is_refused(changes: dict[str, object]) -> None:
    """Its sums are right, and what it says can't be."""
    run, first, last = run_of(sealed_disk())
    assert decode_seal(encode_seal(run, first, last)) == run
    with pytest.raises(SealRefused):
        decode_seal(encode_seal(replace(run, **changes), first, last))  # type: ignore[arg-type]
    with pytest.raises(SealRefused):
        decode_seal(encode_seal(run, last, first))


def test_seals_cost_one_write_each_and_are_not_written_again() -> None:
    made = make_log(BODIES)
    assert seal_all(made.log, 0) == []
    assert seal_all(made.log, 4) == [0, 4096]
    assert seal_all(made.log, 4) == []
    assert seal_all(made.log, 5) == [8192]
    assert seal_all(made.log, 7) == [8192]
    made.disk.kill()
    assert seal_all(LogUnderTest(made.disk).log, 7) == []


def test_a_seal_that_could_not_be_written_is_asked_for_again() -> None:
    made = make_log(BODIES)
    step = made.log.seals.due(7)
    again = made.log.seals.due(7)
    assert step is not None
    assert again is not None
    assert (step.base, step.last_index) == (again.base, again.last_index) == (0, 2)


def seal_over_and_over(log: CommitLog) -> None:
    while True:
        seal_all(log, 7)
        log.seals._sealed.clear()


@pytest.mark.parametrize("seed", range(12))
def test_power_cuts_while_sealing_cost_nothing(seed: int) -> None:
    """At each call of the disk: the next start finds the log, by seals or without."""
    chance = Random(seed)
    made = make_log(BODIES)
    frames, expected = all_frames(made.log), known(made.log)
    seal_all(made.log, 5)
    count = 0

    def die(_operation: str, _name: str) -> None:
        nonlocal count
        count += 1
        if count > seed:
            raise KeyboardInterrupt

    made.disk.before = die
    with pytest.raises(KeyboardInterrupt):
        seal_over_and_over(made.log)
    made.disk.before = lambda _operation, _name: None
    made.disk.power_cut(chance)
    log = LogUnderTest(made.disk).log
    assert known(log) == expected
    assert all_frames(log) == frames


def test_seals_go_with_their_segments() -> None:
    made = make_log(BODIES)
    seal_all(made.log, 7)
    start = made.log.start_before(5)
    assert start is not None
    for segment in made.log.drop_before(start):
        made.disk.close(segment.handle)
        made.disk.unlink(segment.path)
    assert seal_all(made.log, 7) == [8192]
    assert [path.name for path in made.disk.paths() if path.parent == SEAL] == [file_name(8192)]


def test_a_log_that_begins_anew_has_no_seals_and_no_doubt() -> None:
    """What they speak of is another log's from then on, in files of the same names."""
    disk = sealed_disk()
    make_directory(disk, DATA / "snapshot")
    DoubtNote(disk, DATA).write([(file_name(0), 7)])
    Install(disk, DATA).intend(LogStart(7, 1, 1, 4000, 1_007, 1, 1, b"a configuration"))
    Install(disk, DATA).settle(4096)
    assert [path for path in disk.paths() if path.parent == SEAL] == []
    assert DoubtNote(disk, DATA).read() == []

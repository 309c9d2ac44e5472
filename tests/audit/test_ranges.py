"""A range of a log's entries, whatever was done to its files: nothing that is wrong with the
segments that hold it is passed over, and what of it isn't there is told.

What is right is taken from the original files and from the verdict on the whole log.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st

from audit.proof.dump import Wanted, dump
from audit.proof.findings import Cause
from audit.proof.log import LogSum, SegmentVerified, open_log, verify_log
from audit.proof.ranges import EVERYTHING
from audit.proof.reading import MAX_FAULTS
from audit.proof.soundness import Soundness
from dledger.reading.checkpoint import decode_checkpoint, encode_checkpoint
from dledger.reading.entry import HEADER_SIZE, EntryKind, parse_header
from dledger.reading.errors import NotALog
from dledger.records.layout import ENTRY
from tests.audit.changes import Change, Kind, Map, Placed, Repair, apply, copied
from tests.audit.replicas import Entry, LogBuilder, flip_bit
from tests.audit.simulated_group import group_plan, make_group
from tests.audit.test_any_change import changes
from tests.scale import stride

DRAWS: Final = int(os.environ.get("AUDIT_DRAWS", "0"))
FEW: Final = 6
SPREAD: Final = 9  # ranges are up to so many entries long, or open
# What is done to the log; queues and what a start wants are no matter of this.
KINDS: Final = (
    *(Kind.FLIP, Kind.ZERO, Kind.CUT, Kind.CUT_AT_ENTRY, Kind.SWAP_FILES, Kind.SWAP_RANGES),
    *(Kind.RENAME, Kind.REMOVE, Kind.RELABEL, Kind.FORGE),
)
BITS: Final = (0, 3, 5, 6, 7, 9)  # of an index: nearer and farther than its segments
FORGED: Final = (Kind.RELABEL, Kind.FORGE)
_INDEX: Final = ENTRY.at("index")

drawn = partial(
    settings,
    deadline=None,
    database=None,
    derandomize=not DRAWS,
    suppress_health_check=list(HealthCheck),
    phases=tuple(Phase) if DRAWS else (Phase.explicit, Phase.generate),
)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Map:
    """A stopped member's directory, which nobody changes."""
    return Map(make_group(tmp_path_factory.mktemp("group"), group_plan())["n2"])


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def verified(path: Path, wanted: tuple[int, int] = EVERYTHING) -> tuple[LogSum, list[Any]]:
    """What is said of the range, and of each segment that was read for it."""
    told: list[SegmentVerified] = []
    return verify_log(open_log(path), wanted, told.append), told


def worst(places: list[Soundness]) -> Soundness:
    return max(places, key=list(Soundness).index, default=Soundness.SOUND)


def at_least(found: Soundness, wanted: Soundness) -> bool:
    return list(Soundness).index(found) >= list(Soundness).index(wanted)


def shown(path: Path, wanted: tuple[int, int]) -> list[dict[str, Any]]:
    """The entries of the range that the dump shows."""
    facts = [each.facts for each in dump(open_log(path), Wanted(*wanted))]
    return [each for each in facts if each["what"] == "entry"]


def bases_of(known: Map, wanted: tuple[int, int]) -> list[int]:
    """The segments that hold entries of the range."""
    return sorted({e.base for e in known.entries if wanted[0] <= e.index <= wanted[1]})


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int]:
    """Of some entries, beyond the log's end too, or all from one on."""
    first = draw(st.integers(1, 400))
    open_ended = draw(st.integers(0, 5)) == 0
    return first, EVERYTHING[1] if open_ended else first + draw(st.integers(0, SPREAD))


def firsts_of(known: Map) -> list[Placed]:
    return [entry for entry in known.entries if entry.at == 0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("with_checkpoint", [True, False], ids=["", "no_checkpoint"])
def test_verdict_of_a_range_is_never_better_than_its_segments(
    known: Map, scratch: Path, kind: Kind, with_checkpoint: bool
) -> None:
    """Than what the whole log says of those that held the range before the change; and the dump
    shows of it all that the whole dump shows of them: an entry of another segment that claims an
    index of the range is a liar, and need not be met."""

    @drawn(max_examples=DRAWS or FEW // stride(2))
    @given(changes([kind]), ranges(), st.booleans())
    def holds(change: Change, wanted: tuple[int, int], is_of_a_header: bool) -> None:
        assume(change.repair is not Repair.CHAIN)  # forged to the log's end: none can tell
        if is_of_a_header:
            change = Change(change.kind, change.file, change.at % HEADER_SIZE, *_rest(change))
        change = Change(change.kind, _of_log(change.file, change, known), *_rest(change, "at"))
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            target = copied(known.data, Path(folder) / "n2")
            apply(change, known, target)
            if not with_checkpoint:
                (target / "checkpoint").unlink()
            try:
                _, segments = verified(target)
            except NotALog:
                assume(False)
            total, told = verified(target, wanted)
            whole_dump = [e for e in shown(target, EVERYTHING) if _is_in(e["index"], wanted)]
            dump = shown(target, wanted)
        held = bases_of(known, wanted)
        assert _of(dump, held) == _of(whole_dump, held)
        assert all(each in whole_dump for each in dump)
        # What queues and producers had come to before the range isn't known.
        changed = known.entries[change.file % len(known.entries)].base
        unknown = Cause.NO_LEADERS if change.kind in FORGED and changed not in held else None
        says = [
            *(p.verdict for s in segments if s.base in held for p in s.places if p.cause != unknown)
        ]
        note(f"{total.verdict}, {total.missing}, read {[each.base for each in told]} of {held}")
        assert at_least(total.verdict, worst(says))
        if wanted[0] > known.entries[-1].index or EVERYTHING[1] != wanted[1] > _last(known):
            assert at_least(total.verdict, Soundness.INCOMPLETE)
        if total.verdict is Soundness.SOUND:
            read = {each.base for each in told}
            # Without a checkpoint nothing says how far a log went whose last file is gone.
            is_open = not with_checkpoint and wanted[1] == EVERYTHING[1]
            assert read >= {base for base in held if not is_open or base <= max(read)}

    holds()


def _is_in(index: int, wanted: tuple[int, int]) -> bool:
    return wanted[0] <= index <= wanted[1]


def _last(known: Map) -> int:
    return known.entries[-1].index


def _rest(change: Change, since: str = "size") -> tuple[Any, ...]:
    rest = (change.at, change.size, change.other, change.to, change.bit, change.repair)
    return rest if since == "at" else rest[1:]


def _of_log(number: int, change: Change, known: Map) -> int:
    """The number as one of a segment, where it is one of a file."""
    of_entries = (Kind.CUT_AT_ENTRY, Kind.RELABEL, Kind.FORGE)
    return number if change.kind in of_entries else number % len(known.segments)


def _of(dump: list[dict[str, Any]], bases: list[int]) -> list[dict[str, Any]]:
    return [each for each in dump if int(Path(str(each["file"])).name) in bases]


@pytest.mark.parametrize("is_forged", [False, True], ids=["rotten", "forged"])
def test_first_entry_that_lies_about_its_index_hides_no_segment(
    known: Map, scratch: Path, is_forged: bool
) -> None:
    """Bits of each first entry's index, its checksum repaired or not: a range in that
    segment is damaged, and the segment of any other range is read, or the verdict isn't sound."""
    target = copied(known.data, scratch / "n2")
    firsts = firsts_of(known)[1:]
    middles = [entry.index + 1 for entry in firsts]
    for victim in firsts:
        file = target / "commitlog" / f"{victim.base:020d}"
        original = file.read_bytes()
        for bit in BITS:
            frame = bytearray(original)
            frame[_INDEX + 7 - bit // 8] ^= 1 << bit % 8
            if is_forged:
                _seal(frame, victim.size)
            file.write_bytes(frame)
            for index, entry in zip(middles, firsts, strict=True):
                total, told = verified(target, (index, index))
                if entry is victim:
                    assert total.verdict is Soundness.DAMAGED, (victim, bit)
                elif not is_forged:
                    assert total.verdict is Soundness.SOUND, (victim, bit, index)
                    assert entry.base in {each.base for each in told}
                    assert [e["index"] for e in shown(target, (index, index))] == [index]
                elif total.verdict is Soundness.SOUND:
                    assert entry.base in {each.base for each in told}
        file.write_bytes(original)


def test_range_continues_the_digest_before_it(known: Map, scratch: Path) -> None:
    """The first entry of each segment but the first is another, its checksum repaired: what is
    behind it in that segment is damaged, though the segment before isn't wanted."""
    for number, entry in enumerate(known.entries):
        if entry.at > 0 or entry.base == 0:
            continue
        target = copied(known.data, scratch / f"n2-{number}")
        file = target / "commitlog" / f"{entry.base:020d}"
        frame = bytearray(file.read_bytes())
        frame[ENTRY.end("append_time_ms") - 1] ^= 1
        _seal(frame, entry.size)
        file.write_bytes(frame)
        total, told = verified(target, (entry.index + 1, entry.index + 1))
        assert total.verdict is Soundness.DAMAGED
        assert [each.base for each in told] == [entry.base]


def test_range_is_no_continuation_of_another_digest(known: Map, scratch: Path) -> None:
    """The last entry of each segment but the last claims another digest, its checksum repaired:
    the first one of the next segment doesn't continue that, though it is all that is wanted."""
    for number, (last, first) in enumerate(pairwise(known.entries)):
        if first.base == last.base:
            continue
        target = copied(known.data, scratch / f"n2-{number}")
        with (target / "commitlog" / f"{last.base:020d}").open("r+b") as file:
            file.seek(last.at)
            frame = bytearray(file.read(last.size))
            frame[ENTRY.at("digest")] ^= 1
            _seal(frame, last.size)
            file.seek(last.at)
            file.write(frame)
        total, told = verified(target, (first.index, first.index))
        assert total.verdict is Soundness.DAMAGED
        assert [each.base for each in told] == [first.base]


def _seal(frame: bytearray, size: int) -> None:
    at = ENTRY.at("crc")
    crc = crc32c(bytes(frame[at + 4 : size]), crc32c(bytes(frame[:at])))
    frame[at : at + 4] = crc.to_bytes(4, "big")
    assert parse_header(bytes(frame), 0).total_size == size


def test_range_of_an_intact_log_is_sound_by_the_segments_that_hold_it(known: Map) -> None:
    """And by none besides; the entries that are missing beyond the end are named."""
    last = _last(known)
    for entry in known.entries[:: max(len(known.entries) // 40, 1)]:
        for wanted in ((entry.index, entry.index), (entry.index, min(entry.index + 30, last))):
            total, told = verified(known.data, wanted)
            assert (total.verdict, total.missing) == (Soundness.SOUND, ())
            assert [each.base for each in told] == bases_of(known, wanted)
    assert verified(known.data, (last, last + 5))[0].missing == ((last + 1, last + 5),)
    assert verified(known.data, (last + 3, EVERYTHING[1]))[0].missing == ((last + 3, None),)
    assert verified(known.data, (1, EVERYTHING[1]))[0].missing == ()


def test_log_without_its_beginning_is_incomplete(known: Map, scratch: Path) -> None:
    """However much of it is gone, where nothing says that it went rightly: a directory without a
    readable checkpoint, and a bare folder. What is there of it is sound by itself."""
    firsts = firsts_of(known)
    target = copied(known.data, scratch / "n2")
    (target / "checkpoint").unlink()
    bare = scratch / "bare"
    shutil.copytree(target / "commitlog", bare)
    for gone, first in pairwise(firsts):
        for folder in (target / "commitlog", bare):
            (folder / f"{gone.base:020d}").unlink()
            total, _ = verified(folder)
            assert total.verdict is Soundness.INCOMPLETE
            assert total.missing == ((1, first.index - 1),)
            assert verified(folder, (first.index, EVERYTHING[1]))[0].verdict is Soundness.SOUND
            earlier, _ = verified(folder, (gone.index, first.index))
            assert earlier.verdict is Soundness.INCOMPLETE
            assert earlier.missing == ((gone.index, first.index - 1),)


def test_tail_has_no_places_however_torn_it_is(tmp_path: Path) -> None:
    """More places behind the watermark than are told one by one are no wrong places of the log;
    those below it are, though they can't all be told."""
    builder = LogBuilder(tmp_path / "n1", "n1", segment_size=1 << 20)
    builder.add(Entry(1, EntryKind.NOOP))
    for _ in range(600):
        builder.add(Entry(1, count=1, size=60))
    builder.flush()
    builder.close()
    path = tmp_path / "n1"
    file = path / "commitlog" / f"{0:020d}"
    for header in builder.headers[100:500:2]:
        flip_bit(file, header.physical_offset + header.total_size - 1)
    state = decode_checkpoint((path / "checkpoint").read_bytes())
    assert state is not None
    for durable, wrong in ((100, 0), (200, 50), (500, 200)):
        watermark = builder.headers[durable].physical_offset
        (path / "checkpoint").write_bytes(encode_checkpoint(replace(state, watermark=watermark)))
        total, (told,) = verified(path)
        assert total.places == wrong, (durable, total.first)
        assert (total.verdict is Soundness.SOUND) == (wrong == 0)
        assert (total.tail is not None) == (durable < 500)
        assert told.left_out == max(wrong - MAX_FAULTS, 0)

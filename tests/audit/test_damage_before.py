"""Damage in what was read before hides what deletes and refuses: nothing behind it is a message by
guess. Whoever begins behind it is refused, and who would read across it."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from audit.contents.export import export_messages
from audit.engines.engine import LocalEngine
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from dledger.reading.entry import ENTRY_MAGIC, EntryKind
from dledger.reading.errors import EntryDamaged, LogDamaged
from dledger.reading.lifetimes import Lifetimes, followed
from dledger.reading.survey import Survey
from tests.audit.replicas import (
    SEGMENT,
    Entry,
    LogBuilder,
    build,
    dropping,
    flip_bit,
    start_of,
)
from tests.audit.simulated_group import group_plan, make_group
from tests.audit.test_lifetimes import create, data, delete
from tests.audit.test_units import compound

# Read before: entries 1 to 4. Behind: a message of a topic that is deleted, and one that lives.
BEFORE = [Entry(1, EntryKind.NOOP), create("a"), data("a", b"kept"), create("z")]
BEHIND = [data("a", b"gone"), delete("a"), data("z", b"lives")]
LONG = [data("b", bytes(900))] * 24  # more than a segment


def segment(path: Path, base: int = 0) -> Path:
    return path / "commitlog" / f"{base:020d}"


def log_at(path: Path) -> Survey:
    return committed_log(Replica("n1", str(path)))


def add(builder: LogBuilder, entries: list[Entry]) -> None:
    for entry in entries:
        builder.add(entry)
        builder.flush()
    builder.dispatch()


def test_an_export_does_not_go_on_behind_damage(tmp_path: Path) -> None:
    """A bit of an exported command: nothing says any more that `a` was deleted behind it. Once it
    is repaired, the next run has what the first would have had."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    builder, engine = LogBuilder(tmp_path / "n1", "n1"), LocalEngine(processes=1)
    add(builder, BEFORE)
    replica, target = Replica("n1", str(tmp_path / "n1")), tmp_path / "out"
    assert export_messages(replica, target, engine).messages == 1
    add(builder, BEHIND)
    builder.close()
    place = builder.headers[3].physical_offset
    flip_bit(segment(tmp_path / "n1"), place + 60)
    with pytest.raises(LogDamaged, match=f"{segment(tmp_path / 'n1')} at byte {place}"):
        export_messages(replica, target, engine)
    flip_bit(segment(tmp_path / "n1"), place + 60)
    assert export_messages(replica, target, engine).messages == 1
    engine.close()


def test_a_table_does_not_go_on_behind_damage(tmp_path: Path) -> None:
    pytest.importorskip("deltalake", reason="deltalake isn't installed: pip install '.[audit]'")
    from audit.tables.delta import DeltaMessages
    from audit.tables.export import export_to_table

    builder, choice = LogBuilder(tmp_path / "n1", "n1"), (None, False)
    add(builder, BEFORE)
    replica, target = Replica("n1", str(tmp_path / "n1")), str(tmp_path / "table")
    assert export_to_table(replica, DeltaMessages(target), choice).messages == 1
    add(builder, BEHIND)
    builder.close()
    flip_bit(segment(tmp_path / "n1"), builder.headers[3].physical_offset + 60)
    with pytest.raises(LogDamaged):
        export_to_table(replica, DeltaMessages(target), choice)


def test_a_stream_does_not_begin_behind_damage(tmp_path: Path) -> None:
    """One that is started anew at an offset, and one whose batch was planned before; and who
    reads there is told at once, not by a task that fails."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    from dledger.spark.source import CommitLogSource

    built = build(tmp_path / "n1", BEFORE + BEHIND)
    made = CommitLogSource({"path": str(tmp_path / "n1"), "columns": "body"})
    stream = made.streamReader(made.schema())
    first, limit = stream.initialOffset(), stream.getDefaultReadLimit()
    begin = {"offset": built.headers[4].physical_offset}
    end = stream.latestOffset(first, limit)
    flip_bit(segment(tmp_path / "n1"), built.headers[3].physical_offset + 60)
    stream = made.streamReader(made.schema())
    with pytest.raises(LogDamaged):
        stream.latestOffset(begin, limit)
    with pytest.raises(LogDamaged):
        stream.partitions(begin, end)
    with pytest.raises(LogDamaged):
        stream.partitions(first, end)


def test_no_bit_of_what_was_read_hides_a_command(tmp_path: Path) -> None:
    """Whichever it is: a kind, a size, an index. One of a body that holds no command hides none."""
    built = build(tmp_path / "n1", BEFORE + BEHIND)
    file, start = segment(tmp_path / "n1"), built.headers[4].physical_offset
    truth = followed(log_at(tmp_path / "n1")).ended
    assert truth == (("a", 2, 6),)
    unseen = set()
    for place, bit in itertools.product(range(start), range(8)):
        flip_bit(file, place, bit)
        with contextlib.suppress(LogDamaged):
            lifetimes = followed(log_at(tmp_path / "n1"))
            lifetimes.check_to(start)
            assert lifetimes.ended == truth, (place, bit)
            unseen.add(place)
        flip_bit(file, place, bit)
    commands = [h for h in built.headers[:4] if h.kind == EntryKind.COMMAND]
    inside = {
        p for h in commands for p in range(h.physical_offset, h.physical_offset + h.total_size)
    }
    assert unseen
    assert not unseen & inside


def test_a_filler_that_has_rotten_hides_nothing(tmp_path: Path) -> None:
    """The next segment begins with the entry that comes next: none was between."""
    built = build(tmp_path / "n1", [*BEFORE, *LONG, *BEHIND])
    last = max(
        (h for h in built.headers if h.physical_offset < SEGMENT), key=lambda h: h.physical_offset
    )
    flip_bit(segment(tmp_path / "n1"), last.physical_offset + last.total_size + 5)
    lifetimes = followed(log_at(tmp_path / "n1"))
    lifetimes.check_to(SEGMENT)
    assert [name for name, _, _ in lifetimes.ended] == ["a"]


def test_what_was_damaged_is_followed_once_it_is_repaired(tmp_path: Path) -> None:
    """By a reader that goes on living."""
    built = build(tmp_path / "n1", BEFORE + BEHIND)
    place, end = built.headers[3].physical_offset, built.log.end_offset
    flip_bit(segment(tmp_path / "n1"), place)
    lifetimes = Lifetimes(0)
    lifetimes.follow(log_at(tmp_path / "n1"))
    with pytest.raises(EntryDamaged):
        lifetimes.check_to(end)
    flip_bit(segment(tmp_path / "n1"), place)
    lifetimes.follow(log_at(tmp_path / "n1"))
    lifetimes.check_to(end)
    assert lifetimes.ended == (("a", 2, 6),)


def test_a_reader_that_retention_has_overtaken_goes_on_where_the_log_begins(tmp_path: Path) -> None:
    """That entries are missing before is no damage, and topics may have been made there."""
    entries = [*BEFORE, *LONG, create("late"), delete("a", 2)]
    built = build(tmp_path / "n1", entries)
    lifetimes, log = Lifetimes(0), log_at(tmp_path / "n1")
    early = built.headers[4].physical_offset
    lifetimes.follow(replace(log, settled=early))
    first = next(h.index for h in built.headers if h.physical_offset == SEGMENT)
    for _ in dropping(tmp_path / "n1", start_of(tmp_path / "n1", first)):
        pass
    lifetimes.follow(log_at(tmp_path / "n1"))
    lifetimes.check_to(built.log.end_offset)
    assert lifetimes.ended == (("a", 2, len(entries)),)


def test_units_of_which_damage_hides_what_became_are_no_silent_end(tmp_path: Path) -> None:
    """A reader waits before units of which nothing is said yet: not for ever, where what says it
    has rotten."""
    plan = replace(group_plan(), unit_writers=2, rate=120)
    path = make_group(tmp_path, plan)["n1"]
    whole = log_at(path)
    size = whole.segment_size or 0
    ends = [header.physical_offset + header.total_size for header, _ in compound(whole)]
    files = {end: segment(path, end - end % size) for end in ends}
    place = next(end for end in ends if is_entry(files[end].read_bytes()[end % size :]))
    flip_bit(files[place], place % size + 5)
    lifetimes = followed(log_at(path))
    with pytest.raises(EntryDamaged):
        lifetimes.cut(whole)
    with pytest.raises(EntryDamaged):
        lifetimes.check_to(whole.settled)


def is_entry(content: bytes) -> bool:
    """And no filler."""
    return content[4:8] == ENTRY_MAGIC.to_bytes(4, "big")

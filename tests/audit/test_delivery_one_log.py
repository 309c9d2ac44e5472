"""What a delivery audit holds histories against is one log, from end to end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from audit.delivery.check import audit_delivery
from audit.engines.engine import Engine, LocalEngine
from audit.reading.replica import Replica
from dledger.reading.entry import EntryKind
from dledger.reading.errors import LogDamaged
from tests.audit.replicas import SEGMENT, Entry, build, dropping, start_of
from tests.audit.test_delivery import written
from tests.chaos.histories import Story


def two_segments(path: Path, *before: str) -> Path:
    """A member's directory: the first of the values takes most of a segment, and `b` begins the
    next one."""
    sizes = [15_000, *[64] * (len(before) - 1), 4_000, 64]
    entries = [
        Entry(1, topic="t", count=1, bodies=(value.encode().ljust(size),))
        for value, size in zip((*before, "b", "c"), sizes, strict=True)
    ]
    built = build(path, [Entry(1, EntryKind.NOOP), *entries])
    assert built.headers[-2].physical_offset == SEGMENT
    return path


def exchanged(path: Path, other: Path) -> Replica:
    """The first directory, a copy, with the second one's second segment."""
    name = f"commitlog/{SEGMENT:020}"
    shutil.copyfile(other / name, path / name)
    return Replica("n1", str(path))


def test_a_segment_behind_a_hole_is_damage(tmp_path: Path, engine: Engine) -> None:
    """Each entry is intact and lies where it says, and one is missing between them: nobody knows
    what became of it, nor what it said of others."""
    own, other = two_segments(tmp_path / "n1", "a"), two_segments(tmp_path / "n2", "a", "y")
    story = Story()
    story.send("a", at=0)
    story.send("y")
    story.send("b", at=2)
    with pytest.raises(LogDamaged, match=rf"{SEGMENT:020} at byte 0: .* with index 3"):
        audit_delivery([exchanged(own, other)], [written(tmp_path, story)], engine)


def test_a_log_that_begins_later_goes_on_from_its_start_note(tmp_path: Path) -> None:
    """The note says what is before the first segment; that file is another log's."""
    own, other = two_segments(tmp_path / "n1", "a"), two_segments(tmp_path / "n2", "x")
    for _ in dropping(own, start_of(own, 3)):
        pass
    story = Story()
    story.send("b", "c", at=1)
    file = written(tmp_path, story)
    report = audit_delivery([Replica("n1", str(own))], [file], LocalEngine())
    assert report.verdict == "delivered"
    with pytest.raises(LogDamaged, match=rf"{SEGMENT:020} at byte 0: .* with digest"):
        audit_delivery([exchanged(own, other)], [file], LocalEngine())


def test_a_segment_of_another_log_is_damage(tmp_path: Path) -> None:
    """Its indexes and places fit; the running digest doesn't."""
    own, other = two_segments(tmp_path / "n1", "a"), two_segments(tmp_path / "n2", "x")
    story = Story()
    story.send("a", at=0)
    story.send("b", at=1)
    story.send("c", at=2)
    file = written(tmp_path, story)
    assert audit_delivery([Replica("n1", str(own))], [file], LocalEngine()).verdict == "delivered"
    with pytest.raises(LogDamaged, match=rf"{SEGMENT:020} at byte 0: .* with digest"):
        audit_delivery([exchanged(own, other)], [file], LocalEngine())

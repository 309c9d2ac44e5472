"""Topics that are deleted while a delivery audit runs: judged, unless the log has the deletion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from audit.delivery import check
from audit.delivery.check import DeliveryReport, audit_delivery, judge_share
from audit.delivery.judged import DeliveryTask, Judged
from audit.engines.engine import Engine, LocalEngine
from audit.reading.replica import Replica, Seat
from chaos.checkers.history import Delete, Send
from dledger.reading.entry import EntryKind
from dledger.reading.survey import Position
from tests.audit.replicas import Entry, build
from tests.audit.test_delivery import told, written
from tests.audit.test_lifetimes import create, data, delete
from tests.chaos.histories import Story


def leader(root: Path, *entries: Entry) -> Replica:
    built = build(root / "n1", [Entry(1, EntryKind.NOOP), create("t"), *entries])
    last = built.headers[-1]
    position = Position(built.log.end_offset, last.digest, last.index, 1)
    return Replica("n1", str(root / "n1"), position=position, seat=Seat(1, serves=True))


def lossy(story: Story) -> None:
    """`a` is in the log, `b` was acknowledged."""
    story.send("a", "b", at=0)


def deleted_later(root: Path, engine: Engine, *more: Entry) -> DeliveryReport:
    """The deletion is asked for when the nodes are asked for their positions, or later."""
    story = Story()
    lossy(story)
    size = Path(written(root, story)).stat().st_size
    story.do("p", Delete("t"))
    return audit_delivery(
        [leader(root, data("t", b"a"), *more)], [written(root, story)], engine, ends=(size,)
    )


def test_a_deletion_behind_the_logs_end_excuses_nothing(tmp_path: Path, engine: Engine) -> None:
    """The topic was there up to the log's end, and so was its loss."""
    report = deleted_later(tmp_path, engine)
    assert told(report) == [("lost", 1, "b")]
    assert not any("deleted" in note for note in report.notes)


def test_a_deletion_that_the_log_has_may_be_of_just_then(tmp_path: Path, engine: Engine) -> None:
    """Then the topic may have been made anew by now, and its offsets are another one's."""
    report = deleted_later(tmp_path, engine, delete("t", 2), create("t"), data("t", b"c"))
    assert told(report) == []
    assert any("topic t was deleted" in note for note in report.notes)


@pytest.mark.parametrize("before", [0, 2, 3, 6])
def test_who_ended_before_the_nodes_were_asked_first_excuses_nothing(
    tmp_path: Path, engine: Engine, before: int
) -> None:
    """An earlier topic of the name ended with entry 3, nobody's of the histories; the one of now
    lives at the log's end, so that what was begun later isn't that. Unless nobody knows how far the
    log was then."""
    story = Story()
    lossy(story)
    file = Path(written(tmp_path, story))
    size = file.stat().st_size
    story.do("p", Delete("t"))
    written(tmp_path, story)
    replica = leader(tmp_path, delete("t", 2), create("t"), data("t", b"a"))
    assert replica.position is not None
    earlier = replace(replica, position=replace(replica.position, index=before))
    asked = [earlier] if before else []
    report = audit_delivery([replica], [str(file)], engine, ends=(size,), earlier=asked)
    assert told(report) == ([("lost", 1, "b")] if before >= 3 else [])
    assert any("topic t was deleted" in note for note in report.notes) == (before < 3)


def test_who_ended_at_last_is_excused_whenever_that_was(tmp_path: Path, engine: Engine) -> None:
    """Of a topic that is gone by the log's end nobody is owed anything."""
    story = Story()
    lossy(story)
    file = Path(written(tmp_path, story))
    size = file.stat().st_size
    story.do("p", Delete("t"))
    written(tmp_path, story)
    replica = leader(tmp_path, data("t", b"a"), delete("t", 2))
    report = audit_delivery([replica], [str(file)], engine, ends=(size,), earlier=[replica])
    assert told(report) == []


def test_a_deletion_of_before_counts_whatever_the_log_says(tmp_path: Path, engine: Engine) -> None:
    """Its outcome needn't be known."""
    story = Story()
    lossy(story)
    story.begin("p", Delete("t"))
    report = audit_delivery([leader(tmp_path, data("t", b"a"))], [written(tmp_path, story)], engine)
    assert told(report) == []
    assert any("topic t was deleted" in note for note in report.notes)


@pytest.mark.parametrize("has_it", [True, False])
def test_shares_that_read_a_history_one_after_the_other_lose_no_topic_unsaid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_it: bool
) -> None:
    """A line comes between two of them: each topic is judged, or is told not to be."""
    story = Story()
    for topic in ("t", "u", "v", "w"):
        story.do("p", Send(topic, 0, 0, (f"lost of {topic}",)), 0)
    path = Path(written(tmp_path, story))
    ends = (path.stat().st_size,)
    for topic in ("t", "u", "v", "w"):
        story.do("p", Delete(topic))

    def between(task: DeliveryTask) -> Judged:
        found = judge_share(replace(task, ended=frozenset("tuvw") if has_it else frozenset()))
        written(tmp_path, story)
        return found

    monkeypatch.setattr(check, "judge_share", between)
    engine = LocalEngine(processes=1)
    replica = leader(tmp_path, data("x", b"other"))
    report = audit_delivery([replica], [str(path)], engine, share_bytes=50, ends=ends)
    lost = {each.topic for each in report.anomalies}
    noted = {note.split()[1] for note in report.notes if "was deleted" in note}
    assert lost | noted == set("tuvw")
    assert bool(noted) == has_it

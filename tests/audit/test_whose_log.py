"""Of several logs the group's is read, and not the longest: that may be of who was given up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.commands.data import _replica
from audit.delivery.check import DeliveryReport, audit_delivery
from audit.delivery.witness import witness_among
from audit.engines.engine import LocalEngine
from audit.errors import NotTheGroups
from audit.reading.replica import Replica, Seat
from dledger.outcome import ExitCode
from dledger.reading.entry import EntryKind
from dledger.reading.errors import NoAnswer
from dledger.reading.survey import Position
from dledger.records.layout import ENTRY, FILLER
from store.files import OsFiles
from store.out_of_service import Divergence, mark
from tests.audit.replicas import SEGMENT, Entry, build, flip_bit
from tests.audit.test_delivery import told, written
from tests.chaos.histories import Story

ALONE = (frozenset(("n3",)),)
GIVEN_UP = Divergence(peers=("n3",), recoveries=("0f",))


def member(root: Path, name: str, *values: str, seat: Seat | None = None, term: int = 1) -> Replica:
    """A node that answers, whose log holds the values, the last of them in `term`."""
    entries = [
        Entry(
            term if number == len(values) else 1,
            topic="t",
            count=1,
            bodies=(value.encode().ljust(64 if len(value) < 8 else 640),),
        )
        for number, value in enumerate(values, 1)
    ]
    built = build(root / name, [Entry(1, EntryKind.NOOP), *entries], name)
    last = built.headers[-1]
    position = Position(built.log.end_offset, last.digest, last.index, 1)
    return Replica(name, str(root / name), position=position, seat=seat or Seat(1))


def copy(replica: Replica) -> Replica:
    """The same directory, on which no node runs."""
    return replace(replica, position=None, seat=None)


def leading(root: Path, *values: str) -> Replica:
    """n3, which went on alone."""
    return member(root, "n3", *values, seat=Seat(2, serves=True, voters=ALONE), term=2)


def judged(root: Path, *replicas: Replica) -> DeliveryReport:
    """`a` and `b` were acknowledged, by who was given up later."""
    story = Story()
    story.send("a", "b", at=0)
    return audit_delivery(replicas, [written(root, story)], LocalEngine())


@pytest.mark.parametrize("way", ["out of service", "stopped", "marked", "no member", "runs"])
def test_what_the_group_has_lost_is_lost_whoever_else_has_it(tmp_path: Path, way: str) -> None:
    """The group was recovered by force from n3, which lacks what n1 acknowledged."""
    old, new = member(tmp_path, "n1", "a", "b", "later"), leading(tmp_path, "a")
    match way:
        case "out of service":
            old = replace(old, standing="n1 was given up")
        case "stopped":
            old = copy(old)
        case "marked":
            mark(OsFiles(), tmp_path / "n1", GIVEN_UP)
            old = copy(old)
        case "no member":
            old = replace(old, is_member=False)
    report = judged(tmp_path, old, new)
    assert (report.replica, report.exit_code) == ("n3", ExitCode.INCONSISTENT)
    assert ("lost", 1, "b") in told(report)
    is_told = any(note.startswith("the log of n1 was not read: ") for note in report.notes)
    assert is_told == (way not in ("stopped", "runs"))


def test_a_leaders_log_that_is_elsewhere_is_vouched_for_by_its_digest(tmp_path: Path) -> None:
    """n2 has all of it, and knows of more by now; n1 has something else up to there."""
    new = leading(tmp_path, "a", "b")
    same = member(tmp_path, "n2", "a", "b", term=2)
    other = member(tmp_path, "n1", "a", "x", "y")
    away = replace(new, path="/nowhere")
    assert witness_among([other, same, away])[0] is same
    with pytest.raises(NotTheGroups, match="n1 holds another log than n3"):
        witness_among([copy(other), away])


def test_a_member_behind_a_leader_that_is_elsewhere_leaves_the_tail_open(tmp_path: Path) -> None:
    """It is a member that answers; what it lacks may be there."""
    away = replace(leading(tmp_path, "a", "b"), path="/nowhere")
    report = judged(tmp_path, member(tmp_path, "n2", "a"), away)
    assert (report.replica, report.tail_is_known) == ("n2", False)
    assert report.exit_code is ExitCode.INCOMPLETE


def test_without_a_leader_logs_that_differ_are_nobodys_word(tmp_path: Path) -> None:
    """Copies: of a group that is down, one was given up before."""
    old, new = member(tmp_path, "n1", "a", "b"), leading(tmp_path, "a", "c", "d")
    with pytest.raises(NotTheGroups, match="n3 and n1 hold different logs"):
        judged(tmp_path, copy(old), copy(new))
    short = copy(member(tmp_path, "n2", "a"))
    report = judged(tmp_path, short, copy(old))
    assert (report.replica, report.verdict) == ("n1", "delivered")


@pytest.mark.parametrize("others", [("c" * 8, "d"), ("c", "d" * 8), ("c" * 8, "d" * 8)])
def test_logs_that_differ_in_their_entries_sizes_do_too(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    """Then none of the longer one's entries may end where the shorter one does."""
    old, new = member(tmp_path, "n1", "a", "b"), leading(tmp_path, "a", *others)
    with pytest.raises(NotTheGroups, match="n3 and n1 hold different logs"):
        judged(tmp_path, copy(old), copy(new))


def message(size: int, term: int = 1) -> Entry:
    return Entry(term, topic="t", count=1, bodies=(bytes((97 + term,)).ljust(size),))


def rolled(root: Path) -> tuple[Replica, Replica, int]:
    """n2 has an entry in what a filler takes of n1's first segment, at the place that is returned;
    of a larger one, it went on in the second."""
    before = [Entry(1, EntryKind.NOOP), message(15_000)]
    short = build(root / "n2", [*before, message(64, term=2)], "n2")
    long = build(root / "n1", [*before, message(4_000), message(64)], "n1")
    filler = short.headers[-1].physical_offset
    assert long.headers[-2].physical_offset == SEGMENT > short.log.end_offset > filler
    found = (Replica(each.path.name, str(each.path)) for each in (short, long))
    return next(found), next(found), filler


def test_logs_of_which_one_went_on_in_the_next_segment_differ(tmp_path: Path) -> None:
    """Where the other one has an entry this one has none, and needs none: its segment was full."""
    short, long, _ = rolled(tmp_path)
    with pytest.raises(NotTheGroups, match="n1 and n2 hold different logs"):
        witness_among([short, long])


@pytest.mark.parametrize("way", ["magic", "size", "before"])
def test_a_filler_that_has_rotted_shows_nothing(tmp_path: Path, way: str) -> None:
    """Neither does one behind an entry that has: nobody knows that it begins there."""
    short, long, filler = rolled(tmp_path)
    at = {"magic": FILLER.at("magic"), "size": FILLER.end("size") - 1, "before": -1}[way]
    flip_bit(tmp_path / "n1" / "commitlog" / f"{0:020}", filler + at)
    found = witness_among([short, long])
    assert found.replica is long
    assert ["that of n1 is damaged" in note for note in found.notes] == [True]


@pytest.mark.parametrize("damaged", ["n1", "n2"])
def test_a_digest_that_has_rotted_shows_nothing(tmp_path: Path, damaged: str) -> None:
    """The entry at which logs are compared is damaged in one of them: that they differ there isn't
    said, nor that they agree. A note tells of it; whoever reads the damage is told that."""
    short, long = copy(member(tmp_path, "n2", "a")), copy(member(tmp_path, "n1", "a", "b"))
    segment = tmp_path / damaged / "commitlog" / f"{0:020}"
    header = build(tmp_path / "same", [Entry(1, EntryKind.NOOP)]).headers[-1]
    at = header.physical_offset + header.total_size  # of what holds `a`
    content = bytearray(segment.read_bytes())
    content[at + ENTRY.at("digest")] ^= 1
    segment.write_bytes(content)
    found = witness_among([short, long])
    assert found.replica is long
    assert [f"that of {damaged} is damaged" in note for note in found.notes] == [True]
    if damaged == "n2":
        assert found.notes[0] in judged(tmp_path, short, long).notes


def test_a_size_that_has_rotted_shows_nothing(tmp_path: Path) -> None:
    """The last entry of the shorter log seems to end before it does. The longer one has an entry
    across that place, and is the same log for all that."""
    short, long = copy(member(tmp_path, "n2", "a")), copy(member(tmp_path, "n1", "a", "b"))
    segment = tmp_path / "n2" / "commitlog" / f"{0:020}"
    header = build(tmp_path / "same", [Entry(1, EntryKind.NOOP)]).headers[-1]
    at = header.physical_offset + header.total_size  # of what holds `a`
    content = bytearray(segment.read_bytes())
    last = at + ENTRY.end("total_size") - 1
    assert content[last] & 4
    content[last] ^= 4
    segment.write_bytes(content)
    found = witness_among([short, long])
    assert found.replica is long
    assert ["that of n2 is damaged" in note for note in found.notes] == [True]


@pytest.mark.parametrize("way", ["astray", "no checkpoint", "no log", "silent"])
def test_a_log_that_cannot_be_read_is_told_of(tmp_path: Path, way: str) -> None:
    """It may be another one, as far as anybody knows. A leader that was asked would know."""
    long, short = member(tmp_path, "n1", "a", "b"), copy(leading(tmp_path, "a"))
    match way:
        case "astray":
            header = build(tmp_path / "same", [Entry(1, EntryKind.NOOP)]).headers[-1]
            at = header.physical_offset + header.total_size
            flip_bit(tmp_path / "n3" / "commitlog" / f"{0:020}", at + ENTRY.at("magic"))
        case "no checkpoint":
            (tmp_path / "n3" / "checkpoint").unlink()
        case "no log":
            (tmp_path / "n3" / "commitlog" / f"{0:020}").unlink()
        case "silent":
            short = Replica("n3", "n3:1", silence="n3:1 gives no answer")
    report = judged(tmp_path, short, copy(long))
    assert report.replica == "n1"
    assert any("log of n3 was not compared with that of n1" in note for note in report.notes)
    leads = replace(long, seat=Seat(1, serves=True, voters=(frozenset(("n1",)),)))
    assert witness_among([short, leads]).notes == ()


def test_only_logs_that_are_not_the_groups_say_nothing(tmp_path: Path) -> None:
    """Nothing is called delivered by the word of who was given up."""
    old = member(tmp_path, "n1", "a", "b")
    mark(OsFiles(), tmp_path / "n1", GIVEN_UP)
    with pytest.raises(NotTheGroups, match="n1 is out of service: it was given up"):
        judged(tmp_path, copy(old))


def test_a_member_that_is_silent_leaves_the_others_to_be_read(tmp_path: Path) -> None:
    """If nobody is left, it is they who are told."""
    silent = Replica("n2", "n2:1", silence="n2:1 gives no answer")
    sound = member(tmp_path, "n1", "a", "b", seat=Seat(1, serves=True))
    assert judged(tmp_path, silent, sound).replica == "n1"
    with pytest.raises(NoAnswer, match="n2:1 gives no answer"):
        judged(tmp_path, silent)


def _group_file(root: Path, *names: str) -> None:
    nodes = [
        {"id": name, "address": "127.0.0.1:1", "data_directory": str(root / name)} for name in names
    ]
    (root / "group.json").write_text(json.dumps({"nodes": nodes}))


def test_exports_pass_over_who_is_out_of_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And read a node that runs, rather than a directory whose node may have been given up since;
    where nobody is left they refuse."""
    old, new = member(tmp_path, "n1", "a", "b", "c"), leading(tmp_path, "a")
    _group_file(tmp_path, "n1", "n3")
    assert _replica(None, tmp_path).id == "n1"  # nothing says anything: copies
    monkeypatch.setattr("audit.commands.data.replicas_of_directory", lambda _: [copy(old), new])
    assert _replica(None, tmp_path) == replace(new, seat=None)
    monkeypatch.undo()
    mark(OsFiles(), tmp_path / "n1", GIVEN_UP)
    assert _replica(None, tmp_path).id == "n3"
    mark(OsFiles(), tmp_path / "n3", GIVEN_UP)
    for command in (["export", str(tmp_path / "out")], ["stats"]):
        result = CliRunner().invoke(app, [*command, "--dir", str(tmp_path)])
        assert result.exit_code == ExitCode.INCOMPLETE
        assert "n1 is out of service: it was given up" in result.output

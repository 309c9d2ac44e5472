"""The delivery audit: histories that hold against the log, and each anomaly once, on each engine.

Histories are written by `chaos` itself, so that its format and the one read here stay the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.commands.delivery import delivery_lines
from audit.delivery import judged
from audit.delivery.check import DeliveryReport, audit_delivery, delivery_as_json
from audit.delivery.judge import Kind
from audit.engines.engine import Engine, LocalEngine
from audit.errors import UsageMistake
from audit.reading.replica import Replica, Seat
from chaos.checkers.history import Commit, Delete, Fetch, Poll, Send
from dledger.history import Outcome
from dledger.outcome import ExitCode
from dledger.reading.entry import EntryKind
from dledger.reading.errors import LogDamaged
from dledger.reading.survey import Position
from tests.audit.replicas import SEGMENT, Entry, ReplicaSet, build, dropping, flip_bit, start_of
from tests.chaos.histories import Story

Told = tuple[str, int | None, str]
Tell = Callable[[Story], None]


def log_of(path: Path, *values: str, queues: int = 1, running: bool = True) -> Replica:
    """A replica whose topic `t` holds the values, dealt over its queues in turn; as of a node that
    runs and leads, or a copy that nobody was asked about."""
    entries = [
        Entry(1, topic="t", queue_id=at % queues, count=1, bodies=(value.encode().ljust(64),))
        for at, value in enumerate(values)
    ]
    builder = build(path / "n1", [Entry(1, EntryKind.NOOP), *entries])
    position = Position(builder.log.end_offset, 0, len(entries) + 1, 1)
    if not running:
        return Replica("n1", str(path / "n1"))
    return Replica("n1", str(path / "n1"), position=position, seat=Seat(1, serves=True))


def written(path: Path, story: Story) -> str:
    """The story as a file."""
    file = path / "history.jsonl"
    file.write_text("".join(line + "\n" for line in story.history.lines()), encoding="utf-8")
    return str(file)


def told(report: DeliveryReport) -> list[Told]:
    return [(each.kind.value, each.offset, each.value) for each in report.anomalies]


def refuse(story: Story, value: str) -> None:
    story.do("p", Send("t", 0, 0, (value,)), outcome=Outcome.FAIL)


def sound(story: Story) -> None:
    """Acknowledged, of unknown outcome (stored, and not), refused, read twice on purpose."""
    story.send("a", "b", at=0)
    story.send("c")
    refuse(story, "x")
    story.send("y")
    story.send("d", at=3)
    story.poll((0, "a"), (1, "b"))
    story.poll((2, "c"), (3, "d"))
    story.poll((1, "b"), (2, "c"), seek=True)


def test_histories_that_hold_are_delivered(tmp_path: Path, engine: Engine) -> None:
    """Nothing is found, and every message is counted as what its client knows of it."""
    story = Story()
    sound(story)
    report = audit_delivery(
        [log_of(tmp_path, "a", "b", "c", "d")], [written(tmp_path, story)], engine
    )
    assert (report.verdict, int(report.exit_code), report.anomalies) == ("delivered", 0, ())
    (queue,) = report.queues
    assert (queue.acknowledged, queue.unknown, queue.refused) == (3, 2, 1)
    assert (queue.stored, queue.delivered, report.operations) == (4, 6, 8)


def lose_in_the_middle(story: Story) -> None:
    story.send("a", at=0)
    story.send("b", at=1)
    story.send("c", at=1)


def lose_the_tail(story: Story) -> None:
    story.send("a", "b", at=0)


def skip(story: Story) -> None:
    story.send("a", "b", "c", at=0)
    story.poll((0, "a"))
    story.poll((2, "c"))


def skip_within(story: Story) -> None:
    story.send("a", "b", "c", at=0)
    story.poll((0, "a"), (2, "c"))


def store_twice(story: Story) -> None:
    story.send("a", at=0)


def deliver_twice(story: Story) -> None:
    story.send("a", "b", at=0)
    story.poll((0, "a"), (1, "b"))
    story.poll((1, "b"))


def turn_around(story: Story) -> None:
    story.send("b")
    story.send("a")


def poll_backwards(story: Story) -> None:
    story.send("a", "b", at=0)
    story.poll((1, "b"), (0, "a"))


def never_sent(story: Story) -> None:
    story.send("a", at=0)


def refused_and_stored(story: Story) -> None:
    story.send("a", at=0)
    refuse(story, "b")


def refused_before_another(story: Story) -> None:
    refuse(story, "b")
    story.send("a", at=0)


def deliver_another(story: Story) -> None:
    story.send("a", at=0)
    story.poll((0, "z"))


def deliver_beyond(story: Story) -> None:
    story.send("a", at=0)
    story.poll((0, "a"), (1, "b"))


def acknowledge_elsewhere(story: Story) -> None:
    story.send("b", at=0)
    story.send("a", by="q")


@pytest.mark.parametrize(
    ("values", "tell", "expected"),
    [
        ("ac", lose_in_the_middle, ("lost", 1, "b")),
        ("a", lose_the_tail, ("lost", 1, "b")),
        ("abc", skip, ("lost", 1, "b")),
        ("abc", skip_within, ("lost", 1, "b")),
        ("aa", store_twice, ("duplicated", 1, "a")),
        ("ab", deliver_twice, ("duplicated", 1, "b")),
        ("ab", turn_around, ("reordered", 0, "a")),
        ("ab", poll_backwards, ("reordered", 0, "a")),
        ("ab", never_sent, ("phantom", 1, "b")),
        ("ab", refused_and_stored, ("phantom", 1, "b")),
        ("ab", refused_before_another, ("phantom", 1, "b")),
        ("a", deliver_another, ("phantom", 0, "z")),
        ("a", deliver_beyond, ("phantom", 1, "b")),
        ("ab", acknowledge_elsewhere, ("moved", 0, "b")),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_each_anomaly_is_found_once(
    tmp_path: Path, engine: Engine, values: str, tell: Tell, expected: Told
) -> None:
    """One anomaly, one line: kind, queue offset, value."""
    story = Story()
    tell(story)
    report = audit_delivery([log_of(tmp_path, *values)], [written(tmp_path, story)], engine)
    assert told(report) == [expected]
    assert report.counts == {kind.value: int(kind.value == expected[0]) for kind in Kind}
    assert (report.verdict, int(report.exit_code)) == ("violated", 1)


def test_a_producers_order_is_that_of_its_queue(tmp_path: Path) -> None:
    """Two producers, and one producer's two queues, owe each other no order."""
    story = Story()
    story.send("b", by="p")
    story.send("a", by="q")
    story.do("p", Send("t", 1, 0, ("c",)), 0)
    replica = log_of(tmp_path, "a", "c", "b", queues=2)
    assert told(audit_delivery([replica], [written(tmp_path, story)], LocalEngine())) == []


def test_one_name_in_two_files_is_two_producers(tmp_path: Path) -> None:
    """Files know nothing of each other: no order is owed between them."""
    (tmp_path / "second").mkdir()
    first, second = Story(), Story()
    first.send("b", at=1)
    second.send("a", at=0)
    files = [written(tmp_path, first), written(tmp_path / "second", second)]
    assert told(audit_delivery([log_of(tmp_path, "a", "b")], files, LocalEngine())) == []


def test_a_message_in_another_queue_is_lost_and_a_phantom(tmp_path: Path) -> None:
    """It is looked for in the queue that it was sent to."""
    story = Story()
    story.send("a", "b", at=0)
    replica = log_of(tmp_path, "a", "b", queues=2)
    found = told(audit_delivery([replica], [written(tmp_path, story)], LocalEngine()))
    assert found == [("lost", 1, "b"), ("phantom", 0, "b")]


def test_what_retention_took_is_counted_and_not_judged(tmp_path: Path) -> None:
    """The first segment is gone; what lay in it is neither lost nor a phantom."""
    values = [f"v{number}" for number in range(150)]
    replica = log_of(tmp_path, *values)
    start = start_of(Path(replica.path), 150)
    for _ in dropping(Path(replica.path), start):
        pass
    assert replica.position is not None
    replica = replace(replica, position=replace(replica.position, first_index=start.first_index))
    story = Story()
    for at, value in enumerate(values):
        story.send(value, at=at)
    story.poll(*enumerate(values))
    report = audit_delivery([replica], [written(tmp_path, story)], LocalEngine())
    (queue,) = report.queues
    assert told(report) == []
    assert queue.expired == 150 - queue.stored > 0
    assert queue.stored > 0
    assert any("retention" in note for note in report.notes)


@pytest.mark.parametrize("base", [0, SEGMENT])
def test_a_missing_segment_is_no_loss_of_the_groups(tmp_path: Path, base: int) -> None:
    """A replica with a hole is no witness: this is told, and not a thousand lost messages."""
    values = [f"v{number}" for number in range(200)]
    replica = log_of(tmp_path, *values)
    (Path(replica.path) / "commitlog" / f"{base:020d}").unlink()
    with pytest.raises(LogDamaged, match=f"n1.*{base} to {base + SEGMENT}"):
        audit_delivery([replica], [written(tmp_path, Story())], LocalEngine())


@pytest.mark.parametrize(
    ("outcome", "judged"), [(Outcome.OK, 0), (Outcome.UNKNOWN, 0), (Outcome.FAIL, 1)]
)
def test_a_topic_that_may_be_deleted_is_not_judged(
    tmp_path: Path, outcome: Outcome, judged: int
) -> None:
    """Its messages may be gone for good; a refused deletion took nothing."""
    story = Story()
    lose_the_tail(story)
    story.do("k", Delete("t"), outcome=outcome)
    report = audit_delivery([log_of(tmp_path, "a")], [written(tmp_path, story)], LocalEngine())
    assert len(report.anomalies) == judged
    assert any("deleted" in note for note in report.notes) == (not judged)


def test_shares_and_files_change_nothing(tmp_path: Path, engine: Engine) -> None:
    """Eight queues in one share or in many, producers' and consumers' histories in two files
    with the same operation numbers: the same report."""
    values = [f"v{number}" for number in range(40)]
    sends, polls = Story(), Story()
    for at, value in enumerate(values):
        sends.do("p", Send("t", at % 8, at // 8, (f"{value}?" if at == 21 else value,)), at // 8)
        polls.do("p", Poll("t", at % 8, at // 8), ((at // 8, value),))
    (tmp_path / "polls").mkdir()
    files = [written(tmp_path, sends), written(tmp_path / "polls", polls)]
    replica = log_of(tmp_path, *values, queues=8)
    reports = [
        replace(audit_delivery([replica], files, engine, share_bytes=size), total_s=0)
        for size in (1 << 30, 2_000)
    ]
    assert reports[0] == reports[1]
    assert told(reports[0]) == [("lost", 2, "v21?"), ("phantom", 2, "v21")]
    assert len(reports[0].queues) == 8


def test_anomalies_past_the_bound_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report stays small when everything is lost; the counts are whole."""
    monkeypatch.setattr(judged, "MAX_ANOMALIES", 3)
    story = Story()
    story.send(*(f"v{number}" for number in range(10)), at=0)
    report = audit_delivery([log_of(tmp_path, "a")], [written(tmp_path, story)], LocalEngine(1))
    assert sorted(each.kind for each in report.anomalies) == ["lost", "lost", "lost", "phantom"]
    assert report.counts["lost"] == 10
    assert "4 of 11 anomalies are told in full" in report.notes


def test_what_is_undecided_keeps_no_loss_from_being_told(tmp_path: Path, engine: Engine) -> None:
    """Though more of it is found than is told, and before; what is lost is shown first."""
    behind = range(judged.MAX_ANOMALIES + 1)
    story = Story()
    story.do("p", Send("t", 0, 0, ("a",)), 0)
    story.do("p", Send("t", 0, 1, tuple(f"v{number}" for number in behind)), 1)
    story.do("p", Send("t", 0, 2, ("gone",)), 0)
    story.do("q", Send("t", 1, 0, ("gone too",)), 0)
    story.do("q", Send("t", 1, 1, ("b",)), 0)
    replica = log_of(tmp_path, "a", "b", queues=2, running=False)
    report = audit_delivery([replica], [written(tmp_path, story)], engine)
    assert report.counts["undecided"] == len(behind)
    assert told(report)[:2] == [("lost", 0, "gone"), ("lost", 0, "gone too")]
    assert any("LOST in t/1" in line for line in delivery_lines(report))


INVOKED = '{"event":"invoke","op":1,"process":"p","action":"send","topic":"t","queue_id":0,%s}\n'
SENT = INVOKED % '"values":["a"]'


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (SENT[:-1], 1, "cut short"),
        (SENT + "{\n", 2, "Expecting"),
        (SENT + "[]\n", 2, "no event"),
        (SENT + SENT, 2, "invoked twice"),
        (INVOKED % '"values":"a"', 1, "values is a list"),
        (INVOKED % '"value":"a"', 1, "no field 'values'"),
        (SENT.replace("send", "shout"), 1, "unknown action 'shout'"),
        (SENT + '{"event":"ok","op":2}\n', 2, "isn't under way"),
        (SENT + '{"event":"perhaps","op":1}\n', 2, "perhaps"),
        (SENT + '{"event":"ok","op":1,"result":true}\n', 2, "whole number"),
        (SENT.replace("send", "poll") + '{"event":"ok","op":1,"result":3}\n', 2, "a list of"),
    ],
)
def test_a_history_that_lies_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    """No verdict rests on a history that can't be read whole."""
    file = tmp_path / "history.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageMistake, match=reason) as caught:
        audit_delivery([log_of(tmp_path, "a")], [str(file)], LocalEngine())
    assert str(caught.value).startswith(f"{file}, line {line}: ")


def test_histories_in_which_nothing_was_done_prove_nothing(
    tmp_path: Path, three: ReplicaSet
) -> None:
    """As of a client that wrote its history elsewhere."""
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    report = audit_delivery(three.replicas, [str(empty)], LocalEngine(processes=1))
    assert (report.verdict, report.exit_code) == ("undecided", ExitCode.INCOMPLETE)


def nothing_known(story: Story) -> None:
    """One send of which nobody knows what became, and it is in the log."""
    story.send("a")


def nothing_but_offsets(story: Story) -> None:
    """No message was ever handed over or asked for."""
    story.do("c", Commit("t", "g", 0, 1))
    story.do("c", Fetch("t", "g", 0), 1)
    story.read_end(1)


def nothing_found(story: Story) -> None:
    """The topic was read while it was empty."""
    story.send("a")
    story.poll()


def nothing_left(story: Story) -> None:
    """All of it was lost, perhaps: the topic may have been deleted meanwhile."""
    lose_the_tail(story)
    story.poll((0, "z"))
    story.do("k", Delete("t"), outcome=Outcome.UNKNOWN)


@pytest.mark.parametrize("tell", [nothing_known, nothing_but_offsets, nothing_found, nothing_left])
def test_histories_that_claim_nothing_of_the_log_prove_nothing(
    tmp_path: Path, tell: Tell, engine: Engine
) -> None:
    """Operations alone are no proof: without a message that was acknowledged or delivered and held
    against the log, nobody knows if any was."""
    story = Story()
    tell(story)
    report = audit_delivery([log_of(tmp_path, "a")], [written(tmp_path, story)], engine)
    assert (told(report), report.verdict) == ([], "undecided")
    assert any("was held against the log" in note for note in report.notes)


def acknowledge(story: Story) -> None:
    story.send("a", at=0)


def deliver(story: Story) -> None:
    story.send("a")
    story.poll((0, "a"))


@pytest.mark.parametrize("tell", [acknowledge, deliver])
def test_one_message_that_was_compared_is_proof_of_itself(tmp_path: Path, tell: Tell) -> None:
    """Acknowledged, or delivered; another topic that may have been deleted takes nothing away."""
    story = Story()
    tell(story)
    story.do("k", Delete("other"), outcome=Outcome.UNKNOWN)
    story.do("p", Send("other", 0, 0, ("b",)), 0)
    report = audit_delivery([log_of(tmp_path, "a")], [written(tmp_path, story)], LocalEngine())
    assert (told(report), report.verdict) == ([], "delivered")
    assert [queue.compared for queue in report.queues] == [1]
    assert any("topic other was deleted" in note for note in report.notes)


def test_errors_of_tasks_are_the_same_on_each_engine(tmp_path: Path, engine: Engine) -> None:
    """A bad history is the user's mistake and a rotten log the log's, on a cluster too."""
    replica = log_of(tmp_path, "a")
    story = Story()
    story.send("a", at=0)
    good = written(tmp_path, story)
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n", encoding="utf-8")
    with pytest.raises(UsageMistake, match=r"bad\.jsonl, line 1: no field 'op'"):
        audit_delivery([replica], [good, str(bad)], engine)
    flip_bit(Path(replica.path) / "commitlog" / f"{0:020d}", 100)
    with pytest.raises(LogDamaged, match=f"{0:020d}"):
        audit_delivery([replica], [good], engine)


def test_command_prints_a_table_json_and_ends_by_the_verdict(tmp_path: Path) -> None:
    """0 delivered, 1 violated, 2 used wrongly, 3 undecided."""
    replica = log_of(tmp_path, "a", "b", running=False)
    story = Story()
    story.send("a", "b", at=0)
    arguments = ["delivery", "--replica", f"n1={replica.path}", "--history"]

    def run(*more: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*arguments, written(tmp_path, story), *more])
        return result.exit_code, result.output

    code, output = run()
    assert (code, output.splitlines()[1].split()[:7]) == (0, ["t", "0", "2", "0", "0", "2", "0"])
    assert "DELIVERED: no anomaly" in output
    story.send("c", at=2)
    code, output = run()
    assert (code, "UNDECIDED in t/0: 'c' (p) acknowledged at 2" in output) == (3, True)
    story.poll((0, "z"))
    code, output = run("--json")
    report = json.loads(output)
    assert (code, report["schema"], report["verdict"]) == (1, "dledger-delivery/1", "violated")
    assert report["counts"]["phantom"] == report["counts"]["undecided"] == 1
    assert [each["kind"] for each in report["anomalies"]] == ["phantom", "undecided"]
    code, output = run("--history", str(tmp_path / "absent"))
    assert (code, "absent: No such file" in output) == (2, True)


def test_json_has_every_field_of_the_report(tmp_path: Path) -> None:
    """What docs/audit.md lists."""
    report = audit_delivery([log_of(tmp_path, "a")], [written(tmp_path, Story())], LocalEngine())
    documented = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in documented for name in delivery_as_json(report))

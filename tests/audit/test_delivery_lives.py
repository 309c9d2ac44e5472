"""Topics that somebody deletes and makes anew of whom no history tells.

Each of them is judged as one of its own. What may be of either is undecided, and what can be
decided is: no case here that lacks a message ends as delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audit.delivery.check import DeliveryReport, audit_delivery
from audit.delivery.history import Polled, QueueStory, Sent
from audit.delivery.judge import Kind, LoggedQueue
from audit.delivery.lives import _part_polls, judge_lives
from audit.engines.engine import Engine, LocalEngine
from audit.reading.replica import Replica, Seat
from chaos.checkers.history import Poll, Send
from dledger.history import Outcome
from dledger.outcome import ExitCode
from dledger.reading.entry import EntryKind
from dledger.reading.survey import Position
from tests.audit.replicas import Entry, LogBuilder
from tests.audit.test_delivery import told, written
from tests.audit.test_lifetimes import create, delete
from tests.chaos.histories import Story

Tell = Callable[[Story], None]

FORMER = ("a", "b", "c")  # at 0, 1 and 2 of the topic that entry 2 made
PRESENT = ("d", "e")  # at 0 and 1 of the one that has the name now
ANEW = (delete("t", 2), create("t"))


def at(first: int, *values: str, topic: str = "t") -> Entry:
    bodies = tuple(value.encode() for value in values)
    return Entry(1, topic=topic, count=len(bodies), queue_offset=first, bodies=bodies)


REMADE = (at(0, *FORMER), *ANEW, at(0, *PRESENT))


def leader(root: Path, *entries: Entry, knows_its_end: bool = True) -> Replica:
    """The leader's replica, or one of which nobody knows who leads."""
    builder = LogBuilder(root / "n1", "n1")
    for entry in (Entry(1, EntryKind.NOOP), create("t"), *entries):
        builder.add(entry)
    builder.flush()
    last = builder.headers[-1]
    position = Position(builder.log.end_offset, last.digest, last.index, 1)
    builder.close()
    seat = Seat(1, serves=True) if knows_its_end else None
    return Replica("n1", str(root / "n1"), position=position, seat=seat)


def audited(root: Path, tell: Tell, *entries: Entry, knows_its_end: bool = True) -> DeliveryReport:
    story = Story()
    tell(story)
    replica = leader(root, *entries, knows_its_end=knows_its_end)
    return audit_delivery([replica], [written(root, story)], LocalEngine(processes=1))


def send_all(story: Story) -> None:
    story.send(*FORMER, at=0)
    story.send(*PRESENT, at=0)


def read_both(story: Story) -> None:
    """One consumer reads on, another one begins with what is there now."""
    send_all(story)
    story.poll((0, "a"), (1, "b"))
    story.poll((2, "c"))
    story.poll((0, "d"), (1, "e"))
    story.poll((0, "d"), (1, "e"), by="c2")


def read_across(story: Story) -> None:
    """A consumer that didn't come to the former topic's end; one whose poll has both."""
    send_all(story)
    story.poll((0, "a"))
    story.poll((0, "d"))
    story.poll((2, "c"), (0, "d"), by="c2")


def of_unknown_outcome(story: Story) -> None:
    story.send(*FORMER)
    story.send(*PRESENT, "never stored")


@pytest.mark.parametrize("tell", [send_all, read_both, read_across, of_unknown_outcome])
def test_who_used_both_topics_was_served(tmp_path: Path, tell: Tell) -> None:
    """Nothing went wrong: neither what is of the former topic, nor that offsets begin anew."""
    report = audited(tmp_path, tell, *REMADE)
    assert told(report) == []
    assert report.exit_code is (
        ExitCode.INCOMPLETE if tell is of_unknown_outcome else ExitCode.CONSISTENT
    )
    assert any(
        "name t, one after the other, the last of them from entry 4 on" in note
        for note in report.notes
    )
    (queue,) = report.queues
    assert queue.stored == 5


def test_what_was_acknowledged_of_either_topic_was_there(tmp_path: Path, engine: Engine) -> None:
    """Before it was made anew, and after; what neither has is lost, on each engine."""
    story = Story()
    read_both(story)
    story.send("f", at=2)
    report = audit_delivery([leader(tmp_path, *REMADE)], [written(tmp_path, story)], engine)
    assert told(report) == [("lost", 2, "f")]
    assert [(queue.stored, queue.compared) for queue in report.queues] == [(5, 13)]


def test_lives_are_as_quick_as_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a life ends is asked once, not for each message that it lacks: it asks for all that the
    life has. And each poll is that life's of which it brought something."""
    asked: list[LoggedQueue] = []
    end: property = vars(LoggedQueue)["end"]

    def noted(queue: LoggedQueue) -> int:
        asked.append(queue)
        return int(end.__get__(queue))

    monkeypatch.setattr(LoggedQueue, "end", property(noted))
    former, count = LoggedQueue(0), 50
    log = LoggedQueue(0, former=(former,))
    for at in range(count):
        log.add(at, f"v{at}")
    story = QueueStory([Sent((0, "p"), (f"lost {at}",), Outcome.OK, at) for at in range(count)])
    assert len([*judge_lives(("t", 0), log, story)]) == 2 * count
    assert len(asked) <= 2 * len(log.lives)
    story = QueueStory(polls=[Polled((0, "c"), False, None, False, ())] * count)
    parts = [QueueStory(), QueueStory()]
    assert not [*_part_polls(("t", 0), log.lives, story, parts)]
    assert not any(part.polls for part in parts)


def lose_before(story: Story) -> None:
    """It isn't there, and what is at its offset in either topic is another one."""
    send_all(story)
    story.send("x", at=1)


def lose_behind_both(story: Story) -> None:
    send_all(story)
    story.send("x", at=7)


def lose_without_a_place(story: Story) -> None:
    send_all(story)
    story.do("p", Send("t", 0, 0, ("x",)), None)


def move(story: Story) -> None:
    story.send(*FORMER, at=0)
    story.send("d", at=1)
    story.send("e")


def skip_within_the_former(story: Story) -> None:
    send_all(story)
    story.poll((0, "a"))
    story.poll((2, "c"))
    story.poll((0, "d"))


def skip_within_the_present(story: Story) -> None:
    send_all(story)
    story.poll((2, "c"))
    story.do("c", Poll("t", 0, 0), ((1, "e"),))


def deliver_what_neither_has(story: Story) -> None:
    send_all(story)
    story.poll((1, "x"))


def deliver_elsewhere(story: Story) -> None:
    send_all(story)
    story.poll((1, "d"))


def deliver_again(story: Story) -> None:
    read_both(story)
    story.poll((1, "e"))


def turn_around(story: Story) -> None:
    story.send(*FORMER, at=0)
    story.send("e", at=1)
    story.send("d", at=0)


def refuse(story: Story) -> None:
    story.send("b", "c", at=1)
    story.send(*PRESENT, at=0)
    story.do("p", Send("t", 0, 0, ("a",)), outcome=Outcome.FAIL)


def never_sent(story: Story) -> None:
    story.send("b", "c", at=1)
    story.send(*PRESENT, at=0)


@pytest.mark.parametrize(
    ("tell", "found"),
    [
        (lose_before, ("lost", 1, "x")),
        (lose_behind_both, ("lost", 7, "x")),
        (lose_without_a_place, ("lost", None, "x")),
        (move, ("moved", 1, "d")),
        (skip_within_the_former, ("lost", 1, "b")),
        (skip_within_the_present, ("lost", 0, "d")),
        (deliver_what_neither_has, ("phantom", 1, "x")),
        (deliver_elsewhere, ("phantom", 1, "d")),
        (deliver_again, ("duplicated", 1, "e")),
        (turn_around, ("reordered", 0, "d")),
        (refuse, ("phantom", 0, "a")),
        (never_sent, ("phantom", 0, "a")),
    ],
)
def test_what_is_wrong_whichever_topic_was_meant_is_told(
    tmp_path: Path, tell: Tell, found: tuple[str, int | None, str]
) -> None:
    """That a name was given anew excuses nothing within one topic, nor what neither has."""
    report = audited(tmp_path, tell, *REMADE)
    assert told(report) == [found]
    assert report.exit_code is ExitCode.INCONSISTENT


def go_back(story: Story) -> None:
    send_all(story)
    story.poll((0, "d"))
    story.poll((2, "c"))


def go_back_within_a_poll(story: Story) -> None:
    send_all(story)
    story.poll((0, "d"), (2, "c"))


def go_on_before_what_was_asked(story: Story) -> None:
    send_all(story)
    story.poll((2, "c"))
    story.do("c", Poll("t", 0, 3), ((0, "d"), (1, "e")))


def store_behind_a_later_one(story: Story) -> None:
    story.send(*PRESENT, at=0)
    story.send(*FORMER)


def others_before(story: Story) -> None:
    """Who used the former topic wrote no history."""
    story.send(*PRESENT, at=0)
    story.poll((0, "d"), (1, "e"))


@pytest.mark.parametrize(
    ("tell", "values"),
    [
        (go_back, ["c"]),
        (go_back_within_a_poll, ["c"]),
        (go_on_before_what_was_asked, ["d"]),
        (store_behind_a_later_one, ["a"]),
        (others_before, ["a", "b", "c"]),
    ],
)
def test_what_may_be_of_another_topic_is_undecided(
    tmp_path: Path, tell: Tell, values: list[str]
) -> None:
    """Late answers, second attempts, producers of whom there is no history: a healthy group's."""
    report = audited(tmp_path, tell, *REMADE)
    assert [(kind, value) for kind, _, value in told(report)] == [
        ("undecided", value) for value in values
    ]
    assert report.exit_code is ExitCode.INCOMPLETE


def test_sent_again_to_the_one_of_now(tmp_path: Path) -> None:
    """The first answer didn't come, the topic was made anew, and the second attempt stored it once
    more. Twice in one topic it may not be."""

    def tell(story: Story) -> None:
        story.send("a", at=0)
        story.send("b", at=0)

    report = audited(tmp_path, tell, at(0, "a", "b"), *ANEW, at(0, "b"))
    assert told(report) == [("undecided", 0, "b")]
    report = audited(tmp_path / "twice", tell, at(0, "a", "a"), *ANEW, at(0, "b"))
    assert told(report) == [("duplicated", 1, "a")]


def test_a_loss_in_another_topic_is_told(tmp_path: Path) -> None:
    """And its notes name the one that was made anew only."""

    def tell(story: Story) -> None:
        read_both(story)
        story.do("p", Send("u", 0, 0, ("u1", "u2")), 0)
        story.do("c2", Poll("u", 0, 0), ((0, "u1"),))

    report = audited(tmp_path, tell, create("u"), at(0, "u1", topic="u"), *REMADE)
    assert told(report) == [("lost", 1, "u2")]
    assert report.anomalies[0].topic == "u"
    assert len([note for note in report.notes if "one after the other" in note]) == 1


@pytest.mark.parametrize(
    "void",
    [(create("t"),), (delete("t", 99), create("t")), (create("t"), delete("t", 1), create("t"))],
)
def test_commands_without_effect_hide_nothing(tmp_path: Path, void: tuple[Entry, ...]) -> None:
    """Whoever makes a topic if there is none makes no other one, and the queue is one."""

    def tell(story: Story) -> None:
        story.send("a", "b", at=0)
        story.send("c", at=2)
        story.poll((0, "a"), (1, "b"))
        story.poll((0, "a"))
        story.send("x", at=1)

    report = audited(tmp_path, tell, at(0, "a", "b"), *void, at(2, "c"))
    assert told(report) == [("duplicated", 0, "a"), ("lost", 1, "x")]
    assert not any("one after the other" in note for note in report.notes)


def test_a_tail_that_nobody_knows_is_the_present_ones(tmp_path: Path) -> None:
    """The former topic has ended in what was read; what is behind the log's end may be of the one
    of now, one message at each offset."""

    def tell(story: Story) -> None:
        send_all(story)
        story.send("f", at=2)
        story.send("x", at=1)
        story.send("g", at=2)

    report = audited(tmp_path, tell, *REMADE, knows_its_end=False)
    assert told(report) == [("lost", 1, "x"), ("lost", 2, "g"), ("undecided", 2, "f")]


@pytest.mark.parametrize("has_voids", [False, True])
def test_what_retention_took_of_a_former_one_is_undecided(*, has_voids: bool) -> None:
    """Of the former topic what lay before 10 is gone. One message each may have been there; the
    present one's hole at 1 is a loss, unless a unit was refused."""
    former = LoggedQueue(10, has_voids=has_voids)
    former.add(10, "f")
    present = LoggedQueue(has_voids=has_voids, former=(former,))
    for offset, value in ((0, "d"), (2, "e")):
        present.add(offset, value)
    process = (0, "p")
    told = [("a", 0), ("b", 1), ("g", 9), ("h", 9), ("f", 10), ("d", 0), ("e", 2), ("x", 11)]
    sends = [Sent(process, (value,), Outcome.OK, offset) for value, offset in told]
    story = QueueStory([*sends, Sent(process, ("z",), Outcome.OK)])
    found = {each.value: each.kind for each in judge_lives(("t", 0), present, story)}
    hole = Kind.UNDECIDED if has_voids else Kind.LOST
    assert found == {
        "a": Kind.UNDECIDED,
        "b": hole,
        "g": Kind.UNDECIDED,
        "h": Kind.LOST,
        "x": Kind.LOST,
        "z": Kind.UNDECIDED,
    }

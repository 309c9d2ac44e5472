"""The delivery audit and what polls asked for: from there on a consumer is owed what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.delivery.check import audit_delivery
from audit.delivery.history import Polled, QueueStory, Sent
from audit.delivery.judge import LoggedQueue, judge_queue
from audit.engines.engine import LocalEngine
from chaos.checkers.history import Poll
from dledger.history import Outcome
from tests.audit.test_delivery import Told, log_of, told, written
from tests.chaos.histories import Story

VALUES = "abcdef"


def ask(
    story: Story, offset: int, *got: int, seek: bool = False, outcome: Outcome = Outcome.OK
) -> None:
    """A poll from `offset` on that got these messages."""
    polled = tuple((at, VALUES[at]) for at in got)
    story.do("c", Poll("t", 0, offset, seek=seek), polled if outcome is Outcome.OK else (), outcome)


def given_too_late(story: Story) -> None:
    ask(story, 0, 4, 5)


def given_too_late_where_it_went(story: Story) -> None:
    ask(story, 0, 0, 1, 2, 3)
    ask(story, 1, 4, seek=True)


def given_too_late_after_going_in_vain(story: Story) -> None:
    ask(story, 0, 0, 1, 2, 3)
    ask(story, 1, seek=True)
    ask(story, 1, 3)


def given_unasked(story: Story) -> None:
    ask(story, 3, 1, 2, 3, seek=True)


def given_too_late_though_it_asked_late(story: Story) -> None:
    ask(story, 0, 0)
    ask(story, 3, 3)


def back_without_going(story: Story) -> None:
    ask(story, 0, 0, 1, 2, 3)
    ask(story, 2, 2)


@pytest.mark.parametrize(
    ("tell", "expected"),
    [
        (given_too_late, ("lost", 0, "a")),
        (given_too_late_where_it_went, ("lost", 1, "b")),
        (given_too_late_after_going_in_vain, ("lost", 1, "b")),
        (given_unasked, ("duplicated", 1, "b")),
        (given_too_late_though_it_asked_late, ("lost", 1, "b")),
        (back_without_going, ("duplicated", 2, "c")),
    ],
)
def test_a_consumer_is_owed_what_it_asked_for(
    tmp_path: Path, tell: Callable[[Story], None], expected: Told
) -> None:
    """The log has a message behind the offset that was asked for, and the poll begins later."""
    story = Story()
    story.send(*VALUES, at=0)
    tell(story)
    report = audit_delivery([log_of(tmp_path, *VALUES)], [written(tmp_path, story)], LocalEngine())
    assert told(report) == [expected]


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("polls", [1, 2])
def test_who_went_elsewhere_is_there_until_something_comes(
    tmp_path: Path, outcome: Outcome, polls: int
) -> None:
    """The poll that went there brought nothing, or failed; the one that brings it only goes on."""
    story = Story()
    story.send(*VALUES, at=0)
    ask(story, 0, 0, 1, 2, 3)
    ask(story, 1, seek=True, outcome=outcome)
    for _ in range(polls - 1):
        ask(story, 1)
    ask(story, 1, 1, 2)
    report = audit_delivery([log_of(tmp_path, *VALUES)], [written(tmp_path, story)], LocalEngine())
    assert (told(report), report.verdict) == ([], "delivered")


def test_what_retention_took_and_void_offsets_are_owed_to_nobody() -> None:
    """Asked for from 0 on, where the log begins at 2, and has nothing at 3."""
    log = LoggedQueue(first=2)
    log.add(2, "c")
    log.add(4, "e")
    sends = [Sent((0, "p"), ("c", "e"), Outcome.OK)]
    for first, last in ((2, "c"), (4, "e")):
        poll = Polled((0, "c"), False, 0 if first == 2 else 3, messages=((first, last),))
        assert list(judge_queue(("t", 0), log, QueueStory(sends, [poll]))) == []


def filtered(path: Path, *, says_so: bool) -> str:
    """The history of a consumer that wanted every other message only, and then the rest."""
    story = Story()
    story.send(*VALUES, at=0)
    ask(story, 0, 1, 3)
    ask(story, 5, 5)
    file = Path(written(path, story))
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if says_so:
        next(line for line in lines if line.get("action") == "poll")["filtered"] = True
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def test_who_wants_some_messages_only_lost_no_others(tmp_path: Path) -> None:
    """Neither within its poll nor up to where the next one asks; a note says what isn't judged."""
    replica = log_of(tmp_path, *VALUES)
    report = audit_delivery([replica], [filtered(tmp_path, says_so=True)], LocalEngine())
    assert (told(report), report.verdict) == ([], "delivered")
    assert any("1 polls wanted some of the messages only" in note for note in report.notes)
    report = audit_delivery([replica], [filtered(tmp_path, says_so=False)], LocalEngine())
    assert told(report) == [("lost", 0, "a"), ("lost", 2, "c"), ("lost", 4, "e")]
    assert not any("only" in note for note in report.notes)


def test_a_history_needs_no_offsets_of_polls() -> None:
    """Then a consumer begins where its first poll does."""
    log = LoggedQueue()
    for at, value in enumerate(VALUES):
        log.add(at, value)
    sends = [Sent((0, "p"), tuple(VALUES), Outcome.OK, 0)]
    poll = Polled((0, "c"), False, messages=((4, "e"),))
    assert list(judge_queue(("t", 0), log, QueueStory(sends, [poll]))) == []

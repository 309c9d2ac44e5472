"""The linearizability checks: what one order can explain, and what none can."""

from __future__ import annotations

import pytest

from chaos.checkers.history import (
    Action,
    Commit,
    Create,
    Delete,
    End,
    Exists,
    Fetch,
    Operation,
    Poll,
    Send,
)
from chaos.checkers.linearizability import Model, check_linearizability
from chaos.errors import SearchTooLong
from dledger.history import Outcome
from tests.chaos.histories import Story

OFFSET = ("t", "g", 0)


def broken(story: Story) -> list[str]:
    return [anomaly.where for anomaly in check_linearizability(story.history).anomalies]


def test_topic_seen_after_its_creation() -> None:
    """A creation that has ended is seen by everybody who asks later."""
    story = Story()
    story.do("a", Create("x", 1))
    story.do("b", Exists("x"), False)
    assert broken(story) == ["topic x"]


def test_topic_may_be_seen_while_it_is_created() -> None:
    """During the creation both answers are right, in this order only."""
    story = Story()
    create = story.begin("a", Create("x", 1))
    story.do("b", Exists("x"), False)
    story.do("b", Exists("x"), True)
    story.end(create)
    assert broken(story) == []


def test_topic_does_not_flicker() -> None:
    """Seen and then not seen, with nobody deleting, has no explanation."""
    story = Story()
    create = story.begin("a", Create("x", 1))
    story.do("b", Exists("x"), True)
    story.do("b", Exists("x"), False)
    story.end(create)
    assert broken(story) == ["topic x"]


def test_unknown_creation_may_happen_late_or_never() -> None:
    """An unknown operation may take effect at any time after it began."""
    story = Story()
    story.begin("a", Create("x", 1))
    story.do("b", Exists("x"), False)
    story.do("b", Exists("x"), True)
    assert broken(story) == []


def test_topic_created_twice() -> None:
    """Two creations can't both succeed without a deletion between them."""
    story = Story()
    story.do("a", Create("x", 1))
    story.do("b", Create("x", 1))
    assert broken(story) == ["topic x"]
    story = Story()
    story.do("a", Create("x", 1))
    story.do("b", Delete("x"))
    story.do("b", Create("x", 1))
    assert broken(story) == []


def test_refused_operation_changes_nothing() -> None:
    """A deletion that did not happen explains no disappearance."""
    story = Story()
    story.do("a", Create("x", 1))
    story.do("b", Delete("x"), outcome=Outcome.FAIL)
    story.do("b", Exists("x"), False)
    assert broken(story) == ["topic x"]


CREATE, DELETE, EXISTS = Create("x", 1), Delete("x"), Exists("x")
THERE_IS_ONE, THERE_IS_NONE = "TOPIC_EXISTS", "TOPIC_NOT_FOUND"


def test_refused_creation_says_that_there_is_a_topic() -> None:
    """Whoever is told that a topic exists, where none can, was lied to."""
    story = Story()
    story.refuse("a", CREATE, THERE_IS_ONE)
    assert broken(story) == ["topic x"]
    story = Story()
    story.do("a", CREATE)
    story.refuse("b", CREATE, THERE_IS_ONE)
    story.do("b", DELETE)
    assert broken(story) == []
    story.refuse("a", CREATE, THERE_IS_ONE)
    assert broken(story) == ["topic x"]


def test_refused_deletion_says_that_there_is_no_topic() -> None:
    """Whoever is told that a topic is gone, while it is there, was lied to."""
    story = Story()
    story.refuse("a", DELETE, THERE_IS_NONE)
    story.do("a", CREATE)
    assert broken(story) == []
    story.refuse("b", DELETE, THERE_IS_NONE)
    assert broken(story) == ["topic x"]


@pytest.mark.parametrize(
    "action",
    [
        Send("x", 0, 0, ("a",)),
        Poll("x", 0, 0),
        End("x", 0),
        Commit("x", "g", 0, 7),
        Fetch("x", "g", 0),
    ],
)
def test_whoever_uses_a_topic_that_exists_is_not_told_that_it_is_gone(action: Action) -> None:
    """It is an answer about the topic, and none about what it holds."""
    story = Story()
    story.refuse("a", action, THERE_IS_NONE)
    story.do("a", CREATE)
    story.refuse("b", action, "QUEUE_NOT_FOUND")
    assert broken(story) == []
    story.refuse("b", action, THERE_IS_NONE)
    assert broken(story) == ["topic x"]


def test_batch_may_be_told_of_a_deletion_that_is_under_way() -> None:
    """And the topic be there after that: ADR 20."""
    story = Story()
    story.do("a", CREATE)
    deletion = story.begin("a", DELETE)
    story.refuse("b", Send("x", 0, 0, ("a",)), THERE_IS_NONE)
    story.do("b", Exists("x"), True)
    story.end(deletion)
    assert broken(story) == []


def test_creation_is_told_of_no_topic_that_was_deleted_meanwhile() -> None:
    """What that refusal says of the creation nobody knows."""
    story = Story()
    story.do("a", CREATE)
    story.refuse("b", CREATE, THERE_IS_NONE)
    assert broken(story) == []


def test_refusal_may_be_of_any_instant_while_it_was_asked() -> None:
    """Beside a creation both answers are right."""
    for action, refusal in ((CREATE, THERE_IS_ONE), (DELETE, THERE_IS_NONE)):
        story = Story()
        created = story.begin("a", CREATE)
        story.refuse("b", action, refusal)
        story.end(created)
        assert broken(story) == []


def test_refusal_may_rest_on_what_nobody_knows_to_have_happened() -> None:
    """A creation without an answer explains it; a refusal that ends later doesn't."""
    story = Story()
    story.begin("a", CREATE)
    story.refuse("b", CREATE, THERE_IS_ONE)
    assert broken(story) == []
    story = Story()
    later = story.begin("a", CREATE)
    story.refuse("b", CREATE, THERE_IS_ONE)
    story.history.refuse(story.tick(), later, THERE_IS_ONE)
    (found,) = check_linearizability(story.history).anomalies
    assert (found.where, found.operations) == ("topic x", (1,))


@pytest.mark.parametrize(("action", "refusal"), [(CREATE, THERE_IS_ONE), (DELETE, THERE_IS_NONE)])
def test_refusal_that_may_answer_an_attempt_of_its_own_says_nothing(
    action: Create | Delete, refusal: str
) -> None:
    """A creation that is sent again is told that the topic exists: it may have made it itself."""
    story = Story()
    if action == DELETE:
        story.do("a", CREATE)
    tried_again = story.begin("b", action)
    story.end(tried_again, outcome=Outcome.UNKNOWN)
    tried_again.refusal = refusal  # whatever a recorder says beside
    story.do("c", EXISTS, action == CREATE)
    assert broken(story) == []


@pytest.mark.parametrize("refusal", ["", "LIMIT_REACHED", "NOT_LEADER"])
def test_other_refusals_say_nothing_of_the_topic(refusal: str) -> None:
    """Nor does one of which nobody knows why, as older histories have it."""
    story = Story()
    story.refuse("a", CREATE, refusal)
    story.do("a", CREATE)
    story.refuse("a", DELETE, refusal)
    assert broken(story) == []


def test_committed_offset_never_goes_back() -> None:
    """A commit below the present offset leaves it, and a fetch never sees less."""
    story = Story()
    story.do("a", Commit(*OFFSET, 7))
    story.do("a", Commit(*OFFSET, 3))
    story.do("b", Fetch(*OFFSET), 7)
    assert broken(story) == []
    story.do("b", Fetch(*OFFSET), 3)
    assert broken(story) == ["offset of g in t/0"]


def test_commit_answers_with_the_offset_that_stands() -> None:
    """One that came too late is told of the higher one, and no other."""
    for answer, found in ((7, []), (3, ["offset of g in t/0"])):
        story = Story()
        story.do("a", Commit(*OFFSET, 7), 7)
        story.do("b", Commit(*OFFSET, 3), answer)
        assert broken(story) == found


def test_fetch_misses_a_commit() -> None:
    """A committed offset is found by whoever asks afterwards."""
    story = Story()
    story.do("a", Commit(*OFFSET, 7))
    story.do("b", Fetch(*OFFSET), None)
    assert broken(story) == ["offset of g in t/0"]


def test_end_of_queue_is_ordered_with_sends() -> None:
    """A read that saw a message can't be followed by that message's send."""
    story = Story()
    story.do("c", End("t", 0), 1)
    story.do("p", Send("t", 0, 0, ("a",)), 0)
    assert broken(story) == ["t/0"]


def test_end_of_queue_may_run_beside_a_send() -> None:
    """A read beside a send may see it or not."""
    for seen in (0, 1):
        story = Story()
        send = story.begin("p", Send("t", 0, 0, ("a",)))
        story.do("c", End("t", 0), seen)
        story.end(send, 0)
        assert broken(story) == []


def test_many_unknown_operations_are_decided() -> None:
    """The memory of tried states keeps a crowd of unknown commits decidable."""
    story = Story()
    for offset in range(30):
        story.begin(f"p{offset}", Commit(*OFFSET, offset))
    story.do("b", Fetch(*OFFSET), 12)
    story.do("b", Fetch(*OFFSET), 29)
    story.do("b", Fetch(*OFFSET), 29)
    assert broken(story) == []


def crowd(story: Story, topic: str, *, is_explained: bool) -> None:
    """Calls side by side at one topic; if they can't be explained, what they did can't either."""
    created = [story.begin(f"{topic}{n}", Create(topic, 1)) for n in range(9)]
    seen = [story.begin(f"{topic}e{n}", Exists(topic)) for n in range(9)]
    for each in created[:1] if is_explained else created[:2]:
        story.end(each)
    for each in seen:
        story.end(each, True)


def test_key_whose_search_is_too_long_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What queues' ends and other keys show is found, before and behind it; the key is told."""
    monkeypatch.setattr("chaos.checkers.linearizability.MAX_STEPS", 40)
    story = Story()
    story.do("c", End("t", 0), 1)
    story.do("p", Send("t", 0, 0, ("a",)), 0)
    story.do("a", Create("before", 1))
    story.do("b", Exists("before"), False)
    crowd(story, "crowded", is_explained=False)
    story.do("a", Create("behind", 1))
    story.do("b", Exists("behind"), False)
    story.do("a", Commit(*OFFSET, 7))
    story.do("b", Fetch(*OFFSET), 3)
    found = check_linearizability(story.history)
    wrong = ["t/0", "topic before", "topic behind", "offset of g in t/0"]
    assert [each.where for each in found.anomalies] == wrong
    assert [each.key for each in found.undecided] == ["topic crowded"]


def test_anomaly_that_cannot_be_shown_in_few_words_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the shortest story that is wrong has no say in whether there is one."""
    story = Story()
    story.do("a", Create("x", 1))
    story.do("b", Exists("x"), False)
    searches = [0]

    def once(key: str, operations: list[Operation], model: Model[bool]) -> None:
        searches[0] += 1
        if searches[0] > 1:
            raise SearchTooLong(key, len(operations), 2)

    monkeypatch.setattr("chaos.checkers.linearizability.find_order", once)
    (found,) = check_linearizability(story.history).anomalies
    assert (found.where, found.operations) == ("topic x", (0, 1))
